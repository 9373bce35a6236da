"""Files on disk with rows of windows that were removed because they are past the topic's `keep`.

No version that the log still has may name them, so they are found on disk. Erasing by key searches those of the raw
table. Rows of the derived tables cannot be compared with a key: if raw rows of their window no longer exist on disk, an
erasure deletes these files. They could not be used any more, because decoding needs the raw rows.

A file that cannot be read is left, unless it is in the folder of such a window: another program may be writing it, and
may be about to commit it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from platform_assets.lake import expiring, holdings, load_log
from platform_assets.lake.expiring import OnDisk
from platform_assets.ledger import decisions
from platform_assets.ledger.store import Ledger
from platform_assets.model.offsets import OffsetRange
from platform_assets.model.tables import TableRef
from platform_assets.windows.erase.erasing import Ranges, WindowEraser


@dataclass(frozen=True, slots=True)
class Uncompared:
    """Rows of expired windows that no key can be compared with: the windows with all of their offsets, and the names of
    files of derived tables that hold rows of them or, being `unreadable`, may hold some."""

    windows: Mapping[str, Ranges] = field(default_factory=dict)
    files: Mapping[TableRef, list[str]] = field(default_factory=dict)
    unreadable: Mapping[TableRef, list[str]] = field(default_factory=dict)


def of_table(ledger: Ledger, raw: TableRef, table: TableRef) -> OnDisk:
    """Return the files of `table`, which is `raw` or made from it, that only past versions name and that hold, or may
    hold, rows of expired windows. Lists the table's folder, if windows of the topic have expired."""
    folder = ledger.lake.table(table)
    expired = _expired(ledger, raw)
    return expiring.files_on_disk(folder, expired) if expired and load_log.exists(folder) else OnDisk()


def uncompared(eraser: WindowEraser) -> Uncompared:
    """Return what belongs to expired windows of which not all raw rows are on disk."""
    raw, *derived = eraser.tables
    ledger, folder = eraser.ledger, eraser.ledger.lake.table(raw)
    if not any(receipt.is_expired for receipt in ledger.receipts(raw).values()):
        return Uncompared()
    # Listed before the raw table: rows of a window that is loaded again, and then decoded, are not among them.
    on_disk = {table: of_table(ledger, raw, table) for table in derived}
    of_raw = of_table(ledger, raw, raw)
    searched = {key for windows in of_raw.all.values() for key in windows}
    searched -= _in_part(
        ledger, raw, of_raw, {key for each in on_disk.values() for v in each.files.values() for key in v}
    )
    searched |= holdings.window_files(holdings.actions(folder)).keys() if load_log.exists(folder) else set()
    receipts = ledger.receipts(raw)
    left = {key: r for key, r in receipts.items() if r.is_expired and key not in searched}
    return Uncompared(
        {key: _all_offsets(receipt.ranges.by_partition) for key, receipt in left.items()},
        _with_rows({table: found.files for table, found in on_disk.items()}, left),
        _with_rows({table: found.unreadable for table, found in on_disk.items()}, left),
    )


def delete(ledger: Ledger, found: Uncompared) -> None:
    """Delete the files of `found`, except those that the newest version names by now. Raises LakeNotWritableError."""
    for table, names in found.files.items():
        folder = ledger.lake.table(table)
        folder.erase(sorted(set(names) - expiring.named(folder)))


def _with_rows(
    of_tables: Mapping[TableRef, Mapping[str, list[str]]], left: Mapping[str, object]
) -> dict[TableRef, list[str]]:
    found = {
        table: sorted(expiring.name_of(path) for path, windows in files.items() if any(key in left for key in windows))
        for table, files in of_tables.items()
    }
    return {table: names for table, names in found.items() if names}


def _in_part(ledger: Ledger, raw: TableRef, on_disk: OnDisk, windows: set[str]) -> set[str]:
    """Return those of `windows` of which raw files on disk have fewer rows than were loaded: a VACUUM was interrupted."""
    asked = windows.intersection(key for held in on_disk.files.values() for key in held)
    if not asked:
        return set()
    rows = expiring.rows_on_disk(ledger.lake.table(raw), on_disk.files, asked)
    before = ledger.receipts_before_expiry(raw, sorted(rows))
    return {key for key, number in rows.items() if key in before and number < before[key].rows}


def _all_offsets(ranges: Mapping[int, OffsetRange]) -> Ranges:
    return {partition: (r,) for partition, r in ranges.items()}


def _expired(ledger: Ledger, raw: TableRef) -> set[str]:
    """Return the windows whose rows were removed, even if a run died before it recorded the receipts."""
    folder = ledger.lake.table(raw)
    receipts = ledger.receipts(raw)
    expired = {key for key, receipt in receipts.items() if receipt.is_expired}
    if load_log.exists(folder) and decisions.decisions(ledger.lake, raw.topic, ("expire",)):
        held = holdings.window_files(holdings.actions(folder))
        expired |= {key for key, receipt in receipts.items() if receipt.rows and key not in held}
    return expired
