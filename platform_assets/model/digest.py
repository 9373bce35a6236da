"""Digests of sets of rows: one of the offsets in a window, and one of the contents of all the window's columns. Pure
values, no I/O.

docs/DIGEST.md defines both digests, and contains golden vectors with which every implementation is tested.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from platform_assets.model.offsets import TopicRanges

_MASK64 = (1 << 64) - 1

# Constants of XXH64, as its specification gives them (https://github.com/Cyan4973/xxHash, doc/xxhash_spec.md).
_PRIME1 = 0x9E3779B185EBCA87
_PRIME2 = 0xC2B2AE3D27D4EB4F
_PRIME3 = 0x165667B19E3779F9
_PRIME4 = 0x85EBCA77C2B2AE63
_PRIME5 = 0x27D4EB2F165667C5
SPARK_SEED = 42
"""The initial seed of Spark's `xxhash64`."""


@dataclass(frozen=True, slots=True)
class Digest:
    """A multiset digest: the number of values, `rows`, and the exact sum of their 64-bit hashes.

    The digest does not depend on the order of the values, and is additive: the digest of a union is the sum of the
    digests. It detects accidentally lost, duplicated or altered rows with an error probability of about 2^-64 per
    comparison. XXH64 is not a cryptographic hash, so the digest does not protect against deliberate forgery.
    """

    rows: int
    total: int

    def __add__(self, other: Digest) -> Digest:
        return Digest(self.rows + other.rows, self.total + other.total)

    def __sub__(self, other: Digest) -> Digest:
        return Digest(self.rows - other.rows, self.total - other.total)

    @classmethod
    def from_halves(cls, rows: int, high: int, low: int) -> Digest:
        """Make a digest from two sums: the sum of the upper 32 bits of the hashes, and the sum of the lower 32 bits.
        Stored as 64-bit numbers, these sums do not overflow for up to 2^31 rows."""
        return cls(rows, (high << 32) + low)


@dataclass(frozen=True, slots=True)
class Measured:
    """Result of one pass over the rows of a window: two digests that do not depend on the order of the rows."""

    offsets: Digest
    content: Digest

    @classmethod
    def of_nothing(cls) -> Measured:
        """Return the result for no rows."""
        return cls(Digest(0, 0), Digest(0, 0))

    def __add__(self, other: Measured) -> Measured:
        return Measured(self.offsets + other.offsets, self.content + other.content)

    def __sub__(self, other: Measured) -> Measured:
        return Measured(self.offsets - other.offsets, self.content - other.content)

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.offsets.rows


def mark_of(column: str) -> int:
    """Return the mark that precedes each value of a column in the content digest: the CRC-32 (ISO-HDLC) of the column's
    name in UTF-8."""
    return zlib.crc32(column.encode())


def _rotl(x: npt.NDArray[np.uint64], r: int) -> npt.NDArray[np.uint64]:
    return (x << np.uint64(r)) | (x >> np.uint64(64 - r))


def _avalanche(h: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    h = (h ^ (h >> np.uint64(33))) * np.uint64(_PRIME2)
    h = (h ^ (h >> np.uint64(29))) * np.uint64(_PRIME3)
    return h ^ (h >> np.uint64(32))


def _xxhash64_int(value: int, seed: int) -> int:
    h = (seed + _PRIME5 + 4) & _MASK64
    h ^= ((value & 0xFFFFFFFF) * _PRIME1) & _MASK64
    h = ((((h << 23) | (h >> 41)) & _MASK64) * _PRIME2 + _PRIME3) & _MASK64
    return int(_avalanche(np.array([h], dtype=np.uint64))[0])


def offset_hashes(partition: int, offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    """Return Spark's `xxhash64(kafka_partition, kafka_offset)` for each offset, as unsigned 64-bit values."""
    seed = _xxhash64_int(partition, SPARK_SEED)
    values = offsets.astype(np.uint64)
    h = _rotl(values * np.uint64(_PRIME2), 31) * np.uint64(_PRIME1)
    h = h ^ np.uint64((seed + _PRIME5 + 8) & _MASK64)
    h = _rotl(h, 27) * np.uint64(_PRIME1) + np.uint64(_PRIME4)
    return _avalanche(h)


def offsets_digest(partition: int, offsets: npt.NDArray[np.int64]) -> Digest:
    """Return the digest of a set of offsets in one partition. It equals the digest that Spark computes over the same
    rows."""
    hashes = offset_hashes(partition, offsets)
    high = int((hashes >> np.uint64(32)).sum(dtype=np.uint64))
    low = int((hashes & np.uint64(0xFFFFFFFF)).sum(dtype=np.uint64))
    return Digest.from_halves(len(offsets), high, low)


def digest_of(offsets: Mapping[int, npt.NDArray[np.int64]]) -> Digest:
    """Return the digest of a multiset of offsets. `offsets` maps each partition to its offsets."""
    return sum((offsets_digest(p, found) for p, found in offsets.items()), Digest(0, 0))


def dense_digest(ranges: TopicRanges, chunk: int = 1 << 16) -> Digest:
    """Return the digest that `ranges` would have if every offset in them had a record. Memory use is constant: `chunk`
    offsets per step.

    If this digest equals the digest of the loaded rows, the window is dense and free of duplicates. Count, minimum,
    maximum and plain sums cannot prove that: `{0, 3, 5, 6}` and `{1, 2, 4, 7}` agree in count, sum and sum of squares.
    """
    digest = Digest(0, 0)
    for partition, r in ranges.items():
        for start in range(r.start, r.end, chunk):
            digest += offsets_digest(partition, np.arange(start, min(start + chunk, r.end), dtype=np.int64))
    return digest
