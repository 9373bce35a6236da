"""Which engine loads a table: the one place that knows them all."""

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
    """The engine for tables of `lake`; the functions are called when what they give is first needed.

    `session` is the caller's own, in which Spark's connector loads and tables are read. With `remote`, the columnar engine's
    jobs are sent to the session there that all processes share; without, to that session too.
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
    """The engine for decoded tables of `lake`; otherwise as `choose_engine`, whose shared session is this one's too.

    `environ` says where a schema registry is, the environment of this process by default.
    """
    shared = None if remote is None else SharedSession(remote, lake, CODE)
    return DecodeEngine(lake, session, shared, environ=os.environ if environ is None else environ)
