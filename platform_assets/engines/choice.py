"""The choice of a table's load engine, and of the engine that confirms the table's loads. Only this module imports all
engines."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, assert_never

from platform_assets.engines.columnar.engine import ColumnarEngine
from platform_assets.engines.connector.engine import SparkEngine
from platform_assets.engines.decoding.engine import DecodeEngine
from platform_assets.engines.merging.engine import MergeEngine
from platform_assets.engines.protocol import LoadEngine, Order, Records, StagedFiles
from platform_assets.engines.shared.reports import UnsupportedError
from platform_assets.engines.shared.session import SharedSession
from platform_assets.engines.shared.worker import CODE
from platform_assets.errors import PlatformError
from platform_assets.kafka.settings import ClientSettings
from platform_assets.lake.location import Lake
from platform_assets.model.declaration import DEFAULT_ENGINE, EngineName, LoadEngineName
from platform_assets.model.digest import Measured
from platform_assets.model.logs import logger
from platform_assets.model.tables import TableRef

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession


_log = logger(__name__)


@dataclass
class AutoEngine:
    """Loads with the columnar engine until that engine reports that it cannot load a window, and with the connector
    engine from then on."""

    columnar: LoadEngine
    connector: LoadEngine
    unsupported: UnsupportedError | None = None

    @property
    def name(self) -> str:
        """Name of the engine that is currently in use."""
        return self._now.name

    def write(self, records: Records, table: TableRef, load_id: str, records_per_file: int) -> StagedFiles:
        """See `LoadEngine`."""
        if self.unsupported is None:
            try:
                return self.columnar.write(records, table, load_id, records_per_file)
            except UnsupportedError as unsupported:
                self._fall(unsupported, table, records.window)
        return self.connector.write(records, table, load_id, records_per_file)

    def write_many(
        self, orders: Sequence[Order], records_per_file: int
    ) -> Generator[StagedFiles | PlatformError, None, None]:
        """See `LoadEngine`.

        If `orders` are for several tables, the connector engine loads only the table that the columnar engine cannot
        load, for example one topic in an old format. If the columnar engine cannot load a second table either, the
        connector engine loads everything that remains.
        """
        given, unsupported = 0, set[TableRef]()
        alone = len({order.table for order in orders}) == 1
        if self.unsupported is None:
            with closing(self.columnar.write_many(orders, records_per_file)) as outcomes:
                for order, outcome in zip(orders, outcomes, strict=False):
                    if isinstance(outcome, UnsupportedError):
                        unsupported.add(order.table)
                        if alone or len(unsupported) > 1:
                            self._fall(outcome, order.table, order.records.window)
                            break
                        _log.warning("loading %s with Spark's connector: %s", order.table, outcome.reason)
                        yield from self.connector.write_many([order], records_per_file)
                    else:
                        yield outcome
                    given += 1
        if given < len(orders):
            yield from self.connector.write_many(orders[given:], records_per_file)

    def _fall(self, unsupported: UnsupportedError, table: TableRef, window: str) -> None:
        self.unsupported = unsupported
        _log.warning(
            "loading %s with Spark's connector, starting with window %s: %s", table, window, unsupported.reason
        )

    def measure(
        self, table: TableRef, keys: Sequence[str], version: int
    ) -> Iterator[tuple[str, Measured | PlatformError]]:
        """See `LoadEngine`."""
        return self._now.measure(table, keys, version)

    @property
    def _now(self) -> LoadEngine:
        return self.columnar if self.unsupported is None else self.connector


def choose_engine(
    lake: Lake,
    settings: Callable[[], ClientSettings],
    session: Callable[[], SparkSession],
    name: EngineName = DEFAULT_ENGINE,
    remote: str | None = None,
) -> LoadEngine:
    """Return the engine for tables of `lake`. `settings` and `session` are called when their results are first needed.

    `session` returns the caller's own session, in which Spark's connector loads windows and in which tables are read.
    If `remote` is given, the columnar engine sends its jobs to the session that all processes share on that server.
    Without `remote`, these jobs go to the caller's session too.
    """
    connector = SparkEngine(lake, settings, session)
    if name == "connector":
        return connector
    shared = None if remote is None else SharedSession(remote, lake, CODE)
    columnar = ColumnarEngine(lake, settings, session, shared)
    match name:
        case "columnar":
            return columnar
        case "auto":
            return AutoEngine(columnar, connector)
        case _:
            assert_never(name)


def other_engine(loaded_by: LoadEngineName) -> LoadEngineName:
    """Return the engine that confirms loads by the engine `loaded_by`. The two engines share none of the code that
    turns a broker's batches into rows."""
    match loaded_by:
        case "columnar":
            return "connector"
        case "connector":
            return "columnar"
        case _:
            assert_never(loaded_by)


def decode_engine(
    lake: Lake, session: Callable[[], SparkSession], remote: str | None = None, environ: Mapping[str, str] | None = None
) -> DecodeEngine:
    """Return the engine for decoded tables of `lake`. It uses the same session as the engine from `choose_engine`.

    `environ` contains the settings of a schema registry. The default is the environment of this process.
    """
    shared = None if remote is None else SharedSession(remote, lake, CODE)
    return DecodeEngine(lake, session, shared, environ=os.environ if environ is None else environ)


def merge_engine(lake: Lake, session: Callable[[], SparkSession], remote: str | None = None) -> MergeEngine:
    """Return the engine that merges files of `lake`. It uses the same session as the engine from `choose_engine`."""
    return MergeEngine(session, None if remote is None else SharedSession(remote, lake, CODE))
