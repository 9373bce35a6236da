"""Both paths agree on any bytes. For values written by fastavro, both paths also agree with fastavro."""

from __future__ import annotations

import io
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import fastavro
from hypothesis import given
from hypothesis import strategies as st

from platform_assets_tests.support import decoding
from platform_assets_tests.support.avro_data import avro, decoded, record, written
from platform_assets_tests.support.decoding import UNTIMED

_PLAIN: dict[str, st.SearchStrategy[Any]] = {
    "boolean": st.booleans(),
    "int": st.integers(-(1 << 31), (1 << 31) - 1),
    "long": st.integers(-(1 << 63), (1 << 63) - 1),
    "float": st.floats(width=32, allow_nan=False),
    "double": st.floats(allow_nan=False),
    "bytes": st.binary(max_size=40),
    "string": st.text(st.characters(exclude_categories=["Cs"]), max_size=40),
}

MAPS = st.sampled_from(["array", "map"])
_MOMENTS = st.integers(-(1 << 40), 1 << 40).map(lambda s: datetime.fromtimestamp(s // 1000, UTC))


@st.composite
def schemas(draw: st.DrawFn, level: int = 0) -> tuple[Any, st.SearchStrategy[Any]]:
    """Return a schema, and values of that schema in the form that fastavro accepts."""
    kinds = [
        *_PLAIN,
        "enum",
        "fixed",
        "decimal",
        "timestamp",
        *(["array", "map", "nullable", "record"] if level < 3 else []),
    ]
    kind = draw(st.sampled_from(kinds))
    name = f"N{draw(st.uuids()).hex}"
    if kind in _PLAIN:
        return kind, _PLAIN[kind]
    if kind == "enum":
        return {"type": "enum", "name": name, "symbols": ["A", "B", "C"]}, st.sampled_from("ABC")
    if kind == "fixed":
        return {"type": "fixed", "name": name, "size": 3}, st.binary(min_size=3, max_size=3)
    if kind == "decimal":
        size = draw(st.integers(1, 20))
        of: Any = draw(st.sampled_from([{"type": "bytes"}, {"type": "fixed", "name": name, "size": size}]))
        precision = draw(st.integers(1, min(38, int((8 * size - 1) * 0.30103) or 1)))
        decimals = st.integers(1 - 10**precision, 10**precision - 1).map(Decimal)
        return {**of, "logicalType": "decimal", "precision": precision}, decimals
    if kind == "timestamp":
        return {"type": "long", "logicalType": "timestamp-millis"}, _MOMENTS
    if kind == "array":
        item, values = draw(schemas(level + 1))
        return {"type": "array", "items": item}, st.lists(values, max_size=4)
    if kind == "map":
        item, values = draw(schemas(level + 1))
        return {"type": "map", "values": item}, st.dictionaries(_PLAIN["string"], values, max_size=4)
    if kind == "nullable":
        of, values = draw(schemas(level + 1).filter(lambda made: not isinstance(made[0], list)))
        return draw(st.sampled_from([["null", of], [of, "null"]])), st.none() | values
    parts = draw(st.lists(schemas(level + 1), min_size=1, max_size=4))
    fields = [{"name": f"f{number}", "type": of} for number, (of, _) in enumerate(parts)]
    values = st.fixed_dictionaries({f"f{number}": strategy for number, (_, strategy) in enumerate(parts)})
    return {"type": "record", "name": name, "fields": fields}, values


@UNTIMED
@given(st.data())
def test_values_of_any_schema_are_those_that_fastavro_reads(data: st.DataObject) -> None:
    of, values = data.draw(schemas())
    schema = record(a=of, b="int")
    given_values = [{"a": data.draw(values), "b": number} for number in range(data.draw(st.integers(1, 4)))]
    written_values = [written(schema, value) for value in given_values]
    found = decoding.decoded(avro(schema, maps="map"), [*written_values, None])
    parsed = fastavro.parse_schema(schema)
    assert len(found.dead) == 0
    rows = found.columns.to_pylist(maps_as_pydicts="strict")
    assert rows[:-1] == [fastavro.schemaless_reader(io.BytesIO(each), parsed, None) for each in written_values]


@UNTIMED
@given(st.data())
def test_both_paths_agree_on_bytes_that_were_damaged(data: st.DataObject) -> None:
    of, values = data.draw(schemas())
    inner, more = data.draw(schemas(2))
    writer = record(a=of, dropped=inner, b={"type": "array", "items": ["null", "string"]})
    reader = record(b={"type": "array", "items": ["null", "string"]}, a=of)
    damaged = []
    for _ in range(data.draw(st.integers(1, 5))):
        value = {
            "a": data.draw(values),
            "dropped": data.draw(more),
            "b": data.draw(st.lists(st.none() | st.text("aü", max_size=3), max_size=4)),
        }
        content = bytearray(written(writer, value))
        for _ in range(data.draw(st.integers(0, 3))):
            if content:
                content[data.draw(st.integers(0, len(content) - 1))] = data.draw(
                    st.sampled_from([0, 1, 2, 3, 4, 0x7F, 0x80, 0xC3, 0xFF])
                )
        cut, tail = data.draw(st.integers(0, 2)), data.draw(st.binary(max_size=2))
        damaged.append(bytes(content[: len(content) - cut] + tail))
    decoded(avro(reader, writer, maps=data.draw(MAPS)), damaged)


@UNTIMED
@given(st.data(), st.lists(st.none() | st.binary(max_size=60), max_size=6))
def test_both_paths_agree_on_any_bytes(data: st.DataObject, values: list[bytes | None]) -> None:
    of, _ = data.draw(schemas())
    decoded(avro(record(a=of, m={"type": "map", "values": "long"}), maps=data.draw(MAPS)), values)
