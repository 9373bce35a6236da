"""Receipts: the rows that a load put into the table, as measured in the table's files, and what the rows' digests
prove."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from platform_assets.errors import LoadError
from platform_assets.lake import holdings, load_log, rows
from platform_assets.lake.holdings import WindowFiles
from platform_assets.lake.load_log import LoadCommit
from platform_assets.lake.location import Lake
from platform_assets.ledger.entries import ERASED, EXPIRED, CommitKind, PartitionReceipt, Receipt, SealedWindow
from platform_assets.model.digest import Measured, dense_digest
from platform_assets.model.offsets import OffsetRange, repeats
from platform_assets.model.tables import TableRef

DEAD_LETTERS, DECODED, WITHOUT_ROW = "dead letters", "decoded", "without a raw row"
"""Kinds of offsets that have no row in one of the two tables made from a raw table."""
EXPIRY = "expired by `keep`"
"""Proof of windows whose rows were removed because they are past the topic's `keep`."""


@dataclass(frozen=True, slots=True)
class Proof:
    """Proof from a window's source: the number of offsets without a row, by kind, and that no offset has two rows."""

    holes: Mapping[str, int]
    by: str


def receipt_of(
    lake: Lake,
    table: TableRef,
    commit: LoadCommit,
    measured: Measured,
    *,
    kind: CommitKind,
    seconds: float,
    proof: Proof | None = None,
    opened: rows.Opened | None = None,
) -> Receipt:
    """Return the receipt of `commit` to `table`. `measured` is the measure of the window's rows, `seconds` the duration
    of the load.

    If there are as many rows as offsets and the digest is that of exactly these offsets, the window is dense and has no
    duplicates. Any other window without a `proof` is read back to find duplicates, and stays open until the brokers
    account for its holes. `opened` is a version of the table in which the window is as `commit` left it. Raises
    LoadError if Spark observed a different number of rows than the files contain.
    """
    m, path = commit.metadata, lake.table(table)
    files, statistics = load_log.added_files(commit) or holdings.files_at(path, m.window.key, commit.version)
    # These are all of the window's files, so the table, which may be large, is not opened again.
    opened = opened or rows.Opened(path, {m.window.key: files})
    found = rows.from_statistics(statistics)
    if found is None:
        found = opened.partition_rows(m.window.key)
    held = sum(p.rows for p in found.values())
    if held != measured.rows:
        raise LoadError(
            f"window {m.window} of {table}: Spark observed {measured.rows} rows, but the files of version {commit.version} "
            f"hold {held}. No receipt was written; load the window again."
        )
    if m.expired:
        kind, proof = EXPIRED, proof or Proof({EXPIRED: m.ranges.size}, EXPIRY)
    if proof is None and measured.rows == m.ranges.size and measured.offsets == dense_digest(m.ranges):
        proof = Proof({}, "load digest")
    return Receipt(
        table=table,
        topic=m.topic,
        topic_id=m.topic_id,
        generation=m.generation,
        window=m.window,
        kind="found" if m.found and proof is None else kind,
        partitions={p: _of_partition(r, found.get(p)) for p, r in m.ranges.items()},
        offsets_digest=measured.offsets.total,
        content_digest=measured.content.total,
        duplicates=0 if proof is not None else _duplicates(opened, m.window.key),
        holes=None if proof is None else proof.holes,
        proved_by=None if proof is None else proof.by,
        proved_at=None if proof is None else datetime.now(UTC),
        bytes=files.bytes,
        table_version=commit.version,
        files_digest=files.digest,
        load_id=m.load_id,
        run_id=m.run_id,
        seconds=round(seconds, 3),
        made_from=m.made_from,
        engine=m.engine,
        figures=m.figures,
        table_id=commit.table_id or load_log.table_id(path),
    )


def proof_of(raw: Receipt, elsewhere: str, rows: int) -> Proof:
    """Return the proof from the raw load, whose offsets equal those of both tables together. Erased records are in
    neither table."""
    erased = (raw.holes or {}).get(ERASED, 0)
    holes = {elsewhere: rows, WITHOUT_ROW: raw.missing - erased, ERASED: erased}
    return Proof({kind: number for kind, number in holes.items() if number}, "offsets of the raw load")


def proved_again(receipt: Receipt, files: WindowFiles, version: int, table_id: str) -> Receipt:
    """Return the receipt of a window whose rows in `version` of the table with this id are proved to be those of the
    load."""
    return replace(
        receipt,
        kind=receipt.kind if receipt.is_found or receipt.is_expired else "proof",
        table_version=version,
        files_digest=files.digest,
        bytes=files.bytes,
        proved_by=receipt.proved_by or "files read again",
        proved_at=datetime.now(UTC),
        table_id=table_id,
    )


def expired_receipt(receipt: Receipt, version: int, load_id: str, table_id: str, run_id: str = "") -> Receipt:
    """Return the receipt of a window after `version` of the table removed its rows as expired; `receipt` is the one before."""
    holes = dict(receipt.holes or {})
    if receipt.rows:
        holes[EXPIRED] = holes.get(EXPIRED, 0) + receipt.rows
    return replace(
        receipt,
        kind=EXPIRED,
        partitions={p: _of_partition(part.range, None) for p, part in receipt.partitions.items()},
        offsets_digest=0,
        content_digest=0,
        duplicates=0,
        bytes=0,
        table_version=version,
        files_digest=holdings.NO_FILES.digest,
        load_id=load_id,
        run_id=run_id,
        seconds=0.0,
        holes=holes,
        proved_by=EXPIRY,
        proved_at=datetime.now(UTC),
        made_from=None,
        confirmed_by=None,
        figures=None,
        table_id=table_id,
    )


def empty_receipt(table: TableRef, sealed: SealedWindow | Receipt, run_id: str) -> Receipt:
    """Return the receipt of a window without offsets. Such a window counts as loaded without a run, because nothing can
    be missing."""
    return Receipt(
        table=table,
        topic=sealed.topic,
        topic_id=sealed.topic_id,
        generation=sealed.generation,
        window=sealed.window,
        kind="empty",
        partitions={p: _of_partition(r, None) for p, r in sealed.ranges.items()},
        offsets_digest=0,
        content_digest=0,
        duplicates=0,
        holes={},
        proved_by="no offsets",
        proved_at=datetime.now(UTC),
        bytes=0,
        table_version=None,
        files_digest=holdings.NO_FILES.digest,
        load_id=str(uuid.uuid4()),
        run_id=run_id,
        seconds=0.0,
    )


def _of_partition(r: OffsetRange, found: rows.PartitionRows | None) -> PartitionReceipt:
    if found is None:
        return PartitionReceipt(r, 0, None, None)
    return PartitionReceipt(r, found.rows, found.first_offset, found.last_offset)


def _duplicates(opened: rows.Opened, key: str) -> int:
    """Return the number of rows that share their offset with another row."""
    return sum(len(repeats(offsets)) for offsets in opened.offsets_of(key).values())
