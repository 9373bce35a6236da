"""`platform-assets upkeep`, and the job that does the same: what they merge, print and report."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any
from uuid import uuid4

import dagster as dg
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from platform_assets.engines.merging.engine import MergeEngine
from platform_assets.ledger import decisions
from platform_assets.model.declaration import TopicDeclaration
from platform_assets.orchestration import upkeep_status
from platform_assets.orchestration.maintenance import upkeep
from platform_assets.orchestration.names import table_key
from platform_assets.orchestration.resources import LakeResource, SparkResource
from platform_assets.windows.maintain import last_upkeep
from platform_assets_tests.support.erasures import MadeTopic, proved
from platform_assets_tests.support.shell import DAGSTER_WARNINGS, Shell
from testbed import samples
from testbed.layouts import new_tables_are

pytestmark = [pytest.mark.usefixtures("flat"), *map(pytest.mark.filterwarnings, DAGSTER_WARNINGS)]
WINDOWS = 5


def filled(root: Path) -> MadeTopic:
    """Return a topic with small windows on 2026-01-01, loaded and decoded."""
    made = MadeTopic(root)
    made.fill(made.seal([{0: [(b"k", b"%d-%d" % (w, n)) for n in range(20)]} for w in range(WINDOWS)]))
    return made


@pytest.fixture
def topic(tmp_path: Path) -> MadeTopic:
    return filled(tmp_path / "lake")


@pytest.fixture
def shell(topic: MadeTopic, tmp_path: Path) -> Shell:
    made = Shell(tmp_path / "project")
    made.declare(topic.topic)
    made.variables["LAKE_ROOT"] = str(topic.root)
    return made


def files(topic: MadeTopic, kind: str = "raw") -> list[dict[str, Any]]:
    found = pa.table(DeltaTable(topic.root / kind / topic.topic).get_add_actions(flatten=True))
    return list(found.to_pylist())


def test_files_are_merged_and_the_command_says_so(shell: Shell, topic: MadeTopic) -> None:
    listed = shell.run("upkeep", "raw/people", "--dry-run")
    assert listed.exit_code == 0, listed.output
    assert listed.stdout.startswith(f"raw/people: would merge {WINDOWS} files (")
    assert len(files(topic)) == WINDOWS

    done = shell.run("upkeep")
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert [text.partition(": ")[0] for text in lines] == ["dead_letters/people", "decoded/people", "raw/people"]
    assert lines[2].startswith(f"raw/people: merged {WINDOWS} files (")
    assert len(files(topic)) == len(files(topic, "decoded")) == 1
    assert list((topic.root / "raw" / "people" / "_delta_log").glob("*.checkpoint.parquet"))
    proved(topic)

    again = shell.run("upkeep", "people", "--json")
    (table,) = json.loads(again.stdout)["tables"]
    assert (table["table"], table["merged_files"], table["files"]) == ("raw/people", 0, 1)


def test_quiet_windows_and_the_budget_limit_a_run(shell: Shell, topic: MadeTopic) -> None:
    """A run merges at least one group, and reports the groups that remain."""
    refused = shell.run("upkeep", "people", "--quiet-hours", "99999", "--json")
    assert json.loads(refused.stdout)["tables"][0]["merged_files"] == 0
    size = max(file["size_bytes"] for file in files(topic))
    done = shell.run("upkeep", "people", "--target", str(2 * size + 1), "--budget", "1 KB", "--json")
    assert done.exit_code == 0, done.output
    (table,) = json.loads(done.stdout)["tables"]
    assert (table["merged_files"], table["files"]) == (3, WINDOWS - 2)
    assert table["left_bytes"] == sum(file["size_bytes"] for file in files(topic)) - table["new_bytes"]
    wrong = shell.run("upkeep", "people", "--target", "much")
    assert wrong.exit_code == 2
    assert "128 MB" in wrong.output


def test_damage_is_named_with_a_remedy_that_works(shell: Shell, topic: MadeTopic) -> None:
    of = topic.ledger.windows(topic.topic)[2]
    DeltaTable(topic.root / "raw" / "people").delete(f"window = '{of.key}' AND kafka_offset % 3 = 0")
    dead = topic.root / "raw" / "people" / "dead.parquet"
    dead.write_bytes(b"no version names it")
    os.utime(dead, (0, 0))
    done = shell.run("upkeep", "people")
    assert done.exit_code == 1
    assert f"`platform-assets load raw/people {of.key}`" in done.stderr
    # The rows may be in files of past versions only.
    assert dead.exists()
    kept = last_upkeep.recall(topic.lake, topic.declaration.raw_table)
    assert kept is not None
    assert last_upkeep.standing(topic.ledger, topic.declaration.raw_table, kept) == (of.key,)
    assert topic.load(of).outcome == "healed"
    assert last_upkeep.standing(topic.ledger, topic.declaration.raw_table, kept) == ()
    assert shell.run("upkeep", "people").exit_code == 0
    assert not dead.exists()
    assert len(files(topic)) == 1
    proved(topic)


def test_status_shows_the_newest_upkeep_and_the_damage_it_found(shell: Shell, topic: MadeTopic) -> None:
    of = topic.ledger.windows(topic.topic)[2]
    DeltaTable(topic.root / "raw" / "people").delete(f"window = '{of.key}' AND kafka_offset % 3 = 0")
    assert shell.run("upkeep").exit_code == 1
    (found,) = upkeep_status.collect(TopicDeclaration(topic.topic, "0 * * * *", samples.START), topic.ledger)
    assert (found.table, found.files, found.merged_files, found.damaged) == ("raw/people", WINDOWS, 0, (of.key,))
    shown = shell.run("status")
    assert f"raw/people: last upkeep at {found.at}: merged no files; the table has {WINDOWS} files of " in shown.output
    assert f"`platform-assets load raw/people {of.key}`" in shown.output
    (row,) = json.loads(shell.run("status", "--json").stdout)["tables"]
    assert [each["damaged"] for each in row["upkeep"]] == [[of.key]]
    topic.load(of)
    assert f"load raw/people {of.key}" not in shell.run("status").output


def test_old_files_are_deleted_once_a_day(shell: Shell, topic: MadeTopic) -> None:
    table = topic.root / "raw" / "people"
    dead = [table / "window=2026-01-01-00%3A00" / name / "part-0.parquet" for name in ("dead", "dead later")]
    for file in dead:
        file.parent.mkdir()
        file.write_bytes(b"never ended")
        os.utime(file, (0, 0))
        assert shell.run("upkeep", "people").exit_code == 0
    assert [file.exists() for file in dead] == [False, True]
    (topic.root / "_ledger" / "upkeep").rename(topic.root / "elsewhere")
    assert "deleted 1 old file (11 bytes)" in shell.run("upkeep", "people").stdout
    assert not dead[1].exists()


@pytest.mark.parametrize("damage", ["window = '{0}'", "window = '{0}' AND kafka_offset = {1}"])
def test_old_files_stay_while_they_may_have_rows_that_a_window_lacks(
    shell: Shell, topic: MadeTopic, damage: str
) -> None:
    table = topic.root / "raw" / "people"
    assert shell.run("upkeep", "people").exit_code == 0
    DeltaTable(table).alter.set_table_properties({"delta.deletedFileRetentionDuration": "interval 0 hours"})
    of = topic.ledger.windows(topic.topic)[1]
    DeltaTable(table).delete(damage.format(of.key, of.ranges.by_partition[0].start))
    before = set(table.rglob("*.parquet"))
    for _ in range(2):
        (topic.root / "_ledger" / "upkeep").rename(topic.root / str(uuid4()))
        shown = shell.run("upkeep", "raw/people")
        assert f"kept all old files, because 1 window ({of.key}) may need them" in " ".join(shown.stdout.split())
        assert set(table.rglob("*.parquet")) == before
    topic.load(of)
    done = shell.run("upkeep", "raw/people")
    assert "old file" in done.stdout
    assert "kept" not in done.stdout
    assert len([file for file in table.rglob("*.parquet") if "_delta_log" not in file.parts]) == len(files(topic))
    proved(topic)


def test_a_partitioned_table_is_left_alone(tmp_path: Path, shell: Shell) -> None:
    with new_tables_are("partitioned"):
        topic = filled(tmp_path / "partitioned")
    done = shell.run("upkeep", "people", LAKE_ROOT=str(topic.root))
    assert (done.exit_code, done.stdout) == (
        0,
        "raw/people: its files are not merged, because the table is partitioned by windows\n",
    )
    assert len(files(topic)) == WINDOWS


def test_a_table_without_files_is_refused_by_name(shell: Shell) -> None:
    shell.declare("orders")
    refused = shell.run("upkeep", "orders")
    assert refused.exit_code == 1
    assert "raw/orders has no files yet, because nothing has been loaded into it" in refused.output


def definitions(topic: MadeTopic, declared: bool = True) -> dg.Definitions:
    resources = {"lake": LakeResource(root=str(topic.root)), "spark": SparkResource(remote="sc://localhost:1")}
    found = upkeep.definitions(lambda: {topic.topic: topic.declaration} if declared else {})
    return dg.Definitions.merge(found, dg.Definitions(resources=resources))


def test_the_job_merges_every_table_and_reports_on_each_page(topic: MadeTopic, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "merge_engine", lambda *_: MergeEngine())
    job = definitions(topic).resolve_job_def("upkeep")
    done = job.execute_in_process()
    assert done.success
    assert len(files(topic)) == len(files(topic, "decoded")) == 1
    observed = {
        e.asset_key: e.event_specific_data for e in done.all_events if e.event_type_value == "ASSET_OBSERVATION"
    }
    page = observed[table_key(topic.declaration.raw_table)].asset_observation.metadata  # type: ignore[union-attr]
    assert (page["files"].value, page["files_before"].value, page["damaged_windows"].value) == (1, WINDOWS, 0)
    assert page["average_file_bytes"].value == files(topic)[0]["size_bytes"]
    proved(topic)


def test_the_job_without_spark_fails_and_changes_nothing(topic: MadeTopic) -> None:
    job = definitions(topic).resolve_job_def("upkeep")
    config = {"ops": {"upkeep_each_table": {"config": {"tables": ["raw/people"]}}}}
    assert not job.execute_in_process(config, raise_on_error=False).success
    assert len(files(topic)) == WINDOWS


def tick(of: MadeTopic, instance: dg.DagsterInstance, declared: bool = True) -> Any:
    found = definitions(of, declared)
    with dg.build_schedule_context(instance, resources={"lake": LakeResource(root=str(of.root))}) as context:
        return found.resolve_schedule_def("upkeep_schedule").evaluate_tick(context)


def test_the_schedule_is_on_and_runs_once_at_a_time_if_a_table_is_flat(topic: MadeTopic, tmp_path: Path) -> None:
    (schedule,) = upkeep.definitions().schedules or ()
    assert schedule.default_status == dg.DefaultScheduleStatus.RUNNING
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        (request,) = tick(topic, instance).run_requests
        job = definitions(topic).resolve_job_def("upkeep")
        run = instance.create_run_for_job(job, status=dg.DagsterRunStatus.STARTED, tags=request.tags)
        assert "not finished" in tick(topic, instance).skip_message
        (of_others,) = tick(topic, instance, declared=False).run_requests
        assert of_others.tags != request.tags
        instance.report_run_canceled(run)
        assert len(tick(topic, instance).run_requests) == 1
        with new_tables_are("partitioned"):
            skipped = tick(filled(tmp_path / "partitioned"), instance)
        assert not skipped.run_requests
        assert "no flat table" in skipped.skip_message


def test_the_schedule_runs_while_partitioned_tables_may_have_files_of_removed_windows(tmp_path: Path) -> None:
    """Such files are deleted after the table's retention, also once the YAML has no `keep` any more."""
    with new_tables_are("partitioned"):
        topic = filled(tmp_path / "lake")
    decisions.record(topic.lake, decisions.Decision(topic.topic, "expire", ("a", "b"), "upkeep", "a test", {}))
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        assert len(tick(topic, instance).run_requests) == 1
        # Another code location has the topic.
        assert not tick(topic, instance, declared=False).run_requests
        for file in (topic.root / "_ledger" / "decisions").glob("*/*.parquet"):
            file.write_bytes(b"damaged")
        assert len(tick(topic, instance).run_requests) == 1


def test_a_table_that_cannot_be_opened_does_not_hold_up_the_others(
    topic: MadeTopic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tables are queried in the order of the lake's list, so all tables of one kind are damaged."""
    monkeypatch.setattr(upkeep, "merge_engine", lambda *_: MergeEngine())
    for kind in ("raw", "dead_letters"):
        for commit in (topic.root / kind / "people" / "_delta_log").iterdir():
            commit.write_bytes(b"no commit")
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        assert len(tick(topic, instance).run_requests) == 1
    done = definitions(topic).resolve_job_def("upkeep").execute_in_process(raise_on_error=False)
    assert not done.success
    assert len(files(topic, "decoded")) == 1


def test_the_job_leaves_tables_of_other_code_locations_to_them(topic: MadeTopic) -> None:
    """The other code location has the settings of these tables, such as `cluster_by`."""
    resources = {"lake": LakeResource(root=str(topic.root)), "spark": SparkResource(remote="sc://localhost:1")}
    others = dg.Definitions.merge(upkeep.definitions(), dg.Definitions(resources=resources))
    assert others.resolve_job_def("upkeep").execute_in_process().success
    assert len(files(topic)) == WINDOWS


def test_a_run_with_nothing_to_merge_starts_no_spark(topic: MadeTopic, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[str]()
    monkeypatch.setattr(SparkResource, "session", lambda self: asked.append(self.remote))
    config = {"ops": {"upkeep_each_table": {"config": {"quiet_hours": 99_999}}}}
    done = definitions(topic).resolve_job_def("upkeep").execute_in_process(config)
    assert done.success
    assert asked == []
    observed = [e for e in done.all_events if e.event_type_value == "ASSET_OBSERVATION"]
    assert len(observed) == 3
    assert len(files(topic)) == WINDOWS
