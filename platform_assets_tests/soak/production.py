"""The production setup on one machine: the services in the Kubernetes manifests, a PostgreSQL server and three brokers.

Master, workers, Connect server, code server, webserver and daemon are processes started with the commands in the
manifests. They use free ports, and this machine's addresses instead of those of the pods. A supervisor restarts each
process that ends, as Kubernetes does, and does nothing else.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
import sys
import threading
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, Literal, get_args

import psutil

from platform_assets.services import connect_probe, dagster_services, jars, platform, process
from platform_assets.services.broker import BrokerSettings
from platform_assets.services.brokers import ALL, BrokerService
from platform_assets.services.dagster_services import POSTGRES_VARIABLE
from platform_assets.services.home import CHECKOUT
from platform_assets.services.platform import DAGSTER_FOLDER, KAFKA_ADDRESS, SPARK_ADDRESS, UpOptions
from platform_assets.services.ports import LOOPBACK, choose_ports, is_listening
from platform_assets.services.process import ProcessRecord, ServiceSpec, family, is_alive
from platform_assets.services.spark_node import AUTH_VARIABLE
from platform_assets.services.spark_server import TOKEN_VARIABLE
from platform_assets_tests.soak.embedded import Embedded
from platform_assets_tests.support.manifests import BASE, containers, settings
from testbed import postgres
from testbed.postgres import Postgres

ProcessName = Literal["master", "worker-0", "worker-1", "connect", "code", "webserver", "daemon"]
Part = Literal["postgres", BrokerService, ProcessName]
PROCESSES: Final[tuple[ProcessName, ...]] = get_args(ProcessName)
PARTS: Final[tuple[Part, ...]] = ("postgres", *ALL, *PROCESSES)

_START_SECONDS: Final = 180.0
_LOOK_SECONDS: Final = 1.0
_OF_THE_POD: Final = {KAFKA_ADDRESS, "LAKE_ROOT", "AWS_REGION", "PLATFORM_HOME", "NUMBA_CACHE_DIR"}
_REPOSITORIES: Final = b'{"query": "{repositoriesOrError {... on RepositoryConnection {nodes {name}}}}"}'


@dataclass
class Production(Embedded):
    """The whole setup below `root`. Declare all topics before calling `serving`."""

    token: str = field(repr=False, default_factory=lambda: secrets.token_hex(16))
    secret: str = field(repr=False, default_factory=lambda: secrets.token_hex(16))
    revived: Counter[str] = field(default_factory=Counter)
    """Number of times that the supervisor restarted a process that had ended without being killed by a test."""

    def __post_init__(self) -> None:
        super().__post_init__()
        (self.home.dagster / "dagster.yaml").write_text((BASE / "dagster.yaml").read_text("utf-8"))
        self._records: dict[str, ProcessRecord] = {}
        self._specs: dict[str, ServiceSpec] = {}
        self._away: set[str] = set()
        self._lock = threading.RLock()
        names = ("master", "web", "worker-0", "worker-1", "connect", "driver", "blocks", "code", "webserver")
        self.ports = dict(zip(names, choose_ports(len(names), "SPARK_CONNECT_PORT", environ={}), strict=True))

    @property
    def options(self) -> UpOptions:
        """Options with which the brokers are started."""
        return UpOptions(services=("kafka",), broker=BrokerSettings(properties=dict(self.properties), brokers=3))

    @contextmanager
    def serving(self) -> Iterator[Production]:
        """Run everything while the block runs. After the block, end everything, whatever its state."""
        with ExitStack() as stack:
            # Not below `root`, which may be unreadable for the user that runs the server.
            folder = Path(stack.enter_context(TemporaryDirectory(prefix="platform-postgres-")))
            folder.chmod(0o755)
            self.server: Postgres = stack.enter_context(postgres.server(folder))
            stack.callback(platform.down, self.home, report=_quiet)
            platform.up(self.home, self.options, report=_quiet, environ=self.environ)
            brokers = platform.environment(self.home, environ=self.environ)[KAFKA_ADDRESS]
            self.given = {
                **self.given,
                KAFKA_ADDRESS: brokers,
                SPARK_ADDRESS: f"sc://localhost:{self.ports['connect']}/;token={self.token}",
                POSTGRES_VARIABLE: self.server.url,
                DAGSTER_FOLDER: str(self.home.dagster),
            }
            self.environ |= self.given
            before = os.environ.get(POSTGRES_VARIABLE)
            os.environ[POSTGRES_VARIABLE] = self.server.url
            stack.callback(_put_back, before)
            jars.install(self.home, ["spark"], report=_quiet)
            stack.callback(self._end)
            for name in PROCESSES[:4]:
                self._begin(name)
            self._run(_command("storage"))
            for name in PROCESSES[4:]:
                self._begin(name)
            stack.enter_context(self._supervised())
            yield self

    # --- parts ------------------------------------------------------------------------------------------------

    def take(self, part: Part) -> None:
        """Kill a part and all processes that belong to it (SIGKILL)."""
        if part == "postgres":
            self.server.kill()
        elif part in ALL:
            self.kill(part)
        else:
            with self._lock:
                self._away.add(part)
                members = family(self._records[part])
                for member in members:
                    with suppress(psutil.NoSuchProcess):
                        member.kill()
                psutil.wait_procs(members, 30)

    def give_back(self, part: Part) -> None:
        """Restart the part with its command and folders. Do not wait until the part answers."""
        if part == "postgres":
            self.server.start()
        elif part in ALL:
            self.start(part)
        else:
            with self._lock:
                self._spawn(part)
                self._away.discard(part)

    def ui_has_the_code(self) -> bool:
        """Return True if the UI answers and has loaded the code location."""
        address = f"http://{LOOPBACK}:{self.ports['webserver']}/graphql"
        request = urllib.request.Request(address, _REPOSITORIES, {"Content-Type": "application/json"})
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        # A server that is not ready, or has lost another one, answers with something other than JSON, or with an error
        # in the JSON.
        with suppress(OSError, ValueError, KeyError, TypeError), opener.open(request, timeout=30) as answer:
            found: dict[str, Any] = json.load(answer)
            return bool(found["data"]["repositoriesOrError"].get("nodes"))
        return False

    # --- processes --------------------------------------------------------------------------------------------

    def _begin(self, name: ProcessName) -> None:
        self._specs[name] = self._spec(name)
        self._spawn(name)
        process.wait_ready(self._specs[name], self._records[name])

    def _spawn(self, name: str) -> None:
        spec = self._specs[name]
        self._records[name] = process.spawn(spec, process.planned(spec))

    def _end(self) -> None:
        for name in reversed(PROCESSES):
            if name in self._records:
                process.terminate(self._records[name], 10.0)

    @contextmanager
    def _supervised(self) -> Iterator[None]:
        stop = threading.Event()

        def look() -> None:
            while not stop.wait(_LOOK_SECONDS):
                with self._lock:
                    for name in PROCESSES:
                        if name not in self._away and not is_alive(self._records[name]):
                            # Its files belong to its container, and are removed with it.
                            process.terminate(self._records[name], 0.0)
                            self.revived[name] += 1
                            self._spawn(name)

        thread = threading.Thread(target=look, name="supervisor")
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def _spec(self, name: ProcessName) -> ServiceSpec:
        command, variables = _command(name.partition("-")[0]), self.environ
        if name in ("master", "worker-0", "worker-1", "connect"):
            command = [*self._localised(name, command), *self._ports_of(name)]
            variables = self._of_spark(name)
        else:
            command = self._localised(name, command)
        ready: dict[str, Callable[[], bool]] = {
            "connect": lambda: connect_probe.accepts(LOOPBACK, self.ports["connect"], self.token),
            "webserver": lambda: dagster_services.web_answers(self.ports["webserver"]),
            "daemon": lambda: True,
        }
        port = self.ports.get(name, 0)
        host = _host(name)
        return ServiceSpec(
            name=name,
            command=tuple(command),
            environment={**dict.fromkeys(os.environ), **_path(variables)},
            directory=self.root / "processes" / name,
            log=self.root / "processes" / f"{name}.log",
            address="",
            ports=(),
            timeout=_START_SECONDS,
            ready=ready.get(name, lambda: is_listening(port) if host == LOOPBACK else _listens(host, port)),
        )

    def _localised(self, name: str, command: list[str]) -> list[str]:
        """Return the command in the manifest, adapted to this machine's addresses, ports and sizes."""
        replaced = {
            "$(POD_IP)": _host(name),
            "spark://spark-master:7077": f"spark://localhost:{self.ports['master']}",
            "/recovery": str(self.root / "recovery"),
            "spark.executor.memory=2g": "spark.executor.memory=1g",
            "4000": str(self.ports["code"]),
            "3000": str(self.ports["webserver"]),
            "0.0.0.0": LOOPBACK,
        }
        found = [replaced.get(word, word) for word in command]
        found[0] = str(Path(sys.executable).parent / found[0])
        return found

    def _ports_of(self, name: str) -> list[str]:
        """Return ports and sizes as arguments to append to the arguments in the manifest. If an option occurs twice,
        its last value takes effect."""
        ports = ["--port", str(self.ports[name])]
        if name == "master":
            return [*ports, "--web-port", str(self.ports["web"])]
        if name == "connect":
            return [
                *ports, "--heap", "1g",
                "--conf", f"spark.driver.port={self.ports['driver']}",
                "--conf", f"spark.driver.blockManager.port={self.ports['blocks']}",
            ]  # fmt: skip
        return [*ports, "--cores", "1", "--memory", "1g"]

    def _of_spark(self, name: str) -> dict[str, str]:
        """Return the environment of a Spark process: the environment in the manifest, but with separate folders."""
        own = self.root / "processes" / name
        for folder in ("scratch", "tmp"):
            (own / folder).mkdir(parents=True, exist_ok=True)
        found = {
            **self.environ,
            **{name: value for name, value in settings().items() if name not in _OF_THE_POD},
            "PLATFORM_HOME": str(own),
            "SPARK_LOCAL_IP": _host(name),
            "SPARK_LOCAL_DIRS": str(own / "scratch"),
            "TMPDIR": str(own / "tmp"),
            AUTH_VARIABLE: self.secret,
            TOKEN_VARIABLE: self.token,
        }
        # For Dagster only.
        for name in (POSTGRES_VARIABLE, DAGSTER_FOLDER, SPARK_ADDRESS):
            del found[name]
        return found

    def _run(self, command: list[str]) -> None:
        done = subprocess.run(
            self._localised("storage", command), env=_path(self.environ), cwd=CHECKOUT, timeout=_START_SECONDS,
            check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout


def _command(name: str) -> list[str]:
    """Return the command line of a container in the manifests: its command and its arguments."""
    (container,) = (c for _, c in containers() if c["name"] == name)
    return [*container["command"], *container.get("args", ())]


def _host(name: str) -> str:
    """Return the host of a part. Workers need separate hosts, because Spark distinguishes machines by their addresses."""
    number = name.partition("worker-")[2]
    return f"127.0.0.{2 + int(number)}" if number else LOOPBACK


def _listens(host: str, port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex((host, port)) == 0


def _path(variables: Mapping[str, str]) -> dict[str, str]:
    return {
        **variables,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(CHECKOUT),
        "PYTHONUNBUFFERED": "1",
    }


def _put_back(before: str | None) -> None:
    os.environ.pop(POSTGRES_VARIABLE, None)
    if before is not None:
        os.environ[POSTGRES_VARIABLE] = before


def _quiet(line: str) -> None:
    """Discard a line of output, because the services' logs already contain the start-up messages."""
