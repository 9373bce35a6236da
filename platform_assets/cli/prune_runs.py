"""`platform-assets prune-runs`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import click

from platform_assets.terminal import echo_json, echo_lines

JSON_VERSION = 1


@click.command("prune-runs")
@click.option(
    "--keep-days",
    type=click.FloatRange(min=0),
    default=30,
    show_default=True,
    help="Age that a finished run may reach.",
)
@click.option("--max-runs", type=click.IntRange(min=0), help="Finished runs that may stay, whatever their age.")
@click.option(
    "--seconds", type=click.FloatRange(min=0), default=600, show_default=True, help="Begin with no run after."
)
@click.option(
    "--location",
    default="platform_assets",
    show_default=True,
    help="The code location whose runs they are; those of others stay.",
)
@click.option("--dry-run", is_flag=True, help="Only say what would be deleted.")
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print JSON: version, location, dry_run, runs, spared, events, bytes, left, complete.",
)
def prune_runs(
    keep_days: float, max_runs: int | None, seconds: float, location: str, dry_run: bool, as_json: bool
) -> None:
    """Delete old runs from Dagster's store: their records, their logs, and events that later ones have replaced.

    Which partitions are materialised and by which load, what the checks found last, and the tries of windows that are not loaded
    stay as they are: the last event of each is kept, without its run. Runs of the last day stay whatever the budget, and failed
    ones of the last week.

    Exits with 0 where all that the budget names is gone, and with 3 where the seconds were not enough: run it again.
    """
    from platform_assets.cli.environment import Environment
    from platform_assets.errors import ConfigurationError
    from platform_assets.orchestration.pruning import Budget, prune

    environment = Environment.of_process()
    instance = environment.instance()
    if instance is None:
        raise ConfigurationError(
            f"DAGSTER_HOME {environment.variables['DAGSTER_HOME']} has no dagster.yaml: run `platform-assets up`, or set DAGSTER_HOME"
        )
    budget = Budget(timedelta(days=keep_days), max_runs, seconds)
    with instance:
        done = prune(instance, location, budget, datetime.now(UTC), dry_run=dry_run)
    if as_json:
        found = {
            "version": JSON_VERSION,
            "location": location,
            "dry_run": dry_run,
            "runs": done.runs,
            "spared": done.spared,
            "events": done.deleted.events,
            "bytes": done.deleted.bytes,
            "left": done.left,
            "complete": done.complete,
        }
        echo_json(found)
    else:
        echo_lines(done.text())
    if not done.complete:
        raise SystemExit(3)
