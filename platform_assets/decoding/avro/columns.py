"""Columns for the values of an Avro schema."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa

from platform_assets.decoding.avro.plan import JSON
from platform_assets.decoding.avro.types import (
    Around,
    AvroType,
    BadSchema,
    Enum,
    Field,
    Fixed,
    Items,
    Logical,
    Plain,
    PlainKind,
    Record,
    Union,
    described,
)
from platform_assets.decoding.maps import map_type

TIMESTAMP: Final = pa.timestamp("us", "UTC")
SINGLE: Final = "value"
"""Name of the column for values that are not records. Such values have only this column."""
MOST_PARTS: Final = 10_000
"""Maximum number of parts in a schema, counted after each name is replaced by its definition. Without a limit, a few
lines could define billions of parts."""
LARGEST_PRECISION: Final = 38

_PLAIN: Final[Mapping[PlainKind, pa.DataType]] = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}


def fields_of(schema: AvroType) -> pa.Schema:
    """Return the columns for the fields of a record, or the single column `value` for any other type. Raises
    BadSchema for a type that has no column."""
    if isinstance(schema, Record):
        return pa.schema(_Columns().fields(schema, "$"))
    return pa.schema([_Columns().field(SINGLE, schema, "$")])


def plain_type(kind: PlainKind) -> pa.DataType:
    """Return the Arrow type of a plain Avro type. `null` has no Arrow type."""
    return _PLAIN[kind]


def logical_type(logical: Logical, place: str) -> pa.DataType | None:
    """Return the column type for a logical type, or None if the column has the underlying type.

    Raises BadSchema if no column type can represent the logical type.
    """
    if logical.name == "date":
        return pa.date32()
    if logical.name in ("timestamp-millis", "timestamp-micros"):
        return TIMESTAMP
    if logical.name == "decimal" and logical.precision <= LARGEST_PRECISION:
        return pa.decimal128(logical.precision, logical.scale)
    if logical.name == "decimal":
        raise BadSchema(
            place, f"a decimal can have at most {LARGEST_PRECISION} digits, not {logical.precision}; use bytes"
        )
    if logical.name in ("local-timestamp-millis", "local-timestamp-micros"):
        raise BadSchema(place, f"{logical.name} has no column type; use long, without a logical type")
    return None


def nullable(schema: AvroType, place: str) -> tuple[AvroType, bool]:
    """Return the type other than null, and True if null is allowed too. Raises BadSchema unless there is exactly one
    such type."""
    if not isinstance(schema, Union):
        return schema, False
    others = [branch for branch in schema.branches if branch != Plain("null")]
    if len(others) != 1:
        text = f"a column can have one type and, optionally, null; this is a {described(schema)}"  # plain: allow
        raise BadSchema(place, text)
    return others[0], len(schema.branches) == 2


class _Columns:
    """Builds columns, and counts the parts of the schema."""

    def __init__(self) -> None:
        self._parts = 0

    def field(self, name: str, schema: AvroType, place: str) -> pa.Field:
        kept, is_nullable = nullable(schema, place)
        return pa.field(name, self._type(kept, place), nullable=is_nullable)

    def fields(self, record: Record, place: str) -> list[pa.Field]:
        if not record.fields:
            raise BadSchema(place, f"record {record.name} has no fields, and therefore no columns")
        names: dict[str, str] = {}
        for field in record.fields:
            other = names.setdefault(field.name.lower(), field.name)
            if other != field.name:
                raise BadSchema(
                    place,
                    f"fields {other!r} and {field.name!r} would have the same column name in a table; rename one of them",
                )
        return [self.field(field.name, field.type, f"{place}.{field.name}") for field in record.fields]

    def _type(self, schema: AvroType, place: str) -> pa.DataType:
        self._parts += 1
        if self._parts > MOST_PARTS:
            raise BadSchema(place, f"the schema has more than {MOST_PARTS} parts")
        if isinstance(schema, Record):
            return pa.struct(self.fields(schema, place))
        if isinstance(schema, Items) and schema.is_map:
            value = self.field("value", schema.item, place + "{}")
            if schema.is_map_column:
                return map_type(value)
            return pa.list_(
                pa.field("element", pa.struct([pa.field("key", pa.string(), nullable=False), value]), nullable=False)
            )
        if isinstance(schema, Items):
            return pa.list_(self.field("element", schema.item, place + "[]"))
        if isinstance(schema, Enum):
            return pa.string()
        if isinstance(schema, (Union, Around)):
            raise BadSchema(place, f"a {described(schema)} has no column type")
        stands_for = None if schema.logical is None else logical_type(schema.logical, place)
        if stands_for is not None:
            return stands_for
        if isinstance(schema, Fixed):
            return pa.binary()
        if schema.kind == "null":
            raise BadSchema(place, "null has no column type")
        return _PLAIN[schema.kind]


def default_of(field: Field, place: str) -> Any:
    """Return the default of the reader's field `field` in pyarrow's form. The writer's schema does not have this field.
    Raises BadSchema if the field's type does not allow the default."""
    return _default(field.type, field.default, f"default of {place}")


def _default(schema: AvroType, given: Any, place: str) -> Any:
    """Convert a JSON default by the rules of the specification. For a union, use the branch that the default fits."""
    wrong = BadSchema(place, f"{given!r} is not a valid {described(schema)}")
    if isinstance(schema, Union):
        kept, has_null = nullable(schema, place)
        return None if given is None and has_null else _default(kept, given, place)
    if isinstance(schema, Record):
        if not isinstance(given, Mapping):
            raise wrong
        made = {}
        for field in schema.fields:
            if field.name not in given and not field.has_default:
                raise BadSchema(place, f"{field.name!r} is missing")
            made[field.name] = _default(field.type, given.get(field.name, field.default), f"{place}.{field.name}")
        return made
    if isinstance(schema, Items) and schema.is_map:
        if not isinstance(given, Mapping):
            raise wrong
        entries = [(key, _default(schema.item, value, place)) for key, value in given.items()]
        return entries if schema.is_map_column else [{"key": key, "value": value} for key, value in entries]
    if isinstance(schema, Items):
        if isinstance(given, str) or not isinstance(given, Sequence):
            raise wrong
        return [_default(schema.item, value, place) for value in given]
    if isinstance(schema, Enum):
        if given not in schema.symbols:
            raise wrong
        return given
    return _plain_default(schema, given, wrong)


def _plain_default(schema: Plain | Fixed | Around, given: Any, wrong: BadSchema) -> Any:
    if isinstance(schema, Around):
        raise wrong
    kind = "bytes" if isinstance(schema, Fixed) else schema.kind
    logical = schema.logical
    if kind == "bytes":
        if not isinstance(given, str) or any(ord(letter) > 255 for letter in given):
            raise wrong
        content = given.encode("latin-1")
        if isinstance(schema, Fixed) and len(content) != schema.size:
            raise wrong
        if logical is not None and logical.name == "decimal":
            unscaled = int.from_bytes(content, "big", signed=True)
            if not content or abs(unscaled) >= 10**logical.precision:
                raise wrong
            return Decimal((int(unscaled < 0), tuple(map(int, str(abs(unscaled)))), -logical.scale))
        return content
    fits = {
        "boolean": isinstance(given, bool),
        "int": _is_whole(given, 32),
        "long": _is_whole(given, 64),
        "float": _is_number(given),
        "double": _is_number(given),
        "string": isinstance(given, str) and _encodes(given),
    }
    if not fits.get(kind, False):
        raise wrong
    if kind in ("float", "double"):
        return float(given)
    if logical is None or logical.name != "timestamp-millis":
        return given
    if not _is_whole(given * 1_000, 64):
        raise wrong
    return given * 1_000


def _is_whole(given: Any, bits: int) -> bool:
    return isinstance(given, int) and not isinstance(given, bool) and -(1 << (bits - 1)) <= given < 1 << (bits - 1)


def _is_number(given: Any) -> bool:
    return (
        isinstance(given, (int, float))
        and not isinstance(given, bool)
        and abs(given) < 1 << 1023
        and not math.isnan(given)
    )


def _encodes(text: str) -> bool:
    return all(not 0xD800 <= ord(letter) < 0xE000 for letter in text)


def as_json(value: Any) -> Any:
    """Return a part of a value in a form that JSON supports, or None if the part is empty. Bytes become base64, and
    numbers that JSON lacks become strings.

    Null and empty parts of objects are omitted.
    """
    if isinstance(value, dict) and list(value) == [JSON]:
        return None if value[JSON] is None else json.loads(value[JSON])
    if isinstance(value, dict):
        parts = {name: as_json(part) for name, part in value.items()}
        return {name: part for name, part in parts.items() if part is not None} or None
    if isinstance(value, list):
        items = [as_json(part) for part in value]
        return items if any(item is not None for item in items) else None
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
