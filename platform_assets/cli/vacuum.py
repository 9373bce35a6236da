"""`platform-assets vacuum`."""

from __future__ import annotations

import functools

import click

from platform_assets.cli import options
from platform_assets.terminal import echo, echo_json

JSON_VERSION = 1


@click.command()
@click.argument("table")
@click.option(
    "--retain-hours", type=click.IntRange(min=1), help="Minimum age of a file. Default: the table's own retention."
)
@options.dry_run("Only list what would be deleted.")
@options.as_json("Print JSON: version, table, dry_run, files, bytes.")
def vacuum(table: str, retain_hours: int | None, dry_run: bool, as_json: bool) -> None:
    """Delete files of TABLE that the newest version of the table does not use, once they are a week old.

    TABLE is raw/<topic> (or just the topic's name), decoded/<topic>, dead_letters/<topic> or derived/<name>. The deleted files come
    from loads that died, and from past versions. If Kafka no longer has the records of a damaged window, the window can
    only be restored from the remaining versions. The table property delta.deletedFileRetentionDuration sets the week.
    """
    from platform_assets.checks.findings import counted
    from platform_assets.cli.environment import Environment
    from platform_assets.components.declared import derived_or_held
    from platform_assets.errors import ConfigurationError
    from platform_assets.lake.vacuum import vacuum as vacuum_table
    from platform_assets.model.tables import StateRef, TableRef
    from platform_assets.windows.publish.loads import needed_files

    ledger = Environment.of_process().ledger()
    name = derived_or_held(table, ledger)
    if isinstance(name, StateRef):
        raise ConfigurationError(f"{name} needs no vacuum: folds delete its past files after a day")
    folder = ledger.lake.table(name)
    if not folder.has_delta_log():
        raise ConfigurationError(
            f"{name} has no files yet, because nothing has been loaded into it: see `platform-assets status`"
        )
    # Only rows of topics' tables are published.
    keep = functools.partial(needed_files, ledger, name) if isinstance(name, TableRef) else None
    done = vacuum_table(name, folder, retain_hours=retain_hours, dry_run=dry_run, keep=keep)
    if as_json:
        found = {"version": JSON_VERSION, "table": name.name, "dry_run": dry_run}
        echo_json({**found, "files": list(done.files), "bytes": done.bytes})
        return
    for path in done.files if dry_run else ():
        echo(path)
    echo(f"{name}: {'would delete' if dry_run else 'deleted'} {counted(len(done.files), 'file')}, {done.bytes:,} bytes")
