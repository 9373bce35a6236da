"""Expired windows of which ledger and table say different things: rows came back, for example after RESTORE, or the run
that removed rows ended before it recorded that."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from platform_assets.lake import load_log
from platform_assets.ledger import decisions
from platform_assets.ledger.entries import Receipt
from platform_assets.ledger.store import Ledger
from platform_assets.model.tables import TableRef
from platform_assets.windows.load.receipts import expired_receipt


def receipts_of_rows(
    ledger: Ledger, table: TableRef, receipts: Mapping[str, Receipt], held: Collection[str]
) -> dict[str, Receipt]:
    """Return the receipts to compare rows of `table` with; `held` are the windows of which it has files.

    For an expired window that has files again, this is the receipt from before its rows were removed, if the ledger
    still has that receipt.
    """
    back = [key for key, receipt in receipts.items() if receipt.is_expired and key in held]
    return {**receipts, **(ledger.receipts_before_expiry(table, back) if back else {})}


def record_removals(
    ledger: Ledger, table: TableRef, receipts: Mapping[str, Receipt], held: Collection[str]
) -> dict[str, Receipt]:
    """Return `receipts`. If upkeep removed the rows of some of these windows and ended before it recorded that, record it
    first. `held` are the windows of which the table has files."""
    missing = {key: r for key, r in receipts.items() if r.rows and key not in held}
    # Otherwise a missing file is damage, which must not cost a search of the log.
    if not missing or not decisions.decisions(ledger.lake, table.topic, ("expire",)):
        return dict(receipts)
    folder = ledger.lake.table(table)
    made = load_log.expiries_since(folder, {key: r.table_version or 0 for key, r in missing.items()})
    table_id = load_log.table_id(folder)
    found = {
        key: expired_receipt(missing[key], each.version, each.metadata.load_id, table_id) for key, each in made.items()
    }
    ledger.record_receipts(list(found.values()))
    return {**receipts, **found}
