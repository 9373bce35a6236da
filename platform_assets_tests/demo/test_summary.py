"""The printed result: its content is right, and it mentions each kind of fault."""

from __future__ import annotations

import io
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from platform_assets.demo.comparison import Comparison
from platform_assets.demo.proof import Exactness
from platform_assets.demo.summary import TopicResult, print_results
from platform_assets.demo.typed_proof import Totals, TypedExactness
from platform_assets.model.offsets import OffsetRange, TopicRanges

NONE = np.array([], dtype=np.int64)
LOG = TopicRanges({0: OffsetRange(0, 700), 1: OffsetRange(5, 800)})
GOOD = TopicResult(
    produced=1_400,
    committed=1_300,
    log=LOG,
    exactness=Exactness("flights", 1_300, NONE, NONE, NONE, 0, 0, 0, 0),
    typed=TypedExactness("flights", 1_299, {3: "missing"}, {3: "missing"}, 19, {}),
    ranges=LOG,
    sealed=35,
    loaded=35,
    with_rows=32,
    holes=195,
    checks={"no_gaps": "passed", "no_duplicates": "passed"},
    check_faults=(),
)


def printed(*results: TopicResult) -> tuple[bool, str]:
    out = io.StringIO()
    passed = print_results(Console(file=out, width=140), results)
    return passed, out.getvalue()


def test_the_table_shows_every_figure() -> None:
    passed, text = printed(GOOD)
    assert passed
    for figure in (
        "flights", "1,400", "1,300", "35 of 35", "32 with rows", "0: [0, 700)", "1: [5, 800)", "195",
        "100 aborted", "95 markers", "2 of 2 passed",
        "flights: exact: each of the 1,300 rows exists once", "every check has passed",
        "flights: 1,299 rows decoded; the totals of 19 columns equal those that pandas", "1 dead letters", "1 missing",
    ):  # fmt: skip
        assert figure in text


def test_what_is_made_from_the_tables_is_told_and_a_difference_or_fault_fails() -> None:
    made = Comparison("derived/delays_by_day", 5, 5, 0, "336,776 flights")
    for comparison, faults, passes in (
        (made, (), True),
        (replace(made, rows=4, different=1), (), False),
        (made, ("derived/delays_by_day: check equals_rebuild failed: 1 group",), False),
    ):
        out = io.StringIO()
        assert print_results(Console(file=out, width=140), [GOOD], [comparison], faults) is passes
        assert str(comparison) in out.getvalue()
        assert all(fault in out.getvalue() for fault in faults)
        assert ("everything made from them matches the files" in out.getvalue()) is passes


@pytest.mark.parametrize(
    ("bad", "fault"),
    [
        (replace(GOOD, exactness=replace(GOOD.exactness, missing=np.array([7]))), "1 rows missing: 7"),
        (replace(GOOD, loaded=34), "1 of 35 windows are not loaded"),
        (
            replace(GOOD, typed=replace(GOOD.typed, different={"hour": (Totals(2, 2, 9.0), Totals(2, 2, 8.0))})),
            "column hour: Totals(values=2, distinct=2, total=9.0) in the file",
        ),
        (replace(GOOD, typed=replace(GOOD.typed, dead={})), "dead letters by reason: none; expected: 1 missing"),
        (
            replace(GOOD, ranges=TopicRanges({0: OffsetRange(0, 700)})),
            "the windows cover offsets 0: [0, 700), but the topic has offsets",
        ),
        (replace(GOOD, holes=196), "196 offsets have no row, but the log accounts for 195"),
        (replace(GOOD, check_faults=("check no_gaps failed: 1 window",)), "check no_gaps failed: 1 window"),
    ],
)
def test_a_fault_is_told_and_fails(bad: TopicResult, fault: str) -> None:
    passed, text = printed(GOOD, bad)
    assert not passed
    assert fault in text
    assert "every check has passed" not in text
    assert ("NOT exact" in text) == (not bad.exactness.exact)
