"""A failing tick on the table's page in Dagster: it is shown when the failure begins or changes, and when the failure
ends."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import dagster as dg
import pytest

from platform_assets.errors import BrokerUnreachableError, PlatformError
from platform_assets.lake.failures import LakeNotReadableError
from platform_assets.model.declaration import TopicDeclaration
from platform_assets.orchestration import tick as tick_of
from platform_assets.orchestration.definitions import DeepAudit, build_definitions
from platform_assets.orchestration.names import table_key
from platform_assets.orchestration.resources import KafkaResource, LakeResource

NOW = datetime.now(UTC)
STARTED = TopicDeclaration("clicks", "0 * * * *", NOW.replace(minute=0, second=0, microsecond=0) - timedelta(hours=2))
NOBODY = "127.0.0.1:1"


@pytest.fixture
def instance(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.local_temp(str(tmp_path_factory.mktemp("dagster"))) as made:
        yield made


def tick(instance: dg.DagsterInstance, root: Path, declaration: TopicDeclaration = STARTED) -> None:
    """Run a tick as Dagster's daemon does; no broker answers."""
    resources = {
        "kafka": KafkaResource(bootstrap_servers=NOBODY, timeout_seconds=0.5),
        "lake": LakeResource(root=str(root)),
    }
    with dg.build_sensor_context(instance, resources=resources) as context:
        made = build_definitions(
            declaration, group="g", description=None, owners=[], sensor_running=True, deep_audit=DeepAudit()
        )
        (sensor,) = made.sensors or ()
        assert isinstance(sensor, dg.SensorDefinition)
        sensor(context)


def on_the_page(instance: dg.DagsterInstance, declaration: TopicDeclaration = STARTED) -> list[str]:
    """Return the observations of the raw table, oldest first."""
    records = instance.fetch_observations(table_key(declaration.raw_table), limit=20).records
    found = [r.asset_observation.description or "" for r in records if r.asset_observation is not None]
    return found[::-1]


def test_a_broker_that_is_gone_is_on_the_page_of_the_table_once(instance: dg.DagsterInstance, tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(BrokerUnreachableError):
            tick(instance, tmp_path)
    (text,) = on_the_page(instance)
    assert text.startswith("Sensor clicks_windows fails: no Kafka broker answered within 0.5 s")
    assert "Check KAFKA_BOOTSTRAP_SERVERS" in text


def test_what_changes_and_what_ends_is_on_the_page_too(instance: dg.DagsterInstance, tmp_path: Path) -> None:
    """For a topic whose first edge is in the future, the tick does not query a broker. In place of the lake, there is
    first a file."""
    to_come = TopicDeclaration("clicks", "0 * * * *", NOW + timedelta(days=1))
    root = tmp_path / "lake"
    with pytest.raises(BrokerUnreachableError):
        tick(instance, root)
    moved = root.rename(tmp_path / "moved")
    root.write_text("a file")
    with pytest.raises(LakeNotReadableError):
        tick(instance, root)
    root.unlink()
    moved.rename(root)
    for _ in range(2):
        tick(instance, root, to_come)
    texts = on_the_page(instance)
    assert [text.partition(":")[0] for text in texts] == [
        "Sensor clicks_windows fails", "Sensor clicks_windows fails", "Sensor clicks_windows ticks successfully again."
    ]  # fmt: skip
    assert "the lake cannot be read" in texts[1]


def test_a_new_process_goes_on_from_what_the_page_has(instance: dg.DagsterInstance) -> None:
    gone: PlatformError = BrokerUnreachableError("asking for offsets", 1, "refused")
    tick_of.observe(instance, STARTED, None)
    assert on_the_page(instance) == []
    for error in (gone, gone, None, None, gone):
        tick_of._known.clear()
        tick_of.observe(instance, STARTED, error)
    assert [text.split()[2].rstrip(":") for text in on_the_page(instance)] == ["fails", "ticks", "fails"]


def test_ticks_that_go_well_ask_dagster_once(instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch) -> None:
    tick_of.observe(instance, STARTED, None)
    monkeypatch.setattr(tick_of, "_reported", lambda *_: pytest.fail("asked again"))
    tick_of.observe(instance, STARTED, None)
