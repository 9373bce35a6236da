"""A registry's Avro schema in the form of Kafka Connect's JSON schemas, which the JSON converter writes into each record.

Both converters write the same types: `{"type": "int64", "optional": true, "name": "io.debezium.time.MicroTimestamp"}`.
The Avro converter keeps what Avro lacks in `connect.name`, `connect.type` and `connect.parameters`.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from platform_assets.decoding.avro.types import PLAIN_KINDS, BadSchema
from platform_assets.decoding.json.exact import as_object
from platform_assets.decoding.json.scalars import Number

Schema = Mapping[str, Any]
"""A schema with `type` and `optional`, and if needed `name`, `parameters`, `fields`, `items` or `values`. Each of the
`fields` also has `field`, its name."""
Pairs = list[tuple[str, Any]]
DECIMAL: Final = "org.apache.kafka.connect.data.Decimal"
_PLAIN: Final[Mapping[str, str]] = MappingProxyType(
    {"int": "int32", "long": "int64", "float": "float", "double": "double"}
    | {kind: kind for kind in ("boolean", "bytes", "string")}
)
_SMALL: Final = ("int8", "int16")
_LOGICAL: Final[Mapping[tuple[str, str], str]] = MappingProxyType(
    {
        ("int", "date"): "org.apache.kafka.connect.data.Date",
        ("int", "time-millis"): "org.apache.kafka.connect.data.Time",
        ("long", "time-micros"): "io.debezium.time.MicroTime",
    }
    | {
        ("long", f"{local}timestamp-{unit}"): name
        for local in ("", "local-")
        for unit, name in (
            ("millis", "org.apache.kafka.connect.data.Timestamp"),
            ("micros", "io.debezium.time.MicroTimestamp"),
            ("nanos", "io.debezium.time.NanoTimestamp"),
        )
    }
)
"""The name that says the same as a logical type of Avro, for schemas without `connect.name`."""
_NOT_FINITE: Final = MappingProxyType({math.inf: "Infinity", -math.inf: "-Infinity"})


def connect_schema(document: Any, references: Sequence[Any] = ()) -> Schema:
    """Return the schema of a document that `avro.types.parsed` accepts. Named types that occur several times become the
    same object. Raises BadSchema for a type that Connect does not write."""
    reading = _Reading()
    for reference in references:
        reading.schema(reference, "", "$")
    return reading.schema(document, "", "$")


class _Reading:
    def __init__(self) -> None:
        self._named: dict[str, Schema | None] = {}

    def schema(self, document: Any, space: str, place: str) -> Schema:
        if isinstance(document, str):
            return self._by_name(document, space, place)
        if isinstance(document, list):
            return self._union(document, space, place)
        kind = document["type"]
        if kind in ("record", "error"):
            return self._record(document, space, place)
        if kind in ("enum", "fixed"):
            if document.get("size") == 0:
                raise _without_bytes(place)
            name, _ = _names(document, space)
            _check_scales(document, place)
            made = {**_plain("string" if kind == "enum" else "bytes", document), "optional": False}
            self._named[name] = made
            return made
        if kind == "array":
            return {"type": "array", "items": self.schema(document["items"], space, place + "[]"), "optional": False}
        if kind == "map":
            values = self.schema(document["values"], space, place + "{}")
            return {"type": "map", "keys": {"type": "string"}, "values": values, "optional": False}
        if isinstance(kind, str) and kind in PLAIN_KINDS:
            if kind == "null":
                raise _without_bytes(place)
            _check_scales(document, place)
            return {**_plain(kind, document), "optional": False}
        return self.schema(kind, space, place)

    def _by_name(self, name: str, space: str, place: str) -> Schema:
        if name == "null":
            raise _without_bytes(place)
        if name in PLAIN_KINDS:
            return {"type": _PLAIN[name], "optional": False}
        full = name if "." in name or not space or f"{space}.{name}" not in self._named else f"{space}.{name}"
        found = self._named[full]
        if found is None:
            raise BadSchema(place, f"{full} contains itself, which the row of a change event cannot")
        return found

    def _union(self, document: list[Any], space: str, place: str) -> Schema:
        others = [each for each in document if each not in ("null", {"type": "null"})]
        if len(others) != 1:
            raise BadSchema(place, f"a union of {len(others)} types and null is not a type that the connector writes")
        return {**self.schema(others[0], space, place), "optional": len(others) < len(document)}

    def _record(self, document: Mapping[str, Any], space: str, place: str) -> Schema:
        name, space = _names(document, space)
        self._named[name] = None
        if not document["fields"]:
            raise _without_bytes(place)
        fields = [
            {**self.schema(each["type"], space, f"{place}.{each['name']}"), "field": each["name"]}
            for each in document["fields"]
        ]
        made = {"type": "struct", "fields": fields, "name": _named(document) or name, "optional": False}
        self._named[name] = made
        return made


def _without_bytes(place: str) -> BadSchema:
    return BadSchema(place, "a type whose values take no bytes is not a type that the connector writes")


def _check_scales(document: Mapping[str, Any], place: str) -> None:
    """Raise BadSchema if Connect's scale and Avro's differ, so that it is unknown which one the values have."""
    parameters = document.get("connect.parameters")
    given = parameters.get("scale") if isinstance(parameters, Mapping) else None
    if document.get("logicalType") == "decimal" and given is not None:
        scale, other = str(given)[:10], str(document.get("scale", 0))[:10]
        if scale != other:
            raise BadSchema(place, f"its scale is {scale!r} in `connect.parameters`, but {other!r} in the logical type")


def _names(document: Mapping[str, Any], space: str) -> tuple[str, str]:
    """Return the full name of a type, and the namespace for the names in it."""
    name, given = document["name"], document.get("namespace", space)
    space, own = name.rsplit(".", 1) if "." in name else (given, name)
    return f"{space}.{own}" if space else own, space


def _named(document: Mapping[str, Any]) -> str | None:
    name = document.get("connect.name")
    return name if isinstance(name, str) else None


def _plain(kind: str, document: Mapping[str, Any]) -> dict[str, Any]:
    small = document.get("connect.type")
    made: dict[str, Any] = {"type": small if kind == "int" and small in _SMALL else _PLAIN[kind]}
    name, logical = _named(document), document.get("logicalType")
    parameters = document.get("connect.parameters")
    if name is None and isinstance(logical, str):
        is_decimal = logical == "decimal" and kind == "bytes"
        name = DECIMAL if is_decimal else _LOGICAL.get((kind, logical))
    if name == DECIMAL and not (isinstance(parameters, Mapping) and parameters.get("scale") is not None):
        scale = document.get("scale")
        parameters = {"scale": 0 if scale is None else scale}
    if name is not None:
        made["name"] = name
    if isinstance(parameters, Mapping):
        made["parameters"] = parameters
    return made


def as_read(value: float, kind: str) -> Number:
    """Return a floating-point number as the parser of JSON returns it. Each 32-bit number is also a 64-bit number."""
    return Number(repr(value))


def as_java(value: float, kind: str) -> float:
    """Return the number that Python writes as Java writes `value`, which has the type `kind`."""
    return float(str(np.float32(value))) if kind == "float" else value


def json_form(
    schema: Schema,
    value: Any,
    number: Callable[[float, str], Any] = as_read,
    pairs: Callable[[Pairs], Any] = as_object,
) -> Any:
    """Return a value as the parser of JSON returns what Connect's JSON converter writes for it: bytes as base64, and
    floating-point numbers that are not finite as text. `value` is what `avro.exact.read` returns. `number` converts
    other floating-point numbers, and `pairs` the entries of a map."""
    kind = schema["type"]
    if value is None or kind in ("boolean", "string", "int8", "int16", "int32", "int64"):
        return value
    if kind == "bytes":
        return base64.b64encode(value).decode("ascii")
    if kind in ("float", "double"):
        return number(value, kind) if math.isfinite(value) else _NOT_FINITE.get(value, "NaN")
    if kind == "array":
        return [json_form(schema["items"], each, number, pairs) for each in value]
    if kind == "map":
        return pairs([(each["key"], json_form(schema["values"], each["value"], number, pairs)) for each in value])
    return {each["field"]: json_form(each, value[each["field"]], number, pairs) for each in schema["fields"]}
