"""A few lines of YAML become a topic's assets; a mistake in them is reported with file, line and remedy."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from platform_assets.components.declared import declarations
from platform_assets.components.topic_table import TopicTable
from platform_assets.errors import ConfigurationError
from platform_assets.model.names import identifier
from platform_assets.model.tables import TableRef
from platform_assets.orchestration.names import table_key, topic_key

CHECKOUT = Path(__file__).parents[2]
PROJECT = """[tool.dg]
directory_type = "project"
[tool.dg.project]
root_module = "{name}"
registry_modules = ["platform_assets.components"]
"""
FIRST_LINE = 4
"""Line number of the first attribute. A comment, the type and the word `attributes` precede it."""
NAMES = (f"shop_project_{n}" for n in itertools.count())

# Dagster 1.13, which is pinned, reads YAML with a function that pydantic deprecates, and uses its own beta and preview
# features whenever it loads a project.
pytestmark = [
    pytest.mark.filterwarnings("ignore:`parse_obj_as` is deprecated"),
    pytest.mark.filterwarnings("ignore::dagster_shared.utils.warnings.BetaWarning"),
    pytest.mark.filterwarnings("ignore::dagster_shared.utils.warnings.PreviewWarning"),
]

Project = Callable[..., Path]


def yaml(*documents: dict[str, Any]) -> str:
    """Return components with these attributes, spelled exactly as given. Attributes that are not given have valid
    defaults."""
    whole = [{"topic": "orders", "window": '"0 * * * *"', "start": "2026-01-01T00:00Z", **d} for d in documents]
    return "---\n".join(
        "# a comment\ntype: platform_assets.components.TopicTable\nattributes:\n"
        + "".join(f"  {name}: {value}\n" for name, value in attributes.items() if value is not None)
        for attributes in whole
    )


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """Create projects with one domain, `shop`, and return their folders."""

    def make(*documents: dict[str, Any]) -> Path:
        name = next(NAMES)
        root = tmp_path / name
        domain = root / name / "defs" / "shop"
        domain.mkdir(parents=True)
        (root / name / "__init__.py").touch()
        (root / "pyproject.toml").write_text(PROJECT.format(name=name))
        (domain / "defs.yaml").write_text(yaml(*documents))
        monkeypatch.syspath_prepend(root)
        return root

    return make


def built(root: Path) -> dg.Definitions:
    resources = dict.fromkeys(("kafka", "lake", "spark"), dg.ResourceDefinition.hardcoded_resource(None))
    return dg.Definitions.merge(dg.ComponentTree.for_project(root).build_defs(), dg.Definitions(resources=resources))


def mistake(root: Path) -> str:
    """Return the complete error that the project's definitions raise."""
    with pytest.raises(Exception, match="shop") as caught:
        built(root)
    error: BaseException | None = caught.value
    said: list[str] = []
    while error is not None:
        said.append(str(error))
        error = error.__cause__
    return "\n".join(said)


# --- results --------------------------------------------------------------------------------------------------------


def test_three_lines_make_a_source_a_table_its_checks_and_a_sensor(project: Project) -> None:
    definitions = built(project({}))
    graph = definitions.resolve_asset_graph()
    assert graph.get_all_asset_keys() == {topic_key("orders"), table_key(TableRef.raw("orders"))}
    assert not graph.get(topic_key("orders")).is_executable
    assert graph.get(table_key(TableRef.raw("orders"))).parent_keys == {topic_key("orders")}
    assert graph.get(table_key(TableRef.raw("orders"))).group_name == "shop"
    for key in graph.get_all_asset_keys():
        partitions = graph.get(key).partitions_def
        assert isinstance(partitions, dg.TimeWindowPartitionsDefinition)
        assert partitions.get_partition_keys(current_time=datetime(2026, 1, 1, 2, tzinfo=UTC)) == [
            "2026-01-01-00:00", "2026-01-01-01:00"
        ]  # fmt: skip
    checks = {k.name for k in graph.get_check_keys_for_assets({table_key(TableRef.raw("orders"))})}
    assert checks > {"no_gaps", "no_duplicates"}
    (sensor,) = definitions.sensors or ()
    assert isinstance(sensor, dg.SensorDefinition)
    assert (sensor.name, sensor.default_status) == ("orders_windows", dg.DefaultSensorStatus.RUNNING)


def test_what_is_set_arrives(project: Project) -> None:
    root = project(
        {
            "sensor_interval_seconds": 5,
            "sensor_running": "false",
            "tick_budget_seconds": 50,
            "max_records_per_run": 1,
            "max_windows_per_run": 2,
            "max_edges_per_tick": 3,
            "records_per_file": 4,
            "engine": "auto",
            "group": "sales_1",
            "description": "Orders of the shop.",
            "owners": '["team:shop", "a@example.com"]',
        }
    )
    (component,) = dg.ComponentTree.for_project(root).get_all_components(of_type=TopicTable)
    d = component.declaration()
    assert (d.sensor_interval, d.tick_budget) == (timedelta(seconds=5), timedelta(seconds=50))
    assert d.engine == "auto"
    assert (d.max_records_per_run, d.max_windows_per_run, d.max_edges_per_tick, d.records_per_file) == (1, 2, 3, 4)
    definitions = built(root)
    node = definitions.resolve_asset_graph().get(topic_key("orders"))
    assert (node.group_name, sorted(node.owners)) == ("sales_1", ["a@example.com", "team:shop"])
    assert "Orders of the shop." in (node.description or "")
    (sensor,) = definitions.sensors or ()
    assert isinstance(sensor, dg.SensorDefinition)
    # A second less than declared: the daemon looks every five seconds, give or take some milliseconds.
    assert (sensor.default_status, sensor.minimum_interval_seconds) == (dg.DefaultSensorStatus.STOPPED, 4)


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        ("2026-01-01", datetime(2026, 1, 1, tzinfo=UTC)),
        ("2026-01-01T00:00:00Z", datetime(2026, 1, 1, tzinfo=UTC)),
        ("2026-01-01 05:30:00+05:30", datetime(2026, 1, 1, tzinfo=UTC)),
        ("\"{{ env('NO_SUCH_VARIABLE', '2026-02-01T00:00Z') }}\"", datetime(2026, 2, 1, tzinfo=UTC)),
    ],
)
def test_a_start_is_taken_in_any_spelling_of_iso_8601(project: Project, start: str, expected: datetime) -> None:
    (declaration,) = declarations(project({"start": start})).values()
    assert declaration.first_edge == expected


def test_topics_whose_names_differ_by_dots_and_dashes_do_not_collide(project: Project) -> None:
    names = ("a.b", "a-b", "a_b", "a__b")
    definitions = built(project(*({"topic": n} for n in names)))
    assert len({s.name for s in definitions.sensors or ()}) == len(names)
    assert {table_key(TableRef.raw(n)) for n in names} <= definitions.resolve_asset_graph().get_all_asset_keys()
    assert all(re.fullmatch("[A-Za-z0-9_]+", identifier(n)) for n in names)


# --- mistakes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("attributes", "line", "message"),
    [
        ({"window": "hourly"}, 5, r"'hourly' is not a cron schedule.*write '0 \* \* \* \*' for every hour"),
        ({"window": '"0 0 30 2 *"'}, 5, "not a cron schedule of five fields, or it never fires"),
        ({"window": '"* * * * * *"'}, 5, "not a cron schedule of five fields"),
        ({"window": 5}, 5, "valid string"),
        ({"topic": "a/b"}, 4, r"'a/b' is not a legal Kafka topic name: use 1 to 249"),
        ({"topic": '".."'}, 4, "not a legal Kafka topic name"),
        ({"start": "yesterday"}, 6, "'yesterday' is not an ISO 8601 time such as 2026-01-31T00:00Z"),
        ({"start": "2026-13-01"}, 6, "not an ISO 8601 time"),
        ({"start": '"1969-12-31T23:00Z"'}, 6, "is before 1970"),
        ({"sensor_interval_seconds": 0}, 7, "must be 1 or more, not 0"),
        ({"max_records_per_run": "many"}, 7, "valid integer"),
        ({"max_windows_per_run": -3}, 7, "must be 1 or more, not -3"),
        ({"tick_budget_seconds": 51}, 7, "must be 50 or less, not 51"),
        ({"sensor_running": "perhaps"}, 7, "valid boolean"),
        ({"deep_audit": "never"}, 7, "'never' is not a cron schedule"),
        ({"group": '"a b"'}, 7, "'a b' must consist of letters, digits and underscores only"),
        ({"owners": "[nobody]"}, 7, "'nobody' is neither an e-mail address nor of the form team:name"),
        ({"windw": '"* * * * *"'}, 7, r"windw.*\n.*Extra inputs are not permitted"),
        ({"start": None}, 3, r"start.*\n.*Field required"),
    ],
)
def test_a_mistake_is_named_with_file_line_and_remedy(
    project: Project, attributes: dict[str, Any], line: int, message: str
) -> None:
    root = project(attributes)
    said = mistake(root)
    (path,) = root.glob("*/defs/shop/defs.yaml")
    assert f"{path}:{line}" in said
    assert re.search(message, said), said


def test_every_mistake_of_a_topic_is_named_at_once_in_the_second_document_too(project: Project) -> None:
    root = project({}, {"topic": "a/b", "window": "hourly", "max_edges_per_tick": 0})
    said = mistake(root)
    (path,) = root.glob("*/defs/shop/defs.yaml")
    first = len(yaml({}).splitlines()) + 1 + FIRST_LINE
    assert all(f"{path}:{line}" in said for line in (first, first + 1, first + 3)), said


def test_yaml_that_is_none_is_named_with_its_line(project: Project) -> None:
    root = project({"topic": '"orders'})
    assert re.search(r"defs\.yaml.*\n?.*line \d+|line \d+.*\n?.*defs\.yaml", mistake(root))


def test_a_folder_named_as_no_group_may_be_is_a_group_all_the_same(project: Project) -> None:
    root = project({})
    (domain,) = root.glob("*/defs/shop")
    domain.rename(domain.with_name("my-shop.eu"))
    graph = built(root).resolve_asset_graph()
    assert graph.get(table_key(TableRef.raw("orders"))).group_name == "my_shop_eu"


def test_a_topic_declared_twice_is_refused(project: Project) -> None:
    root = project({}, {})
    with pytest.raises(ConfigurationError, match="'orders' is declared twice"):
        declarations(root)


def test_the_yaml_check_of_the_command_line_fails_with_file_line_and_remedy(project: Project) -> None:
    root = project({"max_recods_per_run": 5})
    environment = {**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{CHECKOUT}", "DAGSTER_DISABLE_TELEMETRY": "yes"}
    done = subprocess.run(
        [sys.executable, "-m", "dagster_dg_cli.cli", "check", "yaml"],
        cwd=root, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    said = done.stdout + done.stderr
    assert done.returncode != 0
    assert re.search(r"defs\.yaml:7\b", said), said
    assert "max_recods_per_run" in said


def _loaded_with_the_definitions(names: set[str], environ: Mapping[str, str]) -> str:
    program = (
        "import sys; from platform_assets.definitions import defs; d = defs(); assert list(d.assets); "
        f"print(sorted({{m.split('.')[0] for m in sys.modules}} & {names}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=CHECKOUT, capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": str(CHECKOUT), **environ},
    )  # fmt: skip
    return done.stdout.strip()


def test_the_project_itself_loads_without_spark_and_its_session_maker() -> None:
    """A code location loads quickly, even if Spark is not installed."""
    assert _loaded_with_the_definitions({"pyspark", "dagster_pyspark", "delta", "py4j"}, {}) == "[]"


def test_definitions_of_raw_tables_load_without_compiled_kernels(project: Project) -> None:
    """Each run loads the definitions again, and importing numba and the kernels takes longer than everything else in
    the definitions."""
    root = project({})
    assert (
        _loaded_with_the_definitions({"numba", "llvmlite"}, {"PLATFORM_DEFS": str(next(root.glob("*/defs")))}) == "[]"
    )
