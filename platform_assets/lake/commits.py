"""The only module that commits to lake tables. It replaces the files of a window in a commit that contains the window's
offsets.

delta-rs's own retries are off. An overwrite that removes nothing does not conflict with anything, so a retried first
load would add its rows to those of a faster load. Instead, this module reads the commits in between.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction

from platform_assets.errors import (
    CommitOutcomeUnknownError,
    ConcurrentLoadError,
    FilesLostError,
    LakeNotWritableError,
    LakeUnavailableError,
    PlatformError,
    TableRefusedError,
)
from platform_assets.lake import delta_log, failures, flat, holdings, load_log
from platform_assets.lake.data_files import NewFile, delta_statistics
from platform_assets.lake.delta_log import Anchor, Commit
from platform_assets.lake.failures import (
    BucketMissingError,
    LakeNotReadableError,
    TableDamagedError,
    TableGoneError,
    TableUnsupportedError,
)
from platform_assets.lake.field_ids import NO_IDS, FieldIds, ids_of
from platform_assets.lake.holdings import WindowFiles
from platform_assets.lake.leftovers import FOREVER, Leftovers
from platform_assets.lake.load_log import Fence, LoadCommit, LoadMetadata
from platform_assets.lake.location import (
    OF_ONE_WINDOW_OR_LOG,
    SHARED,
    Folder,
    Lake,
    begun_loads,
    load_folder,
    window_folders,
)
from platform_assets.lake.row_copies import Measure
from platform_assets.model.logs import logger
from platform_assets.model.tables import TableRef

_log = logger(__name__)

_ATTEMPTS: Final = 100
"""Maximum number of attempts if commits of other windows come first."""


@dataclass
class _Shared:
    """The newest handle of a table, and the part of its log that was read since the table was first opened.

    `commits` has the commits since then, each with the window and the id of its load.
    """

    handle: DeltaTable
    leftovers: Leftovers
    commits: dict[int, tuple[Commit, tuple[str, str] | None] | None] = field(default_factory=dict)


class WindowCommit:
    """A table as it was when this object was opened, and the single commit that replaces a window of the table.

    Open it before you read anything on which the commit depends: if others change the window after that, it is a
    conflict.
    """

    def __init__(self, lake: Lake, table: TableRef, measure: Measure | None = None) -> None:
        """Open `table`. `measure` computes the digests of the table's rows; a flat table needs it to replace a window
        that shares files."""
        self._table, self._measure = table, measure
        self._folder: Folder = lake.table(table)
        self._shared = _Shared(self._open(), Leftovers(self._folder))
        self._since = self._shared.handle.version()
        self._columns = self._shared.handle.schema()
        self.is_flat = holdings.is_flat(self._shared.handle)
        self._own: set[str] | None = None
        self._is_one_of_many = False

    def columns(self) -> pa.Schema:
        """The table's columns when this was opened, which new files must have; a change since then is a conflict."""
        return pa.schema(self._columns.to_arrow())

    def field_ids(self) -> FieldIds:
        """The field ids that new files must have; none for a partitioned table."""
        return ids_of(self.columns()) if self.is_flat else NO_IDS

    def held(self) -> frozenset[str]:
        """The keys of the windows for which the table had files when this was opened."""
        return frozenset(pc.unique(self._actions()[holdings.WINDOW]).to_pylist())

    def files(self) -> dict[str, WindowFiles]:
        """The data files of each window when this was opened."""
        return holdings.window_files(self._actions())

    def files_of(self, window: str) -> WindowFiles:
        """Return the data files of one window when this was opened. The table, which may be large, is not opened
        again."""
        return holdings.files_among(self._actions((window,)), window)

    def files_now(self, window: str) -> WindowFiles:
        """Return the data files of one window in the newest version, which differ if other commits have moved the
        window's rows."""
        self._catch_up()
        return holdings.files_among(self._of_handle(self._shared.handle, (window,)), window)

    @property
    def table_id(self) -> str:
        """Delta's id of the table."""
        return str(self._shared.handle.metadata().id)

    def holds(self, window: str) -> bool:
        """Return True if the table had files of a window when this was opened. Repeated calls read nothing."""
        return bool(self._files_of(window))

    def _actions(self, among: Collection[str] | None = None) -> pa.Table:
        handle = self._shared.handle
        handle = handle if handle.version() == self._since else self._folder.delta(self._since)
        return self._of_handle(handle, among)

    def _of_handle(self, handle: DeltaTable, among: Collection[str] | None) -> pa.Table:
        with self._folder.reading():
            files = pa.table(handle.get_add_actions(flatten=True))
        return holdings.by_window(self._folder, files, flat=self.is_flat, among=among)

    def of_new_window(self) -> WindowCommit:
        """Return the commit for a window that is not in `held`, based on what was read since this was opened.

        Both share one handle, so the table is not opened again for each of many commits.
        """
        return self.of_window(holdings.NO_FILES)

    def of_window(self, files: WindowFiles) -> WindowCommit:
        """Return the commit for a window that had the files `files` when this was opened."""
        other = copy.copy(self)
        other._own, other._is_one_of_many = set(files.paths), True
        return other

    def replace(self, metadata: LoadMetadata, files: Sequence[NewFile]) -> LoadCommit:
        """Commit `files` as the whole content of the window of `metadata`, even if there are none.

        Then delete files that dead loads of the window left, and files from tasks of this load that Spark ran twice.

        Raises ConcurrentLoadError if, since this was opened, another commit touched the window or changed the columns;
        CommitOutcomeUnknownError if it is unknown whether the commit was made; TableRefusedError if delta-rs cannot
        write the table; and LakeNotWritableError. After either of the last two errors, nothing was committed.
        """
        begun, own = begun_loads(self._folder, metadata.window.key), load_folder(metadata.window.key, metadata.load_id)
        made = replace(_load_of(self._made(metadata, files)), table_id=self.table_id)
        self._shared.leftovers.delete_unnamed(own, {file.path for file in files})
        with self._known(metadata):
            self._shared.leftovers.delete_dead(begun - {own})
        return made

    def replace_for_good(self, metadata: LoadMetadata, files: Sequence[NewFile]) -> LoadCommit:
        """Commit like `replace`, and delete every other file of the window, including files of past versions. This
        cannot be undone.

        Files written from now on are kept, because they may belong to a load in progress; a load that began before this
        commit can no longer commit. LakeNotWritableError is also raised if a file could not be deleted, although the
        commit was made.
        """
        window, new = metadata.window.key, {file.path for file in files}
        places = flat.Places(metadata.topic_id, metadata.ranges)
        before = {unquote(path) for path in self._files_of(window)} | self._on_disk(window, places)
        commit = self._made(metadata, files)
        made = replace(_load_of(commit), table_id=self.table_id)
        old = (before | self._removed_since(commit, window, places)) - new
        # Commits of other windows may have named files that were half-written when they were listed. From now on, none
        # can: each
        # loader, and upkeep, notices this commit.
        self._folder.erase(sorted(old - self._named(commit.version) if self.is_flat else old))
        return made

    def _named(self, version: int) -> set[str]:
        """Return the names of all data files in a version."""
        handle = self._shared.handle
        handle = handle if handle.version() == version else self._folder.delta(version)
        with self._folder.reading():
            return {unquote(path) for path in pa.table(handle.get_add_actions())["path"].to_pylist()}

    def fence(self, fence: Fence) -> None:
        """Make a commit that does not change a window, and delete the files in the window's folders that the table does
        not refer to.

        A load that began before this commit can no longer commit, and all deleted files belong to such loads. Raises
        whatever `replace` raises.
        """
        window = fence.window.key
        named = {unquote(path) for path in self._files_of(window)}
        before = {f for below in window_folders(window) for f in self._folder.written_before(FOREVER, below)}
        self._made(fence, ())
        self._folder.erase(sorted(before - named))

    def has_old_files(self, window: str, files: WindowFiles, places: flat.Places | None = None) -> bool:
        """Return true if a window has files other than `files`, which are the files in the table.

        `places` are the window's places. Without them, some files of a table that used to be partitioned are not
        recognized.
        """
        found = self._on_disk(window, places) - {unquote(path) for path in files.paths}
        return bool(found - self._named(load_log.version(self._folder)) if found and self.is_flat else found)

    def _on_disk(self, window: str, places: flat.Places | None) -> set[str]:
        """Return the names of all files on disk that hold rows of a window, or that loads of the window have left."""
        found = {name for below in window_folders(window) for name in self._folder.written_before(FOREVER, below)}
        # A partitioned table has shared files only while it is migrated: no version refers to them.
        below = "" if self.is_flat else SHARED
        others = (n for n in self._folder.written_before(FOREVER, below) if not n.startswith(OF_ONE_WINDOW_OR_LOG))
        return found | set(flat.files_on_disk(self._folder, others, window, places))

    def _removed_since(self, made: Commit, window: str, places: flat.Places) -> set[str]:
        """Return the names of files with rows of a window that were removed by commits after this was opened, up to
        `made`."""
        if not self.is_flat:
            return set()
        commits = [known[0] for known in self._commits_to(made.version) if known is not None]
        names = {unquote(path) for commit in commits for path in commit.removes}
        inside = tuple(f"{below}/" for below in window_folders(window))
        own = {name for name in names if name.startswith(inside)}
        others = (name for name in names if not name.startswith(OF_ONE_WINDOW_OR_LOG))
        return own | set(flat.files_on_disk(self._folder, others, window, places))

    def is_made(self, metadata: LoadMetadata | Fence) -> bool:
        """Return True if the log has received the commit of this load since this was opened."""
        return self._made_since(metadata, self._since) is not None

    def is_overtaken(self, window: str) -> bool:
        """Return True if another commit has touched `window` since this was opened, so that `replace` would raise."""
        is_touched = self._toucher(window)
        newest = load_log.version(self._folder)
        return any(known is None or is_touched(*known) for known in self._commits_to(newest))

    def _toucher(self, window: str) -> Callable[[Commit, tuple[str, str] | None], bool]:
        """Return a function that returns True for a commit that touches `window`. It must receive all commits since
        this was opened, in ascending order, each with the window and the id of its load."""
        own = self._files_of(window)
        if not self.is_flat:
            return lambda commit, of: _touches(commit, of, window, own) or load_log.expires(commit, window)
        following = flat.Following(self._folder, window, set(own))
        return lambda commit, of: (
            (of is not None and of[0] == window) or following.is_changed_by(commit) or load_log.expires(commit, window)
        )

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
                change = self._change(metadata)
            except (FilesLostError, TableDamagedError):
                # Another commit may have come first, after which the copies of this attempt are deleted as overtaken.
                newest = self._open()
                if newest.version() == before:
                    raise
                self._shared.handle = newest
                continue
            try:
                self._commit(metadata, files, change)
            except CommitFailedError as e:
                # A client that got no answer has perhaps tried again, and found its own commit, which names the copies.
                with self._known(metadata):
                    made = self._made_since(metadata, before)
                if made is not None:
                    return made
                change.discard()
                newest = self._open()
                if newest.version() == before:
                    raise TableRefusedError(self._table.name, failures.reason_of(e)) from e
                self._shared.handle = newest
                continue
            except failures.RAISED as e:
                with self._known(metadata):
                    made = self._made_since(metadata, before)
                if made is None:
                    error = self._error_of(metadata, e)
                    if isinstance(error, LakeNotWritableError):
                        change.discard()
                    raise error from e
                _log.info(
                    "the commit of load %s is in the log, although it reported the error: %s", metadata.load_id, e
                )
                return made
            with self._known(metadata):
                made = self._made_since(metadata, before)
            if made is not None:
                return made
            raise CommitOutcomeUnknownError(
                self._table.name, metadata.window.key, "the table's log does not list the commit"
            )
        raise ConcurrentLoadError(self._table.name, metadata.window.key)

    def _change(self, metadata: LoadMetadata | Fence) -> flat.Change:
        """Return the changes to a flat table, other than added files, that replace the window; none for a partitioned
        table."""
        if not self.is_flat or isinstance(metadata, Fence):
            return flat.Change(self._folder)
        return flat.change_of(self._folder, self._shared.handle, metadata.window.key, self._measure)

    def _commit(self, metadata: LoadMetadata | Fence, files: Sequence[NewFile], change: flat.Change) -> None:
        window = metadata.window.key
        self._check_layout(window, files)
        now = round(time.time() * 1000)
        handle, replaces = self._shared.handle, isinstance(metadata, LoadMetadata)
        if self.is_flat:
            if isinstance(metadata, LoadMetadata):
                kept = tuple(file.path for file in change.kept.files)
                metadata = replace(metadata, kept=kept, lost=change.kept.lost)
            handle.create_write_transaction(
                change.actions(files, now),
                "append",
                handle.schema(),
                partition_by=[],
                commit_properties=CommitProperties(
                    custom_metadata={"userMetadata": metadata.to_json()}, max_commit_retries=0
                ),
            )
            return
        handle.create_write_transaction(
            [AddAction(f.path, f.bytes, {"window": window}, now, True, delta_statistics(f)) for f in files],
            "overwrite" if replaces else "append",
            handle.schema(),
            partition_by=["window"],
            partition_filters=[("window", "=", window)] if replaces else None,
            commit_properties=CommitProperties(
                custom_metadata={"userMetadata": metadata.to_json()}, max_commit_retries=0
            ),
        )

    def _made_or_conflict(self, metadata: LoadMetadata | Fence) -> Commit | None:
        """Raise ConcurrentLoadError if a commit after this was opened, up to the handle's version, touched the window
        or changed the table's columns.

        If the load conflicts with itself, because the store's answer was lost and the write was sent twice, return this
        load's own commit.
        """
        newest = self._shared.handle.version()
        if newest == self._since:
            return None
        window = metadata.window.key
        is_touched = self._toucher(window)
        for known in self._commits_to(newest):
            if known is None or is_touched(*known):
                if known is not None and known[1] == (window, metadata.load_id):
                    return known[0]
                raise ConcurrentLoadError(self._table.name, window)
        if self._shared.handle.schema() != self._columns or holdings.is_flat(self._shared.handle) != self.is_flat:
            raise ConcurrentLoadError(self._table.name, window)
        return None

    def _check_layout(self, window: str, files: Sequence[NewFile]) -> None:
        """Raise ConcurrentLoadError unless the files match the table's layout: in a flat table, they must have a column
        with this window; in a partitioned table, they must not have the column.

        The table's layout may have changed since the files were written.
        """
        for file in files:
            bounds = {file.statistics.get(name, {}).get(holdings.WINDOW) for name in ("minValues", "maxValues")}
            if bounds != ({window} if self.is_flat else {None}):
                raise ConcurrentLoadError(self._table.name, window)

    def _catch_up(self) -> None:
        with self._folder.reading():
            self._shared.handle.update_incremental()

    def _files_of(self, window: str) -> set[str]:
        if self._own is None:
            self._own = set(self.files_of(window).paths)
        return self._own

    def _commits_to(self, newest: int) -> Iterator[tuple[Commit, tuple[str, str] | None] | None]:
        """Yield the commits since this was opened, each with the window and the id of its load; None if the file of a
        commit no longer exists."""
        known = self._shared.commits
        for version in range(self._since + 1, newest + 1):
            if version not in known:
                commit = delta_log.commit(self._folder, version)
                known[version] = None if commit is None else (commit, load_log.identity_in(commit))
            yield known[version]

    @contextmanager
    def _known(self, metadata: LoadMetadata | Fence) -> Iterator[None]:
        """Wrap a block that determines whether a commit was made. Raises CommitOutcomeUnknownError if the log cannot be
        read."""
        try:
            yield
        except (LakeUnavailableError, LakeNotReadableError, BucketMissingError, TableGoneError, TableDamagedError) as e:
            raise CommitOutcomeUnknownError(self._table.name, metadata.window.key, str(e)) from e

    def _error_of(self, metadata: LoadMetadata | Fence, error: Exception) -> PlatformError:
        """Return the error for a commit that failed with `error` and is not in the log."""
        named = failures.to_platform_error(error, str(self._folder), writes=True)
        if isinstance(named, LakeNotWritableError):
            return named
        return CommitOutcomeUnknownError(self._table.name, metadata.window.key, failures.reason_of(error))

    def _made_since(self, metadata: LoadMetadata | Fence, version: int) -> Commit | None:
        """Return the commit of this load if it is in the log after `version`."""
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


def _touches(commit: Commit, of: tuple[str, str] | None, window: str, own: set[str]) -> bool:
    """Return True if `commit`, made for the window and the load in `of`, changes or fences `window`. In the table,
    `window` had the files `own`."""
    return (
        (of is not None and of[0] == window)
        or any(holdings.may_hold(add, window) for add in commit.adds)
        or not own.isdisjoint(commit.removes)
    )
