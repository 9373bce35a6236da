"""The run launcher: runs start from a process with preloaded libraries, use the code on disk, and can be identified by
their process."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import psutil
import pytest
from dagster._core.definitions.reconstruct import ReconstructableJob
from dagster._core.errors import DagsterInvariantViolationError
from dagster._core.launcher import LaunchRunContext, WorkerStatus
from dagster._core.remote_origin import GrpcServerCodeLocationOrigin, RemoteJobOrigin, RemoteRepositoryOrigin
from dagster._serdes import serialize_value

from platform_assets.services import run_launcher
from platform_assets.services.process import start_of
from platform_assets.services.run_launcher import LIBRARIES, PROCESS_TAG, SERVERS_SHARE_ENVIRONMENT
from testbed.loads import wait_until

CODE = """\
import sys, time
from pathlib import Path

LOADED = sorted(sys.modules)
FOLDER = Path(__file__).parent

import dagster as dg

@dg.op
def work(context):
    (FOLDER / f"began-{context.run_id}").write_text("\\n".join(["WORD", *LOADED]))
    while (FOLDER / "wait").exists():
        time.sleep(0.05)
    if (fails := FOLDER / "fails").exists():
        raise ValueError(fails.read_text())

@dg.job(executor_def=dg.in_process_executor)
def working():
    work()
"""

TERMINATE = """\
import sys, dagster as dg
from dagster._core.instance.ref import InstanceRef
from dagster._serdes import deserialize_value

with dg.DagsterInstance.from_ref(deserialize_value(sys.argv[1], InstanceRef)) as instance:
    assert instance.run_launcher.terminate(sys.argv[2])
"""

SUBMIT = """\
import logging, sys, time
import dagster as dg
from dagster._core.definitions.reconstruct import ReconstructableJob
from dagster._core.instance.ref import InstanceRef
from dagster._core.launcher import LaunchRunContext
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster._core.workspace.load_target import PythonFileTarget
from dagster._serdes import deserialize_value

from platform_assets.services.run_launcher import PROCESS_TAG

logging.basicConfig()
reference, file, moved = sys.argv[1:]
with (
    dg.DagsterInstance.from_ref(deserialize_value(reference, InstanceRef)) as instance,
    WorkspaceProcessContext(instance, PythonFileTarget(file, None, None, "code")) as served,
):
    workspace = served.create_request_context()
    (repository,) = workspace.get_code_location("code").get_repositories().values()
    job = repository.get_full_job("working")
    run = instance.create_run_for_job(
        ReconstructableJob.for_file(file, "working").get_definition(),
        remote_job_origin=job.get_remote_origin(),
        job_code_origin=job.get_python_origin(),
    )
    sys.modules[moved] = None
    instance.run_launcher.launch_run(LaunchRunContext(run, workspace))
    while not (found := instance.get_run_by_id(run.run_id)).is_finished:
        time.sleep(0.1)
    print(f"the run ended in {found.status.value}, its launcher's process: {found.tags.get(PROCESS_TAG)}")
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    written(tmp_path, "first")
    (tmp_path / "storage").mkdir()
    yield tmp_path
    (tmp_path / "wait").unlink(missing_ok=True)


@pytest.fixture
def stranger() -> Iterator[psutil.Process]:
    """Start a process that no launcher has started."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield psutil.Process(process.pid)
        process.kill()


@pytest.fixture
def instance(folder: Path) -> Iterator[dg.DagsterInstance]:
    overrides = {
        "telemetry": {"enabled": False},
        "run_launcher": {"module": "platform_assets.services.run_launcher", "class": "PreloadedRunLauncher"},
    }
    with dg.DagsterInstance.local_temp(str(folder / "storage"), overrides) as instance:
        yield instance


def written(folder: Path, word: str) -> None:
    (folder / "code.py").write_text(CODE.replace("WORD", word))


def launched(instance: dg.DagsterInstance, folder: Path) -> str:
    job = ReconstructableJob.for_file(str(folder / "code.py"), "working")
    run = instance.create_run_for_job(job.get_definition(), job_code_origin=job.get_python_origin())
    instance.run_launcher.launch_run(LaunchRunContext(run, None))
    return run.run_id


def ended(instance: dg.DagsterInstance, run_id: str) -> dg.DagsterRunStatus:
    wait_until("the run ends", lambda: found(instance, run_id).is_finished, 120)
    return found(instance, run_id).status


def found(instance: dg.DagsterInstance, run_id: str) -> dg.DagsterRun:
    run = instance.get_run_by_id(run_id)
    assert run is not None
    return run


def process_of(instance: dg.DagsterInstance, run_id: str) -> psutil.Process:
    return psutil.Process(int(found(instance, run_id).tags[PROCESS_TAG].split("@")[0]))


def test_a_run_has_the_libraries_loaded_and_the_code_of_now(instance: dg.DagsterInstance, folder: Path) -> None:
    first = launched(instance, folder)
    assert ended(instance, first) is dg.DagsterRunStatus.SUCCESS
    word, *loaded = (folder / f"began-{first}").read_text().split("\n")
    assert word == "first"
    assert {*LIBRARIES, *preloaded_modules()} <= set(loaded)

    written(folder, "second")
    second = launched(instance, folder)
    assert ended(instance, second) is dg.DagsterRunStatus.SUCCESS
    assert (folder / f"began-{second}").read_text().split("\n")[0] == "second"


def preloaded_modules() -> tuple[str, ...]:
    """Return the names of the platform's modules that are preloaded. Call this from another process, because the query
    itself loads modules."""
    code = "from platform_assets.services.preloaded import MODULES; print(*MODULES)"
    return tuple(
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    )


def test_a_run_is_interrupted_from_another_process(instance: dg.DagsterInstance, folder: Path) -> None:
    (folder / "wait").touch()
    run_id = launched(instance, folder)
    wait_until("the run begins", (folder / f"began-{run_id}").exists, 120)
    subprocess.run([sys.executable, "-c", TERMINATE, serialize_value(instance.get_ref()), run_id], check=True)
    assert ended(instance, run_id) is dg.DagsterRunStatus.CANCELED
    assert not instance.run_launcher.terminate(run_id)


def test_what_dagster_keeps_of_a_runs_output_makes_no_terminal_act(instance: dg.DagsterInstance, folder: Path) -> None:
    (folder / "fails").write_text("a record \x1b]0;title\x07 \x9b31m \u202e")
    assert ended(instance, launched(instance, folder)) is dg.DagsterRunStatus.FAILURE
    (kept,) = (path.read_text() for path in (folder / "storage").rglob("*.err"))
    assert r"ValueError: a record \x1b]0;title\x07 \x9b31m \u202e" in kept
    assert not {c for c in kept if not c.isprintable()} - {"\n", "\t"}


def test_a_killed_process_is_noticed(instance: dg.DagsterInstance, folder: Path) -> None:
    (folder / "wait").touch()
    run_id = launched(instance, folder)
    wait_until("the run begins", (folder / f"began-{run_id}").exists, 120)
    launcher = instance.run_launcher
    assert launcher.supports_check_run_worker_health
    assert launcher.check_run_worker_health(found(instance, run_id)).status is WorkerStatus.RUNNING
    process = process_of(instance, run_id)
    process.kill()
    wait_until("it is gone", lambda: not process.is_running())
    assert launcher.check_run_worker_health(found(instance, run_id)).status is WorkerStatus.NOT_FOUND


def test_a_process_that_is_killed_before_its_run_begins_fails_the_run_at_once(
    instance: dg.DagsterInstance, folder: Path
) -> None:
    job = ReconstructableJob.for_file(str(folder / "code.py"), "working")
    run = instance.create_run_for_job(job.get_definition(), job_code_origin=job.get_python_origin())
    (folder / "code.py").write_text("import time\ntime.sleep(600)")
    instance.run_launcher.launch_run(LaunchRunContext(run, None))
    process_of(instance, run.run_id).kill()
    assert ended(instance, run.run_id) is dg.DagsterRunStatus.FAILURE
    (event,) = [each.message for each in instance.all_logs(run.run_id) if each.dagster_event is not None]
    assert "ended before the run had begun" in event


def test_a_process_that_survives_its_fork_server_goes_on(instance: dg.DagsterInstance, folder: Path) -> None:
    job = ReconstructableJob.for_file(str(folder / "code.py"), "working")
    run = instance.create_run_for_job(job.get_definition(), job_code_origin=job.get_python_origin())
    hold = folder / "hold"
    hold.touch()
    waiting = f"import time\nfrom pathlib import Path\nwhile Path({str(hold)!r}).exists():\n    time.sleep(0.05)\n"
    (folder / "code.py").write_text(waiting + CODE.replace("WORD", "later"))
    instance.run_launcher.launch_run(LaunchRunContext(run, None))
    (watch,) = (each for each in threading.enumerate() if each.name == f"watch {run.run_id}")
    parent = process_of(instance, run.run_id).parent()
    assert parent is not None
    parent.kill()
    watch.join(60)
    assert not watch.is_alive()
    assert not found(instance, run.run_id).is_finished
    hold.unlink()
    assert ended(instance, run.run_id) is dg.DagsterRunStatus.SUCCESS


def test_another_process_is_never_taken_for_a_run_and_interrupted(
    instance: dg.DagsterInstance, folder: Path, stranger: psutil.Process
) -> None:
    (folder / "wait").touch()
    run_id = launched(instance, folder)
    wait_until("the run begins", (folder / f"began-{run_id}").exists, 120)
    process, began = process_of(instance, run_id), start_of(stranger.pid)
    for tag in (f"{stranger.pid}@{began}", f"{process.pid}@{began}", "no process", "@"):
        instance.add_run_tags(run_id, {PROCESS_TAG: tag})
        health = instance.run_launcher.check_run_worker_health(found(instance, run_id))
        assert health.status is WorkerStatus.NOT_FOUND
        assert not instance.run_launcher.terminate(run_id)
    assert stranger.is_running()
    assert process.is_running()


def test_where_a_private_module_of_dagster_has_moved_runs_start_by_its_own_launcher(
    instance: dg.DagsterInstance, folder: Path
) -> None:
    arguments = [serialize_value(instance.get_ref()), str(folder / "code.py"), "dagster._cli.api"]
    done = subprocess.run([sys.executable, "-c", SUBMIT, *arguments], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert "the run ended in SUCCESS, its launcher's process: None" in done.stdout
    (warning,) = [
        line for line in done.stderr.splitlines() if line.startswith("WARNING:platform_assets.services.run_launcher:")
    ]
    assert "is started by Dagster's own launcher, which is slower" in warning
    assert "dagster._cli.api" in warning
    assert "Install the version of Dagster that requirements.lock pins" in warning


@pytest.mark.parametrize("moved", ["the module", "the name", "its arguments", "the origin's field"])
def test_whatever_has_moved_a_run_is_started_once(
    instance: dg.DagsterInstance,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    moved: str,
) -> None:
    left: list[str] = []
    monkeypatch.setattr(dg.DefaultRunLauncher, "launch_run", lambda _, context: left.append(context.dagster_run.run_id))
    if moved == "the module":
        monkeypatch.setitem(sys.modules, "dagster._grpc.types", None)
    elif moved == "the name":
        monkeypatch.delattr("dagster._grpc.types.ExecuteRunArgs")
    elif moved == "its arguments":
        monkeypatch.setattr("dagster._grpc.types.ExecuteRunArgs", lambda *, run: run)
    else:
        monkeypatch.setattr(LaunchRunContext, "job_code_origin", object())
    run_id = launched(instance, folder)
    assert left == [run_id]
    assert PROCESS_TAG not in found(instance, run_id).tags
    (record,) = [r for r in caplog.records if r.name == "platform_assets.services.run_launcher"]
    assert record.levelname == "WARNING"


def test_where_the_answer_to_run_monitoring_has_moved_it_is_not_asked(
    instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run_launcher._can_answer_monitoring.cache_clear()
    monkeypatch.delattr("dagster._core.launcher.WorkerStatus")
    for _ in range(2):
        assert not instance.run_launcher.supports_check_run_worker_health
    (record,) = [r for r in caplog.records if r.name == "platform_assets.services.run_launcher"]
    assert "cannot see whether the process of a run is alive" in record.getMessage()
    monkeypatch.undo()
    run_launcher._can_answer_monitoring.cache_clear()


def test_a_run_that_its_process_cannot_be_written_on_does_not_begin(
    instance: dg.DagsterInstance, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Recording the run's process in Dagster's store may fail. Without this record, run monitoring could never detect
    that the process has ended."""
    started: list[int] = []

    def start(pid: int) -> str | None:
        started.append(pid)
        return start_of(pid)

    def gone(run_id: str, tags: dict[str, str]) -> None:
        raise ConnectionError("the store is gone")

    monkeypatch.setattr(run_launcher, "start_of", start)
    monkeypatch.setattr(instance, "add_run_tags", gone)
    with pytest.raises(ConnectionError, match="the store is gone"):
        launched(instance, folder)
    wait_until("its process ends", lambda: start_of(started[0]) is None, 120)
    assert not list(folder.glob("began-*"))


def test_a_server_that_is_said_to_share_the_environment_leaves_runs_to_the_launcher(folder: Path) -> None:
    settings = {
        "module": "platform_assets.services.run_launcher",
        "class": "PreloadedRunLauncher",
        "config": {SERVERS_SHARE_ENVIRONMENT: True},
    }
    origin = RemoteJobOrigin(RemoteRepositoryOrigin(GrpcServerCodeLocationOrigin("localhost", 1), "defs"), "working")
    job = ReconstructableJob.for_file(str(folder / "code.py"), "working")
    for overrides, shares in (({}, False), ({"config": settings["config"]}, True)):
        own = folder / f"storage of {shares}"
        own.mkdir()
        with dg.DagsterInstance.local_temp(
            str(own), {"telemetry": {"enabled": False}, "run_launcher": {**settings, "config": {}, **overrides}}
        ) as made:
            run = made.create_run_for_job(
                job.get_definition(), remote_job_origin=origin, job_code_origin=job.get_python_origin()
            )
            if not shares:
                # Without a shared server, the launcher needs the workspace.
                with pytest.raises(DagsterInvariantViolationError, match="requires a workspace"):
                    made.run_launcher.launch_run(LaunchRunContext(run, None))
                continue
            made.run_launcher.launch_run(LaunchRunContext(run, None))
            assert ended(made, run.run_id) is dg.DagsterRunStatus.SUCCESS
            assert PROCESS_TAG in found(made, run.run_id).tags
