"""Columns of rows as bytes: what Avro and Protobuf are built from, without Python code for each row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]
Marks = npt.NDArray[np.bool_]
_NO_BYTES: Final = np.zeros(1, np.uint8)
FIRST_TIME: Final = -62_135_596_800_000_000
END_OF_TIMES: Final = 253_402_300_800_000_000
"""Microseconds from 1970 to the year 1, and to the year 10000, exclusive: the times of JSON and Protobuf."""
FIRST_DAY: Final = -719_162
END_OF_DAYS: Final = 2_932_897
"""Days from 1970 to the year 1, and to the year 10000, exclusive: the dates of JSON and Protobuf."""


class Misfit(Exception):
    """Raised if a value does not fit into its schema: its column, with the path below it, what is wrong, and its row."""

    def __init__(self, place: str, what: str, row: int) -> None:
        self.place, self.what, self.row = place, what, row
        super().__init__(f"{place} {what}")


@dataclass(frozen=True, slots=True)
class Datums:
    """One encoding for each row: that of row `n` is `data[bounds[n]:bounds[n + 1]]`."""

    data: Bytes
    bounds: Longs

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def to_arrow(self) -> pa.LargeBinaryArray:
        """Return the encodings as an array."""
        buffers = [None, pa.py_buffer(self.bounds), pa.py_buffer(self.data)]
        return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(self), buffers)

    def sized(self, *, zigzag: bool) -> Datums:
        """Return each encoding after its size."""
        from platform_assets.kernels import binary

        into, ends = self._room(binary.MOST_VARINT)
        binary.sized(self.data, self.bounds, zigzag, into, ends)
        return Datums(into, ends)

    def marked(self, valid: Marks, present: bytes, absent: bytes) -> Datums:
        """Return each encoding after `present` if its row is valid, and `absent` otherwise."""
        from platform_assets.kernels import binary

        here, lacking = (np.frombuffer(each, np.uint8) if each else np.zeros(0, np.uint8) for each in (present, absent))
        into, ends = self._room(max(len(present), len(absent)))
        binary.marked(self.data, self.bounds, valid.astype(np.uint8), here, lacking, into, ends)
        return Datums(into, ends)

    def grouped(self, groups: Longs, *, counted: bool) -> Datums:
        """Return the encodings `[groups[n], groups[n + 1])` as one encoding for each `n`; with `counted`, as Avro's
        blocks."""
        from platform_assets.kernels import binary

        rows = len(groups) - 1
        into = np.empty(self.size + rows * (binary.MOST_VARINT + 1) + 1, np.uint8)
        ends = np.empty(rows + 1, np.int64)
        binary.grouped(self.data, self.bounds, groups, counted, into, ends)
        return Datums(into, ends)

    @property
    def size(self) -> int:
        """Number of bytes of all encodings."""
        return int(self.bounds[-1] - self.bounds[0])

    def _room(self, each: int) -> tuple[Bytes, Longs]:
        return np.empty(self.size + len(self) * each + 1, np.uint8), np.empty(len(self) + 1, np.int64)


def joined(columns: Sequence[Datums], rows: int) -> Datums:
    """Return the encodings of columns joined row by row."""
    from platform_assets.kernels import binary

    if not columns:
        return Datums(_NO_BYTES, np.zeros(rows + 1, np.int64))
    if len(columns) == 1:
        return columns[0]
    bounds, start = [np.zeros(1, np.int64)], 0
    for each in columns:
        bounds.append(each.bounds[1:] - each.bounds[0] + start)
        start += each.size
    data = np.concatenate([each.data[each.bounds[0] : each.bounds[-1]] for each in columns])
    into, ends = np.empty(start + 1, np.uint8), np.empty(rows + 1, np.int64)
    binary.joined(data if start else _NO_BYTES, np.concatenate(bounds), rows, into, ends)
    return Datums(into, ends)


def varints(values: Longs, *, zigzag: bool) -> Datums:
    """Return numbers in a variable number of bytes."""
    from platform_assets.kernels import binary

    values = np.ascontiguousarray(values, np.int64)
    into, ends = np.empty(len(values) * binary.MOST_VARINT + 1, np.uint8), np.empty(len(values) + 1, np.int64)
    binary.varints(values, zigzag, into, ends)
    return Datums(into, ends)


def fixed(values: npt.NDArray[Any]) -> Datums:
    """Return the bytes of numbers as they are in memory."""
    values = np.ascontiguousarray(values)
    data = values.view(np.uint8) if len(values) else _NO_BYTES
    return Datums(data, np.arange(len(values) + 1, dtype=np.int64) * values.itemsize)


def big_endian(column: pa.Array, size: int = 0) -> Datums:
    """Return the digits of decimals as whole numbers with the most significant byte first, in `size` bytes or as few as
    possible."""
    from platform_assets.kernels import binary

    column = column.cast(pa.decimal128(column.type.precision, column.type.scale))
    words = np.frombuffer(column.buffers()[1], np.int64) if len(column) else np.zeros(0, np.int64)
    words = words[2 * column.offset : 2 * (column.offset + len(column))]
    into, ends = np.empty(len(column) * 16 + 1, np.uint8), np.empty(len(column) + 1, np.int64)
    binary.big_endian(words, size, into, ends)
    return Datums(into, ends)


def contents(column: pa.Array) -> Datums:
    """Return the bytes of strings or binary values. Those of nulls are meaningless."""
    column = column.cast(pa.large_binary())
    _, bounds, data = column.buffers()
    if not len(column):
        return Datums(_NO_BYTES, np.zeros(1, np.int64))
    edges = np.frombuffer(bounds, np.int64, column.offset + len(column) + 1)[column.offset :]
    return Datums(np.frombuffer(data, np.uint8) if data is not None and data.size else _NO_BYTES, edges)


def longs(column: pa.Array) -> Longs:
    """Return numbers, dates or times as whole numbers; nulls become 0."""
    kind = column.type
    if pa.types.is_date32(kind):
        column = column.cast(pa.int32())
    elif pa.types.is_timestamp(kind):
        column = column.cast(pa.timestamp("us", kind.tz)).cast(pa.int64())
    numbers: Longs = pc.fill_null(column.cast(pa.int64()), 0).to_numpy(zero_copy_only=False)
    return numbers


def doubles(column: pa.Array, kind: str) -> npt.NDArray[Any]:
    """Return numbers of a floating-point type; nulls become 0."""
    numbers: npt.NDArray[Any] = pc.fill_null(column, 0).to_numpy(zero_copy_only=False).astype(kind)
    return numbers


def validity(column: pa.Array) -> Marks:
    """Return marks of the rows that are not null."""
    marks: Marks = column.is_valid().to_numpy(zero_copy_only=False)
    return marks


@dataclass(frozen=True, slots=True)
class Items:
    """Items of lists, or keys and values of maps: those of row `n` are `[groups[n], groups[n + 1])`."""

    groups: Longs
    values: pa.Array
    keys: pa.Array | None = None

    def alive(self, rows: Marks) -> Marks:
        """Return marks of the items of marked rows."""
        marks: Marks = np.repeat(rows, np.diff(self.groups))
        return marks

    def row_of(self, item: int) -> int:
        """Return the row to which an item belongs."""
        return int(np.searchsorted(self.groups, item, "right")) - 1


def items(column: pa.Array) -> Items:
    """Return the items of lists or maps."""
    groups = column.offsets.to_numpy(zero_copy_only=False).astype(np.int64)
    first, last = int(groups[0]), int(groups[-1])
    part = slice(first, last)
    if pa.types.is_map(column.type):
        return Items(groups - first, column.items[part], column.keys[part])
    return Items(groups - first, column.values[part])


def whole(column: pa.ChunkedArray) -> pa.Array:
    """Return a column as one array."""
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def require(marks: Marks, place: str, what: str) -> None:
    """Raise Misfit for the first row that is not marked."""
    if not marks.all():
        raise Misfit(place, what, int(np.flatnonzero(~marks)[0]))


def wrong_text(column: pa.ChunkedArray) -> int | None:
    """Return the first row with a text, at any depth, that is not UTF-8; None if there is none. Spark does not check what
    it writes."""
    if not _has_texts(column.type) or _are_texts_right(column):
        return None
    first, last = 0, len(column)
    while last - first > 1:
        middle = (first + last) // 2
        first, last = (middle, last) if _are_texts_right(_copied(column, first, middle)) else (first, middle)
    # A slice of lists also has the items of other rows.
    return None if _are_texts_right(_copied(column, first, last)) else first


def _copied(column: pa.ChunkedArray, first: int, last: int) -> pa.ChunkedArray:
    return column.take(pa.array(range(first, last), pa.int64()))


def _are_texts_right(column: pa.ChunkedArray) -> bool:
    try:
        column.validate(full=True)
    except pa.ArrowInvalid as e:
        if "UTF8" in str(e):
            return False
        raise
    return True


def _has_texts(kind: pa.DataType) -> bool:
    if pa.types.is_nested(kind):
        return any(_has_texts(kind.field(n).type) for n in range(kind.num_fields))
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))
