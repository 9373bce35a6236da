"""Backlog and live rows, transactions, and missing rows. No I/O."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import numpy as np

from platform_assets.demo.schedule import (
    ABORTED_SHARE,
    TRANSACTION_ROWS,
    Schedule,
    first_edge,
    missing_rows,
    transactions,
)
from platform_assets.model.windows import milliseconds

START = datetime(2026, 3, 1, 12, 34, 56, tzinfo=UTC)


def test_nine_tenths_are_backlog_spread_over_the_half_hour_before() -> None:
    schedule = Schedule(START, 336_776)
    assert schedule.backlog == 303_098
    stamps = schedule.timestamps(np.arange(schedule.backlog))
    assert stamps[0] == milliseconds(START - timedelta(minutes=30))
    assert milliseconds(START) - 10 < stamps[-1] < milliseconds(START)
    assert (np.diff(stamps) >= 0).all()
    minutes = np.unique(stamps // 60_000, return_counts=True)[1]
    assert len(minutes) == 31
    assert (minutes[1:-1] > 10_000).all()


def test_a_small_topic_has_a_backlog_too() -> None:
    assert Schedule(START, 0).timestamps(np.array([], dtype=np.int64)).tolist() == []
    assert Schedule(START, 1).backlog == 0
    assert Schedule(START, 20).timestamps(np.array([17]))[0] < milliseconds(START)


def test_the_first_edge_is_a_whole_minute_before_every_record() -> None:
    edge = first_edge(START)
    assert edge == datetime(2026, 3, 1, 12, 3, tzinfo=UTC)
    assert milliseconds(edge) < Schedule(START, 10).timestamps(np.array([0]))[0]


def test_transactions_hold_each_row_once_in_order() -> None:
    rows = np.arange(0, 300_000, 2)
    cut = list(transactions(rows, seed=1))
    assert np.concatenate([transaction.rows for transaction in cut]).tolist() == rows.tolist()
    sizes = [len(transaction.rows) for transaction in cut[:-1]]
    assert min(sizes) >= TRANSACTION_ROWS[0]
    assert max(sizes) <= TRANSACTION_ROWS[1]
    aborted = sum(transaction.aborted for transaction in cut) / len(cut)
    assert ABORTED_SHARE / 2 < aborted < ABORTED_SHARE * 2


def test_the_same_seed_gives_the_same_transactions() -> None:
    rows = np.arange(5_000)
    first, again, other = ([(len(t.rows), t.aborted) for t in transactions(rows, seed)] for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_nothing_to_send_is_no_transaction() -> None:
    assert list(transactions(np.array([], dtype=np.int64), seed=1)) == []


def test_missing_rows() -> None:
    assert missing_rows(5, []).tolist() == [0, 1, 2, 3, 4]
    assert missing_rows(5, [4, 0, 0, 2]).tolist() == [1, 3]
    assert missing_rows(2, [0, 1]).tolist() == []
