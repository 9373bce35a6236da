"""The Dagster definitions of a topic, and of a group of topics: assets, checks, sensors, jobs and schedules."""

# No postponed annotations here: Dagster reads those of the functions below.
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

import dagster as dg
from dagster._core.storage.tags import ASSET_PARTITION_RANGE_START_TAG, PARTITION_NAME_TAG
from dagster_shared.check import CheckError

from platform_assets.checks.registry import DEEP_AUDIT
from platform_assets.decoding.formats import decoder_of
from platform_assets.errors import ConfigurationError, TopicMissingError
from platform_assets.lake import changes_table, dead_letter_table, decoded_table, state_table
from platform_assets.lake.decoded_table import is_required, type_name
from platform_assets.lake.location import Lake
from platform_assets.ledger.entries import Receipt
from platform_assets.ledger.store import Ledger
from platform_assets.model.declaration import TopicDeclaration
from platform_assets.model.decoding import DecodeDeclaration
from platform_assets.model.state import StateDeclaration
from platform_assets.model.tables import TableRef
from platform_assets.model.untrusted import line, markdown
from platform_assets.model.windows import KEY_FORMAT, key_of
from platform_assets.orchestration import (
    changes_checks,
    decoded_checks,
    events,
    names,
    raw_checks,
    run_steps,
    state_definitions,
)
from platform_assets.orchestration.freshness import freshness
from platform_assets.orchestration.names import (
    assets_job,
    changes_op,
    decode_op,
    deep_audit_job,
    deep_audit_schedule,
    load_job,
    load_op,
    sensor_name,
    table_key,
    topic_key,
)
from platform_assets.orchestration.resources import (
    KafkaResource,
    LakeResource,
    RunServices,
    SparkResource,
)
from platform_assets.orchestration.tick import Group, Tick
from platform_assets.orchestration.window_jobs import build_group_job, build_listed_windows_job
from platform_assets.windows.load.replacing import Outcome


@dataclass(frozen=True, slots=True)
class DeepAudit:
    """Schedule of the deep audit (cron, UTC), whether the schedule is enabled by default, and the audit's time limit in
    seconds."""

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
    """Build all Dagster definitions of one topic."""
    partitions = _partitions(declaration.schedule, declaration.first_edge)
    source = dg.AssetSpec(
        topic_key(declaration.topic),
        partitions_def=partitions,
        group_name=group,
        kinds={"kafka"},
        owners=list(owners),
        description=(description or markdown(f"Kafka topic {declaration.topic}."))
        + " Each partition is a sealed window: a range of offsets that never changes.",
        metadata={"topic": declaration.topic, "window": declaration.schedule},
    )
    checks = [raw_checks.build_checks(declaration), raw_checks.build_deep_audit(declaration, deep_audit.budget_seconds)]
    tables = [_raw_table(declaration, partitions, group, owners)]
    folds = list[Any]()
    if declaration.decode is not None:
        tables.append(_decoded_tables(declaration, declaration.decode, partitions, group, owners))
        checks.append(decoded_checks.build_checks(declaration, declaration.decode))
    if declaration.decode is not None and declaration.state is not None:
        tables.append(_changes_table(declaration, declaration.decode, declaration.state, partitions, group, owners))
        checks.append(changes_checks.build_checks(declaration))
        tables.append(_state_tables(declaration, declaration.decode, declaration.state, group, owners))
        checks.append(state_definitions.build_checks(declaration, declaration.state))
        folds = [state_definitions.build_job(declaration)]
    if declaration.together is not None:
        # `build_group` builds the rest for the whole group.
        jobs = [] if declaration.decode is None else [build_listed_windows_job(declaration)]
        return dg.Definitions(assets=[source, *tables], asset_checks=checks, jobs=[*jobs, *folds])
    load, load_earlier = load_job_of(load_job(declaration.topic), [declaration]), build_listed_windows_job(declaration)
    return dg.Definitions(
        assets=[source, *tables],
        asset_checks=checks,
        sensors=[_sensor(Group.of(declaration), sensor_running, [load, load_earlier, *folds])],
        jobs=[load, load_earlier, *folds, _deep_audit_job(declaration)],
        schedules=[_deep_audit_schedule(declaration, deep_audit)],
    )


@lru_cache(maxsize=1024)
def _partitions(schedule: str, first_edge: datetime) -> dg.TimeWindowPartitionsDefinition:
    """Return one object for all topics with the same schedule and first edge, because building this object costs more
    than building an asset."""
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
            f"Every committed record of Kafka topic {topic}, exactly once, as bytes. Materializing a partition again "
            "proves that its rows are still those that were loaded, repairs them, or fails without changing anything."
        ),
        metadata={"dagster/table_name": declaration.raw_table.name, "dagster/storage_kind": "delta"},
        freshness_policy=None if declaration.paused else freshness(declaration),
    )

    # `dg.asset` would derive the op's name from the key, where `a.b`, `a-b` and `a_b` collide.
    @dg.multi_asset(
        specs=[spec],
        name=load_op(topic),
        backfill_policy=dg.BackfillPolicy.single_run(),
        op_tags={"platform_assets/topic": topic},
    )
    def _load(
        context: dg.AssetExecutionContext, kafka: KafkaResource, lake: LakeResource, spark: SparkResource
    ) -> dg.MaterializeResult[Any]:
        keys = _partition_keys(context, declaration.raw_table, declaration.first_edge)
        done = run_steps.load_partitions(context, declaration, RunServices(kafka, lake, spark), keys)
        found = {key: (loaded.receipt, loaded.outcome) for key, loaded in done.items()}
        return _materialized(context, declaration.raw_table, found, lake.lake())

    return _load


def _decoded_tables(
    declaration: TopicDeclaration,
    declared: DecodeDeclaration,
    partitions: dg.PartitionsDefinition[str],
    group: str,
    owners: Sequence[str],
) -> dg.AssetsDefinition:
    """Build the two assets. Their code version is the digest of the decoding declaration, so a change of the
    declaration makes older windows stale."""
    topic, raw = declaration.topic, table_key(declaration.raw_table)
    common: dict[str, Any] = {
        "deps": [raw],
        "partitions_def": partitions,
        "group_name": group,
        "kinds": {"delta", "pyspark"},
        "owners": list(owners),
        "code_version": declared.digest,
    }
    key_fields = None if declared.key is None else decoder_of(declared.key).fields
    columns = decoded_table.columns(key_fields, decoder_of(declared.value).fields)
    specs = [
        dg.AssetSpec(
            table_key(declaration.decoded_table),
            description=markdown(
                f"Records of Kafka topic {topic} as typed rows: one row for each record that could be decoded."
            ),
            metadata=_table_metadata(declaration.decoded_table.name, columns, _lineage(raw, columns)),
            **common,
        ),
        dg.AssetSpec(
            table_key(declaration.dead_letter_table),
            description=markdown(
                f"Records of Kafka topic {topic} that could not be decoded, as they were sent, with the reason."
            ),
            metadata=_table_metadata(
                declaration.dead_letter_table.name,
                dead_letter_table.columns(),
                {n: [dg.TableColumnDep(raw, n)] for n in dead_letter_table.RAW_COLUMNS},
            ),
            **common,
        ),
    ]

    @dg.multi_asset(
        specs=specs,
        name=decode_op(topic),
        backfill_policy=dg.BackfillPolicy.single_run(),
        op_tags={"platform_assets/topic": topic},
    )
    def _decode(
        context: dg.AssetExecutionContext, kafka: KafkaResource, lake: LakeResource, spark: SparkResource
    ) -> Iterator[dg.MaterializeResult[Any]]:
        keys = _partition_keys(context, declaration.decoded_table, declaration.first_edge)
        done = run_steps.decode_partitions(context, declaration, RunServices(kafka, lake, spark), keys)
        decoded = {key: (w.decoded, w.outcome) for key, w in done.items()}
        letters = {key: (w.dead_letters, w.outcome) for key, w in done.items()}
        yield _materialized(context, declaration.decoded_table, decoded, lake.lake())
        yield _materialized(context, declaration.dead_letter_table, letters, lake.lake())

    return _decode


def _changes_table(
    declaration: TopicDeclaration,
    decode: DecodeDeclaration,
    state: StateDeclaration,
    partitions: dg.PartitionsDefinition[str],
    group: str,
    owners: Sequence[str],
) -> dg.AssetsDefinition:
    """Build the asset of the changes. Its code version is the digest of the state's declaration."""
    topic, decoded = declaration.topic, table_key(declaration.decoded_table)
    columns = _changes_columns(decode, state)
    lineage = {n: [dg.TableColumnDep(decoded, n)] for n in columns.names if n not in changes_table.OWN}
    lineage[changes_table.DELETED] = [dg.TableColumnDep(decoded, decoded_table.TOMBSTONE)]
    which = "The last record" if state.keep == "last" else "The first record"
    spec = dg.AssetSpec(
        table_key(declaration.changes_table),
        deps=[decoded],
        partitions_def=partitions,
        group_name=group,
        kinds={"delta"},
        owners=list(owners),
        code_version=state.digest,
        description=markdown(
            f"{which} of each key ({', '.join(state.key)}) of Kafka topic {topic} in each window, deletes included."
        ),
        metadata=_table_metadata(declaration.changes_table.name, columns, lineage),
    )

    @dg.multi_asset(
        specs=[spec],
        name=changes_op(topic),
        backfill_policy=dg.BackfillPolicy.single_run(),
        op_tags={"platform_assets/topic": topic},
    )
    def _change(
        context: dg.AssetExecutionContext, kafka: KafkaResource, lake: LakeResource, spark: SparkResource
    ) -> dg.MaterializeResult[Any]:
        keys = _partition_keys(context, declaration.changes_table, declaration.first_edge)
        done = run_steps.change_partitions(context, declaration, RunServices(kafka, lake, spark), keys)
        found = {key: (made.receipt, made.outcome) for key, made in done.items()}
        return _materialized(context, declaration.changes_table, found, lake.lake())

    return _change


def _changes_columns(decode: DecodeDeclaration, state: StateDeclaration) -> Any:
    key_fields = None if decode.key is None else decoder_of(decode.key).fields
    return changes_table.columns(decoded_table.columns(key_fields, decoder_of(decode.value).fields), state)


def _state_tables(
    declaration: TopicDeclaration,
    decode: DecodeDeclaration,
    state: StateDeclaration,
    group: str,
    owners: Sequence[str],
) -> dg.AssetsDefinition:
    """Build the assets of the state, with their columns and the columns of the changes from which these are made."""
    changes, source = _changes_columns(decode, state), table_key(declaration.changes_table)
    columns = (
        state_table.live_columns(changes),
        state_table.dead_columns(changes, state.key),
        state_table.history_columns(changes),
    )
    made = {state_table.VALID_FROM: "window", state_table.VALID_TO: "window"}
    schema = {
        table: _table_metadata(
            table.name,
            of,
            {n: [dg.TableColumnDep(source, made.get(n, n.removeprefix("ended_")))] for n in of.names},
        )
        for table, of in zip(declaration.state_tables, columns, strict=False)
    }
    return state_definitions.build_asset(declaration, state, schema, group, owners)


def _lineage(raw: dg.AssetKey, columns: Any) -> dict[str, list[dg.TableColumnDep]]:
    """Return each column with the raw column from which it is made."""
    own = {n: n for n in ("topic_id", "kafka_partition", "kafka_offset", "kafka_timestamp", "window")}
    of_key = dict.fromkeys((decoded_table.KEY, decoded_table.KEY_RESCUED), "key")
    return {n: [dg.TableColumnDep(raw, {**own, **of_key}.get(n, "value"))] for n in columns.names}


def _table_metadata(name: str, columns: Any, lineage: dict[str, list[dg.TableColumnDep]]) -> dict[str, Any]:
    schema = dg.TableSchema(
        [
            dg.TableColumn(
                f.name,
                type_name(f.type),
                description=markdown((f.metadata or {}).get(b"comment", b"").decode()) or None,
                constraints=dg.TableColumnConstraints(nullable=not is_required(f)),
            )
            for f in columns
        ]
    )
    return {
        "dagster/table_name": name,
        "dagster/storage_kind": "delta",
        "dagster/column_schema": schema,
        "dagster/column_lineage": dg.TableColumnLineage(lineage),
    }


def _materialized(
    context: dg.AssetExecutionContext, table: TableRef, done: Mapping[str, tuple[Receipt, Outcome]], lake: Lake
) -> dg.MaterializeResult[Any]:
    """Return the result of a step for one table; Dagster makes an event for each partition of the run."""
    path = str(lake.table(table))
    if len(done) == 1:
        ((receipt, outcome),) = done.values()
        version = dg.DataVersion(events.data_version(receipt))
        values = events.metadata_of(receipt, outcome, path)
        return dg.MaterializeResult(asset_key=table_key(table), metadata=values, data_version=version)
    for key, (receipt, outcome) in done.items():
        values = events.metadata_of(receipt, outcome, path)
        context.add_asset_metadata(values, asset_key=table_key(table), partition_key=key)
    return dg.MaterializeResult(asset_key=table_key(table))


def _partition_keys(context: dg.AssetExecutionContext, table: TableRef, first_edge: datetime) -> list[str]:
    """Return the keys of the windows of `table` that the run covers; `first_edge` is the start of its partitions.

    Raises ConfigurationError if these windows are no longer partitions because the declaration was changed after the
    run was requested.
    """
    try:
        return list(context.partition_keys)
    except (CheckError, dg.DagsterError) as e:
        tags = context.run.tags
        first, begins = tags.get(ASSET_PARTITION_RANGE_START_TAG, tags.get(PARTITION_NAME_TAG, "")), key_of(first_edge)
        raise ConfigurationError(
            f"the run is for windows of {table} from {first} on, but {first} is no longer a partition: partitions now begin at "
            f"{begins}, because `start` or `window` in the topic's defs.yaml was changed after the run was "
            f"requested. No window was loaded. Cancel the backfill and launch it again from {begins} on; load "
            f"earlier windows by their keys, for example `platform-assets load {table} {first}`"
        ) from e


def _sensor(group: Group, running: bool, jobs: Sequence[Any]) -> dg.SensorDefinition:
    """Build the sensor of a group. `jobs` are the jobs for which it requests runs."""
    first, number = group.first, len(group.declarations)
    topics = f"topic {first.topic}" if group.name is None else f"{number} topics"

    @dg.sensor(
        name=sensor_name(first.topic, group.name),
        jobs=jobs,
        # Dagster's daemon checks every five seconds which sensors are due. A check slightly before the interval has
        # passed would postpone a tick to the next check; the tick would then be too late to cut its edges without a
        # look-up.
        minimum_interval_seconds=max(round(first.sensor_interval.total_seconds()) - 1, 1),
        default_status=dg.DefaultSensorStatus.RUNNING if running else dg.DefaultSensorStatus.STOPPED,
        description=markdown(f"Seals the windows of {topics}, reports their offsets and requests their loads."),
    )
    def _evaluate(context: dg.SensorEvaluationContext, kafka: KafkaResource, lake: LakeResource) -> dg.SensorResult:
        tick = Tick(group, kafka.cluster(), Ledger(lake.lake()), context.instance, datetime.now(UTC))
        try:
            return tick.evaluate(context.cursor)
        except TopicMissingError as e:
            # The error needs a person, and `status` shows it too, so a stack trace at every tick would add nothing.
            return dg.SensorResult(skip_reason=line(e), cursor=context.cursor)

    return _evaluate


def load_job_of(name: str, declarations: Sequence[TopicDeclaration]) -> Any:
    """Build the job that materializes tables of these topics."""
    tables = str(declarations[0].raw_table) if len(declarations) == 1 else f"{len(declarations)} topics"
    return dg.define_asset_job(
        name,
        selection=dg.AssetSelection.assets(*(key for d in declarations for key in names.tables_of(d))),
        description=markdown(f"Loads windows of {tables}, decodes them if that is declared, and evaluates the checks."),
    )


def _deep_audit_selection(declaration: TopicDeclaration) -> dg.AssetSelection:
    return dg.AssetSelection.checks(dg.AssetCheckKey(table_key(declaration.raw_table), DEEP_AUDIT.name))


def _deep_audit_job(declaration: TopicDeclaration) -> Any:
    return dg.define_asset_job(
        deep_audit_job(declaration.topic),
        selection=_deep_audit_selection(declaration),
        description=markdown(
            f"Reads files of {declaration.raw_table} again, those with the oldest proof first, and recomputes their digests."
        ),
    )


def _deep_audit_schedule(declaration: TopicDeclaration, deep_audit: DeepAudit) -> dg.ScheduleDefinition:
    return dg.ScheduleDefinition(
        name=deep_audit_schedule(declaration.topic),
        job_name=deep_audit_job(declaration.topic),
        cron_schedule=deep_audit.schedule,
        default_status=dg.DefaultScheduleStatus.RUNNING if deep_audit.running else dg.DefaultScheduleStatus.STOPPED,
    )


def build_group(group: Group, running: bool, jobs: Sequence[Any], audits: Mapping[str, DeepAudit]) -> dg.Definitions:
    """Build what the topics in a named group share: the sensor, the sensor's jobs, and the deep audits, for which
    `audits` has the schedules by topic.

    `jobs` are jobs of single topics for which ticks also request runs.
    """
    name = group.name or ""
    job = build_group_job(name, group.declarations)
    by_job: dict[str, list[TopicDeclaration]] = {}
    for d in group.declarations:
        by_job.setdefault(assets_job(d), []).append(d)
    single = [load_job_of(name, some) for name, some in sorted(by_job.items())]
    audit_job = dg.define_asset_job(
        f"{name}_together_deep_audit",
        selection=dg.AssetSelection.checks(*(_audit_of(d) for d in group.declarations)),
        description="Reads files of these raw tables again, those with the oldest proof first, and recomputes their digests.",
    )
    by_time: dict[tuple[str, bool], list[TopicDeclaration]] = {}
    for d in group.declarations:
        by_time.setdefault((audits[d.topic].schedule, audits[d.topic].running), []).append(d)
    schedules = [
        _audit_schedule(f"{name}_together_deep_audit_{number}", audit_job, at, on, some)
        for number, ((at, on), some) in enumerate(sorted(by_time.items(), key=lambda item: item[0]))
    ]
    return dg.Definitions(
        sensors=[_sensor(group, running, [job, *single, *jobs])], jobs=[job, *single, audit_job], schedules=schedules
    )


def _audit_of(d: TopicDeclaration) -> dg.AssetCheckKey:
    return dg.AssetCheckKey(table_key(d.raw_table), DEEP_AUDIT.name)


def _audit_schedule(
    name: str, job: Any, at: str, running: bool, declarations: Sequence[TopicDeclaration]
) -> dg.ScheduleDefinition:
    @dg.schedule(
        name=name,
        job=job,
        cron_schedule=at,
        default_status=dg.DefaultScheduleStatus.RUNNING if running else dg.DefaultScheduleStatus.STOPPED,
        description=f"Requests the deep audit of {len(declarations)} topics, one run for each.",
    )
    def _schedule(context: dg.ScheduleEvaluationContext) -> Iterator[dg.RunRequest]:
        moment = context.scheduled_execution_time.astimezone(UTC)
        for d in declarations:
            key = f"{d.raw_table}/deep-audit/{moment:%Y-%m-%dT%H:%M}"
            yield dg.RunRequest(key, asset_selection=[], asset_check_keys=[_audit_of(d)])

    return _schedule
