"""Content and order of a check's result, without the UI: worst windows, remedies, description, and metadata."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import dagster as dg
import pytest

from platform_assets.checks.findings import CheckResult, Finding
from platform_assets.checks.report import rendering
from platform_assets.checks.report.description import describe, plain
from platform_assets.checks.report.heatmap import heatmap_of
from platform_assets.checks.report.worst import remedies, worst_windows
from platform_assets.checks.rules import no_gaps
from platform_assets.model.tables import TableRef
from platform_assets.orchestration.names import table_key
from platform_assets_tests.support import report_defs, tables
from platform_assets_tests.support.tables import SOUND, facts, finding, key

KEY = table_key(TableRef.raw(SOUND))


def check_result(*findings: Finding, headline: str = "2 gaps in 2 windows.") -> CheckResult:
    return CheckResult("no_gaps", TableRef.raw(SOUND), findings, headline, (("rows", 40), ("lag_offsets", 10)))


def table_of(result: dg.AssetCheckResult) -> list[dict[str, Any]]:
    value = result.metadata[rendering.ANOMALIES]
    assert isinstance(value, dg.TableMetadataValue)
    return [dict(r.data) for r in value.records]


def number(result: dg.AssetCheckResult, name: str) -> object:
    return result.metadata[name].value


def test_worst_windows_come_by_gravity_then_offsets_then_newest_first() -> None:
    found = [
        finding("window not asked for", 9, 0, (0, 5000)),
        finding("rows missing", 1, 0, (10, 12)),
        finding("could not tell", 8, None),
        finding("duplicate in a window", 3, 0, (30, 39)),
        finding("rows missing", 2, 0, (20, 22)),
    ]

    assert [w.window for w in worst_windows(found)] == [key(n) for n in (3, 2, 1, 8, 9)]


def test_findings_of_one_kind_in_one_window_are_one_line() -> None:
    found = [finding("rows missing", 4, p, (40, 50)) for p in (2, 0, 1)] + [finding("rows missing", 4, 3, (41, 42))]

    (worst,) = worst_windows(found)
    assert worst.where == "p0, p1, p2 [40, 50); p3 [41, 42)"
    assert worst.offsets == 31
    assert worst.found == "rows missing: detail of rows missing (and 3 more like it)"


def test_long_lists_in_a_line_are_cut_and_counted() -> None:
    (ranges,) = worst_windows([finding("rows missing", 0, 0, *((n, n + 1) for n in range(0, 20, 2)))])
    (places,) = worst_windows([finding("rows missing", 0, p, (p, p + 1)) for p in range(9)])
    (partitions,) = worst_windows([finding("rows missing", 0, p, (0, 1)) for p in range(30)])

    assert ranges.where == "p0 [0, 1), [2, 3), [4, 5) and 7 more ranges"
    assert places.where == "p0 [0, 1); p1 [1, 2); p2 [2, 3); 6 more"
    assert partitions.where == "p0, p1, p2, p3, p4, p5, p6, p7 and 22 more [0, 1)"


def test_remedies_alike_but_for_the_window_are_one() -> None:
    found = [finding("rows missing", n, 0, (n * 10, n * 10 + n)) for n in (1, 2, 3)]
    found += [finding("duplicate in a window", 5, remedy="Delete the rows.")]

    texts = [str(r) for r in remedies(worst_windows(found))]
    assert texts == [
        f"Materialize partition {key(3)} of raw/{SOUND}. This also applies to 2 more windows, listed below.",
        "Delete the rows.",
    ]


def test_description_is_headline_picture_and_remedy() -> None:
    found = finding("rows missing", 1, 2, (12, 15))
    text = describe(check_result(found), heatmap_of(facts(3, 3), [found]), worst_windows([found]))

    headline, image, todo = text.split("\n\n")
    assert headline == (
        f"**2 gaps in 2 windows.** Rows missing: window {key(1)} partition 2 offsets [12, 15): detail of rows missing."
    )
    assert image.startswith(
        f"![raw/{SOUND}, 3 partitions, 3 windows, {key(0)} to {key(2)}: 1 FAILING, 2 complete](data:"
    )
    assert todo == f"**What to do:** Materialize partition {key(1)} of raw/{SOUND}."


def test_description_of_what_passed_has_nothing_to_do() -> None:
    text = describe(check_result(headline="No gaps."), heatmap_of(facts(2)), [])

    assert text.startswith("**No gaps.**\n\n![")
    assert text.count("\n\n") == 1


def test_description_of_the_undecided_says_why() -> None:
    found = finding("could not tell", 1, None)
    text = describe(
        check_result(found, headline="The result is unknown for 1 window."),
        heatmap_of(facts(2)),
        worst_windows([found]),
    )

    assert text.startswith(f"**The result is unknown for 1 window.** Window {key(1)}: detail of could not tell")


@pytest.mark.parametrize(
    ("said", "drawn"),
    [
        ("topic my_topic_x", "topic my_topic_x"),
        ("topic _x_ and _y_", r"topic \_x\_ and \_y\_"),
        ("run `rm _x_ *` now", "run `rm _x_ *` now"),
        ("2 * 3 * 4 <b>", r"2 \* 3 \* 4 \<b>"),
        ("a [b](c)", r"a \[b\](c)"),
        ("range [0, 5) of ~x~", r"range [0, 5) of \~x\~"),
    ],
)
def test_headline_is_taken_literally_by_markdown_and_back(said: str, drawn: str) -> None:
    text = describe(check_result(headline=said), heatmap_of(facts(1)), [])

    assert text.split("\n\n")[0] == f"**{drawn}**"
    assert plain(text) == said


@pytest.mark.parametrize(
    ("said", "drawn", "read"),
    [
        ("a `` `![x](y)` b", "a ``` `` ``` `![x](y)` b", "a ``` `` ``` `![x](y)` b"),
        ("a ` ![x](y) `` b", r"a `` ` `` !\[x\](y) ``` `` ``` b", "a `` ` `` ![x](y) ``` `` ``` b"),
    ],
)
def test_a_backquote_without_an_end_is_code_in_a_headline(said: str, drawn: str, read: str) -> None:
    text = describe(check_result(headline=said), heatmap_of(facts(1)), [])

    assert text.split("\n\n")[0] == f"**{drawn}**"
    assert plain(text) == read


def test_plain_description_has_no_picture_and_keeps_the_remedy() -> None:
    found = finding("rows missing", 0, 0, (1, 2))
    text = plain(describe(check_result(found), heatmap_of(facts(1), [found]), worst_windows([found])))

    assert text == (
        f"2 gaps in 2 windows. Rows missing: window {key(0)} partition 0 offsets [1, 2): detail of rows missing. "
        f"What to do: Materialize partition {key(0)} of raw/{SOUND}."
    )


def test_numbers_are_plain_so_that_they_are_plotted() -> None:
    result = rendering.result(KEY, check_result(finding("rows missing", 0)), facts(1))

    assert {n: number(result, n) for n in ("rows", "lag_offsets", rendering.FINDINGS)} == {
        "rows": 40,
        "lag_offsets": 10,
        "findings": 1,
    }
    assert isinstance(result.metadata["rows"], dg.IntMetadataValue)


def test_severity_is_an_error_only_for_what_is_wrong() -> None:
    for kind, severity in (
        ("rows missing", dg.AssetCheckSeverity.ERROR),
        ("window not asked for", dg.AssetCheckSeverity.WARN),
        ("could not tell", dg.AssetCheckSeverity.WARN),
    ):
        result = rendering.result(KEY, check_result(finding(kind, 0)), facts(1))  # type: ignore[arg-type]
        assert (result.passed, result.severity) == (False, severity)
    assert rendering.result(KEY, check_result(), facts(1)).passed


def test_table_is_cut_and_the_rest_counted() -> None:
    found = [finding("rows missing", n, p, (n, n + 1)) for n in range(25) for p in (0, 1)]
    result = rendering.result(KEY, check_result(*found), facts(25, 2))

    rows = table_of(result)
    assert len(rows) == 20
    assert rows[0] == {
        "window": key(24),
        "found": "rows missing: detail of rows missing (and 1 more like it)",
        "where": "p0, p1 [24, 25)",
        "offsets": 2,
    }
    assert number(result, rendering.NOT_LISTED) == 10
    assert number(result, rendering.FINDINGS) == 50


def test_table_of_findings_comes_first_in_a_page_sorted_by_key() -> None:
    result = rendering.result(KEY, check_result(finding("rows missing", 0)), facts(1))

    assert min(result.metadata) == rendering.ANOMALIES


def test_several_remedies_are_numbered_since_the_ui_shows_one_line() -> None:
    found = [finding("rows missing", 0, 0, (1, 9)), finding("unknown window", 1, remedy="Delete them.")]
    result = rendering.result(KEY, check_result(*found), facts(2))

    assert number(result, rendering.REMEDY) == f"1. Materialize partition {key(0)} of raw/{SOUND}. 2. Delete them."
    assert "For 1 more remedy, see `remedy` below." in (result.description or "")


def test_real_result_of_a_lost_window() -> None:
    lost = facts(4, 2, unasked=[])
    held = {k: v for k, v in lost.recorded.items() if k != key(1)}
    result = rendering.result(KEY, no_gaps.check_result(replace(lost, recorded=held)), replace(lost, recorded=held))

    assert "**2 gaps in 1 window.** Window not loaded:" in (result.description or "")
    assert number(result, "lag_offsets") == 20


def test_table_has_no_columns_for_places_where_none_is_named() -> None:
    result = rendering.result(KEY, check_result(finding("ledger behind", 0, None)), facts(1))

    assert [list(row) for row in table_of(result)] == [["window", "found"]]


def test_what_dagster_shows_wrongly_comes_after_what_is_wrong() -> None:
    kinds = ("orchestrator behind", "ledger behind", "orchestrator ahead", "ledger ahead")
    found = [finding(kind, n, None) for n, kind in enumerate(kinds)]  # type: ignore[arg-type]

    assert [w.window for w in worst_windows(found)] == [key(n) for n in (3, 1, 2, 0)]


@pytest.mark.filterwarnings("ignore::dagster.BetaWarning")
def test_code_location_loads_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dagster reports clashing names of steps or jobs only when it loads the whole code location. In that case, Dagster
    shows nothing from that code location."""
    monkeypatch.setenv("LAKE_ROOT", "lake")
    repository = report_defs.defs().get_repository_def()
    repository.load_all_definitions()

    assert {f"{tables.SOUND}_deep_audit", report_defs.JOB} <= {job.name for job in repository.get_all_jobs()}
