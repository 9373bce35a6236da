"""Plan for reading values of one schema as values of another schema. The plan is a tree in the writer's order, and both
paths follow it.

Each node has the Arrow type of the value that the node reads, or None if the value takes no bytes. Parts that the
reader lacks are read too, for the column `rescued`. In a struct, the names of these parts have the prefix `RESCUED`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

import pyarrow as pa

from platform_assets.decoding.decoder import Reason

RESCUED: Final = "\0"
JSON: Final = "\0json"
"""Field name for a string that is already JSON."""
Wire = Literal["boolean", "int", "long", "float", "double", "bytes", "fixed"]
"""Encodings of plain values. A string is encoded like bytes."""
Column = Literal["boolean", "whole", "float", "double", "bytes", "text", "decimal"]
"""Types to which the values are converted. Dates and timestamps become whole numbers."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """One plain value. `size` is the size of a fixed type.

    `factor` is 1,000 to convert milliseconds to microseconds. `divisor` converts nanoseconds to microseconds; values
    that are not whole microseconds are faults.
    """

    wire: Wire
    type: pa.DataType
    size: int = 0
    factor: int = 1
    divisor: int = 1
    column: Column = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "column", _column(self.type))


@dataclass(frozen=True, slots=True)
class Choice:
    """A symbol of the enum `name`. `read_as` contains None for each symbol that the reader lacks."""

    name: str
    symbols: tuple[str, ...]
    read_as: tuple[str | None, ...]

    @property
    def type(self) -> pa.DataType:
        """The string type. Symbols are read as strings."""
        return pa.string()


@dataclass(frozen=True, slots=True)
class Output:
    """A field of the reader. `child` is the index of the child that was read, or None if the field gets `default`."""

    column: pa.Field
    child: int | None
    default: Any


@dataclass(frozen=True, slots=True)
class Struct:
    """Consecutive parts, each with a name and a node. `outputs` is None if the reader has no field for any of the
    parts."""

    parts: tuple[tuple[str, Node], ...]
    type: pa.DataType
    outputs: tuple[Output, ...] | None


@dataclass(frozen=True, slots=True)
class Either:
    """A union whose branches all become the same type. In `branches`, None stands for null. The reader does not accept
    a `Refused` branch."""

    branches: tuple[Node | Refused | None, ...]
    type: pa.DataType

    @property
    def main(self) -> Node:
        """The first branch that can be read."""
        return next(branch for branch in self.branches if branch is not None and not isinstance(branch, Refused))


@dataclass(frozen=True, slots=True)
class Variant:
    """A union of several types. Its value is rescued as a struct with a part for each type, and only one of these parts
    has a value. In `branches`, None stands for null."""

    branches: tuple[tuple[str, Node] | None, ...]
    type: pa.DataType


@dataclass(frozen=True, slots=True)
class Repeated:
    """Blocks of items that take at least `least` bytes each. If `is_map_column` is true, the items are the entries of a
    MAP, and their keys are unique."""

    item: Node
    least: int
    type: pa.DataType
    is_map_column: bool = False


@dataclass(frozen=True, slots=True)
class Empty:
    """A value that takes no bytes: null, or a record of nulls."""

    type: None = None


@dataclass(frozen=True, slots=True)
class EmptyItems:
    """Blocks of items that take no bytes. Only the number of items is read, without work for each item."""

    type: None = None


@dataclass(frozen=True, slots=True)
class Again:
    """A recursive record that the reader lacks. It is rescued as JSON text. `plans` maps names of records to their
    plans."""

    name: str
    plans: dict[str, Node] = field(repr=False, compare=False)

    @property
    def type(self) -> pa.DataType:
        """A struct type with a single string field. No field of a schema can have the name of this field."""
        return pa.struct([pa.field(JSON, pa.string())])


@dataclass(frozen=True, slots=True)
class Refused:
    """A branch that makes the value a dead letter."""

    reason: Reason
    detail: str


Node: TypeAlias = Leaf | Choice | Struct | Either | Variant | Repeated | Empty | EmptyItems | Again


def _column(kind: pa.DataType) -> Column:
    if pa.types.is_decimal(kind):
        return "decimal"
    named: dict[pa.DataType, Column] = {
        pa.bool_(): "boolean",
        pa.float32(): "float",
        pa.float64(): "double",
        pa.binary(): "bytes",
        pa.string(): "text",
    }
    return named.get(kind, "whole")


def least_size(node: Node | Refused | None) -> int:
    """Minimum number of bytes of a value."""
    if isinstance(node, Leaf):
        return {"boolean": 1, "int": 1, "long": 1, "bytes": 1, "float": 4, "double": 8, "fixed": node.size}[node.wire]
    if isinstance(node, Struct):
        return sum(least_size(part) for _, part in node.parts)
    return 0 if isinstance(node, Empty) else 1


def struct_type(parts: list[tuple[str, Node]]) -> pa.DataType:
    """Return a struct type that contains the parts that have a type."""
    return pa.struct([pa.field(name, part.type) for name, part in parts if part.type is not None])
