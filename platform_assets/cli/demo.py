"""`platform-assets demo`."""

from __future__ import annotations

import sys

import click


@click.command()
@click.option("--once", is_flag=True, help="Stop everything when done, instead of leaving the UI open until Ctrl-C.")
def demo(once: bool) -> None:
    """Stream every flight of New York City 2013 through Kafka into the lake, and print the proof."""
    from infra.home import Home
    from platform_assets.demo.run import run_demo

    sys.exit(run_demo(Home.from_environment(), once=once))
