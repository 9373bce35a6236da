"""The fast path: a block at a time, by the kernel. What it cannot settle it names, and leaves to the exact path."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from platform_assets.decoding.avro.plan import Choice, Leaf
from platform_assets.decoding.avro.program import Column, Program
from platform_assets.decoding.pieces import Pieces
from platform_assets.kernels import avro, text

Longs = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
_FEW = 64
"""Items for which a list has room at first, beside one for each value."""


@dataclass(frozen=True, slots=True)
class Block:
    """What was read of a block: an array of the plan's type, and which values are left to the exact path: those are null."""

    read: pa.StructArray
    unsettled: npt.NDArray[np.bool_]


def read_block(program: Program, values: Pieces, max_bytes: int) -> Block:
    """Read `values` by `program`; one of more than `max_bytes` is left to the exact path."""
    reading = _Reading(program, values)
    reading.run(max_bytes)
    read, unsettled = reading.array(program.root), reading.failed.view(np.bool_)
    if unsettled.any():
        kept = read.is_valid().to_numpy(zero_copy_only=False) & ~unsettled
        children = [read.field(number) for number in range(read.type.num_fields)]
        validity = pa.py_buffer(np.packbits(kept, bitorder="little"))
        read = pa.Array.from_buffers(read.type, len(read), [validity], children=children)
    return Block(read, unsettled)


class _Reading:
    """The slots of a block."""

    def __init__(self, program: Program, values: Pieces) -> None:
        self._program, self._values = program, values
        count = len(values)
        self._rooms = np.full(program.levels, count + _FEW, np.int64)
        self._rooms[0] = max(count, 1)
        self._levels = np.zeros(3 * program.levels, np.int64)
        self._stack = np.zeros(avro.FRAME * program.levels, np.int64)
        self.failed = np.zeros(count, np.uint8)
        self._begins, self._slots, self._valid = self._made()

    def run(self, max_bytes: int) -> None:
        """Read all values, with more room for what turns out to need it."""
        row = 0
        starts, sizes = (np.ascontiguousarray(each, np.int32) for each in (self._values.starts, self._values.sizes))
        while True:
            self._levels[2::3] = self._rooms
            levels = self._program.column_levels
            columns = np.stack([self._begins, levels, self._rooms[levels]], axis=1).reshape(-1)
            row = avro.read_values(
                self._program.bound(self._begins),
                self._program.table,
                columns,
                self._values.data,
                starts,
                sizes,
                row,
                max_bytes,
                self._levels,
                self._slots,
                self._valid,
                self.failed,
                self._stack,
            )
            if row == len(self._values):
                return
            self._grow()

    def _made(self) -> tuple[Longs, Longs, Bytes]:
        rooms = self._rooms[self._program.column_levels]
        ends = np.cumsum(rooms)
        return ends - rooms, np.zeros(ends[-1], np.int64), np.zeros(ends[-1], np.uint8)

    def _grow(self) -> None:
        """Twice the room for levels that are more than half full."""
        old_begins, old_slots, old_valid = self._begins, self._slots, self._valid
        old_rooms = self._rooms[self._program.column_levels]
        full = 2 * self._levels[0::3] >= self._rooms
        full[0] = False
        if not full.any():  # the value that needs it was the first of its kind
            full[1:] = True
        self._rooms = np.where(full, 2 * self._rooms, self._rooms)
        self._begins, self._slots, self._valid = self._made()
        for old, new, room in zip(old_begins.tolist(), self._begins.tolist(), old_rooms.tolist(), strict=True):
            self._slots[new : new + room] = old_slots[old : old + room]
            self._valid[new : new + room] = old_valid[old : old + room]

    def _size(self, level: int) -> int:
        return len(self._values) if level == 0 else int(self._levels[3 * level])

    def array(self, column: Column) -> pa.Array:
        """What was read of a column."""
        size = self._size(column.level)
        begin = int(self._begins[column.number])
        slots, valid = self._slots[begin : begin + size], self._valid[begin : begin + size]
        nulls = size - int(np.count_nonzero(valid))
        validity = pa.py_buffer(np.packbits(valid, bitorder="little")) if nulls else None
        node = column.node
        if isinstance(node, Leaf):
            return self._leaf(node, column, slots, valid, validity, nulls)
        if isinstance(node, Choice):
            indices = pa.Array.from_buffers(pa.int64(), size, [validity, pa.py_buffer(slots)], nulls)
            return self._program.symbols[column.number].take(indices)
        children = [self.array(child) for child in column.children]
        if column.inner:
            offsets = np.zeros(size + 1, np.int32)
            np.cumsum(slots, out=offsets[1:])
            return pa.Array.from_buffers(node.type, size, [validity, pa.py_buffer(offsets)], nulls, children=children)
        return pa.Array.from_buffers(node.type, size, [validity], nulls, children=children)

    def _leaf(
        self, node: Leaf, column: Column, slots: Longs, valid: Bytes, validity: pa.Buffer | None, nulls: int
    ) -> pa.Array:
        size, kind = len(slots), node.type
        if node.wire in ("bytes", "fixed"):
            if node.column == "decimal":
                content = [self._decimals(kind, column, slots, valid)]
            else:
                content = self._pieces(kind, column, slots, valid)
        elif node.column == "boolean":
            content = [pa.py_buffer(np.packbits(slots.view(np.uint8)[::8], bitorder="little"))]
        else:
            content = [pa.py_buffer(_numbers(node, slots))]
        return pa.Array.from_buffers(kind, size, [validity, *content], nulls)

    def _pieces(self, kind: pa.DataType, column: Column, slots: Longs, valid: Bytes) -> list[pa.Buffer]:
        sizes = (slots & 0xFFFFFFFF).astype(np.int32)
        if kind == pa.string():
            marks = np.zeros(len(slots), np.uint8)
            if text.mark_invalid_utf8(self._values.data, (slots >> 32).astype(np.int32), sizes, marks):
                self._fail(column.level, marks)
        offsets, found = np.empty(len(slots) + 1, np.int32), np.empty(int(sizes.sum(dtype=np.int64)), np.uint8)
        avro.copy_pieces(slots, valid, self._values.data, offsets, found)
        return [pa.py_buffer(offsets), pa.py_buffer(found)]

    def _decimals(self, kind: pa.Decimal128Type, column: Column, slots: Longs, valid: Bytes) -> pa.Buffer:
        largest = 10**kind.precision - 1
        limit = np.frombuffer(largest.to_bytes(16, "little"), np.int64)
        found, marks = np.zeros(2 * len(slots), np.int64), np.zeros(len(slots), np.uint8)
        if avro.to_decimals(slots, valid, self._values.data, limit, found, marks):
            self._fail(column.level, marks)
        return pa.py_buffer(found)

    def _fail(self, level: int, marks: Bytes) -> None:
        """Leave the values that the marked items of a level are in to the exact path."""
        items = np.flatnonzero(marks)
        while level:
            column = self._list_of(level)
            begin = int(self._begins[column.number])
            ends = np.cumsum(self._slots[begin : begin + self._size(column.level)])
            items, level = np.searchsorted(ends, items, "right"), column.level
        self.failed[items] = 1

    def _list_of(self, level: int) -> Column:
        pending = [self._program.root]
        while pending[-1].inner != level:
            pending += pending.pop().children
        return pending[-1]


def _numbers(node: Leaf, slots: Longs) -> npt.NDArray[np.generic]:
    """The values of slots, as their type has them."""
    kind = np.float32 if node.column == "float" else np.float64
    if node.wire == "double":
        return slots
    if node.wire == "float":
        return slots.astype(np.uint32).view(np.float32).astype(kind)
    if node.column != "whole":
        return slots.astype(kind)
    return slots.astype(np.int32) if node.type.bit_width == 32 else slots
