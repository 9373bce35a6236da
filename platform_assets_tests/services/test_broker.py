"""The Kafka broker that the platform starts: a real broker, on loopback, whose data survives a restart."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, OffsetSpec

from platform_assets.services import brokers, kafka_probe, platform, ports, state
from platform_assets.services.broker import BrokerSettings
from platform_assets.services.errors import PortTakenError, ServiceStartError
from platform_assets.services.home import Home
from platform_assets.services.platform import UpOptions
from platform_assets.services.ports import LOOPBACK
from platform_assets_tests.conftest import Broker, TopicMaker
from platform_assets_tests.support import services
from platform_assets_tests.support.listening import listening
from testbed.homes import home_at, service_environment
from testbed.loads import wait_until

pytestmark = pytest.mark.broker

MARCH_2011_MS = 1_299_000_000_000
SMALL = UpOptions(broker=BrokerSettings(heap="384m"))


def quiet(message: str) -> None:
    """Discard the reported text."""


@pytest.fixture
def own_home(tmp_path: Path) -> Iterator[Home]:
    """Return a home whose path contains a space and non-ASCII letters. Afterwards, end everything that runs in that
    home."""
    home = home_at(tmp_path / "höme of a bröker 家")
    try:
        yield home
    finally:
        platform.down(home, report=quiet)


@dataclass(frozen=True)
class BrokerState:
    """State of a broker, as a client sees it."""

    cluster: str
    address: str
    records: int


_NO_LEADER_YET = (KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE)


def look(bootstrap: str, topic: str) -> BrokerState:
    """Query the broker's state as a client."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "look", "enable.auto.commit": False})
    try:
        metadata = consumer.list_topics(topic, 30)
        (node,) = metadata.brokers.values()
        ends: list[int] = []

        def led() -> bool:
            try:
                ends.append(consumer.get_watermark_offsets(TopicPartition(topic, 0), 30)[1])
            except KafkaException as e:
                if e.args[0].code() not in _NO_LEADER_YET:
                    raise
            return bool(ends)

        # A broker that has just started may not lead its partitions yet.
        wait_until(f"partition 0 of {topic} is led", led, 30)
        return BrokerState(metadata.cluster_id, f"{node.host}:{node.port}", ends[0])
    finally:
        consumer.close()


def test_data_and_cluster_id_outlive_a_kill_and_a_change_of_port(own_home: Home) -> None:
    environ = service_environment()
    first = platform.start_service("kafka", own_home, SMALL, report=quiet, environ=environ)
    admin = AdminClient({"bootstrap.servers": first.address, "log_level": 2})
    admin.create_topics([NewTopic("kept", num_partitions=1)])["kept"].result(30)
    producer = Producer({"bootstrap.servers": first.address, "log_level": 2})
    for number in range(10):
        producer.produce("kept", str(number))
    assert producer.flush(30) == 0
    before = look(first.address, "kept")
    assert before == BrokerState(brokers.cluster_id(own_home) or "", first.address, 10)

    os.kill(first.pid, signal.SIGKILL)
    psutil.Process(first.pid).wait(30)
    second = platform.start_service("kafka", own_home, SMALL, report=quiet, environ=environ)
    assert second.address == first.address
    assert look(second.address, "kept") == before

    platform.down(own_home, report=quiet)
    (other,) = ports.choose_ports(1, "X", environ={})
    third = platform.start_service(
        "kafka", own_home, SMALL, report=quiet, environ={**environ, "KAFKA_PORT": str(other)}
    )
    assert third.address == f"127.0.0.1:{other}"
    assert look(third.address, "kept") == BrokerState(before.cluster, third.address, 10)


def test_port_taken_is_told_before_anything_starts(own_home: Home) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(PortTakenError, match=f"port {port} is taken by .*pid {os.getpid()}"):
            platform.up(
                own_home,
                UpOptions(services=("kafka",)),
                report=quiet,
                environ={**service_environment(), "KAFKA_PORT": str(port)},
            )
    assert services.naming(own_home.root) == []
    assert {state.status for state in platform.running_state(own_home, environ={})} == {"stopped"}


def test_broker_that_cannot_start_names_its_log_and_leaves_nothing(own_home: Home) -> None:
    options = UpOptions(broker=BrokerSettings(heap="384m", properties={"num.io.threads": "many"}))
    with pytest.raises(ServiceStartError) as caught:
        platform.start_service("kafka", own_home, options, report=quiet, environ=service_environment())
    assert caught.value.log_path == str(own_home.log_file("kafka"))
    assert "num.io.threads" in str(caught.value)
    assert services.naming(own_home.root) == []


INTERRUPTED = """
import sys
from platform_assets.services import platform
from platform_assets.services.platform import UpOptions
from testbed.homes import home_at, service_environment
platform.up(home_at(sys.argv[1]), UpOptions(services=("kafka", "spark")),
            report=lambda line: print(line, flush=True), environ=service_environment())
"""


def test_interrupt_while_two_jvms_start_leaves_neither(own_home: Home) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, str(own_home.root)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, encoding="utf-8",
    ) as command:  # fmt: skip
        assert command.stdout is not None
        seen = ""
        while "kafka: starting" not in seen or "spark: starting" not in seen:
            line = command.stdout.readline()
            assert line, command.stderr.read() if command.stderr else ""
            seen += line
        command.send_signal(signal.SIGINT)
        command.communicate(timeout=90)
    assert command.returncode != 0
    assert services.naming(own_home.root) == []
    assert {state.status for state in platform.running_state(own_home, environ={})} == {"stopped"}


def test_broker_listens_on_loopback_alone(platform_home: Home, broker: Broker) -> None:
    record = state.read_records(platform_home)["kafka"]
    assert listening(record) == {(LOOPBACK, port) for port in record.ports}


def test_undeclared_topic_is_not_created_by_asking(broker: Broker) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "message.timeout.ms": 2000, "log_level": 2})
    failed: list[object] = []
    producer.produce("nobody-declared-this", b"x", on_delivery=lambda error, _: failed.append(error))
    producer.flush(30)
    assert failed[0] is not None
    assert "nobody-declared-this" not in broker.admin.list_topics(timeout=30).topics


def test_records_of_years_ago_are_kept_unless_the_topic_says_otherwise(broker: Broker, topic: TopicMaker) -> None:
    week = {"retention.ms": str(7 * 24 * 3_600_000)}
    names = [topic(stem="kept"), topic(stem="expiring", config=week)]
    producer = Producer({"bootstrap.servers": broker.bootstrap, "log_level": 2})
    for name in names:
        for number in range(10):
            producer.produce(name, b"x", partition=0, timestamp=MARCH_2011_MS + number)
    assert producer.flush(30) == 0

    kept, expiring = names
    # The broker checks both topics together every second; the second topic shows that a check has run.
    wait_until("the broker has deleted what is expired", lambda: log_start(broker, expiring) == 10)
    another = topic(stem="expiring", config=week)
    producer.produce(another, b"x", partition=0, timestamp=MARCH_2011_MS)
    assert producer.flush(30) == 0
    wait_until("it has looked once more", lambda: log_start(broker, another) == 1)
    assert log_start(broker, kept) == 0
    assert look(broker.bootstrap, kept).records == 10


def log_start(broker: Broker, topic: str) -> int:
    """Return the first offset that the broker has in partition 0."""
    partition = TopicPartition(topic, 0)
    return int(broker.admin.list_offsets({partition: OffsetSpec.earliest()})[partition].result(30).offset)


@pytest.mark.long
@pytest.mark.alone
def test_restart_of_the_sessions_broker_keeps_address_and_topics(broker: Broker, topic: TopicMaker) -> None:
    name = topic(partitions=3, config={"cleanup.policy": "compact"})
    address = broker.bootstrap
    broker.stop()
    broker.start()
    assert broker.bootstrap == address
    assert len(broker.admin.list_topics(name, timeout=30).topics[name].partitions) == 3
    resource = ConfigResource(ConfigResource.Type.TOPIC, name)
    settings = broker.admin.describe_configs([resource])[resource].result(30)
    assert settings["cleanup.policy"].value == "compact"


def test_probe_takes_no_other_clusters_answer_for_ours(broker: Broker, platform_home: Home) -> None:
    host, _, port = broker.bootstrap.partition(":")
    assert kafka_probe.answers(host, int(port), brokers.cluster_id(platform_home) or "")
    assert not kafka_probe.answers(host, int(port), "another-cluster")
    assert not kafka_probe.answers(host, int(port), brokers.cluster_id(platform_home) or "", node=2)


def test_probe_of_something_else_is_no_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert not kafka_probe.answers("127.0.0.1", server.getsockname()[1], "any")
