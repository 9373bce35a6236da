"""`platform-assets derive`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from platform_assets.cli import options
from platform_assets.terminal import echo, echo_json

if TYPE_CHECKING:
    from platform_assets.cli.environment import Environment
    from platform_assets.model.derived import DerivedDeclaration
    from platform_assets.windows.derive.checking import Comparison

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
@options.as_json(
    "Print JSON: version, table, table_version, extent, because, groups, rows, inputs, equal, columns, and failed "
    "(expectations)."
)
def derive(table: str, whole: bool, check: bool, as_json: bool) -> None:
    """Bring derived TABLE up to date now, as its sensor's runs do.

    TABLE is derived/<name>, or just the name. Only the groups that changed are computed, unless the table is new, its query has
    changed, a joined table has changed, or the inputs' logs no longer show what changed; the reason is printed. Then a few groups are
    computed again and compared, and the expectations are evaluated, as in a run. The run is not reported to Dagster.

    Exits 1 if rows differ from the query's result or an expectation with `severity: error` fails, and 2 if the rows cannot be computed
    again because the inputs' versions were deleted.
    """
    from platform_assets.cli.environment import Environment
    from platform_assets.components.declared import derived_of
    from platform_assets.errors import ConfigurationError, PlatformError
    from platform_assets.windows.derive import checking
    from platform_assets.windows.derive.checking import EQUALS_REBUILD, Comparison, Expected
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
        computed, seed, replaced = False, None, None
    else:
        because = "all rows were requested"
        if not whole and _has_failed(environment, declaration):
            # Rows that were found to be wrong may be in any group.
            whole, because = True, f"the last check {EQUALS_REBUILD} failed"
        done = Updater(lake, declaration, environment.spark).run("command", whole=whole, because=because)
        made, computed = done.made, True
        for warning in () if as_json else done.warnings:
            echo(f"{declaration.table}: {warning}")
        seed, replaced = f"{made.version}-{made.derivation.run_id}", done.groups
    errors, failed = list[PlatformError](), list[Expected]()
    try:
        found = checking.compare(lake, declaration, environment.spark, made, seed=seed, replaced=replaced)
    except PlatformError as e:
        # The expectations are shown all the same.
        errors.append(e)
        found = Comparison(0, 0, unknown=str(e))
    is_compared = not errors
    try:
        expected = checking.expected(lake, declaration, environment.spark)
        failed = [each for each in expected if each.problem or each.failing]
    except PlatformError as e:
        errors.append(e)
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
            "equal": None if found.unknown else found.is_equal,
            "columns": list(found.columns),
            "failed": [each.expectation.name for each in failed],
        }
        echo_json(fields)
    else:
        if computed:
            count = derivation.groups.get("count", 0)
            what = f"all rows: {derivation.because}" if derivation.because else f"{count:,} groups"
            echo(f"{declaration.table}: {derivation.whole.rows:,} rows in version {made.version}; computed {what}")
        if is_compared or len(errors) > 1:
            echo(f"{declaration.table}: {_compared(found)}")
        for each in failed:
            text = each.problem or f"{each.failing:,} of {each.rows:,} rows fail: expected that {each.expectation}"
            echo(f"{declaration.table}: {each.expectation.name}: {text}")
    if errors:
        raise errors[-1]
    if found.columns or any(each.expectation.severity == "error" for each in failed):
        sys.exit(1)
    if found.unknown:
        sys.exit(2)


def _compared(found: Comparison) -> str:
    """Return the result of a comparison as a sentence."""
    rows = f"{found.rows:,} rows" + ("" if found.groups is None else f" in {found.groups:,} groups")
    if found.unknown:
        return f"could not tell whether rows are right: {found.unknown}"
    if found.columns:
        other = "the query's result" if found.is_rebuilt else "those that the newest run recorded"
        return f"{rows} differ from {other} in {', '.join(found.columns)}"
    return f"{rows} equal {found.other}"


def _has_failed(environment: Environment, declaration: DerivedDeclaration) -> bool:
    """Return True if Dagster knows that the last check of the table's rows failed."""
    import dagster as dg

    from platform_assets.orchestration import dagster_records
    from platform_assets.orchestration.derived_definitions import asset_key
    from platform_assets.windows.derive.checking import EQUALS_REBUILD

    instance = environment.instance()
    if instance is None:
        return False
    key = dg.AssetCheckKey(asset_key(declaration.table), EQUALS_REBUILD)
    return bool(dagster_records.blocked_by(instance, [key]))
