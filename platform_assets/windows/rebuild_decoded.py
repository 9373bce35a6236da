"""Restoring the receipts of decoded windows from the commits of both tables, after the ledger was lost or rolled back.

A window has its receipts again where the newest loads of both tables are of one declaration and their rows add up to the raw ones.
Any other is left without, and is decoded again.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from platform_assets.engines.protocol import TableReader
from platform_assets.errors import FilesLostError, PlatformError
from platform_assets.lake.load_log import LoadCommit
from platform_assets.ledger.entries import Receipt
from platform_assets.ledger.store import Ledger
from platform_assets.model.declaration import TopicDeclaration
from platform_assets.model.digest import Measured
from platform_assets.model.tables import TableRef
from platform_assets.windows.rebuild import newest_loads
from platform_assets.windows.receipts import DEAD_LETTERS, DECODED, empty_receipt, proof_of, receipt_of


def rebuild_decoded(
    declaration: TopicDeclaration,
    ledger: Ledger,
    reader: TableReader,
    *,
    progress: Callable[[str], None] = lambda text: None,
) -> int:
    """Record the receipts that the ledger lacks and the tables prove; gives for how many windows.

    The ledger has those of the raw table already. Raises what reading the tables raises, but for lost files.
    """
    tables = (declaration.decoded_table, declaration.dead_letter_table)
    raw = ledger.receipts(declaration.raw_table)
    known = [ledger.receipts(table) for table in tables]
    lacking = [key for key in raw if any(key not in receipts for receipts in known)]
    empty = [raw[key] for key in lacking if raw[key].table_version is None]
    rows, letters = (_loads(ledger, table) for table in tables)
    done = 0
    # Windows without offsets are in no log: they count as decoded where the tables are.
    if rows or letters:
        ledger.record_receipts([empty_receipt(table, receipt, "") for receipt in empty for table in tables])
        done = len(empty)
    for key in lacking:
        if key not in rows or key not in letters or rows[key].metadata.made_from != letters[key].metadata.made_from:
            continue
        progress(f"reading decoded window {key}")
        began = time.monotonic()
        of_rows, of_letters = (_measured(reader, t, c) for t, c in zip(tables, (rows[key], letters[key]), strict=True))
        if of_rows is None or of_letters is None or of_rows.offsets + of_letters.offsets != raw[key].offsets:
            continue
        seconds = time.monotonic() - began
        both: list[Receipt] = [
            receipt_of(
                ledger.lake,
                table,
                load,
                measured,
                kind="rebuilt",
                seconds=seconds,
                proof=proof_of(raw[key], *elsewhere),
            )
            for table, load, measured, elsewhere in (
                (tables[1], letters[key], of_letters, (DECODED, of_rows.rows)),
                (tables[0], rows[key], of_rows, (DEAD_LETTERS, of_letters.rows)),
            )
        ]
        ledger.record_receipts(both)
        done += 1
    return done


def _loads(ledger: Ledger, table: TableRef) -> dict[str, LoadCommit]:
    return {load.metadata.window.key: load for load in newest_loads(ledger.lake.table(table))}


def _measured(reader: TableReader, table: TableRef, load: LoadCommit) -> Measured | None:
    ((_, measured),) = reader.measure(table, [load.metadata.window.key], load.version)
    if isinstance(measured, FilesLostError):
        return None
    if isinstance(measured, PlatformError):
        raise measured
    return measured
