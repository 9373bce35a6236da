"""Runs of the real definitions of a topic, in process, with real resources."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import dagster as dg
from dagster._core.storage.tags import ASSET_PARTITION_RANGE_END_TAG, ASSET_PARTITION_RANGE_START_TAG

from platform_assets.components.assets import build_definitions
from platform_assets.declaration import TopicDeclaration
from platform_assets.resources import KafkaResource, LakeResource, SparkResource
from platform_assets_tests.loads import EVERY_MINUTE, START


def declared(topic: str, records_per_file: int = 200_000) -> TopicDeclaration:
    """A topic with windows of a minute, as a `defs.yaml` would declare it."""
    return TopicDeclaration(
        topic, EVERY_MINUTE, START, records_per_file=records_per_file, sensor_interval=timedelta(seconds=30)
    )


def definitions(
    declaration: TopicDeclaration,
    bootstrap: str,
    root: Path,
    remote: str,
    downstream: Sequence[dg.AssetsDefinition] = (),
) -> dg.Definitions:
    """What the code location holds of one topic, and what a test puts behind it."""
    return dg.Definitions.merge(
        build_definitions(declaration, group="tests", description=None, owners=(), sensor_running=False),
        dg.Definitions(
            assets=list(downstream),
            resources={
                "kafka": KafkaResource(bootstrap_servers=bootstrap, timeout_seconds=5),
                "lake": LakeResource(root=str(root)),
                "spark": SparkResource(remote=remote),
            },
        ),
    )


def materialize(
    declaration: TopicDeclaration,
    bootstrap: str,
    root: Path,
    remote: str,
    keys: Sequence[str],
    instance: dg.DagsterInstance,
    downstream: Sequence[dg.AssetsDefinition] = (),
) -> dg.ExecuteInProcessResult:
    """One run of the windows from the first of `keys` to the last, with its checks; failures are in the result."""
    job = definitions(declaration, bootstrap, root, remote, downstream).resolve_implicit_global_asset_job_def()
    if len(keys) == 1:
        return job.execute_in_process(instance=instance, partition_key=keys[0], raise_on_error=False)
    tags = {ASSET_PARTITION_RANGE_START_TAG: keys[0], ASSET_PARTITION_RANGE_END_TAG: keys[-1]}
    return job.execute_in_process(instance=instance, tags=tags, raise_on_error=False)
