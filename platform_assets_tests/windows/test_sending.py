"""Dead letters: they are sent as the original records, with the reason in additional headers after the original ones."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import write_deltalake

from platform_assets.kafka.outbox import Letter
from platform_assets.lake import dead_letter_table
from platform_assets.lake.location import Lake
from platform_assets.model.tables import TableRef
from platform_assets.windows.decode.sending import letters


def row(window: str, offset: int, **given: Any) -> dict[str, Any]:
    """Return a row of the dead-letter table."""
    return {
        "topic_id": "id", "kafka_partition": 1, "kafka_offset": offset,
        "kafka_timestamp": datetime(2026, 11, 22, 1, 2, 3, 4000, UTC), "kafka_timestamp_type": 0, "key": None, "value": b"\xff",
        "headers": None, "side": "value", "reason": "malformed", "place": None, "detail": "not é", "declaration": "d1",
        "window": window, **given,
    }  # fmt: skip


def test_letters_have_what_was_sent_and_then_why_they_are_dead(tmp_path: Path) -> None:
    table = Lake.at(tmp_path).table(TableRef("dead_letters", "t"))
    dead_letter_table.create(table, "t")
    own = [{"key": "trace", "value": b"1"}, {"key": "trace", "value": None}]
    first = [row("w1", 7, headers=own, key=b"", place="$.a"), row("w1", 9, value=None)]
    for rows in (first, [row("w2", 11)], [row("w3", 12)]):
        write_deltalake(table.uri, pa.Table.from_pylist(rows, dead_letter_table.columns()), mode="append")
    found = list(letters("t", table, {"w2": 3, "w1": 1}))
    why = {
        "topic": b"t", "topic_id": b"id", "kafka_partition": b"1", "kafka_offset": b"7",
        "kafka_timestamp": b"2026-11-22T01:02:03.004000+00:00", "window": b"w1", "side": b"value", "reason": b"malformed",
        "place": b"$.a", "detail": "not é".encode(), "declaration": b"d1",
    }  # fmt: skip
    added = tuple((f"dead_letter.{name}", value) for name, value in why.items())
    assert found[0] == Letter("id", 1, 7, b"", b"\xff", (("trace", b"1"), ("trace", None), *added))
    assert [(each.offset, each.key, each.value) for each in found] == [
        (7, b"", b"\xff"),
        (9, None, None),
        (11, None, b"\xff"),
    ]
    assert dict(found[1].headers)["dead_letter.place"] is None
