"""Fetching below the last stable offset, where an empty answer is no sign that a log holds nothing.

Brokers answer a fetch with no records and no error for reasons that say nothing of the log:

* a read from tiered storage that did not finish within the wait (KIP-405),
* a client that is over its quota (KIP-219); that answer usually has no topic either, see `fetching.Throttled`,
* a replica in the client's rack that is behind its leader (KIP-392).

What a log lacks is shown by the log alone. A broker that is asked for an offset returns the first batch that ends at this
offset or later: over a gap that the cleaner left, it continues to the next batch, also in the next segment. So
`[offset, end)` is known to hold no record if and only if

* the log start lies at or above `end`: the answer is OFFSET_OUT_OF_RANGE, or names that log start,
* a batch spans it: what the cleaner leaves of a batch keeps its first and last offset,
* or the first batch that a fetch at `offset` returns begins at `end` or later.

A read_committed fetch stops at the last stable offset, so it returns no batch if the cleaner removed all records from
`offset` up to there. The batch after the gap is then part of an open transaction, and a read_uncommitted fetch returns it:
that batch is asked for each time an answer is empty. The cleaner leaves the active segment alone, and a segment is rolled for
the record that goes into the next one, so such a batch exists unless the active segment was emptied by other means.

Then no batch can show the gap, and only the leader's own log can: its read goes through the segments on its disks and
gives nothing if none of them has a batch at the offset or later (`LocalLog.read` of Apache Kafka). An empty answer comes from
that read if

* the leader answers, not a replica in the client's rack,
* its disks hold the offset: it is at or above the local log start that ListOffsets gives since Kafka 3.6, so no remote
  storage is asked,
* no quota is used up: the answer has no throttle time,
* and the fetch was read_uncommitted, with a high watermark and a last stable offset at `end` or later.

This counts only after several such answers in a row, each on a new connection and with the leader looked up again. Otherwise the
question stays open: `EmptyAnswersError`, which the next record in the partition ends.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from platform_assets.errors import EmptyAnswersError, UnstableEndError
from platform_assets.kafka.batches.damage import Damage
from platform_assets.kafka.batches.fetching import MAX_WAIT_MS, Brokers, FetchedPartition, Transient
from platform_assets.kafka.batches.record_batches import Batches
from platform_assets.kafka.batches.wire import Connection

_LONGEST_WAIT_MS: Final = 8_000
_PROBE_BYTES: Final = 1 << 14
_LOCAL_ANSWERS: Final = 3
"""Empty answers in a row from the leader's own disks that show a gap up to the end of its log."""


@dataclass(frozen=True, slots=True)
class Found:
    """An answer and its batches that begin before the end. If none of them reaches the offset, there are none before the end.

    If `answer.error` is set, it is OFFSET_OUT_OF_RANGE, and there are no batches.
    """

    answer: FetchedPartition
    batches: Batches


class PresentFetch:
    """Fetches from one partition; each returns batches or shows that there are none, as the docstring of this module says."""

    def __init__(self, brokers: Brokers, partition: int) -> None:
        self._brokers, self._partition = brokers, partition
        self._wait_ms = MAX_WAIT_MS
        self._local_answers = 0

    def attempt(self, offset: int, end: int, size: int, buffer: bytearray, asked: Connection | None = None) -> Found:
        """Fetch about `size` bytes from `offset` on, into `buffer`; one try, to be called through `Brokers.persist`.

        `end` is exclusive, and has to be stable. `asked` is the connection on which the same fetch is under way. After an
        empty answer the next try gives the broker more time. Raises what `Brokers.ask` and `receive` raise, and Damage.
        """
        brokers, partition = self._brokers, self._partition
        if asked is None:
            asked = brokers.ask(partition, offset, size, wait_ms=self._wait_ms)
        answer = brokers.receive(asked, partition, offset, buffer)
        if answer.error:
            return Found(answer, Batches.scan(answer.records[:0]))
        if answer.last_stable < end:
            verdict = UnstableEndError(brokers.topic, partition, end, answer.last_stable)
            raise Transient(f"the last stable offset went back to {answer.last_stable}", verdict)
        batches = Batches.scan(answer.records, end, brokers.limits)
        if not len(batches) and len(answer.records) and not batches.beyond:
            # The first batch is sent whole however long it is (KIP-74).
            raise Damage(offset, "the broker sent only the beginning of it")
        if offset >= end or answer.log_start >= end:
            return Found(answer, batches)
        if batches.beyond or (len(batches) and batches.next_offset > offset):
            self._wait_ms, self._local_answers = MAX_WAIT_MS, 0
            return Found(answer, batches)
        return self._uncommitted(offset, end, answer)

    def _uncommitted(self, offset: int, end: int, empty: FetchedPartition) -> Found:
        """The batch after a gap that reaches the last stable offset, found as read_uncommitted. Raises Transient."""
        brokers, partition = self._brokers, self._partition
        asked = brokers.ask(partition, offset, _PROBE_BYTES, committed=False, wait_ms=self._wait_ms)
        answer = brokers.receive(asked, partition, offset, bytearray(2 * _PROBE_BYTES))
        if answer.error:
            return Found(answer, Batches.scan(answer.records[:0]))
        batches = Batches.scan(answer.records, end, brokers.limits)
        if batches.beyond and not len(batches):
            return Found(answer, batches)
        self._local_answers = self._local_answers + 1 if self._is_local(offset, end, empty, answer) else 0
        if self._local_answers >= _LOCAL_ANSWERS:
            return Found(answer, batches)
        self._wait_ms = min(2 * self._wait_ms, _LONGEST_WAIT_MS)
        verdict = EmptyAnswersError(brokers.topic, partition, offset, end, brokers.patience)
        pause = max(empty.throttled, answer.throttled)
        raise Transient(f"the broker returned no records from offset {offset} on", verdict, pause)

    def _is_local(self, offset: int, end: int, committed: FetchedPartition, answer: FetchedPartition) -> bool:
        """Return whether two empty answers, the second read_uncommitted, come from the leader's log and reach up to `end`."""
        brokers, partition = self._brokers, self._partition
        if len(committed.records) or len(answer.records) or committed.throttled or answer.throttled:
            return False
        if min(answer.high_watermark, answer.last_stable) < end or not brokers.asks_leader(partition):
            return False
        local = brokers.local_log_start(partition)
        return local is not None and local <= offset
