"""Receipts of decoded windows: a rebuild restores them from the commits of both tables, many windows per query."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from deltalake import DeltaTable

from platform_assets.errors import PlatformError
from platform_assets.ledger.entries import Receipt
from platform_assets.ledger.store import Ledger
from platform_assets.model.digest import Measured
from platform_assets.model.tables import TableRef
from platform_assets.windows.recover.rebuild_decoded import rebuild_decoded
from platform_assets_tests.support.decoded_topic import DecodedTopic, InProcessEngine, order, tables_without_spark


class Counting(InProcessEngine):
    """Records each query: table, number of windows, and version."""

    queries: list[tuple[str, int, int]]

    def measure(
        self, table: TableRef, keys: Sequence[str], version: int
    ) -> Iterator[tuple[str, Measured | PlatformError]]:
        self.queries.append((table.name, len(keys), version))
        return super().measure(table, keys, version)


def like_before(receipts: dict[str, Receipt]) -> dict[str, Receipt]:
    """Return receipts without kind, time and duration. Omit the load if there are no rows."""
    return {
        k: replace(r, kind="load", load_id=r.load_id if r.table_version else "", run_id="", seconds=0.0, proved_at=None)
        for k, r in receipts.items()
    }


def test_receipts_of_many_decoded_windows_are_restored_by_a_query_a_table(tmp_path: Path) -> None:
    """Each window that was changed after its load needs a separate query, at the version of that load."""
    t = DecodedTopic(tmp_path, "orders")
    whole = [[order(10 * n), b"broken" if n % 2 else order(10 * n + 1)] for n in range(7)]
    keys = t.load(*whole[:3], [], *whole[3:])
    t.decode(*(key for key in keys if key != keys[3]))
    d = t.declaration
    DeltaTable(tmp_path / d.decoded_table.name).delete(f"window = '{keys[1]}'")
    tables = (d.decoded_table, d.dead_letter_table)
    raw = t.ledger.receipts(d.raw_table)
    before = {table: like_before(t.ledger.receipts(table)) for table in tables}
    shutil.rmtree(tmp_path / "_ledger")
    ledger = Ledger(t.lake)
    ledger.create()
    ledger.record_receipts(list(raw.values()))
    engine, told = Counting(t.lake, tables_without_spark), list[str]()
    engine.queries = []

    done = rebuild_decoded(d, ledger, engine, progress=told.append)

    assert done == 8
    found = {table: like_before(ledger.receipts(table)) for table in tables}
    for table in tables:
        found[table].pop(keys[3])
        before[table].pop(keys[3], None)
    assert found == before
    newest = {table: DeltaTable(tmp_path / table.name).version() for table in tables}
    lost = before[d.decoded_table][keys[1]].table_version
    assert engine.queries == [
        (d.decoded_table.name, 6, newest[d.decoded_table]),
        (d.decoded_table.name, 1, lost),
        (d.dead_letter_table.name, 7, newest[d.dead_letter_table]),
    ]
    assert told == [f"reading decoded windows up to {keys[-1]} (7 of 7)"]
    assert rebuild_decoded(d, ledger, engine) == 0
