"""The rows of a table are compared with the records that a plain consumer reads. For each kind of difference, the
finding lists the offsets."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from platform_assets.checks import consuming
from platform_assets.checks.consuming import compare
from platform_assets.checks.evaluation import Evaluation
from platform_assets.checks.facts import Orchestration
from platform_assets.model.offsets import OffsetRange
from platform_assets_tests.support.local_engine import Kept, LocalEngine
from platform_assets_tests.support.streams import delete_before
from testbed.loads import Record, TopicLake, numbered

if TYPE_CHECKING:
    from platform_assets_tests.conftest import Broker, TopicMaker

pytestmark = pytest.mark.broker


@pytest.fixture
def lk(broker: Broker, topic: TopicMaker, tmp_path: Path) -> TopicLake:
    return TopicLake(broker.bootstrap, topic(partitions=2), tmp_path / "lake", lambda: pytest.fail("no Spark"))


def load(lk: TopicLake, key: str, changed: Callable[[list[Kept]], list[Kept]] = list) -> None:
    """Load the window with records that differ slightly from those in the topic."""
    records = [
        Kept(r.partition, r.offset, r.key, r.value, datetime.fromtimestamp(r.timestamp / 1000, UTC))
        for r in lk.committed()
    ]
    lk.loader(engine=LocalEngine(lk.lake, changed(records))).load(key)


def evaluation(lk: TopicLake, **changes: Any) -> Evaluation:
    engine = LocalEngine(lk.lake)
    given: dict[str, Any] = {"engine_by_name": lambda _: engine, **changes}
    return Evaluation(
        lk.declaration, lk.ledger, Orchestration(), lambda: lk.settings, lambda: lk.cluster, engine, **given
    )


def compared(lk: TopicLake, rng: random.Random, **changes: Any) -> consuming.Compared:
    return compare(evaluation(lk, **changes), list(lk.ledger.receipts(lk.declaration.raw_table).values()), rng)


def of_transactions(lk: TopicLake) -> str:
    """Return a window with 4 committed, 2 aborted and 3 plain records in partition 0, and 3 plain records in partition
    1."""
    lk.commit([Record(b"a%d" % n, b"k") for n in range(4)])
    lk.abort([Record(b"never")] * 2)
    return lk.window_of([*numbered(6, 2), Record(None, None), Record(b"", b"")][:6])


def test_equal_rows_are_counted_and_aborted_records_and_accepted_losses_are_none(
    lk: TopicLake, rng: random.Random
) -> None:
    key = of_transactions(lk)
    window = lk.ledger.window(lk.topic, key)
    assert window is not None
    lk.ledger.record_acceptance(window, {0: (OffsetRange(1, 2),)}, "not wanted")
    load(lk, key)
    assert compared(lk, rng) == consuming.Compared(1, 9)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (lambda rows: rows[:2] + rows[3:], "returns 1 records that the table does not have"),
        (
            lambda rows: [*rows[:4], replace(rows[3], offset=4), *rows[4:]],
            "does not return 1 records that the table has",
        ),
        (lambda rows: [*rows[:2], replace(rows[2], value=b"x"), *rows[3:]], "returns 1 records with different content"),
        (lambda rows: [*rows[:2], replace(rows[2], key=None), *rows[3:]], "returns 1 records with different content"),
        (
            lambda rows: [
                *rows[:2],
                replace(rows[2], timestamp=rows[2].timestamp + timedelta(milliseconds=1)),
                *rows[3:],
            ],
            "returns 1 records with different content",
        ),
    ],
    ids=["lost", "not committed", "other value", "no key", "other time"],
)
def test_each_difference_is_named_by_its_offsets(
    lk: TopicLake, rng: random.Random, changed: Callable[[list[Kept]], list[Kept]], said: str
) -> None:
    key = of_transactions(lk)
    load(lk, key, changed)
    (found,) = compared(lk, rng).findings
    offset = 4 if "not return" in said else 2
    assert (found.kind, found.window, found.partition, found.ranges) == (
        "engines disagree", key, 0, (OffsetRange(offset, offset + 1),),
    )  # fmt: skip
    assert found.detail == f"a plain read_committed consumer {said}"


def test_the_sample_is_bounded_and_windows_that_kafka_no_longer_has_are_left_out(
    lk: TopicLake, broker: Broker, rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = [lk.window_of(numbered(20, 2, f"{n}-")) for n in range(3)]
    for key in keys:
        load(lk, key)
    assert compared(lk, rng, engine_by_name=None) == consuming.NOT_COMPARED
    assert compared(lk, rng, budget=-1.0) == consuming.NOT_COMPARED
    monkeypatch.setattr(consuming, "SAMPLE_OFFSETS", 24)
    assert compared(lk, rng) == consuming.Compared(3, 24)
    monkeypatch.setattr(consuming, "SAMPLE_WINDOWS", 1)
    assert compared(lk, rng).windows == 1
    delete_before(broker.bootstrap, lk.topic, 0, 20)
    assert compared(lk, rng) == consuming.Compared(1, 20)
