"""Compilation of kernels with numba, into a cache that outlives the process.

A kernel is compiled, or read from the cache, when its module is imported, for the single signature that the kernel
declares. No call ever waits for a compiler. When numba decides if a cached kernel is still valid, it checks only the
kernel's own file, but kernels call kernels in other files. The name of the cache folder therefore depends on the source
code of all kernels.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, TypeVar

import numba
import numpy as np
from numba import types

CACHE_VARIABLE: Final = "NUMBA_CACHE_DIR"
"""numba's own environment variable. If the variable is set, it names a folder, and the folder for the kernels is
created in that folder."""

INT: Final = types.int64
HASH: Final = types.uint64
BYTES, INTS, LONGS = (types.Array(of, 1, "C", readonly=True) for of in (types.uint8, types.int32, types.int64))
"""Arrays that a kernel only reads. Writable arrays are accepted too."""
FILLED_BYTES, FILLED_INTS, FILLED_LONGS, SUMS, FILLED_DOUBLES = (
    types.Array(of, 1, "C") for of in (types.uint8, types.int32, types.int64, types.uint64, types.float64)
)
"""Arrays that a kernel fills or adds to."""

Whole = int | np.int64
"""Integer inside a kernel, where Python's and numba's integer types are not distinguished."""
Truth = bool | np.bool_
"""Boolean inside a kernel."""

F = TypeVar("F", bound=Callable[..., Any])


def kernel(*arguments: Any) -> Callable[[F], F]:
    """Return a decorator that compiles a function for these argument types, caches the result, and releases Python's
    global lock.

    A kernel allocates nothing, because the caller provides outputs and scratch memory. numba's reference counting is
    therefore off. If it is on, numba counts references at each inlined call, using instructions that the processor
    cannot overlap. These instructions took 40 % of the time for a record's digest.
    """

    def compiled(function: F) -> F:
        folder = cache_folder()
        before = numba.config.CACHE_DIR
        numba.config.CACHE_DIR = "" if folder is None else str(folder)
        try:
            made: F = numba.njit(arguments, nogil=True, cache=folder is not None, error_model="numpy", _nrt=False)(
                function
            )
        finally:
            numba.config.CACHE_DIR = before
        return made

    return compiled


def inlined(function: F) -> F:
    """Decorator for functions that are compiled into the kernels that call them."""
    made: F = numba.njit(inline="always", error_model="numpy")(function)
    return made


@lru_cache(maxsize=1)
def cache_folder() -> Path | None:
    """Return the folder for compiled kernels, which only this user can write to, or None if no such folder is possible.

    The content of the folder is executed, so a folder that other users could have filled is not used. A read-only
    folder that already contains kernels, as in an image, is copied to a writable location, because numba cannot read
    from a read-only folder.
    """
    digest = sources_digest()
    given = os.environ.get(CACHE_VARIABLE)
    user = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))
    filled: Path | None = None
    for home in [Path(given)] if given else [user, Path(tempfile.gettempdir())]:
        if not home.is_absolute():
            continue  # There is no home.
        folder = home / f"platform-assets-kernels-{os.getuid()}-{digest}"
        if _is_trusted(folder) and not os.access(folder, os.W_OK):
            filled = folder
            continue
        if filled is not None and not folder.exists():
            _copy(filled, folder)
        if _made_private(folder):
            return folder
    return None


@lru_cache(maxsize=1)
def sources_digest() -> str:
    """Return a digest of the code of all kernels. It changes when any file of this package changes."""
    digest = hashlib.sha256()
    for source in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def _made_private(folder: Path) -> bool:
    """Create `folder` if it is missing. Return True if this user owns `folder` and is the only user who can write to
    it."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.lstat()
    except OSError:
        return False  # A home that is read-only or missing: try the next place.
    private = found.st_uid == os.getuid() and not found.st_mode & 0o077 and not folder.is_symlink()
    return private and os.access(folder, os.W_OK | os.X_OK)


def _is_trusted(folder: Path) -> bool:
    """Return True if `folder` exists and only this user and root could have written to it."""
    try:
        found = folder.lstat()
    except OSError:
        return False
    return found.st_uid in (os.getuid(), 0) and stat.S_ISDIR(found.st_mode) and not found.st_mode & 0o022


def _copy(filled: Path, folder: Path) -> None:
    """Copy the folder `filled` to `folder`, which appears completely or not at all. If the copy fails, kernels are
    compiled into `folder`."""
    try:
        own = Path(tempfile.mkdtemp(prefix=f"{folder.name}-", dir=folder.parent))
    except OSError:
        return
    try:
        shutil.copytree(filled, own, dirs_exist_ok=True)
        own.chmod(0o700)
        own.rename(folder)
    except OSError:
        shutil.rmtree(own, ignore_errors=True)  # Another process was first, or the disk is full.
