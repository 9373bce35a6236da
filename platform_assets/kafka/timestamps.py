"""Search in old message sets for records with a timestamp that Spark's reader cannot represent; see
`engines.columnar.refused`."""

from __future__ import annotations

import time

from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from platform_assets.errors import BrokerRefusedError, BrokerUnreachableError
from platform_assets.kafka.client_errors import is_out_of_reach
from platform_assets.kafka.plain_consumer import consume, plain_consumer
from platform_assets.kafka.rights import needed
from platform_assets.kafka.settings import ClientSettings
from platform_assets.model.offsets import TopicRanges

LAST_READABLE_MS = (2**63 - 1) // 1000
"""The highest timestamp in ms that fits in Spark's 64-bit microseconds."""
FIRST_READABLE_MS = -(2**63) // 1000 + 1


def unreadable_records(
    settings: ClientSettings, topic: str, ranges: TopicRanges, patience: float = 120.0
) -> list[tuple[int, int, int]]:
    """Return `(partition, offset, timestamp in ms)` of each committed record in `ranges` whose timestamp Spark cannot
    represent. A separate consumer, outside any group, reads the ranges, however long that takes. Raises
    BrokerUnreachableError after `patience` seconds without a message, and BrokerRefusedError."""
    consumer = plain_consumer(settings)
    doing = f"searching topic {topic!r} for unreadable timestamps"
    found: list[tuple[int, int, int]] = []
    try:
        for partition, wanted in ranges.non_empty().items():
            consumer.assign([TopicPartition(topic, partition, wanted.start)])
            done, deadline = False, time.monotonic() + patience
            while not done:
                for message in consume(consumer, 1000, 1.0):
                    if message.error() is None or message.error().code() == KafkaError._PARTITION_EOF:
                        deadline = time.monotonic() + patience
                    done = done or _reached(message, wanted.end, doing, topic)
                    if message.error() is None and message.offset() < wanted.end:
                        found.extend(_unreadable(message))
                if not done and time.monotonic() > deadline:
                    raise BrokerUnreachableError(doing, patience, f"partition {partition} was not read to its end")
    except KafkaException as e:
        if is_out_of_reach(e.args[0]):
            raise BrokerUnreachableError(doing, patience, e.args[0].str()) from e
        raise BrokerRefusedError(doing, e.args[0].str()) from e
    finally:
        consumer.close()
    return found


def _reached(message: Message, end: int, doing: str, topic: str) -> bool:
    error = message.error()
    if error is not None and error.code() != KafkaError._PARTITION_EOF:
        if is_out_of_reach(error):
            return False  # the client connects again by itself
        raise BrokerRefusedError(doing, error.str(), needed(error.code(), topic))
    # For a moment, the end that a new leader reports may be before the range's.
    offset: int = message.offset()
    return offset >= (end if error is not None else end - 1)


def _unreadable(message: Message) -> list[tuple[int, int, int]]:
    _, timestamp = message.timestamp()
    if FIRST_READABLE_MS <= timestamp <= LAST_READABLE_MS:
        return []
    return [(message.partition(), message.offset(), timestamp)]
