"""Take a backup in a new folder inside the backup folder. The new folder gets its final name once the backup is
complete.

Loads continue in the meantime. Unchanged files are hard links to the files of the previous backup. So a backup takes
only the space and time that new files need, but can be read, restored or deleted independently of other backups.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from platform_assets.backup import manifest
from platform_assets.backup.copying import Copier, Former, can_link, home_files
from platform_assets.backup.failures import BackupInterruptedError, writing_backup
from platform_assets.backup.manifest import DAGSTER, LAKE, REPLACED, Manifest
from platform_assets.errors import ConfigurationError
from platform_assets.lake import delta_log, load_log
from platform_assets.lake.failures import TableUnsupportedError
from platform_assets.lake.location import Folder, Lake
from platform_assets.model.tables import KINDS

# Versions of all tables at one moment, taken in an order that restores consistently.
#
# Delta only adds files and versions, so a version can be copied while loads continue. Versions are noted one after
# the other, derived tables before their sources: receipts, decoded tables, raw tables, cuts, decisions. So every
# receipt has its rows, every row its cut, and every cut its decision. The one thing that may be missing is a
# receipt, as after a run that was killed: its window is requested again.

_LOG: Final = "_delta_log"
_LOG_FILE: Final = re.compile(r"(\d{20})\.[A-Za-z0-9._-]+")
_DERIVED_FIRST: Final = tuple(reversed(KINDS))
_CACHES: Final = frozenset({"baselines", "files", "sessions"})
"""Ledger folders that can be deleted at any time. They contain notes on what was checked, notes on what data files
contain, and sessions of one Spark server."""
_ATTEMPTS: Final = 5


@dataclass(frozen=True, slots=True)
class PinnedTable:
    """A Delta table pinned to a version. `name` is the table's path below the lake root."""

    name: str
    folder: Folder
    version: int

    def files(self) -> Iterator[str]:
        """Yield the files needed to read the table at this version, as paths relative to the table's folder: the log up
        to this version, and the data files. Past versions stay in the log, but a data file that only they list is left
        out."""
        for name in sorted(self.folder.files(_LOG)):
            found = _LOG_FILE.fullmatch(name)
            if found is not None and int(found[1]) <= self.version:
                yield f"{_LOG}/{name}"
        for name in sorted(self.folder.files(f"{_LOG}/_sidecars")):
            yield f"{_LOG}/_sidecars/{name}"
        for path in load_log.file_actions(self.folder, self.version)["path"].to_pylist():
            data = unquote(path)
            if data.startswith("/") or "://" in data or ".." in data.split("/"):
                raise TableUnsupportedError(
                    str(self.folder), f"its log names the file {data}, which is outside its folder"
                )
            yield data


@dataclass(frozen=True, slots=True)
class PinnedLake:
    """The tables of a lake at one moment, the names of `loose` files below the root, and the names of entries that are
    `left_out`."""

    tables: tuple[PinnedTable, ...]
    loose: tuple[str, ...]
    left_out: tuple[str, ...]


def pin(lake: Lake) -> PinnedLake:
    """Return the lake's current state.

    Raises BackupInterruptedError if operators record decisions during every attempt, and whatever reading the lake
    raises.
    """
    for _ in range(_ATTEMPTS):
        decided = delta_log.newest_version(lake.decisions)
        tables = [table for folder, name in _in_order(lake) if (table := _pinned(folder, name)) is not None]
        # The effects of a decision are written after it, to several tables, so no decision may begin in between.
        if delta_log.newest_version(lake.decisions) == decided:
            return PinnedLake(tuple(tables), tuple(_loose(lake, tables)), tuple(_left_out(lake)))
    raise BackupInterruptedError(str(lake.decisions), "operators recorded decisions during every attempt")


def _in_order(lake: Lake) -> Iterator[tuple[Folder, str]]:
    tables = lake.tables()
    yield lake.commits, "_ledger/commits"
    for kind in _DERIVED_FIRST:
        yield from ((lake.table(table), table.name) for table in tables if table.kind == kind)
    yield lake.cuts, "_ledger/cuts"
    ledger = lake.ledger
    for name in sorted({*ledger.folders()} - {"commits", "cuts"}):
        if (ledger / name).has_delta_log():
            yield ledger / name, f"_ledger/{name}"


def _pinned(folder: Folder, name: str) -> PinnedTable | None:
    version = delta_log.newest_version(folder)
    return None if version is None else PinnedTable(name, folder, version)


def _loose(lake: Lake, tables: list[PinnedTable]) -> Iterator[str]:
    """Yield the ledger's files outside tables: its version file, schemas from registries, and outcomes of deep audits."""
    ledger = lake.ledger
    yield from (f"_ledger/{name}" for name in sorted(ledger.files()) if not name.startswith("."))
    known = {table.name for table in tables} | {f"_ledger/{name}" for name in _CACHES}
    for folder in sorted(ledger.folders()):
        if f"_ledger/{folder}" not in known:
            yield from (f"_ledger/{folder}/{name}" for name in sorted(ledger.files(folder)) if not name.startswith("."))


def _left_out(lake: Lake) -> Iterator[str]:
    """Yield entries below the lake root that are not tables of the platform, such as replays."""
    known = {table.name for table in lake.tables()}
    for name in sorted(lake.root.folders()):
        if name in _DERIVED_FIRST:
            yield from (f"{name}/{t}" for t in sorted(lake.root.folders(name)) if f"{name}/{t}" not in known)
        elif name != "_ledger":
            yield name
    yield from sorted(lake.root.files())


_NAME: Final = "%Y%m%dT%H%M%S.%fZ"
_UNFINISHED: Final = ".unfinished"
_LOCK: Final = ".lock"

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class BackupResult:
    """A finished backup: its folder, its contents, and the amount of data that had to be copied."""

    folder: Path
    manifest: Manifest
    copied: int
    copied_bytes: int


def take(
    lake: Lake, home: Path, destination: Path, now: datetime, *, progress: Progress = lambda text: None
) -> BackupResult:
    """Back up the lake and Dagster's home to a new folder in `destination`, which is created if it is missing.

    If the lake or the home does not exist, it is left out. Raises ConfigurationError if the destination is inside a
    folder to be backed up, if lake and home are nested, or if there is nothing to back up. Also raises
    BackupNotWritableError, BackupInterruptedError, and whatever reading the lake raises. After an error, there is no
    new backup, and earlier backups are unchanged.
    """
    check_roots_apart(lake, home)
    _check_apart(destination, (home,) if lake.root.is_in_store else (lake.root.path, home))
    with writing_backup(destination):
        # Topics may be confidential, so their copy must be too.
        destination.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _alone(destination):
        _check_not_half_restored(lake, home)
        unfinished = destination / _UNFINISHED
        with writing_backup(destination):
            # Left by a backup that died, because no other backup can be running.
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir(mode=0o700)
        former = _former(destination)
        copier = Copier(unfinished, former, former is not None and can_link(destination))
        progress("copying Dagster's home")
        # Dagster's home displays the lake, so it is copied first: a later load can be reported to it, and all that it
        # shows exists.
        _copy_home(home, copier)
        pinned = pin(lake)
        _copy_lake(lake, pinned, copier, progress)
        if not copier.done:
            raise ConfigurationError(
                f"there is nothing to back up: LAKE_ROOT {lake} has no tables, and there are no files in DAGSTER_HOME "
                f"{home}. Correct LAKE_ROOT or DAGSTER_HOME"
            )
        _check_not_half_restored(lake, home)
        tables = {table.name: table.version for table in pinned.tables}
        made = Manifest(now.astimezone(UTC), tables, tuple(copier.done), pinned.left_out)
        progress("writing to disk")
        folder = _finished(unfinished, destination / now.astimezone(UTC).strftime(_NAME), made)
    return BackupResult(folder, made, copier.copied, copier.copied_bytes)


def backups(destination: Path) -> list[Path]:
    """Return the finished backups in a folder, oldest first."""
    try:
        return sorted(f for f in destination.iterdir() if f.name != _UNFINISHED and (f / manifest.FILE).is_file())
    except (FileNotFoundError, NotADirectoryError):
        return []


def check_roots_apart(lake: Lake, home: Path) -> None:
    """Raise ConfigurationError if the lake is inside Dagster's home, or the home inside the lake, because each of them
    is replaced as a whole."""
    if lake.root.is_in_store:
        return
    root, of_dagster = lake.root.path.resolve(), home.resolve()
    if root.is_relative_to(of_dagster) or of_dagster.is_relative_to(root):
        raise ConfigurationError(
            f"LAKE_ROOT {lake} and DAGSTER_HOME {home} are nested, so restoring one would replace the other. Nothing "
            "was changed. Stop Dagster, move one of the two folders elsewhere, and set its variable to the new location"
        )


def _check_apart(destination: Path, sources: Sequence[Path]) -> None:
    at = destination.resolve()
    for source in sources:
        if at.is_relative_to(source.resolve()):
            raise ConfigurationError(
                f"backup destination {destination} is inside {source}, the folder being backed up: name a folder "
                f"elsewhere, preferably on another disk"
            )


def _check_not_half_restored(lake: Lake, home: Path) -> None:
    """Raise BackupInterruptedError if a restore is unfinished, because a backup of its partial data would become the
    newest backup."""
    for place in (lake.root, Folder.at(home)):
        if REPLACED in place.folders():
            raise BackupInterruptedError(
                f"{place}/{REPLACED}",
                f"an earlier restore into {place} did not finish: if it is no longer running, run the same restore "
                f"again with `--force` first",
            )


@contextmanager
def _alone(destination: Path) -> Iterator[None]:
    """Keep other processes from backing up to this folder. Raises BackupInterruptedError if another process is already
    doing so."""
    with writing_backup(destination):
        lock = os.open(destination / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as e:
            raise BackupInterruptedError(str(destination), "another process is writing a backup to this folder") from e
        yield
    finally:
        os.close(lock)


def _former(destination: Path) -> Former | None:
    known = backups(destination)
    if not known:
        return None
    return Former(known[-1], {file.path: file for file in manifest.read(known[-1]).files})


def _copy_home(home: Path, copier: Copier) -> None:
    for file, is_database in home_files(home):
        path = f"{DAGSTER}/{file.relative_to(home).as_posix()}"
        # A file that no longer exists was deleted by Dagster, as it may.
        _ = copier.database(file, path) if is_database else copier.file(file, path)


def _copy_lake(lake: Lake, pinned: PinnedLake, copier: Copier, progress: Progress) -> None:
    for table in pinned.tables:
        for name, is_there in _copied(table.folder, table.files(), f"{LAKE}/{table.name}", copier):
            if not is_there:
                raise BackupInterruptedError(
                    f"{table.folder}/{name}",
                    f"a file of {table.name} no longer exists, although version {table.version} of the table lists it: a "
                    f"vacuum or an erasure has deleted it in the meantime, or it is lost; `platform-assets audit "
                    f"--deep` shows which",
                )
            progress(f"{table.name}: {len(copier.done):,} files, {copier.copied:,} of them copied")
    for folder, names in itertools.groupby(pinned.loose, lambda name: name.rpartition("/")[0]):
        # A file that no longer exists was a note, which may be deleted at any time.
        list(_copied(lake.root / folder, [name.rpartition("/")[2] for name in names], f"{LAKE}/{folder}", copier))


def _copied(folder: Folder, names: Iterable[str], below: str, copier: Copier) -> Iterator[tuple[str, bool]]:
    """Put files from a lake folder into the backup. For each file, yield its name, and True if it exists."""
    if folder.is_in_store:
        yield from copier.objects(folder, list(names), below)
    else:
        yield from ((name, copier.file(folder.path / name, f"{below}/{name}")) for name in names)


def _finished(unfinished: Path, folder: Path, made: Manifest) -> Path:
    """Rename a backup to its final name once it is completely on disk, so that every backup with a final name is
    complete."""
    with writing_backup(unfinished):
        (unfinished / manifest.FILE).write_text(made.to_json())
        os.sync()
        unfinished.rename(folder)
        _sync_folder(folder.parent)
    return folder


def _sync_folder(folder: Path) -> None:
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
