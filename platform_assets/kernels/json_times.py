"""Kernels that read dates and timestamps in JSON strings, by the rules of docs/json-dialect.md and `json_scalars`."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from platform_assets.kernels.compilation import BYTES, INT, Whole, kernel
from platform_assets.kernels.json_scalars import BAD
from platform_assets.kernels.memory import load8

Bytes = npt.NDArray[np.uint8]

_DAY = 86_400_000_000


@kernel(BYTES, INT, INT)
def _number(data: Bytes, at: Whole, size: Whole) -> Whole:
    """Parse `size` characters as a decimal number. Return a negative number if any of these characters is not a digit."""
    value: Whole = 0
    for index in range(size):
        digit = np.int64(load8(data, at + index)) - 48
        if digit < 0 or digit > 9:
            return -1_000_000
        value = value * 10 + digit
    return value


@kernel(BYTES, INT)
def read_day(data: Bytes, at: Whole) -> tuple[Whole, Whole]:
    """Return the days since 1970-01-01 for the date YYYY-MM-DD at `at`, and the end of the date, or BAD."""
    year, month, day = _number(data, at, 4), _number(data, at + 5, 2), _number(data, at + 8, 2)
    if load8(data, at + 4) != 45 or load8(data, at + 7) != 45 or year < 1 or month < 1 or month > 12 or day < 1:
        return 0, BAD
    longest = 31 - (month == 4 or month == 6 or month == 9 or month == 11)
    if month == 2:
        longest = 29 if year % 4 == 0 and (year % 100 != 0 or year % 400 == 0) else 28
    if day > longest:
        return 0, BAD
    # Years begin in March here, so that the leap day comes last.
    if month <= 2:
        year -= 1
        month += 12
    days = year * 365 + year // 4 - year // 100 + year // 400 + (153 * (month - 3) + 2) // 5 + day - 1
    return days - 719_468, at + 10


STRICT, OR_UTC, LENIENT = range(3)
"""Forms of a timestamp: see the option `timestamps` in docs/json-dialect.md."""


@kernel(BYTES, INT, INT, INT)
def read_instant(data: Bytes, at: Whole, end: Whole, form: Whole) -> tuple[Whole, Whole]:
    """Return the microseconds since 1970-01-01 UTC for the ISO 8601 timestamp at `at`, and the end of the timestamp, or
    BAD.

    A timestamp without Z or an offset is taken as UTC, unless `form` is STRICT; then it is BAD. If a fraction is more
    precise than microseconds, LENIENT drops the additional digits. With any other `form`, such a timestamp is BAD
    unless all additional digits are zero. The offset of a timestamp can move the result to a year outside 1 to 9999.
    """
    lenient = form == LENIENT
    days, at = read_day(data, at)
    if at < 0 or not (load8(data, at) == 84 or load8(data, at) == 32 or (lenient and load8(data, at) == 116)):
        return 0, BAD
    hours, minutes = _number(data, at + 1, 2), _number(data, at + 4, 2)
    seconds: Whole = np.int64(0)
    if load8(data, at + 3) != 58 or min(hours, minutes) < 0 or hours > 23 or minutes > 59:
        return 0, BAD
    at += 6
    fraction: Whole = 0
    if load8(data, at) == 58:
        seconds = _number(data, at + 1, 2)
        if seconds < 0 or seconds > 59:
            return 0, BAD
        at += 3
        if load8(data, at) == 46 or (lenient and load8(data, at) == 44):
            at += 1
            first = at
            unit = 100_000
            while at < end:
                digit = np.int64(load8(data, at)) - 48
                if digit < 0 or digit > 9:
                    break
                if unit == 0 and digit != 0 and not lenient:
                    return 0, BAD
                fraction += digit * unit
                unit //= 10
                at += 1
            if at == first:
                return 0, BAD
    elif not lenient:
        return 0, BAD
    instant = days * _DAY + (hours * 3600 + minutes * 60 + seconds) * 1_000_000 + fraction
    sign = load8(data, at)
    if sign == 90 or (lenient and sign == 122):
        return instant, at + 1
    if sign == 43 or sign == 45:
        hours, minutes, size = _number(data, at + 1, 2), np.int64(0), 3
        follows = load8(data, at + 3)
        if follows == 58:
            minutes, size = _number(data, at + 4, 2), 6
        elif lenient and np.uint8(follows - np.uint8(48)) < 10:
            minutes, size = _number(data, at + 3, 2), 5
        elif not lenient:
            return 0, BAD
        if min(hours, minutes) < 0 or hours > 23 or minutes > 59:
            return 0, BAD
        offset = (hours * 60 + minutes) * 60_000_000
        return instant + (offset if sign == 45 else -offset), at + size
    return instant, (BAD if form == STRICT else at)
