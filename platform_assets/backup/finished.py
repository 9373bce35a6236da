"""A finished backup, and its files, each compared with the manifest while it is read."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
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
            source = open_regular(place)
        with source:
            size = os.fstat(source.fileno()).st_size
            if size == file.bytes:
                size = 0
                # One that grows meanwhile is read no further than to what is too much.
                while size <= file.bytes and (block := _block(source, place)):
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
        """Return when the original of this copy was last written, in nanoseconds since 1970. Raises
        BackupDamagedError."""
        place = self.folder / file.path
        with reading_backup(place):
            return os.stat(place).st_mtime_ns


def open_regular(place: Path) -> IO[bytes]:
    """Open a file to be read. Raises OSError, for one that is not a regular file too: reading a pipe or a device may never end."""
    source = open(place, "rb", opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK))  # noqa: SIM115
    if not stat.S_ISREG(os.fstat(source.fileno()).st_mode):
        source.close()
        raise OSError(errno.EINVAL, "it is not a regular file", str(place))
    return source


def _block(source: IO[bytes], place: Path) -> bytes:
    with reading_backup(place):
        return source.read(_BLOCK)
