"""The one place that commits to a lake table: the files of a window replaced by others, in a commit that names its offsets.

delta-rs commits without retries of its own: an overwrite that removes nothing conflicts with nothing, so a first load that
it tried again would be put beside the rows of the load that was faster. What was committed in between is read here instead.
"""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction

from platform_assets.errors import (
    CommitOutcomeUnknownError,
    ConcurrentLoadError,
    LakeNotWritableError,
    LakeUnavailableError,
    PlatformError,
    TableRefusedError,
)
from platform_assets.lake import delta_log, failures, load_log
from platform_assets.lake.delta_log import Anchor, Commit
from platform_assets.lake.failures import (
    BucketMissingError,
    LakeNotReadableError,
    TableDamagedError,
    TableGoneError,
    TableUnsupportedError,
)
from platform_assets.lake.load_folders import begun_loads, load_folder, window_folders
from platform_assets.lake.load_log import Fence, LoadCommit, LoadMetadata, WindowFiles
from platform_assets.lake.location import Folder, Lake
from platform_assets.model.logs import logger
from platform_assets.model.tables import TableRef

_log = logger(__name__)

FOREVER: Final = datetime.max.replace(tzinfo=UTC)
_ATTEMPTS: Final = 100
"""Commits of other windows that may come first, one after the other."""


@dataclass(frozen=True, slots=True)
class NewFile:
    """A data file that was written and that no commit names yet.

    `path` is relative to the table's folder and not percent-encoded, `statistics` are Delta's (`minValues`, `maxValues`,
    `nullCount`).
    """

    path: str
    bytes: int
    rows: int
    statistics: Mapping[str, Any]


@dataclass
class _Shared:
    """The newest handle of a table, and the commits that were read since it was first opened."""

    handle: DeltaTable
    commits: dict[int, Commit | None] = field(default_factory=dict)


class WindowCommit:
    """A table as it stood when this was opened, and the one commit that replaces a window of it.

    Open it before anything is read that decides on the commit: what others did to the window since is a conflict.
    """

    def __init__(self, lake: Lake, table: TableRef) -> None:
        self._table = table
        self._folder: Folder = lake.table(table)
        self._shared = _Shared(self._open())
        self._since = self._shared.handle.version()
        self._columns = self._shared.handle.schema()
        self._own: set[str] | None = None
        self._is_one_of_many = False

    def columns(self) -> pa.Schema:
        """The table's columns when this was opened, which files have to have: others since then are a conflict."""
        return pa.schema(self._columns.to_arrow())

    def held(self) -> frozenset[str]:
        """The keys of the windows that the table had files of when this was opened."""
        actions = self._actions()
        return frozenset(pc.unique(actions["partition.window"]).to_pylist()) if actions.num_rows else frozenset()

    def files(self) -> dict[str, WindowFiles]:
        """The data files of each window when this was opened."""
        actions = self._actions()
        return load_log.window_files(actions) if actions.num_rows else {}

    def files_of(self, window: str) -> WindowFiles:
        """The data files of one window when this was opened. The table, which may be large, is not opened again for it."""
        return load_log.files_among(self._actions(), window)

    @property
    def table_id(self) -> str:
        """Delta's id of the table."""
        return str(self._shared.handle.metadata().id)

    def holds(self, window: str) -> bool:
        """Whether the table had files of a window when this was opened; asked again, nothing is read."""
        return bool(self._files_of(window))

    def _actions(self) -> pa.Table:
        handle = self._shared.handle
        handle = handle if handle.version() == self._since else self._folder.delta(self._since)
        with self._folder.reading():
            return pa.table(handle.get_add_actions(flatten=True))

    def of_new_window(self) -> WindowCommit:
        """The commit of a window that is not in `held`, by what was read since this was opened.

        It shares this one's handle, so that the commits of many windows need not open the table again for each.
        """
        return self.of_window(load_log.NO_FILES)

    def of_window(self, files: WindowFiles) -> WindowCommit:
        """The same of a window that held `files`, which `files` of this says."""
        other = copy.copy(self)
        other._own, other._is_one_of_many = set(files.paths), True
        return other

    def replace(self, metadata: LoadMetadata, files: Sequence[NewFile]) -> LoadCommit:
        """Commit `files` as all that the table holds of the window of `metadata`; also where there are none.

        Files that dead loads of the window have left are deleted then, and those that tasks of this one have left which Spark
        ran twice.

        Raises ConcurrentLoadError where another commit touched the window, or changed the columns, since this was opened;
        CommitOutcomeUnknownError where it cannot be said whether the commit took place, TableRefusedError where delta-rs cannot
        write the table, and LakeNotWritableError; nothing was committed after the last two.
        """
        begun, own = begun_loads(self._folder, metadata.window.key), load_folder(metadata.window.key, metadata.load_id)
        made = replace(_load_of(self._made(metadata, files)), table_id=self.table_id)
        self._delete_unnamed(own, {file.path for file in files})
        with self._known(metadata):
            self._delete_dead(begun - {own})
        return made

    def replace_for_good(self, metadata: LoadMetadata, files: Sequence[NewFile]) -> LoadCommit:
        """The same, and every other file of the window is deleted, also those of its past versions: there is no way back.

        Files that are written from now on are left alone, as they may be those of a load that is under way; one that began before
        cannot commit any more. Raises LakeNotWritableError also where a file could not be deleted: the commit was made then.
        """
        window, new = metadata.window.key, {file.path for file in files}
        own = {unquote(path) for path in self._files_of(window)}
        before = own.union(*(self._folder.written_before(FOREVER, below) for below in window_folders(window)))
        made = replace(_load_of(self._made(metadata, files)), table_id=self.table_id)
        self._folder.erase(sorted(before - new))
        return made

    def fence(self, fence: Fence) -> None:
        """Commit that nothing changes in a window, and delete the files there that the table does not name.

        A load that began before cannot commit any more, and all files that are deleted are of such loads. Raises what `replace`
        raises.
        """
        window = fence.window.key
        named = {unquote(path) for path in self._files_of(window)}
        before = {f for below in window_folders(window) for f in self._folder.written_before(FOREVER, below)}
        self._made(fence, ())
        self._folder.erase(sorted(before - named))

    def has_old_files(self, window: str, files: WindowFiles) -> bool:
        """Whether there are files of a window besides `files`, those that the table holds of it."""
        held = {unquote(path) for path in files.paths}
        return any(not held.issuperset(self._folder.written_before(FOREVER, f)) for f in window_folders(window))

    def is_made(self, metadata: LoadMetadata | Fence) -> bool:
        """Whether the log has the commit of this load since this was opened."""
        return self._made_since(metadata, self._since) is not None

    def is_overtaken(self, window: str) -> bool:
        """Whether another commit touched `window` since this was opened, so that `replace` would raise."""
        own, newest = self._files_of(window), load_log.version(self._folder)
        return any(commit is None or _touches(commit, window, own) for commit in self._commits_to(newest))

    def _made(self, metadata: LoadMetadata | Fence, files: Sequence[NewFile]) -> Commit:
        if self._is_one_of_many:
            self._catch_up()
        for _ in range(_ATTEMPTS):
            with self._known(metadata):
                made = self._made_or_conflict(metadata)
            if made is not None:
                return made
            before = self._shared.handle.version()
            try:
                self._commit(metadata, files)
            except CommitFailedError as e:
                newest = self._open()
                if newest.version() == before:
                    raise TableRefusedError(self._table.name, failures.reason_of(e)) from e
                self._shared.handle = newest
                continue
            except failures.RAISED as e:
                with self._known(metadata):
                    made = self._made_since(metadata, before)
                if made is None:
                    raise self._named(metadata, e) from e
                _log.info("the commit of load %s is in the log, although it ended with: %s", metadata.load_id, e)
                return made
            with self._known(metadata):
                made = self._made_since(metadata, before)
            if made is not None:
                return made
            raise CommitOutcomeUnknownError(self._table.name, metadata.window.key, "the table's log does not name it")
        raise ConcurrentLoadError(self._table.name, metadata.window.key)

    def _commit(self, metadata: LoadMetadata | Fence, files: Sequence[NewFile]) -> None:
        window = metadata.window.key
        now = round(time.time() * 1000)
        handle, replaces = self._shared.handle, isinstance(metadata, LoadMetadata)
        handle.create_write_transaction(
            [AddAction(f.path, f.bytes, {"window": window}, now, True, _statistics(f)) for f in files],
            "overwrite" if replaces else "append",
            handle.schema(),
            partition_by=["window"],
            partition_filters=[("window", "=", window)] if replaces else None,
            commit_properties=CommitProperties(
                custom_metadata={"userMetadata": metadata.to_json()}, max_commit_retries=0
            ),
        )

    def _made_or_conflict(self, metadata: LoadMetadata | Fence) -> Commit | None:
        """Raises ConcurrentLoadError where a commit since this was opened, up to the handle's version, touched the window or
        changed the table's columns.

        Gives this load's own commit where it is that: the answer of a store was lost, and the same write was sent twice.
        """
        newest = self._shared.handle.version()
        if newest == self._since:
            return None
        window = metadata.window.key
        own = self._files_of(window)
        for commit in self._commits_to(newest):
            if commit is None or _touches(commit, window, own):
                if commit is not None and _is_of(commit, metadata):
                    return commit
                raise ConcurrentLoadError(self._table.name, window)
        if self._shared.handle.schema() != self._columns:
            raise ConcurrentLoadError(self._table.name, window)
        return None

    def _catch_up(self) -> None:
        with self._folder.reading():
            self._shared.handle.update_incremental()

    def _files_of(self, window: str) -> set[str]:
        if self._own is None:
            self._own = set(self.files_of(window).paths)
        return self._own

    def _commits_to(self, newest: int) -> Iterator[Commit | None]:
        """What was committed since this was opened; None for a commit whose file is gone."""
        known = self._shared.commits
        for version in range(self._since + 1, newest + 1):
            if version not in known:
                known[version] = delta_log.commit(self._folder, version)
            yield known[version]

    def _delete_dead(self, begun: Set[str]) -> None:
        """Delete those of the folders `begun` that no commit names; they are of the window that was just replaced.

        Each was there before that commit, so its load opened the table before it, and cannot commit any more: it would be a
        conflict. A load that is still at work has lost, and finds that out when its write fails.
        """
        left = set(begun)
        version = load_log.version(self._folder)
        while left and (commit := delta_log.commit(self._folder, version)) is not None:
            named = (*(add.path for add in commit.adds), *commit.removes)
            left -= {unquote(path).rpartition("/")[0] for path in named}
            version -= 1
        for folder in sorted(left):
            _log.info("deleting the files of a load that ended without a commit: %s", self._folder / folder)
            (self._folder / folder).delete()

    def _delete_unnamed(self, own: str, named: Set[str]) -> None:
        """Delete the files in the folder `own` of a load that its commit does not name.

        They are of a copy of a task that Spark has given up: on an executor that was lost, or slower than another copy. What
        such a copy goes on to write from now on is left to `vacuum`, as is what cannot be deleted.
        """
        content = self._folder.content
        with suppress(OSError):
            # Spark keeps a checksum beside each file, by which it knows that it is whole.
            sums = {f"{own}/.{path.rpartition('/')[2]}.crc" for path in named}
            left = [name for name in content.written_before(FOREVER, own) if name not in named and name not in sums]
            if left:
                _log.info("deleting files of tasks that ran twice: %s", ", ".join(left))
                content.remove(left)

    @contextmanager
    def _known(self, metadata: LoadMetadata | Fence) -> Iterator[None]:
        """For a block that finds out whether a commit took place. Raises CommitOutcomeUnknownError where the log cannot be read."""
        try:
            yield
        except (LakeUnavailableError, LakeNotReadableError, BucketMissingError, TableGoneError, TableDamagedError) as e:
            raise CommitOutcomeUnknownError(self._table.name, metadata.window.key, str(e)) from e

    def _named(self, metadata: LoadMetadata | Fence, error: Exception) -> PlatformError:
        """The error for a commit that ended with `error` and is not in the log."""
        named = failures.to_platform_error(error, str(self._folder), writes=True)
        if isinstance(named, LakeNotWritableError):
            return named
        return CommitOutcomeUnknownError(self._table.name, metadata.window.key, failures.reason_of(error))

    def _made_since(self, metadata: LoadMetadata | Fence, version: int) -> Commit | None:
        """The commit of this load, if the log has it after `version`."""
        seen: Anchor | None = delta_log.anchor(self._folder, version)
        commits = (None if seen is None else delta_log.commits_after(self._folder, seen)) or ()
        return next((commit for commit in commits if _is_of(commit, metadata)), None)

    def _open(self) -> DeltaTable:
        try:
            return self._folder.delta()
        except TableUnsupportedError as e:
            raise TableRefusedError(self._table.name, e.reason) from e


def _load_of(commit: Commit) -> LoadCommit:
    load = load_log.load_in(commit)
    if load is None:
        raise AssertionError("unreachable: the commit has a load's metadata")
    return load


def _is_of(commit: Commit, metadata: LoadMetadata | Fence) -> bool:
    return load_log.identity_in(commit) == (metadata.window.key, metadata.load_id)


def _touches(commit: Commit, window: str, own: set[str]) -> bool:
    """Whether `commit` changes or fences what the table holds of `window`, whose files were `own`."""
    of = load_log.identity_in(commit)
    return (
        (of is not None and of[0] == window)
        or any(add.partition.get("window") == window for add in commit.adds)
        or not own.isdisjoint(commit.removes)
    )


def _statistics(file: NewFile) -> str:
    # Without blanks, since each reader of the table's log parses those of all its files.
    return json.dumps({"numRecords": file.rows, **file.statistics}, separators=(",", ":"))
