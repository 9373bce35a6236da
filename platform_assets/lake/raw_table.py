"""The raw table: its columns, its properties, and its creation before the first load."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from deltalake import Field, Schema
from deltalake.schema import ArrayType, PrimitiveType, StructType

from platform_assets.lake import field_ids, holdings, load_log
from platform_assets.lake.location import Folder

COLUMNS: tuple[tuple[str, Any, str], ...] = (
    ("topic_id", PrimitiveType("string"), "Kafka topic id that the offsets belong to"),
    ("kafka_partition", PrimitiveType("integer"), "Kafka partition"),
    ("kafka_offset", PrimitiveType("long"), "Kafka offset, unique within topic id and partition"),
    ("kafka_timestamp", PrimitiveType("timestamp"), "timestamp of the record, to the millisecond"),
    ("kafka_timestamp_type", PrimitiveType("integer"), "0: set by the producer; 1: set by the broker on append"),
    ("key", PrimitiveType("binary"), "key as sent; null if there was none, which differs from empty"),
    ("value", PrimitiveType("binary"), "value as sent; null for a tombstone, which differs from empty"),
    (
        "headers",
        ArrayType(
            StructType([Field("key", PrimitiveType("string")), Field("value", PrimitiveType("binary"))]),
            contains_null=True,
        ),
        "headers in the order sent, duplicates kept; null if there were none",
    ),
    ("window", PrimitiveType("string"), "window key and Dagster partition key; the table's partition column"),
)
COLUMN_NAMES = tuple(name for name, _, _ in COLUMNS)

_STATISTICS = "delta.dataSkippingStatsColumns"
PROPERTIES = {
    _STATISTICS: "kafka_partition,kafka_offset,kafka_timestamp",
    "delta.isolationLevel": "Serializable",
    # Deleting a row manually then rewrites its file, so the log shows it.
    "delta.enableDeletionVectors": "false",
}
"""Properties of every table of the lake into which windows are loaded."""


def properties() -> dict[str, str]:
    """Return the properties of a newly created table of windows: in a flat one, the window also has statistics."""
    flat = holdings.partition_of_new_tables() is None
    columns = f"{PROPERTIES[_STATISTICS]},{holdings.WINDOW}" if flat else PROPERTIES[_STATISTICS]
    return {**PROPERTIES, _STATISTICS: columns}


def of_new_table(schema: Schema) -> Schema:
    """Return the columns of a newly created table of windows: those of a flat one have field ids."""
    if holdings.partition_of_new_tables() is not None:
        return schema
    return Schema.from_arrow(field_ids.assigned(pa.schema(schema.to_arrow())))


def create(path: Folder, topic: str) -> None:
    """Create the raw table of `topic` if it is missing, before its first load. Raises LakeNotWritableError."""
    if load_log.exists(path):
        return
    path.create_delta(
        of_new_table(Schema([Field(n, t, nullable=True, metadata={"comment": c}) for n, t, c in COLUMNS])),
        partition_by=holdings.partition_of_new_tables(),
        name=f"raw_{topic}",
        description=f"Every committed record of Kafka topic {topic}, exactly once, as bytes",
        configuration=properties(),
    )
