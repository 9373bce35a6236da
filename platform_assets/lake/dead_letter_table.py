"""The table of dead letters, and its creation. The table stores complete records that could not be decoded, with the
reason."""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa
from deltalake import Field, Schema
from deltalake.schema import PrimitiveType

from platform_assets.lake import load_log, new_tables, raw_table
from platform_assets.lake.location import Folder

_WHY: Final[tuple[tuple[str, Any, str], ...]] = (
    ("side", PrimitiveType("string"), "key or value: the part that could not be decoded"),
    ("reason", PrimitiveType("string"), "reason: malformed, wrong_type, out_of_range, missing and others"),
    ("place", PrimitiveType("string"), "faulty column or path; null for the key or value as a whole"),
    ("detail", PrimitiveType("string"), "the value found and the value expected, for human readers"),
    ("declaration", PrimitiveType("string"), "digest of the declaration used to decode it"),
)
_COLUMNS: Final = (*raw_table.COLUMNS[:-1], *_WHY, raw_table.COLUMNS[-1])
RAW_COLUMNS: Final = tuple(name for name, _, _ in raw_table.COLUMNS)
"""Columns that are the same as in the raw table."""
_SCHEMA: Final = Schema([Field(n, t, nullable=True, metadata={"comment": c}) for n, t, c in _COLUMNS])


def columns() -> pa.Schema:
    """The table's columns."""
    return pa.schema(_SCHEMA.to_arrow())


def create(path: Folder, topic: str) -> None:
    """Create the table of `topic` if it is missing. Raises LakeNotWritableError."""
    if load_log.exists(path):
        return
    new_tables.create(
        path,
        _SCHEMA,
        name=f"dead_letters_{topic}",
        description=f"Records of Kafka topic {topic} that could not be decoded, as they were sent, with the reason",
    )
