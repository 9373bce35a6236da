"""A Structured Streaming reader reads a decoded table during loads, late decodes, upkeep, maintenance by other writers,
and repairs. Each record must be in the reader's sink exactly once.

The reader writes to a Delta table with a checkpoint. It begins without options, and stops at the first repair, because
a repair replaces rows that it has already read. From then on, it uses `skipChangeCommits`. The rows that polars finds
in the sink are compared with the producers' notes.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from threading import Event, Lock
from typing import TYPE_CHECKING, Any, Final

import polars as pl
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError

from platform_assets.checks.decoded import conserved, windows_of
from platform_assets.checks.evaluation import Evaluation
from platform_assets.checks.facts import Orchestration
from platform_assets.checks.registry import CHECKS
from platform_assets.engines.choice import merge_engine
from platform_assets.engines.decoding.engine import DecodeEngine
from platform_assets.engines.shared.session import connect, end
from platform_assets.errors import PlatformError, Retryable, UnknownOutcome
from platform_assets.model.decoding import DecodeDeclaration, FormatSpec
from platform_assets.windows.decode.decoding import WindowDecoder
from platform_assets.windows.maintain.upkeep import TableUpkeep
from platform_assets_tests.soak.live import LiveProducer, TransactionalProducer, create
from platform_assets_tests.support.history import Row, Send, check_history
from testbed.homes import engines
from testbed.loads import TopicLake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTITIONS: Final = 2
TARGET: Final = 100_000
"""Size in bytes to which files are merged. It is small, so that there are many merged files."""
_LOAD_EVERY: Final = 5.0
_LATE: Final = 0.15
"""Fraction of the windows that are decoded later than the others."""
_ATTEMPTS: Final = 20
_COLUMNS: Final = ("kafka_partition", "kafka_offset", "value")
_STOPS: Final = "DELTA_SOURCE_TABLE_IGNORE_CHANGES"
"""Delta's error for a commit that replaces rows."""


@dataclass(frozen=True, slots=True)
class Pace:
    """`upkeep`, `others` and `restart` are the seconds between two upkeeps, between two actions of the other writer,
    and between two restarts of the reader. `repairs_from` is the fraction of the time after which rows are also damaged
    and repaired."""

    upkeep: float = 60.0
    others: float = 45.0
    restart: float = 420.0
    repairs_from: float = 0.3


@dataclass(frozen=True, slots=True)
class Outcome:
    """Events within `seconds`, counted by kind, and the findings."""

    seed: int
    seconds: float
    done: Counter[str]
    sends: Counter[str]
    windows: int
    rows: int
    batches: int
    anomalies: tuple[str, ...]

    def line(self) -> str:
        """Return a Markdown table row."""
        done = ", ".join(f"{n} × {kind}" for kind, n in sorted(self.done.items()))
        sends = ", ".join(f"{n:,} {outcome}" for outcome, n in sorted(self.sends.items()))
        return (
            f"| {self.seed} | {self.seconds:.0f} | {done} | {sends} | {self.windows:,} | {self.rows:,} "
            f"| {self.batches:,} | {'; '.join(self.anomalies) or 'none'} |"
        )


HEADER: Final = (
    "| seed | seconds | done | records sent | windows | rows in the sink | batches | anomalies |\n"
    "|--:|--:|---|---|--:|--:|--:|---|"
)


def run(seed: int, seconds: float, root: Path, pace: Pace = Pace(), *, rate: int = 30) -> Outcome:
    """Run the reader for some seconds, with its own services below `root`."""
    with engines(root / "services") as (bootstrap, remote):
        return run_with(seed, seconds, root, bootstrap, remote, pace, rate=rate)


def run_with(
    seed: int, seconds: float, root: Path, bootstrap: str, remote: str, pace: Pace = Pace(), *, rate: int = 30
) -> Outcome:
    """Run the reader for some seconds with services that are already running."""
    rng, topic = random.Random(seed), f"streamed-{seed}-{time.time_ns()}"
    create(bootstrap, topic, PARTITIONS)
    with ExitStack() as stack:
        sessions = [connect(remote), *(stack.enter_context(_session(remote)) for _ in range(2))]
        world = _World(rng, pace, root, bootstrap, topic, sessions, seconds)
        live = LiveProducer(bootstrap, topic, PARTITIONS, rate)
        transactions = TransactionalProducer(bootstrap, topic, PARTITIONS, random.Random(rng.random()), rate)
        with live.sending(), transactions.sending():
            world.go()
        sends = [*live.sends, *transactions.sends]
        return world.ends(seed, sends)


@contextmanager
def _session(remote: str) -> Iterator[SparkSession]:
    from pyspark.sql import SparkSession

    session: Any = SparkSession.builder.remote(remote).create()
    try:
        yield session
    finally:
        end(session)


@dataclass
class _Tally:
    """Events and findings, which several threads record."""

    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    lock: Lock = field(default_factory=Lock)

    def add(self, what: str) -> None:
        with self.lock:
            self.counts[what] += 1

    def finding(self, what: str) -> None:
        with self.lock:
            self.wrong.append(what)


class _World:
    """The topic, its tables, the reader, and the actors that work on the tables, each in a thread. The platform, the
    other writer and the reader each have a separate Spark session."""

    def __init__(
        self,
        rng: random.Random,
        pace: Pace,
        root: Path,
        bootstrap: str,
        topic: str,
        sessions: Sequence[Any],
        seconds: float,
    ) -> None:
        self.pace, self.root, self.seconds = pace, root, seconds
        self.rngs = [random.Random(rng.random()) for _ in range(4)]
        own, self.stranger, reads = sessions
        self.lake = TopicLake(bootstrap, topic, root / "lake", lambda: own)
        decode = DecodeDeclaration(FormatSpec("string"), fail_share=0.0, cluster_by=("value",))
        self.lake.declaration = replace(self.lake.declaration, decode=decode)
        self.tally, self.stop, self.delta_rs = _Tally(), Event(), Lock()
        self.loaded = set[str]()
        self.decoded: list[str] = []
        self.late: list[str] = []
        self.reader = _StreamingReader(reads, self.place("decoded"), root, self.tally)

    def place(self, kind: str) -> Path:
        """Return the folder of a table."""
        return self.root / "lake" / kind / self.lake.topic

    def go(self) -> None:
        """Let all actors work for the given time. After that, wait until they have finished the work that they have
        begun."""
        self.load_next()
        self.decode_late()
        self.reader.start()
        self.until = time.monotonic() + self.seconds
        self.repairs_from = self.until - self.seconds * (1 - self.pace.repairs_from)
        workers = (self._loads, self._upkeeps, self._others, self._restarts)
        with ThreadPoolExecutor(len(workers)) as pool:
            running = [pool.submit(self._until_the_end, work) for work in workers]
            for each in running:
                each.result()

    def ends(self, seed: int, sends: Sequence[Send]) -> Outcome:
        """Load and decode the remaining windows, wait for the reader, and judge the result."""
        while not self.load_next():
            time.sleep(1)
        self.decode_late()
        self._upkeep()
        self.reader.catch_up()
        windows = self.lake.ledger.windows(self.lake.topic)
        ranges = [w.ranges for w in windows]
        found = [*self.tally.wrong, *(f"window {key} was not decoded" for key in self.late)]
        rows = _rows(self.root / "sink")
        found += _shown("sink", check_history(sends, rows, ranges))
        found += _shown("decoded table", check_history(sends, _rows(self.place("decoded")), ranges))
        found += _shown("raw table", check_history(sends, _rows(self.place("raw")), ranges))
        found += self._checks()
        return Outcome(
            seed, self.seconds, +self.tally.counts, Counter(s.outcome for s in sends), len(windows), len(rows),
            self.reader.batches, tuple(found),
        )  # fmt: skip

    def _checks(self) -> list[str]:
        lk = self.lake
        evaluation = Evaluation(
            lk.declaration, lk.ledger, Orchestration(), lambda: lk.settings, lambda: lk.cluster, lk.engine
        )
        results = {name: check.evaluate(evaluation) for name, check in CHECKS.items()}
        results["conserved"] = conserved(windows_of(lk.declaration, lk.ledger))
        return [f"check {name}: {result}" for name, result in results.items() if not result.passed]

    # --- those at work ----------------------------------------------------------------------------------------

    def _until_the_end(self, work: Callable[[], float]) -> None:
        """Repeat `work`, which returns the number of seconds to wait before the next repetition. If it raises an
        unexpected error, this is a finding."""
        try:
            while time.monotonic() < self.until and not self.stop.wait(min(work(), self.until - time.monotonic())):
                pass
        except Exception as e:
            self.tally.finding(f"{work.__name__} ended with {type(e).__name__}: {str(e)[:500]}")
            self.stop.set()
            raise

    def _loads(self) -> float:
        began = time.monotonic()
        self.load_next()
        return max(0.1, _LOAD_EVERY - (time.monotonic() - began))

    def load_next(self) -> bool:
        """Close a window, load all windows that are not loaded yet, and decode them, unless their decoding is left for
        later. Return False if Kafka did not answer."""
        try:
            self.lake.close_window()
        except Retryable as e:
            self.tally.add(f"cut: {type(e).__name__}")
            return False
        for window in self.lake.ledger.windows(self.lake.topic):
            if window.key in self.loaded:
                continue
            self._load(window.key)
            self.loaded.add(window.key)
            self.late.append(window.key)
        if self.rngs[0].random() >= _LATE:
            if len(self.late) > 1:
                self.tally.counts["late decode"] += len(self.late) - 1
            self.decode_late()
        return True

    def _load(self, key: str) -> str:
        return self._again("load", lambda: self.lake.load(key).outcome)

    def decode_late(self) -> None:
        """Decode the windows that were left for later."""
        while self.late:
            self._decode(self.late[-1])
            self.decoded.append(self.late.pop())

    def _decode(self, key: str) -> str:
        lk = self.lake
        decoder = WindowDecoder(lk.declaration, lk.ledger, DecodeEngine(lk.lake, lk.spark))
        return self._again("decode", lambda: decoder.decode(key).outcome)

    def _again(self, what: str, work: Callable[[], str]) -> str:
        """Try an action again after a lost race or an outage, as the sensor does; return the outcome."""
        for attempt in range(_ATTEMPTS):
            try:
                outcome = work()
            except (Retryable, UnknownOutcome) as e:
                self.tally.add(f"{what}: {type(e).__name__}")
                if attempt == _ATTEMPTS - 1:
                    raise
                time.sleep(min(30.0, 2.0**attempt))
            else:
                self.tally.add(f"{what}: {outcome}")
                return outcome
        raise AssertionError("unreachable")

    def _upkeeps(self) -> float:
        self._upkeep()
        return self.pace.upkeep

    def _upkeep(self) -> None:
        # delta-rs commits rows twice if upkeep replaces the files of its plan: see the guide.
        with self.delta_rs:
            self._upkeep_each_table()

    def _upkeep_each_table(self) -> None:
        lk = self.lake
        engine = merge_engine(lk.lake, lk.spark)
        for table in lk.declaration.tables:
            of = TableUpkeep.of(table, lk.ledger, lk.declaration, engine=engine, target=TARGET)
            of = replace(of, quiet=_NOT_QUIET)
            try:
                found = of.run(lk.closed, lambda number, total, merged: self._merged(merged))
            except PlatformError as e:
                self.tally.add(f"upkeep: {type(e).__name__}")
                if not isinstance(e, Retryable | UnknownOutcome):
                    self.tally.finding(f"upkeep of {table}: {type(e).__name__}: {e}")
                continue
            if found is None and table.kind != "dead_letters":
                self.tally.finding(f"{table} is not flat")

    def _merged(self, merged: Any) -> None:
        outcome = "merged" if merged.version is not None else "damage reported" if merged.damaged else "lost to another"
        self.tally.add(f"upkeep: {outcome}")

    def _others(self) -> float:
        """Let another writer maintain a table, or delete a row from it. If a row was deleted, the platform repairs it
        by loading or decoding the window again."""
        rng = self.rngs[2]
        table = self.place(rng.choice(("decoded", "decoded", "raw")))
        if time.monotonic() > self.repairs_from and rng.random() < 0.4:
            self._damage(table, rng)
        else:
            name, work = rng.choice(list(_MAINTENANCE.items()))
            with self.delta_rs if name in _OF_DELTA_RS else nullcontext():
                self._stranger(name, lambda: work(self.stranger, table))
        return self.pace.others * rng.uniform(0.5, 1.5)

    def _stranger(self, name: str, work: Callable[[], Any]) -> bool:
        from pyspark.errors import PySparkException

        try:
            work()
        except (PySparkException, CommitFailedError) as e:
            conflict = isinstance(e, CommitFailedError) or "DELTA_CONCURRENT" in str(e)
            if not conflict:
                self.tally.finding(f"{name} by another writer: {str(e)[:300]}")
            self.tally.add(f"{name}: lost a race")
            return False
        self.tally.add(name)
        return True

    def _damage(self, table: Path, rng: random.Random) -> None:
        key = rng.choice(self.decoded)
        rows = pl.scan_delta(str(table)).filter(pl.col("window") == key).select(_COLUMNS[:2]).collect().rows()
        if not rows:
            return
        partition, offset = rng.choice(rows)
        where = f"window = '{key}' AND kafka_partition = {partition} AND kafka_offset = {offset}"
        if not self._stranger(
            "DELETE of a row", lambda: self.stranger.sql(f"DELETE FROM delta.`{table}` WHERE {where}")
        ):
            return
        is_raw = table == self.place("raw")
        outcome = self._load(key) if is_raw else self._decode(key)
        if outcome != "healed":
            self.tally.finding(f"window {key} of {table.parent.name} had lost a row, but the repair ended as {outcome}")

    def _restarts(self) -> float:
        """Watch the reader, and stop and restart it from time to time."""
        self.reader.look(self.pace.restart * self.rngs[3].uniform(0.5, 1.5))
        return 1.0


class _StreamingReader:
    """The streaming query. It begins without options, and gets `skipChangeCommits` once it has stopped at a repair."""

    def __init__(self, session: Any, table: Path, root: Path, tally: _Tally) -> None:
        self._session, self._table, self._root, self._tally = session, table, root, tally
        self._skips = False
        self._query: Any = None
        self._started = 0.0

    @property
    def batches(self) -> int:
        """Number of batches that are committed, according to the checkpoint."""
        return len([f for f in (self._root / "checkpoint" / "commits").iterdir() if f.name.isdigit()])

    def start(self) -> None:
        """Start the query, or continue from its checkpoint."""
        reading = self._session.readStream.format("delta")
        if self._skips:
            reading = reading.option("skipChangeCommits", "true")
        self._query = (
            reading.load(str(self._table))
            .writeStream.format("delta")
            .option("checkpointLocation", str(self._root / "checkpoint"))
            .trigger(processingTime="2 seconds")
            .start(str(self._root / "sink"))
        )
        self._started = time.monotonic()

    def look(self, restart_after: float) -> None:
        """If the query has stopped, start it again. If it has run for `restart_after` seconds, restart it."""
        if not self._query.isActive:
            self._resume()
        elif time.monotonic() - self._started > restart_after:
            self._query.stop()
            self._tally.add("reader started again")
            self.start()

    def _resume(self) -> None:
        error = str(self._query.exception())
        if self._skips or _STOPS not in error:
            self._tally.finding(f"the reader stopped: {error[:500]}")
            raise AssertionError(error)
        self._tally.add("reader stopped at a repair")
        self._skips = True
        self.start()

    def catch_up(self) -> None:
        """Wait until the query has read everything, then stop it."""
        from pyspark.errors import PySparkException

        try:
            self._query.processAllAvailable()
        except PySparkException:
            self._resume()
            self._query.processAllAvailable()
        self._query.stop()


_NOT_QUIET: Final = timedelta()
_MAINTENANCE: Final[dict[str, Callable[[Any, Path], Any]]] = {
    "OPTIMIZE": lambda spark, table: spark.sql(f"OPTIMIZE delta.`{table}`"),
    "OPTIMIZE ZORDER BY": lambda spark, table: spark.sql(f"OPTIMIZE delta.`{table}` ZORDER BY (kafka_offset)"),
    "compact()": lambda spark, table: DeltaTable(table).optimize.compact(),
    "z_order()": lambda spark, table: DeltaTable(table).optimize.z_order(["kafka_offset"]),
    "VACUUM": lambda spark, table: spark.sql(f"VACUUM delta.`{table}`"),
}

_OF_DELTA_RS: Final = ("compact()", "z_order()")


def _rows(table: Path) -> list[Row]:
    """Return the rows that polars finds. Decoded values are strings."""
    found = pl.scan_delta(str(table)).select(_COLUMNS).collect().rows()
    return [Row(p, o, v.encode() if isinstance(v, str) else v) for p, o, v in found]


def _shown(where: str, anomalies: Sequence[object]) -> list[str]:
    return [f"{where}: {len(anomalies)} anomalies, such as {anomalies[0]}"] if anomalies else []
