"""Kernels for published records: joining the columns of rows into JSON, and choosing partitions as Kafka's Java client
does."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from platform_assets.kernels.compilation import (
    BYTES,
    FILLED_BYTES,
    FILLED_INTS,
    FILLED_LONGS,
    INT,
    INTS,
    LONGS,
    Whole,
    kernel,
)
from platform_assets.kernels.memory import copy_bytes, load8, load32

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int32]
Longs = npt.NDArray[np.int64]

_LOW = np.uint64(0xFFFFFFFF)
_SEED = np.uint64(0x9747B28C)
_FACTOR = np.uint64(0x5BD1E995)
_POSITIVE = np.uint64(0x7FFFFFFF)


@kernel(BYTES, INTS, INT, BYTES, LONGS, FILLED_BYTES, FILLED_LONGS)
def join_columns(
    data: Bytes, bounds: Ints, rows: Whole, openings: Bytes, opening_bounds: Longs, into: Bytes, ends: Longs
) -> None:
    """Join the texts of columns row by row, each after the column's opening, and end each row with the last opening.

    `data` and `bounds` are the texts of all columns, one column after the other, `rows` texts each. `into` needs
    room for all texts, and for all openings in each row. `ends[row + 1]` becomes the end of a row in `into`.
    """
    columns = len(opening_bounds) - 2
    at = np.int64(0)
    ends[0] = 0
    for row in range(rows):
        for column in range(columns):
            start = opening_bounds[column]
            size = opening_bounds[column + 1] - start
            copy_bytes(into, at, openings, start, size)
            at += size
            place = column * rows + row
            first = np.int64(bounds[place])
            size = np.int64(bounds[place + 1]) - first
            copy_bytes(into, at, data, first, size)
            at += size
        start = opening_bounds[columns]
        size = opening_bounds[columns + 1] - start
        copy_bytes(into, at, openings, start, size)
        at += size
        ends[row + 1] = at


@kernel(BYTES, LONGS, INT, FILLED_INTS)
def partitions_of(data: Bytes, bounds: Longs, number: Whole, into: Ints) -> None:
    """Fill `into` with the partition of each key, out of `number` partitions: MurmurHash2 of the key with the seed and
    the sign that Kafka's Java client uses, modulo `number`."""
    for row in range(len(into)):
        at, end = bounds[row], bounds[row + 1]
        h = _SEED ^ np.uint64(end - at)
        while at + 4 <= end:
            k = (np.uint64(load32(data, at)) * _FACTOR) & _LOW
            k ^= k >> np.uint64(24)
            k = (k * _FACTOR) & _LOW
            h = ((h * _FACTOR) & _LOW) ^ k
            at += 4
        left = end - at
        if left == 3:
            h ^= np.uint64(load8(data, at + 2)) << np.uint64(16)
        if left >= 2:
            h ^= np.uint64(load8(data, at + 1)) << np.uint64(8)
        if left >= 1:
            h ^= np.uint64(load8(data, at))
            h = (h * _FACTOR) & _LOW
        h ^= h >> np.uint64(13)
        h = (h * _FACTOR) & _LOW
        h ^= h >> np.uint64(15)
        into[row] = np.int64(h & _POSITIVE) % number
