"""Kernels that find the end of a JSON value, and read numbers (RFC 8259; docs/json-dialect.md).

A function can read up to `PADDING` bytes after `end`, but never more. The data must therefore have `PADDING` bytes
after `end`. The position `BAD` means that there is no value of the expected kind at `at`, or that the kernel cannot
decide. In both cases, Python's exact path decides.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from platform_assets.kernels.compilation import BYTES, FILLED_BYTES, INT, Whole, inlined, kernel
from platform_assets.kernels.memory import load8, load64, trailing_zeros

Bytes = npt.NDArray[np.uint8]

PADDING: Final = 64
BAD: Final = -1
ESCAPED, LONE = 1, 2
"""Flags of a text. ESCAPED: the text contains escapes. LONE: the text contains an escape for half of a surrogate pair.
"""
READ, LATER = 0, 1
"""State of a number. READ: the number was read. LATER: the number is still to be read with all of its digits."""

_ONES = np.uint64(0x0101010101010101)
_HIGH = np.uint64(0x8080808080808080)
_QUOTES = np.uint64(0x2222222222222222)
_BACKSLASHES = np.uint64(0x5C5C5C5C5C5C5C5C)
_SPACES = np.uint64(0x2020202020202020)
_POWERS = np.array([float(f"1e{power}") for power in range(23)])
_MOST_EXACT = np.uint64(1 << 53)


@kernel(BYTES, INT, INT)
def space_end(data: Bytes, at: Whole, end: Whole) -> Whole:
    """Return the end of the white space at `at`."""
    while at < end:
        byte = load8(data, at)
        if byte > 32 or (byte != 32 and byte != 10 and byte != 13 and byte != 9):
            break
        at += 1
    return at


@kernel(BYTES, INT)
def _hex4(data: Bytes, at: Whole) -> Whole:
    """Return the number for the 4 hexadecimal digits at `at`, or BAD."""
    value: Whole = 0
    for index in range(4):
        byte = np.int64(load8(data, at + index))
        if 48 <= byte <= 57:
            value = value * 16 + byte - 48
        elif 97 <= (byte | 32) <= 102:
            value = value * 16 + (byte | 32) - 87
        else:
            return BAD
    return value


@inlined
def plain_end(data: Bytes, at: Whole, end: Whole) -> Whole:
    """Return the position of the first quote, backslash or control character at or after `at`. If there is no such
    character before `end`, the result is at least `end`."""
    while at < end:
        word = load64(data, at)
        quotes, backslashes = word ^ _QUOTES, word ^ _BACKSLASHES
        found = (
            ((quotes - _ONES) & ~quotes) | ((backslashes - _ONES) & ~backslashes) | ((word - _SPACES) & ~word)
        ) & _HIGH
        if found != 0:
            at += trailing_zeros(found) >> 3  # The lowest mark is correct; higher ones may not be.
            break
        at += 8
    return at


@kernel(BYTES, INT, INT)
def text_end(data: Bytes, at: Whole, end: Whole) -> tuple[Whole, Whole]:
    """Find the closing quote of the text whose first character is at `at`. Return the position of that quote, or BAD,
    and the text's flags ESCAPED and LONE."""
    flags = 0
    while at < end:
        at = plain_end(data, at, end)
        if at >= end:
            return BAD, flags
        byte = load8(data, at)
        if byte < 32:
            return BAD, flags
        if byte == 34:
            return at, flags
        flags |= ESCAPED
        escape = load8(data, at + 1)
        if escape != 117:  # u
            if not (
                escape == 110 or escape == 34 or escape == 92 or escape == 47
                or escape == 116 or escape == 114 or escape == 98 or escape == 102
            ):  # fmt: skip
                return BAD, flags
            at += 2
            continue
        unit = _hex4(data, at + 2)
        if unit < 0:
            return BAD, flags
        at += 6
        if 0xD800 <= unit < 0xDC00 and load8(data, at) == 92 and load8(data, at + 1) == 117:
            second = _hex4(data, at + 2)
            if second < 0:
                return BAD, flags
            if 0xDC00 <= second < 0xE000:
                at += 6
                continue
        if 0xD800 <= unit < 0xE000:
            flags |= LONE
    return BAD, flags


@kernel(BYTES, INT, INT)
def _digits_end(data: Bytes, at: Whole, end: Whole) -> Whole:
    while at < end and np.uint8(load8(data, at) - np.uint8(48)) < 10:
        at += 1
    return at


@kernel(BYTES, INT, INT)
def number_end(data: Bytes, at: Whole, end: Whole) -> Whole:
    """Return the end of the number at `at`, or BAD."""
    if load8(data, at) == 45:
        at += 1
    whole = at
    at = _digits_end(data, at, end)
    if at == whole or (load8(data, whole) == 48 and at > whole + 1):
        return BAD
    if at < end and load8(data, at) == 46:
        fraction = at + 1
        at = _digits_end(data, fraction, end)
        if at == fraction:
            return BAD
    if at < end and (load8(data, at) | 32) == 101:
        at += 1
        if load8(data, at) == 43 or load8(data, at) == 45:
            at += 1
        power = at
        at = _digits_end(data, power, end)
        if at == power:
            return BAD
    return at


@kernel(BYTES, INT, INT)
def word_end(data: Bytes, at: Whole, end: Whole) -> Whole:
    """Return the end of the literal true, false or null at `at`, or BAD."""
    word = load64(data, at)
    low = word & np.uint64(0xFFFFFFFF)
    if low == np.uint64(0x65757274) or low == np.uint64(0x6C6C756E):
        return at + 4
    if word & np.uint64(0xFFFFFFFFFF) == np.uint64(0x65736C6166):
        return at + 5
    return BAD


@kernel(BYTES, INT, INT)
def _name_end(data: Bytes, at: Whole, end: Whole) -> Whole:
    """Return the start of the value of the field whose name is at `at`, or BAD."""
    if at >= end or load8(data, at) != 34:
        return BAD
    at, _ = text_end(data, at + 1, end)
    if at < 0:
        return BAD
    at = space_end(data, at + 1, end)
    if at >= end or load8(data, at) != 58:
        return BAD
    return space_end(data, at + 1, end)


@kernel(BYTES, INT, INT, INT, FILLED_BYTES)
def value_end(data: Bytes, at: Whole, end: Whole, levels: Whole, stack: Bytes) -> Whole:
    """Return the end of the value at `at`, which can have any type, or BAD. The result is also BAD for a value with
    more than `levels` levels.

    `stack` has memory for `levels` levels.
    """
    level = 0
    while at < end:
        byte = load8(data, at)
        if byte == 34:
            at, _ = text_end(data, at + 1, end)
            if at < 0:
                return BAD
            at += 1
        elif byte == 123 or byte == 91:
            if level >= levels:
                return BAD
            at = space_end(data, at + 1, end)
            if at < end and load8(data, at) == byte + 2:
                at += 1
            else:
                stack[level] = byte
                level += 1
                if byte == 123:
                    at = _name_end(data, at, end)
                    if at < 0:
                        return BAD
                continue
        elif byte == 45 or np.uint8(byte - np.uint8(48)) < 10:
            at = number_end(data, at, end)
        else:
            at = word_end(data, at, end)
        if at < 0:
            return BAD
        more = False
        while level > 0 and not more:
            at = space_end(data, at, end)
            if at >= end:
                return BAD
            byte = load8(data, at)
            at += 1
            opened = stack[level - 1]
            if byte == 44:
                more = True
                at = space_end(data, at, end)
                if opened == 123:
                    at = _name_end(data, at, end)
                    if at < 0:
                        return BAD
            elif byte == opened + 2:
                level -= 1
            else:
                return BAD
        if not more:
            return at
    return BAD


@inlined
def read_whole(data: Bytes, at: Whole, end: Whole, scale: Whole) -> tuple[Whole, Whole]:
    """Return the number at `at` times 10 to the power of `scale`, and the end of the number. The end is BAD if the
    result is not a whole number of 64 bits.

    `value` can represent at most 19 digits (10^19 - 1 < 2^64); with more digits, it wraps around. The digits are therefore
    counted before `value` is used.
    """
    negative = load8(data, at) == 45
    if negative:
        at += 1
    first = at
    value = np.uint64(0)
    digit = np.uint8(load8(data, at) - np.uint8(48))
    while digit < 10 and at < end:
        value = value * np.uint64(10) + np.uint64(digit)
        at += 1
        digit = np.uint8(load8(data, at) - np.uint8(48))
    digits = at - first
    if digits == 0 or digits > 19 or (digits > 1 and load8(data, first) == 48):
        return 0, BAD
    rest = scale
    if load8(data, at) == 46:
        at += 1
        fraction = at
        while at < end:
            digit = np.uint8(load8(data, at) - np.uint8(48))
            if digit >= 10:
                break
            if rest > 0:
                value = value * np.uint64(10) + np.uint64(digit)
                rest -= 1
                digits += 1
            elif digit != 0:
                return 0, BAD
            at += 1
        if at == fraction:
            return 0, BAD
    if (load8(data, at) | 32) == 101:
        return 0, BAD
    if digits > 19:
        return 0, BAD  # Before using the value, which may have wrapped around.
    if value == 0:
        return 0, at
    if digits + rest > 19:
        return 0, BAD
    for _ in range(rest):
        value *= np.uint64(10)
    if value > np.uint64(0x7FFFFFFFFFFFFFFF):
        return 0, BAD
    return (-np.int64(value) if negative else np.int64(value)), at


@kernel(BYTES, INT, INT)
def read_real(data: Bytes, at: Whole, end: Whole) -> tuple[float, Whole, Whole]:
    """Return the double nearest to the number at `at`, the end of the number or BAD, and the state of the number: READ,
    or still to be read (LATER).

    `value` wraps around at the 20th digit. `significant` therefore counts digits from the first digit that is not zero,
    whatever `value` is.
    """
    start = at
    negative = load8(data, at) == 45
    if negative:
        at += 1
    first = at
    value = np.uint64(0)
    significant = 0
    power: Whole = 0
    digit = np.uint8(load8(data, at) - np.uint8(48))
    while digit < 10 and at < end:
        value = value * np.uint64(10) + np.uint64(digit)
        significant += significant > 0 or digit != 0
        at += 1
        digit = np.uint8(load8(data, at) - np.uint8(48))
    if at == first or (at > first + 1 and load8(data, first) == 48):
        return 0.0, BAD, READ
    whole = True
    if load8(data, at) == 46:
        whole = False
        at += 1
        first = at
        digit = np.uint8(load8(data, at) - np.uint8(48))
        while digit < 10 and at < end:
            value = value * np.uint64(10) + np.uint64(digit)
            significant += significant > 0 or digit != 0
            at += 1
            digit = np.uint8(load8(data, at) - np.uint8(48))
        if at == first:
            return 0.0, BAD, READ
        power = first - at
    if (load8(data, at) | 32) == 101:
        whole = False
        at += 1
        down = load8(data, at) == 45
        if down or load8(data, at) == 43:
            at += 1
        first = at
        shift: Whole = 0
        digit = np.uint8(load8(data, at) - np.uint8(48))
        while digit < 10 and at < end:
            if shift < 1 << 40:
                shift = shift * 10 + np.int64(digit)
            at += 1
            digit = np.uint8(load8(data, at) - np.uint8(48))
        if at == first:
            return 0.0, BAD, READ
        power += -shift if down else shift
    if at - start > 4000:
        return 0.0, BAD, READ
    if value == 0 and significant == 0:
        return (-0.0 if negative and not whole else 0.0), at, READ
    if significant > 19 or value > _MOST_EXACT or power < -22 or power > 22:
        return 0.0, at, LATER
    real = np.float64(value)  # Both are exact, so the result is rounded only once.
    real = real / _POWERS[-power] if power < 0 else real * _POWERS[power]
    return (-real if negative else real), at, READ
