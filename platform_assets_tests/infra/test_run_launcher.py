"""Runs start from a process with the libraries loaded, see the code as it is on disk, and are known by their process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import psutil
import pytest
from dagster._core.definitions.reconstruct import ReconstructableJob
from dagster._core.launcher import LaunchRunContext, WorkerStatus
from dagster._serdes import serialize_value

from infra.process import start_of
from infra.run_launcher import LIBRARIES, PROCESS_TAG
from platform_assets_tests.support.loads import wait_until

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


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    written(tmp_path, "first")
    (tmp_path / "storage").mkdir()
    yield tmp_path
    (tmp_path / "wait").unlink(missing_ok=True)


@pytest.fixture
def stranger() -> Iterator[psutil.Process]:
    """A process that no launcher started."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield psutil.Process(process.pid)
        process.kill()


@pytest.fixture
def instance(folder: Path) -> Iterator[dg.DagsterInstance]:
    overrides = {
        "telemetry": {"enabled": False},
        "run_launcher": {"module": "infra.run_launcher", "class": "PreloadedRunLauncher"},
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
    assert set(LIBRARIES) <= set(loaded)
    assert not [name for name in loaded if name.split(".")[0] == "platform_assets"]

    written(folder, "second")
    second = launched(instance, folder)
    assert ended(instance, second) is dg.DagsterRunStatus.SUCCESS
    assert (folder / f"began-{second}").read_text().split("\n")[0] == "second"


def test_a_run_is_interrupted_from_another_process(instance: dg.DagsterInstance, folder: Path) -> None:
    (folder / "wait").touch()
    run_id = launched(instance, folder)
    wait_until("the run begins", (folder / f"began-{run_id}").exists, 120)
    subprocess.run([sys.executable, "-c", TERMINATE, serialize_value(instance.get_ref()), run_id], check=True)
    assert ended(instance, run_id) is dg.DagsterRunStatus.CANCELED
    assert not instance.run_launcher.terminate(run_id)


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


def test_another_process_is_never_taken_for_a_run_and_interrupted(
    instance: dg.DagsterInstance, folder: Path, stranger: psutil.Process
) -> None:
    (folder / "wait").touch()
    run_id = launched(instance, folder)
    wait_until("the run begins", (folder / f"began-{run_id}").exists, 120)
    process, began = process_of(instance, run_id), start_of(stranger.pid)
    for told in (f"{stranger.pid}@{began}", f"{process.pid}@{began}", "no process", "@"):
        instance.add_run_tags(run_id, {PROCESS_TAG: told})
        health = instance.run_launcher.check_run_worker_health(found(instance, run_id))
        assert health.status is WorkerStatus.NOT_FOUND
        assert not instance.run_launcher.terminate(run_id)
    assert stranger.is_running()
    assert process.is_running()
