"""The job `upkeep`, with its schedule. It merges small files of the lake's tables, and reports the result on each
table's page."""

# No postponed annotations here: Dagster reads those of the functions below.
import functools
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any, Final

import dagster as dg
from pydantic import Field

from platform_assets.checks.findings import counted
from platform_assets.engines.choice import merge_engine
from platform_assets.errors import PlatformError
from platform_assets.lake import holdings
from platform_assets.lake.location import Lake
from platform_assets.ledger.store import Ledger
from platform_assets.model.declaration import TopicDeclaration
from platform_assets.model.tables import TableRef
from platform_assets.model.untrusted import line
from platform_assets.orchestration.dagster_records import UNDER_WAY
from platform_assets.orchestration.names import table_key
from platform_assets.orchestration.resources import LakeResource, SparkResource, read_config, values_of
from platform_assets.windows.maintain import expiry_text, keeping, upkeep_text
from platform_assets.windows.maintain.last_upkeep import LastUpkeep
from platform_assets.windows.maintain.merging import BUDGET_BYTES
from platform_assets.windows.maintain.upkeep import QUIET, TableUpkeep

TOPICS_TAG: Final = "platform/upkeep_topics"
"""Tag of scheduled runs, by which the topics of their code location are identified."""

MOST_OPENED: Final = 50
"""Maximum number of tables that the schedule opens to find out whether any of them is flat."""

Declarations = Callable[[], Mapping[str, TopicDeclaration]]


class UpkeepConfig(dg.Config):
    """Files that a run merges."""

    tables: list[str] = Field(
        default=[], description="Tables, such as raw/orders; if empty, all tables of this code location's topics."
    )
    quiet_hours: float = Field(
        default=QUIET / timedelta(hours=1),
        ge=0,
        le=100_000,
        description="Skip windows that ended less than this many hours ago.",
    )
    budget_bytes: int = Field(
        default=BUDGET_BYTES, ge=1, description="Merge about this amount of data per table; the next run continues."
    )
    dry_run: bool = Field(default=False, description="Only report what would be merged.")


def definitions(declarations: Declarations = dict) -> dg.Definitions:
    """Build the job and its schedule, which is enabled by default.

    `declarations` returns the declared topics by name. The job uses the settings of these topics.
    """

    @dg.op(config_schema=values_of(UpkeepConfig))
    def upkeep_each_table(context: dg.OpExecutionContext, lake: LakeResource, spark: SparkResource) -> None:
        config, root = read_config(UpkeepConfig, context), lake.lake()
        known = {table.name: table for table in root.tables()}
        if unknown := sorted(set(config.tables) - set(known)):
            raise dg.Failure(
                line(
                    f"the lake has no table {', '.join(unknown)}; its tables are: {', '.join(sorted(known)) or 'none'}"
                )
            )
        ledger, declared, failed = Ledger(root), declarations(), list[str]()
        engine = merge_engine(root, spark.session, spark.remote)
        # Another code location has the settings of its own topics, and merges their files.
        own = [name for name, table in sorted(known.items()) if table.topic in declared]
        names = config.tables or own
        topics = (known[name].topic for name in names if known[name].kind == "raw")
        keeps = [declared[topic] for topic in topics if topic in declared]
        failed += _keep(context, keeps, ledger, dry_run=config.dry_run)
        removed = functools.cache(functools.partial(keeping.topics_with_removals, ledger))
        for name in names:
            table = known[name]
            upkeep = TableUpkeep.of(
                table,
                ledger,
                declared.get(table.topic),
                engine=engine,
                quiet=timedelta(hours=config.quiet_hours),
                budget=config.budget_bytes,
                removed=removed,
            )
            try:
                if not _upkeep(context, upkeep, dry_run=config.dry_run):
                    failed.append(name)
            except PlatformError as e:
                failed.append(name)
                context.log.error(line(f"{name}: {e}"))
        if failed:
            raise dg.Failure(
                line(
                    f"upkeep of {counted(len(failed), 'table')} needs attention: {', '.join(failed)}. The other tables "
                    "are done. For each failed table, this run's log states the problem and the fix."
                )
            )

    @dg.job(
        name="upkeep",
        description=(
            "Removes windows past the topics' `keep`, merges small files of tables that are not partitioned by windows, "
            "once the windows have not changed for a while, and deletes files that no version of the last week refers "
            "to (as `platform-assets upkeep` does)."
        ),
    )
    def upkeep_tables() -> None:
        upkeep_each_table()

    @dg.schedule(
        name="upkeep_schedule",
        job=upkeep_tables,
        cron_schedule="40 3 * * *",
        default_status=dg.DefaultScheduleStatus.RUNNING,
    )
    def upkeep_schedule(context: dg.ScheduleEvaluationContext, lake: LakeResource) -> Any:
        root, declared = lake.lake(), declarations()
        tables = root.tables()
        # Opening thousands of tables could take longer than a tick may: then the run finds out.
        is_needed = (
            any(each.keep is not None for each in declared.values())
            or len(tables) > MOST_OPENED
            or any(_is_flat(root, table) for table in tables)
            or _had_removals(root, declared)
        )
        if not is_needed:
            return dg.SkipReason(
                "The lake has no flat table, so there are no files to merge, and no windows to remove as past `keep`."
            )
        # Other code locations have a job of the same name. A change of topics makes two runs possible: they do no harm.
        own = {TOPICS_TAG: sha256("\n".join(sorted(declarations())).encode()).hexdigest()[:16]}
        unfinished = dg.RunsFilter(job_name=upkeep_tables.name, statuses=UNDER_WAY, tags=own)
        if context.instance.get_runs(unfinished, limit=1):
            return dg.SkipReason("The last run has not finished yet.")
        return dg.RunRequest(tags=own)

    return dg.Definitions(jobs=[upkeep_tables], schedules=[upkeep_schedule])


def _is_flat(lake: Lake, table: TableRef) -> bool:
    """Return True if the table is flat, or if it cannot be opened, in which case the run reports the reason."""
    try:
        return holdings.is_flat(lake.table(table).delta())
    except PlatformError:
        return True


def _had_removals(lake: Lake, declared: Collection[str]) -> bool:
    """Return True if windows of one of these topics were removed as past `keep`: old files of theirs may be left. Also if
    that cannot be read, in which case the run reports the reason."""
    try:
        return not keeping.topics_with_removals(Ledger(lake)).isdisjoint(declared)
    except PlatformError:
        return True


def _keep(
    context: dg.OpExecutionContext, declared: list[TopicDeclaration], ledger: Ledger, *, dry_run: bool
) -> list[str]:
    """Remove windows past the topics' `keep`, and log the results; return the names of raw tables that need attention."""
    failed = list[str]()
    for declaration, done in keeping.of_topics(declared, ledger, datetime.now(UTC), dry_run=dry_run):
        name = declaration.raw_table.name
        if isinstance(done, Exception):
            context.log.error(line(f"{name}: {done}"))
            failed.append(name)
            continue
        context.log.info(line(f"{name}: {expiry_text.plan_text(done) if dry_run else expiry_text.text(done)}"))
        for text in expiry_text.warnings(declaration.topic, done.held, done.more):
            context.log.warning(line(text))
        problems = list(expiry_text.problems(declaration.topic, done.held, done.more))
        for text in problems:
            context.log.error(line(text))
        failed += [name] if problems and not dry_run else []
    return failed


def _upkeep(context: dg.OpExecutionContext, upkeep: TableUpkeep, *, dry_run: bool) -> bool:
    """Run the upkeep of a table, log and report it; return False if it found damage."""
    name, now = upkeep.table.name, datetime.now(UTC)
    if dry_run:
        plan = upkeep.plan(now)
        context.log.info(line(f"{name}: {upkeep_text.PARTITIONED if plan is None else upkeep_text.plan_text(plan)}"))
        return True
    done = upkeep.run(
        now,
        lambda number, groups, merged: context.log.info(
            line(f"{name}: {upkeep_text.group_text(number, groups, merged)}")
        ),
    )
    if done is None:
        context.log.info(line(f"{name}: {upkeep_text.PARTITIONED}"))
        return True
    context.log.info(line(f"{name}: {upkeep_text.done_text(done)}"))
    context.log_event(dg.AssetObservation(table_key(upkeep.table), metadata=metadata_of(done)))
    for text in upkeep_text.damage_texts(name, sorted(done.damaged)):
        context.log.error(line(text))
    return not done.damaged


def metadata_of(done: LastUpkeep) -> dict[str, Any]:
    """Return the metadata of an upkeep, for the table's page."""
    return {
        "upkeep": line(upkeep_text.done_text(done)),
        "files": done.files,
        "files_before": done.files_before,
        "average_file_bytes": done.bytes // max(done.files, 1),
        "bytes": done.bytes,
        "merged_files": done.merged_files,
        "merged_bytes": done.merged_bytes,
        "damaged_windows": len(done.damaged),
        "seconds": done.seconds,
    }
