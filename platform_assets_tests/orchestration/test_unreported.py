"""A run that ends after its entry in the ledger and before its report to Dagster: the next tick makes the missing
report without any action."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.storage.tags import ASSET_PARTITION_RANGE_END_TAG, ASSET_PARTITION_RANGE_START_TAG

from platform_assets.lake.location import Lake
from platform_assets.ledger.store import Ledger
from platform_assets.model.declaration import TopicDeclaration
from platform_assets.orchestration import dagster_records, events
from platform_assets.orchestration.names import table_key
from testbed import samples

TOPIC = "orders"
DECLARED = TopicDeclaration(TOPIC, "0 * * * *", samples.START)
TABLE = table_key(DECLARED.raw_table)


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as made:
        yield made


@pytest.fixture
def keys(tmp_path: Path) -> list[str]:
    """Return the keys of four windows with offsets; the first three windows are loaded."""
    windows = samples.recorded(tmp_path, TOPIC, [{0: n * 10} for n in range(5)])
    for window in windows[:3]:
        offsets = {p: list(range(r.start, r.end)) for p, r in window.ranges.items()}
        samples.loaded(tmp_path, window, offsets)
    return [w.key for w in windows]


def run(instance: dg.DagsterInstance, first: str, last: str, status: dg.DagsterRunStatus) -> None:
    tags = {
        dagster_records.TABLE_TAG: DECLARED.raw_table.name,
        ASSET_PARTITION_RANGE_START_TAG: first,
        ASSET_PARTITION_RANGE_END_TAG: last,
    }
    instance.add_run(
        dg.DagsterRun(
            job_name="__ASSET_JOB",
            run_id=str(uuid.uuid4()),
            status=status,
            tags=tags,
            asset_selection=frozenset([TABLE]),
        )
    )


def told(instance: dg.DagsterInstance, root: Path) -> list[str]:
    """Return the partitions that a tick reports if it has nothing else to do, in order."""
    ledger = Ledger(Lake.at(root))
    # Runs are created by the clock of the machine, whatever the windows are of.
    found = []
    for event in events.missing_loads(DECLARED, ledger, instance, datetime.now(UTC) + timedelta(minutes=1)):
        assert event.asset_key == TABLE
        instance.report_runless_asset_event(event)
        found.append(event.partition or "")
    return found


def test_what_a_failed_run_has_loaded_and_not_reported_is_told_once(
    instance: dg.DagsterInstance, tmp_path: Path, keys: list[str]
) -> None:
    run(instance, keys[1], keys[3], dg.DagsterRunStatus.FAILURE)
    # The fourth is not loaded, and the first was none of the run's.
    assert told(instance, tmp_path) == [keys[1], keys[2]]
    assert told(instance, tmp_path) == []
    reported = dagster_records.reported_loads(instance, TABLE, [keys[1]])
    assert reported[keys[1]] == Ledger(Lake.at(tmp_path)).receipts(DECLARED.raw_table)[keys[1]].load_id


def test_what_a_run_under_way_will_report_is_left_to_it(
    instance: dg.DagsterInstance, tmp_path: Path, keys: list[str]
) -> None:
    run(instance, keys[0], keys[1], dg.DagsterRunStatus.FAILURE)
    run(instance, keys[0], keys[0], dg.DagsterRunStatus.STARTED)
    assert told(instance, tmp_path) == [keys[1]]


def test_a_tick_that_dagster_has_not_heard_of_tells_the_same_again(
    instance: dg.DagsterInstance, tmp_path: Path, keys: list[str]
) -> None:
    run(instance, keys[0], keys[0], dg.DagsterRunStatus.FAILURE)
    ledger, now = Ledger(Lake.at(tmp_path)), datetime.now(UTC)
    assert [e.partition for e in events.missing_loads(DECLARED, ledger, instance, now)] == [keys[0]]
    assert told(instance, tmp_path) == [keys[0]]


def test_without_a_failed_run_nothing_is_read(instance: dg.DagsterInstance, tmp_path: Path, keys: list[str]) -> None:
    run(instance, keys[0], keys[2], dg.DagsterRunStatus.SUCCESS)
    assert told(instance, tmp_path) == []
