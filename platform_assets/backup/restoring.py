"""Restoring a backup, whole or in parts: all of it is compared with the manifest first, and then put into its place.

Until all that was asked for is known to be whole, nothing that is there is touched. A table that is restored without the
ledger is older than its receipts: those of later versions are taken out of the ledger first, so that their windows count as not
loaded and are asked for again.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from platform_assets.backup import manifest
from platform_assets.backup.failures import reading_backup
from platform_assets.backup.finished import Backup
from platform_assets.backup.manifest import DAGSTER, LAKE, LEDGER, OWN, BackedUpFile
from platform_assets.backup.places import LocalPlace, Place, StorePlace
from platform_assets.backup.taking import Progress, backups, check_roots_apart
from platform_assets.errors import ConfigurationError
from platform_assets.lake import delta_log, load_log
from platform_assets.lake.commits import FOREVER
from platform_assets.lake.location import Folder, Lake
from platform_assets.ledger import rollback
from platform_assets.model.tables import TableRef


@dataclass(frozen=True, slots=True)
class Restored:
    """Result of a restore, or of a dry run. `forgotten` are the windows by table whose receipts were removed from the
    ledger, since the table was restored to a version before their loads."""

    backup: Backup
    parts: tuple[str, ...]
    files: int
    bytes: int
    forgotten: dict[str, tuple[str, ...]]


def find(source: Path) -> Backup:
    """The backup at `source`, or the newest one in that folder. Raises ConfigurationError and BackupDamagedError."""
    if not (source / manifest.FILE).is_file():
        with reading_backup(source):
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
    part that the backup has not got, for a lake and a home of which one is inside the other, and without `force` for a part whose
    place is taken; BackupDamagedError, with nothing changed;
    RestoreInterruptedError.
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
    taken = [part for part in parts if _is_taken(Folder.at(home) if part == DAGSTER else lake.root / _folder_of(part))]
    if taken:
        raise ConfigurationError(
            f"{', '.join(taken)} would be replaced: there is something in {'its place' if len(taken) == 1 else 'their places'}. "
            "Nothing was changed. Name what is lost with `--only`, or replace it with `--force`"
        )


def _is_taken(folder: Folder) -> bool:
    # What a restore that died has left is nobody's.
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
    """Delete what was staged next to the places at the end of the block."""
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
