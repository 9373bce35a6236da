"""A Spark cluster for a test: a standalone master and workers, each of which is a process with its own folders, and
Connect servers on the cluster. Workers do not see each other's work folder, scratch folder, temporary files and
compiled kernels. All workers have a Python at the same path, and the package is installed in it, as in an image.
Settings with secrets are in the environment of each worker, which the worker's executors inherit. The master, the
workers and the servers require their common secret."""

from __future__ import annotations

import json
import os
import shutil
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_hex
from typing import Any, Final

import psutil

from platform_assets.kernels.compilation import CACHE_VARIABLE, cache_folder
from platform_assets.services import inherited, jars, platform, process, spark_node, spark_server
from platform_assets.services.home import Home
from platform_assets.services.java import find_java
from platform_assets.services.platform import UpOptions
from platform_assets.services.ports import LOOPBACK, choose_ports
from platform_assets.services.process import ProcessRecord, ServiceSpec
from platform_assets.services.spark_node import AUTH_VARIABLE
from platform_assets.services.spark_server import SparkSettings
from testbed.homes import home_at, service_environment
from testbed.loads import wait_until

WORKERS: Final = 2
START_SECONDS: Final = 300.0
_EXECUTOR_MEMORY: Final = "1g"


@dataclass(frozen=True, slots=True)
class Executor:
    """An executor, from the server's REST interface. `tasks` is its number of successful tasks, and `busy` its number
    of running tasks."""

    id: str
    tasks: int
    is_active: bool
    busy: int


@dataclass(frozen=True)
class ConnectServer:
    """A Connect server on the cluster, which is one application of the cluster. `remote` contains the token."""

    remote: str = field(repr=False)
    ui: str
    workers: int
    record: ProcessRecord

    def rest(self, path: str) -> Any:
        """Return the response of the REST interface for `path`, which is relative to the server's only application."""
        ((application),) = _read(f"{self.ui}/api/v1/applications")
        return _read(f"{self.ui}/api/v1/applications/{application['id']}/{path}")

    def executors(self) -> list[Executor]:
        """Return all executors that the server has ever had."""
        return [
            Executor(e["id"], e["completedTasks"], e["isActive"], e["activeTasks"])
            for e in self.rest("allexecutors")
            if e["id"] != "driver"
        ]

    def active(self) -> set[str]:
        """Return the ids of the executors that the server has now."""
        return {executor.id for executor in self.executors() if executor.is_active}

    def wait_until_idle(self) -> None:
        """Wait until the server has all of its executors and none of them is busy."""
        self.wait_for_executors()
        wait_until("no task is left", lambda: not any(e.busy for e in self.executors() if e.is_active), START_SECONDS)

    def last_task(self) -> int:
        """Return the id of the newest task attempt, or -1 before the first attempt."""
        return max((task["taskId"] for stage in self.stages_since(-1) for task in stage), default=-1)

    def stages_since(self, seen: int) -> list[list[dict[str, Any]]]:
        """Return the task attempts with ids above `seen`, grouped by stage, as Spark describes them. The newest comes
        last."""
        stages = sorted(self.rest("stages"), key=lambda stage: stage["stageId"])
        found = (self.rest(f"stages/{s['stageId']}/{s['attemptId']}/taskList?length=1000") for s in stages)
        since = ([task for task in stage if task["taskId"] > seen] for stage in found)
        return [sorted(stage, key=lambda task: int(task["taskId"])) for stage in since if stage]

    def wait_for_executors(self, count: int | None = None) -> None:
        """Wait until the server has `count` executors. The default is one for each worker."""
        count = self.workers if count is None else count
        wait_until(f"{count} executors have registered", lambda: len(self.active()) == count, START_SECONDS)


@dataclass
class SparkCluster:
    """A running cluster. `folder` has a folder for each worker. `environment` is added to the environment of each
    worker's machine."""

    folder: Path
    home: Home
    environment: Mapping[str, str]
    workers: int = WORKERS
    master: str = ""
    secrets: Mapping[str, str] = field(default_factory=lambda: {AUTH_VARIABLE: token_hex(16)}, repr=False)
    records: dict[str, ProcessRecord] = field(default_factory=dict)

    def start(self) -> None:
        """Start the master and the workers. Return when all workers have registered."""
        jars.install(self.home, ["spark"], report=lambda _: None)
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        port, web = choose_ports(2, "SPARK_MASTER_PORT", environ={})
        self.master = f"spark://{LOOPBACK}:{port}"
        arguments = ("--host", LOOPBACK, "--port", str(port), "--webui-port", str(web))
        self._web = f"http://{LOOPBACK}:{web}"
        self._spawn("master", "master.Master", arguments, self._answers)
        for number in range(self.workers):
            self.start_worker(number)

    def start_worker(self, number: int) -> None:
        """Start a worker with one core. Return when the worker has registered."""
        before = self._alive()
        port, web = choose_ports(2, "SPARK_WORKER_PORT", environ={})
        own = self.folder / f"worker {number}"
        for name in ("work", "scratch", "tmp"):
            (own / name).mkdir(parents=True, exist_ok=True)
        # Spark does not run a copy of a slow task on the same machine, and distinguishes machines by their addresses.
        host = f"127.0.0.{2 + number}"
        arguments = (
            "--host", host, "--port", str(port), "--webui-port", str(web), "--cores", "1", "--memory", _EXECUTOR_MEMORY,
            "--work-dir", str(own / "work"), self.master,
        )  # fmt: skip
        variables = {
            "SPARK_LOCAL_IP": host,
            "SPARK_LOCAL_DIRS": str(own / "scratch"),
            "TMPDIR": str(own / "tmp"),
            CACHE_VARIABLE: str(_kernels_in(own / "kernels")),
            **self.environment,
        }
        self._spawn(f"worker-{number}", "worker.Worker", arguments, lambda: self._alive() == before + 1, variables)

    def kill_worker_of(self, one: psutil.Process) -> int:
        """Kill the worker that a process belongs to, together with the worker's executors and their Python processes,
        like a power failure. Return the worker's number."""
        (number,) = (
            n for n in range(self.workers) if self.records[f"worker-{n}"].pid in {p.pid for p in one.parents()}
        )
        record = self.records.pop(f"worker-{number}")
        found = process.family(record)
        for each in found:
            each.kill()
        psutil.wait_procs(found, timeout=30)
        process.terminate(record, 0.0)
        return number

    def writers(self, folder: Path) -> dict[psutil.Process, Path]:
        """Return the executor processes that have a data file below `folder` open, each with that file."""
        found: dict[psutil.Process, Path] = {}
        for one in self._processes():
            with suppress(psutil.Error):  # it has just ended
                for path in (Path(file.path) for file in one.open_files()):
                    if path.suffix == ".parquet" and folder in path.parents:
                        found[one] = path
        return found

    def executors(self) -> list[psutil.Process]:
        """Return the executors of all servers."""
        return [one for one in self._processes() if "--executor-id" in _command(one)]

    def pythons(self) -> list[psutil.Process]:
        """Return the Python processes of executors that run tasks, without the Python processes that only start
        others."""
        found = [one for one in self._processes() if "pyspark.daemon" in _command(one)]
        starters = {one.pid for one in found}
        return [one for one in found if one.ppid() in starters]

    def executor_of(self, one: psutil.Process) -> psutil.Process:
        """Return the executor to which a process belongs."""
        (found,) = (p for p in (one, *one.parents()) if "--executor-id" in p.cmdline())
        return found

    def stop(self) -> None:
        """Stop the whole cluster."""
        for name in sorted(self.records, reverse=True):
            process.terminate(self.records[name], 10.0)
        self.records.clear()

    @contextmanager
    def server(self, root: Path, configuration: Mapping[str, str] | None = None) -> Iterator[ConnectServer]:
        """Run a Connect server that uses the whole cluster, within the block."""
        home = home_at(root)
        (ui,) = choose_ports(1, "SPARK_UI_PORT", environ={})
        given = {
            "spark.executor.cores": "1",
            "spark.executor.memory": _EXECUTOR_MEMORY,
            "spark.executor.extraClassPath": _class_path(home),
            **spark_node.guarding(self.secrets),
            "spark.authenticate.secret": self.secrets[AUTH_VARIABLE],
            "spark.ui.enabled": "true",
            "spark.ui.port": str(ui),
            **(configuration or {}),
        }
        options = UpOptions(spark=SparkSettings(heap="1g", master=self.master, configuration=given))
        environ = service_environment()
        record = platform.start_service("spark", home, options, report=lambda _: None, environ=environ)
        try:
            remote = spark_server.remote(home, record.address)
            server = ConnectServer(remote, f"http://{LOOPBACK}:{ui}", self.workers, record)
            server.wait_for_executors()
            yield server
        finally:
            platform.down(home, report=lambda _: None)
            wait_until("its executors have ended", lambda: not self._has_executors())

    def _has_executors(self) -> bool:
        with suppress(psutil.Error):  # one has just ended
            return any("--executor-id" in one.cmdline() for one in self._processes())
        return True

    def _processes(self) -> Iterator[psutil.Process]:
        for name, record in self.records.items():
            if name.startswith("worker-"):
                yield from psutil.Process(record.pid).children(recursive=True)

    def _answers(self) -> bool:
        try:
            return self._alive() == 0
        except OSError:  # it listens before it has anything to say
            return False

    def _alive(self) -> int:
        return int(_read(f"{self._web}/json/")["aliveworkers"])

    def _spawn(
        self,
        name: str,
        main: str,
        arguments: tuple[str, ...],
        ready: Callable[[], bool],
        variables: Mapping[str, str] | None = None,
    ) -> None:
        java = find_java(os.environ)
        command = spark_node.daemon_command(java, main, arguments, spark_node.guarding(self.secrets))
        environment: dict[str, str | None] = {
            **spark_node.daemon_environment(java),
            "SPARK_LOCAL_IP": LOOPBACK,
            **self.secrets,
            **(variables or {}),
        }
        spec = ServiceSpec(
            name=f"spark-{name}",
            command=command,
            environment=environment,
            directory=self.folder / name,
            log=self.folder / f"{name}.log",
            address="",
            ports=(),
            timeout=START_SECONDS,
            ready=ready,
            inherits=inherited.WORKERS,
        )
        self.records[name] = process.spawn(spec, process.planned(spec))
        process.wait_ready(spec, self.records[name])


@contextmanager
def spark_cluster(
    root: Path, environment: Mapping[str, str] | None = None, workers: int = WORKERS
) -> Iterator[SparkCluster]:
    """Run a cluster within the block. All files of the cluster are below `root`."""
    cluster = SparkCluster(root / "cluster", home_at(root / "home"), environment or {}, workers)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


@contextmanager
def frozen(one: psutil.Process) -> Iterator[None]:
    """Freeze a process within the block. Resume it at the end, unless it was killed."""
    one.suspend()
    try:
        yield
    finally:
        resume(one)


def resume(one: psutil.Process) -> None:
    """Resume a frozen process, unless it was killed."""
    with suppress(psutil.NoSuchProcess):
        one.resume()


def _command(one: psutil.Process) -> list[str]:
    with suppress(psutil.Error):  # it has just ended
        return one.cmdline()
    return []


def _class_path(home: Home) -> str:
    return os.pathsep.join(map(str, jars.class_path(home, "spark")))


def _kernels_in(folder: Path) -> Path:
    """Make a copy of the compiled kernels for one machine, as an image would have it."""
    made = cache_folder()
    if made is not None and not folder.exists():
        shutil.copytree(made, folder / made.name)
    return folder


def _read(address: str) -> Any:
    with urllib.request.urlopen(address, timeout=START_SECONDS) as answer:
        return json.load(answer)
