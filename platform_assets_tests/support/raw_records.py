"""Raw records in the form in which a task of the decoding engine reads them."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa

from platform_assets.engines.decoding.rows import RAW_COLUMNS
from platform_assets.lake import dead_letter_table


def raw(*records: tuple[int, int, bytes | None, bytes | None]) -> pa.RecordBatch:
    """Return records with partition, offset, key and value."""
    kinds = {f.name: f.type for f in dead_letter_table.columns()}
    now = datetime(2026, 3, 1, tzinfo=UTC)
    rows = [
        {"topic_id": "t", "kafka_partition": p, "kafka_offset": o, "kafka_timestamp": now, "kafka_timestamp_type": 0,
         "key": key, "value": value, "headers": [{"key": "h", "value": None}]}
        for p, o, key, value in records
    ]  # fmt: skip
    return pa.RecordBatch.from_pylist(rows, pa.schema([(name, kinds[name]) for name in RAW_COLUMNS]))
