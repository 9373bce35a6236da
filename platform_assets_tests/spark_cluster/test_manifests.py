"""The commands in the Kubernetes manifests: unmodified, they start a cluster that loads."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from platform_assets.engines.shared.session import connect, end
from platform_assets.kernels.compilation import CACHE_VARIABLE
from platform_assets.services import jars, spark_node
from platform_assets.services.connect_probe import accepts
from platform_assets.services.ports import LOOPBACK, choose_ports
from platform_assets.services.spark_server import TOKEN_VARIABLE
from platform_assets_tests.conftest import Broker, TopicMaker
from platform_assets_tests.support.listening import answers_to_a_stranger
from platform_assets_tests.support.manifests import containers, settings
from platform_assets_tests.support.shell import DAGSTER_WARNINGS
from testbed.homes import home_at, service_environment
from testbed.loads import TopicLake, numbered, wait_until

pytestmark = [
    pytest.mark.broker,
    pytest.mark.spark,
    pytest.mark.cluster,
    *map(pytest.mark.filterwarnings, DAGSTER_WARNINGS),
]


@dataclass
class Nodes:
    """Processes started with the manifests' commands. The addresses are this machine's instead of the pods'."""

    folder: Path
    secret: str = field(default_factory=lambda: secrets.token_hex(16), repr=False)
    token: str = field(default_factory=lambda: secrets.token_hex(16), repr=False)
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    ports: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        names = ("master", "web", "worker", "connect", "driver", "blocks")
        self.ports = dict(zip(names, choose_ports(len(names), "SPARK_CONNECT_PORT", environ={}), strict=True))
        jars.install(home_at(self.folder), ["spark"], report=lambda _: None)

    def start(self, node: str, *, secret: str | None = None) -> subprocess.Popen[bytes]:
        """Start a node with its manifest's arguments, followed by ports that are free on this machine."""
        (container,) = (
            c
            for _, c in containers()
            if c["command"][-1] == "platform_assets.services.spark_node" and c["args"][0] == node
        )
        replaced = {
            "$(POD_IP)": LOOPBACK,
            # A host name other than the master's own, as with a Service.
            "spark://spark-master:7077": f"spark://localhost:{self.ports['master']}",
            "/recovery": str(self.folder / "recovery"),
            "spark.executor.memory=2g": "spark.executor.memory=1g",
        }
        ports = ["--port", str(self.ports[node])]
        if node == "master":
            ports += ["--web-port", str(self.ports["web"])]
        if node == "connect":
            ports += [
                "--conf", f"spark.driver.port={self.ports['driver']}",
                "--conf", f"spark.driver.blockManager.port={self.ports['blocks']}",
            ]  # fmt: skip
        arguments = [replaced.get(argument, argument) for argument in container["args"]]
        own = self.folder / node
        own.mkdir(exist_ok=True)
        environ = {
            **service_environment(),
            # The image has one Python; this machine may have others.
            "PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])),
            **{name: value for name, value in settings().items() if name not in _OF_THE_POD},
            "PLATFORM_HOME": str(own),
            "PLATFORM_JARS": str(home_at(self.folder).jars),
            "SPARK_LOCAL_IP": LOOPBACK,
            spark_node.AUTH_VARIABLE: secret or self.secret,
            TOKEN_VARIABLE: self.token,
        }
        with (self.folder / f"{node}.log").open("ab") as log:
            command = [sys.executable, *container["command"][1:], *arguments, *ports]
            started = subprocess.Popen(command, env=environ, stdout=log, stderr=subprocess.STDOUT, cwd=_CHECKOUT)
        self.running[node] = started
        return started

    @property
    def remote(self) -> str:
        """The value of `SPARK_REMOTE`."""
        return f"sc://localhost:{self.ports['connect']}/;token={self.token}"

    def master(self) -> Mapping[str, Any]:
        """Return the master's page as JSON, or an empty result while the master does not answer."""
        page = f"http://{LOOPBACK}:{self.ports['web']}/json/"
        # It listens before it has any data, and first answers with an HTML page.
        with suppress(OSError, json.JSONDecodeError), urllib.request.urlopen(page, timeout=5) as answer:
            found: dict[str, Any] = json.load(answer)
            return found
        return {}

    def log(self, node: str) -> str:
        """Return the log of a node."""
        return (self.folder / f"{node}.log").read_text("utf-8", "replace")

    def kill(self, node: str) -> None:
        """Kill a node as abruptly as a power failure would."""
        process = self.running.pop(node)
        family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
        for each in family:
            with suppress(psutil.NoSuchProcess):
                each.kill()
        process.wait(30)
        psutil.wait_procs(family, timeout=30)

    def end(self) -> None:
        """End all nodes, the newest first."""
        for node in reversed(list(self.running)):
            self.kill(node)


_CHECKOUT = Path(spark_node.__file__).resolve().parents[1]
_OF_THE_POD = {"KAFKA_BOOTSTRAP_SERVERS", "LAKE_ROOT", "AWS_REGION", "PLATFORM_HOME", CACHE_VARIABLE}


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    """Return nodes: a master, a worker and a Connect server for them."""
    made = Nodes(tmp_path_factory.mktemp("nodes of the manifests"))
    with ExitStack() as stack:
        stack.callback(made.end)
        made.start("master")
        wait_until("the master answers", lambda: bool(made.master()), 60)
        made.start("worker")
        wait_until("the master has the worker", lambda: made.master().get("aliveworkers") == 1, 60)
        made.start("connect")
        wait_until("the server answers", lambda: accepts(LOOPBACK, made.ports["connect"], made.token), 120)
        wait_until("it has an executor", lambda: made.master()["activeapps"][0]["cores"] > 0, 60)
        yield made


@pytest.fixture
def lake(nodes: Nodes, broker: Broker, topic: TopicMaker, tmp_path: Path) -> Iterator[TopicLake]:
    """Return a topic whose lake is loaded by that cluster."""
    session = connect(nodes.remote)
    yield TopicLake(broker.bootstrap, topic(partitions=2), tmp_path / "lake", lambda: session, 1_000)
    end(session)


def test_it_loads_with_the_columnar_engine_and_shows_no_secret(nodes: Nodes, lake: TopicLake) -> None:
    key = lake.window_of(numbered(5_000, 2))
    loaded = lake.load(key)
    assert (loaded.receipt.rows, loaded.receipt.engine) == (5_000, "columnar")

    lines = [" ".join(process.cmdline()) for process in _family(nodes)]
    assert any("--executor-id" in line for line in lines)
    for secret in (nodes.secret, nodes.token):
        assert not [line for line in lines if secret in line]
        assert not [node for node in nodes.running if secret in nodes.log(node)]
        assert secret not in json.dumps(nodes.master())


def test_no_process_of_spark_deserialises_anything_of_a_stranger(nodes: Nodes) -> None:
    for node in ("master", "worker", "driver", "blocks"):
        (answer,) = answers_to_a_stranger(nodes.ports[node])
        assert b"Unknown challenge message" in answer, node


def test_a_master_that_is_started_again_knows_its_cluster_and_loads_go_on(nodes: Nodes, lake: TopicLake) -> None:
    first, second = lake.window_of(numbered(2_000, 2)), lake.window_of(numbered(2_000, 2))
    (application,) = nodes.master()["activeapps"]
    nodes.kill("master")
    assert lake.load(first).receipt.rows == 2_000  # driver and executors need no secret for that
    nodes.start("master")

    def is_known() -> bool:
        found = nodes.master()
        return found.get("aliveworkers") == 1 and [a["id"] for a in found["activeapps"]] == [application["id"]]

    wait_until("it knows the worker and the application", is_known, 120)
    assert lake.load(second).receipt.rows == 2_000


def test_a_worker_with_another_secret_is_not_taken(nodes: Nodes) -> None:
    """The existing worker is ended first, because the new one uses its port."""
    nodes.kill("worker")
    nodes.start("worker", secret="another one")
    wait_until("it was refused", lambda: "while bootstrapping client" in nodes.log("worker"), 120)
    assert nodes.master()["aliveworkers"] == 0
    nodes.kill("worker")
    nodes.start("worker")
    wait_until("the right one is taken", lambda: nodes.master()["aliveworkers"] == 1, 60)


def test_a_server_without_a_token_does_not_begin(nodes: Nodes) -> None:
    command = [
        sys.executable,
        "-m",
        "platform_assets.services.spark_node",
        "connect",
        "--host",
        LOOPBACK,
        "--master",
        "spark://localhost:1",
    ]
    environ = {**service_environment(), "PLATFORM_HOME": str(nodes.folder / "none")}
    environ.pop(TOKEN_VARIABLE, None)
    ended = subprocess.run(command, env=environ, capture_output=True, text=True, cwd=_CHECKOUT, check=False, timeout=60)
    assert ended.returncode == 1
    assert f"{TOKEN_VARIABLE} is not set" in ended.stderr
    shutil.rmtree(nodes.folder / "none", ignore_errors=True)


def _family(nodes: Nodes) -> list[psutil.Process]:
    found = [psutil.Process(process.pid) for process in nodes.running.values()]
    return [each for one in found for each in (one, *one.children(recursive=True))]
