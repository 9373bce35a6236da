"""A real Apache Kafka broker: KRaft, one node, loopback alone."""

from __future__ import annotations

import base64
import os
import re
import subprocess
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from infra import state
from infra.errors import ServiceStartError
from infra.home import Home
from infra.jars import class_path
from infra.java import UNICODE_PATHS, find_java
from infra.kafka_probe import answers
from infra.ports import KAFKA_VARIABLE, LOOPBACK, choose_ports
from infra.process import ServiceSpec, log_tail

SERVICE: Final = "kafka"
HEAP_VARIABLE: Final = "KAFKA_HEAP"
LOGGING_FILE: Final = Path(__file__).with_name("kafka-log4j2.properties")
START_TIMEOUT_SECONDS: Final = 90.0
FORMAT_TIMEOUT_SECONDS: Final = 90.0

_SINGLE_NODE: Final[Mapping[str, str]] = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "inter.broker.listener.name": "CLIENTS",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "CLIENTS:PLAINTEXT,CONTROLLER:PLAINTEXT",
    # One node holds one copy of everything.
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
    # A topic that is not declared is a mistake, not a wish.
    "auto.create.topics.enable": "false",
    # Kafka's default deletes what is older than seven days by its own timestamp, which is all of a replayed year.
    "log.retention.ms": "-1",
    "log.retention.bytes": "-1",
    "group.initial.rebalance.delay.ms": "0",
    # A broker that was killed may come back when its old session is over, which takes 9 s by default.
    "broker.session.timeout.ms": "4000",
    "broker.heartbeat.interval.ms": "1000",
    # Sized for one small machine.
    "num.network.threads": "2",
    "num.io.threads": "4",
    "background.threads": "4",
    "log.cleaner.dedupe.buffer.size": "16777216",
}


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    """What a broker is started with.

    Attributes:
        heap: Java's maximum heap, as `768m`; `KAFKA_HEAP` in the environment wins.
        properties: server properties that add to or replace the defaults.
    """

    heap: str = "768m"
    properties: Mapping[str, str] = field(default_factory=dict)


def broker_spec(
    home: Home, settings: BrokerSettings | None = None, *, environ: Mapping[str, str] | None = None
) -> ServiceSpec:
    """Write the broker's configuration, format its storage the first time, and say how to start it.

    Data, cluster id and, when they are free, ports are those of the last start. Each start gives clients the new
    address, so a change of port needs nothing else.

    Args:
        home: where data, logs and configuration go.
        settings: heap and server properties.
        environ: the environment to read; the process's own by default.

    Raises:
        PortTakenError, ConfigurationError: from `KAFKA_PORT`.
        JavaNotFoundError: there is no Java.
        ServiceStartError: the storage could not be formatted.
    """
    env = os.environ if environ is None else environ
    chosen = settings or BrokerSettings()
    java = find_java(env)
    port, controller = choose_ports(2, KAFKA_VARIABLE, remembered=state.remembered_ports(home, SERVICE), environ=env)
    state.remember_ports(home, SERVICE, (port, controller))
    properties = {
        **_SINGLE_NODE,
        "listeners": f"CLIENTS://{LOOPBACK}:{port},CONTROLLER://{LOOPBACK}:{controller}",
        "advertised.listeners": f"CLIENTS://{LOOPBACK}:{port}",
        "controller.quorum.voters": f"1@{LOOPBACK}:{controller}",
        "log.dirs": str(home.kafka),
        **chosen.properties,
    }
    configuration = home.run / "kafka.properties"
    state.write_private(configuration, "".join(f"{key}={_escaped(value)}\n" for key, value in properties.items()))
    log = home.log_file(SERVICE)
    launcher = (
        str(java.executable),
        "-server",
        f"-Xmx{env.get(HEAP_VARIABLE) or chosen.heap}",
        "-Xms128m",
        "-XX:+UseG1GC",
        "-XX:+ExitOnOutOfMemoryError",
        "-Djava.awt.headless=true",
        f"-Dlog4j2.configurationFile={LOGGING_FILE.as_uri()}",
        "-cp",
        os.pathsep.join(map(str, class_path(home, "broker"))),
    )
    cluster = _formatted(home, launcher, configuration, log)
    return ServiceSpec(
        name=SERVICE,
        command=(*launcher, "kafka.Kafka", str(configuration)),
        environment=UNICODE_PATHS,
        directory=home.kafka,
        log=log,
        address=f"{LOOPBACK}:{port}",
        ports=(port, controller),
        timeout=START_TIMEOUT_SECONDS,
        ready=lambda: answers(LOOPBACK, port, cluster),
    )


def cluster_id(home: Home) -> str | None:
    """The id that the storage was formatted with; None before the first start."""
    try:
        text = (home.kafka / "meta.properties").read_text(encoding="utf-8")
    except OSError:
        return None
    match = re.search(r"^cluster\.id=(\S+)$", text, re.MULTILINE)
    return match.group(1) if match else None


def _formatted(home: Home, launcher: tuple[str, ...], configuration: Path, log: Path) -> str:
    """Format the storage unless it is; returns the cluster id."""
    if (known := cluster_id(home)) is not None:
        return known
    home.kafka.mkdir(parents=True, exist_ok=True)
    new = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    # Kafka's own tool refuses an id that its option parser would take for a flag.
    new = "0" + new[1:] if new.startswith("-") else new
    command = [*launcher, "kafka.tools.StorageTool", "format", "--cluster-id", new, "--config", str(configuration)]
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as sink:
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=sink, stderr=subprocess.STDOUT,
                timeout=FORMAT_TIMEOUT_SECONDS, check=False, env={**os.environ, **UNICODE_PATHS},
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ServiceStartError(SERVICE, f"its storage was not formatted: {error}", str(log)) from error
    if done.returncode != 0:
        raise ServiceStartError(SERVICE, f"its storage was not formatted:\n{log_tail(log)}\n", str(log))
    return cluster_id(home) or new


def _escaped(value: str) -> str:
    """Escape a value for a Java properties file, which is Latin-1 and takes a backslash for an escape."""
    units = value.replace("\\", "\\\\").replace("\n", "\\n").encode("utf-16-be")
    codes = (int.from_bytes(units[at : at + 2], "big") for at in range(0, len(units), 2))
    return "".join(chr(code) if code < 127 else f"\\u{code:04x}" for code in codes)
