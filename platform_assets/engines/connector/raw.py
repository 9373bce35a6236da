"""Spark operations on a raw table: reading a window in a single batch, writing the window's files, and computing the
digests of its rows.

The arguments of a function contain everything that a read needs. Nothing is looked up later.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from platform_assets.lake.field_ids import NO_IDS, FieldIds, Path
from platform_assets.lake.location import Folder
from platform_assets.model.digest import Digest, Measured
from platform_assets.model.logs import logger
from platform_assets.model.offsets import TopicRanges

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.connect.session import SparkSession

_log = logger(__name__)

_READER_OPTIONS = {
    "includeHeaders": "true",
    "failOnDataLoss": "true",
    "kafka.isolation.level": "read_committed",
    "kafkaConsumer.pollTimeoutMs": "60000",
    "fetchOffset.numRetries": "3",
}
"""Options that users cannot configure. Each read uses `assign` with explicit offsets, and never a consumer group."""

_FIELD_ID = "parquet.field.id"
"""Key in a column's metadata from which Spark's Parquet writer takes the column's id."""
_MARKER = "mapreduce.fileoutputcommitter.marksuccessfuljobs"
_POLL_RECORDS = 20_000
_FETCH_BYTES = 16 << 20
_SMALLEST_FETCH = 1 << 18
_RECORD_BYTES = 1 << 10


def kafka_frame(
    spark: SparkSession,
    client: Mapping[str, str],
    topic: str,
    topic_id: str,
    window_key: str,
    reads: Sequence[TopicRanges],
    options: Iterable[tuple[str, str]] = (),
    ids: FieldIds = NO_IDS,
) -> DataFrame:
    """Return the committed records in `reads` with the columns of the raw table. The ranges have exclusive ends, and
    none of the ranges is empty.

    `ids` are the field ids that Spark writes into files, for columns and struct fields. Spark writes no ids for
    elements.

    Several reads are combined by union. Single offsets can therefore be omitted from a range.
    """
    frame: DataFrame | None = None
    for ranges in reads:
        reader = spark.read.format("kafka").options(**{f"kafka.{k}": v for k, v in client.items()})
        part = (
            reader.options(**_READER_OPTIONS)
            .options(**client_options(ranges))
            .options(**dict(options))
            .option("assign", json.dumps({topic: list(ranges.by_partition)}))
            .option("startingOffsets", json.dumps({topic: {str(p): r.start for p, r in ranges.items()}}))
            .option("endingOffsets", json.dumps({topic: {str(p): r.end for p, r in ranges.items()}}))
            .load()
        )
        frame = part if frame is None else frame.unionAll(part)
    if frame is None:
        raise ValueError(f"no offsets to read for window {window_key} of topic {topic!r}")
    return _with_nested_ids(_raw_columns(frame, topic_id, window_key, dict(ids.pairs)), ids)


def client_options(ranges: TopicRanges) -> dict[str, str]:
    """Return the buffer and fetch sizes for the Kafka client. The sizes are large for large ranges.

    Records fetched beyond the end of a range stay in Spark's memory for a while without being used. A batch larger than
    the fetch size is still sent whole (KIP-74).
    """
    longest = max(r.size for r in ranges.by_partition.values())
    size = min(max(longest * _RECORD_BYTES, _SMALLEST_FETCH), _FETCH_BYTES)
    return {
        "kafka.max.poll.records": str(min(longest, _POLL_RECORDS)),
        "kafka.max.partition.fetch.bytes": str(size),
        "kafka.fetch.max.bytes": str(4 * size),
        "kafka.receive.buffer.bytes": str(1 << 20),
    }


def _with_nested_ids(frame: DataFrame, ids: FieldIds) -> DataFrame:
    from pyspark.sql.types import StructType

    if not ids.pairs:
        return frame
    schema: dict[str, Any] = json.loads(frame.schema.json())
    _add_ids(schema, (), dict(ids.pairs))
    return frame.to(StructType.fromJson(schema))


def _add_ids(kind: Any, path: Path, ids: Mapping[Path, int]) -> None:
    """Add ids to a type that is given in Spark's JSON form."""
    if not isinstance(kind, dict):
        return
    for field in kind.get("fields", ()):
        own = (*path, field["name"])
        if own in ids:
            field["metadata"] = {**field["metadata"], _FIELD_ID: ids[own]}
        _add_ids(field["type"], own, ids)
    for name, part in (("element", "elementType"), ("key", "keyType"), ("value", "valueType")):
        _add_ids(kind.get(part), (*path, name), ids)


def write_files(frame: DataFrame, folder: str) -> Measured:
    """Write `frame` to plain Parquet files in `folder`, in one pass, and return the digests of the written rows.

    The server gets the observed values from a listener. If the listener is late, the server answers without these
    values. In that case, the digests are computed from the files.
    """
    from pyspark.sql import Observation

    observation = Observation(f"window {uuid.uuid4()}")
    # Without this option, a file that marks the end of the job would stay in the table's folder.
    writer = frame.observe(observation, *_metrics()).write.option(_MARKER, "false").option("compression", "zstd")
    writer.mode("error").parquet(folder)
    observed = observation.get
    if "rows" not in observed:
        _log.info(
            "Spark reported no digests for the rows that it wrote to %s; computing them from the files instead", folder
        )
        return measure(frame.sparkSession.read.schema(frame.schema).parquet(folder))
    return _measured(observed)


def measure(frame: DataFrame) -> Measured:
    """Compute the digests of the rows in `frame` in a separate aggregation."""
    return _measured(frame.agg(*_metrics()).first().asDict())


def measure_windows(frame: DataFrame) -> dict[str, Measured]:
    """Map each window key in `frame` to the window's digests, which are computed in one pass. Windows without rows are
    omitted."""
    return measured_by_window(frame, _metrics())


def measured_by_window(frame: DataFrame, metrics: Sequence[Column]) -> dict[str, Measured]:
    """Map each window key in `frame` to the window's digests, computed from the aggregates `metrics`, which come from
    `sums_of`.

    No digest covers the topic's id, but the query reads this column too, which verifies the checksums of the column's
    pages.
    """
    from pyspark.sql import functions as F

    found = frame.groupBy(F.col("window")).agg(*metrics, F.max("topic_id")).collect()
    return {row["window"]: _measured(row.asDict()) for row in found}


def windows_frame(spark: SparkSession, table: Folder, keys: Sequence[str], version: int) -> DataFrame:
    """Return the rows of several windows from one version of the table."""
    from pyspark.sql import functions as F

    frame = spark.read.format("delta").option("versionAsOf", version).load(table.spark_path)
    return frame.where(F.col("window").isin(*keys))


def _raw_columns(frame: DataFrame, topic_id: str, window_key: str, ids: Mapping[Path, int]) -> DataFrame:
    from pyspark.sql import functions as F

    def named(column: Column, name: str) -> Column:
        # Spark's optimizer keeps only the metadata of the innermost alias.
        return column.alias(name, metadata={_FIELD_ID: ids[name,]}) if (name,) in ids else column.alias(name)

    if not re.fullmatch(r"[A-Za-z0-9_-]{22}", topic_id):
        raise ValueError(f"{topic_id!r} is not a Kafka topic id")
    return frame.select(
        named(F.lit(topic_id), "topic_id"),
        named(F.col("partition"), "kafka_partition"),
        named(F.col("offset"), "kafka_offset"),
        named(F.col("timestamp"), "kafka_timestamp"),
        named(F.col("timestampType"), "kafka_timestamp_type"),
        F.col("key"),
        F.col("value"),
        F.col("headers"),
        named(F.lit(window_key), "window"),
    )


def _metrics() -> list[Column]:
    """Return the aggregates from which the two digests are computed. Each hash is summed in halves, so the sums do not
    overflow for up to 2^31 rows.

    Spark's `xxhash64` skips nulls, so each nullable column is preceded by its null flag.
    """
    from pyspark.sql import functions as F

    headers = F.when(F.col("headers").isNull(), F.lit(-1).cast("long")).otherwise(
        F.xxhash64(
            F.size("headers"),
            F.transform(
                F.col("headers"),
                lambda h: F.struct(h["key"].isNull(), h["key"], h["value"].isNull(), h["value"]),
            ),
        )
    )
    hashes = {
        "offsets": F.xxhash64("kafka_partition", "kafka_offset"),
        "content": F.xxhash64(
            F.col("kafka_partition"),
            F.col("kafka_offset"),
            F.col("kafka_timestamp"),
            F.col("kafka_timestamp_type"),
            F.col("key").isNull(),
            F.col("key"),
            F.col("value").isNull(),
            F.col("value"),
            headers,
        ),
    }
    return sums_of(hashes)


def sums_of(hashes: Mapping[str, Column]) -> list[Column]:
    """Return aggregates of the row hashes `offsets` and `content`. Each hash is summed in halves."""
    from pyspark.sql import functions as F

    columns = [F.count(F.lit(1)).alias("rows")]
    for name, value in hashes.items():
        columns.append(F.sum(F.shiftrightunsigned(value, 32)).alias(f"{name}_high"))
        columns.append(F.sum(value.bitwiseAND(F.lit(0xFFFFFFFF))).alias(f"{name}_low"))
    return columns


def _measured(values: Mapping[str, Any]) -> Measured:
    rows = values["rows"]
    digests = [
        Digest.from_halves(rows, values[f"{name}_high"] or 0, values[f"{name}_low"] or 0)
        for name in ("offsets", "content")
    ]
    return Measured(*digests)
