"""Sorting of more rows than fit in memory. Parts of the rows are kept in an unnamed temporary file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from platform_assets.engines.shared.spill import Spill

PART_BYTES: Final = 32 << 20
"""Number of bytes of column data that are sorted at a time."""
_BLOCK_BYTES: Final = 8 << 20
_SAMPLE_ROWS: Final = 1 << 16


def boundaries(samples: Sequence[pa.RecordBatch], by: Sequence[str], parts: int) -> pa.Table:
    """Choose boundaries that divide rows like those in `samples` into this many parts of about equal size. Return the
    boundaries' values in the columns `by`."""
    found = pa.concat_tables(map(_keys, samples, [by] * len(samples))).combine_chunks()
    found = found.take(order_of(found, by))
    places = [found.num_rows * part // parts for part in range(1, parts)]
    return found.take(pa.array(sorted(set(places)), pa.int64()))


def order_of(rows: pa.Table, by: Sequence[str]) -> pa.Array:
    """Return the indices that sort rows by the columns `by`. Nulls come last."""
    return pc.sort_indices(_keys(rows, by), sort_keys=[(name, "ascending") for name in by])


def _keys(rows: pa.Table | pa.RecordBatch, by: Sequence[str]) -> pa.Table:
    """Return the columns `by`. Dictionary columns are converted to plain values, because Arrow cannot sort a table by a
    dictionary column."""
    columns = {name: rows[name] for name in by}
    return pa.table({n: c.cast(c.type.value_type) if pa.types.is_dictionary(c.type) else c for n, c in columns.items()})


def sample_of(block: pa.RecordBatch, by: Sequence[str], every: int) -> pa.RecordBatch:
    """Sample a block: return the rows whose index is a multiple of `every`, with only the columns `by`."""
    return block.select(list(by)).take(pa.array(np.arange(0, block.num_rows, every)))


def step_of(rows: int) -> int:
    """Return the distance between sampled rows in a table with this many rows."""
    return max(rows // _SAMPLE_ROWS, 1)


@dataclass
class Parts:
    """Rows sorted by the columns `by`, in parts that are divided at the rows of `between`. Call `close` after use."""

    by: Sequence[str]
    between: pa.Table
    _spill: Spill = field(default_factory=Spill)

    def add(self, block: pa.RecordBatch) -> None:
        """Sort the rows of a block, and distribute them among the parts."""
        keys = pa.concat_tables([_keys(block, self.by), self.between])
        order = order_of(keys, self.by).to_numpy()
        # The next part begins at a boundary's position in this order; a row equal to the boundary may be in either
        # part.
        ends = np.flatnonzero(order >= block.num_rows).tolist()
        begin = 0
        for part, end in enumerate([*ends, len(order)]):
            if end > begin:
                self._spill.add(part, block.take(pa.array(order[begin:end])))
            begin = end + 1

    def sorted(self) -> Iterator[pa.Table]:
        """Yield the rows of each part, sorted."""
        for part in self._spill.parts:
            found = self._spill.rows(part)
            if found is None:
                raise AssertionError("unreachable: the part has rows")
            # The dictionaries of the parts differ.
            found = found.unify_dictionaries().combine_chunks()
            yield found.take(order_of(found, self.by))

    def close(self) -> None:
        """Free the disk space."""
        self._spill.close()


def sorted_rows(
    blocks: Iterable[pa.RecordBatch], by: Sequence[str], rows: int, samples: Iterable[pa.RecordBatch]
) -> Iterator[pa.Table]:
    """Yield all rows of `blocks`, sorted by the columns `by`, with bounded memory. `rows` is the number of rows.

    `samples` contains every nth row with the columns `by`, where n comes from `step_of`. It is iterated only if there
    are more rows than fit in memory.
    """
    waiting, size, parts = list[pa.RecordBatch](), 0, None
    seen = 0
    try:
        for block in _gathered(blocks):
            if parts is not None:
                parts.add(block)
                continue
            waiting.append(block)
            size, seen = size + block.nbytes, seen + block.num_rows
            if size > PART_BYTES:
                number = max(-(-size * max(rows, seen) // (max(seen, 1) * PART_BYTES)), 2)
                parts = Parts(by, boundaries(list(samples), by, number))
                for each in waiting:
                    parts.add(each)
                waiting = []
        if parts is not None:
            yield from parts.sorted()
        elif waiting:
            found = pa.Table.from_batches(waiting).unify_dictionaries().combine_chunks()
            yield found.take(order_of(found, by))
    finally:
        if parts is not None:
            parts.close()


def _gathered(blocks: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows in larger blocks, because each block is divided among all parts."""
    some, size = list[pa.RecordBatch](), 0
    for block in blocks:
        some.append(block)
        size += block.nbytes
        if size >= _BLOCK_BYTES:
            yield _one(some)
            some, size = [], 0
    if some:
        yield _one(some)


def _one(blocks: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(blocks) == 1:
        return blocks[0]
    return pa.Table.from_batches(blocks).unify_dictionaries().combine_chunks().to_batches()[0]
