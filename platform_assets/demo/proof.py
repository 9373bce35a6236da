"""Proof that a table has exactly the streamed rows. The table is compared with the data and with the topic, without
Spark.

The table's values are compared byte by byte with the values in the dataset, and its offsets with the records that the
broker returns to a read_committed consumer. Neither the ledger nor the loader's own counts are used.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from platform_assets.demo.dataset import Dataset, row_numbers
from platform_assets.demo.schedule import Rows
from platform_assets.demo.topic_log import TopicLog
from platform_assets.lake import datasets

_OFFSET_BITS: Final = 48
"""Number of low bits for the offset if a log position is stored as a single number; the high bits are the partition.
The demo's offsets are far smaller than 2^48."""


@dataclass(frozen=True, slots=True)
class Exactness:
    """Result of a comparison. If the table is exact, all lists are empty, and all counts except for `rows` are 0.

    Attributes:
        topic: the topic.
        rows: number of rows in the table.
        missing: numbers of the dataset's rows that the table lacks, ascending.
        doubled: numbers of rows that the table has more than once.
        altered: numbers of rows whose bytes differ from those in the dataset.
        foreign: count of the table's values that do not match any row of the dataset.
        places_doubled: count of log positions (partition and offset) that the table has more than once.
        not_in_log: count of the table's log positions at which the topic has no committed record, or the record of a
            different row.
        not_in_table: count of the topic's committed records without a row in the table.
    """

    topic: str
    rows: int
    missing: Rows
    doubled: Rows
    altered: Rows
    foreign: int
    places_doubled: int
    not_in_log: int
    not_in_table: int

    @property
    def exact(self) -> bool:
        """True if the table has every row of the dataset once and every committed record once, and no other rows."""
        return not self.faults()

    def faults(self) -> list[str]:
        """Return a description of each difference."""
        named = (("missing", self.missing), ("doubled", self.doubled), ("altered", self.altered))
        counted = (
            (self.foreign, "values do not match any row of the data"),
            (self.places_doubled, "offsets are in the table more than once"),
            (self.not_in_log, "rows do not match any committed record of the topic"),
            (self.not_in_table, "committed records are not in the table"),
        )
        return [f"{len(rows):,} rows {what}: {_named(rows)}" for what, rows in named if len(rows)] + [
            f"{count:,} {what}" for count, what in counted if count
        ]


def compare(table: Path, dataset: Dataset, log: TopicLog) -> Exactness:
    """Compare a raw table with the data that was streamed and with the topic's committed records.

    Three columns of the table are read, batch by batch. A table that does not exist has no rows.
    """
    total = len(dataset)
    counts: npt.NDArray[np.int64] = np.zeros(total, dtype=np.int64)
    altered: list[Rows] = []
    places: list[npt.NDArray[np.int64]] = []
    rows_at: list[Rows] = []
    foreign = 0
    if DeltaTable.is_deltatable(str(table)):
        columns = ["kafka_partition", "kafka_offset", "value"]
        for batch in datasets.of(DeltaTable(table)).to_batches(columns=columns):
            values = batch.column("value").cast(pa.binary())
            numbers = pc.fill_null(row_numbers(values), -1)
            known = pc.and_(pc.greater_equal(numbers, 0), pc.less(numbers, total))
            foreign += batch.num_rows - (pc.sum(known).as_py() or 0)
            own = numbers.filter(known)
            same = pc.equal(values.filter(known), dataset.values.take(own))
            altered.append(_array(own.filter(pc.invert(same))))
            counts += np.bincount(_array(own), minlength=total)
            places.append(_places(_array(batch.column("kafka_partition")), _array(batch.column("kafka_offset"))))
            rows_at.append(_array(numbers))
    in_table, in_log = _joined(places), _places(log.partitions, log.offsets)
    distinct, first = np.unique(in_table, return_index=True)
    strangers = _strangers(distinct, _joined(rows_at)[first], in_log, log.rows)
    return Exactness(
        topic=dataset.topic,
        rows=len(in_table),
        missing=np.flatnonzero(counts == 0),
        doubled=np.flatnonzero(counts > 1),
        altered=np.unique(_joined(altered)),
        foreign=foreign,
        places_doubled=len(in_table) - len(distinct),
        not_in_log=strangers,
        not_in_table=len(np.setdiff1d(in_log, distinct)),
    )


def _strangers(places: Rows, rows: Rows, log_places: Rows, log_rows: Rows) -> int:
    """Return the number of log positions in `places` that are missing from the log, or at which the log has a different
    row number."""
    order = np.argsort(log_places)
    at = np.searchsorted(log_places, places, sorter=order)
    inside = at < len(log_places)
    found = order[at[inside]]
    agreed = (log_places[found] == places[inside]) & (log_rows[found] == rows[inside])
    return len(places) - int(agreed.sum())


def _places(partitions: npt.NDArray[np.integer], offsets: npt.NDArray[np.integer]) -> Rows:
    return (partitions.astype(np.int64) << _OFFSET_BITS) | offsets.astype(np.int64)


def _array(column: pa.Array) -> Rows:
    numbers: Rows = column.to_numpy(zero_copy_only=False).astype(np.int64)
    return numbers


def _joined(parts: list[Rows]) -> Rows:
    return np.concatenate(parts) if parts else np.array([], dtype=np.int64)


def _named(rows: Rows, limit: int = 5) -> str:
    """Return the first few row numbers as ranges, both ends inclusive."""
    breaks = np.flatnonzero(np.diff(rows) > 1) + 1
    runs = [(int(run[0]), int(run[-1])) for run in np.split(rows, breaks)[:limit]]
    text = ", ".join(str(first) if first == last else f"{first}–{last}" for first, last in runs)
    return text + (" …" if len(breaks) + 1 > limit else "")
