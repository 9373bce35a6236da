"""Comparison of two raw tables, window by window and partition by partition: by digests and, if those differ, by
offsets.

The files of both tables are read, with one implementation of the digests. If the digests differ, rows are compared
column by column, some thousands at a time, so that memory does not grow with the window.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from platform_assets.engines.shared.digests import measured
from platform_assets.errors import FilesLostError
from platform_assets.lake import load_log, raw_table, rows
from platform_assets.lake.location import Folder
from platform_assets.ledger.entries import Receipt, SealedWindow
from platform_assets.ledger.store import Ledger
from platform_assets.model.digest import Measured
from platform_assets.model.offsets import OffsetRange, Offsets, ranges_of, repeats
from platform_assets.model.tables import TableRef
from platform_assets.windows.decide.generations import Ranges
from platform_assets.windows.load.replacing import same

_AT_ONCE: Final = 1 << 14
"""Number of rows of one partition that are compared at a time."""
_COLUMNS: Final = tuple(name for name in raw_table.COLUMN_NAMES if name not in ("topic_id", "window"))
_NEVER_NULL: Final = ("kafka_partition", "kafka_offset", "kafka_timestamp", "kafka_timestamp_type")
_NOTHING: Final = Measured.of_nothing()
_NONE: Final[Offsets] = np.array([], dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Altered:
    """Offsets that are in both tables, but with different content in `columns`."""

    offsets: tuple[OffsetRange, ...]
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PartitionComparison:
    """The rows of one partition of a window in both tables, and the offsets at which the rows differ.

    `repeated` are offsets with more than one row in either table.
    """

    partition: int
    live: Measured
    fresh: Measured
    only_live: tuple[OffsetRange, ...] = ()
    only_fresh: tuple[OffsetRange, ...] = ()
    altered: Altered = Altered((), ())
    repeated: tuple[OffsetRange, ...] = ()

    @property
    def equal(self) -> bool:
        """True if the digests of both tables are equal."""
        return self.live == self.fresh

    def details(self) -> dict[str, Any]:
        """Plain JSON values. Digests are decimal strings, and offsets are `[start, end]`, end exclusive."""
        return {
            "partition": self.partition,
            "equal": self.equal,
            "live": _digests(self.live),
            "fresh": _digests(self.fresh),
            "only_live": _pairs(self.only_live),
            "only_fresh": _pairs(self.only_fresh),
            "altered": {"offsets": _pairs(self.altered.offsets), "columns": list(self.altered.columns)},
            "repeated": _pairs(self.repeated),
        }


@dataclass(frozen=True, slots=True)
class WindowComparison:
    """One window in both tables. `problem` explains why the window could not be compared, or describes another fault of
    the window.

    `left_out` are offsets that Kafka no longer has, or that were accepted as lost: the fresh table cannot have them.
    The live table has `rows_left_out` rows at these offsets.
    """

    window: str
    partitions: tuple[PartitionComparison, ...]
    left_out: Ranges
    rows_left_out: int
    problem: str = ""

    @property
    def equal(self) -> bool:
        """True if nothing prevented the comparison, and no difference was found in what could be compared."""
        return not self.problem and all(p.equal for p in self.partitions)

    @property
    def rows(self) -> int:
        """Number of rows in the fresh table."""
        return sum(p.fresh.rows for p in self.partitions)

    def details(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "window": self.window,
            "equal": self.equal,
            "problem": self.problem or None,
            "partitions": [p.details() for p in self.partitions],
            "left_out": {str(p): _pairs(parts) for p, parts in self.left_out.items()},
            "rows_left_out": self.rows_left_out,
        }


@dataclass(frozen=True, slots=True)
class _Side:
    """One window in one of the tables, at one version of the table. `version` is None if there is no table."""

    folder: Folder
    version: int | None
    window: str
    left_out: Ranges

    @classmethod
    def of(cls, ledger: Ledger, sealed: SealedWindow, left_out: Ranges) -> _Side:
        """Return the window at the table's current version."""
        folder = ledger.lake.table(TableRef.raw(sealed.topic))
        return cls(folder, load_log.version(folder) if load_log.exists(folder) else None, sealed.key, left_out)

    def batches(self, where: pc.Expression | None = None) -> Iterator[pa.RecordBatch]:
        """The window's rows. Raises FilesLostError."""
        if self.version is None:
            return
        for batch in rows.batches_of(self.folder, self.window, self.version, _COLUMNS, where):
            if any(batch[name].null_count for name in _NEVER_NULL):
                raise FilesLostError(
                    f"raw/{self.folder.name}",
                    self.window,
                    f"rows lack one of {', '.join(_NEVER_NULL)}, which every load writes",
                )
            yield batch

    def measured(self) -> tuple[dict[int, Measured], int]:
        """Return the digests of the rows by partition, and the number of rows at the offsets `left_out`, which are not
        compared."""
        found: dict[int, Measured] = {}
        skipped = 0
        for batch in self.batches():
            for partition in pc.unique(batch["kafka_partition"]).to_pylist():
                part = batch.filter(pc.equal(batch["kafka_partition"], partition))
                wanted = self._wanted(partition, part["kafka_offset"].to_numpy())
                skipped += int((~wanted).sum())
                if wanted.any():
                    part = part if wanted.all() else part.filter(pa.array(wanted))
                    found[partition] = found.get(partition, _NOTHING) + measured(part)
        return found, skipped

    def offsets(self, partition: int) -> Offsets:
        """The offsets of a partition's rows, ascending."""
        if self.version is None:
            return _NONE
        found = rows.offsets_of(self.folder, self.window, self.version).get(partition, _NONE)
        return found[self._wanted(partition, found)]

    def rows_at(self, partition: int, offsets: Offsets) -> pa.Table:
        """Return the rows at these offsets. The offsets are ascending, and the window has each of them exactly once."""
        near = (
            (pc.field("kafka_partition") == partition)
            & (pc.field("kafka_offset") >= int(offsets[0]))
            & (pc.field("kafka_offset") <= int(offsets[-1]))
        )
        found = pa.Table.from_batches(list(self.batches(near)))
        return found.filter(pc.is_in(found["kafka_offset"], pa.array(offsets))).sort_by("kafka_offset")

    def _wanted(self, partition: int, offsets: Offsets) -> npt.NDArray[np.bool_]:
        wanted = np.ones(len(offsets), np.bool_)
        for r in self.left_out.get(partition, ()):
            wanted &= (offsets < r.start) | (offsets >= r.end)
        return wanted


def compare(sealed: SealedWindow, live: Ledger, fresh: Ledger) -> WindowComparison:
    """Compare one window of the current raw table of `live` with that of `fresh`, into which the window was loaded."""
    table = TableRef.raw(sealed.topic)
    left_out = fresh.accepted_losses(table, sealed.key)
    sides = [_Side.of(ledger, sealed, left_out) for ledger in (live, fresh)]
    recorded, made_by = (ledger.receipts(table, [sealed.key]).get(sealed.key) for ledger in (live, fresh))
    try:
        (held, kept), (made, stray) = (side.measured() for side in sides)
        found = tuple(
            _partition(p, held.get(p, _NOTHING), made.get(p, _NOTHING), *sides)
            for p in sorted({*held, *made, *sealed.ranges.by_partition})
        )
    except FilesLostError as e:
        return WindowComparison(sealed.key, (), left_out, 0, str(e))
    whole = None if kept else sum(held.values(), _NOTHING)
    problem = _problem(sealed, recorded, made_by, whole, sum(made.values(), _NOTHING), stray)
    return WindowComparison(sealed.key, found, left_out, kept, problem)


def _problem(
    sealed: SealedWindow, live: Receipt | None, fresh: Receipt | None, held: Measured | None, made: Measured, stray: int
) -> str:
    """Describe a fault other than differing rows. `held` is None if not all rows of the live table were measured."""
    if fresh is None or stray or not same(made, fresh):
        return "the fresh table was changed after it was loaded: delete that table and replay again"
    if live is None:
        return f"this window is not loaded into the live table: run `platform-assets load {TableRef.raw(sealed.topic)} {sealed.key}`"
    if (live.topic_id, live.ranges) != (sealed.topic_id, sealed.ranges):
        return (
            f"the live table's receipt records topic id {live.topic_id} and offsets {live.ranges.triples()}, but "
            f"the window's cuts have "
            f"topic id {sealed.topic_id} and offsets {sealed.ranges.triples()}"
        )
    if held is not None and held == made and not same(held, live):
        return (
            "both tables have the same rows, but the live table's receipt describes different rows: "
            f"`platform-assets audit {live.table} --deep --windows {sealed.key}` shows the next step"
        )
    return ""


def _partition(partition: int, held: Measured, made: Measured, live: _Side, fresh: _Side) -> PartitionComparison:
    if held == made:
        return PartitionComparison(partition, held, made)
    left, right = live.offsets(partition), fresh.offsets(partition)
    twice = np.union1d(repeats(left), repeats(right))
    both = np.setdiff1d(np.intersect1d(left, right), twice)
    offsets, columns = list[int](), set[str]()
    for start in range(0, len(both), _AT_ONCE):
        chunk = both[start : start + _AT_ONCE]
        differs, names = _differing(live.rows_at(partition, chunk), fresh.rows_at(partition, chunk))
        offsets += chunk[differs].tolist()
        columns |= names
    return PartitionComparison(
        partition,
        held,
        made,
        only_live=ranges_of(np.setdiff1d(left, right)),
        only_fresh=ranges_of(np.setdiff1d(right, left)),
        altered=Altered(ranges_of(offsets), tuple(name for name in _COLUMNS if name in columns)),
        repeated=ranges_of(twice),
    )


def _differing(left: pa.Table, right: pa.Table) -> tuple[npt.NDArray[np.bool_], set[str]]:
    """Return a mask of the rows that differ between two tables with the same offsets, and the columns that differ."""
    found, names = np.zeros(left.num_rows, np.bool_), set[str]()
    for name in _COLUMNS:
        pair = [_values(side[name]) for side in (left, right)]
        if pair[0].equals(pair[1]):
            continue
        # Lists and bytes with nulls are compared as Python values; only some thousand rows reach this.
        differs = np.array([a != b for a, b in zip(pair[0].to_pylist(), pair[1].to_pylist(), strict=True)])
        found |= differs
        names.add(name)
    return found, names


def _values(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return times as numbers, because Python's times end with the year 9999."""
    return column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column


def _digests(found: Measured) -> Mapping[str, Any]:
    return {
        "rows": found.rows,
        "offsets_digest": str(found.offsets.total),
        "content_digest": str(found.content.total),
    }


def _pairs(ranges: Sequence[OffsetRange]) -> list[list[int]]:
    return [[r.start, r.end] for r in ranges]
