"""Removing erased records from the tables of a topic: each window that contains such records is rewritten without them.

Rows come from the tables' own files, because Kafka may no longer have them. Digests show whether they are the rows of
the receipt. Before this begins, the ledger lists the offsets; then each window gets a commit. So a concurrent load
either omits the offsets, or fails because of that commit, or was committed first and has its rows removed.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from platform_assets.engines.measuring import measure_of
from platform_assets.engines.protocol import NO_ROWS, StagedFiles
from platform_assets.errors import (
    ConcurrentLoadError,
    FilesLostError,
    LakeNotWritableError,
    PlatformError,
    TableRefusedError,
)
from platform_assets.lake import data_files, flat, holdings, load_log
from platform_assets.lake.commits import WindowCommit
from platform_assets.lake.data_files import NewFile
from platform_assets.lake.holdings import WindowFiles
from platform_assets.lake.load_log import Fence, LoadCommit, LoadMetadata
from platform_assets.lake.location import Folder, load_folder
from platform_assets.lake.separating import separate
from platform_assets.lake.standing import standing
from platform_assets.ledger import cut_ranges
from platform_assets.ledger.entries import ERASED, EXPIRED, Receipt
from platform_assets.ledger.store import Ledger
from platform_assets.model.declaration import TopicDeclaration
from platform_assets.model.digest import Measured
from platform_assets.model.expectations import FiguresByDigest
from platform_assets.model.logs import logger
from platform_assets.model.offsets import Cut, OffsetRange
from platform_assets.model.state import SUPERSEDED
from platform_assets.model.tables import TableKind, TableRef
from platform_assets.model.windows import Window
from platform_assets.windows.erase import erased_logs, erased_rows
from platform_assets.windows.erase.returned import receipts_of_rows
from platform_assets.windows.load.receipts import (
    DEAD_LETTERS,
    DECODED,
    EXPIRY,
    Proof,
    expired_receipt,
    proof_of,
    receipt_of,
)

if TYPE_CHECKING:
    from platform_assets.engines.decoding.task import Measurer
    from platform_assets.engines.shared.files import FileSeries

_log = logger(__name__)

Ranges = Mapping[int, tuple[OffsetRange, ...]]
"""Offsets by partition."""
WINDOWS_PER_COMMIT: Final = 100
"""Number of windows whose receipts are written in one commit."""
_BLOCK_ROWS: Final = 16_384
_ELSEWHERE: Final[Mapping[TableKind, str]] = {
    "decoded": DEAD_LETTERS,
    "dead_letters": DECODED,
    "changes": SUPERSEDED,
}
"""Kind of the raw rows that have no row in a derived table."""
_IDENTITY: Final = ["kafka_partition", "kafka_offset"]


@dataclass(frozen=True, slots=True)
class ErasedWindow:
    """A rewritten window of a table. `rows` is the number of removed rows, and `bytes` the size of the window's new
    files."""

    table: TableRef
    window: str
    rows: int
    bytes: int


@dataclass(frozen=True)
class WindowEraser:
    """Removes records from windows of the tables of one topic. It needs neither Kafka nor Spark."""

    declaration: TopicDeclaration
    ledger: Ledger
    run_id: str = ""

    @property
    def tables(self) -> tuple[TableRef, ...]:
        """Tables that may have records of the topic. The raw table comes first, because the other tables are made from
        it."""
        d = self.declaration
        return d.raw_table, d.dead_letter_table, d.decoded_table, d.changes_table

    def erase_pending(self, window: str, erased: Ranges) -> bool:
        """Remove the rows of a window at `erased` from all tables and their logs. Return True if there were any such
        rows. Loads use this after an interrupted erasure.

        A damaged window is left for the load to handle, and no error is raised for it.
        """
        found = False
        for table in self.tables:
            for outcome in self.erase(table, {window: erased}):
                if isinstance(outcome, FilesLostError):
                    _log.warning("%s", outcome)
                elif isinstance(outcome, PlatformError):
                    raise outcome
                else:
                    found = True
        if found:
            erased_logs.clean(self.ledger, self.tables, {window: erased})
        return found

    def erase(
        self, table: TableRef, windows: Mapping[str, Ranges], sealed: Mapping[str, Window] | None = None
    ) -> Iterator[ErasedWindow | PlatformError]:
        """Remove the given offsets from `table` and its old files, window by window. Yield the rewritten windows.

        If `sealed`, which has the windows' edges, is given, every window gets a commit even if nothing is written. Then
        a load or decoding fails if it read the records before the ledger listed them.

        If a window's rows are not those of its receipt, an error is yielded for the window, which has to be loaded
        again first. Raises whatever committing raises; running it again continues.
        """
        if not load_log.exists(self.ledger.lake.table(table)):
            return
        keys = sorted(windows)
        for at in range(0, len(keys), WINDOWS_PER_COMMIT):
            yield from self._erase_batch(
                table, {key: windows[key] for key in keys[at : at + WINDOWS_PER_COMMIT]}, sealed or {}
            )

    def _erase_batch(
        self, table: TableRef, windows: Mapping[str, Ranges], sealed: Mapping[str, Window]
    ) -> Iterator[ErasedWindow | PlatformError]:
        # Opened before the receipts are read: a later commit by others is a conflict.
        opened = WindowCommit(self.ledger.lake, table, measure_of(table.kind))
        held = opened.files()
        receipts = receipts_of_rows(self.ledger, table, self.ledger.receipts(table, list(windows)), held)
        if opened.is_flat:
            separate(self.ledger.lake.table(table), [key for key in windows if key in held], measure_of(table.kind))
        raw = receipts if table.kind == "raw" else self.ledger.receipts(self.declaration.raw_table, list(windows))
        made = list[Receipt]()
        try:
            for key, erased in windows.items():
                before, receipt = held.get(key, holdings.NO_FILES), receipts.get(key)
                # Rewriting the previous window may have moved this one's rows.
                files = opened.files_now(key) if opened.is_flat and before.paths else before
                work = _Window(self, table, key, erased, files, receipt, raw.get(key), sealed.get(key))
                outcome = work.written_again(opened.of_window(before))
                if isinstance(outcome, Receipt):
                    made.append(outcome)
                    gone = 0 if receipt is None else receipt.rows - outcome.rows
                    yield ErasedWindow(table, key, gone, outcome.bytes)
                elif outcome is not None:
                    yield outcome
        finally:
            self.ledger.record_receipts(made)

    @cached_property
    def _first_cuts(self) -> dict[int, tuple[datetime, Cut]]:
        return {}

    def first_cut(self, receipt: Receipt) -> tuple[datetime, Cut]:
        """Return the first edge of the receipt's generation, and the cut at this edge."""
        known = self._first_cuts
        if receipt.generation not in known:
            known[receipt.generation] = cut_ranges.first_cut(
                self.ledger, receipt.topic, receipt.generation, receipt.window.start
            )
        return known[receipt.generation]


@dataclass(frozen=True)
class _Window:
    """One window of one table, with the window's entries in the log and the ledger."""

    eraser: WindowEraser
    table: TableRef
    key: str
    erased: Ranges
    files: WindowFiles
    receipt: Receipt | None
    raw: Receipt | None
    fenced: Window | None

    @property
    def folder(self) -> Folder:
        return self.eraser.ledger.lake.table(self.table)

    def written_again(self, commit: WindowCommit) -> Receipt | PlatformError | None:
        """Rewrite the window without the rows. Return the new receipt, which the caller records, or None if there is
        nothing to do."""
        began = time.monotonic()
        metadata = self._metadata()
        if metadata is None and self.files.paths:
            return FilesLostError(
                self.table.name, self.key, "neither the ledger nor the table's log records a load of this window"
            )
        if metadata is None:
            self._fence(commit)
            return None
        if self._is_changed():
            return FilesLostError(
                self.table.name, self.key, "the window's rows differ from those that its load committed"
            )
        try:
            if not self._holds_rows():
                known = self._of_commit(began)
                places = flat.Places(metadata.topic_id, metadata.ranges)
                if not commit.has_old_files(self.key, self.files, places):
                    self._fence(commit)
                    return known
                if known is not None:
                    return replace(self, receipt=known).written_again(commit)
            kept, whole, figures = self._kept(metadata.load_id)
            r = self.receipt
            damaged = r is not None and (whole.offsets, whole.content) != (r.offsets, r.content)
        except FilesLostError as lost:
            kept, figures, damaged = StagedFiles(load_folder(self.key, metadata.load_id), (), NO_ROWS, None), None, True
            error = lost
        else:
            error = FilesLostError(self.table.name, self.key, "the window's rows do not match its receipt")
        if damaged:
            (self.folder / kept.folder).delete()
            if self.table.kind == "raw":
                return error
            # Tables made from the raw table can be recreated, so the window is emptied and loses its declaration
            # digest.
            _log.warning("%s The window is emptied, and has to be decoded again.", error)
            kept, figures = replace(kept, files=(), measured=NO_ROWS), None
            made_from = None if metadata.made_from is None else replace(metadata.made_from, declaration="")
            metadata = replace(metadata, made_from=made_from)
        try:
            made = commit.replace_for_good(replace(metadata, figures=figures), kept.files)
        except (ConcurrentLoadError, TableRefusedError, LakeNotWritableError):
            # LakeNotWritableError may also mean that an old file could not be deleted after the commit was made.
            if not commit.is_made(metadata):
                (self.folder / kept.folder).delete()
            raise
        return self._receipt(made, kept.measured, began)

    def _metadata(self) -> LoadMetadata | None:
        """Return the metadata of the window's load, but with a new id; None if nothing was loaded."""
        load_id, run_id = str(uuid.uuid4()), self.eraser.run_id
        r, is_raw = self.receipt, self.table.kind == "raw"
        # A fold deletes past files of the state because of this, even if the erasure's process ends before its own fold.
        erased = self.erased if self.table.kind in ("raw", "changes") else {}
        if r is not None and r.table_version is not None:
            return LoadMetadata(
                r.topic,
                r.topic_id,
                r.generation,
                r.window,
                r.ranges,
                load_id=load_id,
                run_id=run_id,
                first_cut=self.eraser.first_cut(r) if is_raw else None,
                made_from=r.made_from,
                engine=r.engine,
                figures=r.figures,
                erased=erased,
                found=r.is_found,
                expired=EXPIRED if r.is_expired else "",
            )
        if not self.files.paths:
            return None
        # A load whose run ended before it recorded its receipt.
        base = self._commit()
        return None if base is None else replace(base.metadata, load_id=load_id, run_id=run_id, erased=erased)

    def _commit(self) -> LoadCommit | None:
        """The newest load of the window in the table's log."""
        return next((c for c in load_log.load_commits(self.folder) if c.metadata.window.key == self.key), None)

    def _is_changed(self) -> bool:
        """Return True if other writers have changed rows of a window without a receipt (its run ended early, or the
        ledger was lost)."""
        load = self._commit() if self.receipt is None and self.table.kind == "raw" and self.files.paths else None
        if load is None:
            return False
        now = standing(self.folder, [load], load_log.version(self.folder))[self.key]
        added = load_log.added_files(now)
        return added is not None and added[0].digest != self.files.digest

    def _fence(self, commit: WindowCommit) -> None:
        """Make concurrent loads fail, and delete their files, including files of loads that were killed."""
        if self.fenced is not None:
            commit.fence(Fence(self.fenced, str(uuid.uuid4())))

    def _holds_rows(self) -> bool:
        return any(
            bool(erased_rows.mask(block, self.erased).any())
            for path in self.files.paths
            for block in data_files.blocks(self.folder, path, self.key, _BLOCK_ROWS, _IDENTITY)
        )

    def _kept(self, load_id: str) -> tuple[StagedFiles, Measured, FiguresByDigest | None]:
        """Write the remaining rows to new files. Return these files, the measure of all rows, and the expectation
        figures of the remaining rows.

        Memory is bounded by one row group, regardless of the size of the window. Raises FilesLostError, and leaves no
        file in that case.
        """
        # Imported here because it loads compiled code, which a code location does not need.
        from platform_assets.engines.decoding.rows import by_partition, in_order

        below = load_folder(self.key, load_id)
        measure, whole, new = self._measure(), NO_ROWS, list[NewFile]()
        figures = _FiguresOf(self)
        try:
            for number, path in enumerate(self.files.paths):
                series: FileSeries | None = None
                for block in self._blocks(path):
                    rows = in_order(block)
                    whole += measure(rows)
                    left = rows.filter(pa.array(~erased_rows.mask(rows, self.erased)))
                    figures.add(left)
                    series = series or self._series(below, f"{number:05d}", block.schema)
                    for part in by_partition(left):
                        series.add(part)
                if series is not None:
                    series.close()
                    new += [NewFile(f.path, f.bytes, f.rows, f.statistics) for f in series.written]
                    figures.kept += sum((f.measured for f in series.written), NO_ROWS)
        except BaseException:
            (self.folder / below).delete()
            raise
        written = StagedFiles(below, tuple(new), figures.kept, None if self.receipt is None else self.receipt.engine)
        return written, whole, figures.finished(written)

    def _series(self, below: str, stem: str, schema: pa.Schema) -> FileSeries:
        from platform_assets.engines.shared.files import FileSeries

        series = FileSeries(
            self.folder.content, below, stem, self.eraser.declaration.records_per_file, measure=self._measure()
        )
        if self.table.kind != "raw":
            from platform_assets.engines.decoding.task import encodings

            series.dictionaries, series.deltas = encodings(schema)
        return series

    def _measure(self) -> Any:
        """Return the function that computes the digests of this table's rows."""
        return measure_of(self.table.kind)

    def _of_commit(self, began: float) -> Receipt | None:
        """Return the receipt of a commit that removed the rows, if a run ended between the commit and the receipt. An
        erasure made the commit, or upkeep, which removed the rows as expired."""
        r = self.receipt
        if r is None or r.files_digest == self.files.digest:
            return None
        made = self._commit()
        added = None if made is None or made.metadata.load_id == r.load_id else load_log.added_files(made)
        if made is None or added is None or added[0].digest != self.files.digest:
            return None
        if made.metadata.expired:
            return expired_receipt(r, made.version, made.metadata.load_id, load_log.table_id(self.folder))
        from platform_assets.engines.decoding.rows import in_order

        measure, held = self._measure(), NO_ROWS
        for path in self.files.paths:
            held += sum((measure(in_order(block)) for block in self._blocks(path)), NO_ROWS)
        return self._receipt(made, held, began)

    def _receipt(self, made: LoadCommit, kept: Measured, began: float) -> Receipt:
        seconds, lake = time.monotonic() - began, self.eraser.ledger.lake
        # Derived from the table: not a load to report to Dagster.
        return receipt_of(lake, self.table, made, kept, kind="rebuilt", seconds=seconds, proof=self._proof(kept))

    def _blocks(self, path: str) -> Iterator[pa.RecordBatch]:
        return data_files.blocks(self.folder, path, self.key, _BLOCK_ROWS)

    def _proof(self, kept: Measured) -> Proof | None:
        """Keep the proof of the window, and count the removed rows as a separate kind of hole. None if there was no
        proof."""
        if self.receipt is not None and self.receipt.is_expired:
            return Proof(self.receipt.holes or {}, EXPIRY)
        if self.table.kind != "raw":
            elsewhere = _ELSEWHERE[self.table.kind]
            return None if self.raw is None else proof_of(self.raw, elsewhere, max(self.raw.rows - kept.rows, 0))
        r = self.receipt
        if r is None or r.holes is None or r.proved_by is None:
            return None
        gone = r.rows - kept.rows
        return Proof({**r.holes, ERASED: r.holes.get(ERASED, 0) + gone} if gone else r.holes, r.proved_by)


class _FiguresOf:
    """Expectation figures of decoded rows, counted again for the remaining rows; none for tables and loads without
    expectations."""

    def __init__(self, window: _Window) -> None:
        self.kept = NO_ROWS
        self._window = window
        self._measurer: Measurer | None = None
        declared, receipt = window.eraser.declaration.decode, window.receipt
        known = None if receipt is None else receipt.figures
        wanted = window.table.kind == "decoded" and declared is not None and known is not None
        self._expected = [e for e in declared.expect if e.digest in known] if wanted else []  # type: ignore[union-attr, operator]
        self._is_wanted = wanted

    def add(self, rows: pa.RecordBatch) -> None:
        """Count remaining rows."""
        if not self._expected or not rows.num_rows:
            return
        from platform_assets.engines.decoding.task import Measurer

        if self._measurer is None:
            self._measurer = Measurer(self._expected, rows.schema)
        self._measurer.add(rows)

    def finished(self, written: StagedFiles) -> FiguresByDigest | None:
        """Return the figures, once the files are written; None if no figures are kept."""
        if not self._is_wanted:
            return None
        from platform_assets.engines.decoding import uniqueness
        from platform_assets.model.expectations import Figures

        found = {} if self._measurer is None else dict(self._measurer.figures)
        w = self._window
        for e in self._expected:
            if e.kind == "unique":
                found[e.digest] = uniqueness.measure(e, w.folder, w.key, written)
        return {e.digest: found.get(e.digest, Figures()) for e in self._expected}
