"""Which engine loads a table: the one place that knows them all."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from platform_assets.engines.auto import AutoEngine
from platform_assets.engines.columnar.engine import ColumnarEngine
from platform_assets.engines.protocol import LoadEngine
from platform_assets.engines.spark.engine import SparkEngine
from platform_assets.kafka.settings import ClientSettings
from platform_assets.lake.location import Lake
from platform_assets.model.declaration import DEFAULT_ENGINE, EngineName

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession


def choose_engine(
    lake: Lake,
    settings: Callable[[], ClientSettings],
    session: Callable[[], SparkSession],
    name: EngineName = DEFAULT_ENGINE,
) -> LoadEngine:
    """The engine for tables of `lake`; `settings` and `session` are called when they are first needed."""
    connector = SparkEngine(lake, settings, session)
    if name == "connector":
        return connector
    columnar = ColumnarEngine(lake, settings, session)
    return columnar if name == "columnar" else AutoEngine(columnar, connector)
