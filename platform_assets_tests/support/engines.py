"""A broker and a Spark Connect server for commands that run outside of a test session."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from infra import platform
from infra.broker import BrokerSettings
from infra.home import CHECKOUT, Home
from infra.platform import UpOptions
from infra.spark_server import SparkSettings


@contextmanager
def engines(root: Path) -> Iterator[tuple[str, str]]:
    """Addresses of a broker and of Spark: those of the environment, or services that end with the block."""
    jars = os.environ.get("PLATFORM_JARS") or str(CHECKOUT / ".platform" / "jars")
    home = Home.from_environment({"PLATFORM_HOME": str(root / "home"), "PLATFORM_JARS": jars})
    options = UpOptions(services=("kafka", "spark"), broker=BrokerSettings(), spark=SparkSettings(heap="2g"))
    try:
        platform.up(home, options)
        known = platform.environment(home)
        yield known[platform.KAFKA_ADDRESS], known[platform.SPARK_ADDRESS]
    finally:
        platform.down(home)
