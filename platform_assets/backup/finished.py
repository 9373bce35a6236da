"""A finished backup, and its files, each compared with the manifest while it is read."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from platform_assets.backup.failures import BackupDamagedError, reading_backup
from platform_assets.backup.manifest import BackedUpFile, Manifest

_BLOCK: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Backup:
    """A finished backup."""

    folder: Path
    manifest: Manifest

    def blocks(self, file: BackedUpFile) -> Iterator[bytes]:
        """The content of a file. Raises BackupDamagedError, at its end, where it is not what the manifest says."""
        place, digest, size = self.folder / file.path, hashlib.sha256(), 0
        with reading_backup(place):
            source = place.open("rb")
        with source:
            while block := _block(source, place):
                digest.update(block)
                size += len(block)
                yield block
        if size != file.bytes or digest.hexdigest() != file.sha256:
            raise BackupDamagedError(
                str(place), f"it is not the file that was backed up ({size:,} bytes for {file.bytes:,})"
            )

    def compare(self, file: BackedUpFile) -> None:
        """Read a file. Raises BackupDamagedError where it is not what the manifest says."""
        for _ in self.blocks(file):
            pass

    def written(self, file: BackedUpFile) -> int:
        """When the file that this is a copy of was last written, in nanoseconds since 1970. Raises BackupDamagedError."""
        place = self.folder / file.path
        with reading_backup(place):
            return os.stat(place).st_mtime_ns


def _block(source: IO[bytes], place: Path) -> bytes:
    with reading_backup(place):
        return source.read(_BLOCK)
