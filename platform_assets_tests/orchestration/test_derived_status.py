"""The row of `status` for a derived table: what is in it, what is behind, and what keeps runs from happening. No Spark."""

from __future__ import annotations

import io
import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import dagster as dg
import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake
from rich.console import Console

from platform_assets.cli.status_table import print_status
from platform_assets.lake.derived_table import Derivation, InputVersion, RowsDigest
from platform_assets.model.declaration import TopicDeclaration
from platform_assets.model.derived import DerivedDeclaration, DerivedRef
from platform_assets.model.expectations import Expectation
from platform_assets.orchestration import derived_definitions, derived_status
from platform_assets.orchestration.derived_status import DerivedStatus, InputStatus
from platform_assets.orchestration.status import Status
from platform_assets.windows.derive import query
from platform_assets_tests.support.derived_lake import START, Flights, flights

DECLARED = DerivedDeclaration(
    DerivedRef("by_day"),
    {"day": "date(time_hour)"},
    "SELECT date(time_hour) AS day, count(*) AS n FROM decoded.flights GROUP BY ALL",
    (Expectation("n_not_null", "not_null", ("n",)), Expectation("one_row", "unique", ("day",), "error")),
)
TOPIC = TopicDeclaration("flights", "0 * * * *", START)


@pytest.fixture
def lake(tmp_path: Path) -> Flights:
    """Return a lake with one window of flights."""
    made = Flights(tmp_path)
    made.load(0, flights(random.Random(1), 5))
    return made


def commit(lake: Flights, *, because: str = "", groups: int = 3, run_id: str = "run-1") -> None:
    """Commit three rows as a run does that has read the newest version of the flights."""
    source = DeltaTable(lake.path)
    inputs = {"decoded/flights": InputVersion(source.version(), str(source.metadata().id))}
    derivation = Derivation(
        DECLARED.table, run_id, DECLARED.digest, inputs, "groups", because, {"count": groups}, {}, RowsDigest(),
        RowsDigest(3, 1), RowsDigest(3, 1),
    )  # fmt: skip
    write_deltalake(
        lake.root / "derived" / "by_day",
        pa.table({"n": [1, 2, 3]}),
        mode="overwrite",
        commit_properties=CommitProperties(custom_metadata={"userMetadata": derivation.to_json()}),
    )


def collected(
    lake: Flights, instance: dg.DagsterInstance | None = None, declared: DerivedDeclaration = DECLARED
) -> DerivedStatus:
    (found,) = derived_status.collect([declared], [TOPIC], lake.lake, instance, {})
    return found


def printed(found: DerivedStatus, width: int = 200) -> str:
    out = io.StringIO()
    print_status(Status("now", (), derived=(found,)), Console(file=out, width=width))
    return out.getvalue()


def test_before_the_first_run_nothing_is_in_it(lake: Flights) -> None:
    found = collected(lake)
    assert (found.rows, found.groups, found.committed_at, found.run_id) == (0, None, None, None)
    assert found.inputs == (InputStatus("decoded/flights", None, lake.version, is_behind=True),)
    assert found.healthy
    assert "derived/by_day: no run yet" in printed(found)


def test_an_input_without_rows_is_waited_for(tmp_path: Path) -> None:
    found = collected(Flights(tmp_path, topic="others"))
    assert found.inputs == (InputStatus("decoded/flights", None, None, is_behind=False),)
    assert "waits for decoded/flights, without rows yet" in printed(found)


def test_rows_groups_and_versions_are_those_of_the_newest_commit(lake: Flights) -> None:
    before = datetime.now(UTC).replace(microsecond=0)
    commit(lake)
    found = collected(lake)
    assert (found.rows, found.groups, found.run_id) == (3, 3, "run-1")
    assert found.committed_at is not None
    assert before <= datetime.fromisoformat(found.committed_at) <= datetime.now(UTC)
    assert not any(each.is_behind for each in found.inputs)
    assert "computed 3 groups; its inputs have no newer version" in printed(found)
    lake.load(1, flights(random.Random(2), 5))
    lake.load(2, flights(random.Random(3), 5))
    (behind,) = collected(lake).inputs
    assert (behind.is_behind, behind.newest, behind.version) == (True, lake.version, lake.version - 2)
    assert "not in it: 2 versions of decoded/flights" in printed(collected(lake))
    commit(lake, because="the table is new")
    assert collected(lake).groups is None
    assert "computed all rows" in printed(collected(lake))


def test_a_changed_query_is_behind_at_the_same_version(lake: Flights) -> None:
    commit(lake)
    found = collected(lake, declared=replace(DECLARED, sql=DECLARED.sql + " HAVING n > 1"))
    assert found.query_changed
    assert [each.is_behind for each in found.inputs] == [False]
    assert "not in it: its changed query" in printed(found)


def test_a_narrow_terminal_shows_no_windows(lake: Flights) -> None:
    commit(lake)
    text = printed(collected(lake), width=60)
    assert "derived/by_day" in text
    assert "3 records" in text
    assert "windows loaded" not in text
    assert "newest window" not in text


def test_rows_of_another_writer_are_a_problem(lake: Flights) -> None:
    commit(lake)
    write_deltalake(lake.root / "derived" / "by_day", pa.table({"n": [4]}), mode="append")
    found = collected(lake)
    assert not found.healthy
    assert "another writer changed the table" in found.problems[0]
    assert found.problems[0] in printed(found)


def test_a_failing_check_of_an_input_holds_runs_back(lake: Flights) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        key = dg.AssetKey(["raw", "flights"])
        declared = replace(
            DECLARED, sql=DECLARED.sql.replace("decoded.", "raw.").replace("time_hour", "kafka_timestamp")
        )
        declared = replace(declared, by={"day": "date(kafka_timestamp)"})
        Flights(lake.root).path.rename(lake.root / "moved")
        (lake.root / "raw").mkdir()
        (lake.root / "moved").rename(lake.root / "raw" / "flights")
        name = next(k.name for k in derived_status._blocking_of_topic(TOPIC) if k.asset_key == key)
        for passed in (False, True):
            instance.report_runless_asset_event(dg.AssetCheckEvaluation(key, name, passed=passed, metadata={}))
            problems = collected(lake, instance, declared).problems
            assert [f"raw/flights {name}" in text for text in problems] == [True] * (not passed)


def test_a_failed_run_and_a_failed_check_are_problems(lake: Flights) -> None:
    (asset,) = (
        derived_definitions.build(
            DECLARED, group="g", description=None, owners=(), interval_seconds=30, sensor_running=True
        ).assets
        or ()
    )
    job = dg.Definitions(
        assets=[asset], resources=dict.fromkeys(("lake", "spark"), dg.ResourceDefinition.none_resource())
    ).resolve_implicit_global_asset_job_def()
    tags = {derived_definitions.TAG: derived_definitions.run_tag(DECLARED.table)}
    with dg.DagsterInstance.ephemeral() as instance:
        run = instance.create_run_for_job(job, status=dg.DagsterRunStatus.FAILURE, tags=tags)
        (problem,) = collected(lake, instance).problems
        assert run.run_id in problem
        instance.create_run_for_job(job, status=dg.DagsterRunStatus.SUCCESS, tags=tags)
        assert collected(lake, instance).healthy
        key = dg.AssetKey(["derived", "by_day"])
        instance.report_runless_asset_event(dg.AssetCheckEvaluation(key, "equals_rebuild", passed=False, metadata={}))
        found = collected(lake, instance)
        assert [check.name for check in found.checks] == ["equals_rebuild", "n_not_null", "one_row"]
        assert found.checks[0].failed
        assert not Status("now", (), derived=(found,)).healthy


@pytest.mark.parametrize("end", [dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED])
def test_a_run_that_died_after_its_commit_is_requested_again_and_named(lake: Flights, end: dg.DagsterRunStatus) -> None:
    key, tags = (
        dg.AssetKey(["derived", "by_day"]),
        {derived_definitions.TAG: derived_definitions.run_tag(DECLARED.table)},
    )
    declared, now = query.parsed(DECLARED), datetime(2026, 1, 1, tzinfo=UTC)

    def ticked(cursor: str | None, seconds: int) -> dg.SensorResult:
        context = dg.build_sensor_context(instance=instance, cursor=cursor)
        return derived_definitions.tick(DECLARED, declared, lake.lake, context, now + timedelta(seconds=seconds))

    with dg.DagsterInstance.ephemeral() as instance:
        first = ticked(None, 0)
        assert first.run_requests
        for name in ("equals_rebuild", "one_row"):
            instance.report_runless_asset_event(dg.AssetCheckEvaluation(key, name, passed=True, metadata={}))
        commit(lake)
        # Its checks have not begun.
        run = dg.DagsterRun(job_name="job", status=end, tags=tags)
        instance.add_run(run)
        (problem,) = collected(lake, instance).problems
        assert problem.startswith(f"run {run.run_id} failed before it had checked the newest rows")
        assert "waits to try again" in str(ticked(first.cursor, 30).skip_reason)
        again = ticked(first.cursor, 61)
        assert again.run_requests
        assert again.run_requests[0].run_key != first.run_requests[0].run_key
        # A failed run without a commit, after one that has reported this version.
        version = DeltaTable(lake.root / "derived" / "by_day").version()
        for reported in (version - 1, version):
            metadata = {derived_definitions.VERSION: reported}
            instance.report_runless_asset_event(dg.AssetMaterialization(key, metadata=metadata))
            assert collected(lake, instance).healthy is (reported == version)
            assert bool(ticked(again.cursor, 300).run_requests) is (reported < version)


def test_a_commit_of_the_command_needs_no_run(lake: Flights) -> None:
    tags = {derived_definitions.TAG: derived_definitions.run_tag(DECLARED.table)}
    with dg.DagsterInstance.ephemeral() as instance:
        instance.add_run(dg.DagsterRun(job_name="job", status=dg.DagsterRunStatus.FAILURE, tags=tags))
        commit(lake, run_id="command-1")
        assert collected(lake, instance).healthy


def test_a_table_that_cannot_be_read_has_an_error(lake: Flights) -> None:
    commit(lake)
    log = lake.root / "derived" / "by_day" / "_delta_log" / f"{0:020}.json"
    log.write_text(log.read_text().replace('\\"platform_assets_derived\\":1', '\\"platform_assets_derived\\":9'))
    found = collected(lake)
    assert found.error is not None
    assert "metadata version 9" in found.error
    assert not found.healthy
