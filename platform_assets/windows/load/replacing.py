"""Replacing one window of a table: new files are written, compared with the receipt, and then committed or deleted.

This module does not depend on the source of the rows, so it serves every kind of table. Every reason to refuse a load
is checked before the commit. If the load is refused, no commit refers to the files written so far, and they are
deleted.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Literal

from platform_assets.engines.measuring import measure_of
from platform_assets.engines.protocol import NO_ROWS, StagedFiles, TableReader
from platform_assets.errors import (
    BatchTooLargeError,
    ConcurrentLoadError,
    DamagedBatchError,
    FilesLostError,
    LakeNotWritableError,
    LostForGoodError,
    PlatformError,
    ReloadDiffersError,
    TableRefusedError,
    UnprovedRowsError,
    UnrecordedLoadError,
)
from platform_assets.lake import holdings, load_log, rows
from platform_assets.lake.commits import WindowCommit
from platform_assets.lake.data_files import past_files
from platform_assets.lake.holdings import WindowFiles
from platform_assets.lake.load_log import LoadCommit, LoadMetadata
from platform_assets.lake.location import Folder, load_folder
from platform_assets.lake.standing import standing, versions_of
from platform_assets.ledger.entries import ERASED, Receipt
from platform_assets.ledger.store import Ledger
from platform_assets.model.digest import Measured
from platform_assets.model.logs import logger
from platform_assets.model.offsets import OffsetRange, subtract
from platform_assets.model.tables import TableRef
from platform_assets.windows.erase import erased_rows
from platform_assets.windows.load import differences
from platform_assets.windows.load.receipts import Proof, proved_again, receipt_of

_log = logger(__name__)

Outcome = Literal["loaded", "empty", "unchanged", "kept", "healed", "restored", "replaced"]
"""Result of a load. loaded: first load; empty: no offsets; unchanged: read again and proved equal; kept: the source no
longer has the records, and the table's rows are proved to be those of the load; healed: proved equal, and written
again; restored: taken from a past version of the table, or from Kafka and the table's versions together, because the
source no longer has all records; replaced: decoded with another declaration."""

Write = Callable[[str], StagedFiles]
"""Function that writes the window's files, given the load's id."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A window that is in the table, and the result of its last load."""

    receipt: Receipt
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class _Held:
    """A window's files at version `version` of the table, and the measure of their rows; None if files are lost.

    `as_recorded` is true if they are the files of the receipt. `is_of_topic` is true if all rows have the topic id of
    the receipt, which no digest covers; it is determined only for rows with the digests of the receipt.
    """

    version: int
    files: WindowFiles
    measured: Measured | None
    as_recorded: bool
    is_of_topic: bool = False

    def has(self, receipt: Receipt) -> bool:
        """Return True if the rows are those of `receipt`."""
        return self.measured is not None and same(self.measured, receipt) and self.is_of_topic


@dataclass(frozen=True)
class WindowReplacer:
    """Replaces windows of `table`, which exists, and records the receipts of the windows."""

    table: TableRef
    ledger: Ledger
    engine: TableReader
    run_id: str

    @property
    def folder(self) -> Folder:
        """The folder of the table."""
        return self.ledger.lake.table(self.table)

    def open(self) -> WindowCommit:
        """Open the table. Call this before reading the receipt, so that a later commit by another writer is a conflict."""
        return WindowCommit(self.ledger.lake, self.table, measure_of(self.table.kind))

    def receipt(self, key: str) -> Receipt | None:
        """Return the receipt of a window; None if it was never loaded."""
        return self.ledger.receipts(self.table, [key]).get(key)

    def first(
        self, commit: WindowCommit, metadata: LoadMetadata, write: Write, before_commit: Callable[[], None]
    ) -> Loaded:
        """Load a window that has no receipt. `before_commit` raises an error if the load has to be refused at the last
        moment.

        Raises UnprovedRowsError if the table has rows of the window that the load would not restore.
        """
        made = self.committed(commit, metadata, write, before_commit)
        self._record(made.receipt)
        return made

    def committed(
        self, commit: WindowCommit, metadata: LoadMetadata, write: Write, before_commit: Callable[[], None]
    ) -> Loaded:
        """Load a window like `first`, but let the caller record the receipt. A run that is killed before that leaves no
        receipt."""
        began = time.monotonic()
        written = self._written(commit, metadata, write)
        with self._deleted_if_refused(written):
            self._check_inside(metadata, written)
            self._check_brings_all(commit, metadata, written)
            before_commit()
        made = self.commit(commit, metadata, written)
        return Loaded(self._receipt(made, written.measured, began), "loaded")

    def again(
        self,
        commit: WindowCommit,
        receipt: Receipt,
        metadata: LoadMetadata,
        write: Write,
        before_commit: Callable[[], None],
    ) -> Loaded:
        """Write the window's rows again. Then keep the table's rows, repair or restore them, or raise an error.

        Raises ReloadDiffersError if the new rows are not those of `receipt` and the table's rows are not damaged;
        LostForGoodError if the table's rows are damaged and no past version has them; but UnrecordedLoadError if the
        receipt comes from a rebuilt ledger, which may not have found all rows that were loaded. In these cases the
        table is unchanged.
        """
        began = time.monotonic()
        written = self._written(commit, metadata, write, loaded=True)
        with self._deleted_if_refused(written):
            before_commit()
            held = self._held(receipt)
            differs = None if same(written.measured, receipt) else self._difference(receipt, written, held)
            is_kafkas = held.as_recorded and held.measured == written.measured
            if differs is not None and (held.has(receipt) or is_kafkas):
                raise differs
        if differs is not None:
            self.delete(written)
            returns = f"returns {written.measured.rows:,} rows"
            return self.restore(commit, receipt, metadata, differs.detail, kafka=returns)
        if held.has(receipt):
            self.delete(written)
            return Loaded(self._proved(receipt, held), "unchanged")
        return Loaded(self._written_again(commit, receipt, metadata, written, began), "healed")

    def restore(
        self, commit: WindowCommit, receipt: Receipt, metadata: LoadMetadata, cause: str, *, kafka: str
    ) -> Loaded:
        """Restore a damaged window from a past version of the table that has the recorded rows.

        The new commit adds the files of that version again. If no version has the rows, raises LostForGoodError, with
        `cause`; or UnrecordedLoadError, with the description `kafka`, if the receipt comes from a rebuilt ledger.
        """
        began = time.monotonic()
        for version in self.past_versions(receipt):
            held = self._held(receipt, version)
            if held.measured is None or not held.has(receipt):
                continue
            below = load_folder(receipt.window.key, metadata.load_id)
            files = past_files(self.folder, receipt.window.key, version, below, flat=commit.is_flat)
            written = StagedFiles(below, files, held.measured, receipt.engine)
            return self.restored(commit, receipt, metadata, written, began)
        table, key = receipt.table.name, receipt.window.key
        if receipt.is_found:
            raise UnrecordedLoadError(table, key, receipt.generation, receipt.rows, kafka=kafka)
        raise LostForGoodError(table, key, receipt.rows, cause)

    def restored(
        self, commit: WindowCommit, receipt: Receipt, metadata: LoadMetadata, written: StagedFiles, began: float
    ) -> Loaded:
        """Commit rows that are proved to be those of `receipt`, except erased rows. `began` is the start time from
        `time.monotonic()`."""
        return Loaded(self._written_again(commit, receipt, metadata, written, began), "restored")

    def replace(
        self, commit: WindowCommit, metadata: LoadMetadata, written: StagedFiles, seconds: float, proof: Proof
    ) -> Receipt:
        """Commit the written files, regardless of what the window contained. Return the receipt, which the caller
        records."""
        made = self.commit(commit, metadata, written)
        return receipt_of(
            self.ledger.lake, self.table, made, written.measured, kind="load", seconds=seconds, proof=proof
        )

    def drop_lost_files(self, commit: WindowCommit, metadata: LoadMetadata) -> None:
        """Remove the files of a window without offsets from the table if none of these files can be read."""
        key = metadata.window.key
        if not rows.readable_offsets(self.folder, key, commit.files_of(key).paths)[0]:
            _log.warning(
                "no file of window %s of %s can be read, so its files are removed; its offsets belong to a later "
                "window",
                key,
                self.table,
            )
            self.commit(commit, metadata, StagedFiles(load_folder(key, metadata.load_id), (), NO_ROWS, None))

    def recover(self, opened: WindowCommit, metadata: LoadMetadata) -> Receipt | None:
        """Return the receipt of a commit that the ledger lacks because a run ended between commit and receipt; None if
        there is no such commit.

        A commit that removed the rows as expired is passed over: the table has rows of the window again, and the load
        before it shows which they must be.

        `opened` is the state of the table before anything was decided. `metadata` has the window and the offsets that
        the commit must have. The result is also None if the commit's files are lost, because its rows can then come
        only from their source.
        """
        key = metadata.window.key
        if not opened.holds(key):
            return None
        loads = (c for c in load_log.load_commits(self.folder) if c.metadata.window.key == key)
        commit = next((c for c in loads if not c.metadata.expired), None)
        if commit is None or commit.metadata.ranges != metadata.ranges or commit.metadata.topic_id != metadata.topic_id:
            return None
        began = time.monotonic()
        for load in self._as_it_stands(replace(commit, table_id=opened.table_id)):
            if holdings.files_if_kept(self.folder, key, load.version) is None:
                continue
            ((_, measured),) = self.engine.measure(self.table, [key], load.version)
            if isinstance(measured, FilesLostError):
                _log.warning("version %d of %s does not prove what was loaded: %s", load.version, self.table, measured)
                continue
            if isinstance(measured, PlatformError):
                raise measured
            _log.info("window %s was committed as version %d but not recorded in the ledger", key, commit.version)
            return self._record(self._receipt(load, measured, began))
        return None

    def _as_it_stands(self, load: LoadCommit) -> list[LoadCommit]:
        """Return a load with its current files if they were only rearranged; otherwise with its original files."""
        now = standing(self.folder, [load], load_log.version(self.folder))[load.metadata.window.key]
        return [load] if now is load else [now, load]

    def proved(self, receipt: Receipt) -> Receipt | None:
        """Return the receipt of a window whose rows in the table are still those of `receipt`; None if they are not.

        If other files contain the rows by now, the result is a new receipt that lists those files, and it is recorded.
        """
        held = self._held(receipt)
        return self._proved(receipt, held) if held.has(receipt) else None

    def committed_again(self, commit: WindowCommit, receipt: Receipt, metadata: LoadMetadata) -> Receipt:
        """Commit the table's rows of a window, which are those of `receipt`, once more, so that the newest commit of the
        window in the log is a load. Raises ConcurrentLoadError if they have changed, and whatever committing raises."""
        began, key = time.monotonic(), receipt.window.key
        held = self._held(receipt)
        if held.measured is None or not held.has(receipt):
            raise ConcurrentLoadError(self.table.name, key)
        below = load_folder(key, metadata.load_id)
        files = past_files(self.folder, key, held.version, below, flat=commit.is_flat)
        written = StagedFiles(below, files, held.measured, receipt.engine)
        return self._written_again(commit, receipt, metadata, written, began)

    def is_intact(self, receipt: Receipt) -> bool:
        """Return True if the table's rows of the window are those of the receipt, regardless of the files that contain
        them."""
        return self._held(receipt).has(receipt)

    def _proved(self, receipt: Receipt, held: _Held) -> Receipt:
        if held.as_recorded:
            return receipt
        return self._record(proved_again(receipt, held.files, held.version, load_log.table_id(self.folder)))

    def _held(self, receipt: Receipt, version: int | None = None) -> _Held:
        """Read the window at a version, by default the newest, because files may be damaged, or may come from OPTIMIZE."""
        key = receipt.window.key
        at = load_log.version(self.folder) if version is None else version
        files = holdings.files_of(self.folder, key, at)
        as_recorded = files.digest == receipt.files_digest
        ((_, measured),) = self.engine.measure(self.table, [key], at)
        try:
            if isinstance(measured, PlatformError):
                raise measured
            if not same(measured, receipt):
                return _Held(at, files, measured, as_recorded)
            ids = rows.Opened(self.folder, {key: files}).topic_ids_of(key)
        except FilesLostError as e:
            _log.info("version %d of %s does not have window %s: %s", at, receipt.table, key, e)
            return _Held(at, files, None, as_recorded)
        return _Held(at, files, measured, as_recorded, ids <= {receipt.topic_id})

    def past_versions(self, receipt: Receipt) -> Iterator[int]:
        """Yield versions in which the window had different files: first that of the receipt, then the others, the
        newest first.

        Goes back to the start of the log, following the commits that changed the window.
        """
        current, key = load_log.version(self.folder), receipt.window.key
        recorded = [] if receipt.table_version is None else [receipt.table_version]
        seen = {holdings.files_of(self.folder, key).digest, holdings.NO_FILES.digest}
        tried = {current}
        for version in itertools.chain(recorded, versions_of(self.folder, key, current)):
            if version in tried or not 0 <= version < current:
                continue
            tried.add(version)
            files = holdings.files_if_kept(self.folder, key, version)
            if files is not None and files.digest not in seen:
                seen.add(files.digest)
                yield version

    def _difference(
        self, receipt: Receipt, written: StagedFiles, found: _Held
    ) -> ReloadDiffersError | UnrecordedLoadError:
        gone, new = dict[int, tuple[OffsetRange, ...]](), dict[int, tuple[OffsetRange, ...]]()
        held = found.measured if found.as_recorded or found.has(receipt) else None
        if held is not None and held.offsets != written.measured.offsets:
            kept = rows.offsets_of(self.folder, receipt.window.key)
            now = rows.offsets_in_files(self.folder / written.folder) if written.files else {}
            gone, new = rows.difference(kept, now), rows.difference(now, kept)
        if new and receipt.is_found and found.has(receipt):
            places = [(p, r.start, r.end) for p, parts in new.items() for r in parts]
            return UnrecordedLoadError(
                receipt.table.name, receipt.window.key, receipt.generation, receipt.rows, new=places
            )
        text = differences.explain(receipt, written.measured, held, gone=rows.named(gone), new=rows.named(new))
        return ReloadDiffersError(receipt.topic, receipt.window.key, text)

    def _check_brings_all(self, commit: WindowCommit, metadata: LoadMetadata, written: StagedFiles) -> None:
        """Raise UnprovedRowsError if the table has rows of a window without a receipt that are not in `written`.

        Nothing proves the origin of these rows, and they may be the only copies. Erased records do not count as
        missing.
        """
        key = metadata.window.key
        if not commit.holds(key):
            return
        files, found = commit.files_of(key), written.measured.rows
        held, whole = rows.readable_offsets(self.folder, key, files.paths)
        new = rows.offsets_in_files(self.folder / written.folder) if written.files else {}
        gone = rows.difference(held, new)
        named = rows.named({p: subtract(parts, metadata.erased.get(p, ())) for p, parts in gone.items()})
        if named or (not whole and (files.rows is None or files.rows > found)):
            raise UnprovedRowsError(self.table.name, key, files.rows, found, named)

    def _check_inside(self, metadata: LoadMetadata, written: StagedFiles) -> None:
        """Raise ReloadDiffersError if a file has rows outside the window's offsets, which is a defect of the engine."""
        ranges = metadata.ranges.by_partition
        for file in written.files:
            low, high = file.statistics.get("minValues", {}), file.statistics.get("maxValues", {})
            partition = low.get("kafka_partition")
            if partition is None or partition != high.get("kafka_partition"):
                continue
            r = ranges.get(partition)
            if r is None or low["kafka_offset"] not in r or high["kafka_offset"] not in r:
                text = (
                    f"the {self.engine.name} engine wrote rows of partition {partition} from offset {low['kafka_offset']} to "
                    f"{high['kafka_offset']}, outside {r or 'every range'}. Report this as a defect."
                )
                raise ReloadDiffersError(metadata.topic, metadata.window.key, text)

    def _written_again(
        self, commit: WindowCommit, receipt: Receipt, metadata: LoadMetadata, written: StagedFiles, began: float
    ) -> Receipt:
        with self._deleted_if_refused(written):
            kept = erased_rows.without(
                self.folder, written, metadata.erased, metadata.window.key, window_column=commit.is_flat
            )
        made = self.commit(commit, metadata, kept)
        again = self._receipt(made, kept.measured, began)
        # The same offsets have the same holes: what was proved of them stays proved.
        holes, gone = receipt.holes, receipt.rows - kept.measured.rows
        if gone and holes is not None:
            holes = {**holes, ERASED: holes.get(ERASED, 0) + gone}
        return self._record(replace(again, holes=holes, proved_by=receipt.proved_by))

    def _receipt(self, commit: LoadCommit, measured: Measured, began: float) -> Receipt:
        return receipt_of(
            self.ledger.lake,
            self.table,
            commit,
            measured,
            kind="load" if commit.metadata.run_id == self.run_id else "rebuilt",
            seconds=time.monotonic() - began,
        )

    def _record(self, receipt: Receipt) -> Receipt:
        self.ledger.record_receipts([receipt])
        return receipt

    @contextmanager
    def _deleted_if_refused(self, written: StagedFiles) -> Iterator[None]:
        """Delete the written files if the block fails. The block commits none of them."""
        try:
            yield
        except BaseException:
            self.delete(written)
            raise

    def _written(
        self, commit: WindowCommit, metadata: LoadMetadata, write: Write, *, loaded: bool = False
    ) -> StagedFiles:
        """Call `write` and return its result. Raises ConcurrentLoadError if `write` failed after another load committed
        the window, because that load deletes the files of all earlier loads."""
        key = metadata.window.key
        try:
            return write(metadata.load_id)
        except PlatformError as e:
            if commit.is_overtaken(key):
                raise ConcurrentLoadError(self.table.name, key) from e
            if isinstance(e, BatchTooLargeError) and (loaded or commit.holds(key)):
                raise e.of_loaded_window() from None
            if isinstance(e, DamagedBatchError) and loaded:
                raise e.of_loaded_window() from None
            raise

    def commit(self, commit: WindowCommit, metadata: LoadMetadata, written: StagedFiles) -> LoadCommit:
        """Commit the written files as the whole window. Raises whatever `WindowCommit.replace` raises."""
        try:
            return commit.replace(replace(metadata, engine=written.engine), written.files)
        except (ConcurrentLoadError, TableRefusedError, LakeNotWritableError):
            # Only these errors mean that no commit refers to the files.
            self.delete(written)
            raise

    def delete(self, written: StagedFiles) -> None:
        """Delete files that were written and will not be committed."""
        (self.folder / written.folder).delete()


def same(measured: Measured, receipt: Receipt) -> bool:
    """Return True if `measured` rows are those of a receipt."""
    return measured.offsets == receipt.offsets and measured.content == receipt.content
