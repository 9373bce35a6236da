"""Kernels that convert pieces of ASCII text to typed values, by the rules of `decoding/conversion`.

Piece `i` is `data[starts[i]:starts[i] + sizes[i]]`. A negative size stands for a null, which is skipped. For each value
that a kernel cannot decide, it sets a mark in `undecided`. The results for marked values have no meaning.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from platform_assets.kernels.compilation import BYTES, FILLED_BYTES, FILLED_LONGS, INT, INTS, Whole, kernel

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int32]
Longs = npt.NDArray[np.int64]

LITERAL: Final = 256
"""Steps of a program for times. A step below LITERAL is a byte that the text must contain. Each other step specifies a
part of the time to read."""
(
    YEAR, SHORT_YEAR, MONTH, MONTH_NAME, DAY, PADDED_DAY, HOUR, MINUTE, SECOND, FRACTION, ZONE, SEPARATOR, FRACTION_IF_ANY, OFFSET,
    OFFSET_IF_ANY, LENIENT_SEPARATOR, LENIENT_SECOND, LENIENT_OFFSET,
) = range(256, 274)  # fmt: skip
MICROSECONDS_A_DAY: Final = 86_400_000_000
FIRST_TIME: Final = -62_135_596_800_000_000
"""0001-01-01T00:00:00Z in microseconds since 1970."""
LAST_TIME: Final = 253_402_300_799_999_999

_MONTH_NAMES = np.frombuffer(b"JanFebMarAprMayJunJulAugSepOctNovDec", np.uint8)
_MONTH_DAYS = np.array([31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31], np.int64)


@kernel(BYTES, INTS, INTS, INT, INT, FILLED_LONGS, FILLED_BYTES)
def integers(data: Bytes, starts: Ints, sizes: Ints, low: int, high: int, values: Longs, undecided: Bytes) -> None:
    """Convert text with an optional sign and 1 to 18 digits, for values from `low` to `high` inclusive."""
    for index in range(sizes.size):
        size = np.int64(sizes[index])
        if size < 0:
            continue
        at = np.int64(starts[index])
        end = at + size
        negative: bool | np.bool_ = False
        if at < end and (data[at] == 45 or data[at] == 43):
            negative = data[at] == 45
            at += 1
        good: bool | np.bool_ = 1 <= end - at <= 18
        value = np.int64(0)
        if good:
            while at < end:
                digit = np.int64(data[at]) - 48
                if digit < 0 or digit > 9:
                    good = False
                    break
                value = value * 10 + digit
                at += 1
        if negative:
            value = -value
        if good and low <= value <= high:
            values[index] = value
        else:
            undecided[index] = 1


@kernel(BYTES, INTS, INTS, FILLED_BYTES, FILLED_BYTES)
def booleans(data: Bytes, starts: Ints, sizes: Ints, values: Bytes, undecided: Bytes) -> None:
    """Convert `true` and `false`, in lower case."""
    for index in range(sizes.size):
        size = sizes[index]
        if size < 0:
            continue
        at = np.int64(starts[index])
        if size == 4 and data[at] == 116 and data[at + 1] == 114 and data[at + 2] == 117 and data[at + 3] == 101:
            values[index] = 1
        elif (
            size == 5
            and data[at] == 102
            and data[at + 1] == 97
            and data[at + 2] == 108
            and data[at + 3] == 115
            and data[at + 4] == 101
        ):
            values[index] = 0
        else:
            undecided[index] = 1


@kernel(BYTES, INTS, INTS, INT, INT, INT, FILLED_BYTES)
def mark_unlike_numbers(
    data: Bytes, starts: Ints, sizes: Ints, before: int, behind: int, exponents: int, undecided: Bytes
) -> None:
    """Mark text that is not a decimal number with at most `before` digits before the point (without leading zeros) and
    at most `behind` digits after it.

    A sign is allowed. An exponent is allowed if `exponents` is 1. Nothing is converted.
    """
    for index in range(sizes.size):
        size = np.int64(sizes[index])
        if size < 0:
            continue
        at = np.int64(starts[index])
        end = at + size
        if at < end and data[at] == 45:
            at += 1
        digits = counted = np.int64(0)
        while at < end and 48 <= data[at] <= 57:
            digits += 1
            if counted or data[at] != 48:
                counted += 1
            at += 1
        decimals = np.int64(0)
        if at < end and data[at] == 46:
            at += 1
            while at < end and 48 <= data[at] <= 57:
                decimals += 1
                at += 1
        good = 1 <= digits + decimals <= 37 and counted <= before and decimals <= behind
        if exponents and at < end and (data[at] == 101 or data[at] == 69):
            at += 1
            if at < end and (data[at] == 45 or data[at] == 43):
                at += 1
            good = good and 1 <= end - at <= 4
            while at < end and 48 <= data[at] <= 57:
                at += 1
        if not good or at != end:
            undecided[index] = 1


_NO_ZONE: Final = 1 << 40
_ANY_DIGITS: Final = 1 << 40


@kernel(BYTES, INT, INT, INT)
def _digits(data: Bytes, at: Whole, end: Whole, number: Whole) -> Whole:
    """Return the value of the `number` digits that start at `at`. Return -1 if any of these characters is not a digit."""
    value = np.int64(0)
    if at + number > end:
        value = np.int64(-1)
    else:
        for place in range(number):
            digit = np.int64(data[at + place]) - 48
            value = np.int64(-1) if digit < 0 or digit > 9 or value < 0 else value * 10 + digit
    return value


@kernel(BYTES, INT, INT, INT)
def _fraction(data: Bytes, at: Whole, end: Whole, most: Whole) -> tuple[Whole, Whole]:
    """Read a fraction of 1 to `most` digits. Return it in microseconds, truncated after six digits, and the position
    after the digits. The result is -1 for fewer or more digits."""
    value = np.int64(0)
    digits = 0
    while at < end and 48 <= data[at] <= 57:
        if digits < 6:
            value = value * 10 + (np.int64(data[at]) - 48)
        digits += 1
        at += 1
    for _ in range(digits, 6):
        value *= 10
    if digits < 1 or digits > most:
        value = np.int64(-1)
    return value, at


@kernel(BYTES, INT, INT)
def _zone(data: Bytes, at: Whole, end: Whole) -> tuple[Whole, Whole]:
    """Return the seconds east of UTC for `Z`, `+hh`, `+hhmm` or `+hh:mm`, and the position after this text."""
    seconds: Whole = np.int64(_NO_ZONE)
    if at < end and data[at] == 90:
        seconds = np.int64(0)
        at += 1
    elif at < end and (data[at] == 43 or data[at] == 45):
        east = data[at] == 43
        hours = _digits(data, at + 1, end, 2)
        minutes: Whole = np.int64(0)
        at += 3
        if at < end and data[at] == 58:
            minutes = _digits(data, at + 1, end, 2)
            at += 3
        elif at < end and 48 <= data[at] <= 57:
            minutes = _digits(data, at, end, 2)
            at += 2
        if 0 <= hours <= 23 and 0 <= minutes <= 59:
            seconds = hours * 3600 + minutes * 60
            if not east:
                seconds = -seconds
    return seconds, at


@kernel(INT, INT, INT)
def _days(year: Whole, month: Whole, day: Whole) -> Whole:
    """Return the number of days from 1970-01-01 to a day of the Gregorian calendar, computed in eras of 400 years that
    begin in March."""
    years = year - 1 if month <= 2 else year
    era = years // 400
    of_era = years - era * 400
    of_year = (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1
    return era * 146097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719468


@kernel(BYTES, INTS, INTS, INTS, FILLED_LONGS, FILLED_BYTES)
def times(data: Bytes, starts: Ints, sizes: Ints, program: Ints, values: Longs, undecided: Bytes) -> None:
    """Parse times with the steps of `program`, and fill `values` with microseconds since 1970 in UTC. Text without an
    offset is taken as UTC."""
    for index in range(sizes.size):
        size = np.int64(sizes[index])
        if size < 0:
            continue
        at: Whole = np.int64(starts[index])
        end = at + size
        year: Whole = np.int64(-1)
        month: Whole = np.int64(-1)
        day: Whole = np.int64(-1)
        hour: Whole = np.int64(0)
        minute: Whole = np.int64(0)
        second: Whole = np.int64(0)
        micros: Whole = np.int64(0)
        offset: Whole = np.int64(0)
        good: bool | np.bool_ = True
        for step in program:
            if step < LITERAL:
                good = at < end and data[at] == step
                at += 1
            elif step == YEAR:
                year = _digits(data, at, end, 4)
                good = year >= 1
                at += 4
            elif step == SHORT_YEAR:
                year = _digits(data, at, end, 2)
                good = year >= 0
                year += 2000 if year < 69 else 1900
                at += 2
            elif step == MONTH:
                month = _digits(data, at, end, 2)
                at += 2
            elif step == MONTH_NAME:
                if at + 3 <= end:
                    for number in range(12):
                        if (
                            data[at] == _MONTH_NAMES[3 * number]
                            and data[at + 1] == _MONTH_NAMES[3 * number + 1]
                            and data[at + 2] == _MONTH_NAMES[3 * number + 2]
                        ):
                            month = np.int64(number + 1)
                at += 3
            elif step == DAY:
                day = _digits(data, at, end, 2)
                at += 2
            elif step == PADDED_DAY:
                day = _digits(data, at + 1, end, 1) if at < end and data[at] == 32 else _digits(data, at, end, 2)
                at += 2
            elif step == HOUR:
                hour = _digits(data, at, end, 2)
                at += 2
            elif step == MINUTE:
                minute = _digits(data, at, end, 2)
                at += 2
            elif step == SECOND:
                second = _digits(data, at, end, 2)
                at += 2
            elif step == FRACTION:
                micros, at = _fraction(data, at, end, 6)
            elif step == SEPARATOR:
                good = at < end and (data[at] == 84 or data[at] == 32)
                at += 1
            elif step == FRACTION_IF_ANY:
                if at < end and data[at] == 46:
                    micros, at = _fraction(data, at + 1, end, 6)
            elif step == LENIENT_SEPARATOR:
                good = at < end and (data[at] == 84 or data[at] == 32 or data[at] == 116)
                at += 1
            elif step == LENIENT_SECOND:
                if at < end and data[at] == 58:
                    second = _digits(data, at + 1, end, 2)
                    at += 3
                    if at < end and (data[at] == 46 or data[at] == 44):
                        micros, at = _fraction(data, at + 1, end, _ANY_DIGITS)
            elif step == LENIENT_OFFSET:
                if at < end and data[at] == 122:
                    at += 1
                elif at < end:
                    offset, at = _zone(data, at, end)
            elif step == ZONE:
                offset, at = _zone(data, at, end)
            elif step == OFFSET or at < end:
                good = (end - at == 6 and data[at + 3] == 58) or end - at == 1
                offset, at = _zone(data, at, end)
            if not good:
                break
        good = good and at == end and 1 <= month <= 12 and day >= 1 and micros >= 0 and offset != _NO_ZONE
        good = good and 0 <= hour <= 23 and 0 <= minute <= 59 and 0 <= second <= 59
        if good:
            good = day <= _MONTH_DAYS[month - 1]
            if month == 2 and day == 29:
                good = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
        if good:
            value = _days(year, month, day) * MICROSECONDS_A_DAY
            value += (hour * 3600 + minute * 60 + second - offset) * 1_000_000 + micros
            good = FIRST_TIME <= value <= LAST_TIME
            values[index] = value
        if not good:
            undecided[index] = 1
