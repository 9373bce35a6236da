"""Explanation for a window whose records in Kafka differ from its receipt: which side changed, and what to do.

Pure. The table decides: unless its files differ from those of the receipt, its rows are measured too.
"""

from __future__ import annotations

from platform_assets.errors import REPAIR_LEDGER
from platform_assets.ledger.entries import Receipt
from platform_assets.model.digest import Measured


def explain(receipt: Receipt, now: Measured, held: Measured | None, *, gone: str = "", new: str = "") -> str:
    """Explain the difference between `receipt` and `now`, the measure of Kafka's records.

    `held` is the measure of the table's own rows; None if their files are not those of the receipt or are lost. `gone`
    lists the offsets that only the table has, and `new` those that only Kafka has.
    """
    seen = _seen(receipt, now)
    if held == now:
        return f"{seen}, but the table's own rows are exactly those in Kafka. {REPAIR_LEDGER}"
    named = "".join(f"; {what}: {text}" for what, text in (("gone", gone), ("new", new)) if text)
    return f"{seen}{named}. {_cause(receipt, now)} {_table(receipt, held)}"


def _seen(receipt: Receipt, now: Measured) -> str:
    if now.rows != receipt.rows:
        than = "fewer" if now.rows < receipt.rows else "more"
        return f"Kafka has {now.rows:,} rows, {than} than the {receipt.rows:,} in the receipt"
    same = "different content at the same offsets" if now.offsets == receipt.offsets else "different offsets"
    return f"Kafka has {now.rows:,} rows, the same number as in the receipt, but with {same}"


def _cause(receipt: Receipt, now: Measured) -> str:
    if now.rows < receipt.rows:
        return (
            "Likely cause: compaction or retention removed records, or an unclean leader election or a broker restored from "
            "a copy lost them."
        )
    if now.rows > receipt.rows:
        return (
            "Kafka never adds records to a stable range, so the log must have been rewritten after an unclean "
            "leader election, or on a "
            "broker restored from a copy."
        )
    where = "these" if now.offsets == receipt.offsets else "this range of"
    return (
        f"Likely cause: other records were written to {where} offsets after an unclean leader election, or on a broker "
        "restored from a copy."
    )


def _table(receipt: Receipt, held: Measured | None) -> str:
    if held is None:
        return (
            "The table's files do not match the receipt either, so the table was also changed, or the ledger was edited. "
            f"Compare the window with version {receipt.table_version} of {receipt.table}, and with a backup."
        )
    if (held.offsets, held.content) != (receipt.offsets, receipt.content):
        return (
            "The table's rows match neither the receipt nor Kafka: files were damaged, or the ledger was "
            "edited. Compare the table and the ledger with a backup."
        )
    return "The table keeps what was loaded first; no action is needed unless the topic itself has to be repaired."
