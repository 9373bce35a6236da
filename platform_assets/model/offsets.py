"""Cuts, offset ranges and tiling: pure values, no I/O.

Every range is half-open, `[start, end)`: `start` is the first offset in the range, and `end` is the first offset after
it. All arithmetic on offsets is done here, except for arithmetic on whole columns in `checks/baseline/history.py` (for
the ledgers) and `kafka/evidence/tally.py` (for record batches).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

Offsets = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, order=True)
class OffsetRange:
    """Offsets `[start, end)` in one Kafka partition. `end` is exclusive, and `0 <= start <= end`."""

    start: int
    end: int

    def __post_init__(self) -> None:
        if not 0 <= self.start <= self.end:
            raise ValueError(f"not a range: [{self.start}, {self.end})")

    def __contains__(self, offset: int) -> bool:
        return self.start <= offset < self.end

    def __str__(self) -> str:
        return f"[{self.start}, {self.end})"

    @property
    def size(self) -> int:
        """Number of offsets in the range. The number of records can be lower, because markers and compaction leave
        holes."""
        return self.end - self.start

    @classmethod
    def closed(cls, first: int, last: int) -> OffsetRange:
        """Return the range of the offsets from `first` to `last`, both inclusive."""
        return cls(first, last + 1)

    def before(self, offset: int) -> OffsetRange:
        """Return the part of this range before `offset`, or an empty range if there is no such part."""
        return OffsetRange(self.start, max(self.start, min(self.end, offset)))

    def intersect(self, other: OffsetRange) -> OffsetRange | None:
        """Return the offsets that are in both ranges, or None if the ranges do not overlap."""
        start, end = max(self.start, other.start), min(self.end, other.end)
        return OffsetRange(start, end) if start < end else None

    def minus(self, others: Iterable[OffsetRange]) -> tuple[OffsetRange, ...]:
        """Return the offsets of this range that are not in `others`, as ascending, non-empty ranges."""
        return subtract([self], others)


def merge(ranges: Iterable[OffsetRange]) -> tuple[OffsetRange, ...]:
    """Return the same offsets in as few ranges as possible, in ascending order. Empty ranges are dropped, and adjacent
    or overlapping ranges are joined."""
    merged: list[OffsetRange] = []
    for item in sorted(r for r in ranges if r.size):
        if merged and item.start <= merged[-1].end:
            merged[-1] = OffsetRange(merged[-1].start, max(merged[-1].end, item.end))
        else:
            merged.append(item)
    return tuple(merged)


def merge_named(named: Iterable[Sequence[int]]) -> dict[int, tuple[OffsetRange, ...]]:
    """Merge the ranges of each partition, given as `(partition, start, end)`, into as few ranges as possible. Return
    the merged ranges by partition."""
    found: dict[int, list[OffsetRange]] = {}
    for partition, start, end in named:
        found.setdefault(partition, []).append(OffsetRange(start, end))
    return {p: merge(parts) for p, parts in found.items()}


def subtract(ranges: Iterable[OffsetRange], others: Iterable[OffsetRange]) -> tuple[OffsetRange, ...]:
    """Return the offsets in `ranges` that are not in `others`, in ascending order and in as few ranges as possible."""
    left: list[OffsetRange] = []
    without = merge(others)
    at = 0
    for r in merge(ranges):
        start = r.start
        while at < len(without) and without[at].end <= start:
            at += 1
        for other in itertools.islice(without, at, None):
            if other.start >= r.end:
                break
            if start < other.start:
                left.append(OffsetRange(start, other.start))
            start = other.end
        if start < r.end:
            left.append(OffsetRange(start, r.end))
    return tuple(left)


def common(ranges: Iterable[OffsetRange], others: Iterable[OffsetRange]) -> tuple[OffsetRange, ...]:
    """Return the offsets that are in both arguments, in ascending order and in as few ranges as possible."""
    whole = merge(ranges)
    return subtract(whole, subtract(whole, others))


def size_of(ranges: Iterable[OffsetRange]) -> int:
    """Return the number of offsets in `ranges`, which must not overlap."""
    return sum(r.size for r in ranges)


def ranges_of(offsets: Iterable[int] | Offsets) -> tuple[OffsetRange, ...]:
    """Return as few ranges as possible that together contain exactly these offsets. The offsets can be given in any
    order and repeatedly."""
    given = offsets if isinstance(offsets, np.ndarray) else np.fromiter(offsets, dtype=np.int64)
    distinct = np.unique(given)
    if not len(distinct):
        return ()
    breaks = np.flatnonzero(np.diff(distinct) != 1) + 1
    starts = distinct[np.concatenate(([0], breaks))]
    lasts = distinct[np.concatenate((breaks - 1, [len(distinct) - 1]))]
    return tuple(OffsetRange.closed(int(a), int(b)) for a, b in zip(starts, lasts, strict=True))


def repeats(ordered: Offsets) -> Offsets:
    """Return each offset that equals the previous offset. The offsets must be ascending. The result has one entry for
    each row whose offset an earlier row also has."""
    found: Offsets = ordered[1:][ordered[1:] == ordered[:-1]]
    return found


@dataclass(frozen=True, slots=True)
class HeldOffsets:
    """The offsets of the rows in one partition.

    `rows` is the number of rows, and `ranges` has their offsets. The offsets in `repeated` occur more than once.
    """

    rows: int
    ranges: tuple[OffsetRange, ...]
    repeated: tuple[OffsetRange, ...]

    @classmethod
    def of(cls, ordered: Offsets) -> HeldOffsets:
        """Create an instance from the ascending offsets of all rows."""
        return cls(len(ordered), ranges_of(ordered), ranges_of(repeats(ordered)))


def lag(end: int, reached: int | None) -> int:
    """Return the number of offsets from `reached`, the exclusive end of the loaded offsets, to `end`. If nothing is
    loaded yet, return `end`."""
    return max(end - (reached or 0), 0)


def text_of(ranges: Sequence[OffsetRange], limit: int = 5) -> str:
    """Return a string such as `[1, 3), [5, 6) and 2 more ranges`. Ranges beyond `limit` are only counted."""
    text = ", ".join(str(r) for r in ranges[:limit])
    return text + (f" and {len(ranges) - limit} more ranges" if len(ranges) > limit else "")


def _frozen(values: Mapping[int, int]) -> Mapping[int, int]:
    return MappingProxyType(dict(sorted(values.items())))


@dataclass(frozen=True, slots=True)
class Cut:
    """One offset per Kafka partition of a topic, at one instant. Every record at a lower offset comes before the cut.
    If a cut does not list a partition, the partition was added to the topic later, and its offset is 0. If records at
    the log start of such a partition are missing, they are reported as a loss."""

    offsets: Mapping[int, int]

    def __post_init__(self) -> None:
        if any(p < 0 or o < 0 for p, o in self.offsets.items()):
            raise ValueError(f"a cut cannot have a negative partition or offset: {dict(self.offsets)}")
        object.__setattr__(self, "offsets", _frozen(self.offsets))

    def at(self, partition: int) -> int:
        """Return the cut's offset in `partition`, or 0 if the partition was added after the cut."""
        return self.offsets.get(partition, 0)

    def grow(self, wanted: Mapping[int, int], ceiling: Mapping[int, int]) -> Cut:
        """Return the next cut: `wanted`, but never before this cut and never after `ceiling`. If the two bounds
        contradict each other (because an end offset went backwards), this cut takes precedence, because cuts only grow.
        If `wanted` lacks a partition because the partition was unreachable, the partition keeps its offset from this
        cut."""
        grown = dict(self.offsets)
        for partition, offset in wanted.items():
            bounded = min(offset, ceiling.get(partition, offset))
            grown[partition] = max(self.at(partition), bounded)
        return Cut(grown)

    def regressions(self, ends: Mapping[int, int]) -> tuple[tuple[int, int, int], ...]:
        """Return `(partition, recorded, found)` for each end offset that lies before this cut."""
        return tuple((p, o, ends[p]) for p, o in self.offsets.items() if p in ends and ends[p] < o)


@dataclass(frozen=True, slots=True)
class TopicRanges:
    """One range per Kafka partition: the offsets `[cut(t0), cut(t1))` in a window."""

    by_partition: Mapping[int, OffsetRange] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_partition", MappingProxyType(dict(sorted(self.by_partition.items()))))

    @classmethod
    def between(cls, start: Cut, end: Cut) -> TopicRanges:
        """Return the offsets from `start` (inclusive) to `end` (exclusive), for every partition in `end`. Raises
        ValueError if a cut shrank or lost a partition, because cuts only grow.
        """
        lost = set(start.offsets) - set(end.offsets)
        if lost:
            raise ValueError(f"the later cut lacks partitions {sorted(lost)} of the earlier one")
        return cls({p: OffsetRange(start.at(p), o) for p, o in end.offsets.items()})

    @property
    def size(self) -> int:
        """Number of offsets in all partitions."""
        return sum(r.size for r in self.by_partition.values())

    def non_empty(self) -> TopicRanges:
        """Return only the partitions that have at least one offset."""
        return TopicRanges({p: r for p, r in self.by_partition.items() if r.size})

    def items(self) -> Iterator[tuple[int, OffsetRange]]:
        """Return pairs of `(partition, range)` in ascending order of partition."""
        return iter(self.by_partition.items())

    def triples(self) -> tuple[tuple[int, int, int], ...]:
        """Return triples of `(partition, start, end)` in ascending order of partition. `end` is exclusive."""
        return tuple((p, r.start, r.end) for p, r in self.by_partition.items())


@dataclass(frozen=True, slots=True, order=True)
class TilingFault:
    """A gap or an overlap between two neighboring windows in one partition, at the offsets `[start, end)`."""

    kind: str
    partition: int
    start: int
    end: int
    left: str
    right: str


def tiling_faults(windows: Sequence[tuple[str, TopicRanges]]) -> tuple[TilingFault, ...]:
    """Return a fault for each pair of adjacent windows that do not share a cut. The windows are given in order as
    `(key, ranges)`.

    `kind` is "gap" if there are offsets between the two windows, or "overlap" if some offsets are in both windows. A
    partition that first appears in a later window must start at 0.
    """
    faults: list[TilingFault] = []
    reached: dict[int, int] = {}
    previous = ""
    for index, (key, ranges) in enumerate(windows):
        for partition, r in ranges.items():
            expected = r.start if index == 0 else reached.get(partition, 0)
            if r.start > expected:
                faults.append(TilingFault("gap", partition, expected, r.start, previous, key))
            elif r.start < expected:
                faults.append(TilingFault("overlap", partition, r.start, expected, previous, key))
            reached[partition] = r.end
        previous = key
    return tuple(faults)
