"""An idle topic in Dagster's UI: five check results, and those that fail keep failing. If `PLATFORM_SCREENSHOTS` is
set, screenshots are saved in that folder."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

import dagster as dg
import pytest

from platform_assets.checks.registry import CHECKS, DEEP_AUDIT
from platform_assets.checks.rules import accounted, no_gaps
from platform_assets.services.dagster_services import INSTANCE_FILE
from platform_assets_tests.support import answers, idle_topic_defs, report_defs
from platform_assets_tests.support.browser import screenshot
from platform_assets_tests.support.idle_topic import IdleTopic
from platform_assets_tests.support.idle_topic_defs import DAMAGED, SOUND, UNSAID
from platform_assets_tests.support.web_server import webserver
from testbed.browser import wait_for_texts
from testbed.homes import service_environment

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, Page

pytestmark = [pytest.mark.browser, pytest.mark.filterwarnings("ignore::dagster.BetaWarning")]

FIVE = [*CHECKS, DEEP_AUDIT.name]


@pytest.fixture(scope="module")
def address(chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run a web server with three topics, whose checks and deep audits ran before the topics became idle."""
    root = tmp_path_factory.mktemp("idle")
    lake, home = root / "lake", root / "dagster"
    home.mkdir()
    shutil.copyfile(INSTANCE_FILE, home / "dagster.yaml")
    environment = service_environment() | {"LAKE_ROOT": str(lake), "DAGSTER_HOME": str(home)}
    with pytest.MonkeyPatch.context() as patch, dg.DagsterInstance.from_config(str(home)) as instance:
        patch.setenv("LAKE_ROOT", str(lake))
        topics = {name: IdleTopic(lake, name, instance) for name in idle_topic_defs.TOPICS}
        topics[DAMAGED].unbalance(1)
        topics[DAMAGED].shorten(2)
        answers.given(patch)
        for name in (report_defs.JOB, report_defs.AUDIT_JOB):
            idle_topic_defs.defs().resolve_job_def(name).execute_in_process(instance=instance, raise_on_error=False)
        for _ in range(2):
            topics[SOUND].tick()
            topics[DAMAGED].tick()
        events = topics[UNSAID].evaluate().asset_events
        topics[UNSAID].keep([e for e in events if isinstance(e, dg.AssetMaterialization)])
    with webserver(idle_topic_defs.__name__, root, environment) as found:
        yield found


@pytest.fixture
def page(address: str, pages: BrowserContext) -> Iterator[Page]:
    """Provide a browser page."""
    page = pages.new_page()
    page.set_default_timeout(60_000)
    yield page
    page.close()


def open_check(page: Page, address: str, topic: str, check: str) -> None:
    page.goto(f"{address}/assets/raw/{topic}?view=checks&checkDetail={check}")


def test_an_idle_topic_keeps_its_five_results_on_the_asset_page(page: Page, address: str) -> None:
    open_check(page, address, SOUND, no_gaps.NAME)

    wait_for_texts(page, [f"{name} Succeeded" for name in FIVE])
    # With the two windows without offsets that were reported last.
    wait_for_texts(page, ["No gaps: 6 windows loaded, 80 rows for 80 offsets.", "Evaluation result Passed"])
    screenshot(page, "idle-checks")
    page.goto(f"{address}/assets/raw/{SOUND}?view=overview")
    wait_for_texts(page, ["Latest materialization", "2026-01-01-05:00", "Latest check results"])
    screenshot(page, "idle-overview")


@pytest.mark.long
def test_deep_audit_of_an_idle_topic_says_which_audit_read_the_files(page: Page, address: str) -> None:
    open_check(page, address, SOUND, DEEP_AUDIT.name)

    wait_for_texts(
        page,
        ["This report read no files; the audit of 20", "read 4 windows with 80 rows, all unchanged since the load."],
    )
    screenshot(page, "idle-deep-audit")


@pytest.mark.long
def test_checks_of_an_idle_topic_that_fail_stay_failing(page: Page, address: str) -> None:
    open_check(page, address, DAMAGED, DEEP_AUDIT.name)

    failing = (accounted.NAME, DEEP_AUDIT.name)
    wait_for_texts(page, [f"{name} {'Failed' if name in failing else 'Succeeded'}" for name in FIVE])
    wait_for_texts(page, ["1 window still damaged: the files have not changed since the audit."])
    screenshot(page, "idle-damaged-deep-audit")
    open_check(page, address, DAMAGED, accounted.NAME)
    wait_for_texts(page, ["1 window not accounted for.", "20 rows and 3 explained holes do not add up to 20 offsets"])
    screenshot(page, "idle-damaged-accounted")


def test_graph_counts_the_checks_of_idle_topics(page: Page, address: str) -> None:
    page.goto(f"{address}/asset-groups/")

    wait_for_texts(page, ["5 / 6 Passed", "3 / 6 Passed"])
    screenshot(page, "idle-graph")


@pytest.mark.long
def test_without_evaluations_after_it_an_empty_window_would_hide_all_five(page: Page, address: str) -> None:
    """This is the reason why ticks evaluate the checks; the test fails if Dagster changes its rule."""
    open_check(page, address, UNSAID, no_gaps.NAME)

    wait_for_texts(page, [f"{name} Not Evaluated" for name in FIVE])
    screenshot(page, "idle-unsaid")
