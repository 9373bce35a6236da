"""The digests of a table's rows, computed in this process. The compiled code is loaded only on first use, because few
processes need it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from platform_assets.model.digest import Measured
from platform_assets.model.tables import TableKind

if TYPE_CHECKING:
    # This module loads Delta, which Spark's workers do not need.
    from platform_assets.lake.row_copies import Measure


def measure_of(kind: TableKind) -> Measure:
    """Return the function that computes the digests of rows for tables of this kind."""
    return _raw if kind == "raw" else _typed


def _raw(rows: pa.RecordBatch) -> Measured:
    from platform_assets.engines.shared.digests import measured

    return measured(rows)


def _typed(rows: pa.RecordBatch) -> Measured:
    from platform_assets.engines.decoding.digests import measured

    return measured(rows)
