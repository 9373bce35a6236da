"""Comparison of the schema in a message with the declaration: the scale of decimals, the units of times, and the form of
bytes.

Values are read as the declaration says. The schema, if the converter writes it, tells what they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

import pyarrow as pa

from platform_assets.decoding.debezium.connect import DECIMAL
from platform_assets.decoding.debezium.declaration import (
    BYTES,
    DECIMALS,
    EXACT_DIGITS,
    MICROSECOND,
    MILLISECOND,
    TIMES,
    Declared,
)
from platform_assets.decoding.schema import type_name

_VARIABLE: Final = "io.debezium.data.VariableScaleDecimal"
_UNITS: Final[Mapping[str, int]] = MappingProxyType(
    {
        "org.apache.kafka.connect.data.Timestamp": MILLISECOND,
        "io.debezium.time.Timestamp": MILLISECOND,
        "io.debezium.time.MicroTimestamp": MICROSECOND,
        "io.debezium.time.NanoTimestamp": 1,
    }
)
"""Number of nanoseconds in the unit of each type of time that is written as a number."""
_MODES: Final[Mapping[str, str]] = MappingProxyType({"string": "string", "double": "double", "float": "double"})
_WRITTEN: Final[Mapping[str, str]] = MappingProxyType({"bytes": "precise", "struct": "precise", "string": "string"})
"""The mode of decimals that writes each type, other than `double`."""
_DAYS: Final = frozenset({"org.apache.kafka.connect.data.Date", "io.debezium.time.Date"})
_TIMES: Final = ("io.debezium.time.", "org.apache.kafka.connect.data.Time")


def mismatch(schema: Any, d: Declared) -> tuple[str, str] | None:
    """Return the column in which the schema of an event contradicts the declaration, and why; or None."""
    images = _fields(schema)
    fields = _fields(images.get("after")) or _fields(images.get("before"))
    for column in d.row:
        detail = _detail(fields.get(column.name), column.type, d, d.unit(column.name))
        if detail is not None:
            return column.name, detail
    return None


def as_written(schema: Mapping[str, Any], kind: pa.DataType, d: Declared) -> tuple[Declared, int]:
    """Return the settings with which the values of a column are read: a declaration with the modes that the column's
    schema shows, and the number of nanoseconds in the unit of its timestamps. Only a registry has a schema for each
    value, so otherwise the declared modes count."""
    decimals, binary, unit = d.decimals, d.binary, MICROSECOND
    for part, leaf in _leaves(schema, kind):
        if pa.types.is_decimal(leaf):
            decimals = _WRITTEN.get(part["type"], "double")
        elif pa.types.is_timestamp(leaf):
            unit = _UNITS.get(part.get("name", ""), unit)
        elif pa.types.is_binary(leaf) and part["type"] == "bytes":
            binary = "bytes"
    return replace(d, decimals=decimals, binary=binary), unit


def contradiction(schema: Mapping[str, Any], kind: pa.DataType, d: Declared) -> str | None:
    """Return why a column's schema in a registry contradicts the declared type, or None."""
    own, unit = as_written(schema, kind, d)
    for part, leaf in _leaves(schema, kind):
        detail = _unclear(part, leaf, own, unit) or _detail(part, leaf, own, unit)
        if detail is not None:
            return detail
    return None


def _leaves(schema: Mapping[str, Any], kind: pa.DataType) -> Iterator[tuple[Mapping[str, Any], pa.DataType]]:
    """Yield the parts of a schema whose declared type is not nested, with that type, and those that are nested in another way."""
    if _is_nested_otherwise(schema, kind):
        yield schema, kind
    elif pa.types.is_list(kind):
        if schema["type"] == "array":
            yield from _leaves(schema["items"], kind.value_type)
    elif pa.types.is_map(kind):
        if schema["type"] == "map":
            yield from _leaves(schema["values"], kind.item_type)
    elif pa.types.is_struct(kind):
        parts = _fields(schema)
        for field in kind:
            if field.name in parts:
                yield from _leaves(parts[field.name], field.type)
    else:
        yield schema, kind


def _is_nested_otherwise(schema: Mapping[str, Any], kind: pa.DataType) -> bool:
    wire = schema["type"]
    return bool(pa.types.is_struct(kind) and wire == "map") or bool(pa.types.is_map(kind) and wire == "struct")


def _unclear(schema: Mapping[str, Any], kind: pa.DataType, d: Declared, unit: int) -> str | None:
    """Return why values cannot be read exactly, although they have the right form; or None."""
    name, wire = schema.get("name"), schema["type"]
    said = f"the registry's schema says {ascii(name)[1:-1][:60] if name else f'{wire} without a name'}"
    if _is_nested_otherwise(schema, kind):
        return f"{said}, which is a {wire}, but the column is {type_name(kind)}"
    if pa.types.is_binary(kind) and wire == "string" and d.binary == "bytes":
        return (
            f"{said}, which is text, but the column is BINARY: declare the connector's `{BYTES}` (base64, base64-url-safe or hex) "
            "under `connector`, or declare STRING"
        )
    is_whole = wire in ("int8", "int16", "int32", "int64")
    if pa.types.is_timestamp(kind) and is_whole and name not in _UNITS:
        return f"{said}, which is not the unit of a TIMESTAMP: declare BIGINT, or set `connect.meta.data` to true in the converter"
    if pa.types.is_timestamp(kind) and is_whole and _UNITS.get(str(name)) != unit:
        return f"{said}, but another part of this column has another unit: declare BIGINT"
    if pa.types.is_decimal(kind) and _WRITTEN.get(wire, "double") != d.decimals:
        return f"{said}, but another part of this column shows another `{DECIMALS}`: declare STRING or DOUBLE for one of them"
    if pa.types.is_date(kind) and is_whole and name not in _DAYS:
        return f"{said}, but the column is DATE: declare TIMESTAMP, INT or BIGINT, or set `connect.meta.data` to true in the converter"
    if pa.types.is_decimal(kind) and wire == "bytes" and name != DECIMAL:
        return f"{said}, which has no scale, but the column is {type_name(kind)}: declare BINARY"
    if pa.types.is_decimal(kind) and wire in ("float", "double") and kind.precision > EXACT_DIGITS:
        return (
            f"{said}, which has {EXACT_DIGITS} exact digits, but the column is {type_name(kind)}: set `{DECIMALS}` to `string` in "
            "the connector, or declare DOUBLE"
        )
    return None


def _fields(schema: Any) -> dict[str, Any]:
    fields = schema.get("fields") if isinstance(schema, dict) else None
    named = [each for each in fields if isinstance(each, dict)] if isinstance(fields, list) else []
    return {each["field"]: each for each in named if isinstance(each.get("field"), str)}


def _detail(field: Any, kind: pa.DataType, d: Declared, unit: int) -> str | None:
    if not isinstance(field, dict):
        return None
    if pa.types.is_list(kind):
        return _detail(field.get("items"), kind.value_type, d, unit)
    if pa.types.is_struct(kind):
        parts = _fields(field)
        found = (_detail(parts.get(part.name), part.type, d, unit) for part in kind)
        return next((each for each in found if each is not None), None)
    name, wire = field.get("name"), field.get("type")
    if pa.types.is_decimal(kind):
        return _of_decimal(field, kind, d)
    if pa.types.is_binary(kind):
        return _of_binary(wire, d)
    if pa.types.is_string(kind) and name == DECIMAL:
        return f"the message's schema says {DECIMAL}, but the column is STRING: declare DECIMAL"
    is_number = wire in ("int32", "int64") and isinstance(name, str) and name.startswith(_TIMES)
    if pa.types.is_timestamp(kind) and is_number and _UNITS.get(str(name)) != unit:
        return (
            f"the message's schema says {name}, which does not have the unit that is declared for this TIMESTAMP: correct "
            f"`milliseconds`, or `{TIMES}` under `connector`"
        )
    if pa.types.is_date(kind) and is_number and name not in _DAYS:
        return f"the message's schema says {name}, but the column is DATE: declare TIMESTAMP, INT or BIGINT"
    return None


def _of_binary(wire: Any, d: Declared) -> str | None:
    if wire == "string" and d.binary == "bytes":
        return (
            f"the message's schema says string, but `{BYTES}` is bytes: set it under `connector` to the connector's (base64, "
            "base64-url-safe or hex), or declare STRING"
        )
    # Text in base64 for URLs differs from base64 where it matters, so it is never misread.
    if wire == "bytes" and d.binary == "hex":
        return (
            f"the message's schema says bytes, which are in base64, but `{BYTES}` is hex: declare STRING or, if the connector "
            f"writes all bytes like this, correct `{BYTES}` under `connector`"
        )
    return None


def _of_decimal(field: Mapping[str, Any], kind: pa.DataType, d: Declared) -> str | None:
    name = field.get("name")
    mode = "precise" if name in (DECIMAL, _VARIABLE) else _MODES.get(str(field.get("type")))
    if mode is not None and mode != d.decimals:
        return (
            f"the message's schema shows that the connector's `{DECIMALS}` is {mode}, but {d.decimals} is declared: set it to "
            f"{mode} under `connector`"
        )
    parameters = field.get("parameters")
    scale = parameters.get("scale") if name == DECIMAL and isinstance(parameters, dict) else None
    if scale is not None and str(scale) != str(kind.scale):
        return (
            f"the message's schema says scale {str(scale)[:10]}, but the column is {type_name(kind)}: declare the scale of the "
            "database"
        )
    return None
