"""A ledger's data files, followed from commit to commit by one process, and the contents of the small files.

A tick of a thousand topics, or a run of hundreds of windows, requests the entries of one topic after another. With this
module, the ledger's log, which covers all topics, is read once, and so is each of its small files. A file of a Delta
table never changes. If a file differs anyway, for example because another ledger replaced this one, it is read again.
"""

from __future__ import annotations

import functools
import operator
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from platform_assets.lake import delta_log, load_log, parquet
from platform_assets.lake.delta_log import Anchor, Commit
from platform_assets.lake.location import Folder, Lake
from platform_assets.lake.remembered import Remembered
from platform_assets.ledger.entries import COMMIT_COLUMNS, CUT_COLUMNS, UTC_MICROS, arrow_type

_SMALL_BYTES: Final = 1 << 18
"""Maximum size of files that are read completely and kept. Larger files contain long folded histories; from these, only
the wanted rows are read."""
_REMEMBERED_BYTES: Final = 64 << 20
"""Maximum number of rows that one process keeps, for all ledgers together."""

_remembered: Remembered[tuple[Folder, str], pa.Table] = Remembered(_REMEMBERED_BYTES)


@dataclass(frozen=True, slots=True)
class _File:
    """A data file: its path below the ledger's folder, and the time range of its entries, both ends inclusive; None if
    the range is not known."""

    path: str
    bytes: int
    first: datetime | None
    last: datetime | None

    def may_have(self, start: datetime | None, end: datetime | None, among: Sequence[datetime] | None) -> bool:
        """Return True if an entry in the file may be in `[start, end]`, or may be one of `among`."""
        if self.first is None or self.last is None:
            return True
        if (start is not None and self.last < start) or (end is not None and self.first > end):
            return False
        return among is None or any(self.first <= at <= self.last for at in among)

    def has_only(self, start: datetime | None, end: datetime | None) -> bool:
        """Return True if all entries in the file are known to be in `[start, end]`."""
        if start is None and end is None:
            return True
        if self.first is None or self.last is None:
            return False
        return (start is None or self.first >= start) and (end is None or self.last <= end)


@dataclass(slots=True)
class _Snapshot:
    """The files at a commit, by the value of the partition column and by path; and the value for each path.

    `checkpoint` was the newest checkpoint. `stamps` belong to the log files that a reader starts with: the checkpoint,
    and all later log files.
    """

    at: Anchor
    checkpoint: int | None
    stamps: dict[str, str | None]
    files: dict[str, dict[str, _File]]
    value_of: dict[str, str]


class KnownFiles:
    """The knowledge of one process about the files of one ledger. The ledger is partitioned by the column `partition`
    and has times in the column `time`."""

    def __init__(self, folder: Folder, partition: str, time: str, columns: Mapping[str, tuple[str, str]]) -> None:
        self._folder = folder
        self._partition, self._time = partition, time
        self._schema = pa.schema([(name, arrow_type(kind)) for name, (kind, _) in columns.items()])
        self._in_files = pa.schema([field for field in self._schema if field.name != partition])
        self._seen: _Snapshot | None = None
        self._doubted = False
        self._lock = threading.Lock()

    def doubt(self) -> None:
        """Make the next read check that the log is still the one that was read, and open the ledger again if it is not.

        If the newest commit was replaced, this is noticed even without the check. Damage to earlier files is noticed
        only with it.
        """
        self._doubted = True

    def rows(
        self,
        value: str,
        columns: Sequence[str] | None = None,
        *,
        start: datetime | None = None,
        end: datetime | None = None,
        among: Sequence[datetime] | None = None,
    ) -> pa.Table:
        """Return the entries of the topic or table `value` at the newest commit, in no particular order; none if there
        is no ledger.

        Only entries whose time is in `[start, end]`, both inclusive, and is one of `among` are returned. Columns that
        an older ledger lacks are null. Raises the errors of `lake.failures`.
        """
        schema = self._schema if columns is None else pa.schema([self._schema.field(name) for name in columns])
        names = [name for name in schema.names if name != self._partition]
        partly: list[pa.Table] = []
        found: list[pa.Table] = []
        for file in self._files(value):
            if not file.may_have(start, end, among):
                continue
            kept = self._kept(file)
            if kept is None:
                found.append(self._read(file, self._condition(start, end, among), names))
            elif among is None and file.has_only(start, end):
                found.append(kept.select(names))
            else:
                partly.append(kept)
        if partly:
            together = pa.concat_tables(partly)
            # Computed here, because pyarrow starts threads to filter by an expression.
            found.append(together.select(names).filter(self._mask(together[self._time], start, end, among)))
        rows = pa.concat_tables(found) if found else self._in_files.empty_table()
        values = pa.repeat(pa.scalar(value, self._schema.field(self._partition).type), rows.num_rows)
        return rows.append_column(self._partition, values).select(schema.names)

    def first(self, value: str) -> datetime | None:
        """Return the oldest time of the entries of `value`, from file statistics if the files have any; None if there
        are no entries."""
        files = self._files(value)
        known = [file.first for file in files if file.first is not None]
        if len(known) < len(files):
            oldest = pc.min(self.rows(value, [self._time])[self._time]).as_py()
            return None if oldest is None else oldest.astimezone(UTC)
        return min(known, default=None)

    def _condition(
        self, start: datetime | None, end: datetime | None, among: Sequence[datetime] | None
    ) -> pc.Expression | None:
        at = pc.field(self._time)
        conditions: list[Any] = []
        if start is not None:
            conditions.append(at >= pa.scalar(start, UTC_MICROS))
        if end is not None:
            conditions.append(at <= pa.scalar(end, UTC_MICROS))
        if among is not None:
            conditions.append(at.isin(pa.array(sorted(among), UTC_MICROS)))
        return functools.reduce(operator.and_, conditions) if conditions else None

    def _mask(
        self,
        times: pa.ChunkedArray,
        start: datetime | None,
        end: datetime | None,
        among: Sequence[datetime] | None,
    ) -> pa.ChunkedArray:
        """Return the same as `_condition`, computed for these times."""
        masks: list[Any] = []
        if start is not None:
            masks.append(pc.greater_equal(times, pa.scalar(start, UTC_MICROS)))
        if end is not None:
            masks.append(pc.less_equal(times, pa.scalar(end, UTC_MICROS)))
        if among is not None:
            masks.append(pc.is_in(times, pa.array(sorted(among), UTC_MICROS)))
        return functools.reduce(pc.and_, masks)

    def _kept(self, file: _File) -> pa.Table | None:
        """Return the rows of a small file, which is read only once; None for a large file."""
        if file.bytes > _SMALL_BYTES:
            return None
        key, stamp = (self._folder, file.path), self._folder.stamp(file.path)
        rows = None if stamp is None else _remembered.get(key, stamp)
        if rows is None:
            rows = self._read(file, None, self._in_files.names)
            if stamp is not None:
                _remembered.keep(key, stamp, rows, rows.nbytes)
        return rows

    def _read(self, file: _File, condition: pc.Expression | None, names: Sequence[str]) -> pa.Table:
        with self._folder.reading(), self._folder.open(file.path) as opened:
            kind = ds.ParquetFileFormat(read_options=parquet.READ_OPTIONS)
            files = ds.FileSystemDataset([kind.make_fragment(opened)], self._in_files, kind)
            return files.to_table(filter=condition, columns=list(names))

    # --- list of files ------------------------------------------------------------------------------------------

    def _files(self, value: str) -> tuple[_File, ...]:
        with self._lock:
            seen = self._followed()
            return () if seen is None else tuple(seen.files.get(value, {}).values())

    def _followed(self) -> _Snapshot | None:
        # Kept only if everything succeeded.
        seen, self._seen = self._seen, None
        if self._doubted and seen is not None and not self._is_as_read(seen):
            seen = None
        commits = None if seen is None else delta_log.commits_after(self._folder, seen.at)
        if seen is None or commits is None or any(commit.reshapes for commit in commits):
            seen = self._all()
        else:
            for commit in commits:
                self._take_in(seen, commit)
        self._seen, self._doubted = seen, False
        return seen

    def _is_as_read(self, seen: _Snapshot) -> bool:
        if delta_log.newest_checkpoint(self._folder) != seen.checkpoint:
            return False
        # An object of a bucket is replaced completely or not at all, and a request for each would be slow.
        return self._folder.is_in_store or all(self._folder.stamp(n) == stamp for n, stamp in seen.stamps.items())

    def _all(self) -> _Snapshot | None:
        """Open the ledger as a table, so that a table that this release cannot read is refused."""
        at = delta_log.newest_anchor(self._folder)
        if at is None:
            # The table may exist without its newest commits; delta-rs then reports the problem.
            if self._folder.has_delta_log():
                self._folder.delta()
            return None
        checkpoint = delta_log.newest_checkpoint(self._folder)
        names = [delta_log.name_of(version) for version in range(checkpoint or 0, at.version + 1)]
        if checkpoint is not None:
            names.append(delta_log.checkpoint_name(checkpoint))
        stamps = {} if self._folder.is_in_store else {name: self._folder.stamp(name) for name in names}
        actions = load_log.file_actions(self._folder, at.version)
        seen = _Snapshot(at, checkpoint, stamps, {}, {})
        if actions.num_rows:
            unknown = pa.nulls(actions.num_rows, UTC_MICROS)
            columns = actions.column_names
            bounds = (
                actions[name].cast(UTC_MICROS) if (name := f"{which}.{self._time}") in columns else unknown
                for which in ("min", "max")
            )
            others = ("path", f"partition.{self._partition}", "size_bytes")
            for path, value, size, first, last in zip(
                *(actions[name].to_pylist() for name in others), *(b.to_pylist() for b in bounds), strict=True
            ):
                _put(seen, path, value, size, _utc(first), _utc(last))
        return seen

    def _take_in(self, seen: _Snapshot, commit: Commit) -> None:
        for path in commit.removes:
            value = seen.value_of.pop(unquote(path), None)
            if value is not None:
                del seen.files[value][unquote(path)]
        for add in commit.adds:
            known = add.statistics or {}
            first, last = (_instant((known.get(which) or {}).get(self._time)) for which in ("minValues", "maxValues"))
            _put(seen, add.path, add.partition.get(self._partition), add.bytes, first, last)
        seen.at = commit.anchor
        if not self._folder.is_in_store:
            name = delta_log.name_of(commit.version)
            seen.stamps[name] = self._folder.stamp(name)


def _put(
    seen: _Snapshot, path: str, value: str | None, size: int, first: datetime | None, last: datetime | None
) -> None:
    name, of = unquote(path), unquote(value or "")
    seen.files.setdefault(of, {})[name] = _File(name, size, first, last)
    seen.value_of[name] = of


def _instant(text: str | None) -> datetime | None:
    return None if text is None else _utc(datetime.fromisoformat(text))


def _utc(at: datetime | None) -> datetime | None:
    if at is None:
        return None
    return at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)


def of_cuts(lake: Lake) -> KnownFiles:
    """Return the files of the ledger of cuts, by topic and by edge."""
    return _of(lake.cuts, "topic", "edge")


def of_commits(lake: Lake) -> KnownFiles:
    """Return the files of the ledger of loads, by table and by the start of the window."""
    return _of(lake.commits, "table", "window_start")


@lru_cache(maxsize=64)
def _of(folder: Folder, partition: str, time: str) -> KnownFiles:
    """Return the one object for each ledger and process."""
    return KnownFiles(folder, partition, time, CUT_COLUMNS if partition == "topic" else COMMIT_COLUMNS)
