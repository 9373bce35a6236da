"""Restore a backup completely or in parts: first compare all files with the manifest, then put them in place.

Existing data stays untouched until all requested parts are known to be complete. If a table is restored without the
ledger, the ledger may contain receipts for later versions of the table. These receipts are removed first, so the
windows of these receipts count as not loaded and are requested again.
"""

from __future__ import annotations

import itertools
import os
import shutil
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final, Protocol

from platform_assets.backup import manifest
from platform_assets.backup.copying import at_once
from platform_assets.backup.failures import BackupDamagedError, RestoreHalfDoneError, reading_backup, restoring_to
from platform_assets.backup.manifest import DAGSTER, LAKE, LEDGER, OWN, REPLACED, STAGED, BackedUpFile, Backup
from platform_assets.backup.taking import Progress, backups, check_roots_apart
from platform_assets.errors import ConfigurationError
from platform_assets.lake import delta_log, load_log
from platform_assets.lake.leftovers import FOREVER
from platform_assets.lake.location import Folder, Lake
from platform_assets.ledger import rollback
from platform_assets.model.tables import TableRef

_LOG: Final = "_delta_log"
_RECEIPTS: Final = "_ledger/commits/"


class Place(Protocol):
    """A destination for files from a backup. A restore finishes each step in all places before it begins the next step."""

    def begin(self) -> None:
        """Prepare the place. Raises RestoreInterruptedError."""

    def take(self) -> Iterator[BackedUpFile]:
        """Compare the files with the manifest and stage them; yield each file once it is staged. Existing data stays
        untouched.

        Raises BackupDamagedError and RestoreInterruptedError.
        """

    def put(self, progress: Progress) -> None:
        """Replace the existing data with the staged files. Raises RestoreInterruptedError; if it does, the existing
        data may be lost."""

    def end(self) -> None:
        """Delete all staged files."""

    def finish(self) -> None:
        """Delete the replaced data, once all places have their files."""


@dataclass(frozen=True, slots=True)
class LocalPlace:
    """A folder: the lake root or Dagster's home. `names` lists those entries of the folder that are to be replaced."""

    backup: Backup
    root: Path
    names: tuple[str, ...]
    files: tuple[BackedUpFile, ...]

    @property
    def _staged(self) -> Path:
        return self.root / STAGED

    def begin(self) -> None:
        """See `Place`."""
        with restoring_to(self.root):
            shutil.rmtree(self._staged, ignore_errors=True)
            self._staged.mkdir(parents=True)

    def take(self) -> Iterator[BackedUpFile]:
        """See `Place`: copy the files to a staging folder inside the root."""
        for file in self.files:
            target, moment = self._staged / file.place, self.backup.written(file)
            with restoring_to(target):
                Folder.at(self._staged).content.send(file.place, self.backup.blocks(file), file.bytes)
                os.utime(target, ns=(moment, moment))
            yield file

    def put(self, progress: Progress) -> None:
        """See `Place`: move existing data away, and move staged files to their final paths."""
        # A restore that died may have left the data it was replacing: that stays until a restore succeeds.
        replaced = self.root / REPLACED / uuid.uuid4().hex
        for name in self.names:
            with restoring_to(self.root / name):
                at, old, new = self.root / name, replaced / name, self._staged / name
                if at.exists() or at.is_symlink():
                    old.parent.mkdir(parents=True, exist_ok=True)
                    at.rename(old)
                if new.exists():
                    at.parent.mkdir(parents=True, exist_ok=True)
                    new.rename(at)

    def end(self) -> None:
        """See `Place`."""
        shutil.rmtree(self._staged, ignore_errors=True)

    def finish(self) -> None:
        """See `Place`."""
        with restoring_to(self.root), suppress(FileNotFoundError):
            shutil.rmtree(self.root / REPLACED)


@dataclass(frozen=True, slots=True)
class StorePlace:
    """A lake root in an object store. `names` lists those entries below the root that are to be replaced."""

    backup: Backup
    root: Folder
    names: tuple[str, ...]
    files: tuple[BackedUpFile, ...]

    def begin(self) -> None:
        """See `Place`: nothing is needed."""

    def take(self) -> Iterator[BackedUpFile]:
        """See `Place`: the files are only read."""
        for file in self.files:
            self.backup.compare(file)
            yield file

    def put(self, progress: Progress) -> None:
        """See `Place`: missing data files are sent first. Names of data files are unique, so sending them does not
        change the existing tables. After that, the logs are sent, in the order in which tables depend on one another.
        Receipts come last, so a window's rows are in place before its receipt."""
        with restoring_to(self.root):
            self.root.content.write(self._mark, str(self.backup.folder).encode())
            stamps = self.root.content.stamps("")
        logs, data, loose = self._sorted()
        self._send([file for file in data if stamps.get(file.place) != file.source], progress)
        # The manifest has them in the order of the backup, derived tables first.
        in_order = logs[::-1]
        same = list(itertools.takewhile(lambda log: _is_there(log, stamps), in_order))
        kept = {file.place for file in itertools.chain(data, loose, *same)}
        with restoring_to(self.root):
            there = [name for folder in self.names for name in self.root.content.written_before(FOREVER, folder)]
            # Newest entries of a log first, so that the rest is always an earlier version.
            gone = sorted({*there} - kept, reverse=True)
            progress(
                f"deleting {len(gone):,} files of {self.root} that are not in the backup or differ from their copies there"
            )
            self.root.content.remove_files([name for name in gone if name.startswith(_RECEIPTS)])
            self.root.content.remove_files([name for name in gone if not name.startswith(_RECEIPTS)])
        for files in (loose, *same):
            self._send([file for file in files if stamps.get(file.place) != file.source], progress)
        for log in in_order[len(same) :]:
            self._send(log, progress)

    def end(self) -> None:
        """See `Place`: nothing was staged."""

    def finish(self) -> None:
        """See `Place`: the replaced files have already been deleted, so only the mark of the restore is removed."""
        with restoring_to(self.root):
            self.root.content.remove_files(self.root.content.written_before(FOREVER, REPLACED))

    @property
    def _mark(self) -> str:
        return f"{REPLACED}/{self.backup.folder.name}"

    def _sorted(self) -> tuple[list[list[BackedUpFile]], list[BackedUpFile], list[BackedUpFile]]:
        """Return three lists: the logs, one for each table and in the manifest's order; the data files of all tables;
        and the files outside tables."""
        logs: dict[str, list[BackedUpFile]] = {}
        others, data, loose = list[BackedUpFile](), list[BackedUpFile](), list[BackedUpFile]()
        for file in self.files:
            table, is_of_log, _ = file.place.partition(f"/{_LOG}/")
            (logs.setdefault(table, []) if is_of_log else others).append(file)
        for file in others:
            is_of_table = any(str(folder) in logs for folder in PurePosixPath(file.place).parents)
            (data if is_of_table else loose).append(file)
        return [*logs.values()], data, loose

    def _send(self, files: Sequence[BackedUpFile], progress: Progress) -> None:
        for number, _ in enumerate(at_once(self._sent, files), 1):
            progress(f"{number:,} of {len(files):,} files sent to {self.root}")

    def _sent(self, file: BackedUpFile) -> None:
        try:
            with restoring_to(self.root):
                self.root.content.send(file.place, self.backup.blocks(file), file.bytes)
        except BackupDamagedError as e:
            # It was complete when it was compared.
            raise RestoreHalfDoneError(e.place, e.reason) from e


def _is_there(log: Sequence[BackedUpFile], stamps: Mapping[str, str]) -> bool:
    """Return True if, judging by the stamps, the place already has all commits of a table's log."""
    return all(stamps.get(file.place) == file.source for file in log if file.place.endswith(".json"))


@dataclass(frozen=True, slots=True)
class Restored:
    """Result of a restore, or of a dry run.

    `forgotten` maps each table to the windows whose receipts were removed from the ledger, because the table was
    restored to a version before the loads of these windows.
    """

    backup: Backup
    parts: tuple[str, ...]
    files: int
    bytes: int
    forgotten: dict[str, tuple[str, ...]]


def find(source: Path) -> Backup:
    """Return the backup at `source`. If `source` is a folder that contains backups, return the newest backup in it.
    Raises ConfigurationError and BackupDamagedError."""
    if not (source / manifest.FILE).is_file():
        with reading_backup(source):
            known = backups(source)
        if not known:
            raise ConfigurationError(
                f"there is no backup at {source}: give the destination folder of `platform-assets backup`, or one "
                "backup in it"
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
    """Restore all parts of a backup, or only the parts in `only`. During the restore, neither loads nor Dagster may run
    on the lake or the home.

    With `dry_run`, only compare the backup's files with its manifest. Raises ConfigurationError if the backup lacks a
    part, if lake and home are nested, or, without `force`, if a part exists already. Raises BackupDamagedError before
    anything is changed. Also raises RestoreInterruptedError.
    """
    check_roots_apart(lake, home)
    parts = _chosen(backup, only)
    files = backup.manifest.of(parts)
    if not force and not dry_run:
        _check_free(parts, lake, home)
    done = Restored(backup, parts, len(files), sum(f.bytes for f in files), {})
    if dry_run:
        for number, file in enumerate(files, 1):
            backup.compare(file)
            progress(f"{number:,} of {len(files):,} files compared")
        return done
    places = _places(backup, parts, files, lake, home)
    with _begun(places):
        compared = itertools.chain.from_iterable(place.take() for place in places)
        for number, _ in enumerate(compared, 1):
            progress(f"{number:,} of {len(files):,} files compared")
        os.sync()
        forgotten = _forget(parts, backup, lake)
        for place in places:
            place.put(progress)
    for place in places:
        place.finish()
    return Restored(backup, parts, done.files, done.bytes, forgotten)


def newer_tables(done: Restored, lake: Lake) -> list[str]:
    """Return the tables that were not restored but contain loads that are newer than the restored ledger."""
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
        raise ConfigurationError(
            f"the backup {backup.folder} does not contain {unknown[0]!r}; it contains: {', '.join(known)}"
        )
    wanted = {names[name] for name in only}
    return tuple(part for part in known if not only or part in wanted)


def _check_free(parts: Sequence[str], lake: Lake, home: Path) -> None:
    taken = [part for part in parts if _is_taken(Folder.at(home) if part == DAGSTER else lake.root / _folder_of(part))]
    if taken:
        raise ConfigurationError(
            f"{', '.join(taken)} would be replaced, because the destination already has data for "
            f"{'it' if len(taken) == 1 else 'them'}. "
            "Nothing was changed. Restore only the lost parts with `--only`, or replace everything with `--force`"
        )


def _is_taken(folder: Folder) -> bool:
    # No process uses what a restore that died left here.
    return any(not OWN & {*name.split("/")} for name in folder.written_before(FOREVER, ""))


def _folder_of(part: str) -> str:
    return "_ledger" if part == LEDGER else part


def _places(backup: Backup, parts: Sequence[str], files: Sequence[BackedUpFile], lake: Lake, home: Path) -> list[Place]:
    of_home = tuple(f for f in files if f.part == DAGSTER)
    of_lake = tuple(f for f in files if f.part != DAGSTER)
    found = list[Place]()
    if of_lake:
        names = tuple(_folder_of(p) for p in parts if p != DAGSTER)
        if lake.root.is_in_store:
            found.append(StorePlace(backup, lake.root, names, of_lake))
        else:
            found.append(LocalPlace(backup, lake.root.path, names, of_lake))
    if of_home:
        there = {f.name for f in home.iterdir()} if home.is_dir() else set()
        names = tuple(sorted((there | {f.place.partition("/")[0] for f in of_home}) - OWN))
        found.append(LocalPlace(backup, home, names, of_home))
    return found


@contextmanager
def _begun(places: Sequence[Place]) -> Iterator[None]:
    """Prepare the places for the block. When the block ends, delete all staged files."""
    for place in places:
        place.begin()
    try:
        yield
    finally:
        for place in places:
            place.end()


def _forget(parts: Sequence[str], of: Backup, lake: Lake) -> dict[str, tuple[str, ...]]:
    if LEDGER in parts:
        return {}
    found = {}
    for part in parts:
        if part != DAGSTER:
            table_id = load_log.table_id(Folder.at(of.folder / LAKE / part))
            if keys := rollback.forget_loads(lake, TableRef.parse(part), of.manifest.tables[part], table_id):
                found[part] = keys
    return found
