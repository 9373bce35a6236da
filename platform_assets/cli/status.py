"""`platform-assets status`."""

from __future__ import annotations

import json
import sys

import click


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON; its fields are documented in the README and stay.")
def status(as_json: bool) -> None:
    """Show each table: windows, records, offsets, lag, and the last check results. Spark need not run.

    Exits 1 if windows of a table fail to load or wait for somebody, if its sensor is stopped or fails, if a check fails, if
    its topic is missing, or if the brokers do not answer. Each is named below the table, with what to do.
    """
    from datetime import UTC, datetime

    from platform_assets.checks.registry import CHECKS
    from platform_assets.cli.answers import broker_silence
    from platform_assets.cli.environment import Environment
    from platform_assets.cli.status_table import print_status
    from platform_assets.components import declared
    from platform_assets.orchestration import status as status_of

    environment, now = Environment.of_process(), datetime.now(UTC)
    ledger = environment.ledger()
    declared.refuse(declared.mistakes(ledger, now))
    cause = broker_silence(environment) if environment.has_broker else None
    found = status_of.collect(
        declared.declarations().values(),
        ledger,
        environment.cluster(timeout=3.0) if environment.has_broker else None,
        environment.instance(),
        CHECKS,
        now,
        None if cause is None else f"the Kafka brokers do not answer: {cause}",
    )
    if as_json:
        click.echo(json.dumps(found.to_json(), indent=2))
    else:
        print_status(found)
    sys.exit(0 if found.healthy else 1)
