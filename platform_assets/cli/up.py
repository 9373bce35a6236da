"""`platform-assets up`."""

from __future__ import annotations

import click


@click.command()
@click.option("--service", "services", multiple=True, help="Start just this one (may be repeated).")
def up(services: tuple[str, ...]) -> None:
    """Start the broker, Spark, and Dagster's webserver and daemon, except what the environment gives."""
    from infra import platform
    from infra.platform import UpOptions
    from platform_assets.cli.services import chosen

    states = platform.up(options=UpOptions(services=chosen(services)), report=click.echo)
    for state in states:
        click.echo(f"{state.service:<18} {state.status:<8} {state.address or ''}")
