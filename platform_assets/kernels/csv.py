"""Kernel that splits values into fields by the rules of docs/csv-dialect.md. Each value is one row of CSV."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from platform_assets.kernels.compilation import BYTES, FILLED_BYTES, FILLED_INTS, INT, INTS, Whole, kernel

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int32]


@kernel(BYTES, INTS, INTS, INT, INT, INT, INT, INT, BYTES, FILLED_BYTES, FILLED_INTS, FILLED_INTS, FILLED_BYTES)
def split(
    data: Bytes,
    starts: Ints,
    sizes: Ints,
    width: int,
    delimiter: int,
    quote: int,
    escape: int,
    trim: int,
    null: Bytes,
    content: Bytes,
    field_starts: Ints,
    field_sizes: Ints,
    undecided: Bytes,
) -> Whole:
    """Split the values `data[starts[i]:starts[i] + sizes[i]]`. A negative size stands for a null. Field `c` of value
    `i` has the index `c * n + i` in the results.

    `quote` and `escape` are bytes, or -1 if there is no such character. If `trim` is 1, spaces and tabs around an
    unquoted field are removed. Fields are copied, without their quotes and escapes, to `content`, which is as long as
    `data`. An unquoted field that equals `null` has the size -1. A value that is not clearly one row of `width` fields
    is marked in `undecided`. The fields of such a value have the size -1, like the fields of a null. Returns the number
    of bytes used in `content`.
    """
    number = sizes.size
    used = np.int64(0)
    for index in range(number):
        size = np.int64(sizes[index])
        column = 0
        good: bool | np.bool_ = size > 0
        at = np.int64(starts[index])
        end = at + size
        before = used
        over = False
        while good and not over:
            start, raw = used, at
            quoted = at < end and data[at] == quote
            if quoted:
                at += 1
                closed = False
                while at < end and not closed:
                    byte = data[at]
                    if byte == escape:
                        at += 1
                        if at == end:
                            break
                        content[used] = data[at]
                        used += 1
                        at += 1
                    elif byte == quote:
                        at += 1
                        if at < end and data[at] == quote:
                            content[used] = byte
                            used += 1
                            at += 1
                        else:
                            closed = True
                    else:
                        content[used] = byte
                        used += 1
                        at += 1
                good = closed and (at == end or data[at] == delimiter or data[at] == 10 or data[at] == 13)
            else:
                while at < end:
                    byte = data[at]
                    if byte == delimiter or byte == 10 or byte == 13:
                        break
                    if byte == escape:
                        at += 1
                        if at == end or data[at] == 10 or data[at] == 13:
                            good = False
                            break
                        byte = data[at]
                    content[used] = byte
                    used += 1
                    at += 1
            if not good or column == width:
                good = False
                break
            first, last = start, used
            if not quoted:
                if trim:
                    while first < last and (content[first] == 32 or content[first] == 9):
                        first += 1
                    while first < last and (content[last - 1] == 32 or content[last - 1] == 9):
                        last -= 1
                    while raw < at and (data[raw] == 32 or data[raw] == 9):
                        raw += 1
                behind = at
                while trim and raw < behind and (data[behind - 1] == 32 or data[behind - 1] == 9):
                    behind -= 1
                equal: bool | np.bool_ = behind - raw == null.size
                for place in range(null.size):
                    if not equal or data[raw + place] != null[place]:
                        equal = False
                        break
                if equal:
                    last = first - 1
            field_starts[column * number + index] = first
            field_sizes[column * number + index] = last - first
            column += 1
            if at < end and data[at] == delimiter:
                at += 1
            else:
                over = True
        if good:
            while at < end and (data[at] == 10 or data[at] == 13):
                at += 1
            # A value that consists of line endings has no field at all.
            good = at == end and column == width and data[starts[index]] != 10 and data[starts[index]] != 13
        if not good:
            used = before
            if size >= 0:
                undecided[index] = 1
            for place in range(width):
                field_starts[place * number + index] = 0
                field_sizes[place * number + index] = -1
    return used
