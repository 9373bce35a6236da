"""PostgreSQL's texts of values, compared with values of rows; and which transactions a snapshot includes."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from platform_assets.checks.postgres.database import Snapshot
from platform_assets.checks.postgres.values import DatabaseType, conversion, elements, key_text

NUMERIC, TEXT, INT = DatabaseType("numeric"), DatabaseType("text"), DatabaseType("int4")
MOMENT = pa.timestamp("us", tz="UTC")
AT = datetime(2024, 2, 29, 13, 37, 3, 120_000, UTC)
LATER = AT.replace(microsecond=120_001)


@pytest.mark.parametrize(
    ("declared", "column", "text", "value", "other"),
    [
        (INT, pa.int32(), "-5", -5, 5),
        (DatabaseType("bool"), pa.bool_(), "t", True, False),
        (DatabaseType("bit"), pa.bool_(), "0", False, True),
        (DatabaseType("float4"), pa.float32(), "3.4028235e+38", float(np.float32("3.4028235e38")), 3.4028235e38),
        (DatabaseType("float8"), pa.float64(), "NaN", float("nan"), 0.0),
        (DatabaseType("float8"), pa.float64(), "-0", 0.0, 1.0),
        (NUMERIC, pa.decimal128(12, 2), "1.50", Decimal("1.5"), Decimal("1.51")),
        (NUMERIC, pa.string(), "NaN", "NAN", "0"),
        (NUMERIC, pa.string(), "-Infinity", "NEGATIVE_INFINITY", "POSITIVE_INFINITY"),
        (NUMERIC, pa.string(), "1", "1.0", "not a number"),
        (NUMERIC, pa.string(), "100000000000000000000", "1E+20", "1E+21"),
        (DatabaseType("money"), pa.decimal128(19, 2), "12.34", Decimal("12.34"), Decimal("-12.34")),
        (DatabaseType("date"), pa.date32(), "0001-01-01", date(1, 1, 1), date(1, 1, 2)),
        (DatabaseType("date"), pa.string(), "2024-02-29", "2024-02-29Z", "2024-02-28Z"),
        (DatabaseType("timestamp"), MOMENT, "2024-02-29 13:37:03.12", AT, LATER),
        (DatabaseType("timestamptz"), MOMENT, "2024-02-29 13:37:03+00", AT.replace(microsecond=0), AT),
        (DatabaseType("timestamptz"), pa.string(), "2024-02-29 13:37:03.1+00", "2024-02-29T13:37:03.100000Z", "2024-02-29T13:37:03Z"),
        (DatabaseType("time"), pa.int64(), "24:00:00", 86_400_000_000, 0),
        (DatabaseType("time"), pa.int32(), "00:00:01.5", 1_500, 1_000),
        (DatabaseType("bytea"), pa.binary(), "\\xdeadbeef", b"\xde\xad\xbe\xef", b"\xde\xad"),
        (DatabaseType("mood", "e"), pa.string(), "happy", "happy", "sad"),
        (
            DatabaseType("_text", "b", TEXT), pa.list_(pa.string()), '{a,NULL,"b \\"c\\\\","NULL",""}',
            ["a", None, 'b "c\\', "NULL", ""], ["a", None],
        ),
        (DatabaseType("_int4", "b", INT), pa.list_(pa.int32()), "[0:1]={1,2}", [1, 2], [2, 1]),
        (DatabaseType("_int4", "b", INT), pa.list_(pa.int32()), "{}", [], [None]),
    ],
)  # fmt: skip
def test_equal_values_and_others_are_told_apart(
    declared: DatabaseType, column: pa.DataType, text: str, value: Any, other: Any
) -> None:
    how = conversion(declared, column)
    assert how is not None
    assert how.same(text, value)
    assert not how.same(text, other)
    assert not how.same(text, None)
    assert not how.same(None, value)
    assert how.same(None, None)


def test_an_array_of_arrays_is_no_list_of_values() -> None:
    assert elements("{{1,2},{3,NULL}}") == [["1", "2"], ["3", None]]
    how = conversion(DatabaseType("_int4", "b", INT), pa.list_(pa.int32()))
    assert how is not None
    assert not how.same("{{1,2},{3,4}}", [None, None])


@pytest.mark.parametrize(
    ("declared", "column"),
    [
        (DatabaseType("interval"), pa.string()), (DatabaseType("timetz"), pa.string()), (INT, pa.string()),
        (DatabaseType("point"), pa.struct([pa.field("x", pa.float64())])), (DatabaseType("timestamp"), pa.int64()),
        (DatabaseType("_money", "b", DatabaseType("money")), pa.list_(pa.decimal128(19, 2))),
    ],
)  # fmt: skip
def test_other_pairs_of_types_are_not_compared(declared: DatabaseType, column: pa.DataType) -> None:
    assert conversion(declared, column) is None


def test_texts_of_keys_are_those_of_postgres() -> None:
    found = [
        (key_text(INT, pa.int64()), 7, "7"),
        (key_text(DatabaseType("bool"), pa.bool_()), False, "f"),
        (key_text(DatabaseType("date"), pa.date32()), date(1, 2, 3), "0001-02-03"),
        (key_text(DatabaseType("bytea"), pa.binary()), b"\x00\xff", "\\x00ff"),
    ]
    for of, value, text in found:
        assert of is not None
        assert of(value) == text
    assert key_text(NUMERIC, pa.decimal128(12, 2)) is None


def test_ranges_are_compared_as_texts_except_those_in_a_time_zone() -> None:
    made = {name: conversion(DatabaseType(name, "r"), pa.string()) for name in ("tsrange", "int4range", "tstzrange")}
    assert {name for name, how in made.items() if how is None} == {"tstzrange"}
    assert key_text(DatabaseType("tstzrange", "r"), pa.string()) is None


def seen(snapshot: Snapshot, *ids: int, lsn: int = 100) -> list[bool]:
    wrapped = np.array([each & 0xFFFF_FFFF for each in ids], np.int64)
    return list(snapshot.sees(wrapped, np.full(len(ids), lsn, np.int64)))


@pytest.mark.parametrize("epoch", [0, 1, 3])
def test_a_snapshot_includes_what_was_committed_before_it(epoch: int) -> None:
    base = (epoch << 32) + 1_000
    snapshot = Snapshot(f"{base}:{base + 10}:{base + 2},{base + 5}", lsn=200, before=150)
    ids = [base - 1, base, base + 2, base + 3, base + 5, base + 9, base + 10, base + 11]
    assert seen(snapshot, *ids) == [True, True, False, True, False, True, False, False]


def test_ids_that_began_again_are_told_from_future_ones_by_their_position() -> None:
    base = (1 << 32) + 1_000
    snapshot = Snapshot(f"{base}:{base}:", lsn=200, before=150)
    old = base - (1 << 31) - 5
    assert seen(snapshot, old, lsn=100) == [True]
    assert seen(snapshot, base + 1, base + 100, lsn=100) == [False, False]
    assert seen(snapshot, base + (1 << 21), lsn=160) == [False]
    far = Snapshot(f"{base}:{base}:", lsn=1 << 40, before=1 << 40)
    ids = (base, base + 100, base + (1 << 20) - 1)
    assert seen(far, *ids, lsn=(1 << 40) - (1 << 32) - 1) == [True] * 3
    assert seen(far, *ids, lsn=(1 << 40) - (1 << 32)) == [False] * 3


def test_transactions_whose_ids_may_have_begun_again_are_doubted() -> None:
    base = (1 << 32) + 1_000
    snapshot = Snapshot(f"{base}:{base + 10}:{base + 2}", lsn=1 << 40, before=1 << 40)

    def doubted(lsn: int, *ids: int) -> list[bool]:
        wrapped = np.array([each & 0xFFFF_FFFF for each in ids], np.int64)
        return list(snapshot.doubts(wrapped, np.full(len(ids), lsn, np.int64)))

    ids = (base, base + 2, base + 10, base + 11, base + 10 + (1 << 20), base + (1 << 30))
    assert doubted((1 << 40) - (1 << 32) - 1, *ids) == [False, True, False, False, False, False]
    assert doubted((1 << 40) - (1 << 32), *ids) == [False] * 6
    assert doubted(-1, *ids) == [False, True, True, True, True, True]
    snapshot = Snapshot("1000:1010:1002", lsn=1 << 40, before=1 << 40)
    assert doubted(-1, *ids) == doubted(100, *ids) == [False] * 6, "no ids have begun again yet"
