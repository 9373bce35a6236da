"""A run of upkeep for one table: merge small files, write a checkpoint, clean up the log, and delete files that no kept
version names.

Each step is either complete or leaves the table unchanged, so a run may end anywhere, and two runs at once do no
harm: see `merging`. Files are deleted after the table's own retention, a week by default, on which readers of past
versions, backups and loads in progress rely; only files that are older and that the newest version does not name are
deleted. No file is deleted while the rows of a window are not known to be those of its receipt: an old file may be
the only one that holds them.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties
from deltalake.exceptions import CommitFailedError

from platform_assets.engines.merging.engine import MergeEngine
from platform_assets.lake import checkpoints, contents, holdings
from platform_assets.lake.location import Folder, window_folders
from platform_assets.lake.vacuum import Vacuumed, old_files, vacuum
from platform_assets.ledger.entries import EXPIRED
from platform_assets.ledger.store import Ledger
from platform_assets.model.declaration import DEFAULT_FILE_SIZE, TopicDeclaration
from platform_assets.model.logs import logger
from platform_assets.model.tables import TableRef
from platform_assets.model.windows import key_of
from platform_assets.windows import proved_files
from platform_assets.windows.maintain import keeping
from platform_assets.windows.maintain.last_upkeep import MOST_DAMAGED, LastUpkeep, recall, remember
from platform_assets.windows.maintain.merging import BUDGET_BYTES, MergedFiles, Plan, Upkeep
from platform_assets.windows.publish.loads import needed_files

_log = logger(__name__)
_STATISTICS: Final = "delta.dataSkippingStatsColumns"
_PLAIN_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
"""Other names would have to be quoted in the property, which each reader would have to parse."""
QUIET: Final = timedelta(hours=6)
"""Time since a window's end after which its files are merged: until then, a late load may replace them."""
VACUUM_EVERY: Final = timedelta(days=1)
"""Time between two deletions of old files, which list the whole folder."""

Progress = Callable[[int, int, MergedFiles], None]
"""Called with the number of finished groups, the number of all groups, and the outcome of the newest."""


@dataclass(frozen=True)
class TableUpkeep:
    """Upkeep of a table of `ledger` with `engine`; `target` and `cluster_by` are the table's own."""

    table: TableRef
    ledger: Ledger
    engine: MergeEngine = field(default_factory=MergeEngine)
    target: int = DEFAULT_FILE_SIZE
    cluster_by: tuple[str, ...] = ()
    quiet: timedelta = QUIET
    budget: int = BUDGET_BYTES
    removed: Callable[[], Collection[str]] | None = None
    """Returns the topics of which windows were removed by age, if the caller reads them for many tables at once."""

    @classmethod
    def of(cls, table: TableRef, ledger: Ledger, declaration: TopicDeclaration | None, **options: Any) -> TableUpkeep:
        """Return the upkeep of a table with the settings of its topic's declaration, if it has one; `options` win."""
        declared: dict[str, Any] = {}
        if declaration is not None:
            declared = {
                "target": declaration.target_file_size,
                "cluster_by": declaration.cluster_by(table),
            }
        return cls(table, ledger, **{**declared, **options})

    @property
    def _merging(self) -> Upkeep:
        return Upkeep(self.table, self.ledger, self.engine, self.target, self.cluster_by)

    @property
    def _folder(self) -> Folder:
        return self.ledger.lake.table(self.table)

    def plan(self, now: datetime) -> Plan | None:
        """Return what `run` would merge; None for a table that is partitioned by windows, which upkeep leaves alone."""
        return self._merging.plan(key_of(now - self.quiet), self.budget)

    def run(self, now: datetime, progress: Progress = lambda done, all, merged: None) -> LastUpkeep | None:
        """Run the upkeep and return its result; None as in `plan`.

        Raises the platform's errors; what was merged before stays merged.
        """
        began = time.monotonic()
        before = recall(self.ledger.lake, self.table)
        plan = self.plan(now)
        if plan is None:
            self._delete_expired()
            return None
        self._keep_bounds()
        merged = list[MergedFiles]()
        for each in self._merging.merge(plan):
            merged.append(each)
            progress(len(merged), len(plan.groups), each)
        done = [each for each in merged if each.version is not None]
        if done:
            self._fold_log()
        vacuumed = before.vacuumed_at if before is not None else None
        deleted = Vacuumed(self.table, (), 0)
        damaged = {key: plan.expected[key].load_id for each in merged for key in each.damaged}
        damaged |= self._merging.with_more_rows()
        files, size = self._size()
        unproved: tuple[str, ...] = ()
        if vacuumed is None or now - vacuumed >= VACUUM_EVERY:
            # Files that become old after this list are not deleted: the rows may have been lost after the comparison.
            old = old_files(self._folder)
            unproved = self._unproved() if old else ()
            if not unproved:
                deleted, vacuumed = vacuum(self.table, self._folder, keep=self._needed, old=old), now
        found = LastUpkeep(
            at=datetime.now(UTC),
            seconds=round(time.monotonic() - began, 3),
            files_before=plan.files,
            files=files,
            bytes=size,
            merged_files=sum(len(each.group.files) for each in done),
            merged_bytes=sum(each.group.bytes for each in done),
            new_files=sum(each.files for each in done),
            new_bytes=sum(each.bytes for each in done),
            left_bytes=sum(group.bytes for group in plan.left),
            damaged=dict(sorted(damaged.items())[:MOST_DAMAGED]),
            deleted_files=len(deleted.files),
            deleted_bytes=deleted.bytes,
            vacuumed_at=vacuumed,
            unproved=unproved[:MOST_DAMAGED],
        )
        remember(self.ledger.lake, self.table, found)
        return found

    def _needed(self) -> frozenset[str]:
        """Return the files that published topics still need."""
        return needed_files(self.ledger, self.table)

    def _delete_expired(self) -> None:
        """Delete old files of windows that were removed from a partitioned table by age, after the table's retention.

        Such a window has no rows, so nothing of it has to be proved. Files of other windows stay.
        """
        removed = keeping.topics_with_removals(self.ledger) if self.removed is None else self.removed()
        if self.table.topic not in removed or not self._expired_folders():
            return
        deleted = vacuum(self.table, self._folder, below=self._expired_folders, keep=self._needed)
        _log.info(
            "%s: deleted %d old files of expired windows, with %d bytes", self.table, len(deleted.files), deleted.bytes
        )

    def _expired_folders(self) -> frozenset[str]:
        """Return the folders of windows whose newest receipt says that their rows were removed."""
        kinds = self.ledger.commit_rows(self.table, columns=["kind"])
        expired = kinds.filter(pc.field("kind") == EXPIRED)["window"].to_pylist()
        return frozenset(folder for key in set(expired) for folder in window_folders(key))

    def _unproved(self) -> tuple[str, ...]:
        """Return the windows for which nothing proves that the newest version contains the rows of the receipt.

        Files that other programs have rewritten are read once, if they hold several windows.
        """
        entries = self.ledger.commit_rows(self.table)
        expected = {e.key: e for e in proved_files.expected_in(entries) if e.measured.rows}
        found = holdings.window_files(holdings.actions(self._folder))
        held = proved_files.recognised_as(self.ledger.lake, self.table, found, expected.values())
        return tuple(key for key, e in sorted(expected.items()) if key not in held or not held[key].are(e.files_digest))

    def _keep_bounds(self) -> None:
        """Put the columns `cluster_by` into the table's property, so that Spark skips files by their bounds.

        If another commit comes first, the next run does this.
        """
        handle = self._folder.delta()
        columns = handle.metadata().configuration.get(_STATISTICS)
        held = {field.name for field in handle.schema().fields}
        known = [] if columns is None else columns.split(",")
        missing = [name for name in self.cluster_by if name in held - set(known) and _PLAIN_NAME.fullmatch(name)]
        if columns is None or not missing:
            return
        try:
            with self._folder.writing():
                handle.alter.set_table_properties(
                    {_STATISTICS: ",".join([*known, *missing])},
                    commit_properties=CommitProperties(max_commit_retries=0),
                )
        except CommitFailedError as e:
            _log.info("%s: the property %s was not updated this time: %s", self.table, _STATISTICS, e)

    def _fold_log(self) -> None:
        """Write a checkpoint, so that readers do not have to read the commits, and delete log files that are past
        the table's log retention."""
        checkpoints.write(self._folder)
        handle = self._folder.delta()
        with self._folder.writing():
            handle.cleanup_metadata()

    def _size(self) -> tuple[int, int]:
        """Return number and size of the newest version's files; delete the recorded contents of all other files."""
        handle = self._folder.delta()
        with self._folder.reading():
            named = pa.table(handle.get_add_actions())
        files = list(zip(named["path"].to_pylist(), named["size_bytes"].to_pylist(), strict=True))
        contents.prune(self._folder, str(handle.metadata().id), files)
        return len(files), sum(size for _, size in files)
