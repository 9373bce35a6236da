"""The compared loaders lose and duplicate exactly the records that their crashes must affect, and the checks report
exactly these records."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from platform_assets_tests.support.faults import POINTS
from platform_assets_tests.support.semantics import lake, pages
from platform_assets_tests.support.semantics.pages import BEGIN, DOCUMENT, END, README, SEED, recorded

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

    from platform_assets_tests.conftest import Broker, TopicMaker


@pytest.mark.broker
@pytest.mark.spark
@pytest.mark.long
def test_the_run_that_the_documents_show_comes_out_the_same(
    broker: Broker, topic: TopicMaker, connection: Callable[[], SparkSession], tmp_path: Path
) -> None:
    name = topic(partitions=lake.PARTITIONS, stem="semantics")
    crashes, results = lake.run(broker.bootstrap, name, connection, tmp_path, SEED)
    for r in results:
        assert (r.lost, r.doubled) == (r.due_lost, r.due_doubled), r.loader
        assert r.others == (), r.loader
        assert r.exact, (r.loader, [f.sentence() for v in r.check_results for f in v.findings])
        # Every point was reached, and each loader's crashes follow the schedule.
        assert r.crashes.keys() == set(POINTS)
    lost, doubled, exact = results
    assert (bool(lost.lost), bool(lost.doubled), lost.rows) == (True, False, len(lost.committed - lost.lost))
    assert (bool(doubled.lost), bool(doubled.doubled)) == (False, True)
    # Two crashes in a row tripled a window, so there are more rows than records and doubled ones together.
    assert doubled.rows > len(doubled.committed) + len(doubled.doubled)
    assert exact.rows == len(exact.committed)
    assert all(v.passed for v in exact.check_results)
    assert lake.leg(crashes, results) == recorded()["lake"]


def test_the_pages_show_the_recorded_results() -> None:
    """`make semantics` records the results and writes the pages."""
    legs = recorded()
    assert pages.with_section(README.read_text(), pages.section(legs)) == README.read_text()
    assert pages.document(legs, SEED) == DOCUMENT.read_text()


def test_a_section_is_replaced_between_its_markers_alone() -> None:
    text = f"before\n{BEGIN}\nold\n{END}\nafter\n"
    assert pages.with_section(text, "new") == f"before\n{BEGIN}\nnew\n{END}\nafter\n"
    with pytest.raises(ValueError, match="no section"):
        pages.with_section("no markers", "new")
