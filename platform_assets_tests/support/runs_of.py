"""Runs of the real definitions of a topic, in this process, with real resources."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
from dagster._core.storage.tags import ASSET_PARTITION_RANGE_END_TAG, ASSET_PARTITION_RANGE_START_TAG

from testbed.loads import TopicLake
from testbed.project import definitions


def minutes_ago(minutes: int) -> datetime:
    """Return a full minute that is at least `minutes` ago. The time must be in the past, because Dagster determines
    partitions by its own clock."""
    return datetime.now(UTC).replace(second=0, microsecond=0) - timedelta(minutes=minutes)


def materialize(
    lake: TopicLake,
    remote: str,
    keys: Sequence[str],
    instance: dg.DagsterInstance,
    downstream: Sequence[dg.AssetsDefinition] = (),
    *,
    bootstrap: str | None = None,
    root: Path | None = None,
    timeout_seconds: float = 10,
) -> dg.ExecuteInProcessResult:
    """Run the windows from the first of `keys` to the last, with checks. If the run fails, the returned result contains
    the failures."""
    found = definitions(
        lake.declaration, bootstrap or lake.bootstrap, root or lake.root, remote, downstream, timeout_seconds
    )
    job = found.resolve_implicit_global_asset_job_def()
    if len(keys) == 1:
        return job.execute_in_process(instance=instance, partition_key=keys[0], raise_on_error=False)
    tags = {ASSET_PARTITION_RANGE_START_TAG: keys[0], ASSET_PARTITION_RANGE_END_TAG: keys[-1]}
    return job.execute_in_process(instance=instance, tags=tags, raise_on_error=False)


def failure_of(result: dg.ExecuteInProcessResult) -> str:
    """Return the error of the failed step of a failed run, without stack traces. If several steps failed, return the
    error of the last one."""
    assert not result.success
    data = result.get_step_failure_events()[-1].step_failure_data
    if data.user_failure_data is not None:
        return str(data.user_failure_data.description)
    messages = []
    error = data.error
    while error is not None:
        messages.append(error.message)
        error = error.cause
    return "".join(messages)


def materializations(instance: dg.DagsterInstance, asset: dg.AssetKey) -> Mapping[str, Mapping[str, Any]]:
    """Return the metadata of each partition of `asset`, as plain values. It is taken from the partition's newest
    materialization."""
    found: dict[str, Mapping[str, Any]] = {}
    for record in reversed(instance.fetch_materializations(asset, limit=1000).records):
        event = record.asset_materialization
        assert event is not None
        assert event.partition is not None
        found[event.partition] = {name: plain(value) for name, value in event.metadata.items()}
    return found


def plain(value: Any) -> Any:
    """Convert a metadata value from its Dagster type to a plain value. A table becomes a list of rows."""
    if isinstance(value, dg.TableMetadataValue):
        return [dict(record.data) for record in value.records]
    return value.value
