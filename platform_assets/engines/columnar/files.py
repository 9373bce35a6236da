"""Arrow columns to the data files of a table, written by the task that made the columns.

A file gets a name that no other has: what a task leaves behind that died or ran twice is named by no commit.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from platform_assets.engines.columnar.digests import measured
from platform_assets.engines.columnar.written import Rows, WrittenFile
from platform_assets.model.digest import Measured

CODEC: Final = "zstd"
ROW_GROUP_BYTES: Final = 8 << 20
"""Bytes of columns that are gathered before they are written, which is what a task holds in memory."""
FILE_BYTES: Final = 512 << 20
"""Bytes of columns after which a file is closed and another one begun."""
CONSTANT: Final = ("topic_id", "kafka_partition", "kafka_timestamp_type")
"""Columns of a raw table that have few values, so that a dictionary of them is worth its place."""
COUNTING: Final = {"kafka_offset": "DELTA_BINARY_PACKED", "kafka_timestamp": "DELTA_BINARY_PACKED"}
_STATISTICS = ["kafka_partition", "kafka_offset", "kafka_timestamp"]
Measure = Callable[[pa.RecordBatch], Measured]


@dataclass
class FileSeries:
    """Writes rows, which come in order of partition and offset, into as few files as suit their readers.

    A file holds one partition wherever that has `rows_apart` rows or more; smaller ones share a file. They lie in the
    folder `below` of `table`, and `stem` begins all their names. `measure` takes the digests of rows, `dictionaries` names the
    columns that are written by dictionary. `seconds` is what was spent on what. Raises OSError.
    """

    table: Path
    below: str
    stem: str
    rows_apart: int
    codec: str = CODEC
    row_group_bytes: int = ROW_GROUP_BYTES
    measure: Measure = measured
    dictionaries: tuple[str, ...] = CONSTANT
    written: list[WrittenFile] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=lambda: {"digest": 0.0, "write": 0.0})
    _open: _OpenFile | None = None

    def add(self, block: pa.RecordBatch) -> None:
        """Rows of one partition, behind those that came before."""
        partition = block["kafka_partition"][0].as_py()
        now = self._open
        if now is not None and (
            now.size >= FILE_BYTES or (partition not in now.partitions and now.measured.rows >= self.rows_apart)
        ):
            self.close()
        if self._open is None:
            path = f"{self.below}/{self.stem}-{len(self.written)}-{uuid.uuid4().hex[:12]}.parquet"
            (self.table / self.below).mkdir(parents=True, exist_ok=True)
            self._open = _OpenFile(self.table, path, block.schema, self)
        self._open.add(partition, block)

    def close(self) -> None:
        """End the file that is open; `written` has them all then."""
        now, self._open = self._open, None
        if now is not None:
            self.written.append(now.close())

    def discard(self) -> None:
        """Delete all that was written."""
        if self._open is not None:
            self._open.discard()
        for file in self.written:
            (self.table / file.path).unlink(missing_ok=True)


class _OpenFile:
    """A file that is being written; the last rows of it wait for their row group to be full."""

    def __init__(self, table: Path, path: str, schema: pa.Schema, series: FileSeries) -> None:
        self.partitions: dict[int, Rows] = {}
        self.measured, self.size = Measured.of_nothing(), 0
        self._name, self._path, self._seconds = path, table / path, series.seconds
        self._oldest, self._newest = 1 << 63, -1 << 63
        self._waiting: list[pa.RecordBatch] = []
        self._measure = series.measure
        self._row_group_bytes = series.row_group_bytes
        self._waiting_bytes = 0
        self._writer = pq.ParquetWriter(
            self._path,
            schema,
            compression=series.codec,
            use_dictionary=list(series.dictionaries),
            column_encoding=COUNTING,
            write_statistics=_STATISTICS,
            write_page_index=True,
            write_page_checksum=True,
            store_schema=False,
        )

    def add(self, partition: int, block: pa.RecordBatch) -> None:
        offsets, rows = block["kafka_offset"], block.num_rows
        first, last = offsets[0].as_py(), offsets[-1].as_py()
        before = self.partitions.get(partition)
        if before is not None:
            rows, first, last = before.rows + rows, min(before.first, first), max(before.last, last)
        self.partitions[partition] = Rows(rows, first, last)
        bounds = pc.min_max(block["kafka_timestamp"].cast(pa.int64())).as_py()
        self._oldest, self._newest = min(self._oldest, bounds["min"]), max(self._newest, bounds["max"])
        began = time.perf_counter()
        self.measured += self._measure(block)
        self._seconds["digest"] += time.perf_counter() - began
        self._waiting.append(block)
        self._waiting_bytes += block.nbytes
        self.size += block.nbytes
        if self._waiting_bytes >= self._row_group_bytes:
            self._write()

    def close(self) -> WrittenFile:
        self._write()
        began = time.perf_counter()
        self._writer.close()
        self._seconds["write"] += time.perf_counter() - began
        size = os.path.getsize(self._path)
        return WrittenFile(self._name, size, self.partitions, (self._oldest, self._newest), self.measured)

    def discard(self) -> None:
        self._waiting.clear()
        self._writer.close()
        self._path.unlink(missing_ok=True)

    def _write(self) -> None:
        if self._waiting:
            table = pa.Table.from_batches(self._waiting)
            began = time.perf_counter()
            self._writer.write_table(table, row_group_size=table.num_rows)
            self._seconds["write"] += time.perf_counter() - began
        self._waiting, self._waiting_bytes = [], 0
