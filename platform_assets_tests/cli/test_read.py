"""The programs that `platform-assets read` prints run unchanged in Spark, polars, DuckDB and pandas."""

from __future__ import annotations

import contextlib
import io
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from platform_assets.cli.snippets import register, sql_name
from platform_assets.cli.state_snippets import can_broadcast, changes_from, fresh_view, register_fresh
from platform_assets.errors import ConfigurationError
from platform_assets.lake import decoded_table
from platform_assets.lake.location import Lake
from platform_assets.model.state import StateDeclaration
from platform_assets.model.tables import TableRef
from platform_assets_tests.support.made_changes import DAYS, MadeChanges, change
from platform_assets_tests.support.shell import DAGSTER_WARNINGS, Shell
from platform_assets_tests.support.state_histories import expected
from testbed.homes import service_environment
from testbed.loads import numbered
from testbed.samples import loaded, recorded

if TYPE_CHECKING:
    from platform_assets_tests.conftest import LakeMaker

pytestmark = [*map(pytest.mark.filterwarnings, DAGSTER_WARNINGS)]

NATIVE = "assert rows.filesystem.base_fs.type_name == 'local', rows.filesystem"
"""If Arrow reads through Python instead, one in ten such programs aborts at exit."""
COUNTS = {
    "spark": "print('rows:', rows.count())",
    "polars": "print('rows:', rows.collect().height)",
    "duckdb": f"{NATIVE}\nprint('rows:', duckdb.sql('SELECT count(*) FROM rows').fetchall()[0][0])",
    "pandas": f"{NATIVE}\nprint('rows:', len(rows.to_table().to_pandas()))",
}


@pytest.mark.broker
@pytest.mark.spark
def test_each_snippet_reads_every_row(lake: LakeMaker, spark: Any, spark_remote: str, tmp_path: Path) -> None:
    lk = lake(partitions=2)
    for count in (7, 5):
        lk.load(lk.window_of(numbered(count, 2)))
    shell = Shell(tmp_path / "a project's folder")
    shell.declare(lk.topic)
    result = shell.run("read", lk.topic, "--json", LAKE_ROOT=str(lk.root), SPARK_REMOTE=spark_remote)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["path"] == str(lk.table)
    assert set(found["snippets"]) == set(COUNTS)
    for reader, text in found["snippets"].items():
        program = f"{text}\n{COUNTS[reader]}"
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=False, env=service_environment()
        )
        assert done.returncode == 0, (reader, done.stderr)
        assert done.stdout.splitlines()[-1] == "rows: 12", reader
    # Also by name, from a session that did not register the table.
    assert found["spark_name"] == sql_name(TableRef.raw(lk.topic))
    assert spark.sql(f"SELECT count(*) FROM {found['spark_name']}").first()[0] == 12
    plain = shell.run("read", f"raw/{lk.topic}", LAKE_ROOT=str(lk.root), SPARK_REMOTE=spark_remote)
    assert f"spark.table('{found['spark_name']}').show(5)" in plain.stdout
    silent = shell.run("read", lk.topic, LAKE_ROOT=str(lk.root))
    assert silent.exit_code == 0
    assert "# no Spark server is running" in silent.stdout


def test_a_table_without_a_load_says_so(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    shell.declare("orders")
    result = shell.run("read", "orders")
    assert result.exit_code == 1
    assert "raw/orders has no rows yet, because nothing has been loaded into it" in result.stderr


def test_names_are_ones_that_spark_takes_and_none_stands_for_two_topics() -> None:
    assert sql_name(TableRef.raw("orders")) == "raw.orders"
    assert sql_name(TableRef.raw("2024_orders")) == "raw.`2024_orders`"
    names = {sql_name(TableRef.raw(topic)) for topic in ("a.b-c", "a_b_c", "a-b.c")}
    assert len(names) == 3
    assert all(re.fullmatch(r"raw\.[a-z0-9_]+", name) for name in names)


@pytest.mark.long
@pytest.mark.spark
def test_a_name_in_spark_is_that_of_one_table_and_never_gives_the_rows_of_another(spark: Any, tmp_path: Path) -> None:
    topics = ("Read_Twice", "read_twice", "read.twice")
    names = {}
    for count, topic in enumerate(topics, 1):
        (window,) = recorded(tmp_path / "lake", topic, [{0: 0}, {0: count}])
        loaded(tmp_path / "lake", window)
        table = TableRef.raw(topic)
        names[topic] = register(spark, table, Lake.at(tmp_path / "lake").table(table))
    assert [spark.table(names[topic]).count() for topic in topics] == [1, 2, 3]
    # Another lake has a table with this name too.
    (window,) = recorded(tmp_path / "a lake", "read_twice", [{0: 0}, {0: 7}])
    loaded(tmp_path / "a lake", window)
    raw, other = TableRef.raw("read_twice"), Lake.at(tmp_path / "a lake")
    with pytest.raises(
        ConfigurationError, match=r"already has another table named raw\.read_twice: file:.*lake/raw"
    ) as refused:
        register(spark, raw, other.table(raw))
    spark.sql(str(refused.value).partition("`")[2].partition("`")[0])
    for _ in range(2):
        assert spark.table(register(spark, raw, other.table(raw))).count() == 7
    assert (tmp_path / "lake" / "raw" / "read_twice" / "_delta_log").is_dir()
    for name in names.values():
        spark.sql(f"DROP TABLE {name}")


@pytest.mark.long
@pytest.mark.spark
def test_a_view_in_spark_has_the_fresh_rows_of_a_state(spark: Any, spark_remote: str, tmp_path: Path) -> None:
    """Without being made again: after later windows, late ones, a truncate, and folds. The printed code has them too."""
    made = MadeChanges(tmp_path, StateDeclaration(("id",), deletes="debezium"))
    first, late, second, third, fourth = DAYS[:5]
    made.load(first, [change(1, first, 0, "a"), change(2, first, 1, "b"), change(3, first, 2, "c")])
    made.state().fold()
    view = register_fresh(spark, made.state())
    truncate = {**change(0, third, 6, None), "id": None}
    steps = [
        (second, [change(2, second, 4, "new"), change(3, second, 5, None)]),
        (late, [change(4, late, 3, "late"), change(2, late, 3, "late")]),
        (third, [truncate, change(5, third, 7, "d")]),
        (fourth, [change(6, fourth, 8, "e"), change(1, fourth, 9, "again")]),
    ]
    for window, rows in steps:
        made.load(window, rows)
        expected_rows = {key: row["name"] for key, row in expected(made.windows, made.declared)[0].items()}
        for _ in range(2):
            assert {row.id: row.name for row in spark.table(view).collect()} == expected_rows, window
            state, found = made.state(), dict[str, Any]()
            since, is_folded = changes_from(state.pending())
            codes = fresh_view(
                state,
                state.opened().live.columns.names,
                since,
                spark_remote,
                is_folded=is_folded,
                broadcasts=can_broadcast(state.pending()),
            )
            exec(codes["spark"], found)
            assert {row.id: row.name for row in found["fresh"].collect()} == expected_rows, window
            if window in (third, fourth):
                made.state().fold()
    assert sorted(expected_rows) == [1, 5, 6]
    spark.sql(f"DROP VIEW {view}")
    for kind in ("state", "changes"):
        spark.sql(f"DROP TABLE {kind}.orders")


@pytest.mark.spark
def test_spark_reads_the_state_before_the_changes_and_the_view_follows_a_replaced_window(
    spark: Any, spark_remote: str, tmp_path: Path
) -> None:
    made = MadeChanges(tmp_path / "a lake's folder", StateDeclaration(("id",)))
    first, second = DAYS[:2]
    made.load(first, [change(1, first, 0, "a"), change(5, first, 1, "a")])
    made.state().fold()
    made.load(second, [change(1, second, 2, "b"), change(5, second, 3, "b"), change(7, second, 4, "b")])
    state, found = made.state(), dict[str, Any]()
    view = register_fresh(spark, state)
    assert can_broadcast(state.pending())
    since, is_folded = changes_from(state.pending())
    codes = [
        fresh_view(
            state, state.opened().live.columns.names, since, spark_remote, is_folded=is_folded, broadcasts=broadcasts
        )["spark"]
        for broadcasts in (False, True)
    ]
    assert ["BROADCAST" in code for code in codes] == [False, True]
    read = [spark.table(view)]
    for code in codes:
        exec(code.rpartition("\n")[0], found)
        read.append(found["fresh"])
        assert sorted(row.name for row in read[-1].collect()) == ["b", "b", "b"]
    with contextlib.redirect_stdout(io.StringIO()) as plan:
        read[-1].explain("extended")
    assert "rightHint=(strategy=broadcast)" in plan.getvalue()
    for rows in read:
        # Spark takes the newest version of a table when it plans the table's first read. If it did so first for the changes,
        # a fold in between could bring windows into the state that they lack.
        with contextlib.redirect_stdout(io.StringIO()) as plan:
            rows.explain("formatted")
        tables = re.findall(r"Location: .*/(state|changes)/orders", plan.getvalue())
        assert tables[0] == "state", plan.getvalue()
        assert set(tables) == {"state", "changes"}
    state.fold()
    made.load(second, [change(1, second, 2, "replaced")])
    assert {row.id: row.name for row in spark.table(view).collect()} == {1: "replaced", 5: "a"}
    spark.sql(f"DROP VIEW {view}")
    for kind in ("state", "changes"):
        spark.sql(f"DROP TABLE {kind}.orders")


def test_the_table_that_is_named_is_the_one_that_is_printed(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    file = shell.declare("orders")
    file.write_text(file.read_text().rstrip() + '\n  decode: {value: {format: json, schema: "id BIGINT"}}\n')
    lake = Lake.at(tmp_path / "lake")
    columns = decoded_table.columns(None, pa.schema([("id", pa.int64())]))
    decoded_table.prepare(lake.table(TableRef("decoded", "orders")), "orders", columns, None)
    found = shell.run("read", "decoded/orders", LAKE_ROOT=str(lake))
    assert found.exit_code == 0, found.output
    assert f"# decoded/orders is in {lake}/decoded/orders" in found.stdout
    assert f"{lake}/raw" not in found.stdout
    assert "dead_letters/orders has no rows yet" in shell.run("read", "dead_letters/orders", LAKE_ROOT=str(lake)).stderr
