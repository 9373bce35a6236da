"""Targets of a restore: a folder, where files are staged and moved, or a prefix of an object store, where nothing can
be moved."""

from __future__ import annotations

import itertools
import os
import shutil
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final, Protocol

from platform_assets.backup.copying import at_once
from platform_assets.backup.failures import BackupDamagedError, RestoreHalfDoneError, restoring_to
from platform_assets.backup.finished import Backup
from platform_assets.backup.manifest import REPLACED, STAGED, BackedUpFile
from platform_assets.backup.taking import Progress
from platform_assets.lake.commits import FOREVER
from platform_assets.lake.location import Folder

_LOG: Final = "_delta_log"
_RECEIPTS: Final = "_ledger/commits/"


class Place(Protocol):
    """A place that files of a backup are put into, in steps: each is done in all places before the next."""

    def begin(self) -> None:
        """Make room. Raises RestoreInterruptedError."""

    def take(self) -> Iterator[BackedUpFile]:
        """Compare the files with the manifest, and have them ready; gives each. Nothing that is there is touched.

        Raises BackupDamagedError and RestoreInterruptedError.
        """

    def put(self, progress: Progress) -> None:
        """Replace what is there by them. Raises RestoreInterruptedError; what was there may be gone then."""

    def end(self) -> None:
        """Leave nothing of what was staged."""

    def finish(self) -> None:
        """Delete what was replaced, once all places have what is theirs."""


@dataclass(frozen=True, slots=True)
class LocalPlace:
    """A folder: the lake root or Dagster's home. `names` are what is replaced in it."""

    backup: Backup
    root: Path
    names: tuple[str, ...]
    files: tuple[BackedUpFile, ...]

    @property
    def _staged(self) -> Path:
        return self.root / STAGED

    def begin(self) -> None:
        """As Place has it."""
        with restoring_to(self.root):
            shutil.rmtree(self._staged, ignore_errors=True)
            self._staged.mkdir(parents=True)

    def take(self) -> Iterator[BackedUpFile]:
        """As in Place: copy the files to a folder next to it."""
        for file in self.files:
            target, moment = self._staged / file.place, self.backup.written(file)
            with restoring_to(target):
                Folder.at(self._staged).content.send(file.place, self.backup.blocks(file), file.bytes)
                os.utime(target, ns=(moment, moment))
            yield file

    def put(self, progress: Progress) -> None:
        """As Place has it: what is there is moved out of the way, and what was staged into its place."""
        # One that died may have left what it was to replace: that stays until a restore has ended well.
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
        """As Place has it."""
        shutil.rmtree(self._staged, ignore_errors=True)

    def finish(self) -> None:
        """As Place has it."""
        with restoring_to(self.root), suppress(FileNotFoundError):
            shutil.rmtree(self.root / REPLACED)


@dataclass(frozen=True, slots=True)
class StorePlace:
    """A lake's root in an object store. `names` are what is replaced below it."""

    backup: Backup
    root: Folder
    names: tuple[str, ...]
    files: tuple[BackedUpFile, ...]

    def begin(self) -> None:
        """As Place has it: nothing is needed."""

    def take(self) -> Iterator[BackedUpFile]:
        """As Place has it: they are read."""
        for file in self.files:
            self.backup.compare(file)
            yield file

    def put(self, progress: Progress) -> None:
        """As Place has it: data files are sent first, those that are not there, and the logs once nothing else is.

        No data file has the name of another one, so as long as they are sent every table is as it was. Logs follow in the order in
        which tables rest on one another, receipts last: a window has no receipt before it has its rows.
        """
        with restoring_to(self.root):
            self.root.content.write(self._mark, str(self.backup.folder).encode())
            stamps = self.root.content.stamps("")
        logs, data, loose = self._sorted()
        self._send([file for file in data if stamps.get(file.place) != file.source], progress)
        # The manifest has them as they were taken, what is derived first.
        in_order = logs[::-1]
        same = list(itertools.takewhile(lambda log: _is_there(log, stamps), in_order))
        kept = {file.place for file in itertools.chain(data, loose, *same)}
        with restoring_to(self.root):
            there = [name for folder in self.names for name in self.root.content.written_before(FOREVER, folder)]
            # Newest entries of a log first: what is left of it is a version that there was.
            gone = sorted({*there} - kept, reverse=True)
            progress(f"deleting {len(gone):,} files of {self.root} that the backup does not have, or has others of")
            self.root.content.remove_files([name for name in gone if name.startswith(_RECEIPTS)])
            self.root.content.remove_files([name for name in gone if not name.startswith(_RECEIPTS)])
        for files in (loose, *same):
            self._send([file for file in files if stamps.get(file.place) != file.source], progress)
        for log in in_order[len(same) :]:
            self._send(log, progress)

    def end(self) -> None:
        """As Place has it: nothing was staged."""

    def finish(self) -> None:
        """As Place has it: nothing is left of what was replaced, so that it is no longer said to be."""
        with restoring_to(self.root):
            self.root.content.remove_files(self.root.content.written_before(FOREVER, REPLACED))

    @property
    def _mark(self) -> str:
        return f"{REPLACED}/{self.backup.folder.name}"

    def _sorted(self) -> tuple[list[list[BackedUpFile]], list[BackedUpFile], list[BackedUpFile]]:
        """The logs, one a table, in the manifest's order; the tables' data files; and files of no table."""
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
            # It was whole when it was compared.
            raise RestoreHalfDoneError(e.place, e.reason) from e


def _is_there(log: Sequence[BackedUpFile], stamps: Mapping[str, str]) -> bool:
    """Return whether all commits of a table's log are there already, by their stamps."""
    return all(stamps.get(file.place) == file.source for file in log if file.place.endswith(".json"))
