"""`platform-assets status`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

import click

from platform_assets.terminal import echo_json

if TYPE_CHECKING:
    from platform_assets.orchestration.status import Status

_WATCHED_EVERY: Final = 5.0


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON; its fields are documented in the README and stay.")
@click.option(
    "--watch",
    "every",
    type=click.FloatRange(min=0.5),
    is_flag=False,
    flag_value=_WATCHED_EVERY,
    metavar="[SECONDS]",
    help=f"Look again every so many seconds, {_WATCHED_EVERY:g} by default, until Ctrl-C.",
)
def status(as_json: bool, every: float | None) -> None:
    """Show each table: windows, records, offsets, lag, and the last check results.

    Exits 1 if windows of a table fail to load or to be decoded, wait for somebody or become more and more, if its sensor is
    stopped or fails, if a transaction hangs or retention comes near what is not loaded, if a check fails, if its topic is
    missing or cannot be defined next to the others, or if the brokers or Spark do not answer. Each is named below the table,
    with what to do. A Spark that was never started is not asked. Dead letters of a share that only warns are shown too, and
    need nobody.

    The lag is to the last stable offset; "to watermark" counts what open transactions hold back too. "overtaken in" is when
    retention may remove what is not loaded, at the earliest. The row of a decoded table counts windows of the raw one, and
    records that have become rows.

    With --watch, a terminal shows the newest status in place; elsewhere one is printed after the other, and with --json each
    is one line. Ctrl-C ends it with the exit code of the last status.
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
    """The status now, of whatever is declared and runs by now. Raises PlatformError."""
    from concurrent.futures import ThreadPoolExecutor
    from datetime import UTC, datetime

    from platform_assets.checks.registry import CHECKS
    from platform_assets.cli.answers import broker_silence, spark_trouble
    from platform_assets.cli.environment import Environment
    from platform_assets.components import declared
    from platform_assets.orchestration import status as status_of

    environment, now = Environment.of_process(), datetime.now(UTC)
    ledger = environment.ledger()
    declared.refuse(declared.mistakes(ledger, now))
    with ThreadPoolExecutor(max_workers=2) as pool:
        spark = pool.submit(spark_trouble, environment)
        cause = broker_silence(environment) if environment.has_broker else None
    return status_of.collect(
        declared.declarations().values(),
        ledger,
        environment.cluster(timeout=3.0) if environment.has_broker else None,
        environment.instance(),
        CHECKS,
        now,
        None if cause is None else f"the Kafka brokers do not answer: {cause}",
        spark.result(),
        [str(each) for each in declared.beside(ledger, now)],
    )
