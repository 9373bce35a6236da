"""Sends records to a Kafka topic exactly once each, even if the sending process dies at any point. It is used for dead
letters that are to be read from Kafka.

Only Kafka records what was sent. In addition to the records, each transaction writes to a compacted topic,
`<topic>.sent`: for each (id of the target topic, topic id of the letter, partition, bucket of offsets), it writes one
bit per offset. There is one transactional id for each pair of topics, which fences an earlier sender. Before anything
more is sent, the earlier sender's open transaction is aborted, and its committed records are read.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import OFFSET_BEGINNING, KafkaError, KafkaException, Producer, TopicPartition

from platform_assets.errors import ConfigurationError, SendingInterruptedError, SendingRefusedError
from platform_assets.kafka.cluster import Cluster, TopicState
from platform_assets.kafka.plain_consumer import consume, plain_consumer
from platform_assets.kafka.rights import needed
from platform_assets.model.logs import logger
from platform_assets.model.names import checked_topic

_log = logger(__name__)

SUFFIX: Final = ".sent"
BUCKET: Final = 8192
"""Number of offsets in each record of the compacted topic."""
_RECORDS: Final = 500
_BYTES: Final = 8 << 20
"""Limits of one transaction. The transaction ends when it reaches the first of these limits."""
_LARGEST: Final = 64 << 20
_END_WAIT_MS: Final = 100
"""How long a broker waits before it answers that the log of the compacted topic ends. Compacted topics cannot be tiered."""
REFUSALS: Final = frozenset(
    {
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        KafkaError.INVALID_RECORD,
        KafkaError.POLICY_VIOLATION,
    }
)


def error_of(raised: KafkaException | KafkaError | SystemError) -> KafkaError:
    """Return the client's error. The client raises a fatal error in the middle of its callbacks for single records, so
    what the caller gets may be the error itself, or a SystemError that it has caused. Any other SystemError is raised
    again."""
    error = raised.__cause__ if isinstance(raised, SystemError) else raised
    if isinstance(error, KafkaError):
        return error
    if not isinstance(error, KafkaException):
        raise raised
    found: KafkaError = error.args[0]
    return found


@dataclass(frozen=True, slots=True)
class Letter:
    """One record to send, identified by its origin; `headers` are sent unchanged and in this order."""

    topic_id: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]

    @property
    def size(self) -> int:
        """Approximate size in bytes."""
        return 100 + len(self.key or b"") + len(self.value or b"") + sum(len(v or b"") for _, v in self.headers)


@dataclass(frozen=True, slots=True)
class Sent:
    """Number of letters that this call sent, and number of letters that were already sent before."""

    now: int
    before: int


@dataclass(frozen=True)
class Outbox:
    """Sends letters of the topic `source` to the topic `target`, exactly once each. `seconds` limits each step."""

    cluster: Cluster
    source: str
    target: str
    seconds: float = 60.0
    before_step: Callable[[str], None] = lambda step: None
    """Callback that is called with the name of each irreversible step before that step. Tests use it to kill a process
    at that point."""

    def send(self, letters: Iterable[Letter]) -> Sent:
        """Send the letters that were never sent, in order, in transactions. Raises TopicMissingError and
        ConfigurationError for unsuitable topics, SendingInterruptedError (retryable), and SendingRefusedError.
        Transactions that were committed before the error remain, and the next call takes them into account."""
        target = self._topics()
        producer = self._producer()
        # From here on, no other sender of these topics can commit, so what is read now stays complete.
        sent = self._sent(target)
        now = before = 0
        for batch in _batches(letters):
            new = [letter for letter in batch if not sent.has(letter)]
            before += len(batch) - len(new)
            if new:
                self._transaction(producer, new, sent.add(new))
                now += len(new)
        return Sent(now, before)

    @property
    def progress(self) -> str:
        """Name of the compacted topic that records what was sent."""
        return f"{self.target}{SUFFIX}"

    def _topics(self) -> TopicState:
        if checked_topic(self.target) == self.source:
            raise ConfigurationError(
                f"dead letters of topic {self.source!r} cannot be sent to the same topic: they would become dead "
                f"letters again. Name another topic."
            )
        target = self.cluster.topic(self.target)
        if self.progress not in self.cluster.topics():
            self.cluster.create_topic(self.progress, {"cleanup.policy": "compact"})
        policy = self.cluster.topic_config(self.progress).get("cleanup.policy")
        if policy != "compact":
            raise ConfigurationError(
                f"topic {self.progress!r} tracks which dead letters were sent, but would lose this information, because its "
                f"cleanup.policy is {policy!r}. Set it to compact."
            )
        # The producer would report a refusal of either topic only as purged messages.
        for topic, wanted in ((self.target, {"Write"}), (self.progress, {"Read", "Write"})):
            allowed = self.cluster.allowed(topic)
            if allowed is not None and (lacking := wanted - allowed):
                right = " and ".join(f"`{each}`" for each in sorted(lacking))
                raise self._refused("Topic authorization failed", f"{right} on topic {topic!r}")
        return target

    @property
    def _transactional_id(self) -> str:
        return f"platform-assets.dead-letters.{self.source}.{self.target}"

    def _producer(self) -> Producer:
        producer = Producer(
            {
                **self.cluster.settings.librdkafka(),
                "transactional.id": self._transactional_id,
                "transaction.timeout.ms": round(self.seconds * 1000),
                "message.max.bytes": _LARGEST,
                "allow.auto.create.topics": "false",
                "linger.ms": 20,
            },
            logger=_log,
        )
        with _translating(self, "beginning to send"):
            producer.init_transactions(self.seconds)
        return producer

    def _sent(self, target: TopicState) -> _Bitmaps:
        """Return all records that were committed before the current end of the log."""
        state = self.cluster.topic(self.progress)
        ends = {p: found.offset for p, found in self.cluster.high_watermarks(state).items()}
        if set(ends) != set(state.partitions):
            raise self._interrupted("reading which dead letters were already sent", "not all partitions have a leader")
        bitmaps = _Bitmaps(target.topic_id)
        waiting = {p for p, end in ends.items() if end > 0}
        consumer = plain_consumer(self.cluster.settings, _END_WAIT_MS)
        try:
            consumer.assign([TopicPartition(self.progress, p, OFFSET_BEGINNING) for p in waiting])
            deadline = time.monotonic() + self.seconds
            while waiting:
                if time.monotonic() > deadline:
                    raise self._interrupted(
                        "reading which dead letters were already sent",
                        f"the end was not reached within {self.seconds:g} s",
                    )
                for message in consume(consumer, 500, 0.5):
                    error = message.error()
                    if error is None:
                        bitmaps.read(message.key(), message.value())
                    elif error.code() in REFUSALS:
                        raise self._refused(error.str(), needed(error.code(), self.progress))
                    elif error.code() != KafkaError._PARTITION_EOF:
                        raise self._interrupted("reading which dead letters were already sent", error.str())
                    elif message.offset() >= ends[message.partition()]:
                        waiting.discard(message.partition())
        finally:
            consumer.close()
        return bitmaps

    def _transaction(self, producer: Producer, letters: Sequence[Letter], added: Sequence[tuple[bytes, bytes]]) -> None:
        failures: list[KafkaError] = []

        def delivered(error: KafkaError | None, message: Any) -> None:
            if error is not None:
                failures.append(error)

        with _translating(self, "sending", failures):
            producer.begin_transaction()
            try:
                for letter in letters:
                    headers = list(letter.headers)
                    self._produce(producer, self.target, letter.key, letter.value, headers, delivered)
                for key, value in added:
                    self._produce(producer, self.progress, key, value, [], delivered)
                producer.flush(self.seconds)
                self.before_step("commit")
                producer.commit_transaction(self.seconds)
            except KafkaException as e:
                if e.args[0].txn_requires_abort():
                    producer.abort_transaction(self.seconds)
                raise
        self.before_step("next")

    def _produce(
        self,
        producer: Producer,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: list[tuple[str, bytes | None]],
        delivered: Callable[[KafkaError | None, Any], None],
    ) -> None:
        while True:
            try:
                producer.produce(topic, value, key, headers=headers, on_delivery=delivered)
                return
            except BufferError:  # the client's queue is full: let it send
                producer.poll(0.5)

    def _refused(self, reason: str, right: str) -> SendingRefusedError:
        return SendingRefusedError(self.source, self.target, reason, right)

    def _interrupted(self, doing: str, reason: str) -> SendingInterruptedError:
        return SendingInterruptedError(self.source, self.target, doing, reason)


@contextmanager
def _translating(outbox: Outbox, doing: str, failures: Sequence[KafkaError] = ()) -> Iterator[None]:
    """Run a block that sends records. Errors of the client are raised as errors of the platform; `failures` are errors
    with more specific messages."""
    try:
        yield
    except (KafkaException, SystemError) as e:
        errors = [*failures, error_of(e)]
        refused = next((error for error in errors if error.code() in REFUSALS), None)
        if refused is not None:
            rights = {
                KafkaError.TOPIC_AUTHORIZATION_FAILED: f"`Write` on topics {outbox.target!r} and {outbox.progress!r}",
                KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: f"`Write` on transactional id {outbox._transactional_id!r}",
            }
            raise outbox._refused(refused.str(), rights.get(refused.code(), "")) from e
        raise outbox._interrupted(doing, errors[0].str()) from e


class _Bitmaps:
    """The offsets that were sent to one topic, as one bit each, in buckets like those of the compacted topic."""

    def __init__(self, target_id: str) -> None:
        self._target_id = target_id
        self._bits: dict[tuple[str, int, int], bytearray] = {}

    def read(self, key: bytes, value: bytes) -> None:
        """Apply one record of the compacted topic. The record replaces earlier records with the same key."""
        target_id, topic_id, partition, bucket = json.loads(key)
        if target_id == self._target_id:
            self._bits[topic_id, partition, bucket] = bytearray(value)

    def has(self, letter: Letter) -> bool:
        """Return True if the letter was sent."""
        bucket, place = divmod(letter.offset, BUCKET)
        bits = self._bits.get((letter.topic_id, letter.partition, bucket))
        return bits is not None and bool(bits[place >> 3] & (1 << (place & 7)))

    def add(self, letters: Iterable[Letter]) -> list[tuple[bytes, bytes]]:
        """Mark letters as sent.

        Return the keys and values of the records that store these marks. These records must be sent in the same
        transaction.
        """
        touched: dict[tuple[str, int, int], bytearray] = {}
        for letter in letters:
            bucket, place = divmod(letter.offset, BUCKET)
            name = letter.topic_id, letter.partition, bucket
            bits = touched[name] = self._bits.setdefault(name, bytearray(BUCKET // 8))
            bits[place >> 3] |= 1 << (place & 7)
        return [(json.dumps([self._target_id, *name]).encode(), bytes(bits)) for name, bits in touched.items()]


def _batches(letters: Iterable[Letter]) -> Iterator[list[Letter]]:
    """Yield parts of at most `_RECORDS` letters. A part also ends with the letter that brings it to `_BYTES`."""
    batch: list[Letter] = []
    size = 0
    for letter in letters:
        batch.append(letter)
        size += letter.size
        if len(batch) == _RECORDS or size >= _BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
