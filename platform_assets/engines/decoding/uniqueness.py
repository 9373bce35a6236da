"""Search for rows of a window that have the same key. The search reads the key's columns from the written files.

Keys are compared by 64-bit hashes. Rows with the same key are always found. In a window with ten million keys, the
chance that two different keys count as equal is one in 370,000. Memory is bounded: if a window has too many keys for
one pass, each pass covers only part of the keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from platform_assets.engines.decoding.digests import row_hashes
from platform_assets.engines.protocol import StagedFiles
from platform_assets.lake.failures import reading_files
from platform_assets.lake.location import Folder
from platform_assets.lake.parquet import python_values
from platform_assets.model.expectations import MOST_SAMPLES, Expectation, FailingRow, Figures
from platform_assets.model.untrusted import shown_value

AT_ONCE: Final = 1 << 20
"""Number of keys per pass."""
_BLOCK_ROWS: Final = 1 << 16
_PLACE: Final = ("kafka_partition", "kafka_offset", "tombstone")

Hashes = npt.NDArray[np.uint64]
Blocks = Callable[[], Iterator[pa.RecordBatch]]
"""Function that reads the rows from the files each time it is called. The rows have the columns of `_PLACE` and the
columns of the key."""


def measure(expectation: Expectation, folder: Folder, window: str, written: StagedFiles) -> Figures:
    """Return the figures for files in `folder` that no commit refers to yet. Raises FilesLostError."""
    return figures(expectation, lambda: _blocks(expectation, folder, window, written), written.measured.rows)


def figures(expectation: Expectation, blocks: Blocks, rows: int, at_once: int = AT_ONCE) -> Figures:
    """Count the rows that repeat a key (for each key, all its rows except one), and find the most frequent keys.

    `rows` is the number of rows, and `at_once` is the maximum number of keys in memory. Tombstones and rows that lack a
    value in any column of the key are not judged. The sample for a key is the second row with that key, in the order of
    partition and offset.
    """
    names, parts = expectation.columns, max(-(-rows // at_once), 1)
    judged = failing = 0
    most: list[tuple[int, int]] = []
    for part in range(parts):
        counts = _Counts(at_once)
        for block in blocks():
            _, hashes = _keys(block, names)
            counts.add(hashes if parts == 1 else hashes[hashes % np.uint64(parts) == np.uint64(part)])
        found, numbers = counts.finished()
        judged += int(numbers.sum())
        failing += int(numbers.sum()) - numbers.size
        doubled = np.flatnonzero(numbers > 1)
        order = np.lexsort((found[doubled], -numbers[doubled]))[:MOST_SAMPLES]
        most += zip((-numbers[doubled[order]]).tolist(), found[doubled[order]].tolist(), strict=True)
    chosen = {hash_: -number for number, hash_ in sorted(most)[:MOST_SAMPLES]}
    return Figures(judged, failing, _samples(names, blocks, chosen) if chosen else ())


class _Counts:
    """Counter of hashes. Its memory is bounded by the number of distinct hashes plus `most` additional hashes."""

    def __init__(self, most: int) -> None:
        self._most, self._waiting = most, 0
        self._new: list[Hashes] = []
        self._hashes: Hashes = np.zeros(0, np.uint64)
        self._numbers: npt.NDArray[np.int64] = np.zeros(0, np.int64)

    def add(self, hashes: Hashes) -> None:
        self._new.append(hashes)
        self._waiting += hashes.size
        if self._waiting >= self._most:
            self._fold()

    def finished(self) -> tuple[Hashes, npt.NDArray[np.int64]]:
        """Return the distinct hashes, and the count of each hash."""
        self._fold()
        return self._hashes, self._numbers

    def _fold(self) -> None:
        fresh, numbers = np.unique(np.concatenate([np.zeros(0, np.uint64), *self._new]), return_counts=True)
        self._new, self._waiting = [], 0
        both, counts = np.concatenate([self._hashes, fresh]), np.concatenate([self._numbers, numbers])
        order = np.argsort(both, kind="stable")
        both, counts = both[order], counts[order]
        firsts = np.flatnonzero(np.concatenate([[True], both[1:] != both[:-1]])) if both.size else order
        self._hashes, self._numbers = both[firsts], np.add.reduceat(counts, firsts) if both.size else counts


def _samples(names: Sequence[str], blocks: Blocks, chosen: dict[int, int]) -> tuple[FailingRow, ...]:
    """Return a sample for each hash in `chosen`: the second row with that hash, the number of rows with that hash, and
    the position of the first such row."""
    firsts: dict[int, list[tuple[int, int, Any]]] = {hash_: [] for hash_ in chosen}
    for block in blocks():
        keys, hashes = _keys(block, names)
        partitions, offsets = keys["kafka_partition"].to_numpy(), keys["kafka_offset"].to_numpy()
        for hash_, held in firsts.items():
            rows = np.flatnonzero(hashes == np.uint64(hash_))
            rows = rows[np.lexsort((offsets[rows], partitions[rows]))[:2]]
            columns = [python_values(keys[name].take(pa.array(rows))) for name in names]
            values = [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
            held += zip(partitions[rows].tolist(), offsets[rows].tolist(), values, strict=True)
            held.sort(key=lambda row: row[:2])
            del held[2:]
    found = []
    for hash_, ((partition, offset, _), (second, its_offset, values)) in firsts.items():
        key = shown_value(values[names[0]] if len(names) == 1 else ", ".join(f"{n}={v}" for n, v in values.items()))
        found.append(
            FailingRow(
                second, its_offset, f"{key}: {chosen[hash_]:,} rows, the first at partition {partition} offset {offset}"
            )
        )
    return tuple(sorted(found, key=lambda row: (row.partition, row.offset)))


def _keys(block: pa.RecordBatch, names: Sequence[str]) -> tuple[pa.RecordBatch, Hashes]:
    """Return the rows to judge, and the hash of each row's key."""
    judged = pc.invert(block["tombstone"])
    for name in names:
        judged = pc.and_(judged, block[name].is_valid())
    if judged.false_count:
        block = block.filter(judged)
    return block, row_hashes([block[name] for name in names])


def _blocks(expectation: Expectation, folder: Folder, window: str, written: StagedFiles) -> Iterator[pa.RecordBatch]:
    wanted = [*_PLACE, *expectation.columns]
    for file in written.files:
        with reading_files(folder, window), folder.open(file.path) as opened:
            blocks = pq.ParquetFile(opened).iter_batches(_BLOCK_ROWS, columns=wanted, use_threads=False)
            while (block := next(blocks, None)) is not None:
                yield block
