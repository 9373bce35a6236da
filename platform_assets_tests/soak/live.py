"""Live producers. They send numbered records at an even pace through any outage, and record the outcome of each send."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Literal

from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from platform_assets_tests.support.history import Outcome, Send
from testbed.loads import wait_until


def create(bootstrap: str, topic: str, partitions: int, replicas: int = 1) -> None:
    """Create a topic that keeps all records, regardless of their timestamps."""
    client = AdminClient({"bootstrap.servers": bootstrap, "log_level": 2})
    config = {"retention.ms": "-1"}
    client.create_topics([NewTopic(topic, partitions, replicas, config=config)])[topic].result(60)
    wait_until("the topic is known", lambda: topic in client.list_topics(timeout=30).topics)


class LiveProducer:
    """A producer that sends `rate` records a second, and waits as long as necessary for the broker. `sends` lists the
    acknowledged records."""

    def __init__(self, bootstrap: str, topic: str, partitions: int, rate: int = 100) -> None:
        self.sends: list[Send] = []
        self.sent = 0
        self._topic, self._partitions, self._rate = topic, partitions, rate
        self._stop = threading.Event()
        self._refused: list[Any] = []
        # Idempotent with unlimited retries: each record is in the log once, however often it was sent.
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 50, "log_level": 2,
             "message.timeout.ms": 0, "queue.buffering.max.messages": 1_000_000}
        )  # fmt: skip

    @contextmanager
    def sending(self) -> Iterator[LiveProducer]:
        """Send while the block runs. After the block, wait until every record is acknowledged."""
        thread = threading.Thread(target=self._send, name="live producer")
        thread.start()
        try:
            yield self
        finally:
            self._stop.set()
            thread.join()
        left = self._producer.flush(120)
        assert not left, f"{left} records were never acknowledged"
        assert not self._refused, self._refused[0]
        assert len(self.sends) == self.sent

    def _send(self) -> None:
        began = time.monotonic()
        while not self._stop.wait(0.1):
            due = int((time.monotonic() - began) * self._rate)
            while self.sent < due:
                partition = self.sent % self._partitions
                self._producer.produce(self._topic, b"%d" % self.sent, None, partition, on_delivery=self._delivered)
                self.sent += 1
            self._producer.poll(0)

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None:
            self._refused.append(error)
            return
        self.sends.append(Send(message.value(), message.partition(), message.offset(), "ok"))


class TransactionalProducer:
    """A producer that sends one transaction after another through any outage. After an error, a new client takes over.

    `sends` has the outcome of each record. If a commit was not answered, the outcome is unknown.
    """

    def __init__(self, bootstrap: str, topic: str, partitions: int, rng: random.Random, records: int = 100) -> None:
        self.sends: list[Send] = []
        self._bootstrap, self._topic, self._partitions = bootstrap, topic, partitions
        self._rng, self._records = rng, records
        self._stop = threading.Event()
        self._number = 0

    @contextmanager
    def sending(self) -> Iterator[TransactionalProducer]:
        """Send while the block runs. After the block, no transaction is open."""
        with ThreadPoolExecutor(1, "transactional producer") as pool:
            future = pool.submit(self._send)
            try:
                yield self
            finally:
                self._stop.set()
            future.result()

    def _send(self) -> None:
        producer: Producer | None = None
        while not self._stop.wait(self._rng.uniform(0, 1)) or producer is None:
            try:
                if producer is None:
                    producer = self._new()
                    # A new producer first ends the open transaction of an earlier producer with the same transactional
                    # id.
                    producer.init_transactions(30)
                self._transaction(producer)
            except KafkaException:
                producer = None

    def _new(self) -> Producer:
        return Producer(
            {"bootstrap.servers": self._bootstrap, "transactional.id": self._topic, "linger.ms": 5, "log_level": 0,
             "transaction.timeout.ms": 60_000}
        )  # fmt: skip

    def _transaction(self, producer: Producer) -> None:
        wanted: Literal["ok", "failed"] = "failed" if self._rng.random() < 0.2 else "ok"
        offsets: dict[bytes, int] = {}
        values: list[tuple[bytes, int]] = []

        def delivered(error: Any, message: Any) -> None:
            if error is None:
                offsets[message.value()] = message.offset()

        outcome: Outcome = "unknown"
        try:
            producer.begin_transaction()
            for _ in range(self._records):
                value, partition = b"t%d" % self._number, self._number % self._partitions
                self._number += 1
                values.append((value, partition))
                producer.produce(self._topic, value, None, partition, on_delivery=delivered)
            if producer.flush(30) or len(offsets) < len(values):
                raise KafkaException("not all records were delivered")
            if wanted == "ok":
                producer.commit_transaction(30)
            else:
                producer.abort_transaction(30)
            outcome = wanted
        finally:
            self.sends += [Send(v, p, offsets.get(v), outcome) for v, p in values]
