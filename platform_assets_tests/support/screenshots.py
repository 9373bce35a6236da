"""`make screenshots`: take the pictures for the README and the docs from the demo's UI. The script runs the demo in a
separate data folder, opens the UI in a headless Chromium, and takes pictures of the asset graph and of the report of a
passing check. Then it deletes rows of one window directly in Delta, evaluates the checks again, and takes a picture of
the report of the failing check."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import dagster as dg

from platform_assets.checks.registry import CHECKS, DEEP_AUDIT
from platform_assets.checks.rules import accounted
from platform_assets.demo.dataset import SOURCES
from platform_assets.lake.location import Lake
from platform_assets.ledger.store import Ledger
from platform_assets.model.tables import TableRef
from platform_assets.orchestration.names import table_key
from platform_assets.services import platform
from platform_assets.services.home import CHECKOUT, Home
from testbed.homes import home_at, service_environment

if TYPE_CHECKING:
    from playwright.sync_api import FloatRect, Page

PICTURES: Final = CHECKOUT / "docs" / "pictures"
TOPIC: Final = "flights"
_DELETED: Final = 25


def main() -> None:
    """Take all pictures and write them to `docs/pictures`. If the demo's data folder is given, the folder is kept."""
    with tempfile.TemporaryDirectory(prefix="platform-assets-") as folder:
        home = home_at(Path(sys.argv[1] if len(sys.argv) > 1 else folder) / "home")
        environment = {**service_environment(), "PLATFORM_HOME": str(home.root), "PLATFORM_JARS": str(home.jars)}
        command = [sys.executable, "-c", "from platform_assets.cli.main import main; main()", "demo", "--once"]
        try:
            subprocess.run(command, env=environment, cwd=CHECKOUT, check=True)
            take(home, environment)
        finally:
            platform.down(home)


def take(home: Home, environment: Mapping[str, str]) -> None:
    """Take the pictures from a home in which the demo has ended. The demo's Spark and broker must still be running."""
    for service in ("kafka", "spark"):
        platform.start_service(service, home, environ=environment)
    os.environ.update(environment)
    os.environ.update(platform.environment(home, environ={}))
    _evaluate()
    with _page(home, environment) as (page, address):
        _graph(page, address)
        _report(page, address, "check-passed")
    _damage(Lake.at(home.lake))
    _evaluate()
    with _page(home, environment) as (page, address):
        _report(page, address, "check-failed")


def _evaluate() -> None:
    """Evaluate all checks of the demo's tables, including the deep audit, which normally runs at night."""
    from platform_assets.definitions import defs

    names = [*CHECKS, DEEP_AUDIT.name]
    keys = [dg.AssetCheckKey(table_key(TableRef.raw(topic)), name) for topic in SOURCES for name in names]
    job = dg.define_asset_job("evaluate_all", selection=dg.AssetSelection.checks(*keys))
    with dg.DagsterInstance.get() as instance:
        found = dg.Definitions.merge(defs(), dg.Definitions(jobs=[job])).resolve_job_def("evaluate_all")
        found.execute_in_process(instance=instance, raise_on_error=False)


@contextmanager
def _page(home: Home, environment: Mapping[str, str]) -> Iterator[tuple[Page, str]]:
    from playwright.sync_api import sync_playwright

    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        sys.exit("no Chromium: install the system's package `chromium`, or name one in CHROMIUM")
    record = platform.start_service("dagster-webserver", home, environ=environment)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 1280, "height": 900}, device_scale_factor=1.5)
        page.set_default_timeout(120_000)
        yield page, record.address
        browser.close()


def _graph(page: Page, address: str) -> None:
    page.goto(f"{address}/asset-groups/")
    page.get_by_text(f"{len(CHECKS) + 1} / {len(CHECKS) + 1} Passed").nth(len(SOURCES) - 1).wait_for()
    page.screenshot(path=PICTURES / "asset-graph.png", clip=_clip(600, 220, 620, 520))


def _report(page: Page, address: str, name: str) -> None:
    page.goto(f"{address}/assets/raw/{TOPIC}?view=checks&checkDetail={accounted.NAME}")
    page.get_by_text("Latest execution").wait_for()
    page.locator(".dagster-markdown img").first.wait_for()
    page.screenshot(path=PICTURES / f"{name}.png", clip=_clip(240, 105, 1040, 560))


def _clip(x: int, y: int, width: int, height: int) -> FloatRect:
    """Return the relevant part of the page, without the UI's menus."""
    return {"x": x, "y": y, "width": width, "height": height}


def _damage(lake: Lake) -> None:
    """Delete some rows of one window with a plain Delta client, which does not change the ledger."""
    windows = [w for w in Ledger(lake).windows(TOPIC) if w.ranges.size > 2 * _DELETED]
    window = windows[-len(windows) // 4]
    partition, offsets = next((p, r) for p, r in window.ranges.items() if r.size > _DELETED)
    start = offsets.start + 10
    lake.table(TableRef.raw(TOPIC)).delta().delete(
        f"window = '{window.key}' and kafka_partition = {partition} and kafka_offset >= {start} "
        f"and kafka_offset < {start + _DELETED}"
    )


if __name__ == "__main__":
    main()
