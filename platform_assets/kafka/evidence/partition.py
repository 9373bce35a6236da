"""Evidence about one partition: each offset in a range has exactly one kind. This module contains only values and does
no I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, get_args

from platform_assets.model.digest import Digest
from platform_assets.model.offsets import OffsetRange

OffsetKind = Literal[
    "records",
    "commit_markers",
    "abort_markers",
    "aborted_records",
    "compacted_away",
    "below_log_start",
    "unexplained",
]
"""Kinds of offsets. `records` are the committed records. All other kinds are holes. Each hole has a known reason,
unless its kind is `unexplained`."""
OFFSET_KINDS: Final[tuple[OffsetKind, ...]] = get_args(OffsetKind)


@dataclass(frozen=True, slots=True)
class OffsetListing:
    """Offsets of one kind: their number, the number of separate ranges, and the first ranges.

    The ranges in `listed` are ascending and half-open, and adjacent ranges are joined; `pieces - len(listed)` ranges
    are not listed. `offsets` counts the offsets in all ranges. `end` is the exclusive end of the last range, or -1 if
    there are no ranges. Raises ValueError if ranges and counts contradict each other.
    """

    listed: tuple[OffsetRange, ...] = ()
    pieces: int = 0
    offsets: int = 0
    end: int = -1

    def __post_init__(self) -> None:
        named = sum(r.size for r in self.listed)
        if len(self.listed) > self.pieces or named > self.offsets or (self.whole and named != self.offsets):
            raise ValueError("a listing's ranges contradict its counts")

    @property
    def whole(self) -> bool:
        """True if `listed` contains every range."""
        return len(self.listed) == self.pieces

    def __str__(self) -> str:
        named = ", ".join(str(r) for r in self.listed[:10])
        rest = self.pieces - min(len(self.listed), 10)
        return (named or "none") + (f" and {rest} more ranges" if rest else "")


@dataclass(frozen=True, slots=True)
class PartitionEvidence:
    """The offsets `[range.start, reached)` of one partition, each assigned to exactly one kind; `reached` is exclusive.

    `digest` is the digest of the offsets in `records`, and equals the digest that Spark computes over the rows of these
    records; see `platform_assets.model.digest.Digest`. Raises ValueError if the numbers of all kinds do not add up to
    the number of offsets read, or the digest covers a different number of records.

    Proof of each kind: if a batch's header states as many records as offsets, `records` are counted from the header
    alone, which is protected by the batch's CRC; all other batches are opened. Markers are read from control records.
    `aborted_records` are determined from the broker's list of aborted transactions. `below_log_start` are the offsets
    that the broker reports as deleted. `compacted_away` is inferred: the offsets are missing, and the topic's policy
    allows compaction, which leaves no proof. All other missing offsets are `unexplained`, and so are control records of
    an unknown type.
    """

    range: OffsetRange
    reached: int
    records: OffsetListing = OffsetListing()
    commit_markers: OffsetListing = OffsetListing()
    abort_markers: OffsetListing = OffsetListing()
    aborted_records: OffsetListing = OffsetListing()
    compacted_away: OffsetListing = OffsetListing()
    below_log_start: OffsetListing = OffsetListing()
    unexplained: OffsetListing = OffsetListing()
    digest: Digest = field(default_factory=lambda: Digest(0, 0))

    def __post_init__(self) -> None:
        if not self.range.start <= self.reached <= self.range.end:
            raise ValueError(f"offset {self.reached} lies outside {self.range}")
        if sum(self.of(kind).offsets for kind in OFFSET_KINDS) != self.reached - self.range.start:
            raise ValueError(f"the kinds of {self.range} do not add up to its offsets up to {self.reached}")
        if self.digest.rows != self.records.offsets:
            raise ValueError(f"the digest of {self.range} covers {self.digest.rows} of {self.records.offsets} records")

    @classmethod
    def unread(cls, wanted: OffsetRange) -> PartitionEvidence:
        """Return evidence for `wanted` in which no offset has been read yet."""
        return cls(wanted, wanted.start)

    @property
    def complete(self) -> bool:
        """True if every offset of the range was read."""
        return self.reached == self.range.end

    @property
    def holes(self) -> Mapping[OffsetKind, int]:
        """Number of offsets without a committed record, by kind. Kinds that do not occur are left out."""
        return {kind: self.of(kind).offsets for kind in OFFSET_KINDS[1:] if self.of(kind).offsets}

    def of(self, kind: OffsetKind) -> OffsetListing:
        """Return the offsets of one kind."""
        listing: OffsetListing = getattr(self, kind)
        return listing
