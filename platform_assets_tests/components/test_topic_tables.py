"""A list of topics with shared settings is equivalent to topics declared one by one."""

from __future__ import annotations

from pathlib import Path

import dagster as dg
import pytest

from platform_assets.components import declared, found_topics, new_topics, yaml_check
from platform_assets.orchestration.names import assets_job, table_key, topic_key
from platform_assets.services.project import DEFS_VARIABLE
from platform_assets_tests.support.shell import DAGSTER_WARNINGS

pytestmark = [*map(pytest.mark.filterwarnings, DAGSTER_WARNINGS)]

LIST = """type: platform_assets.components.TopicTables
attributes:
  topics:
    - orders
    - topic: clicks
      window: "*/5 * * * *"
      decode: {value: {format: json, schema: "id BIGINT"}}
    - topic: "{{ env.PAYMENTS }}"
  each:
    window: "0 * * * *"
    start: "2026-01-01T00:00Z"
    owners: [team:sales]
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of a domain's `defs.yaml`. The topic in the third entry comes from the environment."""
    monkeypatch.setenv(DEFS_VARIABLE, str(tmp_path))
    monkeypatch.setenv("PAYMENTS", "payments")
    (tmp_path / "shop").mkdir()
    return tmp_path / "shop"


def mistakes(folder: Path, text: str) -> list[tuple[int, str]]:
    (folder / "defs.yaml").write_text(text)
    return [(m.line, m.message) for m in yaml_check.judge(folder.parent).mistakes]


def test_each_topic_has_what_is_shared_and_what_is_its_own(folder: Path) -> None:
    (folder / "defs.yaml").write_text(LIST)
    found = declared.declarations()
    assert {name: d.schedule for name, d in found.items()} == {
        "clicks": "*/5 * * * *",
        "orders": "0 * * * *",
        "payments": "0 * * * *",
    }
    assert [name for name, d in found.items() if d.decode is not None] == ["clicks"]
    assert len({d.start for d in found.values()}) == 1


def test_dagster_has_the_same_assets_and_sensors_as_of_topics_declared_one_by_one(folder: Path) -> None:
    (folder / "defs.yaml").write_text(LIST)
    definitions = declared.definitions()
    resources = dict.fromkeys(("kafka", "lake", "spark"), dg.ResourceDefinition.hardcoded_resource(None))
    graph = dg.Definitions.merge(definitions, dg.Definitions(resources=resources)).resolve_asset_graph()
    known = declared.declarations().values()
    keys = {topic_key(d.topic) for d in known} | {table_key(t) for d in known for t in d.tables}
    assert graph.get_all_asset_keys() == keys
    assert all(graph.get(table_key(d.raw_table)).owners == ["team:sales"] for d in known)
    assert {graph.get(table_key(d.raw_table)).group_name for d in known} == {"shop"}
    assert len([*(definitions.sensors or ())]) == 3


def test_what_is_right_is_declared_with_the_lines_of_its_own(folder: Path) -> None:
    assert mistakes(folder, LIST.replace('"{{ env.PAYMENTS }}"', "payments")) == []
    places = {d.declaration.topic: (d.topic_line, d.start_line) for d in yaml_check.judge(folder.parent).declared}
    assert places == {"orders": (4, 11), "clicks": (5, 11), "payments": (8, 11)}


@pytest.mark.parametrize(
    ("given", "instead", "line", "says"),
    [
        ("- orders", "- or ders", 4, "topic: 'or ders' is not a legal Kafka topic name"),
        ("- orders", "- 5", 3, "topics: 5 is neither a topic's name nor a mapping with `topic: <name>`"),
        ("- orders", "- {window: '0 * * * *'}", 3, "is neither a topic's name nor a mapping"),
        ('"*/5 * * * *"', "61 * * * *", 6, "window: '61 * * * *' is not a cron schedule"),
        ("BIGINT", "BIGGEST", 7, "decode: "),
        ('window: "0 * * * *"', "window: often", 10, "window: 'often' is not a cron schedule"),
        ('    start: "2026-01-01T00:00Z"\n', "", 9, "start: it is missing: add `start: "),
        ("owners:", "ownres:", 12, "ownres: unknown field: did you mean 'owners'?"),
        ("owners: [team:sales]", "topic: orders", 9, "each: it sets `topic`, which differs for each topic"),
        ("  each:", "  every:", 9, "every: unknown field: use one of pattern, exclude, topics, each, together"),
        ("  each:", "  together: all of them\n  each:", 9, "together: 'all of them' must consist of 1 to 60 letters"),
        ("  each:", "  exclude: [o.*]\n  each:", 2, "exclude: without a `pattern` there is nothing to leave out"),
        ("  each:", "  pattern: (\n  each:", 9, "pattern: '(' is not an RE2 regular expression: missing )"),
        ("  each:", "  pattern: a)|(b\n  each:", 9, "pattern: 'a)|(b' is not an RE2 regular expression"),
        ("- orders", "- clicks", 5, "topic: 'clicks' is declared twice, first at"),
    ],
)
def test_a_mistake_is_named_once_with_the_line_that_it_stands_on(
    folder: Path, given: str, instead: str, line: int, says: str
) -> None:
    found = mistakes(folder, LIST.replace(given, instead))
    assert (line, True) in [(at, says in message) for at, message in found], found
    assert len({at for at, _ in found}) == len(found)
    assert len(found) == 1 or "each: it is missing" in str(found)


def test_no_topics_are_a_mistake(folder: Path) -> None:
    ((line, message),) = mistakes(
        folder, LIST.replace(LIST[LIST.index("    - orders") : LIST.index("  each:")], "    []\n")
    )
    assert (line, message) == (3, "topics: it lists no topic: add one, give a `pattern`, or delete the component")


def test_dagster_names_file_and_line_where_a_topic_is_refused(folder: Path) -> None:
    (folder / "defs.yaml").write_text(LIST.replace('"*/5 * * * *"', "61 * * * *"))
    with pytest.raises(Exception, match="shop") as caught:
        declared.component_tree().build_defs()
    error: BaseException | None = caught.value
    said = []
    while error is not None:
        said.append(str(error))
        error = error.__cause__
    assert f"{folder / 'defs.yaml'}:6" in "\n".join(said)


def test_topics_that_are_together_have_one_sensor_and_are_otherwise_as_any(folder: Path) -> None:
    (folder / "defs.yaml").write_text(LIST)
    apart = declared.definitions()
    (folder / "defs.yaml").write_text(LIST.replace("  each:", "  together: sales\n  each:"))
    together = declared.definitions()
    (sensor,) = together.sensors or ()
    assert isinstance(sensor, dg.SensorDefinition)
    assert sensor.name == "sales_together_windows"
    # One of each for the group, and one asset job for each schedule; plus the job that loads windows of an earlier
    # schedule into decoded tables.
    tables = {assets_job(d) for d in declared.declarations().values()}
    assert len(tables) == 2
    asked = {"sales_together_load", *tables, "clicks_earlier_windows"}
    assert {job.name for job in together.jobs or ()} == {*asked, "sales_together_deep_audit"}
    assert {target.job_name for target in sensor.targets} == asked
    assert [schedule.name for schedule in together.schedules or ()] == ["sales_together_deep_audit_0"]
    resources = dict.fromkeys(("kafka", "lake", "spark"), dg.ResourceDefinition.hardcoded_resource(None))
    keys = [
        dg.Definitions.merge(d, dg.Definitions(resources=resources)).resolve_asset_graph().get_all_asset_keys()
        for d in (apart, together)
    ]
    assert keys[0] == keys[1]
    # Dagster resolves jobs when it first needs them, and then refuses a job whose tables have different partitions.
    dg.Definitions.merge(together, dg.Definitions(resources=resources)).get_repository_def().load_all_definitions()
    assert {d.together for d in declared.declarations().values()} == {"sales"}


def test_a_name_under_which_topics_are_together_stands_once(folder: Path) -> None:
    text = LIST.replace("  each:", "  together: sales\n  each:").replace('"{{ env.PAYMENTS }}"', "payments")
    other = text.replace("orders", "orders2").replace("clicks", "clicks2").replace("payments", "payments2")
    found = mistakes(folder, f"{text}---\n{other}")
    ((line, message),) = found
    assert (line, message) == (
        23,
        f"together: 'sales' is already used for other topics, at {folder / 'defs.yaml'}:9: choose another name",
    )


def test_what_topics_that_are_together_share_is_none_of_one_topic(folder: Path) -> None:
    text = LIST.replace("  each:", "  together: sales\n  each:").replace(
        "- topic: clicks", "- topic: clicks\n      sensor_running: false"
    )
    ((line, message),) = mistakes(folder, text)
    assert line == 2
    assert (
        message
        == "topic 'clicks' sets 'sensor_running', but the topics of a group (`together`) share this field: set it under `each`"
    )


PATTERN = """type: platform_assets.components.TopicTables
attributes:
  pattern: shop[.].*
  exclude: [".*[.]test", "shop[.]secret.*"]
  topics: [{topic: shop.orders, window: "*/5 * * * *"}]
  together: shop
  each:
    window: "0 * * * *"
    start: "2026-01-01T00:00Z"
"""


def test_topics_that_were_found_are_declared_as_the_pattern_says_and_one_that_is_named_wins(folder: Path) -> None:
    (folder / "defs.yaml").write_text(PATTERN)
    assert set(declared.declarations()) == {"shop.orders"}
    names = ["shop.orders", "shop.clicks", "shop.a.test", "shop.secrets", "other.shop.x", "__shop", "shop.b"]
    found_topics.add(folder, names)
    found = declared.declarations()
    assert {name: d.schedule for name, d in found.items()} == {
        "shop.b": "0 * * * *",
        "shop.clicks": "0 * * * *",
        "shop.orders": "*/5 * * * *",
    }
    places = {d.declaration.topic: d.topic_line for d in yaml_check.judge(folder.parent).declared}
    assert places == {"shop.b": 3, "shop.clicks": 3, "shop.orders": 5}
    sensors = {sensor.name for sensor in declared.definitions().sensors or ()}
    assert sensors == {"shop_together_windows", new_topics.sensor_name("shop[.].*")}


def test_a_pattern_without_any_topic_yet_is_no_mistake(folder: Path) -> None:
    text = PATTERN.replace('  topics: [{topic: shop.orders, window: "*/5 * * * *"}]\n', "")
    assert mistakes(folder, text) == []
    assert [sensor.name for sensor in declared.definitions().sensors or ()] == [new_topics.sensor_name("shop[.].*")]


def test_new_topics_are_recorded_once_and_the_code_is_reloaded(folder: Path) -> None:
    reloads: list[str] = []

    def reload() -> str:
        reloads.append("")
        return "Reloaded."

    assert new_topics.taken_up([], folder, reload) == "every topic that matches is declared"
    assert not reloads
    said = new_topics.taken_up(["shop.b", "shop.a"], folder, reload)
    assert said == f"new: shop.b, shop.a. They are in {folder / found_topics.FILE}. Reloaded."
    assert found_topics.read(folder) == ("shop.a", "shop.b")
    # Until the code is loaded again, each tick finds the same topics.
    assert "reload the code location" in new_topics.taken_up(["shop.b", "shop.a"], folder, reload)
    assert len(reloads) == 1


def test_a_folder_that_cannot_be_written_is_said_with_what_to_do(folder: Path) -> None:
    (folder / found_topics.FILE).mkdir()
    said = new_topics.taken_up(["shop.a"], folder, str)
    assert "new: shop.a." in said
    assert "cannot be read" in said
