"""Copies of rows of a flat table in new files, made before a commit removes the files in which the rows were.

Before anything is committed, the new file is read again, and the digests of each window are compared with those of its
sources.
"""

from __future__ import annotations

import functools
import uuid
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final, Protocol
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from platform_assets.errors import FilesLostError, LoadError
from platform_assets.lake import failures, holdings, parquet
from platform_assets.lake.contents import Digests
from platform_assets.lake.data_files import NewFile, described
from platform_assets.lake.delta_log import DataFile
from platform_assets.lake.field_ids import FieldIds, ids_of
from platform_assets.lake.location import Folder, shared_folder
from platform_assets.model.digest import Digest, Measured
from platform_assets.model.logs import logger

_log = logger(__name__)
_BLOCK_ROWS: Final = 1 << 16
_NEVER_NULL: Final = ("kafka_partition", "kafka_offset", "kafka_timestamp", "kafka_timestamp_type")
_STATISTICS: Final = ["kafka_partition", "kafka_offset", "kafka_timestamp", parquet.WINDOW]
_NOTHING: Final = Measured.of_nothing()
_CODEC: Final = "zstd"
_DELTAS: Final = "DELTA_BINARY_PACKED"
_TELLING_BYTES: Final = 16 << 10
"""Number of bytes of a column chunk from which its codec shows whether the column can be compressed."""
_ROW_GROUP_BYTES: Final = 8 << 20
"""Number of bytes of columns that are collected before they are written, which limits the memory."""
_SEPARATED_BYTES: Final = 64 << 20
"""Number of bytes that are collected for all windows together while the rows of windows are separated."""

_TOGETHER: Final = ""
"""Stands for all windows that are separated together; no window has this key, because rows without one are never separated."""


class Measure(Protocol):
    """The digests of a table's rows. Raises TypeError or ValueError for rows that have no digest."""

    def __call__(self, rows: pa.RecordBatch) -> Measured:
        """Return the digests of rows."""

    def by_run(self, rows: pa.RecordBatch, ends: Sequence[int]) -> list[Measured]:
        """Return the digests of each run of rows. `ends` are the exclusive ends of the runs, in ascending order; the last
        one is the number of rows."""


@dataclass(frozen=True, slots=True)
class Kept:
    """Result of copying rows from shared files to `files`. `lost` has the shared files that could not be read
    completely."""

    files: tuple[NewFile, ...]
    lost: tuple[str, ...]


NOTHING_KEPT: Final = Kept((), ())


def copied(table: Folder, shared: Iterable[DataFile], window: str, measure: Measure, ids: FieldIds, since: int) -> Kept:
    """Copy the rows of all windows except `window` from the `shared` files of version `since` to separate folders.

    `ids` are the ids of the columns. If a file is damaged, the row groups that can be read are copied, and the others
    are left out with a warning. Raises LoadError if a copy differs from its source; in that case, no file is left.
    """
    files, lost = list[NewFile](), list[str]()
    try:
        for source in shared:
            file, is_whole = _copied(table, source, window, measure, ids, since)
            files += [] if file is None else [file]
            lost += [] if is_whole else [source.path]
    except BaseException:
        discard(table, files)
        raise
    return Kept(tuple(files), tuple(lost))


@dataclass(frozen=True, slots=True)
class Merged:
    """The rows of several files in one new file, with their digests."""

    file: NewFile
    digests: Digests


def merged(
    table: Folder, sources: Sequence[DataFile], schema: pa.Schema, measure: Measure, since: int
) -> Merged | None:
    """Copy all rows of `sources`, which are files of version `since`, to one new file with the columns `schema`, in the
    order of the sources.

    Return None if there are no rows.

    Memory is bounded. Raises FilesLostError if a source cannot be read, and LoadError if the copy differs; after an
    error, no file is left.
    """
    spans = [holdings.span_of(table, source) for source in sources]
    below = shared_folder(min(first for first, _ in spans), max(last for _, last in spans), since, str(uuid.uuid4()))
    before: Digests = {}
    written = _Copy(table, below, ids_of(schema))
    try:
        # The smallest chunks say little about a column: a single row does not shrink.
        largest = max(sources, key=lambda source: source.bytes)
        with failures.reading_files(table, ""), table.open(unquote(largest.path)) as opened:
            written.like = parquet.opened(opened).metadata
        for source in sources:
            with failures.reading_files(table, ""), table.open(unquote(source.path)) as opened:
                file = parquet.opened(opened)
                for read in parquet.blocks(file, _BLOCK_ROWS):
                    block = _with_window(read, source)
                    measure_into(before, block, measure)
                    written.add(aligned(block, schema))
        name = written.close()
        if name is None:
            return None
        return Merged(
            _compared(table, name, before, measure, f"{len(sources)} files of {table.name} were not merged"), before
        )
    except BaseException:
        written.discard()
        raise


def separated(
    table: Folder,
    source: DataFile,
    windows: Collection[str],
    measure: Measure,
    ids: FieldIds,
    since: int,
    *,
    together: bool = False,
) -> list[NewFile]:
    """Copy a shared file of version `since` to separate new files: one for each of `windows` that it holds, or one for
    all of them `together`, and one for the rows of all other windows.

    Raises FilesLostError if the shared file cannot be read, and LoadError if the copies differ; after an error, no file
    is left.
    """
    copies: dict[str | None, _Copy] = {}
    before: dict[str | None, Digests] = {}
    files: list[NewFile] = []
    try:
        with failures.reading_files(table, ""), table.open(unquote(source.path)) as opened:
            whole = parquet.opened(opened)
            for block in parquet.blocks(whole, _BLOCK_ROWS):
                for (key, _), rows in parquet.by_place(block):
                    own = None if key not in windows else _TOGETHER if together else key
                    if own not in copies:
                        span = (own, own) if own not in (None, _TOGETHER) else holdings.span_of(table, source)
                        below = shared_folder(*span, since, str(uuid.uuid4()))
                        copies[own], before[own] = _Copy(table, below, ids, whole.metadata), {}
                    copies[own].add(rows)
                    measure_into(before[own], rows, measure)
                if sum(copy.waiting_bytes for copy in copies.values()) > _SEPARATED_BYTES:
                    for copy in copies.values():
                        copy.write()
        for own, copy in copies.items():
            name = copy.close()
            if name is not None:
                files.append(
                    _compared(table, name, before[own], measure, f"{source.path} of {table.name} was not separated")
                )
    except BaseException:
        for copy in copies.values():
            copy.discard()
        raise
    return files


def _with_window(block: pa.RecordBatch, source: DataFile) -> pa.RecordBatch:
    """Return the rows with a window column. In a partitioned table, only the log has the window."""
    if parquet.WINDOW not in source.partition:
        return block
    others = block.select([name for name in block.schema.names if name != parquet.WINDOW])
    key = pa.scalar(source.partition[parquet.WINDOW], pa.string())
    return others.append_column(parquet.WINDOW, pa.repeat(key, block.num_rows))


def aligned(block: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the rows with the columns `schema`; a missing column is null."""
    names = set(block.schema.names)
    columns = [block[f.name].cast(f.type) if f.name in names else pa.nulls(block.num_rows, f.type) for f in schema]
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema([f.remove_metadata() for f in schema]))


def measure_into(digests: Digests, block: pa.RecordBatch, measure: Measure) -> None:
    """Add up the digests of rows, by window and topic id."""
    usual = _usual(block)
    _add_by_place(digests, block if usual is None else block.filter(usual), measure)
    if usual is not None:
        for place, rows in parquet.by_place(block.filter(pc.invert(usual))):
            digests[place] = digests.get(place, _NOTHING) + _plain_measure(rows)


def _add_by_place(digests: Digests, rows: pa.RecordBatch, measure: Measure) -> None:
    ordered, places, ends = parquet.runs_by_place(rows)
    if not places:
        return
    for place, found in zip(places, measure.by_run(ordered, ends), strict=True):
        digests[place] = digests.get(place, _NOTHING) + found


def _usual(rows: pa.RecordBatch) -> pa.BooleanArray | None:
    """Return a mask of the rows that a load can have written; None if these are all rows. Other rows lack a partition
    or an offset, or have a null among their headers."""
    names = rows.schema.names
    conditions = [rows[name].is_valid() for name in _NEVER_NULL if name in names and rows[name].null_count]
    headers = rows["headers"] if "headers" in names else None
    if headers is not None and pa.types.is_list(headers.type) and headers.values.null_count:
        of_nulls = pc.list_parent_indices(headers).filter(pc.is_null(pc.list_flatten(headers)))
        found = np.ones(rows.num_rows, dtype=bool)
        found[of_nulls.to_numpy(zero_copy_only=False)] = False
        conditions.append(pa.array(found))
    return functools.reduce(pc.and_, conditions) if conditions else None


def _plain_measure(rows: pa.RecordBatch) -> Measured:
    """Return a digest of rows that are not usual, because the table's measure does not cover them."""
    total = sum(int.from_bytes(sha256(repr(row).encode()).digest()[:8], "big") for row in rows.to_pylist())
    return Measured(Digest(rows.num_rows, total), Digest(rows.num_rows, total))


def _compared(table: Folder, name: str, before: Digests, measure: Measure, refusal: str) -> NewFile:
    """Return a new file after proving that its rows are those of `before`; remember the windows in the file. Raises
    LoadError."""
    after = _digests(table, name, measure)
    if before != after:
        raise LoadError(
            f"{refusal}: the rows in the new file differ from the original rows. Nothing was committed. Run it again; if this "
            "persists, check the disk."
        )
    file = described(table, name)
    held: dict[str, int] = {}
    for (key, _), measured in after.items():
        held[key] = held.get(key, 0) + measured.rows
    holdings.remember(table, holdings.in_log(name), file.bytes, held)
    return file


def is_intact(table: Folder, file: NewFile, digests: Digests, measure: Measure) -> bool:
    """Read a copy that another process has written; return True if the copy's rows have these digests."""
    try:
        return _digests(table, file.path, measure) == digests
    except FilesLostError as e:
        _log.warning("copy %s of %s cannot be read: %s", file.path, table.name, e)
        return False


def _digests(table: Folder, name: str, measure: Measure) -> Digests:
    """Read a copy in two threads, which take its row groups by turns. Return the digests of its rows."""

    def of_half(first: int) -> Digests:
        found: Digests = {}
        with failures.reading_files(table, ""), table.open(name) as opened:
            file = _opened(opened)
            for block in _blocks(file, list(range(first, file.num_row_groups, 2))):
                measure_into(found, block, measure)
        return found

    with ThreadPoolExecutor(2) as pool:
        found, other = pool.map(of_half, (0, 1))
    for place, rows in other.items():
        found[place] = found.get(place, _NOTHING) + rows
    return found


def _opened(source: pa.NativeFile) -> pq.ParquetFile:
    return parquet.opened(source, read_dictionary=parquet.TEXTS)


def _blocks(file: pq.ParquetFile, groups: list[int]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of some row groups of a file from `_opened`, with windows and topic ids as dictionaries."""
    return parquet.blocks(file, _BLOCK_ROWS, groups=groups, whole=parquet.numbered(parquet.plain_schema(file)))


def discard(table: Folder, files: Sequence[NewFile]) -> None:
    """Delete copies to which no commit refers. Copies that cannot be deleted are left to `vacuum`."""
    for file in files:
        (table / file.path.rpartition("/")[0]).delete()


def _copied(
    table: Folder, source: DataFile, window: str, measure: Measure, ids: FieldIds, since: int
) -> tuple[NewFile | None, bool]:
    """Return the copy of one shared file, which is None if no rows are left to copy, and true if the whole file was
    read."""
    path = source.path
    before: Digests = {}
    lost = list[str]()
    written = _Copy(table, shared_folder(*holdings.span_of(table, source), since, str(uuid.uuid4())), ids)
    try:
        for block in _ahead(_measured(_others(table, path, window, lost, written), before, measure)):
            written.add(block)
        name = written.close()
        refusal = (
            f"window {window} of {table.name}, which shares the file {path} with other windows, could not be replaced"
        )
        file = None if name is None else _compared(table, name, before, measure, refusal)
    except BaseException:
        written.discard()
        raise
    if lost:
        _log.warning(
            "shared data file %s of %s is damaged (%s): rows of other windows in this file are lost, and checks "
            "of the table report these windows",
            path, table.name, lost[0],
        )  # fmt: skip
    return file, not lost


def _measured(blocks: Iterator[pa.RecordBatch], digests: Digests, measure: Measure) -> Iterator[pa.RecordBatch]:
    for block in blocks:
        measure_into(digests, block, measure)
        yield block


def _ahead(blocks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield `blocks`. Another thread makes the next two while the caller uses one."""
    with ThreadPoolExecutor(1) as pool:
        waiting = deque(pool.submit(next, blocks, None) for _ in range(2))
        while (block := waiting.popleft().result()) is not None:
            waiting.append(pool.submit(next, blocks, None))
            yield block


def _others(table: Folder, path: str, window: str, lost: list[str], copy: _Copy) -> Iterator[pa.RecordBatch]:
    """Yield the rows of all windows except one, by row group. For each row group that cannot be read, add the reason to
    `lost`. `copy` gets the encodings of the file."""
    try:
        with failures.reading_files(table, window), table.open(unquote(path)) as opened:
            file = _opened(opened)
            copy.like = file.metadata
            for group in range(file.num_row_groups):
                blocks = _blocks(file, [group])
                while True:
                    try:
                        with failures.reading_files(table, window):
                            block = next(blocks, None)
                    except FilesLostError as e:
                        lost.append(e.detail)
                        break
                    if block is None:
                        break
                    others = _without(block, window)
                    if others.num_rows:
                        yield others
    except FilesLostError as e:
        lost.append(e.detail)


def _without(block: pa.RecordBatch, window: str) -> pa.RecordBatch:
    """Return the rows of all other windows; rows without a window are among them."""
    keys = block[parquet.WINDOW]
    is_window = pc.equal(keys.dictionary, window)
    if not is_window.true_count:
        return block
    return block.filter(pc.fill_null(pc.invert(is_window.take(keys.indices)), True))


class _Copy:
    """A file that is being written, with the encodings of the file with the footer `like`, as far as it has them. If
    there are no rows, nothing is written."""

    def __init__(self, table: Folder, below: str, ids: FieldIds, like: pq.FileMetaData | None = None) -> None:
        self._table, self._name, self._ids = table, f"{below}/part-{uuid.uuid4().hex[:12]}.parquet", ids
        self.like = like
        self._sink: pa.NativeFile | None = None
        self._writer: pq.ParquetWriter | None = None
        self._waiting: list[pa.RecordBatch] = []
        self.waiting_bytes = 0

    def add(self, block: pa.RecordBatch) -> None:
        """Append rows. They are written once they fill a row group."""
        self._waiting.append(block)
        self.waiting_bytes += block.nbytes
        if self.waiting_bytes >= _ROW_GROUP_BYTES:
            self.write()

    def write(self) -> None:
        """Write the rows that are waiting as a separate row group."""
        if not self._waiting:
            return
        # A column whose dictionary changes would be written without one.
        rows = pa.Table.from_batches(self._waiting).unify_dictionaries()
        self._waiting, self.waiting_bytes = [], 0
        with self._table.writing():
            if self._writer is None:
                self._sink = self._table.content.create(self._name)
                self._writer = pq.ParquetWriter(
                    self._sink,
                    self._ids.in_file(rows.schema),
                    **_encodings(rows.schema, self.like),
                    write_statistics=[name for name in _STATISTICS if name in rows.schema.names],
                    write_page_index=True,
                    write_page_checksum=True,
                    store_schema=False,
                )
            self._writer.write_table(rows, row_group_size=rows.num_rows)

    def close(self) -> str | None:
        """Return the file's name; None if there were no rows."""
        self.write()
        if self._writer is None or self._sink is None:
            return None
        with self._table.writing():
            self._writer.close()
            self._sink.close()
        return self._name

    def discard(self) -> None:
        """Delete the file, if possible."""
        if self._writer is None or self._sink is None:
            return
        # No commit names a file that cannot be deleted.
        with suppress(OSError, pa.ArrowException):
            self._writer.close()
            self._sink.close()
        with suppress(OSError):
            self._table.content.remove([self._name])


def _encodings(schema: pa.Schema, like: pq.FileMetaData | None) -> dict[str, Any]:
    """Return the writer's options for the encodings of a file with the footer `like`. Columns that no codec shrank stay
    uncompressed, unless the whole file is uncompressed."""
    if like is None or not like.num_row_groups:
        return {"compression": _CODEC}
    group = like.row_group(0)
    chunks = {c.path_in_schema: c for c in map(group.column, range(group.num_columns))}
    plain = {path for path, chunk in chunks.items() if chunk.compression == "UNCOMPRESSED"}
    plain = set() if len(plain) == len(chunks) else plain
    types = dict(leaf for field in schema for leaf in parquet.leaves(field.name, field.type))
    paths = list(types)
    dictionaries = [path for path in paths if path not in chunks or chunks[path].has_dictionary_page]
    return {
        "compression": {
            path: "none" if path in plain and chunks[path].total_compressed_size >= _TELLING_BYTES else _CODEC
            for path in paths
        },
        "use_dictionary": dictionaries,
        "column_encoding": {
            path: _DELTAS
            for path in paths
            if path not in dictionaries and _DELTAS in chunks[path].encodings and _can_be_deltas(types[path])
        },
    }


def _can_be_deltas(kind: pa.DataType) -> bool:
    # A stranger's decimals may be encoded integers. pyarrow writes decimals as bytes, without that encoding.
    return bool(pa.types.is_integer(kind) or pa.types.is_date(kind) or pa.types.is_timestamp(kind))
