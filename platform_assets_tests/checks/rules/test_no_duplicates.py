"""`no_duplicates` finds and lists every kind of duplicate offset, without false alarms."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from deltalake import DeltaTable

from platform_assets.checks.facts import Facts, collect
from platform_assets.checks.rules import no_duplicates
from platform_assets.lake.location import Lake
from platform_assets.ledger.entries import SealedWindow
from platform_assets.ledger.store import Ledger
from platform_assets.model.tables import TableRef
from platform_assets_tests.support.hand_made import UNKNOWN, A, B, C, D, changed, recorded, rows_of, sound
from testbed import samples

Found = tuple[str, str, int | None, tuple[tuple[int, int], ...]]
EARLIER = "2025-01-01-00:00"


def duplicates(facts: Facts) -> list[Found]:
    findings = no_duplicates.check_result(facts).findings
    return [(f.kind, f.window, f.partition, tuple((r.start, r.end) for r in f.ranges)) for f in findings]


# --- hand-made facts ------------------------------------------------------------------------------------------------


def test_a_table_in_order_passes() -> None:
    check_result = no_duplicates.check_result(sound())
    assert check_result.passed
    assert dict(check_result.figures) == {"rows": 36, "duplicated_offsets": 0}


def test_files_that_were_only_written_anew_are_no_duplicates() -> None:
    assert duplicates(sound(changed=changed(*((k, rows_of(k)) for k in (A, B, C, D))))) == []


def test_rows_that_are_missing_are_no_duplicates() -> None:
    assert duplicates(sound(changed=changed((A, {0: [6]}), (B, {})))) == []


def test_an_offset_twice_in_a_window_is_named() -> None:
    facts = sound(changed=changed((A, rows_of(A, p0=[5, 5, 6, 7, 7, 7, 8, 8], p1=[0, 1, 2, 3, 3]))))
    assert duplicates(facts) == [
        ("duplicate in a window", A, 0, ((5, 6), (7, 9))),
        ("duplicate in a window", A, 1, ((3, 4),)),
    ]
    assert f"Materialize partition {A} of raw/t" in no_duplicates.check_result(facts).findings[0].remedy
    assert dict(no_duplicates.check_result(facts).figures)["duplicated_offsets"] == 4


def test_the_same_offset_in_two_partitions_is_no_duplicate() -> None:
    assert duplicates(sound(changed=changed((D, rows_of(D, p1=[5, 6], p2=[0, 1, 2]))))) == []


def test_what_the_load_itself_counted_is_said_until_the_files_change() -> None:
    facts = sound(recorded={**sound().recorded, A: replace(recorded(A), duplicates=2)})
    assert duplicates(facts) == [("duplicate in a window", A, None, ())]
    assert duplicates(replace(facts, changed=changed((A, rows_of(A))))) == []


def test_an_offset_that_belongs_to_an_untouched_window_is_named() -> None:
    facts = sound(changed=changed((A, rows_of(A, p0=[*range(5, 15), 15, 16, 26]))))
    assert duplicates(facts) == [
        ("duplicate across windows", A, 0, ((15, 17),)),
        ("duplicate across windows", A, 0, ((26, 27),)),
    ]


def test_an_offset_that_belongs_to_a_window_that_was_read_is_named_only_if_it_is_there() -> None:
    """A row that was moved to another window is misplaced, but not a duplicate."""
    moved = sound(changed=changed((A, rows_of(A, p0=[5, 15])), (B, rows_of(B, p0=[16, 18]))))
    assert duplicates(moved) == []
    copied = sound(changed=changed((A, rows_of(A, p0=[5, 15])), (B, rows_of(B, p0=[15, 16]))))
    assert duplicates(copied) == [("duplicate across windows", A, 0, ((15, 16),))]


def test_offsets_that_no_window_holds_are_no_duplicates() -> None:
    """The foreign offsets are after the newest cut, before the first cut, or in a window that has no rows in the
    partition."""
    assert duplicates(sound(changed=changed((A, rows_of(A, p0=[1, 5, 99], p1=[0, 4], p9=[0]))))) == [
        ("duplicate across windows", A, 1, ((4, 5),))
    ]
    none_loaded = {k: r for k, r in sound().recorded.items() if k != D}
    assert duplicates(sound(recorded=none_loaded, changed=changed((A, rows_of(A, p0=[5, 26]))))) == []


def test_a_window_that_was_never_sealed_and_copies_another_is_named() -> None:
    facts = sound(changed=changed((UNKNOWN, {0: [6, 7, 300]})))
    assert duplicates(facts) == [("duplicate across windows", UNKNOWN, 0, ((6, 8),))]
    assert f"Delete the rows with window = '{UNKNOWN}'" in no_duplicates.check_result(facts).findings[0].remedy


def test_two_windows_that_were_never_sealed_and_share_offsets_are_named_once() -> None:
    facts = sound(changed=changed((UNKNOWN, {0: [300, 301]}), (EARLIER, {0: [301, 302]})))
    assert duplicates(facts) == [("duplicate across windows", EARLIER, 0, ((301, 302),))]


def test_two_sealed_windows_that_share_offsets_of_neither_are_named_once() -> None:
    facts = sound(changed=changed((A, rows_of(A, p0=[5, 300])), (B, rows_of(B, p0=[16, 300]))))
    assert duplicates(facts) == [("duplicate across windows", A, 0, ((300, 301),))]


def test_a_window_with_rows_and_no_receipt_counts_as_holding_them() -> None:
    """A run ended after its commit and before its receipt."""
    facts = sound(
        recorded={k: r for k, r in sound().recorded.items() if k != B},
        changed=changed((A, rows_of(A, p0=[5, 16])), (B, rows_of(B))),
    )
    assert duplicates(facts) == [("duplicate across windows", A, 0, ((16, 17),))]


# --- facts of real tables -------------------------------------------------------------------------------------------


@pytest.fixture
def windows(tmp_path: Path) -> list[SealedWindow]:
    sealed = samples.recorded(tmp_path, "t", [{0: 0, 1: 0}, {0: 10, 1: 5}, {0: 20, 1: 5}, {0: 20, 1: 9}])
    for window in sealed:
        samples.loaded(tmp_path, window)
    return sealed


def collected(root: Path) -> Facts:
    return collect(TableRef.raw("t"), Ledger(Lake.at(root)))


def test_a_real_table_in_order_passes_without_reading(tmp_path: Path, windows: list[SealedWindow]) -> None:
    check_result = no_duplicates.check_result(collected(tmp_path))
    assert check_result.passed
    assert check_result.headline == f"No duplicates: {len(windows)} windows checked."


def test_rows_that_a_rogue_appended_again_are_named(tmp_path: Path, windows: list[SealedWindow]) -> None:
    samples.append(tmp_path, "t", samples.rows(windows[0].key, {0: [3, 4], 1: [0]}))
    assert duplicates(collected(tmp_path)) == [
        ("duplicate in a window", windows[0].key, 0, ((3, 5),)),
        ("duplicate in a window", windows[0].key, 1, ((0, 1),)),
    ]


def test_duplicates_are_found_though_optimize_folded_them_into_one_file(
    tmp_path: Path, windows: list[SealedWindow]
) -> None:
    samples.append(tmp_path, "t", samples.rows(windows[0].key, {0: [3]}))
    DeltaTable(tmp_path / "raw" / "t").optimize.compact()
    assert duplicates(collected(tmp_path)) == [("duplicate in a window", windows[0].key, 0, ((3, 4),))]


def test_rows_copied_into_another_window_are_named(tmp_path: Path, windows: list[SealedWindow]) -> None:
    samples.append(tmp_path, "t", samples.rows(windows[1].key, {0: [3], 1: [6]}))
    samples.append(tmp_path, "t", samples.rows("2025-01-01-00:00", {1: [2]}))
    assert duplicates(collected(tmp_path)) == [
        ("duplicate across windows", "2025-01-01-00:00", 1, ((2, 3),)),
        ("duplicate across windows", windows[1].key, 0, ((3, 4),)),
        ("duplicate across windows", windows[1].key, 1, ((6, 7),)),
    ]


def test_a_window_that_was_loaded_by_an_append_twice_is_named_whole(
    tmp_path: Path, windows: list[SealedWindow]
) -> None:
    samples.append(tmp_path, "t", samples.rows(windows[2].key, {1: range(5, 9)}))
    assert duplicates(collected(tmp_path)) == [("duplicate in a window", windows[2].key, 1, ((5, 9),))]
