"""Files below a folder of the lake, on a file system or in an object store: the calls that the lake is made of.

It imports neither Delta nor Spark, so that Spark's Python workers, which write and read data files, load it at once. All errors
are those of the operating system, whichever store is behind them: FileNotFoundError, PermissionError and other OSErrors.
"""

from __future__ import annotations

import os
import re
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

import pyarrow as pa

STORES: Final = ("s3://",)
"""How the addresses of object stores begin."""
_CODE: Final = re.compile(r"<Code>(\w+)</Code>")
_STATUS: Final = re.compile(r"status code.{0,60}?\b(\d{3} [A-Z]\w+(?: [A-Z]\w+)*)", re.DOTALL)
_SILENT: Final = re.compile(r"Error performing \w+ http\S+ in .*(HTTP error|error sending request)", re.DOTALL)
_NO_BUCKET: Final = re.compile(r"\bNoSuchBucket\b")
_DENIED: Final = re.compile(r"lacked the necessary privileges|valid authentication credentials|\b40[13] \w")


class Files(Protocol):
    """The files of one folder, which need not exist. Names are relative, with `/` between their parts."""

    def read(self, name: str) -> bytes:
        """A file's content. Raises FileNotFoundError."""

    def size(self, name: str) -> int:
        """Bytes of a file. Raises FileNotFoundError."""

    def stamp(self, name: str) -> str:
        """What is another one once there are other bytes under this name. Raises FileNotFoundError."""

    def stamps(self, below: str) -> dict[str, str]:
        """The stamps of all files in the folder `below` and in its folders, by name; the same bytes may have the same one."""

    def files(self, below: str) -> list[str]:
        """Names of the files directly in the folder `below`, in no order; none where there is no such folder."""

    def folders(self, below: str) -> list[str]:
        """Names of the folders directly in the folder `below`, in no order; none where there is no such folder."""

    def open(self, name: str) -> pa.NativeFile:
        """A file for reading from any place in it. Raises FileNotFoundError."""

    def create(self, name: str) -> pa.NativeFile:
        """A new file for writing from its beginning, in a folder that exists or not. It is there once it is closed."""

    def send(self, name: str, pieces: Iterable[bytes], size: int) -> None:
        """Write a file of `size` bytes from its pieces. If they end in an error, what was there under its name stays."""

    def make(self) -> None:
        """Create the folder, where folders are more than parts of names."""

    def write(self, name: str, content: bytes) -> None:
        """Write a file whole, in a folder that exists: a reader sees the former content or this one."""

    def time(self) -> datetime:
        """The clock of the store: when a file that was written just now was written."""

    def tells_case(self) -> bool:
        """Whether names that differ in case alone are two names. It writes a file to know."""

    def copy(self, name: str, to: str) -> None:
        """Copy a file to a new name, in a folder that exists."""

    def written_before(self, moment: datetime, below: str) -> list[str]:
        """Names of all files in the folder `below` and in its folders that were last written before `moment`."""

    def keeps_versions(self) -> bool:
        """Whether what is overwritten or deleted stays in the store, as a past version. It writes a file to know."""

    def remove(self, names: Iterable[str]) -> None:
        """Delete files, those that are there, and the folders that are empty then."""

    def remove_files(self, names: Iterable[str]) -> None:
        """Delete files, those that are there; their folders stay."""

    def delete(self) -> None:
        """Delete the folder with all that it holds; what cannot be deleted stays."""


def files_at(uri: str) -> Files:
    """The files of the folder at a path of the file system or, by its address, in an object store."""
    if is_in_store(uri):
        # Imported where it is used: few lakes are in an object store.
        from platform_assets.lake.object_files import ObjectFiles

        return ObjectFiles(uri)
    return LocalFiles(uri)


def files_below(uri: str | Path) -> Callable[[str], Files]:
    """Gives the files of a folder of that one by its name, or its own by an empty name; may be pickled."""
    return partial(_files_in, str(uri))


def _files_in(uri: str, name: str) -> Files:
    return files_at(f"{uri}/{name}" if name else uri)


def answer_of(text: str) -> str | None:
    """What an object store said, or that it said nothing, in a few words, from an error's text; None where it is of none."""
    status, code = _STATUS.search(text), _CODE.search(text)
    if status or code:
        return "the store answers " + ", ".join(m[1] for m in (status, code) if m)
    return "the store does not answer" if _SILENT.search(text) else None


def has_no_bucket(text: str) -> bool:
    """Whether an object store says that there is no such bucket, from an error's text."""
    return _NO_BUCKET.search(text) is not None


def is_denied(text: str) -> bool:
    """Whether it is an object store's refusal of whoever asks, from an error's text."""
    return _DENIED.search(text) is not None


def is_in_store(uri: str) -> bool:
    """Whether an address of the lake is one of an object store, and no path."""
    return uri.startswith(STORES)


@dataclass(frozen=True, slots=True)
class LocalFiles:
    """Those of a local or mounted folder."""

    folder: str

    def read(self, name: str) -> bytes:
        """As Files has it."""
        return Path(self.folder, name).read_bytes()

    def size(self, name: str) -> int:
        """As Files has it."""
        return Path(self.folder, name).stat().st_size

    def stamp(self, name: str) -> str:
        """As Files has it."""
        found = os.stat(f"{self.folder}/{name}")
        return f"{found.st_ino}-{found.st_size}-{found.st_mtime_ns}"

    def stamps(self, below: str) -> dict[str, str]:
        """As Files has it."""
        paths = (
            path.relative_to(self.folder).as_posix() for path in Path(self.folder, below).rglob("*") if path.is_file()
        )
        return {name: self.stamp(name) for name in paths}

    def files(self, below: str) -> list[str]:
        """As Files has it."""
        try:
            with os.scandir(Path(self.folder, below)) as entries:
                return [entry.name for entry in entries if entry.is_file()]
        except FileNotFoundError:
            return []

    def folders(self, below: str) -> list[str]:
        """As Files has it."""
        try:
            with os.scandir(Path(self.folder, below)) as entries:
                # Also behind links: what is read there is backed up, and cleaned up, as well.
                return [entry.name for entry in entries if entry.is_dir()]
        except FileNotFoundError:
            return []

    def open(self, name: str) -> pa.NativeFile:
        """As Files has it."""
        return pa.OSFile(str(Path(self.folder, name)), "rb")

    def create(self, name: str) -> pa.NativeFile:
        """As Files has it; it is seen before it is closed."""
        path = Path(self.folder, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        return pa.OSFile(str(path), "wb")

    def send(self, name: str, pieces: Iterable[bytes], size: int) -> None:
        """As Files has it."""
        path = Path(self.folder, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        # Of this thread alone: others may be writing the same file.
        beside = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
        try:
            with beside.open("wb") as written:
                written.writelines(pieces)
            beside.replace(path)
        finally:
            beside.unlink(missing_ok=True)

    def make(self) -> None:
        """As Files has it."""
        Path(self.folder).mkdir(parents=True, exist_ok=True)

    def write(self, name: str, content: bytes) -> None:
        """As Files has it."""
        self.send(name, [content], len(content))

    def time(self) -> datetime:
        """As Files has it."""
        with tempfile.NamedTemporaryFile(dir=self.folder, prefix=".time.") as file:
            return datetime.fromtimestamp(os.stat(file.name).st_mtime, UTC)

    def tells_case(self) -> bool:
        """As Files has it."""
        with tempfile.NamedTemporaryFile(dir=self.folder, prefix=".case.") as file:
            return not Path(file.name).with_name(Path(file.name).name.replace(".case.", ".CASE.")).exists()

    def copy(self, name: str, to: str) -> None:
        """As Files has it."""
        shutil.copyfile(Path(self.folder, name), Path(self.folder, to))

    def written_before(self, moment: datetime, below: str) -> list[str]:
        """As Files has it."""
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
        """As Files has it."""
        return False

    def remove(self, names: Iterable[str]) -> None:
        """As Files has it."""
        folder, parents = Path(self.folder), set[Path]()
        for name in names:
            (folder / name).unlink(missing_ok=True)
            parents |= {p for p in (folder / name).parents if folder in p.parents}
        for parent in sorted(parents, key=lambda p: len(p.parts), reverse=True):
            with suppress(OSError):  # others' files are in it
                parent.rmdir()

    def remove_files(self, names: Iterable[str]) -> None:
        """As Files has it."""
        for name in names:
            Path(self.folder, name).unlink(missing_ok=True)

    def delete(self) -> None:
        """As Files has it."""
        shutil.rmtree(self.folder, ignore_errors=True)
