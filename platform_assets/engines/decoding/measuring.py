"""Expectation figures of decoded rows, counted block by block as the rows are written."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from platform_assets.decoding.expectations import failing
from platform_assets.lake.python_values import python_values
from platform_assets.model.expectations import MOST_SAMPLES, Expectation, FailingRow, Figures
from platform_assets.model.samples import shown_value


class Measurer:
    """Counts the rows that fail, and keeps the first few. `unique` does not apply to single rows: see `uniqueness`.

    `layout` has the columns of the rows. `figures` also has expectations that all rows meet.
    """

    def __init__(self, expectations: Sequence[Expectation], layout: pa.Schema) -> None:
        self._each = [
            (e.digest, e.columns[0], failing(e, layout.field(e.columns[0]).type))
            for e in expectations
            if e.kind != "unique"
        ]
        self._columns = list(dict.fromkeys(["kafka_partition", "kafka_offset", *(name for _, name, _ in self._each)]))
        self.figures = {digest: Figures() for digest, _, _ in self._each}

    def add(self, rows: pa.RecordBatch) -> None:
        """Count rows that are written, in order of partition and offset."""
        if not self._each:
            return
        judged = rows.select(self._columns)
        if rows["tombstone"].true_count:
            judged = judged.filter(pc.invert(rows["tombstone"]))
        for digest, column, fails in self._each:
            mask = fails(judged[column])
            self.figures[digest] += Figures(judged.num_rows, mask.true_count, _first(judged, column, mask))


def _first(rows: pa.RecordBatch, column: str, mask: pa.BooleanArray) -> tuple[FailingRow, ...]:
    if not mask.true_count:
        return ()
    places = pa.array(np.flatnonzero(mask.to_numpy(zero_copy_only=False))[:MOST_SAMPLES])
    found = (python_values(rows[name].take(places)) for name in ("kafka_partition", "kafka_offset", column))
    return tuple(FailingRow(p, o, shown_value(value)) for p, o, value in zip(*found, strict=True))
