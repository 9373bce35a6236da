"""A table of a real PostgreSQL as a snapshot sees it: keys, and what a snapshot does not protect from."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psycopg2
import pytest

from platform_assets.checks.postgres.database import ServerLimitError, check_primary, opened, settings
from platform_assets.checks.postgres.values import DatabaseType
from platform_assets.errors import ConfigurationError
from testbed import postgres

pytestmark = pytest.mark.skipif(postgres.programs() is None, reason=postgres.HOW)

VARIABLE = "SHOP_DSN"


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Provide the address of an empty database."""
    with TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        with postgres.server(Path(folder)) as server:
            yield server.database("shop")


@pytest.fixture
def cursor(address: str) -> Iterator[Any]:
    with closing(psycopg2.connect(address)) as connection:
        connection.autocommit = True
        cursor = connection.cursor()
        cursor.execute(
            """
            DROP TABLE IF EXISTS items, parts;
            CREATE TABLE items (b int, a int, note text, PRIMARY KEY (a, b) INCLUDE (note));
            INSERT INTO items SELECT n, n, 'x' FROM generate_series(1, 3) n;
            CREATE TABLE parts (id int PRIMARY KEY) PARTITION BY LIST (id);
            CREATE TABLE parts1 PARTITION OF parts FOR VALUES IN (1);
            CREATE TABLE parts2 PARTITION OF parts FOR VALUES IN (2);
            INSERT INTO parts VALUES (1), (2)
            """
        )
        yield cursor


def test_included_columns_are_not_part_of_the_primary_key(address: str, cursor: Any) -> None:
    with opened(address, VARIABLE, "public", "items") as database:
        assert database.primary_key() == ["a", "b"]
    with opened(address, VARIABLE, "public", "parts") as database:
        assert database.primary_key() == ["id"]


@pytest.mark.parametrize(
    ("table", "change"),
    [
        ("items", "TRUNCATE items"),
        ("items", "ALTER TABLE items ALTER note TYPE int USING 1"),
        ("items", "DROP TABLE items; CREATE TABLE items (b int, a int, PRIMARY KEY (a, b))"),
        ("parts", "TRUNCATE parts1"),
        ("parts", "ALTER TABLE parts DETACH PARTITION parts2; DROP TABLE parts2"),
    ],
)
def test_a_table_that_loses_rows_of_the_snapshot_is_noticed(address: str, cursor: Any, table: str, change: str) -> None:
    with opened(address, VARIABLE, "public", table) as database:
        key = database.primary_key()
        cursor.execute(change)
        list(database.rows(key, {}))
        assert database.is_rewritten()


def test_changes_of_rows_do_not_count_as_rewritten(address: str, cursor: Any) -> None:
    with opened(address, VARIABLE, "public", "items") as database:
        cursor.execute("DELETE FROM items WHERE a = 1; UPDATE items SET note = 'y'; ALTER TABLE items ADD more int")
        assert [key for key, _ in database.rows(["a", "b"], {})] == [("1", "1"), ("2", "2"), ("3", "3")]
        assert not database.is_rewritten()


def test_no_timeout_of_a_session_ends_a_long_comparison(address: str, cursor: Any) -> None:
    cursor.execute("SHOW server_version_num")
    (version,) = cursor.fetchone()
    names = [text.split()[1] for text in settings(int(version))[1:]]
    assert names == [
        name for name, since in (("idle_session_timeout", 140_000), ("transaction_timeout", 170_000)) if int(version) >= since
    ]  # fmt: skip
    cursor.execute("ALTER ROLE CURRENT_USER SET statement_timeout = '1h'")
    for name in names:
        cursor.execute(f"ALTER ROLE CURRENT_USER SET {name} = '1h'")
    try:
        with opened(address, VARIABLE, "public", "items") as database:
            for connection in (database._reading, database._control):
                assert [database._ask(connection, f"SHOW {name}") for name in ("statement_timeout", *names)] == [
                    [("0",)]
                ] * (len(names) + 1)
    finally:
        cursor.execute("ALTER ROLE CURRENT_USER RESET ALL")


def test_rows_of_tables_that_inherit_do_not_count(address: str, cursor: Any) -> None:
    cursor.execute(
        """
        DROP TABLE IF EXISTS cities CASCADE;
        CREATE TABLE cities (id int PRIMARY KEY);
        CREATE TABLE capitals () INHERITS (cities);
        INSERT INTO cities VALUES (1);
        INSERT INTO capitals VALUES (2)
        """
    )
    with opened(address, VARIABLE, "public", "cities") as database:
        assert [key for key, _ in database.rows(["id"], {})] == [("1",)]
        cursor.execute("TRUNCATE capitals")
        assert not database.is_rewritten()
    with opened(address, VARIABLE, "public", "parts") as database:
        assert [key for key, _ in database.rows(["id"], {})] == [("1",), ("2",)]


def test_generated_columns_are_told(address: str, cursor: Any) -> None:
    cursor.execute(
        "DROP TABLE IF EXISTS totals; CREATE TABLE totals (id int PRIMARY KEY, twice int GENERATED ALWAYS AS (id * 2) STORED)"
    )
    with opened(address, VARIABLE, "public", "totals") as database:
        assert {name: kind.is_generated for name, kind in database.columns().items()} == {"id": False, "twice": True}


def test_a_limit_of_the_server_is_named(address: str, cursor: Any) -> None:
    cursor.execute("INSERT INTO items SELECT n, n, repeat('x', 500) FROM generate_series(10, 30000) n")
    cursor.execute(
        "ALTER ROLE CURRENT_USER SET temp_file_limit = '64kB'; ALTER ROLE CURRENT_USER SET work_mem = '64kB'"
    )
    try:
        with (
            opened(address, VARIABLE, "public", "items") as database,
            pytest.raises(ServerLimitError, match="temporary file size exceeds temp_file_limit"),
        ):
            list(database.rows(["a", "b"], {"note": DatabaseType("text")}))
    finally:
        cursor.execute("ALTER ROLE CURRENT_USER RESET ALL")


class Standby:
    """A connection to a server that is in recovery."""

    def cursor(self) -> Standby:
        return self

    def execute(self, query: str) -> None:
        assert query == "SELECT pg_is_in_recovery()"

    def fetchall(self) -> list[tuple[bool]]:
        return [(True,)]

    def close(self) -> None:
        pass


def test_a_standby_is_refused(address: str) -> None:
    with pytest.raises(ConfigurationError, match="use the primary's address"):
        check_primary(Standby(), VARIABLE)
    with closing(psycopg2.connect(address)) as connection:
        check_primary(connection, VARIABLE)
