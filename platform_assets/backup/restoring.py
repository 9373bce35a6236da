"""Restoring a backup, whole or in parts: copied beside the places and compared with the manifest first, then put there.

Until all that was asked for lies beside its place, whole, nothing that is there is touched. A table that is restored without the
ledger is older than its receipts: those of later versions are taken out of the ledger first, so that their windows count as not
loaded and are asked for again.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from platform_assets.backup import manifest
from platform_assets.backup.failures import BackupDamagedError, restoring_to
from platform_assets.backup.manifest import DAGSTER, LEDGER, BackedUpFile, Manifest
from platform_assets.backup.taking import backups
from platform_assets.errors import ConfigurationError
from platform_assets.lake import delta_log
from platform_assets.lake.failures import reason_of
from platform_assets.lake.location import Lake
from platform_assets.ledger import rollback
from platform_assets.model.tables import TableRef

_STAGED: Final = ".restoring"
_REPLACED: Final = ".replaced"
_BLOCK: Final = 1 << 20

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Backup:
    """A finished backup."""

    folder: Path
    manifest: Manifest


@dataclass(frozen=True, slots=True)
class Restored:
    """What was restored, or would be. `forgotten` are the windows by table whose receipts the ledger no longer has, since the
    table was restored to a version before their loads."""

    backup: Backup
    parts: tuple[str, ...]
    files: int
    bytes: int
    forgotten: dict[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class _Place:
    """A folder to put files below: the lake root or Dagster's home. `names` are what is replaced in it."""

    root: Path
    names: tuple[str, ...]
    files: tuple[BackedUpFile, ...]

    @property
    def staged(self) -> Path:
        return self.root / _STAGED


def find(source: Path) -> Backup:
    """The backup at `source`, or the newest one in that folder. Raises ConfigurationError and BackupDamagedError."""
    if not (source / manifest.FILE).is_file():
        known = backups(source)
        if not known:
            raise ConfigurationError(
                f"there is no backup at {source}: name the folder that `platform-assets backup` was given, or one in it"
            )
        source = known[-1]
    return Backup(source, manifest.read(source))


def restore(
    backup: Backup,
    lake: Lake,
    home: Path,
    only: Collection[str] = (),
    *,
    force: bool = False,
    dry_run: bool = False,
    progress: Progress = lambda text: None,
) -> Restored:
    """Restore the parts of a backup, or those of `only`. Neither loads nor Dagster may be at work on them.

    With `dry_run` the files of the backup are compared with its manifest, and nothing else is done. Raises ConfigurationError for a
    part that the backup has not got, and without `force` for one whose place is taken; BackupDamagedError, with nothing changed;
    RestoreInterruptedError.
    """
    lake.check_local("a restore", "Restore to a local or mounted folder: set LAKE_ROOT to one for it.")
    parts = _chosen(backup, only)
    files = backup.manifest.of(parts)
    if not force and not dry_run:
        _check_free(parts, lake, home)
    done = Restored(backup, parts, len(files), sum(f.bytes for f in files), {})
    if dry_run:
        for number, file in enumerate(files, 1):
            _verified(backup, file, None)
            progress(f"{number:,} of {len(files):,} files compared")
        return done
    places = _places(parts, files, lake, home)
    with _staged(places):
        count = 0
        for place in places:
            for file in place.files:
                _verified(backup, file, place.staged / file.place)
                count += 1
                progress(f"{count:,} of {len(files):,} files copied")
        with restoring_to(lake.root.path):
            os.sync()
        forgotten = _forget(parts, backup.manifest, lake)
        for place in places:
            _put(place)
    for place in places:
        shutil.rmtree(place.root / _REPLACED, ignore_errors=True)
    return Restored(backup, parts, done.files, done.bytes, forgotten)


def newer_tables(done: Restored, lake: Lake) -> list[str]:
    """Tables that have loads behind those that the restored ledger knows of."""
    if LEDGER not in done.parts:
        return []
    versions = done.backup.manifest.tables
    return [
        table.name
        for table in lake.tables()
        if table.name not in done.parts
        and (delta_log.newest_version(lake.table(table)) or 0) > versions.get(table.name, -1)
    ]


def _chosen(backup: Backup, only: Collection[str]) -> tuple[str, ...]:
    known = backup.manifest.parts
    names = {name: name for name in known} | {
        name.removeprefix("raw/"): name for name in known if name.startswith("raw/")
    }
    unknown = sorted(set(only) - set(names))
    if unknown:
        raise ConfigurationError(f"the backup {backup.folder} has no {unknown[0]!r}; it has: {', '.join(known)}")
    wanted = {names[name] for name in only}
    return tuple(part for part in known if not only or part in wanted)


def _check_free(parts: Sequence[str], lake: Lake, home: Path) -> None:
    taken = [part for part in parts if _is_taken(home if part == DAGSTER else lake.root.path / _folder_of(part))]
    if taken:
        raise ConfigurationError(
            f"{', '.join(taken)} would be replaced: there is something in {'its place' if len(taken) == 1 else 'their places'}. "
            "Nothing was changed. Name what is lost with `--only`, or replace it with `--force`"
        )


def _is_taken(folder: Path) -> bool:
    # What a restore that died has left is nobody's.
    return any(
        file.is_file() for file in folder.rglob("*") if not {_STAGED, _REPLACED} & {*file.relative_to(folder).parts}
    )


def _folder_of(part: str) -> str:
    return "_ledger" if part == LEDGER else part


def _places(parts: Sequence[str], files: Sequence[BackedUpFile], lake: Lake, home: Path) -> list[_Place]:
    of_home = tuple(f for f in files if f.part == DAGSTER)
    of_lake = tuple(f for f in files if f.part != DAGSTER)
    found = []
    if of_lake:
        found.append(_Place(lake.root.path, tuple(_folder_of(p) for p in parts if p != DAGSTER), of_lake))
    if of_home:
        there = {f.name for f in home.iterdir()} if home.is_dir() else set()
        names = there | {f.place.partition("/")[0] for f in of_home}
        found.append(_Place(home, tuple(sorted(names - {_STAGED, _REPLACED})), of_home))
    return found


@contextmanager
def _staged(places: Sequence[_Place]) -> Iterator[None]:
    """Folders beside the places for what is to come; they go with the block."""
    for place in places:
        with restoring_to(place.root):
            shutil.rmtree(place.staged, ignore_errors=True)
            place.staged.mkdir(parents=True)
    try:
        yield
    finally:
        for place in places:
            shutil.rmtree(place.staged, ignore_errors=True)


def _verified(backup: Backup, file: BackedUpFile, target: Path | None) -> None:
    """Copy a file of the backup to `target`, if one is given. Raises BackupDamagedError where it is not what the manifest says."""
    place = backup.folder / file.path
    digest, size = hashlib.sha256(), 0
    try:
        source = place.open("rb")
    except OSError as e:
        raise BackupDamagedError(str(place), reason_of(e)) from e
    with source:
        written = None
        if target is not None:
            with restoring_to(target):
                target.parent.mkdir(parents=True, exist_ok=True)
                written = target.open("xb")
        try:
            while block := _block(source, place):
                digest.update(block)
                size += len(block)
                if written is not None and target is not None:
                    with restoring_to(target):
                        written.write(block)
        finally:
            if written is not None:
                written.close()
        stat = os.fstat(source.fileno())
    if size != file.bytes or digest.hexdigest() != file.sha256:
        raise BackupDamagedError(
            str(place), f"it is not the file that was backed up ({size:,} bytes for {file.bytes:,})"
        )
    if target is not None:
        with restoring_to(target):
            os.utime(target, ns=(stat.st_mtime_ns, stat.st_mtime_ns))


def _forget(parts: Sequence[str], of: Manifest, lake: Lake) -> dict[str, tuple[str, ...]]:
    if LEDGER in parts:
        return {}
    found = {}
    for part in parts:
        if part != DAGSTER and (keys := rollback.forget_loads(lake, TableRef.parse(part), of.tables[part])):
            found[part] = keys
    return found


def _put(place: _Place) -> None:
    """Move what is there out of the way, and what was staged into its place."""
    # One that died may have left what it was to replace: that stays until a restore has ended well.
    replaced = place.root / _REPLACED / uuid.uuid4().hex
    for name in place.names:
        with restoring_to(place.root / name):
            at, old, new = place.root / name, replaced / name, place.staged / name
            if at.exists():
                old.parent.mkdir(parents=True, exist_ok=True)
                at.rename(old)
            if new.exists():
                at.parent.mkdir(parents=True, exist_ok=True)
                new.rename(at)


def _block(source: IO[bytes], place: Path) -> bytes:
    try:
        return source.read(_BLOCK)
    except OSError as e:
        raise BackupDamagedError(str(place), reason_of(e)) from e
