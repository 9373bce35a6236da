"""The demo's topics on the broker. Missing topics are created, and topics are read back record by record. The broker's
own records decide which rows remain to be sent, and the proof compares the tables with these records. The demo keeps no
counts of its own that could be wrong."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from platform_assets.demo.dataset import TopicName, row_number
from platform_assets.errors import (
    BrokerRefusedError,
    BrokerUnreachableError,
    ConfigurationError,
    PlatformError,
    TopicMissingError,
)
from platform_assets.kafka.client_errors import is_out_of_reach
from platform_assets.kafka.cluster import Cluster
from platform_assets.kafka.settings import ClientSettings
from platform_assets.model.logs import logger
from platform_assets.model.offsets import OffsetRange, TopicRanges

_log = logger(__name__)

PARTITIONS: Final[Mapping[TopicName, int]] = {"flights": 6, "weather": 3, "planes": 2}

PUBLISHED: Final = "known-planes"
"""Topic to which the platform publishes the planes."""
_CREATED: Final[Mapping[str, int]] = dict([*PARTITIONS.items(), (PUBLISHED, 2)])

TOPIC_SETTINGS: Final = {
    # The tables are compared with the log, so the log must keep everything.
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "message.timestamp.type": "CreateTime",
}

CALL_SECONDS: Final = 30.0
"""Time limit for one answer from the broker, in seconds."""

_BATCH: Final = 20_000
_ASK_AGAIN_SECONDS: Final = 0.1


@dataclass(frozen=True, slots=True)
class TopicLog:
    """The records of one topic that a scan has read, in no particular order.

    Attributes:
        topic: the topic's name.
        partitions: the Kafka partition of each record.
        offsets: the offset of each record.
        rows: the row number in the value of each record.
    """

    topic: str
    partitions: npt.NDArray[np.int32]
    offsets: npt.NDArray[np.int64]
    rows: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.rows)


def create_topics(client: ClientSettings, partitions: Mapping[str, int] = _CREATED) -> None:
    """Create missing topics, with explicit settings for everything that the demo relies on.

    Raises:
        BrokerUnreachableError: no broker answered in time.
        BrokerRefusedError: the broker does not allow this client to create topics.
    """
    doing = "creating the demo's topics"
    admin = AdminClient(client.librdkafka(), logger=_log)
    wanted = [NewTopic(name, count, -1, config=TOPIC_SETTINGS) for name, count in partitions.items()]
    futures = admin.create_topics(wanted, operation_timeout=CALL_SECONDS, request_timeout=CALL_SECONDS)
    for future in futures.values():
        try:
            future.result()
        except KafkaException as error:
            reason: KafkaError = error.args[0]
            if reason.code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise translated(reason, doing) from error


def whole_log(cluster: Cluster, topic: str) -> TopicRanges:
    """For every partition of `topic`, return the range from the log start to the last stable offset. For a moment after
    a topic is created, some brokers do not know the topic, and its partitions have no leaders. This call waits until
    that moment has passed.

    Raises:
        BrokerUnreachableError: a partition is unreachable.
        TopicMissingError: there is no such topic.
    """
    deadline = time.monotonic() + CALL_SECONDS
    while True:
        try:
            state = cluster.topic(topic)
            starts, ends = cluster.log_starts(state), cluster.last_stable_offsets(state)
            silent = sorted(set(state.partitions) - (starts.keys() & ends.keys()))
            if not silent:
                return TopicRanges({p: OffsetRange(starts[p].offset, ends[p].offset) for p in state.partitions})
            missing: PlatformError = BrokerUnreachableError(
                f"reading topic {topic!r}", CALL_SECONDS, f"partitions {silent} have no leader"
            )
        except (TopicMissingError, BrokerUnreachableError) as error:
            missing = error
        if time.monotonic() > deadline:
            raise missing
        threading.Event().wait(_ASK_AGAIN_SECONDS)


def await_decided(cluster: Cluster, topic: str) -> None:
    """Wait until no transaction in `topic` is undecided, so that the last stable offset of each partition is the
    partition's end.

    A commit is acknowledged as soon as it is certain. The markers of the commit, which make its records visible, follow
    a moment later.

    Raises:
        BrokerUnreachableError: a transaction stays undecided.
    """
    deadline = time.monotonic() + CALL_SECONDS
    state = cluster.topic(topic)
    while True:
        # In this order: records written in between make it wait once more.
        stable = {partition: found.offset for partition, found in cluster.last_stable_offsets(state).items()}
        ends = {partition: found.offset for partition, found in cluster.high_watermarks(state).items()}
        if stable == ends:
            return
        if time.monotonic() > deadline:
            raise BrokerUnreachableError(
                f"waiting for the last transactions of topic {topic!r}", CALL_SECONDS, "a transaction is still open"
            )
        threading.Event().wait(_ASK_AGAIN_SECONDS)


def scan(
    client: ClientSettings,
    topic: str,
    ranges: TopicRanges,
    *,
    committed: bool = True,
    on_records: Callable[[int], None] = lambda count: None,
) -> TopicLog:
    """Read every record of `topic` in `ranges`; return the partition, the offset and the row number of each record.

    Args:
        client: connection settings of the broker.
        topic: name of the topic.
        ranges: the offsets to read; their ends must not be after the last stable offset.
        committed: if true, leave out the records of aborted transactions.
        on_records: called with the number of records read since the last call.

    Raises:
        BrokerUnreachableError: for `CALL_SECONDS`, no record arrived and no partition reached its end.
        ConfigurationError: a record is not from the demo, so another program uses the topic.
    """
    where: list[tuple[int, int, int]] = []
    for messages in _batches(client, topic, ranges, committed=committed):
        for message in messages:
            partition, offset = message.partition(), message.offset()
            row = row_number(message.value())
            if partition is None or offset is None:
                raise AssertionError("unreachable: it is a record")
            if row is None:
                raise ConfigurationError(
                    f"topic {topic!r} has a record that does not belong to the demo (partition {partition} offset "
                    f"{offset}). Only the demo may use the topics {', '.join(PARTITIONS)}: choose another "
                    "broker for the demo, or unset KAFKA_BOOTSTRAP_SERVERS to use the embedded broker."
                )
            where.append((partition, offset, row))
        on_records(len(messages))
    found = np.array(where, dtype=np.int64).reshape(-1, 3)
    return TopicLog(topic, found[:, 0].astype(np.int32), found[:, 1], found[:, 2])


def records(client: ClientSettings, topic: str, ranges: TopicRanges) -> Iterator[tuple[bytes | None, bytes | None]]:
    """Yield key and value of every committed record of `topic` in `ranges`.

    Raises BrokerUnreachableError like `scan`.
    """
    for messages in _batches(client, topic, ranges, committed=True):
        yield from ((message.key(), message.value()) for message in messages)


def _batches(client: ClientSettings, topic: str, ranges: TopicRanges, *, committed: bool) -> Iterator[list[Message]]:
    """Yield the records in `ranges`, in batches that have at least one."""
    doing = f"reading topic {topic!r}"
    left = {partition: span.end for partition, span in ranges.non_empty().items()}
    consumer = Consumer(
        {
            **client.librdkafka(),
            # The client requires a group, although nothing is subscribed, joined or committed.
            "group.id": "platform-assets-demo-scan",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "isolation.level": "read_committed" if committed else "read_uncommitted",
            "enable.partition.eof": True,
            "queued.min.messages": 1_000_000,
            "fetch.wait.max.ms": 50,
        },
        logger=_log,
    )
    try:
        consumer.assign([TopicPartition(topic, p, span.start) for p, span in ranges.non_empty().items()])
        heard = time.monotonic()
        while left:
            messages = consumer.consume(_BATCH, timeout=0.2)
            found: list[Message] = []
            for message in messages:
                partition = message.partition()
                if (error := message.error()) is not None:
                    if error.code() != KafkaError._PARTITION_EOF:
                        raise translated(error, doing)
                    left.pop(partition, None)
                    continue
                end = left.get(partition)
                if end is None:
                    continue
                if message.offset() >= end:
                    del left[partition]
                    continue
                found.append(message)
            if found:
                yield found
            if messages:
                heard = time.monotonic()
            elif time.monotonic() - heard > CALL_SECONDS:
                raise BrokerUnreachableError(doing, CALL_SECONDS, f"partitions {sorted(left)} make no progress")
    finally:
        consumer.close()


def translated(error: KafkaError, doing: str) -> BrokerUnreachableError | BrokerRefusedError:
    """Translate an error that the client raised into the platform's error."""
    if error.fatal() or not is_out_of_reach(error):
        return BrokerRefusedError(doing, error.str())
    return BrokerUnreachableError(doing, CALL_SECONDS, error.str())
