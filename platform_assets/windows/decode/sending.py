"""Sending dead letters to a Kafka topic: each is the original record, with the reason in additional headers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, Final

from platform_assets.kafka.outbox import Letter, Outbox, Sent
from platform_assets.lake import dead_letters
from platform_assets.lake.location import Folder

PREFIX: Final = "dead_letter."
"""Prefix of the added headers, which follow the record's own headers."""
_ADDED: Final = (
    "topic_id", "kafka_partition", "kafka_offset", "kafka_timestamp", "window", "side", "reason", "place", "detail", "declaration",
)  # fmt: skip


def send(outbox: Outbox, table: Folder, versions: Mapping[str, int]) -> Sent:
    """Send the dead letters of the windows in `versions`. Each window is read at its version of `table`.

    Dead letters that were sent before are not sent again. Raises whatever `Outbox.send` raises, and FilesLostError.
    """
    return outbox.send(letters(outbox.source, table, versions))


def letters(topic: str, table: Folder, versions: Mapping[str, int]) -> Iterator[Letter]:
    """Yield the dead letters of `topic`, window by window. Memory is bounded by a few blocks."""
    for key, version in sorted(versions.items()):
        for row in dead_letters.rows(table, key, version):
            yield _letter(topic, row)


def _letter(topic: str, row: Mapping[str, Any]) -> Letter:
    at = row["kafka_timestamp"]
    kept = tuple((header["key"], header["value"]) for header in row["headers"] or ())
    why = {
        "topic": topic,
        **{name: row[name] for name in _ADDED},
        "kafka_timestamp": at.isoformat() if isinstance(at, datetime) else f"{at} µs since 1970",
    }
    added = tuple((PREFIX + name, None if value is None else str(value).encode()) for name, value in why.items())
    return Letter(row["topic_id"], row["kafka_partition"], row["kafka_offset"], row["key"], row["value"], kept + added)
