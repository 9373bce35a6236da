"""Counting the offsets of one partition by kind, from its record batches. No I/O.

Every offset is counted once, in ascending order: the offsets in the batches, and the offsets that are missing before
and between the batches. Like `model.offsets`, this package compares and adds offsets; ranges are always half-open.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from platform_assets.kafka.batches.record_batches import ABORT, COMMIT, CONTROL, TRANSACTIONAL, Batch, Batches
from platform_assets.kafka.evidence.partition import OFFSET_KINDS, OffsetKind, OffsetListing, PartitionEvidence
from platform_assets.model.digest import Digest, offsets_digest
from platform_assets.model.offsets import OffsetRange

LISTED: Final = 1000
"""Number of ranges of each kind that a partition's evidence lists; further ranges are only counted."""
_DIGEST_STEP = 1 << 15


class _Growing:
    """A listing under construction; ranges must be added in ascending order."""

    __slots__ = ("_end", "_limit", "_listed", "_offsets", "_pieces")

    def __init__(self, limit: int) -> None:
        self._listed: list[tuple[int, int]] = []
        self._pieces, self._offsets, self._end, self._limit = 0, 0, -1, limit

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


class PartitionTally:
    """Counts the offsets of one partition, batch by batch; `[position, end)` are the offsets to count next. This class
    implements `batches.reading.BatchSink`. Memory is bounded: at most `listed` ranges per kind, and a limited number of
    offsets that wait to be added to the digest."""

    def __init__(
        self,
        partition: int,
        wanted: OffsetRange,
        *,
        compacted: bool,
        without: Sequence[OffsetRange] = (),
        listed: int = LISTED,
    ) -> None:
        """If `compacted` is true, the topic's policy allows compaction, so missing offsets may have been compacted
        away. Offsets in `without` are not read, and count as unexplained."""
        self.partition = partition
        self.position = wanted.start
        self.end = wanted.end
        self._range = wanted
        self._pieces = list(wanted.minus(without)) if without else [wanted]
        self._compacted = compacted
        self._log_start = -1
        self._kinds = {kind: _Growing(listed) for kind in OFFSET_KINDS}
        self._digest = Digest(0, 0)
        self._waiting: list[tuple[int, int]] = []
        self._waiting_size = 0
        self.skip()

    @property
    def range(self) -> OffsetRange:
        """All offsets to count."""
        return self._range

    @property
    def done(self) -> bool:
        """True if every offset has been counted."""
        return self.position >= self._range.end

    @property
    def piece_done(self) -> bool:
        """True if the offsets up to `end` have been counted; in that case, call `skip` before you read on."""
        return self.position >= self.end

    def skip(self) -> None:
        """Move on to the next piece of offsets. Call this once `piece_done` is true."""
        piece = self._pieces.pop(0) if self._pieces else OffsetRange(self._range.end, self._range.end)
        self._add("unexplained", piece.start)
        self.end = piece.end

    def observe(self, log_start: int) -> None:
        """Record the partition's log start: from now on, missing offsets before it count as `below_log_start`."""
        self._log_start = log_start

    def missing(self, until: int) -> None:
        """Count `[position, until)` as holes, because the broker has no batch there. If `until` is after `end`, stop at
        `end`."""
        until = min(until, self.end)
        self._add("below_log_start", min(until, self._log_start))
        self._add("compacted_away" if self._compacted else "unexplained", until)

    def take(self, batches: Batches, aborted: Iterable[tuple[int, int]] = ()) -> None:
        """Count the offsets of `batches`, which contain or follow `position`, and the holes before and between these
        batches. `aborted` lists the aborted transactions that the broker returned for this fetch, as `(producer id,
        first offset)`. Raises Damage; in that case, offsets before the damage may have been counted."""
        if not len(batches):
            return
        batches.verify()
        transactions = sorted((first, producer) for producer, first in aborted)
        if not self._take_plain(batches, bool(transactions)):
            self._take_each(batches, transactions)

    def evidence(self) -> PartitionEvidence:
        """Return the counts so far as a value that later counting does not change."""
        self._flush()
        listings = {kind: growing.listing() for kind, growing in self._kinds.items()}
        return PartitionEvidence(self._range, self.position, **listings, digest=self._digest)

    def _take_plain(self, batches: Batches, some_aborted: bool) -> bool:
        """Count all batches at once in the common case: all of them are dense and adjacent, and have no markers or
        aborted records."""
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
        """Count one batch after another, following the rule that consumers apply to aborted transactions.

        A producer's batches are aborted from the first offset of its transaction up to its abort marker
        (`CompletedFetch` in the Java client).
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
                kind: OffsetKind = (
                    "aborted_records" if batch.transactional and batch.producer_id in aborting else "records"
                )
                self._take_data(batch, kind)
            if self.piece_done:
                return

    def _take_control(self, batch: Batch, aborting: set[int]) -> None:
        for offset, type_ in batch.control_types():
            if type_ == ABORT:
                aborting.discard(batch.producer_id)
            if offset < self.position or offset >= self.end:
                continue
            self.missing(offset)
            known: dict[int, OffsetKind] = {ABORT: "abort_markers", COMMIT: "commit_markers"}
            self._add(known.get(type_, "unexplained"), offset + 1)
        self.missing(batch.last_offset + 1)

    def _take_data(self, batch: Batch, kind: OffsetKind) -> None:
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

    def _add(self, kind: OffsetKind, until: int) -> None:
        """Count `[position, until)` as `kind`; count nothing if `until` is not after `position`."""
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
        """Add all waiting ranges to the digest in one step. Adding each small range separately would cost a numpy call
        per range."""
        if not self._waiting:
            return
        starts, ends = np.array(self._waiting, dtype=np.int64).T
        sizes = ends - starts
        offsets = np.repeat(starts - (np.cumsum(sizes) - sizes), sizes) + np.arange(sizes.sum(), dtype=np.int64)
        self._digest += offsets_digest(self.partition, offsets)
        self._waiting, self._waiting_size = [], 0
