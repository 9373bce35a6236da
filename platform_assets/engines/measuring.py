"""The digests of a table's rows, computed in this process. The compiled code is loaded only on first use, because few
processes need it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from platform_assets.model.digest import Measured
from platform_assets.model.tables import TableKind

if TYPE_CHECKING:
    # This module loads Delta, which Spark's workers do not need.
    from platform_assets.lake.row_copies import Measure


def measure_of(kind: TableKind) -> Measure:
    """Return the digests of rows for tables of this kind."""
    return _RAW if kind == "raw" else _TYPED


class _Raw:
    def __call__(self, rows: pa.RecordBatch) -> Measured:
        return self.by_run(rows, [rows.num_rows])[0]

    def by_run(self, rows: pa.RecordBatch, ends: Sequence[int]) -> list[Measured]:
        from platform_assets.engines.shared.digests import measured_by_run

        return measured_by_run(rows, ends)


class _Typed:
    def __call__(self, rows: pa.RecordBatch) -> Measured:
        return self.by_run(rows, [rows.num_rows])[0]

    def by_run(self, rows: pa.RecordBatch, ends: Sequence[int]) -> list[Measured]:
        from platform_assets.engines.decoding.digests import measured_by_run

        return measured_by_run(rows, ends)


_RAW, _TYPED = _Raw(), _Typed()
