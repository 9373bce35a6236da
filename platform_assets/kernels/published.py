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
    LONGS,
    Whole,
    inlined,
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


TEXT, QUOTED, NUMBER, TIME = 0, 1, 2, 3
"""Forms of a column: texts, texts to put in quotes, whole numbers, and microseconds since 1970 in UTC, in the years 1 to 9999."""
MOST = (4, 4, 20, 29)
"""Maximum number of bytes that a value of each form takes in addition to its text."""
_ZERO, _MINUS, _QUOTE = np.uint8(ord("0")), np.uint8(ord("-")), np.uint8(ord('"'))
_TEN = np.uint64(10)
_SECOND = 1_000_000
_DAY = 86_400 * _SECOND
_NULL = np.frombuffer(b"null", np.uint8)


@inlined
def _write_number(value: Whole, into: Bytes, at: np.int64) -> np.int64:
    """Write a number in decimal, and return the end of what was written."""
    left = np.uint64(value)
    if value < 0:
        into[at] = _MINUS
        at += 1
        left = np.uint64(0) - left
    end, rest = at + 1, left
    while rest >= _TEN:
        rest //= _TEN
        end += 1
    place = end
    while place > at:
        place -= 1
        into[place] = _ZERO + np.uint8(left % _TEN)
        left //= _TEN
    return end


@inlined
def _write_digits(value: Whole, digits: Whole, mark: Whole, into: Bytes, at: np.int64) -> np.int64:
    """Write a number with this many digits, and a character after it. Return the end of what was written."""
    left = np.uint64(value)
    place = at + digits
    into[place] = np.uint8(mark)
    while place > at:
        place -= 1
        into[place] = _ZERO + np.uint8(left % _TEN)
        left //= _TEN
    return at + digits + 1


@inlined
def _write_time(value: Whole, into: Bytes, at: np.int64) -> np.int64:
    """Write a time in ISO 8601, and return the end of what was written."""
    day, rest = value // _DAY, value % _DAY
    # Years begin in March, so that a leap day is the last day of a year: eras of 400 years have 146,097 days.
    day += 719_468
    era, of_era = day // 146_097, day % 146_097
    year_of_era = (of_era - of_era // 1_460 + of_era // 36_524 - of_era // 146_096) // 365
    of_year = of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    month = (5 * of_year + 2) // 153
    day_of_month = of_year - (153 * month + 2) // 5 + 1
    year = era * 400 + year_of_era + (1 if month >= 10 else 0)
    month = month + 3 if month < 10 else month - 9
    at = _write_digits(year, 4, 45, into, at)
    at = _write_digits(month, 2, 45, into, at)
    at = _write_digits(day_of_month, 2, 84, into, at)
    at = _write_digits(rest // (3_600 * _SECOND), 2, 58, into, at)
    at = _write_digits(rest // (60 * _SECOND) % 60, 2, 58, into, at)
    at = _write_digits(rest // _SECOND % 60, 2, 46, into, at)
    return _write_digits(rest % _SECOND, 6, 90, into, at)


@kernel(LONGS, BYTES, LONGS, BYTES, LONGS, INT, BYTES, LONGS, FILLED_BYTES, FILLED_LONGS)
def join_columns(
    forms: Longs,
    valid: Bytes,
    numbers: Longs,
    data: Bytes,
    bounds: Longs,
    rows: Whole,
    openings: Bytes,
    opening_bounds: Longs,
    into: Bytes,
    ends: Longs,
) -> None:
    """Join the columns row by row, each value after the column's opening, and end each row with the last opening. A value whose entry
    in `valid` is 0 is written as null.

    `forms` has the form of each column. `valid` has `rows` entries for each column, one column after the other; so do `numbers` for
    the columns of numbers and times, and `data` and `bounds` for those of texts. `into` needs room for all texts, and for
    all openings and `MOST` in each row. `ends[row + 1]` becomes the end of a row in `into`.
    """
    columns = len(forms)
    at = np.int64(0)
    ends[0] = 0
    for row in range(rows):
        text, number = np.int64(row), np.int64(row)
        for column in range(columns):
            start = opening_bounds[column]
            size = opening_bounds[column + 1] - start
            copy_bytes(into, at, openings, start, size)
            at += size
            form = forms[column]
            is_valid = valid[column * rows + row] != 0
            if not is_valid:
                copy_bytes(into, at, _NULL, 0, 4)
                at += 4
            if form in (NUMBER, TIME):
                if is_valid and form == NUMBER:
                    at = _write_number(numbers[number], into, at)
                elif is_valid:
                    into[at] = _QUOTE
                    at = _write_time(numbers[number], into, at + 1)
                    into[at] = _QUOTE
                    at += 1
                number += rows
            else:
                if is_valid:
                    first = bounds[text]
                    size = bounds[text + 1] - first
                    if form == QUOTED:
                        into[at] = _QUOTE
                        at += 1
                    copy_bytes(into, at, data, first, size)
                    at += size
                    if form == QUOTED:
                        into[at] = _QUOTE
                        at += 1
                text += rows
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
