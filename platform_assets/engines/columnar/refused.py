"""Search for records that no load accepts, because their timestamp is out of range, or their batch is damaged or
exceeds the limits.

The search reads all given offsets, as fast as a load with a single task does. It runs only after a load was refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from platform_assets.engines.columnar.columns import Longs, OldFormat, timestamps, wanted
from platform_assets.engines.columnar.work import Piece
from platform_assets.errors import DamagedBatchError
from platform_assets.kafka.batches.damaged import damaged_until
from platform_assets.kafka.batches.fetching import Brokers
from platform_assets.kafka.batches.reading import Buffers, PartitionReading
from platform_assets.kafka.batches.record_batches import Batches
from platform_assets.kafka.batches.unpacking import Damage, TooLarge, UnpackBuffer
from platform_assets.kafka.settings import ClientSettings
from platform_assets.kafka.timestamps import FIRST_READABLE_MS, LAST_READABLE_MS, unreadable_records
from platform_assets.model.offsets import OffsetRange, TopicRanges, ranges_of

MOST: Final = 1_000_000
"""Number of records after which the search ends. A later search finds the remaining records."""
_FETCH_BYTES: Final = 8 << 20
_PATIENCE: Final = 30.0
"""Time limit in seconds for a broker to answer, including retries."""


@dataclass(frozen=True, slots=True)
class Refused:
    """Records and batches that no load accepts.

    `records` contains `(partition, offset, timestamp in ms)` for each record whose timestamp is out of range. `batches`
    maps each partition to the offsets of its batches that exceed the limits. `damaged` maps each partition to the
    offsets of its damaged batches.
    """

    records: tuple[tuple[int, int, int], ...] = ()
    batches: Mapping[int, tuple[OffsetRange, ...]] = field(default_factory=dict)
    damaged: Mapping[int, tuple[OffsetRange, ...]] = field(default_factory=dict)

    @property
    def ranges(self) -> dict[int, tuple[OffsetRange, ...]]:
        """Return the offsets of `records`, by partition."""
        return {
            p: ranges_of(o for q, o, _ in self.records if q == p) for p in dict.fromkeys(r[0] for r in self.records)
        }


def find_refused(
    settings: ClientSettings, topic: str, topic_id: str, pieces: Iterable[TopicRanges], *, most: int = MOST
) -> Refused:
    """Search the offsets in `pieces` for records and batches that no load accepts. Stop after finding `most` of them.

    The search has no time limit, because its duration depends on the size of the window. It raises
    BrokerUnreachableError if the brokers do not answer. If a broker itself reports a batch as corrupt, the search
    requests each following offset in turn until the broker sends data. Raises the same errors as `gather_evidence`, but
    raises DamagedBatchError only for damage outside of record batches, for example in a marker.
    """
    found = _RefusedOffsets(most)
    brokers = Brokers(settings, topic, topic_id, patience=_PATIENCE, stopped=lambda: False)
    buffers, unpack_buffer = Buffers(_FETCH_BYTES), UnpackBuffer()
    old: list[Piece] = []
    try:
        for partition, offsets in [(p, r) for piece in pieces for p, r in piece.items() if r.size]:
            search = _Search(partition, offsets, found, unpack_buffer)
            while search.position < search.end and not found.enough:
                _search(brokers, search, buffers)
            old += [Piece(partition, r) for r in search.old]
    finally:
        brokers.close()
    for piece in old:
        if not found.enough:
            found.records += unreadable_records(settings, topic, TopicRanges({piece.partition: piece.wanted}))
    batches, damaged = ({p: tuple(r) for p, r in some.items()} for some in (found.batches, found.damaged))
    return Refused(tuple(sorted(found.records)[:most]), batches, damaged)


def _search(brokers: Brokers, search: _Search, buffers: Buffers) -> None:
    """Search up to the end of the range. If a batch is damaged, stop at the end of that batch."""
    reading = PartitionReading(brokers, search, buffers)
    try:
        while search.position < search.end and not search.found.enough:
            reading.step()
    except DamagedBatchError:
        reading.abandon()
        until = damaged_until(brokers, search.partition, search.position, search.end)
        if until is None:
            raise
        search.found.damaged.setdefault(search.partition, []).append(OffsetRange(search.position, until))
        search.position = until
    finally:
        reading.abandon()


@dataclass
class _RefusedOffsets:
    most: int
    records: list[tuple[int, int, int]] = field(default_factory=list)
    batches: dict[int, list[OffsetRange]] = field(default_factory=dict)
    damaged: dict[int, list[OffsetRange]] = field(default_factory=dict)

    @property
    def enough(self) -> bool:
        ranges = sum(map(len, (*self.batches.values(), *self.damaged.values())))
        return len(self.records) + ranges >= self.most


class _Search:
    """Receiver of batches that checks the timestamps of the records and does not keep the records."""

    def __init__(
        self, partition: int, offsets: OffsetRange, found: _RefusedOffsets, unpack_buffer: UnpackBuffer
    ) -> None:
        self.partition, self.position, self.end = partition, offsets.start, offsets.end
        self.old: list[OffsetRange] = []
        """Offsets of message sets in the older formats."""
        self.found, self._room = found, unpack_buffer

    def observe(self, log_start: int) -> None:
        """Ignore offsets that have expired in the meantime. A different search finds expired offsets."""

    def missing(self, until: int) -> None:
        self.position = max(self.position, min(until, self.end))

    def take(self, batches: Batches, aborted: Iterable[tuple[int, int]]) -> None:
        left = Piece(self.partition, OffsetRange(self.position, self.end))
        until = min(batches.next_offset, self.end)
        try:
            some = wanted(batches, list(aborted), left)
        except OldFormat:
            before = self.old.pop() if self.old and self.old[-1].end == self.position else None
            self.old.append(OffsetRange(self.position if before is None else before.start, until))
        else:
            self._look(batches, some, left)
        self.position = until

    def _look(self, batches: Batches, some: Longs, left: Piece) -> None:
        try:
            self.found.records += self._unreadable(batches, some, left)
            return
        except Damage as damage:
            if len(some) == 1:
                there = batches.range_of(damage.offset)
                inside = OffsetRange(max(there.start, left.wanted.start), min(there.end, left.wanted.end))
                found = self.found.batches if isinstance(damage, TooLarge) else self.found.damaged
                found.setdefault(self.partition, []).append(inside)
                return
        for each in np.split(some, len(some)):
            self._look(batches, each, left)

    def _unreadable(self, batches: Batches, some: Longs, left: Piece) -> Sequence[tuple[int, int, int]]:
        found: list[tuple[int, int, int]] = []
        for offsets, stamps in timestamps(batches, some, left, self._room):
            wrong = (stamps < FIRST_READABLE_MS) | (stamps > LAST_READABLE_MS)
            found += zip(
                [self.partition] * int(wrong.sum()), offsets[wrong].tolist(), stamps[wrong].tolist(), strict=True
            )
        return found
