"""Where restored files go: a folder, where they are staged and moved, or a prefix of an object store, where nothing can be moved."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from platform_assets.backup.copying import AT_ONCE
from platform_assets.backup.failures import BackupDamagedError, RestoreInterruptedError, restoring_to
from platform_assets.backup.finished import Backup
from platform_assets.backup.manifest import BackedUpFile
from platform_assets.backup.taking import Progress
from platform_assets.lake.commits import FOREVER
from platform_assets.lake.location import Folder

_STAGED: Final = ".restoring"
_REPLACED: Final = ".replaced"
OWN: Final = frozenset({_STAGED, _REPLACED})
"""Names of folders that a restore makes in a place, and that it leaves where it dies."""
_LOG: Final = "_delta_log"


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
        return self.root / _STAGED

    def begin(self) -> None:
        """As Place has it."""
        with restoring_to(self.root):
            shutil.rmtree(self._staged, ignore_errors=True)
            self._staged.mkdir(parents=True)

    def take(self) -> Iterator[BackedUpFile]:
        """As Place has it: they are copied to a folder beside."""
        for file in self.files:
            target = self._staged / file.place
            with restoring_to(target):
                target.parent.mkdir(parents=True, exist_ok=True)
                written = target.open("xb")
            with written:
                for block in self.backup.blocks(file):
                    with restoring_to(target):
                        written.write(block)
            moment = self.backup.written(file)
            with restoring_to(target):
                os.utime(target, ns=(moment, moment))
            yield file

    def put(self, progress: Progress) -> None:
        """As Place has it: what is there is moved out of the way, and what was staged into its place."""
        # One that died may have left what it was to replace: that stays until a restore has ended well.
        replaced = self.root / _REPLACED / uuid.uuid4().hex
        for name in self.names:
            with restoring_to(self.root / name):
                at, old, new = self.root / name, replaced / name, self._staged / name
                if at.exists():
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
        shutil.rmtree(self.root / _REPLACED, ignore_errors=True)


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

        No data file has the name of another one, so a restore that is cut short while they are sent leaves the lake as it was.
        """
        logs = [file for file in self.files if _LOG in file.place.split("/")]
        data = [file for file in self.files if _LOG not in file.place.split("/")]
        with restoring_to(self.root):
            stamps = self.root.content.stamps("")
        self._send([file for file in data if stamps.get(file.place) != file.source], progress)
        kept = {file.place for file in data}
        with restoring_to(self.root):
            there = [name for folder in self.names for name in self.root.content.written_before(FOREVER, folder)]
            self.root.content.remove_files(name for name in there if name not in kept)
        self._send(logs, progress)

    def end(self) -> None:
        """As Place has it: nothing was staged."""

    def finish(self) -> None:
        """As Place has it: nothing is left of what was replaced."""

    def _send(self, files: Sequence[BackedUpFile], progress: Progress) -> None:
        pool = ThreadPoolExecutor(AT_ONCE)
        try:
            for number, _ in enumerate(pool.map(self._sent, files), 1):
                progress(f"{number:,} of {len(files):,} files sent to {self.root}")
        finally:
            pool.shutdown(cancel_futures=True)

    def _sent(self, file: BackedUpFile) -> None:
        try:
            with restoring_to(self.root), self.root.content.create(file.place) as target:
                for block in self.backup.blocks(file):
                    target.write(block)
        except BackupDamagedError as e:
            # It was whole when it was compared.
            raise RestoreInterruptedError(e.place, e.reason) from e
