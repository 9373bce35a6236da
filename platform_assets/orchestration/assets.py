"""What a topic becomes in Dagster: the external source asset, the raw table, its checks and its sensor.

Topics that are together share the sensor that `together` makes of them.
"""

# No postponed annotations here: Dagster reads those of the functions below.
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any

import dagster as dg

from platform_assets.checks.check import Check
from platform_assets.checks.registry import CHECKS, DEEP_AUDIT
from platform_assets.checks.report import rendering
from platform_assets.ledger.store import Ledger
from platform_assets.model.declaration import TopicDeclaration
from platform_assets.model.tables import TableRef
from platform_assets.model.untrusted import markdown
from platform_assets.model.windows import KEY_FORMAT
from platform_assets.orchestration import (
    decoded,
    decoded_checks,
    earlier,
    foresight,
    load_runs,
    metadata,
    runs,
    selections,
)
from platform_assets.orchestration.names import (
    checks_op,
    deep_audit_job,
    deep_audit_op,
    deep_audit_schedule,
    load_job,
    load_op,
    table_key,
    topic_key,
)
from platform_assets.orchestration.partitions import partition_keys
from platform_assets.orchestration.resources import KafkaResource, LakeResource, SparkResource
from platform_assets.orchestration.sensors import build_sensor


@dataclass(frozen=True, slots=True)
class DeepAudit:
    """When the deep audit runs (cron, UTC), whether it does by itself, and how long one may take in seconds."""

    schedule: str = "0 3 * * *"
    running: bool = True
    budget_seconds: float = 600.0


def build_definitions(
    declaration: TopicDeclaration,
    *,
    group: str,
    description: str | None,
    owners: Sequence[str],
    sensor_running: bool,
    deep_audit: DeepAudit,
) -> dg.Definitions:
    """All that Dagster holds of one topic."""
    partitions = _partitions(declaration.schedule, declaration.first_edge)
    source = dg.AssetSpec(
        topic_key(declaration.topic),
        partitions_def=partitions,
        group_name=group,
        kinds={"kafka"},
        owners=list(owners),
        description=(description or markdown(f"Kafka topic {declaration.topic}."))
        + " A partition is a sealed window: offsets that never change.",
        metadata={"topic": declaration.topic, "window": declaration.schedule},
    )
    checks = [_checks(declaration), _deep_audit_check(declaration, deep_audit.budget_seconds)]
    tables = [_raw_table(declaration, partitions, group, owners)]
    if declaration.decode is not None:
        tables.append(decoded.build_tables(declaration, declaration.decode, partitions, group, owners))
        checks.append(decoded_checks.build_checks(declaration, declaration.decode))
    if declaration.together is not None:
        # The others are those of all of them.
        jobs = [] if declaration.decode is None else [earlier.build_job(declaration)]
        return dg.Definitions(assets=[source, *tables], asset_checks=checks, jobs=jobs)
    load, load_earlier = load_job_of(load_job(declaration.topic), [declaration]), earlier.build_job(declaration)
    return dg.Definitions(
        assets=[source, *tables],
        asset_checks=checks,
        sensors=[build_sensor(declaration, sensor_running, [load, load_earlier])],
        jobs=[load, load_earlier, _deep_audit_job(declaration)],
        schedules=[_deep_audit_schedule(declaration, deep_audit)],
    )


@lru_cache(maxsize=1024)
def _partitions(schedule: str, first_edge: datetime) -> dg.TimeWindowPartitionsDefinition:
    """One for all topics of a schedule and a first edge: making it costs more than an asset."""
    return dg.TimeWindowPartitionsDefinition(start=first_edge, fmt=KEY_FORMAT, cron_schedule=schedule, timezone="UTC")


def _raw_table(
    declaration: TopicDeclaration, partitions: dg.PartitionsDefinition[str], group: str, owners: Sequence[str]
) -> dg.AssetsDefinition:
    topic = declaration.topic

    spec = dg.AssetSpec(
        table_key(declaration.raw_table),
        deps=[topic_key(topic)],
        partitions_def=partitions,
        group_name=group,
        kinds={"delta", "pyspark"},
        owners=list(owners),
        description=markdown(
            f"Every committed record of Kafka topic {topic}, exactly once, as bytes. Materialising a partition "
            "again proves it equal, heals it, or refuses and changes nothing."
        ),
        metadata={"dagster/table_name": declaration.raw_table.name, "dagster/storage_kind": "delta"},
        freshness_policy=None if declaration.paused else foresight.freshness(declaration),
    )

    # `dg.asset` would name its op by the key, where `a.b`, `a-b` and `a_b` are one.
    @dg.multi_asset(
        specs=[spec],
        name=load_op(topic),
        backfill_policy=dg.BackfillPolicy.single_run(),
        op_tags={"platform_assets/topic": topic},
    )
    def _load(
        context: dg.AssetExecutionContext, kafka: KafkaResource, lake: LakeResource, spark: SparkResource
    ) -> dg.MaterializeResult[Any]:
        keys = partition_keys(context, declaration.raw_table, declaration.first_edge)
        done = load_runs.load(context, declaration, keys, kafka, lake, spark)
        path = str(lake.lake().table(declaration.raw_table))
        if len(keys) == 1:
            loaded = done[keys[0]]
            return dg.MaterializeResult(
                metadata=metadata.of_receipt(loaded.receipt, loaded.outcome, path),
                data_version=dg.DataVersion(metadata.data_version(loaded.receipt)),
            )
        for key, loaded in done.items():
            context.add_asset_metadata(metadata.of_receipt(loaded.receipt, loaded.outcome, path), partition_key=key)
        return dg.MaterializeResult()

    return _load


def _checks(declaration: TopicDeclaration) -> dg.AssetChecksDefinition:
    """The checks of each load, in one step: they judge the same facts."""
    topic = declaration.topic
    specs = [*(_spec(declaration.raw_table, check) for check in CHECKS.values()), foresight.spec(declaration.raw_table)]

    @dg.multi_asset_check(specs=specs, name=checks_op(topic), can_subset=True)
    def _evaluate_all(
        context: dg.AssetCheckExecutionContext, kafka: KafkaResource, lake: LakeResource, spark: SparkResource
    ) -> Iterator[dg.AssetCheckResult]:
        evaluation = load_runs.evaluation(context, declaration, kafka, lake, spark, counting=CHECKS.values())
        wanted = {key.name for key in context.selected_asset_check_keys}
        for check in CHECKS.values():
            if check.name in wanted:
                yield rendering.result(table_key(declaration.raw_table), check.evaluate(evaluation), evaluation.facts())
        if foresight.RETENTION_IS_FAR in wanted:
            yield foresight.evaluate(declaration, evaluation.ledger, kafka.cluster())

    return _evaluate_all


def _deep_audit_check(declaration: TopicDeclaration, budget: float) -> dg.AssetChecksDefinition:
    topic = declaration.topic

    @dg.multi_asset_check(specs=[_spec(declaration.raw_table, DEEP_AUDIT)], name=deep_audit_op(topic))
    def _evaluate(
        context: dg.AssetCheckExecutionContext, kafka: KafkaResource, lake: LakeResource, spark: SparkResource
    ) -> Iterator[dg.AssetCheckResult]:
        keys = (w.key for w in Ledger(lake.lake()).windows(topic))
        windows = runs.windows_of(context.run, table_key(declaration.raw_table), keys)
        evaluation = load_runs.evaluation(context, declaration, kafka, lake, spark, budget=budget, windows=windows)
        yield rendering.result(table_key(declaration.raw_table), DEEP_AUDIT.evaluate(evaluation), evaluation.facts())

    return _evaluate


def _spec(table: TableRef, check: Check) -> dg.AssetCheckSpec:
    return dg.AssetCheckSpec(check.name, asset=table_key(table), blocking=check.blocking, description=check.description)


def load_job_of(name: str, declarations: Sequence[TopicDeclaration]) -> Any:
    """The job that materialises tables of these topics."""
    tables = str(declarations[0].raw_table) if len(declarations) == 1 else f"{len(declarations)} topics"
    return dg.define_asset_job(
        name,
        selection=dg.AssetSelection.assets(*(key for d in declarations for key in selections.tables_of(d))),
        description=markdown(
            f"Loads windows of {tables}, decodes them where that is declared, and evaluates the checks."
        ),
    )


def _deep_audit_selection(declaration: TopicDeclaration) -> dg.AssetSelection:
    return dg.AssetSelection.checks(dg.AssetCheckKey(table_key(declaration.raw_table), DEEP_AUDIT.name))


def _deep_audit_job(declaration: TopicDeclaration) -> Any:
    return dg.define_asset_job(
        deep_audit_job(declaration.topic),
        selection=_deep_audit_selection(declaration),
        description=markdown(
            f"Reads files of {declaration.raw_table} again, oldest proof first, and recomputes their digests."
        ),
    )


def _deep_audit_schedule(declaration: TopicDeclaration, deep_audit: DeepAudit) -> dg.ScheduleDefinition:
    return dg.ScheduleDefinition(
        name=deep_audit_schedule(declaration.topic),
        job_name=deep_audit_job(declaration.topic),
        cron_schedule=deep_audit.schedule,
        default_status=dg.DefaultScheduleStatus.RUNNING if deep_audit.running else dg.DefaultScheduleStatus.STOPPED,
    )
