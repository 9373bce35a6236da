"""Windows with a thousand records each, loaded by a real daemon: the time from the end of a window until the instance
has four passed checks."""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial

import dagster as dg
from confluent_kafka import Producer
from dagster._core.definitions.run_request import InstigatorType
from dagster._core.storage.tags import PARTITION_NAME_TAG
from deltalake import DeltaTable

from benchmarks.bulk import PARTITIONS, VALUE_BYTES, Bulk
from benchmarks.producing import create
from benchmarks.rounds import middle
from benchmarks.scenario import Bench, Measured, at_most
from platform_assets.checks.registry import CHECKS
from platform_assets.engines.shared.session import configure_codegen, connect
from platform_assets.ledger.entries import Receipt
from platform_assets.model.windows import key_of
from platform_assets.services import platform
from platform_assets.services.platform import UpOptions
from platform_assets.services.project import DEFS_VARIABLE
from testbed.homes import home_at, service_environment
from testbed.loads import TopicLake
from testbed.project import declare

RECORDS_A_MINUTE = 1_000
INTERVAL_SECONDS = 5

WHOLE = "closing edge to four passed checks"
BEYOND = "the same, beyond the sensor's interval"
STEP = "step of the load"
LOAD = "load, as its receipt has it"

_TOPIC = "small"
_MINUTE = timedelta(minutes=1)
_PATIENCE = timedelta(minutes=4)
_EVENTS = {
    "run asked for": "PIPELINE_ENQUEUED",
    "queue lets go": "PIPELINE_STARTING",
    "run begins, code loaded": "PIPELINE_START",
    "run ends": "PIPELINE_SUCCESS",
}
_STARTED = "Started process for run"


@dataclass(frozen=True)
class Timeline:
    """Events of one window, and the window's receipt. `points` maps each event, in order, to the seconds from the end
    of the window to that event."""

    points: dict[str, float]
    receipt: Receipt

    @property
    def whole(self) -> float:
        """Seconds until the last of the four checks was recorded."""
        return self.points["checks end"]

    @property
    def beyond(self) -> float:
        """The seconds in `whole`, without the time until the tick that noticed the end of the window. At most the
        sensor's interval is subtracted."""
        return self.whole - min(self.points["tick begins"], INTERVAL_SECONDS)

    @property
    def step(self) -> float:
        """Seconds that the load step took."""
        return self.points["load's step ends"] - self.points["load's step begins"]


def run(bench: Bench) -> Measured:
    """Measure one-minute windows, which are the shortest possible, while records keep arriving. The first window does
    not count. Before the windows, Spark performs enough loads to be as warm as a long-running server."""
    windows, before = bench.pick(5, 2), bench.pick(40, 5)
    bench.report(f"running {before} loads to warm up the server")
    other = Bulk.produced(bench.bootstrap, connect(bench.remote), bench.root / "before", RECORDS_A_MINUTE)
    configure_codegen(other.spark, other.records)
    for _ in range(before):
        other.load()
    other.clear()
    start = (datetime.now(UTC) + timedelta(seconds=30)).replace(second=0, microsecond=0) + _MINUTE
    lake = TopicLake(bench.bootstrap, _TOPIC, bench.root / "lake", partial(connect, bench.remote), start=start)
    found: list[Timeline] = []
    with _records(bench.bootstrap), daemon(bench, lake, INTERVAL_SECONDS) as instance:
        for number in range(windows + 1):
            timeline = _timeline(instance, lake, start + number * _MINUTE)
            bench.report(f"window {number} of {windows}{'' if number else ' (warm-up)'}: {timeline.whole:.1f} s")
            found += [timeline] if number else []
    seconds = {
        WHOLE: [t.whole for t in found],
        BEYOND: [t.beyond for t in found],
        STEP: [t.step for t in found],
        LOAD: [t.receipt.seconds for t in found],
    }
    goals = [
        at_most(
            f"{RECORDS_A_MINUTE:,} records, from the edge to four passed checks, not counting the sensor's interval",
            2.5,
            middle(seconds[BEYOND]),
            "s",
        ),
        at_most(f"{RECORDS_A_MINUTE:,} records, load with Spark", 0.4, middle(seconds[LOAD]), "s"),
    ]
    return Measured(
        "small-window",
        seconds,
        goals,
        setting={
            "loads before": before,
            "records a window": round(statistics.median(t.receipt.rows for t in found)),
            "bytes a record": VALUE_BYTES,
            "partitions": PARTITIONS,
            "sensor interval in seconds": INTERVAL_SECONDS,
        },
        more={
            "seconds after the edge": {
                name: [round(t.points[name], 3) for t in found] for name in found[0].points
            }
        },
    )  # fmt: skip


@contextmanager
def _records(bootstrap: str) -> Iterator[None]:
    """Produce a steady stream into a separate topic."""
    create(bootstrap, [_TOPIC], PARTITIONS)
    over = threading.Event()

    def produce() -> None:
        producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, "enable.idempotence": True})
        began, sent = time.monotonic(), 0
        while not over.wait(0.05):
            due = int((time.monotonic() - began) * RECORDS_A_MINUTE / 60)
            for number in range(sent, due):
                producer.produce(_TOPIC, os.urandom(VALUE_BYTES), number.to_bytes(8, "big"), number % PARTITIONS)
            sent = max(sent, due)
            producer.poll(0)
        producer.flush(30)

    thread = threading.Thread(target=produce, name="records")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextmanager
def daemon(bench: Bench, lake: TopicLake, interval: int) -> Iterator[dg.DagsterInstance]:
    """Run the daemon that `up` starts. Its folder of declarations declares only that topic, and the sensor ticks every
    `interval` seconds."""
    home = home_at(bench.root / "daemon")
    declare(bench.root / "defs", lake, sensor_interval_seconds=interval, deep_audit_running=False)
    environ = {
        **service_environment(),
        DEFS_VARIABLE: str(bench.root / "defs"),
        "KAFKA_BOOTSTRAP_SERVERS": bench.bootstrap,
        "SPARK_REMOTE": bench.remote,
        "LAKE_ROOT": str(lake.root),
    }
    try:
        platform.start_service("dagster-daemon", home, UpOptions(), report=bench.report, environ=environ)
        with dg.DagsterInstance.from_config(str(home.dagster)) as instance:
            yield instance
    finally:
        platform.down(home, report=bench.report)


def _timeline(instance: dg.DagsterInstance, lake: TopicLake, start: datetime) -> Timeline:
    """Wait for the run that loads the window starting at `start`; return the window's events. Fails if a check did not
    pass."""
    key, edge = key_of(start), (start + _MINUTE).timestamp()
    run_id = _finished_run(instance, key, start + _MINUTE + _PATIENCE)
    events = instance.all_logs(run_id)
    at = {e.dagster_event.event_type_value: e.timestamp for e in events if e.dagster_event is not None}
    check_results = instance.get_records_for_run(run_id, of_type=dg.DagsterEventType.ASSET_CHECK_EVALUATION).records
    passed = {e.check_name: e.passed for e in map(_evaluation, check_results)}
    if not passed.keys() >= set(CHECKS) or not all(passed.values()):
        raise RuntimeError(f"window {key}: {passed or at}")
    steps = {s.step_key: s for s in instance.get_run_step_stats(run_id)}
    load, checks = sorted(steps.values(), key=lambda s: s.start_time or 0)
    receipt = lake.ledger.receipts(lake.declaration.raw_table, [key])[key]
    times = {
        **dict(zip(("tick begins", "tick ends"), _tick(instance, run_id), strict=True)),
        **{name: at[kind] for name, kind in _EVENTS.items()},
        "process up": next(e.timestamp for e in events if _STARTED in e.message),
        "load's step begins": load.start_time or 0,
        "table's commit": _committed(lake, receipt),
        "load's step ends": load.end_time or 0,
        "checks' step begins": checks.start_time or 0,
        "checks end": max(v.timestamp for v in check_results),
    }
    return Timeline({n: t - edge for n, t in sorted(times.items(), key=lambda point: point[1])}, receipt)


def _finished_run(instance: dg.DagsterInstance, key: str, until: datetime) -> str:
    while datetime.now(UTC) < until:
        for found in instance.get_runs(dg.RunsFilter(tags={PARTITION_NAME_TAG: key})):
            if found.is_finished:
                return found.run_id
        time.sleep(1)
    raise RuntimeError(f"no run that loads only window {key} finished in time")


def _evaluation(record: dg.EventLogRecord) -> dg.AssetCheckEvaluation:
    event = record.event_log_entry.dagster_event
    assert event is not None
    return event.asset_check_evaluation_data


def _tick(instance: dg.DagsterInstance, run_id: str) -> tuple[float, float]:
    for state in instance.all_instigator_state(instigator_type=InstigatorType.SENSOR):
        for tick in instance.get_ticks(state.instigator_origin_id, state.selector_id):
            if run_id in tick.run_ids:
                return tick.timestamp, tick.end_timestamp or tick.timestamp
    raise RuntimeError(f"no tick requested run {run_id}")


def _committed(lake: TopicLake, receipt: Receipt) -> float:
    history = DeltaTable(lake.table).history()
    return next(float(h["timestamp"]) for h in history if h["version"] == receipt.table_version) / 1000
