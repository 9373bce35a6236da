"""The choice of a table's engine: the one place that knows them all."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from platform_assets.engines.auto import AutoEngine
from platform_assets.engines.columnar.engine import ColumnarEngine
from platform_assets.engines.columnar.work import CODE
from platform_assets.engines.decoding.engine import DecodeEngine
from platform_assets.engines.protocol import LoadEngine
from platform_assets.engines.spark.engine import SparkEngine
from platform_assets.engines.spark.shared import SharedSession
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
    remote: str | None = None,
) -> LoadEngine:
    """Return the engine for tables of `lake`; the functions are called when their result is first needed.

    `session` is the caller's own, used to load with Spark's connector and to read tables. With `remote`, the columnar engine's
    jobs go to the session there that all processes share; without it, to `session` too.
    """
    connector = SparkEngine(lake, settings, session)
    if name == "connector":
        return connector
    shared = None if remote is None else SharedSession(remote, lake, CODE)
    columnar = ColumnarEngine(lake, settings, session, shared)
    return columnar if name == "columnar" else AutoEngine(columnar, connector)


def decode_engine(
    lake: Lake, session: Callable[[], SparkSession], remote: str | None = None, environ: Mapping[str, str] | None = None
) -> DecodeEngine:
    """Return the engine for decoded tables of `lake`. Like `choose_engine`, with which it shares the session.

    `environ` has the settings of a schema registry; by default, the environment of this process.
    """
    shared = None if remote is None else SharedSession(remote, lake, CODE)
    return DecodeEngine(lake, session, shared, environ=os.environ if environ is None else environ)
