"""What the lake's tables need from time to time, as jobs of Dagster."""

# No postponed annotations here: Dagster reads those of the op.

import dagster as dg
from pydantic import Field

from platform_assets.checks.findings import counted
from platform_assets.lake.vacuum import vacuum
from platform_assets.orchestration.resources import LakeResource


class VacuumConfig(dg.Config):
    """Which files a run deletes."""

    tables: list[str] = Field(default=[], description="Tables, as raw/orders; all of the lake if empty.")
    retain_hours: int | None = Field(
        default=None, description="Age that a file must have; by default the table's own retention, a week."
    )
    dry_run: bool = Field(default=False, description="Only list what would be deleted.")


def definitions() -> dg.Definitions:
    """The job `vacuum_tables`, and a weekly schedule of it that runs once it is switched on."""

    @dg.op
    def vacuum_each_table(context: dg.OpExecutionContext, config: VacuumConfig, lake: LakeResource) -> None:
        root = lake.lake()
        known = {table.name: table for table in root.tables()}
        if unknown := sorted(set(config.tables) - set(known)):
            raise dg.Failure(
                f"the lake has no table {', '.join(unknown)}; it has: {', '.join(sorted(known)) or 'none'}"
            )
        for name in config.tables or sorted(known):
            done = vacuum(
                known[name], root.table(known[name]), retain_hours=config.retain_hours, dry_run=config.dry_run
            )
            did = "would delete" if config.dry_run else "deleted"
            context.log.info(f"{name}: {did} {counted(len(done.files), 'file')}, {done.bytes:,} bytes")

    @dg.job(
        name="vacuum_tables",
        description="Deletes files that no table names any more: those of loads that died, and of past versions older "
        "than the table's retention, which then restore no window any more.",
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
