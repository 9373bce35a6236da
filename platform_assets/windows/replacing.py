"""Replacing one window of a table: files written beside the table's, compared with the receipt, and committed or deleted.

It knows nothing of where rows come from, so it serves every kind of table. Whatever could refuse a load has its say before
the commit; what was written until then is named by no commit, and deleted.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final, Literal

from platform_assets.engines.protocol import TableReader, Written
from platform_assets.errors import (
    ConcurrentLoadError,
    FilesLostError,
    LakeNotWritableError,
    LostForGoodError,
    PlatformError,
    ReloadDiffersError,
    TableRefusedError,
)
from platform_assets.lake import load_log, rows
from platform_assets.lake.commits import WindowCommit
from platform_assets.lake.data_files import past_files
from platform_assets.lake.load_folders import load_folder
from platform_assets.lake.load_log import LoadCommit, LoadMetadata
from platform_assets.lake.location import Folder
from platform_assets.ledger.entries import Receipt
from platform_assets.ledger.store import Ledger
from platform_assets.model.digest import Measured
from platform_assets.model.tables import TableRef
from platform_assets.windows import differences
from platform_assets.windows.receipts import Proof, receipt_of

_log = logging.getLogger(__name__)

_PAST_VERSIONS: Final = 50
"""How far back a damaged window is looked for, beside the version of its receipt."""

Outcome = Literal["loaded", "empty", "unchanged", "kept", "healed", "restored", "replaced"]
"""loaded: first load; empty: no offsets; unchanged: read again and proved equal; kept: its source no longer has the records,
and the table's rows are proved to be those of the load; healed: proved equal, and written again; restored: from a past
version of the table, since its source no longer has the records; replaced: by what another declaration makes of its records."""

Write = Callable[[str], Written]
"""Writes the window's files, given the load's id."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A window that is in the table, and what the last load did to have it there."""

    receipt: Receipt
    outcome: Outcome


@dataclass(frozen=True)
class WindowReplacer:
    """Replaces windows of `table`, which exists, and records their receipts."""

    table: TableRef
    ledger: Ledger
    engine: TableReader
    run_id: str

    @property
    def folder(self) -> Folder:
        """Where the table is."""
        return self.ledger.lake.table(self.table)

    def open(self) -> WindowCommit:
        """To be called before the receipt is read: what others commit from here on is a conflict."""
        return WindowCommit(self.ledger.lake, self.table)

    def receipt(self, key: str) -> Receipt | None:
        """The receipt of a window; None where it was never loaded."""
        return self.ledger.receipts(self.table, [key]).get(key)

    def first(
        self, commit: WindowCommit, metadata: LoadMetadata, write: Write, before_commit: Callable[[], None]
    ) -> Loaded:
        """Load a window that has no receipt. `before_commit` raises where the load has to be refused after all."""
        made = self.committed(commit, metadata, write, before_commit)
        self._record(made.receipt)
        return made

    def committed(
        self, commit: WindowCommit, metadata: LoadMetadata, write: Write, before_commit: Callable[[], None]
    ) -> Loaded:
        """The same without recording the receipt, which the caller does: until then the load is as one whose run was killed."""
        began = time.monotonic()
        written = self._written(commit, metadata, write)
        with self._deleted_if_refused(written):
            self._check_inside(metadata, written)
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
        """Write the window's rows again, and keep the table, heal it, restore it or refuse.

        Raises ReloadDiffersError where the rows are not those of `receipt`, and the table's are not damaged; LostForGoodError
        where they are, and no past version has them. The table is as it was then.
        """
        began = time.monotonic()
        written = self._written(commit, metadata, write)
        with self._deleted_if_refused(written):
            before_commit()
            held = self._held(receipt)
            differs = None if same(written.measured, receipt) else self._difference(receipt, written, held)
            if differs is not None and held is not None and (same(held, receipt) or held == written.measured):
                raise differs
        if differs is not None:
            self.delete(written)
            return self.restore(commit, receipt, metadata, differs.detail)
        if held is not None and same(held, receipt):
            self.delete(written)
            return Loaded(receipt, "unchanged")
        made = self.commit(commit, metadata, written)
        return Loaded(self._written_again(receipt, made, written.measured, began), "healed")

    def restore(self, commit: WindowCommit, receipt: Receipt, metadata: LoadMetadata, cause: str) -> Loaded:
        """Bring a damaged window back from a past version of the table that has the recorded rows.

        Its files are named by the new commit again. Raises LostForGoodError, with `cause`, where no version has them.
        """
        began = time.monotonic()
        for version in self.past_versions(receipt):
            measured = self._measured_at(receipt, version)
            if isinstance(measured, FilesLostError):
                _log.info("version %d of %s is no way back: %s", version, receipt.table, measured)
                continue
            if isinstance(measured, PlatformError):
                raise measured
            if not same(measured, receipt):
                continue
            below = load_folder(receipt.window.key, metadata.load_id)
            files = past_files(self.folder, receipt.window.key, version, below)
            made = self.commit(commit, metadata, Written(below, files, measured, receipt.engine))
            return Loaded(self._written_again(receipt, made, measured, began), "restored")
        raise LostForGoodError(receipt.table.name, receipt.window.key, receipt.rows, cause)

    def replace(
        self, commit: WindowCommit, metadata: LoadMetadata, written: Written, seconds: float, proof: Proof
    ) -> Receipt:
        """Commit what was written, whatever the window held; its receipt, which the caller records."""
        made = self.commit(commit, metadata, written)
        return receipt_of(
            self.ledger.lake, self.table, made, written.measured, kind="load", seconds=seconds, proof=proof
        )

    def recover(self, opened: WindowCommit, metadata: LoadMetadata) -> Receipt | None:
        """The receipt of a commit that the ledger lacks, because a run ended between the two; None without one.

        `opened` is the table before anything was decided. `metadata` says which window it has to be of, and of which offsets.
        None also where its files are lost: what it held can then be had from its source alone.
        """
        key = metadata.window.key
        if not opened.files_of(key).paths:
            return None
        commit = next((c for c in load_log.load_commits(self.folder) if c.metadata.window.key == key), None)
        if commit is None or commit.metadata.ranges != metadata.ranges or commit.metadata.topic_id != metadata.topic_id:
            return None
        began = time.monotonic()
        ((_, measured),) = self.engine.measure(self.table, [key], commit.version)
        if isinstance(measured, FilesLostError):
            _log.warning(
                "the ledger has no entry of this window to compare with, so it is loaded as if new: %s", measured
            )
            return None
        if isinstance(measured, PlatformError):
            raise measured
        _log.info("window %s was committed as version %d and not in the ledger", key, commit.version)
        return self._record(self._receipt(commit, measured, began))

    def is_intact(self, receipt: Receipt) -> bool:
        """Whether the table's rows of the window are those of the receipt: by the log first, then by reading them."""
        held = self._held(receipt)
        return held is not None and same(held, receipt)

    def _held(self, receipt: Receipt) -> Measured | None:
        """What the table's rows of the window come to; None where its files are not those of the receipt, or are lost."""
        if load_log.files_of(self.folder, receipt.window.key).digest != receipt.files_digest:
            return None
        measured = self._measured_at(receipt, load_log.version(self.folder))
        if isinstance(measured, FilesLostError):
            _log.info("%s", measured)
            return None
        if isinstance(measured, PlatformError):
            raise measured
        return measured

    def _measured_at(self, receipt: Receipt, version: int) -> Measured | PlatformError:
        ((_, measured),) = self.engine.measure(self.table, [receipt.window.key], version)
        return measured

    def past_versions(self, receipt: Receipt) -> Iterator[int]:
        """Versions in which the window had other files than now: that of the receipt, then the newest first.

        Versions that have left the table's log are passed over.
        """
        current, key = load_log.version(self.folder), receipt.window.key
        recorded = [] if receipt.table_version is None else [receipt.table_version]
        oldest = max(current - _PAST_VERSIONS, -1)
        seen = {load_log.files_of(self.folder, key).digest, load_log.NO_FILES.digest}
        for version in (*recorded, *range(current - 1, oldest, -1)):
            files = load_log.files_if_kept(self.folder, key, version)
            if files is not None and files.digest not in seen:
                seen.add(files.digest)
                yield version

    def _difference(self, receipt: Receipt, written: Written, held: Measured | None) -> ReloadDiffersError:
        gone, new = "", ""
        if held is not None and held.offsets != written.measured.offsets:
            kept = rows.offsets_of(self.folder, receipt.window.key)
            now = rows.offsets_in_files(self.folder / written.folder) if written.files else {}
            gone, new = rows.named(rows.difference(kept, now)), rows.named(rows.difference(now, kept))
        text = differences.explain(receipt, written.measured, held, gone=gone, new=new)
        return ReloadDiffersError(receipt.topic, receipt.window.key, text)

    def _check_inside(self, metadata: LoadMetadata, written: Written) -> None:
        """Raise ReloadDiffersError where a file has rows outside of the window's offsets: an engine's defect."""
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
                    f"{high['kafka_offset']}, outside of {r or 'every range'}. Report this as a defect."
                )
                raise ReloadDiffersError(metadata.topic, metadata.window.key, text)

    def _written_again(self, receipt: Receipt, made: LoadCommit, measured: Measured, began: float) -> Receipt:
        again = self._receipt(made, measured, began)
        # The same offsets have the same holes: what was proved of them stays proved.
        return self._record(replace(again, holes=receipt.holes, proved_by=receipt.proved_by))

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
    def _deleted_if_refused(self, written: Written) -> Iterator[None]:
        """Delete what was written where the block, in which nothing is committed, does not end well."""
        try:
            yield
        except BaseException:
            self.delete(written)
            raise

    def _written(self, commit: WindowCommit, metadata: LoadMetadata, write: Write) -> Written:
        """What `write` has written. Raises ConcurrentLoadError where it failed after another load committed the window,
        since that one deletes the files of all that came before it."""
        try:
            return write(metadata.load_id)
        except PlatformError as e:
            if commit.is_overtaken(metadata.window.key):
                raise ConcurrentLoadError(self.table.name, metadata.window.key) from e
            raise

    def commit(self, commit: WindowCommit, metadata: LoadMetadata, written: Written) -> LoadCommit:
        """Commit what was written as all that the window holds. Raises what `WindowCommit.replace` raises."""
        try:
            return commit.replace(replace(metadata, engine=written.engine), written.files)
        except (ConcurrentLoadError, TableRefusedError, LakeNotWritableError):
            # These alone say that no commit names the files.
            self.delete(written)
            raise

    def delete(self, written: Written) -> None:
        """Delete what was written and is not to be committed."""
        (self.folder / written.folder).delete()


def same(measured: Measured, receipt: Receipt) -> bool:
    """Whether rows are those of a receipt."""
    return measured.offsets == receipt.offsets and measured.content == receipt.content
