"""Avro values as `fastavro` reads them, and the comparison of these values with those of a decoded row. `fastavro`
shares no code with the decoder."""

from __future__ import annotations

import io
import json
import math
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Context
from fractions import Fraction
from typing import Any, Final

import fastavro
import fastavro.read
import fastavro.schema
import pyarrow as pa

from platform_assets.decoding.registry.cache import AVRO, Registered
from platform_assets.model.decoding import FormatSpec

HEAD: Final = 5
"""Number of bytes at the start of a value, before the bytes that a registered schema describes."""
_MOST_NAMES: Final = 5
_MOST_FIELDS: Final = 20
"""Limits when checking if an array's items take any bytes: the maximum number of fields to follow in the item type, and
the maximum depth of named types."""
_SINGLE_BITS: Final = 24
NOT_JUDGED: Final = object()
"""Stands for a value that this reader cannot provide."""
_NO_SCHEMA: Final = (
    ValueError,
    RecursionError,
    LookupError,
    TypeError,
    AttributeError,
    fastavro.schema.SchemaParseException,
)
"""Errors that fastavro raises for schemas that it does not accept, and errors that this module raises for schemas of an
unexpected form."""
Registry = Callable[[int], list[Registered]]
"""Function that returns the schemas that the lake stores for an id. There is one schema for each meaning that the id
has had in any registry."""


@dataclass(frozen=True, slots=True)
class _Moment:
    """A number that represents an instant, and the length of its unit in nanoseconds."""

    number: int
    unit: int


_UNITS: Final = {"timestamp-millis": 1_000_000, "timestamp-micros": 1_000, "timestamp-nanos": 1}


def _moment(number: int, writer_schema: Any, *_: Any) -> _Moment:
    return _Moment(number, _UNITS[writer_schema["logicalType"].removeprefix(_OWN)])


# fastavro's own conversions of logical types know no instants beyond the year 9999, and round decimals.
_OWN: Final = "platform-assets-"
for _name in _UNITS:
    fastavro.read.LOGICAL_READERS[f"long-{_OWN}{_name}"] = _moment
# fastavro leaves a number of a logical type as it is: read as a float, it would be rounded twice.
_WHOLE: Final = _OWN + "whole"
fastavro.read.LOGICAL_READERS[f"long-{_WHOLE}"] = lambda number, *_: number
_DEFAULT: Final = _OWN + "default"


def _plain(schema: Any) -> Any:
    """Return the schema without logical types other than instants, and with a mark on fields that have a default."""
    if isinstance(schema, list):
        return [_plain(branch) for branch in schema]
    if schema == "long":
        return {"type": "long", "logicalType": _WHOLE}
    if not isinstance(schema, dict):
        return schema
    if isinstance(schema["type"], dict | list):
        return _plain(schema["type"])
    made = {name: part for name, part in schema.items() if name != "logicalType"}
    if schema["type"] == "long":
        unit = schema.get("logicalType")
        return {**made, "logicalType": _OWN + unit if unit in _UNITS else _WHOLE}
    made |= {name: _plain(made[name]) for name in ("items", "values") if name in made}
    if "fields" in made:
        made["fields"] = [_plain_field(field) for field in made["fields"]]
    return made


def _plain_field(field: dict[str, Any]) -> dict[str, Any]:
    made = {name: part for name, part in field.items() if name not in ("logicalType", "default")}
    return {**made, "type": _plain(field["type"]), _DEFAULT: "default" in field}


def columns(spec: FormatSpec, value: bytes, registry: Registry) -> Mapping[str, Any] | None:
    """Return the values by column name; None if the schema of `value` is not known, or if fastavro does not accept the
    schema."""
    is_registered = spec.options.get("registry") is True
    try:
        schemas = _schemas(spec, value, registry if is_registered else None)
    except _NO_SCHEMA:
        return None
    if schemas is None:
        return None
    content = value[HEAD:] if is_registered else value
    stream = io.BytesIO(content)
    read: Any = fastavro.schemaless_reader(stream, schemas.writer, schemas.reader)
    if stream.tell() != len(content):
        raise ValueError(f"{len(content) - stream.tell()} bytes are left after the value")
    theirs = read["value"]
    return theirs if schemas.is_record else {"value": theirs}


@dataclass(frozen=True, slots=True)
class _Schemas:
    """The writer's and the reader's schema for fastavro. Each is a record with the single field `value`. `is_record` is
    true if the fields inside this field are the columns."""

    writer: Any
    reader: Any
    is_record: bool


def _schemas(spec: FormatSpec, value: bytes, registry: Registry | None) -> _Schemas | None:
    documents = list[Any]()
    if registry is None:
        writer = _plain(_document(spec.options.get("writer_schema", spec.options["schema"])))
    else:
        found = registry(int.from_bytes(value[1:HEAD], "big")) if value[:1] == b"\0" else []
        if len(found) != 1 or found[0].kind != AVRO:
            return None
        writer = _plain(json.loads(found[0].text))
        documents = [_plain(json.loads(text)) for text in found[0].references.values()]
    if not _is_bounded([*documents, writer]):
        return None
    written, read = dict[str, Any](), dict[str, Any]()
    for document in documents:
        fastavro.parse_schema(document, written)
    reader = _plain(_document(spec.options["schema"]))
    schemas = _Schemas(
        fastavro.parse_schema(_as_field(writer), written),
        fastavro.parse_schema(_as_field(reader), read),
        is_record=isinstance(reader, dict) and reader["type"] in ("record", "error"),
    )
    # A default is text in the schema whatever its type is, and may omit fields that have defaults.
    for record in read.values():
        for field in record.get("fields", ()):
            if field[_DEFAULT]:
                field["default"] = NOT_JUDGED
    return schemas


def _as_field(schema: Any) -> dict[str, Any]:
    field = {"name": "value", "type": schema, _DEFAULT: False}
    return {"type": "record", "name": "platform_assets_value", "fields": [field]}


def _is_bounded(documents: list[Any]) -> bool:
    """Return True if every array has items that take at least one byte. Return False if items may take no bytes,
    because fastavro would read any number of such items, one by one."""
    waiting, by_name, items = [*documents], dict[str, Any](), []
    while waiting:
        schema = waiting.pop()
        if isinstance(schema, list):
            waiting += schema
        elif isinstance(schema, dict):
            if isinstance(name := schema.get("name"), str) and schema.get("type") in ("record", "error", "fixed"):
                by_name[name.rpartition(".")[2]] = schema
            items += [schema["items"]] if schema.get("type") == "array" and "items" in schema else []
            waiting += [schema[part] for part in ("type", "items", "values", "fields") if part in schema]
    return all(_takes_bytes(item, by_name, 0) for item in items)


def _takes_bytes(schema: Any, by_name: Mapping[str, Any], depth: int) -> bool:
    if isinstance(schema, str):
        named = by_name.get(schema.rpartition(".")[2])
        return schema != "null" if named is None else depth < _MOST_NAMES and _takes_bytes(named, by_name, depth + 1)
    if not isinstance(schema, dict):
        return True  # the number of a union's branch
    if schema.get("type") == "fixed":
        return bool(schema["size"])
    if schema.get("type") in ("record", "error"):
        return any(_takes_bytes(field["type"], by_name, depth + 1) for field in schema["fields"][:_MOST_FIELDS])
    return _takes_bytes(schema["type"], by_name, depth)


def _document(given: Any) -> Any:
    return json.loads(given) if isinstance(given, str) and given.lstrip()[:1] in ("{", "[") else given


def same(kind: pa.DataType, theirs: Any, mine: Any) -> bool:
    """Return True if the value that fastavro read equals the value in a decoded row.

    Numbers are promoted and strings are converted here, because fastavro leaves them as they were written.
    """
    if theirs is NOT_JUDGED:
        return True
    if theirs is None or mine is None:
        return theirs is None and mine is None
    try:
        if pa.types.is_struct(kind):
            return all(same(part.type, theirs[part.name], mine[part.name]) for part in kind)
        if pa.types.is_map(kind) or (pa.types.is_list(kind) and isinstance(theirs, dict)):
            is_map = pa.types.is_map(kind)
            item = kind.item_type if is_map else kind.value_type.field("value").type
            own = dict(mine) if is_map else {entry["key"]: entry["value"] for entry in mine}
            return own.keys() == theirs.keys() and all(same(item, theirs[name], own[name]) for name in own)
        if pa.types.is_list(kind):
            return all(same(kind.value_type, *pair) for pair in zip(theirs, mine, strict=True))
        if pa.types.is_timestamp(kind):
            # A number without a unit of its own has the unit of the declaration, which no other reader knows.
            return not isinstance(theirs, _Moment) or theirs.number * theirs.unit == mine * 1_000
        theirs = theirs.number if isinstance(theirs, _Moment) else theirs
        if pa.types.is_floating(kind):
            is_single = pa.types.is_float32(kind)
            return same_real(
                _single(theirs) if is_single and isinstance(theirs, int) else theirs, mine, single=is_single
            )
        if pa.types.is_decimal(kind):
            return bool(mine.scaleb(kind.scale, Context(prec=100)) == int.from_bytes(theirs, "big", signed=True))
        if pa.types.is_string(kind):
            return bool(mine == (theirs.decode() if isinstance(theirs, bytes) else theirs))
        if pa.types.is_binary(kind):
            return bool(mine == (theirs.encode() if isinstance(theirs, str) else theirs))
        return isinstance(theirs, bool) == pa.types.is_boolean(kind) and bool(theirs == mine)
    except (TypeError, ValueError, ArithmeticError, AttributeError, KeyError):
        return False


def _single(number: int) -> int:
    """Return the nearest number with 24 significant bits. If two such numbers are equally near, return the even one."""
    dropped = max(number.bit_length() - _SINGLE_BITS, 0)
    return round(Fraction(number, 1 << dropped)) << dropped


def same_real(theirs: Any, mine: float, *, single: bool) -> bool:
    """Return True if `theirs`, rounded to a double and then, if `single` is true, to a float, equals `mine`. Zeros with
    different signs differ."""
    number = float(theirs)
    if single and math.isfinite(number):
        (number,) = struct.unpack("<f", struct.pack("<f", number))
    return (math.isnan(number) and math.isnan(mine)) or (
        number == mine and math.copysign(1, number) == math.copysign(1, mine)
    )
