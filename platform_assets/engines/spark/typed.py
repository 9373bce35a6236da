"""The digests of rows whose columns are declared, as Spark computes them: of decoded tables and of dead letters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from platform_assets.engines.spark import raw
from platform_assets.model.digest import Measured

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_LEFT_OUT: Final = frozenset({"topic_id", "window"})


def measure_windows(frame: DataFrame) -> dict[str, Measured]:
    """Digests of each window of `frame`, by key: of all its columns in order, but those that are the same in a whole window."""
    from pyspark.sql import functions as F

    # A name may hold a dot, which would be a field of a struct.
    columns = [F.col(f"`{name.replace('`', '``')}`") for name in frame.columns if name not in _LEFT_OUT]
    hashes = {"offsets": F.xxhash64("kafka_partition", "kafka_offset"), "content": F.xxhash64(*columns)}
    return raw.measured_by_window(frame, raw.sums_of(hashes))
