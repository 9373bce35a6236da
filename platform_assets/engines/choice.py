"""Which engine loads a table: the one place that knows them all."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from platform_assets.engines.protocol import LoadEngine
from platform_assets.engines.spark.engine import SparkEngine
from platform_assets.kafka.settings import ClientSettings
from platform_assets.lake.location import Lake

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession


def choose_engine(
    lake: Lake, settings: Callable[[], ClientSettings], session: Callable[[], SparkSession]
) -> LoadEngine:
    """The engine for tables of `lake`; `settings` and `session` are called when they are first needed."""
    return SparkEngine(lake, settings, session)
