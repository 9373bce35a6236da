"""Small windows of many topics in one group. Measured are the ticks that seal all windows, and the runs that load and
check them."""

from __future__ import annotations

import shutil
import tempfile
import time
import uuid
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, Final

import dagster as dg
from deltalake import DeltaTable

from benchmarks import made_lake
from benchmarks.dagster_runs import QUIET
from benchmarks.producing import Sent, create, produce
from benchmarks.rounds import middle
from benchmarks.scenario import Bench, Measured, at_most
from platform_assets.kafka.cluster import Cluster
from platform_assets.kafka.settings import ClientSettings
from platform_assets.lake.location import Lake
from platform_assets.ledger.store import Ledger
from platform_assets.model.declaration import TopicDeclaration
from platform_assets.orchestration.resources import KafkaResource, LakeResource, SparkResource
from platform_assets.orchestration.tick import Group, Position, Tick
from platform_assets.orchestration.window_jobs import build_group_job
from testbed.samples import START, edge

IDLE: Final = "a tick with nothing to seal"
SEALING: Final = "the ticks that seal a window of each"
REPORTING: Final = "what it reports is written down"
LOADING: Final = "the runs that load and check them all"
WHOLE: Final = "from the edge until all are loaded and checked"
_CREATED_AT_ONCE: Final = 50
_MOST_TICKS: Final = 20
_REPORTED: Final = 24
"""Number of newest windows of each topic that Dagster already knows. Checks evaluate these windows one by one."""
_RECORDS: Final = 10
"""Number of records in each partition of a window."""


def run(bench: Bench) -> Measured:
    """Measure the seconds for a hundred topics whose ledger has a history."""
    return measured("many-topics", bench, bench.pick(100, 10), bench.pick(1_000, 24), bench.pick(3, 1))


def run_thousand(bench: Bench) -> Measured:
    """Measure the seconds for a thousand topics, whose ledger has ten million rows of cuts."""
    return measured("thousand-topics", bench, bench.pick(1_000, 30), bench.pick(834, 24), bench.pick(3, 1))


def measured(scenario: str, bench: Bench, topics: int, windows: int, rounds: int) -> Measured:
    """Measure the seconds that ticks and runs take.

    Runs are executed in this process, one after another, without the time that Dagster takes to start them.
    """
    partitions = 12
    stem = uuid.uuid4().hex[:6]
    names = [f"many-{stem}-{n:03}" for n in range(topics)]
    for at in range(0, topics, _CREATED_AT_ONCE):
        create(bench.bootstrap, names[at : at + _CREATED_AT_ONCE], partitions)
    # Partitions hold as many records as the lakes have windows.
    _produce(bench, names, partitions, windows)
    cluster = Cluster.connect(ClientSettings(bench.bootstrap))
    root = bench.root / "many-topics"
    declared = tuple(
        TopicDeclaration(n, "0 * * * *", START, together="many", tick_budget=timedelta(seconds=50)) for n in names
    )
    seconds: dict[str, list[float]] = {IDLE: [], SEALING: [], REPORTING: [], LOADING: [], WHOLE: []}
    commits = asked = ticks = 0
    with tempfile.TemporaryDirectory(dir=bench.root) as folder, dg.DagsterInstance.local_temp(folder) as instance:
        began = time.monotonic()
        for number, name in enumerate(names, 1):
            made_lake.make(root, name, windows, partitions, cluster.topic(name).topic_id, one_by_one=2)
            if number % 10 == 0:
                bench.report(f"{number} of {topics} tables made, {time.monotonic() - began:.0f} s")
        ledger, group = Ledger(Lake.at(root)), Group("many", declared)
        for name in names:
            made_lake.report(ledger, name, instance, edge(max(windows - _REPORTED, 0)))
        job = build_group_job("many", declared)
        resources = {
            "kafka": KafkaResource(bootstrap_servers=bench.bootstrap),
            "lake": LakeResource(root=str(root)),
            "spark": SparkResource(remote=bench.remote),
        }
        cursor: str | None = Position(dict.fromkeys(names, edge(windows))).to_cursor()

        def tick(number: int) -> tuple[dg.SensorResult, float]:
            nonlocal cursor
            now = edge(windows + number) + timedelta(seconds=1)
            began = time.perf_counter()
            result = Tick(group, cluster, ledger, instance, now, made_lake.clock).evaluate(cursor)
            cursor = result.cursor
            return result, time.perf_counter() - began

        for number in range(rounds + 1):
            counts = number > 0
            _note(bench, seconds, IDLE, tick(number)[1], counts)
            _produce(bench, names, partitions, _RECORDS)
            before = DeltaTable(root / "_ledger" / "cuts").version()
            closed, ticks, asked, sealing, reporting, loading = time.perf_counter(), 0, 0, 0.0, 0.0, 0.0
            # A tick ends after its budget; the next one continues with the remaining topics.
            while not _all_loaded(ledger, declared, windows + number):
                if (ticks := ticks + 1) > _MOST_TICKS:
                    raise RuntimeError(f"not all windows were loaded after {_MOST_TICKS} ticks")
                result, took = tick(number + 1)
                sealing += took
                began = time.perf_counter()
                for event in result.asset_events:
                    instance.report_runless_asset_event(event)
                reporting += time.perf_counter() - began
                began = time.perf_counter()
                requests = result.run_requests or []
                asked += len(requests)
                for request in requests:
                    _refuse_failed(_execute(job, request, instance, resources))
                loading += time.perf_counter() - began
            _note(bench, seconds, SEALING, sealing, counts)
            _note(bench, seconds, REPORTING, reporting, counts)
            _note(bench, seconds, LOADING, loading, counts)
            _note(bench, seconds, WHOLE, time.perf_counter() - closed, counts)
            commits = DeltaTable(root / "_ledger" / "cuts").version() - before
            _prove(ledger, declared, partitions, windows + number)
    shutil.rmtree(root)
    an_hour = 3600 / middle(seconds[LOADING])[0] * topics
    goals = [
        at_most(SEALING, topics * 0.1, middle(seconds[SEALING]), "s"),
        at_most(LOADING, topics * 1.0, middle(seconds[LOADING]), "s"),
        at_most(f"{WHOLE}, for five-minute windows, before the next windows close", 300, middle(seconds[WHOLE]), "s"),
    ]
    setting = {
        "topics": topics,
        "partitions": partitions,
        "windows": windows,
        "cut rows": topics * partitions * windows,
    }
    more = {
        "windows an hour, one run at a time": round(an_hour),
        "commits to the ledger of cuts per edge": commits,
        "ticks per edge": ticks,
        "runs per edge": asked,
    }
    return Measured(scenario, seconds, goals, setting=setting, more=more)


def _note(bench: Bench, seconds: dict[str, list[float]], what: str, took: float, counts: bool) -> None:
    if counts:
        seconds[what].append(took)
    bench.report(f"{what}: {took:.2f} s" + ("" if counts else " (warm-up)"))


def _execute(
    job: dg.JobDefinition, request: dg.RunRequest, instance: dg.DagsterInstance, resources: dict[str, Any]
) -> dg.ExecuteInProcessResult:
    return job.execute_in_process(
        {**request.run_config, **QUIET}, instance=instance, resources=resources, tags=dict(request.tags)
    )


def _refuse_failed(done: dg.ExecuteInProcessResult) -> None:
    failed = [e for e in done.get_asset_check_evaluations() if not e.passed]
    if failed:
        raise RuntimeError(f"check {failed[0].check_name} of {failed[0].asset_key} failed: {failed[0].description}")


def _all_loaded(ledger: Ledger, declared: tuple[TopicDeclaration, ...], window: int) -> bool:
    key = f"{edge(window):%Y-%m-%d-%H:%M}"
    return all(key in ledger.receipts(d.raw_table, [key]) for d in declared)


def _prove(ledger: Ledger, declared: tuple[TopicDeclaration, ...], partitions: int, window: int) -> None:
    """Raise RuntimeError if the window of any topic is not loaded completely."""
    key = f"{edge(window):%Y-%m-%d-%H:%M}"
    for d in declared:
        found = ledger.receipts(d.raw_table, [key]).get(key)
        if found is None or found.rows != partitions * _RECORDS:
            raise RuntimeError(f"window {key} of {d.raw_table} is not loaded: {found}")


def _produce(bench: Bench, names: list[str], partitions: int, records: int) -> None:
    def all_of_them() -> Iterator[Sent]:
        for number, name in enumerate(names, 1):
            yield from (Sent(name, p, b"x") for p in range(partitions) for _ in range(records))
            if records > _RECORDS and number % 20 == 0:
                bench.report(f"{number} of {len(names)} topics filled")

    produce(bench.bootstrap, all_of_them())
