"""`platform-assets demo`."""

from __future__ import annotations

import sys

import click


@click.command()
@click.option("--once", is_flag=True, help="Stop everything when done, instead of leaving the UI open until Ctrl-C.")
def demo(once: bool) -> None:
    """Stream every flight that left New York City in 2013 through Kafka into the lake, and print the proof."""
    from platform_assets.demo.run import run_demo
    from platform_assets.errors import ConfigurationError
    from platform_assets.services.home import Home, is_checkout

    if not is_checkout():
        raise ConfigurationError(
            "The demo runs only from a source checkout. Clone the repository and run `make demo` there."
        )
    sys.exit(run_demo(Home.from_environment(), once=once))
