"""A bulk load with one task, with two tasks, and without a cluster: gain and cost of a standalone Spark cluster.
Workers have one core each. The broker, the drivers and the executors share the cores of this machine. Two workers can
therefore not be twice as fast as one worker: the broker that feeds both of them uses the same two cores. For this
reason, processor time is measured too, because it shows the cost per record."""

from __future__ import annotations

import shutil
import statistics
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import psutil

from benchmarks.bulk import PARTITIONS, VALUE_BYTES, Bulk
from benchmarks.producing import Sent, create, produce
from benchmarks.rounds import WARM_UP, alternate, ratio
from benchmarks.scenario import Bench, Measured, at_least, at_most
from platform_assets.engines.shared.session import connect
from platform_assets.errors import PlatformError
from platform_assets.services import state
from platform_assets.services.process import ProcessRecord, family
from platform_assets.windows.load.catching_up import load_group
from platform_assets.windows.load.loading import Loader
from testbed.homes import home_at
from testbed.loads import TopicLake
from testbed.spark_cluster import spark_cluster

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

LOCAL: Final = "local[2]"
ONE: Final = "a worker of one core"
TWO: Final = "two workers of one core"
SMALL: Final = "a job of two records"
TOPICS: Final = (1, 4, 16)
_DRIVER, _TASKS, _BROKER, _PLATFORM = "driver", "executors", "broker", "platform"


@dataclass(frozen=True)
class Place:
    """A Spark installation to measure: a session, and the processes of each part."""

    session: SparkSession
    processes: Mapping[str, Sequence[ProcessRecord]]

    def spent(self) -> dict[str, float]:
        """Return the processor seconds that each part has used since its start. Processes that have ended are included."""
        found = {
            part: sum(sum(p.cpu_times()[:4]) for record in records for p in _running(record))
            for part, records in self.processes.items()
        }
        return {**found, _PLATFORM: time.process_time()}


def _running(record: ProcessRecord) -> list[psutil.Process]:
    return [process for process in family(record) if process.is_running()]


@dataclass
class Topics:
    """Several topics with a fixed total number of records, and a new lake for each time that the topics are loaded."""

    lakes: list[TopicLake]
    records: int
    ready: list[tuple[Loader, str]] = field(default_factory=list)

    @classmethod
    def produced(cls, bench: Bench, session: Callable[[], SparkSession], topics: int, records: int) -> Topics:
        """Create the topics, and distribute the records evenly among them."""
        names = [f"scaling-{topics}-{n}-{uuid.uuid4().hex[:6]}" for n in range(topics)]
        create(bench.bootstrap, names, PARTITIONS)
        value = bytes(range(VALUE_BYTES))
        produce(bench.bootstrap, (Sent(names[n % topics], n // topics % PARTITIONS, value) for n in range(records)))
        lakes = [TopicLake(bench.bootstrap, name, bench.root / "unused", session) for name in names]
        return cls(lakes, records)

    def prepare(self, root: Path) -> None:
        """Make an empty lake at `root`, and seal a window for each topic. This is not measured."""
        shutil.rmtree(root, ignore_errors=True)
        self.lakes = [TopicLake(lk.bootstrap, lk.topic, root, lk.spark, engine_name="columnar") for lk in self.lakes]
        engine = self.lakes[0].engine
        keys = [lake.close_window() for lake in self.lakes]
        self.ready = [(lake.loader(engine=engine), key) for lake, key in zip(self.lakes, keys, strict=True)]

    def load_at_once(self) -> None:
        """Load all topics in a single catch-up."""
        rows = 0
        for _, _, outcome in load_group([(loader, [key]) for loader, key in self.ready]):
            if isinstance(outcome, PlatformError):
                raise outcome
            rows += outcome.receipt.rows
        self._check(rows)

    def load_one_by_one(self) -> None:
        """Load each topic separately."""
        self._check(sum(loader.load(key).receipt.rows for loader, key in self.ready))

    def _check(self, rows: int) -> None:
        if rows != self.records:
            raise RuntimeError(f"{rows:,} rows from {self.records:,} records: the measurement is invalid")


def run(bench: Bench) -> Measured:
    """Measure the seconds that a bulk load and the smallest possible job take with each Spark, and the seconds that
    many topics take with two workers."""
    records, rounds = bench.pick(3_000_000, 300_000), bench.pick(5, 2)
    with ExitStack() as stack:
        places = _places(bench, stack)
        bench.report(f"producing {records:,} records")
        large = Bulk.produced(bench.bootstrap, places[LOCAL].session, bench.root / "bulk", records)
        small = Bulk.produced(bench.bootstrap, places[LOCAL].session, bench.root / "small", PARTITIONS)
        loads = {name: _load(large, place) for name, place in places.items()}
        jobs = {f"{SMALL}: {name}": _load(small, place) for name, place in places.items()}
        clear = partial(_clear, [large, small])
        seconds = alternate({**loads, **jobs}, rounds, bench.report, clear)
        spent = {name: _spent(places[name], load, rounds, records, clear) for name, load in loads.items()}
        bench.report(f"processor seconds per million records: {spent}")
        together = _many_topics(bench, places[TWO], rounds)
    goals = [
        at_least("two workers, speed relative to one", 1.3, ratio(seconds[ONE], seconds[TWO])),
        at_least(f"two workers, speed relative to {LOCAL}", 0.9, ratio(seconds[LOCAL], seconds[TWO])),
        at_most(
            "processor time of the executors per record, two workers relative to one",
            1.15,
            (spent[TWO][_TASKS] / spent[ONE][_TASKS], None),
        ),
        at_least(
            f"{TOPICS[-1]} topics in one catch-up, speed relative to one by one",
            1.5,
            ratio(together[_one_by_one(TOPICS[-1])], together[_at_once(TOPICS[-1])]),
        ),
    ]
    setting = {"records": records, "bytes a record": VALUE_BYTES, "partitions": PARTITIONS, "rounds": rounds}
    more = {
        "records per second": {name: round(records / statistics.median(seconds[name])) for name in loads},
        "processor seconds a million records": spent,
        "records of all topics": bench.pick(*_TOPIC_RECORDS),
    }
    return Measured("scaling", {**seconds, **together}, goals, setting=setting, more=more)


_TOPIC_RECORDS: Final = (1_600_000, 160_000)


def _places(bench: Bench, stack: ExitStack) -> dict[str, Place]:
    """Provide the benchmark's own Spark and two clusters. All of them run the whole time, and idle while they are not
    being measured."""
    services = state.read_records(home_at(bench.root / "home"))
    broker = {_BROKER: [services["kafka"]]}
    found = {LOCAL: Place(connect(bench.remote), {**broker, _TASKS: [services["spark"]]})}
    for name, workers in ((ONE, 1), (TWO, 2)):
        bench.report(f"starting {name}")
        cluster = stack.enter_context(spark_cluster(bench.root / f"cluster {workers}", workers=workers))
        server = stack.enter_context(cluster.server(bench.root / f"server {workers}"))
        executing = [cluster.records[f"worker-{number}"] for number in range(workers)]
        processes = {**broker, _DRIVER: [server.record], _TASKS: executing}
        found[name] = Place(connect(server.remote), processes)
    return found


def _load(bulk: Bulk, place: Place) -> Callable[[], object]:
    there = replace(bulk, spark=place.session)
    return lambda: there.load("columnar")


def _clear(bulks: Sequence[Bulk]) -> None:
    for bulk in bulks:
        bulk.clear()


def _spent(
    place: Place, load: Callable[[], object], times: int, records: int, clear: Callable[[], object]
) -> dict[str, float]:
    """Return the processor seconds per million records for each part."""
    before = place.spent()
    for _ in range(times):
        load()
        clear()
    after = place.spent()
    return {part: round((after[part] - before[part]) / times / records * 1e6, 3) for part in before}


def _many_topics(bench: Bench, place: Place, rounds: int) -> dict[str, tuple[float, ...]]:
    """Measure the seconds to load the same records from many topics, with all topics at once and with one topic at a
    time. The two ways alternate, and the warm-up rounds are not counted."""
    made = {n: Topics.produced(bench, lambda: place.session, n, bench.pick(*_TOPIC_RECORDS)) for n in TOPICS}
    ways = {
        **{_at_once(n): (topics, topics.load_at_once) for n, topics in made.items()},
        **{_one_by_one(n): (topics, topics.load_one_by_one) for n, topics in made.items() if n > 1},
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(1 - WARM_UP, rounds + 1):
        for name, (topics, load) in ways.items():
            topics.prepare(bench.root / "topics")
            began = time.perf_counter()
            load()
            took = time.perf_counter() - began
            if number > 0:
                seconds[name].append(took)
            bench.report(f"round {number} of {rounds}{'' if number > 0 else ' (warm-up)'}: {name} {took:.2f} s")
    shutil.rmtree(bench.root / "topics")
    return {name: tuple(values) for name, values in seconds.items()}


def _at_once(topics: int) -> str:
    return "one topic" if topics == 1 else f"{topics} topics, one catch-up"


def _one_by_one(topics: int) -> str:
    return f"{topics} topics, a load each"
