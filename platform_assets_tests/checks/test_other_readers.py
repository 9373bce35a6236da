"""A reader that shares no code with the decoder finds a wrong value that no digest reveals."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest

from platform_assets.checks.audit import Audit
from platform_assets.checks.decoded_audit import DecodedAudit
from platform_assets.checks.fastavro_reader import NOT_JUDGED
from platform_assets.checks.other_readers import difference, is_judged, without_times
from platform_assets.decoding.decoder import Decoded
from platform_assets.decoding.formats import decoder_of
from platform_assets.decoding.json.decoder import JsonDecoder
from platform_assets.decoding.registry.cache import Registered
from platform_assets.model.decoding import DecodeDeclaration, FormatSpec, Repair
from platform_assets_tests.fuzzing import avro_values
from platform_assets_tests.support import near_powers
from platform_assets_tests.support.avro_data import record, written
from platform_assets_tests.support.decoded_topic import DecodedTopic

DDL = (
    "a DOUBLE, b FLOAT, c BIGINT, d DECIMAL(38,10), e STRING, f BOOLEAN, g DATE, h TIMESTAMP, "
    "i STRUCT<x: INT, y: ARRAY<DOUBLE>>, j ARRAY<STRUCT<z: STRING>>, k MAP<STRING, BIGINT>"
)
JSON = FormatSpec("json", {"schema": DDL})
VALUE: dict[str, Any] = {
    "a": 0.1, "b": 0.1, "c": -5, "d": 1.5, "e": "é\n", "f": False, "g": "2024-02-29", "h": "2024-02-29T23:00:00.000001+05:30",
    "i": {"x": 1, "y": [None, -0.0]}, "j": [{"z": "q"}, None], "k": {"one": 1, "two": None},
}  # fmt: skip
CSV = FormatSpec(
    "csv", {"schema": "a DOUBLE, b FLOAT, c BIGINT, d DECIMAL(38,10), e STRING, f BOOLEAN, g DATE, h TIMESTAMP"}
)
INNER = {
    "type": "record",
    "name": "I",
    "fields": [{"name": "x", "type": "int"}, {"name": "y", "type": ["null", "bytes"]}],
}
AVRO_SCHEMA = {
    "type": "record",
    "name": "R",
    "fields": [
        {"name": name, "type": kind}
        for name, kind in {
            "a": "double",
            "b": "float",
            "c": "long",
            "d": {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 10},
            "e": "string",
            "f": "boolean",
            "g": {"type": "int", "logicalType": "date"},
            "h": {"type": "long", "logicalType": "timestamp-millis"},
            "i": INNER,
            "j": {"type": "array", "items": "I"},
            "k": {"type": "map", "values": ["null", "long"]},
            "l": {"type": "long", "logicalType": "timestamp-micros"},
            "m": {"type": "enum", "name": "E", "symbols": ["A", "B"]},
            "n": {"type": "fixed", "name": "F", "size": 2},
        }.items()
    ],
}
AVRO = FormatSpec("avro", {"schema": AVRO_SCHEMA})
DATUM: dict[str, Any] = {
    "a": 0.1, "b": 0.1, "c": -5, "d": Decimal("12345678901234567890123456.0123456789"), "e": "é\n", "f": False, "g": 10**9,
    "h": 9 * 10**14, "i": {"x": 1, "y": b"\xff"}, "j": [{"x": 2, "y": None}], "k": {"one": 1, "two": None}, "l": -5,
    "m": "B", "n": b"ab",
}  # fmt: skip
ROW = b'0.1,0.1,-5,1.5,"a ""b"",\n",FALSE,2024-02-29,2024-02-29T23:00:00Z'
NOW = datetime(2026, 1, 3, tzinfo=UTC)


def row_of(spec: FormatSpec, value: bytes) -> tuple[pa.Schema, dict[str, Any]]:
    """Decode one value; return the schema and the row."""
    of = decoder_of(spec)
    found = of.decode(pa.array([value], pa.binary()))
    assert found.dead.num_rows == 0
    columns = without_times(found.columns) if spec.format == "avro" else found.columns
    return of.fields, columns.to_pylist()[0]


WRONG: dict[str, Any] = {
    "a": 0.2, "b": 0.1, "c": -6, "d": 2, "e": "e", "f": True, "g": datetime(2024, 3, 1).date(), "h": datetime(2024, 2, 29, tzinfo=UTC),
    "i": {"x": 1, "y": [None, 0.0]}, "j": [{"z": "q"}], "k": [("one", 1), ("two", 2)],
}  # fmt: skip


@pytest.mark.parametrize(("spec", "value"), [(JSON, json.dumps(VALUE).encode()), (CSV, ROW)], ids=["json", "csv"])
def test_each_column_that_differs_is_named(spec: FormatSpec, value: bytes) -> None:
    fields, row = row_of(spec, value)
    assert difference(spec, fields, value, row) is None
    for name in fields.names:
        for wrong in (WRONG[name], None):
            found = difference(spec, fields, value, {**row, name: wrong})
            assert found is not None
            assert found.startswith(f"column '{name}' contains ")
            assert found.isascii()
    assert difference(spec, fields, b"{", row) is not None


WRONG_DATUM: dict[str, Any] = {
    "a": 0.2, "b": 0.2, "c": -6, "d": Decimal("12345678901234567890123456.0123456788"), "e": "e", "f": True, "g": 10**9 + 1,
    "h": 9 * 10**14, "i": {"x": 1, "y": b"\xfe"}, "j": [], "k": [{"key": "one", "value": 1}], "l": -5_000, "m": "A", "n": b"ac",
}  # fmt: skip


def test_each_column_of_avro_that_differs_is_named() -> None:
    """The times are after the year 9999, and the decimal has more digits than Python's default context allows."""
    value = written(_without_logical_times(AVRO_SCHEMA), DATUM)
    fields, row = row_of(AVRO, value)
    assert difference(AVRO, fields, value, row) is None
    assert {*WRONG_DATUM} == {*fields.names}
    for name in fields.names:
        for wrong in (WRONG_DATUM[name], None):
            found = difference(AVRO, fields, value, {**row, name: wrong})
            assert found is not None
            assert found.startswith(f"column '{name}' contains ")
    assert difference(AVRO, fields, value[:-1], row) is not None
    assert (
        difference(AVRO, fields, value + b"\0", row)
        == "fastavro cannot read the row: '1 bytes are left after the value'"
    )


def _without_logical_times(schema: dict[str, Any]) -> dict[str, Any]:
    fields = [
        {"name": each["name"], "type": each["type"]["type"]}
        if isinstance(each["type"], dict) and each["type"].get("logicalType") not in (None, "decimal")
        else each
        for each in schema["fields"]
    ]
    return {**schema, "fields": fields}


def test_a_registered_writer_is_judged_by_its_schema_if_it_is_known_for_certain() -> None:
    spec = FormatSpec("avro", {"schema": record(a="double", b=("string", "none")), "registry": True})
    writer = record(b="bytes", a="int", c={"type": "array", "items": "S"})
    shared = {"type": "record", "name": "S", "fields": [{"name": "s", "type": "string"}]}
    value = b"\0" + (7).to_bytes(4, "big") + written(_with(writer, shared), {"a": 3, "b": b"x", "c": [{"s": "y"}]})
    fields = pa.schema([("a", pa.float64()), ("b", pa.string())])
    known = Registered("AVRO", json.dumps(writer), {"S": json.dumps(shared)})
    for schemas, expected in (([known], None), ([], NOT_JUDGED), ([known, known], NOT_JUDGED)):
        assert difference(spec, fields, value, {"a": 3.0, "b": "x"}, {7: schemas}.__getitem__) is expected
    found = difference(spec, fields, value, {"a": 3.0, "b": "y"}, lambda number: [known])
    assert found == "column 'b' contains 'y', but fastavro reads 'x'"


def _with(schema: dict[str, Any], named: dict[str, Any]) -> dict[str, Any]:
    text = json.dumps(schema).replace(f'"items": "{named["name"]}"', f'"items": {json.dumps(named)}')
    return cast(dict[str, Any], json.loads(text))


@pytest.mark.parametrize(
    "item",
    ["null", {"type": "null"}, {"type": "fixed", "name": "F", "size": 0}, record(a="null"), {"type": {"type": "null"}}],
)
def test_a_value_that_would_hold_up_the_other_reader_is_not_judged(item: Any) -> None:
    """Eleven bytes claim that an array has 2^62 items of zero length."""
    writer = record(a="long", b={"type": "array", "items": item if item != record(a="null") else {**item, "name": "N"}})
    spec = FormatSpec("avro", {"schema": record(a="long"), "writer_schema": writer})
    value = b"\2" + b"\x80" * 8 + b"\x80\x01" + b"\0"
    assert difference(spec, pa.schema([("a", pa.int64())]), value, {"a": 2}) is NOT_JUDGED


def test_fastavro_agrees_on_random_schemas_and_values(rng: random.Random) -> None:
    judged = 0
    for _ in range(150):
        spec, values = avro_values.case(rng)
        of = decoder_of(spec)
        found = of.decode(pa.array(values, pa.binary()))
        dead = set(found.dead["row"].to_pylist())
        for number, (value, row) in enumerate(zip(values, without_times(found.columns).to_pylist(), strict=True)):
            if number not in dead:
                assert difference(spec, of.fields, value, row) in (None, NOT_JUDGED), (spec, value)
                judged += 1
    assert judged > 100


@pytest.mark.parametrize("column", ["DOUBLE", "FLOAT", "DECIMAL(38,18)", "BIGINT"])
def test_numbers_near_powers_are_judged_alike(column: str, rng: random.Random) -> None:
    spec = FormatSpec("json", {"schema": f"a {column}"})
    texts = [text for number in near_powers.wholes(rng, 50) for text in near_powers.texts(rng, number)]
    values = [b'{"a":%b}' % text.encode() for text in texts]
    of = decoder_of(spec)
    found = of.decode(pa.array(values, pa.binary()))
    dead = set(found.dead["row"].to_pylist())
    judged = [
        difference(spec, of.fields, value, row)
        for number, (value, row) in enumerate(zip(values, found.columns.to_pylist(), strict=True))
        if number not in dead
    ]
    assert len(judged) > 100
    assert set(judged) == {None}


@pytest.mark.parametrize(
    ("spec", "value"),
    [
        (FormatSpec("json", {"schema": "a DOUBLE"}), b'{"a":1e-99999999999999999999999,"b":1e99999999999999999999999}'),
        (FormatSpec("csv", {"schema": "a STRING, b BIGINT", "quote": "", "escape": "\\", "null": "\\N"}), b"\\N,\\N"),
    ],
    ids=["an exponent beyond Decimal's", "a null with an escape"],
)
def test_what_the_other_reader_cannot_say_is_no_difference(spec: FormatSpec, value: bytes) -> None:
    of = decoder_of(spec)
    found = of.decode(pa.array([value], pa.binary()))
    assert found.dead.num_rows == 0
    assert difference(spec, of.fields, value, found.columns.to_pylist()[0]) is None


LONG = record(a="long")
Q = {
    "type": "record",
    "name": "Q",
    "fields": [{"name": "x", "type": "long"}, {"name": "y", "type": "string", "default": "q"}],
}
FIXED = {"type": "fixed", "name": "F", "size": 2}
MONEY = {"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2}


def with_default(kind: Any, default: Any) -> dict[str, Any]:
    """Return a record schema whose second field has a default."""
    return {**LONG, "fields": [*LONG["fields"], {"name": "b", "type": kind, "default": default}]}


def judged(reader: Any, writer: Any, value: bytes) -> Any:
    """Compare the decoder's row with the result of another reader."""
    spec = FormatSpec("avro", {"schema": json.dumps(reader), "writer_schema": json.dumps(writer)})
    fields, row = row_of(spec, value)
    found = difference(spec, fields, value, row)
    if found is None:
        other = {**row, fields.names[0]: None}
        assert difference(spec, fields, value, other) is not None
    return found


@pytest.mark.parametrize(
    ("kind", "default", "value"),
    [
        ("string", None, b"\2\2x"),
        ("int", "", b"\2\2"),
        ("boolean", "false", b"\2\1"),
        ({"type": "array", "items": "long"}, None, b"\2\0"),
        ("long", 1.0, b"\2\2"),
    ],
)
def test_a_default_that_does_not_fit_its_type_hides_no_column(kind: Any, default: Any, value: bytes) -> None:
    schema = with_default(kind, default)
    assert judged(LONG, schema, value) is None
    assert judged(schema, schema, value) is None


@pytest.mark.parametrize(
    ("kind", "default"),
    [
        ("bytes", "\u00ff"),
        ({"type": "array", "items": "bytes"}, ["\u00ff"]),
        (FIXED, "\u00ff\u0001"),
        (MONEY, "\u0001\u0000"),
        (Q, {"x": 1}),
    ],
)
def test_a_readers_default_is_no_difference(kind: Any, default: Any) -> None:
    assert judged(with_default(kind, default), LONG, b"\2") is None


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ({"type": {"type": "long"}}, b"\2"),
        ({"type": ["null", {"type": "long"}]}, b"\2\2"),
        ({"type": {"type": "long", "logicalType": "timestamp-millis"}}, b"\2"),
        ({"type": Q}, b"\2\2y"),
    ],
)
def test_wrapped_types_are_judged(kind: Any, value: bytes) -> None:
    assert judged(record(a=kind), record(a=kind), value) is None


def test_an_error_is_judged_as_a_record() -> None:
    schema = {**LONG, "type": "error"}
    assert judged(schema, schema, b"\2") is None


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("number", [(1 << 60) + (1 << 36) + 1, (1 << 24) + 1, (1 << 24) + 3, (1 << 62) - 1, 5])
def test_a_long_that_is_read_as_a_float_is_rounded_once(number: int, sign: int) -> None:
    for column in ("float", "double"):
        assert judged(record(a=column), LONG, written(LONG, {"a": sign * number})) is None


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (record(a={"type": "enum", "name": "E", "symbols": ["a-b"]}), b"\0"),
        (
            {**LONG, "name": "x.R", "fields": [
                {"name": "a", "type": {"type": "record", "name": "S", "namespace": "", "fields": LONG["fields"]}},
                {"name": "b", "type": "S"},
            ]},
            b"\2\2",
        ),
    ],
    ids=["a symbol that is no name", "a name without namespace"],
)  # fmt: skip
def test_a_schema_that_the_other_reader_does_not_accept_is_not_judged(schema: Any, value: bytes) -> None:
    assert judged(schema, schema, value) is NOT_JUDGED


def test_a_number_that_is_no_branch_or_symbol_is_a_disagreement() -> None:
    for kind in (["null", "long"], {"type": "enum", "name": "E", "symbols": ["A"]}):
        spec = FormatSpec("avro", {"schema": record(a=kind)})
        found = difference(spec, decoder_of(spec).fields, b"\x08", {"a": None})
        assert found == "fastavro cannot read the row: 'list index out of range'"


def test_declarations_that_no_other_reader_knows_are_not_judged() -> None:
    assert is_judged(JSON)
    assert not is_judged(FormatSpec("json", {**JSON.options, "columns": {"a": "b"}}))
    assert is_judged(AVRO)
    assert not is_judged(FormatSpec("avro", {"schema": "long", "registry": True, "id": "header"}))
    assert not is_judged(FormatSpec("protobuf", {"schema": "a BIGINT"}))


def audited(topic: DecodedTopic) -> Audit:
    """Run a deep audit."""
    return DecodedAudit(topic.declaration, topic.ledger, lambda: topic.decoder).run(NOW, deep=True)


def test_the_deep_audit_finds_a_value_that_decoding_again_gives_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the past, digests and audits agreed in spite of this defect: doubles of 2^64 became 0.0."""
    decode = JsonDecoder.decode

    def wrong(self: JsonDecoder, values: pa.BinaryArray) -> Decoded:
        found = decode(self, values)
        column = [0.0 if number == 2.0**64 else number for number in found.columns["a"].to_pylist()]
        return Decoded(
            pa.RecordBatch.from_pydict({"a": pa.array(column)}, schema=found.columns.schema), found.rescued, found.dead
        )

    topic = DecodedTopic(tmp_path, "orders", DecodeDeclaration(FormatSpec("json", {"schema": "a DOUBLE"})))
    [first] = topic.load([b'{"a": 1}', b'{"a": 18446744073709551616}', b"broken", None, b'{"a": 3}'])
    repaired = DecodeDeclaration(topic.declared.value, repairs=(Repair(first, 0, 4, '{"a": 4}'),))
    for patched in (True, False):
        if patched:
            monkeypatch.setattr(JsonDecoder, "decode", wrong)
        else:
            monkeypatch.setattr(JsonDecoder, "decode", decode)
            topic = DecodedTopic(tmp_path / "again", "orders", repaired)
            topic.load([b'{"a": 1}', b'{"a": 18446744073709551616}', b"broken", None, b'{"a": 3}'])
        topic.decode()
        found = audited(topic)
        findings = [finding for check in found.checks for finding in check.findings]
        where = [(f.kind, f.window, f.partition, [(r.start, r.end) for r in f.ranges]) for f in findings]
        assert where == ([("decoded otherwise", first, 0, [(1, 2)])] if patched else [])
        assert found.exit_code == (1 if patched else 0)
        if patched:
            assert "column 'a' contains 0.0, but Python's json reads 18446744073709551616" in findings[0].detail
        else:
            assert "2 rows of these windows also decoded by another reader" in found.checks[-1].headline
