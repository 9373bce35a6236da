"""`platform-assets migrate-layout`."""

from __future__ import annotations

import click

from platform_assets.cli import options
from platform_assets.terminal import console, echo, echo_json

JSON_VERSION = 1


@click.command("migrate-layout")
@click.argument("table")
@options.dry_run("Only print what would be copied.")
@options.as_json("Print JSON: version, table, dry_run, layout, windows, files, bytes, copied, table_version, unproved.")
def migrate_layout(table: str, dry_run: bool, as_json: bool) -> None:
    """Change TABLE from one partition per window to files that many windows share and that readers can read faster.

    TABLE is raw/<topic> (or just the topic's name), decoded/<topic> or dead_letters/<topic>. Rows, receipts and past
    versions stay. Loads continue in the meantime. The rows are copied to new files, and then one commit replaces the
    previous files. The new files need as much additional space as the table takes now, until `vacuum` deletes the
    previous files. If the command is interrupted, run it again to continue.

    First upgrade everything that loads into the table or reads its files by partition, because earlier releases cannot
    load into the new layout.

    Exits 1 if rows of a window are not those that were loaded. Load that window again, then run the command again.
    """
    from platform_assets.checks.findings import counted
    from platform_assets.cli.audit_table import progress
    from platform_assets.cli.environment import Environment
    from platform_assets.components.declared import table_held
    from platform_assets.errors import ConfigurationError
    from platform_assets.windows.maintain.migrating import Migration

    ledger = Environment.of_process().ledger()
    _, name = table_held(table, ledger)
    migration = Migration(name, ledger)
    if not migration.folder.has_delta_log():
        raise ConfigurationError(
            f"{name} has no files yet, because nothing has been loaded into it: see `platform-assets status`"
        )
    head = {"version": JSON_VERSION, "table": name.name, "dry_run": dry_run}
    if dry_run:
        plan = migration.planned()
        if as_json:
            layout = "flat" if plan.is_flat else "partitioned"
            echo_json(
                {
                    **head,
                    "layout": layout,
                    "windows": plan.windows,
                    "files": plan.files,
                    "bytes": plan.bytes,
                    "copied": plan.copied,
                }
            )
        elif plan.is_flat:
            echo(f"{name} already has the flat layout: there is nothing to do")
        else:
            echo(
                f"{name}: would copy {plan.bytes - plan.copied:,} bytes from {counted(plan.files, 'file')} with "
                f"{counted(plan.windows, 'window')}; {plan.copied:,} bytes have already been copied"
            )
        return
    with progress(console(stderr=True)) as on_progress:
        done = migration.run(on_progress)
    if as_json:
        echo_json(
            {
                **head,
                "layout": "flat",
                "windows": done.windows,
                "files": done.files,
                "bytes": done.bytes,
                "table_version": done.version,
                "unproved": list(done.unproved),
            }
        )
        return
    if done.version is None:
        echo(f"{name} already has the flat layout: {counted(done.files, 'file')}, {done.bytes:,} bytes")
        return
    echo(
        f"{name}: version {done.version} has {counted(done.windows, 'window')} in {counted(done.files, 'file')}, "
        f"{done.bytes:,} bytes; before, there were {counted(done.files_before, 'file')}"
    )
    if done.unproved:
        some = ", ".join(done.unproved[:5])
        echo(
            f"{name}: the rows of {counted(len(done.unproved), 'window')} ({some}) are not proved by any "
            "receipt, just as before the change; "
            f"`platform-assets audit {name}` shows why"
        )
