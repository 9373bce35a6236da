"""Declarations that cannot work: each is refused with its field and a remedy, before anything runs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from platform_assets.errors import ConfigurationError
from platform_assets.model.declaration import TopicDeclaration

START = datetime(2026, 1, 1, tzinfo=UTC)


def declared(**changes: Any) -> TopicDeclaration:
    return TopicDeclaration(**{"topic": "orders", "schedule": "0 * * * *", "start": START, **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"topic": "a/b"}, "legal Kafka topic name"),
        (
            {"schedule": "hourly"},
            r"'hourly' of topic 'orders' is not a cron schedule .* '0 \* \* \* \*' for every hour",
        ),
        ({"schedule": "0 0 30 2 *"}, "not a cron schedule"),
        ({"start": datetime(2026, 1, 1)}, "no time zone"),
        ({"start": datetime(1969, 12, 31, tzinfo=UTC)}, "before 1970"),
        ({"max_records_per_run": 0}, "max_records_per_run of topic 'orders' must be 1 or more, not 0"),
        ({"max_windows_per_run": -1}, "max_windows_per_run"),
        ({"max_edges_per_tick": 0}, "max_edges_per_tick"),
        ({"records_per_file": 0}, "records_per_file"),
        ({"sensor_interval": timedelta(milliseconds=999)}, "sensor_interval"),
        ({"tick_budget": timedelta(0)}, "tick_budget"),
    ],
)
def test_a_value_that_cannot_work_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        declared(**changes)


def test_the_first_edge_lies_at_or_after_the_start_in_utc() -> None:
    assert declared().first_edge == START
    late = declared(start=START + timedelta(seconds=1))
    assert late.first_edge == START + timedelta(hours=1)
    elsewhere = declared(start=datetime(2026, 1, 1, 5, 45, tzinfo=timezone(timedelta(hours=5, minutes=45))))
    assert elsewhere.first_edge == START
    assert elsewhere.first_edge.tzinfo is UTC


def test_the_table_is_named_after_the_topic() -> None:
    assert declared(topic="a.b_c-d").raw_table.name == "raw/a.b_c-d"
