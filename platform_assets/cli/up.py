"""`platform-assets up`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import click

from platform_assets.terminal import echo

if TYPE_CHECKING:
    from platform_assets.cli.environment import Environment
    from platform_assets.services.security import Secure


@click.command()
@click.option(
    "--service", "services", multiple=True, help="Start only this service (may be repeated); `kafka` means all brokers."
)
@click.option("--registry", is_flag=True, help="Also start a schema registry, unless SCHEMA_REGISTRY_URL is set.")
@click.option(
    "--brokers",
    type=click.Choice(["1", "3"]),
    help=(
        "Number of brokers in a new home, 1 by default. With three, each broker has a replica of everything, and one can "
        "be down."
    ),
)
@click.option(
    "--secure",
    is_flag=False,
    flag_value="password",
    type=click.Choice(["password", "certificate"]),
    help="Make the brokers of a new home require TLS with a password (SASL_SSL, SCRAM-SHA-512; used if you give no "
    "value) or a client certificate.",
)
def up(services: tuple[str, ...], registry: bool, brokers: str | None, secure: Secure | None) -> None:
    """Start the brokers, Spark, and Dagster's webserver and daemon, except services that are set in the environment.

    Before anything starts, the YAML of all topics is checked (`platform-assets check`), and services set in the
    environment must answer.
    """
    from datetime import UTC, datetime

    from platform_assets.cli.environment import Environment
    from platform_assets.cli.services import chosen
    from platform_assets.components import declared
    from platform_assets.services import platform
    from platform_assets.services.broker import BrokerSettings
    from platform_assets.services.platform import UpOptions

    wanted = chosen(services, registry=registry)
    environment = Environment.of_process()
    declared.refuse(declared.mistakes(environment.ledger(), datetime.now(UTC)))
    given = platform.given()
    if "kafka" in wanted and "kafka" in given:
        _check_broker(environment)
    if "spark" in wanted and "spark" in given:
        _check_spark(environment)
    number: Literal[1, 3] | None = None if brokers is None else 3 if brokers == "3" else 1
    options = UpOptions(services=wanted, broker=BrokerSettings(brokers=number, secure=secure))
    states = platform.up(options=options, report=echo)
    for state in states:
        echo(f"{state.service:<18} {state.status:<8} {state.address or ''}")


def _check_broker(environment: Environment) -> None:
    from platform_assets.cli.answers import broker_silence
    from platform_assets.errors import GivenServiceError

    if cause := broker_silence(environment):
        raise GivenServiceError("the Kafka broker", "KAFKA_BOOTSTRAP_SERVERS", cause)


def _check_spark(environment: Environment) -> None:
    from platform_assets.cli.answers import spark_silence
    from platform_assets.errors import GivenServiceError

    if cause := spark_silence(environment):
        raise GivenServiceError("the Spark Connect server", "SPARK_REMOTE", cause)
