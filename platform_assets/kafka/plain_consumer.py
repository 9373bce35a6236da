"""A consumer that is assigned partitions directly, without a group, so it needs no rights on a group."""

from __future__ import annotations

from typing import Final

from confluent_kafka import Consumer, KafkaError, Message

from platform_assets.kafka.settings import ClientSettings
from platform_assets.model.logs import logger

_log = logger(__name__)

_OPTIONS: Final = {
    # librdkafka demands a group id; without subscribe and commits it is never used.
    "group.id": "platform-assets",
    "enable.auto.commit": False,
    # A range may end with markers, which are never delivered as messages: the end of the log shows that.
    "enable.partition.eof": True,
    "auto.offset.reset": "error",
    "isolation.level": "read_committed",
    "queued.max.messages.kbytes": 16_384,
}


def plain_consumer(settings: ClientSettings, end_wait_ms: int | None = None) -> Consumer:
    """Return a consumer of committed records. The consumer signals the end of a partition with a message that carries
    an error.

    A broker waits `end_wait_ms` for new records before it answers that the log ends; by default, as long as librdkafka
    asks it to. Some brokers also read remote segments for only that long, and then answer without records. So keep the
    default for topics that may be tiered.
    """
    options = _OPTIONS if end_wait_ms is None else {**_OPTIONS, "fetch.wait.max.ms": end_wait_ms}
    return Consumer({**settings.librdkafka(), **options}, logger=_log)


def consume(consumer: Consumer, number: int, seconds: float) -> list[Message]:
    """Wait up to `seconds` for a message. Return it with the messages that have arrived by then, together up to `number`.

    librdkafka looks up the group's coordinator although this is not needed, and reports a refusal of this look-up as a
    message. That message does not concern a record, so it is left out.
    """
    first = consumer.poll(seconds)
    # `Consumer.consume` alone would wait the full time for the last message that it may return.
    found = [] if first is None else [first, *consumer.consume(num_messages=number - 1, timeout=0)]
    return [m for m in found if m.error() is None or m.error().code() != KafkaError.GROUP_AUTHORIZATION_FAILED]
