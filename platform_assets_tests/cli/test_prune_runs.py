"""`platform-assets prune-runs`, and the job that does the same."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.storage.tags import REPOSITORY_LABEL_TAG

from platform_assets.errors import ConfigurationError
from platform_assets.orchestration.maintenance import jobs, pruning
from platform_assets.orchestration.resources import LakeResource, SparkResource
from platform_assets.services import dagster_services, platform
from platform_assets.services.home import Home
from platform_assets_tests.support.dagster_view import KEYS, LOCATION, TABLE, load, view
from platform_assets_tests.support.shell import DAGSTER_WARNINGS, Shell

pytestmark = [*map(pytest.mark.filterwarnings, DAGSTER_WARNINGS)]


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    made = Shell(tmp_path / "project")
    made.variables["LAKE_ROOT"] = str(tmp_path / "lake")
    return made


@pytest.fixture
def instance(shell: Shell) -> Iterator[dg.DagsterInstance]:
    """Return the shell's instance, with a window that was loaded twice. By the clock used for pruning, this was two
    months ago."""
    home = Home.from_environment(shell.variables)
    dagster_services.prepare(home)
    with dg.DagsterInstance.from_config(str(home.dagster)) as made:
        for key in (KEYS[0], KEYS[0], KEYS[1]):
            load(made, key)
        yield made


class _Later(datetime):
    """A clock that is two months fast."""

    @classmethod
    def now(cls, tz: object = None) -> datetime:  # type: ignore[override]
        assert tz is UTC
        return datetime.now(UTC) + timedelta(days=60)


def test_the_command_says_what_it_deletes_and_leaves_the_view(
    shell: Shell, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platform_assets.cli.prune_runs.datetime", _Later)
    before = view(instance)
    listed = shell.run("prune-runs", "--location", LOCATION, "--dry-run")
    assert listed.exit_code == 0, listed.output
    assert listed.output.startswith("would delete 2 runs, ")
    assert instance.get_runs_count() == 3

    # The run's own location differs. Events that were reported without a run, and have been reported again since, have
    # no location.
    assert shell.run("prune-runs").output.startswith("deleted 0 runs, 1 event, ")

    short = shell.run("prune-runs", "--location", LOCATION, "--seconds", "0")
    assert short.exit_code == 3
    assert "run this again to continue" in short.output

    done = shell.run("prune-runs", "--location", LOCATION, "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.output)
    assert found.pop("events") > 10
    assert found.pop("bytes") > 100_000
    assert found == {
        "version": 1,
        "location": LOCATION,
        "dry_run": False,
        "runs": 2,
        "spared": {"ended within a day, or is the newest": 1},
        "left": 1,
        "complete": True,
    }
    assert view(instance) == before


def test_without_an_instance_the_next_step_is_named(shell: Shell) -> None:
    refused = shell.run("prune-runs")
    assert refused.exit_code == 1
    assert "run `platform-assets up`, or set DAGSTER_HOME" in refused.output


def test_the_job_prunes_and_says_so(instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "datetime", _Later)
    unused = {"lake": LakeResource(root="/not asked for"), "spark": SparkResource(remote="sc://localhost:1")}
    lake = dg.Definitions(resources=unused)
    job = dg.Definitions.merge(jobs.definitions(), lake).resolve_job_def("prune_runs")
    config = {"ops": {"prune_old_runs": {"config": {"keep_days": 10, "location": LOCATION}}}}
    tags = {REPOSITORY_LABEL_TAG: pruning.label_of(LOCATION)}
    done = job.execute_in_process(config, instance=instance, tags=tags)
    assert done.success
    # The job's own run is in progress, and the newest load holds the last materialization of its assets.
    assert instance.get_runs_count() == 2
    assert instance.get_materialized_partitions(TABLE) == {KEYS[0], KEYS[1]}
    said = [r.event_log_entry.user_message for r in instance.get_records_for_run(done.run_id).records]
    assert any(text.startswith("deleted 2 runs, ") for text in said)

    nowhere = job.execute_in_process(instance=instance, raise_on_error=False)
    assert not nowhere.success


@pytest.mark.parametrize(
    ("days", "status"), [(None, dg.DefaultScheduleStatus.STOPPED), (45.0, dg.DefaultScheduleStatus.RUNNING)]
)
def test_the_schedule_runs_where_days_are_declared(days: float | None, status: dg.DefaultScheduleStatus) -> None:
    schedule = next(s for s in jobs.definitions(days).schedules or [] if s.name == "prune_runs_schedule")
    assert isinstance(schedule, dg.ScheduleDefinition)
    assert schedule.default_status == status
    request = schedule.evaluate_tick(dg.build_schedule_context(scheduled_execution_time=datetime.now(UTC)))
    (asked,) = request.run_requests or []
    assert asked.run_config["ops"]["prune_old_runs"]["config"] == ({} if days is None else {"keep_days": days})


@pytest.mark.parametrize("text", ["soon", "0", "-3", "nan", "inf"])
def test_days_that_are_none_are_refused_by_name(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"PLATFORM_KEEP_RUNS_DAYS is .*: give a number of days"):
        jobs.days_of(text)


def test_days_reach_dagster(tmp_path: Path) -> None:
    home = Home.from_environment({"PLATFORM_HOME": str(tmp_path)})
    found = platform.environment(home, environ={platform.KEEP_RUNS: "45"})
    assert jobs.days_of(found[platform.KEEP_RUNS]) == 45.0
    assert jobs.days_of(None) is None
