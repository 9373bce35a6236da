"""Derived rows whose raw rows no longer exist, because an operator has accepted the loss of the raw rows.

The keys of such rows cannot be compared, because only raw rows have keys as bytes. Decoding the window again would
delete these rows. An erasure removes them, because they may belong to the person whose records are to be erased.
"""

from __future__ import annotations

from collections.abc import Mapping

from platform_assets.errors import FilesLostError
from platform_assets.lake import load_log, rows
from platform_assets.ledger import erasure_rules
from platform_assets.ledger.entries import Receipt
from platform_assets.model.digest import digest_of
from platform_assets.model.offsets import OffsetRange, merge, ranges_of
from platform_assets.model.tables import TableRef
from platform_assets.windows.erase.erasing import WindowEraser

Ranges = Mapping[int, tuple[OffsetRange, ...]]


def find(eraser: WindowEraser) -> dict[TableRef, dict[str, Ranges]]:
    """Return the offsets of those rows in derived tables that the raw table does not have, by table and window.

    Reads only windows whose decoded rows and dead letters are not as many as their raw rows, by their receipts, or whose
    changes were made from another load than the present decoded rows. Windows whose raw rows are not those of the receipt
    are skipped, because these rows may be repaired. Files that cannot be read are not searched, because decoding replaces
    them.

    Tables come in the order in which the rows have to be removed: the changes first. While the decoded table has rows
    without a raw row, the changes are searched too, so an interrupted removal can continue.
    """
    raw, dead_letters, decoded, changes = eraser.tables
    derived = (changes, decoded, dead_letters)
    ledger = eraser.ledger
    receipts = {table: ledger.receipts(table) for table in eraser.tables}
    differing = {
        key: receipt
        for key, receipt in receipts[raw].items()
        if any(key in receipts[table] for table in derived)
        and (
            sum((receipts[t][key].offsets for t in (dead_letters, decoded) if key in receipts[t]), digest_of({}))
            != receipt.offsets
            or _is_of_other_load(receipts[changes].get(key), receipts[decoded].get(key))
        )
    }
    found: dict[TableRef, dict[str, Ranges]] = {}
    if not differing:
        return found
    held = _held_by_raw(eraser, raw, differing)
    for table in derived:
        folder = ledger.lake.table(table)
        if not load_log.exists(folder):
            continue
        opened = rows.Opened.at(folder)
        for key in sorted(held.keys() & opened.files.keys()):
            there = _ranges_of(opened, key)
            if there is not None and (left := erasure_rules.without(there, held[key])):
                found.setdefault(table, {})[key] = left
    return found


def _is_of_other_load(changes: Receipt | None, decoded: Receipt | None) -> bool:
    """Return True if a window has changes that were not made from the present decoded rows."""
    if changes is None or not changes.rows:
        return False
    return decoded is None or changes.made_from is None or changes.made_from.load_id != decoded.load_id


def _held_by_raw(eraser: WindowEraser, raw: TableRef, receipts: Mapping[str, Receipt]) -> dict[str, Ranges]:
    """Return the offsets of those windows whose raw rows are those of their receipts."""
    folder = eraser.ledger.lake.table(raw)
    opened = rows.Opened.at(folder) if load_log.exists(folder) else rows.Opened(folder, {})
    held: dict[str, Ranges] = {}
    for key, receipt in receipts.items():
        try:
            offsets = opened.offsets_of(key)
        except FilesLostError:
            continue
        if digest_of(offsets) == receipt.offsets:
            held[key] = {p: merge(ranges_of(some)) for p, some in offsets.items()}
    return held


def _ranges_of(opened: rows.Opened, key: str) -> Ranges | None:
    try:
        return {p: merge(ranges_of(offsets)) for p, offsets in opened.offsets_of(key).items()}
    except FilesLostError:
        return None
