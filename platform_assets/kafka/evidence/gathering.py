"""Evidence about every offset in a range, from the broker's raw record batches. This code shares nothing with Spark's
connector, so a comparison of the two results is meaningful. The code reads batch headers, and opens only control
batches and batches from which compaction has removed records. For this reason, it processes several million records per
second and partition. `partition.PartitionEvidence` says what proves each kind."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from platform_assets.errors import ConfigurationError, Terminal
from platform_assets.kafka.batches.fetching import Brokers
from platform_assets.kafka.batches.reading import Buffers, PartitionReading, past_the_end
from platform_assets.kafka.batches.wire import Stopped
from platform_assets.kafka.evidence.partition import OFFSET_KINDS, OffsetKind, PartitionEvidence
from platform_assets.kafka.evidence.tally import LISTED, PartitionTally
from platform_assets.kafka.settings import ClientSettings
from platform_assets.model.digest import Digest
from platform_assets.model.names import checked_topic
from platform_assets.model.offsets import OffsetRange, TopicRanges

FETCH_BYTES: Final = 8 << 20
"""Number of bytes per fetch. A reader holds two answers of this size."""
READERS: Final = 4
"""Number of partitions read in parallel."""
PATIENCE: Final = 30.0
"""Seconds that a broker may take to answer, including retries."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """The evidence about every partition of `topic`, whose id is `topic_id` (base64, as Kafka prints it).

    `compacted` is true if the topic's cleanup.policy allowed compaction. Nothing else supports the kind
    `compacted_away`.
    """

    topic: str
    topic_id: str
    compacted: bool
    by_partition: Mapping[int, PartitionEvidence]

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_partition", MappingProxyType(dict(sorted(self.by_partition.items()))))

    @property
    def complete(self) -> bool:
        """True if every offset was read; False if a deadline ended the reading early."""
        return all(p.complete for p in self.by_partition.values())

    @property
    def done(self) -> int:
        """Number of offsets that were read, out of `total`."""
        return sum(p.reached - p.range.start for p in self.by_partition.values())

    @property
    def total(self) -> int:
        """Number of requested offsets."""
        return sum(p.range.size for p in self.by_partition.values())

    @property
    def records(self) -> int:
        """Number of committed records found."""
        return self._count("records")

    @property
    def holes(self) -> Mapping[OffsetKind, int]:
        """Number of offsets without a committed record, by kind. Kinds that do not occur are left out."""
        return {kind: count for kind in OFFSET_KINDS[1:] if (count := self._count(kind))}

    @property
    def unexplained(self) -> tuple[tuple[int, int, int], ...]:
        """`(partition, start, end)` for each listed range of offsets for which no reason is known; `end` is exclusive."""
        return tuple((n, r.start, r.end) for n, p in self.by_partition.items() for r in p.unexplained.listed)

    @property
    def digest(self) -> Digest:
        """Digest of the offsets of all committed records, for comparison with the digest of the loaded rows."""
        return sum((p.digest for p in self.by_partition.values()), Digest(0, 0))

    def _count(self, kind: OffsetKind) -> int:
        return sum(p.of(kind).offsets for p in self.by_partition.values())


def gather_evidence(
    settings: ClientSettings,
    topic: str,
    topic_id: str,
    ranges: TopicRanges,
    *,
    compacted: bool,
    deadline: float,
    readers: int = READERS,
    fetch_bytes: int = FETCH_BYTES,
    patience: float = PATIENCE,
    listed: int = LISTED,
    without: Mapping[int, Sequence[OffsetRange]] = MappingProxyType({}),
) -> Evidence:
    """Determine the kind of every offset in `ranges` from the broker's record batches. `topic_id` is the id of the
    topic to which the ranges belong (base64, as Kafka prints it). `compacted` is true if the topic's cleanup.policy
    contains "compact". If `deadline` (a time of `time.monotonic`) ends the reading early, the evidence is not
    `complete`, and the evidence of each partition covers the offsets `[range.start, reached)`. The offsets in `without`
    are not read, and count as unexplained.

    Memory is bounded, whatever the ranges are: `2 * readers * fetch_bytes`, unless single batches are larger, plus
    `listed` ranges of each kind per partition. The result for each offset holds for the moment at which it was read.

    Raises:
        UnstableEndError: a range ends past the last stable offset.
        TruncationError: a range ends past the end of the log.
        TopicRecreatedError, TopicMissingError: the topic name now belongs to another topic id, or to no topic.
        EmptyAnswersError: a broker kept returning no records for `patience` seconds, and the log does not show that
            there are none.
        DamagedBatchError: a batch is damaged; the error gives its location.
        BatchTooLargeError: a batch that must be opened exceeds the limits in `settings`.
        BrokerUnreachableError: no answer for `patience` seconds.
        BrokerRefusedError, ConfigurationError, TopicNameError: the settings, rights or arguments are wrong.
    """
    checked_topic(topic)
    if readers < 1 or fetch_bytes < 1 or listed < 0:
        raise ConfigurationError("readers and fetch_bytes must be positive, and listed must be at least 0")
    gathering = _Gathering(settings, topic, topic_id, deadline, fetch_bytes, patience)
    tallies = {
        p: PartitionTally(p, r, compacted=compacted, without=without.get(p, ()), listed=listed)
        for p, r in ranges.items()
    }
    gathering.read([tally for tally in tallies.values() if not tally.done], readers)
    return Evidence(topic, topic_id, compacted, {p: tally.evidence() for p, tally in tallies.items()})


class _Gathering:
    """One call of `gather_evidence`: the readers' threads and their shared state."""

    def __init__(
        self, settings: ClientSettings, topic: str, topic_id: str, deadline: float, fetch_bytes: int, patience: float
    ) -> None:
        self._settings, self._topic, self._topic_id = settings, topic, topic_id
        self._deadline, self._fetch_bytes, self._patience = deadline, fetch_bytes, patience
        self._stop = threading.Event()
        self._waiting: queue.SimpleQueue[PartitionTally] = queue.SimpleQueue()

    def read(self, tallies: Sequence[PartitionTally], readers: int) -> None:
        """Read until every tally is done or the deadline has passed. If one reader fails, stop all readers, and raise
        the error of the failed reader."""
        if not tallies or self._stopped():
            return
        try:
            self._refuse_unstable_ends(tallies)
        except Stopped:
            return
        for tally in sorted(
            tallies, key=lambda t: -t.range.size
        ):  # the longest first, so that it is not left to the end
            self._waiting.put(tally)
        readers = min(readers, len(tallies))
        with ThreadPoolExecutor(readers, thread_name_prefix="evidence") as pool:
            threads = [pool.submit(self._read_partitions) for _ in range(readers)]
            try:
                failures = [failure for thread in threads if (failure := thread.exception()) is not None]
            finally:
                self._stop.set()  # an interrupted caller does not wait for all of it
        if failures:
            raise next((f for f in failures if isinstance(f, Terminal)), failures[0])

    def _stopped(self) -> bool:
        return self._stop.is_set() or time.monotonic() >= self._deadline

    def _brokers(self) -> Brokers:
        return Brokers(self._settings, self._topic, self._topic_id, patience=self._patience, stopped=self._stopped)

    def _refuse_unstable_ends(self, tallies: Sequence[PartitionTally]) -> None:
        """Check the ends of all ranges before anything is read, so that a long audit is refused at once, not only when
        it reaches an unstable end."""
        brokers = self._brokers()
        try:
            stable = brokers.last_stable_offsets([tally.partition for tally in tallies])
            for tally in tallies:
                if stable[tally.partition] < tally.range.end:
                    raise past_the_end(brokers, tally.partition, tally.range.end, stable[tally.partition])
        finally:
            brokers.close()

    def _read_partitions(self) -> None:
        """Read one partition after another. This method runs in a reader's thread."""
        brokers, buffers = self._brokers(), Buffers(self._fetch_bytes)
        try:
            while not self._stopped():
                try:
                    tally = self._waiting.get_nowait()
                except queue.Empty:
                    return
                while not tally.done and not self._stopped():
                    self._read_piece(PartitionReading(brokers, tally, buffers), tally)
        except Stopped:
            return
        except BaseException:
            self._stop.set()
            raise
        finally:
            brokers.close()

    def _read_piece(self, reading: PartitionReading, tally: PartitionTally) -> None:
        """Read up to the end of the tally's current piece, and move the tally to its next piece."""
        try:
            while not tally.piece_done and not self._stopped():
                reading.step()
        finally:
            reading.abandon()
        if tally.piece_done:
            tally.skip()
