"""Kernel that finds the declared fields of JSON objects, in one pass that also checks the grammar of the objects.

It returns numbers, and the positions of values without a fixed width. A row that differs from the declaration is
marked, and Python's exact path decides it.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from platform_assets.kernels.compilation import (
    BYTES,
    FILLED_BYTES,
    FILLED_DOUBLES,
    FILLED_INTS,
    FILLED_LONGS,
    INT,
    INTS,
    LONGS,
    Truth,
    Whole,
    kernel,
)
from platform_assets.kernels.json_scalars import (
    BAD,
    ESCAPED,
    LATER,
    LONE,
    plain_end,
    read_real,
    read_whole,
    space_end,
    text_end,
    value_end,
)
from platform_assets.kernels.json_times import read_day, read_instant
from platform_assets.kernels.memory import load8, load32, load64

Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]
Ints = npt.NDArray[np.int32]
Doubles = npt.NDArray[np.float64]

TEXT, WHOLE, REAL, FLAG, DAY, INSTANT, OBJECT, LIST, MAP = range(9)
"""Kinds of fields. WHOLE is a 64-bit integer after scaling by a power of ten."""
NULL: Final = -1
"""Start position that stands for a null text, object or list."""
PRESENT, ABSENT, PENDING = 0, 1, 2
"""State of a field in a row. PRESENT: the field has a value. ABSENT: the field has no value. PENDING: the field has a
number that is still to be read (LATER)."""
MOST_EXTRAS: Final = 64
"""Maximum number of fields in one object that the schema lacks. An object with more such fields is left to the exact
path."""
MOST_PENDING: Final = 1 << 12
"""Limit that is greater than the size of any PENDING number. Instead of a PENDING number, the position of the number is
stored as `place * MOST_PENDING + size`."""
EXTRA_SIZE: Final = 5
"""Numbers stored for each extra field: the row, the start and size of the name, and the start and size of the value."""

_NULL_WORD = np.uint32(0x6C6C756E)
_TRUE_WORD = np.uint32(0x65757274)
_FALSE_WORD = np.uint32(0x736C6166)


@kernel(BYTES, INT, BYTES, INT, INT)
def _same(data: Bytes, at: Whole, names: Bytes, name: Whole, size: Whole) -> Truth:
    """Return True if the `size` bytes at `at` in `data` equal the `size` bytes at `name` in `names`. Whole words are
    read from both arrays."""
    while size >= 8:
        if load64(data, at) != load64(names, name):
            return False
        at += 8
        name += 8
        size -= 8
    if size == 0:
        return True
    return bool((load64(data, at) ^ load64(names, name)) << np.uint64(64 - 8 * size) == 0)


@kernel(BYTES, INT, INT, INT, FILLED_INTS)
def _is_extra_twice(data: Bytes, at: Whole, size: Whole, count: Whole, extras: Ints) -> bool:
    """Return True if the name at `at` is among the last `count` of `extras`. The newest entry of `extras` is still
    incomplete."""
    end = extras.size
    for index in range(count):
        base = end - EXTRA_SIZE * (index + 1)
        if extras[base + 2] == size and _same(data, at, data, np.int64(extras[base + 1]), size):
            return True
    return False


@kernel(
    BYTES, INTS, INTS, INT, INT, INT,
    BYTES, INTS, INTS, INTS, INTS, INTS, INTS, LONGS, LONGS,
    FILLED_LONGS, FILLED_DOUBLES, FILLED_INTS, FILLED_INTS, FILLED_BYTES, FILLED_INTS, FILLED_BYTES,
    FILLED_INTS, FILLED_INTS, FILLED_INTS, FILLED_INTS, FILLED_BYTES,
)  # fmt: skip
def find_fields(
    data: Bytes,
    starts: Ints,
    ends: Ints,
    bare: Whole,
    levels: Whole,
    form: Whole,
    names: Bytes,
    name_starts: Ints,
    name_sizes: Ints,
    kinds: Ints,
    slots: Ints,
    scales: Ints,
    required: Ints,
    lows: Longs,
    highs: Longs,
    wholes: Longs,
    reals: Doubles,
    places: Ints,
    sizes: Ints,
    states: Bytes,
    tallies: Ints,
    undecided: Bytes,
    extras: Ints,
    followers: Ints,
    stamps: Ints,
    recent: Ints,
    stack: Bytes,
) -> int:
    """Find the fields of the objects `data[starts[i]:ends[i]]`. If `bare` is 1, each of these is not an object but a
    value of the only field. A start of NULL stands for a null.

    The inputs for each field are: its name as `"name":` in `names`; its kind; the index of its column among the columns
    of the same kind; for a number, its power of ten and its bounds; and 1 if the field is required. The values of an
    object can have at most `levels` levels.

    `wholes`, `reals`, `places` and `sizes` contain columns of n rows, one after the other. The size of a text with
    escapes is stored as `-2 - size`. `states` has n entries for each field. `tallies` has two numbers for each field:
    the number of rows without a value, and the number of texts with escapes or of PENDING numbers. `undecided` is set
    to 1 for rows that are left to the exact path.

    Returns the number of fields that the schema lacks. `extras` receives as many of these fields as it can hold. If
    `extras` is too small, call the kernel again with a larger array. If the size of `extras` is 0, objects with such
    fields are left to the exact path. `followers`, `stamps`, `recent` (for MOST_EXTRAS fields) and `stack` (for
    `levels` levels) are scratch memory.
    """
    rows, count = starts.size, kinds.size
    room = extras.size // EXTRA_SIZE
    found = 0
    stamps[:] = -1
    for field in range(followers.size):
        followers[field] = field if field < count else 0
    tallies[:] = 0
    states[:] = PRESENT
    at: Whole
    size: Whole
    name_size: Whole
    good: Truth
    for row in range(rows):
        at, end = np.int64(starts[row]), np.int64(ends[row])
        if at == NULL:
            for field in range(count):
                states[field * rows + row] = ABSENT
                tallies[2 * field] += 1
                if kinds[field] in (TEXT, OBJECT, LIST, MAP):
                    places[slots[field] * rows + row] = NULL
                    sizes[slots[field] * rows + row] = NULL
            continue
        seen = others = 0
        before = 0
        good = True
        first = found
        at = space_end(data, at, end)
        more = True
        if not bare:
            good = load8(data, at) == 123
            at = space_end(data, at + 1, end)
            if load8(data, at) == 125:
                more = False
                at += 1
        while good and more:
            field = 0
            if at >= end:
                good = False
                break
            name, name_size = at, 0
            if not bare:
                field = followers[np.uint64(before)]
                size = np.int64(name_sizes[np.uint64(field)])
                if _same(data, at, names, np.int64(name_starts[np.uint64(field)]), size):
                    at += size
                else:
                    at, flags = text_end(data, at + 1, end) if load8(data, at) == 34 else (BAD, 0)
                    if at < 0 or flags & ESCAPED:
                        good = False
                        break
                    at += 1
                    name_size = at - name
                    field = -1
                    for each in range(count):
                        if name_sizes[each] == name_size + 1 and _same(
                            data, name, names, np.int64(name_starts[each]), name_size
                        ):
                            field = each
                            break
                    at = space_end(data, at, end)
                    if load8(data, at) != 58:
                        good = False
                        break
                    at += 1
                    if field >= 0:
                        followers[before] = field
                byte = load8(data, at)
                if byte <= 32:
                    at = space_end(data, at, end)
            if at >= end:
                good = False
                break
            if field < 0:
                value = at
                at = value_end(data, at, end, levels, stack)
                if (
                    at < 0 or room == 0 or others == MOST_EXTRAS or load8(data, name + 1) == 36  # $
                    or _is_extra_twice(data, name, name_size, others, recent)
                ):  # fmt: skip
                    good = False
                    break
                base = recent.size - EXTRA_SIZE * (others + 1)
                recent[base + 1], recent[base + 2] = name, name_size
                if found < room:
                    base = EXTRA_SIZE * found
                    extras[base], extras[base + 1], extras[base + 2] = row, name, name_size
                    extras[base + 3], extras[base + 4] = value, at - value
                found += 1
                others += 1
                before = count + min(others, MOST_EXTRAS)
            else:
                place = np.uint64(field)  # for each signed index, numba would check if it is negative
                if stamps[place] == row:
                    good = False
                    break
                stamps[place] = row
                seen += 1
                before = field + 1
                kind = kinds[place]
                index = np.uint64(slots[place] * rows + row)
                if load32(data, at) == _NULL_WORD:
                    at += 4
                    states[field * rows + row] = ABSENT
                    tallies[2 * field] += 1
                    good = required[field] == 0
                    if kind in (TEXT, OBJECT, LIST, MAP):
                        places[index] = NULL
                        sizes[index] = NULL
                elif kind == WHOLE:
                    number, at = read_whole(data, at, end, np.int64(scales[place]))
                    good = at >= 0 and lows[place] <= number <= highs[place]
                    wholes[index] = number
                elif kind == TEXT:
                    good = load8(data, at) == 34
                    begin = at + 1
                    at, flags = plain_end(data, begin, end), 0
                    if at >= end or load8(data, at) != 34:
                        at, flags = text_end(data, at, end)
                        good = good and at >= 0 and flags & LONE == 0
                    places[index] = begin
                    size = at - begin
                    if flags:
                        size = -2 - size
                        tallies[2 * field + 1] += 1
                    sizes[index] = size
                    at += 1
                elif kind == REAL:
                    real, after, later = read_real(data, at, end)
                    good = after >= 0
                    reals[index] = real
                    if later == LATER:
                        states[field * rows + row] = PENDING
                        tallies[2 * field + 1] += 1
                        reals[index] = np.float64(at * MOST_PENDING + (after - at))
                    at = after
                elif kind == FLAG:
                    word = load32(data, at)
                    if word == _TRUE_WORD:
                        wholes[index] = 1
                        at += 4
                    else:
                        good = word == _FALSE_WORD and load8(data, at + 4) == 101
                        wholes[index] = 0
                        at += 5
                elif kind in (DAY, INSTANT):
                    good = load8(data, at) == 34
                    if kind == DAY:
                        number, at = read_day(data, at + 1)
                    else:
                        number, at = read_instant(data, at + 1, end, form)
                    good = good and at >= 0 and load8(data, at) == 34 and lows[place] <= number <= highs[place]
                    wholes[index] = number
                    at += 1
                else:
                    good = load8(data, at) == (91 if kind == LIST else 123)
                    begin = at
                    at = value_end(data, at, end, levels, stack)
                    good = good and at >= 0
                    places[index] = begin
                    sizes[index] = at - begin
            if not good:
                break
            if bare:
                more = False
                continue
            byte = load8(data, at)
            if byte <= 32:
                at = space_end(data, at, end)
                byte = load8(data, at)
            at += 1
            if byte == 44:
                if load8(data, at) <= 32:
                    at = space_end(data, at, end)
            elif byte == 125:
                more = False
            else:
                good = False
        if good:
            if at < end:
                at = space_end(data, at, end)
            good = at == end
        if good and seen < count:
            for field in range(count):
                if stamps[field] != row:
                    good = good and required[field] == 0
                    states[field * rows + row] = ABSENT
                    tallies[2 * field] += 1
                    if kinds[field] in (TEXT, OBJECT, LIST, MAP):
                        places[slots[field] * rows + row] = NULL
                        sizes[slots[field] * rows + row] = NULL
        if not good:
            undecided[row] = 1
            found = first
    return found
