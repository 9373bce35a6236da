"""The page of the guide on following a database, executed with a real PostgreSQL and the real connector: its SQL, its
connector's configuration and its declaration, from an empty database to a state table that is equal to the table."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from deltalake import DeltaTable

from platform_assets.components import TopicTable
from platform_assets.services.home import CHECKOUT
from platform_assets.windows.change.changing import WindowChanger
from platform_assets.windows.state.folding import TopicState
from platform_assets_tests.support.database_services import database_services
from platform_assets_tests.support.decoded_topic import tables_without_spark
from platform_assets_tests.support.followed_table import VARIABLE, FollowedTable
from platform_assets_tests.support.shell import DAGSTER_WARNINGS, Shell
from platform_assets_tests.support.walk import fences
from testbed import postgres
from testbed.debezium import connector
from testbed.loads import TopicLake

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(postgres.programs() is None, reason=postgres.HOW),
    pytest.mark.timeout(1200),
    *map(pytest.mark.filterwarnings, DAGSTER_WARNINGS),
]

PAGE = (CHECKOUT / "docs" / "guide" / "database.md").read_text()


def parts(language: str) -> Iterator[str]:
    return (text for _, of, _, text in fences(PAGE) if of == language)


def test_the_page_leads_to_a_state_that_equals_the_table(tmp_path: Path) -> None:
    import psycopg2

    settings = {name: value for name, value in json.loads(next(parts("json"))).items() if "database" not in name}
    settings["heartbeat.interval.ms"] = "300"
    declared = yaml.safe_load(next(parts("yaml")))
    with database_services() as services:
        address = services.server.database("shop")
        with closing(psycopg2.connect(address)) as connection:
            connection.autocommit = True
            cursor = connection.cursor()
            cursor.execute(next(parts("sql")))
            with connector(services.home, services.folder / "connect", services.bootstrap, address, settings):
                topic = declared["attributes"]["topic"]
                lake = TopicLake(services.bootstrap, topic, services.folder / "lake", spark=tables_without_spark)
                made = TopicTable(**declared["attributes"]).declaration()
                lake.declaration = replace(lake.declaration, decode=made.decode, state=made.state)
                assert made.state is not None
                table, state = FollowedTable(cursor, address, lake), TopicState(topic, made.state, lake.lake)

                def follow(*statements: str) -> list[tuple[Any, ...]]:
                    for statement in statements:
                        cursor.execute(statement)
                    key = table.load()
                    WindowChanger(lake.declaration, lake.ledger).make(key)
                    state.fold()
                    rows = DeltaTable(str(lake.root / "state" / topic)).to_pyarrow_table().to_pylist()
                    names = ("id", "amount", "note", "placed")
                    return sorted(tuple(row[name] for name in names) for row in rows)

                def in_database() -> list[tuple[Any, ...]]:
                    cursor.execute("SELECT * FROM orders ORDER BY id")
                    return list(cursor.fetchall())

                insert = "INSERT INTO orders SELECT n, n * 1.25, 'note ' || n, now() FROM generate_series({}) n"
                changes = "UPDATE orders SET id = 9 WHERE id = 2", "DELETE FROM orders WHERE id = 3"
                assert follow(insert.format("1, 4"), *changes) == in_database()
                assert follow("TRUNCATE orders", insert.format("4, 6")) == in_database()
                # By default, Connect's converters replace a null in this column with the column's default.
                default = "ALTER TABLE orders ALTER note SET DEFAULT 'none'"
                assert follow(default, "UPDATE orders SET note = NULL WHERE id = 4") == in_database()
                assert in_database()[0][2] is None
                shell = Shell(tmp_path / "project")
                shell.declare(topic).write_text(next(parts("yaml")))
                shell.variables |= {
                    "LAKE_ROOT": str(lake.root), "KAFKA_BOOTSTRAP_SERVERS": services.bootstrap, VARIABLE: address,
                }  # fmt: skip
                found = shell.run("compare-postgres", topic, "--dsn-env", VARIABLE, "--wait", "60")
                printed = next(text for text in parts("text") if ": equal: " in text)
                assert found.exit_code == 0, found.output
                assert found.output.splitlines()[0] == printed.splitlines()[0]
                assert [row[0] for row in in_database()] == [4, 5, 6]
