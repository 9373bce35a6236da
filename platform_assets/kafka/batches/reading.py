"""Read one partition's record batches in order, and pass them to a sink that counts or decodes them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Protocol

from platform_assets.errors import (
    BatchTooLargeError,
    DamagedBatchError,
    EmptyAnswersError,
    TruncationError,
    UnstableEndError,
)
from platform_assets.kafka.batches.fetching import (
    MAX_WAIT_MS,
    OFFSET_OUT_OF_RANGE,
    Brokers,
    FetchedPartition,
    Transient,
)
from platform_assets.kafka.batches.record_batches import Batches
from platform_assets.kafka.batches.unpacking import Damage, TooLarge
from platform_assets.kafka.batches.wire import Connection

# Fetching below the last stable offset, where an empty answer does not mean that the log has no records.
# Brokers answer a fetch with no records and no error for reasons that prove nothing about the log:
#
# * a read from tiered storage that did not finish within the wait (KIP-405),
# * a client that is over its quota (KIP-219); that answer usually has no topic either, see `fetching.Throttled`,
# * a replica in the client's rack that lags behind its leader (KIP-392).
#
# Only the log itself shows which offsets it lacks. When a broker gets a fetch for an offset, it returns the first batch
# that ends at this offset or later: after a gap that the cleaner left, it continues with the next batch, even if that
# is in the next segment. So `[offset, end)` is known to hold no record if and only if one of these is true:
#
# * The log start lies at or above `end`: the answer is OFFSET_OUT_OF_RANGE, or reports that log start.
# * A batch spans the range: when the cleaner removes records, their batch keeps its first and last offset.
# * The first batch that a fetch at `offset` returns begins at `end` or later.
#
# A read_committed fetch stops at the last stable offset, so it returns no batch if the cleaner removed all records from
# `offset` up to there. The batch after the gap is then part of an open transaction, and only a read_uncommitted fetch
# returns it. So that batch is requested each time an answer is empty. The cleaner leaves the active segment alone, and
# a segment is rolled for the record that goes into the next segment, so such a batch exists unless the active segment
# was emptied by other means.
#
# In that case, no batch can show the gap, and only the leader's own log can: a read goes through the segments on the
# leader's disks and returns nothing if none of them has a batch at the offset or later (`LocalLog.read` of Apache
# Kafka). An empty answer comes from such a read if all of these are true:
#
# * The leader answers, not a replica in the client's rack.
# * The leader's disks hold the offset: it is at or above the local log start that ListOffsets reports since Kafka 3.6,
#   so no remote storage is read.
# * No quota is used up: the answer has no throttle time.
# * The fetch was read_uncommitted, and its high watermark and last stable offset are at `end` or later.
#
# This proves the gap only after several such answers in a row, each on a new connection and after the leader was looked
# up again. Until then, the question stays open and raises `EmptyAnswersError`; the next record in the partition
# resolves it.

_LONGEST_WAIT_MS: Final = 8_000
_PROBE_BYTES: Final = 1 << 14
_LOCAL_ANSWERS: Final = 3
"""Number of consecutive empty answers from the leader's own disks that prove that there are no records up to the end of
the leader's log."""


@dataclass(frozen=True, slots=True)
class FetchedBatches:
    """An answer, and those of its batches that begin before the end of the range. If no batch reaches the requested
    offset, there are no records from that offset to the end.

    If `answer.error` is set, it is OFFSET_OUT_OF_RANGE, and there are no batches.
    """

    answer: FetchedPartition
    batches: Batches


class PresentFetch:
    """Fetches from one partition. Each fetch either returns batches or shows that there are none, by the rules in the
    comment at the top of this module."""

    def __init__(self, brokers: Brokers, partition: int) -> None:
        self._brokers, self._partition = brokers, partition
        self._wait_ms = MAX_WAIT_MS
        self._local_answers = 0

    def attempt(
        self, offset: int, end: int, size: int, buffer: bytearray, asked: Connection | None = None
    ) -> FetchedBatches:
        """Fetch about `size` bytes from `offset` on, into `buffer`. This method makes only one try, so call it through
        `Brokers.persist`.

        `end` is exclusive, and must be stable. If the same fetch was already sent, `asked` is the connection on which
        it was sent. After an empty answer, the next try gives the broker more time. Raises whatever `Brokers.ask` and
        `Brokers.receive` raise, and Damage.
        """
        brokers, partition = self._brokers, self._partition
        if asked is None:
            asked = brokers.ask(partition, offset, size, wait_ms=self._wait_ms)
        answer = brokers.receive(asked, partition, offset, buffer)
        if answer.error:
            return FetchedBatches(answer, Batches.scan(answer.records[:0]))
        if answer.last_stable < end:
            final_error = UnstableEndError(brokers.topic, partition, end, answer.last_stable)
            raise Transient(f"the last stable offset went back to {answer.last_stable}", final_error)
        batches = Batches.scan(answer.records, end, brokers.limits)
        if not len(batches) and len(answer.records) and not batches.beyond:
            # The first batch is sent whole however long it is (KIP-74).
            raise Damage(offset, "the broker sent only the beginning of it")
        if offset >= end or answer.log_start >= end:
            return FetchedBatches(answer, batches)
        if batches.beyond or (len(batches) and batches.next_offset > offset):
            self._wait_ms, self._local_answers = MAX_WAIT_MS, 0
            return FetchedBatches(answer, batches)
        return self._uncommitted(offset, end, answer)

    def _uncommitted(self, offset: int, end: int, empty: FetchedPartition) -> FetchedBatches:
        """Check, with a read_uncommitted fetch, that the log has no records in `[offset, end)`. Return no batches if
        the log shows this; raise Transient if it does not."""
        brokers, partition = self._brokers, self._partition
        asked = brokers.ask(partition, offset, _PROBE_BYTES, committed=False, wait_ms=self._wait_ms)
        answer = brokers.receive(asked, partition, offset, bytearray(2 * _PROBE_BYTES))
        if answer.error:
            return FetchedBatches(answer, Batches.scan(answer.records[:0]))
        batches = Batches.scan(answer.records, end, brokers.limits)
        if batches.beyond and not len(batches):
            return FetchedBatches(answer, batches)
        self._local_answers = self._local_answers + 1 if self._is_local(offset, end, empty, answer) else 0
        if self._local_answers >= _LOCAL_ANSWERS:
            return FetchedBatches(answer, batches)
        self._wait_ms = min(2 * self._wait_ms, _LONGEST_WAIT_MS)
        final_error = EmptyAnswersError(brokers.topic, partition, offset, end, brokers.patience)
        pause = max(empty.throttled, answer.throttled)
        raise Transient(f"the broker returned no records from offset {offset} on", final_error, pause)

    def _is_local(self, offset: int, end: int, committed: FetchedPartition, answer: FetchedPartition) -> bool:
        """Return True if both empty answers come from the leader's own log, and show that this log holds nothing from
        `offset` to `end`. `answer` must be the answer to a read_uncommitted fetch."""
        brokers, partition = self._brokers, self._partition
        if len(committed.records) or len(answer.records) or committed.throttled or answer.throttled:
            return False
        if min(answer.high_watermark, answer.last_stable) < end or not brokers.asks_leader(partition):
            return False
        local = brokers.local_log_start(partition)
        return local is not None and local <= offset


_FIRST_FETCH: Final = 1 << 20
_SMALLEST_FETCH: Final = 1 << 16


class BatchSink(Protocol):
    """Receives the batches of one partition; `position` is the sink's progress."""

    @property
    def partition(self) -> int:
        """The Kafka partition."""

    @property
    def position(self) -> int:
        """The first offset that the sink still needs; it never decreases."""

    @property
    def end(self) -> int:
        """Exclusive end of the offsets that the sink needs."""

    def observe(self, log_start: int) -> None:
        """Record the partition's first offset, as reported in the broker's latest answer."""

    def missing(self, until: int) -> None:
        """Record that the log has no batch in `[position, until)`; `until` may be after `end`."""

    def take(self, batches: Batches, aborted: Iterable[tuple[int, int]]) -> None:
        """Take batches that contain or follow `position` and begin before `end`; the last batch may extend beyond
        `end`. The batches become invalid at the next call, because buffers are reused. `aborted` lists the aborted
        transactions that the broker returned for this fetch, as `(producer id, first offset)`. May raise Damage."""


class Buffers:
    """Two alternating buffers: one for the answer in use, and one for the next answer. They are created once per
    thread."""

    def __init__(self, fetch_bytes: int) -> None:
        self.fetch_bytes = fetch_bytes
        self._pair = [bytearray(), bytearray()]

    def next(self, expected: int) -> bytearray:
        """Return the unused buffer, with space for `expected` bytes of records."""
        self._pair.reverse()
        if len(self._pair[0]) < expected:
            self._pair[0] = bytearray(min(2 * expected, self.fetch_bytes) + (1 << 16))
        return self._pair[0]


class PartitionReading:
    """Reads one partition step by step, always one fetch ahead: the broker prepares the next answer while the current
    one is processed.

    Offsets are reported to the sink as missing only if the log proves this, by the rules in the comment at the top of
    this module. The sink gets all intact batches before a damaged batch, so damage affects only offsets at or after the
    damaged batch.
    """

    def __init__(self, brokers: Brokers, sink: BatchSink, buffers: Buffers) -> None:
        self._brokers, self._sink, self._buffers = brokers, sink, buffers
        self._from = sink.position
        self._size = min(_FIRST_FETCH, buffers.fetch_bytes)
        self._asked: Connection | None = None
        self._fetch = PresentFetch(brokers, sink.partition)
        self._doing = f"reading topic {brokers.topic!r} partition {sink.partition}"

    def step(self) -> None:
        """Read one answer and pass its batches on. Raises whatever `gather_evidence` raises, and `wire.Stopped`."""
        where = self._brokers.topic, self._sink.partition
        try:
            found = self._brokers.persist(self._doing, self._found)
            batches, damage = found.batches.intact()
            if damage is not None and (not len(batches) or batches.next_offset <= self._sink.position):
                raise damage
        except Damage as damage:
            # A damaged header's offset counts only if a batch there could have the requested offset.
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
        """End the reading. If an answer was requested but not read, close the connections, which drops the answer."""
        if self._asked is not None:
            self._asked = None
            self._brokers.close()

    def _found(self) -> FetchedBatches:
        """Try once to fetch batches. Return no batches only if the log shows that there are none before the end."""
        sink = self._sink
        asked, self._asked = self._asked, None
        found = self._fetch.attempt(self._from, sink.end, self._size, self._buffers.next(self._size), asked)
        if found.answer.error == OFFSET_OUT_OF_RANGE:
            self._move_to_log_start()
            found = self._fetch.attempt(self._from, sink.end, self._size, self._buffers.next(self._size))
        moved = self._from > sink.position
        if found.answer.error or (moved and found.answer.log_start < self._from):
            # Only the log start in an answer to a fetch counts, because a fetch names the topic id.
            skipped, self._from = self._from, sink.position
            raise Transient(
                f"the broker reported offset {skipped} as the log start, but the next fetch did not confirm this"
            )
        return found

    def _take(self, answer: FetchedPartition, batches: Batches, *, whole: bool) -> None:
        """Pass intact batches to the sink. If they are not the `whole` answer, a damaged batch follows them, and the
        next fetch begins with that batch."""
        sink = self._sink
        sink.observe(answer.log_start)
        sink.missing(self._from)  # if the log start is later, the fetch began there
        if whole and (not len(batches) or batches.next_offset <= sink.position):
            sink.missing(sink.end)
            return
        passed, self._from = batches.next_offset - self._from, batches.next_offset
        if self._from < sink.end and not batches.beyond:
            # The fetch should not pass the range's end by more than the bytes per offset so far suggest.
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
            self._asked = None  # the next step asks again, through `persist`

    def _move_to_log_start(self) -> None:
        """Continue at the log start if the broker has deleted the requested offset. Raise an error if its log ends
        before that offset."""
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
    """Return the error that says why the end of a range is invalid: open transactions, or a log that is too short."""
    high = brokers.high_watermark(partition)
    if high < end:
        return TruncationError(brokers.topic, partition, end, high)
    return UnstableEndError(brokers.topic, partition, end, stable)
