"""The code that runs at the start of each task in Spark's Python workers. It compares code versions, and prevents
unnecessary work between tasks."""

from __future__ import annotations

import gc
import hashlib
import sys
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Final

_PACKAGES: Final = (
    "platform_assets",
    "platform_assets.decoding",
    "platform_assets.engines",
    "platform_assets.kernels",
    "platform_assets.kafka",
    "platform_assets.kafka.batches",
    "platform_assets.lake",
    "platform_assets.model",
)
"""Packages of the project that a worker imports. The subpackages of `decoding` and `engines` are included."""
_WITH_SUBPACKAGES: Final = ("platform_assets.decoding", "platform_assets.engines")


def _folders() -> dict[str, Traversable]:
    """Return the folders of the packages of which the code's version consists, by name of the package."""
    folders = [(package, files(package)) for package in _PACKAGES]
    for package, folder in folders:
        if package.startswith(_WITH_SUBPACKAGES):
            inside = sorted(folder.iterdir(), key=lambda f: f.name)
            folders += [(f"{package}.{f.name}", f) for f in inside if f.joinpath("__init__.py").is_file()]
    return dict(folders)


def _digest_of_code() -> str:
    digest = hashlib.sha256()
    for package, folder in _folders().items():
        for entry in sorted(folder.iterdir(), key=lambda f: f.name):
            if entry.name.endswith(".py"):
                digest.update(f"{package}/{entry.name}\0".encode() + entry.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


CODE: Final = _digest_of_code()
"""Version of the code that a worker runs. The version in this process must be identical."""


SPARKS_JAR: Final = "spark-core_"
"""Prefix of the name of the jar that Spark puts on its workers' import path."""
_tasks = 0


def begin_task() -> None:
    """Prevent unnecessary work of Spark's worker between two tasks. This work takes 0.1 s of processor time (Spark
    4.0.5).

    The worker clears the caches of Python's importer. The importer then lists the thousands of files in Spark's jar
    again, although the jar contains no Python code. This function therefore removes the jar from the import path. The
    worker also collects garbage among all objects. This function therefore excludes modules and compiled code that have
    outlived the first task from garbage collection.
    """
    global _tasks
    _tasks += 1
    _forget_sparks_jar()
    if _tasks == 2:
        gc.freeze()


def _forget_sparks_jar() -> None:
    sys.path[:] = [entry for entry in sys.path if not _is_sparks_jar(entry)]
    for entry in [entry for entry in sys.path_importer_cache if _is_sparks_jar(entry)]:
        # Each package that was searched for inside the jar has an importer, whose key is the path inside the jar.
        del sys.path_importer_cache[entry]


def _is_sparks_jar(entry: str) -> bool:
    return any(part.startswith(SPARKS_JAR) and part.endswith(".jar") for part in entry.split("/"))
