"""The derived tables of `examples/suggestions`: one more window of 10,000 events, compared with a full batch by Spark alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl
import psutil
import pyarrow as pa
import yaml
from deltalake import Schema

from benchmarks.derived import load
from benchmarks.rounds import alternate, ratio
from benchmarks.scenario import Bench, Measured, at_least
from platform_assets.components.derived_table import DerivedTable
from platform_assets.engines.shared.session import connect
from platform_assets.lake import checkpoints, new_tables
from platform_assets.lake.location import Lake
from platform_assets.model.derived import DerivedDeclaration
from platform_assets.model.tables import TableRef
from platform_assets.model.windows import Window
from platform_assets.windows.derive.deriving import Updater
from testbed.samples import START, TOPIC_ID

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

EVENTS_A_USER: Final = 50
WINDOW_ROWS: Final = 10_000
ITEMS: Final = 5_000
WINDOW: Final = "one more window"
BATCH: Final = "a full batch by Spark"
_HOUR: Final = timedelta(hours=1)
_SOURCE: Final = TableRef("decoded", "trips")
_COLUMNS: Final = pa.schema(
    [
        ("topic_id", pa.string()),
        ("kafka_partition", pa.int32()),
        ("kafka_offset", pa.int64()),
        ("kafka_timestamp", pa.timestamp("us", "UTC")),
        ("plane", pa.string()),
        ("destination", pa.string()),
        ("window", pa.string()),
    ]
)


def declared() -> list[DerivedDeclaration]:
    """Return the example's derived tables, each after those that it reads."""
    text = (Path(__file__).parents[1] / "examples" / "suggestions" / "defs" / "suggestions" / "defs.yaml").read_text()
    every = [each["attributes"] for each in yaml.safe_load_all(text) if each["type"].endswith("DerivedTable")]
    return [DerivedTable(**each).declaration() for each in every]


@dataclass
class Contest:
    """A lake with trips of `users` users, and the ways to bring the example's tables up to date. `cpu` has the seconds of processor
    time of each run, of Spark's server and of this process together."""

    root: Path
    users: int
    remote: str
    report: Callable[[str], None]
    windows: int = 0
    cpu: dict[str, list[float]] = field(default_factory=dict)

    @property
    def lake(self) -> Lake:
        """The lake."""
        return Lake.at(self.root / "lake")

    @cached_property
    def spark(self) -> SparkSession:
        """The session of this process."""
        return connect(self.remote)

    @cached_property
    def _names(self) -> tuple[pa.Array, pa.Array]:
        users = pa.array([f"user-{user:07}" for user in range(self.users)])
        return users, pa.array([f"item-{item:05}" for item in range(ITEMS + 1)])

    @cached_property
    def _server(self) -> psutil.Process:
        port = int(self.remote.partition("//")[2].partition("/")[0].rpartition(":")[2])
        found = psutil.net_connections("tcp")
        (pid,) = {c.pid for c in found if c.status == psutil.CONN_LISTEN and getattr(c.laddr, "port", None) == port}
        return psutil.Process(pid)

    def make(self) -> None:
        """Make the trips: in each window, one event of each user."""
        new_tables.create(self.lake.table(_SOURCE), Schema.from_arrow(_COLUMNS), name="decoded_trips", description="")
        for window in range(EVENTS_A_USER):
            self._load(np.random.default_rng(window).permutation(self.users))
        # As upkeep does.
        checkpoints.write(self.lake.table(_SOURCE))

    def load_next(self) -> None:
        """Load one more window, with one event of each of some users."""
        random = np.random.default_rng(self.windows)
        self._load(random.choice(self.users, min(WINDOW_ROWS, self.users // 10), replace=False))

    def _load(self, users: np.ndarray[tuple[int], np.dtype[np.int64]]) -> None:
        """Load a window with one event for each of these users. Few items are in most events."""
        number, rows = self.windows, len(users)
        items = np.minimum(np.random.default_rng(number).zipf(1.3, rows), ITEMS)
        window = Window(START + number * _HOUR, START + (number + 1) * _HOUR)
        columns = [
            pa.repeat(TOPIC_ID, rows),
            pa.array(users % 4, pa.int32()),
            pa.array(np.arange(rows) + (number << 32)),
            pa.repeat(pa.scalar(window.start, pa.timestamp("us", "UTC")), rows),
            self._names[0].take(pa.array(users)),
            self._names[1].take(pa.array(items)),
            pa.repeat(window.key, rows),
        ]
        load(self.lake, _SOURCE, window, pa.table(columns, schema=_COLUMNS))
        self.windows += 1

    def derive(self) -> None:
        """Bring all tables up to date, as their sensors' runs do."""
        for each in declared():
            began = time.perf_counter()
            made = Updater(self.lake, each, lambda: self.spark).run("bench").made.derivation
            extent = made.because or f"{made.groups['count']:,} groups"
            self.report(f"  {each.table}: {made.whole.rows:,} rows, {extent}, {time.perf_counter() - began:.1f} s")

    def batch(self) -> None:
        """Compute all tables from all trips, and write them with Delta's writer, as a job without the platform does."""
        self._view("decoded", "trips", str(self.lake.table(_SOURCE).spark_path))
        for each in declared():
            began = time.perf_counter()
            sql = each.sql.replace("decoded.", "decoded_").replace("derived.", "derived_")
            path, frame = str(self.root / "plain" / each.table.short), self.spark.sql(sql)
            if each.totals is not None:
                frame = frame.groupBy("item", "other").count().withColumnRenamed("count", each.totals.count)
            frame.write.format("delta").mode("overwrite").save(path)
            self._view("derived", each.table.short, path)
            self.report(f"  {each.table} by a batch: {time.perf_counter() - began:.1f} s")

    def _view(self, kind: str, name: str, path: str) -> None:
        self.spark.read.format("delta").load(path).createOrReplaceTempView(f"{kind}_{name}")

    def measured(self, name: str, run: Callable[[], None]) -> Callable[[], None]:
        """Return `run`, whose processor time is added to `cpu`."""

        def counted() -> None:
            before = self._processor_seconds()
            run()
            self.cpu.setdefault(name, []).append(self._processor_seconds() - before)
            self.report(f"{name}: {self.cpu[name][-1]:.1f} s of processor time")

        return counted

    def _processor_seconds(self) -> float:
        times = self._server.cpu_times()
        return times.user + times.system + time.process_time()

    def compare(self) -> None:
        """Raise RuntimeError unless both ways made the same rows."""
        for each in declared():
            tables = [self.lake.table(each.table), self.root / "plain" / each.table.short]
            frames = [pl.scan_delta(str(path)).collect() for path in tables]
            columns = sorted(frames[0].columns)
            one, other = (frame.select(columns).sort(columns) for frame in frames)
            if not one.equals(other) or not len(one):
                raise RuntimeError(f"{each.table}: the rows differ: {len(one):,} and {len(other):,}")


def run(bench: Bench) -> Measured:
    """Measure the seconds of the runs of all derived tables that follow one more window, and of a full batch."""
    contest = Contest(bench.root, bench.pick(1_000_000, 10_000), bench.remote, bench.report)
    began = time.perf_counter()
    contest.make()
    bench.report(f"made {contest.users * EVENTS_A_USER:,} rows in {time.perf_counter() - began:.0f} s")
    return measure(contest, bench.pick(2, 2), warm_up=1)


def measure(contest: Contest, rounds: int, *, warm_up: int) -> Measured:
    """Measure on the lake that a contest made."""
    contest.derive()
    contest.load_next()
    runs = {WINDOW: contest.derive, BATCH: contest.batch}
    contenders = {name: contest.measured(name, run) for name, run in runs.items()}
    compared: list[int] = []

    def clear() -> None:
        if len(contest.cpu.get(WINDOW, ())) > len(contest.cpu.get(BATCH, ())):
            return
        contest.compare()
        compared.append(contest.windows)
        contest.load_next()

    found = alternate(contenders, rounds, contest.report, clear=clear, warm_up=warm_up)
    cpu: dict[str, Sequence[float]] = {name: values[-rounds:] for name, values in contest.cpu.items()}
    goals = [
        at_least(f"{WINDOW}, relative to {BATCH}", 20, ratio(found[BATCH], found[WINDOW])),
        at_least(f"{WINDOW}, relative to {BATCH}, processor time", 20, ratio(cpu[BATCH], cpu[WINDOW])),
    ]
    setting = {
        "users": contest.users,
        "events per user": EVENTS_A_USER,
        "events of the window": min(WINDOW_ROWS, contest.users // 10),
    }
    return Measured("suggestions", found, goals, setting=setting, more={"processor seconds": cpu})
