"""A derived table as an asset: runs, checks, and the sensor that looks at the versions of its inputs."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import dagster as dg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import CommitProperties, DeltaTable, Schema, write_deltalake

from platform_assets.checks import derived
from platform_assets.errors import DerivedQueryError
from platform_assets.lake import derived_table
from platform_assets.lake.derived_table import Derivation, InputVersion, Made, RowsDigest
from platform_assets.ledger import decisions
from platform_assets.ledger.decisions import Decision
from platform_assets.model.derived import DerivedDeclaration, DerivedRef
from platform_assets.model.expectations import Expectation
from platform_assets.orchestration import derived_definitions, derived_status
from platform_assets.orchestration.resources import LakeResource, SparkResource
from platform_assets.windows.derive import checking, freshness, query
from platform_assets.windows.derive.checking import Comparison
from platform_assets.windows.derive.deriving import Updater
from platform_assets_tests.support.derived_lake import Flights, flights

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

DECLARED = DerivedDeclaration(
    DerivedRef("by_day"),
    {"day": "date(time_hour)"},
    "SELECT date(time_hour) AS day, carrier, sum(dep_delay) AS late FROM decoded.flights GROUP BY ALL",
    (
        Expectation("day_not_null", "not_null", ("day",)),
        Expectation("one_row", "unique", ("day", "carrier"), "error"),
        Expectation("no_such", "not_null", ("nothing",)),
    ),
)
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def definitions(declared: DerivedDeclaration = DECLARED) -> dg.Definitions:
    return derived_definitions.build(
        declared, group="g", description=None, owners=(), interval_seconds=30, sensor_running=True
    )


def tick(
    lake: Flights, instance: dg.DagsterInstance, cursor: str | None, now: datetime, **more: Any
) -> dg.SensorResult:
    context = dg.build_sensor_context(instance=instance, cursor=cursor, **more)
    return derived_definitions.tick(DECLARED, query.parsed(DECLARED), lake.lake, context, now)


@pytest.mark.spark
def test_a_run_reports_lineage_versions_and_checks(tmp_path: Path, spark_remote: str) -> None:
    lake = Flights(tmp_path)
    lake.load(0, [{**row, "time_hour": None} for row in flights(random.Random(1), 1)] + flights(random.Random(1), 20))
    (asset,) = definitions().assets or ()
    resources = {"lake": LakeResource(root=str(tmp_path)), "spark": SparkResource(remote=spark_remote)}
    with dg.DagsterInstance.ephemeral() as instance:
        done = dg.materialize([asset], instance=instance, resources=resources)  # type: ignore[list-item]
        assert done.success
        (event,) = done.asset_materializations_for_node("derived__by_day")
        results = {e.check_name: e for e in done.get_asset_check_evaluations()}
    values = event.metadata
    assert values["inputs"].value == {"decoded/flights": lake.version}
    assert values["because"].value == "the table is new"
    lineage: Any = values["dagster/column_lineage"].value
    assert [d.column_name for d in lineage.deps_by_column["late"]] == ["dep_delay"]
    assert event.tags is not None
    assert "dagster/data_version" in event.tags
    assert results["equals_rebuild"].passed
    assert not results["day_not_null"].passed
    assert results["one_row"].passed
    assert "no column 'nothing'" in str(results["no_such"].description)


@pytest.mark.parametrize("failing", ["compare", "expected"])
def test_an_error_of_one_check_does_not_hide_the_results_of_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    lake = Flights(tmp_path)
    made = Made(0, lake.derive(DECLARED, pa.table({"day": [None, 1]})))
    monkeypatch.setattr(Updater, "run", lambda *_, **__: SimpleNamespace(made=made, warnings=[], groups=None))
    monkeypatch.setattr(checking, "compare", lambda *_, **__: Comparison(None, 2))

    def fail(*_: object, **__: object) -> None:
        raise DerivedQueryError("derived/by_day", "no memory")

    monkeypatch.setattr(checking, failing, fail)
    declared = replace(DECLARED, expect=DECLARED.expect[::2])
    (asset,) = definitions(declared).assets or ()
    resources = {"lake": LakeResource(root=str(tmp_path)), "spark": SparkResource(remote="sc://nowhere:1")}
    with dg.DagsterInstance.ephemeral() as instance:
        done = dg.materialize([asset], instance=instance, resources=resources, raise_on_error=False)  # type: ignore[list-item]
        assert not done.success
        (step,) = done.get_step_failure_events()
        assert "no memory" in str(step.step_failure_data.error)
        assert not done.asset_materializations_for_node("derived__by_day")
        results = {e.check_name: e.passed for e in done.get_asset_check_evaluations()}
    known = {"day_not_null": False, "no_such": False}
    assert results == (known if failing == "compare" else {"equals_rebuild": True})


@pytest.mark.spark
def test_a_query_that_gives_other_results_each_time_is_named(
    tmp_path: Path, connection: Callable[[], SparkSession]
) -> None:
    lake = Flights(tmp_path)
    lake.load(0, flights(random.Random(1), 20))
    Updater(lake.lake, DECLARED, connection).run("run")
    table = tmp_path / "derived" / "by_day"
    (_, made) = (0, checking.newest(lake.lake, DECLARED))
    assert made is not None
    assert checking.compare(lake.lake, DECLARED, connection, made, seed=None).is_equal
    # As if the query had given other values, which only its own commits could write.
    rows = DeltaTable(table).to_pyarrow_table()
    changed = rows.set_column(2, "late", [[(v or 0) + 1 for v in rows["late"].to_pylist()]])
    text = made.derivation.to_json()
    write_deltalake(
        table,
        changed.cast(rows.schema),
        mode="overwrite",
        commit_properties=CommitProperties(custom_metadata={"userMetadata": text}),
    )
    damaged = replace(made, version=made.version + 1)
    for seed in ("seed", None):
        assert checking.compare(lake.lake, DECLARED, connection, damaged, seed=seed).columns == ("late",)


@pytest.mark.long
@pytest.mark.spark
def test_a_group_that_the_table_lacks_is_found_and_the_next_run_adds_it(
    tmp_path: Path, connection: Callable[[], SparkSession], spark_remote: str
) -> None:
    lake, seed = Flights(tmp_path), random.Random(1)
    lake.load(0, flights(seed, 30))
    done = Updater(lake.lake, DECLARED, connection).run("run")
    table = tmp_path / "derived" / "by_day"
    rows = DeltaTable(table).to_pyarrow_table()
    days = sorted(filter(None, set(rows["day"].to_pylist())))[:1]
    write_deltalake(
        table,
        pa.Table.from_pylist([row for row in rows.to_pylist() if row["day"] not in days], rows.schema),
        mode="overwrite",
        commit_properties=CommitProperties(custom_metadata={"userMetadata": done.made.derivation.to_json()}),
    )
    lacking = replace(done.made, version=done.made.version + 1)
    group = pa.table({"day": pa.array(days, pa.date32())})
    for replaced in (None, group):
        found = checking.compare(lake.lake, DECLARED, connection, lacking, seed="seed", replaced=replaced)
        assert found.columns
        assert found.groups == len(set(rows["day"].to_pylist()))
    (asset,) = definitions().assets or ()
    resources = {"lake": LakeResource(root=str(tmp_path)), "spark": SparkResource(remote=spark_remote)}
    key = dg.AssetKey(["derived", "by_day"])
    with dg.DagsterInstance.ephemeral() as instance:
        failed = derived_definitions.comparison_result(key, found)
        instance.report_runless_asset_event(
            dg.AssetCheckEvaluation(key, "equals_rebuild", passed=False, metadata={}, severity=failed.severity)
        )
        again = dg.materialize([asset], instance=instance, resources=resources)  # type: ignore[list-item]
        (event,) = again.asset_materializations_for_node("derived__by_day")
    assert event.metadata["because"].value == "the last check equals_rebuild failed"
    assert len(DeltaTable(table).to_pyarrow_table()) == len(rows)


def test_a_tick_requests_a_run_for_new_versions_only(tmp_path: Path) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        lake = Flights(tmp_path)
        lake.load(0, flights(random.Random(1), 5))
        first = tick(lake, instance, None, NOW)
        assert first.run_requests is not None
        (request,) = first.run_requests
        soon = tick(lake, instance, first.cursor, NOW + timedelta(seconds=30))
        assert not soon.run_requests
        again = tick(lake, instance, first.cursor, NOW + timedelta(seconds=61))
        assert again.run_requests is not None
        assert again.run_requests[0].run_key != request.run_key
        later = tick(lake, instance, again.cursor, NOW + timedelta(seconds=122))
        assert not later.run_requests
        lake.load(1, flights(random.Random(1), 5))
        other = tick(lake, instance, again.cursor, NOW + timedelta(seconds=122))
        assert other.run_requests is not None
        assert json.loads(other.cursor or "")["tries"] == 1


def commit(lake: Flights, run_id: str, erased: dict[str, int]) -> Path:
    """Replace all rows as a run does that has seen these erasures, but delete no past file. Return the new file."""
    folder, source = lake.lake.table(DECLARED.table), DeltaTable(lake.path)
    below = f"{derived_table.FOLDER}/{run_id}"
    file = lake.root / "derived" / "by_day" / below / "part-0.parquet"
    file.parent.mkdir(parents=True)
    rows = pa.table({"day": [1]})
    pq.write_table(rows, file)
    derived_table.create(folder, DECLARED.table, Schema.from_arrow(rows.schema))
    inputs = {"decoded/flights": InputVersion(source.version(), str(source.metadata().id))}
    digest = RowsDigest(1, 1)
    derivation = Derivation(
        DECLARED.table, run_id, DECLARED.digest, inputs, "whole", "the table is new", {}, {}, digest, digest, digest, erased
    )  # fmt: skip
    new = derived_table.written_files(folder, below, [])
    derived_table.commit(folder, folder.delta(), derivation, new, (), Schema.from_arrow(rows.schema))
    return file


def test_files_that_another_writer_had_added_are_past_files_only_until_they_are_deleted(tmp_path: Path) -> None:
    lake = Flights(tmp_path)
    lake.load(0, flights(random.Random(1), 5))
    folder, where = lake.lake.table(DECLARED.table), str(lake.root / "derived" / "by_day")
    commit(lake, "before", {})
    before = set(DeltaTable(where).file_uris())
    write_deltalake(where, pa.table({"day": [2]}), mode="append")
    (foreign,) = set(DeltaTable(where).file_uris()) - before
    commit(lake, "after", {"flights": 1})
    (made, is_foreign) = derived_table.newest(folder)
    assert made is not None
    assert not is_foreign
    assert freshness.has_past_files(lake.lake, made)
    past = derived_table.past_files(folder, made, derived_table.begun(folder), dead=False)
    assert Path(foreign).name in {Path(path).name for path in past}
    folder.erase(past)
    assert not Path(foreign).exists()
    # The log still names the removed files.
    assert not freshness.has_past_files(lake.lake, made)


def test_a_tick_requests_a_run_while_past_files_hold_erased_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Flights(tmp_path)
    lake.load(0, flights(random.Random(1), 5))
    folder = lake.lake.table(DECLARED.table)
    past = commit(lake, "before", {})
    with dg.DagsterInstance.ephemeral() as instance:
        quiet = tick(lake, instance, None, NOW)
        assert "no input has a newer version" in str(quiet.skip_reason)
        decisions.record(
            lake.lake, Decision(lake.topic, "erased", ("w",), "somebody", "asked for it", {}, lake.lake.root.time())
        )
        erasing = tick(lake, instance, quiet.cursor, NOW)
        assert erasing.run_requests
        # As if that run had been killed right after its commit.
        used = commit(lake, "after", {"flights": 1})
        assert past.exists()
        killed = tick(lake, instance, erasing.cursor, NOW + timedelta(seconds=61))
        assert killed.run_requests
        assert killed.run_requests[0].run_key != erasing.run_requests[0].run_key
        (made, _), handle = derived_table.newest(folder), folder.delta()
        assert made is not None
        judged = derived.as_recorded(DECLARED, lake.lake, handle, made, ())
        assert [each.kind for each in judged.findings] == ["could not tell"]
        assert "past files" in judged.headline
        (status,) = derived_status.collect([DECLARED], [], lake.lake, None, {})
        assert "past files" in status.problems[0]
        past.unlink()
        done = tick(lake, instance, killed.cursor, NOW + timedelta(seconds=200))
        assert "no input has a newer version" in str(done.skip_reason)
        assert used.exists()
        assert derived_status.collect([DECLARED], [], lake.lake, None, {})[0].problems == ()
        # The files are not listed again before the next commit.
        monkeypatch.setattr(derived_table, "past_files", lambda *_, **__: pytest.fail("listed again"))
        assert tick(lake, instance, done.cursor, NOW + timedelta(seconds=300)).cursor == done.cursor


def test_a_tick_waits_for_inputs_and_for_a_run_under_way(tmp_path: Path) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        lake = Flights(tmp_path, topic="others")
        waiting = tick(lake, instance, None, NOW)
        assert "waits for decoded/flights" in str(waiting.skip_reason)
        Flights(tmp_path).load(0, flights(random.Random(1), 5))
        (request,) = tick(lake, instance, None, NOW).run_requests or ()
        (asset,) = definitions().assets or ()
        job = dg.Definitions(
            assets=[asset], resources=dict.fromkeys(("lake", "spark"), dg.ResourceDefinition.none_resource())
        )
        own = frozenset({dg.AssetKey(["derived", "by_day"])})
        status = dg.DagsterRunStatus
        for state, more in (
            (status.STARTED, {"tags": dict(request.tags)}),
            (status.NOT_STARTED, {"tags": dict(request.tags)}),
            (status.NOT_STARTED, {"asset_selection": own}),
        ):
            run = instance.create_run_for_job(
                job.resolve_implicit_global_asset_job_def(),
                status=state,
                **more,
            )
            assert "under way" in str(tick(lake, instance, None, NOW).skip_reason)
            instance.delete_run(run.run_id)
            assert tick(lake, instance, None, NOW).run_requests


def test_a_failing_blocking_check_of_an_input_holds_runs_back(tmp_path: Path) -> None:
    lake = Flights(tmp_path)
    lake.load(0, flights(random.Random(1), 5))
    source = dg.AssetKey(["decoded", "flights"])

    @dg.asset(key=source, check_specs=[dg.AssetCheckSpec("sound", asset=source, blocking=True)])
    def flights_asset() -> dg.MaterializeResult: ...  # type: ignore[type-arg,empty-body]

    whole = dg.Definitions(
        assets=[flights_asset, *(definitions().assets or ())],
        resources=dict.fromkeys(("lake", "spark"), dg.ResourceDefinition.none_resource()),
    )
    with dg.DagsterInstance.ephemeral() as instance:
        for passed in (False, True):
            instance.report_runless_asset_event(dg.AssetCheckEvaluation(source, "sound", passed=passed, metadata={}))
            found = tick(lake, instance, None, NOW, repository_def=whole.get_repository_def())
            assert bool(found.run_requests) == passed, found.skip_reason
