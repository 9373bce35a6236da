"""Code that merges files, inside Spark's Python workers or in this process. It runs some shares of a job.

Rows stay Arrow columns, and memory is bounded by a few blocks, however large the files are. Each new file is read again
after writing, so its digests cover the rows that readers will find.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from platform_assets.engines.merging.digests import ByWindow
from platform_assets.engines.merging.sorting import sample_of, sorted_rows, step_of
from platform_assets.engines.merging.work import Report, Share, Work
from platform_assets.engines.shared.files import CODEC, CONSTANT, COUNTING, DELTAS, ROW_GROUP_BYTES, codecs, not_written
from platform_assets.errors import FilesLostError, LoadError, PlatformError
from platform_assets.lake import parquet
from platform_assets.lake.files import Files, files_at, is_in_store

_BLOCK_ROWS: Final = 1 << 16
_FEWEST_ROWS: Final = 1 << 10
_MOST_ROWS: Final = 1 << 14
_PAGE_BYTES: Final = 1 << 20


def reports(work: Work, numbers: Iterable[int]) -> Iterator[Report]:
    """Run the shares with these numbers. Yield one report for each share."""
    for number in numbers:
        try:
            yield _merged(work, number, work.shares[number])
        except PlatformError as error:
            yield Report(number, error=error)


def _merged(work: Work, number: int, share: Share) -> Report:
    """Write the new files of a share, and read the files again. After any failure, delete the files and raise one of
    the platform's errors."""
    files = files_at(work.table)
    names = list[str]()
    began = time.perf_counter()
    try:
        rows = _rows(work, files, share)
        while True:
            names.append(f"{share.below}/part-{uuid.uuid4().hex[:12]}.parquet")
            if not _write(files, names[-1], rows, work, share.file_bytes):
                names.pop()
                break
        written = time.perf_counter()
        found = {name: _measured(work, files, name) for name in names}
    except BaseException as error:
        with suppress(OSError):
            files.remove(names)
        if not isinstance(error, Exception):
            raise
        raise _named(error, work) from error
    odd = {window for each in found.values() for window in each.odd}
    seconds = {"write": written - began, "read": time.perf_counter() - written}
    return Report(number, {name: each.digests for name, each in found.items()}, tuple(sorted(odd)), seconds)


def _measured(work: Work, files: Files, name: str) -> ByWindow:
    found = ByWindow(work.kind)
    for block in _Reader(work, files).blocks(name):
        found.add(block)
    return found


def _rows(work: Work, files: Files, share: Share) -> Iterator[pa.RecordBatch]:
    layout, reader = parquet.numbered(work.layout), _Reader(work, files)
    if not share.sort_by:
        for source in share.sources:
            yield from reader.blocks(source, layout)
        return
    total = sum(reader.rows(source) for source in share.sources)
    keys = pa.schema([layout.field(name) for name in share.sort_by])
    of_keys = (block for source in share.sources for block in reader.blocks(source, keys))
    sampled = (sample_of(block, share.sort_by, step_of(total)) for block in of_keys)
    blocks = (block for source in share.sources for block in _Reader(work, files).blocks(source, layout))
    for part in sorted_rows(blocks, share.sort_by, total, sampled):
        yield from part.to_batches(max_chunksize=_BLOCK_ROWS)


class _Reader:
    """Reader for files of one table. It remembers the schemas of the last file, because most files have the same
    schemas."""

    def __init__(self, work: Work, files: Files) -> None:
        self._work, self._files = work, files
        self._last: tuple[pq.ParquetSchema, pa.Schema] | None = None

    def rows(self, name: str) -> int:
        """Return the number of rows in a file. Raises FilesLostError."""
        with _reading(self._work, name), self._files.open(name) as opened:
            return int(pq.ParquetFile(opened).metadata.num_rows)

    def blocks(self, name: str, layout: pa.Schema | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a file with the columns `layout`, or with the file's own columns if there is no `layout`. A
        column that the file lacks is null.

        Raises FilesLostError.
        """
        with _reading(self._work, name), self._files.open(name) as opened, _opened(opened, self._work) as file:
            plain = self._plain(file)
            layout = plain if layout is None else layout
            held = [n for n in layout.names if n in plain.names]
            for block in file.iter_batches(_rows_at_once(file), columns=held, use_threads=False):
                if block.schema.equals(layout):
                    yield block
                    continue
                found = block.cast(parquet.among(plain, block.schema))
                columns = [
                    found[f.name].cast(f.type) if f.name in held else pa.nulls(len(found), f.type) for f in layout
                ]
                yield pa.RecordBatch.from_arrays(columns, schema=layout)

    def _plain(self, file: pq.ParquetFile) -> pa.Schema:
        if self._last is None or not self._last[0].equals(file.schema):
            self._last = file.schema, parquet.numbered(parquet.plain_schema(file))
        return self._last[1]


def _rows_at_once(file: pq.ParquetFile) -> int:
    """Return the maximum number of rows in a block. It limits the size of the block, because values can be large."""
    return min(parquet.rows_within(file, ROW_GROUP_BYTES), _BLOCK_ROWS)


def _opened(source: pa.NativeFile, work: Work) -> pq.ParquetFile:
    # Without this, a store would get a separate request for each column.
    return parquet.opened(source, read_dictionary=parquet.TEXTS, pre_buffer=is_in_store(work.table))


def _write(files: Files, name: str, rows: Iterator[pa.RecordBatch], work: Work, most: int) -> bool:
    """Write rows to a new file, in row groups of several megabytes, until the file has `most` bytes. Return False if
    there are no rows."""
    first = _row_group(rows)
    if not first:
        return False
    table = pa.Table.from_batches(first)
    dictionaries, deltas = _encodings(work)
    with (
        files.create(name) as sink,
        pq.ParquetWriter(
            sink,
            work.field_ids.in_file(table.schema),
            compression=codecs(first, table.schema, CODEC, dictionaries, deltas),
            use_dictionary=list(dictionaries),
            column_encoding=dict.fromkeys(deltas, DELTAS),
            write_statistics=[name for name in work.statistics if name in table.schema.names],
            write_page_index=True,
            write_page_checksum=True,
            store_schema=False,
            write_batch_size=min(max(table.num_rows * _PAGE_BYTES // max(table.nbytes, 1), _FEWEST_ROWS), _MOST_ROWS),
        ) as writer,
    ):
        while first:
            # A column whose dictionary changes would be written without one. Many small chunks take longer to encode.
            table = pa.Table.from_batches(first).unify_dictionaries().combine_chunks()
            writer.write_table(table, row_group_size=table.num_rows)
            first = _row_group(rows) if sink.tell() < most else []
    return True


def _row_group(rows: Iterator[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """Return the next rows: a full row group, or all remaining rows if they do not fill a row group."""
    found, size = list[pa.RecordBatch](), 0
    for block in rows:
        found.append(block)
        size += block.nbytes
        if size >= ROW_GROUP_BYTES:
            break
    return found


def _encodings(work: Work) -> tuple[tuple[str, ...], tuple[str, ...]]:
    if work.kind == "raw":
        return CONSTANT, COUNTING
    # Imported here because it loads the decoders.
    from platform_assets.engines.decoding.task import encodings

    return encodings(work.layout)


@contextmanager
def _reading(work: Work, name: str) -> Iterator[None]:
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        raise FilesLostError(work.name, "", f"{name}: {error}") from error


def _named(error: Exception, work: Work) -> PlatformError:
    if isinstance(error, PlatformError):
        return error
    if isinstance(error, OSError) and error.errno is not None:
        return not_written(error, work.table)
    return LoadError(
        f"files of {work.name} could not be merged: {type(error).__name__}: {error}. The table was not changed. "
        "Report this as a defect."
    )
