"""Rows of a window in its data files, read without Spark: counts and bounds per partition, and offsets.

If each file contains one Kafka partition, the file statistics suffice; otherwise two columns of the files are read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from platform_assets.errors import FilesLostError, LedgerCorruptError, ranges_text
from platform_assets.lake import datasets, holdings, parquet
from platform_assets.lake.failures import reading_files
from platform_assets.lake.holdings import WindowFiles
from platform_assets.lake.location import Folder
from platform_assets.model.logs import logger
from platform_assets.model.offsets import OffsetRange, ranges_of

_log = logger(__name__)

_BLOCK_ROWS: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class PartitionRows:
    """`rows` rows of one partition, and the lowest and the highest offset of these rows."""

    rows: int
    first_offset: int
    last_offset: int

    def __add__(self, other: PartitionRows) -> PartitionRows:
        return PartitionRows(
            self.rows + other.rows,
            min(self.first_offset, other.first_offset),
            max(self.last_offset, other.last_offset),
        )


@dataclass(frozen=True, slots=True)
class Opened:
    """One version of a table, opened once for many windows, because the cost of opening it grows with the number of
    files.

    `files` has the data files of each window at that version.
    """

    table: Folder
    files: Mapping[str, WindowFiles]

    @classmethod
    def at(cls, table: Folder, version: int | None = None) -> Opened:
        """Open the table at a version, by default the newest."""
        return cls(table, holdings.window_files(holdings.actions(table, version)))

    def partition_rows(self, key: str) -> dict[int, PartitionRows]:
        """Return counts and bounds by partition, computed from the columns in the files; memory is bounded."""
        return _bounds(self._offsets(key))

    def topic_id_of(self, key: str) -> str:
        """Return the topic id in the rows of one window. Raises LedgerCorruptError if there is no topic id or more than
        one."""
        found = self.topic_ids_of(key)
        if len(found) != 1:
            raise LedgerCorruptError(
                f"the rows of window {key} in {self.table.name} have topic ids {sorted(map(str, found))} instead of exactly one"
            )
        return str(found.pop())

    def topic_ids_of(self, key: str) -> set[str | None]:
        """Return all topic ids in the rows of one window, including None for rows without a topic id. Raises
        FilesLostError."""
        found = set[str | None]()
        for batch in self._batches(key, ["topic_id"]):
            found.update(pc.unique(batch["topic_id"]).to_pylist())
        return found

    def offsets_of(self, key: str) -> dict[int, npt.NDArray[np.int64]]:
        """Return every offset of one window, as the function `offsets_of` does."""
        return _sorted(self._offsets(key))

    def _offsets(self, key: str) -> Iterator[tuple[int, npt.NDArray[np.int64]]]:
        return _split(self._batches(key, ["kafka_partition", "kafka_offset"]))

    def _batches(self, key: str, columns: list[str]) -> Iterator[pa.RecordBatch]:
        for path in self.files.get(key, holdings.NO_FILES).paths:
            # Paths in a log are percent-encoded.
            with reading_files(self.table, key), self.table.open(unquote(path)) as file:
                yield from parquet.blocks(parquet.opened(file), _BLOCK_ROWS, columns, window=key)


def from_statistics(files: list[dict[str, Any]]) -> dict[int, PartitionRows] | None:
    """Return counts and bounds by partition, computed from file statistics; None if a file mixes partitions or has no
    statistics."""
    found: dict[int, PartitionRows] = {}
    for file in files:
        if file["num_records"] == 0:
            continue
        partition = file.get("min.kafka_partition")
        if partition is None or partition != file.get("max.kafka_partition") or file.get("min.kafka_offset") is None:
            return None
        part = PartitionRows(file["num_records"], file["min.kafka_offset"], file["max.kafka_offset"])
        found[partition] = found[partition] + part if partition in found else part
    return found


def offsets_of(table: Folder, key: str, version: int | None = None) -> dict[int, npt.NDArray[np.int64]]:
    """Return every offset of one window, by partition, sorted."""
    return _sorted(_offsets(table, key, version))


def offsets_in_files(folder: Folder) -> dict[int, npt.NDArray[np.int64]]:
    """Return every offset in the Parquet files of `folder`, by partition, sorted."""
    with folder.reading():
        return _sorted(_split(folder.parquet_files().to_batches(columns=["kafka_partition", "kafka_offset"])))


def readable_offsets(table: Folder, key: str, paths: Iterable[str]) -> tuple[dict[int, npt.NDArray[np.int64]], bool]:
    """Return every offset in data files of a window, by partition, sorted. `paths` are in the form that the table's log
    uses.

    Missing or damaged files are skipped; also return True if no file was skipped.
    """
    pieces: list[tuple[int, npt.NDArray[np.int64]]] = []
    whole = True
    for path in paths:
        try:
            with reading_files(table, ""), table.open(unquote(path)) as file:
                columns = ["kafka_partition", "kafka_offset"]
                found = list(parquet.blocks(parquet.opened(file), _BLOCK_ROWS, columns, window=key))
        except FilesLostError as e:
            _log.warning("data file %s of %s cannot be read: %s", path, table.name, e.detail)
            whole = False
        else:
            pieces += _split(found)
    return _sorted(pieces), whole


def readable_bounds(table: Folder, key: str, paths: Iterable[str]) -> dict[int, PartitionRows]:
    """Return counts and bounds of data files, by partition.

    `paths` are in the form that the table's log uses. Missing or damaged files are skipped.
    """
    found, _ = readable_offsets(table, key, paths)
    return {p: PartitionRows(len(o), int(o[0]), int(o[-1])) for p, o in found.items()}


def readable_topic_id(table: Folder, key: str, paths: Iterable[str]) -> str | None:
    """Return the topic id in data files of a window; None if none of the files can be read. `paths` are in the form
    that the table's log uses. Raises LedgerCorruptError if the files have more than one topic id."""
    for path in paths:
        files = {key: holdings.WindowFiles((path,), 0, None, "")}
        with suppress(FilesLostError):
            return Opened(table, files).topic_id_of(key)
    return None


def batches_of(
    table: Folder,
    key: str,
    version: int | None,
    columns: Sequence[str] | None = None,
    where: pc.Expression | None = None,
    *,
    rows_at_once: int = _BLOCK_ROWS,
    if_known: bool = False,
) -> Iterator[pa.RecordBatch]:
    """Yield columns of one window's rows at a version, in no particular order: all rows, or the rows that match
    `where`. Memory is bounded.

    Without `columns`, yield all columns of the table. With `if_known`, leave out columns that the version does not have.
    Raises FilesLostError. The files of a flat table are read one by one, because delta-rs writes some of them with a
    string type for which Arrow's datasets have no filter.
    """
    with table.reading():
        delta = table.delta(version)
        dataset = None if holdings.is_flat(delta) else datasets.of(delta, "window", key)
    with reading_files(table, key):
        if dataset is None:
            schema = pa.schema(delta.schema().to_arrow())
            names = schema.names if columns is None else [n for n in columns if not if_known or n in schema.names]
            held = holdings.by_window(table, pa.table(delta.get_add_actions(flatten=True)), flat=True, among=(key,))
            files = holdings.files_among(held, key)
            yield from _of_files(
                table, key, files.paths, pa.schema([schema.field(n) for n in names]), where, rows_at_once
            )
            return
        condition = pc.field("window") == key
        yield from dataset.to_batches(
            columns=None if columns is None else [n for n in columns if not if_known or n in dataset.schema.names],
            filter=condition if where is None else condition & where,
            batch_size=rows_at_once,
        )


def _of_files(
    table: Folder, key: str, paths: Sequence[str], wanted: pa.Schema, where: pc.Expression | None, rows_at_once: int
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a window in the files of a flat table, with the columns `wanted`. A column that a file lacks is
    null."""
    for path in paths:
        with table.open(unquote(path)) as opened:
            file = parquet.opened(opened)
            # A filter may need other columns.
            columns = [n for n in wanted.names if n in file.schema_arrow.names] if where is None else None
            for block in parquet.blocks(file, rows_at_once, columns, window=key):
                found = block if where is None else _filtered(block, where)
                if found.num_rows:
                    arrays = [
                        found[f.name].cast(f.type) if f.name in found.schema.names else pa.nulls(found.num_rows, f.type)
                        for f in wanted
                    ]
                    yield pa.RecordBatch.from_arrays(arrays, schema=wanted)


def _filtered(block: pa.RecordBatch, where: pc.Expression) -> pa.RecordBatch:
    table = pa.Table.from_batches([block]).filter(where).combine_chunks()
    return table.to_batches()[0] if table.num_rows else block.slice(0, 0)


def difference(
    left: Mapping[int, npt.NDArray[np.int64]], right: Mapping[int, npt.NDArray[np.int64]]
) -> dict[int, tuple[OffsetRange, ...]]:
    """Return the offsets in `left` that `right` lacks, as ranges by partition."""
    empty: npt.NDArray[np.int64] = np.array([], dtype=np.int64)
    missing = {p: np.setdiff1d(offsets, right.get(p, empty)) for p, offsets in left.items()}
    return {p: ranges_of(offsets) for p, offsets in missing.items() if len(offsets)}


def named(ranges: Mapping[int, tuple[OffsetRange, ...]]) -> str:
    """Describe `ranges` for a message; return an empty string if there are none."""
    return ranges_text((p, r.start, r.end) for p, parts in ranges.items() for r in parts)


def split_by_partition(batch: pa.RecordBatch) -> Iterator[tuple[int, npt.NDArray[np.int64]]]:
    """Yield `(partition, offsets)` for a batch with the columns kafka_partition and kafka_offset."""
    partitions = batch.column("kafka_partition")
    offsets = batch.column("kafka_offset").to_numpy(zero_copy_only=False)
    for partition in pc.unique(partitions).to_pylist():
        mask = pc.equal(partitions, partition).to_numpy(zero_copy_only=False)
        yield partition, offsets[mask]


def _offsets(table: Folder, key: str, version: int | None) -> Iterator[tuple[int, npt.NDArray[np.int64]]]:
    yield from _split(batches_of(table, key, version, ["kafka_partition", "kafka_offset"]))


def _split(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, npt.NDArray[np.int64]]]:
    for batch in batches:
        if batch.num_rows:
            yield from split_by_partition(batch)


def _bounds(pieces: Iterable[tuple[int, npt.NDArray[np.int64]]]) -> dict[int, PartitionRows]:
    found: dict[int, PartitionRows] = {}
    for partition, offsets in pieces:
        part = PartitionRows(len(offsets), int(offsets.min()), int(offsets.max()))
        found[partition] = found[partition] + part if partition in found else part
    return found


def _sorted(pieces: Iterable[tuple[int, npt.NDArray[np.int64]]]) -> dict[int, npt.NDArray[np.int64]]:
    chunks: dict[int, list[npt.NDArray[np.int64]]] = {}
    for partition, offsets in pieces:
        chunks.setdefault(partition, []).append(offsets)
    return {p: np.sort(np.concatenate(parts)) for p, parts in sorted(chunks.items())}
