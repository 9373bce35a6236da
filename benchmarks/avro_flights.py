"""Flights as Avro: intact records, and records that are broken in each of the ways in which producers, brokers and
disks break records."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import fastavro
import pyarrow as pa

from platform_assets.demo import dataset

BROKEN_EVERY: Final = 20
_MILLIS: Final = {"type": "long", "logicalType": "timestamp-millis"}
_LEG: Final = {
    "type": "record",
    "name": "Leg",
    "fields": [{"name": "airport", "type": "string"}, {"name": "minutes", "type": ["null", "int"]}],
}
_TYPES: Final[Mapping[str, Any]] = {
    "row": "long",
    **dict.fromkeys(("year", "month", "day", "dep_time", "sched_dep_time", "dep_delay"), "int"),
    **dict.fromkeys(("arr_time", "sched_arr_time", "arr_delay"), "int"),
    "carrier": "string",
    "flight": "int",
    "tailnum": "string",
    "origin": {"type": "enum", "name": "Origin", "symbols": ["EWR", "JFK", "LGA"]},
    "dest": "string",
    **dict.fromkeys(("air_time", "distance", "hour", "minute"), "int"),
    "time_hour": _MILLIS,
}
SCHEMA: Final[dict[str, Any]] = {
    "type": "record",
    "name": "Flight",
    "fields": [{"name": name, "type": ["null", of] if name != "row" else of} for name, of in _TYPES.items()],
}
"""Schema with 20 columns. All columns except for the first can be null."""
NESTED_SCHEMA: Final[dict[str, Any]] = {
    **SCHEMA,
    "fields": [*SCHEMA["fields"], {"name": "legs", "type": {"type": "array", "items": _LEG}}],
}
"""`SCHEMA`, followed by a column with a list of four records."""

Parts = dict[str, bytes]
"""Maps the name of each field in a record to the field's bytes, in the order of the fields."""
Fault = Callable[[Parts], bytes]
"""Function that makes a broken value from the parts of an intact value."""


def _instead(name: str, content: bytes) -> Fault:
    """Return a fault that replaces the bytes of a field with `content`."""
    return lambda parts: b"".join({**parts, name: content}.values())


def _cut(parts: Parts, share: float) -> bytes:
    whole = b"".join(parts.values())
    return whole[: min(int(len(whole) * share), len(whole) - 1)]


FAULTS: Final[Mapping[str, Fault]] = {
    "cut in half": lambda parts: _cut(parts, 0.5),
    "cut by a byte": lambda parts: _cut(parts, 1.0),
    "bytes behind the datum": lambda parts: b"".join(parts.values()) + b"\0\1",
    "text that is not UTF-8": _instead("dest", b"\x02\x06\xffBC"),
    "a text longer than the value": _instead("tailnum", b"\x02\xfe\x03N1"),
    "a branch that the union lacks": _instead("arr_delay", b"\x08\x02"),
    "a symbol that the enum lacks": _instead("origin", b"\x02\x0a"),
    "an int of 40 bits": _instead("distance", b"\x02\x80\x80\x80\x80\x80\x40"),
    "a time beyond the column's": _instead("time_hour", b"\x02" + b"\xfe" + b"\xff" * 8 + b"\x01"),
}
NESTED_FAULTS: Final[Mapping[str, Fault]] = {
    "cut by a byte": FAULTS["cut by a byte"],
    "text of an item that is not UTF-8": _instead("legs", b"\x04\x06ZRH\x02\x0a\x06\xffBC\x00\x00"),
}


def whole(count: int, schema: Mapping[str, Any]) -> list[bytes]:
    """Return `count` values in the form in which fastavro writes them. Each call returns the same values."""
    parsed = fastavro.parse_schema(dict(schema))
    once = [_written(parsed, row) for row in _rows(count)]
    return (once * -(-count // len(once)))[:count]


def broken(values: Sequence[bytes], schema: Mapping[str, Any], fault: Fault) -> pa.BinaryArray:
    """Return `values`, with the fault in one out of every `BROKEN_EVERY` values."""
    parsed = fastavro.parse_schema(dict(schema))
    fields = [(each["name"], fastavro.parse_schema(each["type"])) for each in schema["fields"]]
    made = list(values)
    for at in range(0, len(made), BROKEN_EVERY):
        row: Any = fastavro.schemaless_reader(io.BytesIO(made[at]), parsed, None)
        made[at] = fault({name: _written(of, row[name]) for name, of in fields})
    return pa.array(made, pa.binary())


def _written(parsed: Any, value: Any) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, parsed, value)
    return stream.getvalue()


def _rows(count: int) -> list[dict[str, Any]]:
    source = dataset.load("flights")
    texts = source.values[len(source.values) - min(count, 300_000) :]  # behind the few that are broken on purpose
    return [_row(json.loads(text)) for text in texts.to_pylist()]


def _row(row: dict[str, Any]) -> dict[str, Any]:
    at = datetime.fromisoformat(row["time_hour"]).astimezone(UTC)
    legs = [{"airport": row[name], "minutes": row["air_time"]} for name in ("origin", "dest", "origin", "dest")]
    return {**row, "time_hour": int(at.timestamp() * 1000), "legs": legs}
