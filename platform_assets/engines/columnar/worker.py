"""What this process is where it is one of Spark's Python workers: it serves one task after another."""

from __future__ import annotations

import gc
import sys
from typing import Final

SPARKS_JAR: Final = "spark-core_"
"""How the name of the jar begins that Spark puts on its workers' import path."""
_tasks = 0


def begin_task() -> None:
    """Spare this task and later ones what Spark's worker does between two of them: 0.1 s of processor time (Spark 4.0.5).

    It makes Python's importer forget what it knows, which then lists again the thousands of files of Spark's jar, a jar
    without Python; so the jar leaves the import path. And it collects garbage among all objects there are; those that have
    outlived the first task, modules and compiled code, are passed over from then on.
    """
    global _tasks
    _tasks += 1
    _forget_sparks_jar()
    if _tasks == 2:
        gc.freeze()


def _forget_sparks_jar() -> None:
    sys.path[:] = [entry for entry in sys.path if not _is_sparks_jar(entry)]
    for entry in [entry for entry in sys.path_importer_cache if _is_sparks_jar(entry)]:
        # Packages that were looked for inside it have an importer each, by the path below the jar.
        del sys.path_importer_cache[entry]


def _is_sparks_jar(entry: str) -> bool:
    return any(part.startswith(SPARKS_JAR) and part.endswith(".jar") for part in entry.split("/"))
