"""Digests of rows from many windows, computed separately for each window and with the same kernels that loads use."""

from __future__ import annotations

import pyarrow as pa

from platform_assets.engines.measuring import measure_of
from platform_assets.lake.parquet import by_place
from platform_assets.model.digest import Measured
from platform_assets.model.tables import TableKind


class ByWindow:
    """Adds up the digests of rows, separately for each window and topic id. `odd` contains the windows in which some
    rows have no digest."""

    def __init__(self, kind: TableKind) -> None:
        self._measure = measure_of(kind)
        self.digests: dict[tuple[str, str], Measured] = {}
        self.odd: set[str] = set()

    def add(self, rows: pa.RecordBatch) -> None:
        """Add rows, which can belong to any windows."""
        for place, some in by_place(rows):
            try:
                found = self._measure(some)
            except (TypeError, ValueError):
                # No load writes such rows, for example rows without a partition. A different writer wrote them.
                self.odd.add(place[0])
                continue
            self.digests[place] = self.digests.get(place, _NOTHING) + found


_NOTHING = Measured.of_nothing()
