"""Untrusted text in Dagster's UI, in a real browser: the text never becomes an image, a link or a request."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import dagster as dg
import pytest

from platform_assets.checks.decoded import SHARE
from platform_assets.checks.findings import CheckResult, Finding
from platform_assets.checks.registry import CHECKS
from platform_assets.checks.report import rendering
from platform_assets.errors import ConfigurationError
from platform_assets.model.declaration import TopicDeclaration
from platform_assets.orchestration import decision_jobs, retention_check
from platform_assets.orchestration import tick as tick_of
from platform_assets.orchestration.aging_checks import Subject
from platform_assets.orchestration.names import table_key
from platform_assets.services.dagster_services import INSTANCE_FILE
from platform_assets_tests.support import decoded_defs, tables
from platform_assets_tests.support.decoded_defs import FAILING, STRICT
from platform_assets_tests.support.decoded_topic import DecodedTopic, order
from platform_assets_tests.support.tables import reported
from platform_assets_tests.support.web_server import webserver
from testbed.browser import wait_for_texts
from testbed.homes import service_environment

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.browser, pytest.mark.filterwarnings("ignore::dagster.BetaWarning")]

CANARY: Final = "canary"
HOSTILE: Final = (
    f"![chart](/graphql?query=mutation%20{CANARY}) <img src=/graphql?{CANARY}> [{CANARY}](/{CANARY}) https://{CANARY}.example/x "
    f"` ![](/{CANARY}) `` www.{CANARY}.example a@{CANARY}.example [x]: /{CANARY}"
)
HELD_BACK: Final = "retention_is_far"


@dataclass(frozen=True)
class Pages:
    """The web server's address, and the pages that show untrusted text, each with a trusted text that it must also
    show."""

    address: str
    paths: dict[str, str]


@pytest.fixture(scope="module")
def pages(chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pages]:
    """Provide pages with the platform's reports about a hostile record, broker and table."""
    root = tmp_path_factory.mktemp("hostile")
    lake, home = root / "lake", root / "dagster"
    home.mkdir()
    shutil.copyfile(INSTANCE_FILE, home / "dagster.yaml")
    environment = service_environment() | {"LAKE_ROOT": str(lake), "DAGSTER_HOME": str(home)}
    with pytest.MonkeyPatch.context() as patch, dg.DagsterInstance.from_config(str(home)) as instance:
        patch.setenv("LAKE_ROOT", str(lake))
        topic = DecodedTopic(lake, FAILING, STRICT)
        name = json.dumps(HOSTILE)
        topic.load([order(1), f'{{"id": 2, "amount": 1, {name}: 1, {name}: 2}}'.encode()])
        d = topic.declaration
        reported(instance, lake, FAILING, topic.windows)
        topic.decode(instance=instance)
        tick_of.observe(instance, d, ConfigurationError(HOSTILE))
        instance.report_runless_asset_event(rendering.as_event(unforeseen(d)))
        for check in CHECKS:
            found = Finding("unknown window", FAILING, HOSTILE, 0, (), HOSTILE, f"Delete window '{HOSTILE}'.")
            check_result = CheckResult(check, d.raw_table, (found,), HOSTILE, ())
            event = rendering.evaluation(table_key(d.raw_table), check_result, tables.facts(2))
            instance.report_runless_asset_event(event)
        run = decided(instance, d)
        with webserver(decoded_defs.__name__, root, environment) as address:
            yield Pages(
                address,
                {
                    f"/assets/decoded/{FAILING}?view=checks&checkDetail={SHARE}": "records are dead letters",
                    f"/assets/raw/{FAILING}?view=checks&checkDetail={HELD_BACK}": "Could not tell",
                    f"/assets/raw/{FAILING}?view=checks&checkDetail={next(iter(CHECKS))}": "What to do",
                    f"/assets/raw/{FAILING}?view=events&time={observed(instance, d)}": "fails:",
                    f"/runs/{run}": "RUN_SUCCESS",
                },
            )


def unforeseen(d: TopicDeclaration) -> dg.AssetCheckResult:
    """Return the retention forecast for brokers that answer with hostile text."""

    class Hostile:
        def __getattr__(self, name: str) -> Any:
            raise ConfigurationError(HOSTILE)

    hostile: Any = Hostile()
    return retention_check.CHECK.evaluate(Subject(d, hostile, hostile, datetime.now(UTC)))


def decided(instance: dg.DagsterInstance, d: TopicDeclaration) -> str:
    """Make a decision with hostile text in a run; return the run id."""

    @dg.op(required_resource_keys=decision_jobs.RESOURCES)
    def decide(context) -> None:  # type: ignore[no-untyped-def]
        config = decision_jobs.AcceptanceConfig(topic=d.topic, reason=HOSTILE)
        decision_jobs._decide(context, lambda _: d, config, lambda deciding: deciding.report(HOSTILE))

    @dg.job
    def decision() -> None:
        decide()

    resources: dict[str, Any] = {key: dg.ResourceDefinition.mock_resource() for key in decision_jobs.RESOURCES}
    done = decision.execute_in_process(instance=instance, resources=resources)
    return done.run_id


def observed(instance: dg.DagsterInstance, d: TopicDeclaration) -> int:
    """Return the time of the raw table's newest observation, in milliseconds."""
    (record, *_) = instance.fetch_observations(table_key(d.raw_table), limit=1).records
    return round(record.timestamp * 1000)


@pytest.fixture
def page(pages: Pages, browser: Browser) -> Iterator[Page]:
    """Provide a browser page."""
    page = browser.new_page(viewport={"width": 1440, "height": 1000})
    page.set_default_timeout(60_000)
    yield page
    page.close()


@pytest.mark.long
def test_nothing_that_a_stranger_wrote_is_live_in_the_ui(page: Page, pages: Pages) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    for path, besides in pages.paths.items():
        page.goto(pages.address + path)
        wait_for_texts(page, [besides])
        if path.startswith("/runs/"):
            page.get_by_text("[Show Markdown]").first.click()
        wait_for_texts(page, [f"![chart](/graphql?query=mutation%20{CANARY})"])
        live = page.evaluate(
            """canary => [...document.querySelectorAll('img, a, iframe, video, audio, object, embed')]
                .flatMap(e => [e.src, e.href, e.data]).filter(e => typeof e === 'string' && e.includes(canary))""",
            CANARY,
        )
        # In run logs, Dagster itself turns addresses into links, which lead where they say and need a click.
        allowed = (
            {f"https://{CANARY}.example/x", f"http://www.{CANARY}.example"} if path.startswith("/runs/") else set()
        )
        assert not {each.rstrip("/") for each in live} - allowed, path
    hosts = {urlsplit(pages.address).netloc}
    foreign = [url for url in asked if CANARY in url or (url.startswith("http") and urlsplit(url).netloc not in hosts)]
    assert not foreign
