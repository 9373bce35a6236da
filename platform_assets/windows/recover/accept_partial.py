"""Accepting the remaining rows of a window that is permanently lost or cannot be proved: its rows are replaced by those
that still exist, and the other rows are accepted as lost.

The remaining rows come from Kafka, for the offsets that it still has, and from readable data files of the table's
versions. Rows from files are used unchecked, because a digest proves only a whole window, not a part of it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from platform_assets.engines.protocol import StagedFiles
from platform_assets.errors import (
    ConcurrentLoadError,
    DamagedBatchError,
    LostForGoodError,
    OffsetsExpiredError,
    PlatformError,
    UnprovedRowsError,
)
from platform_assets.lake import data_files, rows
from platform_assets.lake.commits import WindowCommit
from platform_assets.lake.load_log import LoadMetadata
from platform_assets.ledger import decisions, erasure_rules
from platform_assets.ledger.decisions import Author, Decision
from platform_assets.ledger.entries import ACCEPTED_LOSS, ERASED, Receipt, SealedWindow
from platform_assets.model.offsets import Offsets, ranges_of, size_of
from platform_assets.windows.decide.generations import Ranges
from platform_assets.windows.erase import erased_keys
from platform_assets.windows.load.loading import Loader
from platform_assets.windows.load.receipts import empty_receipt, receipt_of

_RACES: Final = 5


@dataclass(frozen=True)
class Remains:
    """The remaining rows of one damaged window, written but not committed yet.

    `from_kafka` and `from_files` are numbers of rows. `gone` are the offsets of the window without a row, except the
    `erased` offsets; they include offsets that never had a row, such as transaction markers. `rows_gone` counts only
    rows known to have existed.
    """

    loader: Loader
    sealed: SealedWindow
    receipt: Receipt
    commit: WindowCommit
    metadata: LoadMetadata
    written: StagedFiles
    from_kafka: int
    from_files: int
    gone: Ranges
    erased: Ranges
    cause: str

    @property
    def rows_gone(self) -> int:
        """Number of rows of the receipt that no longer exist anywhere; 0 if nothing proves what was loaded."""
        return self._rows_less - self.rows_erased

    @property
    def rows_erased(self) -> int:
        """Number of rows of the receipt that were erased later."""
        named = sum(size_of(parts) for parts in self.erased.values())
        return min(max(named - (self.receipt.holes or {}).get(ERASED, 0), 0), self._rows_less)

    @property
    def _rows_less(self) -> int:
        return max(self.receipt.rows - self.from_kafka - self.from_files, 0)

    def discard(self) -> None:
        """Delete the written files. The window is unchanged."""
        (self.loader.table / self.written.folder).delete()

    @contextmanager
    def discarded_if_refused(self) -> Iterator[None]:
        """Discard the written files if the block fails."""
        try:
            yield
        except BaseException:
            self.discard()
            raise

    def accept(self, author: Author) -> Receipt:
        """Commit the remaining rows as the whole window, and record the losses, the author and the reason.

        The decision lists all of its effects, and is recorded first. It takes effect with the commit, and not at all if
        the commit is refused, for example because the window was repaired in the meantime. If this call is interrupted
        after the decision, the window is still damaged, and the decision can be made again. Raises whatever committing
        raises.
        """
        began, ledger, table = time.monotonic(), self.loader.ledger, self.receipt.table
        details = {
            "rows_gone": self.rows_gone,
            "rows_from_kafka": self.from_kafka,
            "rows_from_files": self.from_files,
            "ranges": {str(p): [[r.start, r.end] for r in parts] for p, parts in self.gone.items()},
            "cause": self.cause,
        }
        with self.discarded_if_refused():
            self._check_erased()
            decision = Decision(self.sealed.topic, "loss", (self.sealed.key,), author.name, author.reason, details)
            decisions.record(ledger.lake, decision)
        made = self.loader.replacer.commit(self.commit, self.metadata, self.written)
        if self.gone:
            ledger.record_acceptance(self.sealed, self.gone, f"lost for good: {author.reason}")
        ((_, measured),) = self.loader.engine.measure(table, [self.sealed.key], made.version)
        if isinstance(measured, PlatformError):
            raise measured
        receipt = receipt_of(ledger.lake, table, made, measured, kind="load", seconds=time.monotonic() - began)
        receipt = self._with_holes(receipt)
        ledger.record_receipts([receipt])
        return receipt

    def _check_erased(self) -> None:
        """Raise ConcurrentLoadError if records were erased after these files were written, because the files may
        contain them."""
        loader, sealed = self.loader, self.sealed
        files = (quote(file.path) for file in self.written.files)
        erasure_rules.apply(loader.ledger, [sealed])
        found = erased_keys.record_found(loader.ledger, loader.table, files, sealed)
        if found or loader.erased(sealed) != self.erased:
            raise ConcurrentLoadError(self.receipt.table.name, sealed.key)

    def _with_holes(self, receipt: Receipt) -> Receipt:
        """Return the receipt with its explained holes, counting the missing rows as lost or erased."""
        if self.receipt.holes is None or self._rows_less <= 0:
            return receipt
        more = {ACCEPTED_LOSS: self.rows_gone, ERASED: self.rows_erased}
        holes = {**self.receipt.holes, **{k: self.receipt.holes.get(k, 0) + n for k, n in more.items() if n}}
        if receipt.rows + sum(holes.values()) != receipt.ranges.size:
            return receipt
        return replace(receipt, holes=holes, proved_by=ACCEPTED_LOSS, proved_at=datetime.now(UTC))


def find(loader: Loader, sealed: SealedWindow) -> Remains | None:
    """Return the remaining rows of a window that is permanently lost, or of a window without a receipt that a load
    cannot restore.

    Returns None in any other case, because loading the window again has just repaired it. Raises whatever `Loader.load`
    raises, except LostForGoodError and UnprovedRowsError. Raises DamagedBatchError and OffsetsExpiredError only for a
    window with a receipt.
    """
    try:
        loader.load(sealed.key)
    except (LostForGoodError, UnprovedRowsError) as e:
        cause = str(e)
    except (DamagedBatchError, OffsetsExpiredError) as e:
        if loader.replacer.receipt(sealed.key) is not None:
            raise
        cause = str(e)
    else:
        return None
    commit, receipt = loader.replacer.open(), loader.replacer.receipt(sealed.key)
    receipt = receipt or empty_receipt(loader.declaration.raw_table, sealed, loader.run_id)
    for _ in range(_RACES):
        erased = loader.erased(sealed)
        metadata = replace(loader.metadata(sealed), erased=erased)
        left = _written(loader, sealed, receipt, commit, metadata, cause)
        with left.discarded_if_refused():
            if not erased_keys.record_found(
                loader.ledger, loader.table, (quote(file.path) for file in left.written.files), sealed
            ):
                return left
        left.discard()
    raise ConcurrentLoadError(receipt.table.name, sealed.key)


def _written(
    loader: Loader, sealed: SealedWindow, receipt: Receipt, commit: WindowCommit, metadata: LoadMetadata, cause: str
) -> Remains:
    table = loader.table
    gatherer = loader.gatherer(sealed, commit)
    accepted = loader.ledger.accepted_losses(loader.declaration.raw_table, sealed.key)
    without = {p: (*parts, *accepted.get(p, ())) for p, parts in gatherer.not_in_kafka().items()}
    read = gatherer.read(without, metadata.load_id)
    found = rows.offsets_in_files(table / read.folder) if read.files else {}
    held, kept = dict(found), 0
    for number, path in enumerate(gatherer.past_paths(receipt)):
        part = data_files.readable_rows(table, path, sealed.key)
        if part is None:
            continue
        new = _without_held(part, receipt, held, metadata.erased)
        if new.num_rows:
            data_files.write_rows(
                table, f"{read.folder}/kept-{number:05}.parquet", new, sealed.key if commit.is_flat else None
            )
            kept += new.num_rows
    erased = metadata.erased
    gone = {p: r.minus([*ranges_of(held.get(p, ())), *erased.get(p, ())]) for p, r in sealed.ranges.items()}
    return Remains(
        loader,
        sealed,
        receipt,
        commit,
        metadata,
        replace(read, files=data_files.written_files(table, read.folder)),
        sum(len(offsets) for offsets in found.values()),
        kept,
        {p: parts for p, parts in gone.items() if parts},
        erased,
        cause,
    )


def _without_held(part: pa.Table, receipt: Receipt, held: dict[int, Offsets], erased: Ranges) -> pa.Table:
    """Return those rows of `part` in the window whose offsets are neither in `held` nor in `erased`, each row once, and
    add their offsets to `held`."""
    of_log = pc.equal(part["topic_id"], receipt.topic_id)
    partitions, offsets = (np.asarray(part[name].to_numpy()) for name in ("kafka_partition", "kafka_offset"))
    wanted: list[Offsets] = []
    for partition, r in receipt.ranges.items():
        inside = (partitions == partition) & (offsets >= r.start) & (offsets < r.end)
        for gone in erased.get(partition, ()):
            inside &= (offsets < gone.start) | (offsets >= gone.end)
        at = np.flatnonzero(np.asarray(of_log.to_numpy()) & inside)
        distinct, first = np.unique(offsets[at], return_index=True)
        known = held.get(partition, np.array([], dtype=np.int64))
        new = ~np.isin(distinct, known)
        wanted.append(at[first[new]])
        held[partition] = np.union1d(known, distinct[new])
    return part.take(pa.array(np.sort(np.concatenate(wanted))))
