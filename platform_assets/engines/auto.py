"""The columnar engine wherever it can load what is asked for, and the connector's where it cannot."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

from platform_assets.engines.columnar.reports import UnfitError
from platform_assets.engines.protocol import LoadEngine, Order, Records, Written
from platform_assets.errors import PlatformError
from platform_assets.model.digest import Measured
from platform_assets.model.logs import logger
from platform_assets.model.tables import TableRef

_log = logger(__name__)


@dataclass
class AutoEngine:
    """Once the columnar engine has said that it is not fit, the connector's loads all that this value is used for."""

    columnar: LoadEngine
    connector: LoadEngine
    unfit: UnfitError | None = None

    @property
    def name(self) -> str:
        """That of the engine which loads at the moment."""
        return self._now.name

    def write(self, records: Records, table: TableRef, load_id: str, records_per_file: int) -> Written:
        """As LoadEngine has it."""
        if self.unfit is None:
            try:
                return self.columnar.write(records, table, load_id, records_per_file)
            except UnfitError as unfit:
                self._fall(unfit, table, records.window)
        return self.connector.write(records, table, load_id, records_per_file)

    def write_many(
        self, orders: Sequence[Order], records_per_file: int
    ) -> Generator[Written | PlatformError, None, None]:
        """As LoadEngine has it.

        Of several tables, the connector's engine loads alone what the columnar one cannot, such as one topic of an old format;
        and all that is left where that is so of a second table, too.
        """
        given, unfit = 0, set[TableRef]()
        alone = len({order.table for order in orders}) == 1
        if self.unfit is None:
            with closing(self.columnar.write_many(orders, records_per_file)) as outcomes:
                for order, outcome in zip(orders, outcomes, strict=False):
                    if isinstance(outcome, UnfitError):
                        unfit.add(order.table)
                        if alone or len(unfit) > 1:
                            self._fall(outcome, order.table, order.records.window)
                            break
                        _log.warning("Spark's connector loads %s: %s", order.table, outcome.reason)
                        yield from self.connector.write_many([order], records_per_file)
                    else:
                        yield outcome
                    given += 1
        if given < len(orders):
            yield from self.connector.write_many(orders[given:], records_per_file)

    def _fall(self, unfit: UnfitError, table: TableRef, window: str) -> None:
        self.unfit = unfit
        _log.warning("Spark's connector loads %s from window %s on: %s", table, window, unfit.reason)

    def measure(
        self, table: TableRef, keys: Sequence[str], version: int
    ) -> Iterator[tuple[str, Measured | PlatformError]]:
        """As LoadEngine has it."""
        return self._now.measure(table, keys, version)

    @property
    def _now(self) -> LoadEngine:
        return self.columnar if self.unfit is None else self.connector
