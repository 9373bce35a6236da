"""Three brokers for a single test. The test can kill these brokers."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

import psutil
from confluent_kafka import KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient, NewTopic

from platform_assets.services import brokers, platform, state
from platform_assets.services.broker import BrokerSettings
from platform_assets.services.brokers import BrokerService
from platform_assets.services.home import Home
from platform_assets.services.platform import UpOptions
from platform_assets.services.process import ProcessRecord, is_alive
from testbed.clients import librdkafka
from testbed.homes import home_at, service_environment
from testbed.loads import wait_until


@dataclass(frozen=True)
class Trio:
    """Three brokers with node ids 1, 2 and 3. `properties` are server properties with which `up` starts them."""

    home: Home
    properties: Mapping[str, str] = field(default_factory=dict)

    def up(self) -> None:
        """Start the brokers that are not running."""
        options = UpOptions(services=("kafka",), broker=BrokerSettings("384m", self.properties, brokers=3))
        platform.up(self.home, options, report=lambda _: None, environ=service_environment())

    @property
    def bootstrap(self) -> str:
        """Addresses of all three brokers, running or not."""
        return brokers.remembered_addresses(self.home)

    def record(self, node: int) -> ProcessRecord:
        """Return a broker's record in the run state."""
        return state.read_records(self.home)[brokers.ALL[node - 1]]

    def kill(self, *nodes: int) -> None:
        """Kill brokers immediately, by their process ids."""
        for node in nodes:
            record = self.record(node)
            assert is_alive(record)
            os.kill(record.pid, signal.SIGKILL)
            psutil.Process(record.pid).wait(30)

    def start(self, node: int) -> None:
        """Start one broker. Return when it answers."""
        platform.start_service(self.service(node), self.home, report=lambda _: None, environ=service_environment())

    @staticmethod
    def service(node: int) -> BrokerService:
        """Return the name of a broker's service."""
        return brokers.ALL[node - 1]

    def admin(self) -> AdminClient:
        """Return a new client, which does not know previous leaders. Keep the client while you wait for an answer."""
        return AdminClient({**librdkafka(self.bootstrap), "log_level": 0})

    def create(
        self, name: str, replicas: Sequence[Sequence[int]] = (), config: Mapping[str, str] | None = None
    ) -> None:
        """Create a topic with one partition for each list of nodes; the first node in a list is the leader. Without
        lists, the brokers place a single partition."""
        placed: dict[str, object] = (
            {"num_partitions": len(replicas), "replica_assignment": [list(each) for each in replicas]}
            if replicas
            else {"num_partitions": 1, "replication_factor": -1}
        )
        admin = self.admin()
        admin.create_topics([NewTopic(name, config=dict(config or {}), **placed)])[name].result(30)
        wait_until(f"topic {name} is led", lambda: all(self.leader(name, p) for p in range(max(1, len(replicas)))))

    def leader(self, topic: str, partition: int = 0) -> int | None:
        """Return the leader of a partition according to the controller, or None if there is no leader."""
        return self._described(topic, partition)[0]

    def in_sync(self, topic: str, partition: int = 0) -> frozenset[int]:
        """Return the in-sync nodes of a partition."""
        return self._described(topic, partition)[1]

    def _described(self, topic: str, partition: int) -> tuple[int | None, frozenset[int]]:
        admin = self.admin()
        try:
            found = admin.describe_topics(TopicCollection([topic]), request_timeout=10)[topic].result(30)
        except KafkaException:
            return None, frozenset()
        described = next((p for p in found.partitions if p.id == partition), None)
        if described is None:
            return None, frozenset()
        leader = described.leader.id if described.leader is not None and described.leader.id > 0 else None
        return leader, frozenset(node.id for node in described.isr)


@contextmanager
def three_brokers(root: Path, properties: Mapping[str, str] = MappingProxyType({})) -> Iterator[Trio]:
    """Run three brokers with these properties below `root`. At the end of the block, the brokers are stopped by their process ids."""
    trio = Trio(home_at(root), properties)
    try:
        trio.up()
        yield trio
    finally:
        platform.down(trio.home, report=lambda _: None)
