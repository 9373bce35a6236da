"""A Spark worker's overhead between tasks is lower after the worker has run a task of the platform."""

from __future__ import annotations

import gc
import importlib
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from platform_assets.engines.shared import job, worker


@dataclass(frozen=True)
class Nothing:
    """Work without shares."""

    shares: tuple[str, ...] = ()


@pytest.fixture(autouse=True)
def new_worker(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(worker, "_tasks", 0)
    yield
    gc.unfreeze()


def _zipped(path: Path, module: str) -> str:
    with zipfile.ZipFile(path, "w") as packed:
        packed.writestr(f"{module}.py", "FOUND = True\n")
        packed.writestr("org/apache/Some.class", b"")
    return str(path)


@pytest.mark.parametrize("task", ["columnar", "decoding", "merging"])
def test_each_task_can_be_the_first_of_a_worker(task: str) -> None:
    """In tests, the worker of a later task has usually run other tasks, whose imports it keeps."""
    done = subprocess.run(
        [sys.executable, "-c", f"from platform_assets.engines.{task}.task import reports"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_the_jar_leaves_the_import_path_with_its_importers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jar = _zipped(tmp_path / "spark-core_2.13-4.0.5.jar", "unused_of_jar")
    own = _zipped(tmp_path / "own.zip", "module_of_own_zip")
    monkeypatch.setattr(sys, "path", [jar, *sys.path, f"{jar}/org", own])
    monkeypatch.setattr(sys, "path_importer_cache", dict(sys.path_importer_cache))
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("module_that_nobody_has")  # now each entry of the path has an importer
    assert {jar, own} <= sys.path_importer_cache.keys()
    sys.path_importer_cache[f"{jar}/org"] = sys.path_importer_cache[jar]
    before = [entry for entry in sys.path if not entry.startswith(jar)]

    worker.begin_task()

    assert sys.path == before
    assert not [entry for entry in sys.path_importer_cache if entry.startswith(jar)]
    assert importlib.import_module("module_of_own_zip").FOUND


def test_other_jars_and_folders_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [str(tmp_path / "users.jar"), str(tmp_path / "spark-core_of_mine"), "", "."]
    monkeypatch.setattr(sys, "path", list(entries))
    monkeypatch.setattr(sys, "path_importer_cache", dict.fromkeys(entries))
    worker.begin_task()
    assert sys.path == entries
    assert list(sys.path_importer_cache) == entries


def test_garbage_is_looked_for_among_what_came_after_the_first_task() -> None:
    worker.begin_task()
    assert not gc.get_freeze_count()
    kept: list[list[int]] = [[] for _ in range(1_000)]
    worker.begin_task()
    frozen = gc.get_freeze_count()
    assert frozen > len(kept)
    later: list[list[int]] = [[] for _ in range(1_000)]
    worker.begin_task()
    # Frozen objects are still freed when their last reference disappears, so there may be fewer.
    assert len(later) == 1_000
    assert gc.get_freeze_count() <= frozen


@pytest.mark.parametrize(("code", "begun"), [(worker.CODE, 1), ("another", 0)])
def test_a_worker_of_other_code_is_left_as_it_is(code: str, begun: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Call the mapped function in the same way as Spark's worker. An older release on the worker might lack a function
    that this release would call."""
    monkeypatch.setattr("platform_assets.engines.shared.job.CODE", code)
    assert list(job._mapped(Nothing(), "platform_assets.engines.columnar.task")(iter(()))) == []
    assert worker._tasks == begun
