"""Topic groups: one commit records the edges of all topics, and one run loads their windows. Each topic is loaded,
checked and retried like a topic without a group."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import dagster as dg
import pytest
from deltalake import DeltaTable

from platform_assets.checks.registry import CHECKS
from platform_assets.model.windows import milliseconds
from platform_assets.orchestration import dagster_records, raw_checks, run_steps, status
from platform_assets.orchestration.names import group_op, table_key, topic_key
from platform_assets.orchestration.tick import Position
from platform_assets_tests.support.runs_of import materializations, materialize, minutes_ago
from platform_assets_tests.support.streams import ANY_TIME, delete_before
from platform_assets_tests.support.topic_group import TopicGroup
from testbed.loads import Record, TopicLake, records
from testbed.samples import START

if TYPE_CHECKING:
    from platform_assets_tests.conftest import Broker, LakeMaker

NOBODY = "sc://localhost:1/;token=secret"
MINUTE = timedelta(minutes=1)


@pytest.fixture
def instance(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    """A new instance that does not wait before it retries a run."""
    monkeypatch.setattr(run_steps, "_RETRY_AFTER_SECONDS", 0)
    with dg.DagsterInstance.local_temp(str(tmp_path)) as made:
        yield made


def topics(lake: LakeMaker, count: int, start: datetime) -> list[TopicLake]:
    """Return topics with two partitions and two closed windows. Each window has one record per partition."""
    made = [lake(partitions=2, config=ANY_TIME, start=start) for _ in range(count)]
    for lk in made:
        lk.declaration = replace(lk.declaration, together="small")
        fill(lk, start)
    return sorted(made, key=lambda lk: lk.topic)


def fill(lk: TopicLake, start: datetime) -> None:
    moments = [milliseconds(start + n * MINUTE) for n in (1, 1, 2, 2)]
    lk.send([Record(f"{lk.topic} {n}".encode(), partition=n % 2, timestamp=at) for n, at in enumerate(moments)])


def windows_in(request: dg.RunRequest) -> dict[str, list[str]]:
    """Return the windows that a requested run will load, by topic."""
    found: dict[str, list[str]] = request.run_config["ops"][group_op("small")]["config"]["windows"]
    return found


def evaluate(instance: dg.DagsterInstance, lk: TopicLake) -> dict[str, bool]:
    """Return the newest evaluation of each check of a raw table."""
    keys = [dg.AssetCheckKey(table_key(lk.declaration.raw_table), name) for name in names_of(lk)]
    found = instance.event_log_storage.get_latest_asset_check_execution_by_key(keys)
    evaluations = {key.name: r.event.asset_check_evaluation for key, r in found.items() if r.event is not None}
    return {name: e.passed for name, e in evaluations.items() if e is not None}


def names_of(lk: TopicLake) -> list[str]:
    return [check.name for check in raw_checks.checks_of(lk.declaration)]


@pytest.mark.broker
def test_one_run_loads_and_checks_all_and_a_broken_topic_holds_up_no_other(
    lake: LakeMaker, broker: Broker, spark_remote: str, instance: dg.DagsterInstance
) -> None:
    start = minutes_ago(4)
    lakes = topics(lake, 5, start)
    t = TopicGroup(lakes, instance, spark_remote)
    t.now = start + 3 * MINUTE
    (request,) = t.tick()
    # All edges of all topics, in the one commit behind the making of the ledger.
    assert DeltaTable(lakes[0].root / "_ledger" / "cuts").version() == 1
    wanted = windows_in(request)
    assert {topic: len(keys) for topic, keys in wanted.items()} == dict.fromkeys((lk.topic for lk in lakes), 2)
    for lk in lakes:
        assert dagster_records.reported_partitions(instance, topic_key(lk.topic), wanted[lk.topic]) == set(
            wanted[lk.topic]
        )
    broken, good = lakes[2], [lk for lk in lakes if lk is not lakes[2]]
    first, second = wanted[broken.topic]
    delete_before(broker.bootstrap, broken.topic, 0, 1)
    run = t.run(request)
    assert not run.success
    for lk in good:
        assert records(lk.rows()) == records(lk.committed())
        assert len(lk.rows()) == 4
        assert set(materializations(instance, table_key(lk.declaration.raw_table))) >= set(wanted[lk.topic])
        assert evaluate(instance, lk) == dict.fromkeys(names_of(lk), True)
    assert first not in broken.ledger.receipts(broken.declaration.raw_table)
    assert second in broken.ledger.receipts(broken.declaration.raw_table)
    # The sensor knows the reason and the topic: nothing is requested until somebody decides.
    (failed,) = dagster_records.failed_runs(instance, broken.declaration.raw_table, [first])
    assert (failed.run_id, failed.cause(first)) == (run.run_id, "decision")
    t.now += timedelta(seconds=1)
    assert t.tick() == []
    found = status.collect([lk.declaration for lk in lakes], broken.ledger, broken.cluster, instance, CHECKS, t.now)
    states = {table.topic: [u.state for u in table.unloaded] for table in found.tables}
    assert states == {lk.topic: ["waits for somebody"] if lk is broken else [] for lk in lakes}
    # What Dagster is told of a window is what a run of one topic tells.
    alone = lake(partitions=2, config=ANY_TIME, start=start)
    fill(alone, start)
    materialize(alone, spark_remote, wanted[good[0].topic][-1:], instance)
    (told,) = materializations(instance, table_key(alone.declaration.raw_table)).values()
    assert set(materializations(instance, table_key(good[0].declaration.raw_table))[second]) == set(told)


@pytest.mark.broker
def test_what_failed_is_tried_again_together_and_a_new_topic_is_picked_up(
    lake: LakeMaker, spark_remote: str, instance: dg.DagsterInstance
) -> None:
    """Spark is not available for a while, and nobody acts."""
    start = minutes_ago(6)
    lakes = topics(lake, 3, start)
    t = TopicGroup(lakes, instance, NOBODY)
    t.now = start + 3 * MINUTE
    (request,) = t.tick()
    assert not t.run(request).success
    assert not [r for lk in lakes for r in lk.ledger.receipts(lk.declaration.raw_table).values() if r.kind != "empty"]
    # Not at once.
    assert t.tick() == []
    t.lakes = [*lakes, *topics(lake, 1, start)]
    t.remote = spark_remote
    t.now = datetime.now(t.now.tzinfo) + lakes[0].declaration.sensor_interval
    requests = t.tick()
    # Windows that never failed are in a separate run, so that failed ones cannot block them.
    assert [set(windows_in(r)) for r in requests] == [{t.lakes[-1].topic}, {lk.topic for lk in lakes}]
    assert all(t.run(r).success for r in requests)
    for lk in t.lakes:
        assert records(lk.rows()) == records(lk.committed())
        assert len(lk.rows()) == 4
    assert t.tick() == []


def test_a_cursor_says_what_is_reported_and_who_is_next() -> None:
    position = Position({"a": START, "b": START + MINUTE, "c": START}, "b")
    assert Position.from_cursor(position.to_cursor()) == position
    assert Position.from_cursor(None) == Position()
    # That of the sensor of one topic, after it was put together with others.
    assert Position.from_cursor('{"version": 1, "reported": 1767225600}') == Position()
