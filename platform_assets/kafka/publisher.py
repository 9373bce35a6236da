"""Transactions that send records and record the progress, for published topics.

Only Kafka records what was sent: each transaction also writes to a compacted topic, `<topic>.published`. There is one
transactional id per topic, which fences an earlier publisher. The progress is read only after `init_transactions` has
returned: by then, the earlier publisher's open transaction has ended, and it cannot commit another one. After any error
whose outcome is not known, discard the session; the next one reads what was committed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

from confluent_kafka import OFFSET_BEGINNING, KafkaError, KafkaException, Producer, TopicPartition

from platform_assets.errors import (
    ConfigurationError,
    PublishingInterruptedError,
    PublishingProgressLostError,
    PublishingRefusedError,
)
from platform_assets.kafka.cluster import Cluster, FoundOffset, TopicState
from platform_assets.kafka.outbox import REFUSALS, error_of
from platform_assets.kafka.plain_consumer import consume, plain_consumer
from platform_assets.kafka.rights import needed
from platform_assets.model.logs import logger
from platform_assets.model.publishing import SUFFIX

_log = logger(__name__)

_PROGRESS_PARTITION: Final = 0
_LARGEST: Final = 64 << 20
_QUEUE: Final = 200_000
_END_WAIT_MS: Final = 100
_FENCED: Final = frozenset({KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED})

Headers = list[tuple[str, bytes | None]]
Record = tuple[bytes | None, bytes | None, Headers]
"""Key, value and headers."""


@dataclass(frozen=True, slots=True)
class Topics:
    """The ids of a published topic and of its progress topic, which is empty if that topic is missing."""

    target: str
    progress: str


@dataclass(frozen=True, slots=True)
class Committed:
    """The newest committed record of each key in the progress topic with this id. `elsewhere` has the keys in other
    partitions than the one that publishers write to. With `is_open`, a transaction had not ended for readers: Kafka answers a
    commit before readers see it, so records of a committed transaction may be missing."""

    topic_id: str = ""
    records: Mapping[bytes, bytes] = field(default_factory=dict)
    elsewhere: frozenset[bytes] = frozenset()
    is_open: bool = False


@dataclass(frozen=True)
class Target:
    """The topic to which records are published. `seconds` limits each transaction."""

    cluster: Cluster
    topic: str
    seconds: float = 60.0
    before_step: Callable[[str], None] = lambda step: None
    """Called with the name of each irreversible step before that step. Tests kill a process at that point."""

    @property
    def progress_topic(self) -> str:
        """Name of the compacted topic that records what was sent."""
        return f"{self.topic}{SUFFIX}"

    @property
    def transactional_id(self) -> str:
        """The transactional id that all publishers of the topic share."""
        return f"platform-assets.published.{self.topic}"

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
                f"topic {self.progress_topic!r} records which rows were published, but would lose this information, because its "
                f"cleanup.policy is {policy!r}. Set it to compact."
            )
        # The producer would report a refusal of either topic only as purged messages.
        for topic, wanted in ((self.topic, {"Write"}), (self.progress_topic, {"Read", "Write"})):
            allowed = self.cluster.allowed(topic)
            if allowed is not None and (lacking := wanted - allowed):
                right = " and ".join(f"`{each}`" for each in sorted(lacking))
                raise PublishingRefusedError(self.topic, "Topic authorization failed", f"{right} on topic {topic!r}")
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

        producer = Producer(
            {
                **self.cluster.settings.librdkafka(),
                "transactional.id": self.transactional_id,
                "transaction.timeout.ms": round(self.seconds * 1000),
                "message.max.bytes": _LARGEST,
                "queue.buffering.max.messages": _QUEUE,
                "allow.auto.create.topics": "false",
                # As the Java client does, so that joins with topics of others find keys in the same partitions.
                "partitioner": "murmur2_random",
                "linger.ms": 20,
                "delivery.report.only.error": True,
            },
            logger=_log,
        )
        with self.translating("beginning to publish"):
            producer.init_transactions(self.seconds)
        # The open transaction of an earlier publisher has ended, so the last stable offset soon reaches the watermark.
        return Session(self, producer, self._committed(self.cluster.high_watermarks), failures, failed)

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
            raise PublishingInterruptedError(self.topic, doing, "not all partitions have a leader")
        newest: dict[bytes, bytes] = {}
        elsewhere: set[bytes] = set()
        waiting = {p for p, end in ends.items() if end > 0}
        consumer = plain_consumer(self.cluster.settings, _END_WAIT_MS)
        try:
            consumer.assign([TopicPartition(self.progress_topic, p, OFFSET_BEGINNING) for p in waiting])
            deadline = time.monotonic() + self.seconds
            while waiting:
                if time.monotonic() > deadline:
                    reason = f"the end was not reached within {self.seconds:g} s"
                    raise PublishingInterruptedError(self.topic, doing, reason)
                for message in consume(consumer, 500, 0.5):
                    error, key = message.error(), message.key()
                    if error is None:
                        if not isinstance(key, bytes):
                            continue
                        if message.partition() != _PROGRESS_PARTITION:
                            elsewhere.add(key)
                        elif isinstance(value := message.value(), bytes):
                            newest[key] = value
                        else:  # A tombstone: compaction removes the key as well.
                            newest.pop(key, None)
                    elif error.code() in REFUSALS:
                        raise PublishingRefusedError(self.topic, error.str(), needed(error.code(), self.progress_topic))
                    elif error.code() == KafkaError._PARTITION_EOF and message.offset() >= ends[message.partition()]:
                        waiting.discard(message.partition())
        finally:
            consumer.close()
        is_open = any(ends[p] < watermark for p, watermark in watermarks.items())
        return Committed(state.topic_id, newest, frozenset(elsewhere), is_open)

    @contextmanager
    def translating(self, doing: str, failures: Sequence[KafkaError] = ()) -> Iterator[None]:
        """Run a block that uses the client, and raise its errors as errors of the platform; `failures` are errors of
        single records, which are more specific."""
        try:
            yield
        except (KafkaException, SystemError) as e:
            raised = error_of(e)
            error = next((each for each in (*failures, raised) if each.code() in REFUSALS), raised)
            if error.code() in REFUSALS:
                rights = {
                    KafkaError.TOPIC_AUTHORIZATION_FAILED: f"`Write` on topics {self.topic!r} and {self.progress_topic!r}",
                    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: (
                        f"`Write` on transactional id {self.transactional_id!r}"
                    ),
                }
                right, is_invalid = rights.get(error.code(), ""), error.code() == KafkaError.INVALID_RECORD
                raise PublishingRefusedError(self.topic, error.str(), right, is_invalid=is_invalid) from e
            fenced = error.code() in _FENCED
            raise PublishingInterruptedError(self.topic, doing, error.str(), fenced=fenced) from e


@dataclass(frozen=True)
class Session:
    """A producer after `init_transactions`, and the progress that was committed by then. Use it until the first error."""

    target: Target
    producer: Producer
    progress: Committed
    failures: Sequence[KafkaError] = ()
    on_delivery: Callable[[KafkaError | None, object], None] = lambda error, record: None

    def send(self, records: Iterable[Record], progress: Mapping[bytes, bytes]) -> None:
        """Send the records in order, and the progress after them, in one transaction.

        Raises PublishingInterruptedError if the outcome is unknown or nothing was sent, and PublishingRefusedError.
        """
        target, producer = self.target, self.producer
        with target.translating("a transaction", self.failures):
            producer.begin_transaction()
            try:
                self._produce_all(records, progress)
                target.before_step("flush")
                producer.flush(target.seconds)
                target.before_step("commit")
                producer.commit_transaction(target.seconds)
            except BaseException as e:
                fatal = isinstance(e, KafkaException | SystemError) and error_of(e).fatal()
                if not fatal:
                    # An open transaction would delay readers until its timeout. A later session ends it in any case.
                    with suppress(KafkaException):
                        producer.flush(1)
                        producer.abort_transaction(min(target.seconds, 10.0))
                raise
        target.before_step("next")

    def _produce_all(self, records: Iterable[Record], progress: Mapping[bytes, bytes]) -> None:
        try:
            self._produce(records)
            for key, value in progress.items():
                self._produce_one(
                    self.target.progress_topic, value, key, partition=_PROGRESS_PARTITION, on_delivery=self.on_delivery
                )
        except KafkaException as e:
            if e.args[0].code() in (KafkaError._STATE, KafkaError._FATAL):
                # A record was refused, or another publisher has taken over. The transaction can only be aborted now, and
                # why is said by its commit.
                self.producer.commit_transaction(self.target.seconds)
            raise

    def _produce(self, records: Iterable[Record]) -> None:
        topic, produce, left = self.target.topic, self.producer.produce, iter(records)
        # A record that fails makes the commit fail. Only reports say which right is lacking: those of the first record
        # of each topic are enough for that, and one for each record would take a lot of time.
        for key, value, headers in islice(left, 1):
            self._produce_one(topic, value, key, headers=headers, on_delivery=self.on_delivery)
            self.target.before_step("first")
        for key, value, headers in left:
            try:
                produce(topic, value, key, headers=headers)
            except BufferError:
                self._produce_one(topic, value, key, headers=headers)

    def _produce_one(self, topic: str, value: bytes | None, key: bytes | None, **given: Any) -> None:
        while True:
            try:
                self.producer.produce(topic, value, key, **given)
                return
            except BufferError:  # The client's queue is full: let it send.
                self.producer.poll(0.1)
