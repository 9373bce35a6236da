"""The audit of a derived table: files that are not those of its newest run, rows that are not its query's result, expectations."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from click.testing import CliRunner
from deltalake import DeltaTable, write_deltalake

from platform_assets.checks import derived
from platform_assets.checks.audit import Audit
from platform_assets.cli.environment import Environment
from platform_assets.cli.main import main
from platform_assets.components import declared as declared_module
from platform_assets.errors import DerivedQueryError
from platform_assets.lake.derived_table import Derivation, Made, RowsDigest
from platform_assets.lake.location import Folder
from platform_assets.model.derived import DerivedDeclaration, DerivedRef
from platform_assets.model.expectations import Expectation
from platform_assets.windows.derive import checking
from platform_assets.windows.derive.checking import Comparison
from platform_assets_tests.support.derived_lake import Flights, flights

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

NOW = datetime(2026, 1, 1, tzinfo=UTC)
DECLARED = DerivedDeclaration(
    DerivedRef("by_day"),
    {"day": "date(time_hour)"},
    "SELECT date(time_hour) AS day, count(*) AS n FROM decoded.flights GROUP BY ALL",
    (Expectation("n_not_null", "not_null", ("n",), "error"), Expectation("n_low", "range", ("n",), most=2)),
)


def no_spark() -> SparkSession:
    raise AssertionError("Spark is not needed")


def audited(lake: Flights, spark: Callable[[], SparkSession] = no_spark, *, deep: bool = False) -> Audit:
    return derived.audit(DECLARED, lake.lake, spark, NOW, deep=deep, seed="seed")


def outcomes(found: Audit) -> dict[str, str]:
    return {each.check: each.outcome for each in found.checks}


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Flights:
    """Return a lake with a derived table of three rows, as a run commits them; rows that are computed again are equal."""
    made = Flights(tmp_path)
    made.load(0, flights(random.Random(1), 5))
    made.derive(DECLARED, pa.table({"n": [1, 2, 3]}))
    monkeypatch.setattr(checking, "compare", lambda *_, seed, **__: Comparison(None if seed is None else 2, 3))
    return made


def test_totals_that_were_not_computed_again_are_named() -> None:
    equal = derived.rebuilt(DECLARED, Comparison(None, 3, is_rebuilt=False))
    assert (equal.passed, "not computed again" in equal.headline) == (True, True)
    other = derived.rebuilt(DECLARED, Comparison(None, 3, ("n",), is_rebuilt=False))
    assert (other.passed, other.headline) == (False, "3 rows differ in n.")


def test_a_table_as_its_run_made_it_is_proved(lake: Flights) -> None:
    found = audited(lake)
    assert outcomes(found) == {
        "as_recorded": "proved",
        "equals_rebuild": "proved",
        "n_not_null": "proved",
        "n_low": "proved",
    }
    assert found.exit_code == 0
    texts = {each.check: each.headline for each in found.checks}
    assert texts["as_recorded"] == "3 rows as recorded in version 0, without newer changes of decoded/flights."
    assert texts["equals_rebuild"].startswith("3 rows in 2 groups equal")
    assert texts["n_low"].startswith("1 of 3 rows fail")
    deep = audited(lake, deep=True)
    assert deep.deep
    assert deep.checks[1].headline.startswith("3 rows equal")


@pytest.mark.parametrize("deep", [False, True])
def test_rows_that_differ_are_an_anomaly_and_unknown_ones_undecided(
    lake: Flights, monkeypatch: pytest.MonkeyPatch, deep: bool
) -> None:
    monkeypatch.setattr(checking, "compare", lambda *_, **__: Comparison(None, 3, columns=("n",)))
    found = audited(lake, deep=deep)
    assert (found.exit_code, outcomes(found)["equals_rebuild"]) == (1, "anomalies")
    assert "--whole" in found.checks[1].findings[0].remedy
    monkeypatch.setattr(checking, "compare", lambda *_, **__: Comparison(0, 0, unknown="no files"))
    found = audited(lake, deep=deep)
    assert (found.exit_code, outcomes(found)["equals_rebuild"]) == (2, "undecided")
    assert "--whole" not in found.checks[1].findings[0].remedy


def test_rows_of_an_earlier_query_are_not_compared_with_the_new_one(tmp_path: Path) -> None:
    rows = RowsDigest(3, 1)
    derivation = Derivation(DECLARED.table, "run", "earlier", {}, "groups", "", {}, {}, RowsDigest(), rows, rows)
    for seed in ("seed", None):
        found = checking.compare(Flights(tmp_path).lake, DECLARED, no_spark, Made(0, derivation), seed=seed)
        assert found.unknown is not None
        assert "changed after the newest run" in found.unknown


def test_expectations_of_a_changed_query_are_not_judged_on_the_earlier_rows(lake: Flights) -> None:
    changed = replace(DECLARED, sql=DECLARED.sql + " HAVING n > 1")
    found = derived.audit(changed, lake.lake, no_spark, NOW, deep=False, seed="seed")
    assert {name: outcomes(found)[name] for name in ("n_not_null", "n_low")} == dict.fromkeys(
        ("n_not_null", "n_low"), "undecided"
    )
    assert "platform-assets derive by_day" in found.reasons[-1]


def append(table: Path) -> None:
    write_deltalake(table, pa.table({"n": [4]}), mode="append")


def lose(table: Path) -> None:
    Path(DeltaTable(table).file_uris()[0]).unlink()


@pytest.mark.parametrize(("damage", "text"), [(append, "Another writer"), (lose, "cannot be found")])
def test_files_of_others_and_lost_files_are_anomalies(
    lake: Flights, monkeypatch: pytest.MonkeyPatch, damage: Callable[[Path], None], text: str
) -> None:
    monkeypatch.setattr(checking, "expected", lambda *_: [])
    damage(lake.root / "derived" / "by_day")
    found = audited(lake)
    assert outcomes(found)["as_recorded"] == "anomalies"
    assert text in found.checks[0].headline
    assert found.exit_code == 1


def test_a_run_that_commits_and_deletes_past_files_during_the_audit_is_no_anomaly(
    lake: Flights, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = lake.root / "derived" / "by_day"
    stamps = Folder.stamps

    def after_a_run(folder: Folder) -> Any:
        lose(table)
        append(table)
        return stamps(folder)

    monkeypatch.setattr(Folder, "stamps", after_a_run)
    monkeypatch.setattr(checking, "expected", lambda *_: [])
    found = audited(lake)
    assert (found.exit_code, outcomes(found)["as_recorded"]) == (2, "undecided")


def test_a_failing_expectation_with_severity_error_is_an_anomaly(lake: Flights) -> None:
    wrong = replace(DECLARED.expect[1], severity="error")
    found = derived.audit(replace(DECLARED, expect=(wrong,)), lake.lake, no_spark, NOW, deep=False, seed="seed")
    assert outcomes(found)["n_low"] == "anomalies"


def test_a_table_without_a_run_cannot_be_judged(tmp_path: Path) -> None:
    found = audited(Flights(tmp_path))
    assert found.exit_code == 2
    assert "platform-assets derive by_day" in found.reasons[0]


def test_the_command_audits_a_derived_table(lake: Flights, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Environment, "of_process", lambda: Environment({"LAKE_ROOT": str(lake.root)}))
    monkeypatch.setattr(declared_module, "derived_of", lambda _: DECLARED)
    done = CliRunner().invoke(main, ["audit", "derived/by_day", "--deep", "--json"])
    assert done.exit_code == 0, done.output
    assert [each["check"] for each in json.loads(done.stdout)["checks"]][:2] == ["as_recorded", "equals_rebuild"]
    refused = CliRunner().invoke(main, ["audit", "derived/by_day", "--windows", "2026-01-01-00:00"])
    assert (refused.exit_code, "does not apply to a derived table" in refused.output) == (2, True), refused.output


def test_the_command_shows_expectations_and_errors_whichever_fails(
    lake: Flights, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Environment, "of_process", lambda: Environment({"LAKE_ROOT": str(lake.root)}))
    wrong = replace(DECLARED.expect[1], severity="error")
    monkeypatch.setattr(declared_module, "derived_of", lambda _: replace(DECLARED, expect=(wrong,)))

    def fails(reason: str) -> Callable[..., Any]:
        def fail(*_: object, **__: object) -> Any:
            raise DerivedQueryError("derived/by_day", reason)

        return fail

    monkeypatch.setattr(checking, "compare", fails("no memory"))
    done = CliRunner().invoke(main, ["derive", "by_day", "--check"])
    assert done.exit_code == 1
    assert done.stdout == "derived/by_day: n_low: 1 of 3 rows fail: expected that n ≤ 2\n", done.output
    assert "no memory" in done.stderr
    done = CliRunner().invoke(main, ["derive", "by_day", "--check", "--json"])
    assert (done.exit_code, json.loads(done.stdout)["equal"], json.loads(done.stdout)["failed"]) == (1, None, ["n_low"])
    monkeypatch.setattr(checking, "expected", fails("no files"))
    done = CliRunner().invoke(main, ["derive", "by_day", "--check"])
    assert (done.exit_code, "no memory" in done.stdout, "no files" in done.stderr) == (1, True, True), done.output
    monkeypatch.setattr(checking, "compare", lambda *_, **__: Comparison(None, 3, ("n",)))
    done = CliRunner().invoke(main, ["derive", "by_day", "--check"])
    assert (done.exit_code, "differ from the query's result in n" in done.stdout) == (1, True), done.output
    assert "no files" in done.stderr
