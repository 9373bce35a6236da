"""`no_gaps` finds and lists each kind of gap, without false alarms."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import unquote

import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable

from platform_assets.checks.facts import Facts, Orchestration, collect
from platform_assets.checks.findings import Finding, counted
from platform_assets.checks.rules import no_duplicates, no_gaps
from platform_assets.lake import holdings
from platform_assets.lake.location import Folder, Lake
from platform_assets.ledger.entries import SealedWindow
from platform_assets.ledger.store import Ledger
from platform_assets.model.offsets import OffsetRange, TopicRanges
from platform_assets.model.tables import TableRef
from platform_assets_tests.support.hand_made import RANGES, UNKNOWN, A, B, C, D, changed, recorded, rows_of, sound
from testbed import samples

Found = tuple[str, str, int | None, tuple[tuple[int, int], ...]]


def found(findings: tuple[Finding, ...]) -> list[Found]:
    return [(f.kind, f.window, f.partition, tuple((r.start, r.end) for r in f.ranges)) for f in findings]


def gaps(facts: Facts) -> list[Found]:
    return found(no_gaps.check_result(facts).findings)


def without(key: str, **changes: object) -> Facts:
    """Return the sound table without the load of one window."""
    facts = sound()
    return replace(
        facts,
        recorded={k: r for k, r in facts.recorded.items() if k != key},
        files={k: f for k, f in facts.files.items() if k != key},
        **changes,  # type: ignore[arg-type]
    )


# --- hand-made facts ------------------------------------------------------------------------------------------------


def test_a_table_in_order_passes_and_its_holes_are_counted() -> None:
    check_result = no_gaps.check_result(sound())
    assert check_result.passed
    figures = dict(check_result.figures)
    assert (figures["rows"], figures["offsets"], figures["offsets_without_row"]) == (36, 38, 2)
    assert (figures["windows_sealed"], figures["windows_loaded"], figures["lag_offsets"]) == (4, 4, 0)
    assert "2 offsets without a row" in check_result.headline


def test_files_that_were_only_written_anew_are_no_gap() -> None:
    """For example, OPTIMIZE writes different files with the same rows."""
    facts = sound(changed=changed(*((k, rows_of(k)) for k in (A, B, D))))
    assert gaps(facts) == []


def test_rows_that_are_there_twice_are_no_gap() -> None:
    assert gaps(sound(changed=changed((A, rows_of(A, p1=[0, 0, 1, 2, 3, 3]))))) == []


def test_a_window_that_waits_for_its_load_is_no_gap_and_counts_as_lag() -> None:
    check_result = no_gaps.check_result(without(D, waiting=frozenset([D])))
    assert check_result.passed
    assert dict(check_result.figures)["lag_offsets"] == 14
    assert "1 window waiting" in check_result.headline


def test_a_window_that_is_not_loaded_is_named_with_its_ranges_and_a_remedy() -> None:
    check_result = no_gaps.check_result(without(B))
    assert found(check_result.findings) == [("window not loaded", B, 0, ((15, 25),))]
    assert check_result.alarming
    assert f"Materialize partition {B} of raw/t" in check_result.findings[0].remedy


def test_a_window_that_nobody_asked_for_is_named_without_alarm() -> None:
    check_result = no_gaps.check_result(without(A, unasked=frozenset([A])))
    assert found(check_result.findings) == [
        ("window not asked for", A, 0, ((5, 15),)),
        ("window not asked for", A, 1, ((0, 4),)),
    ]
    assert not check_result.passed
    assert not check_result.alarming


def test_a_window_without_offsets_cannot_be_missing() -> None:
    assert gaps(without(C)) == []


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        pytest.param(17, ("cuts do not tile", B, 0, ((15, 17),)), id="gap"),
        pytest.param(12, ("cuts do not tile", B, 0, ((12, 15),)), id="overlap"),
    ],
)
def test_cuts_that_do_not_tile_are_named(start: int, expected: Found) -> None:
    ranges = TopicRanges({0: OffsetRange(start, 25), 1: OffsetRange(4, 4)})
    facts = sound(windows={**RANGES, B: ranges})
    assert gaps(facts)[0] == expected
    assert gaps(facts)[1] == ("receipt contradicts cuts", B, None, ())
    assert "rebuild-ledger" in no_gaps.check_result(facts).findings[0].remedy


def test_a_receipt_of_other_ranges_than_the_cuts_is_named() -> None:
    other = replace(recorded(A), ranges=TopicRanges({0: OffsetRange(5, 14), 1: OffsetRange(0, 4)}))
    facts = sound(recorded={**sound().recorded, A: other})
    assert gaps(facts) == [("receipt contradicts cuts", A, None, ())]


def test_a_loaded_window_without_cuts_is_named_and_its_rows_are_not_to_be_deleted() -> None:
    """The cuts were lost or rolled back, but the receipts were not."""
    check_result = no_gaps.check_result(sound(windows={k: r for k, r in RANGES.items() if k != D}))
    assert found(check_result.findings) == [("receipt contradicts cuts", D, None, ())]
    assert "rebuild-ledger" in check_result.findings[0].remedy
    touched_too = sound(windows={k: r for k, r in RANGES.items() if k != D}, changed=changed((D, rows_of(D))))
    assert gaps(touched_too) == found(check_result.findings)


@pytest.mark.parametrize(
    ("bounds", "expected"),
    [
        pytest.param(OffsetRange(5, 17), ((15, 17),), id="above"),
        pytest.param(OffsetRange(3, 15), ((3, 5),), id="below"),
        pytest.param(OffsetRange(0, 30), ((0, 5), (15, 30)), id="both"),
    ],
)
def test_a_load_that_put_rows_outside_its_window_is_named(
    bounds: OffsetRange, expected: tuple[tuple[int, int], ...]
) -> None:
    wrong = replace(recorded(A), bounds={**recorded(A).bounds, 0: bounds})
    assert gaps(sound(recorded={**sound().recorded, A: wrong})) == [("rows outside the window", A, 0, expected)]


def test_a_load_of_more_rows_than_offsets_is_named() -> None:
    wrong = replace(recorded(A), rows={0: 11, 1: 4})
    assert gaps(sound(recorded={**sound().recorded, A: wrong})) == [("rows outside the window", A, 0, ())]


@pytest.mark.parametrize(
    ("left", "expected"),
    [
        pytest.param([5, 6, 8, 9, 10, 11, 12, 13], ((7, 8), (14, 15)), id="some rows"),
        pytest.param([], ((5, 15),), id="all rows"),
        pytest.param([5, 5, 6, 6, 7, 8, 9, 10, 11, 12, 13], ((14, 15),), id="hidden by duplicates"),
    ],
)
def test_rows_that_went_since_the_load_are_named(left: list[int], expected: tuple[tuple[int, int], ...]) -> None:
    assert gaps(sound(changed=changed((A, rows_of(A, p0=left))))) == [("rows missing", A, 0, expected)]


def test_a_whole_window_that_went_is_named_in_every_partition() -> None:
    assert gaps(sound(changed=changed((D, {})))) == [
        ("rows missing", D, 0, ((25, 30),)), ("rows missing", D, 1, ((4, 10),)), ("rows missing", D, 2, ((0, 3),))
    ]  # fmt: skip


def test_rows_that_went_between_holes_are_counted_and_not_guessed() -> None:
    check_result = no_gaps.check_result(sound(changed=changed((B, rows_of(B, p0=[15, 16, 18])))))
    assert found(check_result.findings) == [("rows missing", B, 0, ())]
    assert "3 of 8 loaded rows are left" in check_result.findings[0].detail


def test_rows_that_came_since_the_load_from_elsewhere_are_named() -> None:
    facts = sound(changed=changed((A, rows_of(A, p0=[*range(5, 15), 15, 99], p2=[0, 1], p7=[3]))))
    assert gaps(facts) == [
        ("rows outside the window", A, 0, ((15, 16), (99, 100))),
        ("rows outside the window", A, 2, ((0, 2),)),
        ("rows outside the window", A, 7, ((3, 4),)),
    ]


def test_rows_of_a_window_that_was_never_sealed_are_named() -> None:
    facts = sound(
        files={**sound().files, UNKNOWN: sound().files[A]}, changed=changed((UNKNOWN, {0: [1, 2, 2], 3: [9]}))
    )
    assert gaps(facts) == [("unknown window", UNKNOWN, 0, ((1, 3),)), ("unknown window", UNKNOWN, 3, ((9, 10),))]


def test_a_window_whose_files_cannot_be_read_is_named() -> None:
    assert gaps(sound(unreadable={A: "No such file"})) == [("files lost", A, None, ())]


def test_each_finding_names_topic_window_offsets_and_what_to_do() -> None:
    for facts in (without(B), sound(changed=changed((A, {}))), sound(unreadable={A: "gone"})):
        for finding in no_gaps.check_result(facts).findings:
            assert finding.topic == "t"
            assert finding.window in finding.sentence()
            assert len(finding.remedy) > 20


# --- facts of real tables -------------------------------------------------------------------------------------------


@pytest.fixture
def windows(tmp_path: Path) -> list[SealedWindow]:
    """Return three loaded windows, of which the second has a hole, and two windows that wait to be loaded."""
    ends = [{0: 0, 1: 0}, {0: 10, 1: 5}, {0: 20, 1: 5}, {0: 20, 1: 9}, {0: 25, 1: 9}, {0: 30, 1: 9}]
    sealed = samples.recorded(tmp_path, "t", ends)
    samples.loaded(tmp_path, sealed[0])
    samples.loaded(tmp_path, sealed[1], {0: [o for o in range(10, 20) if o != 14]})
    samples.loaded(tmp_path, sealed[2])
    return sealed


@dataclass(frozen=True)
class InFlight(Orchestration):
    """An orchestrator whose runs load the windows that `chosen` returns."""

    chosen: Callable[[Collection[str]], Collection[str]]

    def in_flight(self, keys: Collection[str]) -> Collection[str]:
        return self.chosen(keys)


class NothingRequested(Orchestration):
    def requested(self, keys: Collection[str]) -> Collection[str]:
        return ()


def collected(root: Path, orchestration: Orchestration | None = None) -> Facts:
    return collect(TableRef.raw("t"), Ledger(Lake.at(root)), orchestration)


def test_facts_of_a_table_in_order_read_no_data(tmp_path: Path, windows: list[SealedWindow]) -> None:
    facts = collected(tmp_path)
    assert facts.changed == {}
    assert list(facts.windows) == [w.key for w in windows]
    assert facts.waiting == {windows[3].key, windows[4].key}
    assert facts.unknown == ()
    assert no_gaps.check_result(facts).passed


def test_a_topic_without_any_load_has_facts(tmp_path: Path) -> None:
    assert no_gaps.check_result(collected(tmp_path)).passed
    samples.recorded(tmp_path, "t", [{0: 0}, {0: 5}])
    assert no_gaps.check_result(collected(tmp_path)).passed


def test_rows_deleted_by_hand_are_named(tmp_path: Path, windows: list[SealedWindow]) -> None:
    table = DeltaTable(tmp_path / "raw" / "t")
    table.delete(f"window = '{windows[0].key}' and kafka_partition = 0 and kafka_offset >= 3 and kafka_offset < 7")
    table.delete(f"window = '{windows[1].key}' and kafka_offset = 15")
    facts = collected(tmp_path)
    assert set(facts.changed) == {windows[0].key, windows[1].key}
    assert gaps(facts) == [("rows missing", windows[0].key, 0, ((3, 7),)), ("rows missing", windows[1].key, 0, ())]


def test_rows_that_a_rogue_appended_are_named(tmp_path: Path, windows: list[SealedWindow]) -> None:
    samples.append(tmp_path, "t", samples.rows(windows[0].key, {0: [12], 4: [0]}))
    samples.append(tmp_path, "t", samples.rows("2025-01-01-00:00", {0: [1]}))
    assert gaps(collected(tmp_path)) == [
        ("rows outside the window", windows[0].key, 0, ((12, 13),)),
        ("rows outside the window", windows[0].key, 4, ((0, 1),)),
        ("unknown window", "2025-01-01-00:00", 0, ((1, 2),)),
    ]


def test_files_that_optimize_wrote_anew_are_read_and_no_alarm(tmp_path: Path, windows: list[SealedWindow]) -> None:
    samples.append(tmp_path, "t", samples.rows(windows[0].key, {0: [3]}))
    table = DeltaTable(tmp_path / "raw" / "t")
    table.optimize.compact()
    table.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    facts = collected(tmp_path)
    assert set(facts.changed) == {windows[0].key}
    assert no_gaps.check_result(facts).passed


def test_a_table_without_rows_of_a_loaded_window_is_named(tmp_path: Path, windows: list[SealedWindow]) -> None:
    DeltaTable(tmp_path / "raw" / "t").delete(f"window = '{windows[2].key}'")
    assert gaps(collected(tmp_path)) == [("rows missing", windows[2].key, 1, ((5, 9),))]


def test_a_window_that_was_passed_over_is_missing_unless_under_way_or_not_asked_for(
    tmp_path: Path, windows: list[SealedWindow]
) -> None:
    samples.loaded(tmp_path, windows[4])
    skipped = windows[3].key
    assert gaps(collected(tmp_path)) == [("window not loaded", skipped, 0, ((20, 25),))]
    assert gaps(collected(tmp_path, InFlight(lambda keys: keys))) == []
    assert gaps(collected(tmp_path, NothingRequested())) == [("window not asked for", skipped, 0, ((20, 25),))]


def test_rows_of_a_window_that_is_being_loaded_are_left_alone(tmp_path: Path, windows: list[SealedWindow]) -> None:
    samples.overwrite(tmp_path, windows[3])
    samples.overwrite(tmp_path, windows[0], {0: [1]}, load_id="again")
    busy = {windows[0].key, windows[3].key}
    facts = collected(tmp_path, InFlight(lambda keys: [k for k in keys if k in busy]))
    assert facts.changed == {}
    assert no_gaps.check_result(facts).passed


def test_rows_without_a_receipt_are_read_and_are_no_gap(tmp_path: Path, windows: list[SealedWindow]) -> None:
    """A run ended after its commit and before its receipt."""
    samples.overwrite(tmp_path, windows[4])
    facts = collected(tmp_path)
    assert set(facts.changed) == {windows[4].key}
    assert facts.waiting == {windows[3].key}
    assert no_gaps.check_result(facts).passed


def test_a_window_sealed_and_loaded_while_facts_are_gathered_is_no_alarm(
    tmp_path: Path, windows: list[SealedWindow]
) -> None:
    """The check reads the cuts first; after that, the sensor records a window without offsets."""

    def meanwhile(keys: Collection[str]) -> tuple[str, ...]:
        ledger = Ledger(Lake.at(tmp_path))
        if len(ledger.windows("t")) == len(windows):
            assert ledger.record_cuts([samples.cut("t", samples.edge(6), {0: 30, 1: 9})], samples.edge(5))
            ledger.record_receipts([samples.receipt(ledger.windows("t")[-1], {}, version=None, kind="empty")])
        return ()

    for window in windows[3:]:
        samples.loaded(tmp_path, window)
    facts = collected(tmp_path, InFlight(meanwhile))
    assert len(facts.windows) == len(facts.recorded) == len(windows) + 1
    assert gaps(facts) == []


def test_cuts_that_were_lost_are_named_though_every_receipt_is_there(
    tmp_path: Path, windows: list[SealedWindow], monkeypatch: pytest.MonkeyPatch
) -> None:
    cut_rows, end = Ledger.cut_rows, windows[1].window.end
    monkeypatch.setattr(Ledger, "windows", lambda *_, **__: windows[:2])
    monkeypatch.setattr(Ledger, "cut_rows", lambda *a: (r := cut_rows(*a)).filter(pc.less_equal(r["edge"], end)))
    assert gaps(collected(tmp_path)) == [("receipt contradicts cuts", windows[2].key, None, ())]


def test_a_data_file_that_was_removed_is_named_where_the_log_was_changed(
    tmp_path: Path, windows: list[SealedWindow]
) -> None:
    samples.append(tmp_path, "t", samples.rows(windows[0].key, {0: [3]}))
    folder = Folder.at(tmp_path / "raw" / "t")
    for path in holdings.files_of(folder, windows[0].key).paths:
        (folder.path / unquote(path)).unlink()
    assert gaps(collected(tmp_path)) == [("files lost", windows[0].key, None, ())]


def test_windows_that_were_only_rewritten_are_read_one_by_one_and_nothing_of_them_is_kept(tmp_path: Path) -> None:
    """After another program has run OPTIMIZE, all files are different, but all rows are the same."""
    per_window = 20_000
    windows = samples.recorded(tmp_path, "t", [{0: n * per_window} for n in range(9)])
    for window in windows:
        samples.loaded(tmp_path, window)

    def rewrite(some: list[SealedWindow]) -> int:
        for window in some:
            samples.overwrite(tmp_path, window, load_id="somebody's")
        tracemalloc.start()
        try:
            facts = collected(tmp_path)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert facts.changed == {}
        assert facts.rewritten == {w.key for w in windows[: windows.index(some[-1]) + 1]}
        assert no_gaps.check_result(facts).passed
        assert no_duplicates.check_result(facts).headline.endswith(
            f", including {counted(len(facts.rewritten), 'window')} whose files were read."
        )
        return peak

    one = rewrite(windows[:1])
    assert one > 8 * per_window
    assert rewrite(windows[1:]) < one + 8 * per_window


def test_changed_windows_beyond_what_memory_is_allowed_for_are_not_judged_and_named(
    tmp_path: Path, windows: list[SealedWindow], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platform_assets.checks.facts._MOST_RANGES", 4)
    samples.overwrite(tmp_path, windows[0], {0: [0, 2, 4]}, load_id="again")
    samples.overwrite(tmp_path, windows[1], {0: [10, 12, 14]}, load_id="again")
    check_result = no_gaps.check_result(collected(tmp_path))
    assert {(f.kind, f.window) for f in check_result.findings} == {
        ("rows missing", windows[0].key), ("could not tell", windows[1].key),
    }  # fmt: skip
