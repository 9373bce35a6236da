"""Kernels that check if pieces of text are UTF-8. Piece `i` is `data[starts[i]:starts[i] + sizes[i]]`. A negative size
stands for a null."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from platform_assets.kernels.compilation import BYTES, FILLED_BYTES, INT, INTS, Truth, Whole, kernel
from platform_assets.kernels.memory import load64

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int32]

_HIGH_BITS = np.uint64(0x8080808080808080)


@kernel(BYTES, INT, INT)
def is_utf8(data: Bytes, at: Whole, end: Whole) -> Truth:
    """Return True if `data[at:end]` is UTF-8 by RFC 3629, which allows neither surrogates nor overlong forms."""
    while at < end:
        if at + 8 <= end and (load64(data, at) & _HIGH_BITS) == np.uint64(0):
            at += 8
            continue
        first = data[at]
        if first < 0x80:
            at += 1
            continue
        low, high = 0x80, 0xBF  # Bounds of the second byte, which exclude overlong forms, surrogates and too large
        # values.
        if 0xC2 <= first <= 0xDF:
            more = 1
        elif 0xE0 <= first <= 0xEF:
            more = 2
            if first == 0xE0:
                low = 0xA0
            elif first == 0xED:
                high = 0x9F
        elif 0xF0 <= first <= 0xF4:
            more = 3
            if first == 0xF0:
                low = 0x90
            elif first == 0xF4:
                high = 0x8F
        else:
            return False
        if at + more >= end or not low <= data[at + 1] <= high:
            return False
        for further in range(2, more + 1):
            if (data[at + further] & 0xC0) != 0x80:
                return False
        at += more + 1
    return True


@kernel(BYTES, INTS, INTS, FILLED_BYTES)
def mark_invalid_utf8(data: Bytes, starts: Ints, sizes: Ints, marks: Bytes) -> int:
    """Set `marks[i]` to 1 for each piece `i` that is not UTF-8. Return the number of these pieces."""
    found = 0
    for index in range(sizes.size):
        at = np.int64(starts[index])
        if not is_utf8(data, at, at + np.int64(sizes[index])):
            marks[index] = 1
            found += 1
    return found
