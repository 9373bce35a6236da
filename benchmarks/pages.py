"""Pages of Dagster's UI for a group of a thousand topics, in the Chromium that is installed on this machine."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Final

import dagster as dg

from benchmarks.rounds import alternate, middle
from benchmarks.scenario import Bench, Measured, at_most
from platform_assets.checks.registry import CHECKS
from platform_assets.model.tables import TableRef
from platform_assets.orchestration.names import table_key, topic_key
from platform_assets.services import platform
from platform_assets.services.dagster_services import WEBSERVER
from platform_assets.services.platform import UpOptions
from platform_assets.services.project import DEFS_VARIABLE
from testbed import browser
from testbed.homes import home_at, service_environment
from testbed.samples import HOUR, START, edge

if TYPE_CHECKING:
    from playwright.sync_api import Page

_GOAL_SECONDS: Final = 3
_PATIENCE_MS: Final = 180_000
_DECLARED: Final = """\
type: platform_assets.components.TopicTables
attributes:
  topics: {topics}
  together: many
  each:
    window: "0 * * * *"
    start: "{start}"
    sensor_running: false
"""


def run(bench: Bench) -> Measured:
    """Measure the seconds from opening a page until the page shows its content. Each page is first opened twice without
    being measured."""
    path = browser.executable(os.environ)
    if path is None:
        raise RuntimeError(f"Chromium was not found: {browser.REMEDY}")
    topics, windows = bench.pick(1_000, 20), bench.pick(24, 3)
    names = [f"many-{n:04}" for n in range(topics)]
    # The newest closed windows, which the pages show first.
    closed = int((datetime.now(UTC) - START) / HOUR)
    keys = [f"{edge(number):%Y-%m-%d-%H:%M}" for number in range(closed - windows, closed)]
    with _interface(bench, names, keys) as address, browser.launched(path) as chromium:
        page = chromium.new_page(viewport={"width": 1440, "height": 1000})
        page.set_default_timeout(_PATIENCE_MS)
        pages = _pages(names, keys[-1])
        contenders = {what: partial(_open, page, address + at, texts) for what, (at, texts) in pages.items()}
        seconds = alternate(contenders, bench.pick(5, 2), bench.report)
    goals = [at_most(what, _GOAL_SECONDS, middle(seconds[what]), "s") for what in seconds]
    setting = {"topics": topics, "windows of each": closed, "of which Dagster has on record": windows}
    return Measured("pages", seconds, goals, setting=setting)


def _pages(names: list[str], newest: str) -> Mapping[str, tuple[str, list[str]]]:
    """Map a name for each page to the page's address and to the texts that the page shows once it is complete."""
    one = names[len(names) // 2]
    return {
        "an asset": (f"/assets/raw/{one}?view=overview", ["Upstream assets", f"kafka / {one}"]),
        "its partitions": (f"/assets/raw/{one}?view=partitions", [newest]),
        "its checks": (f"/assets/raw/{one}?view=checks", [f"{name} Succeeded" for name in CHECKS]),
        "runs": ("/runs", ["All", "Queued", "Failed"]),
        "automation": ("/automation", ["many_together_windows"]),
        "all assets": ("/assets", [names[0]]),
        "the graph of all": ("/asset-groups/", [names[0]]),
    }


def _open(page: Page, address: str, texts: list[str]) -> None:
    page.goto(address, wait_until="commit")
    browser.wait_for_texts(page, texts)


@contextmanager
def _interface(bench: Bench, names: list[str], keys: list[str]) -> Iterator[str]:
    """Run the web server that `up` starts. Its folder of declarations declares these topics, and Dagster's store has
    windows for each topic."""
    home = home_at(bench.root / "pages")
    folder = bench.root / "pages-defs" / "sales"
    folder.mkdir(parents=True)
    topics = json.dumps([{"topic": name} for name in names])
    (folder / "defs.yaml").write_text(_DECLARED.format(topics=topics, start=START.isoformat()))
    environ = {
        **service_environment(),
        DEFS_VARIABLE: str(folder.parent),
        "KAFKA_BOOTSTRAP_SERVERS": bench.bootstrap,
        "SPARK_REMOTE": bench.remote,
        "LAKE_ROOT": str(bench.root / "pages-lake"),
    }
    try:
        server = platform.start_service(WEBSERVER, home, UpOptions(), report=bench.report, environ=environ)
        with dg.DagsterInstance.from_config(str(home.dagster)) as instance:
            for number, name in enumerate(names, 1):
                _record(instance, name, keys)
                if number % 100 == 0:
                    bench.report(f"recorded {len(keys)} windows for each of {number:,} topics")
        yield server.address
    finally:
        platform.down(home, report=bench.report)


def _record(instance: dg.DagsterInstance, topic: str, keys: list[str]) -> None:
    """Record the events that the sensor and the runs leave in Dagster's store."""
    table = table_key(TableRef.raw(topic))
    for window in keys:
        for key in (topic_key(topic), table):
            instance.report_runless_asset_event(dg.AssetMaterialization(key, partition=window))
    for name in CHECKS:
        instance.report_runless_asset_event(dg.AssetCheckEvaluation(asset_key=table, check_name=name, passed=True))
