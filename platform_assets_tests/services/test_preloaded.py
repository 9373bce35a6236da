"""Preloading: the platform's code is loaded before runs start, but a run still uses the code that is on disk."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import platform_assets

RUNS = """\
import multiprocessing, sys
from pathlib import Path

from platform_assets.services.run_launcher import PLATFORM

def run(answers):
    preloaded = sys.modules["platform_assets.services.preloaded"]
    there = "platform_assets.definitions" in sys.modules
    changed = preloaded.forget_if_changed()
    left = [name for name in sys.modules if name.partition(".")[0] == "platform_assets"]
    from platform_assets import errors
    answers.put((there, changed, len(left) > 100, getattr(errors, "WORD", None)))

if __name__ == "__main__":
    sys.path.insert(0, ".")
    forked = multiprocessing.get_context("forkserver")
    multiprocessing.set_forkserver_preload([PLATFORM])
    answers = forked.SimpleQueue()
    for line in sys.stdin:
        process = forked.Process(target=run, args=(answers,))
        process.start()
        process.join()
        print(*answers.get(), flush=True)
"""


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Return a folder that contains a copy of the package. On the module path of a process, the folder comes before
    this checkout."""
    (folder,) = platform_assets.__path__
    shutil.copytree(folder, tmp_path / platform_assets.__name__, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "runs.py").write_text(RUNS)
    return tmp_path


def test_a_run_has_the_platforms_code_loaded_and_reads_it_again_once_a_file_has_changed(copy: Path) -> None:
    errors = copy / "platform_assets" / "errors.py"
    before = errors.stat()
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", "runs.py"],
        cwd=copy,
        env=os.environ | {"PYTHONPATH": str(copy)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def answer() -> list[str]:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write("run\n")
            process.stdin.flush()
            return process.stdout.readline().split()

        assert answer() == ["True", "False", "True", "None"]
        text = errors.read_text()
        errors.write_text(text + "\nWORD = 'changed'\n")
        assert answer() == ["True", "True", "False", "changed"]
        # Restored: the loaded code equals the code on disk again.
        errors.write_text(text)
        os.utime(errors, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert answer() == ["True", "False", "True", "None"]
        (copy / "platform_assets" / "model" / "digest.py").unlink()
        assert answer()[:3] == ["True", "True", "False"]
        process.stdin.close()
        assert process.wait(60) == 0


def test_code_that_cannot_be_imported_is_left_to_the_runs(copy: Path) -> None:
    (copy / "platform_assets" / "errors.py").write_text("half a line (")
    done = subprocess.run(
        [sys.executable, "-c", "import platform_assets.services.preloaded; print('continues')"],
        cwd=copy,
        env=os.environ | {"PYTHONPATH": str(copy)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "continues\n"
    assert "platform_assets.definitions could not be loaded before runs start: SyntaxError" in done.stderr
