"""Older windows without problems are only counted, and the results stay the same. If such a window later has a problem,
that window and all later windows are evaluated again."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, write_deltalake

from platform_assets.checks.baseline import older
from platform_assets.checks.check import Check
from platform_assets.checks.evaluation import Evaluation
from platform_assets.checks.facts import Orchestration, collect
from platform_assets.checks.findings import CheckResult
from platform_assets.checks.registry import CHECKS
from platform_assets.engines.choice import choose_engine
from platform_assets.lake import holdings, raw_table
from platform_assets.lake.location import Folder, Lake
from platform_assets.ledger.entries import Receipt, RecordedCut
from platform_assets.ledger.store import Ledger
from platform_assets.model.declaration import TopicDeclaration
from platform_assets.model.offsets import Cut
from platform_assets.model.tables import TableRef
from platform_assets_tests.support.erasures import evaluation_of
from platform_assets_tests.support.expiries import EACH, OLD, SEEN, keys, made, run, table
from testbed.samples import START, append, loaded, receipt, recorded, rows

TOPIC = "clicks"
RECENT = 5
WINDOWS = 24


def asked(*_: Any) -> NoReturn:
    pytest.fail("asked a broker or Spark")


def lake(root: Path, change: Callable[[list[Receipt]], list[Receipt]] = lambda receipts: receipts) -> None:
    """Return a table that has many windows and two partitions. In each window, the second partition has one marker; in
    every fifth window, it is empty."""
    ends = list(
        itertools.accumulate(({0: 3, 1: 0 if n % 5 == 0 else 2} for n in range(WINDOWS)), _grown, initial={0: 7, 1: 0})
    )
    windows = recorded(root, TOPIC, ends)
    raw_table.create(Folder.at(root / "raw" / TOPIC), TOPIC)
    held = {w.key: {0: _offsets(w.ranges, 0), 1: _offsets(w.ranges, 1)[:1]} for w in windows}
    append(root, TOPIC, pa.concat_tables([rows(key, offsets) for key, offsets in held.items()]))
    files = holdings.window_files(holdings.actions(Folder.at(root / "raw" / TOPIC)))
    receipts = [
        receipt(
            w,
            held[w.key],
            load_id=f"load of {w.key}",
            kind="rebuilt",
            bytes=files[w.key].bytes,
            files_digest=files[w.key].digest,
            holes={"commit markers": 1} if w.ranges.by_partition[1].size else {},
            proved_by="broker evidence",
        )
        for w in windows
    ]
    Ledger(Lake.at(root)).record_receipts(change(receipts))


def _grown(ends: dict[int, int], more: dict[int, int]) -> dict[int, int]:
    return {p: ends[p] + more[p] for p in ends}


def _offsets(ranges: Any, partition: int) -> list[int]:
    r = ranges.by_partition[partition]
    return list(range(r.start, r.end))


@pytest.fixture(autouse=True)
def few_recent(monkeypatch: pytest.MonkeyPatch) -> None:
    find = older.find
    monkeypatch.setattr(older, "find", lambda *given: find(*given, recent=RECENT))


BY_LOG = ("no_gaps", "no_duplicates")
"""Checks that query no service, whatever they find."""


def check_results(root: Path, *, whole: bool, checks: Iterable[str] = CHECKS) -> list[CheckResult]:
    evaluation = Evaluation(
        TopicDeclaration(TOPIC, "0 * * * *", START),
        Ledger(Lake.at(root)),
        Orchestration(),
        asked,
        asked,
        choose_engine(Lake.at(root), asked, asked),
        counting=() if whole else CHECKS.values(),
    )
    return [CHECKS[name].evaluate(evaluation) for name in checks]


def unlike(some: list[CheckResult], others: list[CheckResult]) -> list[str]:
    """Return the checks whose results differ. The part of a headline that says how many windows were only counted may
    differ."""
    return [one.check for one, other in zip(some, others, strict=True) if one != other]


def facts(root: Path) -> Any:
    return collect(TableRef.raw(TOPIC), Ledger(Lake.at(root)), counting=CHECKS.values())


def test_verdicts_are_the_same_with_older_windows_only_counted(tmp_path: Path) -> None:
    lake(tmp_path)
    found = facts(tmp_path)
    assert (found.older.windows, len(found.windows), len(found.recorded)) == (WINDOWS - RECENT, RECENT, RECENT)
    counted, whole = check_results(tmp_path, whole=False), check_results(tmp_path, whole=True)
    assert unlike(counted, whole) == ["agrees_with_ledger"]
    assert all(v.passed for v in (*counted, *whole))
    agreement = list(CHECKS).index("agrees_with_ledger")
    by = "Agreed: table log and ledger agree on"
    assert (
        counted[agreement].headline
        == f"{by} {RECENT} windows; {WINDOWS - RECENT} older windows have not changed since they were last checked."
    )
    assert whole[agreement].headline == f"{by} {WINDOWS} windows."


def test_few_windows_are_all_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake(tmp_path)
    monkeypatch.undo()
    assert facts(tmp_path).older == older.NONE


RECEIPT_CHANGES: dict[str, Callable[[Receipt], Receipt]] = {
    "fewer rows": lambda r: _with_part(r, rows=2),
    "rows outside": lambda r: _with_part(r, first_offset=0),
    "duplicates": lambda r: replace(r, duplicates=1),
    "not accounted for": lambda r: replace(r, holes=None),
    "holes too many": lambda r: replace(r, holes={"commit markers": 9}),
    "other files": lambda r: replace(r, files_digest="x"),
    "another topic": lambda r: replace(r, topic_id="B" * 22),
    "a partition less": lambda r: replace(r, partitions={0: r.partitions[0]}),
}


def _with_part(r: Receipt, **changes: Any) -> Receipt:
    return replace(r, partitions={**r.partitions, 0: replace(r.partitions[0], **changes)})


@pytest.mark.parametrize("what", RECEIPT_CHANGES)
def test_one_receipt_out_of_the_ordinary_has_all_windows_judged(tmp_path: Path, what: str) -> None:
    lake(tmp_path, lambda receipts: [*receipts[:3], RECEIPT_CHANGES[what](receipts[3]), *receipts[4:]])
    assert facts(tmp_path).older == older.NONE


def test_a_window_without_a_receipt_has_all_windows_judged(tmp_path: Path) -> None:
    lake(tmp_path, lambda receipts: receipts[:3] + receipts[4:])
    assert facts(tmp_path).older == older.NONE
    assert [v.passed for v in check_results(tmp_path, whole=False)] == [
        v.passed for v in check_results(tmp_path, whole=True)
    ]


def test_files_out_of_the_ordinary_have_all_windows_judged(tmp_path: Path) -> None:
    lake(tmp_path)
    table = DeltaTable(tmp_path / "raw" / TOPIC)
    append(tmp_path, TOPIC, rows("2025-01-01-00:00", {0: [1]}))
    assert facts(tmp_path).older == older.NONE
    table.update_incremental()
    table.delete("window = '2025-01-01-00:00'")
    assert facts(tmp_path).older.windows == WINDOWS - RECENT
    table.update_incremental()
    table.delete("window = '2026-01-01-03:00' AND kafka_offset = 17")
    assert facts(tmp_path).older == older.NONE
    assert check_results(tmp_path, whole=False, checks=BY_LOG) == check_results(tmp_path, whole=True, checks=BY_LOG)


def test_a_ledger_of_cuts_that_was_edited_has_all_windows_judged(tmp_path: Path) -> None:
    lake(tmp_path)
    cuts = DeltaTable(tmp_path / "_ledger" / "cuts")
    changed = cuts.to_pyarrow_table()
    offsets = changed["offset"].to_pylist()
    at = next(i for i, o in enumerate(offsets) if o == 16)
    offsets[at] = 15
    changed = changed.set_column(changed.column_names.index("offset"), "offset", [offsets])
    write_deltalake(cuts, changed, mode="overwrite")
    assert facts(tmp_path).older == older.NONE


@pytest.mark.usefixtures("partitioned")
def test_recent_windows_are_judged_one_by_one(tmp_path: Path) -> None:
    lake(tmp_path)
    DeltaTable(tmp_path / "raw" / TOPIC).delete("window = '2026-01-01-23:00' AND kafka_partition = 0")
    found = facts(tmp_path)
    assert found.older.windows == WINDOWS - RECENT
    assert list(found.changed) == ["2026-01-01-23:00"]
    gaps, _ = check_results(tmp_path, whole=False, checks=BY_LOG)
    assert [(f.kind, f.window, f.partition) for f in gaps.findings] == [("rows missing", "2026-01-01-23:00", 0)]


def test_windows_that_upkeep_has_removed_are_counted_until_one_has_rows_again(layout: str, tmp_path: Path) -> None:
    topic = made(tmp_path / "lake", 2 * OLD)
    run(topic, SEEN)
    before = table(topic).to_pyarrow_table()
    assert list(run(topic).done) == keys(topic)[:OLD]

    def evaluated() -> tuple[Evaluation, Evaluation]:
        return replace(evaluation_of(topic), counting=CHECKS.values()), evaluation_of(topic)

    counted, whole = evaluated()
    found = counted.facts().older
    assert (found.windows, found.rows) == (2 * OLD - RECENT, 2 * EACH * (OLD - RECENT))
    assert found.holes == {"expired": 2 * EACH * OLD}
    results = [[check.evaluate(e) for check in CHECKS.values()] for e in (counted, whole)]
    assert unlike(*results) == ["agrees_with_ledger"]
    assert all(result.passed for each in results for result in each)

    again = keys(topic)[OLD - 1]
    write_deltalake(table(topic), before.filter(pc.equal(before["window"], again)).slice(0, 1), mode="append")
    counted, whole = evaluated()
    assert counted.facts().older.windows == OLD - 1
    # The checks read this window, because its files have changed.
    assert [list(e.facts().changed) for e in (counted, whole)] == [[again], [again]]


# --- which windows a check needs ------------------------------------------------------------------------------------


def nothing_found(e: Evaluation) -> CheckResult:
    return CheckResult("new", e.declaration.raw_table, (), "", (("windows", len(e.facts().windows)),))


def windows_given(root: Path, check: Check) -> int:
    """Return the number of windows that an additional check has to evaluate one by one."""
    return len(collect(TableRef.raw(TOPIC), Ledger(Lake.at(root)), counting=(*CHECKS.values(), check)).windows)


def test_a_check_that_does_not_say_which_windows_may_be_counted_is_given_every_window(tmp_path: Path) -> None:
    lake(tmp_path)
    assert windows_given(tmp_path, Check("new", "", nothing_found)) == WINDOWS


def test_a_new_check_is_given_the_windows_that_were_counted_without_it(tmp_path: Path) -> None:
    lake(tmp_path)
    assert facts(tmp_path).older.windows == WINDOWS - RECENT
    assert windows_given(tmp_path, Check("new", "", nothing_found)) == WINDOWS


def test_a_check_decides_window_by_window_and_the_first_that_it_wants_ends_the_count(tmp_path: Path) -> None:
    lake(tmp_path)
    wanted = Check("new", "", nothing_found, lambda history: np.array(history.keys) != "2026-01-01-07:00")
    assert windows_given(tmp_path, wanted) == WINDOWS - 7
    stricter = replace(wanted, may_count=lambda history: np.array(history.keys) != "2026-01-01-06:00", revision=2)
    assert windows_given(tmp_path, stricter) == WINDOWS - 6


def test_every_registered_check_has_a_say_by_columns(tmp_path: Path) -> None:
    """At present, no check has to examine each window of a long table."""
    assert [name for name, check in CHECKS.items() if check.may_count is None] == []


@pytest.mark.parametrize(
    ("check", "what"),
    [
        ("no_gaps", "fewer rows"), ("no_gaps", "rows outside"), ("no_gaps", "other files"),
        ("no_duplicates", "duplicates"), ("no_duplicates", "other files"),
        ("every_offset_accounted_for", "not accounted for"), ("every_offset_accounted_for", "holes too many"),
        ("every_offset_accounted_for", "other files"),
        ("agrees_with_ledger", "a version that never was"), ("agrees_with_ledger", "other files"),
    ],
)  # fmt: skip
def test_each_check_wants_the_window_in_which_it_has_something_to_find(tmp_path: Path, check: str, what: str) -> None:
    """No check may rely on another check to request the window."""
    changes: dict[str, Callable[[Receipt], Receipt]] = {
        **RECEIPT_CHANGES,
        "a version that never was": lambda r: replace(r, table_version=99),
    }
    lake(tmp_path, lambda receipts: [*receipts[:8], changes[what](receipts[8]), *receipts[9:]])
    alone = collect(TableRef.raw(TOPIC), Ledger(Lake.at(tmp_path)), counting=[CHECKS[check]])
    assert alone.older.windows == 8


# --- a partition that was added -------------------------------------------------------------------------------------


def test_windows_before_and_after_a_partition_was_added_are_counted(tmp_path: Path) -> None:
    grown = [{0: n * 3, 1: n} if n < 9 else {0: n * 3, 1: n, 2: (n - 8) * 2} for n in range(WINDOWS + 1)]
    for window in recorded(tmp_path, TOPIC, grown):
        loaded(tmp_path, window, holes={}, proved_by="load digest")
    found = facts(tmp_path)
    assert found.older.windows == WINDOWS - RECENT
    assert found.older.rows == found.older.offsets == sum(grown[WINDOWS - RECENT].values())
    assert unlike(check_results(tmp_path, whole=False), check_results(tmp_path, whole=True)) == ["agrees_with_ledger"]


def test_offsets_of_an_added_partition_that_no_window_loaded_end_the_count(tmp_path: Path) -> None:
    grown = [{0: n * 3} if n < 9 else {0: n * 3, 1: 5 + n} for n in range(WINDOWS + 1)]
    for n, window in enumerate(recorded(tmp_path, TOPIC, grown)):
        cut = {0: range(n * 3, n * 3 + 3), 1: range(13, 14)} if n == 8 else None
        loaded(tmp_path, window, cut, holes={}, proved_by="load digest")
    assert facts(tmp_path).older.windows == 8


# --- a topic that was made again ------------------------------------------------------------------------------------


def test_windows_of_two_generations_are_counted(tmp_path: Path) -> None:
    """The last window of the old log and the first window of the new log share a boundary, but no offsets."""
    old = recorded(tmp_path, TOPIC, [{0: n * 3, 1: n} for n in range(7)])
    ledger = Ledger(Lake.at(tmp_path))
    last = ledger.newest_cut(TOPIC)
    assert last is not None
    anew = RecordedCut(TOPIC, "B" * 22, 2, last.edge, Cut({0: 1}), {0: "accepted"}, {0: None})
    later = [
        replace(anew, edge=last.edge + timedelta(hours=n), cut=Cut({0: 1 + 2 * n}), taken={0: "timestamp"})
        for n in range(WINDOWS - 5)
    ]
    assert ledger.record_cuts([anew, *later[1:]], last.edge)
    sealed = ledger.windows(TOPIC)
    assert [w.generation for w in sealed] == [1] * 6 + [2] * (WINDOWS - 6)
    assert [w.key for w in sealed[:6]] == [w.key for w in old]
    for window in sealed:
        loaded(tmp_path, window, holes={}, proved_by="load digest")
    found = facts(tmp_path)
    assert found.older.windows == WINDOWS - RECENT
    assert found.older.offsets == sum(w.ranges.size for w in sealed[: WINDOWS - RECENT])
    whole = check_results(tmp_path, whole=True)
    assert all(v.passed for v in whole)
    assert unlike(check_results(tmp_path, whole=False), whole) == ["agrees_with_ledger"]
    # Cuts of another log in the middle of a generation were not accepted by an operator.
    ledger.record_receipts([replace(r, generation=1) for r in list(ledger.receipts(TableRef.raw(TOPIC)).values())[7:8]])
    assert facts(tmp_path).older.windows == 7
