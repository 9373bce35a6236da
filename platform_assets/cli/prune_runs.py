"""`platform-assets prune-runs`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import click

from platform_assets.cli import options
from platform_assets.terminal import echo_json, echo_lines

JSON_VERSION = 1


@click.command("prune-runs")
@click.option(
    "--keep-days",
    type=click.FloatRange(min=0),
    default=30,
    show_default=True,
    help="Keep runs that finished less than this many days ago.",
)
@click.option(
    "--max-runs", type=click.IntRange(min=0), help="Keep at most this many finished runs, whatever their age."
)
@click.option(
    "--seconds", type=click.FloatRange(min=0), default=600, show_default=True, help="Stop after this many seconds."
)
@click.option(
    "--location",
    default="platform_assets",
    show_default=True,
    help="Code location whose runs are deleted; runs of other code locations stay.",
)
@options.dry_run("Only report what would be deleted.")
@options.as_json("Print JSON: version, location, dry_run, runs, spared, events, bytes, left, complete.")
def prune_runs(
    keep_days: float, max_runs: int | None, seconds: float, location: str, dry_run: bool, as_json: bool
) -> None:
    """Delete old runs from Dagster's store: their records, logs, and superseded events.

    The last event of each partition and each check stays, but without the run that reported it. So Dagster still shows
    which partitions are materialized and by which load, the last check results, and the failed attempts to load windows
    that are not loaded. Runs of the last day and failed runs of the last week always stay.

    Exits 0 if everything that the options select is deleted, and 3 if the time limit --seconds was reached first. Then
    run the command again.
    """
    from platform_assets.cli.environment import Environment
    from platform_assets.errors import ConfigurationError
    from platform_assets.orchestration.maintenance.pruning import Budget, prune

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
