"""The result of an expectation check depends only on the windows of its run, according to their receipts. Other windows
are only shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from platform_assets.checks.decoded import Windows
from platform_assets.checks.decoded_files import TableFiles
from platform_assets.checks.expectations import ExpectationResult, result_of
from platform_assets.ledger.entries import Receipt, receipt_table, receipts_in
from platform_assets.model.declaration import TopicDeclaration
from platform_assets.model.expectations import Expectation, FailingRow, Figures
from platform_assets.model.tables import TableRef
from platform_assets.orchestration import decoded_checks
from platform_assets_tests.support.runs_of import plain
from testbed.loads import EVERY_MINUTE, START
from testbed.samples import receipt, sealed

E = Expectation("amount_range", "range", ("amount",), least=0)
A, B, C, D = (f"2026-01-01-0{hour}:00" for hour in range(4))
GOOD, BAD = Figures(10), Figures(10, 2, (FailingRow(0, 3, "-1"), FailingRow(0, 4, "-7")))


def of(key: str, figures: Figures | None, expectation: Expectation = E) -> Receipt:
    known = None if figures is None else {expectation.digest: figures}
    return receipt(sealed("orders", key, p0=(0, 10), p1=(0, 0)), table=TableRef("decoded", "orders"), figures=known)


def judgement(
    known: Mapping[str, Figures | None], keys: Sequence[str] | None, e: Expectation = E, empty: Sequence[str] = ()
) -> ExpectationResult:
    receipts = {key: of(key, figures) for key, figures in known.items()}
    receipts |= {key: replace(of(key, None), table_version=None) for key in empty}
    decoded = TableFiles(TableRef("decoded", "orders"), receipts, {}, {})
    return result_of(
        Windows("orders", {}, decoded, TableFiles(TableRef("dead_letters", "orders"), {}, {}, {})), e, keys
    )


@pytest.mark.parametrize(
    ("known", "keys", "level", "failing"),
    [
        ({A: BAD, B: GOOD}, [B], "passed", 0),
        ({A: BAD, B: GOOD}, [A], "warning", 2),
        ({A: BAD, B: BAD}, [A, B], "warning", 4),
        ({A: BAD, B: GOOD}, None, "passed", 0),
        ({A: BAD, B: GOOD}, [], "passed", 0),
        ({A: GOOD, B: BAD}, None, "warning", 2),
        ({A: GOOD, B: None}, [B], "warning", 0),
        ({A: None, B: GOOD}, [B], "passed", 0),
        ({}, None, "passed", 0),
    ],
)
def test_windows_of_the_run_decide(
    known: Mapping[str, Figures | None], keys: Sequence[str] | None, level: str, failing: int
) -> None:
    found = judgement(known, keys)
    assert (found.level, found.figures.failing) == (level, failing)
    as_error = judgement(known, keys, replace(E, severity="error", name="other"))
    assert as_error.level == ("error" if failing else level), "what was not measured is no error"


def test_windows_without_offsets_have_nothing_to_judge() -> None:
    found = judgement({A: BAD}, None, empty=[B])
    assert (found.level, [each.window for each in found.windows], found.unmeasured) == ("warning", [A], ())
    assert judgement({A: BAD}, [B], empty=[B]).level == "passed"


def test_figures_of_another_expectation_are_none_of_this_one() -> None:
    found = judgement({A: GOOD, B: GOOD}, [B], replace(E, least=1))
    assert (found.level, found.unmeasured) == ("warning", (B, A))


def test_result_names_windows_counts_samples_and_what_to_do() -> None:
    declaration = TopicDeclaration("orders", EVERY_MINUTE, START)
    result = decoded_checks.expectation_result(declaration, judgement({A: BAD, B: GOOD, C: BAD, D: None}, [B, C, D]))
    assert not result.passed
    text = result.description or ""
    assert text.startswith(
        f"2 of 20 rows fail (`amount ≥ 0`): 2 in window {C}. The table contains the values as they were sent."
    )
    assert f"Then run `platform-assets load decoded/orders {C}`" in text
    assert (
        f"1 window not measured with this declaration (newest: {D}). Run `platform-assets load decoded/orders {D}`"
        in text
    )
    metadata = result.metadata or {}
    assert plain(metadata["windows"]) == [
        {"window": C, "rows": 10, "failing": 2},
        {"window": D, "rows": -1, "failing": -1},
    ]
    assert [sample["value"] for sample in plain(metadata["samples"])] == ["-1", "-7"]
    assert [plain(metadata[name]) for name in ("other_windows_failing", "windows_not_measured")] == [1, 1]
    passed = decoded_checks.expectation_result(declaration, judgement({A: GOOD}, [A]))
    assert (passed.passed, passed.description) == (True, "10 rows in 1 window pass: `amount ≥ 0`.")
    assert (
        decoded_checks.expectation_result(declaration, judgement({}, None)).description
        == "No window has been decoded yet."
    )


def test_ledger_has_figures_once_a_window() -> None:
    """The order of the rows does not matter."""
    receipts = [of(A, BAD), of(B, None)]
    rows = receipt_table(receipts)
    assert [text is None for text in rows["expectations"].to_pylist()] == [False, True, True, True]
    for found in (rows, rows.take([3, 2, 1, 0])):
        assert {r.window.key: r.figures for r in receipts_in(found)} == {r.window.key: r.figures for r in receipts}
