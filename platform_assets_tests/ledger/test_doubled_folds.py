"""Two processes fold the same files of the ledger at once, which delta-rs does not notice: each entry is then there
twice, and all readers give the same results as before. No Kafka, no Spark."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from platform_assets.checks.baseline import older
from platform_assets.checks.baseline.history import History
from platform_assets.lake import holdings
from platform_assets.lake.location import Folder, Lake
from platform_assets.ledger import decisions, folding, unloaded
from platform_assets.ledger.store import Ledger
from platform_assets.model.offsets import OffsetRange
from platform_assets.model.tables import TableRef
from platform_assets.windows.maintain.merging import Upkeep
from platform_assets.windows.maintain.upkeep import TableUpkeep
from platform_assets_tests.support import expiries
from testbed.samples import cut, edge, receipt

RAW = TableRef.raw("t")


def fold_twice(folder: Folder, column: str, values: Sequence[str]) -> None:
    handles = [folder.delta(), folder.delta()]
    rows = handles[0].to_pyarrow_table().num_rows
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(folding, "AT_FILES", 2)
        for handle in handles:
            folding.fold(folder, handle, column, values)
    assert folder.delta().to_pyarrow_table().num_rows == 2 * rows


def test_entries_that_are_there_twice_are_read_as_before(tmp_path: Path) -> None:
    ledger = Ledger(Lake.at(tmp_path))
    ledger.create()
    for n in range(4):
        ledger.record_cuts([cut("t", edge(n), {0: 5 * n, 1: 3 * n})], edge(n - 1) if n else None)
    ledger.record_cuts([cut("t", edge(3), {0: 0, 1: 0}, generation=2)], edge(3))
    sealed = ledger.windows("t")
    for window in sealed[:2]:
        ledger.record_receipts([receipt(window)])
        ledger.record_acceptance(window, {0: [OffsetRange(window.ranges.by_partition[0].start, 7)]}, "retention")
        decisions.record(ledger.lake, decisions.Decision("t", "park", (window.key,), "me", "later"))

    def seen() -> dict[str, Any]:
        fresh = Ledger(Lake.at(tmp_path))
        entries = fresh.commit_rows(RAW)
        return {
            "rows": entries.to_pylist(),
            "few columns": fresh.commit_rows(RAW, columns=["rows"]).to_pylist(),
            "receipts": fresh.receipts(RAW),
            "accepted": fresh.accepted_losses(RAW, sealed[0].key),
            "cuts": fresh.cuts("t"),
            "newest": fresh.newest_cut("t"),
            "windows": fresh.windows("t"),
            "unloaded": unloaded.find(fresh, RAW, edge(3)),
            "parked": set(decisions.parking(fresh.lake, RAW).parked),
            "counted": History(
                pa.array([edge(n) for n in range(4)], pa.timestamp("us", "UTC")),
                fresh.cut_rows("t"),
                entries,
                pa.table({holdings.WINDOW: pa.array([], pa.string())}),
                9,
            ).loaded_as_cut.tolist(),
        }

    before = seen()
    assert len(before["rows"]) == 4
    assert before["counted"] == [True, True, False]
    fold_twice(ledger.lake.commits, "table", [RAW.ledger_name])
    fold_twice(ledger.lake.cuts, "topic", ["t"])
    fold_twice(ledger.lake.decisions, "topic", ["t"])
    assert seen() == before


@pytest.mark.parametrize("offsets", [(5, 6), (6, 5)])
def test_windows_next_to_contradicting_cuts_are_not_only_counted(offsets: tuple[int, int]) -> None:
    names = ("edge", "generation", "partition", "offset", "topic_id")
    values = [(edge(0), 1, 0, 0, "id"), *((edge(1), 1, 0, offset, "id") for offset in offsets)]
    cuts = pa.Table.from_pylist([dict(zip(names, row, strict=True)) for row in values])
    history = History(pa.array([edge(0), edge(1)], pa.timestamp("us", "UTC")), cuts, pa.table({}), pa.table({}), 9)
    assert history._ends.names.tolist() == [[1], [2]]


def test_checks_and_upkeep_find_the_same_although_entries_are_there_twice(tmp_path: Path) -> None:
    topic = expiries.made(tmp_path / "lake")
    ledger, raw, decoded = topic.ledger, topic.declaration.raw_table, topic.declaration.decoded_table
    folder, keys = ledger.lake.table(raw), expiries.keys(topic)
    folder.delta().optimize.compact()

    def seen() -> dict[str, Any]:
        fresh = Ledger(Lake.at(topic.root))
        entries, actions = fresh.commit_rows(raw), holdings.actions(folder)
        return {
            "raw": sum(entries["rows"].to_pylist()),
            "decoded": sum(fresh.commit_rows(decoded, columns=["rows"])["rows"].to_pylist()),
            "unproved": TableUpkeep(raw, fresh)._unproved(),
            "more rows": Upkeep(raw, fresh).with_more_rows(),
            "counted": older.find(fresh.cut_rows(topic.topic), entries, actions, set(keys), 10**9, (), recent=1),
        }

    before = seen()
    assert (before["raw"], before["counted"].windows) == (9 * 4, 8)
    assert (before["unproved"], before["more rows"]) == ((), {})
    # Each table has one small file of entries.
    tables = (raw, decoded, topic.declaration.dead_letter_table)
    for table in tables:
        ledger.record_receipts(list(ledger.receipts(table).values()))
    fold_twice(ledger.lake.commits, "table", [table.ledger_name for table in tables])
    assert seen() == before
