"""Compiled kernels: each kernel is compiled once, and cached only in a folder that no other user could have written to."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest
from numba.core.errors import TypingError

from platform_assets.engines.shared.reports import Report, UnsupportedError
from platform_assets.kernels import compilation

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CALL = (
    "import time, numpy as np; began = time.perf_counter(); "
    "from platform_assets.kernels.arrow import total_size; "
    "from platform_assets.kernels.compilation import cache_folder; "
    "print(total_size(np.array([3, -1, 4], np.int32)), cache_folder(), sum(total_size.stats.cache_hits.values()))"
)

IMPORT = (
    "import sys; from platform_assets.engines.columnar import task; "
    "found = {id(v): v for name, m in sys.modules.items() if 'platform_assets.kernels' in name for v in vars(m).values()}; "
    "stats = [v.stats for v in found.values() if hasattr(v, 'py_func')]; "
    "print(sum(sum(s.cache_hits.values()) for s in stats) > 5, sum(sum(s.cache_misses.values()) for s in stats))"
)
"""Program that imports what a worker imports. It prints True if the import read many kernels from the cache, and the
number of kernels that the import compiled."""
SHARE = (
    "import pyarrow as pa; from platform_assets.engines.shared import job; "
    "batches = iter([pa.RecordBatch.from_pydict({'id': [0]})]); "
    "print(next(job._mapped(None, 'platform_assets.engines.columnar.task')(batches))['report'][0].as_py())"
)
"""Program that runs the first share of a worker. The share's work is invalid and is never read."""


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    """Clear the cached results of `cache_folder` and `sources_digest` before and after each test."""
    for cached in (compilation.cache_folder, compilation.sources_digest):
        cached.cache_clear()
    yield
    for cached in (compilation.cache_folder, compilation.sources_digest):
        cached.cache_clear()


def test_a_kernel_that_allocates_is_refused() -> None:
    """Kernels that allocate would count references, which costs more than most of their work."""

    def allocating(size: int) -> int:
        return int(np.empty(size, np.int64).size)

    with pytest.raises(TypingError):
        compilation.kernel(compilation.INT)(allocating)


def called(**environment: str) -> list[str]:
    """Call the kernel in a new process. Return its result, the cache folder, and the number of cache hits."""
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
    (tmp_path / "home").touch()  # no user, not even root, can create a folder below a file
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


def test_what_cannot_be_written_and_is_filled_is_copied_to_where_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This happens, for example, if kernels are compiled when an image is built, and the image later runs with a
    read-only file system."""
    image, scratch = tmp_path / "image", tmp_path / "scratch"
    scratch.mkdir()
    called(XDG_CACHE_HOME=str(image), NUMBA_CACHE_DIR="")
    (filled,) = image.iterdir()
    monkeypatch.delenv(compilation.CACHE_VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(image))
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    may = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: image not in Path(path).parents and may(path, mode))
    folder = compilation.cache_folder()
    assert folder is not None
    assert [folder] == list(scratch.iterdir())
    assert folder.stat().st_mode & 0o777 == 0o700
    assert folder.name == filled.name
    (tmp_path / "home").touch()
    found = called(XDG_CACHE_HOME=str(tmp_path / "home"), TMPDIR=str(scratch), NUMBA_CACHE_DIR="")
    assert found == ["7", str(folder), "1"], "the copy is one that numba reads"
    # Kernels that other users could have written are not copied.
    filled.chmod(0o770)
    shutil.rmtree(folder)
    compilation.cache_folder.cache_clear()
    folder = compilation.cache_folder()
    assert folder is not None
    assert not list(folder.iterdir())


@pytest.mark.long
def test_the_command_of_the_installation_compiles_all_that_a_worker_imports(tmp_path: Path) -> None:
    env = {**os.environ, compilation.CACHE_VARIABLE: str(tmp_path)}

    def said(*arguments: str) -> str:
        return subprocess.run([sys.executable, *arguments], env=env, capture_output=True, text=True, check=True).stdout

    assert f"the compiled kernels are in {tmp_path}/" in said("-m", "platform_assets.kernels")
    assert said("-c", IMPORT) == "True 0\n"


def test_a_worker_of_spark_has_the_cache_of_the_user_who_installed(spark: SparkSession) -> None:
    def asked(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from platform_assets.kernels.compilation import cache_folder

        for _ in batches:
            yield pa.RecordBatch.from_pydict({"found": [str(cache_folder())]})

    ((found,),) = spark.range(1, numPartitions=1).mapInArrow(asked, "found string").collect()
    assert found == str(compilation.cache_folder())


def test_without_numba_the_connector_is_what_loads_and_both_say_so() -> None:
    hidden = "import sys; sys.modules['numba'] = None; "
    program = hidden + "from platform_assets.kernels.__main__ import main; main()"
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert said.startswith("numba cannot be used here")
    assert "so no kernels were compiled, and Spark's connector loads every window" in said
    found = subprocess.run([sys.executable, "-c", hidden + SHARE], capture_output=True, text=True, check=True).stdout
    error = Report.from_json(found).error
    assert isinstance(error, UnsupportedError)
    assert "Spark's workers cannot import the platform's code" in error.reason
    assert "numba" in error.reason


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
