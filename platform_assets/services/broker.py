"""A real Apache Kafka broker in KRaft mode: broker and controller are one process, which listens only on loopback."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from platform_assets.services import state
from platform_assets.services.errors import ServiceStartError
from platform_assets.services.home import Home, private
from platform_assets.services.inherited import SYSTEM, inherited
from platform_assets.services.jars import class_path
from platform_assets.services.java import UNICODE_PATHS, find_java
from platform_assets.services.kafka_probe import answers, answers_securely
from platform_assets.services.ports import LOOPBACK
from platform_assets.services.process import PRIVATE, ServiceSpec, log_tail
from platform_assets.services.security import Secure, Security

HEAP_VARIABLE: Final = "KAFKA_HEAP"
LOGGING_FILE: Final = Path(__file__).with_name("kafka-log4j2.properties")
START_TIMEOUT_SECONDS: Final = 90.0
FORMAT_TIMEOUT_SECONDS: Final = 90.0

_SINGLE_NODE: Final[Mapping[str, str]] = {
    "process.roles": "broker,controller",
    "inter.broker.listener.name": "CLIENTS",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "CLIENTS:PLAINTEXT,CONTROLLER:PLAINTEXT",
    # A single node holds one copy of all data.
    "default.replication.factor": "1",
    "min.insync.replicas": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    # Few partitions of the internal topics: each costs files and start time.
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
    "share.coordinator.state.topic.num.partitions": "4",
    # A topic that was not created is a mistake, so the broker does not create it.
    "auto.create.topics.enable": "false",
    # Kafka's default deletes records with timestamps older than seven days, which would be all of a replayed year.
    "log.retention.ms": "-1",
    "log.retention.bytes": "-1",
    "group.initial.rebalance.delay.ms": "0",
    # A broker that was killed can return only when its old session has expired, after 9 s by default.
    "broker.session.timeout.ms": "4000",
    "broker.heartbeat.interval.ms": "1000",
    # Sized for one small machine.
    "num.network.threads": "2",
    "num.io.threads": "4",
    "background.threads": "4",
    "log.cleaner.dedupe.buffer.size": "16777216",
}

_THREE_NODES: Final[Mapping[str, str]] = {
    # One of three brokers may fail: acknowledged records are also on another one, and two remain to acknowledge new
    # ones.
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "share.coordinator.state.topic.replication.factor": "3",
    "share.coordinator.state.topic.min.isr": "2",
    # On shutdown, a broker first contacts the controllers, and waits for minutes if they have ended, for example if all
    # end at once. Without that, other brokers lead its partitions once its session has expired, and it still closes its
    # logs cleanly.
    "controlled.shutdown.enable": "false",
    # Clients that name their rack read from the replica in it.
    "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
}


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    """Settings with which brokers are started.

    Attributes:
        heap: maximum Java heap of each broker, such as `768m`. `KAFKA_HEAP` in the environment takes precedence. None
            means 768m for one broker, or 512m for each of three.
        properties: server properties that are added to the defaults or replace them.
        brokers: the number of brokers. None keeps the number that the home already has; a new home gets one broker.
        secure: the way in which clients authenticate, over TLS. None keeps the way that the home already uses; a new
            home uses plain text without login.
    """

    heap: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    brokers: Literal[1, 3] | None = None
    secure: Secure | None = None


@dataclass(frozen=True, slots=True)
class Member:
    """One broker to be started, whose configuration is already written.

    Attributes:
        service: the name of the broker as a service.
        node: the broker's id, from 1 on.
        ports: the port for clients and the port for controllers.
        cluster: the id of the cluster.
        launcher: the part of the Java command line before the main class.
        configuration: the file with the server properties.
        seconds: the time within which the broker must be ready.
        security: the credentials of a secured broker.
    """

    service: str
    node: int
    ports: tuple[int, int]
    cluster: str
    launcher: tuple[str, ...]
    configuration: Path
    seconds: float
    security: Security | None = None

    def answers(self) -> bool:
        """Return True if the broker answers on its port."""
        if self.security is None:
            return answers(LOOPBACK, self.ports[0], self.cluster, self.node)
        return answers_securely(LOOPBACK, self.ports[0], self.cluster, self.node, self.security.librdkafka())


def member(
    home: Home,
    service: str,
    node: int,
    ports: tuple[int, int],
    voters: str,
    cluster: str,
    settings: BrokerSettings,
    env: Mapping[str, str],
    security: Security | None = None,
) -> Member:
    """Write one broker's configuration.

    Args:
        home: the home for data, logs and configuration.
        service: the name of the broker as a service.
        node: the broker's id, from 1 on.
        ports: the port for clients and the port for controllers.
        voters: the controllers of the cluster, in Kafka's format.
        cluster: the id of the cluster.
        settings: heap and server properties.
        env: the environment to read.
        security: the credentials of a secured broker and its clients.

    Raises:
        JavaNotFoundError: no Java was found.
        ConfigurationError: the credentials of a secured broker are damaged.
    """
    java = find_java(env)
    three = "," in voters
    port, controller = ports
    properties = {
        **_SINGLE_NODE,
        **(_THREE_NODES if three else {}),
        "node.id": str(node),
        **({"broker.rack": f"r{node}"} if three else {}),
        "listeners": f"CLIENTS://{LOOPBACK}:{port},CONTROLLER://{LOOPBACK}:{controller}",
        "advertised.listeners": f"CLIENTS://{LOOPBACK}:{port}",
        "controller.quorum.voters": voters,
        "log.dirs": str(home.root / service),
        **(security.broker_properties(service) if security is not None else {}),
        **settings.properties,
    }
    configuration = home.run / f"{service}.properties"
    state.write_private(configuration, "".join(f"{key}={_escaped(value)}\n" for key, value in properties.items()))
    launcher = (
        str(java.executable),
        "-server",
        f"-Xmx{env.get(HEAP_VARIABLE) or settings.heap or ('512m' if three else '768m')}",
        "-Xms128m",
        "-XX:+UseG1GC",
        "-XX:+ExitOnOutOfMemoryError",
        "-Djava.awt.headless=true",
        f"-Dlog4j2.configurationFile={LOGGING_FILE.as_uri()}",
        "-cp",
        os.pathsep.join(map(str, class_path(home, "broker"))),
    )
    # Three start at once on the same processors; with TLS and logins, Java loads much more code.
    seconds = START_TIMEOUT_SECONDS * (2 if three or security is not None else 1)
    return Member(service, node, ports, cluster, launcher, configuration, seconds, security)


def spec(home: Home, member: Member) -> ServiceSpec:
    """Return the spec to start a broker whose storage is formatted."""
    port = member.ports[0]
    return ServiceSpec(
        name=member.service,
        command=(*member.launcher, "kafka.Kafka", str(member.configuration)),
        environment=UNICODE_PATHS,
        directory=home.root / member.service,
        log=home.log_file(member.service),
        address=f"{LOOPBACK}:{port}",
        ports=member.ports,
        timeout=member.seconds,
        ready=member.answers,
        umask=PRIVATE,
    )


def cluster_of(folder: Path) -> str | None:
    """Return the id of the cluster for which a broker's storage was formatted, or None if the storage is not
    formatted."""
    try:
        text = (folder / "meta.properties").read_text(encoding="utf-8")
    except OSError:
        return None
    match = re.search(r"^cluster\.id=(\S+)$", text, re.MULTILINE)
    return match.group(1) if match else None


def format_storage(home: Home, member: Member) -> None:
    """Format a broker's storage if it is not formatted yet.

    Raises:
        ServiceStartError: the storage could not be formatted. The error contains the path of the log.
    """
    folder, log = home.root / member.service, home.log_file(member.service)
    if cluster_of(folder) is not None:
        return
    private(folder)
    command = [
        *member.launcher, "kafka.tools.StorageTool", "format", "--cluster-id", member.cluster,
        "--config", str(member.configuration), *(member.security.format_arguments() if member.security is not None else ()),
    ]  # fmt: skip
    private(log.parent)
    with open(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as sink:
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=sink, stderr=subprocess.STDOUT,
                timeout=FORMAT_TIMEOUT_SECONDS, check=False, env={**inherited(os.environ, SYSTEM), **UNICODE_PATHS},
                umask=PRIVATE,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ServiceStartError(member.service, f"its storage could not be formatted: {error}", str(log)) from error
        finally:
            if member.security is not None:
                member.security.forget_format_arguments()
    if done.returncode != 0:
        raise ServiceStartError(member.service, f"its storage could not be formatted:\n{log_tail(log)}\n", str(log))


def _escaped(value: str) -> str:
    """Escape a value for a Java properties file, which is Latin-1 and uses a backslash as the escape character."""
    units = value.replace("\\", "\\\\").replace("\n", "\\n").encode("utf-16-be")
    codes = (int.from_bytes(units[at : at + 2], "big") for at in range(0, len(units), 2))
    return "".join(chr(code) if code < 127 else f"\\u{code:04x}" for code in codes)
