"""`platform-assets derive`."""

from __future__ import annotations

import sys

import click

from platform_assets.cli import options
from platform_assets.terminal import echo, echo_json

JSON_VERSION = 1


@click.command()
@click.argument("table")
@click.option("--whole", is_flag=True, help="Compute all rows, even if no input has changed.")
@click.option(
    "--check",
    "check",
    is_flag=True,
    help="Change nothing: compute all rows from the recorded inputs, and compare them.",
)
@options.as_json("Print JSON: version, table, table_version, extent, because, groups, rows, inputs, equal, columns.")
def derive(table: str, whole: bool, check: bool, as_json: bool) -> None:
    """Bring derived TABLE up to date now, as its sensor's runs do.

    TABLE is derived/<name>, or just the name. Only the groups that changed are computed, unless the table is new, its query has
    changed, a joined table has changed, or the inputs' logs no longer show what changed; the reason is printed. The run is not
    reported to Dagster.

    Exits 1 if --check finds that the rows differ, and 2 if they cannot be computed again because the inputs' versions were deleted.
    """
    from platform_assets.cli.environment import Environment
    from platform_assets.components.declared import derived_of
    from platform_assets.errors import ConfigurationError
    from platform_assets.windows.derive import checking
    from platform_assets.windows.derive.deriving import Updater

    declaration = derived_of(table)
    environment = Environment.of_process()
    lake = environment.ledger().lake
    if check:
        made = checking.newest(lake, declaration)
        if made is None:
            raise ConfigurationError(
                f"{declaration.table} has no rows yet: run `platform-assets derive {declaration.table}`"
            )
        found = checking.compare(lake, declaration, environment.spark, made, seed=None)
    else:
        done = Updater(lake, declaration, environment.spark).run("command", whole=whole)
        made, found = done.made, None
    derivation = made.derivation
    if as_json:
        fields = {
            "version": JSON_VERSION,
            "table": declaration.table.name,
            "table_version": made.version,
            "extent": derivation.extent,
            "because": derivation.because,
            "groups": derivation.groups.get("count", 0),
            "rows": derivation.whole.rows,
            "inputs": {name: i.version for name, i in derivation.inputs.items()},
            "equal": None if found is None or found.unknown else found.is_equal,
            "columns": [] if found is None else list(found.columns),
        }
        echo_json(fields)
    elif found is None:
        what = (
            f"all rows: {derivation.because}" if derivation.because else f"{derivation.groups.get('count', 0):,} groups"
        )
        echo(f"{declaration.table}: {derivation.whole.rows:,} rows in version {made.version}; computed {what}")
    elif found.unknown:
        echo(f"{declaration.table}: could not tell: {found.unknown}")
    elif found.columns:
        echo(f"{declaration.table}: {found.rows:,} rows differ from the query's result in {', '.join(found.columns)}")
    else:
        echo(
            f"{declaration.table}: {found.rows:,} rows equal the query's result over the recorded versions of its inputs"
        )
    if found is not None and not found.is_equal:
        sys.exit(2 if found.unknown else 1)
