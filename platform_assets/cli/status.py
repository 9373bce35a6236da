"""`platform-assets status`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

import click

from platform_assets.cli import options
from platform_assets.terminal import echo_json

if TYPE_CHECKING:
    from platform_assets.orchestration.status import Status

_WATCHED_EVERY: Final = 5.0


@click.command()
@options.as_json()
@click.option(
    "--watch",
    "every",
    type=click.FloatRange(min=0.5),
    is_flag=False,
    flag_value=_WATCHED_EVERY,
    metavar="[SECONDS]",
    help=f"Refresh every SECONDS, {_WATCHED_EVERY:g} by default, until Ctrl-C.",
)
def status(as_json: bool, every: float | None) -> None:
    """Show each table: windows, records, offsets, lag, and the last check results.

    Exits 1 in any of these cases, and prints the remedy below the table:

    \b
    * windows cannot be loaded or decoded, need a decision, or queue up;
    * a sensor is stopped or fails, or a check fails;
    * a transaction hangs, also on a published topic, or retention is close to unloaded records;
    * a published topic is behind its table;
    * a derived table cannot be brought up to date, or another writer changed it;
    * a topic is missing, or cannot be defined next to the others;
    * the brokers or Spark do not answer. Spark is not queried if it was never started.

    Dead letters that only cause a warning are shown, but do not change the exit code.

    The lag is measured to the last stable offset; "to watermark" also counts the offsets that open transactions hold
    back. "overtaken in" shows how soon retention could delete records that are not loaded. The row of a decoded table
    counts the windows of the raw table, and the records that have become rows. Below the table, a line for each derived
    table says when its last run committed, and which inputs have newer versions.

    With --watch, a terminal shows the newest status in place. Without a terminal, each status is printed below the
    previous one; with --json, each status is one line. Ctrl-C ends the command with the exit code of the last status.
    """
    from platform_assets.cli.status_table import print_status

    if every is not None:
        from platform_assets.cli.watching import watch

        sys.exit(watch(_status, every, as_json))
    found = _status()
    if as_json:
        echo_json(found.to_json())
    else:
        print_status(found)
    sys.exit(0 if found.healthy else 1)


def _status() -> Status:
    """Return the current status of the declared topics and running services. Raises PlatformError."""
    from concurrent.futures import ThreadPoolExecutor
    from datetime import UTC, datetime

    from platform_assets.checks.registry import CHECKS
    from platform_assets.cli.answers import broker_silence, spark_problem
    from platform_assets.cli.environment import Environment
    from platform_assets.components import declared
    from platform_assets.orchestration import published
    from platform_assets.orchestration import status as status_of

    environment, now = Environment.of_process(), datetime.now(UTC)
    ledger = environment.ledger()
    declared.refuse(declared.mistakes(ledger, now))
    with ThreadPoolExecutor(max_workers=2) as pool:
        spark = pool.submit(spark_problem, environment)
        cause = broker_silence(environment) if environment.has_broker else None
    notes = [str(each) for each in declared.beside(ledger, now)]
    if environment.has_broker and cause is None:
        notes += published.problems(
            list(declared.published().values()),
            ledger,
            environment.cluster(timeout=3.0),
            now,
            environment.instance(),
            declared.declarations(),
            declared.derived_tables(),
        )
    return status_of.collect(
        declared.declarations().values(),
        ledger,
        environment.cluster(timeout=3.0) if environment.has_broker else None,
        environment.instance(),
        CHECKS,
        now,
        None if cause is None else f"the Kafka brokers do not answer: {cause}",
        spark.result(),
        notes,
        [*declared.derived_tables().values()],
    )
