"""With a snapshot of older windows, checks need not evaluate each of these windows again. Any change to an older window
invalidates the snapshot."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake

from platform_assets.checks.baseline import older, snapshot
from platform_assets.checks.facts import Facts, collect
from platform_assets.checks.findings import CheckResult
from platform_assets.checks.registry import CHECKS
from platform_assets.checks.rules import accounted, no_duplicates, no_gaps
from platform_assets.engines.shared.digests import measured
from platform_assets.lake import holdings
from platform_assets.lake.location import Lake
from platform_assets.ledger.entries import SealedWindow
from platform_assets.ledger.store import Ledger
from platform_assets.model.offsets import OffsetRange
from platform_assets.model.tables import TableRef
from platform_assets.model.windows import key_of
from platform_assets.windows.maintain.merging import Upkeep
from platform_assets_tests.support.variants import long_after
from testbed.samples import append, cut, edge, loaded, recorded, rows

TOPIC = "clicks"
RECENT = 4
WINDOWS = 14
OLDER = WINDOWS - RECENT
REMEMBERED = Path("_ledger", "baselines", f"{TOPIC}.json")


@pytest.fixture(autouse=True)
def few_recent(monkeypatch: pytest.MonkeyPatch) -> None:
    find = older.find
    monkeypatch.setattr(older, "find", lambda *given: find(*given, recent=RECENT))


@pytest.fixture
def lake(tmp_path: Path) -> list[SealedWindow]:
    """Return a table with dense windows, which were loaded one after another and are recorded in a snapshot."""
    windows = recorded(tmp_path, TOPIC, [{0: n * 3, 1: n * 2} for n in range(WINDOWS + 1)])
    for window in windows:
        loaded(tmp_path, window, holes={}, proved_by="load digest")
    assert facts(tmp_path).older.windows == OLDER
    return windows


def facts(root: Path) -> Facts:
    return collect(TableRef.raw(TOPIC), Ledger(Lake.at(root)), counting=CHECKS.values())


def table_of(root: Path) -> DeltaTable:
    return DeltaTable(root / "raw" / TOPIC)


def load_next(root: Path, number: int) -> SealedWindow:
    """Seal and load the window that has this number."""
    ledger = Ledger(Lake.at(root))
    at = number + 1
    assert ledger.record_cuts([cut(TOPIC, edge(at), {0: at * 3, 1: at * 2})], edge(number))
    window = ledger.windows(TOPIC, start=edge(number))[0]
    loaded(root, window, holes={}, proved_by="load digest")
    return window


def gathered(found: Facts) -> tuple[Any, ...]:
    """Return all facts that checks examine. The facts must be the same with and without a snapshot."""
    return (
        found.windows, found.recorded, found.files, found.waiting, found.unasked, found.changed, found.rewritten,
        found.unreadable,
        found.older, found.baseline and (found.baseline.loads, found.baseline.files),
    )  # fmt: skip


def gathered_afresh(root: Path) -> Facts:
    """Return the facts gathered without a snapshot."""
    (root / REMEMBERED).unlink(missing_ok=True)
    return facts(root)


@pytest.mark.usefixtures("lake")
def test_the_log_of_the_table_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = gathered(facts(tmp_path))
    load_next(tmp_path, WINDOWS)
    asked: list[Any] = []
    monkeypatch.setattr(holdings, "actions", lambda *args: asked.append(args))
    after = facts(tmp_path)
    assert not asked
    assert after.older.windows == OLDER
    assert len(after.windows) == RECENT + 1
    assert before[-2] == after.older


@pytest.mark.usefixtures("lake")
def test_windows_become_older_as_new_ones_come(tmp_path: Path) -> None:
    for number in range(WINDOWS, WINDOWS + 2 * RECENT):
        load_next(tmp_path, number)
        found = facts(tmp_path)
        assert found.older.windows + len(found.windows) == number + 1
    assert found.older.windows == WINDOWS + RECENT
    assert len(found.windows) == RECENT
    kept = json.loads((tmp_path / REMEMBERED).read_text())
    assert len(kept["files"]) == len(kept["loads"]) == RECENT
    assert snapshot.older(Lake.at(tmp_path), TableRef.raw(TOPIC)) == found.older
    assert gathered(found) == gathered(gathered_afresh(tmp_path))
    assert found.older.rows == sum(
        r.size for w in Ledger(Lake.at(tmp_path)).windows(TOPIC)[:-RECENT] for _, r in w.ranges.items()
    )


def delete_rows(root: Path, windows: list[SealedWindow]) -> None:
    table_of(root).delete(f"window = '{windows[2].key}' AND kafka_offset = 7")


def delete_a_window(root: Path, windows: list[SealedWindow]) -> None:
    table_of(root).delete(f"window = '{windows[2].key}'")


def append_rows(root: Path, windows: list[SealedWindow]) -> None:
    append(root, TOPIC, rows(windows[2].key, {0: [7]}))


def append_before_all(root: Path, windows: list[SealedWindow]) -> None:
    append(root, TOPIC, rows("2025-01-01-00:00", {0: [7]}))


def rearrange(root: Path, windows: list[SealedWindow]) -> None:
    append_rows(root, windows)
    assert table_of(root).optimize.compact(partition_filters=[("window", "=", windows[2].key)])["numFilesRemoved"] == 2


def edit_a_receipt(root: Path, windows: list[SealedWindow]) -> None:
    DeltaTable(root / "_ledger" / "commits").update(
        updates={"rows": "rows - 1"}, predicate=f"\"window\" = '{windows[2].key}'"
    )


def delete_a_receipt(root: Path, windows: list[SealedWindow]) -> None:
    DeltaTable(root / "_ledger" / "commits").delete(f"\"window\" = '{windows[2].key}'")


def record_a_receipt(root: Path, windows: list[SealedWindow]) -> None:
    known = Ledger(Lake.at(root)).receipts(TableRef.raw(TOPIC), [windows[2].key]).values()
    Ledger(Lake.at(root)).record_receipts([replace(receipt, holes=None) for receipt in known])


def edit_a_cut(root: Path, windows: list[SealedWindow]) -> None:
    DeltaTable(root / "_ledger" / "cuts").update(
        updates={"offset": '"offset" - 1'}, predicate='"offset" = 6 AND "partition" = 0'
    )


def append_a_cut(root: Path, windows: list[SealedWindow]) -> None:
    cuts = DeltaTable(root / "_ledger" / "cuts")
    again = cuts.to_pyarrow_table(filters=[("partition", "=", 0), ("offset", "=", 6)])
    write_deltalake(cuts, again, mode="append", commit_properties=CommitProperties(max_commit_retries=0))


def put_another_table_in_its_place(root: Path, windows: list[SealedWindow]) -> None:
    shutil.rmtree(root / "raw" / TOPIC)
    for window in windows:
        append(root, TOPIC, rows(window.key, {p: list(range(r.start, r.end)) for p, r in window.ranges.items()}))


def lose_the_ledgers_newest_commits(root: Path, windows: list[SealedWindow]) -> None:
    log = root / "_ledger" / "commits" / "_delta_log"
    newest = max(log.glob("*.json"))
    newest.unlink()


@pytest.mark.parametrize(
    "harm",
    long_after(8, [
        delete_rows, append_before_all, rearrange, edit_a_receipt, record_a_receipt, edit_a_cut, put_another_table_in_its_place,
        lose_the_ledgers_newest_commits, delete_a_window, append_rows, delete_a_receipt, append_a_cut,
    ]),
)  # fmt: skip
def test_whatever_is_done_to_an_older_window_has_all_windows_judged(
    tmp_path: Path, lake: list[SealedWindow], harm: Callable[[Path, list[SealedWindow]], None]
) -> None:
    harm(tmp_path, lake)
    assert snapshot.load(Lake.at(tmp_path), TableRef.raw(TOPIC), CHECKS.values()) is None
    assert snapshot.older(Lake.at(tmp_path), TableRef.raw(TOPIC)) == older.NONE
    assert gathered(facts(tmp_path)) == gathered(gathered_afresh(tmp_path))


@pytest.mark.parametrize("text", ["", "{", '{"version":99}'], ids=["empty", "cut short", "of another release"])
@pytest.mark.usefixtures("lake")
def test_what_cannot_be_read_is_written_again(tmp_path: Path, text: str) -> None:
    (tmp_path / REMEMBERED).write_text(text)
    assert snapshot.load(Lake.at(tmp_path), TableRef.raw(TOPIC), CHECKS.values()) is None
    assert facts(tmp_path).older.windows == OLDER
    assert snapshot.load(Lake.at(tmp_path), TableRef.raw(TOPIC), CHECKS.values()) is not None


@pytest.mark.usefixtures("lake")
def test_folding_the_ledgers_files_changes_nothing(tmp_path: Path) -> None:
    for name, column, value in (("cuts", "topic", TOPIC), ("commits", "table", f"raw/{TOPIC}")):
        DeltaTable(tmp_path / "_ledger" / name).optimize.compact(partition_filters=[(column, "=", value)])
    assert snapshot.load(Lake.at(tmp_path), TableRef.raw(TOPIC), CHECKS.values()) is not None


@pytest.mark.usefixtures("lake")
def test_another_topics_entries_change_nothing(tmp_path: Path) -> None:
    for window in recorded(tmp_path, "other", [{0: 0}, {0: 3}]):
        loaded(tmp_path, window)
    assert snapshot.load(Lake.at(tmp_path), TableRef.raw(TOPIC), CHECKS.values()) is not None


def test_a_recent_window_with_rows_of_an_older_one_names_both(tmp_path: Path, lake: list[SealedWindow]) -> None:
    append(tmp_path, TOPIC, rows(lake[-1].key, {0: [7]}))
    assert snapshot.load(Lake.at(tmp_path), TableRef.raw(TOPIC), CHECKS.values()) is not None
    (found,) = no_duplicates.check_result(facts(tmp_path)).findings
    assert (found.window, found.ranges) == (lake[-1].key, (OffsetRange(7, 8),))
    assert lake[2].key in found.detail


def test_any_history_is_judged_as_if_nothing_were_kept(
    tmp_path: Path, lake: list[SealedWindow], rng: random.Random
) -> None:
    windows = list(lake)
    actions = [delete_rows, append_rows, edit_a_receipt, delete_a_receipt, record_a_receipt]
    for _ in range(12):
        if rng.random() < 0.7:
            windows.append(load_next(tmp_path, len(windows)))
        else:
            # The third window after this one may be older or recent.
            start = rng.randrange(len(windows) - 3)
            rng.choice(actions)(tmp_path, windows[start:])
        remembered = judged(facts(tmp_path))
        kept = (tmp_path / REMEMBERED).read_bytes()
        assert remembered == judged(gathered_afresh(tmp_path))
        (tmp_path / REMEMBERED).write_bytes(kept)


def judged(found: Facts) -> list[CheckResult]:
    """Return the results. They must not depend on how many windows are only counted."""
    return [no_gaps.check_result(found), no_duplicates.check_result(found), accounted.check_result(found, ())]


@pytest.fixture
def flat(flat: None, tmp_path: Path) -> list[SealedWindow]:
    """Return a flat table with correct digests and without a snapshot."""
    windows = recorded(tmp_path, TOPIC, [{0: n * 3, 1: n * 2} for n in range(WINDOWS + 1)])
    for window in windows:
        all_of_it = rows(window.key, {p: list(range(r.start, r.end)) for p, r in window.ranges.items()})
        content = measured(all_of_it.combine_chunks().to_batches()[0]).content.total
        loaded(tmp_path, window, holes={}, proved_by="load digest", content_digest=content)
    return windows


@pytest.mark.parametrize("merged", long_after(1, [OLDER - 2, OLDER, OLDER + 2]))
def test_upkeep_leaves_older_windows_counted(
    tmp_path: Path, flat: list[SealedWindow], merged: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Upkeep has compared the rows with the receipts. A commit by another program is not trusted."""
    assert facts(tmp_path).older.windows == OLDER
    (done,) = Upkeep(TableRef.raw(TOPIC), Ledger(Lake.at(tmp_path))).run(flat[merged].key)
    assert done.version == table_of(tmp_path).version()
    with monkeypatch.context() as without:
        without.setattr(snapshot, "capture", lambda *given: pytest.fail("all windows were examined again"))
        found = facts(tmp_path)
    assert found.older.windows == OLDER
    assert [*found.changed, *found.rewritten, *found.unreadable] == []
    assert judged(found) == judged(gathered_afresh(tmp_path))
    table_of(tmp_path).delete(f"window = '{flat[1].key}' and kafka_partition = 0")
    assert set(facts(tmp_path).changed) == {flat[1].key}


@pytest.mark.usefixtures("flat")
def test_a_strangers_optimize_has_all_windows_judged(tmp_path: Path) -> None:
    assert facts(tmp_path).older.windows == OLDER
    note = CommitProperties(custom_metadata={"userMetadata": '{"by":"somebody"}'})
    table_of(tmp_path).optimize.compact(commit_properties=note)
    assert snapshot.load(Lake.at(tmp_path), TableRef.raw(TOPIC)) is None
    found = facts(tmp_path)
    assert found.older.windows == OLDER
    assert [*found.changed, *found.rewritten, *found.unreadable] == []


def test_older_rows_in_a_file_that_newer_windows_share_are_missed_when_they_go(
    tmp_path: Path, flat: list[SealedWindow]
) -> None:
    """A file of a flat table contains older and newer windows, of which the snapshot lists only the newer ones. In this
    test, the file that replaces it lacks all older windows."""
    (merged,) = Upkeep(TableRef.raw(TOPIC), Ledger(Lake.at(tmp_path))).run(key_of(edge(1000)))
    assert merged.version == table_of(tmp_path).version()
    assert facts(tmp_path).older.windows == OLDER
    table_of(tmp_path).delete(f"window < '{flat[OLDER].key}'")
    found = facts(tmp_path)
    assert gathered(found) == gathered(gathered_afresh(tmp_path))
    assert {w.key for w in flat[:OLDER]} <= set(found.changed)
