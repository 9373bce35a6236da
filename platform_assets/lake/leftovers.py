"""Files in the folders of a window's loads that no commit names: deleted once a load of the window has committed."""

from __future__ import annotations

from collections.abc import Set
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final
from urllib.parse import unquote

from platform_assets.lake import delta_log
from platform_assets.lake.location import Folder
from platform_assets.model.logs import logger

_log = logger(__name__)

FOREVER: Final = datetime.max.replace(tzinfo=UTC)


@dataclass
class Leftovers:
    """Files left by dead loads of windows of `table`, and by tasks that ran twice.

    `folders` are those that the commits from version `oldest` to `newest` name: loads of many windows would otherwise read the same
    commits for each window.
    """

    table: Folder
    folders: set[str] = field(default_factory=set)
    oldest: int | None = None
    newest: int | None = None

    def delete_dead(self, begun: Set[str]) -> None:
        """Delete the folders in `begun` that no commit names; they belong to the window that was just replaced.

        Each existed before that commit, so its load opened the table before it and can no longer commit: that would be a
        conflict. A load that is still running has lost, and notices when its write fails.
        """
        left = begun - self.folders
        for folder in sorted(self._unnamed(left) if left else left):
            _log.info("deleting the files of a load that did not commit: %s", self.table / folder)
            (self.table / folder).delete()

    def _unnamed(self, folders: Set[str]) -> Set[str]:
        """Return those of `folders` that no commit names: read new commits, then older ones until each folder is found."""
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
        """Note the folders that a commit names. Return false if the log no longer has the commit."""
        commit = delta_log.commit(self.table, version)
        if commit is None:
            return False
        named = (*(add.path for add in commit.adds), *commit.removes)
        self.folders.update(unquote(path).rpartition("/")[0] for path in named)
        return True

    def delete_unnamed(self, own: str, named: Set[str]) -> None:
        """Delete the files in the folder `own` of a load that its commit does not name.

        They come from a copy of a task that Spark has abandoned, because its executor was lost or another copy was faster. Files
        that such a copy writes later, and files that cannot be deleted, are left to `vacuum`.
        """
        content = self.table.content
        with suppress(OSError):
            # Spark keeps a checksum next to each file, to know that the file is complete.
            sums = {f"{own}/.{path.rpartition('/')[2]}.crc" for path in named}
            left = [name for name in content.written_before(FOREVER, own) if name not in named and name not in sums]
            if left:
                _log.info("deleting files of tasks that ran twice: %s", ", ".join(left))
                content.remove(left)
