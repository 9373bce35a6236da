"""Digests of rows from many windows, computed for each window with the same kernels as loads use."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from platform_assets.engines.measuring import measure_of
from platform_assets.lake.parquet import WINDOW
from platform_assets.model.digest import Measured
from platform_assets.model.tables import TableKind

_PLACE = (WINDOW, "topic_id")


class ByWindow:
    """Adds up the digests of rows by window and topic id. `odd` are the windows with rows that have no digest."""

    def __init__(self, kind: TableKind) -> None:
        self._measure = measure_of(kind)
        self.digests: dict[tuple[str, str], Measured] = {}
        self.odd: set[str] = set()

    def add(self, rows: pa.RecordBatch) -> None:
        """Add rows of any windows."""
        for place, some in by_place(rows):
            try:
                found = self._measure(some)
            except (TypeError, ValueError):
                # No load writes such rows, for example rows without a partition. A different writer wrote them.
                self.odd.add(place[0])
                continue
            self.digests[place] = self.digests.get(place, _NOTHING) + found


_NOTHING = Measured.of_nothing()


def by_place(rows: pa.RecordBatch) -> Iterator[tuple[tuple[str, str], pa.RecordBatch]]:
    """Yield the rows of each window and topic id. Rows that are already adjacent are sliced without a copy."""
    if not rows.num_rows:
        return
    (windows, of_window), (ids, of_id) = (_encoded(rows[name]) for name in _PLACE)
    codes = windows * np.int64(len(of_id)) + ids
    starts = np.flatnonzero(np.diff(codes, prepend=codes[0] - 1))
    if len(starts) > len(np.unique(codes[starts])):
        order = np.argsort(codes, kind="stable")
        codes, rows = codes[order], rows.take(pa.array(order))
        starts = np.flatnonzero(np.diff(codes, prepend=codes[0] - 1))
    ends = [*starts[1:].tolist(), rows.num_rows]
    for start, end in zip(starts.tolist(), ends, strict=True):
        window, topic_id = divmod(int(codes[start]), len(of_id))
        yield (of_window[window], of_id[topic_id]), rows.slice(start, end - start)


def _encoded(column: pa.Array) -> tuple[npt.NDArray[np.int64], list[str]]:
    """Number the distinct values of a column. Return the number for each row, and the list of values in the order of
    their numbers. A missing value becomes ''."""
    found = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    names = found.dictionary.to_pylist()
    indices = pc.fill_null(found.indices, len(names)) if found.null_count else found.indices
    return indices.to_numpy(zero_copy_only=False).astype(np.int64), [*(name or "" for name in names), ""]
