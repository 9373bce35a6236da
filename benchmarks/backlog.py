"""A topic whose `start` is three years back: how evenly a real daemon seals and loads its windows, and the output of
`status` in the meantime. The scenario ends when all windows are loaded, or after some minutes. In the second case, the
figures show the progress so far."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final

import dagster as dg
from confluent_kafka.admin import AdminClient, NewTopic
from dagster._core.definitions.run_request import InstigatorType
from dagster._core.scheduler.instigation import InstigatorTick, TickStatus

from benchmarks.memory import most_held
from benchmarks.producing import Sent, produce
from benchmarks.scenario import Bench, Goal, Measured
from benchmarks.small_window import daemon
from platform_assets.checks.registry import CHECKS
from platform_assets.engines.shared.session import connect
from platform_assets.model.windows import closed_edges
from platform_assets.orchestration import status
from platform_assets.services import state
from platform_assets.services.process import family
from testbed.homes import home_at
from testbed.loads import TopicLake

SPAN: Final = timedelta(days=3 * 365)
PARTITIONS: Final = 4
RECORDS: Final = 4
INTERVAL_SECONDS: Final = 10
_TOPIC: Final = "years"
_PAUSE: Final = 5.0
"""Seconds between two queries of the progress. Each query costs as much as `status`."""


@dataclass(frozen=True, slots=True)
class Look:
    """Output of `status` after `seconds`, and how long the command took."""

    seconds: float
    took: float
    sealed: int
    loaded: int
    problems: tuple[str, ...]


def run(bench: Bench) -> Measured:
    """Measure hourly windows; in the quick run, measure daily windows."""
    schedule = "0 0 * * *" if bench.quick else "0 * * * *"
    seconds = bench.pick(480, 240)
    now = datetime.now(UTC)
    start = (now - SPAN).replace(hour=0, minute=0, second=0, microsecond=0)
    lake = TopicLake(bench.bootstrap, _TOPIC, bench.root / "lake", partial(connect, bench.remote), start=start)
    lake.declaration = replace(lake.declaration, schedule=schedule)
    edges = [start, *closed_edges(schedule, start, now)]
    bench.report(f"{len(edges) - 1:,} windows of {RECORDS} records")
    _produce(bench.bootstrap, edges)
    looks: list[Look] = []
    began = time.monotonic()
    with daemon(bench, lake, INTERVAL_SECONDS) as instance:
        while not looks or (looks[-1].seconds < seconds and looks[-1].loaded < len(edges) - 1):
            time.sleep(_PAUSE)
            looks.append(_look(lake, instance, time.monotonic() - began))
            last = looks[-1]
            bench.report(f"{last.seconds:.0f} s: {last.sealed:,} sealed, {last.loaded:,} loaded, {last.problems}")
        ticks = _ticks(instance)
        record = state.read_records(home_at(bench.root / "daemon"))["dagster-daemon"]
        held = max(_held(p.pid) for p in family(record))
    return _measured(looks, ticks, held, len(edges) - 1, schedule)


def _produce(bootstrap: str, edges: Sequence[datetime]) -> None:
    """Produce `RECORDS` records into each closed window, one second after the start of the window."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(_TOPIC, PARTITIONS, 1, config={"retention.ms": "-1"})])[_TOPIC].result(60)
    stamps = [round(edge.timestamp() * 1000) + 1_000 for edge in edges[:-1]]
    produce(bootstrap, (Sent(_TOPIC, n % PARTITIONS, b"%d" % at, None, at) for at in stamps for n in range(RECORDS)))


def _look(lake: TopicLake, instance: dg.DagsterInstance, seconds: float) -> Look:
    began = time.monotonic()
    found = status.collect([lake.declaration], lake.ledger, lake.cluster, instance, CHECKS, datetime.now(UTC))
    (table,) = found.tables
    said = (*table.problems, *(e for e in (table.error, table.broker_error) if e))
    return Look(seconds, time.monotonic() - began, table.windows_sealed, table.windows_loaded, said)


def _ticks(instance: dg.DagsterInstance) -> list[InstigatorTick]:
    """Return the finished ticks of the topic's sensor, oldest first."""
    (state,) = instance.all_instigator_state(instigator_type=InstigatorType.SENSOR)
    ticks = instance.get_ticks(state.instigator_origin_id, state.selector_id)
    return sorted((t for t in ticks if t.status is not TickStatus.STARTED), key=lambda t: t.timestamp)


def _held(pid: int) -> int:
    with suppress(OSError, StopIteration):
        return most_held(pid)
    return 0


def _measured(
    looks: Sequence[Look], ticks: Sequence[InstigatorTick], held: int, windows: int, schedule: str
) -> Measured:
    failed = [t for t in ticks if t.status is TickStatus.FAILURE]
    took = [(t.end_timestamp or t.timestamp) - t.timestamp for t in ticks if t.status is TickStatus.SUCCESS]
    last = looks[-1]
    sealed_at = next((look.seconds for look in looks if look.sealed >= windows), None)
    half = next(look for look in looks if look.seconds >= last.seconds / 2)
    seconds = {
        "tick that seals windows or requests runs": took,
        "status": [look.took for look in looks],
    }
    goals = [Goal("the longest tick, events stored", max(took), 60, True, "s")]
    more = {
        "seconds until all windows were sealed": sealed_at,
        "seconds, windows sealed, windows loaded": [(round(k.seconds, 1), k.sealed, k.loaded) for k in looks],
        "windows loaded a second, first half and second half": [
            round(half.loaded / half.seconds, 2),
            round((last.loaded - half.loaded) / max(last.seconds - half.seconds, _PAUSE), 2),
        ],
        "median seconds of a tick, first half and second half": [
            round(statistics.median(some), 2) for some in (took[: len(took) // 2] or took, took[len(took) // 2 :])
        ],
        "ticks that failed": len(failed),
        "observations, and those in which `status` reported a problem": [
            len(looks),
            sum(bool(look.problems) for look in looks),
        ],
        "problems that `status` reported": sorted({problem for look in looks for problem in look.problems}),
        "peak bytes of memory in one of the daemon's processes": held,
    }
    setting = {
        "schedule": schedule, "windows": windows, "records a window": RECORDS, "partitions": PARTITIONS,
        "sensor interval in seconds": INTERVAL_SECONDS,
    }  # fmt: skip
    return Measured("backlog", seconds, goals, setting=setting, more=more)
