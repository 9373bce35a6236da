"""Runs that decode, in this process and without Spark: their reports, and the error for a failing window."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.storage.partition_status_cache import get_and_update_asset_status_cache_value
from dagster._core.storage.tags import ASSET_PARTITION_RANGE_END_TAG, ASSET_PARTITION_RANGE_START_TAG
from sqlalchemy.exc import OperationalError

from platform_assets.checks.decoded import CONSERVATION
from platform_assets.model.declaration import TopicDeclaration
from platform_assets.model.tables import TableRef
from platform_assets.model.windows import key_of
from platform_assets.orchestration import dagster_records, execution, names, resources, run_steps
from platform_assets.orchestration.names import LOAD_ID, table_key
from platform_assets.windows.decode.decoding import DecodedWindow
from platform_assets_tests.support import decoded_defs
from platform_assets_tests.support.decoded_topic import DecodedTopic, InProcessEngine, order, tables_without_spark
from platform_assets_tests.support.runs_of import materializations
from platform_assets_tests.support.shell import DAGSTER_WARNINGS
from testbed.samples import edge

pytestmark = [*map(pytest.mark.filterwarnings, (*DAGSTER_WARNINGS, "ignore::dagster.BetaWarning"))]

TOPIC = "orders"


@pytest.fixture
def instance(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    monkeypatch.setenv("LAKE_ROOT", str(tmp_path / "lake"))
    monkeypatch.setattr(run_steps, "_RETRY_AFTER_SECONDS", 0)
    monkeypatch.setattr(resources, "decode_engine", lambda lake, *_: InProcessEngine(lake, tables_without_spark))
    with dg.DagsterInstance.local_temp(str(tmp_path)) as made:
        yield made


@pytest.fixture
def topic(tmp_path: Path) -> DecodedTopic:
    """A topic with two windows in its raw table."""
    made = DecodedTopic(tmp_path / "lake", TOPIC, decoded_defs.STRICT)
    made.load([order(1), order(2)], [order(3)])
    return made


def declaration() -> TopicDeclaration:
    return decoded_defs.declaration(TOPIC, decoded_defs.STRICT)


def defs() -> dg.Definitions:
    return decoded_defs.of_declared({TOPIC: decoded_defs.STRICT})


def run_listed(instance: dg.DagsterInstance, keys: list[str]) -> dg.ExecuteInProcessResult:
    """Run the job that decodes exactly these windows."""
    config = dagster_records.config_listing(TOPIC, keys, decode_only=True)
    job = defs().resolve_job_def(names.earlier_windows_job(TOPIC))
    return job.execute_in_process(config, instance=instance, raise_on_error=False)


def reported(instance: dg.DagsterInstance) -> dict[TableRef, dict[str, object]]:
    """Return, for each decoded table, the load ids in the newest materializations, by window."""
    d = declaration()
    return {
        table: {window: values[LOAD_ID] for window, values in materializations(instance, table_key(table)).items()}
        for table in (d.decoded_table, d.dead_letter_table)
    }


def in_ledger(topic: DecodedTopic) -> dict[TableRef, dict[str, object]]:
    d = declaration()
    tables = (d.decoded_table, d.dead_letter_table)
    return {t: {k: r.load_id for k, r in topic.ledger.receipts(t).items()} for t in tables}


def test_a_run_of_partitions_and_one_that_lists_windows_report_the_same(
    instance: dg.DagsterInstance, topic: DecodedTopic
) -> None:
    keys = [w.key for w in topic.windows]
    d = declaration()
    chosen = (
        defs()
        .resolve_implicit_global_asset_job_def()
        .get_subset(asset_selection=set(names.decoded_keys(d)), asset_check_selection=set(names.check_keys(d)))
    )
    tags = {ASSET_PARTITION_RANGE_START_TAG: keys[0], ASSET_PARTITION_RANGE_END_TAG: keys[-1]}
    result = chosen.execute_in_process(instance=instance, tags=tags, raise_on_error=False)
    assert result.success
    assert CONSERVATION in {e.check_name for e in result.get_asset_check_evaluations() if e.passed}
    assert reported(instance) == in_ledger(topic)
    of_partitions = materializations(instance, table_key(d.decoded_table))
    listed = run_listed(instance, keys)
    assert listed.success
    assert CONSERVATION in {e.check_name for e in listed.get_asset_check_evaluations() if e.passed}
    of_list = materializations(instance, table_key(d.decoded_table))
    assert {k: set(v) for k, v in of_list.items()} == {k: set(v) for k, v in of_partitions.items()}
    assert reported(instance) == in_ledger(topic)


def test_a_run_that_lists_windows_shows_them_before_they_are_loaded(
    instance: dg.DagsterInstance, topic: DecodedTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The UI shows a partition as in progress if the newest of its events is a plan of a run that has not finished, and
    as failed if that run failed."""
    d, (first, second), lacking = declaration(), [w.key for w in topic.windows], key_of(edge(7))
    tables = [table_key(d.decoded_table), table_key(d.dead_letter_table)]
    seen: list[tuple[set[str], set[str]]] = []

    def shown() -> tuple[set[str], set[str]]:
        """Return the windows that are shown as failed and as in progress, the same for both tables."""
        found = []
        for table in tables:
            status = get_and_update_asset_status_cache_value(instance, table, partitions)
            assert status is not None
            failed = status.deserialize_failed_partition_subsets(partitions)
            in_progress = status.deserialize_in_progress_partition_subsets(partitions)
            found.append((set(failed.get_partition_keys()), set(in_progress.get_partition_keys())))
        assert found[0] == found[1]
        return found[0]

    declared = defs().resolve_asset_graph().get(tables[0]).partitions_def
    assert declared is not None
    partitions: dg.PartitionsDefinition[str] = declared
    decode = execution.decode_each

    def observed(*args: Any) -> Iterator[execution.Attempt[DecodedWindow]]:
        seen.append(shown())
        yield from decode(*args)

    monkeypatch.setattr(execution, "decode_each", observed)
    assert not run_listed(instance, [lacking, first, second]).success
    assert seen[0] == (set(), {first, second, lacking})
    assert shown() == ({lacking}, set())


@pytest.mark.parametrize(("most", "shown"), [(4, 4), (3, 0)])
def test_a_run_of_many_windows_shows_none_before_they_are_loaded(
    most: int, shown: int, instance: dg.DagsterInstance, topic: DecodedTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_steps, "SHOWN_AHEAD", most)
    run = run_listed(instance, [w.key for w in topic.windows])
    planned = instance.get_records_for_run(run.run_id, of_type=dg.DagsterEventType.ASSET_MATERIALIZATION_PLANNED)
    keys = [record.partition_key for record in planned.records]
    assert len([key for key in keys if key is not None]) == shown


def test_a_run_continues_if_the_storage_refuses_the_windows_that_it_will_load(
    instance: dg.DagsterInstance, topic: DecodedTopic, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refused(*_: Any) -> None:
        raise OperationalError("INSERT", {}, Exception("database is locked"))

    monkeypatch.setattr(dagster_records, "report_planned", refused)
    assert run_listed(instance, [w.key for w in topic.windows]).success
    assert reported(instance) == in_ledger(topic)
    assert "database is locked" in caplog.text


def test_a_window_that_cannot_be_decoded_fails_its_run_and_holds_up_no_other(
    instance: dg.DagsterInstance, topic: DecodedTopic
) -> None:
    """The raw table does not have the window. The run reports this for the decoded table, and the sensor waits before
    it requests the window again."""
    d, (first, second), lacking = declaration(), [w.key for w in topic.windows], key_of(edge(7))
    result = run_listed(instance, [lacking, first, second])
    assert not result.success
    assert reported(instance) == in_ledger(topic)
    assert set(reported(instance)[d.decoded_table]) == {first, second}
    run = instance.get_run_by_id(result.run_id)
    assert run is not None
    assert run.tags[dagster_records.TABLE_TAG] == d.decoded_table.name
    (failed,) = dagster_records.failed_runs(instance, d.decoded_table, [first, second, lacking])
    assert failed.failures is not None
    assert set(failed.failures.causes) == {lacking}
    assert failed.declaration == decoded_defs.STRICT.fingerprint
