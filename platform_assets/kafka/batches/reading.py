"""Reading one partition's record batches in order, into whatever counts or decodes them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Protocol

from platform_assets.errors import DamagedBatchError, TruncationError, UnstableEndError
from platform_assets.kafka.batches.damage import Damage
from platform_assets.kafka.batches.fetching import OFFSET_OUT_OF_RANGE, Brokers, FetchedPartition, Transient
from platform_assets.kafka.batches.record_batches import Batches
from platform_assets.kafka.batches.wire import Connection

_FIRST_FETCH: Final = 1 << 20
_SMALLEST_FETCH: Final = 1 << 16
_EMPTY_ANSWERS: Final = 3


class BatchSink(Protocol):
    """What a reading hands the batches of one partition to; it says by `position` how far it has come."""

    @property
    def partition(self) -> int:
        """The Kafka partition."""

    @property
    def position(self) -> int:
        """The first offset that it still wants. Moves ahead only."""

    @property
    def end(self) -> int:
        """Where the wanted offsets end, exclusive."""

    def observe(self, log_start: int) -> None:
        """The partition's first offset, as the broker gave it with the answer that follows."""

    def missing(self, until: int) -> None:
        """The broker has no batch in `[position, until)`; `until` may lie past `end`."""

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
    """Steps through one partition, always one fetch ahead: the broker works while the last answer is used."""

    def __init__(self, brokers: Brokers, sink: BatchSink, buffers: Buffers) -> None:
        self._brokers, self._sink, self._buffers = brokers, sink, buffers
        self._from = sink.position
        self._size = min(_FIRST_FETCH, buffers.fetch_bytes)
        self._asked: Connection | None = None
        self._empty = 0
        self._doing = f"reading topic {brokers.topic!r} partition {sink.partition}"

    def step(self) -> None:
        """Read one answer and hand on what it holds. Raises what `gather_evidence` does, and `wire.Stopped`."""
        answer = self._brokers.persist(self._doing, self._answer)
        if answer.error == OFFSET_OUT_OF_RANGE:
            self._move_to_log_start()
            return
        try:
            self._take(answer)
        except Damage as damage:
            where = self._brokers.topic, self._sink.partition
            raise DamagedBatchError(*where, damage.offset, damage.reason) from None

    def abandon(self) -> None:
        """End the reading: an answer that was asked for and not read is dropped with its connection."""
        if self._asked is not None:
            self._asked = None
            self._brokers.close()

    def _answer(self) -> FetchedPartition:
        sink = self._sink
        asked, self._asked = self._asked, None
        if asked is None:
            asked = self._brokers.ask(sink.partition, self._from, self._size)
        answer = self._brokers.receive(asked, sink.partition, self._from, self._buffers.next(self._size))
        if not answer.error and answer.last_stable < sink.end:
            verdict = UnstableEndError(self._brokers.topic, sink.partition, sink.end, answer.last_stable)
            raise Transient(f"the last stable offset went back to {answer.last_stable}", verdict)
        return answer

    def _take(self, answer: FetchedPartition) -> None:
        sink = self._sink
        sink.observe(answer.log_start)
        sink.missing(self._from)  # where the log start lies ahead, the fetch began there
        batches = Batches.scan(answer.records, sink.end)
        if batches.beyond and (not len(batches) or batches.next_offset <= sink.position):
            sink.missing(sink.end)
            return
        if not len(batches) and len(answer.records):
            # The first batch is sent whole however long it is (KIP-74).
            raise Damage(self._from, "the broker sent only the beginning of it")
        if not len(batches) or batches.next_offset <= sink.position:
            self._empty += 1
            if self._empty >= _EMPTY_ANSWERS:
                sink.missing(sink.end)  # the end is stable, and the broker has nothing before it
            return
        self._empty = 0
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
        """The broker has nothing at the offset asked for: it was dropped, or the log ends before it.

        Only sets where to go on: the next answer, which is by topic id, brings the log start that counts.
        """
        sink = self._sink
        log_start = self._brokers.log_start(sink.partition)
        if log_start > self._from:
            self._from = log_start
            return
        stable = self._brokers.last_stable_offsets([sink.partition])[sink.partition]
        if stable < sink.end:
            raise past_the_end(self._brokers, sink.partition, sink.end, stable)


def past_the_end(brokers: Brokers, partition: int, end: int, stable: int) -> UnstableEndError | TruncationError:
    """Why a range may not end where it does: open transactions, or a log that is shorter."""
    high = brokers.high_watermark(partition)
    if high < end:
        return TruncationError(brokers.topic, partition, end, high)
    return UnstableEndError(brokers.topic, partition, end, stable)
