"""Deletion of old runs: Dagster's view of partitions, assets, checks and retries does not change."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import dagster as dg
import pytest

from platform_assets.orchestration import dagster_records
from platform_assets.orchestration.maintenance.pruning import Budget, Pruned, prune
from platform_assets.orchestration.names import run_tag
from platform_assets_tests.support.dagster_view import (
    CHECK,
    KEYS,
    LOCATION,
    SOURCE,
    TABLE,
    Breaks,
    load,
    view,
)

LATER = timedelta(days=60)


@contextmanager
def instance_at(folder: Path) -> Iterator[dg.DagsterInstance]:
    folder.mkdir(exist_ok=True)
    with dg.DagsterInstance.local_temp(str(folder), {"telemetry": {"enabled": False}}) as made:
        yield made


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    """An instance without runs."""
    with instance_at(tmp_path / "dagster") as made:
        yield made


@pytest.fixture(scope="module")
def history_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of an instance with runs. Creating it takes seconds, so tests use copies."""
    folder = tmp_path_factory.mktemp("history") / "dagster"
    with instance_at(folder) as made:
        a_history(made)
    return folder


@pytest.fixture
def old_instance(tmp_path: Path, history_folder: Path) -> Iterator[dg.DagsterInstance]:
    """An instance with the runs that `a_history` makes."""
    shutil.copytree(history_folder, tmp_path / "dagster")
    with instance_at(tmp_path / "dagster") as made:
        assert run_ids(made)
        yield made


def pruned(instance: dg.DagsterInstance, budget: Budget | None = None, *, dry_run: bool = False) -> Pruned:
    """Prune as if all records were about two months old."""
    return prune(instance, LOCATION, budget or Budget(), datetime.now(UTC) + LATER, dry_run=dry_run)


def a_history(instance: dg.DagsterInstance) -> None:
    """Load windows in all ways: once, twice, after a failure, and with a failed last load. Leave some windows unloaded."""
    for key in KEYS[:6]:
        load(instance, key)
    load(instance, KEYS[0])
    for key in KEYS[6:8]:
        load(instance, key, breaks=Breaks(loads=[key]))
    load(instance, KEYS[6])
    load(instance, KEYS[1], breaks=Breaks(loads=[KEYS[1]]))
    load(instance, KEYS[7], breaks=Breaks(loads=[KEYS[7]]))
    load(instance, KEYS[8], breaks=Breaks(checks=[KEYS[8]]))
    for key in KEYS[9:11]:
        load(instance, key)
    load(instance, KEYS[9], location="another")
    load(instance, KEYS[11])


def run_ids(instance: dg.DagsterInstance) -> set[str]:
    return {record.dagster_run.run_id for record in instance.get_run_records()}


def test_what_dagster_shows_is_the_same_before_and_after(old_instance: dg.DagsterInstance) -> None:
    before, known = view(old_instance), run_ids(old_instance)
    assert before[str(TABLE.path)]["failed"] == sorted([KEYS[1], KEYS[7]])
    assert before["tries"][KEYS[7]].number == 2

    done = pruned(old_instance)
    assert view(old_instance) == before
    assert done.complete
    assert done.spared == {
        "an attempt at a partition that was not loaded since": 3,
        "ended within a day, or is the newest": 1,
    }
    # Those and the other location's.
    assert done.runs == len(known) - 5
    assert len(run_ids(old_instance)) == 5
    assert done.left == 4


@pytest.mark.long
def test_dagsters_own_deletion_takes_partitions_away(instance: dg.DagsterInstance) -> None:
    """This is the reason why the platform has its own deletion. If this test fails, Dagster has fixed the deletion of
    runs."""
    first = load(instance, KEYS[0])
    load(instance, KEYS[1])
    assert instance.get_materialized_partitions(TABLE) == {KEYS[0], KEYS[1]}
    instance.delete_run(first.run_id)
    assert instance.get_materialized_partitions(TABLE) == {KEYS[1]}


def test_a_run_whose_every_word_was_said_again_leaves_nothing(instance: dg.DagsterInstance, tmp_path: Path) -> None:
    first = load(instance, KEYS[0])
    for _ in range(2):
        load(instance, KEYS[0])
    pruned(instance)
    assert instance.get_run_by_id(first.run_id) is None
    found = instance.fetch_materializations(dg.AssetRecordsFilter(TABLE, asset_partitions=[KEYS[0]]), limit=10)
    assert first.run_id not in {r.run_id for r in found.records}
    assert len(found.records) == 1
    assert not list((tmp_path / "dagster").rglob(f"{first.run_id}*"))
    executions = instance.event_log_storage.get_asset_check_execution_history(CHECK, limit=10)
    assert len(executions) == 1


def test_a_failed_run_of_many_topics_stays_while_retries_count_it(instance: dg.DagsterInstance) -> None:
    """The run's tag for a table does not show which of the table's windows have not been loaded since."""
    failed = [load(instance, key, breaks=Breaks(loads=[key])).run_id for key in KEYS[:2]]
    instance.add_run_tags(failed[0], {dagster_records.TABLE_TAG: run_tag(None)})
    for key in KEYS[:3]:
        load(instance, key)
    pruned(instance)
    assert run_ids(instance) & {*failed} == {failed[0]}


def test_nothing_happens_to_what_is_within_the_budget_or_young(old_instance: dg.DagsterInstance) -> None:
    known, now = run_ids(old_instance), datetime.now(UTC)
    assert prune(old_instance, LOCATION, Budget(), now + timedelta(days=29)).runs == 0
    assert prune(old_instance, LOCATION, Budget(timedelta(0), 0), now + timedelta(hours=23)).runs == 0
    # Failed ones stay for a week: a tick asks what they have loaded.
    prune(old_instance, LOCATION, Budget(timedelta(0)), now + timedelta(days=6))
    failed = dg.RunsFilter(statuses=[dg.DagsterRunStatus.FAILURE])
    assert old_instance.get_runs_count(failed) == 4
    assert run_ids(old_instance) < known


def test_a_number_of_runs_is_kept_whatever_their_age(instance: dg.DagsterInstance) -> None:
    ids = [load(instance, key).run_id for key in KEYS[:8]]
    now = datetime.now(UTC) + timedelta(days=3)
    done = prune(instance, LOCATION, Budget(most=5), now)
    assert (done.runs, done.left) == (3, 5)
    assert run_ids(instance) == set(ids[3:])


def test_a_dry_run_says_the_same_and_deletes_nothing(old_instance: dg.DagsterInstance) -> None:
    before, known = view(old_instance), run_ids(old_instance)
    foretold = pruned(old_instance, dry_run=True)
    assert run_ids(old_instance) == known
    assert view(old_instance) == before
    done = pruned(old_instance)
    assert (foretold.runs, foretold.spared) == (done.runs, done.spared)
    assert foretold.deleted.events == done.deleted.events > 0
    assert "would delete" in foretold.text()


def test_time_that_runs_out_is_gone_on_from(old_instance: dg.DagsterInstance) -> None:
    before = view(old_instance)
    ticks = iter(range(1000))
    now = datetime.now(UTC) + LATER
    cut = prune(old_instance, LOCATION, Budget(seconds=4), now, clock=lambda: float(next(ticks)))
    assert not cut.complete
    assert 0 < cut.runs < 5
    assert view(old_instance) == before
    rest, whole = pruned(old_instance), len(run_ids(old_instance))
    assert rest.complete
    assert rest.runs > 0
    assert whole == 5
    assert view(old_instance) == before


def test_one_that_dies_in_the_middle_is_finished_by_the_next(
    old_instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = view(old_instance)
    manager = old_instance.compute_log_manager

    def die(**_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(manager, "delete_logs", die)
        with pytest.raises(KeyboardInterrupt):
            pruned(old_instance)
    assert view(old_instance) == before
    pruned(old_instance)
    assert len(run_ids(old_instance)) == 5
    assert view(old_instance) == before


def test_what_was_reported_without_a_run_and_again_since_goes(instance: dg.DagsterInstance) -> None:
    load(instance, KEYS[0])
    for key in KEYS[1:6]:
        instance.report_runless_asset_event(dg.AssetMaterialization(SOURCE, partition=key))
        instance.report_runless_asset_event(dg.AssetMaterialization(SOURCE, partition=key))
        instance.report_runless_asset_event(dg.AssetCheckEvaluation(TABLE, CHECK.name, passed=True))
        instance.report_runless_asset_event(dg.AssetMaterialization("theirs"))
    before = view(instance)
    done = pruned(instance)
    # Five second reports, four evaluations; the run is the last of its assets, and has its evaluation still.
    assert done.deleted.events == 5 + 4
    assert view(instance) == before
    assert len(instance.event_log_storage.get_asset_check_execution_history(CHECK, limit=20)) == 1 + 1
    assert len(instance.fetch_materializations(dg.AssetKey("theirs"), limit=20).records) == 5


@pytest.mark.long
def test_files_that_dagsters_own_deletion_leaves_are_removed(instance: dg.DagsterInstance, tmp_path: Path) -> None:
    gone = load(instance, KEYS[0]).run_id
    load(instance, KEYS[1])
    instance.delete_run(gone)
    assert list((tmp_path / "dagster").rglob(f"{gone}.db"))
    pruned(instance)
    assert not list((tmp_path / "dagster").rglob(f"{gone}.db"))
