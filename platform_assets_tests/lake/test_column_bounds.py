"""Bounds of declared columns in Delta's log: each bound is exact, wider than the values, or omitted."""

from __future__ import annotations

import random
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from platform_assets.lake import column_bounds

MOMENT = datetime(2026, 3, 1, 12, 30, 15, 123_456, tzinfo=UTC)


def bounds(tmp_path: Path, values: list[Any], kind: pa.DataType) -> tuple[Any, Any, int] | None:
    path = tmp_path / "file.parquet"
    pq.write_table(pa.table({"c": pa.array(values, kind)}), path, row_group_size=2)
    return column_bounds.of(pq.read_metadata(path), "c")


@pytest.mark.parametrize(
    ("values", "kind", "expected"),
    [
        ([3, None, -1, 7], pa.int64(), (-1, 7, 1)),
        ([None, None, 5], pa.int32(), (5, 5, 2)),
        (["b", "a", None], pa.string(), ("a", "b", 1)),
        (["x" * 65], pa.string(), None),
        ([date(2026, 1, 2), date(1969, 1, 1)], pa.date32(), ("1969-01-01", "2026-01-02", 0)),
        ([MOMENT], pa.timestamp("us", "UTC"), ("2026-03-01T12:30:15.123Z", "2026-03-01T12:30:15.124Z", 0)),
        (
            [datetime(1960, 1, 1, 0, 0, 0, 999_999)],
            pa.timestamp("us"),
            ("1960-01-01T00:00:00.999", "1960-01-01T00:00:01.000", 0),
        ),
        ([datetime(9999, 12, 31, 23, 59, 59, 999_999)], pa.timestamp("us"), None),
        ([MOMENT], pa.timestamp("ns", "UTC"), None),
        ([1.5], pa.float64(), None),
        ([Decimal("1.5")], pa.decimal128(9, 2), None),
        ([True], pa.bool_(), None),
        ([None], pa.int64(), None),
        ([], pa.int64(), None),
    ],
)  # fmt: skip
def test_bounds_are_those_of_the_values_or_left_out(
    tmp_path: Path, values: list[Any], kind: pa.DataType, expected: tuple[Any, Any, int] | None
) -> None:
    assert bounds(tmp_path, values, kind) == expected


def test_a_column_that_the_file_lacks_has_no_bounds(tmp_path: Path) -> None:
    pq.write_table(pa.table({"c": [1]}), tmp_path / "file.parquet")
    assert column_bounds.of(pq.read_metadata(tmp_path / "file.parquet"), "d") is None


def test_no_time_lies_outside_of_its_bounds(tmp_path: Path, rng: random.Random) -> None:
    times = [MOMENT + timedelta(microseconds=rng.randrange(-(10**15), 10**15)) for _ in range(50)]
    found = bounds(tmp_path, times, pa.timestamp("us", "UTC"))
    assert found is not None
    low, high = (pl.Series([text]).str.to_datetime(time_zone="UTC")[0] for text in found[:2])
    assert low <= min(times) < low + timedelta(milliseconds=1)
    assert high - timedelta(milliseconds=1) < max(times) <= high
