"""The platform's own code, loaded in the process that runs are forked from, and read again by a run where it has changed.

Importing this module loads it, as `multiprocessing`'s fork server does with what it is given. Nothing else imports this.
"""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from infra.printable import printable

_log = logging.getLogger(__name__)

MODULES: Final = ("platform_assets.definitions", "platform_assets.kafka.batches.fetching")
"""What a run of a load needs, by what imports the rest of it."""
PACKAGES: Final = ("platform_assets", "infra")
"""Those whose modules a run has as they are on disk when it begins."""

Stamp = tuple[int, int]
"""When a file was written, in nanoseconds, and its size in bytes: Python's own caches ask for no more."""


def stamp(path: Path) -> Stamp | None:
    """Of a file; None where there is none."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_mtime_ns, found.st_size


def sources(packages: Iterable[str]) -> dict[str, Stamp | None]:
    """Of each file with code of these packages, by its path; nothing is imported but the packages themselves."""
    folders = [Path(folder) for name in packages for folder in importlib.import_module(name).__path__]
    return {str(path): stamp(path) for folder in folders for path in folder.rglob("*.py")}


def load(modules: Iterable[str]) -> None:
    """Import them. One that cannot be imported is left to the run, which fails with its error where people see it."""
    for name in modules:
        try:
            importlib.import_module(name)
        except Exception as e:  # noqa: BLE001 - half-edited code may raise anything, and must not end the fork server
            _log.warning("%s", printable(f"{name} is not loaded ahead of runs: {type(e).__name__}: {e}"))


def is_as_loaded(packages: Iterable[str], files: Mapping[str, Stamp | None]) -> bool:
    """Whether each module of these packages that is loaded comes from a file that is now as `files` has it."""
    return all(
        path in files and stamp(Path(path)) == files[path]
        for name, module in list(sys.modules.items())
        if name.partition(".")[0] in packages and (path := getattr(module, "__file__", None))
    )


def forget(packages: Iterable[str]) -> None:
    """Have all modules of these packages read from disk by whoever imports them next."""
    for name in [name for name in sys.modules if name.partition(".")[0] in packages]:
        del sys.modules[name]
    importlib.invalidate_caches()


def forget_if_changed() -> bool:
    """In the process of a run, before it begins: let the platform's code go if a file of it has changed; whether it did."""
    changed = not is_as_loaded(PACKAGES, _FILES)
    if changed:
        forget(PACKAGES)
    return changed


# Before the import, so that a file which is written meanwhile counts as changed.
_FILES: Final = sources(PACKAGES)
load(MODULES)
