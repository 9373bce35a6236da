"""Records written with one schema and read with another, according to the rules of Avro, which fastavro implements too."""

from __future__ import annotations

import io
import json
import pickle
import re
from decimal import Decimal
from typing import Any

import fastavro
import numpy as np
import pytest

from platform_assets.errors import ConfigurationError
from platform_assets_tests.support.avro_data import avro, decoded, record, written

PROMOTIONS = [
    ("int", "long", -5),
    ("int", "float", (1 << 24) + 1),
    ("int", "double", 7),
    ("long", "float", (1 << 53) + (1 << 29) + 1),
    ("long", "double", (1 << 53) + 1),
    ("float", "double", 0.5),
    ("string", "bytes", "ü"),
    ("bytes", "string", b"abc"),
    ("int", ["null", "long"], 4),
    (["null", "int"], ["null", "double"], None),
    (["null", "int"], ["double", "null"], 3),
    (["int", "null", "string"], ["null", "long"], 9),
    ({"type": "array", "items": "int"}, {"type": "array", "items": ["null", "double"]}, [1, 2]),
]


@pytest.mark.parametrize(("writer", "reader", "value"), PROMOTIONS, ids=str)
def test_promotions(writer: Any, reader: Any, value: Any) -> None:
    old, new = record(it=writer), record(it=reader)
    datum = written(old, {"it": value})
    by_fastavro: Any = fastavro.schemaless_reader(
        io.BytesIO(datum), fastavro.parse_schema(old), fastavro.parse_schema(new)
    )
    rows, _, dead = decoded(avro(new, old), [datum])
    expected = by_fastavro["it"]
    if reader == "float":
        expected = float(np.int64(value).astype(np.float32))
    assert (rows, dead) == ([{"it": expected}], [])


def test_fields_are_found_by_name_and_alias_in_any_order() -> None:
    old = record(b="string", swap="int", a="int")
    new = record(a="long", swap="int", renamed="string")
    new["fields"][2]["aliases"] = ["gone", "b"]
    new |= {"name": "Another", "aliases": ["R"]}
    rows, rescued, _ = decoded(avro(new, old), [written(old, {"b": "x", "swap": 5, "a": 7})])
    assert (rows, rescued) == ([{"a": 7, "swap": 5, "renamed": "x"}], [None])


NESTED = {"type": "record", "name": "deep.In", "fields": [{"name": "x", "type": "int"}]}


@pytest.mark.parametrize("place", ["$", "$.a"])
def test_a_record_of_another_name_is_refused_until_its_name_is_an_alias(place: str) -> None:
    old = record(a=NESTED)
    new: Any = record(a={**NESTED, "name": "other.In"})
    assert decoded(avro(new, old), [written(old, {"a": {"x": 5}})])[0] == [{"a": {"x": 5}}]  # namespaces are ignored
    renamed = new if place == "$" else new["fields"][0]["type"]
    written_name = renamed["name"]
    renamed["name"] = "other.Refund"
    why = rf"{re.escape(place)}: the written record is \S+, but the declared record is other\.Refund; .* aliases"
    with pytest.raises(ConfigurationError, match=why):
        avro(new, old)
    renamed["aliases"] = [written_name.rsplit(".")[-1]]
    assert decoded(avro(new, old), [written(old, {"a": {"x": 5}})])[0] == [{"a": {"x": 5}}]


def test_what_was_not_written_has_the_default_of_the_schema() -> None:
    inner = {
        "type": "record",
        "name": "In",
        "fields": [{"name": "x", "type": "int"}, {"name": "y", "type": "string", "default": "?"}],
    }
    old_inner = {"type": "record", "name": "In", "fields": [{"name": "x", "type": "int"}]}
    old = record(a="int", inner=["null", old_inner], many={"type": "array", "items": "In"})
    new = record(
        a="int",
        inner=["null", inner],
        many={"type": "array", "items": "In"},
        text=("string", "none"),
        nothing=(["null", "long"], None),
        some=(["long", "null"], 3),
        tags=({"type": "array", "items": "string"}, ["a"]),
        pairs=({"type": "map", "values": "int"}, {"k": 1}),
        raw=("bytes", "\u00ff"),
        at=({"type": "long", "logicalType": "timestamp-millis"}, 0),
        whole=({"type": "record", "name": "W", "fields": [{"name": "w", "type": "double", "default": 2}]}, {}),
    )
    values = [{"a": 1, "inner": None, "many": [{"x": 1}, {"x": 2}]}, {"a": 2, "inner": {"x": 4}, "many": []}]
    rows, rescued, dead = decoded(avro(new, old), [*[written(old, value) for value in values], None, b"\x02"])
    filled = {
        "text": "none",
        "nothing": None,
        "some": 3,
        "tags": ["a"],
        "pairs": [{"key": "k", "value": 1}],
        "raw": b"\xff",
        "whole": {"w": 2.0},
    }
    assert [{name: row[name] for name in filled} for row in rows[:2]] == [filled] * 2
    assert rows[0]["many"] == [{"x": 1, "y": "?"}, {"x": 2, "y": "?"}]
    assert (rows[0]["inner"], rows[1]["inner"]) == (None, {"x": 4, "y": "?"})
    assert rows[2] == rows[3] == dict.fromkeys(rows[0])
    assert rescued == [None] * 4
    assert [each["row"] for each in dead] == [3]


def test_what_the_schema_lacks_is_rescued() -> None:
    leg = {
        "type": "record",
        "name": "Leg",
        "fields": [{"name": "to", "type": "string"}, {"name": "km", "type": ["null", "int"]}],
    }
    old = record(
        a="int",
        extra=["null", "string"],
        legs={"type": "array", "items": leg},
        either=["null", "int", "string"],
        raw={"type": "map", "values": "bytes"},
        colour={"type": "enum", "name": "C", "symbols": ["RED", "GREEN"]},
        nan="double",
        nothing="null",
        amount={"type": "bytes", "logicalType": "decimal", "precision": 60, "scale": 2},
    )
    new = record(
        legs={
            "type": "array",
            "items": {"type": "record", "name": "Leg", "fields": [{"name": "to", "type": "string"}]},
        },
        a="long",
    )
    more = {"raw": {"k": b"\xff"}, "colour": "GREEN", "nan": float("nan"), "nothing": None, "amount": Decimal("1.00")}
    values: list[dict[str, Any]] = [
        {"a": 1, "extra": 'q"ü', "legs": [{"to": "A", "km": None}, {"to": "B", "km": 3}], "either": "x", **more},
        {"a": 2, "extra": None, "legs": [{"to": "A", "km": None}], "either": 5, **more},
    ]
    rows, rescued, dead = decoded(avro(new, old), [*[written(old, value) for value in values], b"", None])
    assert rows[0] == {"legs": [{"to": "A"}, {"to": "B"}], "a": 1}
    found = [None if text is None else json.loads(text) for text in rescued]
    same = {"raw": [{"key": "k", "value": "/w=="}], "colour": "GREEN", "nan": "nan", "amount": "ZA=="}
    assert found == [
        {"extra": 'q"ü', "legs": [None, {"km": 3}], "either": {"string": "x"}, **same},
        {"either": {"int": 5}, **same},
        None,
        None,
    ]
    assert [each["row"] for each in dead] == [2]


def test_branches_and_symbols_that_the_schema_lacks_are_dead_letters() -> None:
    old = record(a=["null", "string", "int"], c={"type": "enum", "name": "C", "symbols": ["RED", "GREEN", "BLUE"]})
    new = record(a="long", c={"type": "enum", "name": "C", "symbols": ["GREEN", "RED"]})
    values = [{"a": 1, "c": "RED"}, {"a": None, "c": "RED"}, {"a": "x", "c": "RED"}, {"a": 1, "c": "BLUE"}]
    rows, _, dead = decoded(avro(new, old), [written(old, value) for value in values])
    assert rows[0] == {"a": 1, "c": "RED"}
    assert [(each["reason"], each["place"]) for each in dead] == [
        ("missing", "$.a"),
        ("wrong_type", "$.a"),
        ("wrong_type", "$.c"),
    ]
    new["fields"][1]["type"]["default"] = "GREEN"
    assert decoded(avro(new, old), [written(old, values[3])])[0] == [{"a": 1, "c": "GREEN"}]


def test_units_of_timestamps_are_those_that_were_written() -> None:
    millis, micros = ({"type": "long", "logicalType": f"timestamp-{unit}"} for unit in ("millis", "micros"))
    datum = written("long", 1_000)
    for writer, seconds in ((millis, 1.0), (micros, 0.001), ("long", 0.001)):
        rows, _, _ = decoded(avro(record(t=micros), record(t=writer)), [datum])
        assert rows[0]["t"].timestamp() == seconds


@pytest.mark.parametrize(
    ("writer", "reader", "place"),
    [
        (record(a="int"), record(a="int", b="int"), r"\$\.b: the writer's schema lacks this field"),
        (record(a="string"), record(a="int"), r"\$\.a: the writer's type is string, which cannot be read as int"),
        (record(a="double"), record(a="float"), r"\$\.a"),
        (record(a=["null", "string"]), record(a="int"), r"\$\.a"),
        (record(a={"type": "array", "items": "string"}), record(a={"type": "array", "items": "int"}), r"\$\.a\[\]"),
        ("int", record(a="int"), r"\$: the writer's type is int"),
    ],
    ids=str,
)  # fmt: skip
def test_schemas_that_cannot_be_read_are_refused(writer: Any, reader: Any, place: str) -> None:
    with pytest.raises(ConfigurationError, match=place):
        avro(reader, writer)


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        (record(a=["int", "string"]), r"\$\.a: a column can have one type and, optionally, null"),
        (record(a="R"), r"\$\.a: R contains itself"),
        (record(a={"type": "array", "items": ["null", "R"]}), r"\$\.a\[\]: R contains itself"),
        (record(a="null"), r"\$\.a: .*null"),
        (record(), "has no fields"),
        (record(a="int", A="int"), "fields 'a' and 'A' would have the same column name in a table"),
        (record(a="uuid"), "'uuid' is neither an Avro type"),
        (record(a={"type": "bytes", "logicalType": "decimal", "precision": 39}), "at most 38 digits"),
        (record(a={"type": "long", "logicalType": "local-timestamp-micros"}), "use long, without a logical type"),
        ({"type": "record", "fields": []}, "without a name"),
        (["int", "int"], "not allowed"),
        (5, "not an Avro type"),
        ("{broken", "not a valid Avro schema"),
        ("", "must be an Avro schema"),
    ],
    ids=str,
)
def test_schemas_without_columns_are_refused_by_place(schema: Any, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        avro(schema)


def test_a_default_that_is_none_is_refused() -> None:
    for kind, default in [
        ("int", "x"),
        ("int", 1 << 31),
        ("string", None),
        ({"type": "array", "items": "int"}, {}),
        ("boolean", 0),
    ]:
        with pytest.raises(ConfigurationError, match="default of"):
            avro(record(a=(kind, default), b="int"), record(b="int"))


def test_decoders_can_be_pickled() -> None:
    of = avro(record(a="int"), record(a="int", b="string"))
    values = [written(record(a="int", b="string"), {"a": 3, "b": "x"})]
    assert decoded(pickle.loads(pickle.dumps(of)), values) == decoded(of, values)
    assert decoded(pickle.loads(pickle.dumps(of)), values)[0] == [{"a": 3}]
