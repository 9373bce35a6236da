"""Creating topics for scenarios, and sending records to these topics."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic


class Sent(NamedTuple):
    """A record to send. `timestamp` is in ms; 0 means that the producer sets it."""

    topic: str
    partition: int
    value: bytes | None
    key: bytes | None = None
    timestamp: int = 0


def create(bootstrap: str, topics: Sequence[str], partitions: int) -> None:
    """Create `topics`, a few at a time."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for at in range(0, len(topics), 10):
        for created in admin.create_topics([NewTopic(t, partitions, 1) for t in topics[at : at + 10]]).values():
            created.result(120)


def produce(bootstrap: str, records: Iterable[Sent], compression: str = "none") -> None:
    """Send `records` in large batches. Raises RuntimeError if the broker did not accept all of them."""
    producer = _producer(bootstrap, {"compression.type": compression})
    for number, record in enumerate(records):
        _send(producer, record)
        if number % 10_000 == 0:
            producer.poll(0)
    _flush(producer)


def produce_in_transactions(bootstrap: str, records: Iterable[Sent], size: int, aborted_every: int) -> int:
    """Send `records` in transactions of `size` records each, and abort one out of every `aborted_every` transactions.
    Return the number of committed records."""
    producer = _producer(bootstrap, {"transactional.id": f"bench-{uuid.uuid4()}"})
    producer.init_transactions(60)
    committed = 0
    for number, some in enumerate(_parts(records, size), start=1):
        producer.begin_transaction()
        for record in some:
            _send(producer, record)
        _flush(producer)
        if number % aborted_every == 0:
            producer.abort_transaction(60)
        else:
            producer.commit_transaction(60)
            committed += len(some)
    return committed


def _parts(records: Iterable[Sent], size: int) -> Iterator[list[Sent]]:
    left = iter(records)
    while some := list(islice(left, size)):
        yield some


def _producer(bootstrap: str, more: Mapping[str, str]) -> Producer:
    return Producer(
        {"bootstrap.servers": bootstrap, "linger.ms": 50, "batch.size": 1 << 20, "enable.idempotence": True,
         "queue.buffering.max.messages": 2_000_000, **more}
    )  # fmt: skip


def _send(producer: Producer, record: Sent) -> None:
    while True:
        try:
            producer.produce(record.topic, record.value, record.key, record.partition, timestamp=record.timestamp)
            return
        except BufferError:
            producer.poll(0.1)


def _flush(producer: Producer) -> None:
    if left := producer.flush(120):
        raise RuntimeError(f"the broker did not acknowledge {left} records")
