"""A run that was requested before `start` was moved: the run's error names the remedy, and the run loads nothing."""

from __future__ import annotations

from pathlib import Path

import dagster as dg
import pytest
from dagster._core.storage.tags import (
    ASSET_PARTITION_RANGE_END_TAG,
    ASSET_PARTITION_RANGE_START_TAG,
    PARTITION_NAME_TAG,
)

from platform_assets.model.declaration import TopicDeclaration
from platform_assets.model.decoding import DecodeDeclaration, FormatSpec
from platform_assets.orchestration.definitions import DeepAudit, build_definitions
from platform_assets.orchestration.resources import KafkaResource, LakeResource, SparkResource
from platform_assets_tests.support.shell import DAGSTER_WARNINGS
from testbed.samples import edge

pytestmark = [*map(pytest.mark.filterwarnings, DAGSTER_WARNINGS)]


@pytest.mark.parametrize(
    "tags",
    [
        {PARTITION_NAME_TAG: "2026-01-01-05:00"},
        {ASSET_PARTITION_RANGE_START_TAG: "2026-01-01-05:00", ASSET_PARTITION_RANGE_END_TAG: "2026-01-02-05:00"},
    ],
)
@pytest.mark.parametrize("kind", ["raw", "decoded"])
def test_a_backfill_whose_start_has_moved_names_both_and_the_way_on(
    tags: dict[str, str], kind: str, tmp_path: Path
) -> None:
    spec = DecodeDeclaration(FormatSpec("string"))
    declared = TopicDeclaration("orders", "0 * * * *", edge(24), decode=spec)
    made = build_definitions(
        declared, group="g", description=None, owners=(), sensor_running=True, deep_audit=DeepAudit()
    )
    resources = {
        "kafka": KafkaResource(bootstrap_servers="127.0.0.1:1"),
        "lake": LakeResource(root=str(tmp_path)),
        "spark": SparkResource(remote="sc://127.0.0.1:1"),
    }
    job = dg.define_asset_job("backfill", selection=dg.AssetSelection.assets(*_keys(kind)))
    whole = dg.Definitions.merge(made, dg.Definitions(resources=resources, jobs=[job]))
    done = whole.resolve_job_def("backfill").execute_in_process(tags=tags, raise_on_error=False)
    (failed,) = [event for event in done.all_events if event.is_step_failure]
    error = failed.step_failure_data.error
    assert error is not None
    assert error.cause is not None
    assert (
        f"windows of {kind}/orders from 2026-01-01-05:00 on, but 2026-01-01-05:00 is no longer a partition"
        in error.cause.message
    )
    assert "partitions now begin at 2026-01-02-00:00" in error.cause.message
    assert f"`platform-assets load {kind}/orders 2026-01-01-05:00`" in error.cause.message
    assert list(tmp_path.iterdir()) == []


def _keys(kind: str) -> list[list[str]]:
    return [["raw", "orders"]] if kind == "raw" else [["decoded", "orders"], ["dead_letters", "orders"]]
