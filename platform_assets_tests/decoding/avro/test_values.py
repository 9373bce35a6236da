"""Values of each type, decoded by both paths."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from platform_assets_tests.support.avro_data import avro, decoded, record, written

BYTES_DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
ENUM = {"type": "enum", "name": "Colour", "symbols": ["RED", "GREEN"]}
FIXED = {"type": "fixed", "name": "Four", "size": 4}
LEG = {
    "type": "record",
    "name": "Leg",
    "fields": [{"name": "to", "type": "string"}, {"name": "km", "type": ["null", "int"]}],
}
MICROS = {"type": "long", "logicalType": "timestamp-micros"}
MILLIS = {"type": "long", "logicalType": "timestamp-millis"}

KINDS: list[tuple[Any, pa.DataType, Any, Any]] = [
    ("boolean", pa.bool_(), True, True),
    ("int", pa.int32(), -(1 << 31), -(1 << 31)),
    ("long", pa.int64(), (1 << 63) - 1, (1 << 63) - 1),
    ("long", pa.int64(), -(1 << 63), -(1 << 63)),
    ("float", pa.float32(), 1.5, 1.5),
    ("double", pa.float64(), -0.1, -0.1),
    ("double", pa.float64(), math.inf, math.inf),
    ("bytes", pa.binary(), b"\0\xff", b"\0\xff"),
    ("string", pa.string(), "Zürich 🦆", "Zürich 🦆"),
    ("string", pa.string(), "", ""),
    (ENUM, pa.string(), "GREEN", "GREEN"),
    (FIXED, pa.binary(), b"abcd", b"abcd"),
    ({"type": "int", "logicalType": "date"}, pa.date32(), date(1969, 12, 31), date(1969, 12, 31)),
    (MILLIS, pa.timestamp("us", "UTC"), 1_700_000_000_123, datetime(2023, 11, 14, 22, 13, 20, 123_000, tzinfo=UTC)),
    (MICROS, pa.timestamp("us", "UTC"), -1, datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)),
    ({"type": "int", "logicalType": "time-millis"}, pa.int32(), 5, 5),
    (BYTES_DECIMAL, pa.decimal128(9, 2), Decimal("-1234567.89"), Decimal("-1234567.89")),
    (
        {"type": "fixed", "name": "D", "size": 16, "logicalType": "decimal", "precision": 38, "scale": 0},
        pa.decimal128(38, 0),
        Decimal(10**38 - 1),
        Decimal(10**38 - 1),
    ),
    (["null", "string"], pa.string(), None, None),
    (["string", "null"], pa.string(), "x", "x"),
    ({"type": "array", "items": ["null", "long"]}, pa.list_(pa.int64()), [1, None, 3], [1, None, 3]),
    ({"type": "array", "items": LEG}, None, [{"to": "ZRH", "km": None}] * 3, [{"to": "ZRH", "km": None}] * 3),
    ({"type": "array", "items": {"type": "array", "items": "int"}}, None, [[1], [], [2, 3]], [[1], [], [2, 3]]),
    ({"type": "map", "values": "int"}, None, {"a": 1}, [{"key": "a", "value": 1}]),
    (LEG, None, {"to": "BRN", "km": 4}, {"to": "BRN", "km": 4}),
    (["null", LEG], None, None, None),
]


@pytest.mark.parametrize(("kind", "arrow", "value", "expected"), KINDS, ids=str)
def test_a_value_of_each_type(kind: Any, arrow: pa.DataType | None, value: Any, expected: Any) -> None:
    schema = record(before="int", it=kind, behind="string")
    one, two = ({"before": 1, "it": value, "behind": text} for text in ("x", "y"))
    of = avro(schema)
    rows, rescued, dead = decoded(of, [written(schema, one), None, written(schema, two)])
    wanted = [{"before": 1, "it": expected, "behind": text} for text in ("x", "y")]
    assert rows == [wanted[0], dict.fromkeys(wanted[0]), wanted[1]]
    assert (rescued, dead) == ([None] * 3, [])
    if arrow is not None:
        assert of.fields.field("it").type.equals(arrow) or pa.types.is_list(arrow)
    assert of.fields.field("it").nullable == (isinstance(kind, list))


def test_not_a_number_stays_one() -> None:
    rows, _, _ = decoded(
        avro(record(a="double", b="float")), [written(record(a="double", b="float"), {"a": math.nan, "b": math.nan})]
    )
    assert math.isnan(rows[0]["a"])
    assert math.isnan(rows[0]["b"])


def test_a_value_that_is_no_record_has_one_column() -> None:
    rows, _, dead = decoded(avro("long"), [written("long", 7), b"", b"\x0e\x00"])
    assert rows == [{"value": 7}, {"value": None}, {"value": None}]
    assert [(each["row"], each["reason"]) for each in dead] == [(1, "malformed"), (2, "malformed")]


def test_negative_counts_of_blocks_carry_their_size() -> None:
    of = avro(record(a={"type": "array", "items": "int"}))
    right, wrong = bytes([3, 4, 2, 4, 0]), bytes([3, 2, 2, 4, 0])
    rows, _, dead = decoded(of, [right, wrong])
    assert rows == [{"a": [1, 2]}, {"a": None}]
    assert "ends elsewhere" in dead[0]["detail"]


def test_an_item_at_fault_is_named() -> None:
    schema = record(legs={"type": "array", "items": LEG})
    whole = written(schema, {"legs": [{"to": "A", "km": 1}, {"to": "\x7f", "km": None}]})
    rows, _, dead = decoded(avro(schema), [whole.replace(b"\x7f", b"\xff"), whole])
    assert rows[0] == {"legs": None}
    assert rows[1]["legs"][1]["to"] == "\x7f"
    assert [(each["reason"], each["place"]) for each in dead] == [("malformed", "$.legs[1].to")]


def test_decimals_and_milliseconds_out_of_range() -> None:
    schema = record(amount={"type": "array", "items": BYTES_DECIMAL}, at=MILLIS)
    plain = record(amount={"type": "array", "items": "bytes"}, at="long")
    values = [
        {"amount": [b"\x01", b"\x7f\xff\xff\xff\xff"], "at": 0},
        {"amount": [b""], "at": 0},
        {"amount": [b"\0" * 20 + b"\x01", b"\xff" * 20], "at": 0},
        {"amount": [], "at": 1 << 62},
        {"amount": [b"\x80"], "at": 5},
    ]
    rows, _, dead = decoded(avro(schema), [written(plain, value) for value in values])
    assert [(each["row"], each["reason"], each["place"]) for each in dead] == [
        (0, "out_of_range", "$.amount[1]"),
        (1, "malformed", "$.amount[0]"),
        (3, "out_of_range", "$.at"),
    ]
    assert rows[2]["amount"] == [Decimal("0.01"), Decimal("-0.01")]
    assert rows[4]["amount"] == [Decimal("-1.28")]


def test_a_slice_of_an_array_is_decoded_by_itself() -> None:
    values = pa.array([b"\x02", None, b"\x04", b"\x06"], pa.binary())
    assert avro("int").decode(values.slice(1, 2)).columns["value"].to_pylist() == [None, 2]
    assert avro("int").decode(values.slice(0, 0)).columns.num_rows == 0
