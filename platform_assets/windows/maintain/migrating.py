"""Migrating a table to the flat layout: its rows are copied, proved by the windows' receipts, and named by one commit.

A window whose rows are not those of its receipt, or cannot be read, is damage: nothing is committed until a load has
repaired it. Rows that no receipt proves are copied unchanged and stay unproved: those of a load whose receipt is
still missing, of windows without a receipt, and of another writer.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable

from platform_assets.engines.measuring import measure_of
from platform_assets.engines.protocol import NO_ROWS
from platform_assets.errors import FilesLostError, MigrationBusyError, MigrationDamageError
from platform_assets.lake import data_files, holdings, load_log, merging, migration, row_copies
from platform_assets.lake.delta_log import DataFile
from platform_assets.lake.leftovers import delete_overtaken
from platform_assets.lake.location import Folder
from platform_assets.lake.migration import Copy, Plan
from platform_assets.ledger.entries import Receipt
from platform_assets.ledger.store import Ledger
from platform_assets.model.digest import Measured
from platform_assets.model.logs import logger
from platform_assets.model.tables import TableRef
from platform_assets.windows.load.receipts import proved_again
from platform_assets.windows.load.replacing import same

_log = logger(__name__)
_ATTEMPTS: Final = 100
_BLOCK_ROWS: Final = 1 << 16

Digests = Mapping[str, Mapping[str, Measured]]
"""By window and topic id."""


@dataclass(frozen=True, slots=True)
class Planned:
    """Work of a migration.

    `copied` of the table's `bytes` bytes are already copied. The migration is done if the table `is_flat`.
    """

    is_flat: bool
    windows: int = 0
    files: int = 0
    bytes: int = 0
    copied: int = 0


@dataclass(frozen=True, slots=True)
class Migrated:
    """A table that is now flat. `version` is None if it was flat before; `unproved` are windows whose rows no
    receipt proves."""

    version: int | None
    windows: int
    files_before: int
    files: int
    bytes: int
    unproved: tuple[str, ...] = ()


@dataclass(frozen=True)
class Migration:
    """The migration of `table`. It needs neither Kafka nor Spark, and may run while windows are loaded into the
    table."""

    table: TableRef
    ledger: Ledger
    target: int = merging.TARGET_BYTES

    @property
    def folder(self) -> Folder:
        """The folder of the table."""
        return self.ledger.lake.table(self.table)

    def planned(self) -> Planned:
        """Return the work to do; change nothing. Raises TableRefusedError if the table cannot be migrated."""
        handle = self.folder.delta()
        if holdings.is_flat(handle):
            return Planned(is_flat=True)
        migration.check_supported(self.folder, handle)
        files, plan = self._plan(handle)
        copied = sum(size for copy in plan.copies for _, size in copy.sources)
        windows = len({file.partition[holdings.WINDOW] for file in files})
        return Planned(False, windows, len(files), sum(file.bytes for file in files), copied)

    def run(self, on_progress: Callable[[str], None] = lambda text: None) -> Migrated:
        """Migrate the table; return when it is flat. Running it again continues.

        Raises MigrationDamageError, MigrationBusyError, MigrationOutcomeUnknownError and TableRefusedError; the table then has its
        former layout, or the outcome is unknown.
        """
        delete_overtaken(self.folder)
        proved, broken = set[str](), set[str]()
        for _ in range(_ATTEMPTS):
            handle = self.folder.delta()
            if holdings.is_flat(handle):
                return self._ended(handle.version())
            migration.check_supported(self.folder, handle)
            files, plan = self._plan(handle)
            # A machine that died may have left copies that have the right size but not their content.
            broken |= {c.name for c in plan.copies if c.name not in proved and not self._is_intact(c)}
            files, plan = self._plan(handle, broken)
            migration.discard(self.folder, plan.overtaken)
            copies, damaged = self._copies(handle, plan, on_progress)
            proved |= {copy.name for copy in copies}
            digests = migration.digests_by_window(copies)
            # Receipts are read after the table was opened: that of a later load would belong to a later version, which
            # is noticed below.
            receipts = self.ledger.receipts(self.table)
            wrong = {key for key, r in receipts.items() if key not in damaged and not _is_of(digests.get(key, {}), r)}
            wrong = damaged | (wrong - self._unrecorded(wrong, receipts))
            if load_log.version(self.folder) != handle.version():
                continue
            if wrong:
                raise MigrationDamageError(str(self.table), sorted(wrong))
            columns = migration.flat_columns(self.folder, handle)
            version = migration.commit(self.folder, handle, files, copies, columns)
            if version is not None:
                self._prove(version, copies)
                migration.clear(self.folder, version)
                unproved = sorted(key for key, found in digests.items() if not _is_proved(found, receipts.get(key)))
                sizes = sum(copy.file.bytes for copy in copies)
                return Migrated(version, len(digests), len(files), len(copies), sizes, tuple(unproved))
        raise MigrationBusyError(str(self.table))

    def _is_intact(self, copy: Copy) -> bool:
        return row_copies.is_intact(self.folder, copy.file, copy.digests, measure_of(self.table.kind))

    def _plan(self, handle: DeltaTable, broken: Collection[str] = ()) -> tuple[list[DataFile], Plan]:
        files = migration.files_in_order(self.folder, handle)
        recorded = [copy for copy in migration.recorded(self.folder) if copy.name not in broken]
        events = migration.events_since(self.folder, recorded, handle.version())
        plan = migration.plan(files, migration.lasting(self.folder, handle, recorded), self.target, events)
        return files, plan

    def _copies(
        self, handle: DeltaTable, plan: Plan, on_progress: Callable[[str], None]
    ) -> tuple[list[Copy], set[str]]:
        """Return all copies once the rest is copied, and the windows with an unreadable file."""
        copies, damaged = list(plan.copies), set[str]()
        columns = migration.flat_columns(self.folder, handle)
        done = sum(size for copy in copies for _, size in copy.sources)
        total = done + sum(file.bytes for group in plan.groups for file in group)
        for group in plan.groups:
            on_progress(f"{self.table}: {done:,} of {total:,} bytes are copied")
            copy, unreadable = self._copied(group, columns, handle.version())
            copies += [] if copy is None else [copy]
            damaged |= unreadable
            done += sum(file.bytes for file in group)
        return copies, damaged

    def _copied(self, group: Sequence[DataFile], columns: pa.Schema, since: int) -> tuple[Copy | None, set[str]]:
        measure = measure_of(self.table.kind)
        try:
            return migration.copied(self.folder, group, columns, measure, since), set()
        except FilesLostError as e:
            if load_log.version(self.folder) != since:
                # An erasure may have deleted a replaced file, or the copy, as overtaken: its commit is noticed.
                return None, set()
            _log.warning("%d files of %s are not copied together: %s", len(group), self.table, e)
            unreadable = {_key(file) for file in group if not self._is_readable(file)}
            rest = [file for file in group if _key(file) not in unreadable]
            if not unreadable:
                raise
            return (migration.copied(self.folder, rest, columns, measure, since) if rest else None), unreadable

    def _is_readable(self, file: DataFile) -> bool:
        try:
            for _ in data_files.blocks(self.folder, file.path, _key(file), _BLOCK_ROWS):
                pass
        except FilesLostError:
            return False
        return True

    def _unrecorded(self, keys: set[str], receipts: Mapping[str, Receipt]) -> set[str]:
        """Return those of `keys` whose newest load is not that of their receipt: the load has not recorded its
        receipt yet, or died before it did."""
        if not keys:
            return set()
        loads = load_log.newest_loads(self.folder)
        return {key for key in keys if key in loads and loads[key].metadata.load_id != receipts[key].load_id}

    def _ended(self, version: int) -> Migrated:
        """Finish the work of a run that died after its commit; return the outcome for a flat table."""
        self._prove(version, migration.recorded(self.folder))
        migration.clear(self.folder, version)
        found = load_log.file_actions(self.folder, version)
        held = holdings.by_window(self.folder, found, flat=True)
        windows, size = len(set(held[holdings.WINDOW].to_pylist())), sum(found["size_bytes"].to_pylist())
        return Migrated(None, windows, found.num_rows, found.num_rows, size)

    def _prove(self, version: int, copies: Sequence[Copy]) -> None:
        """Record receipts of windows whose copies are not shared with others, so that no check has to read the files to find
        out what they contain.

        The contents of shared files are recorded before the commit.
        """
        if not copies:
            return
        receipts = self.ledger.receipts(self.table)
        files = holdings.window_files(holdings.actions(self.folder, version))
        named = {unquote(path) for of_window in files.values() for path in of_window.paths}
        copies = [copy for copy in copies if copy.file.path in named]
        own, digests = {copy.file.path for copy in copies}, migration.digests_by_window(copies)
        table_id = load_log.table_id(self.folder)
        self.ledger.record_receipts(
            [
                proved_again(receipt, files[key], version, table_id)
                for key, receipt in receipts.items()
                if key in files
                and not files[key].shared
                and own.issuperset(unquote(path) for path in files[key].paths)
                and _is_proved(digests.get(key, {}), receipt)
            ]
        )


def _key(file: DataFile) -> str:
    return file.partition[holdings.WINDOW] or ""


def _is_of(found: Mapping[str, Measured], receipt: Receipt) -> bool:
    """Return True if the rows of a window are those of its receipt and its key has no rows of another log."""
    return set(found) <= {receipt.topic_id} and same(found.get(receipt.topic_id, NO_ROWS), receipt)


def _is_proved(found: Mapping[str, Measured], receipt: Receipt | None) -> bool:
    return receipt is not None and _is_of(found, receipt)
