"""Maintenance jobs: upkeep and vacuum of the lake's tables, and pruning of Dagster's run store."""

# No postponed annotations here: Dagster reads those of the functions below.
import functools
from datetime import UTC, datetime, timedelta

import dagster as dg
from pydantic import Field

from platform_assets.checks.findings import counted
from platform_assets.errors import ConfigurationError, PlatformError
from platform_assets.lake.vacuum import vacuum
from platform_assets.ledger.store import Ledger
from platform_assets.model.untrusted import line
from platform_assets.orchestration.maintenance import upkeep
from platform_assets.orchestration.maintenance.pruning import DEFAULT_KEEP, DEFAULT_SECONDS, Budget, prune
from platform_assets.orchestration.resources import LakeResource, read_config, values_of
from platform_assets.windows.publish.loads import needed_files


class VacuumConfig(dg.Config):
    """Files that a run deletes."""

    tables: list[str] = Field(default=[], description="Tables, such as raw/orders; if empty, all tables of the lake.")
    retain_hours: int | None = Field(
        default=None,
        description="Minimum age in hours of a file to delete. Default: the table's retention, which is a week.",
    )
    dry_run: bool = Field(default=False, description="Only list what would be deleted.")


class PruneConfig(dg.Config):
    """Runs that are deleted."""

    keep_days: float = Field(
        default=DEFAULT_KEEP / timedelta(days=1), ge=0, description="Number of days to keep a run after it has ended."
    )
    max_runs: int | None = Field(
        default=None, ge=0, description="Maximum number of finished runs to keep, whatever their age."
    )
    seconds: float = Field(
        default=DEFAULT_SECONDS,
        ge=0,
        description="Do not begin to delete another run after this many seconds; the next run of this job continues.",
    )
    location: str | None = Field(
        default=None, description="Code location of the runs to delete. Default: the code location of this job."
    )
    dry_run: bool = Field(default=False, description="Only report what would be deleted.")


def definitions(keep_runs_days: float | None = None, declarations: upkeep.Declarations = dict) -> dg.Definitions:
    """Build the jobs `upkeep`, `vacuum_tables` and `prune_runs`, and their schedules; the last two are off by default.

    Args:
        keep_runs_days: if given, runs older than this are deleted without switching the schedule on.
        declarations: returns the declared topics by name.
    """
    return dg.Definitions.merge(upkeep.definitions(declarations), _vacuum(), _prune(keep_runs_days))


def days_of(text: str | None) -> float | None:
    """Parse a number of days, 1 or more, from `PLATFORM_KEEP_RUNS_DAYS`. Raises ConfigurationError."""
    if not text:
        return None
    try:
        days = float(text)
    except ValueError:
        days = 0.0
    # NaN fails this comparison too.
    if not 1 <= days < 100_000:
        raise ConfigurationError(f"PLATFORM_KEEP_RUNS_DAYS is {text!r}: give a number of days, 1 or more, or unset it")
    return days


def _prune(keep_days: float | None) -> dg.Definitions:
    @dg.op(config_schema=values_of(PruneConfig))
    def prune_old_runs(context: dg.OpExecutionContext) -> None:
        config = read_config(PruneConfig, context)
        origin = context.run.remote_job_origin
        location = config.location or (None if origin is None else origin.repository_origin.get_label())
        if location is None:
            raise dg.Failure("this run has no code location; set `location`", allow_retries=False)
        budget = Budget(timedelta(days=config.keep_days), config.max_runs, config.seconds)
        try:
            done = prune(
                context.instance, location, budget, datetime.now(UTC), dry_run=config.dry_run, but=context.run_id
            )
        except ConfigurationError as e:
            raise dg.Failure(line(e), allow_retries=False) from e
        for text in done.text().splitlines():
            context.log.info(line(text))

    @dg.job(
        name="prune_runs",
        description=(
            "Deletes old runs of this code location from Dagster's store, but keeps the state that Dagster shows for "
            "partitions, assets and checks (as `platform-assets prune-runs` does)."
        ),
    )
    def prune_runs() -> None:
        prune_old_runs()

    days = {} if keep_days is None else {"keep_days": keep_days}
    schedule = dg.ScheduleDefinition(
        name="prune_runs_schedule",
        job=prune_runs,
        cron_schedule="15 */6 * * *",
        run_config={"ops": {"prune_old_runs": {"config": days}}},
        default_status=dg.DefaultScheduleStatus.STOPPED if keep_days is None else dg.DefaultScheduleStatus.RUNNING,
    )
    return dg.Definitions(jobs=[prune_runs], schedules=[schedule])


def _vacuum() -> dg.Definitions:

    @dg.op(config_schema=values_of(VacuumConfig))
    def vacuum_each_table(context: dg.OpExecutionContext, lake: LakeResource) -> None:
        config = read_config(VacuumConfig, context)
        root = lake.lake()
        known = {table.name: table for table in root.tables()}
        if unknown := sorted(set(config.tables) - set(known)):
            raise dg.Failure(
                line(
                    f"the lake has no table {', '.join(unknown)}; its tables are: {', '.join(sorted(known)) or 'none'}"
                )
            )
        failed = list[str]()
        for name in config.tables or sorted(known):
            try:
                done = vacuum(
                    known[name],
                    root.table(known[name]),
                    retain_hours=config.retain_hours,
                    dry_run=config.dry_run,
                    keep=functools.partial(needed_files, Ledger(root), known[name]),
                )
            except PlatformError as e:
                failed.append(name)
                context.log.error(line(f"{name}: {e}"))
                continue
            did = "would delete" if config.dry_run else "deleted"
            context.log.info(line(f"{name}: {did} {counted(len(done.files), 'file')}, {done.bytes:,} bytes"))
        if failed:
            raise dg.Failure(
                line(
                    f"{counted(len(failed), 'table')} could not be cleaned up: {', '.join(failed)}. The other tables "
                    f"were cleaned up. For each failed table, this run's log states the error and the fix."
                )
            )

    @dg.job(
        name="vacuum_tables",
        description="Deletes files that no table refers to any longer: files of interrupted loads, and files of past "
        "versions older than the table's retention. Windows can then no longer be restored from these versions.",
    )
    def vacuum_tables() -> None:
        vacuum_each_table()

    schedule = dg.ScheduleDefinition(
        name="vacuum_tables_schedule",
        job=vacuum_tables,
        cron_schedule="30 4 * * 0",
        default_status=dg.DefaultScheduleStatus.STOPPED,
    )
    return dg.Definitions(jobs=[vacuum_tables], schedules=[schedule])
