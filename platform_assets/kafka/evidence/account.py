"""Evidence: what became of every offset of a range, told from the broker's raw record batches.

Shares nothing with Spark's connector, so that the two can be held against each other. It works from batch headers and
opens only control batches and batches that compaction has thinned out: several million records a second a partition.
What each kind of offset rests on is told by `accounts.OffsetAccount`.
"""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from platform_assets.errors import ConfigurationError, Terminal
from platform_assets.kafka.batches.fetching import Brokers
from platform_assets.kafka.batches.reading import Buffers, PartitionReading, past_the_end
from platform_assets.kafka.batches.wire import Stopped
from platform_assets.kafka.evidence.tally import EXPLAINED_HOLES, KINDS, LISTED, Kind, OffsetAccount, Tally
from platform_assets.kafka.settings import ClientSettings
from platform_assets.model.digest import Digest
from platform_assets.model.offsets import TopicRanges
from platform_assets.model.topics import checked_topic

_VERSION: Final = 1
FETCH_BYTES: Final = 8 << 20
"""Bytes asked for at a time; a reader holds two answers of that size."""
READERS: Final = 4
"""Partitions read side by side."""
PATIENCE: Final = 30.0
"""Seconds that a broker may take to answer, retries included."""
_TOLD_EVERY = 0.25  # seconds


@dataclass(frozen=True, slots=True)
class Evidence:
    """An account of every partition of `topic`, whose id is `topic_id` (base64, as Kafka prints it).

    It is its own checkpoint: where `complete` is false it holds what is known so far, and `account(…, resume=evidence)`
    goes on from there, in another process too by way of `to_json`. `compacted` says whether the topic's cleanup.policy
    allowed compaction, which is all that the kind `compacted_away` rests on.
    """

    topic: str
    topic_id: str
    compacted: bool
    by_partition: Mapping[int, OffsetAccount]

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_partition", MappingProxyType(dict(sorted(self.by_partition.items()))))

    @classmethod
    def unread(cls, topic: str, topic_id: str, ranges: TopicRanges, *, compacted: bool) -> Evidence:
        """Nothing looked at yet."""
        return cls(topic, topic_id, compacted, {p: OffsetAccount.empty(r) for p, r in ranges.items()})

    @property
    def ranges(self) -> TopicRanges:
        """What was asked for."""
        return TopicRanges({p: a.range for p, a in self.by_partition.items()})

    @property
    def complete(self) -> bool:
        """Whether every offset was looked at. If not, a deadline cut the reading short."""
        return all(a.complete for a in self.by_partition.values())

    @property
    def explained(self) -> bool:
        """Whether every offset was looked at and none is unexplained: records + explained holes = end - start."""
        return self.complete and not self.unexplained

    @property
    def done(self) -> int:
        """Number of offsets looked at, out of `total`."""
        return sum(a.reached - a.range.start for a in self.by_partition.values())

    @property
    def total(self) -> int:
        """Number of offsets asked for."""
        return sum(a.range.size for a in self.by_partition.values())

    @property
    def records(self) -> int:
        """Number of committed records found."""
        return self._count("records")

    @property
    def holes(self) -> Mapping[Kind, int]:
        """Number of offsets without a committed record by kind, kinds that do not occur left out."""
        return {kind: count for kind in KINDS[1:] if (count := self._count(kind))}

    @property
    def explained_holes(self) -> int:
        """Number of offsets without a committed record for which there is a reason."""
        return sum(self._count(kind) for kind in EXPLAINED_HOLES)

    @property
    def unexplained(self) -> tuple[tuple[int, int, int], ...]:
        """`(partition, start, end)`, end exclusive, of offsets without a reason; each account counts what it cut."""
        return tuple((p, r.start, r.end) for p, a in self.by_partition.items() for r in a.unexplained.listed)

    @property
    def digest(self) -> Digest:
        """Digest of all committed records' offsets, to be compared with that of the rows loaded."""
        return sum((a.digest for a in self.by_partition.values()), Digest(0, 0))

    @property
    def remarks(self) -> tuple[str, ...]:
        """What a reader of this evidence has to know besides the numbers, in sentences."""
        remarks = []
        if self._count("compacted_away"):
            remarks.append(
                f"{self._count('compacted_away')} offsets are missing and taken for compacted away because the topic's "
                "cleanup.policy allows compaction; compaction leaves no proof of its own."
            )
        if not self.complete:
            remarks.append(f"Cut short: {self.done} of {self.total} offsets were looked at; resume from this evidence.")
        return tuple(remarks)

    def _count(self, kind: Kind) -> int:
        return sum(a.of(kind).offsets for a in self.by_partition.values())

    def to_json(self) -> str:
        """One JSON object with a version number; `from_json` reads it back."""
        return json.dumps(
            {
                "version": _VERSION,
                "topic": self.topic,
                "topic_id": self.topic_id,
                "compacted": self.compacted,
                "partitions": {str(p): a.as_json() for p, a in self.by_partition.items()},
            }
        )

    @classmethod
    def from_json(cls, text: str) -> Evidence:
        """The inverse of `to_json`. Raises ValueError where `text` is no evidence or contradicts itself."""
        try:
            value: dict[str, Any] = json.loads(text)
            if value["version"] != _VERSION:
                raise ValueError(f"version {value['version']!r} of evidence is unknown")
            accounts = {int(p): OffsetAccount.from_json(a) for p, a in value["partitions"].items()}
            return cls(value["topic"], value["topic_id"], value["compacted"], accounts)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not the JSON of evidence: {type(error).__name__} {error}") from None


def account(
    settings: ClientSettings,
    topic: str,
    topic_id: str,
    ranges: TopicRanges,
    *,
    compacted: bool,
    deadline: float,
    progress: Callable[[Evidence], None] | None = None,
    resume: Evidence | None = None,
    readers: int = READERS,
    fetch_bytes: int = FETCH_BYTES,
    patience: float = PATIENCE,
    listed: int = LISTED,
) -> Evidence:
    """Account for every offset of `ranges` from the broker's record batches.

    `topic_id` is the id that the ranges belong to (base64, as Kafka prints it). `compacted`: whether the topic's
    cleanup.policy contains "compact". `deadline` (of `time.monotonic`) cuts the reading short: the evidence is then not
    `complete`, and handing it in as `resume` goes on and ends in what one go would have given. `progress` is called a
    few times a second, in the caller's thread, with the evidence so far, which is a checkpoint as well.

    Memory is bounded whatever the ranges: `2 * readers * fetch_bytes`, unless single batches are larger, and `listed`
    ranges of each kind a partition. Each partition's offsets are told as of the moment they were read.

    Raises:
        UnstableEndError: a range ends past the last stable offset.
        TruncationError: a range ends past the end of the log.
        TopicRecreatedError, TopicMissingError: the name stands for another topic id now, or for none.
        DamagedBatchError: a batch is not intact; says where.
        BrokerUnreachableError: no answer for `patience` seconds; the last evidence given to `progress` stays good.
        BrokerRefusedError, ConfigurationError, TopicNameError: the settings, rights or arguments are wrong.
    """
    checked_topic(topic)
    if readers < 1 or fetch_bytes < 1 or listed < 0:
        raise ConfigurationError("readers and fetch_bytes have to be positive, listed at least 0")
    begun = Evidence.unread(topic, topic_id, ranges, compacted=compacted)
    if resume is not None:
        asked, given = ((e.topic, e.topic_id, e.compacted, e.ranges) for e in (begun, resume))
        if asked != given:
            raise ConfigurationError(f"the evidence to resume is about {given}, but {asked} was asked for")
        begun = resume
    work = _Work(settings, begun, deadline, readers, fetch_bytes, patience, listed)
    return work.run(progress)


class _Work:
    """One call of `account`: the readers' threads and what they have told."""

    def __init__(
        self,
        settings: ClientSettings,
        begun: Evidence,
        deadline: float,
        readers: int,
        fetch_bytes: int,
        patience: float,
        listed: int,
    ) -> None:
        self._settings, self._begun, self._deadline = settings, begun, deadline
        self._fetch_bytes, self._patience, self._listed = fetch_bytes, patience, listed
        self._stop = threading.Event()
        self._told: dict[int, OffsetAccount] = dict(begun.by_partition)
        self._failures: list[BaseException] = []
        self._partitions: queue.SimpleQueue[int] = queue.SimpleQueue()
        waiting = {p: a.range.end - a.reached for p, a in begun.by_partition.items() if not a.complete}
        self._waiting = sorted(waiting, key=lambda p: -waiting[p])  # the longest first, so that none is left to the end
        self._readers = min(readers, len(waiting))

    def run(self, progress: Callable[[Evidence], None] | None) -> Evidence:
        if not self._waiting or self._stopped():
            return self._begun
        try:
            self._refuse_unstable_ends()
        except Stopped:
            return self._begun
        for partition in self._waiting:
            self._partitions.put(partition)
        threads = [threading.Thread(target=self._read, name=f"evidence-{n}", daemon=True) for n in range(self._readers)]
        try:
            for thread in threads:
                thread.start()
            while any(thread.is_alive() for thread in threads):
                for thread in threads:
                    thread.join(_TOLD_EVERY / len(threads))
                if progress is not None:
                    progress(self._so_far())
        finally:
            self._stop.set()
            for thread in threads:
                thread.join()
        found = self._so_far()
        if progress is not None:
            progress(found)
        if self._failures:
            raise next((f for f in self._failures if isinstance(f, Terminal)), self._failures[0])
        return found

    def _stopped(self) -> bool:
        return self._stop.is_set() or time.monotonic() >= self._deadline

    def _so_far(self) -> Evidence:
        return Evidence(self._begun.topic, self._begun.topic_id, self._begun.compacted, self._told.copy())

    def _brokers(self) -> Brokers:
        return Brokers(
            self._settings, self._begun.topic, self._begun.topic_id, patience=self._patience, stopped=self._stopped
        )

    def _refuse_unstable_ends(self) -> None:
        """Before anything is read: a refusal after a long audit would waste it."""
        brokers = self._brokers()
        try:
            stable = brokers.last_stable_offsets(self._waiting)
            for partition in sorted(stable):
                if stable[partition] < (end := self._told[partition].range.end):
                    raise past_the_end(brokers, partition, end, stable[partition])
        finally:
            brokers.close()

    def _read(self) -> None:
        """A reader's thread: one partition after another."""
        brokers, buffers = self._brokers(), Buffers(self._fetch_bytes)
        try:
            while not self._stopped():
                try:
                    partition = self._partitions.get_nowait()
                except queue.Empty:
                    break
                told = self._told[partition]
                tally = Tally(partition, told, compacted=self._begun.compacted, listed=self._listed)
                reading = PartitionReading(brokers, tally, buffers)
                try:
                    self._go_on(reading, tally)
                finally:
                    self._told[partition] = tally.account()
        except Stopped:
            pass
        except BaseException as failure:  # noqa: BLE001 - carried over to the caller's thread, which raises it
            self._failures.append(failure)
            self._stop.set()
        finally:
            brokers.close()

    def _go_on(self, reading: PartitionReading, tally: Tally) -> None:
        tell_at = time.monotonic() + _TOLD_EVERY
        try:
            while not tally.done and not self._stopped():
                reading.step()
                if time.monotonic() > tell_at:
                    self._told[tally.partition] = tally.account()
                    tell_at = time.monotonic() + _TOLD_EVERY
        finally:
            reading.abandon()
