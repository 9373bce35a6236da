"""One sensor tick for each of many topics, first with nothing to seal, and then with one window to seal in each topic."""

from __future__ import annotations

import shutil
import tempfile
import time
import uuid
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

import dagster as dg

from benchmarks import made_lake
from benchmarks.producing import Sent, create, produce
from benchmarks.rounds import middle
from benchmarks.scenario import Bench, Measured, at_most
from platform_assets.kafka.cluster import Cluster
from platform_assets.kafka.settings import ClientSettings
from platform_assets.lake.location import Lake
from platform_assets.ledger.store import Ledger
from platform_assets.model.declaration import TopicDeclaration
from platform_assets.orchestration.tick import Group, Position
from testbed.samples import START, edge, receipt
from testbed.ticks import PlanningTick

NOTHING: Final = "all topics, nothing to seal"
SEALING: Final = "all topics, a window to seal in each"
_COUNTS: Final = (1, 10, 30, 100)


def run(bench: Bench) -> Measured:
    """Measure the seconds that one tick of every topic takes. The ticks run one after another in one thread, as in the
    process of the code server."""
    topics, partitions, windows = bench.pick(100, 10), 12, bench.pick(10_000, 1_000)
    rounds = bench.pick(3, 2)
    stem = uuid.uuid4().hex[:6]
    names = [f"ticks-{stem}-{n:03}" for n in range(topics)]
    create(bench.bootstrap, names, partitions)
    # Partitions hold as many records as the lakes have windows.
    _produce(bench, names, partitions, windows)
    cluster = Cluster.connect(ClientSettings(bench.bootstrap))
    root = bench.root / "ticks"
    declared = [TopicDeclaration(name, "0 * * * *", START) for name in names]
    cursors = {name: Position({name: edge(windows)}).to_cursor() for name in names}
    seconds: dict[str, list[float]] = {NOTHING: [], SEALING: []}
    idle: dict[int, float] = {}
    with tempfile.TemporaryDirectory(dir=bench.root) as folder, dg.DagsterInstance.local_temp(folder) as instance:
        began = time.monotonic()
        for number, name in enumerate(names, 1):
            made_lake.make(root, name, windows, partitions, cluster.topic(name).topic_id, one_by_one=2)
            if number in _COUNTS:
                idle[number] = _idle(declared[:number], cluster, root, instance, cursors[name], edge(windows))
            if number % 10 == 0:
                bench.report(f"{number} of {topics} tables made, {time.monotonic() - began:.0f} s")
        for number in range(rounds + 1):
            for what in (NOTHING, SEALING):
                sealed = number + (what == SEALING)
                now = edge(windows + sealed) + timedelta(seconds=1)
                if what == SEALING:
                    _produce(bench, names, partitions, 1)
                began = time.perf_counter()
                asked = 0
                for d in declared:
                    tick = PlanningTick(Group.of(d), cluster, Ledger(Lake.at(root)), instance, now, made_lake.clock)
                    result = tick.evaluate(cursors[d.topic])
                    asked += len(result.run_requests or [])
                    cursors[d.topic] = result.cursor or cursors[d.topic]
                took = time.perf_counter() - began
                if what == SEALING:
                    # Loaded, as far as ticks can see: other windows would be requested again.
                    ledger = Ledger(Lake.at(root))
                    loaded = [w for d in declared for w in ledger.windows(d.topic, start=edge(windows + sealed - 1))]
                    ledger.record_receipts([receipt(window, {}) for window in loaded])
                if asked != (topics if what == SEALING else 0):
                    raise RuntimeError(f"{asked} runs were requested for {topics} topics: the measurement is invalid")
                if number:
                    seconds[what].append(took)
                bench.report(f"round {number} of {rounds}: {what}: {took:.2f} s")
    shutil.rmtree(root)
    goals = [at_most(what, bound, middle(seconds[what]), "s") for what, bound in ((NOTHING, 1.0), (SEALING, 5.0))]
    setting = {"topics": topics, "partitions": partitions, "windows": windows}
    curves = {"seconds of a tick with nothing to seal, by topics in the ledger": idle}
    return Measured("ticks", seconds, goals, setting=setting, more={"curves": curves})


def _idle(
    declared: Sequence[TopicDeclaration],
    cluster: Cluster,
    root: Path,
    instance: dg.DagsterInstance,
    cursor: str,
    at: datetime,
) -> float:
    """Return the seconds per topic that the second of two rounds of ticks takes. The time of the ticks is one second
    after the newest edge."""
    for _ in range(2):
        began = time.perf_counter()
        for d in declared:
            PlanningTick(Group.of(d), cluster, Ledger(Lake.at(root)), instance, at + timedelta(seconds=1)).evaluate(
                cursor
            )
        took = time.perf_counter() - began
    return round(took / len(declared), 5)


def _produce(bench: Bench, names: list[str], partitions: int, records: int) -> None:
    """Produce the same number of records into each partition of each topic."""
    for number, name in enumerate(names, 1):
        produce(bench.bootstrap, (Sent(name, p, b"x") for p in range(partitions) for _ in range(records)))
        if records > 1 and number % 10 == 0:
            bench.report(f"{number} of {len(names)} topics filled")
