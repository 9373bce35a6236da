"""What became of each offset of one partition: counted from record batches, pure of any I/O.

Together with `platform_assets.offsets` the only place that reckons with offsets; ranges are half-open everywhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import numpy as np

from platform_assets.kafka.batches.record_batches import ABORT, COMMIT, CONTROL, TRANSACTIONAL, Batch, Batches
from platform_assets.model.digest import Digest, offsets_digest
from platform_assets.model.offsets import OffsetRange

Kind = Literal[
    "records",
    "commit_markers",
    "abort_markers",
    "aborted_records",
    "compacted_away",
    "below_log_start",
    "unexplained",
]
KINDS: Final[tuple[Kind, ...]] = (
    "records",
    "commit_markers",
    "abort_markers",
    "aborted_records",
    "compacted_away",
    "below_log_start",
    "unexplained",
)
"""What an offset can be: `records` are the committed ones; the next five are explained holes."""
EXPLAINED_HOLES: Final[tuple[Kind, ...]] = KINDS[1:-1]

LISTED: Final = 1000
"""Ranges of each kind that an account names one by one; those beyond are counted."""
_DIGEST_STEP = 1 << 15


@dataclass(frozen=True, slots=True)
class OffsetListing:
    """Offsets of one kind: how many, in how many separate ranges, and the first ranges by name.

    `listed` is ascending and joined where ranges touch; `pieces - len(listed)` ranges are cut from it. `offsets` counts
    all. `end` is where the last range ends (exclusive), -1 where there is none.
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
        """Whether `listed` names every range."""
        return len(self.listed) == self.pieces

    def __str__(self) -> str:
        named = ", ".join(str(r) for r in self.listed[:10])
        rest = self.pieces - min(len(self.listed), 10)
        return (named or "none") + (f" and {rest} more ranges" if rest else "")


@dataclass(frozen=True, slots=True)
class OffsetAccount:
    """The offsets `[range.start, reached)` of one partition, each in exactly one kind; `reached` is exclusive.

    `digest` is that of the offsets in `records` and equals what Spark sums over the same rows; see
    `platform_assets.offsets.Digest`. `log_start` is the partition's first offset when the broker last told it, -1 where
    it was not asked; it is not part of what two accounts are compared by.

    What each kind rests on: `records` of a batch whose header counts as many records as it spans offsets are counted by
    that header, under its CRC; all other batches are opened. Markers are read from control records. `aborted_records`
    follow the broker's own list of aborted transactions. `below_log_start` is what the broker says it has dropped.
    `compacted_away` is inferred: the offsets are missing and the topic's policy allows compaction, which leaves no
    proof. Everything else that is missing is `unexplained`, as is a control record of an unknown type.
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
    log_start: int = field(default=-1, compare=False)

    def __post_init__(self) -> None:
        if not self.range.start <= self.reached <= self.range.end:
            raise ValueError(f"offset {self.reached} lies outside {self.range}")
        if sum(self.of(kind).offsets for kind in KINDS) != self.reached - self.range.start:
            raise ValueError(f"the kinds of {self.range} do not add up to its offsets up to {self.reached}")
        if self.digest.rows != self.records.offsets:
            raise ValueError(f"the digest of {self.range} covers {self.digest.rows} of {self.records.offsets} records")

    @classmethod
    def empty(cls, wanted: OffsetRange) -> OffsetAccount:
        """Nothing looked at yet."""
        return cls(wanted, wanted.start)

    @property
    def complete(self) -> bool:
        """Whether every offset of the range was looked at."""
        return self.reached == self.range.end

    @property
    def holes(self) -> Mapping[Kind, int]:
        """Number of offsets without a committed record by kind, kinds that do not occur left out."""
        return {kind: self.of(kind).offsets for kind in KINDS[1:] if self.of(kind).offsets}

    def of(self, kind: Kind) -> OffsetListing:
        """The listing of one kind."""
        listing: OffsetListing = getattr(self, kind)
        return listing

    def as_json(self) -> dict[str, Any]:
        """As JSON values; ranges are `[start, end]`, end exclusive. The digest's total is a text, being too wide."""
        return {
            "range": [self.range.start, self.range.end],
            "reached": self.reached,
            "log_start": self.log_start,
            "digest": {"rows": self.digest.rows, "total": str(self.digest.total)},
            **{
                kind: {
                    "offsets": listing.offsets,
                    "pieces": listing.pieces,
                    "end": listing.end,
                    "listed": [[r.start, r.end] for r in listing.listed],
                }
                for kind in KINDS
                if (listing := self.of(kind)).offsets
            },
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> OffsetAccount:
        """The inverse of `as_json`. Raises ValueError, KeyError or TypeError where `value` is no such account."""
        listings = {
            kind: OffsetListing(
                tuple(OffsetRange(start, end) for start, end in value[kind]["listed"]),
                value[kind]["pieces"],
                value[kind]["offsets"],
                value[kind]["end"],
            )
            for kind in KINDS
            if kind in value
        }
        digest = Digest(value["digest"]["rows"], int(value["digest"]["total"]))
        return cls(
            OffsetRange(*value["range"]), value["reached"], digest=digest, log_start=value["log_start"], **listings
        )


class _Growing:
    """A listing while it grows; ranges come in ascending order."""

    __slots__ = ("_end", "_limit", "_listed", "_offsets", "_pieces")

    def __init__(self, listing: OffsetListing, limit: int) -> None:
        self._listed = [(r.start, r.end) for r in listing.listed]
        self._pieces, self._offsets, self._end, self._limit = listing.pieces, listing.offsets, listing.end, limit

    def add(self, start: int, end: int) -> None:
        if start == self._end:
            if len(self._listed) == self._pieces:  # else the last range is one of those that are only counted
                self._listed[-1] = (self._listed[-1][0], end)
        else:
            if len(self._listed) == self._pieces < self._limit:
                self._listed.append((start, end))
            self._pieces += 1
        self._offsets += end - start
        self._end = end

    def listing(self) -> OffsetListing:
        return OffsetListing(
            tuple(OffsetRange(start, end) for start, end in self._listed), self._pieces, self._offsets, self._end
        )


class Tally:
    """Counts the offsets of one partition from where `account` stopped, batch by batch, in ascending order.

    Memory is flat: at most `listed` ranges a kind, and a bounded number of offsets that wait for the digest.
    """

    def __init__(self, partition: int, account: OffsetAccount, *, compacted: bool, listed: int = LISTED) -> None:
        self.partition = partition
        self.position = account.reached
        """The first offset not yet accounted for."""
        self.end = account.range.end
        self._account = account
        self._compacted = compacted
        self._log_start = account.log_start
        self._kinds = {kind: _Growing(account.of(kind), listed) for kind in KINDS}
        self._digest = account.digest
        self._waiting: list[tuple[int, int]] = []
        self._waiting_size = 0

    @property
    def done(self) -> bool:
        return self.position >= self.end

    def observe(self, log_start: int) -> None:
        """Take note of the partition's log start: what is missing before it is `below_log_start` from now on."""
        self._log_start = log_start

    def missing(self, until: int) -> None:
        """Account for `[position, until)` as holes: the broker has no batch there. `until` past the end is cut."""
        until = min(until, self.end)
        self._add("below_log_start", min(until, self._log_start))
        self._add("compacted_away" if self._compacted else "unexplained", until)

    def take(self, batches: Batches, aborted: Iterable[tuple[int, int]] = ()) -> None:
        """Account for `batches`, which follow `position` or hold it, and for the holes before and between them.

        `aborted` are the aborted transactions that the broker listed for this very fetch, as `(producer id, first
        offset)`. Raises `record_batches.Damage`; offsets before the damage may then have been counted.
        """
        if not len(batches):
            return
        batches.verify()
        transactions = sorted((first, producer) for producer, first in aborted)
        if not self._take_plain(batches, bool(transactions)):
            self._take_each(batches, transactions)

    def account(self) -> OffsetAccount:
        """What is known so far, as a value of its own."""
        self._flush()
        listings = {kind: growing.listing() for kind, growing in self._kinds.items()}
        return OffsetAccount(
            self._account.range, self.position, **listings, digest=self._digest, log_start=self._log_start
        )

    def _take_plain(self, batches: Batches, some_aborted: bool) -> bool:
        """The common case, all batches at once: each dense, none apart, no markers, nothing aborted."""
        if batches.old_format:
            return False
        attributes, bases, lasts = batches.attributes, batches.base_offsets, batches.last_offsets
        if (attributes & (CONTROL | TRANSACTIONAL if some_aborted else CONTROL)).any():
            return False
        ends = lasts + 1
        if bases[0] > self.position or (bases[1:] != ends[:-1]).any() or (batches.records_counts != ends - bases).any():
            return False
        self._add("records", min(int(ends[-1]), self.end))
        return True

    def _take_each(self, batches: Batches, transactions: Sequence[tuple[int, int]]) -> None:
        """One batch after another, following the consumer's rule for aborted transactions.

        A producer's batches are aborted from its transaction's first offset up to its abort marker (`CompletedFetch` of
        the Java client).
        """
        aborting: set[int] = set()
        begun = 0
        for batch in batches:
            while begun < len(transactions) and transactions[begun][0] <= batch.last_offset:
                aborting.add(transactions[begun][1])
                begun += 1
            if batch.control:
                self._take_control(batch, aborting)
            elif batch.last_offset >= self.position:
                kind: Kind = "aborted_records" if batch.transactional and batch.producer_id in aborting else "records"
                self._take_data(batch, kind)
            if self.done:
                return

    def _take_control(self, batch: Batch, aborting: set[int]) -> None:
        for offset, type_ in batch.control_types():
            if type_ == ABORT:
                aborting.discard(batch.producer_id)
            if offset < self.position or offset >= self.end:
                continue
            self.missing(offset)
            known: dict[int, Kind] = {ABORT: "abort_markers", COMMIT: "commit_markers"}
            self._add(known.get(type_, "unexplained"), offset + 1)
        self.missing(batch.last_offset + 1)

    def _take_data(self, batch: Batch, kind: Kind) -> None:
        if batch.dense:
            self.missing(batch.base_offset)
            self._add(kind, min(batch.last_offset + 1, self.end))
            return
        offsets = batch.offsets()
        offsets = offsets[(offsets >= self.position) & (offsets < self.end)]
        for run in np.split(offsets, np.flatnonzero(np.diff(offsets) != 1) + 1):
            if len(run):
                self.missing(int(run[0]))
                self._add(kind, int(run[-1]) + 1)
        self.missing(batch.last_offset + 1)

    def _add(self, kind: Kind, until: int) -> None:
        """Account for `[position, until)`; nothing where `until` is not ahead."""
        start = self.position
        if until <= start:
            return
        self._kinds[kind].add(start, until)
        self.position = until
        if kind != "records":
            return
        while until - start >= _DIGEST_STEP:
            self._digest += offsets_digest(self.partition, np.arange(start, start + _DIGEST_STEP, dtype=np.int64))
            start += _DIGEST_STEP
        self._waiting.append((start, until))
        self._waiting_size += until - start
        if self._waiting_size >= _DIGEST_STEP or len(self._waiting) >= _DIGEST_STEP:
            self._flush()

    def _flush(self) -> None:
        """Digest the ranges that wait, all in one: ranges of a few records each would cost a call of numpy each."""
        if not self._waiting:
            return
        starts, ends = np.array(self._waiting, dtype=np.int64).T
        sizes = ends - starts
        offsets = np.repeat(starts - (np.cumsum(sizes) - sizes), sizes) + np.arange(sizes.sum(), dtype=np.int64)
        self._digest += offsets_digest(self.partition, offsets)
        self._waiting, self._waiting_size = [], 0
