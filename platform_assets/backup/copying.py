"""Copy files into a backup. Unchanged files become links to the files of the previous backup. All other files are
copied, and the digests of these files are computed."""

from __future__ import annotations

import hashlib
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

from platform_assets.backup.failures import BackupInterruptedError, writing_backup
from platform_assets.backup.manifest import BackedUpFile
from platform_assets.lake import failures
from platform_assets.lake.location import Folder

_BLOCK: Final = 1 << 20
_SQLITE: Final = b"SQLite format 3\x00"
_BESIDE_DATABASES: Final = (".db-wal", ".db-shm", ".db-journal")
_BUSY_SECONDS: Final = 60.0
_AT_ONCE: Final = 16
"""Number of concurrent requests to an object store. It can exceed the number of processors, because the requests mostly
wait for answers."""
PIECE_BYTES: Final = 2 << 20
"""Number of bytes of an object to request at a time."""


_T = TypeVar("_T")
_R = TypeVar("_R")


@dataclass(frozen=True, slots=True)
class Former:
    """The previous backup."""

    folder: Path
    files: Mapping[str, BackedUpFile]


@dataclass
class Copier:
    """Fills the folder `into` with a backup. `links` is true if the file system supports hard links; unchanged files
    are then hard links to the files of `former`."""

    into: Path
    former: Former | None
    links: bool
    copied_bytes: int = 0
    copied: int = 0
    done: list[BackedUpFile] = field(default_factory=list)

    def file(self, origin: Path, path: str) -> bool:
        """Put the file `origin` into the backup as `path`; return False if the file does not exist.

        Raises the errors of `lake.failures` if the file cannot be read, and BackupNotWritableError.
        """
        try:
            opened = origin.open("rb")
        except FileNotFoundError:
            return False
        except OSError as e:
            raise failures.to_platform_error(e, str(origin)) from e
        with opened:
            stat = os.fstat(opened.fileno())
            source = f"{stat.st_size} {stat.st_mtime_ns}"
            if (known := self._linked(path, source)) is not None:
                self.done.append(known)
                return True
            with failures.reading(origin):
                digest, size = self._copy(lambda: opened.read(_BLOCK), path)
        with writing_backup(self.into):
            # With the original's time, so that the next backup after a restore finds it unchanged.
            os.utime(self.into / path, ns=(stat.st_mtime_ns, stat.st_mtime_ns))
        self._copied(BackedUpFile(path, size, digest, source))
        return True

    def objects(self, folder: Folder, names: Sequence[str], below: str) -> Iterator[tuple[str, bool]]:
        """Put the files `names` from a folder in an object store into the backup, under the path `below`. For each
        file, yield its name, and True if it exists.

        Raises the errors of `lake.failures`, and BackupNotWritableError.
        """
        stamps = folder.stamps()

        def have(name: str) -> tuple[BackedUpFile, Callable[[BackedUpFile], None]] | None:
            path = f"{below}/{name}"
            if (source := stamps.get(name)) is None:
                return None
            if (known := self._linked(path, source)) is not None:
                return known, self.done.append
            with folder.reading():
                try:
                    opened = folder.content.open(name)
                except FileNotFoundError:
                    return None
                digest, size = self._copy(lambda: opened.read(PIECE_BYTES), path)
            return BackedUpFile(path, size, digest, source), self._copied

        for name, found in zip(names, at_once(have, names), strict=True):
            if found is not None:
                file, note = found
                note(file)
            yield name, found is not None

    def database(self, origin: Path, path: str) -> bool:
        """Copy an SQLite database as it is at a single moment, even if the database is in use.

        Raises the same errors as `file`, and BackupInterruptedError.
        """
        source = _source_of_database(origin)
        if source is None:
            return False
        if (known := self._linked(path, source)) is not None:
            self.done.append(known)
            return True
        target = self._target(path)
        try:
            with (
                closing(
                    sqlite3.connect(f"{origin.resolve().as_uri()}?mode=rw", uri=True, timeout=_BUSY_SECONDS)
                ) as live,
                closing(sqlite3.connect(target)) as copy,
            ):
                live.backup(copy)
        except sqlite3.Error as e:
            raise BackupInterruptedError(str(origin), f"SQLite could not copy the database ({e})") from e
        with writing_backup(self.into), target.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            self._copied(BackedUpFile(path, target.stat().st_size, digest, source))
        return True

    def _copied(self, file: BackedUpFile) -> None:
        self.copied += 1
        self.copied_bytes += file.bytes
        self.done.append(file)

    def _linked(self, path: str, source: str) -> BackedUpFile | None:
        """Hard-link the previous backup's copy of a file as `path`, and return its entry. Return None if the previous
        backup has no copy made from the same `source`."""
        known = None if self.former is None or not self.links else self.former.files.get(path)
        if self.former is None or known is None or known.source != source:
            return None
        before = self.former.folder / path
        with writing_backup(self.into):
            # Somebody may have deleted or truncated it: then it is copied like any other.
            if not before.is_file() or before.stat().st_size != known.bytes:
                return None
            os.link(before, self._target(path))
        return known

    def _copy(self, read: Callable[[], bytes], path: str) -> tuple[str, int]:
        """Write the blocks that `read` returns until it returns an empty block; return the digest and the size.

        Raises BackupNotWritableError, and whatever `read` raises.
        """
        digest, size = hashlib.sha256(), 0
        with writing_backup(self.into):
            target = self._target(path).open("xb")
        with target:
            while block := read():
                digest.update(block)
                size += len(block)
                with writing_backup(self.into):
                    target.write(block)
        return digest.hexdigest(), size

    def _target(self, path: str) -> Path:
        target = self.into / path
        with writing_backup(self.into):
            target.parent.mkdir(parents=True, exist_ok=True)
        return target


def at_once(ask: Callable[[_T], _R], about: Iterable[_T]) -> Iterator[_R]:
    """Call `ask` for each item, several items in parallel, and yield the results in the order of the items.

    After an error, no further calls start.
    """
    pool = ThreadPoolExecutor(_AT_ONCE)
    try:
        yield from pool.map(ask, about)
    finally:
        pool.shutdown(cancel_futures=True)


def home_files(home: Path) -> Iterator[tuple[Path, bool]]:
    """Yield each file in Dagster's home, with True if the file is an SQLite database. Files that SQLite keeps next to a
    database are not listed, because they belong to the database."""
    for folder, _, names in sorted(os.walk(home)):
        for name in sorted(names):
            file = Path(folder) / name
            if not name.endswith(_BESIDE_DATABASES) and file.is_file() and not file.is_symlink():
                yield file, _is_database(file)


def can_link(folder: Path) -> bool:
    """Return True if files in `folder` can be hard-linked, which not every file system supports. Raises
    BackupNotWritableError."""
    first, second = folder / f".first-{os.getpid()}", folder / f".second-{os.getpid()}"
    with writing_backup(folder):
        first.write_bytes(b"")
        try:
            os.link(first, second)
        except OSError:
            return False
        finally:
            first.unlink()
            second.unlink(missing_ok=True)
    return True


def _is_database(file: Path) -> bool:
    with failures.reading(file):
        try:
            with file.open("rb") as opened:
                return opened.read(len(_SQLITE)) == _SQLITE
        except FileNotFoundError:
            return False


def _source_of_database(origin: Path) -> str | None:
    """Return a stamp of a database. Each write changes the stamp, whether the write goes to the database file or to the
    write-ahead file next to it."""
    found = []
    for file in (origin, origin.with_name(f"{origin.name}-wal")):
        with failures.reading(file):
            try:
                stat = file.stat()
            except FileNotFoundError:
                if file == origin:
                    return None
                continue
        # Readers create and delete an empty one next to it.
        if file == origin or stat.st_size:
            found.append(f"{stat.st_size} {stat.st_mtime_ns}")
    return " + ".join(found)
