"""The raw table: its columns, and its creation before the first load."""

from __future__ import annotations

from typing import Any

from deltalake import Field, Schema
from deltalake.schema import ArrayType, PrimitiveType, StructType

from platform_assets.lake import load_log, new_tables
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
    ("window", PrimitiveType("string"), "window key and Dagster partition key"),
)
COLUMN_NAMES = tuple(name for name, _, _ in COLUMNS)


def create(path: Folder, topic: str) -> None:
    """Create the raw table of `topic`, if it is missing, before the topic's first load. Raises LakeNotWritableError."""
    if load_log.exists(path):
        return
    new_tables.create(
        path,
        Schema([Field(n, t, nullable=True, metadata={"comment": c}) for n, t, c in COLUMNS]),
        name=f"raw_{topic}",
        description=f"Every committed record of Kafka topic {topic}, exactly once, as bytes",
    )
