"""Restoring the receipts of decoded windows and of their changes from the tables' commits, after the ledger was lost
or rolled back.

A window's receipts are restored if the newest loads of both tables used one declaration and their rows add up to the
raw rows. Any other window gets no receipts, and is decoded again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from platform_assets.engines.batching import batched_windows
from platform_assets.engines.protocol import TableReader
from platform_assets.errors import FilesLostError, PlatformError
from platform_assets.lake import load_log
from platform_assets.lake.load_log import LoadCommit
from platform_assets.lake.location import Lake
from platform_assets.lake.rows import Opened
from platform_assets.lake.standing import standing
from platform_assets.ledger.entries import Receipt
from platform_assets.ledger.store import Ledger
from platform_assets.model.declaration import TopicDeclaration
from platform_assets.model.digest import Measured
from platform_assets.model.tables import TableRef
from platform_assets.windows.change.changing import MADE_BY, WindowChanger, holes_of
from platform_assets.windows.load.receipts import DEAD_LETTERS, DECODED, Proof, empty_receipt, proof_of, receipt_of
from platform_assets.windows.recover.expired_loads import newest_loads
from platform_assets.windows.recover.rebuild import is_unchanged, measured_at


def rebuild_decoded(
    declaration: TopicDeclaration,
    ledger: Ledger,
    reader: TableReader,
    *,
    progress: Callable[[str], None] = lambda text: None,
) -> int:
    """Record the receipts that the tables prove and the ledger lacks. Return the number of windows.

    The ledger must already have the receipts of the raw table. Raises whatever reading the tables raises, except for
    lost files.
    """
    tables = (declaration.decoded_table, declaration.dead_letter_table)
    raw = ledger.receipts(declaration.raw_table)
    known = [ledger.receipts(table) for table in tables]
    lacking = [key for key in raw if any(key not in receipts for receipts in known)]
    empty = [raw[key] for key in lacking if raw[key].table_version is None]
    rows, letters = (_loads(ledger, table) for table in tables)
    done = 0
    # No log contains windows without offsets: they count as decoded if the tables exist.
    if rows or letters:
        ledger.record_receipts([empty_receipt(table, receipt, "") for receipt in empty for table in tables])
        done = len(empty)
    whole = [k for k in lacking if k in rows and k in letters and _are_of_one(rows[k], letters[k])]
    readers = [_Reader(reader, ledger.lake, table) for table in tables] if whole else []
    read = 0
    for batch in batched_windows(whole, lambda key: raw[key].ranges.size):
        read += len(batch)
        progress(f"reading decoded windows up to {batch[-1]} ({read:,} of {len(whole):,})")
        began = time.monotonic()
        found = [r.measured([loads[k] for k in batch]) for r, loads in zip(readers, (rows, letters), strict=True)]
        seconds = (time.monotonic() - began) / len(batch)
        restored: list[Receipt] = []
        for key in batch:
            of_rows, of_letters = (measured.get(key) for measured in found)
            if of_rows is None or of_letters is None or of_rows.offsets + of_letters.offsets != raw[key].offsets:
                continue
            restored += [
                receipt_of(
                    ledger.lake, tables[n], load, measured, kind="rebuilt", seconds=seconds,
                    proof=proof_of(raw[key], *elsewhere), opened=readers[n].opened_for(load),
                )
                for n, load, measured, elsewhere in (
                    (1, letters[key], of_letters, (DECODED, of_rows.rows)),
                    (0, rows[key], of_rows, (DEAD_LETTERS, of_letters.rows)),
                )
            ]  # fmt: skip
            done += 1
        ledger.record_receipts(restored)
    return done


def rebuild_changes(
    declaration: TopicDeclaration, ledger: Ledger, *, progress: Callable[[str], None] = lambda text: None
) -> int:
    """Record the receipts of changes that the table proves and the ledger lacks. Return the number of windows.

    The ledger must already have the receipts of the decoded table. Windows whose newest changes were made from another
    load of the decoded window get no receipt, and their changes are made again.
    """
    changer, table = WindowChanger(declaration, ledger), declaration.changes_table
    decoded, known = ledger.receipts(declaration.decoded_table), ledger.receipts(table)
    lacking = [key for key in decoded if key not in known]
    loads = _loads(ledger, table) if load_log.exists(ledger.lake.table(table)) else {}
    empty = [empty_receipt(table, decoded[key], "") for key in lacking if decoded[key].table_version is None]
    ledger.record_receipts(empty if loads else [])
    done, restored = len(empty) if loads else 0, list[Receipt]()
    reader = _Reader(changer.engine, ledger.lake, table) if loads else None
    for key in lacking:
        load = loads.get(key)
        made = None if load is None else load.metadata.made_from
        if load is None or made is None or reader is None or made.load_id != decoded[key].load_id:
            continue
        progress(f"reading the changes of {key}")
        began = time.monotonic()
        measured = reader.measured([load]).get(key)
        if measured is not None and load.metadata.figures is not None:
            proof = Proof(holes_of(decoded[key], load.metadata.figures), MADE_BY)
            seconds = time.monotonic() - began
            restored.append(
                receipt_of(ledger.lake, table, load, measured, kind="rebuilt", seconds=seconds, proof=proof)
            )
    ledger.record_receipts(restored)
    return done + len(restored)


class _Reader:
    """Reader of windows of one table. Windows that are unchanged since their loads are read together; any other window
    is read at the version of its load."""

    def __init__(self, reader: TableReader, lake: Lake, table: TableRef) -> None:
        folder = lake.table(table)
        self._reader, self._lake, self._table = reader, lake, table
        self._newest = load_log.version(folder)
        self._opened = Opened.at(folder, self._newest)

    def opened_for(self, load: LoadCommit) -> Opened | None:
        """Return the newest version of the table if the window is unchanged since `load`."""
        return self._opened if is_unchanged(load, self._newest, self._opened.files) else None

    def measured(self, loads: Sequence[LoadCommit]) -> dict[str, Measured]:
        """Return the measures of the windows of `loads`, by key. Windows whose files are lost are left out."""
        together: list[LoadCommit] = []
        others: list[tuple[list[LoadCommit], int]] = []
        for load in loads:
            if self.opened_for(load) is None:
                others.append(([load], load.version))
            else:
                together.append(load)
        found: dict[str, Measured] = {}
        for some, version in ([(together, self._newest)] if together else []) + others:
            keys = [m.metadata.window.key for m in some]
            for key, measured in measured_at(self._reader, self._lake, self._table, keys, version):
                if isinstance(measured, FilesLostError):
                    continue
                if isinstance(measured, PlatformError):
                    raise measured
                found[key] = measured
        return found


def _are_of_one(rows: LoadCommit, letters: LoadCommit) -> bool:
    """Return True if the loads of both tables used one declaration and the same raw load."""
    return rows.metadata.made_from == letters.metadata.made_from


def _loads(ledger: Ledger, table: TableRef) -> dict[str, LoadCommit]:
    """Return the newest load of each window, with the current files if they were only rearranged."""
    folder = ledger.lake.table(table)
    loads = newest_loads(folder)
    if loads:
        table_id = load_log.table_id(folder)
        loads = [replace(load, table_id=table_id) for load in loads]
    return standing(folder, loads, load_log.version(folder)) if loads else {}
