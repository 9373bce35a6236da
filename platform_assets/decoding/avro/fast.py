"""The fast path: a block at a time, by the kernel. What it cannot settle it names, and leaves to the exact path."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from platform_assets.decoding.avro.plan import Again, Choice, Leaf
from platform_assets.decoding.avro.program import Column, Program
from platform_assets.decoding.pieces import Pieces
from platform_assets.kernels import avro

Longs = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
TOO_LARGE: Final = -2
"""The step of a value of more than `max_bytes`."""
_FEW = 64
"""Items for which a list has room at first, beside one for each value."""


@dataclass(frozen=True, slots=True)
class Block:
    """What was read of a block: an array of the plan's type, null where the kernel stopped.

    `rows` ascend, and are those of the values where it did; of each, `steps` has the step of the program that could not be done, or
    `TOO_LARGE`, and `places` how many bytes into the value it begins.
    """

    read: pa.StructArray
    rows: Longs
    steps: Longs
    places: Longs


def read_block(program: Program, values: Pieces, max_bytes: int) -> Block:
    """Read `values` by `program`, which stops at one of more than `max_bytes`."""
    reading = _Reading(program, values)
    reading.run(max_bytes)
    steps = reading.stops[0::2]
    rows = np.flatnonzero(steps)
    return Block(reading.array(program.root), rows, steps[rows] - 1, reading.stops[1::2][rows])


class _Reading:
    """The slots of a block."""

    def __init__(self, program: Program, values: Pieces) -> None:
        self._program, self._values = program, values
        count = len(values)
        self._rooms = np.full(program.levels, count + _FEW, np.int64)
        self._rooms[0] = max(count, 1)
        self._levels = np.zeros(3 * program.levels, np.int64)
        self._stack = np.zeros(avro.FRAME * program.levels, np.int64)
        self.stops = np.zeros(2 * count, np.int64)
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
                self.stops,
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
            return self._leaf(node, slots, valid, validity, nulls)
        if isinstance(node, Choice):
            indices = pa.Array.from_buffers(pa.int64(), size, [validity, pa.py_buffer(slots)], nulls)
            return self._program.symbols[column.number].take(indices)
        if isinstance(node, Again):
            return pa.nulls(size, node.type)
        children = [self.array(child) for child in column.children]
        if column.inner:
            offsets = np.zeros(size + 1, np.int32)
            np.cumsum(slots, out=offsets[1:])
            return pa.Array.from_buffers(node.type, size, [validity, pa.py_buffer(offsets)], nulls, children=children)
        return pa.Array.from_buffers(node.type, size, [validity], nulls, children=children)

    def _leaf(self, node: Leaf, slots: Longs, valid: Bytes, validity: pa.Buffer | None, nulls: int) -> pa.Array:
        size, kind = len(slots), node.type
        if node.wire in ("bytes", "fixed"):
            content = [self._decimals(slots, valid)] if node.column == "decimal" else self._pieces(slots, valid)
        elif node.column == "boolean":
            content = [pa.py_buffer(np.packbits(slots.view(np.uint8)[::8], bitorder="little"))]
        else:
            content = [pa.py_buffer(_numbers(node, slots))]
        return pa.Array.from_buffers(kind, size, [validity, *content], nulls)

    def _pieces(self, slots: Longs, valid: Bytes) -> list[pa.Buffer]:
        size = int((slots & 0xFFFFFFFF).sum())
        offsets, found = np.empty(len(slots) + 1, np.int32), np.empty(size, np.uint8)
        avro.copy_pieces(slots, valid, self._values.data, offsets, found)
        return [pa.py_buffer(offsets), pa.py_buffer(found)]

    def _decimals(self, slots: Longs, valid: Bytes) -> pa.Buffer:
        found = np.zeros(2 * len(slots), np.int64)
        avro.to_decimals(slots, valid, self._values.data, found)
        return pa.py_buffer(found)


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
