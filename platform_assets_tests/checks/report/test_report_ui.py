"""A check's page in Dagster's UI: a headline, a heatmap, the worst windows, and what to do.

If `PLATFORM_SCREENSHOTS` is set to a folder, screenshots of each page are saved there, in light and in dark mode.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Final, Literal

import dagster as dg
import pytest

from platform_assets.checks.registry import CHECKS, DEEP_AUDIT
from platform_assets.checks.rules import accounted, agreement, deep_audit, no_gaps
from platform_assets.services.dagster_services import INSTANCE_FILE
from platform_assets_tests.support import answers, report_defs, tables
from platform_assets_tests.support.browser import SCREENSHOTS_VARIABLE, screenshot
from platform_assets_tests.support.web_server import webserver
from testbed.homes import service_environment

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, Page

pytestmark = [pytest.mark.browser, pytest.mark.filterwarnings("ignore::dagster.BetaWarning")]

Theme = Literal["Light", "Dark"]
RED: Final = (229, 52, 47)
"""The color of failures, which a heatmap uses for nothing else."""
THEMES: Final[tuple[Theme, ...]] = ("Light", "Dark")
SCHEMES: Final[Mapping[Theme, Literal["light", "dark"]]] = {"Light": "light", "Dark": "dark"}
Opener = Callable[[str, str], "Page"]


@pytest.fixture(scope="module")
def address(chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the address of a web server that shows evaluations of three tables: a sound table, a damaged table, and a
    table that disagrees with Dagster."""
    root = tmp_path_factory.mktemp("reports")
    lake, home = root / "lake", root / "dagster"
    home.mkdir()
    shutil.copyfile(INSTANCE_FILE, home / "dagster.yaml")
    environment = service_environment() | {"LAKE_ROOT": str(lake), "DAGSTER_HOME": str(home)}
    sealed = {tables.SOUND: tables.sound(lake), tables.TORN: tables.torn(lake)}
    at_odds = tables.at_odds(lake)
    with pytest.MonkeyPatch.context() as patch, dg.DagsterInstance.from_config(str(home)) as instance:
        patch.setenv("LAKE_ROOT", str(lake))
        for topic, windows in sealed.items():
            tables.reported(instance, lake, topic, windows)
        tables.reported(
            instance, lake, tables.AT_ODDS, at_odds, but=[tables.UNREPORTED], otherwise=[tables.MISREPORTED]
        )
        # Evaluated twice, so that there is something to plot.
        for name in (report_defs.JOB, report_defs.JOB, report_defs.AUDIT_JOB):
            if name == report_defs.AUDIT_JOB:
                answers.given(patch)
            job = report_defs.defs().resolve_job_def(name)
            job.execute_in_process(instance=instance, raise_on_error=False)
    with webserver(report_defs.__name__, root, environment) as found:
        yield found


@pytest.fixture
def check_page(address: str, pages: BrowserContext) -> Iterator[Opener]:
    """Open a check's page, and save a screenshot of the page when the test is over."""
    opened: list[tuple[Page, str]] = []

    def open_page(topic: str, check: str) -> Page:
        page = pages.new_page()
        page.add_init_script("localStorage.setItem('dagster-theme', JSON.stringify('System'))")
        page.goto(f"{address}/assets/raw/{topic}?view=checks&checkDetail={check}")
        page.get_by_text("Latest execution").wait_for(timeout=60_000)
        page.locator(".dagster-markdown img").first.wait_for()
        opened.append((page, f"{check}-{topic}"))
        return page

    yield open_page
    for page, name in opened:
        for theme in THEMES if os.environ.get(SCREENSHOTS_VARIABLE) else ():
            page.emulate_media(color_scheme=SCHEMES[theme])
            page.wait_for_timeout(500)
            screenshot(page, f"{name}-{theme.lower()}")
        page.close()


def shown(page: Page) -> str:
    """Return all text on the page as one line."""
    return re.sub(r"\s+", " ", page.locator("body").inner_text())


def heatmap_drawn(page: Page) -> bool:
    """Return True if the browser decoded the picture, which shows that the picture is neither blocked nor broken."""
    return bool(page.locator(".dagster-markdown img").first.evaluate("i => i.complete && i.naturalWidth > 300"))


def alternative(page: Page) -> str:
    """Return the picture's alternative text."""
    return page.locator(".dagster-markdown img").first.get_attribute("alt") or ""


def red(page: Page) -> list[int]:
    """Return the number of pixels in the alarm color, first in light mode and then in dark mode."""
    picture = page.locator(".dagster-markdown img").first
    found = []
    for theme in THEMES:
        page.emulate_media(color_scheme=SCHEMES[theme])
        found.append(int(picture.evaluate(_RED, list(RED))))
    return found


_RED: Final = """async (shown, red) => {
            const image = new Image();
            image.src = shown.src;
            await image.decode();
            const canvas = document.createElement('canvas');
            canvas.width = image.naturalWidth;
            canvas.height = image.naturalHeight;
            const context = canvas.getContext('2d');
            context.drawImage(image, 0, 0);
            const pixels = context.getImageData(0, 0, canvas.width, canvas.height).data;
            let count = 0;
            for (let at = 0; at < pixels.length; at += 4)
                count += pixels[at + 3] === 255 && red.every((part, n) => Math.abs(part - pixels[at + n]) <= 2);
            return count;
        }"""


def anomalies(page: Page) -> list[list[str]]:
    """Return the rows of the table of worst windows, starting with the header."""
    lines = page.locator("table table tr")
    return [lines.nth(n).locator("td, th").all_inner_texts() for n in range(lines.count())]


def test_failing_check_says_what_where_and_what_to_do(check_page: Opener) -> None:
    page = check_page(tables.TORN, no_gaps.NAME)

    text = shown(page)
    assert "4 gaps in 2 windows." in text
    assert f"Rows missing: window {tables.key(tables.LOST_WINDOW)} partition 0 offsets [2000, 2100)" in text
    assert f"What to do: Materialize partition {tables.key(tables.LOST_WINDOW)} of raw/{tables.TORN}" in text
    assert heatmap_drawn(page)
    assert "2 FAILING" in alternative(page)
    # Four cells of 27 by 18 pixels, without the area of their marks.
    assert min(red(page)) > 1000
    assert anomalies(page) == [
        ["window", "found", "where", "offsets"],
        [tables.key(tables.LOST_WINDOW), "rows missing: 0 of 100 loaded rows are left (and 2 more like it)",
         "p0, p1, p2 [2000, 2100)", "300"],
        [tables.key(tables.LOST_ROWS), "rows missing: 80 of 100 loaded rows are left", "p1 [1240, 1260)", "20"],
    ]  # fmt: skip


def test_passing_check_says_so_in_one_sentence(check_page: Opener) -> None:
    page = check_page(tables.SOUND, accounted.NAME)

    text = shown(page)
    rows = 3 * 100 * 28 - 8 - 1
    assert f"Every offset accounted for: {rows:,} rows + 8 commit markers, 1 aborted record = 8,400 offsets" in text
    assert "What to do:" not in text
    assert "Passed" in text
    assert heatmap_drawn(page)
    assert "FAILING" not in alternative(page)
    assert red(page) == [0, 0]


def test_three_accounts_that_differ_are_shown_apart(check_page: Opener) -> None:
    page = check_page(tables.AT_ODDS, agreement.NAME)

    text = shown(page)
    ahead = tables.key(tables.AHEAD)
    assert "Table log, ledger and orchestrator disagree on 4 windows." in text
    assert f"Ledger ahead: window {ahead}: the receipt refers to load ffffffff" in text
    assert f"What to do: The table was rolled back or replaced: materialize partition {ahead} of raw/refunds." in text
    assert "For 3 more remedies, see remedy below." in text
    assert "4 FAILING" in alternative(page)
    assert min(red(page)) > 4 * 1000
    # Windows that only Dagster lists incorrectly come last, and no column is empty.
    names, *lines = anomalies(page)
    assert names == ["window", "found"]
    assert [(window, found.split(":")[0]) for window, found in lines] == [
        (ahead, "ledger ahead"),
        (tables.key(tables.BEHIND), "ledger behind"),
        (tables.key(tables.MISREPORTED), "orchestrator ahead"),
        (tables.key(tables.UNREPORTED), "orchestrator behind"),
    ]
    for found in ("has no receipt for the window", "Dagster shows load eeeeeeee", "Dagster has no materialization"):
        assert found in text
    for number in range(1, 5):
        assert f"{number}. " in text


@pytest.mark.long
def test_edited_receipt_fails_the_account_of_its_window_alone(check_page: Opener) -> None:
    page = check_page(tables.AT_ODDS, accounted.NAME)

    text = shown(page)
    assert "1 window not accounted for." in text
    assert (
        f"window {tables.key(tables.UNBALANCED)}: 298 rows and 5 explained holes do not add up to 300 offsets" in text
    )
    assert "What to do: The ledger was edited: restore _ledger from a backup" in text
    assert "1 FAILING, 1 loaded, no receipt, 2 not loaded yet" in alternative(page)
    assert min(red(page)) > 1000


@pytest.mark.long
def test_check_that_could_not_tell_is_not_red(check_page: Opener) -> None:
    page = check_page(tables.TORN, accounted.NAME)

    text = shown(page)
    assert "The result is unknown for 3 windows." in text
    assert "What to do: Follow the instructions in the message, then run the check again." in text
    assert "3 could not tell" in alternative(page)
    assert red(page) == [0, 0]


@pytest.mark.long
def test_deep_audit_that_found_damage_names_it(check_page: Opener) -> None:
    page = check_page(tables.TORN, deep_audit.NAME)

    text = shown(page)
    assert "3 windows damaged. Record not in the table" in text
    assert "What to do: Materialize partition" in text
    assert "This also applies to 2 more windows, listed below." in text
    assert "3 FAILING" in alternative(page)
    assert [line[0] for line in anomalies(page)[1:]] == [
        tables.key(tables.LOST_WINDOW), tables.key(tables.LOST_ROWS), tables.key(tables.DOUBLED)
    ]  # fmt: skip


@pytest.mark.long
def test_deep_audit_of_a_table_in_order_counts_what_it_read(check_page: Opener) -> None:
    page = check_page(tables.SOUND, deep_audit.NAME)

    assert "28 windows with 8,391 rows read again, all unchanged since the load" in shown(page)
    assert red(page) == [0, 0]


@pytest.mark.parametrize(
    ("topic", "check"),
    [
        # The reports of the damaged table have the most to say: of one check with a picture, and of the deep audit.
        pytest.param(
            topic,
            check,
            marks=() if topic == tables.TORN and check in (no_gaps.NAME, DEEP_AUDIT.name) else pytest.mark.long,
        )
        for topic, check in (
            *((t, c) for t in report_defs.TOPICS for c in CHECKS),
            *((t, DEEP_AUDIT.name) for t in report_defs.AUDITED),
        )
    ],
)
def test_top_of_every_page_fits_what_the_ui_shows_of_it(check_page: Opener, topic: str, check: str) -> None:
    page = check_page(topic, check)

    assert heatmap_drawn(page)
    assert page.get_by_role("button", name="Show more").count() == 0
    width = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert width <= 0


@pytest.mark.long
def test_numbers_are_plotted(check_page: Opener) -> None:
    page = check_page(tables.SOUND, no_gaps.NAME)

    # In one step: the page replaces the element while it loads, and Playwright's own scrolling fails if it does.
    page.get_by_text("Plots", exact=True).evaluate("element => element.scrollIntoView()")
    page.locator("canvas").first.wait_for()
    labels = page.locator("canvas").count()
    # findings, lag_offsets, offsets, offsets_without_row, rows, windows_loaded, windows_sealed, windows_waiting
    assert labels == 8
