"""Compiling kernels by numba, into a cache that outlives the process.

A kernel is compiled, or read from the cache, when its module is imported, for the one signature that it declares: no
call ever waits for a compiler. numba tells by a kernel's own file whether a cached one is still good, and kernels call
each other across files: so the cache's folder is named after the sources of them all.
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
"""numba's own variable: where it is set, the kernels' folder is made below that one."""

INT: Final = types.int64
HASH: Final = types.uint64
BYTES, INTS, LONGS = (types.Array(of, 1, "C", readonly=True) for of in (types.uint8, types.int32, types.int64))
"""Arrays that a kernel only reads; one that could be written is taken as well."""
FILLED_BYTES, FILLED_INTS, FILLED_LONGS, SUMS, FILLED_DOUBLES = (
    types.Array(of, 1, "C") for of in (types.uint8, types.int32, types.int64, types.uint64, types.float64)
)
"""Arrays that a kernel fills or adds to."""

Whole = int | np.int64
"""A whole number inside a kernel, where both are the same."""
Truth = bool | np.bool_
"""Likewise."""

F = TypeVar("F", bound=Callable[..., Any])


def kernel(*arguments: Any) -> Callable[[F], F]:
    """Decorator: compiled for these types of arguments, cached, and running without Python's global lock.

    A kernel allocates nothing: what it fills is the caller's, scratch too. So no references are counted, which numba would do at
    each inlined call, by instructions that the processor does nothing beside: of a record's digest they took 40 %.
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
    """Decorator: compiled into the kernels that call it."""
    made: F = numba.njit(inline="always", error_model="numpy")(function)
    return made


@lru_cache(maxsize=1)
def cache_folder() -> Path | None:
    """Where compiled kernels are kept, a folder of this user alone; None where there is no place for one.

    What lies there is executed, so a folder that others could have filled is not used. One that cannot be written and is
    filled already, as in an image, is copied to where it can: numba reads from no other.
    """
    digest = sources_digest()
    given = os.environ.get(CACHE_VARIABLE)
    user = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))
    filled: Path | None = None
    for home in [Path(given)] if given else [user, Path(tempfile.gettempdir())]:
        if not home.is_absolute():
            continue  # there is no home
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
    """Names the code of all kernels: it changes when any file of this package does."""
    digest = hashlib.sha256()
    for source in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def _made_private(folder: Path) -> bool:
    """Make `folder` where it is missing; whether it can be written, by its owner alone, who is this user."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.lstat()
    except OSError:
        return False  # a home that is read-only, or none: the next place is tried
    private = found.st_uid == os.getuid() and not found.st_mode & 0o077 and not folder.is_symlink()
    return private and os.access(folder, os.W_OK | os.X_OK)


def _is_trusted(folder: Path) -> bool:
    """Whether `folder` is there, and nobody but this user and root can have put anything into it."""
    try:
        found = folder.lstat()
    except OSError:
        return False
    return found.st_uid in (os.getuid(), 0) and stat.S_ISDIR(found.st_mode) and not found.st_mode & 0o022


def _copy(filled: Path, folder: Path) -> None:
    """Copy `filled` to `folder`, which appears whole, or not at all: kernels are compiled there then."""
    try:
        own = Path(tempfile.mkdtemp(prefix=f"{folder.name}-", dir=folder.parent))
    except OSError:
        return
    try:
        shutil.copytree(filled, own, dirs_exist_ok=True)
        own.chmod(0o700)
        own.rename(folder)
    except OSError:
        shutil.rmtree(own, ignore_errors=True)  # another process was first, or there is no room
