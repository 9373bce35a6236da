"""Topics that match a pattern on a real broker. The command and the sensor find them, and from then on they are
declared."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import dagster as dg
import pytest

from platform_assets.components import declared, found_topics, new_topics
from platform_assets.orchestration.resources import KafkaResource
from platform_assets.services.project import DEFS_VARIABLE
from platform_assets_tests.support.shell import DAGSTER_WARNINGS, Shell

if TYPE_CHECKING:
    from platform_assets_tests.conftest import Broker, TopicMaker

pytestmark = [pytest.mark.broker, *map(pytest.mark.filterwarnings, DAGSTER_WARNINGS)]


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broker: Broker) -> Shell:
    made = Shell(tmp_path)
    made.variables |= {"KAFKA_BOOTSTRAP_SERVERS": broker.bootstrap, "LAKE_ROOT": str(tmp_path / "lake")}
    for name, value in made.variables.items():
        monkeypatch.setenv(name, value)
    assert DEFS_VARIABLE in made.variables
    return made


def declare(shell: Shell, stem: str) -> Path:
    """Declare topics whose names begin with `stem` and do not contain `secret`. Return the folder."""
    folder = shell.root / "defs" / "shop"
    folder.mkdir()
    (folder / "defs.yaml").write_text(
        "type: platform_assets.components.TopicTables\nattributes:\n"
        f"  pattern: {stem}.*\n  exclude: ['.*secret.*']\n  together: shop\n"
        "  each: {window: '0 * * * *', start: '2026-01-01T00:00Z'}\n"
    )
    return folder


def test_the_command_adds_what_is_new_and_what_is_declared_already_is_left_alone(
    shell: Shell, topic: TopicMaker
) -> None:
    stem = f"s{uuid.uuid4().hex[:6]}"
    first, other = topic(stem=stem), topic(stem=stem)
    topic(stem=f"{stem}-secret")
    topic(stem=f"x{stem}")
    shell.declare(other)
    folder = declare(shell, stem)
    found = shell.run("find-topics", "--dry-run")
    assert found.exit_code == 0, found.output
    assert first in found.stdout
    assert not (folder / found_topics.FILE).exists()
    done = shell.run("find-topics")
    assert found_topics.read(folder) == (first,)
    assert "reload the code location" in done.stdout
    assert set(declared.declarations()) == {first, other}
    assert shell.run("check").exit_code == 0
    again = shell.run("find-topics")
    assert f"pattern {stem}.* matches 0 new topics" in again.stdout
    assert "reload" not in again.stdout


def test_the_sensor_adds_a_new_topic_and_the_next_load_of_the_code_declares_it(
    shell: Shell, broker: Broker, topic: TopicMaker
) -> None:
    stem = f"s{uuid.uuid4().hex[:6]}"
    folder = declare(shell, stem)

    def tick() -> str:
        resources = {"kafka": KafkaResource(bootstrap_servers=broker.bootstrap)}
        others = dict.fromkeys(("lake", "spark"), dg.ResourceDefinition.hardcoded_resource(None))
        made = dg.Definitions.merge(declared.definitions(), dg.Definitions(resources={**resources, **others}))
        name = new_topics.sensor_name(f"{stem}.*")
        sensor = next(s for s in made.sensors or () if isinstance(s, dg.SensorDefinition) and s.name == name)
        with dg.build_sensor_context(definitions=made, resources=resources) as context:
            return str(sensor.evaluate_tick(context).skip_message)

    assert tick() == "every topic that matches is declared"
    first = topic(stem=stem)
    assert tick().startswith(f"new: {first}. They are in {folder / found_topics.FILE}.")
    assert set(declared.declarations()) == {first}
    assert tick() == "every topic that matches is declared"
