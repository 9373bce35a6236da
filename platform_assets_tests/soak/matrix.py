"""Run cells of the crash matrix on one platform, one after another. In each cell, a fault strikes, and the platform has
to recover without an operator.

Each cell has its own topic with 100,000 records in transactions of 750 records, some of them aborted, in windows that
have ended. The topic's sensor seals the windows once the gate is open, runs load them, and the fault strikes when some
of them are loaded. A fault in upkeep strikes the command, which runs while other windows are loaded.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, cast

import psutil
from confluent_kafka import Producer
from deltalake import DeltaTable

from platform_assets.lake.location import SHARED, load_folder
from platform_assets.model.windows import milliseconds
from platform_assets.services.platform import Service
from platform_assets_tests.soak import proof
from platform_assets_tests.soak.cells import Cell, Fault, Place
from platform_assets_tests.soak.disk import Disk, small_disk
from platform_assets_tests.soak.embedded import Embedded
from platform_assets_tests.soak.live import create
from platform_assets_tests.soak.points import SENSOR_POINTS, Deed, Order, Orders, Point, loaded_windows
from platform_assets_tests.soak.reader import Reader
from platform_assets_tests.support.history import Outcome, Send
from platform_assets_tests.support.quotas import fetch_quota
from testbed.loads import wait_until
from testbed.object_store import ObjectStore

_LOCATION: Final = "platform_assets_tests.soak.location"
RECORDS: Final = 100_000
IN_TRANSACTION: Final = 750
PARTITIONS: Final = 2
_WINDOWS: Final = 6
_ABORTED: Final = 0.1
_DOWN_SECONDS: Final = 5.0
_LOOK: Final = 3.0
_ON_ONE_PLATFORM: Final = 6
_BOUND: Final = 900.0
"""Maximum number of seconds until everything has recovered. This allows a killed run to be detected and restarted, and
a failed run to be requested again, each several times."""
_SLOW: Final = 200_000
"""Fetch quota in bytes per second. It is so low that the write of a killed run is still in progress when the next run
begins to write."""
_WITH_POINTS: Final = (
    "import os; from platform_assets_tests.soak.points import Orders, install; "
    "install(Orders.below(os.environ['PLATFORM_HOME']))"
)
_DEEDS: Final[dict[Fault, Deed]] = {
    "exception": "raise", "SIGKILL of the process": "kill", "lost answer": "lose the answer",
}  # fmt: skip
_BEGINS: Final[dict[Place, Point]] = {"mid-read": "plan recorded", "mid-merge": "merge planned"}
_SERVICES: Final[dict[Fault, Service]] = {"SIGKILL of Spark": "spark", "SIGKILL of the broker": "kafka"}


@dataclass(frozen=True, slots=True)
class CellOutcome:
    """Result of a cell. `strikes` is the number of faults caused, and `healed_after` is the number of seconds from the
    last fault to recovery."""

    cell: Cell
    records: int
    strikes: int
    healed_after: float
    versions_read: int
    orphans: int
    anomalies: tuple[str, ...]

    def line(self) -> str:
        """Return a Markdown table row."""
        found = "; ".join(self.anomalies) or "none"
        return (
            f"| {self.cell.engine} | {self.cell.place} | {self.cell.fault} | {self.records:,} | {self.strikes} "
            f"| {self.healed_after:.0f} | {self.versions_read} | {self.orphans} | {found} |"
        )


HEADER: Final = (
    "| engine | where | fault | records | strikes | recovery, s | versions read | orphan files | anomalies |\n"
    "|---|---|---|--:|--:|--:|--:|--:|---|"
)


def run(
    chosen: Sequence[Cell],
    root: Path,
    rng: random.Random,
    *,
    records: int = RECORDS,
    until: float = float("inf"),
    say: Callable[[str], None] = print,
    store: ObjectStore | None = None,
) -> Iterator[CellOutcome]:
    """Run the cells in `chosen`, in order, and yield the outcome of each cell. No cell begins after `until` (a value of
    `time.monotonic`). All cells run on one platform below `root`. If `store` is given, the platform's lake is in that
    store.

    Raises AssertionError if a cell does not recover in time or its fault could not be caused.
    """
    with ExitStack() as stack:
        disk = stack.enter_context(small_disk(root / "disk", 1024)) if store is None else None
        folder = (disk.path if disk else root) if store is None else store.bucket / root.name
        # Dagster looks for killed runs more often than by default, so that a cell takes seconds.
        platform = Embedded(
            root / "platform",
            folder / "lake",
            _LOCATION,
            {} if store is None else store.environment(),
            instance_settings={"run_monitoring": {"poll_interval_seconds": 2}},
            address="" if store is None else f"{store.root(root.name)}/lake",
        )
        matrix = _Matrix(platform, disk, rng, records, store)
        start = (datetime.now(UTC) - timedelta(minutes=_WINDOWS)).replace(second=0, microsecond=0)
        topics = [f"cell-{number}" for number in range(len(chosen))]
        for cell, topic in zip(chosen, topics, strict=True):
            platform.declare(topic, start, cell.engine, sensor_interval_seconds=1, max_windows_per_run=2)
        stack.enter_context(platform.running(("kafka", "spark", "dagster-daemon")))
        for cell, topic in zip(chosen, topics, strict=True):
            if time.monotonic() > until:
                break
            if cell.fault == "disk full" and disk is None:
                say(f"{cell}: skipped, because no tmpfs can be mounted here")
                continue
            yield matrix.outcome(cell, topic, start)


def batches(chosen: Sequence[Cell]) -> Iterator[Sequence[Cell]]:
    """Split the cells into batches, one batch for each platform. Batches are needed because every sensor ticks all the
    time, even while its gate is closed."""
    for first in range(0, len(chosen), _ON_ONE_PLATFORM):
        yield chosen[first : first + _ON_ONE_PLATFORM]


@dataclass
class _Matrix:
    platform: Embedded
    disk: Disk | None
    rng: random.Random
    records: int
    store: ObjectStore | None = None
    wrong: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.orders = Orders.below(self.platform.home.root)

    def outcome(self, cell: Cell, topic: str, start: datetime) -> CellOutcome:
        """Fill the topic, cause the fault during the load, wait for recovery, and judge the result."""
        create(self.platform.bootstrap, topic, PARTITIONS)
        sends = self._filled(topic, start)
        with Reader(proof.table_of(self.platform, topic)).reading() as reader:
            # Some faults strike the next attempt too.
            times = self.rng.choice((1, 2)) if cell.fault in _DEEDS else 1
            orders = {f"{topic}-{number}": self._order(cell, topic) for number in range(times)}
            for name, order in orders.items():
                self.orders.give(name, order)
            self.orders.open_gate(topic)
            strike = self._strike_upkeep if cell.is_of_upkeep else self._strike
            strikes = sum(strike(cell, order, name) for name, order in orders.items())
            healed_after = proof.healed(self.platform, [topic], _BOUND)
            found = self._upkeep_at_rest(topic) if cell.is_of_upkeep else []
        windows = self.platform.ledger.windows(topic)
        by_window = proof.records_by_window(windows, ((s.partition, s.offset) for s in sends if s.outcome == "ok"))
        orphans = proof.orphans(self.platform, topic)
        found += proof.anomalies(self.platform, topic, sends) + reader.wrong(by_window)
        found += self._orphans_that_stay(topic, orphans)
        return CellOutcome(cell, len(sends), strikes, healed_after, reader.versions, len(orphans), tuple(found))

    def _orphans_that_stay(self, topic: str, orphans: Sequence[Path]) -> list[str]:
        """Load the windows of orphan files again, and run VACUUM. Return findings about commands that failed and about
        orphan files that remain."""
        if not orphans:
            return []
        table = proof.table_of(self.platform, topic)
        by_folder = {table / load_folder(w.key, ""): w.key for w in self.platform.ledger.windows(topic)}
        windows = sorted({key for path in orphans for folder, key in by_folder.items() if folder in path.parents})
        found = list[str]()
        if windows and (loaded := self.platform.command("load", f"raw/{topic}", *windows)).code:
            found.append(f"load exits {loaded.code}: {loaded.text}")
        long_ago = (datetime.now(UTC) - timedelta(days=8)).timestamp()
        for path in proof.orphans(self.platform, topic):
            os.utime(path, (long_ago, long_ago))
        removed = self.platform.command("vacuum", f"raw/{topic}")
        found += [] if not removed.code else [f"vacuum exits {removed.code}: {removed.text}"]
        return found + [f"orphan {path} stays" for path in proof.orphans(self.platform, topic)]

    def _order(self, cell: Cell, topic: str) -> Order:
        begins = _BEGINS.get(cell.place)
        point = begins or cast("Point", cell.place)
        deed = "wait" if begins else _DEEDS.get(cell.fault, "wait")
        # In a run: strike once some windows are loaded. A sensor seals all windows in one tick. Upkeep needs two files.
        some = (2, 4, _WINDOWS) if cell.is_of_upkeep else (1, 2, 3)
        return Order(topic, point, deed, loaded=0 if point in SENSOR_POINTS else self.rng.choice(some))

    def _strike_upkeep(self, cell: Cell, order: Order, name: str) -> bool:
        """Run upkeep once enough windows are loaded, and cause a fault in it. Return False in the same case as
        `_strike`."""
        topic = order.topic
        wait_until(f"{order.loaded} windows are loaded", lambda: self._loaded(topic) >= order.loaded, _BOUND)
        running = self.platform.begin("upkeep", f"raw/{topic}", "--quiet-hours", "0", first=_WITH_POINTS)
        try:
            return self._strike(cell, order, name, lambda: running.poll() is not None)
        finally:
            text, _ = running.communicate(timeout=_BOUND)
            if "Traceback" in text and "SoakFault" not in text:
                self.wrong.append(f"upkeep ended in a traceback: {text[-1000:]}")

    def _upkeep_at_rest(self, topic: str) -> list[str]:
        """Run upkeep without a fault; return findings. Upkeep must succeed and leave fewer files than there are
        windows."""
        found, self.wrong = self.wrong, []
        ended = self.platform.command("upkeep", f"raw/{topic}", "--quiet-hours", "0")
        if ended.code:
            found.append(f"`upkeep` exited with code {ended.code} although all services are back: {ended.text}")
        files, windows = len(DeltaTable(proof.table_of(self.platform, topic)).file_uris()), self._loaded(topic)
        return found if files < windows else [*found, f"upkeep left {files} files of {windows} windows"]

    def _loaded(self, topic: str) -> int:
        return loaded_windows(self.platform.ledger, topic)

    def _strike(self, cell: Cell, order: Order, name: str, is_over: Callable[[], bool] | None = None) -> bool:
        """Cause a fault from outside the process. Return False if the work ended before the process reached the point."""
        pid = self._at_the_point(name, is_over or (lambda: self._is_done(order.topic)))
        if pid is None:
            return False
        with ExitStack() as stack:
            if cell.place in _BEGINS:
                stack.enter_context(self._in_the_middle(cell, order.topic, name))
            if cell.place in _BEGINS or cell.fault not in _DEEDS:
                self._carry_out(cell.fault, pid, name)
            self.orders.release(name)
        return True

    def _at_the_point(self, name: str, is_over: Callable[[], bool]) -> int | None:
        """Wait for a process to reach the point of an order; return the process id. Return None if the work ended
        before a process reached the point."""
        deadline = time.monotonic() + _BOUND
        look = time.monotonic() + _LOOK
        while time.monotonic() < deadline:
            if (pid := self.orders.taken_by(name)) is not None:
                return pid
            if time.monotonic() > look:
                if is_over() and self.orders.withdraw(name):
                    return None
                look = time.monotonic() + _LOOK
            time.sleep(0.02)
        raise AssertionError(f"no process reached the point of {name} within {_BOUND:g} s")

    @contextmanager
    def _in_the_middle(self, cell: Cell, topic: str, name: str) -> Iterator[None]:
        """Let the waiting write begin. The block runs once the write's first data file exists."""
        table = proof.table_of(self.platform, topic)
        # Other windows are loaded while upkeep merges.
        table = table / SHARED if cell.is_of_upkeep else table
        known = set(table.rglob("*.parquet"))
        slow = cell.fault == "a new run during the write of a killed one"
        with ExitStack() as stack:
            if slow:
                stack.enter_context(fetch_quota(self.platform.bootstrap, None, _SLOW))
            self.orders.release(name)
            wait_until(f"a data file appears ({cell})", lambda: bool(set(table.rglob("*.parquet")) - known), _BOUND)
            yield

    def _carry_out(self, fault: Fault, pid: int, name: str) -> None:
        if service := _SERVICES.get(fault):
            self.platform.kill(service)
            time.sleep(self.rng.uniform(0, _DOWN_SECONDS))
            self.platform.start(service)
        elif fault == "SIGKILL of the process":
            _kill(pid)
        elif fault == "SIGKILL of the store":
            assert self.store is not None
            self.store.kill()
            self.orders.release(name)
            time.sleep(self.rng.uniform(0, _DOWN_SECONDS))
            self.store.start()
        elif fault == "SIGKILL of a worker":
            _kill(self.rng.choice(self.platform.workers()).pid)
        elif fault == "disk full":
            assert self.disk is not None
            with self.disk.full():
                self.orders.release(name)
                time.sleep(_DOWN_SECONDS)
        elif fault == "a new run during the write of a killed one":
            _kill(pid)
            self.orders.give(f"{name}-again", Order(name.rpartition("-")[0], "plan recorded", "wait"))
            wait_until("the next run writes", lambda: self.orders.taken_by(f"{name}-again") is not None, _BOUND)
            self.orders.release(f"{name}-again")

    def _is_done(self, topic: str) -> bool:
        return proof.is_covered(self.platform, topic) and proof.progress(self.platform, [topic]).complete

    def _filled(self, topic: str, start: datetime) -> list[Send]:
        """Produce the topic's records in transactions, spread over the topic's windows; return the outcome of each
        record."""
        producer = Producer(
            {"bootstrap.servers": self.platform.bootstrap, "transactional.id": topic, "linger.ms": 5, "log_level": 2}
        )
        producer.init_transactions(60)
        stamps = [milliseconds(start + timedelta(minutes=m, seconds=30)) for m in range(_WINDOWS)]
        sends: list[Send] = []
        for first in range(0, self.records, IN_TRANSACTION):
            numbers = range(first, min(first + IN_TRANSACTION, self.records))
            stamp = stamps[first * _WINDOWS // self.records]
            aborted = self.rng.random() < _ABORTED
            delivered: list[Any] = []
            producer.begin_transaction()
            for number in numbers:
                producer.produce(
                    topic, b"%d" % number + b"." * 60, None, number % PARTITIONS, timestamp=stamp,
                    on_delivery=lambda error, message, to=delivered: to.append((error, message)),
                )  # fmt: skip
            assert not producer.flush(60)
            assert [e for e, _ in delivered if e is not None] == []
            if aborted:
                producer.abort_transaction(60)
            else:
                producer.commit_transaction(60)
            outcome: Outcome = "failed" if aborted else "ok"
            sends += [Send(m.value(), m.partition(), m.offset(), outcome) for _, m in delivered]
        cluster = self.platform.cluster
        state = cluster.topic(topic)
        wait_until(
            "no transaction is open", lambda: cluster.last_stable_offsets(state) == cluster.high_watermarks(state)
        )
        return sends


def _kill(pid: int) -> None:
    process = psutil.Process(pid)
    process.kill()
    psutil.wait_procs([process], 30)
