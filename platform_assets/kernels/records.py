"""Kernels that find the parts of each record in the bodies of record batches (magic 2).

Layout of a record: https://kafka.apache.org/documentation/#record. Nothing is copied: the results are positions and
lengths in the input bytes. No byte after the end of a batch is read, whatever the batch's records claim.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from platform_assets.kernels.compilation import (
    BYTES,
    FILLED_INTS,
    FILLED_LONGS,
    INT,
    INTS,
    LONGS,
    Whole,
    inlined,
    kernel,
)

Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]
Ints = npt.NDArray[np.int32]

INTACT, CONTRADICTION, CUT_OFF, TRAILING, TOO_MANY_HEADERS = 0, 1, 2, 3, 4
"""Faults of a batch. INTACT: there is no fault. CONTRADICTION: a record contradicts the header of its batch or itself.
CUT_OFF: the batch ends before its records are complete. TRAILING: bytes follow the last record. TOO_MANY_HEADERS: the
records have more headers than allowed."""
NULL = -1
"""Length that stands for a null."""


@inlined
def _varint(data: Bytes, at: Whole, stop: Whole) -> tuple[Whole, Whole]:
    """Read a zigzag varint at `at`. Return the number, and the position after its bytes. The position is `stop + 1` if
    the varint is not complete before `stop`."""
    value = np.uint64(0)
    shift = np.uint64(0)
    while at < stop and shift < 64:
        byte = np.uint64(data[at])
        at += 1
        value |= (byte & np.uint64(0x7F)) << shift
        if byte < 128:
            return np.int64(value >> np.uint64(1)) ^ -np.int64(value & np.uint64(1)), at
        shift += np.uint64(7)
    return np.int64(0), stop + 1


@kernel(BYTES, *[LONGS] * 8, INT, INT, INT, *[FILLED_LONGS] * 2, *[FILLED_INTS] * 7)
def find_records(
    data: Bytes,
    starts: Longs,
    ends: Longs,
    counts: Longs,
    bases: Longs,
    lasts: Longs,
    stamps: Longs,
    newest: Longs,
    append_time: Longs,
    first: int,
    end: int,
    most_headers: int,
    offsets: Longs,
    timestamps: Longs,
    timestamp_types: Ints,
    keys: Ints,
    key_sizes: Ints,
    values: Ints,
    value_sizes: Ints,
    headers: Ints,
    header_counts: Ints,
) -> tuple[int, int, int]:
    """Find the records at offsets `[first, end)` in batches whose bodies are `data[starts[i]:ends[i]]`.

    The inputs for each batch are its number of records, its first and last offset (inclusive), its first and its newest
    timestamp, and a flag. The flag is 1 if the broker set all timestamps to the newest timestamp, or else 0. The last
    nine arrays are filled, and must be large enough for all records. `headers` is the position of a record's first
    header.

    The records of a batch can have at most `most_headers` headers in total.

    Returns the number of records found, the fault of the batches (see INTACT), and the index of the faulty batch.
    """
    found = 0
    for index in range(starts.size):
        at, stop = starts[index], ends[index]
        previous = bases[index] - 1
        headers_left: Whole = np.int64(most_headers)
        for _ in range(counts[index]):
            size, at = _varint(data, at, stop)
            if size < 0 or size > stop - at:
                return found, CUT_OFF, index
            behind = at + size
            later, at = _varint(data, at + 1, behind)  # after one byte of attributes
            delta, at = _varint(data, at, behind)
            offset = bases[index] + delta
            if offset <= previous or offset > lasts[index]:
                return found, CONTRADICTION, index
            previous = offset
            key_size, at = _varint(data, at, behind)
            key = at
            if key_size > behind - at:
                return found, CONTRADICTION, index
            if key_size > 0:
                at += key_size
            value_size, at = _varint(data, at, behind)
            value = at
            if value_size > behind - at:
                return found, CONTRADICTION, index
            if value_size > 0:
                at += value_size
            header_count, at = _varint(data, at, behind)
            header = at
            # Each header takes at least two bytes, which limits the memory for a false count.
            if header_count < 0 or header_count > (behind - at) // 2:
                return found, CONTRADICTION, index
            headers_left -= header_count
            if headers_left < 0:
                return found, TOO_MANY_HEADERS, index
            for _ in range(header_count):
                part, at = _varint(data, at, behind)
                if part < 0 or part > behind - at:
                    return found, CONTRADICTION, index
                part, at = _varint(data, at + part, behind)
                if part > behind - at:
                    return found, CONTRADICTION, index
                if part > 0:
                    at += part
            if at != behind:
                return found, CONTRADICTION, index
            if offset < first or offset >= end:
                continue
            offsets[found] = offset
            timestamps[found] = newest[index] if append_time[index] else stamps[index] + later
            timestamp_types[found] = append_time[index]
            keys[found] = key
            key_sizes[found] = max(key_size, NULL)
            values[found] = value
            value_sizes[found] = max(value_size, NULL)
            headers[found] = header
            header_counts[found] = header_count
            found += 1
        if at != stop:
            return found, TRAILING, index
    return found, INTACT, -1


@kernel(BYTES, INTS, INTS, *[FILLED_INTS] * 4)
def find_headers(
    data: Bytes, headers: Ints, counts: Ints, keys: Ints, key_sizes: Ints, values: Ints, value_sizes: Ints
) -> None:
    """For each record, find the `counts[i]` headers that start at position `headers[i]`, and fill the last four arrays.
    `find_records` must already have found the headers intact."""
    found = 0
    for index in range(headers.size):
        at: Whole = np.int64(headers[index])
        for _ in range(counts[index]):
            size, at = _varint(data, at, data.size)
            keys[found], key_sizes[found] = at, size
            size, at = _varint(data, at + size, data.size)
            values[found], value_sizes[found] = at, max(size, NULL)
            at += max(size, 0)
            found += 1


@kernel(BYTES, LONGS, LONGS, FILLED_INTS)
def control_types(data: Bytes, starts: Longs, ends: Longs, types: Ints) -> int:
    """Fill `types` with the type of the first control record in each batch: 0 for abort, 1 for commit. The body of a
    batch is `data[starts[i]:ends[i]]`.

    Returns the index of the first batch that does not contain a control record with a type, or -1 if there is no such
    batch.
    """
    for index in range(starts.size):
        stop = ends[index]
        size, at = _varint(data, starts[index], stop)
        if size < 0 or size > stop - at:
            return index
        behind = at + size
        _, at = _varint(data, at + 1, behind)
        _, at = _varint(data, at, behind)
        size, at = _varint(data, at, behind)
        if size < 4 or size > behind - at:
            return index
        types[index] = np.int32(data[at + 2]) << 8 | np.int32(data[at + 3])
    return -1
