"""The exact path, which reads one value at a time in plain Python. Dead letters contain the messages of its errors.

The exact path recurses into nested types. Whatever a value contains, its schema has at most `MOST_LEVELS` levels of
nested types.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Context, Decimal
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import pyarrow as pa

from platform_assets.decoding.avro.columns import as_json
from platform_assets.decoding.avro.plan import (
    JSON,
    RESCUED,
    Again,
    Choice,
    Either,
    Empty,
    EmptyItems,
    Leaf,
    Node,
    Refused,
    Repeated,
    Struct,
    Variant,
)
from platform_assets.decoding.decoder import DecodeFault

MOST_AGAIN: Final = 64
"""Maximum depth to which records of one type can be nested inside one another. The code that reads these records
recurses once for each level."""
_LONG_BITS: Final = 64
_WHOLE: Final = ("int", "long")
_FLOAT, _DOUBLE = struct.Struct("<f"), struct.Struct("<d")
_WIDE: Final = Context(prec=100)


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a value. `node` is the plan for reading the part, or None at the end of the value. `place` is the path
    to the part, for example `.legs.carrier`."""

    node: Node | None
    place: str


END: Final = Part(None, "")


def read(plan: Struct, value: bytes, max_bytes: int) -> dict[str, Any]:
    """Return one value in pyarrow's form for the type of `plan`. Raises DecodeFault."""
    if len(value) > max_bytes:
        raise too_large(len(value), max_bytes)
    reader = _Reader(value)
    try:
        found: dict[str, Any] = reader.node(plan)
        reader.end()
    except DecodeFault as fault:
        raise DecodeFault(fault.reason, fault.detail, reader.placed("")) from fault
    return found


def too_large(size: int, max_bytes: int) -> DecodeFault:
    """Return the fault for a value of `size` bytes that is too large."""
    return DecodeFault("too_large", f"{size} bytes, but max_bytes is {max_bytes}")


def fault_at(part: Part, value: bytes, at: int) -> DecodeFault | None:
    """Return the fault that `read` would raise for `value`. The bytes before `at` must be correct, and `part` must
    begin at `at`.

    The result is None if this part can be read. The bytes after this part might still be wrong.
    """
    reader = _Reader(value, at)
    try:
        if part.node is None:
            reader.end()
        else:
            reader.node(part.node)
    except DecodeFault as fault:
        fault.place = reader.placed(part.place)
        return fault
    return None


def step_to(name: str) -> str:
    """Return the step for the part `name`, in the form used in paths to faults."""
    return "." + name.lstrip(RESCUED)


class _Reader:
    """Reader of the value `data`. It keeps the position of the next part. If a part is faulty, it also keeps the steps
    to that part, innermost first."""

    def __init__(self, data: bytes, at: int = 0) -> None:
        self.data, self.at = data, at
        self.place: list[str] = []
        self.again = 0

    def placed(self, outside: str) -> str | None:
        """Return the path to the fault, in the form that dead letters show. `outside` contains the steps to the part at
        which reading began."""
        inside = "".join(reversed(self.place))
        return f"${outside}{inside}" if outside or inside else None

    def end(self) -> None:
        """Check that no bytes follow the datum."""
        if self.at < len(self.data):
            raise DecodeFault(
                "malformed", f"{len(self.data) - self.at} bytes follow the datum, which ends at byte {self.at}"
            )

    def node(self, node: Node) -> Any:
        return _READERS[type(node)](self, node)

    def _take(self, size: int, what: str) -> bytes:
        if size > len(self.data) - self.at:
            raise self._malformed(f"{what} of {size} bytes, but only {len(self.data) - self.at} are left")
        self.at += size
        return self.data[self.at - size : self.at]

    def _malformed(self, what: str) -> DecodeFault:
        return DecodeFault("malformed", f"{what}, at byte {self.at}")

    def _long(self, what: str) -> int:
        """Read a zigzag varint of up to 64 bits."""
        value = shift = 0
        data, at = self.data, self.at
        if at < len(data) and (byte := data[at]) < 0x80:
            self.at = at + 1
            return (byte >> 1) ^ -(byte & 1)
        while at < len(data) and shift < _LONG_BITS:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                if value >> _LONG_BITS:
                    break
                self.at = at
                return (value >> 1) ^ -(value & 1)
            shift += 7
        raise self._malformed(f"the value ends within {what}" if at == len(data) else f"{what} is larger than 64 bits")

    def _size(self, what: str) -> int:
        size = self._long(what)
        if size < 0:
            raise self._malformed(f"{what} has a size of {size}")
        return size

    def leaf(self, node: Leaf) -> Any:
        """Read a plain value."""
        wire = node.wire
        if wire in ("int", "long"):
            return self._number(self._long(wire), node)
        if wire == "boolean":
            byte = self._take(1, "a boolean")[0]
            if byte > 1:
                raise self._malformed(f"a boolean of {byte}, which is neither 0 nor 1")
            return bool(byte)
        if wire in ("float", "double"):
            form = _FLOAT if wire == "float" else _DOUBLE
            return form.unpack(self._take(form.size, "a " + wire))[0]
        content = self._take(node.size if wire == "fixed" else self._size("text or bytes"), "text or bytes")
        if node.column == "decimal":
            return self._decimal(content, node.type)
        if node.column == "text":
            try:
                return content.decode("utf-8")
            except UnicodeDecodeError as error:
                raise DecodeFault(
                    "malformed", f"not UTF-8: {error.reason} at byte {error.start} of the text"
                ) from error
        return content

    def _number(self, value: int, node: Leaf) -> Any:
        if node.wire == "int" and not -(1 << 31) <= value < 1 << 31:
            raise self._malformed(f"an int of {value}, which does not fit into 32 bits")
        if node.column == "float":
            return float(np.int64(value).astype(np.float32))
        if node.column == "double":
            return float(value)
        value *= node.factor
        if node.factor > 1 and not -(1 << 63) <= value < 1 << 63:
            raise DecodeFault(
                "out_of_range", f"{value // node.factor} ms since 1970, which do not fit into 64 bits as microseconds"
            )
        if value % node.divisor:
            raise DecodeFault("out_of_range", f"{value} ns since 1970, which are not whole microseconds")
        return value // node.divisor

    def _decimal(self, content: bytes, kind: pa.Decimal128Type) -> Decimal:
        if not content:
            raise DecodeFault("malformed", "a decimal without bytes")
        unscaled = int.from_bytes(content, "big", signed=True)
        if abs(unscaled) >= 10**kind.precision:
            raise DecodeFault(
                "out_of_range",
                f"a decimal of {len(content)} bytes with more than the {kind.precision} digits of its column",
            )
        return Decimal(unscaled).scaleb(-kind.scale, _WIDE)

    def choice(self, node: Choice) -> str:
        """Read a symbol of an enum."""
        index = self._long("an enum")
        if not 0 <= index < len(node.symbols):
            raise self._malformed(f"symbol {index} of enum {node.name}, which has only {len(node.symbols)} symbols")
        symbol = node.read_as[index]
        if symbol is None:
            raise DecodeFault(
                "wrong_type", f"symbol {node.symbols[index]!r}, which the declared enum {node.name} lacks"
            )
        return symbol

    def structure(self, node: Struct) -> dict[str, Any]:
        """Read a record. Short numbers and strings in nullable columns are read inline, because most values consist
        mainly of such parts."""
        found: dict[str, Any] = {}
        data, end = self.data, len(self.data)
        for name, part in node.parts:
            at = self.at
            if type(part) is Either and at < end and not (byte := data[at]) & 0x81 and byte >> 1 < len(part.branches):
                branch = part.branches[byte >> 1]
                if branch is None:
                    self.at, found[name] = at + 1, None
                    continue
                if type(branch) is Leaf:
                    self.at, part = at + 1, branch
                    at += 1
            if type(part) is Leaf and at < end:
                byte = data[at]
                if part.wire in _WHOLE and part.column == "whole" and part.factor == part.divisor == 1:
                    if byte < 0x80:
                        self.at, found[name] = at + 1, (byte >> 1) ^ -(byte & 1)
                        continue
                    if at + 1 < end and (high := data[at + 1]) < 0x80:
                        byte = byte & 0x7F | high << 7
                        self.at, found[name] = at + 2, (byte >> 1) ^ -(byte & 1)
                        continue
                elif part.column == "text" and part.wire == "bytes" and not byte & 0x81 and at + (byte >> 1) < end:
                    text = data[at + 1 : at + 1 + (byte >> 1)]
                    if text.isascii():
                        self.at, found[name] = at + 1 + (byte >> 1), text.decode("ascii")
                        continue
            try:
                found[name] = self.node(part)
            except DecodeFault:
                self.place.append(step_to(name))
                raise
        return found

    def either(self, node: Either) -> Any:
        """Read a union that becomes one column."""
        branch = node.branches[self._branch(len(node.branches))]
        if branch is None:
            return None
        if isinstance(branch, Refused):
            raise DecodeFault(branch.reason, branch.detail)
        return self.node(branch)

    def variant(self, node: Variant) -> dict[str, Any] | None:
        """Read a union whose value is rescued."""
        branch = node.branches[self._branch(len(node.branches))]
        return None if branch is None else {branch[0]: self.node(branch[1])}

    def _branch(self, count: int) -> int:
        index = self._long("a union")
        if not 0 <= index < count:
            raise self._malformed(f"branch {index} of a union with {count} branches")
        return index

    def repeated(self, node: Repeated) -> list[Any]:
        """Read an array, or the pairs of a map."""
        found: list[Any] = []
        while True:
            count, end = self._block()
            if not count:
                return found
            if count * node.least > len(self.data) - self.at:
                raise self._malformed(f"a block of {count} items, but only {len(self.data) - self.at} bytes are left")
            for _ in range(count):
                try:
                    found.append(self.node(node.item))
                except DecodeFault:
                    self.place.append(f"[{len(found)}]")
                    raise
            if end is not None and self.at != end:
                raise self._malformed(f"a block that should end at byte {end} ends elsewhere")

    def once_more(self, node: Again) -> Any:
        """Read a recursive record. The outermost record is returned as JSON text, and the records nested in it are
        returned as dicts."""
        self.again += 1
        if self.again > MOST_AGAIN:
            raise DecodeFault("too_deep", f"more than {MOST_AGAIN} records {node.name} nested in one another")
        found = self.node(node.plans[node.name])
        self.again -= 1
        if self.again:
            return found
        made = as_json(found)
        return None if made is None else {JSON: json.dumps(made, ensure_ascii=False, separators=(",", ":"))}

    def empty_items(self, _: EmptyItems) -> None:
        """Read the blocks of items that take no bytes."""
        while True:
            count, end = self._block()
            if end is not None and end != self.at:
                raise self._malformed(f"a block that should end at byte {end} ends elsewhere")
            if not count:
                return

    def _block(self) -> tuple[int, int | None]:
        """Return the number of items that follow (0 at the end), and the position after these items, or None if the
        block does not state that position."""
        count = self._long("the item count of a block")
        if count >= 0:
            return count, None
        size = self._size("a block")
        if size > len(self.data) - self.at:
            raise self._malformed(f"a block of {size} bytes, but only {len(self.data) - self.at} are left")
        return -count, self.at + size


_READERS: Final[Mapping[type, Callable[[_Reader, Any], Any]]] = MappingProxyType(
    {
        Leaf: _Reader.leaf,
        Choice: _Reader.choice,
        Struct: _Reader.structure,
        Either: _Reader.either,
        Variant: _Reader.variant,
        Repeated: _Reader.repeated,
        Empty: lambda *_: None,
        EmptyItems: _Reader.empty_items,
        Again: _Reader.once_more,
    }
)
