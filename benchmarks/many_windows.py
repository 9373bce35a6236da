"""The next window in a table with few windows, and in tables with very many windows. Measured are the window's tick,
load and checks, and `status`."""

from __future__ import annotations

import functools
import statistics
import tempfile
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

import dagster as dg

from benchmarks import made_lake
from benchmarks.producing import Sent, create, produce
from benchmarks.rounds import counted, ratio
from benchmarks.scenario import Bench, Goal, Measured, at_most
from platform_assets.checks.evaluation import Evaluation
from platform_assets.checks.registry import CHECKS
from platform_assets.checks.report import rendering
from platform_assets.engines.choice import choose_engine
from platform_assets.engines.protocol import LoadEngine
from platform_assets.engines.shared.session import connect
from platform_assets.kafka.cluster import Cluster
from platform_assets.kafka.settings import ClientSettings
from platform_assets.lake.location import Lake
from platform_assets.ledger.store import Ledger
from platform_assets.model.declaration import TopicDeclaration
from platform_assets.model.tables import TableRef
from platform_assets.orchestration import dagster_records, events, status
from platform_assets.orchestration.names import table_key
from platform_assets.orchestration.tick import Group, Position
from platform_assets.windows.load.loading import Loader
from testbed.samples import START, edge
from testbed.ticks import PlanningTick

PARTITIONS: Final = 4
RECORDS: Final = 1_000
STEPS: Final = ("tick", "load", "checks", "status")
_REPORTED: Final = 1_000


@dataclass
class Grown:
    """A topic whose table has `windows` windows, made by a script, and whose next window is not closed yet.

    If `a_file` is given, the table is flat, and upkeep has merged windows into files with `a_file` windows each.
    """

    bench: Bench
    windows: int
    instance: dg.DagsterInstance
    topic: str = field(default_factory=lambda: f"many-{uuid.uuid4().hex[:8]}")
    a_file: int | None = None

    def __post_init__(self) -> None:
        create(self.bench.bootstrap, [self.topic], PARTITIONS)
        self._produce(self.windows * PARTITIONS)
        self.root = self.bench.root / f"lake-{self.windows}{'' if self.a_file is None else '-flat'}"
        self.declaration = TopicDeclaration(self.topic, "0 * * * *", START)
        self.settings = ClientSettings(self.bench.bootstrap)
        self.cluster = Cluster.connect(self.settings)
        self.ledger = Ledger(Lake.at(self.root))
        self.next = self.windows
        self.cursor: str | None = Position({self.topic: edge(self.windows)}).to_cursor()
        made_lake.make(
            self.root, self.topic, self.windows, PARTITIONS, self.cluster.topic(self.topic).topic_id, a_file=self.a_file
        )
        made_lake.report(self.ledger, self.topic, self.instance, edge(max(self.windows - _REPORTED, 0)))

    @property
    def now(self) -> datetime:
        """The time one second after the next window closes."""
        return edge(self.next + 1) + timedelta(seconds=1)

    def prepare(self) -> None:
        """Produce the records of the next window."""
        self._produce(RECORDS)

    def tick(self) -> None:
        """Do what the sensor does after the window has closed."""
        tick = PlanningTick(
            Group.of(self.declaration), self.cluster, self.ledger, self.instance, self.now, made_lake.clock
        )
        result = tick.evaluate(self.cursor)
        if len(result.run_requests or []) != 1:
            raise RuntimeError(f"the tick requested {len(result.run_requests or [])} runs instead of one")
        self.cursor = result.cursor

    def load(self) -> None:
        """Do what the first step of the run does."""
        loader = Loader(self.declaration, self.cluster, self.ledger, self._engine(), now=lambda: self.now)
        loaded = loader.load(self._key)
        if loaded.receipt.rows != RECORDS:
            raise RuntimeError(f"{loaded.receipt.rows} rows instead of {RECORDS}: the measurement is invalid")
        self.loaded = loaded

    def _engine(self) -> LoadEngine:
        session = functools.cache(lambda: connect(self.bench.remote))
        return choose_engine(self.ledger.lake, lambda: self.settings, session)

    def report(self) -> None:
        """Do what Dagster does between load and checks. This is not measured."""
        values = events.of_receipt(self.loaded.receipt, self.loaded.outcome, str(self.root))
        event = dg.AssetMaterialization(table_key(TableRef.raw(self.topic)), partition=self._key, metadata=values)
        self.instance.report_runless_asset_event(event)
        self.next += 1

    def checks(self) -> None:
        """Do what the second step of the run does: run all four checks, and report their results to Dagster."""
        evaluation = Evaluation(
            self.declaration, self.ledger, dagster_records.DagsterRecords(self.instance, TableRef.raw(self.topic)),
            lambda: self.settings, lambda: self.cluster, self._engine(), counting=CHECKS.values(),
        )  # fmt: skip
        for check in CHECKS.values():
            check_result = check.evaluate(evaluation)
            if not rendering.result(table_key(self.declaration.raw_table), check_result, evaluation.facts()).passed:
                raise RuntimeError(f"{check_result.headline} {[f.sentence() for f in check_result.findings[:3]]}")

    def status(self) -> None:
        """Collect the facts that `platform-assets status` collects."""
        found = status.collect([self.declaration], self.ledger, self.cluster, self.instance, CHECKS, self.now)
        if found.tables[0].windows_loaded != self.next:
            raise RuntimeError(f"status reports {found.tables[0]} instead of {self.next} loaded windows")

    @property
    def _key(self) -> str:
        return self.ledger.windows(self.topic, start=edge(self.next))[0].key

    def _produce(self, records: int) -> None:
        numbers = range(records)
        produce(self.bench.bootstrap, (Sent(self.topic, n % PARTITIONS, b"%08d" % n) for n in numbers))


def run(bench: Bench) -> Measured:
    """Measure the seconds that each step takes for the next window of each table, one table after another."""
    sizes = (10, 1_000) if bench.quick else (10, 1_000, 10_000, 100_000)
    rounds = bench.pick(7, 3)
    seconds: dict[str, list[float]] = {f"{step}, window {n + 1:,}": [] for step in STEPS for n in sizes}
    with tempfile.TemporaryDirectory(dir=bench.root) as folder, dg.DagsterInstance.local_temp(folder) as instance:
        grown = []
        for windows in sizes:
            bench.report(f"making a table of {windows:,} windows")
            grown.append(Grown(bench, windows, instance))
        for number in counted(rounds):
            for one in grown:
                one.prepare()
                for step in STEPS:
                    took = timed(getattr(one, step))
                    if step == "load":
                        one.report()
                    if number > 0:
                        seconds[f"{step}, window {one.windows + 1:,}"].append(took)
                    bench.report(f"round {number} of {rounds}: {step}, {one.windows:,} windows: {took * 1000:.0f} ms")
    goals = []
    for step in STEPS:
        base = seconds[f"{step}, window {sizes[0] + 1:,}"]
        for n in sizes[1:]:
            if step == "load":
                more = [grown - few for grown, few in zip(seconds[f"load, window {n + 1:,}"], base, strict=True)]
                bound = 0.1 if n <= 10_000 else 0.6
                what = f"extra time to load window {n + 1:,}, compared with window {sizes[0] + 1:,}"
                goals.append(Goal(what, statistics.median(more), bound, True, "s"))
                continue
            what = f"{step} of window {n + 1:,}, relative to window {sizes[0] + 1:,}"
            bound = 1.1 if n <= 10_000 else 1.3
            goals.append(at_most(what, bound, ratio(seconds[f"{step}, window {n + 1:,}"], base)))
    curves = {
        f"seconds of {step} by windows in the table": {
            n: round(statistics.median(seconds[f"{step}, window {n + 1:,}"]), 4) for n in sizes
        }
        for step in STEPS
    }
    setting = {"partitions": PARTITIONS, "records a window": RECORDS, "windows that Dagster has on record": _REPORTED}
    return Measured("many-windows", seconds, goals, setting=setting, more={"curves": curves})


def timed(call: Callable[[], object]) -> float:
    """Return the seconds that a call takes."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began
