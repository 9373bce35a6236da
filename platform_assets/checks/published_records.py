"""Records of a published topic as a read_committed consumer returns them, and transactions that it waits for."""

from __future__ import annotations

import time
from contextlib import closing
from typing import Any

from platform_assets.model.publishing import HEADER
from platform_assets.windows.publish.keyed import Identity, KeyedPublisher
from platform_assets.windows.publish.progress import Position
from platform_assets.windows.publish.publishing import Publisher


def identity_of(message: Any) -> tuple[str, str, int, str, Position, str] | None:
    """Return table, window, ordinal, kind, position and load of a record; None if no header names them."""
    try:
        text = dict(message.headers() or ())[HEADER].decode()
        table, key, ordinal, kind, partition, offset, load_id = text.split(" ", 6)
        at = (int(partition), int(offset))
        is_place = 0 <= at[0] < 2**31 and 0 <= at[1] < 2**63 and int(ordinal) < 2**63
        return (table, key, int(ordinal), kind, at, load_id) if is_place else None
    except (KeyError, ValueError, AttributeError):
        return None


def hanging(publisher: Publisher | KeyedPublisher) -> str | None:
    """Return a sentence if a transaction on the topic is open for longer than the publisher's timeout; None otherwise.

    Brokers end a publisher's transaction after that time, so such a transaction is another program's, or its markers
    cannot be written.
    """
    from confluent_kafka import Consumer, TopicPartition

    d, cluster = publisher.declaration, publisher.cluster
    state = cluster.topic(d.topic)
    ends, stable = cluster.high_watermarks(state), cluster.last_stable_offsets(state)
    for partition in sorted(ends.keys() & stable.keys()):
        first = stable[partition].offset
        if first >= ends[partition].offset:
            continue
        options = {**cluster.settings.librdkafka(), "group.id": "platform-assets", "enable.auto.commit": False}
        consumer = Consumer({**options, "isolation.level": "read_uncommitted"})
        with closing(consumer):
            consumer.assign([TopicPartition(d.topic, partition, first)])
            message = consumer.poll(5.0)
            if message is None or message.error() is not None:
                continue
            age = time.time() - message.timestamp()[1] / 1000
        if age > d.transaction_timeout.total_seconds():
            whose = publisher.target.transactional_id
            if identity_of(message) is None and Identity.of(message.headers()) is None:
                whose = f"{whose} or of another program" if d.identity == "progress" else "of another program"
            return (
                f"published/{d.topic}: a transaction {whose} has been open for {age:,.0f} s and delays readers of partition "
                f"{partition} from offset {first} on. Publish again to end it, or find it with `kafka-transactions.sh "
                f"find-hanging` and abort it"
            )
    return None
