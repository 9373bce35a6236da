"""Digests of rows from many windows, computed separately for each window and with the same kernels that loads use."""

from __future__ import annotations

import pyarrow as pa

from platform_assets.engines.measuring import measure_of
from platform_assets.lake.parquet import runs_by_place
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
        ordered, places, ends = runs_by_place(rows)
        if not places:
            return
        measured = self._measured(ordered, ends)
        if measured is None and len(places) > 1:
            # Find the windows that have such rows.
            for start, end in zip((0, *ends), ends, strict=False):
                self.add(ordered.slice(start, end - start))
        elif measured is None:
            self.odd.add(places[0][0])
        else:
            for place, found in zip(places, measured, strict=True):
                self.digests[place] = self.digests.get(place, _NOTHING) + found

    def _measured(self, rows: pa.RecordBatch, ends: list[int]) -> list[Measured] | None:
        """Return the digests of each run of rows; None if some rows have no digest."""
        try:
            return self._measure.by_run(rows, ends)
        except (TypeError, ValueError):
            # No load writes such rows, for example rows without a partition. A different writer wrote them.
            return None


_NOTHING = Measured.of_nothing()
