"""Transactions that send records and record the progress, for published topics and for dead letters.

Only Kafka records what was sent: each transaction also writes to a compacted topic, `<topic>.published`. There is one
transactional id per topic, which fences an earlier publisher. The progress is read only after `init_transactions` has
returned: by then, the earlier publisher's open transaction has ended, and it cannot commit another one. After any error
whose outcome is not known, discard the session; the next one reads what was committed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, ClassVar, Final, NamedTuple

import numpy as np
import numpy.typing as npt
from confluent_kafka import OFFSET_BEGINNING, KafkaError, KafkaException, Producer, TopicPartition

from platform_assets.errors import (
    BrokerUnreachableError,
    ConfigurationError,
    PublishingInterruptedError,
    PublishingProgressLostError,
    PublishingRefusedError,
    Retryable,
    Terminal,
)
from platform_assets.kafka.client_errors import REFUSALS, error_of, is_out_of_reach
from platform_assets.kafka.cluster import Cluster, FoundOffset, TopicState
from platform_assets.kafka.plain_consumer import consume, plain_consumer
from platform_assets.kafka.rights import needed
from platform_assets.model.logs import logger
from platform_assets.model.publishing import SUFFIX

_log = logger(__name__)

_PROGRESS_PARTITION: Final = 0
_POLL: Final = 0.1
_PAUSE: Final = 0.1
_PATIENCE: Final = 30.0
_LARGEST: Final = 64 << 20
_QUEUE: Final = 200_000
_END_WAIT_MS: Final = 100
_FENCED: Final = frozenset({KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED})

Headers = list[tuple[str, bytes | None]]
Record = tuple[bytes | None, bytes | None, Headers]
"""Key, value and headers."""
Unplaced = tuple[bytes | None, bytes | None, Headers | None]


class Span(NamedTuple):
    """Offsets `[start, end)` of a partition that hold this number of records, and markers of transactions."""

    partition: int
    start: int
    end: int
    records: int


@dataclass
class Placed:
    """Records with their partitions out of `number`. Once they are sent, `spans` are the offsets at which they are."""

    records: Iterable[Unplaced]
    partitions: npt.NDArray[np.int32]
    number: int
    spans: tuple[Span, ...] = ()

    def __len__(self) -> int:
        return len(self.partitions)

    def reports(self) -> dict[int, _Ends]:
        """Return the places of the first and last record of each partition, with the object that collects the offsets that
        Kafka reports for them."""
        found: dict[int, _Ends] = {}
        for partition in np.unique(self.partitions).tolist():
            places = np.flatnonzero(self.partitions == partition)
            ends = _Ends(partition, len(places))
            found[int(places[0])] = found[int(places[-1])] = ends
        return found


@dataclass
class _Ends:
    """The offsets of the first and last of `count` records that are sent to a partition."""

    partition: int
    count: int
    offsets: list[int] = field(default_factory=list)

    @property
    def span(self) -> Span | None:
        """The offsets of the records; None if Kafka has not reported them."""
        reports = min(self.count, 2)
        if len(self.offsets) != reports or min(self.offsets) < 0:
            return None
        return Span(self.partition, self.offsets[0], self.offsets[-1] + 1, self.count)


@dataclass(frozen=True, slots=True)
class Topics:
    """The ids of a published topic and of its progress topic, which is empty if that topic is missing."""

    target: str
    progress: str


@dataclass(frozen=True, slots=True)
class Committed:
    """The newest committed record of each key in the progress topic with this id. `elsewhere` has the newest records in
    other partitions than the one that publishers write to, by partition and key. With `is_open`, a transaction had not
    ended for readers: Kafka answers a commit before readers see it, so records of a committed transaction may be
    missing."""

    topic_id: str = ""
    records: Mapping[bytes, bytes] = field(default_factory=dict)
    elsewhere: Mapping[tuple[int, bytes], bytes] = field(default_factory=dict)
    is_open: bool = False


@dataclass(frozen=True)
class Target:
    """The topic to which records are published. `seconds` limits each transaction."""

    cluster: Cluster
    topic: str
    seconds: float = 60.0
    before_step: Callable[[str], None] = lambda step: None
    """Called with the name of each irreversible step before that step. Tests kill a process at that point."""
    records: ClassVar[str] = "rows were published"
    """Description of the progress topic's records, for messages."""

    def refused(self, reason: str, right: str = "", *, is_invalid: bool = False) -> Terminal:
        """Return the error of a broker that refused a record."""
        return PublishingRefusedError(self.topic, reason, right, is_invalid=is_invalid)

    def interrupted(self, doing: str, reason: str, *, fenced: bool = False, timed_out: bool = False) -> Retryable:
        """Return the error of a step whose outcome is unknown."""
        return PublishingInterruptedError(self.topic, doing, reason, fenced=fenced, timed_out=timed_out)

    @property
    def progress_topic(self) -> str:
        """Name of the compacted topic that records what was sent."""
        return f"{self.topic}{SUFFIX}"

    @property
    def transactional_id(self) -> str:
        """The transactional id that all publishers of the topic share."""
        return f"platform-assets.published.{self.topic}"

    @property
    def earlier_ids(self) -> tuple[str, ...]:
        """Transactional ids that earlier releases used in place of `transactional_id`."""
        return ()

    def prepare(self, recorded: Topics | None = None) -> Topics:
        """Check both topics and the rights on them; create the progress topic if it is missing and, according to
        `recorded`, nothing was sent before. Return the ids of the topics.

        Raises TopicMissingError, ConfigurationError, PublishingProgressLostError, PublishingRefusedError, and the errors
        of Cluster.
        """
        target = self.cluster.topic(self.topic).topic_id
        if self.progress_topic not in self.cluster.topics():
            self.require_same(Topics(target, ""), recorded)
            self.cluster.create_topic(self.progress_topic, {"cleanup.policy": "compact"})
        found = Topics(target, self.cluster.topic(self.progress_topic).topic_id)
        self.require_same(found, recorded)
        policy = self.cluster.topic_config(self.progress_topic).get("cleanup.policy")
        if policy != "compact":
            raise ConfigurationError(
                f"topic {self.progress_topic!r} records which {self.records}, but would lose this information, because its "
                f"cleanup.policy is {policy!r}. Set it to compact."
            )
        # The producer would report a refusal of either topic only as purged messages.
        for topic, wanted in ((self.topic, {"Write"}), (self.progress_topic, {"Read", "Write"})):
            allowed = self.cluster.allowed(topic)
            if allowed is not None and (lacking := wanted - allowed):
                right = " and ".join(f"`{each}`" for each in sorted(lacking))
                raise self.refused("Topic authorization failed", f"{right} on topic {topic!r}")
        return found

    def require_same(self, found: Topics, recorded: Topics | None) -> None:
        """Raise PublishingProgressLostError if the progress topic is not the one that has recorded what was sent to the
        same target topic."""
        if recorded is not None and recorded.target == found.target and recorded.progress != found.progress:
            cause = "was deleted and created again" if found.progress else "was deleted"
            raise PublishingProgressLostError(self.topic, self.progress_topic, cause)

    def session(self) -> Session:
        """Fence every earlier publisher, end its open transaction, and read what was committed.

        Raises PublishingInterruptedError and PublishingRefusedError.
        """
        failures: list[KafkaError] = []

        def failed(error: KafkaError | None, _: object) -> None:
            if error is not None:
                failures.append(error)

        # An earlier release that still runs must not commit any more either.
        for each in self.earlier_ids:
            self._fencing(each)
        producer = self._fencing(self.transactional_id)
        # The open transaction of an earlier publisher has ended, so the last stable offset soon reaches the watermark.
        return Session(self, producer, self._committed(self.cluster.high_watermarks), failures, failed)

    def _fencing(self, transactional_id: str) -> Producer:
        """Return a producer with a transactional id, after each earlier one is fenced and its open transaction has ended."""
        producer = Producer(
            {
                **self.cluster.settings.librdkafka(),
                "transactional.id": transactional_id,
                "transaction.timeout.ms": round(self.seconds * 1000),
                "message.max.bytes": _LARGEST,
                "queue.buffering.max.messages": _QUEUE,
                "allow.auto.create.topics": "false",
                # As the Java client does, so that joins with topics of others find keys in the same partitions.
                "partitioner": "murmur2_random",
                "linger.ms": 5,
            },
            logger=_log,
        )
        with self.translating("beginning to publish", transactional_id=transactional_id):
            producer.init_transactions(self.seconds)
        return producer

    def committed(self) -> Committed:
        """Return what is committed in the progress topic now, while a publisher may be at work; nothing if the topic is
        missing."""
        return self._committed(self.cluster.last_stable_offsets)

    def _committed(self, ends_of: Callable[[TopicState], Mapping[int, FoundOffset]]) -> Committed:
        doing = "reading what was published"
        if self.progress_topic not in self.cluster.topics():
            return Committed()
        state = self.cluster.topic(self.progress_topic)
        # Watermarks first: if the ends reach them, every transaction that was sent by then has ended for readers.
        watermarks = {p: found.offset for p, found in self.cluster.high_watermarks(state).items()}
        ends = {p: found.offset for p, found in ends_of(state).items()}
        if set(ends) != set(state.partitions):
            raise self.interrupted(doing, "not all partitions have a leader")
        newest: dict[bytes, bytes] = {}
        elsewhere: dict[tuple[int, bytes], bytes] = {}
        waiting = {p for p, end in ends.items() if end > 0}
        consumer = plain_consumer(self.cluster.settings, _END_WAIT_MS)
        try:
            consumer.assign([TopicPartition(self.progress_topic, p, OFFSET_BEGINNING) for p in waiting])
            deadline = time.monotonic() + self.seconds
            while waiting:
                if time.monotonic() > deadline:
                    reason = f"the end was not reached within {self.seconds:g} s"
                    raise self.interrupted(doing, reason)
                for message in consume(consumer, 500, 0.5):
                    error, key = message.error(), message.key()
                    if error is None:
                        if not isinstance(key, bytes):
                            continue
                        partition, value = message.partition(), message.value()
                        if partition != _PROGRESS_PARTITION:
                            elsewhere[partition, key] = value if isinstance(value, bytes) else b""
                        elif isinstance(value, bytes):
                            newest[key] = value
                        else:  # A tombstone: compaction removes the key as well.
                            newest.pop(key, None)
                    elif error.code() in REFUSALS:
                        raise self.refused(error.str(), needed(error.code(), self.progress_topic))
                    elif error.code() == KafkaError._PARTITION_EOF and message.offset() >= ends[message.partition()]:
                        waiting.discard(message.partition())
        finally:
            consumer.close()
        is_open = any(ends[p] < watermark for p, watermark in watermarks.items())
        return Committed(state.topic_id, newest, elsewhere, is_open)

    def settled_ends(self, topic: str = "") -> dict[int, int]:
        """Return the end of each partition of the topic, or of another one, once all records before it are committed or
        aborted. Raises PublishingInterruptedError if a transaction does not end."""
        state, deadline = self.cluster.topic(topic or self.topic), time.monotonic() + self.seconds
        wanted = {p: found.offset for p, found in self.cluster.high_watermarks(state).items()}
        while True:
            ends = {p: found.offset for p, found in self.cluster.last_stable_offsets(state).items()}
            if set(wanted) == set(state.partitions) and all(ends.get(p, -1) >= end for p, end in wanted.items()):
                return ends
            if time.monotonic() > deadline:
                reason = "a transaction on the topic has not ended, or a partition has no leader"
                raise self.interrupted("reading what the topic holds", reason)
            time.sleep(_PAUSE)

    @contextmanager
    def translating(
        self,
        doing: str,
        failures: Sequence[KafkaError] = (),
        *,
        transactional_id: str | None = None,
        is_transaction: bool = False,
    ) -> Iterator[None]:
        """Run a block that uses the client, and raise its errors as errors of the platform; `failures` are errors of
        single records, which are more specific. With `is_transaction`, the block is one transaction."""
        began = time.monotonic()
        try:
            yield
        except (KafkaException, KafkaError, SystemError) as e:
            raised = error_of(e)
            error = next((each for each in (*failures, raised) if each.code() in REFUSALS), raised)
            if error.code() in REFUSALS:
                rights = {
                    KafkaError.TOPIC_AUTHORIZATION_FAILED: f"`Write` on topics {self.topic!r} and {self.progress_topic!r}",
                    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: (
                        f"`Write` on transactional id {transactional_id or self.transactional_id!r}"
                    ),
                }
                right, is_invalid = rights.get(error.code(), ""), error.code() == KafkaError.INVALID_RECORD
                raise self.refused(error.str(), right, is_invalid=is_invalid) from e
            fenced, took = error.code() in _FENCED, time.monotonic() - began
            if fenced and is_transaction and took >= self.seconds:
                # The coordinator ends such a transaction as if another producer had begun: only the time tells them apart.
                reason = (
                    f"it was open for {took:,.0f} s, and Kafka ends transactions after {self.seconds:g} s; or another process "
                    "has taken over in the meantime"
                )
                raise self.interrupted(doing, reason, timed_out=True) from e
            raise self.interrupted(doing, error.str(), fenced=fenced) from e


@dataclass(frozen=True)
class Session:
    """A producer after `init_transactions`, and the progress that was committed by then. Use it until the first error."""

    target: Target
    producer: Producer
    progress: Committed
    failures: Sequence[KafkaError] = ()
    on_delivery: Callable[[KafkaError | None, object], None] = lambda error, record: None

    def send(self, records: Iterable[Record], progress: Mapping[bytes, bytes]) -> None:
        """Send the records in order, and the progress after them, in one transaction. Raises the errors of
        `send_batches`."""
        self.send_batches([records], lambda: progress)

    def send_batches(
        self, batches: Iterable[Iterable[Record] | Placed], progress: Callable[[], Mapping[bytes, bytes]]
    ) -> None:
        """Send the batches in order, and the progress after them, in one transaction. `progress` is called once the
        spans of all `Placed` records are known.

        Raises PublishingInterruptedError if the outcome is unknown or nothing was sent, and PublishingRefusedError.
        """
        target, producer = self.target, self.producer
        with target.translating("a transaction", self.failures, is_transaction=True):
            producer.begin_transaction()
            try:
                self._produce_all(batches, progress)
                target.before_step("flush")
                self._wait(target.seconds)
                target.before_step("commit")
                producer.commit_transaction(target.seconds)
            except BaseException as e:
                fatal = isinstance(e, KafkaException | SystemError) and error_of(e).fatal()
                if not fatal:
                    # An open transaction would delay readers until its timeout. A later session ends it in any case.
                    with suppress(KafkaException):
                        self._wait(1)
                        producer.abort_transaction(min(target.seconds, 10.0))
                raise
        target.before_step("next")

    def _produce_all(
        self, batches: Iterable[Iterable[Record] | Placed], progress: Callable[[], Mapping[bytes, bytes]]
    ) -> None:
        """Send records, and then the progress. A record that fails makes the commit fail. Only reports say which right is
        lacking: that of the first record is enough for that, and one for each record would take a lot of time."""
        sent: list[tuple[Placed, list[_Ends]]] = []
        is_first = True
        try:
            for batch in batches:
                if isinstance(batch, Placed):
                    sent.append((batch, self._produce_placed(batch, is_first)))
                    is_first = is_first and not len(batch)
                else:
                    is_first = self._produce(batch, is_first)
            if sent:
                self._find_spans(sent)
            for key, value in progress().items():
                self._produce_one(
                    self.target.progress_topic, value, key, partition=_PROGRESS_PARTITION, on_delivery=self.on_delivery
                )
        except KafkaException as e:
            if e.args[0].code() in (KafkaError._STATE, KafkaError._FATAL):
                # A record was refused, or another publisher has taken over. The transaction can only be aborted now, and
                # why is said by its commit.
                self.producer.commit_transaction(self.target.seconds)
            raise

    def _produce(self, records: Iterable[Record], is_first: bool) -> bool:
        """Send records with headers. Return True if none was sent, and none before."""
        topic, produce = self.target.topic, self.producer.produce
        for key, value, headers in records:
            if is_first:
                self._produce_one(topic, value, key, headers=headers, on_delivery=self.on_delivery)
                self.target.before_step("first")
                is_first = False
                continue
            try:
                produce(topic, value, key, headers=headers)
            except BufferError:
                self._produce_one(topic, value, key, headers=headers)
        return is_first

    def _produce_placed(self, batch: Placed, is_first: bool) -> list[_Ends]:
        topic, produce, reports = self.target.topic, self.producer.produce, batch.reports()
        rows, at = zip(batch.records, batch.partitions.tolist()), 0  # noqa: B905 - some records are left out
        for place in sorted(reports):
            # Most records need no report. Each argument that they do without saves time.
            for (key, value, headers), partition in islice(rows, place - at):
                try:
                    if headers is None:
                        produce(topic, value, key, partition)
                    else:
                        produce(topic, value, key, partition, headers=headers)
                except BufferError:
                    self._produce_one(topic, value, key, partition=partition, headers=headers or [])
            (key, value, headers), partition = next(rows)
            at, reporting = place + 1, self._reporting(reports[place])
            self._produce_one(topic, value, key, partition=partition, headers=headers or [], on_delivery=reporting)
            if is_first:
                self.target.before_step("first")
                is_first = False
        return list({id(each): each for each in reports.values()}.values())

    def _reporting(self, ends: _Ends) -> Callable[[KafkaError | None, Any], None]:
        def report(error: KafkaError | None, record: Any) -> None:
            self.on_delivery(error, record)
            if error is None:
                ends.offsets.append(record.offset())

        return report

    def _find_spans(self, sent: Sequence[tuple[Placed, list[_Ends]]]) -> None:
        """Wait until Kafka has the records, and note at which offsets they are."""
        self._wait(self.target.seconds)
        for batch, parts in sent:
            spans = [each.span for each in parts]
            if None in spans:
                if self.failures:
                    self.producer.commit_transaction(self.target.seconds)  # It fails, and names the cause.
                reason = "Kafka did not report the offsets of all records"
                raise self.target.interrupted("a transaction", reason)
            batch.spans = tuple(span for span in spans if span is not None)

    def _wait(self, seconds: float) -> None:
        """Wait until Kafka has answered for all records, up to this many seconds.

        `flush` continues to call Python after one of the client's callbacks has raised a fatal error, so its caller may get any
        other error instead. `poll` ends there.
        """
        until = time.monotonic() + seconds
        while len(self.producer) and (left := until - time.monotonic()) > 0:
            self.producer.poll(min(left, _POLL))

    def _produce_one(self, topic: str, value: bytes | None, key: bytes | None, **given: Any) -> None:
        while True:
            try:
                self.producer.produce(topic, value, key, **given)
                return
            except BufferError:  # The client's queue is full: let it send.
                self.producer.poll(_POLL)


def require_topic(cluster: Cluster, topic: str, topic_id: str) -> None:
    """Raise PublishingInterruptedError if the topic has another id now: its progress would not count."""
    doing = "comparing the topic's id"
    try:
        found = cluster.topic(topic).topic_id
    except BrokerUnreachableError as e:
        raise PublishingInterruptedError(topic, doing, str(e)) from e
    if found != topic_id:
        reason = "the topic was deleted and created again, and the next run sends everything to the new topic"
        raise PublishingInterruptedError(topic, doing, reason, again=False)


def committed_records(cluster: Cluster, topic: str, partition: int, start: int, end: int) -> Iterator[Any]:
    """Yield the committed records in `[start, end)` of a partition."""
    if start >= end:
        return
    consumer = plain_consumer(cluster.settings)
    doing = f"reading topic {topic!r} partition {partition}"
    until = time.monotonic() + _PATIENCE
    with closing(consumer):
        consumer.assign([TopicPartition(topic, partition, start)])
        while True:
            for message in consume(consumer, 10_000, 1.0):
                error = message.error()
                if error is not None and error.code() != KafkaError._PARTITION_EOF:
                    if is_out_of_reach(error):
                        continue
                    raise BrokerUnreachableError(doing, _PATIENCE, error.str())
                until = time.monotonic() + _PATIENCE
                if (message.offset() or 0) >= end:
                    return
                if error is None:
                    yield message
                    if message.offset() == end - 1:
                        return
            if time.monotonic() > until:
                raise BrokerUnreachableError(doing, _PATIENCE, "no message arrived")
