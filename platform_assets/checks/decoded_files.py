"""Windows of decoded tables whose files differ from those in their receipts. Both OPTIMIZE and damage change files, so
these windows are read again.

If the rows of a window are those of the load, a new receipt that lists the current files is recorded, and the window
need not be read again.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from platform_assets.checks.findings import foreign_ids
from platform_assets.engines.decoding.reading import measured_window
from platform_assets.errors import FilesLostError
from platform_assets.lake import holdings, load_log, rows
from platform_assets.lake.holdings import WindowFiles
from platform_assets.ledger.entries import Receipt
from platform_assets.ledger.store import Ledger
from platform_assets.model.digest import Measured
from platform_assets.model.tables import TableRef
from platform_assets.windows.load.receipts import proved_again
from platform_assets.windows.proved_files import recognised


@dataclass(frozen=True, slots=True)
class TableFiles:
    """One table: the windows' receipts, the files that the table's log lists for each window, and the results of
    reading some of the windows. If the rows of a window are not those of the load, `otherwise` describes the
    differences; `unread` windows were not read."""

    table: TableRef
    receipts: Mapping[str, Receipt]
    files: Mapping[str, WindowFiles]
    otherwise: Mapping[str, str]
    unread: frozenset[str] = frozenset()


def files_of(ledger: Ledger, table: TableRef, receipts: Mapping[str, Receipt], deadline: float) -> TableFiles:
    """Compare the table's files with those in `receipts`. Until `deadline` (a value of `time.monotonic`), read the
    windows whose files differ.

    If the rows of a window prove equal, a new receipt is recorded, and replaces the earlier receipt in the result.
    """
    folder = ledger.lake.table(table)
    if not load_log.exists(folder):
        return TableFiles(table, receipts, {}, {k: "the table no longer exists" for k, r in receipts.items() if r.rows})
    version = load_log.version(folder)
    files = recognised(
        ledger.lake,
        table,
        holdings.window_files(holdings.actions(folder, version)),
        receipts.values(),
        reads=time.monotonic() < deadline,
    )
    others = {
        key: receipt
        for key, receipt in receipts.items()
        if not files.get(key, holdings.NO_FILES).match(receipt.files_digest, receipt.rows)
    }
    table_id, opened = load_log.table_id(folder) if others else "", rows.Opened(folder, files)
    proved, otherwise, unread = dict[str, Receipt](), dict[str, str](), set[str]()
    for key, receipt in sorted(others.items()):
        if time.monotonic() >= deadline:
            unread.add(key)
            continue
        try:
            held = measured_window(folder, key, version)
            text = difference(receipt, held) or foreign_ids(receipt.topic_id, opened.topic_ids_of(key))
        except FilesLostError as error:
            otherwise[key] = str(error)
            continue
        if text is not None:
            otherwise[key] = text
        else:
            proved[key] = proved_again(receipt, files.get(key, holdings.NO_FILES), version, table_id)
    ledger.record_receipts(list(proved.values()))
    return TableFiles(table, {**receipts, **proved}, files, otherwise, frozenset(unread))


def difference(receipt: Receipt, held: Measured) -> str | None:
    """Describe how the rows in `held` differ from those of the load; return None if they do not differ."""
    if held.rows != receipt.rows:
        return f"the window contains {held.rows:,} rows, but its load committed {receipt.rows:,}"
    if held.offsets != receipt.offsets:
        return f"the offsets of the window's {held.rows:,} rows differ from those that the load committed"
    if held.content != receipt.content:
        return f"the content of the window's {held.rows:,} rows differs from what the load committed"
    return None
