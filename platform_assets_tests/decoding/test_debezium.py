"""Change events of Debezium: which rows they become, and which are dead letters. `test_debezium_types.py` compares rows
with what PostgreSQL says."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from platform_assets.decoding.debezium import decoder
from platform_assets.decoding.debezium.fast import find
from platform_assets.decoding.formats import decoder_of
from platform_assets.errors import ConfigurationError
from platform_assets.model import debezium
from platform_assets.model.decoding import FormatSpec
from platform_assets_tests.support.change_events import event
from platform_assets_tests.support.decoding import UNTIMED, decoded

UNSENT = "__debezium_unavailable_value"
FACTS = {
    "change_lsn": 25,
    "change_sequence": '["24","25"]',
    "change_tx_id": 7,
    "change_timestamp": datetime(2023, 11, 14, 22, 13, 20, 123456, UTC),
    "change_snapshot": "false",
}


def number(value: int) -> str:
    """Return an unscaled number as the connector writes it in the mode `precise`."""
    return base64.b64encode(value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True)).decode()


def rows(schema: str, *values: bytes | None, **options: Any) -> list[Mapping[str, Any]]:
    """Decode the values, none of which may be a dead letter."""
    found = decoded(decoder(FormatSpec("debezium", {"schema": schema, **options})), values)
    assert not found.dead.num_rows, found.dead.to_pylist()
    result: list[Mapping[str, Any]] = found.columns.to_pylist()
    return result


def one(schema: str, after: Mapping[str, Any], **options: Any) -> Mapping[str, Any]:
    """Decode one created row."""
    (row,) = rows(schema, event("c", after=after), **options)
    return {name: value for name, value in row.items() if not name.startswith("change_")}


def letter(schema: str, value: bytes, **options: Any) -> tuple[str, str | None, str]:
    """Decode a value that must be a dead letter; return its reason, its place and its detail."""
    found = decoded(decoder(FormatSpec("debezium", {"schema": schema, **options})), [value])
    (dead,) = found.dead.to_pylist()
    return dead["reason"], dead["place"], dead["detail"]


def is_fast(schema: str, *values: bytes, **options: Any) -> bool:
    """Return True if the fast path decides all of the values."""
    declared = decoder(FormatSpec("debezium", {"schema": schema, **options})).declared
    return not find(pa.array(values, pa.binary()), declared).undecided.any()


@pytest.mark.parametrize("wrapped", [False, True])
def test_an_operation_becomes_the_row_after_it_and_a_delete_the_row_before_it(wrapped: bool) -> None:
    old, new = {"id": 1, "name": "ü"}, {"id": 1, "name": "b"}
    images = {"c": (None, new), "r": (None, new), "u": (old, new), "d": (old, None)}
    values = [event(operation, *pair, wrapped=wrapped) for operation, pair in images.items()]
    assert rows("id INT NOT NULL, name STRING", *values) == [
        {"id": 1, "name": "ü" if operation == "d" else "b", "change_operation": operation, **FACTS}
        for operation in images
    ]
    assert is_fast("id INT NOT NULL, name STRING", *values)


def test_a_truncate_has_no_row_and_a_tombstone_nothing_at_all() -> None:
    truncate, tombstone = rows("id INT NOT NULL", event("t"), None)
    assert truncate == {"id": None, "change_operation": "t", **FACTS}
    assert set(tombstone.values()) == {None}


def test_a_delete_by_default_replica_identity_has_the_key_alone() -> None:
    value = event("d", before={"id": 1, "name": None})
    (row,) = rows("id INT NOT NULL, name STRING NOT NULL", value)
    assert (row["id"], row["name"], row["change_operation"]) == (1, None, "d")
    assert is_fast("id INT NOT NULL, name STRING NOT NULL", value)
    assert letter("id INT NOT NULL, name STRING NOT NULL", event("u", after={"id": 1, "name": None}))[:2] == (
        "missing",
        "$.after.name",
    )


def test_columns_that_are_not_declared_are_rescued() -> None:
    value = event("c", after={"id": 1, "later": [1.50], "more": {"a": None}})
    found = decoded(
        decoder(FormatSpec("debezium", {"schema": "id INT"})), [value, event("d", before={"id": 1, "x": 2})]
    )
    assert found.rescued.to_pylist() == ['{"later":[1.5],"more":{"a":null}}', '{"x":2}']
    assert is_fast("id INT", value)


def test_facts_can_have_other_names() -> None:
    (row,) = rows("id INT, change_operation STRING", event("c", after={"id": 1}), envelope={"operation": "op"})
    assert row["op"] == "c"
    spec = FormatSpec("debezium", {"schema": "id INT", "envelope": {"operation": "op"}})
    assert debezium.column_of(spec, debezium.OPERATION) == "op"
    assert debezium.column_of(spec, debezium.LSN) == "change_lsn"
    with pytest.raises(ConfigurationError, match="occurs twice"):
        decoder(FormatSpec("debezium", {"schema": "change_lsn INT"}))


def test_the_columns_of_facts_are_those_that_other_packages_know() -> None:
    columns = decoder(FormatSpec("debezium", {"schema": "id INT"})).fields
    assert columns.names == ["id", *debezium.DEFAULT_NAMES.values()]


@pytest.mark.parametrize(
    ("schema", "written", "expected", "settings"),
    [
        ("a DECIMAL(12,2)", number(123456789012), Decimal("1234567890.12"), {}),
        ("a DECIMAL(12,2)", number(-1), Decimal("-0.01"), {}),
        ("a DECIMAL(38,0)", number(-(10**38) + 1), Decimal(-(10**38) + 1), {}),
        ("a DECIMAL(38,10)", {"scale": 2, "value": number(-12345)}, Decimal("-123.4500000000"), {}),
        ("a DECIMAL(38,2)", {"scale": -3, "value": number(7)}, Decimal("7000.00"), {}),
        ("a DECIMAL(38,2)", {"scale": 0, "value": number(10**25)}, Decimal(10**25), {}),
        ("a DECIMAL(9,1)", {"scale": 3, "value": number(1500)}, Decimal("1.5"), {}),
        ("a ARRAY<DECIMAL(9,2)>", [number(1), None, number(-5)], [Decimal("0.01"), None, Decimal("-0.05")], {}),
        ("a DECIMAL(12,2)", "1234567890.10", Decimal("1234567890.10"), {"decimal.handling.mode": "string"}),
        ("a DECIMAL(9,2)", 1.5, Decimal("1.50"), {"decimal.handling.mode": "double"}),
        ("a STRING", "NaN", "NaN", {"decimal.handling.mode": "string"}),
        ("a DATE", 19782, date(2024, 2, 29), {}),
        ("a DATE", "2024-02-29Z", date(2024, 2, 29), {"time.precision.mode": "isostring"}),
        ("a TIMESTAMP", 1709213823123456, datetime(2024, 2, 29, 13, 37, 3, 123456, UTC), {}),
        ("a TIMESTAMP", "2024-02-29T13:37:03.123456Z", datetime(2024, 2, 29, 13, 37, 3, 123456, UTC), {}),
        ("a TIMESTAMP", 1709213823123, datetime(2024, 2, 29, 13, 37, 3, 123000, UTC), {"time.precision.mode": "connect"}),
        ("a TIMESTAMP", -1, datetime(1969, 12, 31, 23, 59, 59, 999000, UTC), {"time.precision.mode": "connect"}),
        ("a TIMESTAMP", 1709213823123456000, datetime(2024, 2, 29, 13, 37, 3, 123456, UTC), {"time.precision.mode": "nanoseconds"}),
        ("a ARRAY<TIMESTAMP>", [0, None], [datetime(1970, 1, 1, tzinfo=UTC), None], {}),
        ("a BINARY", "3q2+7w==", b"\xde\xad\xbe\xef", {}),
        ("a BINARY", "", b"", {}),
        ("a BINARY", "DEADbeef", b"\xde\xad\xbe\xef", {"binary.handling.mode": "hex"}),
        ("a BINARY", "3q2-7w==", b"\xde\xad\xbe\xef", {"binary.handling.mode": "base64-url-safe"}),
        ("a STRUCT<x: DOUBLE, at: TIMESTAMP>", {"x": 1.5, "at": 0}, {"x": 1.5, "at": datetime(1970, 1, 1, tzinfo=UTC)}, {}),
        ("a MAP<STRING, STRING>", {"k": "v", "n": None}, [("k", "v"), ("n", None)], {}),
    ],
)  # fmt: skip
def test_values_are_decoded_exactly_by_the_fast_path(
    schema: str, written: Any, expected: Any, settings: Mapping[str, str]
) -> None:
    assert one(schema, {"a": written}, connector=settings)["a"] == expected
    values = [event("c", after={"a": each}) for each in (written, None, written)]
    is_rare = isinstance(written, dict) and (written.get("scale") == 3 or written.get("value") == number(10**25))
    assert is_fast(schema, *values, connector=settings) != is_rare


def test_numbers_of_every_size_are_decoded_by_the_fast_path() -> None:
    found = {sign * (2**bits + more) for bits in range(126) for more in (-1, 0, 1) for sign in (1, -1)}
    numbers = sorted(found)
    values = [event("c", after={"a": number(each), "b": {"scale": 0, "value": number(each)}}) for each in numbers]
    schema = "a DECIMAL(38,0), b DECIMAL(38,0)"
    assert [(row["a"], row["b"]) for row in rows(schema, *values)] == [(Decimal(each),) * 2 for each in numbers]
    assert is_fast(schema, *values)


def test_doubles_that_are_no_numbers_are_kept() -> None:
    found = one("a DOUBLE, b FLOAT, c ARRAY<DOUBLE>", {"a": "NaN", "b": "-Infinity", "c": ["Infinity", 1.5]})
    assert repr(found) == "{'a': nan, 'b': -inf, 'c': [inf, 1.5]}"


def test_milliseconds_are_declared_for_each_column() -> None:
    found = one("a TIMESTAMP, b TIMESTAMP", {"a": 1, "b": 1}, milliseconds=["a"])
    assert (found["a"].microsecond, found["b"].microsecond) == (1000, 1)


@pytest.mark.parametrize(
    ("schema", "written", "settings", "reason", "detail"),
    [
        ("a DECIMAL(5,2)", number(100000), {}, "out_of_range", "beyond DECIMAL(5,2)"),
        ("a DECIMAL(38,0)", number(10**38), {}, "out_of_range", "beyond"),
        ("a DECIMAL(38,0)", number(2**200), {}, "out_of_range", "beyond"),
        ("a DECIMAL(38,2)", {"scale": 3, "value": number(1)}, {}, "out_of_range", "more precise"),
        ("a DECIMAL(38,2)", {"scale": 10**9, "value": number(1)}, {}, "wrong_type", "scale"),
        ("a DECIMAL(38,2)", "1.50", {}, "wrong_type", "`decimal.handling.mode`"),
        ("a DECIMAL(38,2)", 1.5, {}, "wrong_type", "`decimal.handling.mode`"),
        ("a DECIMAL(38,2)", "", {}, "wrong_type", "base64"),
        ("a DECIMAL(9,2)", "NAN", {"decimal.handling.mode": "string"}, "out_of_range", "declare STRING"),
        ("a DECIMAL(9,2)", "NaN", {"decimal.handling.mode": "double"}, "out_of_range", "declare STRING"),
        ("a TIMESTAMP", 9223372036825200000, {}, "out_of_range", "`infinity`"),
        ("a TIMESTAMP", -9223372036832400000, {}, "out_of_range", "`infinity`"),
        ("a TIMESTAMP", 2**63 - 1, {"time.precision.mode": "connect"}, "out_of_range", "declare BIGINT"),
        ("a TIMESTAMP", 1, {"time.precision.mode": "nanoseconds"}, "out_of_range", "more precise"),
        ("a DATE", 2147483647, {}, "out_of_range", "declare INT"),
        ("a DATE", "+10000-01-01Z", {"time.precision.mode": "isostring"}, "wrong_type", "declare STRING"),
        ("a BINARY", "3q2+7w==", {"binary.handling.mode": "hex"}, "wrong_type", "`binary.handling.mode`"),
        ("a BINARY", "3q2-7w==", {}, "wrong_type", "`binary.handling.mode`"),
        ("a STRING", 1, {}, "wrong_type", "declare BIGINT"),
        ("a STRING", {"scale": 0, "value": ""}, {}, "wrong_type", "declare DECIMAL"),
        ("a STRING", "__debezium_unavailable_value", {}, "missing", "IDENTITY FULL"),
        ("a BINARY", number(int.from_bytes(b"__debezium_unavailable_value", "big")), {}, "missing", "IDENTITY FULL"),
        ("a BINARY", b"__debezium_unavailable_value".hex(), {"binary.handling.mode": "hex"}, "missing", "IDENTITY FULL"),
        ("a ARRAY<STRING>", ["__debezium_unavailable_value"], {}, "missing", "IDENTITY FULL"),
        ("a ARRAY<INT>", list(b"__debezium_unavailable_value"), {}, "missing", "IDENTITY FULL"),
        ("a ARRAY<STRING>", ["b68a35a7-17ad-35b3-af2a-ae46edb4545a"], {}, "missing", "IDENTITY FULL"),
        ("a MAP<STRING, STRING>", {UNSENT: UNSENT}, {}, "missing", "IDENTITY FULL"),
        ("a STRING", "gone", {"unavailable.value.placeholder": "gone"}, "missing", "IDENTITY FULL"),
        ("a STRING", json.dumps({UNSENT: UNSENT}, separators=(",", ":")), {}, "missing", "IDENTITY FULL"),
        ("a STRING", "__t", {"unavailable.value.placeholder": "hex:5f5f74"}, "missing", "IDENTITY FULL"),
        ("a BINARY", "X190", {"unavailable.value.placeholder": "hex:5f5f74"}, "missing", "IDENTITY FULL"),
        ("a STRING", 'a"b', {"unavailable.value.placeholder": 'a"b'}, "missing", "IDENTITY FULL"),
        ("a STRING", '{"a\\"b":"a\\"b"}', {"unavailable.value.placeholder": 'a"b'}, "missing", "IDENTITY FULL"),
        ("a ARRAY<DOUBLE>", list(map(float, UNSENT.encode())), {}, "missing", "IDENTITY FULL"),
        ("a ARRAY<DECIMAL(9,2)>", [number(100 * each) for each in UNSENT.encode()], {}, "missing", "IDENTITY FULL"),
        ("a ARRAY<BOOLEAN>", list(UNSENT.encode()), {}, "missing", "IDENTITY FULL"),
        ("a DATE", 1.0, {}, "wrong_type", "1.0"),
        ("a TIMESTAMP", 1.0, {}, "wrong_type", "1.0"),
        ("a ARRAY<TIMESTAMP>", [None, 1, 1.0], {}, "wrong_type", "1.0"),
    ],
)  # fmt: skip
def test_what_a_column_cannot_hold_is_a_dead_letter_that_says_what_to_do(
    schema: str, written: Any, settings: Mapping[str, str], reason: str, detail: str
) -> None:
    at = "$.after.a" if not isinstance(written, list) or reason == "missing" else "$.after.a[2]"
    assert letter(schema, event("c", after={"a": written}), connector=settings)[:2] == (reason, at)
    found = letter(schema, event("u", after={"a": written}, wrapped=True), connector=settings)
    assert found[:2] == (reason, at.replace("$", "$.payload"))
    assert detail in found[2]


@pytest.mark.parametrize(
    ("value", "reason", "place", "detail"),
    [
        (event("m", message={"prefix": "p", "content": "eA=="}), "wrong_type", None, "pg_logical_emit_message"),
        (b'{"ts_ms":1}', "wrong_type", None, "heartbeat"),
        (b'{"status":"BEGIN","id":"571:1","event_count":null}', "wrong_type", None, "transaction metadata"),
        (b'{"source":{},"ts_ms":1,"databaseName":"d","ddl":null,"tableChanges":[]}', "wrong_type", None, "schema change"),
        (b'{"id":1,"__deleted":"false"}', "wrong_type", None, "format: json"),
        (b'{"schema":null,"payload":null}', "wrong_type", None, "no `op`"),
        (event("x"), "wrong_type", "$.op", "one of c, r, u, d, t"),
        (event("c"), "missing", "$.after", "no row"),
        (event("d", after={"id": 1}), "missing", "$.before", "REPLICA IDENTITY"),
        (event("c", after=[1]), "wrong_type", "$.after", "an object"),
        (event("c", after={"id": 1}, source={"lsn": "1"}), "wrong_type", "$.source.lsn", "BIGINT"),
        (event("c", after={"id": 1}, source={"ts_ms": -(2**63)}), "out_of_range", "$.source.ts_us", "years"),
        (event("c", after={"id": 1}, source={"ts_ms": 2**62}), "out_of_range", "$.source.ts_us", "years"),
        (b'{"op":"c","op":"d","after":{"id":1}}', "malformed", "$.op", "twice"),
        (b'{"op":"c","after":{"id":1,"id":2}}', "malformed", "$.after.id", "twice"),
        (b'{"op":"c","after":{"id":1}', "malformed", None, ""),
        (b'{"op":"c","after":{"id":1},"x":01}', "malformed", None, ""),
        (b"[]", "wrong_type", None, "not an object"),
        (b"", "malformed", None, ""),
        (b"\0\0\0\0\x07\0\x02", "malformed", None, "schema 7: declare `registry: true`"),
        (b"\0\0\0\0\x07\xff\xfe", "malformed", None, "schema 7: declare `registry: true`"),
        (b"\0" * 8 + b"\x07\0\x02", "malformed", None, "declare `registry: true` and `id: apicurio`"),
        (b'\0\0\0\0\x07{"op":"c"}', "malformed", None, "only with Avro"),
        (b"\0" * 8 + b'\x07 {"op":"c"}', "malformed", None, "only with Avro"),
        (b"\0\0", "malformed", None, "0x00, which is not JSON"),
    ],
)  # fmt: skip
def test_a_value_that_is_no_change_of_a_row_is_a_dead_letter(
    value: bytes, reason: str, place: str | None, detail: str
) -> None:
    found = letter("id INT", value)
    assert found[:2] == (reason, place)
    assert detail in found[2]


def test_a_null_array_may_stand_for_an_unchanged_one_unless_the_row_before_was_sent() -> None:
    schema, row = "id INT, a ARRAY<DOUBLE>, b ARRAY<STRING>", {"id": 1, "a": None, "b": None}
    found = letter(schema, event("u", after=row))
    assert found[:2] == ("missing", "$.after.a")
    assert "IDENTITY FULL" in found[2]
    whole = [event("u", before=row, after=row), event("c", after=row), event("r", after=row), event("d", before=row)]
    assert [each["a"] for each in rows(schema, *whole)] == [None] * 4
    assert is_fast(schema, *whole)


@pytest.mark.parametrize("mode", ["base64", "base64-url-safe"])
def test_null_may_stand_for_unchanged_bytes_in_base64_and_for_an_unchanged_object(mode: str) -> None:
    schema, connector = "id INT, a BINARY, b STRUCT<srid: INT, wkb: STRING>", {"binary.handling.mode": mode}
    row = {"id": 1, "a": "3q2+7w==" if mode == "base64" else "3q2-7w==", "b": {"srid": 1, "wkb": ""}}
    for name in ("a", "b"):
        found = letter(schema, event("u", after={**row, name: None}), connector=connector)
        assert found[:2] == ("missing", f"$.after.{name}")
        assert "IDENTITY FULL" in found[2]
    null = {**row, "a": None, "b": None}
    whole = [event("u", before=row, after=null), event("c", after=null), event("u", after=row)]
    assert [each["a"] for each in rows(schema, *whole, connector=connector)] == [None, None, b"\xde\xad\xbe\xef"]
    assert is_fast(schema, *whole, connector=connector)
    # An event from before the columns were added to the table.
    (earlier,) = rows(schema, event("u", after={"id": 1}), connector=connector)
    assert (earlier["a"], earlier["b"]) == (None, None)


@pytest.mark.parametrize(
    ("kind", "mode"), [("BINARY", "bytes"), ("BINARY", "hex"), ("STRUCT<x: DOUBLE, y: DOUBLE>", "base64")]
)
def test_null_is_null_if_the_connector_has_a_placeholder_or_the_value_is_never_toasted(kind: str, mode: str) -> None:
    value, connector = event("u", after={"id": 1, "a": None}), {"binary.handling.mode": mode}
    assert rows(f"id INT, a {kind}", value, connector=connector)[0]["a"] is None
    assert is_fast(f"id INT, a {kind}", value, connector=connector)


def test_an_array_of_true_may_stand_for_an_unchanged_one_unless_the_row_before_was_sent() -> None:
    row = {"a": [True] * len(UNSENT)}
    assert letter("a ARRAY<BOOLEAN>", event("u", after=row))[:2] == ("missing", "$.after.a")
    for value in (event("u", before=row, after=row), event("u", before={"a": []}, after=row), event("c", after=row)):
        assert rows("a ARRAY<BOOLEAN>", value)[0]["a"] == row["a"]
    of_index = event("u", before={"id": 1, "a": None}, after={"id": 2, **row})
    assert letter("id INT, a ARRAY<BOOLEAN>", of_index)[:2] == ("missing", "$.after.a")
    assert is_fast("a ARRAY<BOOLEAN>", event("u", after={"a": [True, False]}))


@pytest.mark.parametrize(
    ("schema", "written", "placeholder"),
    [
        ("a STRING", r'"\u005f_debezium_unavailable_value"', UNSENT),
        ("a STRING", r'"\u005F_debezium_unavailable_value"', UNSENT),
        ("a STRING", r'"a\u0022b"', 'a"b'),
        ("a STRING", r'"a\/b"', "a/b"),
        ("a STRING", r'"\u00fc"', "ü"),
        ("a STRING", r'"\uD83D\ude00"', "😀"),
        ("a ARRAY<INT>", str(list(UNSENT.encode())), UNSENT),
        ("a ARRAY<INT>", "[97.0, 9.8e1]", "ab"),
    ],
)
def test_a_placeholder_is_found_however_json_writes_it(schema: str, written: str, placeholder: str) -> None:
    value = b'{"op":"u","after":{"a":%b}}' % written.encode()
    assert letter(schema, value, connector={"unavailable.value.placeholder": placeholder})[:2] == (
        "missing",
        "$.after.a",
    )
    assert is_fast("a STRING", rb'{"op":"u","after":{"a":"\u00fc\n\""}}')


@pytest.mark.parametrize(
    "others", [[], [event("c", after={"a": "2024-02-29T00:00:00Z"})], [event("c", after={"a": 1})]]
)
def test_a_time_is_no_number_with_a_point_whatever_other_records_hold(others: list[bytes]) -> None:
    for written in (b"1.0", b"1e0", b"-1.0E0", b" 1.0"):
        values = [b'{"op":"c","after":{"a":%b}}' % written, *others]
        found = decoded(decoder(FormatSpec("debezium", {"schema": "a TIMESTAMP"})), values)
        assert found.dead.column("reason").to_pylist() == ["wrong_type"]
    assert is_fast("a TIMESTAMP, b DOUBLE", event("c", after={"a": 1, "b": 1.5}))


def described(field: Mapping[str, Any], written: Any) -> bytes:
    """Return an event with the schema of its column."""
    image = {"type": "struct", "fields": [{"field": "a", "optional": True, **field}]}
    schema = {"type": "struct", "fields": [{**image, "field": "before"}, {**image, "field": "after"}]}
    value = json.loads(event("c", after={"a": written}))
    return json.dumps({"schema": schema, "payload": value}).encode()


def decimal_of(scale: int) -> Mapping[str, Any]:
    """Return the schema of a number in the mode `precise`."""
    return {"type": "bytes", "name": "org.apache.kafka.connect.data.Decimal", "parameters": {"scale": str(scale)}}


_MICRO = {"type": "int64", "name": "io.debezium.time.MicroTimestamp"}
_MILLI = {"type": "int64", "name": "io.debezium.time.Timestamp"}


@pytest.mark.parametrize(
    ("schema", "field", "written", "options", "detail"),
    [
        ("a DECIMAL(12,2)", decimal_of(4), number(15000), {}, "schema says scale 4"),
        ("a ARRAY<DECIMAL(12,2)>", {"type": "array", "items": decimal_of(4)}, [number(15000)], {}, "schema says scale 4"),
        ("a DECIMAL(12,2)", {"type": "string"}, "1234", {}, "is string, but precise is declared"),
        ("a DECIMAL(12,2)", decimal_of(2), "1234", {"connector": {"decimal.handling.mode": "string"}}, "is precise"),
        ("a STRING", decimal_of(2), number(1), {}, "declare DECIMAL"),
        ("a TIMESTAMP", _MILLI, 1, {}, "`milliseconds`"),
        ("a TIMESTAMP", _MICRO, 1, {"milliseconds": ["a"]}, "`milliseconds`"),
        ("a TIMESTAMP", _MICRO, 1, {"connector": {"time.precision.mode": "connect"}}, "`time.precision.mode`"),
        ("a DATE", _MILLI, 1, {}, "declare TIMESTAMP"),
        ("a BINARY", {"type": "string"}, "00112233", {}, "`binary.handling.mode` is bytes: set it"),
        ("a ARRAY<BINARY>", {"type": "array", "items": {"type": "string"}}, ["00112233"], {}, "or declare STRING"),
        ("a BINARY", {"type": "bytes"}, "00112233", {"connector": {"binary.handling.mode": "hex"}}, "is hex: declare STRING"),
    ],
)  # fmt: skip
def test_a_schema_that_contradicts_the_declaration_is_a_dead_letter(
    schema: str, field: Mapping[str, Any], written: Any, options: Mapping[str, Any], detail: str
) -> None:
    found = letter(schema, described(field, written), **options)
    assert found[:2] == ("wrong_type", "$.payload.after.a")
    assert detail in found[2]


@pytest.mark.parametrize(
    ("schema", "field", "written", "options"),
    [
        ("a DECIMAL(12,2)", decimal_of(2), number(15000), {}),
        ("a DECIMAL(12,2)", {"type": "struct", "name": "io.debezium.data.VariableScaleDecimal"}, None, {}),
        ("a TIMESTAMP", _MICRO, 1, {}),
        ("a TIMESTAMP", _MILLI, 1, {"milliseconds": ["a"]}),
        ("a TIMESTAMP", {"type": "string", "name": "io.debezium.time.ZonedTimestamp"}, "2024-02-29T00:00:00Z", {}),
        ("a BIGINT", _MICRO, 1, {}),
        ("a DATE", {"type": "int32", "name": "io.debezium.time.Date"}, 1, {}),
        ("a BINARY", {"type": "bytes"}, "00112233", {}),
        ("a BINARY", {"type": "bytes"}, "AAAA", {"connector": {"binary.handling.mode": "base64-url-safe"}}),
        (
            "a BINARY",
            {"type": "bytes", "name": "io.debezium.data.Bits"},
            "AQE=",
            {"connector": {"binary.handling.mode": "base64"}},
        ),
        ("a BINARY", {"type": "string"}, "00112233", {"connector": {"binary.handling.mode": "hex"}}),
        ("a BINARY", {"type": "string"}, "AQE=", {"connector": {"binary.handling.mode": "base64"}}),
    ],
)
def test_a_schema_that_agrees_with_the_declaration_costs_no_exact_decoding(
    schema: str, field: Mapping[str, Any], written: Any, options: Mapping[str, Any]
) -> None:
    value = described(field, written)
    assert len(rows(schema, value, **options)) == 1
    assert is_fast(schema, value, **options)


def test_an_event_needs_no_source() -> None:
    (row,) = rows("id INT", b' {"after" : {"id":1} , "op":"c"}')
    assert row == {"id": 1, "change_operation": "c", **dict.fromkeys(FACTS)}
    (row,) = rows("id INT", event("c", after={"id": 1}, source={"ts_ms": 1700000000123}))
    assert row["change_timestamp"] == datetime(2023, 11, 14, 22, 13, 20, 123000, UTC)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "`schema`"),
        ({"schema": "id INT", "connector": {"decimal.handling.mode": "exact"}}, "precise, string, double"),
        ({"schema": "id INT", "connector": {"plugin.name": "pgoutput"}}, "Leave it out"),
        ({"schema": "id INT", "connector": "string"}, "a mapping"),
        ({"schema": "id INT", "connector": {"unavailable.value.placeholder": "hex:5"}}, "two hexadecimal digits"),
        ({"schema": "id INT", "envelope": {"offset": "o"}}, "operation, lsn"),
        ({"schema": "id INT", "milliseconds": ["id"]}, "not a TIMESTAMP"),
        ({"schema": "id TIMESTAMP", "milliseconds": ["id"], "connector": {"time.precision.mode": "connect"}}, "same unit"),
        ({"schema": "n DECIMAL(16,2)", "connector": {"decimal.handling.mode": "double"}}, "15 exact digits"),
    ],
)  # fmt: skip
def test_a_wrong_option_is_named(options: Mapping[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said.replace("(", r"\(")):
        decoder_of(FormatSpec("debezium", options))


_NUMBERS = st.integers(-(10**38), 10**38) | st.integers(-200, 200) | st.integers(-(2**64), 2**64)
_TEXTS = st.text(max_size=5) | st.sampled_from(
    ["NaN", "-1.50", "1e5", "__debezium_unavailable_value", "2024-02-29Z", "ff"]
)
_DECIMALS = st.builds(lambda scale, value: {"scale": scale, "value": number(value)}, st.integers(-3, 12), _NUMBERS)
_INSTANTS = st.integers(-(2**63), 2**63 - 1) | st.datetimes().map(lambda time: time.isoformat() + "Z")
_VALUES: Mapping[str, st.SearchStrategy[Any]] = {
    "n DECIMAL(20,4)": _NUMBERS.map(number) | _DECIMALS,
    "v DECIMAL(38,10)": _DECIMALS | _NUMBERS.map(number),
    "t TIMESTAMP": _INSTANTS,
    "d DATE": st.integers(-(10**7), 10**7),
    "b BINARY": st.binary(max_size=6).map(lambda content: base64.b64encode(content).decode()),
    "f DOUBLE": st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from(["NaN", "Infinity"]),
    "s STRING NOT NULL": _TEXTS,
    "l ARRAY<TIMESTAMP>": st.lists(st.none() | _INSTANTS, max_size=3),
    "g STRUCT<a: DECIMAL(5,1), b: STRING>": st.fixed_dictionaries({"a": _NUMBERS.map(number)}, optional={"c": _TEXTS}),
}
_MODES = st.fixed_dictionaries(
    {},
    optional={
        "decimal.handling.mode": st.sampled_from(["precise", "string"]),
        "time.precision.mode": st.sampled_from(["adaptive", "connect", "isostring", "nanoseconds"]),
        "binary.handling.mode": st.sampled_from(["bytes", "hex", "base64-url-safe"]),
    },
)


def _images() -> st.SearchStrategy[Any]:
    row = {column.split()[0]: st.none() | of | of | of | _TEXTS for column, of in _VALUES.items()}
    return st.none() | st.fixed_dictionaries(row) | st.fixed_dictionaries({}, optional={**row, "z": _TEXTS})


@settings(UNTIMED, max_examples=60)
@given(
    st.lists(
        st.builds(
            event, st.sampled_from(["c", "u", "d", "r", "t", "m", None]), _images(), _images(), wrapped=st.booleans()
        ),
        max_size=6,
    ),
    _MODES,
)
def test_both_paths_agree(values: list[bytes], modes: Mapping[str, str]) -> None:
    decoded(decoder(FormatSpec("debezium", {"schema": ", ".join(_VALUES), "connector": modes})), values)
