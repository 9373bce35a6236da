"""`platform-assets load`."""

from __future__ import annotations

import sys

import click

from platform_assets.terminal import echo_json

JSON_VERSION = 1


@click.command()
@click.argument("table")
@click.argument("windows", nargs=-1, required=True, metavar="WINDOW...")
@click.option("--json", "as_json", is_flag=True, help="Print JSON: version, table, windows, decoded, checks, reported.")
def load(table: str, windows: tuple[str, ...], as_json: bool) -> None:
    """Load each WINDOW of TABLE now, as a run of Dagster would, and evaluate the table's checks.

    TABLE is raw/<topic>, or the topic's name alone: what is loaded is decoded too, where that is declared. With
    decoded/<topic> or dead_letters/<topic>, windows that the raw table has are decoded alone. WINDOW is the key of a
    window, such as 2026-01-31-14:00: that window is loaded and no other, also one that an earlier schedule sealed. A
    window that is loaded already is proved equal, healed, or refused. Each
    is reported to Dagster where DAGSTER_HOME has an instance; no run is started.

    Exits 0 if every window is loaded and every check passes, 1 if not, 3 if trying again may succeed.
    """
    from platform_assets.cli.environment import Environment
    from platform_assets.cli.loads import load_windows
    from platform_assets.components.declared import table_of
    from platform_assets.model.windows import edge_of

    for window in windows:
        edge_of(window)
    declaration, target = table_of(table)
    done = load_windows(declaration, target, windows, Environment.of_process(), as_json=as_json)
    if as_json:
        echo_json({"version": JSON_VERSION, "table": target.name, **done.fields})
    sys.exit(done.exit_code)
