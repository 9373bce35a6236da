"""Writing Arrow columns to a table's data files. The task that created the columns writes the files.

Each file gets a unique name. No commit contains files that were left by a task that died or ran twice.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from platform_assets.engines.shared.digests import measured, numbers
from platform_assets.engines.shared.reports import Rows, WrittenFile
from platform_assets.errors import LakeNotWritableError, LakeUnavailableError, PlatformError
from platform_assets.lake.field_ids import NO_IDS, FieldIds
from platform_assets.lake.files import Files, is_in_store
from platform_assets.lake.parquet import WINDOW, leaves
from platform_assets.model.digest import Measured

CODEC: Final = "zstd"
ROW_GROUP_BYTES: Final = 8 << 20
"""Bytes of column data that are collected before they are written. This limits a task's memory."""
FILE_BYTES: Final = 512 << 20
"""Bytes of column data after which a new file is started."""
CONSTANT: Final = ("topic_id", "kafka_partition", "kafka_timestamp_type", WINDOW)
"""Columns of a raw table that have few distinct values. For these columns, a dictionary saves space."""
COUNTING: Final = ("kafka_offset", "kafka_timestamp")
"""Columns of a raw table that are written as the differences between successive values."""
WORTH_CODEC: Final = 0.95
"""Limit for the compressed size of a column's sample, as a share of its original size. A column whose sample exceeds
the limit is written uncompressed, so that readers do not have to copy its values."""
_SAMPLE_BYTES: Final = 64 << 10
"""Number of bytes that are sampled from each column of each block. The limit keeps one unusual block from dominating
the sample."""
_SAMPLE_ROWS: Final = _SAMPLE_BYTES // 8
"""Number of rows to sample from columns with values of eight bytes."""
_LENGTH_BYTES: Final = 4
_BATCH_BYTES: Final = 1 << 20
"""Bytes that Parquet's writer encodes at a time. This is about the size of a page, because the writer closes pages only
between two batches of this size."""
_FEWEST_ROWS: Final = 1 << 10
"""Number of rows that pyarrow encodes at a time by default."""
_MOST_ROWS: Final = 1 << 14
"""Maximum number of rows to encode at a time. Pages of small columns have 20,000 rows."""
DELTAS: Final = "DELTA_BINARY_PACKED"
_STATISTICS = ["kafka_partition", "kafka_offset", "kafka_timestamp", WINDOW]
Measure = Callable[[pa.RecordBatch], Measured]


@dataclass
class FileSeries:
    """Writes rows, in order of partition and offset, into as few files as suit the readers of these files.

    A partition with `rows_apart` rows or more has separate files. Smaller partitions share a file. `table` gives access
    to the table's files. The new files are in the table's folder `below`, and their names start with `stem`. `measure`
    returns the digests of rows. `dictionaries` lists the columns with dictionary encoding, and `deltas` the columns
    with delta encoding, both by the paths of their leaves. If `window` is given, it is added to the rows as a column.
    `field_ids` are the ids of the columns. `seconds` contains the time spent on each step. Raises OSError.
    """

    table: Files
    below: str
    stem: str
    rows_apart: int
    codec: str = CODEC
    row_group_bytes: int = ROW_GROUP_BYTES
    measure: Measure = measured
    dictionaries: tuple[str, ...] = CONSTANT
    deltas: tuple[str, ...] = COUNTING
    window: str | None = None
    field_ids: FieldIds = NO_IDS
    written: list[WrittenFile] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=lambda: {"digest": 0.0, "write": 0.0})
    _open: _OpenFile | None = None

    def add(self, block: pa.RecordBatch) -> None:
        """Append rows of one partition."""
        partition = block["kafka_partition"][0].as_py()
        if self.window is not None:
            block = block.append_column(WINDOW, _constant(self.window, block.num_rows))
        now = self._open
        if now is not None and (
            now.size >= FILE_BYTES or (partition not in now.partitions and now.measured.rows >= self.rows_apart)
        ):
            self.close()
        if self._open is None:
            path = f"{self.below}/{self.stem}-{len(self.written)}-{uuid.uuid4().hex[:12]}.parquet"
            self._open = _OpenFile(self.table, path, block.schema, self)
        self._open.add(partition, block)

    def close(self) -> None:
        """Close the open file. Afterwards, `written` contains all files."""
        now, self._open = self._open, None
        if now is not None:
            self.written.append(now.close())

    def discard(self) -> None:
        """Delete all written files."""
        if self._open is not None:
            self._open.discard()
        with suppress(OSError):
            self.table.remove_files([file.path for file in self.written])


class _OpenFile:
    """A file that is being written. The most recent rows wait in memory until their row group is full."""

    def __init__(self, table: Files, path: str, schema: pa.Schema, series: FileSeries) -> None:
        self.partitions: dict[int, Rows] = {}
        self.measured, self.size = Measured.of_nothing(), 0
        self._name, self._table, self._seconds = path, table, series.seconds
        self._sink: pa.NativeFile | None = None
        self._oldest, self._newest = 1 << 63, -1 << 63
        self._windows: tuple[str, str] | None = None
        self._waiting: list[pa.RecordBatch] = []
        self._measure = series.measure
        self._row_group_bytes = series.row_group_bytes
        self._waiting_bytes = 0
        self._series, self._schema = series, schema
        self._writer: pq.ParquetWriter | None = None

    def add(self, partition: int, block: pa.RecordBatch) -> None:
        if WINDOW in block.schema.names:
            found = pc.unique(block[WINDOW]).to_pylist()
            self._windows = (
                (min(*self._windows, *found), max(*self._windows, *found))
                if self._windows
                else (min(found), max(found))
            )
        offsets, rows = block["kafka_offset"], block.num_rows
        first, last = offsets[0].as_py(), offsets[-1].as_py()
        before = self.partitions.get(partition)
        if before is not None:
            rows, first, last = before.rows + rows, min(before.first, first), max(before.last, last)
        self.partitions[partition] = Rows(rows, first, last)
        stamps = numbers(block["kafka_timestamp"], np.int64)
        self._oldest, self._newest = min(self._oldest, int(stamps.min())), max(self._newest, int(stamps.max()))
        began = time.perf_counter()
        self.measured += self._measure(block)
        self._seconds["digest"] += time.perf_counter() - began
        size = block.nbytes
        self._waiting.append(block)
        self._waiting_bytes += size
        self.size += size
        if self._waiting_bytes >= self._row_group_bytes:
            self._write()

    def close(self) -> WrittenFile:
        writer = self._write(is_last=True)
        began = time.perf_counter()
        writer.close()
        if self._sink is not None:
            self._sink.close()
        self._seconds["write"] += time.perf_counter() - began
        size = self._table.size(self._name)
        times = (self._oldest, self._newest)
        return WrittenFile(self._name, size, self.partitions, times, self.measured, self._windows)

    def discard(self) -> None:
        self._waiting.clear()
        if self._writer is not None:
            self._writer.close()
        # No commit names files that cannot be deleted.
        with suppress(OSError):
            if self._sink is not None:
                self._sink.close()
            self._table.remove_files([self._name])

    def _write(self, *, is_last: bool = False) -> pq.ParquetWriter:
        """Write the waiting rows and return the writer. The writer is opened with the first rows, because these rows
        determine the codec of each column."""
        began = time.perf_counter()
        writer = self._writer = self._writer or self._opened(are_all=is_last)
        if self._waiting:
            table = pa.Table.from_batches(self._waiting)
            writer.write_table(table, row_group_size=table.num_rows)
        self._waiting, self._waiting_bytes = [], 0
        self._seconds["write"] += time.perf_counter() - began
        return writer

    def _opened(self, *, are_all: bool) -> pq.ParquetWriter:
        self._sink = self._table.create(self._name)
        empty = _without_values(self._waiting, self._schema) if are_all else set[str]()
        return pq.ParquetWriter(
            self._sink,
            self._series.field_ids.in_file(self._schema),
            compression=codecs(
                self._waiting,
                self._schema,
                self._series.codec,
                self._series.dictionaries,
                self._series.deltas,
                {*CONSTANT, *empty},
            ),
            use_dictionary=list(self._series.dictionaries),
            column_encoding=dict.fromkeys(self._series.deltas, DELTAS),
            write_statistics=[name for name in _STATISTICS if name in self._schema.names],
            write_page_index=True,
            write_page_checksum=True,
            store_schema=False,
            write_batch_size=_rows_of(self._waiting, _BATCH_BYTES),
        )


def _constant(value: str, rows: int) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int8)), pa.array([value], pa.string()))


def _rows_of(blocks: Sequence[pa.RecordBatch], size: int) -> int:
    """Return the approximate number of rows that make up `size` bytes of `blocks`, within the limits of Parquet's
    writer."""
    rows, held = sum(int(block.num_rows) for block in blocks), sum(int(block.nbytes) for block in blocks)
    return min(max(rows * size // max(held, 1), _FEWEST_ROWS), _MOST_ROWS)


def codecs(
    first: Sequence[pa.RecordBatch],
    schema: pa.Schema,
    codec: str,
    dictionaries: Collection[str],
    deltas: Collection[str] = (),
    tiny: Collection[str] = (),
) -> str | dict[str, str]:
    """Map the paths of each column's leaves to the column's codec: `codec`, or none if `codec` does not shrink the
    column. If all columns have the same codec, return that codec.

    For compressed, encrypted or random values, a codec only costs time, both when files are written and each time they
    are read. The same is true for most differences of numbers, which are bit-packed. `first` are sample rows; see
    WORTH_CODEC. The codec is tried only on the columns in `deltas`, encoded with `DELTAS`, and on binary columns that
    are not in `dictionaries`. Columns in `tiny` take only some bytes, and have no codec: in a small file, most of the
    time to read such a column is spent in the codec. All other columns keep the codec.
    """
    trial = pa.Codec(codec)
    plain = {
        field.name
        for field in schema
        if pa.types.is_binary(field.type) and field.name not in dictionaries and field.name not in tiny
        if not _shrinks([block[field.name] for block in first], trial)
    } | _packed([name for name in schema.names if name in deltas], first, codec)
    plain |= {name for name in schema.names if name in tiny}
    if not plain:
        return codec
    return {
        path: "none" if field.name in plain else codec for field in schema for path, _ in leaves(field.name, field.type)
    }


def _without_values(blocks: Sequence[pa.RecordBatch], schema: pa.Schema) -> set[str]:
    """Return the columns that are null in all rows of `blocks`."""
    return {name for name in schema.names if all(block[name].null_count == block.num_rows for block in blocks)}


def _packed(columns: list[str], blocks: Sequence[pa.RecordBatch], codec: str) -> set[str]:
    """Write a sample to memory, and return the columns whose encoded differences `codec` does not shrink."""
    if not columns or not blocks:
        return set()
    sample = pa.Table.from_batches([block.select(columns).slice(0, _SAMPLE_ROWS) for block in blocks])
    written = pa.BufferOutputStream()
    encodings = dict.fromkeys(columns, DELTAS)
    pq.write_table(sample, written, compression=codec, use_dictionary=False, column_encoding=encodings)
    group = pq.read_metadata(pa.BufferReader(written.getvalue())).row_group(0)
    return {
        column
        for column, chunk in zip(columns, map(group.column, range(len(columns))), strict=True)
        if chunk.total_compressed_size > chunk.total_uncompressed_size * WORTH_CODEC
    }


def _shrinks(blocks: Sequence[pa.Array], codec: pa.Codec) -> bool:
    before = after = 0.0
    for block in blocks:
        begin, end = np.frombuffer(block.buffers()[1], np.int32)[[block.offset, block.offset + len(block)]].tolist()
        if begin < end:
            sample = block.buffers()[2][begin : min(end, begin + _SAMPLE_BYTES)]
            # Each value is preceded by its length, which shrinks to almost nothing.
            before += len(sample) + _LENGTH_BYTES * len(block) * len(sample) / (end - begin)
            after += len(codec.compress(sample))
    return after <= before * WORTH_CODEC


def not_written(error: OSError, table: str) -> PlatformError:
    """Return the platform's error for an OSError that was raised while files of the table at `table` were being
    written."""
    reason = error.strerror or str(error)
    if is_in_store(table) and not isinstance(error, PermissionError):
        return LakeUnavailableError(table, reason)
    return LakeNotWritableError(table, reason)
