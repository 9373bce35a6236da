"""`platform-assets derive` in a shell: it compares and evaluates what it computed, and its exit code says so."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from platform_assets.cli.environment import Environment
from platform_assets.cli.main import main
from platform_assets.components import declared as declared_module
from platform_assets.model.derived import DerivedDeclaration, DerivedRef
from platform_assets.model.expectations import Expectation
from platform_assets.windows.derive import checking
from platform_assets.windows.derive.checking import Comparison
from platform_assets_tests.support.derived_lake import Flights, flights
from platform_assets_tests.support.variants import long_after

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

DECLARED = DerivedDeclaration(
    DerivedRef("by_day"),
    {"day": "date(time_hour)"},
    "SELECT date(time_hour) AS day, count(*) AS n FROM decoded.flights GROUP BY ALL",
)


@pytest.fixture
def lake(tmp_path: Path, spark_remote: str, monkeypatch: pytest.MonkeyPatch) -> Flights:
    """Return a lake with some flights, which the command finds, with the session's Spark server."""
    made = Flights(tmp_path)
    made.load(0, flights(random.Random(1), 20))
    variables = {"LAKE_ROOT": str(tmp_path), "SPARK_REMOTE": spark_remote}
    monkeypatch.setattr(Environment, "of_process", lambda: Environment(variables))
    monkeypatch.setattr(declared_module, "derived_of", lambda _: DECLARED)
    return made


@pytest.mark.spark
def test_a_run_compares_groups_and_a_failure_exits_1(
    lake: Flights, connection: Callable[[], SparkSession], monkeypatch: pytest.MonkeyPatch
) -> None:
    done = CliRunner().invoke(main, ["derive", "by_day"])
    assert (done.exit_code, "equal the query's result" in done.output) == (0, True), done.output

    compare = checking.compare
    monkeypatch.setattr(checking, "compare", lambda *args, **more: replace(compare(*args, **more), columns=("n",)))
    done = CliRunner().invoke(main, ["derive", "by_day"])
    assert (done.exit_code, "differ from the query's result in n" in done.output) == (1, True), done.output

    monkeypatch.setattr(checking, "compare", lambda *_, **__: Comparison(0, 0, unknown="no files"))
    done = CliRunner().invoke(main, ["derive", "by_day", "--json"])
    assert (done.exit_code, json.loads(done.output)["equal"]) == (2, None)


@pytest.mark.spark
@pytest.mark.parametrize(("severity", "code"), long_after(1, [("error", 1), ("warn", 0)]))
def test_a_failing_expectation_is_reported(
    lake: Flights, connection: Callable[[], SparkSession], monkeypatch: pytest.MonkeyPatch, severity: str, code: int
) -> None:
    lake.load(1, [{**row, "time_hour": None} for row in flights(random.Random(1), 1)])
    expect = (Expectation("has_day", "not_null", ("day",), severity),)  # type: ignore[arg-type]
    monkeypatch.setattr(declared_module, "derived_of", lambda _: replace(DECLARED, expect=expect))
    done = CliRunner().invoke(main, ["derive", "by_day", "--json"])
    assert (done.exit_code, json.loads(done.output)["failed"]) == (code, ["has_day"]), done.output
