"""`platform-assets load`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

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
    help="Decode all windows again that were decoded with another declaration, or whose rows the table lost.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON: version, table, windows, decoded, checks, reported.")
def load(table: str, windows: tuple[str, ...], stale: bool, as_json: bool) -> None:
    """Load each WINDOW of TABLE now, like a Dagster run would, and evaluate the table's checks.

    TABLE is raw/<topic>, or just the topic's name: windows are also decoded if the topic declares that. With
    decoded/<topic> or dead_letters/<topic>, windows in the raw table are only decoded. WINDOW is a window's key, such
    as 2026-01-31-14:00. Only that window is loaded, even if an earlier schedule sealed it. A window that is already
    loaded is proved equal, repaired (`healed`), or refused. If DAGSTER_HOME has an instance, each load is reported to
    Dagster; no run is started.

    With --stale, TABLE is decoded/<topic>, without a WINDOW: after a change of `decode:`, all windows are decoded
    again with the new declaration, oldest first. You can stop it at any time; run it again to continue with the
    remaining windows.

    Exits 0 if every window is loaded and every check passes, 1 if not, 3 if a retry may succeed.
    """
    from platform_assets.checks.findings import counted
    from platform_assets.cli.environment import Environment
    from platform_assets.cli.loads import load_windows
    from platform_assets.components.declared import table_of
    from platform_assets.model.windows import edge_of

    for window in windows:
        edge_of(window)
    declaration, target = table_of(table)
    environment = Environment.of_process()
    if stale == bool(windows):
        raise click.UsageError("give the WINDOWs to load, or --stale with decoded/<topic>, and not both")
    if stale:
        windows = _stale(declaration, target, environment)
        if not as_json:
            echo(f"{target}: {counted(len(windows), 'window')} to decode again")
    done = load_windows(declaration, target, windows, environment, as_json=as_json)
    if as_json:
        echo_json({"version": JSON_VERSION, "table": target.name, **done.fields})
    sys.exit(done.exit_code)


def _stale(declaration: TopicDeclaration, target: TableRef, environment: Environment) -> tuple[str, ...]:
    """The windows to decode again. Raises ConfigurationError for a table that is not decoded."""
    from platform_assets.errors import ConfigurationError
    from platform_assets.orchestration.decoded_status import stale_windows

    if target.kind == "raw" or declaration.decode is None:
        raise ConfigurationError(
            f"--stale is for tables that are decoded, and {target} is not: give decoded/{declaration.topic}"
            + ("" if declaration.decode else f", after adding `decode:` to the YAML of topic {declaration.topic!r}")
        )
    return tuple(stale_windows(declaration, declaration.decode, environment.ledger()))
