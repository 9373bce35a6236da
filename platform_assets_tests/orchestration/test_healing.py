"""Recovery from outages: the tests run ticks and runs as the daemon does, in this process and without any manual
action."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import dagster as dg
import pytest

from platform_assets.errors import ConfigurationError
from platform_assets.ledger.decisions import Author
from platform_assets.model.tables import TableRef
from platform_assets.model.windows import key_of, milliseconds
from platform_assets.orchestration import dagster_records, run_steps, status
from platform_assets.orchestration.names import table_key
from platform_assets.orchestration.planning import wait_before_retry
from platform_assets.windows.decide import acceptance, parking
from platform_assets_tests.support.daemon import Daemon
from platform_assets_tests.support.streams import ANY_TIME, delete_before
from testbed.loads import Record, records
from testbed.project import definitions

if TYPE_CHECKING:
    from platform_assets_tests.conftest import Broker, LakeMaker

pytestmark = pytest.mark.broker

NOBODY = "sc://localhost:1/;token=secret"
HOUR = timedelta(hours=1)


@pytest.fixture
def instance(monkeypatch: pytest.MonkeyPatch) -> Iterator[dg.DagsterInstance]:
    """A new instance that does not wait before it retries a run."""
    monkeypatch.setattr(run_steps, "_RETRY_AFTER_SECONDS", 0)
    with dg.DagsterInstance.ephemeral() as made:
        yield made


def hours_ago(number: int) -> datetime:
    return datetime.now(UTC).replace(minute=0, second=0, microsecond=0) - number * HOUR


def daemon(lake: LakeMaker, instance: dg.DagsterInstance, stamps: list[int], remote: str, most: int = 200) -> Daemon:
    """Return the daemon of a topic with a record at each of `stamps`, and with hourly windows since `len(stamps)` hours
    ago."""
    start = hours_ago(len(stamps))
    lk = lake(config=ANY_TIME, start=start)
    lk.send([Record(b"%d" % n, timestamp=stamp) for n, stamp in enumerate(stamps)])
    declared = replace(lk.declaration, schedule="0 * * * *", max_windows_per_run=most)
    return Daemon(lk, instance, remote, declared)


def stamps(number: int) -> list[int]:
    """Return timestamps in the middle of each of the last `number` hours."""
    return [milliseconds(hours_ago(n) + HOUR / 2) for n in range(number, 0, -1)]


def test_after_an_outage_of_spark_every_window_is_loaded_and_nobody_acted(
    lake: LakeMaker, spark_remote: str, instance: dg.DagsterInstance
) -> None:
    d = daemon(lake, instance, stamps(5), NOBODY, most=2)
    assert d.tick() == 3
    assert len(d.sealed) == 5
    assert d.tick() == 0, "a run that failed a moment ago is requested at once"
    asked = d.ticks(10 * d.declaration.sensor_interval)
    assert 6 <= asked <= 12, "the waits do not grow"
    assert not any(r.success for r in d.results)
    assert not d.loaded & {w.key for w in d.lake.ledger.windows(d.lake.topic) if w.ranges.size}
    d.remote = spark_remote
    d.ticks(timedelta(minutes=20))
    assert d.loaded == d.sealed
    assert d.newest_succeeded()
    assert all(d.check_results().values())
    assert records(d.lake.rows()) == records(d.lake.committed())
    assert len(d.lake.rows()) == 5
    # Nothing is left to request.
    assert d.ticks(timedelta(minutes=5)) == 0


def test_a_loss_spends_no_run_until_it_is_accepted_and_then_needs_no_other_act(
    lake: LakeMaker, broker: Broker, spark_remote: str, instance: dg.DagsterInstance
) -> None:
    """Retention deleted the first record while Spark was not available."""
    d = daemon(lake, instance, stamps(3), NOBODY)
    assert d.tick() == 1
    delete_before(broker.bootstrap, d.lake.topic, 0, 1)
    d.remote = spark_remote
    d.ticks(timedelta(minutes=2))
    # One window that is refused does not delay the others of its run.
    (bad,) = d.sealed - d.loaded
    assert bad == min(d.sealed)
    assert not d.newest_succeeded()
    assert d.ticks(HOUR / 2) == 0
    check_result = {e.check_name: e for e in _checked_again(d)}["no_gaps"]
    assert not check_result.passed
    assert check_result.severity is dg.AssetCheckSeverity.ERROR
    assert bad in str(check_result.description)
    sealed = d.lake.ledger.window(d.lake.topic, bad)
    assert sealed is not None
    losses = acceptance.find_losses(sealed, d.lake.ledger, d.lake.cluster, d.lake.settings)
    acceptance.accept(sealed, losses, Author("a test", "a test"), d.lake.ledger)
    assert d.tick() == 1
    assert d.loaded == d.sealed
    assert d.newest_succeeded()
    assert all(d.check_results().values())
    assert len(d.lake.rows()) == 2


@pytest.mark.long
def test_a_parked_window_is_asked_for_by_nobody_until_it_is_taken_up_again(
    lake: LakeMaker, broker: Broker, spark_remote: str, instance: dg.DagsterInstance
) -> None:
    d = daemon(lake, instance, stamps(3), NOBODY)
    assert d.tick() == 1
    delete_before(broker.bootstrap, d.lake.topic, 0, 1)
    d.remote = spark_remote
    d.ticks(timedelta(minutes=2))
    (bad,) = d.sealed - d.loaded
    (good, *_) = d.loaded
    table, ledger, author = d.declaration.raw_table, d.lake.ledger, Author("ann", "nobody needs it now")
    with pytest.raises(ConfigurationError, match=f"{good} of {table}: already loaded"):
        parking.park(table, [bad, good], author, ledger)
    with pytest.raises(ConfigurationError, match=f"{bad} of {table}: not parked"):
        parking.unpark(table, [bad], author, ledger)
    parking.park(table, [bad], author, ledger)
    assert d.ticks(HOUR / 2) == 0
    # At the time that it is: ahead of the broker's clock, status would say so.
    (shown,) = status.collect([d.declaration], ledger, d.lake.cluster, None, (), datetime.now(UTC)).tables
    assert (shown.windows_parked, shown.windows_failed, shown.windows_waiting, shown.problems) == (1, 0, 0, ())
    assert [(w.window, w.state, w.error) for w in shown.unloaded] == [
        (bad, "parked", "parked by ann: nobody needs it now")
    ]
    check_result = {e.check_name: e for e in _checked_again(d)}["no_gaps"]
    assert (check_result.passed, check_result.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert f"platform-assets unpark {table} {bad}" in str(check_result.metadata) + str(check_result.description)
    # Taken up again it is requested at once, and again once its loss is accepted.
    parking.unpark(table, [bad], author, ledger)
    assert d.tick() == 1
    assert d.ticks(HOUR / 2) == 0
    sealed = ledger.window(d.lake.topic, bad)
    assert sealed is not None
    acceptance.accept(sealed, acceptance.find_losses(sealed, ledger, d.lake.cluster, d.lake.settings), author, ledger)
    assert d.tick() == 1
    assert d.loaded == d.sealed
    assert all(d.check_results().values())


def _checked_again(d: Daemon) -> list[dg.AssetCheckEvaluation]:
    """Load a good window again in a run; return the run's check results."""
    good = min(d.loaded)
    found = definitions(d.declaration, d.lake.bootstrap, d.lake.root, d.remote)
    job = found.resolve_implicit_global_asset_job_def()
    return list(
        job.execute_in_process(
            instance=d.instance, partition_key=good, raise_on_error=False
        ).get_asset_check_evaluations()
    )


def test_no_gaps_passes_and_says_so_while_windows_wait_for_their_next_try(
    lake: LakeMaker, spark_remote: str, instance: dg.DagsterInstance
) -> None:
    d = daemon(lake, instance, stamps(3), NOBODY, most=1)
    assert d.tick() == 3
    newest = max(w.key for w in d.lake.ledger.windows(d.lake.topic) if w.ranges.size)
    d.remote = spark_remote
    found = definitions(d.declaration, d.lake.bootstrap, d.lake.root, d.remote)
    result = found.resolve_implicit_global_asset_job_def().execute_in_process(
        instance=instance, partition_key=newest, raise_on_error=False
    )
    assert result.success
    (check_result,) = (e for e in result.get_asset_check_evaluations() if e.check_name == "no_gaps")
    assert check_result.passed
    assert "2 windows waiting to be loaded" in str(check_result.description)


def test_a_run_says_on_itself_why_each_window_failed(
    lake: LakeMaker, spark_remote: str, instance: dg.DagsterInstance
) -> None:
    d = daemon(lake, instance, stamps(2), NOBODY)
    d.tick()
    keys = sorted(d.sealed)
    (run,) = dagster_records.failed_runs(instance, TableRef.raw(d.lake.topic), keys)
    assert (run.windows.first, run.windows.last) == (key_of(hours_ago(2)), key_of(hours_ago(1)))
    assert run.failures is not None
    # The second was not tried, because Spark was not available.
    assert run.failures.causes == {keys[0]: "passing"}
    assert "Spark Connect server at localhost:1 does not answer" in run.error_of("")
    assert "secret" not in run.error_of("")
    assert wait_before_retry(1, d.declaration.sensor_interval) == d.declaration.sensor_interval
    assert not dagster_records.windows_in_flight(instance, table_key(TableRef.raw(d.lake.topic)), keys)
