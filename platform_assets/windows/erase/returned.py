"""Rows of expired windows that are back in a table, for example after RESTORE."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from platform_assets.ledger.entries import Receipt
from platform_assets.ledger.store import Ledger
from platform_assets.model.tables import TableRef


def receipts_of_rows(
    ledger: Ledger, table: TableRef, receipts: Mapping[str, Receipt], held: Collection[str]
) -> dict[str, Receipt]:
    """Return the receipts to compare rows of `table` with; `held` are the windows of which it has files.

    For an expired window that has files again, this is the receipt from before its rows were removed, if the ledger
    still has that receipt.
    """
    back = [key for key, receipt in receipts.items() if receipt.is_expired and key in held]
    return {**receipts, **(ledger.receipts_before_expiry(table, back) if back else {})}
