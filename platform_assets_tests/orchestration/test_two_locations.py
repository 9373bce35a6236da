"""Two code locations in one Dagster, each with its own lake: a topic that has the same name in both causes no
interference."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import dagster as dg
import pytest
import yaml
from dagster._core.storage.tags import REPOSITORY_LABEL_TAG

from platform_assets.lake.location import Lake
from platform_assets.ledger.store import Ledger
from platform_assets.model.tables import TableRef
from platform_assets.orchestration import health
from platform_assets.orchestration.dagster_records import TABLE_TAG, reported_loads
from platform_assets.orchestration.maintenance.pruning import label_of
from platform_assets.orchestration.names import PREFIX_VARIABLE
from platform_assets.services.home import CHECKOUT
from platform_assets_tests.soak.embedded import Answer, Embedded
from platform_assets_tests.soak.live import LiveProducer, create
from testbed.loads import wait_until

TOPIC = "orders"
RAW = TableRef.raw(TOPIC)
NAMES = ("north", "south")
MODULE = """\
import os

os.environ.update({variables!r})

from platform_assets.definitions import defs

__all__ = ["defs"]
"""


@dataclass(frozen=True)
class Location:
    """A code location with its own lake."""

    name: str
    platform: Embedded

    @property
    def variables(self) -> dict[str, str]:
        root = self.platform.root / self.name
        return {"LAKE_ROOT": str(root / "lake"), "PLATFORM_DEFS": str(root / "defs"), PREFIX_VARIABLE: self.name}

    @property
    def ledger(self) -> Ledger:
        return Ledger(Lake.at(self.variables["LAKE_ROOT"]))

    @property
    def table(self) -> dg.AssetKey:
        return dg.AssetKey([self.name, *RAW.parts])

    def declare(self) -> None:
        """Write the location's module and YAML; the windows of both locations have the same keys."""
        folder = Path(self.variables["PLATFORM_DEFS"]) / TOPIC
        folder.mkdir(parents=True)
        declared = {
            "topic": TOPIC, "window": "* * * * *", "start": f"{_minute() - timedelta(minutes=3):%Y-%m-%dT%H:%MZ}",
            "sensor_interval_seconds": 2, "deep_audit_running": False, "max_windows_per_run": 1,
        }  # fmt: skip
        text = yaml.safe_dump({"type": "platform_assets.components.TopicTable", "attributes": declared})
        (folder / "defs.yaml").write_text(text)
        (self.platform.root / f"of_{self.name}.py").write_text(MODULE.format(variables=self.variables))

    def command(self, *arguments: str) -> Answer:
        """Run a platform command in this location's environment."""
        with self._environment():
            return self.platform.command(*arguments)

    @contextmanager
    def _environment(self) -> Iterator[None]:
        before = self.platform.environ
        self.platform.environ = {**before, **self.variables}
        try:
            yield
        finally:
            self.platform.environ = before


def _minute() -> datetime:
    return datetime.now(UTC).replace(second=0, microsecond=0)


@pytest.mark.cluster
@pytest.mark.timeout(1800)
def test_topics_of_the_same_name_are_kept_apart(tmp_path: Path) -> None:
    platform = Embedded(
        tmp_path / "platform",
        tmp_path / "nobody's lake",
        instance_settings={
            "concurrency": {
                "runs": {
                    "max_concurrent_runs": 2,
                    "tag_concurrency_limits": [
                        {"key": TABLE_TAG, "value": {"applyLimitPerUniqueValue": True}, "limit": 1}
                    ],
                }
            }
        },
    )
    north, south = locations = [Location(name, platform) for name in NAMES]
    entries = []
    for each in locations:
        each.declare()
        module = {"module_name": f"of_{each.name}", "working_directory": str(platform.root), "location_name": each.name}
        entries.append({"python_module": module})
    (platform.root / "workspace.yaml").write_text(yaml.safe_dump({"load_from": entries}))
    platform.environ["PYTHONPATH"] = str(CHECKOUT)
    del platform.environ["LAKE_ROOT"]
    with platform.running(("kafka", "spark")):
        create(platform.bootstrap, TOPIC, 2)
        with LiveProducer(platform.bootstrap, TOPIC, 2).sending() as producer:
            wait_until("something is sent", lambda: producer.sent > 100)
        platform.start("dagster-daemon")
        wait_until("both have loaded three windows", lambda: all(len(_loaded(each)) >= 3 for each in locations), 900)
        for each in locations:
            wait_until("its checks are green", lambda e=each: _is_green(e), 600)  # type: ignore[misc]
        platform.kill("dagster-daemon")

        with platform.instance() as instance:
            found = {each.name: _runs(instance, each) for each in locations}
            assert sum(map(len, found.values())) == instance.get_runs_count()
            for each in locations:
                own = found[each.name]
                assert {r.dagster_run.tags[TABLE_TAG] for r in own} == {f"{each.name}/raw/{TOPIC}"}
                loads = reported_loads(instance, each.table, sorted(_loaded(each)))
                receipts = each.ledger.receipts(RAW)
                assert loads == {key: receipts[key].load_id for key in loads}
                assert set(loads) == _loaded(each)
                # One at a time, of each table: the limit of one is not the other's.
                times = sorted((r.start_time or 0.0, r.end_time or 0.0) for r in own if r.end_time)
                assert all(first[1] <= second[0] for first, second in pairwise(times))
                assert f"{each.name}__{TOPIC}_windows" in health.sensors(instance)
            counts = [len(_rows(each)) for each in locations]
            assert counts == [producer.sent, producer.sent]

            # What is wrong with one is said of that one.
            broken = dg.AssetCheckEvaluation(north.table, "no_gaps", passed=False, metadata={})
            instance.report_runless_asset_event(broken)
        assert _failing(north) == ["no_gaps"]
        assert _failing(south) == []

        # Runs of the last day stay, and each is counted by the location whose it is.
        for each in locations:
            said = json.loads(each.command("prune-runs", "--location", each.name, "--dry-run", "--json").text)
            assert said["left"] == len([r for r in found[each.name] if r.dagster_run.is_finished])


def _runs(instance: dg.DagsterInstance, location: Location) -> Sequence[dg.RunRecord]:
    """Return the runs that Dagster assigns to this code location."""
    return instance.get_run_records(dg.RunsFilter(tags={REPOSITORY_LABEL_TAG: label_of(location.name)}))


def _loaded(location: Location) -> set[str]:
    return set(location.ledger.receipts(RAW))


def _rows(location: Location) -> list[object]:
    from deltalake import DeltaTable

    table = Path(location.variables["LAKE_ROOT"]) / "raw" / TOPIC
    return list(DeltaTable(table).to_pyarrow_table(columns=["value"])["value"].to_pylist())


def _is_green(location: Location) -> bool:
    said = location.command("status", "--json")
    if said.code:
        return False
    (table,) = json.loads(said.text)["tables"]
    return all(check["passed"] for check in table["checks"])


def _failing(location: Location) -> list[str]:
    (table,) = json.loads(location.command("status", "--json").text)["tables"]
    return [check["name"] for check in table["checks"] if check["passed"] is False]
