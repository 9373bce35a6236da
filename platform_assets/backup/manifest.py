"""Manifest of a backup: the list of the backup's contents, with which a restore detects missing and changed files."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import IO, Any, Final

from platform_assets.backup.failures import BackupDamagedError, reading_backup
from platform_assets.errors import ConfigurationError

FILE: Final = "manifest.json"
VERSION: Final = 1
LAKE: Final = "lake"
DAGSTER: Final = "dagster"
LEDGER: Final = "ledger"
STAGED: Final = ".restoring"
REPLACED: Final = ".replaced"
"""Name of the mark that an unfinished restore leaves in a place that it is replacing. In a local place, the mark is a
folder that contains the data that was moved away."""
OWN: Final = frozenset({STAGED, REPLACED})
"""Names that a restore creates in a place. If the restore dies, they stay there."""

MOST_BYTES: Final = 1 << 30
"""Maximum size of a manifest: enough for several million files."""
_SHOWN: Final = 200

_VERSION_KEY: Final = "platform_assets_backup"


@dataclass(frozen=True, slots=True)
class BackedUpFile:
    """A file in a backup. `path` is relative to the backup's folder, with `/` as the separator.

    `source` is a stamp of the original file. While the stamp stays the same, the file need not be copied again.
    """

    path: str
    bytes: int
    sha256: str
    source: str

    @property
    def part(self) -> str:
        """The part of the backup to which the file belongs: `ledger`, `dagster`, or the name of a table."""
        parts = PurePosixPath(self.path).parts
        if parts[0] == DAGSTER:
            return DAGSTER
        return LEDGER if parts[1] == "_ledger" else "/".join(parts[1:3])

    @property
    def place(self) -> str:
        """The file's path below the lake root, or below Dagster's home."""
        return self.path.partition("/")[2]


@dataclass(frozen=True, slots=True)
class Manifest:
    """Contents of a backup.

    `tables` maps the path of each Delta table below the lake root to the table's version. `left_out` lists other files
    below the lake root that were not backed up. `at` is the time when the backup began: everything that existed at that
    time is included.
    """

    at: datetime
    tables: Mapping[str, int]
    files: tuple[BackedUpFile, ...]
    left_out: tuple[str, ...] = ()

    @property
    def parts(self) -> tuple[str, ...]:
        """Parts that can be restored separately: `ledger` comes first, `dagster` last, and the tables in between."""
        found = {file.part for file in self.files}
        tables = sorted(found - {LEDGER, DAGSTER})
        return tuple(part for part in (LEDGER, *tables, DAGSTER) if part in found)

    def of(self, parts: Iterable[str]) -> list[BackedUpFile]:
        """Return the files that belong to these parts."""
        wanted = set(parts)
        return [file for file in self.files if file.part in wanted]

    def to_json(self) -> str:
        """Return the text of the manifest file."""
        fields = {
            _VERSION_KEY: VERSION,
            "at": self.at.astimezone(UTC).isoformat(timespec="seconds"),
            "tables": dict(self.tables),
            "left_out": list(self.left_out),
            "files": [[f.path, f.bytes, f.sha256, f.source] for f in self.files],
        }
        return json.dumps(fields, separators=(",", ":"))


def read(backup: Path) -> Manifest:
    """Read the manifest of the backup in this folder.

    Raises BackupDamagedError, and ConfigurationError if a later release wrote the manifest.
    """
    place = backup / FILE
    try:
        fields: Any = json.loads(_content(place))
        version = fields[_VERSION_KEY]
        if version != VERSION:
            raise ConfigurationError(
                f"the backup at {backup} has version {version}, but this release reads version {VERSION}: restore "
                f"it with the release that made it, or a later one"
            )
        found = Manifest(
            datetime.fromisoformat(fields["at"]),
            {str(name): int(number) for name, number in fields["tables"].items()},
            tuple(
                BackedUpFile(str(p), int(size), str(digest), str(source)) for p, size, digest, source in fields["files"]
            ),
            tuple(str(name) for name in fields["left_out"]),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as e:
        raise BackupDamagedError(str(place), f"it is not a backup manifest ({str(e)[:_SHOWN]})") from e
    for file in found.files:
        _check_path(place, file.path)
    for part in found.parts:
        if part not in (LEDGER, DAGSTER) and found.tables.get(part, -1) < 0:
            raise BackupDamagedError(str(place), f"it does not record the version of table {part[:_SHOWN]!r}")
    return found


def _content(place: Path) -> bytes:
    size = place.stat().st_size
    if size > MOST_BYTES:
        raise ValueError(f"it has {size:,} bytes, more than {MOST_BYTES:,}")
    return place.read_bytes()


def _check_path(manifest: Path, path: str) -> None:
    """Check a path in a manifest. The check is needed because anybody may have written the manifest, and the restore
    writes to the paths in it."""
    parts = path.split("/")
    lowest = {LAKE: 3, DAGSTER: 2}.get(parts[0])
    is_path = lowest is not None and len(parts) >= lowest and not {"", ".", ".."} & {*parts} and "\0" not in path
    if not is_path or parts[1] in OWN or not _can_be_a_name(path):
        raise BackupDamagedError(str(manifest), f"{path[:_SHOWN]!r} is not a valid path in a backup")


def _can_be_a_name(path: str) -> bool:
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        return False
    return True


_BLOCK: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Backup:
    """A finished backup."""

    folder: Path
    manifest: Manifest

    def blocks(self, file: BackedUpFile) -> Iterator[bytes]:
        """Yield the content of a file, block by block. Raises BackupDamagedError after the last block if the content
        does not match the manifest."""
        place, digest, size = self.folder / file.path, hashlib.sha256(), 0
        with reading_backup(place):
            source = open_regular(place)
        with source:
            size = os.fstat(source.fileno()).st_size
            if size == file.bytes:
                size = 0
                # A file that grows meanwhile is read only up to the limit.
                while size <= file.bytes and (block := _block(source, place)):
                    digest.update(block)
                    size += len(block)
                    yield block
        if size != file.bytes or digest.hexdigest() != file.sha256:
            raise BackupDamagedError(
                str(place),
                f"its size or content differs from what was backed up ({size:,} bytes; backed up: {file.bytes:,})",
            )

    def compare(self, file: BackedUpFile) -> None:
        """Read a file. Raises BackupDamagedError if the content does not match the manifest."""
        for _ in self.blocks(file):
            pass

    def written(self, file: BackedUpFile) -> int:
        """Return the time when the original of this file was last written, in nanoseconds since 1970. Raises
        BackupDamagedError."""
        place = self.folder / file.path
        with reading_backup(place):
            return os.stat(place).st_mtime_ns


def open_regular(place: Path) -> IO[bytes]:
    """Open a file for reading.

    Raises OSError, also if the path is not a regular file, because reading from a pipe or a device may never end.
    """
    source = open(place, "rb", opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK))  # noqa: SIM115
    if not stat.S_ISREG(os.fstat(source.fileno()).st_mode):
        source.close()
        raise OSError(errno.EINVAL, "it is not a regular file", str(place))
    return source


def _block(source: IO[bytes], place: Path) -> bytes:
    with reading_backup(place):
        return source.read(_BLOCK)
