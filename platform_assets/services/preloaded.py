"""The platform's own code, loaded in the process from which runs are forked. If the code has changed, a run loads it
again.

Importing this module loads the code. Only `multiprocessing`'s fork server imports this module.
"""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from platform_assets.services.printable import printable

_log = logging.getLogger(__name__)

MODULES: Final = ("platform_assets.definitions", "platform_assets.kafka.batches.fetching")
"""Modules whose imports include everything that a run needs for a load."""
PACKAGES: Final = ("platform_assets",)
"""Packages of which a run uses the version that is on disk when the run begins."""

Stamp = tuple[int, int]
"""A file's modification time in nanoseconds and its size in bytes. Python's own caches rely on the same two values."""


def stamp(path: Path) -> Stamp | None:
    """Return the stamp of a file, or None if the file does not exist."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_mtime_ns, found.st_size


def sources(packages: Iterable[str]) -> dict[str, Stamp | None]:
    """Map the path of each code file in these packages to the file's stamp. Only the packages themselves are imported."""
    folders = [Path(folder) for name in packages for folder in importlib.import_module(name).__path__]
    return {str(path): stamp(path) for folder in folders for path in folder.rglob("*.py")}


def load(modules: Iterable[str]) -> None:
    """Import modules. If the import of a module fails here, a run imports the module again and fails, so users see the
    error."""
    for name in modules:
        try:
            importlib.import_module(name)
        except Exception as e:  # noqa: BLE001 - half-edited code may raise anything, and must not end the fork server
            _log.warning("%s", printable(f"{name} could not be loaded before runs start: {type(e).__name__}: {e}"))


def is_as_loaded(packages: Iterable[str], files: Mapping[str, Stamp | None]) -> bool:
    """Return True if each loaded module of these packages comes from a file that still has its stamp in `files`."""
    return all(
        path in files and stamp(Path(path)) == files[path]
        for name, module in list(sys.modules.items())
        if name.partition(".")[0] in packages and (path := getattr(module, "__file__", None))
    )


def forget(packages: Iterable[str]) -> None:
    """Unload all modules of these packages, so that the next import reads them from disk."""
    for name in [name for name in sys.modules if name.partition(".")[0] in packages]:
        del sys.modules[name]
    importlib.invalidate_caches()


def forget_if_changed() -> bool:
    """If one of the files of the platform's code has changed, unload that code and return True. A run's process calls
    this function before the run begins."""
    changed = not is_as_loaded(PACKAGES, _FILES)
    if changed:
        forget(PACKAGES)
    return changed


# Before the import, so that a file written meanwhile counts as changed.
_FILES: Final = sources(PACKAGES)
load(MODULES)
