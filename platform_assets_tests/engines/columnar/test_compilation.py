"""Compiled kernels are kept where only their user could have put them, and made once."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from platform_assets.engines.columnar.kernels import compilation

CALL = (
    "import time, numpy as np; began = time.perf_counter(); "
    "from platform_assets.engines.columnar.kernels.arrow import total_size; "
    "from platform_assets.engines.columnar.kernels.compilation import cache_folder; "
    "print(total_size(np.array([3, -1, 4], np.int32)), cache_folder(), sum(total_size.stats.cache_hits.values()))"
)


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    """Folder and digest are looked up again in each test, and after it."""
    for cached in (compilation.cache_folder, compilation.sources_digest):
        cached.cache_clear()
    yield
    for cached in (compilation.cache_folder, compilation.sources_digest):
        cached.cache_clear()


def called(**environment: str) -> list[str]:
    """What a process of its own has of the kernel's result, the folder, and the hits of its cache."""
    env = {**os.environ, **environment}
    return subprocess.run(
        [sys.executable, "-c", CALL], env=env, capture_output=True, text=True, check=True
    ).stdout.split()


def test_a_kernel_is_compiled_once_and_then_read_from_a_private_folder(tmp_path: Path) -> None:
    first, second = called(NUMBA_CACHE_DIR=str(tmp_path)), called(NUMBA_CACHE_DIR=str(tmp_path))
    (folder,) = tmp_path.iterdir()
    assert first == ["7", str(folder), "0"]
    assert second == ["7", str(folder), "1"]
    assert folder.stat().st_mode & 0o777 == 0o700
    assert compilation.sources_digest() in folder.name


def test_without_a_home_that_can_be_written_the_temporary_folder_serves(tmp_path: Path) -> None:
    (tmp_path / "home").touch()  # a folder below it cannot be made, by nobody
    found = called(XDG_CACHE_HOME=str(tmp_path / "home"), TMPDIR=str(tmp_path), NUMBA_CACHE_DIR="")
    assert found[:1] + found[2:] == ["7", "0"]
    assert Path(found[1]).parent == tmp_path


def test_a_folder_that_others_could_have_filled_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(compilation.CACHE_VARIABLE, str(tmp_path))
    folder = compilation.cache_folder()
    assert folder is not None
    folder.chmod(0o770)
    compilation.cache_folder.cache_clear()
    assert compilation.cache_folder() is None
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    folder.rmdir()
    folder.symlink_to(tmp_path / "elsewhere")
    compilation.cache_folder.cache_clear()
    assert compilation.cache_folder() is None
    assert called(NUMBA_CACHE_DIR=str(tmp_path)) == ["7", "None", "0"], "it is compiled all the same"


def test_the_digest_of_the_sources_changes_with_any_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Path(compilation.__file__).parent
    seen = {compilation.sources_digest()}
    monkeypatch.setattr(compilation, "__file__", str(tmp_path / "compilation.py"))
    for source in real.glob("*.py"):
        (tmp_path / source.name).write_bytes(source.read_bytes())
    compilation.sources_digest.cache_clear()
    assert compilation.sources_digest() in seen
    for source in tmp_path.glob("*.py"):
        source.write_bytes(source.read_bytes() + b"\n")
        compilation.sources_digest.cache_clear()
        seen.add(compilation.sources_digest())
    assert len(seen) == 1 + len(list(real.glob("*.py")))
