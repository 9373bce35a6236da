"""Kernels that read a block of Avro values with a program, which was compiled from a schema.

A program is a table of steps with `WIDTH` numbers each: the kind of step, the column (the position in `slots` and
`valid` where the column's items begin), the level, and three more numbers. Each level has its own position: level 0
counts the values, and each list has a level that counts its items. Each column has a 64-bit slot for each item of its
level, and a byte that is 1 if the item is valid. The slot contains:

* for a number, its value, or its bits if it is a floating-point number;
* for bytes, their position in `data` and their size, as `at << 32 | size`;
* for a list, the number of its items;
* for a struct, nothing.

No byte after the end of a value is read, and no slot beyond the slots of a level is filled, whatever a value claims.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from platform_assets.kernels.compilation import (
    BYTES,
    FILLED_BYTES,
    FILLED_INTS,
    FILLED_LONGS,
    INT,
    INTS,
    LONGS,
    Truth,
    Whole,
    inlined,
    kernel,
)
from platform_assets.kernels.memory import copy_bytes, load32, load64
from platform_assets.kernels.text import is_utf8

Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]
Ints = npt.NDArray[np.int32]

WIDTH = 6
(
    LONG, INT32, BYTES_OF_SIZE, TEXT, FIXED, DOUBLE, FLOAT, BOOLEAN, ENUM, UNION, MARK, LIST, ITEMS, ITEM_END, JUMP, EMPTY_ITEMS, END,
    DIVIDED,
) = range(18)  # fmt: skip
"""Steps, and the meaning of the three numbers that each step has. LONG (factor), DIVIDED (divisor), INT32 (factor),
BYTES_OF_SIZE (-, limit), TEXT, FIXED (size, limit), DOUBLE, FLOAT and BOOLEAN read a plain value. DIVIDED reads a long
that must be a whole multiple of the divisor. TEXT is UTF-8. For decimals, `limit` is the index of two table entries:
the low and the high 64 bits of the largest magnitude. For all other values, `limit` is negative. ENUM (first, count)
reads an index into the `count` table entries that start at `first`; a negative entry is refused. UNION (first, count)
reads an index into table entries as ENUM does, and the entry is the next step. MARK notes that a struct is present.
LIST (level of the items) begins a list. It is followed by ITEMS (level of the items, minimum size of an item, step
after the list). ITEM_END (level of the items, step of ITEMS) ends each item. JUMP (step) continues with that step.
EMPTY_ITEMS reads blocks whose items take no bytes. END ends the value."""
FRAME = 5
"""Numbers on the stack for each list that is being read: the remaining items of the block, the end of the block or -1,
the first item, the step that began the list, and the position of that step in the value."""

_FAILED = np.int64(-1)
_LAST_SHIFT = np.uint64(63)


@inlined
def _varint(data: Bytes, at: Whole, stop: Whole) -> tuple[Whole, Whole]:
    """Read a zigzag varint of 64 bits at `at`. Return the number, and the position after its bytes. The position is -1
    if the varint does not end before `stop`."""
    value = np.uint64(0)
    shift = np.uint64(0)
    while at < stop:
        byte = np.uint64(data[at])
        at += 1
        value |= (byte & np.uint64(0x7F)) << shift
        if byte < 128:
            if shift == _LAST_SHIFT and byte > 1:
                break
            return np.int64(value >> np.uint64(1)) ^ -np.int64(value & np.uint64(1)), at
        if shift == _LAST_SHIFT:
            break
        shift += np.uint64(7)
    return np.int64(0), _FAILED


@inlined
def _block(data: Bytes, at: Whole, stop: Whole) -> tuple[Whole, Whole, Whole]:
    """Read the head of a block. Return the number of items, the end of the block or -1, and the position after the
    head. This position is -1 if the head is wrong."""
    items, at = _varint(data, at, stop)
    end: Whole = np.int64(-1)
    if items < 0 and at >= 0:
        size, at = _varint(data, at, stop)
        items = -items
        if at >= 0 and (size < 0 or size > stop - at or items < 0):
            at = _FAILED
        end = at + size
    return items, end, at


@inlined
def _decimal(data: Bytes, at: Whole, size: Whole) -> tuple[Whole, np.uint64]:
    """Return the high and the low 64 bits of a big-endian two's complement number of 1 to 16 bytes."""
    high = np.int64(-1) if data[at] & 0x80 else np.int64(0)
    low = np.uint64(high)
    for byte in range(size):
        high = np.int64((np.uint64(high) << np.uint64(8)) | (low >> np.uint64(56)))
        low = (low << np.uint64(8)) | np.uint64(data[at + byte])
    return high, low


@inlined
def _take_back(columns: Longs, levels: Longs, slots: Longs, valid: Bytes) -> None:
    """Undo the items that were read for the current value at these `levels`, as if the kernel had never begun to read
    that value."""
    for column in range(columns.size // 3):
        begin, level, room = columns[3 * column], columns[3 * column + 1], columns[3 * column + 2]
        for item in range(levels[3 * level + 1], min(levels[3 * level] + 1, room)):
            slots[begin + item] = 0
            valid[begin + item] = 0


@kernel(BYTES, INT, INT, LONGS, INT)
def _is_within(data: Bytes, at: Whole, size: Whole, table: Longs, limit: Whole) -> Truth:
    """Return True if `limit` is negative, or if the decimal at `at` has 1 to 16 bytes and its magnitude does not exceed
    the limit in the table."""
    if limit < 0:
        return True
    if size == 0 or size > 16:
        return False
    upper, lower = _decimal(data, at, size)
    if upper < 0:
        lower = ~lower + np.uint64(1)
        upper = np.int64(~np.uint64(upper) + np.uint64(1 if lower == 0 else 0))
    # The magnitude of the smallest number is also negative.
    high = table[limit + 1]
    return bool(0 <= upper < high or (upper == high and lower <= np.uint64(table[limit])))


@kernel(
    LONGS, LONGS, LONGS, BYTES, INTS, INTS, INT, INT, FILLED_LONGS, FILLED_LONGS, FILLED_BYTES, FILLED_LONGS, FILLED_LONGS
)  # fmt: skip
def read_values(
    program: Longs,
    table: Longs,
    columns: Longs,
    data: Bytes,
    starts: Ints,
    sizes: Ints,
    first: int,
    largest: int,
    levels: Longs,
    slots: Longs,
    valid: Bytes,
    stops: Longs,
    stack: Longs,
) -> int:
    """Read the values `data[starts[i]:starts[i] + sizes[i]]`, starting with value `first`. A negative size stands for a
    null.

    `columns` has three numbers for each column: the position in `slots` where its items begin, its level, and the
    number of slots for that level. `levels` has three numbers for each level: the number of items so far, the number of
    items before the value that is being read, and the number of slots. `slots` and `valid` are 0 where nothing was
    read. If the program cannot read a value, the items of that value are removed, and the value gets two numbers in
    `stops`: the number of the failed step plus 1, and the position in the value at which that step begins. If the step
    is within a list, these two numbers describe the LIST step of the outermost list. For a value of more than `largest`
    bytes, they are -1 and 0. For all other values, `stops` is unchanged.

    Returns the number of values, or the index of the value for which a level has too few slots. In that case, provide
    more slots and continue with that value.
    """
    count = levels.size // 3
    for row in range(first, sizes.size):
        if sizes[row] < 0:
            continue
        at: Whole = np.int64(starts[row])
        stop: Whole = at + np.int64(sizes[row])
        levels[0] = row
        for level in range(count):
            levels[3 * level + 1] = levels[3 * level]
        frame = np.int64(-FRAME)
        step = np.int64(0)
        done = False
        now: Whole = np.int64(-2)
        before: Whole = at
        if stop - at > largest:
            step = _FAILED
        while step >= 0:
            now = step
            before = at
            begin = step * WIDTH
            what = program[begin]
            level = program[begin + 2]
            slot = program[begin + 1] + levels[3 * level]
            step += 1
            if what == LONG:
                value, at = _varint(data, at, stop)
                factor = program[begin + 3]
                if at < 0:
                    step = _FAILED
                elif factor > 1:
                    if value > 9223372036854775 or value < -9223372036854775:
                        step = _FAILED
                    value *= factor
                slots[slot] = value
                valid[slot] = 1
            elif what == INT32:
                value, at = _varint(data, at, stop)
                if at < 0 or value != np.int64(np.int32(value)):
                    step = _FAILED
                slots[slot] = value * program[begin + 3]
                valid[slot] = 1
            elif what == DIVIDED:
                value, at = _varint(data, at, stop)
                divisor = program[begin + 3]
                if at < 0 or value % divisor != 0:
                    step = _FAILED
                slots[slot] = value // divisor
                valid[slot] = 1
            elif what == TEXT:
                size, at = _varint(data, at, stop)
                if at < 0 or size < 0 or size > stop - at or not is_utf8(data, at, at + size):
                    step = _FAILED
                else:
                    slots[slot] = at << 32 | size
                    valid[slot] = 1
                    at += size
            elif what == BYTES_OF_SIZE:
                size, at = _varint(data, at, stop)
                if at < 0 or size < 0 or size > stop - at or not _is_within(data, at, size, table, program[begin + 4]):
                    step = _FAILED
                else:
                    slots[slot] = at << 32 | size
                    valid[slot] = 1
                    at += size
            elif what == UNION:
                index, at = _varint(data, at, stop)
                known = at >= 0 and index >= 0 and index < program[begin + 4]
                step = table[program[begin + 3] + index] if known else _FAILED
            elif what == DOUBLE:
                if stop - at < 8:
                    step = _FAILED
                else:
                    slots[slot] = np.int64(load64(data, at))
                    valid[slot] = 1
                    at += 8
            elif what == FLOAT:
                if stop - at < 4:
                    step = _FAILED
                else:
                    slots[slot] = np.int64(load32(data, at))
                    valid[slot] = 1
                    at += 4
            elif what == BOOLEAN:
                if at >= stop or data[at] > 1:
                    step = _FAILED
                else:
                    slots[slot] = data[at]
                    valid[slot] = 1
                    at += 1
            elif what == FIXED:
                size = program[begin + 3]
                if size > stop - at or not _is_within(data, at, size, table, program[begin + 4]):
                    step = _FAILED
                else:
                    slots[slot] = at << 32 | size
                    valid[slot] = 1
                    at += size
            elif what == ENUM:
                index, at = _varint(data, at, stop)
                if at < 0 or index < 0 or index >= program[begin + 4] or table[program[begin + 3] + index] < 0:
                    step = _FAILED
                else:
                    slots[slot] = table[program[begin + 3] + index]
                    valid[slot] = 1
            elif what == MARK:
                valid[slot] = 1
            elif what == JUMP:
                step = program[begin + 3]
            elif what == LIST:
                frame += FRAME
                stack[frame] = 0
                stack[frame + 1] = -1
                stack[frame + 2] = levels[3 * program[begin + 3]]
                stack[frame + 3] = now
                stack[frame + 4] = before
                valid[slot] = 1
            elif what == ITEMS:
                inner = 3 * program[begin + 3]
                if stack[frame] == 0:
                    end = stack[frame + 1]
                    items: Whole = np.int64(0)
                    if end >= 0 and at != end:
                        step = _FAILED
                    else:
                        items, end, at = _block(data, at, stop)
                        if at < 0 or items > (stop - at) // program[begin + 4]:
                            step = _FAILED
                    stack[frame] = items
                    stack[frame + 1] = end
                if step < 0:
                    pass
                elif stack[frame] == 0:
                    slots[slot] = levels[inner] - stack[frame + 2]
                    frame -= FRAME
                    step = program[begin + 5]
                elif levels[inner] >= levels[inner + 2]:
                    for level in range(count):
                        levels[3 * level] = levels[3 * level + 1]
                    return row
                else:
                    stack[frame] -= 1
            elif what == ITEM_END:
                levels[3 * program[begin + 3]] += 1
                step = program[begin + 4]
            elif what == EMPTY_ITEMS:
                while True:
                    items, end, at = _block(data, at, stop)
                    if at < 0 or (end >= 0 and end != at):
                        step = _FAILED
                    if step < 0 or items == 0:
                        break
            else:
                done = at == stop
                step = _FAILED
        if not done:
            if frame >= 0:
                now, before = stack[3], stack[4]
            stops[2 * row] = now + 1
            stops[2 * row + 1] = before - np.int64(starts[row])
            _take_back(columns, levels, slots, valid)
            for level in range(count):
                levels[3 * level] = levels[3 * level + 1]
    return sizes.size


@kernel(LONGS, BYTES, BYTES, FILLED_INTS, FILLED_BYTES)
def copy_pieces(slots: Longs, valid: Bytes, data: Bytes, offsets: Ints, values: Bytes) -> int:
    """Copy the bytes that `slots` refer to, slot by slot. `offsets` has one entry more than `slots`. Returns the end of
    the copied bytes."""
    at = np.int64(0)
    for index in range(slots.size):
        offsets[index] = at
        if valid[index]:
            size = slots[index] & 0xFFFFFFFF
            copy_bytes(values, at, data, slots[index] >> 32, size)
            at += size
    offsets[slots.size] = at
    return int(at)


@kernel(LONGS, BYTES, BYTES, FILLED_LONGS)
def to_decimals(slots: Longs, valid: Bytes, data: Bytes, values: Longs) -> None:
    """Convert big-endian two's complement numbers of 1 to 16 bytes to 128 bits. For each slot, two numbers are written
    to `values`."""
    for index in range(slots.size):
        if valid[index]:
            high, low = _decimal(data, slots[index] >> 32, slots[index] & 0xFFFFFFFF)
            values[2 * index] = np.int64(low)
            values[2 * index + 1] = high
