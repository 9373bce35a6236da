"""Where the lake is: the one module that knows its paths and asks for its files.

A lake is a local or mounted folder, or lies in an object store: `files` has the calls that differ.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final, get_args

import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import CommitProperties, DeltaTable, Schema
from deltalake.exceptions import CommitFailedError, TableNotFoundError

from platform_assets.errors import ConfigurationError
from platform_assets.lake import failures, store_settings
from platform_assets.lake.files import STORES, Files, files_at, is_in_store
from platform_assets.model.tables import TableKind, TableRef

_REPLAY_NAME: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True, slots=True, order=True)
class Folder:
    """A folder of the lake, which need not exist: a table's, or one beside the tables.

    Names below it are relative paths with `/` between the parts. It is a value, so it may be a key.
    """

    uri: str

    @classmethod
    def at(cls, path: str | Path) -> Folder:
        """The folder at a path of the file system."""
        return cls(str(path))

    def __truediv__(self, name: str) -> Folder:
        return Folder(f"{self.uri}/{name}")

    def __str__(self) -> str:
        return self.uri

    @property
    def name(self) -> str:
        """The last part of its path."""
        return self.uri.rpartition("/")[2]

    @property
    def is_in_store(self) -> bool:
        """Whether it is in an object store."""
        return is_in_store(self.uri)

    @property
    def path(self) -> Path:
        """The same for the file system. Raises ConfigurationError where it is in an object store."""
        if self.is_in_store:
            raise ConfigurationError(f"{self} is in an object store, and this needs a local or mounted folder")
        return Path(self.uri)

    @property
    def content(self) -> Files:
        """Its files; what they raise is named inside of `reading` and `writing`."""
        return files_at(self.uri)

    def delta(self, version: int | None = None) -> DeltaTable:
        """The Delta table in it, at its newest version or at `version`.

        Raises the errors of `failures`: TableUnsupportedError for a table with a feature that the platform does not support,
        VersionGoneError where the log no longer reaches back to `version`. What is asked of the table then has to be inside of
        `reading` or `writing`.
        """
        with self.reading():
            try:
                table = DeltaTable(self.uri, version=version, storage_options=self._options)
            except TableNotFoundError as e:
                # delta-rs says so too where the log has no files of that version any more.
                if version is None or not DeltaTable.is_deltatable(self.uri, self._options):
                    raise
                raise failures.VersionGoneError(str(self), version) from e
            failures.check_supported(table, str(self))
            return table

    def reading(self) -> AbstractContextManager[None]:
        """For a block that reads what is in it."""
        return failures.reading(self)

    def writing(self) -> AbstractContextManager[None]:
        """For a block that writes to it."""
        return failures.writing(self)

    def create_delta(
        self, schema: Schema, *, partition_by: str, name: str, description: str, configuration: Mapping[str, str]
    ) -> None:
        """Create a Delta table in it; where there is one by now, it stays as it is. Raises LakeNotWritableError."""
        self.make()
        with self.writing():
            try:
                DeltaTable.create(
                    self.uri,
                    schema,
                    mode="ignore",
                    partition_by=[partition_by],
                    name=name,
                    description=description,
                    configuration=dict(configuration),
                    storage_options=self._options,
                    # Tried again, a creation that lost to another one would be committed on top of it.
                    commit_properties=CommitProperties(max_commit_retries=0),
                )
            except CommitFailedError:
                if not self.has_delta_log():
                    raise

    def parquet_files(self) -> ds.Dataset:
        """The Parquet files in it, whether a table names them or not."""
        if not self.is_in_store:
            return ds.dataset(self.uri, format="parquet", exclude_invalid_files=False)
        kind = ds.ParquetFileFormat()
        found = [kind.make_fragment(self.open(name)) for name in self.files() if name.endswith(".parquet")]
        return ds.FileSystemDataset(found, found[0].physical_schema, kind)

    @property
    def spark_path(self) -> str:
        """The same as Spark is given it."""
        return self.uri.replace("s3://", "s3a://", 1) if self.is_in_store else self.uri

    @property
    def _options(self) -> dict[str, str] | None:
        return store_settings.for_delta() if self.is_in_store else None

    def has_delta_log(self) -> bool:
        """Whether delta-rs finds a table in it, of which log files may have been removed."""
        with self.reading():
            return DeltaTable.is_deltatable(self.uri, self._options)

    def has(self, name: str) -> bool:
        """Whether there is a file of this name. Raises as `read` does."""
        return self.size(name) is not None

    def read(self, name: str) -> bytes | None:
        """The file's content; None where there is no such file. Raises LakeNotReadableError and LakeUnavailableError."""
        with self.reading():
            try:
                return self.content.read(name)
            except FileNotFoundError:
                return None

    def files(self, below: str = "") -> list[str]:
        """Names of the files directly in the folder `below`, in no order; none where there is no such folder."""
        with self.reading():
            return self.content.files(below)

    def folders(self, below: str = "") -> list[str]:
        """Names of the folders directly in the folder `below`, in no order; none where there is no such folder."""
        with self.reading():
            return self.content.folders(below)

    def size(self, name: str) -> int | None:
        """Bytes of a file; None where there is no such file."""
        with self.reading():
            try:
                return self.content.size(name)
            except FileNotFoundError:
                return None

    def stamp(self, name: str) -> str | None:
        """What is another one once there are other bytes under this name; None where there is no such file."""
        with self.reading():
            try:
                return self.content.stamp(name)
            except FileNotFoundError:
                return None

    def stamps(self) -> dict[str, str]:
        """The stamps of all files in it and in its folders, by name; the same bytes may have the same one."""
        with self.reading():
            return self.content.stamps("")

    def keeps_versions(self) -> bool:
        """Whether its store keeps what is overwritten or deleted. Raises LakeNotWritableError: it writes a file to know."""
        with self.writing():
            return self.content.keeps_versions()

    def open(self, name: str) -> pa.NativeFile:
        """The file for reading from any place in it. Raises TableDamagedError where there is none."""
        with self.reading():
            return self.content.open(name)

    def make(self) -> None:
        """Create it where it is missing. Raises LakeNotWritableError."""
        with self.writing():
            self.content.make()

    def write(self, name: str, content: bytes) -> None:
        """Write a file whole: a reader sees the former content or this one. Raises LakeNotWritableError."""
        self.make()
        with self.writing():
            self.content.write(name, content)

    def time(self) -> datetime:
        """The clock of its store: when a file that was written just now was written. Raises LakeNotWritableError."""
        self.make()
        with self.writing():
            return self.content.time()

    def copy(self, name: str, to: str) -> None:
        """Copy a file to a new name. Raises TableDamagedError where there is none, and LakeNotWritableError."""
        with self.open(name):
            pass  # so that what cannot be read is known from what cannot be written
        (self / to.rpartition("/")[0]).make()
        with self.writing():
            self.content.copy(name, to)

    def written_before(self, moment: datetime, below: str) -> list[str]:
        """Paths of all files in the folder `below` and in its folders that were last written before `moment`; see `time`."""
        with self.reading():
            return self.content.written_before(moment, below)

    def erase(self, names: Iterable[str]) -> None:
        """Delete files for good, those that are there, and the folders that are empty then. Raises LakeNotWritableError."""
        with self.writing():
            self.content.remove(names)

    def delete(self) -> None:
        """Delete it with all that it holds, where it exists; what cannot be deleted stays."""
        self.content.delete()


@dataclass(frozen=True, slots=True)
class Lake:
    """A lake: its tables, the ledger, and what the checks remember, each in a folder of its own."""

    root: Folder

    @classmethod
    def at(cls, root: str | Path) -> Lake:
        """The lake at an absolute local path, also as `file://…`, or at `s3://bucket/prefix`.

        Raises ConfigurationError for any other, and where the environment does not say how the store is reached, or has its
        commits overwrite one another.
        """
        if str(root).startswith(STORES):
            return cls(Folder(store_settings.checked(str(root), os.environ)))
        path = Path(str(root).removeprefix("file://"))
        if "://" in str(path) or not path.is_absolute():
            raise ConfigurationError(
                f"LAKE_ROOT must be an absolute path of a local or mounted folder, or s3://bucket/prefix, not {str(root)!r}"
            )
        return cls(Folder(str(path)))

    def __str__(self) -> str:
        return str(self.root)

    def table(self, table: TableRef) -> Folder:
        """The folder of a table."""
        return self.root / table.kind / table.topic

    def tables(self) -> list[TableRef]:
        """The tables that it has, in order of their names."""
        kinds = get_args(TableKind)
        found = [TableRef(kind, topic) for kind in kinds for topic in (self.root / kind).folders()]
        return sorted((t for t in found if self.table(t).has_delta_log()), key=lambda t: t.name)

    def replay(self, name: str) -> Lake:
        """The lake, with tables and a ledger of its own, that a replay of this name has inside this one.

        No table of this lake is in it. Raises ConfigurationError for a name that is not fit for a folder.
        """
        if not _REPLAY_NAME.fullmatch(name):
            raise ConfigurationError(
                f"{name!r} is no name for a replay: use 1 to 100 of the characters a-z A-Z 0-9 . _ - and no '.' in front"
            )
        return Lake(self.root / "replays" / name)

    def tells_case(self) -> bool:
        """Whether `Orders` and `orders` are two folders in it. Raises LakeNotWritableError: it writes a file to know."""
        self.root.make()
        with self.root.writing():
            return self.root.content.tells_case()

    @property
    def ledger(self) -> Folder:
        """What the ledger is in: the tables and folders below."""
        return self.root / "_ledger"

    @property
    def cuts(self) -> Folder:
        """The ledger of cuts, a Delta table."""
        return self.root / "_ledger" / "cuts"

    @property
    def commits(self) -> Folder:
        """The ledger of loads, a Delta table."""
        return self.root / "_ledger" / "commits"

    @property
    def decisions(self) -> Folder:
        """What operators decided, a Delta table."""
        return self.root / "_ledger" / "decisions"

    @property
    def baselines(self) -> Folder:
        """What the checks remember, a file a topic: a cache, which may be deleted at any time."""
        return self.root / "_ledger" / "baselines"

    @property
    def schemas(self) -> Folder:
        """Schemas that were read of registries, a file each: without them, a registry that has gone takes its windows along."""
        return self.root / "_ledger" / "schemas"

    @property
    def sessions(self) -> Folder:
        """Which generation of a Spark session processes share, a file each: a note, which may be deleted at any time."""
        return self.root / "_ledger" / "sessions"

    @property
    def audits(self) -> Folder:
        """What the newest deep audits found, a file a topic; without it, a quiet topic shows none until the next one."""
        return self.root / "_ledger" / "audits"
