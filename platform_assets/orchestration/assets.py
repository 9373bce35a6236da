"""What a topic becomes in Dagster: the external source asset, the raw table, its checks and its sensor."""

# No postponed annotations here: Dagster reads those of the functions below.
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import dagster as dg

from platform_assets.checks.check import Check
from platform_assets.checks.evaluation import Evaluation
from platform_assets.checks.registry import CHECKS, DEEP_AUDIT
from platform_assets.checks.report import rendering
from platform_assets.engines.choice import choose_engine
from platform_assets.errors import PlatformError, Terminal
from platform_assets.ledger.store import Ledger
from platform_assets.model.declaration import TopicDeclaration
from platform_assets.model.tables import TableRef
from platform_assets.model.windows import KEY_FORMAT
from platform_assets.orchestration import metadata, runs
from platform_assets.orchestration.attempts import failure_text, is_of_a_service, load_each
from platform_assets.orchestration.names import identifier, table_key, topic_key
from platform_assets.orchestration.resources import KafkaResource, LakeResource, SparkResource
from platform_assets.orchestration.retries import Failures
from platform_assets.orchestration.sensors import build_sensor, sealed_event
from platform_assets.windows.loading import Loader
from platform_assets.windows.replacing import Loaded, Outcome

_CHECK_BUDGET_SECONDS = 120.0
_RETRIES = 2
_RETRY_AFTER_SECONDS = 5


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
    partitions = dg.TimeWindowPartitionsDefinition(
        start=declaration.first_edge, fmt=KEY_FORMAT, cron_schedule=declaration.schedule, timezone="UTC"
    )
    source = dg.AssetSpec(
        topic_key(declaration.topic),
        partitions_def=partitions,
        group_name=group,
        kinds={"kafka"},
        owners=list(owners),
        description=(description or f"Kafka topic {declaration.topic}.")
        + " A partition is a sealed window: offsets that never change.",
        metadata={"topic": declaration.topic, "window": declaration.schedule},
    )
    checks = [_checks(declaration), _deep_audit_check(declaration, deep_audit.budget_seconds)]
    return dg.Definitions(
        assets=[source, _raw_table(declaration, partitions, group, owners)],
        asset_checks=checks,
        sensors=[build_sensor(declaration, sensor_running)],
        jobs=[_deep_audit_job(declaration)],
        schedules=[_deep_audit_schedule(declaration, deep_audit)],
    )


def _raw_table(
    declaration: TopicDeclaration, partitions: dg.PartitionsDefinition[str], group: str, owners: Sequence[str]
) -> dg.AssetsDefinition:
    topic = declaration.topic

    @dg.asset(
        key=table_key(declaration.raw_table),
        deps=[topic_key(topic)],
        partitions_def=partitions,
        backfill_policy=dg.BackfillPolicy.single_run(),
        group_name=group,
        kinds={"delta", "pyspark"},
        owners=list(owners),
        description=f"Every committed record of Kafka topic {topic}, exactly once, as bytes. Materialising a partition "
        "again proves it equal, heals it, or refuses and changes nothing.",
        metadata={"dagster/table_name": declaration.raw_table.name, "dagster/storage_kind": "delta"},
        op_tags={"platform_assets/topic": topic},
    )
    def _load(
        context: dg.AssetExecutionContext, kafka: KafkaResource, lake: LakeResource, spark: SparkResource
    ) -> dg.MaterializeResult[Any]:
        try:
            runs.check_is_kept(context.instance, declaration.raw_table)
        except PlatformError as e:
            raise dg.Failure(str(e), metadata={"error": type(e).__name__}, allow_retries=False) from e
        root = lake.lake()
        loader = Loader(
            declaration,
            kafka.cluster(),
            Ledger(root),
            choose_engine(root, kafka.settings, spark.session, declaration.engine, spark.remote),
            run_id=context.run.run_id,
        )
        keys = list(context.partition_keys)
        done = _loaded_before(context, loader) if context.retry_number else {}
        now_done: dict[str, Loaded] = {}
        errors: dict[str, PlatformError] = {}
        for attempt in load_each(loader, [k for k in keys if k not in done], spark.forget):
            if attempt.loaded is not None:
                now_done[attempt.window] = attempt.loaded
                _say(context, attempt.loaded, len(done) + len(now_done), len(keys))
            elif attempt.error is not None:
                errors[attempt.window] = attempt.error
                context.log.error(f"window {attempt.window} failed: {attempt.error}")
                if is_of_a_service(attempt.error):
                    break
        done |= now_done
        if errors:
            _report_done(context, loader, now_done)
            runs.record_failures(context.instance, context.run.run_id, declaration.raw_table, Failures.of(errors))
            text = failure_text(errors, len(keys), len(done))
            raise _as_dagster(errors, text, context.retry_number) from next(iter(errors.values()))
        _report_sealed(context, loader, keys)
        if len(keys) == 1:
            loaded = done[keys[0]]
            return dg.MaterializeResult(
                metadata=metadata.of_receipt(loaded.receipt, loaded.outcome, str(loader.table)),
                data_version=dg.DataVersion(metadata.data_version(loaded.receipt)),
            )
        for key, loaded in done.items():
            context.add_asset_metadata(
                metadata.of_receipt(loaded.receipt, loaded.outcome, str(loader.table)), partition_key=key
            )
        return dg.MaterializeResult()

    return _load


def _checks(declaration: TopicDeclaration) -> dg.AssetChecksDefinition:
    """The checks of each load, in one step: they judge the same facts."""
    topic = declaration.topic
    specs = [_spec(declaration.raw_table, check) for check in CHECKS.values()]

    @dg.multi_asset_check(specs=specs, name=f"{identifier(topic)}_checks", can_subset=True)
    def _evaluate_all(
        context: dg.AssetCheckExecutionContext, kafka: KafkaResource, lake: LakeResource, spark: SparkResource
    ) -> Iterator[dg.AssetCheckResult]:
        evaluation = _evaluation(context, declaration, kafka, lake, spark, counting=CHECKS.values())
        wanted = {key.name for key in context.selected_asset_check_keys}
        for check in CHECKS.values():
            if check.name in wanted:
                yield rendering.result(check.evaluate(evaluation), evaluation.facts())

    return _evaluate_all


def _deep_audit_check(declaration: TopicDeclaration, budget: float) -> dg.AssetChecksDefinition:
    topic = declaration.topic

    @dg.multi_asset_check(
        specs=[_spec(declaration.raw_table, DEEP_AUDIT)], name=f"{identifier(topic)}_{DEEP_AUDIT.name}_check"
    )
    def _evaluate(
        context: dg.AssetCheckExecutionContext, kafka: KafkaResource, lake: LakeResource, spark: SparkResource
    ) -> Iterator[dg.AssetCheckResult]:
        keys = (w.key for w in Ledger(lake.lake()).windows(topic))
        windows = runs.windows_of(context.run, table_key(declaration.raw_table), keys)
        evaluation = _evaluation(context, declaration, kafka, lake, spark, budget=budget, windows=windows)
        yield rendering.result(DEEP_AUDIT.evaluate(evaluation), evaluation.facts())

    return _evaluate


def _spec(table: TableRef, check: Check) -> dg.AssetCheckSpec:
    return dg.AssetCheckSpec(check.name, asset=table_key(table), blocking=check.blocking, description=check.description)


def _evaluation(
    context: dg.AssetCheckExecutionContext,
    declaration: TopicDeclaration,
    kafka: KafkaResource,
    lake: LakeResource,
    spark: SparkResource,
    *,
    budget: float = _CHECK_BUDGET_SECONDS,
    windows: frozenset[str] | None = None,
    counting: Collection[Check] = (),
) -> Evaluation:
    return Evaluation(
        declaration,
        Ledger(lake.lake()),
        runs.orchestration(context.instance, declaration.raw_table, but=context.run.run_id),
        kafka.settings,
        kafka.cluster,
        choose_engine(lake.lake(), kafka.settings, spark.session, declaration.engine),
        budget,
        windows,
        counting=counting,
        witness=lambda name: choose_engine(lake.lake(), kafka.settings, spark.session, name),
        progress=context.log.info,
    )


def _deep_audit_selection(declaration: TopicDeclaration) -> dg.AssetSelection:
    return dg.AssetSelection.checks(dg.AssetCheckKey(table_key(declaration.raw_table), DEEP_AUDIT.name))


def _deep_audit_job(declaration: TopicDeclaration) -> Any:
    return dg.define_asset_job(
        f"{identifier(declaration.topic)}_deep_audit",
        selection=_deep_audit_selection(declaration),
        description=f"Reads files of {declaration.raw_table} again, oldest proof first, and recomputes their digests.",
    )


def _deep_audit_schedule(declaration: TopicDeclaration, deep_audit: DeepAudit) -> dg.ScheduleDefinition:
    return dg.ScheduleDefinition(
        name=f"{identifier(declaration.topic)}_deep_audit_schedule",
        job_name=f"{identifier(declaration.topic)}_deep_audit",
        cron_schedule=deep_audit.schedule,
        default_status=dg.DefaultScheduleStatus.RUNNING if deep_audit.running else dg.DefaultScheduleStatus.STOPPED,
    )


def _say(context: dg.AssetExecutionContext, loaded: Loaded, number: int, of: int) -> None:
    r = loaded.receipt
    context.log.info(
        f"window {r.window} ({number} of {of}): {loaded.outcome}, {r.rows:,} rows of {r.ranges.size:,} offsets, "
        f"table version {r.table_version}, {r.seconds:.1f} s"
    )


def _loaded_before(context: dg.AssetExecutionContext, loader: Loader) -> dict[str, Loaded]:
    """What an earlier try of this run has loaded and reported."""
    table = loader.declaration.raw_table
    outcomes = runs.reported_by(context.instance, context.run.run_id, table_key(table))
    receipts = loader.ledger.receipts(table, sorted(outcomes)) if outcomes else {}
    return {key: Loaded(receipt, cast(Outcome, outcomes[key])) for key, receipt in receipts.items()}


def _report_done(context: dg.AssetExecutionContext, loader: Loader, done: dict[str, Loaded]) -> None:
    """Tell Dagster of the windows that were committed before one failed; the step's own events are lost with it."""
    for key, loaded in done.items():
        context.log_event(
            dg.AssetMaterialization(
                table_key(loader.declaration.raw_table),
                partition=key,
                metadata=metadata.of_receipt(loaded.receipt, loaded.outcome, str(loader.table)),
            )
        )


def _report_sealed(context: dg.AssetExecutionContext, loader: Loader, keys: Sequence[str]) -> None:
    """Report windows on the topic asset that no sensor has reported: the run may have sealed them itself."""
    topic = loader.declaration.topic
    known = runs.reported_partitions(context.instance, topic_key(topic), keys)
    for window in _windows(loader, [k for k in keys if k not in known]):
        context.instance.report_runless_asset_event(sealed_event(window))


def _windows(loader: Loader, keys: Sequence[str]) -> Iterator[Any]:
    for key in keys:
        window = loader.ledger.window(loader.declaration.topic, key)
        if window is not None:
            yield window


def _as_dagster(errors: Mapping[str, PlatformError], text: str, retries: int) -> Exception:
    """A failure that says what the errors say; tried again by itself, at most `_RETRIES` times, where that can help.

    After that, the topic's sensor asks for the windows again: `retries` says when.
    """
    if retries >= _RETRIES or all(isinstance(e, Terminal) for e in errors.values()):
        kinds = ", ".join(sorted({type(e).__name__ for e in errors.values()}))
        return dg.Failure(text, metadata={"error": kinds, "windows": sorted(errors)}, allow_retries=False)
    return dg.RetryRequested(max_retries=_RETRIES, seconds_to_wait=_RETRY_AFTER_SECONDS)
