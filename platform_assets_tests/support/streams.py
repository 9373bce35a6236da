"""Records on a real topic, with given timestamps and with open transactions, for tests of cuts."""

from __future__ import annotations

import os
import signal
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from platform_assets.errors import BrokerUnreachableError, TopicMissingError
from platform_assets.kafka.cluster import Cluster
from platform_assets_tests.support.turns import require_alone
from testbed.clients import client_settings, librdkafka
from testbed.loads import Record, send, wait_until

if TYPE_CHECKING:
    from platform_assets_tests.conftest import Broker

ANY_TIME = {
    "retention.ms": "-1",
    "message.timestamp.after.max.ms": str(2**63 - 1),
    "message.timestamp.before.max.ms": str(2**63 - 1),
}
"""Configuration of a topic that accepts and keeps records of any age."""


@dataclass
class Stream:
    """One topic of a broker."""

    bootstrap: str
    topic: str

    @cached_property
    def cluster(self) -> Cluster:
        """A new client for the broker."""
        return Cluster.connect(client_settings(self.bootstrap))

    def send(self, stamps: Iterable[int], partition: int = 0) -> None:
        """Send one record for each timestamp (ms), in this order."""
        send(Producer(librdkafka(self.bootstrap)), self.topic, _records(stamps, partition))

    def ends(self) -> dict[int, int]:
        """Return the high watermarks. They include the records of open transactions."""
        return {p: f.offset for p, f in self.cluster.high_watermarks(self.cluster.topic(self.topic)).items()}

    def stable(self) -> dict[int, int]:
        """Return the last stable offsets."""
        return {p: f.offset for p, f in self.cluster.last_stable_offsets(self.cluster.topic(self.topic)).items()}

    def open_transaction(self, stamps: Iterable[int], partition: int = 0) -> OpenTransaction:
        """Send records in a transaction and leave it open."""
        producer = Producer({**librdkafka(self.bootstrap), "transactional.id": str(uuid.uuid4())})
        producer.init_transactions(30)
        producer.begin_transaction()
        send(producer, self.topic, _records(stamps, partition))
        return OpenTransaction(self, producer, partition)


@dataclass(frozen=True)
class OpenTransaction:
    """An open transaction in one partition."""

    stream: Stream
    producer: Producer
    partition: int

    def end(self, *, commit: bool) -> None:
        """Commit or abort, and wait for the marker, because the coordinator answers before it has written the marker."""
        before = self.stream.ends()[self.partition]
        if commit:
            self.producer.commit_transaction(30)
        else:
            self.producer.abort_transaction(30)
        wait_until("the marker is written", lambda: self.stream.ends()[self.partition] > before)


class Transactions:
    """Transactions of one producer, one after the other. Each transaction has one batch per partition."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        config = {**librdkafka(stream.bootstrap), "transactional.id": str(uuid.uuid4()), "linger.ms": 50}
        self._producer = Producer(config)
        self._producer.init_transactions(30)

    def write(self, stamps: Iterable[int], partition: int = 0, *, commit: bool) -> None:
        """Write one record for each timestamp (ms), and then the marker. Return when the marker is written."""
        self._producer.begin_transaction()
        send(self._producer, self._stream.topic, _records(stamps, partition))
        OpenTransaction(self._stream, self._producer, partition).end(commit=commit)


def create_again(broker: Broker, name: str) -> None:
    """Delete a topic and create it again.

    The broker completes a deletion some time after it has answered, so creation is repeated until it succeeds.
    """
    former = Cluster.connect(client_settings(broker.bootstrap)).topic(name).topic_id
    broker.admin.delete_topics([name])[name].result(30)

    def created() -> bool:
        try:
            broker.admin.create_topics([NewTopic(name, 1, -1)])[name].result(30)
        except KafkaException as e:
            if e.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
            return False
        return True

    def known() -> bool:
        # A new client each time: a client that got "no leader" remembers it for a minute.
        fresh = Cluster.connect(client_settings(broker.bootstrap))
        try:
            state = fresh.topic(name)
            return state.topic_id != former and len(fresh.log_starts(state)) == 1
        except (TopicMissingError, BrokerUnreachableError):
            return False

    wait_until("the topic may be created again", created)
    wait_until("the new topic is known", known)


def freeze(broker: Broker) -> None:
    """Freeze the broker's process at an arbitrary point, and return when all of its threads have stopped. Raises
    RuntimeError if the test is not marked `alone`."""
    require_alone("freezing the broker")
    tasks = Path(f"/proc/{broker.pid}/task")

    def is_frozen() -> bool:
        # Sent each time, because an earlier SIGCONT may take effect later.
        os.kill(broker.pid, signal.SIGSTOP)
        return all(_state(task) == "T" for task in tasks.iterdir())

    wait_until("every thread has stopped", is_frozen)


def thaw(broker: Broker) -> None:
    """Resume a frozen broker."""
    os.kill(broker.pid, signal.SIGCONT)


def _state(task: Path) -> str:
    # The name in parentheses may contain anything; the state is the word after it.
    return (task / "stat").read_text().rpartition(")")[2].split()[0]


def delete_before(bootstrap: str, topic: str, partition: int, offset: int) -> None:
    """Make the log of a partition start at `offset`. This function uses a new client, because existing clients might
    not know a new partition."""
    admin = AdminClient(librdkafka(bootstrap))
    for future in admin.delete_records([TopicPartition(topic, partition, offset)]).values():
        assert future.result(30).low_watermark == offset


def _records(stamps: Iterable[int], partition: int) -> list[Record]:
    return [Record(partition=partition, timestamp=t) for t in stamps]
