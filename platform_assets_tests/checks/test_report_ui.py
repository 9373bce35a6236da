"""A check's page in Dagster's UI, as a person sees it: a headline, a strip, the worst windows and what to do.

Screenshots are kept in `PLATFORM_SCREENSHOTS` where that is set.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import dagster as dg
import pytest

from infra.dagster_services import INSTANCE_FILE, web_answers
from infra.home import CHECKOUT
from infra.ports import DAGSTER_VARIABLE, LOOPBACK, choose_ports
from platform_assets.checks import accounted, agreement, no_duplicates, no_gaps
from platform_assets_tests.checks import report_defs, tables
from platform_assets_tests.conftest import service_environment

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.browser, pytest.mark.filterwarnings("ignore::dagster.BetaWarning")]

Theme = Literal["Light", "Dark"]
Opener = Callable[[str, str, Theme], "Page"]

_FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
          "--disable-component-update", "--disable-sync"]  # fmt: skip


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A webserver on the evaluations of a table in order and of one in ruins."""
    root = tmp_path_factory.mktemp("reports")
    lake, home = root / "lake", root / "dagster"
    home.mkdir()
    shutil.copyfile(INSTANCE_FILE, home / "dagster.yaml")
    environment = service_environment() | {"LAKE_ROOT": str(lake), "DAGSTER_HOME": str(home)}
    sealed = {tables.SOUND: tables.sound(lake), tables.TORN: tables.torn(lake)}
    with pytest.MonkeyPatch.context() as patch, dg.DagsterInstance.from_config(str(home)) as instance:
        patch.setenv("LAKE_ROOT", str(lake))
        for topic, windows in sealed.items():
            tables.reported(instance, lake, topic, windows)
        # Twice, so that there is something to plot.
        for _ in range(2):
            job = report_defs.defs().resolve_job_def(report_defs.JOB)
            job.execute_in_process(instance=instance, raise_on_error=False)
    with _webserver(root, environment) as found:
        yield found


@contextmanager
def _webserver(root: Path, environment: dict[str, str]) -> Iterator[str]:
    (port,) = choose_ports(1, DAGSTER_VARIABLE, environ=environment)
    with (root / "webserver.log").open("wb") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", "dagster_webserver", "--host", LOOPBACK, "--port", str(port),
             "--module-name", report_defs.__name__, "--working-directory", str(CHECKOUT)],
            env=environment, cwd=root, stdout=log, stderr=subprocess.STDOUT,
        )  # fmt: skip
        try:
            deadline = time.monotonic() + 180
            while not web_answers(port):
                assert server.poll() is None, (root / "webserver.log").read_text()
                assert time.monotonic() < deadline, (root / "webserver.log").read_text()
                time.sleep(0.5)
            yield f"http://{LOOPBACK}:{port}"
        finally:
            server.terminate()
            server.wait(60)


@pytest.fixture(scope="module")
def browser(address: str) -> Iterator[Browser]:
    """A headless Chromium: the machine's own, or else the one that playwright brings.

    Started after the evaluations, which do not run inside of its event loop.
    """
    from playwright.sync_api import sync_playwright

    own = os.environ.get("PLATFORM_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=own, args=_FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture
def check_page(browser: Browser, address: str) -> Iterator[Opener]:
    """Opens a check's page; keeps a screenshot of it when the test is over."""
    opened: list[tuple[Page, str]] = []

    def open_page(topic: str, check: str, theme: Theme) -> Page:
        page = browser.new_page(viewport={"width": 1440, "height": 1000})
        page.add_init_script(f"localStorage.setItem('dagster-theme', {json.dumps(json.dumps(theme))})")
        page.goto(f"{address}/assets/raw/{topic}?view=checks&checkDetail={check}")
        page.get_by_text("Latest execution").wait_for(timeout=60_000)
        page.locator(".dagster-markdown img").first.wait_for()
        opened.append((page, f"{check}-{'passing' if topic == tables.SOUND else 'failing'}-{theme.lower()}"))
        return page

    yield open_page
    folder = os.environ.get("PLATFORM_SCREENSHOTS")
    for page, name in opened:
        if folder:
            Path(folder).mkdir(parents=True, exist_ok=True)
            page.screenshot(path=Path(folder) / f"{name}.png")
        page.close()


def shown(page: Page) -> str:
    """All that is written on the page, in one line."""
    return re.sub(r"\s+", " ", page.locator("body").inner_text())


def strip_drawn(page: Page) -> bool:
    """Whether the picture was decoded, and not blocked or broken."""
    return bool(page.locator(".dagster-markdown img").first.evaluate("i => i.complete && i.naturalWidth > 300"))


THEMES: tuple[Theme, ...] = ("Light", "Dark")


@pytest.mark.parametrize("theme", THEMES)
def test_failing_check_says_what_where_and_what_to_do(check_page: Opener, theme: Theme) -> None:
    page = check_page(tables.TORN, no_gaps.NAME, theme)

    text = shown(page)
    assert "4 gaps in 2 windows." in text
    assert f"Rows missing: window {tables.key(tables.LOST_WINDOW)} partition 0 offsets [2000, 2100)" in text
    assert f"What to do: Materialise partition {tables.key(tables.LOST_WINDOW)} of raw/{tables.TORN}" in text
    assert strip_drawn(page)
    assert "2 FAILING" in (page.locator(".dagster-markdown img").first.get_attribute("alt") or "")
    rows = page.locator("table table tbody tr").all_inner_texts()
    assert [r.split()[0] for r in rows] == [tables.key(tables.LOST_WINDOW), tables.key(tables.LOST_ROWS)]
    assert "p1 [1240, 1260)" in rows[1]


@pytest.mark.parametrize("theme", THEMES)
def test_passing_check_says_so_in_one_sentence(check_page: Opener, theme: Theme) -> None:
    page = check_page(tables.SOUND, accounted.NAME, theme)

    text = shown(page)
    rows = 3 * 100 * 28 - 8 - 1
    assert f"Every offset accounted for: {rows:,} rows + 8 commit markers, 1 aborted records = 8,400 offsets" in text
    assert "What to do:" not in text
    assert "Passed" in text
    assert strip_drawn(page)
    assert "FAILING" not in (page.locator(".dagster-markdown img").first.get_attribute("alt") or "")


@pytest.mark.parametrize("check", [no_gaps.NAME, no_duplicates.NAME, accounted.NAME, agreement.NAME])
@pytest.mark.parametrize("topic", report_defs.TOPICS)
def test_top_of_every_page_fits_what_the_ui_shows_of_it(check_page: Opener, topic: str, check: str) -> None:
    page = check_page(topic, check, "Light")

    assert strip_drawn(page)
    assert page.get_by_role("button", name="Show more").count() == 0
    width = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert width <= 0


def test_numbers_are_plotted(check_page: Opener) -> None:
    page = check_page(tables.SOUND, no_gaps.NAME, "Light")

    page.get_by_text("Plots", exact=True).scroll_into_view_if_needed()
    page.locator("canvas").first.wait_for()
    labels = page.locator("canvas").count()
    # findings, lag_offsets, offsets, offsets_without_row, rows, windows_loaded, windows_sealed, windows_waiting
    assert labels == 8
