"""`platform-assets env`."""

from __future__ import annotations

import shlex

import click

from platform_assets.cli import options
from platform_assets.terminal import echo, echo_json


@click.command()
@options.as_json("Print the variables as one JSON object.")
def env(as_json: bool) -> None:
    """Print the environment of the embedded services as `export NAME=value` lines, SECRETS INCLUDED.

    After `eval "$(platform-assets env)"`, the commands `dagster` and `dg` in this shell use the same broker, Spark
    server, lake and Dagster instance as the platform. SPARK_REMOTE contains the server's token, and
    KAFKA_SASL_PASSWORD the password of secured brokers: keep the output out of logs.
    """
    from platform_assets.services import dagster_services, platform
    from platform_assets.services.home import HOME_VARIABLE, Home

    home = Home.from_environment()
    home.prepare()
    found = {HOME_VARIABLE: str(home.root), **platform.environment(home)}
    if "dagster-webserver" not in platform.given(home):
        # Dagster's commands do not start without an existing home.
        dagster_services.prepare(home)
    for name, what in ((platform.KAFKA_ADDRESS, "broker"), (platform.SPARK_ADDRESS, "Spark server")):
        if name not in found:
            echo(f"no {what} is running, and {name} is not set: `platform-assets up` starts one", err=True)
    if as_json:
        echo_json(found)
        return
    for name, value in found.items():
        echo(f"export {name}={shlex.quote(value)}")
