"""What the demo makes from its tables is compared with the source files: DuckDB's rows are equal, and one that was changed
is found. The wait says what is missing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from examples import flights as source
from platform_assets.components.declared import declarations, derived_tables, published
from platform_assets.demo import downstream
from platform_assets.demo.dataset import SOURCES
from platform_assets.demo.downstream import MissingResultsError, View
from platform_assets.demo.topic_log import PUBLISHED
from platform_assets.demo.typed_proof import frame_of
from platform_assets.lake.location import Lake
from platform_assets.orchestration.health import CheckStatus

# Dagster 1.13 itself calls the function that pydantic deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:`parse_obj_as` is deprecated")

VISITS = "SELECT DISTINCT tailnum, dest FROM flights WHERE tailnum IS NOT NULL"
QUERIES = {
    "derived/delays_by_day": """
        SELECT time_hour::TIMESTAMP::DATE AS day, carrier, count(*) AS flights, count(dep_delay) AS departed,
          sum(dep_delay)::BIGINT AS minutes_late FROM flights GROUP BY ALL""",
    "derived/plane_destinations": """
        SELECT tailnum, dest AS destination, count(*) AS flights FROM flights WHERE tailnum IS NOT NULL GROUP BY ALL""",
    "derived/similar_destinations": f"""
        SELECT a.dest AS destination, row_number() OVER (PARTITION BY a.dest ORDER BY count(*) DESC, b.dest) AS rank,
          b.dest AS similar, count(*) AS planes
        FROM ({VISITS}) a JOIN ({VISITS}) b ON a.tailnum = b.tailnum AND a.dest <> b.dest
        GROUP BY a.dest, b.dest QUALIFY rank <= 5""",
}

COLUMNS = {
    "derived/delays_by_day": ("day", "carrier", "flights", "departed", "minutes_late"),
    "derived/plane_destinations": ("tailnum", "destination", "flights"),
    "derived/similar_destinations": ("destination", "rank", "similar", "planes"),
}


def passed(name: str = "equals_rebuild") -> CheckStatus:
    return CheckStatus(name, True, "2026-01-01T00:00:00+00:00", "")


def test_the_demos_yaml_declares_what_is_compared() -> None:
    assert {ref.short for ref in derived_tables()} >= set(downstream.DERIVED)
    assert {f"derived/{name}" for name in downstream.DERIVED} == set(QUERIES)
    assert declarations()[downstream.STATE].state is not None
    assert tuple(published()[PUBLISHED].value.columns) == downstream.PUBLISHED_COLUMNS


def test_rows_that_duckdb_computes_are_equal_and_a_changed_row_is_found(tmp_path: Path) -> None:
    lake = Lake.at(tmp_path)
    frame = frame_of(SOURCES["flights"])
    compare = dict(zip(QUERIES, (downstream._delays, downstream._visits, downstream._similar), strict=True))
    for table, query in QUERIES.items():
        rows = pa.Table.from_pylist([dict(zip(COLUMNS[table], row, strict=True)) for row in source.query(query)])
        write_deltalake(tmp_path / table, rows)
        found = compare[table](lake, frame)
        assert found.is_equal, found
        assert found.rows == len(rows) > 100
        write_deltalake(tmp_path / table, rows.slice(1), mode="overwrite")
        assert not compare[table](lake, frame).is_equal
    assert "similar to SFO are LAX" in downstream._similar(lake, frame).figures


def test_the_wait_ends_when_nothing_is_missing_and_says_what_is() -> None:
    reports: list[str] = []
    behind = View("derived/a", "behind decoded/b", (passed(),), ("its sensor is stopped",))
    unchecked = View("derived/a", "", (CheckStatus("equals_rebuild", None, None, ""),), ())
    done = View("derived/a", "", (passed(),), ())
    states = iter([[behind], [behind], [unchecked], [done]])
    views = downstream.follow(lambda: next(states), alive=lambda: None, report=reports.append, patience=60)
    assert [*views] == [done]
    assert reports == ["derived/a: behind decoded/b, its sensor is stopped", "derived/a: not checked yet"]


def test_the_wait_ends_without_progress() -> None:
    view = View("known-planes", "3 windows are not published", (passed(),), ())
    with pytest.raises(MissingResultsError, match="known-planes: 3 windows are not published"):
        downstream.follow(lambda: [view], alive=lambda: None, report=lambda _: None, patience=0)


@pytest.mark.parametrize(
    ("view", "faults"),
    [
        (View("a", "", (passed(),), ()), ()),
        (View("a", "late", (), ("stopped",)), ("late", "stopped")),
        (View("a", "", (CheckStatus("c", False, None, "two rows"),), ()), ("check c failed: two rows",)),
        (View("a", "", (CheckStatus("c", False, None, "warns", warning=True),), ()), ()),
    ],
)
def test_faults(view: View, faults: Sequence[Any]) -> None:
    assert view.faults == faults
