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
"""Maximum number of bytes in an array with 32-bit offsets."""


@kernel(INTS)
def total_size(sizes: Ints) -> int:
    """Return the sum of all sizes that are not negative. A negative size belongs to a null."""
    total = 0
    for size in sizes:
        if size > 0:
            total += size
    return total


@kernel(BYTES, INTS, INTS, FILLED_INTS, FILLED_BYTES, FILLED_BYTES)
def gather(data: Bytes, positions: Ints, sizes: Ints, offsets: Ints, values: Bytes, validity: Bytes) -> int:
    """Copy each value `data[positions[i]:positions[i] + sizes[i]]` into `values`, one after the other. A negative size
    stands for a null.

    Fills `offsets`, which has one entry more than `sizes`, and the bits of `validity`, which must all be 0. Returns the
    number of nulls.
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
    """Fill the offsets of lists; list `i` has `counts[i]` elements. An empty list is a null. Returns the number of
    nulls."""
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
    """Convert values from milliseconds to microseconds in place. Return the first index whose microseconds do not fit
    in 64 bits, or -1. The values at this index and after it are unchanged."""
    for index in range(milliseconds.size):
        value = milliseconds[index]
        if value > 9223372036854775 or value < -9223372036854775:
            return index
        milliseconds[index] = value * 1000
    return -1
