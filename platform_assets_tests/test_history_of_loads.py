"""Random producers, random cuts while they are at work, random loads with crashes: the history has no anomaly."""

from __future__ import annotations

import queue
import random
import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from platform_assets import sealing
from platform_assets.checks import facts, no_duplicates, no_gaps
from platform_assets_tests.faults import POINTS, Crash, Faults, InterruptedLoader
from platform_assets_tests.history import Row, check_history
from platform_assets_tests.loads import TopicLake, wait_until
from platform_assets_tests.random_producers import RandomProducers

if TYPE_CHECKING:
    from platform_assets_tests.conftest import LakeMaker

pytestmark = [pytest.mark.broker, pytest.mark.spark]

PARTITIONS = 3


def close_windows(lk: TopicLake, minutes: int) -> None:
    """Let minutes pass: the newest edge is cut at the last stable offset, those before it by timestamp."""
    lk.closed += timedelta(minutes=minutes)
    lk.ledger.create()
    sealing.seal(lk.declaration, lk.cluster, lk.ledger, lk.root, lk.closed, deadline=time.monotonic() + 30)
    assert lk.ledger.newest_edges([lk.topic])[lk.topic] == lk.closed


def seal_while(lk: TopicLake, steps: queue.SimpleQueue[bool], rng: random.Random) -> None:
    """Close windows at random steps of the producers, until there are none."""
    while steps.get():
        if rng.random() < 0.15:
            close_windows(lk, rng.choice((1, 1, 2, 3)))


def load_at_random(lk: TopicLake, keys: Iterable[str], rng: random.Random) -> Counter[str]:
    """Load each window once, or once more after a crash; gives how often which outcome came about."""
    outcomes: Counter[str] = Counter()
    for key in keys:
        point = rng.choice((*POINTS, "between the writes")) if rng.random() < 0.5 else None
        try:
            outcomes[InterruptedLoader(lk, Faults(point)).load(key)] += 1
        except Crash as crash:
            outcomes[str(crash)] += 1
    return outcomes


def filled(lk: TopicLake) -> list[str]:
    return [w.key for w in lk.ledger.windows(lk.topic) if w.ranges.size]


def test_random_loads_of_random_producers_have_a_clean_history(lake: LakeMaker, rng: random.Random) -> None:
    # The producers' clocks are months behind the broker's, which must not take that for expired.
    lk = lake(partitions=PARTITIONS, config={"retention.ms": "-1"})
    producers = RandomProducers(lk.bootstrap, lk.topic, PARTITIONS, random.Random(rng.random()))
    steps: queue.SimpleQueue[bool] = queue.SimpleQueue()
    close_windows(lk, 1)
    outcomes: Counter[str] = Counter()
    with ThreadPoolExecutor(2) as pool:
        producing = pool.submit(producers.run, lambda: steps.put(True))
        producing.add_done_callback(lambda _: steps.put(False))
        sealing_on = pool.submit(seal_while, lk, steps, random.Random(rng.random()))
        while not sealing_on.done():
            outcomes += load_at_random(lk, rng.choices(filled(lk) or [lk.ledger.windows(lk.topic)[0].key]), rng)
        producing.result()
        sealing_on.result()
    # Markers follow the coordinator's answer. What was produced last is closed as well, so nothing may be unseen.
    state = lk.cluster.topic(lk.topic)
    wait_until(
        "no transaction is open", lambda: lk.cluster.last_stable_offsets(state) == lk.cluster.high_watermarks(state)
    )
    close_windows(lk, 1)
    outcomes += load_at_random(lk, rng.sample(filled(lk), len(filled(lk))), rng)
    again = rng.sample(filled(lk), len(filled(lk)))
    outcomes += Counter(lk.load(key).outcome for key in again)

    windows = lk.ledger.windows(lk.topic)
    rows = [Row(r.partition, r.offset, r.value or b"") for r in lk.rows()]
    print(f"{Counter(s.outcome for s in producers.sends)}, {len(windows)} windows, {dict(outcomes)}")
    assert check_history(producers.sends, rows, [w.ranges for w in windows]) == []

    # It was a history worth the name, and its checker would have told.
    sent = Counter(s.outcome for s in producers.sends)
    assert min(sent[o] for o in ("ok", "failed", "unknown")) > 10
    held = {r.value for r in rows}
    assert {s.value in held for s in producers.sends if s.outcome == "unknown"} == {True, False}
    assert outcomes["between the writes"] > 0
    assert outcomes["unchanged"] > 0
    assert len(filled(lk)) >= 5
    acknowledged = {s.value for s in producers.sends if s.outcome == "ok"}
    index = rng.choice([i for i, r in enumerate(rows) if r.value in acknowledged])
    for broken, name in ((rows[:index] + rows[index + 1 :], "lost-write"), ([*rows, rows[index]], "duplicate")):
        found = check_history(producers.sends, broken, [w.ranges for w in windows])
        assert [(a.name, a.value) for a in found] == [(name, rows[index].value)]
    # The checks agree.
    known = facts.collect(lk.root, lk.topic, lk.ledger)
    assert no_gaps.check(known).findings == ()
    assert no_duplicates.check(known).findings == ()
