"""Kernels that write Avro and Protobuf column by column: each fills `into` with one encoding for each row, and
`ends[row + 1]` with the end of a row's encoding. `data` and `bounds` are encodings that an earlier kernel made; those of
row `n` are `data[bounds[n]:bounds[n + 1]]`."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from platform_assets.kernels.compilation import BYTES, FILLED_BYTES, FILLED_LONGS, INT, LONGS, Whole, inlined, kernel
from platform_assets.kernels.memory import copy_bytes

Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]

MOST_VARINT = 10
"""Maximum number of bytes of a variable-length number."""
_LOW = np.uint64(0x7F)
_MORE = np.uint64(0x80)
_SEVEN = np.uint64(7)
_ONE = np.uint64(1)


@inlined
def _write(value: Whole, zigzag: Whole, into: Bytes, at: np.int64) -> np.int64:
    """Write a number as a varint, and return the end of what was written."""
    left = np.uint64(value)
    if zigzag:
        left = (np.uint64(value) << _ONE) ^ np.uint64(value >> 63)
    while left >= _MORE:
        into[at] = np.uint8((left & _LOW) | _MORE)
        left >>= _SEVEN
        at += 1
    into[at] = np.uint8(left)
    return at + 1


@inlined
def _byte(low: np.uint64, high: np.uint64, number: Whole) -> np.uint64:
    """Return the byte with this number, from the least significant one on, of two words."""
    word = low if number < 8 else high
    return (word >> np.uint64(8 * (number & 7))) & np.uint64(255)


@kernel(LONGS, INT, FILLED_BYTES, FILLED_LONGS)
def varints(values: Longs, zigzag: Whole, into: Bytes, ends: Longs) -> None:
    """Write each number as a varint, with `zigzag` in that form. `into` needs room for 10 bytes a number."""
    at = np.int64(0)
    ends[0] = 0
    for row in range(len(values)):
        at = _write(values[row], zigzag, into, at)
        ends[row + 1] = at


@kernel(BYTES, LONGS, INT, FILLED_BYTES, FILLED_LONGS)
def sized(data: Bytes, bounds: Longs, zigzag: Whole, into: Bytes, ends: Longs) -> None:
    """Write each encoding after its size as a varint. `into` needs room for the data, and for 10 bytes a row."""
    at = np.int64(0)
    ends[0] = 0
    for row in range(len(bounds) - 1):
        size = bounds[row + 1] - bounds[row]
        at = _write(size, zigzag, into, at)
        copy_bytes(into, at, data, bounds[row], size)
        at += size
        ends[row + 1] = at


@kernel(BYTES, LONGS, BYTES, BYTES, BYTES, FILLED_BYTES, FILLED_LONGS)
def marked(data: Bytes, bounds: Longs, valid: Bytes, present: Bytes, absent: Bytes, into: Bytes, ends: Longs) -> None:
    """Write each encoding after `present` if `valid` is not 0 for its row, and only `absent` otherwise. `into` needs room
    for the data, and for the longer of both marks for each row."""
    at = np.int64(0)
    ends[0] = 0
    for row in range(len(bounds) - 1):
        if valid[row]:
            for byte in present:
                into[at] = byte
                at += 1
            size = bounds[row + 1] - bounds[row]
            copy_bytes(into, at, data, bounds[row], size)
            at += size
        else:
            for byte in absent:
                into[at] = byte
                at += 1
        ends[row + 1] = at


@kernel(BYTES, LONGS, LONGS, INT, FILLED_BYTES, FILLED_LONGS)
def grouped(data: Bytes, bounds: Longs, groups: Longs, counted: Whole, into: Bytes, ends: Longs) -> None:
    """Write the encodings `[groups[row], groups[row + 1])` of each row one after the other; with `counted`, as an Avro
    block with its count and the end of blocks. `into` needs room for the data, and for 11 bytes a row."""
    at = np.int64(0)
    ends[0] = 0
    for row in range(len(groups) - 1):
        first, last = groups[row], groups[row + 1]
        if counted and last > first:
            at = _write(last - first, 1, into, at)
        size = bounds[last] - bounds[first]
        copy_bytes(into, at, data, bounds[first], size)
        at += size
        if counted:
            into[at] = 0
            at += 1
        ends[row + 1] = at


@kernel(BYTES, LONGS, INT, FILLED_BYTES, FILLED_LONGS)
def joined(data: Bytes, bounds: Longs, rows: Whole, into: Bytes, ends: Longs) -> None:
    """Join the encodings of columns row by row. `data` and `bounds` are those of all columns, one column after the other,
    `rows` encodings each. `into` needs room for the data."""
    columns = (len(bounds) - 1) // max(rows, 1)
    at = np.int64(0)
    ends[0] = 0
    for row in range(rows):
        for column in range(columns):
            first = bounds[column * rows + row]
            size = bounds[column * rows + row + 1] - first
            copy_bytes(into, at, data, first, size)
            at += size
        ends[row + 1] = at


@kernel(LONGS, INT, FILLED_BYTES, FILLED_LONGS)
def big_endian(words: Longs, size: Whole, into: Bytes, ends: Longs) -> None:
    """Write each 128-bit number, which is two words, the lower one first, in two's complement with the most significant
    byte first: in `size` bytes, at most 16, or with 0 in as few as possible. `into` needs room for 16 bytes a number."""
    at = np.int64(0)
    ends[0] = 0
    for row in range(len(words) // 2):
        low, high = np.uint64(words[2 * row]), np.uint64(words[2 * row + 1])
        left = np.int64(size)
        if not size:
            left = np.int64(16)
            while left > 1:
                top, below = _byte(low, high, left - 1), _byte(low, high, left - 2)
                if not ((top == 0 and below < 128) or (top == 255 and below >= 128)):
                    break
                left -= 1
        while left > 0:
            left -= 1
            into[at] = np.uint8(_byte(low, high, left))
            at += 1
        ends[row + 1] = at
