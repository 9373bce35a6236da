"""Dagster's UI and daemon for a project with one topic."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from platform_assets.services import platform
from platform_assets.services.home import Home
from platform_assets.services.platform import UpOptions
from testbed.homes import home_at, service_environment
from testbed.loads import TopicLake
from testbed.project import write_project


@contextmanager
def user_interface(folder: Path, lake: TopicLake, remote: str) -> Iterator[str]:
    """Provide the address of the UI for the project. The daemon starts the runs that are requested in the UI."""
    home: Home = home_at(folder / "home")
    options = UpOptions(workspace=write_project(folder, lake, sensor_running=False))
    environ: Mapping[str, str] = {
        **service_environment(),
        "KAFKA_BOOTSTRAP_SERVERS": lake.bootstrap,
        "SPARK_REMOTE": remote,
        "LAKE_ROOT": str(lake.lake),
    }
    try:
        platform.start_service("dagster-daemon", home, options, environ=environ)
        yield platform.start_service("dagster-webserver", home, options, environ=environ).address
    finally:
        platform.down(home)
