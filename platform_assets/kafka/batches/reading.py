"""Reading one partition's record batches in order, into whatever counts or decodes them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Protocol

from platform_assets.errors import BatchTooLargeError, DamagedBatchError, TruncationError, UnstableEndError
from platform_assets.kafka.batches.absence import Found, PresentFetch
from platform_assets.kafka.batches.damage import Damage, TooLarge
from platform_assets.kafka.batches.fetching import OFFSET_OUT_OF_RANGE, Brokers, FetchedPartition, Transient
from platform_assets.kafka.batches.record_batches import Batches
from platform_assets.kafka.batches.wire import Connection

_FIRST_FETCH: Final = 1 << 20
_SMALLEST_FETCH: Final = 1 << 16


class BatchSink(Protocol):
    """Receives the batches of one partition; its `position` says how far it has come."""

    @property
    def partition(self) -> int:
        """The Kafka partition."""

    @property
    def position(self) -> int:
        """The first offset that it still wants. Moves ahead only."""

    @property
    def end(self) -> int:
        """Exclusive end of the wanted offsets."""

    def observe(self, log_start: int) -> None:
        """The partition's first offset, as the broker gave it with the answer that follows."""

    def missing(self, until: int) -> None:
        """The log shows that it has no batch in `[position, until)`; `until` may lie past `end`."""

    def take(self, batches: Batches, aborted: Iterable[tuple[int, int]]) -> None:
        """Batches that hold `position` or follow it, and begin before `end`; the last one may pass it.

        They are gone when the next ones come, since the buffers are used again. `aborted` are the aborted transactions
        that the broker listed for this very fetch, as `(producer id, first offset)`. May raise Damage.
        """


class Buffers:
    """Two buffers that take turns, for the answer in use and the one that arrives; made once a thread."""

    def __init__(self, fetch_bytes: int) -> None:
        self.fetch_bytes = fetch_bytes
        self._pair = [bytearray(), bytearray()]

    def next(self, expected: int) -> bytearray:
        """The one that has rested, with room for `expected` bytes of records."""
        self._pair.reverse()
        if len(self._pair[0]) < expected:
            self._pair[0] = bytearray(min(2 * expected, self.fetch_bytes) + (1 << 16))
        return self._pair[0]


class PartitionReading:
    """Steps through one partition, always one fetch ahead: the broker works while the last answer is used.

    The sink is told that offsets are missing only if the log shows it; see `batches.absence`. It gets the intact batches before a
    damaged one, so damage ends the reading only of offsets at or after it.
    """

    def __init__(self, brokers: Brokers, sink: BatchSink, buffers: Buffers) -> None:
        self._brokers, self._sink, self._buffers = brokers, sink, buffers
        self._from = sink.position
        self._size = min(_FIRST_FETCH, buffers.fetch_bytes)
        self._asked: Connection | None = None
        self._fetch = PresentFetch(brokers, sink.partition)
        self._doing = f"reading topic {brokers.topic!r} partition {sink.partition}"

    def step(self) -> None:
        """Read one answer and hand on what it holds. Raises what `gather_evidence` does, and `wire.Stopped`."""
        where = self._brokers.topic, self._sink.partition
        try:
            found = self._brokers.persist(self._doing, self._found)
            batches, damage = found.batches.intact()
            if damage is not None and (not len(batches) or batches.next_offset <= self._sink.position):
                raise damage
        except Damage as damage:
            # A damaged header's offset counts only if a batch there could hold what was asked for.
            offset = damage.offset if 0 <= damage.offset <= self._from else self._from
            raise DamagedBatchError(*where, offset, damage.reason) from None
        try:
            self._take(found.answer, batches, whole=damage is None)
        except TooLarge as large:
            there = batches.range_of(large.offset)
            raise BatchTooLargeError(*where, there.start, there.end, large.reason, large.variable) from None
        except Damage as damage:
            raise DamagedBatchError(*where, damage.offset, damage.reason) from None

    def abandon(self) -> None:
        """End the reading: an answer that was asked for and not read is dropped with its connection."""
        if self._asked is not None:
            self._asked = None
            self._brokers.close()

    def _found(self) -> Found:
        """One try; without batches only if the log shows that there are none before the end."""
        sink = self._sink
        asked, self._asked = self._asked, None
        found = self._fetch.attempt(self._from, sink.end, self._size, self._buffers.next(self._size), asked)
        if found.answer.error == OFFSET_OUT_OF_RANGE:
            self._move_to_log_start()
            found = self._fetch.attempt(self._from, sink.end, self._size, self._buffers.next(self._size))
        moved = self._from > sink.position
        if found.answer.error or (moved and found.answer.log_start < self._from):
            # The log start that counts is the one in an answer to a fetch, which is by topic id.
            skipped, self._from = self._from, sink.position
            raise Transient(f"offset {skipped} is the log start according to one request only")
        return found

    def _take(self, answer: FetchedPartition, batches: Batches, *, whole: bool) -> None:
        """Use intact batches; unless they are the `whole` answer, a damaged one follows, and the next fetch begins with it."""
        sink = self._sink
        sink.observe(answer.log_start)
        sink.missing(self._from)  # where the log start lies ahead, the fetch began there
        if whole and (not len(batches) or batches.next_offset <= sink.position):
            sink.missing(sink.end)
            return
        passed, self._from = batches.next_offset - self._from, batches.next_offset
        if self._from < sink.end and not batches.beyond:
            # The end of the range is not to be overshot by more than the bytes of an offset so far suggest.
            left = (sink.end - self._from) * len(answer.records) / max(passed, 1)
            self._size = min(self._buffers.fetch_bytes, max(_SMALLEST_FETCH, int(left * 1.1)))
            self._ask_ahead()
        sink.take(batches, answer.aborted)
        if batches.beyond:
            sink.missing(sink.end)

    def _ask_ahead(self) -> None:
        try:
            self._asked = self._brokers.ask(self._sink.partition, self._from, self._size)
        except (OSError, Transient):
            self._asked = None  # the next step asks again, and persists

    def _move_to_log_start(self) -> None:
        """Go on at the log start: the broker has dropped the offset asked for, or its log ends before it."""
        sink = self._sink
        log_start = self._brokers.log_start(sink.partition)
        if log_start > self._from:
            self._from = log_start
            return
        stable = self._brokers.last_stable_offsets([sink.partition])[sink.partition]
        if stable < sink.end:
            raise past_the_end(self._brokers, sink.partition, sink.end, stable)
        raise Transient(f"offset {self._from} is out of range, although the log goes from {log_start} to {stable}")


def past_the_end(brokers: Brokers, partition: int, end: int, stable: int) -> UnstableEndError | TruncationError:
    """Why a range may not end where it does: open transactions, or a log that is shorter."""
    high = brokers.high_watermark(partition)
    if high < end:
        return TruncationError(brokers.topic, partition, end, high)
    return UnstableEndError(brokers.topic, partition, end, stable)
