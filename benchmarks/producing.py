"""Topics, and records into them, for scenarios."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic


class Sent(NamedTuple):
    """A record to send; `timestamp` in ms, 0 for the producer's clock."""

    topic: str
    partition: int
    value: bytes
    key: bytes | None = None
    timestamp: int = 0


def create(bootstrap: str, topics: Sequence[str], partitions: int) -> None:
    """Create `topics`, a few at a time."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for at in range(0, len(topics), 10):
        for created in admin.create_topics([NewTopic(t, partitions, 1) for t in topics[at : at + 10]]).values():
            created.result(120)


def produce(bootstrap: str, records: Iterable[Sent]) -> None:
    """Send `records` in large batches. Raises RuntimeError where the broker did not take all of them."""
    producer = Producer(
        {"bootstrap.servers": bootstrap, "linger.ms": 50, "batch.size": 1 << 20, "enable.idempotence": True,
         "queue.buffering.max.messages": 2_000_000}
    )  # fmt: skip
    for number, r in enumerate(records):
        while True:
            try:
                producer.produce(r.topic, r.value, r.key, r.partition, timestamp=r.timestamp)
                break
            except BufferError:
                producer.poll(0.1)
        if number % 10_000 == 0:
            producer.poll(0)
    if left := producer.flush(120):
        raise RuntimeError(f"the broker did not take {left} records")
