"""Random producers, random cuts while the producers run, and random loads with crashes: the history has no anomaly."""

from __future__ import annotations

import queue
import random
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from platform_assets.checks import facts
from platform_assets.checks.rules import no_duplicates, no_gaps
from platform_assets.model.tables import TableRef
from platform_assets.windows.load import sealing
from platform_assets_tests.support.faults import POINTS, Crash, Faults, InterruptedLoader, Point
from platform_assets_tests.support.history import Row, check_history
from platform_assets_tests.support.random_producers import RandomProducers
from testbed.loads import TopicLake, wait_until

if TYPE_CHECKING:
    from platform_assets_tests.conftest import LakeMaker

pytestmark = pytest.mark.broker

PARTITIONS = 3

MOST_STEPS_A_WINDOW = 10
"""Number of steps after which a window is closed: on a busy machine, random choice alone could leave only two windows.
"""


def close_windows(lk: TopicLake, minutes: int) -> None:
    """Simulate several minutes: the newest cut is at the last stable offset, and earlier cuts are placed by timestamp."""
    lk.closed += timedelta(minutes=minutes)
    lk.ledger.create()
    sealing.seal(lk.declaration, lk.cluster, lk.ledger, lk.closed, deadline=time.monotonic() + 30)
    assert lk.ledger.newest_edges([lk.topic])[lk.topic] == lk.closed


def seal_while(
    lk: TopicLake, steps: queue.SimpleQueue[bool], rng: random.Random, closed: queue.SimpleQueue[bool]
) -> None:
    """Close windows at random steps of the producers, and after every few steps at the latest. Put True for each
    window, and False at the end."""
    since = 0
    try:
        while steps.get():
            since += 1
            if rng.random() < 0.12 or since >= MOST_STEPS_A_WINDOW:
                since = 0
                close_windows(lk, rng.choice((1, 1, 1, 3)))
                closed.put(True)
    finally:
        closed.put(False)


def load_at_random(lk: TopicLake, key: str, point: Point | None) -> str:
    """Load a window, and crash at `point` if the load reaches it; return the result."""
    try:
        return InterruptedLoader(lk, Faults(point)).load(key)
    except Crash as crash:
        return str(crash)


def filled(lk: TopicLake) -> list[str]:
    return [w.key for w in lk.ledger.windows(lk.topic) if w.ranges.size]


def test_random_loads_of_random_producers_have_a_clean_history(lake: LakeMaker, rng: random.Random) -> None:
    # The producers' clocks are months behind the broker's, which must not take that for expired.
    lk = lake(partitions=PARTITIONS, config={"retention.ms": "-1"})
    producers = RandomProducers(lk.bootstrap, lk.topic, PARTITIONS, random.Random(rng.random()))
    steps: queue.SimpleQueue[bool] = queue.SimpleQueue()
    closed: queue.SimpleQueue[bool] = queue.SimpleQueue()
    close_windows(lk, 1)
    outcomes: Counter[str] = Counter()
    with ThreadPoolExecutor(2) as pool:
        producing = pool.submit(producers.run, lambda: steps.put(True))
        producing.add_done_callback(lambda _: steps.put(False))
        sealing_on = pool.submit(seal_while, lk, steps, random.Random(rng.random()), closed)
        while closed.get():
            # The newest window is left for later, so that there is one.
            for key in rng.sample(keys := filled(lk)[:-1], min(1, len(keys))):
                outcomes[load_at_random(lk, key, rng.choice((None, *POINTS)))] += 1
        producing.result()
        sealing_on.result()
    # Markers follow the coordinator's answer. The last records are also in a closed window, so nothing may be unseen.
    state = lk.cluster.topic(lk.topic)
    wait_until(
        "no transaction is open", lambda: lk.cluster.last_stable_offsets(state) == lk.cluster.high_watermarks(state)
    )
    close_windows(lk, 1)
    keys = filled(lk)
    outcomes[load_at_random(lk, keys[-1], "between the writes")] += 1
    for key in rng.sample(keys, len(keys)):
        outcomes[lk.load(key).outcome] += 1
    for key in rng.sample(keys, 3):
        outcomes[load_at_random(lk, key, rng.choice((None, *POINTS)))] += 1

    windows = lk.ledger.windows(lk.topic)
    rows = [Row(r.partition, r.offset, r.value or b"") for r in lk.rows()]
    print(f"{Counter(s.outcome for s in producers.sends)}, {len(windows)} windows, {dict(outcomes)}")
    assert check_history(producers.sends, rows, [w.ranges for w in windows]) == []

    # The history was long enough, and the checker would have found anomalies.
    sent = Counter(s.outcome for s in producers.sends)
    assert min(sent[o] for o in ("ok", "failed", "unknown")) > 0
    held = {r.value for r in rows}
    assert {s.value in held for s in producers.sends if s.outcome == "unknown"} == {True, False}
    assert outcomes["between the writes"] > 0
    assert outcomes["unchanged"] > 0  # also the window whose load crashed between the writes
    assert len(keys) > 3
    acknowledged = {s.value for s in producers.sends if s.outcome == "ok"}
    index = rng.choice([i for i, r in enumerate(rows) if r.value in acknowledged])
    for broken, name in ((rows[:index] + rows[index + 1 :], "lost-write"), ([*rows, rows[index]], "duplicate")):
        found = check_history(producers.sends, broken, [w.ranges for w in windows])
        assert [(a.name, a.value) for a in found] == [(name, rows[index].value)]
    # The checks agree.
    known = facts.collect(TableRef.raw(lk.topic), lk.ledger)
    assert no_gaps.check_result(known).findings == ()
    assert no_duplicates.check_result(known).findings == ()
