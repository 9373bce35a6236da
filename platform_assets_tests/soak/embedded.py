"""A platform for one test without an operator: embedded services, the real daemon, and topics declared in YAML.

Services are killed and started as a machine or a service supervisor would do it, without running platform commands.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import dagster as dg
import psutil
import yaml

from platform_assets.kafka.cluster import Cluster
from platform_assets.kafka.settings import ClientSettings
from platform_assets.lake.location import Lake
from platform_assets.ledger.store import Ledger
from platform_assets.model.declaration import EngineName
from platform_assets.services import platform, spark_server, state
from platform_assets.services.broker import BrokerSettings
from platform_assets.services.dagster_services import INSTANCE_FILE
from platform_assets.services.home import CHECKOUT, Home
from platform_assets.services.platform import KAFKA_ADDRESS, LAKE_ROOT, SPARK_ADDRESS, Service, UpOptions
from platform_assets.services.ports import LOOPBACK
from platform_assets.services.process import ProcessRecord, family, is_alive
from platform_assets.services.run_launcher import PROCESS_TAG
from platform_assets.services.spark_server import SparkSettings
from testbed.homes import home_at, service_environment

_PROGRAM: Final = "from platform_assets.cli.main import main; main()"
_UNFINISHED: Final = [s for s in dg.DagsterRunStatus if s.value not in ("SUCCESS", "FAILURE", "CANCELED")]


@dataclass(frozen=True, slots=True)
class Answer:
    """Exit code of a platform command, and its output on both streams."""

    code: int
    text: str


@dataclass
class Embedded:
    """A platform below `root`. `lake` contains its tables, `module` is its code location, and `given` are additional
    environment variables.

    If `address` is set, the lake is in an object store: `given` contains the store's credentials, and the folder `lake`
    contains the store's files. `properties` are settings of the broker. `instance_settings` override the settings of
    the embedded Dagster instance.
    """

    root: Path
    lake: Path
    module: str = "platform_assets.definitions"
    given: Mapping[str, str] = field(default_factory=dict)
    properties: Mapping[str, str] = field(default_factory=dict)
    instance_settings: Mapping[str, Any] = field(default_factory=dict)
    address: str = ""

    def __post_init__(self) -> None:
        self.root.mkdir(parents=True, exist_ok=True)
        (self.root / "defs").mkdir(exist_ok=True)
        below = home_at(self.root / "home")
        self.home = Home(below.root, below.jars, self.address or str(self.lake), below.dagster)
        self.environ = {
            **service_environment(),
            "PLATFORM_HOME": str(self.home.root),
            "PLATFORM_JARS": str(self.home.jars),
            "PLATFORM_DEFS": str(self.root / "defs"),
            LAKE_ROOT: self.home.lake,
            "DAGSTER_DISABLE_TELEMETRY": "yes",
            **self.given,
        }
        (self.root / "workspace.yaml").write_text(
            f"load_from:\n  - python_module:\n      module_name: {self.module}\n"
            f"      working_directory: {json.dumps(str(CHECKOUT))}\n      location_name: platform_assets\n"
        )
        settings = yaml.safe_load(INSTANCE_FILE.read_text())
        for name, value in self.instance_settings.items():
            settings[name] = {**settings.get(name, {}), **value}
        self.home.dagster.mkdir(parents=True, exist_ok=True)
        (self.home.dagster / "dagster.yaml").write_text(yaml.safe_dump(settings))

    @property
    def options(self) -> UpOptions:
        """Options with which the services are started."""
        return UpOptions(
            workspace=self.root / "workspace.yaml",
            broker=BrokerSettings(properties=dict(self.properties)),
            spark=SparkSettings(heap="2g"),
        )

    def declare(self, topic: str, start: datetime, engine: EngineName = "connector", **attributes: float) -> None:
        """Write the YAML of a topic with windows of one minute. Declare all topics before `up`."""
        folder = self.root / "defs" / topic
        folder.mkdir()
        declared = {
            "topic": topic, "window": "* * * * *", "start": start.isoformat(), "engine": engine,
            "deep_audit_running": False, **attributes,
        }  # fmt: skip
        text = yaml.safe_dump({"type": "platform_assets.components.TopicTable", "attributes": declared})
        (folder / "defs.yaml").write_text(text)

    def reach_by(self, kafka: int, spark: int) -> None:
        """Make every process that is started from now on connect to the broker and to Spark through these loopback
        ports."""
        remote = re.sub(r":\d+/", f":{spark}/", self.remote, count=1)
        self.given = {**self.given, KAFKA_ADDRESS: f"{LOOPBACK}:{kafka}", SPARK_ADDRESS: remote}
        self.environ |= self.given

    @contextmanager
    def running(self, services: Sequence[Service]) -> Iterator[Embedded]:
        """Start the services one after another before the block runs. After the block, end them, whatever their state."""
        try:
            for service in services:
                self.start(service)
            yield self
        finally:
            platform.down(self.home, report=_quiet)

    # --- services ---------------------------------------------------------------------------------------------

    def start(self, service: Service) -> ProcessRecord:
        """Start a service. If it was killed, it gets the same data, port and token as before."""
        return platform.start_service(service, self.home, self.options, report=_quiet, environ=self.environ)

    def record(self, service: Service) -> ProcessRecord:
        """Return the record of a service that was started."""
        return state.read_records(self.home)[service]

    def is_alive(self, service: Service) -> bool:
        """Return True if the service's process is running."""
        return is_alive(self.record(service))

    def kill(self, service: Service) -> None:
        """Kill a service and all its processes with SIGKILL, so that no handler runs."""
        members = family(self.record(service))
        for member in members:
            with suppress(psutil.NoSuchProcess):
                member.kill()
        psutil.wait_procs(members, 30)

    @contextmanager
    def frozen(self, service: Service) -> Iterator[None]:
        """Suspend the service's main process (SIGSTOP) while the block runs."""
        pid = self.record(service).pid
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    @property
    def bootstrap(self) -> str:
        """Bootstrap address for clients. The broker need not be running."""
        return self.given.get(KAFKA_ADDRESS) or self.record("kafka").address

    @property
    def remote(self) -> str:
        """Address of the Spark Connect server, including the token. The server need not be running."""
        return self.given.get(SPARK_ADDRESS) or spark_server.remote(self.home, self.record("spark").address)

    def workers(self) -> list[psutil.Process]:
        """Return the Spark server's Python workers, both busy and idle."""
        found = [p for p in family(self.record("spark")) if "pyspark.daemon" in _command(p)]
        # The oldest process is the daemon from which the workers are forked.
        return sorted(found, key=lambda p: p.create_time())[1:]

    def code_servers(self) -> list[psutil.Process]:
        """Return the processes that serve the code location to the daemon. Sensors tick in these processes."""
        return [p for p in family(self.record("dagster-daemon")) if "dagster api grpc" in _command(p)]

    # --- state ----------------------------------------------------------------------------------------

    @property
    def settings(self) -> ClientSettings:
        """Return the settings for a client of the broker."""
        return ClientSettings(self.bootstrap)

    @property
    def cluster(self) -> Cluster:
        """Return a client of the broker."""
        return Cluster.connect(self.settings)

    @property
    def ledger(self) -> Ledger:
        """Return the ledger of the platform's lake."""
        return Ledger(Lake.at(self.home.lake))

    @contextmanager
    def instance(self) -> Iterator[dg.DagsterInstance]:
        """Return the platform's Dagster instance."""
        with dg.DagsterInstance.from_config(str(self.home.dagster)) as found:
            yield found

    def unfinished_runs(self) -> list[str]:
        """Return the ids of the runs that Dagster lists as queued or running."""
        with self.instance() as instance:
            return [r.run_id for r in instance.get_runs(dg.RunsFilter(statuses=_UNFINISHED))]

    def run_processes(self) -> list[int]:
        """Return the live processes of runs, as seen by the operating system."""
        with self.instance() as instance:
            return [process.pid for _, process in self.live_runs(instance, None)]

    def live_runs(
        self, instance: dg.DagsterInstance, statuses: Sequence[dg.DagsterRunStatus] | None = _UNFINISHED
    ) -> list[tuple[dg.DagsterRun, psutil.Process]]:
        """Return the runs with these statuses (None: any) that have a live process, with it."""
        found = []
        for run in instance.get_runs(None if statuses is None else dg.RunsFilter(statuses=list(statuses))):
            pid, _, began = run.tags.get(PROCESS_TAG, "").partition("@")
            with suppress(psutil.NoSuchProcess):
                if pid and is_alive(_as_record(int(pid), began)):
                    process = psutil.Process(int(pid))
                    if process.status() != psutil.STATUS_ZOMBIE:
                        found.append((run, process))
        return found

    def begin(self, *arguments: str, first: str = "") -> subprocess.Popen[str]:
        """Start `platform-assets` with these arguments in the platform's environment. Standard output and standard
        error go to the same stream. Before the command, the process executes the Python code `first`."""
        return subprocess.Popen(
            [sys.executable, "-c", f"{first}\n{_PROGRAM}", *arguments],
            cwd=CHECKOUT, env={**self.environ, "COLUMNS": "150"},
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    def command(self, *arguments: str, timeout: float = 300) -> Answer:
        """Run `platform-assets` with these arguments in the platform's environment."""
        done = subprocess.run(
            [sys.executable, "-c", _PROGRAM, *arguments],
            cwd=CHECKOUT, env={**self.environ, "COLUMNS": "150"}, timeout=timeout, check=False,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        return Answer(done.returncode, done.stdout)


def _as_record(pid: int, began: str) -> ProcessRecord:
    return ProcessRecord("run", pid, began, "", "", "", ())


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def _quiet(line: str) -> None:
    """Discard a line of output, because the services' logs already contain the start-up messages."""
