"""Files below a folder of the lake, on a file system or in an object store. All file access to a lake goes through
these calls.

This module imports neither Delta nor Spark, so that Spark's Python workers, which write and read data files, can load
it quickly. For any store, all errors are those of the operating system: FileNotFoundError, PermissionError and other
OSErrors.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final, Protocol
from uuid import uuid4

import pyarrow as pa

STORES: Final = ("s3://",)
"""Prefixes of object store addresses."""


class Files(Protocol):
    """The files in one folder, which need not exist. Names are relative, with `/` between the parts."""

    def read(self, name: str) -> bytes:
        """Return a file's content. Raises FileNotFoundError."""

    def size(self, name: str) -> int:
        """Return the size of a file in bytes. Raises FileNotFoundError."""

    def stamp(self, name: str) -> str:
        """Return a stamp that changes when the content under this name changes. Raises FileNotFoundError."""

    def stamps(self, below: str) -> dict[str, str]:
        """Return the stamps of all files below the folder `below`, by name. Files with the same content may have the
        same stamp."""

    def files(self, below: str) -> list[str]:
        """Return the names of the files directly in the folder `below`, in no particular order; none if the folder does
        not exist."""

    def folders(self, below: str) -> list[str]:
        """Return the names of the folders directly in the folder `below`, in no particular order; none if the folder
        does not exist."""

    def open(self, name: str) -> pa.NativeFile:
        """Open a file for reading with random access. Raises FileNotFoundError."""

    def create(self, name: str) -> pa.NativeFile:
        """Open a new file for writing, and create its folder if needed. The file exists only after it is closed."""

    def send(self, name: str, pieces: Iterable[bytes], size: int) -> None:
        """Write a file of `size` bytes from `pieces`. If reading the pieces raises an error, the previous content
        stays."""

    def make(self) -> None:
        """Create the folder, if the store has real folders."""

    def write(self, name: str, content: bytes) -> None:
        """Write a file atomically in an existing folder: a reader sees either the previous content or the new content."""

    def write_new(self, name: str, content: bytes) -> bool:
        """Write a file atomically in an existing folder, unless the file exists; return True if it was written.

        If an object store's answer was lost, False may mean that this call wrote the file.
        """

    def time(self) -> datetime:
        """Read the store's clock: the modification time of a file written now."""

    def is_case_sensitive(self) -> bool:
        """Return True if names that differ only in case are different names. This writes a file to find out."""

    def copy(self, name: str, to: str) -> None:
        """Copy a file to a new name in an existing folder."""

    def written_before(self, moment: datetime, below: str) -> list[str]:
        """Return the names of all files below the folder `below` that were last written before `moment`."""

    def keeps_versions(self) -> bool:
        """Return True if the store keeps past versions of overwritten or deleted files. This writes a file to find out."""

    def remove(self, names: Iterable[str]) -> None:
        """Delete files, if they exist, and any folders that are then empty."""

    def remove_files(self, names: Iterable[str]) -> None:
        """Delete files, if they exist, but keep their folders."""

    def delete(self) -> None:
        """Delete the folder with all its content. Anything that cannot be deleted stays."""


def files_at(uri: str) -> Files:
    """Return the files of the folder at a file system path or at an object store address."""
    if is_in_store(uri):
        # Imported here because few lakes are in an object store.
        from platform_assets.lake.object_files import ObjectFiles

        return ObjectFiles(uri)
    return LocalFiles(uri)


def files_below(uri: str | Path) -> Callable[[str], Files]:
    """Return a picklable function that returns the files of a subfolder, given its name. For an empty name, it returns
    the files of the folder itself."""
    return partial(_files_in, str(uri))


def _files_in(uri: str, name: str) -> Files:
    return files_at(f"{uri}/{name}" if name else uri)


def is_in_store(uri: str) -> bool:
    """Return True if an address of the lake is an address in an object store, not a path."""
    return uri.startswith(STORES)


@dataclass(frozen=True, slots=True)
class LocalFiles:
    """Files in a local or mounted folder."""

    folder: str

    def read(self, name: str) -> bytes:
        """Implement `Files.read`."""
        return Path(self.folder, name).read_bytes()

    def size(self, name: str) -> int:
        """Implement `Files.size`."""
        return Path(self.folder, name).stat().st_size

    def stamp(self, name: str) -> str:
        """Implement `Files.stamp`."""
        found = os.stat(f"{self.folder}/{name}")
        return f"{found.st_ino}-{found.st_size}-{found.st_mtime_ns}"

    def stamps(self, below: str) -> dict[str, str]:
        """Implement `Files.stamps`."""
        paths = (
            path.relative_to(self.folder).as_posix() for path in Path(self.folder, below).rglob("*") if path.is_file()
        )
        return {name: self.stamp(name) for name in paths}

    def files(self, below: str) -> list[str]:
        """Implement `Files.files`."""
        try:
            with os.scandir(Path(self.folder, below)) as entries:
                return [entry.name for entry in entries if entry.is_file()]
        except FileNotFoundError:
            return []

    def folders(self, below: str) -> list[str]:
        """Implement `Files.folders`."""
        try:
            with os.scandir(Path(self.folder, below)) as entries:
                # Follows links too: what is read there is also backed up and cleaned up.
                return [entry.name for entry in entries if entry.is_dir()]
        except FileNotFoundError:
            return []

    def open(self, name: str) -> pa.NativeFile:
        """Implement `Files.open`."""
        return pa.OSFile(f"{self.folder}/{name}", "rb")

    def create(self, name: str) -> pa.NativeFile:
        """Implement `Files.create`, but the file is visible before it is closed."""
        path = Path(self.folder, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        return pa.OSFile(str(path), "wb")

    def send(self, name: str, pieces: Iterable[bytes], size: int) -> None:
        """Implement `Files.send`."""
        path = Path(self.folder, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        # Only for this thread: others may be writing the same file.
        beside = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
        try:
            with beside.open("wb") as written:
                written.writelines(pieces)
            beside.replace(path)
        finally:
            beside.unlink(missing_ok=True)

    def make(self) -> None:
        """Implement `Files.make`."""
        Path(self.folder).mkdir(parents=True, exist_ok=True)

    def write(self, name: str, content: bytes) -> None:
        """Implement `Files.write`."""
        self.send(name, [content], len(content))

    def write_new(self, name: str, content: bytes) -> bool:
        """Implement `Files.write_new`. The file system must support hard links, which delta-rs's commits also need."""
        path = Path(self.folder, name)
        beside = path.with_name(f".{path.name}.{uuid4().hex}")
        try:
            with beside.open("wb") as written:
                written.write(content)
                written.flush()
                os.fsync(written.fileno())
            os.link(beside, path)
        except FileExistsError:
            return False
        finally:
            beside.unlink(missing_ok=True)
        return True

    def time(self) -> datetime:
        """Implement `Files.time`."""
        with tempfile.NamedTemporaryFile(dir=self.folder, prefix=".time.") as file:
            return datetime.fromtimestamp(os.stat(file.name).st_mtime, UTC)

    def is_case_sensitive(self) -> bool:
        """Implement `Files.is_case_sensitive`."""
        with tempfile.NamedTemporaryFile(dir=self.folder, prefix=".case.") as file:
            return not Path(file.name).with_name(Path(file.name).name.replace(".case.", ".CASE.")).exists()

    def copy(self, name: str, to: str) -> None:
        """Implement `Files.copy`."""
        shutil.copyfile(Path(self.folder, name), Path(self.folder, to))

    def written_before(self, moment: datetime, below: str) -> list[str]:
        """Implement `Files.written_before`."""
        found: list[str] = []
        for root, _, names in os.walk(Path(self.folder, below)):
            for name in names:
                path = Path(root, name)
                try:
                    changed = path.stat().st_mtime
                except FileNotFoundError:
                    continue
                if datetime.fromtimestamp(changed, UTC) < moment:
                    found.append(path.relative_to(self.folder).as_posix())
        return sorted(found)

    def keeps_versions(self) -> bool:
        """Implement `Files.keeps_versions`."""
        return False

    def remove(self, names: Iterable[str]) -> None:
        """Implement `Files.remove`."""
        folder, parents = Path(self.folder), set[Path]()
        for name in names:
            (folder / name).unlink(missing_ok=True)
            parents |= {p for p in (folder / name).parents if folder in p.parents}
        for parent in sorted(parents, key=lambda p: len(p.parts), reverse=True):
            with suppress(OSError):  # the folder contains other files
                parent.rmdir()

    def remove_files(self, names: Iterable[str]) -> None:
        """Implement `Files.remove_files`."""
        for name in names:
            Path(self.folder, name).unlink(missing_ok=True)

    def delete(self) -> None:
        """Implement `Files.delete`."""
        shutil.rmtree(self.folder, ignore_errors=True)
