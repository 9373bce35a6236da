"""Sends records to a Kafka topic exactly once each, even if the sending process dies at any point. It is used for dead
letters that are to be read from Kafka.

The transactions are those of published topics (`kafka/publisher`). Their progress is in the compacted topic
`<topic>.sent`: for each (id of the target topic, topic id of the letter, partition, bucket of offsets), one bit per
offset. There is one transactional id for each pair of topics. If one of the names has a dot, ids of earlier releases are
ambiguous, so the pair has another id now, and a sender also fences the earlier one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar, Final

from platform_assets.errors import ConfigurationError, SendingInterruptedError, SendingRefusedError
from platform_assets.kafka.cluster import Cluster
from platform_assets.kafka.publisher import Committed, Target
from platform_assets.model.logs import logger
from platform_assets.model.names import checked_topic

_log = logger(__name__)

SUFFIX: Final = ".sent"
BUCKET: Final = 8192
"""Number of offsets in each record of the compacted topic."""
_RECORDS: Final = 500
_BYTES: Final = 8 << 20
"""Limits of one transaction. The transaction ends when it reaches the first of these limits."""


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
class LetterTarget(Target):
    """The topic to which letters of the topic `source` are sent."""

    source: str = ""
    records: ClassVar[str] = "dead letters were sent"

    @property
    def progress_topic(self) -> str:
        """Name of the compacted topic that records what was sent."""
        return f"{self.topic}{SUFFIX}"

    @property
    def transactional_id(self) -> str:
        """The transactional id that all senders between the two topics share, and no senders between others."""
        # No name of a topic has a slash. Without dots in the names, the id of earlier releases is unambiguous.
        is_dotted = "." in self.source or "." in self.topic
        return f"platform-assets.dead-letters.{self.source}/{self.topic}" if is_dotted else self._earlier_id

    @property
    def earlier_ids(self) -> tuple[str, ...]:
        """See `Target`. Senders of this release never use such an id, so fencing it does not disturb them."""
        return () if self.transactional_id == self._earlier_id else (self._earlier_id,)

    @property
    def _earlier_id(self) -> str:
        return f"platform-assets.dead-letters.{self.source}.{self.topic}"

    def refused(self, reason: str, right: str = "", *, is_invalid: bool = False) -> SendingRefusedError:
        """Return the error of a broker that refused a letter."""
        return SendingRefusedError(self.source, self.topic, reason, right, is_invalid=is_invalid)

    def interrupted(
        self, doing: str, reason: str, *, fenced: bool = False, timed_out: bool = False
    ) -> SendingInterruptedError:
        """Return the error of a step whose outcome is unknown."""
        return SendingInterruptedError(self.source, self.topic, doing, reason, fenced=fenced, timed_out=timed_out)


@dataclass(frozen=True)
class Outbox:
    """Sends letters of the topic `source` to the topic `target`, exactly once each. `seconds` and `before_step` are as in
    `Target`."""

    cluster: Cluster
    source: str
    target: str
    seconds: float = 60.0
    before_step: Callable[[str], None] = lambda step: None

    def send(self, letters: Iterable[Letter]) -> Sent:
        """Send the letters that were never sent, in order, in transactions. Raises TopicMissingError and
        ConfigurationError for unsuitable topics, SendingInterruptedError (retryable), and SendingRefusedError.
        Transactions that were committed before the error remain, and the next call takes them into account."""
        if checked_topic(self.target) == self.source:
            raise ConfigurationError(
                f"dead letters of topic {self.source!r} cannot be sent to the same topic: they would become dead "
                f"letters again. Name another topic."
            )
        target = LetterTarget(self.cluster, self.target, self.seconds, self.before_step, self.source)
        topics = target.prepare()
        # From here on, no other sender of these topics can commit, so what the session has read stays complete.
        session = target.session()
        sent = _Bitmaps(topics.target, session.progress)
        now = before = 0
        for batch in _batches(letters):
            new = [letter for letter in batch if not sent.has(letter)]
            before += len(batch) - len(new)
            if new:
                session.send(((e.key, e.value, list(e.headers)) for e in new), sent.add(new))
                now += len(new)
        return Sent(now, before)


class _Bitmaps:
    """The offsets that were sent to one topic, as one bit each, in buckets like those of the compacted topic."""

    def __init__(self, target_id: str, progress: Committed) -> None:
        self._target_id = target_id
        self._bits: dict[tuple[str, int, int], bytearray] = {}
        # Earlier releases wrote to every partition; a bucket's newest record has all bits of its earlier ones.
        for (_, key), value in progress.elsewhere.items():
            self._read(key, value)
        for key, value in progress.records.items():
            self._read(key, value)

    def _read(self, key: bytes, value: bytes) -> None:
        try:
            target_id, topic_id, partition, bucket = json.loads(key)
        except (ValueError, TypeError, RecursionError):
            target_id = None
        if target_id is None or len(value) != BUCKET // 8:
            _log.warning(
                "a record in the progress of sent dead letters is not the platform's, and does not count: %a", key[:60]
            )
        elif target_id == self._target_id:
            bits = self._bits.setdefault((topic_id, partition, bucket), bytearray(BUCKET // 8))
            bits[:] = (a | b for a, b in zip(bits, value, strict=True))

    def has(self, letter: Letter) -> bool:
        """Return True if the letter was sent."""
        bucket, place = divmod(letter.offset, BUCKET)
        bits = self._bits.get((letter.topic_id, letter.partition, bucket))
        return bits is not None and bool(bits[place >> 3] & (1 << (place & 7)))

    def add(self, letters: Iterable[Letter]) -> dict[bytes, bytes]:
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
        return {json.dumps([self._target_id, *name]).encode(): bytes(bits) for name, bits in touched.items()}


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
