"""`platform-assets load`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from platform_assets.cli import options
from platform_assets.terminal import echo, echo_json

if TYPE_CHECKING:
    from platform_assets.cli.environment import Environment
    from platform_assets.model.declaration import TopicDeclaration
    from platform_assets.model.tables import TableRef

JSON_VERSION = 1


@click.command()
@click.argument("table")
@click.argument("windows", nargs=-1, metavar="[WINDOW]...")
@click.option(
    "--stale",
    is_flag=True,
    help="Decode again all windows that were decoded with another declaration, or whose rows are missing from the table.",
)
@click.option("--dead-letters", is_flag=True, help="Decode again all windows that have dead letters.")
@click.option(
    "--failed", is_flag=True, help="Load all windows that are missing because the last Dagster run for them failed."
)
@options.dry_run("Only list the windows, with the number of rows that the table currently has for each.")
@options.as_json("Print JSON: version, table, dry_run, plan, windows, decoded, changes, checks, reported.")
def load(
    table: str,
    windows: tuple[str, ...],
    stale: bool,
    dead_letters: bool,
    failed: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Load each WINDOW of TABLE now, as a Dagster run would, and evaluate the table's checks.

    TABLE is raw/<topic>, or just the topic's name; windows are also decoded if the topic declares `decode:`. With
    decoded/<topic> or dead_letters/<topic>, windows in the raw table are only decoded. With changes/<topic>, only the
    changes of decoded windows are made. WINDOW is a window's key, such as 2026-01-31-14:00, or A..B for all windows
    from A to B, both inclusive; A.. and ..B are also possible. Exactly these windows are loaded, even if an earlier
    schedule sealed them. A window that is already loaded is proved equal, repaired (`healed`), or refused. If
    DAGSTER_HOME has an instance, each load is reported to Dagster; no run is started.

    Instead of WINDOW, options can choose the windows, which are then loaded oldest first. If you give both, the options
    choose only among the given windows. Several options choose the windows that match all of these options. --stale and
    --dead-letters are for decoded/<topic>: after a change of `decode:`, windows are decoded again with the new
    declaration. --failed leaves out parked windows, and windows that a run is loading. You can stop the command at any
    time. With --stale or --failed, run it again to continue with the remaining windows.

    Exits 0 if every window is loaded and every check passes, 1 if not, 3 if a retry may succeed.
    """
    from platform_assets.checks.findings import counted
    from platform_assets.cli.chosen_windows import Choice, chosen_windows, plan_of
    from platform_assets.cli.environment import Environment
    from platform_assets.components.declared import table_of

    choice = Choice(windows, stale=stale, dead_letters=dead_letters, failed=failed)
    if not windows and not choice.has_options:
        raise click.UsageError("give the WINDOWs to load, or choose them with --stale, --dead-letters or --failed")
    declaration, target = table_of(table)
    environment = Environment.of_process()
    keys = chosen_windows(choice, declaration, target, environment)
    plan = plan_of(keys, declaration, target, environment.ledger()) if dry_run else []
    if not as_json and (dry_run or choice.has_options):
        verb = "load" if target.kind in ("raw", "changes") else "decode again" if stale or dead_letters else "decode"
        echo(f"{target}: {counted(len(keys), 'window')} to {verb}")
    if dry_run and not as_json:
        for planned in plan:
            echo(planned.text)
    fields, code = ({}, 0) if dry_run else _load(declaration, target, keys, environment, as_json=as_json)
    if as_json:
        head = {"version": JSON_VERSION, "table": target.name, "dry_run": dry_run}
        echo_json({**head, "plan": [asdict(planned) for planned in plan], **fields} if dry_run else {**head, **fields})
    sys.exit(code)


def _load(
    declaration: TopicDeclaration, target: TableRef, keys: Sequence[str], environment: Environment, *, as_json: bool
) -> tuple[dict[str, Any], int]:
    from platform_assets.cli.load_progress import bars
    from platform_assets.cli.loads import load_windows

    kinds = ["raw"] if target.kind == "raw" else []
    kinds += ["decoded"] if target.kind in ("decoded", "dead_letters") or (kinds and declaration.decode) else []
    kinds += ["changes"] if declaration.state else []
    with bars(kinds, len(keys), as_json=as_json) as shown:
        done = load_windows(declaration, target, keys, environment, as_json=as_json, shown=shown)
    return done.fields, done.exit_code
