"""Dagster's UI in a real browser: the asset graph, a window that is materialized manually, the window's offset ranges
and checks. If `PLATFORM_SCREENSHOTS` is set, screenshots are saved in that folder; `CHROMIUM` selects a browser other
than the system's."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from platform_assets.checks.registry import CHECKS
from platform_assets_tests.support.browser import screenshot
from platform_assets_tests.support.runs_of import minutes_ago
from platform_assets_tests.support.ui_project import user_interface
from testbed.browser import wait_for_texts
from testbed.loads import TopicLake, numbered, records, whole

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

    from platform_assets_tests.conftest import LakeMaker

pytestmark = [
    pytest.mark.browser,
    pytest.mark.broker,
    pytest.mark.spark,
    pytest.mark.long,
    pytest.mark.usefixtures("chromium"),
]

_PATIENCE_MS = 120_000

Shot = Callable[[str], None]


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """Return a browser page."""
    page = browser.new_page(viewport={"width": 1440, "height": 1000})
    page.set_default_timeout(_PATIENCE_MS)
    yield page
    page.close()


@pytest.fixture
def shot(page: Page) -> Shot:
    """Save a screenshot of the page."""
    return lambda name: screenshot(page, name)


def text_of(page: Page) -> str:
    """Return all text on the page in one line."""
    return re.sub(r"\s+", " ", page.locator("body").inner_text())


def launch(page: Page, address: str, lk: TopicLake, key: str, runs: int) -> None:
    """Materialize one window by clicking; return when the runs page shows `runs` successful runs."""
    page.goto(f"{address}/assets/raw/{lk.topic}?view=overview")
    page.get_by_role("button", name="Materialize").first.click()
    dialog = page.get_by_text("Partition selection").locator("xpath=ancestor::*[.//input][1]")
    keys = dialog.locator("input[type=text]").first
    keys.fill(key)
    keys.press("Enter")
    page.get_by_role("button", name="Launch 1 run").click()
    # The dialog closes when the run is accepted.
    page.get_by_text("Partition selection").wait_for(state="detached")
    page.goto(f"{address}/runs")
    page.wait_for_function(
        "runs => [...document.querySelectorAll('body *')].filter(e => !e.children.length && "
        "['Success', 'Failure'].includes(e.textContent)).length >= runs",
        arg=runs,
    )
    assert page.get_by_text("Failure", exact=True).count() == 0
    assert page.get_by_text("Success", exact=True).count() == runs


def offset_ranges(page: Page) -> list[list[str]]:
    """Return the header and the rows of the table of offset ranges on a window's page."""
    row = page.get_by_role("row").filter(has=page.get_by_text("offset_ranges", exact=True)).first
    table = row.locator("table")
    table.wait_for()
    lines = [table.locator("th").all_inner_texts()]
    return lines + [r.locator("td").all_inner_texts() for r in table.locator("tbody tr").all()]


@pytest.mark.parametrize("again", [False, True])
def test_a_window_is_materialised_from_the_ui_and_again_with_the_same_rows(
    lake: LakeMaker, spark_remote: str, tmp_path: Path, page: Page, shot: Shot, again: bool
) -> None:
    lk = lake(partitions=2, start=minutes_ago(5))
    lk.commit(numbered(10, 2))
    key = lk.close_window()
    expected = records(lk.committed())
    lk.commit(numbered(6, 2, "next"))
    lk.close_window()
    with user_interface(tmp_path / "a project", lk, spark_remote) as address:
        # The graph: topic and table, one after the other.
        page.goto(f"{address}/asset-groups/")
        # Both nodes have the topic's name; their kinds distinguish them.
        page.get_by_text("Kafka", exact=True).wait_for()
        page.get_by_text("PySpark", exact=True).wait_for()
        shot("1-asset-graph")
        page.goto(f"{address}/assets/raw/{lk.topic}?view=overview")
        wait_for_texts(page, [f"Upstream assets kafka / {lk.topic}"])

        launch(page, address, lk, key, runs=1)
        shot("2-runs")
        first = whole(lk.rows())
        assert records(lk.rows()) == expected

        page.goto(f"{address}/assets/raw/{lk.topic}?view=partitions&partition={key}")
        header, *rows = offset_ranges(page)
        shot("3-window")
        found = [dict(zip(header, row, strict=True)) for row in rows]
        assert [(r["partition"], r["start"], r["end"], r["rows"]) for r in found] == [
            ("0", "0", "6", "5"),
            ("1", "0", "6", "5"),
        ]
        page.goto(f"{address}/assets/kafka/{lk.topic}?view=partitions&partition={key}")
        header, *rows = offset_ranges(page)
        shot("4-window-of-the-topic")
        assert [row[:3] for row in rows] == [["0", "0", "6"], ["1", "0", "6"]]

        page.goto(f"{address}/assets/raw/{lk.topic}?view=checks&checkDetail=no_gaps")
        page.get_by_text("Latest execution").wait_for()
        wait_for_texts(page, [f"{name} Succeeded" for name in CHECKS])
        shot("5-checks")
        text = text_of(page)
        assert "This is a blocking asset check" in text
        assert key in text or "1 window" in text

        if not again:
            return
        launch(page, address, lk, key, runs=2)
        assert whole(lk.rows()) == first
        assert lk.version() == 1
        page.goto(f"{address}/assets/raw/{lk.topic}?view=partitions&partition={key}")
        page.get_by_text("View all historical events (2)").wait_for()
        shot("6-window-again")
        wait_for_texts(page, ["outcome unchanged"])
        header, *rows = offset_ranges(page)
        assert [dict(zip(header, row, strict=True)) for row in rows] == found
