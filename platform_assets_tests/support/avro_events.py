"""Change events in Avro, as Confluent's and Apicurio's converters write them. The schemas follow the converters'
documented mapping of Kafka Connect's types, and fastavro writes the values."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping
from typing import Any

import fastavro

from platform_assets_tests.support.change_events import SOURCE

DECIMAL = "org.apache.kafka.connect.data.Decimal"
_PLAIN = {"int8": "int", "int16": "int", "int32": "int", "int64": "long"}
_LOGICAL = {
    "org.apache.kafka.connect.data.Date": "date",
    "org.apache.kafka.connect.data.Time": "time-millis",
    "org.apache.kafka.connect.data.Timestamp": "timestamp-millis",
}

Connect = Mapping[str, Any]
"""A schema in the form of Connect's JSON converter."""


def typed(kind: str, name: str | None = None, **others: Any) -> Connect:
    """Return an optional type."""
    return {"type": kind, "optional": True, **({} if name is None else {"name": name}), **others}


def decimal_of(scale: int) -> Connect:
    """Return the type of a number in the mode `precise`."""
    return typed("bytes", DECIMAL, parameters={"scale": str(scale)})


def struct_of(name: str, fields: Mapping[str, Connect], *, optional: bool = True) -> Connect:
    """Return the type of an object."""
    listed = [{**each, "field": field} for field, each in fields.items()]
    return {"type": "struct", "fields": listed, "optional": optional, "name": name}


VARIABLE = struct_of("io.debezium.data.VariableScaleDecimal", {"scale": {"type": "int32"}, "value": {"type": "bytes"}})
SOURCES = {
    **{name: {"type": "string"} for name in ("version", "connector", "db", "schema", "table")},
    "ts_ms": {"type": "int64"},
    "snapshot": typed("string", "io.debezium.data.Enum", parameters={"allowed": "true,first,last,false"}),
    "sequence": typed("string"), "ts_us": typed("int64"), "txId": typed("int64"), "lsn": typed("int64"),
}  # fmt: skip


def envelope(row: Mapping[str, Connect]) -> Connect:
    """Return the type of an event whose row has these fields."""
    image = struct_of("db.public.orders.Value", row)
    source = struct_of("io.debezium.connector.postgresql.Source", SOURCES, optional=False)
    parts = {"before": image, "after": image, "source": source, "op": {"type": "string"}, "ts_ms": typed("int64")}
    return struct_of("db.public.orders.Envelope", parts, optional=False)


def avro_schema(connect: Connect, known: set[str] | None = None) -> Any:
    """Return the schema that the converters register for a type."""
    known = set() if known is None else known
    made = _avro_type(connect, known)
    return ["null", made] if connect.get("optional") else made


def _avro_type(connect: Connect, known: set[str]) -> Any:
    kind, name = connect["type"], connect.get("name")
    if kind == "struct":
        assert name is not None
        if name in known:
            return name
        known.add(name)
        space, _, own = name.rpartition(".")
        fields = [
            {"name": each["field"], "type": avro_schema(each, known)}
            | ({"default": None} if each.get("optional") else {})
            for each in connect["fields"]
        ]
        return {"type": "record", "name": own, "namespace": space, "fields": fields, "connect.name": name}
    if kind == "array":
        return {"type": "array", "items": avro_schema(connect["items"], known)}
    if kind == "map":
        return {"type": "map", "values": avro_schema(connect["values"], known)}
    plain = _PLAIN.get(kind, kind)
    made: dict[str, Any] = {"type": plain}
    if kind in ("int8", "int16"):
        made["connect.type"] = kind
    if name is not None:
        made |= {"connect.version": 1, "connect.name": name}
        made |= {"logicalType": _LOGICAL[name]} if name in _LOGICAL else {}
    if "parameters" in connect:
        made["connect.parameters"] = dict(connect["parameters"])
    if name == DECIMAL:
        made |= {"scale": int(connect["parameters"]["scale"]), "precision": 64, "logicalType": "decimal"}
    return made if len(made) > 1 else plain


def avro_event(
    row: Mapping[str, Connect], operation: str, before: Any = None, after: Any = None, source: Any = SOURCE
) -> bytes:
    """Return an event. The rows before and after it are as the JSON converter writes them."""
    of = envelope(row)
    value = {"before": before, "after": after, "source": source, "op": operation, "ts_ms": 1}
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(_unlogical(avro_schema(of))), avro_value(of, value))
    return stream.getvalue()


def _unlogical(schema: Any) -> Any:
    """Return a schema without logical types, whose values are written as they are."""
    if isinstance(schema, dict):
        return {name: _unlogical(each) for name, each in schema.items() if name != "logicalType"}
    return [_unlogical(each) for each in schema] if isinstance(schema, list) else schema


def avro_value(connect: Connect, value: Any) -> Any:
    """Return a value of the JSON converter as the Avro converter writes it."""
    kind = connect["type"]
    if value is None:
        return None
    if kind == "bytes":
        return base64.b64decode(value)
    if kind in ("float", "double"):
        return float(value)
    if kind == "array":
        return [avro_value(connect["items"], each) for each in value]
    if kind == "map":
        return {name: avro_value(connect["values"], each) for name, each in value.items()}
    if kind == "struct":
        return {each["field"]: avro_value(each, value.get(each["field"])) for each in connect["fields"]}
    return value
