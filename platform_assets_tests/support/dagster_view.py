"""Dagster's view of assets and checks, read through Dagster's own functions, and a small project with runs to view."""


# No postponed annotations here: Dagster reads those of the functions below.

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

import dagster as dg
from dagster._core.definitions.data_version import CachingStaleStatusResolver
from dagster._core.loader import LoadingContextForTest
from dagster._core.storage.partition_status_cache import get_and_update_asset_status_cache_value
from dagster._core.storage.tags import PARTITION_NAME_TAG, REPOSITORY_LABEL_TAG
from pydantic import Field

from platform_assets.model.declaration import TopicDeclaration
from platform_assets.model.windows import key_of
from platform_assets.orchestration import dagster_records, health
from platform_assets.orchestration.maintenance.pruning import label_of
from platform_assets.orchestration.names import LOAD_ID, OUTCOME, table_key, topic_key
from platform_assets.orchestration.planning import Failures, tries_of
from testbed.samples import edge

HOURS: Final = 12
TOPIC: Final = "orders"
DECLARED: Final = TopicDeclaration(TOPIC, "0 * * * *", edge(0))
TABLE: Final = table_key(DECLARED.raw_table)
DECODED: Final = table_key(DECLARED.decoded_table)
SOURCE: Final = topic_key(TOPIC)
CHECK: Final = dg.AssetCheckKey(TABLE, "no_gaps")
KEYS: Final = tuple(key_of(edge(n)) for n in range(HOURS))
LOCATION: Final = "shop"

_PARTITIONS: Final = dg.StaticPartitionsDefinition(list(KEYS))


class Breaks(dg.ConfigurableResource):  # type: ignore[type-arg]
    """Lists of windows whose load fails, and of windows whose check fails."""

    loads: list[str] = Field(default=[])
    checks: list[str] = Field(default=[])


@dg.asset(key=TABLE, deps=[SOURCE], partitions_def=_PARTITIONS)
def _raw(context: dg.AssetExecutionContext, breaks: Breaks) -> dg.MaterializeResult[Any]:
    key = context.partition_key
    context.log.info("a line of the run's log " * 20)
    if key in breaks.loads:
        dagster_records.record_failures(
            context.instance, context.run.run_id, {DECLARED.raw_table: Failures({key: "passing"}, "refused")}
        )
        raise dg.Failure("refused")
    return dg.MaterializeResult(
        metadata={LOAD_ID: f"load-{context.run.run_id}", OUTCOME: "loaded"}, data_version=dg.DataVersion(f"v-{key}")
    )


@dg.asset(key=DECODED, deps=[TABLE], partitions_def=_PARTITIONS)
def _decoded() -> None: ...


@dg.asset_check(asset=TABLE, name=CHECK.name)
def _no_gaps(context: dg.AssetCheckExecutionContext, breaks: Breaks) -> dg.AssetCheckResult:
    passed = not set(breaks.checks) & {context.run.tags.get(PARTITION_NAME_TAG)}
    return dg.AssetCheckResult(passed=passed, description="**as it is**", metadata={"picture": "x" * 2000})


DEFINITIONS: Final = dg.Definitions(
    assets=[dg.AssetSpec(SOURCE, partitions_def=_PARTITIONS), _raw, _decoded],
    asset_checks=[_no_gaps],
    jobs=[
        dg.define_asset_job("load", dg.AssetSelection.assets(TABLE, DECODED)),
        dg.define_asset_job("other", dg.AssetSelection.assets(TABLE)),
    ],
    resources={"breaks": Breaks()},
    executor=dg.in_process_executor,
)


def load(
    instance: dg.DagsterInstance,
    key: str,
    *,
    breaks: Breaks | None = None,
    job: str = "load",
    location: str = LOCATION,
    report: bool = True,
) -> dg.ExecuteInProcessResult:
    """Report one window, then run its load in the same way as the topic's sensor requests it."""
    if report:
        instance.report_runless_asset_event(dg.AssetMaterialization(SOURCE, partition=key))
    found = dg.Definitions.merge(DEFINITIONS) if breaks is None else _with(breaks)
    result = found.resolve_job_def(job).execute_in_process(
        {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}},
        instance,
        partition_key=key,
        tags={REPOSITORY_LABEL_TAG: label_of(location), dagster_records.TABLE_TAG: DECLARED.raw_table.name},
        raise_on_error=False,
    )
    assert result.success == (breaks is None or key not in breaks.loads), [
        e.event_specific_data for e in result.all_events if e.is_failure
    ]
    return result


def _with(breaks: Breaks) -> dg.Definitions:
    d = DEFINITIONS
    return dg.Definitions(
        assets=d.assets, asset_checks=d.asset_checks, jobs=d.jobs, resources={"breaks": breaks}, executor=d.executor
    )


def view(instance: dg.DagsterInstance) -> dict[str, Any]:
    """Return everything that Dagster and the platform show about these assets. Cached status is deleted first."""
    instance.wipe_asset_cached_status([SOURCE, TABLE, DECODED])
    found: dict[str, Any] = {str(asset.path): _of_asset(instance, asset) for asset in (SOURCE, TABLE, DECODED)}
    found["checks"] = health.latest_checks(instance, [CHECK])
    found["evaluation"] = _evaluation(instance)
    found["stale"] = _stale(instance)
    found["loads"] = dagster_records.reported_loads(instance, TABLE, list(KEYS))
    # The number of attempts is only asked for windows that are not loaded.
    unloaded = [key for key in KEYS if key not in found["loads"]]
    found["tries"] = tries_of(unloaded, dagster_records.failed_runs(instance, DECLARED.raw_table, unloaded))
    return found


def _of_asset(instance: dg.DagsterInstance, asset: dg.AssetKey) -> Mapping[str, Any]:
    status = get_and_update_asset_status_cache_value(instance, asset, _PARTITIONS)
    newest = {
        key: instance.fetch_materializations(dg.AssetRecordsFilter(asset, asset_partitions=[key]), limit=1).records
        for key in KEYS
    }
    (record,) = instance.get_asset_records([asset])
    entry = record.asset_entry
    return {
        "materialised": status
        and sorted(status.deserialize_materialized_partition_subsets(_PARTITIONS).get_partition_keys()),
        "failed": status and sorted(status.deserialize_failed_partition_subsets(_PARTITIONS).get_partition_keys()),
        "in progress": status
        and sorted(status.deserialize_in_progress_partition_subsets(_PARTITIONS).get_partition_keys()),
        "newest": newest,
        "keys": sorted(instance.get_materialized_partitions(asset)),
        "last": (entry.last_run_id, entry.last_materialization_record),
        "last run": instance.get_run_record_by_id(entry.last_run_id) if entry.last_run_id else None,
    }


def _evaluation(instance: dg.DagsterInstance) -> Any:
    storage = instance.event_log_storage
    record = storage.get_latest_asset_check_execution_by_key([CHECK]).get(CHECK)
    if record is None:
        return None
    context = LoadingContextForTest(instance)
    status = asyncio.run(record.resolve_status(context))
    return record, status, asyncio.run(record.targets_latest_materialization(context))


def _stale(instance: dg.DagsterInstance) -> Mapping[Any, Any]:
    graph = DEFINITIONS.resolve_asset_graph()
    resolver = CachingStaleStatusResolver(instance, graph, LoadingContextForTest(instance))
    assets: Sequence[dg.AssetKey] = (TABLE, DECODED)
    return {(a, key): resolver.get_status(a, key) for a in assets for key in KEYS}
