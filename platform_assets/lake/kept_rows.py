"""The rows of other windows in a shared file, copied to a new file before a commit removes the shared one.

Only flat tables have shared files. The new file is read again and compared with the shared one, by the digests of each window, before
anything is committed.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from platform_assets.errors import FilesLostError, LoadError
from platform_assets.lake import failures, holdings, parquet
from platform_assets.lake.data_files import NewFile, described
from platform_assets.lake.delta_log import DataFile
from platform_assets.lake.location import Folder, shared_folder
from platform_assets.model.digest import Measured
from platform_assets.model.logs import logger

_log = logger(__name__)
_BLOCK_ROWS: Final = 1 << 16
_STATISTICS: Final = ["kafka_partition", "kafka_offset", "kafka_timestamp", parquet.WINDOW]
_NOTHING: Final = Measured.of_nothing()

Measure = Callable[[pa.RecordBatch], Measured]
"""Takes the digests of rows of the table."""
_Digests = dict[tuple[str, str], Measured]
"""By window and topic id: no digest covers these two columns."""


@dataclass(frozen=True, slots=True)
class Kept:
    """The rows that were copied from shared files to `files`. `lost` are shared files of which not everything could be read."""

    files: tuple[NewFile, ...]
    lost: tuple[str, ...]


NOTHING_KEPT: Final = Kept((), ())


def copied(table: Folder, shared: Iterable[DataFile], window: str, measure: Measure) -> Kept:
    """Copy the rows of all windows but `window` out of the `shared` files, to folders of their own.

    Of a damaged file, row groups that can be read are copied, and the others are left out, with a warning. Raises LoadError, and
    leaves no file, if a copy differs from its source.
    """
    files, lost = list[NewFile](), list[str]()
    try:
        for source in shared:
            file, is_whole = _copied(table, source, window, measure)
            files += [] if file is None else [file]
            lost += [] if is_whole else [source.path]
    except BaseException:
        discard(table, files)
        raise
    return Kept(tuple(files), tuple(lost))


def discard(table: Folder, files: Sequence[NewFile]) -> None:
    """Delete copies that no commit names; what cannot be deleted is left to `vacuum`."""
    for file in files:
        (table / file.path.rpartition("/")[0]).delete()


def _copied(table: Folder, source: DataFile, window: str, measure: Measure) -> tuple[NewFile | None, bool]:
    """Return the copy of one shared file, None if nothing is left to copy, and true if all of the file was read."""
    path = source.path
    before: _Digests = {}
    lost = list[str]()
    written = _Copy(table, shared_folder(*holdings.span_of(table, source), str(uuid.uuid4())))
    try:
        for block in _others(table, path, window, lost):
            for place, rows in _by_place(block):
                before[place] = before.get(place, _NOTHING) + measure(rows)
            written.add(block)
        name = written.close()
    except BaseException:
        written.discard()
        raise
    if lost:
        _log.warning(
            "shared data file %s of %s is damaged (%s): rows of other windows in it are lost, and their checks name them",
            path, table.name, lost[0],
        )  # fmt: skip
    if name is None:
        return None, not lost
    after: _Digests = {}
    with failures.reading_files(table, window), table.open(name) as opened:
        for block in parquet.blocks(parquet.opened(opened), _BLOCK_ROWS):
            for place, rows in _by_place(block):
                after[place] = after.get(place, _NOTHING) + measure(rows)
    if before != after:
        written.discard()
        raise LoadError(
            f"window {window} of {table.name} could not be replaced: the rows of other windows in {path} would not have stayed "
            "the same in their new file. Nothing was committed. Load the window again; if this persists, check the disk."
        )
    file = described(table, name)
    held: dict[str, int] = {}
    for (key, _), measured in after.items():
        held[key] = held.get(key, 0) + measured.rows
    holdings.remember(table, holdings.in_log(name), file.bytes, held)
    return file, not lost


def _others(table: Folder, path: str, window: str, lost: list[str]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of all windows but one, by row group; add a reason to `lost` for each that cannot be read."""
    try:
        with failures.reading_files(table, window), table.open(unquote(path)) as opened:
            file = parquet.opened(opened)
            for group in range(file.num_row_groups):
                blocks = parquet.blocks(file, _BLOCK_ROWS, groups=[group])
                while True:
                    try:
                        with failures.reading_files(table, window):
                            block = next(blocks, None)
                    except FilesLostError as e:
                        lost.append(e.detail)
                        break
                    if block is None:
                        break
                    others = block.filter(pc.fill_null(pc.not_equal(block[parquet.WINDOW], window), True))
                    if others.num_rows:
                        yield others
    except FilesLostError as e:
        lost.append(e.detail)


def _by_place(block: pa.RecordBatch) -> Iterator[tuple[tuple[str, str], pa.RecordBatch]]:
    """Yield the rows of each window and topic id."""
    for key in pc.unique(block[parquet.WINDOW]).to_pylist():
        is_of = pc.is_null(block[parquet.WINDOW]) if key is None else pc.equal(block[parquet.WINDOW], key)
        of_window = block.filter(pc.fill_null(is_of, False))
        for topic_id in pc.unique(of_window["topic_id"]).to_pylist():
            is_of = pc.is_null(of_window["topic_id"]) if topic_id is None else pc.equal(of_window["topic_id"], topic_id)
            yield (key or "", topic_id or ""), of_window.filter(pc.fill_null(is_of, False))


class _Copy:
    """A file that is being written; nothing is written without rows."""

    def __init__(self, table: Folder, below: str) -> None:
        self._table, self._name = table, f"{below}/part-{uuid.uuid4().hex[:12]}.parquet"
        self._sink: pa.NativeFile | None = None
        self._writer: pq.ParquetWriter | None = None

    def add(self, block: pa.RecordBatch) -> None:
        """Append rows, as a row group of their own."""
        with self._table.writing():
            if self._writer is None:
                self._sink = self._table.content.create(self._name)
                self._writer = pq.ParquetWriter(
                    self._sink,
                    block.schema,
                    compression="zstd",
                    write_statistics=[name for name in _STATISTICS if name in block.schema.names],
                    write_page_index=True,
                    write_page_checksum=True,
                    store_schema=False,
                )
            self._writer.write_table(pa.Table.from_batches([block]), row_group_size=block.num_rows)

    def close(self) -> str | None:
        """Return the file's name; None if there were no rows."""
        if self._writer is None or self._sink is None:
            return None
        with self._table.writing():
            self._writer.close()
            self._sink.close()
        return self._name

    def discard(self) -> None:
        """Delete the file, as far as possible."""
        if self._writer is None or self._sink is None:
            return
        # What cannot be deleted is named by no commit.
        with suppress(OSError, pa.ArrowException):
            self._writer.close()
            self._sink.close()
        with suppress(OSError):
            self._table.content.remove([self._name])
