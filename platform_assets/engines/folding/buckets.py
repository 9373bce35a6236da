"""Buckets of keys: each key is in the bucket that the highest bits of its hash name. Pure, apart from the temporary
files.

The number of buckets is a power of two and grows with the table, so a fold needs memory for one bucket only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from platform_assets.engines.folding.winners import Hashes, key_hashes
from platform_assets.engines.shared.spill import Spill

BUCKET_BYTES: Final = 64 << 20
"""Bytes of column data in a bucket that are aimed at."""
_MOST: Final = 1 << 12
_BLOCK_BYTES: Final = 16 << 20


def count_for(size: int, now: int = 1, target: int = BUCKET_BYTES) -> int:
    """Return the number of buckets for a table with `size` bytes of column data, which has `now` buckets.

    The number only changes if buckets are more than twice as large as `target`, or less than an eighth of it, because
    a change costs more than a fold. Pure.
    """
    if now * target // 8 <= size <= 2 * now * target:
        return now
    count = 1
    while count * target < size and count < _MOST:
        count *= 2
    return count


def bucket_of(hashes: Hashes, count: int) -> npt.NDArray[np.uint16]:
    """Return the bucket of each hash, among `count` buckets, of which there are at most 2^16. Pure."""
    bits = count.bit_length() - 1
    # A shift by 64 bits is undefined. numpy sorts numbers of 16 bits five times as fast as longer ones.
    return (hashes >> np.uint64(64 - bits)).astype(np.uint16) if bits else np.zeros(len(hashes), np.uint16)


class Bucketed:
    """Rows divided into buckets. Call `close` after use."""

    def __init__(self, key: Sequence[str], count: int) -> None:
        self._key, self._count = key, count
        self._spill = Spill()
        self._waiting, self._size = list[pa.RecordBatch](), 0
        self.rows = 0

    def add(self, blocks: Iterable[pa.RecordBatch]) -> None:
        """Add rows. Small blocks are gathered, because each one is divided among all buckets."""
        for block in blocks:
            self._waiting.append(block)
            self._size += block.nbytes
            self.rows += block.num_rows
            if self._size >= _BLOCK_BYTES:
                self._divide()
        self._divide()

    def _divide(self) -> None:
        if not self._waiting:
            return
        rows = pa.Table.from_batches(self._waiting).combine_chunks()
        self._waiting, self._size = [], 0
        for batch in rows.to_batches():
            buckets = bucket_of(key_hashes(batch, self._key), self._count)
            order = np.argsort(buckets, kind="stable")
            ends = np.cumsum(np.bincount(buckets, minlength=self._count))
            ordered, begin = batch.take(pa.array(order)), 0
            for bucket, end in enumerate(ends.tolist()):
                if end > begin:
                    self._spill.add(bucket, ordered.slice(begin, end - begin))
                begin = end

    def bucket(self, number: int) -> pa.Table | None:
        """Return the rows of a bucket; None if there are none."""
        return self._spill.rows(number)

    def close(self) -> None:
        """Free the disk space."""
        self._spill.close()
