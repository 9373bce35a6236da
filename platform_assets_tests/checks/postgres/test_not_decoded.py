"""Why a decoded table may lack rows of the database: windows that are missing, outdated or expired."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from platform_assets.checks.postgres.comparing import not_decoded
from platform_assets.ledger.entries import EXPIRED
from platform_assets.model.decoding import DecodeDeclaration, FormatSpec
from platform_assets_tests.support.decoded_topic import DecodedTopic, order


def test_windows_that_are_not_decoded_from_todays_raw_rows_are_named(tmp_path: Path) -> None:
    topic = DecodedTopic(tmp_path / "lake", "db.public.items")
    first, second, _ = topic.load([order(1)], [order(2), order(3)], [])
    topic.decode(first)
    (reason,) = not_decoded(topic.declaration, topic.ledger)
    assert reason == f"2 windows are not decoded yet, the first is {second}"
    topic.decode()
    assert not_decoded(topic.declaration, topic.ledger) == ()

    raw = topic.ledger.receipts(topic.declaration.raw_table)[second]
    topic.ledger.record_receipts([replace(raw, topic_id="another")])
    (reason,) = not_decoded(topic.declaration, topic.ledger)
    assert reason.startswith("1 windows must be decoded again")
    topic.ledger.record_receipts([raw])

    topic.declared = DecodeDeclaration(FormatSpec("json", {"schema": "id BIGINT NOT NULL"}))
    (reason,) = not_decoded(topic.declaration, topic.ledger)
    assert reason.startswith("2 windows must be decoded again")
    assert first in reason


def test_windows_past_keep_are_named(tmp_path: Path) -> None:
    topic = DecodedTopic(tmp_path / "lake", "db.public.items")
    (window,) = topic.load([order(1)])
    topic.decode()
    decoded = topic.ledger.receipts(topic.declaration.decoded_table)[window]
    topic.ledger.record_receipts([replace(decoded, kind=EXPIRED)])
    (reason,) = not_decoded(topic.declaration, topic.ledger)
    assert reason == f"1 windows are past `keep`, so the lake no longer has their rows, the first is {window}"
