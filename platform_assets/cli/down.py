"""`platform-assets down`."""

from __future__ import annotations

import click

from platform_assets.terminal import echo


@click.command()
@click.option(
    "--service",
    "services",
    multiple=True,
    help="Stop only this service (may be repeated); `kafka` means the first broker.",
)
def down(services: tuple[str, ...]) -> None:
    """Stop the services that `up` started, Dagster first and the brokers last."""
    from platform_assets.cli.services import chosen
    from platform_assets.services import platform

    platform.down(services=chosen(services) if services else platform.ALL_SERVICES, report=echo)
