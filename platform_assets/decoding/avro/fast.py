"""The fast path: the kernel reads one block at a time. It marks the values that it cannot decode and leaves them to the
exact path."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from platform_assets.decoding.avro.exact import END, Part, step_to
from platform_assets.decoding.avro.plan import (
    Again,
    Choice,
    Either,
    Empty,
    EmptyItems,
    Leaf,
    Node,
    Repeated,
    Struct,
)
from platform_assets.decoding.pieces import Pieces
from platform_assets.kernels import avro
from platform_assets.kernels import avro as steps

_PLAIN: Final = {
    "int": steps.INT32,
    "long": steps.LONG,
    "float": steps.FLOAT,
    "double": steps.DOUBLE,
    "boolean": steps.BOOLEAN,
    "bytes": steps.BYTES_OF_SIZE,
    "fixed": steps.FIXED,
}
_NO_LIMIT: Final = -1
REFUSED: Final = -1
"""Table entry for values that the exact path has to decode."""


@dataclass(slots=True)
class Column:
    """A column to fill. Its slots are allocated for each block. If the column is a list, `inner` is the level of the
    list's items."""

    number: int
    level: int
    node: Node
    children: tuple[Column, ...] = ()
    inner: int = 0


@dataclass(slots=True)
class Program:
    """A compiled plan. Steps refer to a column by its number; `bound` replaces the number with the position of the
    column's slots.

    For each step, `parts` contains the part of a value that begins with the step or, for a step within a list, the
    outermost list.
    """

    root: Column
    steps: npt.NDArray[np.int64]
    table: npt.NDArray[np.int64]
    column_levels: npt.NDArray[np.int64]
    levels: int
    parts: tuple[Part, ...]
    symbols: dict[int, pa.Array] = field(default_factory=dict)

    def bound(self, begins: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the steps with each column number `i` replaced by the position `begins[i]`."""
        made = self.steps.copy()
        made[:, 1] = begins[made[:, 1]]
        return made.reshape(-1)


def compiled(plan: Struct) -> Program:
    """Return the program that reads `plan`."""
    compiler = _Compiler()
    root = compiler.node(plan, 0)
    assert root is not None
    compiler.part = END
    compiler.emit(steps.END)
    return Program(
        root,
        np.array(compiler.steps, np.int64),
        np.array(compiler.table or [0], np.int64),
        np.array(compiler.column_levels, np.int64),
        compiler.levels,
        tuple(compiler.parts),
        compiler.symbols,
    )


class _Compiler:
    def __init__(self) -> None:
        self.steps: list[list[int]] = []
        self.parts: list[Part] = []
        self.part = END
        self._place: list[str] = []
        self._outermost: Part | None = None
        self.table: list[int] = []
        self.column_levels: list[int] = []
        self.levels = 1
        self.symbols: dict[int, pa.Array] = {}

    def emit(self, step: int, column: Column | None = None, *numbers: int) -> int:
        """Add a step and return its number."""
        at = (column.number, column.level) if column else (0, 0)
        self.steps.append([step, *at, *numbers, *[0] * (3 - len(numbers))])
        self.parts.append(self.part)
        return len(self.steps) - 1

    def node(self, node: Node, level: int, column: Column | None = None) -> Column | None:
        """Add the steps of a node. If `column` is given, these steps fill it. Return the column that the steps fill, or
        None if they fill no column."""
        if isinstance(node, Empty):
            return None
        self.part = self._outermost or Part(node, "".join(self._place))
        if isinstance(node, EmptyItems):
            self.emit(steps.EMPTY_ITEMS)
            return None
        if isinstance(node, Either):
            return self._either(node, level, column)
        made = column or self._column(node, level)
        if isinstance(node, Leaf):
            self._leaf(node, made)
        elif isinstance(node, Choice):
            self._choice(node, made)
        elif isinstance(node, Again):
            self.emit(steps.ENUM, made)  # an empty range, so that values with a symbol are left to the exact path
        elif isinstance(node, Repeated):
            self._repeated(node, made)
        elif isinstance(node, Struct):
            self.emit(steps.MARK, made)
            made.children = self._parts(node.parts, made)
        else:
            parts = [None if branch is None else branch[1] for branch in node.branches]
            made.children = self._branches(parts, made)
        return made

    def _column(self, node: Node, level: int) -> Column:
        self.column_levels.append(level)
        return Column(len(self.column_levels) - 1, level, node)

    def _leaf(self, node: Leaf, column: Column) -> None:
        step, number = _PLAIN[node.wire], node.size if node.wire == "fixed" else node.factor
        if node.divisor > 1:
            step, number = steps.DIVIDED, node.divisor
        limit = _NO_LIMIT
        if node.column == "decimal":
            limit = self._reserve(2)
            largest: int = 10**node.type.precision - 1
            self.table[limit:] = np.frombuffer(largest.to_bytes(16, "little"), np.int64).tolist()
        elif node.column == "text":
            step = steps.TEXT
        self.emit(step, column, number, limit)

    def _parts(self, parts: Sequence[tuple[str, Node]], column: Column) -> tuple[Column, ...]:
        made = []
        for name, part in parts:
            self._place.append(step_to(name))
            made.append(self.node(part, column.level))
            self._place.pop()
        return tuple(each for each in made if each is not None)

    def _either(self, node: Either, level: int, column: Column | None) -> Column | None:
        """Add steps that read the main branch. For null, the steps jump to the step after the main branch. The exact
        path handles all other branches."""
        main = node.main
        first = self._reserve(len(node.branches))
        self.emit(steps.UNION, None, first, len(node.branches))
        begin = len(self.steps)
        made = self.node(main, level, column)
        for number, branch in enumerate(node.branches):
            entry = begin if branch is main else REFUSED
            self.table[first + number] = len(self.steps) if branch is None else entry
        return made

    def _branches(self, parts: Sequence[Node | None], column: Column) -> tuple[Column, ...]:
        first = self._reserve(len(parts))
        self.emit(steps.UNION, None, first, len(parts))
        ends, made = [], []
        for number, part in enumerate(parts):
            self.table[first + number] = len(self.steps)
            if part is not None:
                self.emit(steps.MARK, column)
                made.append(self.node(part, column.level))
            ends.append(self.emit(steps.JUMP))
        for end in ends:
            self.steps[end][3] = len(self.steps)
        return tuple(each for each in made if each is not None)

    def _choice(self, node: Choice, column: Column) -> None:
        first = self._reserve(len(node.symbols))
        for number, symbol in enumerate(node.read_as):
            self.table[first + number] = REFUSED if symbol is None else number
        self.symbols[column.number] = pa.array(node.read_as, pa.string())
        self.emit(steps.ENUM, column, first, len(node.symbols))

    def _repeated(self, node: Repeated, column: Column) -> None:
        column.inner = self.levels
        self.levels += 1
        outermost, self._outermost = self._outermost, self.part
        self.emit(steps.LIST, column, column.inner)
        begin = self.emit(steps.ITEMS, column, column.inner, node.least)
        item = self.node(node.item, column.inner)
        assert item is not None
        column.children = (item,)
        self.emit(steps.ITEM_END, None, column.inner, begin)
        self.steps[begin][5] = len(self.steps)
        self._outermost = outermost

    def _reserve(self, count: int) -> int:
        self.table += [REFUSED] * count
        return len(self.table) - count


Longs = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
TOO_LARGE: Final = -2
"""Step number that stands for a value larger than `max_bytes`."""
_FEW = 64
"""Initial number of slots for the items of a list, in addition to one slot for each value."""


@dataclass(frozen=True, slots=True)
class Block:
    """Values read from a block. `read` is an array of the plan's type, with nulls in the rows in which the kernel
    stopped.

    `rows` contains the numbers of these rows, in ascending order. For each of these rows, `steps` contains the step of
    the program that failed, or `TOO_LARGE`, and `places` contains the position in the value at which that step begins.
    """

    read: pa.StructArray
    rows: Longs
    steps: Longs
    places: Longs


def read_block(program: Program, values: Pieces, max_bytes: int) -> Block:
    """Read `values` with `program`. The kernel does not read values of more than `max_bytes` bytes."""
    reading = _Reading(program, values)
    reading.run(max_bytes)
    steps = reading.stops[0::2]
    rows = np.flatnonzero(steps)
    return Block(reading.array(program.root), rows, steps[rows] - 1, reading.stops[1::2][rows])


class _Reading:
    """The slots into which a block is read."""

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
        """Read all values, and enlarge levels that need more slots."""
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
        """Double the number of slots of each level that is at least half full."""
        old_begins, old_slots, old_valid = self._begins, self._slots, self._valid
        old_rooms = self._rooms[self._program.column_levels]
        full = 2 * self._levels[0::3] >= self._rooms
        full[0] = False
        if not full.any():  # the value that needs more room is the first of its kind
            full[1:] = True
        self._rooms = np.where(full, 2 * self._rooms, self._rooms)
        self._begins, self._slots, self._valid = self._made()
        for old, new, room in zip(old_begins.tolist(), self._begins.tolist(), old_rooms.tolist(), strict=True):
            self._slots[new : new + room] = old_slots[old : old + room]
            self._valid[new : new + room] = old_valid[old : old + room]

    def _size(self, level: int) -> int:
        return len(self._values) if level == 0 else int(self._levels[3 * level])

    def array(self, column: Column) -> pa.Array:
        """Return the values that were read for a column."""
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
    """Return the values in the slots, in their Arrow type."""
    kind = np.float32 if node.column == "float" else np.float64
    if node.wire == "double":
        return slots
    if node.wire == "float":
        return slots.astype(np.uint32).view(np.float32).astype(kind)
    if node.column != "whole":
        return slots.astype(kind)
    return slots.astype(np.int32) if node.type.bit_width == 32 else slots
