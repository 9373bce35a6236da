"""Each example, run as its command runs it, with the session's broker and Spark server: its tables equal the source."""

from __future__ import annotations

import json
import zipfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

import dagster as dg
import pytest

from examples import runner
from examples.logs import example as logs
from platform_assets.components import declared
from platform_assets.errors import ConfigurationError
from platform_assets_tests.conftest import Broker
from platform_assets_tests.support.shell import DAGSTER_WARNINGS, Shell

# Of the code location's own IO manager, which Dagster 1.13 wraps in a function.
SUPERSEDED = "ignore:Function `fs_io_manager` is superseded"
LONG = frozenset(runner.names()) - {"commit_log"}
"""Examples with derived tables, which Spark computes. They run in `make test-all`."""
pytestmark = [*map(pytest.mark.filterwarnings, (*DAGSTER_WARNINGS, SUPERSEDED))]


@pytest.mark.broker
@pytest.mark.spark
@pytest.mark.usefixtures("flat")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] if name in LONG else []) for name in runner.names()]
)
def test_an_example_gives_the_rows_of_its_source_file(
    name: str, broker: Broker, spark_remote: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable, value in {
        "PLATFORM_HOME": str(tmp_path / "home"),
        "LAKE_ROOT": str(tmp_path / "lake"),
        "DAGSTER_HOME": str(tmp_path / "home" / "dagster"),
        "KAFKA_BOOTSTRAP_SERVERS": broker.bootstrap,
        "SPARK_REMOTE": spark_remote,
        "PLATFORM_DEFS": "",
        runner.START: "",
        "DAGSTER_DISABLE_TELEMETRY": "yes",
    }.items():
        monkeypatch.setenv(variable, value)
    lines: list[str] = []
    found = runner.run(runner.example(name), lines.append)
    print("\n".join([*lines, *map(str, found)]))
    assert found
    assert not [str(each) for each in found if not each.is_equal]
    assert all(each.rows for each in found)


def test_each_example_has_what_its_readers_need() -> None:
    for name in runner.names():
        folder = runner.FOLDER / name
        readme = (folder / "README.md").read_text()
        assert f"make example NAME={name}\n" in readme
        assert len(readme.splitlines()) < 80
        assert list((folder / "defs").rglob("defs.yaml"))
        assert f"({name}/README.md)" in (runner.FOLDER / "README.md").read_text()


@pytest.mark.parametrize("name", runner.names())
def test_the_yaml_of_an_example_has_no_mistakes(name: str, tmp_path: Path) -> None:
    start = f"{datetime.now(UTC) - timedelta(hours=1):%Y-%m-%dT%H:%M:00Z}"
    variables = {"PLATFORM_DEFS": str(runner.example(name).defs), runner.START: start}
    found = Shell(tmp_path / "project").run("check", "--json", **variables)
    assert found.exit_code == 0, found.output
    printed = json.loads(found.stdout)
    assert (printed["mistakes"], printed["warnings"]) == ([], [])


def test_an_asset_publishes_each_topic_of_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLATFORM_HOME", str(tmp_path / "home"))
    monkeypatch.delenv(runner.START, raising=False)
    named = {name: set(runner.example(name).results) for name in runner.names()}
    assert named["stream"]
    for name in (name for name in named if named[name]):
        monkeypatch.setenv("PLATFORM_DEFS", str(runner.example(name).defs))
        assets = [each for each in declared.definitions().assets or () if isinstance(each, dg.AssetsDefinition)]
        keys = {key.to_user_string() for each in assets for key in each.keys}
        assert {f"published/{topic}" for topic in named[name]} <= keys


def test_an_unknown_example_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="the examples are: activity, commit_log"):
        runner.example("metric")


@pytest.mark.parametrize(
    ("rows", "different"),
    [([(1, "a"), (2, "b")], 0), ([(1, "a")], 1), ([(1, "a"), (2, "c")], 2), ([(1, "a"), (2, "b"), (2, "b")], 1)],
)
def test_a_row_that_differs_is_counted(rows: list[tuple[int, str]], different: int) -> None:
    found = runner.rows_compared("derived/x", rows, [(2, "b"), (1, "a")])
    assert (found.different, found.is_equal) == (different, not different)
    assert ("differ" in str(found)) is (different > 0)


def test_each_line_of_the_logs_is_in_one_entry() -> None:
    found = [text for _, _, line, more in logs._entries() for text in (line, *(more or "").split("\n")) if text]
    with zipfile.ZipFile(logs.FILE) as archive:
        lines = [line for name in archive.namelist() for line in archive.read(name).decode().split("\n") if line]
    assert sorted(found) == sorted(lines)
