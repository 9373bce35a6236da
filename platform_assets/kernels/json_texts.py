"""Kernels that write texts, lists and undeclared fields of JSON into Arrow's buffers, after `json_objects` has found
them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from platform_assets.kernels.compilation import BYTES, FILLED_BYTES, FILLED_INTS, INT, INTS, Truth, Whole, kernel
from platform_assets.kernels.json_objects import EXTRA_SIZE, NULL
from platform_assets.kernels.json_scalars import PADDING, space_end, value_end
from platform_assets.kernels.memory import copy_bytes, load8, load64

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int32]

_HIGH = np.uint64(0x8080808080808080)
_SHORT = np.int64(16)
_ESCAPES = np.zeros(128, np.uint8)
_SIXES = np.full(256, 128, np.uint8)  # Value of a base64 character; 128 for any other character.
for _value, _character in enumerate(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"):
    _SIXES[_character] = _value
for _escape, _meant in zip(b'"\\/bfnrt', b'"\\/\b\f\n\r\t', strict=True):
    _ESCAPES[_escape] = _meant


@kernel(BYTES, INT, INT)
def is_ascii(data: Bytes, at: Whole, end: Whole) -> Truth:
    """Return True if `data[at:end]` is ASCII. Up to 7 bytes after `end` are read."""
    found = np.uint64(0)
    while at + 8 <= end:
        found |= load64(data, at)
        at += 8
    if at < end:
        found |= load64(data, at) << np.uint64(64 - 8 * (end - at))
    return bool(found & _HIGH == 0)


@kernel(FILLED_BYTES, INT, INT)
def _encode(values: Bytes, into: Whole, code: Whole) -> Whole:
    """Write a character in UTF-8 at `into`. Return the end of the written bytes."""
    if code < 0x80:
        values[into] = code
        return into + 1
    if code < 0x800:
        values[into] = 0xC0 | code >> 6
        values[into + 1] = 0x80 | code & 0x3F
        return into + 2
    if code < 0x10000:
        values[into] = 0xE0 | code >> 12
        values[into + 1] = 0x80 | code >> 6 & 0x3F
        values[into + 2] = 0x80 | code & 0x3F
        return into + 3
    values[into] = 0xF0 | code >> 18
    values[into + 1] = 0x80 | code >> 12 & 0x3F
    values[into + 2] = 0x80 | code >> 6 & 0x3F
    values[into + 3] = 0x80 | code & 0x3F
    return into + 4


@kernel(BYTES, INT)
def _unit(data: Bytes, at: Whole) -> Whole:
    """Return the number for the 4 hexadecimal digits at `at`."""
    value: Whole = 0
    for index in range(4):
        byte = np.int64(load8(data, at + index))
        value = value * 16 + (byte - 48 if byte < 58 else (byte | 32) - 87)
    return value


@kernel(BYTES, INT, INT, FILLED_BYTES, INT)
def _unescape(data: Bytes, at: Whole, end: Whole, values: Bytes, into: Whole) -> Whole:
    """Write the text `data[at:end]` at `into`, with its escapes resolved. The escapes must be valid. Return the end of
    the written bytes."""
    while at < end:
        byte = load8(data, at)
        if byte != 92:
            values[into] = byte
            into += 1
            at += 1
            continue
        escape = load8(data, at + 1)
        at += 2
        if escape != 117:
            values[into] = _ESCAPES[escape]
            into += 1
            continue
        code = _unit(data, at)
        at += 4
        if 0xD800 <= code < 0xDC00:
            code = 0x10000 + ((code - 0xD800) << 10) + _unit(data, at + 2) - 0xDC00
            at += 6
        into = _encode(values, into, code)
    return into


@kernel(BYTES, INTS, INTS, FILLED_INTS, FILLED_BYTES)
def gather_texts(data: Bytes, places: Ints, sizes: Ints, offsets: Ints, values: Bytes) -> Whole:
    """Write into `values`, one after the other, the texts that `find_fields` has found. `offsets` has one entry more
    than `places`.

    `values` must be large enough for the texts before unescaping, plus PADDING. Returns the number of bytes filled.
    """
    into: Whole = np.int64(0)
    for row in range(places.size):
        offsets[row] = into
        size, at = np.int64(sizes[row]), np.int64(places[row])
        if size >= 0:
            copy_bytes(values, into, data, at, _SHORT)  # Two instructions; a copy of variable size is a call.
            if size > _SHORT:
                copy_bytes(values, into + _SHORT, data, at + _SHORT, size - _SHORT)
            into += size
        elif size != NULL:
            into = _unescape(data, at, at - 2 - size, values, into)
    offsets[places.size] = into
    return into


@kernel(BYTES, INTS, INTS, FILLED_INTS, FILLED_BYTES, FILLED_BYTES)
def gather_base64(data: Bytes, places: Ints, sizes: Ints, offsets: Ints, values: Bytes, undecided: Bytes) -> Whole:
    """Decode base64 texts into `values`, in the same layout as `gather_texts`. Rows that are not base64 or that contain
    escapes are marked in `undecided`."""
    into: Whole = np.int64(0)
    for row in range(places.size):
        offsets[row] = into
        if sizes[row] == NULL:
            continue
        size, at, begin = np.int64(sizes[row]), np.int64(places[row]), into
        good = size >= 0 and size % 4 == 0
        end = at + size
        ends_early = size > 0 and load8(data, end - 1) == 61
        while good and at < end:
            one, two = _SIXES[load8(data, at)], _SIXES[load8(data, at + 1)]
            three, four = _SIXES[load8(data, at + 2)], _SIXES[load8(data, at + 3)]
            at += 4
            left = 3
            if ends_early and at == end:
                left = 2
                four = np.uint8(0)
                if load8(data, end - 2) == 61:
                    left = 1
                    three = np.uint8(0)
                    good = two & 15 == 0
                else:
                    good = three & 3 == 0
            good = good and (one | two | three | four) < 64
            word = np.int64(one) << 18 | np.int64(two) << 12 | np.int64(three) << 6 | np.int64(four)
            values[into], values[into + 1], values[into + 2] = word >> 16, word >> 8 & 255, word & 255
            into += left
        if not good:
            undecided[row] = 1
            into = begin
    offsets[places.size] = into
    return into


@kernel(INTS)
def texts_size(sizes: Ints) -> int:
    """Return the number of bytes in the texts as they are written, with escapes."""
    total = 0
    for size in sizes:
        if size >= 0:
            total += size
        elif size != NULL:
            total += -2 - size
    return total


@kernel(BYTES, INTS, INTS, INT, FILLED_BYTES, FILLED_INTS, FILLED_INTS, FILLED_INTS)
def split_lists(
    data: Bytes, places: Ints, sizes: Ints, levels: Whole, stack: Bytes, offsets: Ints, starts: Ints, ends: Ints
) -> int:
    """Find the elements of the arrays that `find_fields` has found. A place of NULL stands for a null, which has no
    elements.

    `offsets` has one entry more than `places`. Returns the number of elements. Only as many elements are stored as fit
    in `starts`.
    """
    count = 0
    for row in range(places.size):
        offsets[row] = count
        if places[row] == NULL:
            continue
        begin = np.int64(places[row])
        end = begin + sizes[row]
        at = space_end(data, begin + 1, end)
        while load8(data, at) != 93:
            if load8(data, at) == 44:
                at = space_end(data, at + 1, end)
            behind = value_end(data, at, end, levels, stack)
            if count < starts.size:
                starts[count], ends[count] = at, behind
            count += 1
            at = space_end(data, behind, end)
    offsets[places.size] = count
    return count


@kernel(BYTES, INTS, INTS, INT, FILLED_BYTES, FILLED_INTS, FILLED_INTS, FILLED_INTS, FILLED_INTS, FILLED_INTS)
def split_maps(
    data: Bytes,
    places: Ints,
    sizes: Ints,
    levels: Whole,
    stack: Bytes,
    offsets: Ints,
    name_starts: Ints,
    name_ends: Ints,
    starts: Ints,
    ends: Ints,
) -> int:
    """Find the names, with their quotes, and the values of the fields of objects. Works like `split_lists`, but on
    objects."""
    count = 0
    for row in range(places.size):
        offsets[row] = count
        if places[row] == NULL:
            continue
        begin = np.int64(places[row])
        end = begin + sizes[row]
        at = space_end(data, begin + 1, end)
        while load8(data, at) != 125:
            if load8(data, at) == 44:
                at = space_end(data, at + 1, end)
            after = value_end(data, at, end, levels, stack)
            first = space_end(data, space_end(data, after, end) + 1, end)
            last = value_end(data, first, end, levels, stack)
            if count < starts.size:
                name_starts[count], name_ends[count] = at, after
                starts[count], ends[count] = first, last
            count += 1
            at = space_end(data, last, end)
    offsets[places.size] = count
    return count


@kernel(BYTES, INTS, INT, FILLED_INTS, FILLED_BYTES, FILLED_BYTES)
def gather_extras(data: Bytes, extras: Ints, count: Whole, offsets: Ints, values: Bytes, validity: Bytes) -> Whole:
    """Write, for each row, a JSON object with the fields that the schema lacks. `count` is the number of such fields
    that `find_fields` has found.

    `offsets` has one entry more than there are rows. `validity` has one byte for each row, which must be 0 and is set
    to 1 if the row has an object. `values` must be large enough for the names and the values, plus 3 bytes for each
    field and PADDING. Returns the number of bytes filled.
    """
    into: Whole = np.int64(0)
    at = 0
    for row in range(validity.size):
        offsets[row] = into
        begin = into
        while at < count and extras[EXTRA_SIZE * at] == row:
            base = EXTRA_SIZE * at
            values[into] = 123 if into == begin else 44
            into += 1
            size = np.int64(extras[base + 2])
            copy_bytes(values, into, data, np.int64(extras[base + 1]), size)
            into += size
            values[into] = 58
            into += 1
            size = np.int64(extras[base + 4])
            copy_bytes(values, into, data, np.int64(extras[base + 3]), size)
            into += size
            at += 1
        if into > begin:
            values[into] = 125
            into += 1
            validity[row] = 1
    offsets[validity.size] = into
    return into


assert PADDING >= _SHORT
