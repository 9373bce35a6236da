"""Replacing a window of a flat table: the files that a commit removes, and the rows of other windows that the commit
must keep.

Files that contain only the window are removed. Files that the window shares with other windows are also removed; in the
same commit, new files add the rows of the other windows again. delta-rs would not notice if a removed path were not in
the table, so the paths come from exactly the version on which the commit is based. delta-rs's overwrite with a filter
is not used, because it would remove files without statistics.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.transaction import AddAction, RemoveAction

from platform_assets.errors import FilesLostError, TableRefusedError
from platform_assets.lake import failures, holdings, load_log, parquet, row_copies
from platform_assets.lake.data_files import NewFile, delta_statistics
from platform_assets.lake.delta_log import Commit, DataFile
from platform_assets.lake.field_ids import ids_of
from platform_assets.lake.location import Folder, shared_span
from platform_assets.lake.remembered import Remembered
from platform_assets.lake.row_copies import NOTHING_KEPT, Kept, Measure
from platform_assets.model.offsets import TopicRanges

_BLOCK_ROWS: Final = 1 << 16
_BYTES_A_PLACE: Final = 256
_BoundsByPlace = dict[tuple[str | None, int | None], tuple[int, int]]
_places: Remembered[tuple[Folder, str], _BoundsByPlace] = Remembered(16 << 20)


def is_removable(path: str) -> bool:
    """Return True if delta-rs, which encodes the path in the log again, would remove the file with that path.

    Another writer may have encoded other characters. In that case, delta-rs would remove nothing and raise no error.
    """
    # Decoding and encoding again takes ten times as long, and the platform's own names do not need it.
    return holdings.is_plain(path) or holdings.in_log(unquote(path)) == path


@dataclass(frozen=True, slots=True)
class Change:
    """The files of a window that a commit removes, and the copies that it adds with the rows of other windows."""

    folder: Folder
    removed: tuple[DataFile, ...] = ()
    kept: Kept = NOTHING_KEPT

    def actions(self, new: Iterable[NewFile], now: int) -> list[AddAction | RemoveAction]:
        """Return the actions of the commit, which also adds the `new` files of the window; `now` is in ms.

        All actions declare that they change data: otherwise a change feed would report the kept rows as deleted.
        """
        removes = [RemoveAction(unquote(f.path), True, now, f.bytes, {}) for f in self.removed]
        adds = [AddAction(f.path, f.bytes, {}, now, True, delta_statistics(f)) for f in (*new, *self.kept.files)]
        return [*removes, *adds]

    def discard(self) -> None:
        """Delete the copies, which no commit refers to."""
        row_copies.discard(self.folder, self.kept.files)


def change_of(folder: Folder, handle: DeltaTable, window: str, measure: Measure | None) -> Change:
    """Return the change that replaces a window in the version of `handle`, after copying the rows of other windows that
    the change keeps.

    Raises TableRefusedError if delta-rs cannot remove a file.
    """
    with folder.reading():
        files = pa.table(handle.get_add_actions(flatten=True))
    found = holdings.by_window(folder, files, flat=True, among=(window,))
    removed, shared = list[DataFile](), list[DataFile]()
    for file, is_shared in holdings.files_in(found):
        if not is_removable(file.path):
            raise TableRefusedError(
                folder.name,
                f"delta-rs cannot remove the file {file.path!r}, because another writer encoded its path differently",
            )
        removed.append(file)
        shared += [file] if is_shared else []
    if not shared:
        return Change(folder, tuple(removed))
    if measure is None:
        raise TypeError("a table with shared files needs a measure of its rows")
    ids = ids_of(pa.schema(handle.schema().to_arrow()))
    kept = row_copies.copied(folder, shared, window, measure, ids, handle.version())
    return Change(folder, tuple(removed), kept)


@dataclass
class Following:
    """The files of a window in a flat table, followed from commit to commit."""

    folder: Folder
    window: str
    files: set[str]

    def is_changed_by(self, commit: Commit) -> bool:
        """Return True if a commit changed the rows of the window, or may have changed them. If the commit only moved
        the rows, follow them to their new files."""
        if load_log.moves_only(commit, self.window):
            if not self.files.isdisjoint(commit.removes):
                held = {add.path for add in commit.adds if self._holds(add)}
                self.files = (self.files - set(commit.removes)) | held
            return False
        return not self.files.isdisjoint(commit.removes) or any(self._holds(add) for add in commit.adds)

    def _holds(self, file: DataFile) -> bool:
        return holdings.may_hold(file, self.window) and _holds(self.folder, file, self.window)


@dataclass(frozen=True, slots=True)
class Places:
    """The offsets of a window, by partition, in the topic with this id."""

    topic_id: str
    ranges: TopicRanges


def files_on_disk(folder: Folder, names: Iterable[str], window: str, places: Places | None) -> list[str]:
    """Return those of `names`, which are files on disk outside the folders of loads, that hold or may hold rows of a
    window.

    Names are not percent-encoded. Files that are not Parquet may be half-written: only their folder shows which windows
    they may hold. A file without a window column belongs to a partitioned table, and another writer chose its folder.
    Such a file counts if it has rows at `places`; without `places`, it never counts.
    """
    found = []
    for name in names:
        span = shared_span(name)
        if not name.endswith(".parquet") or (span is not None and not span[0] <= window <= span[1]):
            continue
        size = folder.size(name)
        if size is None:
            continue
        try:
            held = holdings.held_by(folder, DataFile(holdings.in_log(name), {}, size, None))
            is_held = window in held or (places is not None and "" in held and _is_at(folder, name, size, places))
        except FilesLostError:
            is_held = span is not None
        found += [name] if is_held else []
    return found


def _is_at(folder: Folder, name: str, size: int, places: Places) -> bool:
    """Return true if a file without a window column has rows at `places`, or between such offsets."""
    known = _places.get((folder, name), str(size))
    if known is None:
        with failures.reading_files(folder, ""), folder.open(name) as opened:
            known = _bounds(parquet.opened(opened))
        _places.keep((folder, name), str(size), known, _BYTES_A_PLACE * (len(known) + 1))
    for (topic_id, partition), (first, last) in known.items():
        wanted = None if partition is None else places.ranges.by_partition.get(partition)
        if wanted is not None and topic_id in (None, places.topic_id) and first < wanted.end and wanted.start <= last:
            return True
    return False


def _bounds(file: pq.ParquetFile) -> _BoundsByPlace:
    """Return, for a file without a window column, the smallest and the largest offset of each topic id and partition."""
    columns = ["topic_id", "kafka_partition", "kafka_offset"]
    found: _BoundsByPlace = {}
    if parquet.WINDOW in file.schema_arrow.names or not set(columns) <= set(file.schema_arrow.names):
        return found
    for block in parquet.blocks(file, _BLOCK_ROWS, columns):
        rows = pa.Table.from_batches([block]).group_by(columns[:2])
        for row in rows.aggregate([("kafka_offset", "min"), ("kafka_offset", "max")]).to_pylist():
            place, low, high = (row[columns[0]], row[columns[1]]), row["kafka_offset_min"], row["kafka_offset_max"]
            if low is not None:
                known = found.get(place, (low, high))
                found[place] = min(known[0], low), max(known[1], high)
    return found


def _holds(folder: Folder, file: DataFile, window: str) -> bool:
    try:
        return window in holdings.held_by(folder, file)
    except FilesLostError:
        return True
