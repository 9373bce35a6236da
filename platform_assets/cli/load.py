"""`platform-assets load`."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from platform_assets.orchestration.attempts import Attempt

JSON_VERSION = 1


@click.command()
@click.argument("table")
@click.argument("windows", nargs=-1, required=True, metavar="WINDOW...")
@click.option("--json", "as_json", is_flag=True, help="Print JSON: version, table, windows, checks, reported.")
def load(table: str, windows: tuple[str, ...], as_json: bool) -> None:
    """Load each WINDOW of TABLE now, as a run of Dagster would, and evaluate the table's checks.

    TABLE is raw/<topic>, or the topic's name alone. WINDOW is the key of a window, such as 2026-01-31-14:00: that
    window is loaded and no other, also one that an earlier schedule sealed. A window that is loaded already is proved
    equal, healed, or refused. Each is reported to Dagster where DAGSTER_HOME has an instance; no run is started.

    Exits 0 if every window is loaded and every check passes, 1 if not, 3 if trying again may succeed.
    """
    from platform_assets.cli.environment import Environment
    from platform_assets.components.declared import declaration_of
    from platform_assets.errors import Retryable, UnknownOutcome
    from platform_assets.orchestration import by_hand
    from platform_assets.orchestration.resources import SparkResource
    from platform_assets.windows.loading import Loader

    declaration = declaration_of(table)
    environment = Environment.of_process()
    spark = SparkResource(remote=environment.spark_remote())
    loader = Loader(
        declaration, environment.cluster(), environment.ledger(), environment.engine(declaration.engine, spark)
    )
    instance = environment.instance()
    attempts = by_hand.load(loader, windows, instance, spark.forget, (lambda _: None) if as_json else _say)
    verdicts = []
    if any(a.loaded for a in attempts):
        for verdict in by_hand.check(loader, instance):
            verdicts.append(verdict)
            if not as_json:
                click.echo(f"{verdict.check}: {'passed' if verdict.passed else 'FAILED'}: {verdict.headline}")
    if as_json:
        found = {
            "version": JSON_VERSION,
            "table": declaration.raw_table.name,
            "windows": [_as_json(a) for a in attempts],
            "checks": [{"name": v.check, "passed": v.passed, "headline": v.headline} for v in verdicts],
            "reported": instance is not None,
        }
        click.echo(json.dumps(found, indent=2))
    elif instance is None:
        click.echo("DAGSTER_HOME has no instance, so nothing was reported to Dagster")
    errors = [a.error for a in attempts if a.error is not None]
    if not errors:
        sys.exit(0 if all(v.passed for v in verdicts) else 1)
    sys.exit(3 if all(isinstance(e, Retryable | UnknownOutcome) for e in errors) else 1)


def _say(attempt: Attempt) -> None:
    if attempt.loaded is None:
        click.echo(f"{attempt.window}: failed: {attempt.error}", err=True)
        return
    r = attempt.loaded.receipt
    click.echo(
        f"{attempt.window}: {attempt.loaded.outcome}, {r.rows:,} rows of {r.ranges.size:,} offsets, "
        f"table version {r.table_version}, {r.seconds:.1f} s"
    )


def _as_json(attempt: Attempt) -> dict[str, Any]:
    if attempt.loaded is None:
        return {"window": attempt.window, "outcome": "failed", "error": str(attempt.error)}
    r = attempt.loaded.receipt
    return {
        "window": attempt.window,
        "outcome": attempt.loaded.outcome,
        "rows": r.rows,
        "offsets": r.ranges.size,
        "table_version": r.table_version,
    }
