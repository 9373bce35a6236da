"""The digests of rows whose columns are declared, as Spark computes them: of decoded tables and of dead letters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from platform_assets.engines.spark import raw
from platform_assets.model.digest import Measured, mark_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_LEFT_OUT: Final = frozenset({"topic_id", "window"})
_IDENTITY: Final = 2
"""Partition and offset, which come first and have no marks."""


def measure_windows(frame: DataFrame) -> dict[str, Measured]:
    """Digests of each window of `frame`, by key: of all its columns in order, but those that are the same in a whole window."""
    from pyspark.sql import functions as F

    columns = [name for name in frame.columns if name not in _LEFT_OUT]
    chain: list[Column] = []
    for number, name in enumerate(columns):
        # A name may hold a dot, which would be a field of a struct.
        column = F.col(f"`{name.replace('`', '``')}`")
        mark = [F.when(column.isNotNull(), F.lit(mark_of(name)).cast("long"))] if number >= _IDENTITY else []
        chain += [*mark, column]
    hashes = {"offsets": F.xxhash64("kafka_partition", "kafka_offset"), "content": F.xxhash64(*chain)}
    return raw.measured_by_window(frame, raw.sums_of(hashes))
