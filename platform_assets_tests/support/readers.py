"""Other readers of raw tables, whose rows are converted to a common form."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import duckdb
import polars as pl
from deltalake import DeltaTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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
"""Function that takes a table's path and a version, and returns the rows."""


def by_delta_rs(path: str, version: int) -> Iterable[Mapping[str, Any]]:
    """Read with delta-rs and pyarrow."""
    rows: list[dict[str, Any]] = DeltaTable(path, version=version).to_pyarrow_table().to_pylist()
    return rows


def by_polars(path: str, version: int) -> Iterable[Mapping[str, Any]]:
    """Read with polars, which has its own Parquet reader."""
    return pl.scan_delta(path, version=version).collect().to_dicts()


def by_duckdb(path: str, version: int) -> Iterable[Mapping[str, Any]]:
    """Read delta-rs's dataset with DuckDB, because no package registry contains DuckDB's own Delta extension."""
    with duckdb.connect() as connection:
        connection.register("rows", DeltaTable(path, version=version).to_pyarrow_dataset())
        found: list[dict[str, Any]] = connection.sql("SELECT * FROM rows").to_arrow_table().to_pylist()
        return found


def by_spark(spark: SparkSession) -> Read:
    """Read with Spark and Delta's own reader."""

    def read(path: str, version: int) -> Iterable[Mapping[str, Any]]:
        frame = spark.read.format("delta").option("versionAsOf", version).load(path)
        return [row.asDict(recursive=True) for row in frame.collect()]

    return read


def plain(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """Convert a row from any reader to the common form: times in UTC, bytes as bytes."""
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
    """Convert rows to the form of `plain`, and sort them by partition and offset."""
    return sorted(map(plain, rows), key=lambda row: row[1:3])


def readers(spark: SparkSession) -> dict[str, Read]:
    """Map the name of each reader to its function."""
    return {"delta-rs": by_delta_rs, "polars": by_polars, "DuckDB": by_duckdb, "Spark": by_spark(spark)}
