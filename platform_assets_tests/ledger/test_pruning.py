"""Removal of superseded proofs, so that deep audits do not make the ledger grow: all current and historical entries
stay."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from platform_assets.checks.baseline import snapshot
from platform_assets.checks.facts import collect
from platform_assets.checks.registry import CHECKS
from platform_assets.lake.location import Lake
from platform_assets.ledger import pruning
from platform_assets.ledger.entries import Receipt, SealedWindow
from platform_assets.ledger.store import Ledger
from platform_assets.model.offsets import OffsetRange
from platform_assets.model.tables import TableRef
from platform_assets.windows.load.receipts import expired_receipt
from testbed.samples import loaded, receipt, recorded

TOPIC, OTHER = "clicks", "other"
TABLE = TableRef.raw(TOPIC)
WINDOWS = 20


@pytest.fixture(autouse=True)
def few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pruning, "_FEWEST_ROWS", 1)


@pytest.fixture
def windows(tmp_path: Path) -> list[SealedWindow]:
    """Return loaded windows with two partitions each, one of them with an accepted loss. Also load a window of another
    topic."""
    found = recorded(tmp_path, TOPIC, [{0: n * 3, 1: n * 2} for n in range(WINDOWS + 1)])
    ledger = Ledger(Lake.at(tmp_path))
    ledger.record_receipts([receipt(w, load_id=w.key, holes={}, version=n) for n, w in enumerate(found)])
    ledger.record_acceptance(found[3], {0: (OffsetRange(9, 10),)}, "gone")
    (other,) = recorded(tmp_path, OTHER, [{0: 0}, {0: 3}])
    ledger.record_receipts([receipt(other)])
    return found


def audit(root: Path, keys: Sequence[str] | None = None, by: str = "files read again") -> dict[str, Receipt]:
    """Write a proof of each window, as a deep audit does; return the entries that are current afterwards."""
    ledger = Ledger(Lake.at(root))
    known = ledger.receipts(TABLE, keys).values()
    ledger.record_receipts([replace(r, kind="proof", proved_by=by, proved_at=datetime.now(UTC)) for r in known])
    return ledger.receipts(TABLE)


def entries(root: Path) -> pa.Table:
    return DeltaTable(root / "_ledger" / "commits").to_pyarrow_table(filters=[("table", "=", TABLE.name)])


def kinds(root: Path) -> Counter[str]:
    return Counter(entries(root)["kind"].to_pylist())


def test_entries_of_many_audits_stay_few_and_say_what_the_last_one_proved(
    tmp_path: Path, windows: list[SealedWindow]
) -> None:
    most = 0
    for number in range(40):
        found = audit(tmp_path, by=f"audit {number}")
        most = max(most, entries(tmp_path).num_rows)
        assert {r.proved_by for r in found.values()} == {f"audit {number}"}
    assert most <= 5 * 2 * WINDOWS
    assert list(found) == [w.key for w in windows]
    assert kinds(tmp_path)["load"] == 2 * WINDOWS
    ledger = Ledger(Lake.at(tmp_path))
    assert ledger.accepted_losses(TABLE, windows[3].key) == {0: (OffsetRange(9, 10),)}
    assert len(ledger.receipts(TableRef.raw(OTHER))) == 1


def test_audits_of_some_windows_at_a_time_keep_the_proofs_that_count(
    tmp_path: Path, windows: list[SealedWindow]
) -> None:
    keys = [w.key for w in windows]
    proved: dict[str, str] = {}
    for number in range(40):
        some = [keys[(number * 7 + n) % WINDOWS] for n in range(9)]
        proved |= dict.fromkeys(some, f"audit {number}")
        found = audit(tmp_path, some, by=f"audit {number}")
        assert {key: found[key].proved_by for key in proved} == proved
    assert entries(tmp_path).num_rows <= 12 * WINDOWS


def test_a_proof_that_was_written_meanwhile_is_kept_and_nothing_is_removed(
    tmp_path: Path, windows: list[SealedWindow], monkeypatch: pytest.MonkeyPatch
) -> None:
    """delta-rs refuses a removal if another commit came first; the next audit's proofs trigger another attempt."""
    for _ in range(2):
        audit(tmp_path)
    remove = pruning.remove
    raced: list[int] = []

    def late(handle: DeltaTable, *more: Any) -> None:
        monkeypatch.setattr(pruning, "remove", remove)
        raced.append(entries(tmp_path).num_rows)
        Ledger(Lake.at(tmp_path)).record_acceptance(windows[5], {0: (OffsetRange(15, 16),)}, "gone too")
        remove(handle, *more)

    monkeypatch.setattr(pruning, "remove", late)
    while not raced:
        found = audit(tmp_path, by="the last")
    assert entries(tmp_path).num_rows == raced[0] + 1
    assert {r.proved_by for r in found.values()} == {"the last"}
    assert Ledger(Lake.at(tmp_path)).accepted_losses(TABLE, windows[5].key) == {0: (OffsetRange(15, 16),)}
    before = entries(tmp_path).num_rows
    for _ in range(5):
        audit(tmp_path)
    assert entries(tmp_path).num_rows < before + 5 * 2 * WINDOWS


def test_a_load_after_the_proofs_supersedes_them(tmp_path: Path, windows: list[SealedWindow]) -> None:
    ledger = Ledger(Lake.at(tmp_path))
    for _ in range(3):
        audit(tmp_path)
    again = [receipt(w, load_id=f"{w.key} again", holes={}, version=100 + n) for n, w in enumerate(windows)]
    ledger.record_receipts(again)
    assert all(r.load_id.endswith("again") for r in ledger.receipts(TABLE).values())
    for _ in range(8):
        found = audit(tmp_path)
    assert all(r.load_id.endswith("again") for r in found.values())
    assert kinds(tmp_path)["load"] == 4 * WINDOWS


def test_what_the_checks_keep_of_older_windows_outlives_the_removal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platform_assets.checks.baseline.older.RECENT", 4)
    for window in recorded(tmp_path, TOPIC, [{0: n * 3, 1: n * 2} for n in range(60)]):
        loaded(tmp_path, window, holes={}, proved_by="load digest")
    for _ in range(3):
        audit(tmp_path)
    lake = Lake.at(tmp_path)
    collect(TABLE, Ledger(lake), counting=CHECKS.values())
    kept = snapshot.load(lake, TABLE, CHECKS.values())
    assert kept is not None
    handle = lake.commits.delta()
    batches = pruning.superseded_batches(entries(tmp_path).select(pruning.COLUMNS))
    assert batches
    pruning.remove(handle, TABLE.name, batches, None)
    after = snapshot.load(lake, TABLE, CHECKS.values())
    assert after is not None
    assert after.older == kept.older


def test_the_ledger_is_read_when_it_has_doubled() -> None:
    reads = [rows for rows in range(8, 5000, 8) if pruning.is_worth_reading(rows, 8)]
    assert len(reads) <= 11
    assert pruning.is_worth_reading(5000, 4000)


def test_what_was_proved_of_a_window_before_it_expired_outlives_the_removal(
    tmp_path: Path, windows: list[SealedWindow]
) -> None:
    ledger = Ledger(Lake.at(tmp_path))
    for _ in range(2):
        audit(tmp_path)
    gone = [w.key for w in windows[:5]]
    before = ledger.receipts(TABLE, gone)
    ledger.record_receipts([expired_receipt(r, 100, "removal", r.table_id or "") for r in before.values()])
    rows = entries(tmp_path).num_rows
    for _ in range(8):
        audit(tmp_path, [w.key for w in windows[5:]])
    assert entries(tmp_path).num_rows < rows + 8 * 2 * (WINDOWS - 5)
    assert all(r.is_expired for r in ledger.receipts(TABLE, gone).values())
    assert ledger.receipts_before_expiry(TABLE, gone) == before
