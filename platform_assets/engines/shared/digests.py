"""Both digests of rows, computed from Arrow columns; docs/DIGEST.md defines the digests."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from platform_assets.kernels import hashing
from platform_assets.model.digest import Digest, Measured

_NOTHING = np.empty(0, np.uint8)


def measured(rows: pa.RecordBatch) -> Measured:
    """Return the digests of rows that have the columns of a raw table, without `topic_id` and `window`."""
    return measured_by_run(rows, [rows.num_rows])[0]


def measured_by_run(rows: pa.RecordBatch, ends: Sequence[int]) -> list[Measured]:
    """Return the digests of each run of rows. `ends` are the exclusive ends of the runs, in ascending order; the last
    one is the number of rows."""
    sums = np.zeros(4 * len(ends), np.uint64)
    hashing.add_content_hashes(
        numbers(rows["kafka_partition"], np.int32),
        numbers(rows["kafka_offset"], np.int64),
        numbers(_micros(rows["kafka_timestamp"]), np.int64),
        numbers(rows["kafka_timestamp_type"], np.int32),
        *_bytes(rows["key"]),
        *_bytes(rows["value"]),
        _header_hashes(rows["headers"]),
        np.array(ends, np.int64),
        np.empty(hashing.ROWS_AT_A_TIME, np.uint64),
        sums,
    )
    return by_run(ends, sums)


def by_run(ends: Sequence[int], sums: npt.NDArray[np.uint64]) -> list[Measured]:
    """Return the digests of runs, from the four sums of each run that kernels compute."""
    counts = [end - begin for begin, end in pairwise((0, *ends))]
    return [
        Measured(Digest.from_halves(rows, *halves[:2]), Digest.from_halves(rows, *halves[2:]))
        for rows, halves in zip(counts, sums.reshape(-1, 4).tolist(), strict=True)
    ]


def _header_hashes(headers: pa.ListArray) -> npt.NDArray[np.int64]:
    if headers.null_count == len(headers):
        return np.full(len(headers), -1, np.int64)
    hashes = np.empty(len(headers), np.int64)
    each = headers.values
    if each.null_count:
        raise ValueError("a null header has no digest; raw tables have no such headers")
    offsets = _slice(headers.buffers()[1], np.int32, headers.offset, len(headers) + 1)
    hashing.hash_headers(offsets, _validity(headers), *_bytes(each.field(0)), *_bytes(each.field(1)), hashes)
    return hashes


def _bytes(array: pa.Array) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int32], npt.NDArray[np.uint8]]:
    """Return the bytes of a binary or string array, the array's offsets into these bytes, and its validity bitmap."""
    if array.type not in (pa.binary(), pa.string()):
        raise TypeError(f"{array.type} instead of binary or string")
    _, offsets, data = array.buffers()
    found = _NOTHING if data is None else np.frombuffer(data, np.uint8)
    return found, _slice(offsets, np.int32, array.offset, len(array) + 1), _validity(array)


def numbers(array: pa.Array, kind: type[np.generic]) -> npt.NDArray[Any]:
    """Return the values of a column without copying them. Raises TypeError if there are nulls, or if the column's width
    differs from the width of `kind`."""
    if array.null_count or array.type.bit_width != 8 * np.dtype(kind).itemsize:
        raise TypeError(f"a raw table has no {array.type} with {array.null_count} nulls")
    return _slice(array.buffers()[1], kind, array.offset, len(array))


def _micros(array: pa.Array) -> pa.Array:
    """Return an array of times in microseconds. Raises TypeError for other units, which have the same width but
    different values."""
    if not pa.types.is_timestamp(array.type) or array.type.unit != "us":
        raise TypeError(f"{array.type} instead of a timestamp in microseconds")
    return array


def _validity(array: pa.Array) -> npt.NDArray[np.uint8]:
    """Return the validity bitmap, starting with the array's own first bit. The bitmap is empty if there are no nulls."""
    if not array.null_count:
        return _NOTHING
    if array.offset % 8 == 0:
        return np.frombuffer(array.buffers()[0], np.uint8)[array.offset // 8 :]
    return np.packbits(array.is_valid().to_numpy(zero_copy_only=False), bitorder="little")


def _slice(buffer: pa.Buffer | None, kind: type[np.generic], start: int, size: int) -> npt.NDArray[Any]:
    if buffer is None or not buffer.size:
        return np.zeros(size, kind)  # an empty array may come without buffers
    return np.frombuffer(buffer, kind)[start : start + size]
