"""Changes in Dagster: a step makes them, checks judge them, `status` shows them, and ticks request missing and outdated
ones."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import dagster as dg
import pytest

from platform_assets.checks import changes as checks
from platform_assets.errors import ConfigurationError
from platform_assets.kafka.cluster import Cluster
from platform_assets.model.decoding import DecodeDeclaration, FormatSpec
from platform_assets.model.keeping import Keep
from platform_assets.model.state import NO_KEY, StateDeclaration
from platform_assets.orchestration import changes_status, events
from platform_assets.orchestration.dagster_records import RunLog
from platform_assets.orchestration.definitions import DeepAudit, build_definitions
from platform_assets.orchestration.names import OUTCOME, table_key
from platform_assets.orchestration.resources import KafkaResource, LakeResource, SparkResource
from platform_assets.orchestration.tick import _run_request
from platform_assets.orchestration.topic_tick import TopicTick
from platform_assets_tests.support.change_events import event
from platform_assets_tests.support.decoded_topic import DecodedTopic, order
from platform_assets_tests.support.runs_of import materializations
from testbed.samples import Keyed

STATE = StateDeclaration(("id",), deletes="none")


@pytest.fixture
def topic(tmp_path: Path) -> DecodedTopic:
    made = DecodedTopic(tmp_path / "lake", "orders")
    made.state = STATE
    made.load([order(1), order(1), order(2)], [order(1), None])
    made.decode()
    return made


def materialize(topic: DecodedTopic, instance: dg.DagsterInstance, key: str) -> dg.ExecuteInProcessResult:
    """Materialize one window of the table of changes, with its checks."""
    made = build_definitions(
        topic.declaration, group="g", description=None, owners=(), sensor_running=False, deep_audit=DeepAudit()
    )
    asset = table_key(topic.declaration.changes_table)
    assets = [*(made.assets or ()), *(made.asset_checks or ())]
    resources = {**RESOURCES, "lake": LakeResource(root=str(topic.root))}
    selection = dg.AssetSelection.assets(asset)
    return dg.materialize(
        cast("Any", assets),
        selection=selection,
        partition_key=key,
        instance=instance,
        resources=resources,
        raise_on_error=False,
    )


RESOURCES: dict[str, Any] = {
    "kafka": KafkaResource(bootstrap_servers="localhost:1"),
    "spark": SparkResource(remote="sc://localhost:1"),
}
"""Services that do not answer: making changes needs none of them."""


def tick(topic: DecodedTopic, instance: dg.DagsterInstance) -> TopicTick:
    d = topic.declaration
    now = topic.windows[-1].window.end + timedelta(minutes=1)
    return TopicTick(d, cast("Cluster", None), topic.ledger, instance, now, RunLog(instance, [d.raw_table]))


def requested(topic: DecodedTopic, instance: dg.DagsterInstance) -> list[str]:
    """Return the windows whose changes a tick requests."""
    made, newest = tick(topic, instance), topic.windows[-1].window.end
    requests = made._changes(made._unchanged(newest), newest)
    return sorted(key for each in requests for key in (each.listed or {each.first, each.last}))


def test_a_step_makes_changes_and_a_tick_requests_what_is_missing_or_outdated(
    topic: DecodedTopic, instance: dg.DagsterInstance
) -> None:
    first, second = (window.key for window in topic.windows)
    assert requested(topic, instance) == [first, second]
    result = materialize(topic, instance, first)
    assert result.success
    found = {e.check_name: e for e in result.get_asset_check_evaluations()}
    assert found[checks.CONSERVATION].passed
    values = materializations(instance, table_key(topic.declaration.changes_table))[first]
    assert (values[events.ROWS], values[OUTCOME]) == (2, "loaded")
    assert "1 superseded" in values[events.SUMMARY]
    assert requested(topic, instance) == [second]

    now = topic.windows[-1].window.end
    row = changes_status.collect(topic.declaration, topic.ledger, instance, now)
    assert (row.windows_made, row.windows_waiting, row.windows_stale, row.rows) == (1, 1, 0, 2)
    assert row.healthy, row

    assert materialize(topic, instance, second).success
    assert requested(topic, instance) == []
    topic.declared = replace(topic.declared, revision=2)
    topic.decode(first)
    assert requested(topic, instance) == [first]
    assert changes_status.collect(topic.declaration, topic.ledger, instance, now).windows_stale == 1
    assert materialize(topic, instance, first).success
    assert requested(topic, instance) == []


def test_changes_of_an_earlier_schedule_are_made_by_a_run_of_their_own(
    topic: DecodedTopic, instance: dg.DagsterInstance
) -> None:
    """The run only makes changes: Spark, which it would need to decode, does not answer."""
    keys, newest = [window.key for window in topic.windows], topic.windows[-1].window.end
    d = replace(topic.declaration, schedule="30 * * * *")
    before = topic.ledger.receipts(d.decoded_table)
    made = TopicTick(d, cast("Cluster", None), topic.ledger, instance, newest, RunLog(instance, [d.raw_table]))
    (request,) = made._changes(made._unchanged(newest), newest)
    assert list(request.listed) == keys, "the windows are partitions"
    run = _run_request(d, d.changes_table, request)
    own = build_definitions(d, group="g", description=None, owners=(), sensor_running=False, deep_audit=DeepAudit())
    whole = dg.Definitions.merge(
        own, dg.Definitions(resources={**RESOURCES, "lake": LakeResource(root=str(topic.root))})
    )
    result = whole.resolve_job_def(str(run.job_name)).execute_in_process(run.run_config, instance=instance)
    assert {e.check_name for e in result.get_asset_check_evaluations()} == set(checks.NAMES)
    planned = instance.all_logs(result.run_id, of_type=dg.DagsterEventType.ASSET_MATERIALIZATION_PLANNED)
    found = {e.get_dagster_event().asset_key for e in planned}
    assert found == {table_key(d.changes_table)}
    assert sorted(topic.ledger.receipts(d.changes_table)) == keys
    assert topic.ledger.receipts(d.decoded_table) == before
    assert made._unchanged(newest) == {}


def test_records_without_a_place_are_a_warning(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    topic = DecodedTopic(tmp_path / "lake", "orders")
    topic.state = STATE
    topic.declared = replace(topic.declared, value=replace(topic.declared.value, options={"schema": "id BIGINT"}))
    (key,) = topic.load([Keyed(None, b'{"id": 1}'), Keyed(None, b'{"id": null}')])
    topic.decode()
    result = materialize(topic, instance, key)
    assert result.success
    found = {e.check_name: e for e in result.get_asset_check_evaluations()}[checks.PLACED]
    assert (found.passed, found.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert NO_KEY in (found.description or "")
    assert "partition 0 offset 1" in (found.description or "")


@pytest.mark.parametrize("partitions", [1, 2])
def test_a_truncate_of_several_partitions_is_an_error_of_a_check_that_blocks_nothing(
    tmp_path: Path, instance: dg.DagsterInstance, partitions: int
) -> None:
    events_of = FormatSpec("debezium", {"schema": "id BIGINT"})
    topic = DecodedTopic(
        tmp_path / "lake", "orders", DecodeDeclaration(events_of, FormatSpec("json", events_of.options))
    )
    topic.state, topic.partitions = StateDeclaration(("id",), deletes="debezium"), partitions
    (key,) = topic.load([Keyed(b'{"id": 1}', event("c", after={"id": 1})), Keyed(None, event("t"))])
    topic.decode()
    result = materialize(topic, instance, key)
    assert result.success
    found = {e.check_name: e for e in result.get_asset_check_evaluations()}[checks.PLACED]
    if partitions == 1:
        assert found.passed
        return
    assert (found.passed, found.severity, found.blocking) == (False, dg.AssetCheckSeverity.ERROR, False)
    assert "partition 1 offset 0" in (found.description or "")
    assert "DELETE instead of TRUNCATE" in (found.description or "")


def test_a_state_needs_typed_rows_and_excludes_keep(topic: DecodedTopic) -> None:
    with pytest.raises(ConfigurationError, match="add `decode:`"):
        replace(topic.declaration, decode=None)
    with pytest.raises(ConfigurationError, match="remove `keep:`"):
        replace(topic.declaration, keep=Keep(400))
