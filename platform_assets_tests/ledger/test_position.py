"""How late windows were loaded."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from platform_assets.ledger.position import loaded_late
from platform_assets_tests.support.erasures import MadeTopic


def test_windows_whose_first_load_was_late_are_named(tmp_path: Path) -> None:
    topic = MadeTopic(tmp_path)
    first, second = topic.seal([{0: [(b"a", b"1")]}, {0: [(b"a", b"2")]}])
    topic.fill([first, second], decode=False)
    # A second load says nothing about the first one.
    topic.load(first)
    ages = [datetime.now(UTC) - window.window.start for window in (first, second)]
    table = topic.declaration.raw_table
    assert loaded_late(topic.ledger, table, timedelta(days=1)) == [first.key, second.key]
    assert loaded_late(topic.ledger, table, sum(ages, timedelta()) / 2) == [first.key]
    assert loaded_late(topic.ledger, table, ages[0]) == []
