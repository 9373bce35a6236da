"""A paused topic: nothing is sealed or requested, and nothing counts as failing. After the pause, the topic continues
where it stopped."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import dagster as dg
import pytest

from platform_assets.kafka.cluster import Cluster
from platform_assets.lake.location import Lake
from platform_assets.ledger.store import Ledger
from platform_assets.model.declaration import TopicDeclaration
from platform_assets.orchestration import status
from platform_assets.orchestration.names import table_key
from platform_assets.orchestration.status import Status
from platform_assets.orchestration.tick import Group
from platform_assets_tests.support.shell import DAGSTER_WARNINGS, Shell
from platform_assets_tests.support.streams import ANY_TIME
from testbed.loads import Record
from testbed.project import definitions
from testbed.samples import START, edge, loaded, recorded
from testbed.ticks import PlanningTick

if TYPE_CHECKING:
    from platform_assets_tests.conftest import LakeMaker

pytestmark = [*map(pytest.mark.filterwarnings, DAGSTER_WARNINGS)]

DECLARED = TopicDeclaration("clicks", "0 * * * *", START)
PAUSED = replace(DECLARED, paused=True)


@pytest.fixture
def instance(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dg.DagsterInstance]:
    """An instance that stores sensor states, which in-memory instances do not."""
    with dg.DagsterInstance.local_temp(str(tmp_path_factory.mktemp("dagster"))) as made:
        yield made


def seen(root: Path, declared: TopicDeclaration, instance: dg.DagsterInstance | None = None) -> Status:
    return status.collect([declared], Ledger(Lake.at(root)), None, instance, (), edge(9), broker_silence=None)


def test_a_tick_of_a_paused_topic_asks_nobody_and_changes_nothing(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    no_cluster, ledger = cast(Cluster, None), Ledger(Lake.at(tmp_path / "lake"))
    result = PlanningTick(Group.of(PAUSED), no_cluster, ledger, instance, edge(9)).evaluate("as it was")
    assert (result.run_requests, result.asset_events, result.cursor) == ([], [], "as it was")
    assert result.skip_reason == dg.SkipReason("topic clicks: paused in its YAML")
    assert not (tmp_path / "lake").exists()


def test_what_is_not_loaded_of_a_paused_topic_waits_and_is_no_failure(
    tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    """Of three windows, the middle one is not loaded. Nothing has been sealed for hours."""
    windows = recorded(tmp_path, "clicks", [{0: n} for n in range(4)])
    for window in (windows[0], windows[2]):
        loaded(tmp_path, window)
    (failing,) = seen(tmp_path, DECLARED, instance).tables
    assert failing.windows_failed == 1
    assert failing.problems

    (table,) = seen(tmp_path, PAUSED, instance).tables

    assert (table.paused, table.windows_waiting, table.windows_failed, table.problems) == (True, 1, 0, ())
    assert (
        table.warning == "it is paused in its YAML: no window is sealed, loaded or decoded until you remove `paused`."
    )
    assert replace(table, broker_error=None) == replace(
        failing, paused=True, windows_waiting=1, windows_failed=0, problems=(), warning=table.warning, broker_error=None
    )


def test_a_topic_that_is_paused_before_it_began_says_so(tmp_path: Path) -> None:
    (table,) = seen(tmp_path, PAUSED).tables
    assert table.warning is not None
    assert "paused" in table.warning


def test_dagster_expects_no_load_of_a_paused_topic() -> None:
    def policy(declared: TopicDeclaration) -> Any:
        found = definitions(declared, "localhost:1", Path("/nowhere"), "sc://localhost:1")
        return found.resolve_asset_graph().get(table_key(declared.raw_table)).freshness_policy

    assert policy(DECLARED) is not None
    assert policy(PAUSED) is None


@pytest.mark.parametrize(
    "ignored", [pytest.param(None, marks=[pytest.mark.filterwarnings(w) for w in DAGSTER_WARNINGS])]
)
def test_paused_is_a_field_of_the_yaml_that_status_shows(tmp_path: Path, ignored: None) -> None:
    shell = Shell(tmp_path)
    file = shell.declare("orders")
    shell.variables["LAKE_ROOT"] = str(tmp_path / "lake")
    assert json.loads(shell.run("status", "--json").output)["tables"][0]["paused"] is False
    file.write_text(file.read_text() + "  paused: true\n")
    assert json.loads(shell.run("status", "--json").output)["tables"][0]["paused"] is True
    assert "raw/orders: it is paused in its YAML" in shell.run("status").output
    assert shell.run("check").exit_code == 0


@pytest.mark.broker
def test_a_topic_that_is_taken_up_again_goes_on_where_it_was(lake: LakeMaker, instance: dg.DagsterInstance) -> None:
    start = datetime.now(UTC).replace(minute=0, second=0, microsecond=0) - timedelta(hours=8)
    lk = lake(config=ANY_TIME, start=start)
    declared = replace(lk.declaration, schedule="0 * * * *")

    def tick(declared: TopicDeclaration, hours: int) -> dg.SensorResult:
        now = start + timedelta(hours=hours, seconds=1)
        return PlanningTick(Group.of(declared), lk.cluster, lk.ledger, instance, now).evaluate(None)

    def send(*hours: int) -> None:
        stamps = (start + timedelta(hours=hour, minutes=30) for hour in hours)
        lk.send([Record(b"%d" % n, timestamp=round(at.timestamp() * 1000)) for n, at in enumerate(stamps)])

    send(0, 1)
    tick(declared, 2)
    send(2, 3, 4)
    assert tick(replace(declared, paused=True), 5).run_requests == []
    assert len(lk.ledger.windows(lk.topic)) == 2
    send(5)
    asked = tick(declared, 6)
    assert [w.ranges.triples() for w in lk.ledger.windows(lk.topic)] == [((0, n, n + 1),) for n in range(6)]
    assert asked.run_requests
