"""The Dagster definitions of a derived table: the asset with its checks, and the sensor that looks at the inputs' versions."""

# No postponed annotations here: Dagster reads those of the functions below.
import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, Final

import dagster as dg
from dagster._core.storage.dagster_run import NOT_FINISHED_STATUSES, RunsFilter

from platform_assets.errors import PlatformError
from platform_assets.lake.derived_table import Made
from platform_assets.lake.location import Lake
from platform_assets.model.derived import DERIVED, DerivedDeclaration, DerivedRef
from platform_assets.model.untrusted import line, markdown
from platform_assets.orchestration import dagster_records
from platform_assets.orchestration.names import key_prefix, table_key
from platform_assets.orchestration.resources import LakeResource, SparkResource
from platform_assets.windows.derive import checking, deriving, freshness, query
from platform_assets.windows.derive.checking import EQUALS_REBUILD, Comparison, Expected
from platform_assets.windows.derive.query import Input

CHECK_NAMES: Final = (EQUALS_REBUILD,)
TAG: Final = "platform_assets/derived"
"""Tag of the runs of a derived table."""
VERSION: Final = "table_version"
"""Key of a materialization's metadata: the version of the table that the run checked."""
COMMAND: Final = "command"
"""Beginning of the ids of runs of `platform-assets derive`."""
FAILED: Final = (dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED)
_FIRST_WAIT: Final = 60
_LONGEST_WAIT: Final = 3600
"""Seconds after which the sensor requests a failed run again: at first, and at most."""


_CONFIG: Final = {
    # Not a `Config`, whose fields a run could set from the environment.
    "whole": dg.Field(
        bool, is_required=False, default_value=False, description="Compute all rows, even if no input has changed."
    )
}


def asset_key(table: Input) -> dg.AssetKey:
    """Return the asset key of a table. Raises ConfigurationError."""
    return dg.AssetKey([*key_prefix(), *table.parts]) if isinstance(table, DerivedRef) else table_key(table)


def op_name(table: DerivedRef) -> str:
    """Return the name of the op that computes a derived table."""
    return f"{DERIVED}__{table.short}"


def run_tag(table: DerivedRef) -> str:
    """Return the value of `TAG` for runs that the sensor of a derived table requests."""
    return "/".join((*key_prefix(), table.name))


def sensor_name(table: DerivedRef) -> str:
    """Return the name of a derived table's sensor."""
    return "__".join((*key_prefix(), f"{DERIVED}__{table.short}_inputs"))


def build(
    declaration: DerivedDeclaration,
    *,
    group: str,
    description: str | None,
    owners: Sequence[str],
    interval_seconds: int,
    sensor_running: bool,
) -> dg.Definitions:
    """Build all Dagster definitions of a derived table. Raises QueryError."""
    parsed, key = query.parsed(declaration), asset_key(declaration.table)
    spec = dg.AssetSpec(
        key,
        deps=[asset_key(each) for each in parsed.inputs],
        group_name=group,
        kinds={"delta", "pyspark", "sql"},
        owners=list(owners),
        code_version=declaration.digest,
        description=(description or markdown(f"Result of a query over {', '.join(each.name for each in parsed.inputs)}."))
        + "\n\n```sql\n" + declaration.sql.replace("```", "` ` `") + "\n```",
        metadata={"dagster/table_name": declaration.table.name, "dagster/storage_kind": "delta"},
    )  # fmt: skip
    checks = [
        dg.AssetCheckSpec(
            EQUALS_REBUILD,
            asset=key,
            blocking=True,
            description="A few groups, computed again from the same versions of the inputs, have the same rows."
            if declaration.totals is None
            else f"The totals, computed again from the same versions of the inputs, are the same. If the driving table has more than "
            f"{checking.MOST_REBUILT:,} rows, they are only compared with the digest that the newest run recorded.",
        ),
        *(
            dg.AssetCheckSpec(
                each.name,
                asset=key,
                blocking=each.severity == "error",
                description=markdown(f"Expected of all rows: `{each}`."),
                metadata={"kind": each.kind, "severity": each.severity},
            )
            for each in declaration.expect
        ),
    ]

    @dg.multi_asset(
        specs=[spec],
        check_specs=checks,
        name=op_name(declaration.table),
        op_tags={TAG: declaration.table.name},
        config_schema=_CONFIG,
    )
    def _derive(context: dg.AssetExecutionContext, lake: LakeResource, spark: SparkResource) -> Iterator[Any]:
        whole = bool(context.op_execution_context.op_config["whole"])
        found = lake.lake()
        because = "all rows were requested"
        if not whole and dagster_records.blocked_by(context.instance, [dg.AssetCheckKey(key, EQUALS_REBUILD)]):
            # Rows that were found to be wrong may be in any group.
            whole, because = True, f"the last check {EQUALS_REBUILD} failed"
        updater = deriving.Updater(found, declaration, spark.session)
        done = updater.run(context.run.run_id, whole=whole, because=because)
        for warning in done.warnings:
            context.log.warning(line(warning))
        made = done.made
        if made.derivation.because:
            context.log.info(line(f"all rows of {declaration.table} were computed: {made.derivation.because}"))
        results, errors = list[dg.AssetCheckResult](), list[PlatformError]()
        try:
            compared = checking.compare(
                found, declaration, spark.session, made, seed=context.run.run_id, replaced=done.groups
            )
            results.append(comparison_result(key, compared))
        except PlatformError as e:
            errors.append(e)
        try:
            expected = checking.expected(found, declaration, spark.session)
            results += [_expectation_result(key, each) for each in expected]
        except PlatformError as e:
            errors.append(e)
        if errors:
            # The table counts as unchecked, so the sensor requests another run. What is known is reported all the same.
            yield from results
            for each in errors[1:]:
                context.log.error(line(each))
            raise errors[0]
        yield dg.MaterializeResult(
            asset_key=key,
            metadata=_metadata(found, declaration, made, is_new=done.is_new),
            data_version=dg.DataVersion(data_version(made)),
            check_results=results,
        )

    return dg.Definitions(assets=[_derive], sensors=[_sensor(declaration, parsed, interval_seconds, sensor_running)])


def data_version(made: Made) -> str:
    """Return the data version of a derivation: a digest of its query and of its inputs' versions."""
    derivation = made.derivation
    inputs = {name: [i.table_id, i.version] for name, i in sorted(derivation.inputs.items())}
    return sha256(json.dumps([derivation.declaration, inputs]).encode()).hexdigest()[:32]


def _metadata(lake: Lake, declaration: DerivedDeclaration, made: Made, *, is_new: bool) -> dict[str, Any]:
    derivation, folder = made.derivation, lake.table(declaration.table)
    handle = folder.delta(made.version)
    columns = [dg.TableColumn(f.name, json.dumps(f.type.to_json()).strip('"')) for f in handle.schema().fields]
    lineage = query.lineage(query.parsed(declaration))
    return {
        "dagster/row_count": derivation.whole.rows,
        "dagster/column_schema": dg.TableSchema(columns),
        **(
            {
                "dagster/column_lineage": dg.TableColumnLineage(
                    {
                        n: [dg.TableColumnDep(asset_key(t), c) for t, c in deps]
                        for n, deps in lineage.items()
                        if n in {column.name for column in columns}
                    }
                )
            }
            if lineage
            else {}
        ),
        VERSION: made.version,
        "outcome": (derivation.extent if is_new else "up to date"),
        "because": line(derivation.because),
        "groups": derivation.groups.get("count", 0),
        "changed_windows": derivation.loads.get("count", 0),
        "rows_written": derivation.written.rows,
        "inputs": dg.MetadataValue.json({name: i.version for name, i in derivation.inputs.items()}),
        "path": dg.MetadataValue.path(str(folder)),
    }


def comparison_result(key: dg.AssetKey, found: Comparison) -> dg.AssetCheckResult:
    """Return the result of `equals_rebuild`."""
    compared = f"{found.rows:,} rows" + ("" if found.groups is None else f" in {found.groups:,} groups")
    if found.unknown is not None:
        text = f"Could not tell: {found.unknown}"
    elif not found.is_rebuilt:
        text = f"{compared} {'differ from' if found.columns else 'equal'} {found.other}."
    elif found.columns:
        text = (
            f"Computed again from the same versions of the inputs, {compared} differ in {', '.join(found.columns)}. The query gives "
            "other results each time: use exact types such as DECIMAL in place of DOUBLE, and no function that depends on the order "
            "of rows. Then the next run computes all rows."
        )
    else:
        text = f"Computed again from the same versions of the inputs, {compared} are equal."
    return dg.AssetCheckResult(
        asset_key=key,
        check_name=EQUALS_REBUILD,
        passed=found.is_equal,
        severity=dg.AssetCheckSeverity.ERROR if found.columns else dg.AssetCheckSeverity.WARN,
        description=markdown(text),
        metadata={"rows": found.rows, **({} if found.groups is None else {"groups": found.groups})},
    )


def _expectation_result(key: dg.AssetKey, found: Expected) -> dg.AssetCheckResult:
    expectation = found.expectation
    text = found.problem or f"{found.failing:,} of {found.rows:,} rows fail: expected that {expectation}."
    return dg.AssetCheckResult(
        asset_key=key,
        check_name=expectation.name,
        passed=found.problem is None and not found.failing,
        severity=dg.AssetCheckSeverity.ERROR if expectation.severity == "error" else dg.AssetCheckSeverity.WARN,
        description=markdown(text),
        metadata={"rows": found.rows, "failing": found.failing},
    )


def _sensor(
    declaration: DerivedDeclaration, parsed: query.Query, interval_seconds: int, running: bool
) -> dg.SensorDefinition:
    table = declaration.table

    @dg.sensor(
        name=sensor_name(table),
        asset_selection=dg.AssetSelection.assets(asset_key(table)),
        minimum_interval_seconds=max(interval_seconds - 1, 1),
        default_status=dg.DefaultSensorStatus.RUNNING if running else dg.DefaultSensorStatus.STOPPED,
        description=markdown(
            f"Requests a run of {table} when an input has a newer version, and no check of an input blocks it."
        ),
    )
    def _evaluate(context: dg.SensorEvaluationContext, lake: LakeResource) -> dg.SensorResult:
        return tick(declaration, parsed, lake.lake(), context, datetime.now(UTC))

    return _evaluate


def died_before_checks(instance: dg.DagsterInstance, table: DerivedRef, made: Made) -> str | None:
    """Return the newest finished run of a table if it failed or was canceled, and no run has reported the newest commit `made`
    with the results of its checks; else None. `platform-assets derive` checks what it commits itself."""
    if made.derivation.run_id.startswith(COMMAND):
        return None
    finished = [dg.DagsterRunStatus.SUCCESS, *FAILED]
    tags = {TAG: run_tag(table)}
    runs = list(instance.get_run_records(dg.RunsFilter(statuses=finished, tags=tags), limit=1))
    # Runs that somebody launched do not have the tag, but planned the asset.
    if (found := instance.get_asset_records([asset_key(table)])) and (last := found[0].asset_entry.last_run_id):
        runs += instance.get_run_records(dg.RunsFilter(run_ids=[last], statuses=finished), limit=1)
    newest = max(runs, key=lambda record: record.storage_id, default=None)
    if newest is None or newest.dagster_run.status not in FAILED:
        return None
    event = instance.get_latest_materialization_event(asset_key(table))
    reported = None if event is None or event.asset_materialization is None else event.asset_materialization.metadata
    version = None if reported is None or VERSION not in reported else reported[VERSION].value
    return None if isinstance(version, int) and version >= made.version else newest.dagster_run.run_id


def tick(
    declaration: DerivedDeclaration, parsed: query.Query, lake: Lake, context: dg.SensorEvaluationContext, now: datetime
) -> dg.SensorResult:
    """Request a run if an input has a newer version than the table's newest commit names, or if the run of that commit ended before
    it had deleted past files with erased values, or before it had checked the rows.

    A run that failed is requested again after a minute, then after twice as long each time, up to an hour.
    """
    cursor = context.cursor
    before = json.loads(cursor) if cursor else {}
    try:
        made, newer = freshness.up_to_date(lake, declaration)
        versions = freshness.input_versions(lake, parsed)
        newest = None if made is None else made.derivation.run_id
        # Past files are listed once for each commit, because listing them is slow in an object store.
        is_done = not newer and (
            made is None or before.get("deleted") == newest or not freshness.has_past_files(lake, made)
        )
    except PlatformError as e:
        return dg.SensorResult(skip_reason=line(e), cursor=cursor)
    if None in versions.values():
        missing = ", ".join(name for name, version in versions.items() if version is None)
        return dg.SensorResult(skip_reason=line(f"waits for {missing}, which has no rows yet"), cursor=cursor)
    if is_done and (made is None or died_before_checks(context.instance, declaration.table, made) is None):
        done = json.dumps({**before, "deleted": newest})
        return dg.SensorResult(skip_reason="no input has a newer version", cursor=done)
    tags = {TAG: run_tag(declaration.table)}
    under_way = context.instance.get_runs(RunsFilter(statuses=list(NOT_FINISHED_STATUSES)))
    own = asset_key(declaration.table)
    # Runs that somebody launched do not have the tag, but name the asset.
    if any(run.tags.get(TAG) == tags[TAG] or own in (run.asset_selection or ()) for run in under_way):
        return dg.SensorResult(skip_reason="a run is under way", cursor=cursor)
    checks = dagster_records.blocking_checks(context, [asset_key(each) for each in parsed.inputs])
    if blocked := dagster_records.failing(context.instance, checks):
        return dg.SensorResult(skip_reason=line(f"a failing check blocks it: {', '.join(blocked)}"), cursor=cursor)
    key = sha256(json.dumps([declaration.digest, versions], sort_keys=True).encode()).hexdigest()[:16]
    tries = before.get("tries", 0) if before.get("key") == key else 0
    wait = min(_FIRST_WAIT << min(max(tries - 1, 0), 10), _LONGEST_WAIT)
    if tries and now.timestamp() - before["at"] < wait:
        return dg.SensorResult(
            skip_reason="the last run for these versions did not complete; waits to try again", cursor=cursor
        )
    cursor = json.dumps({"key": key, "tries": tries + 1, "at": now.timestamp()})
    request = dg.RunRequest(f"{declaration.table.name}:{key}:{tries}", tags=tags)
    return dg.SensorResult(run_requests=[request], cursor=cursor)
