"""A plan as a program for the kernel: see `kernels/avro.py` for what its steps are."""

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
"""Entry of the table for what the exact path has to decide."""


@dataclass(slots=True)
class Column:
    """What is filled: where its slots are is decided for each block. `inner` is the level of a list's items."""

    number: int
    level: int
    node: Node
    children: tuple[Column, ...] = ()
    inner: int = 0


@dataclass(slots=True)
class Program:
    """What a plan was compiled to. Steps name a column by its number, which `bound` replaces.

    `parts` has for each step the part of a value that begins with it; for those within a list, the outermost list.
    """

    root: Column
    steps: npt.NDArray[np.int64]
    table: npt.NDArray[np.int64]
    column_levels: npt.NDArray[np.int64]
    levels: int
    parts: tuple[Part, ...]
    symbols: dict[int, pa.Array] = field(default_factory=dict)

    def bound(self, begins: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The steps, where column i begins at `begins[i]`."""
        made = self.steps.copy()
        made[:, 1] = begins[made[:, 1]]
        return made.reshape(-1)


def compiled(plan: Struct) -> Program:
    """The program that reads what `plan` does."""
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
        """Add a step; returns its number."""
        at = (column.number, column.level) if column else (0, 0)
        self.steps.append([step, *at, *numbers, *[0] * (3 - len(numbers))])
        self.parts.append(self.part)
        return len(self.steps) - 1

    def node(self, node: Node, level: int, column: Column | None = None) -> Column | None:
        """Add the steps of a node, which fill `column` where there is one already; returns what they fill."""
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
            self.emit(steps.ENUM, made)  # of no symbols, so that values which have one are the exact path's
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
        """The main branch is read; null jumps behind it; all others are the exact path's."""
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
