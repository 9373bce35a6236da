"""A measure that finds other rows in copies than in their sources. It stands for a disk that does not store the written
data."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pyarrow as pa

from platform_assets.engines.shared.digests import measured
from platform_assets.model.digest import Measured


class OddMeasure:
    """Measures the first `right` runs of rows correctly. After that, it misses the first row of each run."""

    def __init__(self, right: int) -> None:
        self._left = right

    def __call__(self, rows: pa.RecordBatch) -> Measured:
        return self.by_run(rows, [rows.num_rows])[0]

    def by_run(self, rows: pa.RecordBatch, ends: Sequence[int]) -> list[Measured]:
        return [self._one(rows.slice(start, end - start)) for start, end in pairwise((0, *ends))]

    def _one(self, run: pa.RecordBatch) -> Measured:
        self._left -= 1
        return measured(run if self._left >= 0 else run.slice(1))
