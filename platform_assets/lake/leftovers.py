"""Files to which no commit refers, and to which no later commit can refer.

**Files in the folder of a window's loads** are deleted once a load of the window has committed.

**Files in shared folders** have rows of many windows. Upkeep and migrations write them, separating windows writes them,
and a load writes them to keep the rows of other windows. An erasure deletes the files that it finds. But a worker that
has read the rows before the erasure may create its file after it, and then be killed. So the name of a shared folder
contains what a later run must know to delete the file: the first and the last window that the file may hold, and a
version `since` of the table that was the newest at some time before the file's first row was read. This needs no
record, which could be missing or late, and no clock.

Let c be the first commit after `since` that loads or fences a window in the folder's span. No commit after c names a
file of the folder for the first time:

* Upkeep, separation and migrations read all commits after `since` up to the version v on which they are based, and give
  up if c is one of these commits. So v < c, and their commit is v + 1, which is c or comes before c.
* A load's copy of the rows of other windows is named by the commit `since` + 1 or by no commit, because the load copies
  again for each attempt.
* A restore of a past version names only files that an earlier commit has named.

So if no commit after `since`, up to c, has named a file, no commit ever will. `delete_overtaken` deletes such a file,
even if its worker is still running: that worker will find that its group is overtaken. For a worker that is not
overtaken there is no such c, so its file stays. This file has no erased rows either: an erasure makes a commit that
loads or fences the window, and this commit overtakes each worker that read an earlier version. Files that some commit
has named stay, because past versions need them; an erasure deletes the files that hold rows of its window. If the log
lacks a commit that must be read, the file is left to `vacuum`.

Upkeep and migrations call `delete_overtaken` when they begin, and an erasure calls it before it reports success. If a
worker creates its file after that, the worker finds that it is overtaken, and deletes the file itself. If the worker is
killed first, the next of these runs deletes the file.
"""

from __future__ import annotations

from collections.abc import Set
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final
from urllib.parse import unquote

import pyarrow as pa

from platform_assets.lake import delta_log, load_log
from platform_assets.lake.location import SHARED, Folder, shared_since, shared_span
from platform_assets.model.logs import logger

_log = logger(__name__)

FOREVER: Final = datetime.max.replace(tzinfo=UTC)


_Known = dict[int, tuple[str | None, frozenset[str]] | None]
"""The window that the commit of a version loads or fences, and the shared files that the commit names; None if the
commit's file no longer exists."""


def delete_overtaken(table: Folder) -> list[str]:
    """Delete the files in shared folders to which no commit refers or can refer, because their rows are overtaken;
    return the names of these files.

    Raises LakeNotWritableError if a file cannot be deleted.
    """
    found = table.written_before(FOREVER, SHARED)
    if not found:
        return []
    handle = table.delta()
    with table.reading():
        named = {unquote(path) for path in pa.table(handle.get_add_actions())["path"].to_pylist()}
    known = _Known()
    left = [name for name in found if name not in named and _is_overtaken(table, name, handle.version(), known)]
    if left:
        _log.info("deleting files of %s that no commit can refer to any longer: %s", table.name, ", ".join(left))
        table.erase(left)
    return left


def _is_overtaken(table: Folder, name: str, newest: int, known: _Known) -> bool:
    since, span = shared_since(name), shared_span(name)
    if since is None or span is None:
        return False
    for version in range(since + 1, newest + 1):
        if version not in known:
            found = delta_log.commit(table, version)
            known[version] = None if found is None else noted(found)
        commit = known[version]
        if commit is None or name in commit[1]:
            return False
        if commit[0] is not None and span[0] <= commit[0] <= span[1]:
            return True
    return False


def noted(commit: delta_log.Commit) -> tuple[str | None, frozenset[str]]:
    """Return the window that a commit loads or fences, if there is one, and the shared files that the commit names."""
    of = load_log.identity_in(commit)
    names = (unquote(add.path) for add in commit.adds if add.path.startswith(f"{SHARED}/"))
    return None if of is None else of[0], frozenset(names)


@dataclass
class Leftovers:
    """Files left by dead loads of windows of `table`, and by tasks that ran twice.

    `folders` has the folders that the commits from version `oldest` to `newest` name. Without it, loads of many windows
    would read the same commits for each window.
    """

    table: Folder
    folders: set[str] = field(default_factory=set)
    oldest: int | None = None
    newest: int | None = None

    def delete_dead(self, begun: Set[str]) -> None:
        """Delete the folders in `begun` to which no commit refers; they belong to the window that was just replaced.

        Each folder existed before the commit that replaced the window. So the load of the folder opened the table
        earlier and can no longer commit: its commit would be a conflict. If that load is still running, it has lost,
        and notices this when its write fails.
        """
        left = begun - self.folders
        for folder in sorted(self._unnamed(left) if left else left):
            _log.info("deleting the files of a load that did not commit: %s", self.table / folder)
            (self.table / folder).delete()

    def _unnamed(self, folders: Set[str]) -> Set[str]:
        """Return those of `folders` to which no commit refers. Read new commits, then older commits until each folder
        is found."""
        newest = delta_log.version(self.table)
        if self.newest is None or self.oldest is None:
            self.newest, self.oldest = newest, newest + 1
        for version in range(self.newest + 1, newest + 1):
            self._note_folders(version)
        self.newest = newest
        while folders - self.folders and self._note_folders(self.oldest - 1):
            self.oldest -= 1
        return folders - self.folders

    def _note_folders(self, version: int) -> bool:
        """Note the folders that a commit lists. Return False if the log no longer has the commit."""
        commit = delta_log.commit(self.table, version)
        if commit is None:
            return False
        named = (*(add.path for add in commit.adds), *commit.removes)
        self.folders.update(unquote(path).rpartition("/")[0] for path in named)
        return True

    def delete_unnamed(self, own: str, named: Set[str]) -> None:
        """Delete the files in the folder `own` of a load that the load's commit does not name.

        They come from copies of a task that Spark abandoned, because an executor was lost or another copy of the task
        was faster. Files that such a copy writes later, and files that cannot be deleted, are left to `vacuum`.
        """
        content = self.table.content
        with suppress(OSError):
            # Spark keeps a checksum next to each file, to know that the file is complete.
            sums = {f"{own}/.{path.rpartition('/')[2]}.crc" for path in named}
            left = [name for name in content.written_before(FOREVER, own) if name not in named and name not in sums]
            if left:
                _log.info("deleting files of tasks that ran twice: %s", ", ".join(left))
                content.remove(left)
