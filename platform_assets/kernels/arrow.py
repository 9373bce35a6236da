"""Kernels that fill Arrow buffers: https://arrow.apache.org/docs/format/Columnar.html."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from platform_assets.kernels.compilation import (
    BYTES,
    FILLED_BYTES,
    FILLED_INTS,
    FILLED_LONGS,
    INTS,
    kernel,
)
from platform_assets.kernels.memory import copy_bytes

Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]
Ints = npt.NDArray[np.int32]

LARGEST = (1 << 31) - 1
"""Maximum bytes of an array with 32-bit offsets."""


@kernel(INTS)
def total_size(sizes: Ints) -> int:
    """Return the sum of the sizes that are not negative, that is, of the values that are not null."""
    total = 0
    for size in sizes:
        if size > 0:
            total += size
    return total


@kernel(BYTES, INTS, INTS, FILLED_INTS, FILLED_BYTES, FILLED_BYTES)
def gather(data: Bytes, positions: Ints, sizes: Ints, offsets: Ints, values: Bytes, validity: Bytes) -> int:
    """Copy `data[positions[i]:positions[i] + sizes[i]]` into `values`, one after the other; a negative size is a null.

    Fills `offsets` (one longer than `sizes`) and the bits of `validity` (all 0 before). Returns the number of nulls.
    """
    at = np.int64(0)
    nulls = 0
    for index in range(sizes.size):
        offsets[index] = at
        size = np.int64(sizes[index])
        if size < 0:
            nulls += 1
            continue
        validity[index >> 3] |= np.uint8(1 << (index & 7))
        copy_bytes(values, at, data, np.int64(positions[index]), size)
        at += size
    offsets[sizes.size] = at
    return nulls


@kernel(INTS, FILLED_INTS, FILLED_BYTES)
def list_offsets(counts: Ints, offsets: Ints, validity: Bytes) -> int:
    """Fill the offsets of lists of `counts` elements each; an empty one is a null. Returns the number of nulls."""
    at = nulls = 0
    for index in range(counts.size):
        offsets[index] = at
        if counts[index]:
            validity[index >> 3] |= np.uint8(1 << (index & 7))
        else:
            nulls += 1
        at += counts[index]
    offsets[counts.size] = at
    return nulls


@kernel(FILLED_LONGS)
def to_microseconds(milliseconds: Longs) -> int:
    """Convert in place. Return the first index whose microseconds do not fit 64 bits, or -1; values after it are
    unchanged."""
    for index in range(milliseconds.size):
        value = milliseconds[index]
        if value > 9223372036854775 or value < -9223372036854775:
            return index
        milliseconds[index] = value * 1000
    return -1
