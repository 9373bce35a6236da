"""A load engine without Kafka and Spark. Records come from memory, and this process writes and reads files in the same
way as Spark's workers."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime

import pyarrow as pa

from platform_assets.engines.decoding.rows import by_partition
from platform_assets.engines.protocol import NO_ROWS, Order, Records, StagedFiles
from platform_assets.engines.shared.digests import measured
from platform_assets.engines.shared.files import FileSeries
from platform_assets.errors import FilesLostError, PlatformError
from platform_assets.lake import data_files, holdings
from platform_assets.lake.data_files import NewFile
from platform_assets.lake.location import Lake, load_folder
from platform_assets.model.digest import Measured
from platform_assets.model.tables import TableRef

_ROWS = 10_000
_HEADERS = pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())])))
_FILES = pa.schema(
    [
        ("topic_id", pa.string()),
        ("kafka_partition", pa.int32()),
        ("kafka_offset", pa.int64()),
        ("kafka_timestamp", pa.timestamp("us", "UTC")),
        ("kafka_timestamp_type", pa.int32()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", _HEADERS),
    ]
)


@dataclass(frozen=True, slots=True)
class Kept:
    """A record at an offset of a partition, as if the record were in Kafka."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    timestamp: datetime


@dataclass
class LocalEngine:
    """A LoadEngine that reads from `records` instead of Kafka. `records` must be in ascending order of partition and
    offset."""

    lake: Lake
    records: list[Kept] = field(default_factory=list)
    name: str = "columnar"

    def write(self, records: Records, table: TableRef, load_id: str, records_per_file: int) -> StagedFiles:
        """See `LoadEngine`."""
        below = load_folder(records.window, load_id)
        window = records.window if records.window_column else None
        series = FileSeries(
            self.lake.table(table).content, below, "00000", records_per_file, window=window, field_ids=records.field_ids
        )
        places = [(p, r) for piece in records.pieces for p, r in piece.items()]
        kept = [record for p, r in sorted(places) for record in self._between((p, r.start), (p, r.end))]
        if kept:
            for part in by_partition(_batch(kept, records.topic_id)):
                series.add(part)
        series.close()
        files = tuple(NewFile(f.path, f.bytes, f.rows, f.statistics) for f in series.written)
        return StagedFiles(below, files, sum((f.measured for f in series.written), NO_ROWS), self.name)

    def _between(self, first: tuple[int, int], end: tuple[int, int]) -> list[Kept]:
        at, until = (bisect_left(self.records, place, key=lambda r: (r.partition, r.offset)) for place in (first, end))
        return self.records[at:until]

    def write_many(
        self, orders: Sequence[Order], records_per_file: int
    ) -> Generator[StagedFiles | PlatformError, None, None]:
        """See `LoadEngine`."""
        for order in orders:
            yield self.write(order.records, order.table, order.load_id, records_per_file)

    def measure(
        self, table: TableRef, keys: Sequence[str], version: int
    ) -> Iterator[tuple[str, Measured | PlatformError]]:
        """See `LoadEngine`."""
        folder = self.lake.table(table)
        for key in keys:
            try:
                paths = holdings.files_of(folder, key, version).paths
                yield key, sum((measured(b) for p in paths for b in data_files.blocks(folder, p, key, _ROWS)), NO_ROWS)
            except FilesLostError as error:
                yield key, error


def _batch(kept: Sequence[Kept], topic_id: str) -> pa.RecordBatch:
    columns = {
        "topic_id": [topic_id] * len(kept),
        "kafka_partition": [r.partition for r in kept],
        "kafka_offset": [r.offset for r in kept],
        "kafka_timestamp": [r.timestamp for r in kept],
        "kafka_timestamp_type": [0] * len(kept),
        "key": [r.key for r in kept],
        "value": [r.value for r in kept],
        "headers": [None] * len(kept),
    }
    return pa.RecordBatch.from_arrays([pa.array(columns[f.name], f.type) for f in _FILES], schema=_FILES)
