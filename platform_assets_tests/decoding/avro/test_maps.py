"""Avro maps as MAP columns, on both paths. The values are those that fastavro reads, and a duplicate key gives a dead
letter."""

from __future__ import annotations

import io
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from platform_assets.decoding.avro.decoder import AvroDecoder
from platform_assets.decoding.registry import decoder as registry_decoder
from platform_assets.decoding.schema import ddl_of_schema
from platform_assets.errors import ConfigurationError
from platform_assets.model.decoding import FormatSpec
from platform_assets_tests.support import decoding
from platform_assets_tests.support.avro_data import Schema, avro, decoded, record, written
from platform_assets_tests.support.decoding import UNTIMED

LEG = {"type": "record", "name": "Leg", "fields": [{"name": "to", "type": "string"}]}
LONGER = {**LEG, "fields": [*LEG["fields"], {"name": "gate", "type": "bytes"}]}
FIELDS: dict[str, Any] = {
    "counts": {"type": "map", "values": "long"},
    "notes": ["null", {"type": "map", "values": ["null", "string"]}],
    "legs": {"type": "array", "items": {"type": "map", "values": LEG}},
    "deep": {"type": "map", "values": {"type": "map", "values": {"type": "array", "items": "double"}}},
}
DDL = (
    "counts MAP<STRING, BIGINT> NOT NULL, notes MAP<STRING, STRING>, "
    "legs ARRAY<MAP<STRING, STRUCT<to: STRING NOT NULL>>> NOT NULL, deep MAP<STRING, MAP<STRING, ARRAY<DOUBLE>>> NOT NULL"
)
VALUES: list[dict[str, Any]] = [
    {"counts": {"b": 1, "a": -1, "": 0}, "notes": {"é\n": None, "x": "y"}, "legs": [{"z": {"to": "ZRH"}}, {}], "deep": {}},
    {"counts": {}, "notes": None, "legs": [], "deep": {"a": {"b": [0.5], "c": []}, "d": {}}},
]  # fmt: skip


def by_fastavro(writer: Schema, reader: Schema, values: list[bytes]) -> list[Any]:
    schemas = fastavro.parse_schema(writer), fastavro.parse_schema(reader)
    return [fastavro.schemaless_reader(io.BytesIO(value), *schemas) for value in values]


def pairs_of(values: Any) -> dict[str, Any]:
    """Return a type that is encoded like a map, but can contain a key twice."""
    fields = [{"name": "key", "type": "string"}, {"name": "value", "type": values}]
    return {"type": "array", "items": {"type": "record", "name": "Pair", "fields": fields}}


def test_maps_become_map_columns_if_the_declaration_wants_them() -> None:
    schema = record(**FIELDS)
    values = [written(schema, value) for value in VALUES]
    of = avro(schema, maps="map")
    assert ddl_of_schema(of.fields) == DDL
    found = decoding.decoded(of, [*values, None])
    assert found.columns.to_pylist(maps_as_pydicts="strict")[:2] == by_fastavro(schema, schema, values)
    assert found.columns["counts"].to_pylist()[0] == [("b", 1), ("a", -1), ("", 0)]
    assert (found.rescued.to_pylist(), len(found.dead)) == ([None] * 3, 0)
    rows, _, _ = decoded(avro(schema), values)
    assert rows[0]["counts"] == [{"key": "b", "value": 1}, {"key": "a", "value": -1}, {"key": "", "value": 0}]


def test_a_map_of_another_schema_is_resolved_as_any_value_is() -> None:
    writer = record(
        counts={"type": "map", "values": "int"}, legs={"type": "array", "items": {"type": "map", "values": LONGER}},
        lost={"type": "map", "values": "int"},
    )  # fmt: skip
    reader = record(**FIELDS)
    for field in reader["fields"]:
        if field["name"] == "notes":
            field["default"] = None
        if field["name"] == "deep":
            field["default"] = {"k": {"l": [1.5]}}
    value = written(
        writer, {"counts": {"a": 1}, "legs": [{"z": {"to": "ZRH", "gate": b"G"}}, {"y": {"to": "", "gate": b""}}], "lost": {"x": 1}}
    )  # fmt: skip
    found = decoding.decoded(avro(reader, writer, maps="map"), [value])
    assert found.columns.to_pylist(maps_as_pydicts="strict") == by_fastavro(writer, reader, [value])
    assert '"lost":[{"key":"x","value":1}]' in found.rescued[0].as_py()
    assert '"gate":"Rw=="' in found.rescued[0].as_py()


def test_a_key_that_is_there_twice_is_a_dead_letter_until_maps_are_arrays() -> None:
    schema, twice = record(**FIELDS), record(**FIELDS)
    twice["fields"][3]["type"] = {"type": "map", "values": pairs_of({"type": "array", "items": "double"})}
    inside = [{"key": "x", "value": [1.0]}, {"key": "x", "value": [2.0]}]
    good = written(schema, VALUES[0])
    bad = written(twice, {**VALUES[1], "deep": {"a": [], "b": inside}})
    found = decoding.decoded(avro(schema, maps="map"), [good, bad, good])
    assert found.columns["counts"].to_pylist()[2] == [("b", 1), ("a", -1), ("", 0)]
    [letter] = found.dead.to_pylist()
    assert (letter["row"], letter["reason"], letter["place"]) == (1, "wrong_type", "$.deep[1].value")
    assert letter["detail"] == "the map has key 'x' twice, but a MAP column allows each key once: declare `maps: array`"
    rows, _, dead = decoded(avro(schema, maps="array"), [bad])
    assert rows[0]["deep"][1] == {"key": "b", "value": inside}
    assert dead == []


@UNTIMED
@given(
    st.lists(st.lists(st.tuples(st.sampled_from(["", "a", "b", "é"]), st.integers(0, 2)), max_size=4), max_size=5),
    st.data(),
)
def test_both_paths_find_each_key_that_is_there_twice(maps: list[list[tuple[str, int]]], data: st.DataObject) -> None:
    writer, reader = (record(m=["null", {"type": "array", "items": of}], end="string") for of in (
        pairs_of("int"), {"type": "map", "values": "int"},
    ))  # fmt: skip
    pairs = [[{"key": key, "value": value} for key, value in each] for each in maps]
    value = written(writer, {"m": pairs, "end": "ü"})
    cut = data.draw(st.sampled_from([0, 0, 1]))
    values = [value[: len(value) - cut], written(writer, {"m": None, "end": ""}), value]
    found = decoding.decoded(avro(reader, maps="map"), values)
    is_twice = any(len({key for key, _ in each}) < len(each) for each in maps)
    letters = {each["row"]: each["reason"] for each in found.dead.to_pylist()}
    assert letters == ({0: "malformed"} if cut else {0: "wrong_type"} if is_twice else {}) | (
        {2: "wrong_type"} if is_twice else {}
    )
    if not is_twice:
        assert found.columns["m"].to_pylist()[2] == maps


def test_maps_stay_on_the_fast_path(monkeypatch: pytest.MonkeyPatch) -> None:
    schema = record(a={"type": "map", "values": "int"})
    values = pa.array([written(schema, {"a": {f"k{n % 7}": n, "": -n}}) for n in range(500)], pa.binary())
    monkeypatch.setattr(AvroDecoder, "decode_exactly", None)
    found = avro(schema, maps="map").decode(values).columns["a"]
    assert found.to_pylist() == [[(f"k{n % 7}", n), ("", -n)] for n in range(500)]


def test_another_word_for_maps_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"'maps'.* one of: array, map"):
        avro(record(**FIELDS), maps="dict")


def test_maps_by_registry_are_declared_in_the_same_way() -> None:
    options = {"schema": record(**FIELDS), "registry": True, "maps": "map"}
    assert ddl_of_schema(registry_decoder(FormatSpec("avro", options)).fields) == DDL
