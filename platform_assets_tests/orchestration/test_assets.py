"""Loads through Dagster: each window has its own metadata, the topic is a partitioned asset, and failed checks block."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import dagster as dg
import pytest
from deltalake import DeltaTable, write_deltalake

from platform_assets.checks.registry import CHECKS
from platform_assets.model.tables import TableRef
from platform_assets.model.windows import KEY_FORMAT
from platform_assets.orchestration import events
from platform_assets.orchestration.names import OUTCOME, table_key, topic_key
from platform_assets_tests.support.runs_of import failure_of, materializations, materialize, minutes_ago
from platform_assets_tests.support.streams import ANY_TIME
from platform_assets_tests.support.variants import long_after
from testbed.loads import Record, TopicLake, numbered, records
from testbed.project import definitions

if TYPE_CHECKING:
    from platform_assets_tests.conftest import LakeMaker

pytestmark = [pytest.mark.broker, pytest.mark.spark]


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as made:
        yield made


def check_results(result: dg.ExecuteInProcessResult) -> dict[str, bool]:
    """Return the evaluated checks by name, each True if it passed."""
    return {e.check_name: e.passed for e in result.get_asset_check_evaluations()}


def reader_of(lk: TopicLake) -> dg.AssetsDefinition:
    """Return an asset that is downstream of the raw table and reads nothing."""
    partitions = dg.TimeWindowPartitionsDefinition(
        start=lk.declaration.first_edge, fmt=KEY_FORMAT, cron_schedule=lk.declaration.schedule, timezone="UTC"
    )

    @dg.asset(deps=[table_key(TableRef.raw(lk.topic))], partitions_def=partitions)
    def reader() -> None: ...

    return reader


def ranges_table(lk: TopicLake, key: str) -> list[tuple[int, int, int]]:
    """Return the partition, start and end of each range that the ledger has for a window."""
    window = lk.ledger.window(lk.topic, key)
    assert window is not None
    return list(window.ranges.triples())


def test_a_run_of_one_window_reports_what_it_loaded(
    lake: LakeMaker, spark_remote: str, instance: dg.DagsterInstance
) -> None:
    lk = lake(partitions=2, start=minutes_ago(5))
    lk.commit(numbered(10, 2))
    key = lk.close_window()
    result = materialize(lk, spark_remote, [key], instance)
    assert result.success
    assert records(lk.rows()) == records(lk.committed())
    values = materializations(instance, table_key(TableRef.raw(lk.topic)))[key]
    receipt = lk.ledger.receipts(lk.declaration.raw_table)[key]
    assert (values[OUTCOME], values[events.ROWS], values[events.OFFSETS]) == ("loaded", 10, 12)
    assert (values[events.WITHOUT_ROW], values[events.TABLE_VERSION]) == (2, 1)
    table = values[events.OFFSET_RANGES]
    assert [(r["partition"], r["start"], r["end"]) for r in table] == ranges_table(lk, key)
    assert [(r["rows"], r["without_row"], r["first"], r["last"]) for r in table] == [(5, 1, 0, 4), (5, 1, 0, 4)]
    assert receipt.run_id == result.run_id
    assert check_results(result).items() >= dict.fromkeys(CHECKS, True).items()
    # No sensor has run: the load itself reports the window on the topic asset.
    sealed = materializations(instance, topic_key(lk.topic))
    assert [(r["partition"], r["start"], r["end"]) for r in sealed[key][events.OFFSET_RANGES]] == ranges_table(lk, key)


@pytest.mark.long
def test_the_same_window_again_is_the_same_version_of_the_data(
    lake: LakeMaker, spark_remote: str, instance: dg.DagsterInstance
) -> None:
    lk = lake(start=minutes_ago(5))
    key = lk.window_of(numbered(10))
    versions = []
    for expected in ("loaded", "unchanged"):
        assert materialize(lk, spark_remote, [key], instance).success
        assert materializations(instance, table_key(TableRef.raw(lk.topic)))[key][OUTCOME] == expected
        event = instance.get_latest_data_version_record(table_key(TableRef.raw(lk.topic)), partition_key=key)
        assert event is not None
        assert event.asset_materialization is not None
        assert event.asset_materialization.tags is not None
        versions.append(event.asset_materialization.tags["dagster/data_version"])
        lk.send(numbered(5))
    assert versions[0] == versions[1]
    assert lk.version() == 1
    assert len(instance.fetch_materializations(topic_key(lk.topic), limit=10).records) == 1


def test_a_run_of_many_windows_reports_each_with_its_own_metadata(
    lake: LakeMaker, spark_remote: str, instance: dg.DagsterInstance
) -> None:
    lk = lake(partitions=2, start=minutes_ago(6))
    counts = [7, 0, 12]
    keys = [lk.window_of(numbered(count, 2)) for count in counts]
    result = materialize(lk, spark_remote, keys, instance)
    assert result.success
    found = materializations(instance, table_key(TableRef.raw(lk.topic)))
    assert [found[key][events.ROWS] for key in keys] == counts
    assert [found[key][OUTCOME] for key in keys] == ["loaded", "empty", "loaded"]
    sealed = materializations(instance, topic_key(lk.topic))
    for values in (found, sealed):
        for key in keys:
            table = values[key][events.OFFSET_RANGES]
            assert [(r["partition"], r["start"], r["end"]) for r in table] == ranges_table(lk, key)
    assert records(lk.rows()) == records(lk.committed())
    assert check_results(result).items() >= dict.fromkeys(CHECKS, True).items()


def test_a_run_that_fails_at_one_window_loads_and_reports_all_others(
    lake: LakeMaker, spark_remote: str, instance: dg.DagsterInstance
) -> None:
    lk = lake(config=ANY_TIME, start=minutes_ago(6))
    keys = [lk.window_of([Record(timestamp=stamp)]) for stamp in (1, 2**62, 1)]
    result = materialize(lk, spark_remote, keys, instance, [reader_of(lk)])
    assert "partition 0 offset 1" in failure_of(result)
    assert "accept-loss" in failure_of(result)
    assert f"1 of 3 windows failed, 2 were loaded. Window {keys[1]}: " in failure_of(result)
    assert set(materializations(instance, table_key(TableRef.raw(lk.topic)))) == {keys[0], keys[2]}
    assert [r.offset for r in lk.rows()] == [0, 2]


def doubled(lk: TopicLake, key: str) -> None:
    """Write the rows of a window a second time, as an appending sink would."""
    rows = DeltaTable(lk.table).to_pyarrow_table(filters=[("window", "=", key)])
    write_deltalake(lk.table, rows, mode="append")


def lost(lk: TopicLake, key: str) -> None:
    """Delete rows of a window."""
    DeltaTable(lk.table).delete(f"window = '{key}' AND kafka_offset < 2")


@pytest.mark.parametrize(
    ("damage", "check", "says"), long_after(1, [(doubled, "no_duplicates", "[0, 5)"), (lost, "no_gaps", "[0, 2)")])
)
def test_a_check_that_fails_holds_back_what_is_downstream_until_the_window_is_healed(
    lake: LakeMaker, spark_remote: str, instance: dg.DagsterInstance, damage: Any, check: str, says: str
) -> None:
    lk = lake(start=minutes_ago(6))
    keys = [lk.window_of(numbered(5)) for _ in range(2)]
    assert materialize(lk, spark_remote, keys[:1], instance).success
    damage(lk, keys[0])
    result = materialize(lk, spark_remote, keys[1:], instance, [reader_of(lk)])
    assert not result.success
    assert not check_results(result)[check]
    (evaluation,) = (e for e in result.get_asset_check_evaluations() if e.check_name == check)
    assert evaluation.severity is dg.AssetCheckSeverity.ERROR
    # It names window, partition, offsets and the fix.
    text = str(evaluation.description) + repr(evaluation.metadata)
    assert keys[0] in text
    assert says in text
    assert f"Materialize partition {keys[0]}" in text
    assert "STEP_START" not in {e.event_type_value for e in result.all_events if e.step_key == "reader"}
    healed = materialize(lk, spark_remote, keys[:1], instance, [reader_of(lk)])
    assert healed.success
    assert materializations(instance, table_key(TableRef.raw(lk.topic)))[keys[0]][OUTCOME] == "healed"
    assert "STEP_SUCCESS" in {e.event_type_value for e in healed.all_events if e.step_key == "reader"}
    assert records(lk.rows()) == records(lk.committed())


def test_definitions_of_a_topic_load_and_name_what_they_hold(lake: LakeMaker, spark_remote: str) -> None:
    lk = lake(start=minutes_ago(5))
    found = definitions(lk.declaration, lk.bootstrap, lk.root, spark_remote)
    dg.Definitions.validate_loadable(found)
    graph = found.resolve_asset_graph()
    assert graph.get(table_key(TableRef.raw(lk.topic))).parent_keys == {topic_key(lk.topic)}
    assert graph.get(topic_key(lk.topic)).is_external
    checks = {spec.name: spec.blocking for check in found.asset_checks or () for spec in check.check_specs}
    assert checks.items() >= dict.fromkeys(("no_gaps", "no_duplicates"), True).items()
