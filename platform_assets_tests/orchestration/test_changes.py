"""Changes in Dagster: a step makes them, checks judge them, `status` shows them, and ticks request missing and outdated
ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import dagster as dg
import pytest

from platform_assets.checks import changes as checks
from platform_assets.errors import ConfigurationError
from platform_assets.kafka.cluster import Cluster
from platform_assets.model.keeping import Keep
from platform_assets.model.state import NO_KEY, StateDeclaration
from platform_assets.orchestration import changes_status, events
from platform_assets.orchestration.dagster_records import RunLog
from platform_assets.orchestration.definitions import DeepAudit, build_definitions
from platform_assets.orchestration.names import OUTCOME, table_key
from platform_assets.orchestration.resources import KafkaResource, LakeResource, SparkResource
from platform_assets.orchestration.topic_tick import TopicTick
from platform_assets_tests.support.decoded_topic import DecodedTopic, order
from platform_assets_tests.support.runs_of import materializations
from testbed.samples import Keyed

STATE = StateDeclaration(("id",), deletes="none")


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.local_temp(str(tmp_path)) as made:
        yield made


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
    resources = {
        "kafka": KafkaResource(bootstrap_servers="localhost:1"),
        "lake": LakeResource(root=str(topic.root)),
        "spark": SparkResource(remote="sc://localhost:1"),
    }
    selection = dg.AssetSelection.assets(asset)
    return dg.materialize(
        cast("Any", assets),
        selection=selection,
        partition_key=key,
        instance=instance,
        resources=resources,
        raise_on_error=False,
    )


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


def test_a_state_needs_typed_rows_and_excludes_keep(topic: DecodedTopic) -> None:
    with pytest.raises(ConfigurationError, match="add `decode:`"):
        replace(topic.declaration, decode=None)
    with pytest.raises(ConfigurationError, match="remove `keep:`"):
        replace(topic.declaration, keep=Keep(400))
