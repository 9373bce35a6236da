"""The streams on a real broker: each row is committed exactly once, whatever ends the process."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from platform_assets.demo import producing, topic_log
from platform_assets.demo.dataset import SOURCES, TopicName, row_number
from platform_assets.demo.producing import Pace, open_streams
from platform_assets.demo.schedule import Rows, Schedule
from platform_assets.errors import BrokerRefusedError, BrokerUnreachableError, ConfigurationError, TopicMissingError
from platform_assets.kafka.cluster import Cluster
from platform_assets.kafka.settings import ClientSettings
from platform_assets.model.windows import milliseconds
from platform_assets_tests.support.streaming import START, committed, holds_each_row_once, produced, small, stream
from testbed.clients import client_settings

if TYPE_CHECKING:
    from platform_assets_tests.conftest import Broker

CHECKOUT = Path(__file__).parents[2]
ROWS = 3_000


def delete_topics(broker: Broker) -> None:
    deadline = time.monotonic() + 30
    present = set(SOURCES) & set(broker.admin.list_topics(timeout=10).topics)
    for future in broker.admin.delete_topics(list(present)).values() if present else ():
        future.result(30)
    while set(SOURCES) & set(broker.admin.list_topics(timeout=10).topics):
        assert time.monotonic() < deadline


@pytest.fixture
def client(broker: Broker) -> Iterator[ClientSettings]:
    """Return the settings for a broker that does not have the demo's topics."""
    delete_topics(broker)
    yield client_settings(broker.bootstrap)
    delete_topics(broker)


def send_for(former: producing.Outlet, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        former.send(np.arange(1), None)
        time.sleep(0.01)  # not to fill the client's queue while it waits for the broker's answer


def messages(client: ClientSettings, topic: TopicName) -> list[Any]:
    """Return all committed messages in the topic, complete with keys, headers and timestamps."""
    ends = topic_log.whole_log(Cluster.connect(client), topic)
    consumer = Consumer(
        {**client.librdkafka(), "group.id": "test", "enable.partition.eof": True, "fetch.wait.max.ms": 20}
    )
    try:
        consumer.assign([TopicPartition(topic, p, r.start) for p, r in ends.items()])
        found: list[Any] = []
        open_partitions = set(ends.by_partition)
        while open_partitions:
            if (message := consumer.poll(1.0)) is None:
                continue
            if message.error() is None:
                found.append(message)
            else:
                open_partitions.discard(message.partition())
        return found
    finally:
        consumer.close()


@pytest.mark.broker
def test_every_row_is_committed_once_and_some_transactions_were_aborted(client: ClientSettings) -> None:
    assert stream(client, small(ROWS)) == dict.fromkeys(SOURCES, ROWS)
    for topic in SOURCES:
        assert holds_each_row_once(committed(client, topic), ROWS)
    assert len(produced(client, "weather")) == len(produced(client, "planes")) == ROWS
    flights = topic_log.whole_log(Cluster.connect(client), "flights")
    assert flights.size > len(produced(client, "flights")) >= ROWS


@pytest.mark.broker
def test_aborted_records_are_in_the_log_and_not_committed(
    client: ClientSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platform_assets.demo.schedule.ABORTED_SHARE", 1.0)
    stream(client, small(ROWS))
    assert len(produced(client, "flights")) == 2 * ROWS
    assert holds_each_row_once(committed(client, "flights"), ROWS)


@pytest.mark.broker
def test_topics_keep_everything_and_have_the_partitions_that_the_demo_shows(client: ClientSettings) -> None:
    topic_log.create_topics(client)
    cluster = Cluster.connect(client)
    for topic in SOURCES:
        topic_log.whole_log(cluster, topic)  # all brokers know it, and it has a leader
    assert {topic: len(cluster.topic(topic).partitions) for topic in SOURCES} == topic_log.PARTITIONS
    for topic in SOURCES:
        assert cluster.topic_config(topic).items() >= topic_log.TOPIC_SETTINGS.items()
    topic_log.create_topics(client)


@pytest.mark.broker
def test_records_are_as_declared(client: ClientSettings) -> None:
    """The test compares keys, headers and timestamps of backlog and live records."""
    before = milliseconds(datetime.now(UTC))
    datasets = small(ROWS)
    stream(client, datasets)
    after = milliseconds(datetime.now(UTC))
    schedule = Schedule(START, ROWS)
    for dataset in datasets:
        for message in messages(client, dataset.topic):
            row = row_number(message.value())
            assert row is not None
            assert message.value() == dataset.values[row].as_py()
            assert message.key() == (None if dataset.keys is None else dataset.keys[row].as_py())
            headers = [("source", b"nycflights13"), ("row", str(row).encode())]
            assert message.headers() == (headers if dataset.topic == "flights" else None)
            kind, stamp = message.timestamp()
            assert kind == 1  # set by the producer
            if row < schedule.backlog:
                assert stamp == schedule.timestamps(np.array([row]))[0]
            else:
                assert before <= stamp <= after


@pytest.mark.broker
def test_a_second_run_sends_nothing(client: ClientSettings) -> None:
    stream(client, small(ROWS))
    ends = {topic: topic_log.whole_log(Cluster.connect(client), topic) for topic in SOURCES}
    told: list[tuple[str, int]] = []
    missing = stream(client, small(ROWS), on_sent=lambda topic, rows: told.append((topic, rows)))
    assert missing == dict.fromkeys(SOURCES, 0)
    assert {topic: topic_log.whole_log(Cluster.connect(client), topic) for topic in SOURCES} == ends
    assert dict(told) == dict.fromkeys(SOURCES, ROWS)


@pytest.mark.broker
def test_a_stopped_stream_goes_on_without_doubling(client: ClientSettings, rng: random.Random) -> None:
    for limit in sorted(rng.randrange(1, ROWS) for _ in range(3)):
        stop, sent = threading.Event(), 0

        def count(topic: TopicName, rows: int, limit: int = limit, stop: threading.Event = stop) -> None:
            nonlocal sent
            sent += rows if topic == "flights" else 0
            if sent >= limit:
                stop.set()

        stream(client, small(ROWS), seconds=2.0, stop=stop, on_sent=count)
        assert stop.is_set()
    stream(client, small(ROWS))
    for topic in SOURCES:
        assert holds_each_row_once(committed(client, topic), ROWS)


@pytest.mark.broker
def test_a_stop_leaves_no_open_transaction(client: ClientSettings) -> None:
    stop = threading.Event()
    with open_streams(client, START, stop=stop, datasets=small(ROWS)) as streams:
        streams.send_backlog()
        threading.Timer(0.5, stop.set).start()
        streams.send_live(60.0)
    cluster = Cluster.connect(client)
    state = cluster.topic("flights")
    stable = {p: found.offset for p, found in cluster.last_stable_offsets(state).items()}
    assert stable == {p: found.offset for p, found in cluster.high_watermarks(state).items()}


@pytest.mark.broker
def test_a_stop_aborts_what_the_coordinator_knows_of(client: ClientSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker may refuse to abort a transaction before the transaction's first record is in the log. In the past,
    stopping the demo at that moment ended with an error."""
    stop, handed, send = threading.Event(), list[int](), producing.Outlet.send

    def send_and_stop(self: producing.Outlet, rows: Rows, timestamps: Rows | None) -> None:
        send(self, rows, timestamps)
        if self._dataset.topic == "flights":
            handed.extend(rows.tolist())
            stop.set()

    with open_streams(client, START, stop=stop, datasets=small(ROWS)) as streams:
        streams.send_backlog()
        monkeypatch.setattr(producing.Outlet, "send", send_and_stop)
        streams.send_live(60.0)
    assert handed
    assert set(handed) <= set(produced(client, "flights").rows.tolist())
    assert not set(handed) & set(committed(client, "flights").rows.tolist())


@pytest.mark.long
@pytest.mark.broker
def test_a_killed_stream_goes_on_without_doubling(client: ClientSettings, rng: random.Random) -> None:
    """The test sends SIGKILL three times, during the backlog and the live part, while a transaction is open."""
    # More rows are left than the largest transaction contains.
    rows, held = 20_000, 19_000
    program = [
        sys.executable,
        "-m",
        "platform_assets_tests.support.streaming",
        client.bootstrap_servers,
        str(rows),
        "4",
        str(held),
    ]
    for limit in (rng.randrange(1, 15_000), rng.randrange(15_000, 18_000), rng.randrange(18_100, held)):
        with subprocess.Popen(program, cwd=CHECKOUT, stdout=subprocess.PIPE, text=True, env=os.environ) as process:
            assert process.stdout is not None
            sent = 0
            for line in process.stdout:
                topic, count = line.split()
                sent += int(count) if topic == "flights" else 0
                if sent >= limit:
                    break
            process.send_signal(signal.SIGKILL)
        assert process.returncode == -signal.SIGKILL
    datasets = small(rows)
    assert stream(client, datasets)["flights"] > 0
    for dataset in datasets:
        assert holds_each_row_once(committed(client, dataset.topic), len(dataset))


@pytest.mark.broker
def test_a_former_process_is_shut_out(client: ClientSettings) -> None:
    with open_streams(client, START, stop=threading.Event(), datasets=small(ROWS)) as former:
        stream(client, small(ROWS))
        with pytest.raises(BrokerRefusedError, match="fenced"):
            former.send_backlog()
    assert holds_each_row_once(committed(client, "flights"), ROWS)


@pytest.mark.broker
@pytest.mark.parametrize("polled", [False, True])
def test_being_shut_out_is_named_whichever_call_of_the_client_learns_of_it(
    client: ClientSettings, monkeypatch: pytest.MonkeyPatch, *, polled: bool
) -> None:
    topic_log.create_topics(client)
    dataset = small(ROWS)[0]
    former = producing.Outlet(client, dataset, "shut-out")
    former.begin()
    former.send(np.arange(1), None)
    producing.Outlet(client, dataset, "shut-out").close()
    if not polled:
        monkeypatch.setattr(former, "_poll", lambda _seconds: None)
    with pytest.raises(BrokerRefusedError, match="fenced"):
        send_for(former, seconds=60)
    former.close()


@pytest.mark.broker
def test_a_transaction_that_the_broker_aborts_is_sent_again(
    client: ClientSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit, refusals = producing.Outlet.commit, iter([True, False, True, False])

    def refuse_some(self: producing.Outlet) -> None:
        if next(refusals, False):
            self.flush()
            raise producing.TransactionAbortedError("aborted for a test")
        commit(self)

    monkeypatch.setattr(producing.Outlet, "commit", refuse_some)
    stream(client, small(ROWS))
    assert holds_each_row_once(committed(client, "flights"), ROWS)


@pytest.mark.broker
def test_a_transaction_that_always_aborts_is_an_error(client: ClientSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: producing.Outlet) -> None:
        self.flush()
        raise producing.TransactionAbortedError("aborted for a test")

    monkeypatch.setattr(producing.Outlet, "commit", refuse)
    with pytest.raises(producing.TransactionAbortedError):
        stream(client, small(ROWS))
    assert len(committed(client, "flights")) == 0


@pytest.mark.broker
def test_somebody_elses_topic_is_left_alone(client: ClientSettings) -> None:
    topic_log.create_topics(client)
    producer = Producer(client.librdkafka())
    producer.produce("weather", value=b"sunny")
    assert producer.flush(10) == 0
    with pytest.raises(ConfigurationError, match=r"'weather' has a record that does not belong to the demo"):
        stream(client, small(ROWS))
    assert len(messages(client, "weather")) == 1


@pytest.mark.broker
def test_a_row_beyond_the_data_is_somebody_elses(client: ClientSettings) -> None:
    stream(client, small(ROWS))
    with pytest.raises(ConfigurationError, match=r"row 2,999"):
        stream(client, small(100))


@pytest.mark.broker
def test_a_missing_topic_is_named_once_it_has_had_time_to_appear(
    client: ClientSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_log, "CALL_SECONDS", 0.5)
    with pytest.raises(TopicMissingError):
        topic_log.whole_log(Cluster.connect(client), "weather")


def test_an_unreachable_broker_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_log, "CALL_SECONDS", 1.0)
    with pytest.raises(BrokerUnreachableError, match="creating the demo's topics"):
        stream(ClientSettings("127.0.0.1:1"), small(1))


def test_pace_spreads_rows_evenly() -> None:
    taken: list[int] = []
    pace, began = Pace(100, 0.5, threading.Event()), time.monotonic()
    while sum(taken) < 100:
        taken.append(pace.take(100 - sum(taken)))
    assert 0.4 < time.monotonic() - began < 5.0
    assert len(taken) > 5
    assert max(taken) < 50


def test_pace_without_time_lets_all_through() -> None:
    assert Pace(100, 0.0, threading.Event()).take(70) == 70


def test_pace_ends_when_stopped() -> None:
    stop = threading.Event()
    pace = Pace(10, 1000.0, stop)
    assert pace.take(10) == 1
    threading.Timer(0.1, stop.set).start()
    assert pace.take(9) == 0


def test_transactional_ids_are_of_topics_that_exist() -> None:
    assert set(producing.TRANSACTIONAL_IDS) <= set(SOURCES)
