"""Decoded tables in Dagster's UI: lineage, columns, a failing dead-letter check, and a redrive.

Runs use the real definitions and steps on a real lake; the code of Spark's workers runs in this process. If
`PLATFORM_SCREENSHOTS` is set, screenshots are saved in that folder.
"""

from __future__ import annotations

import json
import shutil
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import dagster as dg
import pytest

from platform_assets.checks.decoded import CONSERVATION, SHARE
from platform_assets.model.decoding import DecodeDeclaration
from platform_assets.orchestration import names, resources
from platform_assets.services.dagster_services import INSTANCE_FILE
from platform_assets_tests.support import decoded_defs
from platform_assets_tests.support.browser import screenshot
from platform_assets_tests.support.decoded_defs import CORRECTED, FAILING, LENIENT, STRICT
from platform_assets_tests.support.decoded_topic import DecodedTopic, InProcessEngine, order, tables_without_spark
from platform_assets_tests.support.tables import reported
from platform_assets_tests.support.web_server import webserver
from testbed.browser import wait_for_texts
from testbed.homes import service_environment

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, Page

pytestmark = [pytest.mark.browser, pytest.mark.filterwarnings("ignore::dagster.BetaWarning")]

_LINEAGE = """
query Lineage($key: AssetKeyInput!) { assetNodeOrError(assetKey: $key) { ... on AssetNode { metadataEntries {
  ... on TableColumnLineageMetadataEntry { lineage { columnName columnDeps { assetKey { path } columnName } } }
} } } }
"""
WITHOUT_AMOUNT = b'{"id": 7, "note": "no amount yet"}'


@dataclass(frozen=True)
class Project:
    """A lake with two topics, a Dagster instance and a web server."""

    lake: Path
    instance: dg.DagsterInstance
    address: str
    keys: dict[str, list[str]]

    def column_lineage(self, kind: str, topic: str) -> dict[str, list[tuple[str, ...]]]:
        """Return the source columns of each column of a table: each as the parts of the source asset's key, and the
        column name."""
        query = {"query": _LINEAGE, "variables": {"key": {"path": [kind, topic]}}}
        asked = urllib.request.Request(
            f"{self.address}/graphql", json.dumps(query).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(asked) as answer:
            entries = json.load(answer)["data"]["assetNodeOrError"]["metadataEntries"]
        (found,) = (entry["lineage"] for entry in entries if "lineage" in entry)
        return {
            column["columnName"]: [(*dep["assetKey"]["path"], dep["columnName"]) for dep in column["columnDeps"]]
            for column in found
        }

    def materialize(self, topic: str, declared: DecodeDeclaration, key: str) -> bool:
        """Decode a window in a Dagster run with its checks; return True if the run succeeded.

        The run uses a separate thread, because the browser's thread has an event loop.
        """
        with ThreadPoolExecutor(max_workers=1) as pool:
            return pool.submit(self._materialize, topic, declared, key).result()

    def _materialize(self, topic: str, declared: DecodeDeclaration, key: str) -> bool:
        d = decoded_defs.declaration(topic, declared)
        job = decoded_defs.of_declared({topic: declared}).resolve_implicit_global_asset_job_def()
        chosen = job.get_subset(
            asset_selection=set(names.decoded_keys(d)), asset_check_selection=set(names.check_keys(d))
        )
        return chosen.execute_in_process(instance=self.instance, partition_key=key, raise_on_error=False).success


@pytest.fixture(scope="module")
def project(chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """Decode both topics with the strict declaration, which some of the topics' records violate."""
    root = tmp_path_factory.mktemp("typed")
    lake, home = root / "lake", root / "dagster"
    home.mkdir()
    shutil.copyfile(INSTANCE_FILE, home / "dagster.yaml")
    environment = service_environment() | {"LAKE_ROOT": str(lake), "DAGSTER_HOME": str(home)}
    with pytest.MonkeyPatch.context() as patch, dg.DagsterInstance.from_config(str(home)) as instance:
        patch.setenv("LAKE_ROOT", str(lake))
        patch.setattr(resources, "decode_engine", lambda lake, *_: InProcessEngine(lake, tables_without_spark))
        keys = {}
        for name in (FAILING, CORRECTED):
            topic = DecodedTopic(lake, name, STRICT)
            keys[name] = topic.load([order(1), order(2), order(3)], [order(4), WITHOUT_AMOUNT])
            reported(instance, lake, name, topic.windows)
        with webserver(decoded_defs.__name__, root, environment) as address:
            made = Project(lake, instance, address, keys)
            for name, of_topic in keys.items():
                first, second = of_topic
                assert made.materialize(name, STRICT, first)
                # The check of dead letters blocks: its error is the run's.
                assert not made.materialize(name, STRICT, second)
            yield made


@pytest.fixture
def page(project: Project, pages: BrowserContext) -> Iterator[Page]:
    """Provide a browser page."""
    page = pages.new_page()
    page.set_default_timeout(60_000)
    yield page
    page.close()


def test_decoded_rows_and_dead_letters_are_downstream_of_raw_records(page: Page, project: Project) -> None:
    page.goto(f"{project.address}/assets/raw/{FAILING}?view=overview")
    wait_for_texts(page, [f"dead_letters / {FAILING}", f"decoded / {FAILING}"])
    for kind in ("decoded", "dead_letters"):
        page.goto(f"{project.address}/assets/{kind}/{FAILING}?view=overview")
        wait_for_texts(page, [f"Upstream assets raw / {FAILING}"])
        screenshot(page, f"{kind}-overview")
    page.goto(f"{project.address}/assets/raw/{FAILING}?view=lineage")
    # All four nodes have the topic's name: topic, raw records, rows and dead letters.
    page.wait_for_function(
        "name => [...document.querySelectorAll('body *')].filter(e => !e.children.length && e.textContent === name).length >= 5",
        arg=FAILING,
    )
    screenshot(page, "decoded-lineage")


@pytest.mark.long
def test_columns_are_shown_with_their_types(page: Page, project: Project) -> None:
    page.goto(f"{project.address}/assets/decoded/{FAILING}?view=overview")
    wait_for_texts(page, ["amount", "DECIMAL(12, 2)", "rescued", "kafka_offset"])
    screenshot(page, "decoded-columns")


@pytest.mark.long
def test_each_column_names_the_raw_column_that_it_is_made_from(project: Project) -> None:
    """Dagster's UI does not show column lineage, but its web server provides the lineage to other tools."""
    decoded, dead = (project.column_lineage(kind, FAILING) for kind in ("decoded", "dead_letters"))
    assert decoded["amount"] == decoded["rescued"] == [("raw", FAILING, "value")]
    assert decoded["key"] == [("raw", FAILING, "key")]
    assert decoded["kafka_offset"] == [("raw", FAILING, "kafka_offset")]
    assert dead["headers"] == [("raw", FAILING, "headers")]


def test_failing_check_of_dead_letters_shows_samples_by_reason(page: Page, project: Project) -> None:
    page.goto(f"{project.address}/assets/decoded/{FAILING}?view=checks&checkDetail={SHARE}")
    wait_for_texts(page, [f"{CONSERVATION} Succeeded", f"{SHARE} Failed"])
    wait_for_texts(page, ["1 of 2 records are dead letters: 1 missing at $.amount.", project.keys[FAILING][1]])
    wait_for_texts(page, ["missing $.amount 1 value", WITHOUT_AMOUNT.decode()])
    screenshot(page, "dead-letters-check")


@pytest.mark.long
def test_redrive_moves_the_rows_over_and_the_check_passes(page: Page, project: Project) -> None:
    """The declaration was corrected, so the window is stale. After another materialization, it has no dead letter."""
    key = project.keys[CORRECTED][1]
    page.goto(f"{project.address}/assets/decoded/{CORRECTED}?view=checks&checkDetail={SHARE}")
    wait_for_texts(page, [f"{SHARE} Failed"])
    page.goto(f"{project.address}/assets/dead_letters/{CORRECTED}?view=partitions&partition={key}")
    wait_for_texts(page, ["dagster/partition_row_count 1"])
    screenshot(page, "redrive-before")

    assert project.materialize(CORRECTED, LENIENT, key)

    page.goto(f"{project.address}/assets/dead_letters/{CORRECTED}?view=partitions&partition={key}")
    wait_for_texts(page, ["dagster/partition_row_count 0", "outcome replaced"])
    page.goto(f"{project.address}/assets/decoded/{CORRECTED}?view=partitions&partition={key}")
    wait_for_texts(page, ["dagster/partition_row_count 2", LENIENT.digest])
    page.goto(f"{project.address}/assets/decoded/{CORRECTED}?view=checks&checkDetail={SHARE}")
    wait_for_texts(page, [f"{CONSERVATION} Succeeded", f"{SHARE} Succeeded", "No dead letters among 2 records."])
    screenshot(page, "redrive-after")
