"""Windows that an earlier schedule sealed and that are not current partitions: they are loaded like other windows,
without any action."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import dagster as dg
import pytest
from deltalake import DeltaTable

from platform_assets.checks.registry import CHECKS
from platform_assets.ledger.decisions import Author
from platform_assets.model.tables import TableRef
from platform_assets.model.windows import closed_edges, key_of, milliseconds
from platform_assets.orchestration import dagster_records, run_steps, status
from platform_assets.orchestration.names import earlier_windows_job, load_job, table_key, topic_key
from platform_assets.orchestration.resources import KafkaResource, LakeResource
from platform_assets.orchestration.status import TableStatus
from platform_assets.windows.decide import acceptance
from platform_assets.windows.load import sealing
from platform_assets_tests.support.daemon import Daemon
from platform_assets_tests.support.runs_of import materializations
from platform_assets_tests.support.streams import ANY_TIME, delete_before
from testbed.loads import Record, records
from testbed.project import definitions

if TYPE_CHECKING:
    from platform_assets_tests.conftest import Broker, LakeMaker

pytestmark = pytest.mark.broker

NOBODY = "sc://localhost:1/;token=secret"
MINUTE = timedelta(minutes=1)


@pytest.fixture
def instance(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    """A new instance that does not wait before it retries a run."""
    monkeypatch.setattr(run_steps, "_RETRY_AFTER_SECONDS", 0)
    with dg.DagsterInstance.local_temp(str(tmp_path)) as made:
        yield made


def daemon_of(
    lake: LakeMaker, instance: dg.DagsterInstance, schedule: str, windows: int, filled: Sequence[int], remote: str
) -> Daemon:
    """Return the daemon of a topic. Number the newest `windows` closed windows of `schedule` from 0: those in `filled`
    have a record."""
    now = datetime.now(UTC)
    edges = closed_edges(schedule, now - timedelta(hours=12), now)[-windows - 1 :]
    lk = lake(config=ANY_TIME, start=edges[0])
    lk.send([Record(b"%d" % n, timestamp=milliseconds(edges[n])) for n in filled])
    return Daemon(lk, instance, remote, replace(lk.declaration, schedule=schedule))


def quarters_and_hours() -> tuple[str, str]:
    """Return a 15-minute and an hourly schedule, whose last common edge was 20 minutes ago, so the hourly window does
    not end soon."""
    minute = (datetime.now(UTC).minute - 20) % 60
    return f"{minute % 15}-59/15 * * * *", f"{minute} * * * *"


def status_of(d: Daemon) -> TableStatus:
    (table,) = status.collect([d.declaration], d.lake.ledger, d.lake.cluster, d.instance, CHECKS, d.now).tables
    return table


def partitions(d: Daemon) -> set[str]:
    """Return all partitions that Dagster currently has."""
    found = definitions(d.declaration, d.lake.bootstrap, d.lake.root, d.remote)
    asset = found.resolve_asset_graph().get(table_key(d.declaration.raw_table))
    assert asset.partitions_def is not None
    return set(asset.partitions_def.get_partition_keys())


def asked_by_the_sensor(d: Daemon) -> list[dg.RunRequest]:
    """Return the run requests of one tick of the defined sensor, without running or storing anything."""
    found = definitions(d.declaration, d.lake.bootstrap, d.lake.root, d.remote)
    (sensor,) = found.sensors or ()
    assert isinstance(sensor, dg.SensorDefinition)
    resources = {
        "kafka": KafkaResource(bootstrap_servers=d.lake.bootstrap),
        "lake": LakeResource(root=str(d.lake.root)),
    }
    with dg.build_sensor_context(d.instance, d.cursor, definitions=found, resources=resources) as context:
        return list(sensor.evaluate_tick(context).run_requests or [])


def test_after_a_change_from_quarters_to_hours_every_window_is_loaded_and_nobody_acted(
    lake: LakeMaker, spark_remote: str, instance: dg.DagsterInstance
) -> None:
    """Spark was not available while the windows were sealed, and for some ticks after the change."""
    quarterly, hourly = quarters_and_hours()
    d = daemon_of(lake, instance, quarterly, 10, (0, 1, 4, 9), NOBODY)
    asked = d.tick()
    failed = d.sealed - d.loaded
    assert (len(d.sealed), len(failed), asked) == (10, 4, 3)
    d.declaration = replace(d.declaration, schedule=hourly)
    earlier = d.sealed - partitions(d)
    assert len(earlier) == 8
    # Its hour is not over: the sealed part is not a partition yet, although it starts at a current edge.
    assert key_of(closed_edges(hourly, d.now - timedelta(hours=1), d.now)[-1]) in earlier
    d.ticks(2 * MINUTE)
    assert {r.state for r in status_of(d).unloaded} == {"failed"}
    assert {r.window for r in status_of(d).unloaded} == failed
    assert any("Spark Connect server at localhost:1 does not answer" in p for p in status_of(d).problems)
    d.remote = spark_remote
    d.ticks(10 * MINUTE)
    assert d.loaded == d.sealed
    assert records(d.lake.rows()) == records(d.lake.committed())
    assert len(d.lake.rows()) == 4
    # The other job's materializations name the windows, and only loaded partitions.
    reported = set(materializations(instance, table_key(d.declaration.raw_table)))
    assert reported == d.sealed == set(materializations(instance, topic_key(d.lake.topic)))
    assert reported & partitions(d) == d.sealed - earlier
    assert d.newest_succeeded()
    assert all(d.check_results().values())
    assert not status_of(d).problems
    assert d.ticks(MINUTE) == 0


@pytest.mark.long
def test_dagster_takes_what_the_sensor_asks_for(lake: LakeMaker, instance: dg.DagsterInstance) -> None:
    quarterly, hourly = quarters_and_hours()
    d = daemon_of(lake, instance, quarterly, 10, range(10), NOBODY)
    requests = asked_by_the_sensor(d)
    assert [r.job_name for r in requests] == [load_job(d.lake.topic)]
    d.declaration = replace(d.declaration, schedule=hourly)
    requests = asked_by_the_sensor(d)
    assert {r.job_name for r in requests} == {load_job(d.lake.topic), earlier_windows_job(d.lake.topic)}
    (earlier,) = (r for r in requests if r.job_name == earlier_windows_job(d.lake.topic))
    run = instance.create_run_for_job(
        definitions(d.declaration, d.lake.bootstrap, d.lake.root, NOBODY).resolve_job_def(str(earlier.job_name)),
        run_config=earlier.run_config,
        tags=dict(earlier.tags),
        status=dg.DagsterRunStatus.STARTED,
    )
    table = table_key(d.declaration.raw_table)
    assert dagster_records.windows_in_flight(instance, table, d.sealed) == d.sealed - partitions(d)
    assert dagster_records.windows_in_flight(instance, table_key(TableRef.raw("other")), d.sealed) == set()
    assert dagster_records.windows_in_flight(instance, table, d.sealed, but=run.run_id) == set()
    # Its windows are not requested a second time.
    assert not {r.job_name for r in asked_by_the_sensor(d)} & {earlier.job_name}


@pytest.mark.long
def test_windows_of_an_earlier_schedule_that_fail_or_are_damaged_are_seen_and_mended(
    lake: LakeMaker, broker: Broker, spark_remote: str, instance: dg.DagsterInstance
) -> None:
    """The schedule changes from one minute to five minutes. Before the change, one window failed because retention
    deleted its records."""
    minute = (datetime.now(UTC).minute - 2) % 5
    d = daemon_of(lake, instance, "* * * * *", 8, (0, 2), spark_remote)
    d.lake.ledger.create()
    sealing.seal(d.declaration, d.lake.cluster, d.lake.ledger, d.now, deadline=float("inf"))
    delete_before(broker.bootstrap, d.lake.topic, 0, 1)
    d.declaration = replace(d.declaration, schedule=f"{minute}-59/5 * * * *")
    bad, good = sorted(w.key for w in d.lake.ledger.windows(d.lake.topic) if w.ranges.size)
    assert not partitions(d) & {bad, good}
    d.ticks(2 * MINUTE)
    assert d.sealed - d.loaded == {bad}
    assert len(d.results) == 1, "a run is spent on a window that waits for a decision"
    (unloaded,) = status_of(d).unloaded
    assert (unloaded.window, unloaded.state) == (bad, "waits for somebody")
    assert any(f"window {bad} has needed attention" in p for p in status_of(d).problems)
    sealed = d.lake.ledger.window(d.lake.topic, bad)
    assert sealed is not None
    losses = acceptance.find_losses(sealed, d.lake.ledger, d.lake.cluster, d.lake.settings)
    acceptance.accept(sealed, losses, Author("a test", "expired"), d.lake.ledger)
    DeltaTable(d.lake.table).delete(f"window = '{good}'")
    # The window itself is loaded; the checks of its run find the other one.
    assert d.tick() == 1
    assert d.loaded == d.sealed
    assert not d.newest_succeeded(), "a blocking check that alarms is passed over"
    assert "no_gaps" in {c.name for c in status_of(d).checks if c.passed is False}
    job = definitions(d.declaration, d.lake.bootstrap, d.lake.root, d.remote).resolve_job_def(
        earlier_windows_job(d.lake.topic)
    )
    assert job.execute_in_process(dagster_records.config_listing(d.lake.topic, [good]), instance=instance).success
    assert all(c.passed for c in status_of(d).checks)
    assert not status_of(d).problems
    assert records(d.lake.rows()) == records(d.lake.committed())
