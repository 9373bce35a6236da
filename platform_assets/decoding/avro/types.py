"""Python types for Avro schemas: https://avro.apache.org/docs/1.12.0/specification/."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, Literal, TypeAlias, get_args

PlainKind = Literal["null", "boolean", "int", "long", "float", "double", "bytes", "string"]
PLAIN_KINDS: Final[tuple[PlainKind, ...]] = get_args(PlainKind)
MOST_LEVELS: Final = 100
"""Maximum nesting of types. Code that follows a schema recurses once for each level."""
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LARGEST_FIXED: Final = 1 << 30


_LOGICAL: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "int": ("date", "time-millis"),
        "long": (
            "time-micros",
            *(f"{local}timestamp-{unit}" for local in ("", "local-") for unit in ("millis", "micros", "nanos")),
        ),
        "string": ("uuid",),
        "bytes": ("big-decimal",),
    }
)
"""Logical types by underlying type. `decimal` and the logical types of `fixed` are not listed, because they depend on
more than the underlying type."""
INSTANTS: Final[Mapping[str, int]] = MappingProxyType(
    {"timestamp-millis": 1_000_000, "timestamp-micros": 1_000, "timestamp-nanos": 1}
)
"""For each logical type of an instant, the number of nanoseconds in one unit."""


class BadSchema(Exception):
    """Raised if a schema is invalid or cannot be represented as columns. The message shows the position in the schema."""

    def __init__(self, place: str, what: str) -> None:
        super().__init__(f"{place}: {what}")


class BadName(BadSchema):
    """Raised if a schema has a name that Avro does not allow. `of_field` is true for the name of a field."""

    def __init__(self, place: str, name: str, *, of_field: bool = False) -> None:
        self.place, self.what, self.of_field = place, f"{_short(name)} is not an Avro name", of_field
        super().__init__(place, self.what)


class OtherRecord(BadSchema):
    """Raised if the name of the written record is not the declared name."""


@dataclass(frozen=True, slots=True)
class Logical:
    """Logical type of a plain or fixed type. Only the logical types in Avro's specification are used."""

    name: str
    precision: int = 0
    scale: int = 0


@dataclass(frozen=True, slots=True)
class Plain:
    """A type without parts."""

    kind: PlainKind
    logical: Logical | None = None


@dataclass(frozen=True, slots=True)
class Fixed:
    """A fixed number of bytes."""

    name: str
    aliases: tuple[str, ...]
    size: int
    logical: Logical | None = None


@dataclass(frozen=True, slots=True)
class Enum:
    """One of several names. If the writer used a name that the reader lacks, that name is replaced by `default`."""

    name: str
    aliases: tuple[str, ...]
    symbols: tuple[str, ...]
    default: str | None


@dataclass(frozen=True, slots=True)
class Items:
    """An array, or a map, which is written as an array of pairs. `is_map_column` is true if the declared column is a
    MAP."""

    item: AvroType
    is_map: bool
    is_map_column: bool = False


@dataclass(frozen=True, slots=True)
class Union:
    """One of several types."""

    branches: tuple[AvroType, ...]


@dataclass(frozen=True, slots=True)
class Field:
    """A part of a record. `default` is JSON, and is valid only if `has_default` is true."""

    name: str
    aliases: tuple[str, ...]
    type: AvroType
    has_default: bool
    default: Any


@dataclass(frozen=True, slots=True)
class Record:
    """Consecutive fields."""

    name: str
    aliases: tuple[str, ...]
    fields: tuple[Field, ...]


@dataclass(frozen=True, slots=True)
class Around:
    """A reference to the enclosing record that has this full name."""

    name: str


AvroType: TypeAlias = Plain | Fixed | Enum | Items | Union | Record | Around


def parsed(
    document: Any, references: Sequence[Any] = (), *, writes: bool = False, map_columns: bool = False
) -> AvroType:
    """Parse a schema that is given as JSON. Raises BadSchema.

    Recursive types are allowed only if `writes` is true, that is, if the schema is used only for writing, because
    columns cannot be recursive. `references` are the schemas whose names this schema can use, in dependency order. With
    `map_columns`, maps become MAP columns.
    """
    parser = _Parser(writes=writes, map_columns=map_columns)
    for reference in references:
        parser.parsed(reference, "", "$", 0)
    return parser.parsed(document, "", "$", 0)


def described(of: AvroType) -> str:
    """Return a readable description of a type."""
    if isinstance(of, Plain):
        return of.kind if of.logical is None else f"{of.kind} ({of.logical.name})"
    if isinstance(of, Items):
        return f"{'map' if of.is_map else 'array'} of {described(of.item)}"
    if isinstance(of, Union):
        return f"union [{', '.join(map(described, of.branches))}]"
    return f"{'record' if isinstance(of, Around) else type(of).__name__.lower()} {of.name}"


class _Parser:
    """Parser that stores the names defined so far. While the type with a name is being read, that name has the value
    None."""

    def __init__(self, *, writes: bool, map_columns: bool) -> None:
        self._writes, self._map_columns = writes, map_columns
        self._named: dict[str, AvroType | None] = {}

    def parsed(self, document: Any, space: str, place: str, level: int) -> AvroType:
        if level > MOST_LEVELS:
            raise BadSchema(place, f"more than {MOST_LEVELS} types nested in one another")
        if isinstance(document, str):
            return self._by_name(document, space, place)
        if isinstance(document, Sequence):
            return self._union(document, space, place, level)
        if not isinstance(document, Mapping) or "type" not in document:
            raise BadSchema(place, f"{_short(document)} is not an Avro type")
        kind = document["type"]
        if kind in ("record", "error"):
            return self._record(document, space, place, level)
        if kind == "enum":
            return self._enum(document, space, place)
        if kind == "fixed":
            return self._fixed(document, space, place)
        if kind in ("array", "map"):
            part = "items" if kind == "array" else "values"
            if part not in document:
                raise BadSchema(place, f"{kind} without {part!r}")
            step = "[]" if kind == "array" else "{}"
            item = self.parsed(document[part], space, place + step, level + 1)
            return Items(item, kind == "map", kind == "map" and self._map_columns)
        if isinstance(kind, str) and kind in PLAIN_KINDS:
            return Plain(kind, _logical(document, kind, 0))
        return self.parsed(kind, space, place, level + 1)

    def _by_name(self, name: str, space: str, place: str) -> AvroType:
        if name in PLAIN_KINDS:
            return Plain(name)
        for full in [name] if "." in name or not space else [f"{space}.{name}", name]:
            if full in self._named:
                found = self._named[full]
                if found is None and not self._writes:
                    raise BadSchema(
                        place,
                        f"{full} contains itself, which columns cannot represent; leave this field out, and give the "
                        "whole schema as `writer_schema`, or by `registry`: then the values of the field are kept "
                        "in `rescued`",
                    )
                return Around(full) if found is None else found
        raise BadSchema(place, f"{_short(name)} is neither an Avro type nor a name defined before")

    def _union(self, document: Sequence[Any], space: str, place: str, level: int) -> AvroType:
        branches = tuple(self.parsed(branch, space, place, level + 1) for branch in document)
        kinds = [_union_kind(branch) for branch in branches]
        if not kinds or len(set(kinds)) < len(kinds) or "union" in kinds:
            raise BadSchema(place, f"a union of [{', '.join(kinds)}] is not allowed in Avro")
        return Union(branches)

    def _record(self, document: Mapping[str, Any], space: str, place: str, level: int) -> Record:
        name, aliases, space = self._names(document, space, place)
        self._named[name] = None
        listed = document.get("fields")
        if not isinstance(listed, list):
            raise BadSchema(place, f"record {name} has no list of 'fields'")
        fields: dict[str, Field] = {}
        for each in listed:
            own = each.get("name") if isinstance(each, Mapping) else None
            if not isinstance(own, str) or "type" not in each:
                raise BadSchema(place, f"{_short(each)} is not a record field")
            if not _NAME.fullmatch(own):
                raise BadName(place, own, of_field=True)
            at = f"{place}.{own}"
            if own in fields:
                raise BadSchema(at, f"record {name} has two fields with this name")
            kind = self.parsed(each["type"], space, at, level + 1)
            fields[own] = Field(own, _texts(each, "aliases", at), kind, "default" in each, each.get("default"))
        made = Record(name, aliases, tuple(fields.values()))
        self._named[name] = made
        return made

    def _enum(self, document: Mapping[str, Any], space: str, place: str) -> Enum:
        name, aliases, _ = self._names(document, space, place)
        symbols, default = _texts(document, "symbols", place), document.get("default")
        if not symbols or len(set(symbols)) < len(symbols):
            raise BadSchema(place, f"enum {name} lists no symbols, or lists a symbol twice")
        if any("\ud800" <= each <= "\udfff" for symbol in symbols for each in symbol):
            raise BadSchema(place, f"enum {name} has a symbol with half of a surrogate pair, which is not a character")
        if default is not None and default not in symbols:
            raise BadSchema(place, f"enum {name} has the default {_short(default)}, which is not one of its symbols")
        made = Enum(name, aliases, symbols, default)
        self._named[name] = made
        return made

    def _fixed(self, document: Mapping[str, Any], space: str, place: str) -> Fixed:
        name, aliases, _ = self._names(document, space, place)
        size: Any = document.get("size")
        if not _is_number(size) or not 0 <= size <= _LARGEST_FIXED:
            raise BadSchema(place, f"fixed {name} has an invalid size: {_short(size)}")
        made = Fixed(name, aliases, size, _logical(document, "fixed", size))
        self._named[name] = made
        return made

    def _names(self, document: Mapping[str, Any], space: str, place: str) -> tuple[str, tuple[str, ...], str]:
        """Return the full name, the full aliases, and the namespace for nested names."""
        name, given = document.get("name"), document.get("namespace", space)
        if not isinstance(name, str) or not isinstance(given, str):
            raise BadSchema(place, f"{document['type']} without a name")
        space, own = name.rsplit(".", 1) if "." in name else (given, name)
        full = f"{space}.{own}" if space else own
        if not all(_NAME.fullmatch(part) for part in [own, *(space.split(".") if space else [])]):
            raise BadName(place, full)
        if full in self._named or full in PLAIN_KINDS:
            raise BadSchema(place, f"{full} is defined twice")
        aliases = [
            alias if "." in alias or not space else f"{space}.{alias}" for alias in _texts(document, "aliases", place)
        ]
        return full, tuple(aliases), space


def _logical(document: Mapping[str, Any], kind: str, size: int) -> Logical | None:
    """Return the logical type, or None if the logical type is invalid or not in the specification. Readers must ignore
    such logical types."""
    name = document.get("logicalType")
    if not isinstance(name, str):
        return None
    if name in _LOGICAL.get(kind, ()) or (kind, name, size) in (("fixed", "duration", 12), ("fixed", "uuid", 16)):
        return Logical(name)
    if name != "decimal" or kind not in ("bytes", "fixed"):
        return None
    precision: Any = document.get("precision")
    scale: Any = document.get("scale", 0)
    if not _is_number(precision) or not _is_number(scale):
        return None
    fits = kind == "bytes" or precision <= len(str(1 << max(8 * size - 1, 0))) - 1
    return Logical("decimal", precision, scale) if fits and 0 <= scale <= precision and precision else None


def _is_number(found: Any) -> bool:
    return isinstance(found, int) and not isinstance(found, bool)


def _union_kind(of: AvroType) -> str:
    """Return the kind of a type. A union can contain each kind only once."""
    if isinstance(of, Plain):
        return of.kind
    if isinstance(of, Items):
        return "map" if of.is_map else "array"
    return "union" if isinstance(of, Union) else of.name


def _texts(document: Mapping[str, Any], name: str, place: str) -> tuple[str, ...]:
    found = document.get(name, [])
    if not isinstance(found, list) or not all(isinstance(text, str) for text in found):
        raise BadSchema(place, f"{name!r} is {_short(found)}, not a list of names")
    return tuple(found)


def _short(what: object) -> str:
    text = repr(what)
    return text if len(text) <= 60 else text[:59] + "…"
