"""The one place that commits to a lake table: the files of a window replaced by others, in a commit that names its offsets.

delta-rs commits without retries of its own: an overwrite that removes nothing conflicts with nothing, so a first load that
it tried again would be put beside the rows of the load that was faster. What was committed in between is read here instead.
"""

from __future__ import annotations

import copy
import json
import logging
import time
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction

from platform_assets.errors import CommitOutcomeUnknownError, ConcurrentLoadError, TableRefusedError
from platform_assets.lake import delta_log, load_log
from platform_assets.lake.delta_log import Anchor, Commit
from platform_assets.lake.load_folders import begun_loads, load_folder
from platform_assets.lake.load_log import LoadCommit, LoadMetadata
from platform_assets.lake.location import Folder, Lake
from platform_assets.model.tables import TableRef

_log = logging.getLogger(__name__)

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
        self._own: set[str] | None = None
        self._is_one_of_many = False

    def held(self) -> frozenset[str]:
        """The keys of the windows that the table had files of when this was opened."""
        handle = self._shared.handle
        handle = handle if handle.version() == self._since else self._folder.delta(self._since)
        actions = pa.table(handle.get_add_actions(flatten=True))
        return frozenset(pc.unique(actions["partition.window"]).to_pylist()) if actions.num_rows else frozenset()

    def of_new_window(self) -> WindowCommit:
        """The commit of a window that is not in `held`, by what was read since this was opened.

        It shares this one's handle, so that the commits of many windows need not open the table again for each.
        """
        other = copy.copy(self)
        other._own, other._is_one_of_many = set(), True
        return other

    def replace(self, metadata: LoadMetadata, files: Sequence[NewFile]) -> LoadCommit:
        """Commit `files` as all that the table holds of the window of `metadata`; also where there are none.

        Files that dead loads of the window have left are deleted then.

        Raises ConcurrentLoadError where another commit touched the window since this was opened, CommitOutcomeUnknownError
        where it cannot be said whether the commit took place, and TableRefusedError where delta-rs cannot write the table.
        """
        begun = begun_loads(self._folder, metadata.window.key)
        made = self._replaced(metadata, files)
        self._delete_dead(begun - {load_folder(metadata.window.key, metadata.load_id)})
        return made

    def is_overtaken(self, window: str) -> bool:
        """Whether another commit touched `window` since this was opened, so that `replace` would raise."""
        own, newest = self._files_of(window), load_log.version(self._folder)
        return any(commit is None or _touches(commit, window, own) for commit in self._commits_to(newest))

    def _replaced(self, metadata: LoadMetadata, files: Sequence[NewFile]) -> LoadCommit:
        if self._is_one_of_many:
            self._catch_up()
        for _ in range(_ATTEMPTS):
            if (made := self._made_or_conflict(metadata)) is not None:
                return made
            before = self._shared.handle.version()
            try:
                self._commit(metadata, files)
            except CommitFailedError as e:
                newest = self._open()
                if newest.version() == before:
                    raise TableRefusedError(self._table.name, str(e)) from e
                self._shared.handle = newest
                continue
            except (DeltaError, OSError) as e:
                made = self._made_since(metadata, before)
                if made is None:
                    raise CommitOutcomeUnknownError(self._table.name, metadata.window.key, str(e)) from e
                _log.info("the commit of load %s is in the log, although it ended with: %s", metadata.load_id, e)
                return made
            if (made := self._made_since(metadata, before)) is not None:
                return made
            raise CommitOutcomeUnknownError(self._table.name, metadata.window.key, "the table's log does not name it")
        raise ConcurrentLoadError(self._table.name, metadata.window.key)

    def _commit(self, metadata: LoadMetadata, files: Sequence[NewFile]) -> None:
        window = metadata.window.key
        now = round(time.time() * 1000)
        handle = self._shared.handle
        handle.create_write_transaction(
            [AddAction(f.path, f.bytes, {"window": window}, now, True, _statistics(f)) for f in files],
            "overwrite",
            handle.schema(),
            partition_by=["window"],
            partition_filters=[("window", "=", window)],
            commit_properties=CommitProperties(
                custom_metadata={"userMetadata": metadata.to_json()}, max_commit_retries=0
            ),
        )

    def _made_or_conflict(self, metadata: LoadMetadata) -> LoadCommit | None:
        """Raises ConcurrentLoadError where a commit since this was opened touched the window, up to the handle's version.

        Gives this load's own commit where it is that: the answer of a store was lost, and the same write was sent twice.
        """
        newest = self._shared.handle.version()
        if newest == self._since:
            return None
        window = metadata.window.key
        own = self._files_of(window)
        for commit in self._commits_to(newest):
            if commit is None or _touches(commit, window, own):
                load = None if commit is None else load_log.load_in(commit)
                if load is not None and load.metadata.load_id == metadata.load_id:
                    return load
                raise ConcurrentLoadError(self._table.name, window)
        return None

    def _catch_up(self) -> None:
        try:
            self._shared.handle.update_incremental()
        except DeltaError as e:
            raise TableRefusedError(self._table.name, str(e)) from e

    def _files_of(self, window: str) -> set[str]:
        if self._own is None:
            self._own = set(load_log.files_of(self._folder, window, self._since).paths)
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

    def _made_since(self, metadata: LoadMetadata, version: int) -> LoadCommit | None:
        """The commit of this load, if the log has it after `version`."""
        seen: Anchor | None = delta_log.anchor(self._folder, version)
        for commit in (None if seen is None else delta_log.commits_after(self._folder, seen)) or ():
            load = load_log.load_in(commit)
            if load is not None and load.metadata.load_id == metadata.load_id:
                return load
        return None

    def _open(self) -> DeltaTable:
        try:
            return self._folder.delta()
        except DeltaError as e:
            raise TableRefusedError(self._table.name, str(e)) from e


def _touches(commit: Commit, window: str, own: set[str]) -> bool:
    """Whether `commit` changes what the table holds of `window`, whose files were `own`."""
    load = load_log.load_in(commit)
    return (
        (load is not None and load.metadata.window.key == window)
        or any(add.partition.get("window") == window for add in commit.adds)
        or not own.isdisjoint(commit.removes)
    )


def _statistics(file: NewFile) -> str:
    return json.dumps({"numRecords": file.rows, **file.statistics})
