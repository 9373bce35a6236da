"""Homes for services that tests and benchmarks start. They are separate from the user's own home."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

from platform_assets.services import platform
from platform_assets.services.broker import BrokerSettings
from platform_assets.services.home import CHECKOUT, Home
from platform_assets.services.platform import UpOptions
from platform_assets.services.spark_server import SparkSettings


def service_environment() -> dict[str, str]:
    """Return the environment of this process without variables that point to the user's services or ports."""
    hidden = (
        "KAFKA_BOOTSTRAP_SERVERS", "SPARK_REMOTE", "DAGSTER_HOME", "LAKE_ROOT", "PLATFORM_HOME", "PLATFORM_DEFS",
        "KAFKA_PORT", "KAFKA_2_PORT", "KAFKA_3_PORT", "SPARK_CONNECT_PORT", "DAGSTER_PORT", "KAFKA_HEAP", "SPARK_HEAP",
    )  # fmt: skip
    return {name: value for name, value in os.environ.items() if name not in hidden}


def home_at(root: Path) -> Home:
    """Return a home below `root` that shares the checkout's verified jars, so that nothing is fetched twice."""
    jars = Home.from_environment({**os.environ, "PLATFORM_HOME": str(CHECKOUT / ".platform")}).jars
    return Home.from_environment({"PLATFORM_HOME": str(root), "PLATFORM_JARS": str(jars)})


@contextmanager
def engines(root: Path, properties: Mapping[str, str] = MappingProxyType({})) -> Iterator[tuple[str, str]]:
    """Provide the addresses of a broker with these properties and of a Spark server. Both stop at the end of the
    block."""
    home = home_at(root / "home")
    options = UpOptions(
        services=("kafka", "spark"), broker=BrokerSettings(properties=dict(properties)), spark=SparkSettings(heap="2g")
    )
    try:
        platform.up(home, options)
        known = platform.environment(home)
        yield known[platform.KAFKA_ADDRESS], known[platform.SPARK_ADDRESS]
    finally:
        platform.down(home)
