"""The lake's location: the only module that knows the paths in the lake and accesses its files.

A lake is in a local or mounted folder, or in an object store. `files` has the calls that differ between the two.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import CommitProperties, DeltaTable, Schema
from deltalake.exceptions import CommitFailedError, TableNotFoundError

from platform_assets.errors import ConfigurationError
from platform_assets.lake import failures, object_files
from platform_assets.lake.files import STORES, Files, files_at, is_in_store
from platform_assets.model.derived import DERIVED, DerivedRef, is_derived
from platform_assets.model.logs import logger
from platform_assets.model.names import is_topic
from platform_assets.model.tables import KINDS, StateRef, TableRef

_log = logger(__name__)

SHARED: Final = "windows"
_CONTENTS: Final = "_ledger/files"
_SPAN: Final = re.compile(rf"{SHARED}/(\d{{4}}-\d\d-\d\d-\d\d)(\d\d)_(\d{{4}}-\d\d-\d\d-\d\d)(\d\d)/")
_SINCE: Final = re.compile(rf"{SHARED}/[0-9-]+_[0-9-]+/v(\d{{1,18}})-[^/]+/")
OWN_FOLDERS: Final = ("window=", f"{SHARED}/")
"""Prefixes of the files that the platform writes below a table's folder."""
OF_ONE_WINDOW_OR_LOG: Final = ("window=", "_delta_log/")
"""Prefixes of files below a table's folder that belong to loads of one window, or to the log."""
_REPLAY_NAME: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True, slots=True, order=True)
class Folder:
    """A folder of the lake: the folder of a table, or another one. It need not exist.

    Names below the folder are relative paths with `/` between the parts. The object is a value, so it can be a
    dictionary key.
    """

    uri: str

    @classmethod
    def at(cls, path: str | Path) -> Folder:
        """Return the folder at a file system path."""
        return cls(str(path))

    def __truediv__(self, name: str) -> Folder:
        return Folder(f"{self.uri}/{name}")

    def __str__(self) -> str:
        return self.uri

    @property
    def name(self) -> str:
        """The last part of the folder's path."""
        return self.uri.rpartition("/")[2]

    @property
    def is_in_store(self) -> bool:
        """True if the folder is in an object store."""
        return is_in_store(self.uri)

    @property
    def path(self) -> Path:
        """The folder's path on the file system. Raises ConfigurationError if the folder is in an object store."""
        if self.is_in_store:
            raise ConfigurationError(f"{self} is in an object store, but a local or mounted folder is required")
        return Path(self.uri)

    @property
    def content(self) -> Files:
        """The files in the folder. Errors are translated inside `reading` and `writing`."""
        return files_at(self.uri)

    def delta(self, version: int | None = None) -> DeltaTable:
        """Open the Delta table in the folder, at the table's newest version or at `version`.

        Raises the errors of `failures`: TableUnsupportedError for a table with a feature that the platform does not
        support, and VersionGoneError if the log no longer has `version`. Later calls on the table must be inside
        `reading` or `writing`.
        """
        with self.reading():
            try:
                table = DeltaTable(self.uri, version=version, storage_options=self._options)
            except TableNotFoundError as e:
                # delta-rs raises this too if the log no longer has the files of that version.
                if version is None or not DeltaTable.is_deltatable(self.uri, self._options):
                    raise
                raise failures.VersionGoneError(str(self), version) from e
            failures.check_supported(table, str(self))
            return table

    def delta_if_kept(self, version: int) -> DeltaTable | None:
        """Open the Delta table at a past version; None if the log no longer has this version, or is damaged there. Raises
        the other errors of `delta`."""
        try:
            return self.delta(version)
        except (failures.VersionGoneError, failures.TableDamagedError) as e:
            _log.info("version %d of %s can no longer be opened: %s", version, self.name, e)
            return None

    def reading(self) -> AbstractContextManager[None]:
        """Wrap a block that reads from the folder."""
        return failures.reading(self)

    def writing(self) -> AbstractContextManager[None]:
        """Wrap a block that writes to the folder."""
        return failures.writing(self)

    def create_delta(
        self,
        schema: Schema,
        *,
        partition_by: str | None,
        name: str,
        description: str,
        configuration: Mapping[str, str],
    ) -> None:
        """Create a Delta table in the folder, unless one exists by now. Raises LakeNotWritableError."""
        self.make()
        with self.writing():
            try:
                DeltaTable.create(
                    self.uri,
                    schema,
                    mode="ignore",
                    partition_by=[] if partition_by is None else [partition_by],
                    name=name,
                    description=description,
                    configuration=dict(configuration),
                    storage_options=self._options,
                    # If this creation lost to another one, a retry would be committed on top of that one.
                    commit_properties=CommitProperties(max_commit_retries=0),
                )
            except CommitFailedError:
                if not self.has_delta_log():
                    raise

    def parquet_files(self) -> ds.Dataset:
        """Return the Parquet files in the folder, including files to which no table refers."""
        if not self.is_in_store:
            return ds.dataset(self.uri, format="parquet", exclude_invalid_files=False)
        kind = ds.ParquetFileFormat()
        found = [kind.make_fragment(self.open(name)) for name in self.files() if name.endswith(".parquet")]
        return ds.FileSystemDataset(found, found[0].physical_schema, kind)

    @property
    def spark_path(self) -> str:
        """The address of the folder in the form that Spark uses."""
        return self.uri.replace("s3://", "s3a://", 1) if self.is_in_store else self.uri

    @property
    def _options(self) -> dict[str, str] | None:
        return object_files.for_delta() if self.is_in_store else None

    def has_delta_log(self) -> bool:
        """Return True if delta-rs finds a table in the folder. The table may lack log files."""
        with self.reading():
            return DeltaTable.is_deltatable(self.uri, self._options)

    def has(self, name: str) -> bool:
        """Return True if there is a file with this name, which must be a plain path below the folder, as in `erase`.
        Raises whatever `read` raises."""
        return _is_below(name) and self.size(name) is not None

    def read(self, name: str) -> bytes | None:
        """Return the file's content; None if it does not exist. Raises LakeNotReadableError and
        LakeUnavailableError."""
        with self.reading():
            try:
                return self.content.read(name)
            except FileNotFoundError:
                return None

    def files(self, below: str = "") -> list[str]:
        """Return the names of the files directly in the folder `below`, in no particular order; none if that folder
        does not exist."""
        with self.reading():
            return self.content.files(below)

    def folders(self, below: str = "") -> list[str]:
        """Return the names of the folders directly in the folder `below`, in no particular order; none if that folder
        does not exist."""
        with self.reading():
            return self.content.folders(below)

    def size(self, name: str) -> int | None:
        """Return the size of a file in bytes; None if it does not exist."""
        with self.reading():
            try:
                return self.content.size(name)
            except FileNotFoundError:
                return None

    def stamp(self, name: str) -> str | None:
        """Return a stamp that changes when the content under this name changes; None if the file does not exist."""
        with self.reading():
            try:
                return self.content.stamp(name)
            except FileNotFoundError:
                return None

    def stamps(self) -> dict[str, str]:
        """Return the stamps of all files below the folder, by name. Files with the same content may have the same
        stamp."""
        with self.reading():
            return self.content.stamps("")

    def keeps_versions(self) -> bool:
        """Return True if the folder's store keeps overwritten or deleted files. This writes a file to find out, and
        raises LakeNotWritableError."""
        with self.writing():
            return self.content.keeps_versions()

    def open(self, name: str) -> pa.NativeFile:
        """Open a file for reading with random access. Raises TableDamagedError if it does not exist."""
        with self.reading():
            return self.content.open(name)

    def make(self) -> None:
        """Create the folder if it is missing. Raises LakeNotWritableError."""
        with self.writing():
            self.content.make()

    def write(self, name: str, content: bytes) -> None:
        """Write a file atomically: a reader sees either the previous content or the new content. Raises
        LakeNotWritableError."""
        self.make()
        with self.writing():
            self.content.write(name, content)

    def write_new(self, name: str, content: bytes) -> bool:
        """Write a file atomically, unless it exists; return True if it was written. Raises LakeNotWritableError."""
        self.make()
        with self.writing():
            return self.content.write_new(name, content)

    def time(self) -> datetime:
        """Read the clock of the folder's store: the modification time of a file written now. Raises
        LakeNotWritableError."""
        self.make()
        with self.writing():
            return self.content.time()

    def copy(self, name: str, to: str) -> None:
        """Copy a file to a new name. Raises TableDamagedError if the file does not exist, and LakeNotWritableError."""
        with self.open(name):
            pass  # tells a file that cannot be read from one that cannot be written
        (self / to.rpartition("/")[0]).make()
        with self.writing():
            self.content.copy(name, to)

    def written_before(self, moment: datetime, below: str) -> list[str]:
        """Return the paths of all files below the folder `below` that were last written before `moment`; see `time`."""
        with self.reading():
            return self.content.written_before(moment, below)

    def erase(self, names: Iterable[str]) -> None:
        """Delete files permanently, if they exist, and any folders that are then empty. Names that are not plain
        paths below the folder are left out: they may come from a table's log, to which other programs write. Raises
        LakeNotWritableError."""
        with self.writing():
            self.content.remove([name for name in names if _is_below(name)])

    def delete(self) -> None:
        """Delete the folder with all its content, if it exists. Anything that cannot be deleted stays."""
        self.content.delete()


def _is_below(name: str) -> bool:
    """Return True for a path below a folder, without empty parts, `.` and `..`."""
    return not any(part in ("", ".", "..") for part in name.replace("\\", "/").split("/"))


@dataclass(frozen=True, slots=True)
class Lake:
    """A lake: its tables, its ledger and the baselines of its checks, each in a separate folder."""

    root: Folder

    @classmethod
    def at(cls, root: str | Path) -> Lake:
        """Return the lake at an absolute local path, which may also be given as `file://…`, or at `s3://bucket/prefix`.

        Raises ConfigurationError for any other address, if the environment lacks settings for the store, or if its
        settings would let commits overwrite one another.
        """
        if str(root).startswith(STORES):
            return cls(Folder(object_files.checked(str(root), os.environ)))
        path = Path(str(root).removeprefix("file://"))
        if "://" in str(path) or not path.is_absolute():
            raise ConfigurationError(
                "LAKE_ROOT must be an absolute path of a local or mounted folder, or s3://bucket/prefix, not "
                f"{str(root)!r}"
            )
        return cls(Folder(str(path)))

    def __str__(self) -> str:
        return str(self.root)

    def table(self, table: TableRef | DerivedRef | StateRef) -> Folder:
        """Return the folder of a table."""
        first, last = table.parts
        return self.root / first / last

    def derived(self) -> list[DerivedRef]:
        """Return the lake's derived tables, in the order of their names. Folders with other names are left out."""
        found = [DerivedRef(name) for name in (self.root / DERIVED).folders() if is_derived(name)]
        return sorted(ref for ref in found if self.table(ref).has_delta_log())

    def tables(self) -> list[TableRef]:
        """Return the lake's tables, in the order of their names. A folder whose name cannot be a topic's name is not a
        table of the platform."""
        found = [TableRef(kind, topic) for kind in KINDS for topic in (self.root / kind).folders() if is_topic(topic)]
        return sorted((t for t in found if self.table(t).has_delta_log()), key=lambda t: t.name)

    def replay(self, name: str) -> Lake:
        """Return the lake of a replay, which is inside this lake but has separate tables and a separate ledger.

        None of this lake's tables are in it. Raises ConfigurationError for a name that a folder cannot have.
        """
        if not _REPLAY_NAME.fullmatch(name):
            raise ConfigurationError(
                f"{name!r} cannot be the name of a replay: use 1 to 100 of the characters a-z A-Z 0-9 . _ - and do not "
                "start with '.'"
            )
        return Lake(self.root / "replays" / name)

    def replays(self) -> list[str]:
        """Return the names of the lake's replays, in order. Folders that no replay can have created are left out."""
        return sorted(name for name in (self.root / "replays").folders() if _REPLAY_NAME.fullmatch(name))

    def is_case_sensitive(self) -> bool:
        """Return True if `Orders` and `orders` are two different folders in the lake. This writes a file to find out,
        and raises LakeNotWritableError."""
        self.root.make()
        with self.root.writing():
            return self.root.content.is_case_sensitive()

    @property
    def ledger(self) -> Folder:
        """The folder of the ledger, which contains the tables and folders below."""
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
        """The decisions of operators, a Delta table."""
        return self.root / "_ledger" / "decisions"

    @property
    def baselines(self) -> Folder:
        """The baselines of the checks, one file per topic: a cache, which can be deleted at any time."""
        return self.root / "_ledger" / "baselines"

    @property
    def file_contents(self) -> Folder:
        """Contents of shared data files, by table, one small file for each data file: a cache, which can be deleted at
        any time."""
        return self.root / _CONTENTS

    @property
    def schemas(self) -> Folder:
        """Schemas that were read from registries, one file each. Without them, windows cannot be decoded if the
        registry is lost."""
        return self.root / "_ledger" / "schemas"

    @property
    def sessions(self) -> Folder:
        """Generations of the Spark sessions that processes share, one file each. They can be deleted at any time."""
        return self.root / "_ledger" / "sessions"

    @property
    def upkeep(self) -> Folder:
        """Records of the newest upkeep of each table, one file each. They can be deleted at any time."""
        return self.root / "_ledger" / "upkeep"

    @property
    def published(self) -> Folder:
        """Loads that published topics still need, one file per topic: see `windows/publish/loads`."""
        return self.root / "_ledger" / "published"

    @property
    def audits(self) -> Folder:
        """Results of the newest deep audits, one file per topic. Without its file, an idle topic shows no result until
        the next audit."""
        return self.root / "_ledger" / "audits"


def contents_of_files(table: Folder) -> Folder:
    """Return the folder with the contents of a table's data files; see `Lake.file_contents`."""
    root, kind, topic = table.uri.rsplit("/", 2)
    return Folder(f"{root}/{_CONTENTS}/{kind}/{topic}")


# Each load's own folder: `window=<window>/<load id>`, below the table's folder.
#
# Delta's protocol allows any path, and has the partition in the log; but readers such as polars take it from the
# path, in Hive's form.


def load_folder(window: str, load_id: str) -> str:
    """Return the folder for a load's files, relative to the table's folder."""
    return f"{window_folder(window)}/{load_id}"


def shared_folder(first: str, last: str, since: int, unique: str) -> str:
    """Return a folder, relative to the table's folder, for files with rows of windows from `first` to `last`; see
    `shared_span`.

    The rows are those in version `since` of the table or in a later version; see `shared_since`.
    """
    return f"{SHARED}/{first.replace(':', '')}_{last.replace(':', '')}/v{since}-{unique}"


def shared_span(path: str) -> tuple[str, str] | None:
    """Return the first and the last window from the folder name in a file's path, which is not percent-encoded; None
    for other folders."""
    found = _SPAN.match(path)
    return None if found is None else (f"{found[1]}:{found[2]}", f"{found[3]}:{found[4]}")


def shared_since(path: str) -> int | None:
    """Return the version from the folder name in a file's path, which is not percent-encoded; None for other folders."""
    found = _SINCE.match(path)
    return None if found is None else int(found[1])


def begun_loads(table: Folder, window: str) -> frozenset[str]:
    """Return the folders of all loads of a window that wrote files, whatever their outcome."""
    return frozenset(load_folder(window, load_id) for load_id in table.folders(window_folder(window)))


def window_folders(window: str) -> tuple[str, ...]:
    """Return all folders that may hold files of a window from any writer: the folder from `window_folder`, and folders
    with other encodings of a colon."""
    return window_folder(window), f"window={window}", f"window={window.replace(':', '%253A')}"


def window_folder(window: str) -> str:
    """Return the common prefix of the folders of a window's loads. A colon is encoded as Spark encodes it, because
    Spark cannot read a colon."""
    return f"window={window.replace(':', '%3A')}"
