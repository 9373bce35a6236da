"""Tables that either engine loaded, read by Spark, delta-rs, polars and DuckDB: the same rows at each version."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable

from platform_assets.engines.choice import choose_engine
from platform_assets.lake.location import Lake
from platform_assets.model.declaration import EngineName
from platform_assets_tests.support.every_kind import EVERY_KIND
from testbed.loads import TopicLake, numbered

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from platform_assets_tests.conftest import LakeMaker

pytestmark = [pytest.mark.broker, pytest.mark.spark]

COLUMNS: Final = (
    "topic_id",
    "kafka_partition",
    "kafka_offset",
    "kafka_timestamp",
    "kafka_timestamp_type",
    "key",
    "value",
    "headers",
    "window",
)
Read = Callable[[str, int], Iterable[Mapping[str, Any]]]
"""Rows of the table at a path, at a version."""


def by_delta_rs(path: str, version: int) -> Iterable[Mapping[str, Any]]:
    rows: list[dict[str, Any]] = DeltaTable(path, version=version).to_pyarrow_table().to_pylist()
    return rows


def by_polars(path: str, version: int) -> Iterable[Mapping[str, Any]]:
    return pl.scan_delta(path, version=version).collect().to_dicts()


def by_duckdb(path: str, version: int) -> Iterable[Mapping[str, Any]]:
    with duckdb.connect() as connection:
        connection.register("rows", DeltaTable(path, version=version).to_pyarrow_dataset())
        found: list[dict[str, Any]] = connection.sql("SELECT * FROM rows").to_arrow_table().to_pylist()
        return found


def by_spark(spark: SparkSession) -> Read:
    def read(path: str, version: int) -> Iterable[Mapping[str, Any]]:
        frame = spark.read.format("delta").option("versionAsOf", version).load(path)
        return [row.asDict(recursive=True) for row in frame.collect()]

    return read


def plain(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """One row in one form, whichever reader it comes from: times in UTC, bytes as bytes."""
    found = dict(row)
    moment: datetime = found["kafka_timestamp"]
    found["kafka_timestamp"] = moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
    for name in ("key", "value"):
        found[name] = None if found[name] is None else bytes(found[name])
    headers = found["headers"]
    if headers is not None:
        found["headers"] = tuple((h["key"], None if h["value"] is None else bytes(h["value"])) for h in headers)
    return tuple(found[name] for name in COLUMNS)


def in_order(rows: Iterable[Mapping[str, Any]]) -> list[tuple[Any, ...]]:
    return sorted(map(plain, rows), key=lambda row: row[1:3])


@pytest.fixture(params=["columnar", "connector"])
def loaded(request: pytest.FixtureRequest, lake: LakeMaker) -> TopicLake:
    """Version 1 has a window with records of every kind, version 2 another window besides."""
    lk = lake(partitions=2, config={"retention.ms": "-1"})
    name: EngineName = request.param
    engine = choose_engine(Lake.at(lk.root), lambda: lk.settings, lk.spark, name)
    for sent in (EVERY_KIND, numbered(30, 2)):
        lk.loader(engine=engine).load(lk.window_of(sent))
    return lk


def test_every_reader_finds_the_same_rows_at_each_version(loaded: TopicLake, spark: SparkSession) -> None:
    readers: dict[str, Read] = {
        "delta-rs": by_delta_rs,
        "polars": by_polars,
        "DuckDB": by_duckdb,
        "Spark": by_spark(spark),
    }
    path = str(loaded.table)
    for version, count in ((1, len(EVERY_KIND)), (2, len(EVERY_KIND) + 30)):
        found = {reader: in_order(read(path, version)) for reader, read in readers.items()}
        assert len(found["delta-rs"]) == count
        for reader, rows in found.items():
            assert rows == found["delta-rs"], f"{reader} at version {version}"


def test_statistics_are_those_of_the_rows(loaded: TopicLake) -> None:
    table = DeltaTable(str(loaded.table))
    actions = pa.table(table.get_add_actions(flatten=True))
    rows = table.to_pyarrow_table()
    for action in actions.to_pylist():
        held = rows.filter(pc.equal(rows["window"], action["partition.window"]))
        assert action["num_records"] == held.num_rows
        for name in ("kafka_partition", "kafka_offset", "kafka_timestamp"):
            bounds = pc.min_max(held[name]).as_py()
            assert (action[f"min.{name}"], action[f"max.{name}"]) == (bounds["min"], bounds["max"]), name
            assert action[f"null_count.{name}"] == 0
