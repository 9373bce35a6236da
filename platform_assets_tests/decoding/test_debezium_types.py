"""Each of PostgreSQL's types, through the real connector in each of its modes, compared with what PostgreSQL says.

PostgreSQL is the judge: each decoded value is sent back to it, and it compares the value with its own.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from platform_assets.decoding.debezium import decoder
from platform_assets.model.decoding import FormatSpec
from platform_assets_tests.support.database_services import DatabaseServices, database_services
from platform_assets_tests.support.decoding import decoded
from testbed import postgres
from testbed.debezium import connector

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(postgres.programs() is None, reason=postgres.HOW),
    pytest.mark.timeout(1200),
]

DEFAULT: Mapping[str, str] = {}
TEXT = {"decimal.handling.mode": "string", "time.precision.mode": "isostring", "binary.handling.mode": "hex"}
DOUBLE = {
    "decimal.handling.mode": "double", "time.precision.mode": "microseconds", "binary.handling.mode": "base64-url-safe",
}  # fmt: skip
CONNECT = {"time.precision.mode": "connect", "binary.handling.mode": "base64"}
MODES = {"default": DEFAULT, "text": TEXT, "double": DOUBLE, "connect": CONNECT}


@dataclass(frozen=True)
class Column:
    """A column of the database with its values, and the column that decodes it. `other` is for modes that need another
    column; a mode with None is left out."""

    kind: str
    values: tuple[str, ...]
    declared: str
    other: Mapping[str, str | None]


def column(kind: str, declared: str, *values: str, **other: str | None) -> Column:
    """Return a column. Each of `values` is SQL text without quotes."""
    return Column(kind, values, declared, other)


COLUMNS = {
    "b": column("boolean", "BOOLEAN", "true", "false"),
    "i2": column("smallint", "SMALLINT", "-32768", "32767"),
    "i4": column("integer", "INT", "-2147483648", "2147483647"),
    "i8": column("bigint", "BIGINT", "-9223372036854775808", "9223372036854775807"),
    "o": column("oid", "BIGINT", "0", "4294967295"),
    "f4": column("real", "FLOAT", "1.5", "NaN", "-Infinity", "3.4028235e38"),
    "f8": column("double precision", "DOUBLE", "0.1", "NaN", "Infinity", "1e300", "-0"),
    "n12": column("numeric(12,2)", "DECIMAL(12,2)", "-9999999999.99", "0", "0.01", double="DOUBLE"),
    "n38": column("numeric(38,10)", "DECIMAL(38,10)", "-9999999999999999999999999999.9999999999", "0.0000000001", double=None),
    "n": column("numeric", "DECIMAL(38,9)", "12345.678900", "0.000000001", "1e20", "-7", double=None),
    "m": column("money", "DECIMAL(19,2)", "12.34", "-92233720368547758.08", double=None),
    "d": column("date", "DATE", "2024-02-29", "0001-01-01", "9999-12-31", "1969-12-31"),
    "ts": column("timestamp", "TIMESTAMP", "2024-02-29 13:37:03.123456", "0001-01-01", "9999-12-31 23:59:59.999999", connect=None),
    "ts3": column("timestamp(3)", "TIMESTAMP", "2024-02-29 13:37:03.123", "1969-12-31 23:59:59.999"),
    "tz": column("timestamptz", "TIMESTAMP", "2024-02-29 13:37:03.123456+02", "9999-12-31 23:59:59.999999+00"),
    "tx": column("text", "STRING", "ü€😀", "", 'a"\\b'),
    "ch": column("char(5)", "STRING", "ab", ""),
    "u": column("uuid", "STRING", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
    "js": column("json", "STRING", '{"a": 1.0, "a": 2}', "null"),
    "jb": column("jsonb", "STRING", '{"a": 1.000000000000000000001}', "[]"),
    "e": column("mood", "STRING", "happy", "sad"),
    "ba": column("bytea", "BINARY", "\\xdeadbeef", "", "\\xfbff00"),
    "ip": column("inet", "STRING", "10.0.0.1/8", "::1"),
    "r": column("int4range", "STRING", "[1,5)", "empty"),
    "ai": column("integer[]", "ARRAY<INT>", "{1,NULL,3}", "{}"),
    "at": column("text[]", "ARRAY<STRING>", '{a,NULL,"b c"}', "{}"),
    "an": column("numeric(12,2)[]", "ARRAY<DECIMAL(12,2)>", "{1.50,NULL,-2}", "{}", double="ARRAY<DOUBLE>"),
    "af": column("double precision[]", "ARRAY<DOUBLE>", "{1.5,-Infinity}", "{}"),
    "as": column("timestamp[]", "ARRAY<TIMESTAMP>", '{"2024-02-29 13:37:03.123456",NULL}', "{}", connect=None),
    "ad": column("date[]", "ARRAY<DATE>", "{2024-02-29,0001-01-01}", "{}"),
    "aba": column("bytea[]", "ARRAY<BINARY>", '{"\\\\xdead"}', "{}"),
}  # fmt: skip
ROWS = max(len(each.values) for each in COLUMNS.values())


@pytest.fixture(scope="module")
def services() -> Iterator[DatabaseServices]:
    """Provide a database, a folder and the address of a broker of their own."""
    with database_services() as found:
        yield found


@pytest.mark.parametrize("mode", MODES)
def test_each_type_is_what_postgres_says(services: DatabaseServices, mode: str) -> None:
    import psycopg2

    root, bootstrap = services.folder, services.bootstrap
    database = services.server.database(mode)
    connection = psycopg2.connect(database)
    connection.autocommit = True
    try:
        cursor = connection.cursor()
        cursor.execute("SET TIME ZONE 'UTC'; CREATE TYPE mood AS ENUM ('sad', 'happy')")
        cursor.execute(
            "CREATE TABLE types (id int PRIMARY KEY, " + ", ".join(f'"{n}" {c.kind}' for n, c in COLUMNS.items()) + ")"
        )
        cursor.execute("ALTER TABLE types REPLICA IDENTITY FULL")
        _insert(cursor, 0)  # read by the snapshot
        settings = {"topic.prefix": mode, "slot.name": mode, **MODES[mode]}
        converter = {".schemas.enable": str(mode == "connect").lower()}
        with connector(services.home, root / mode, bootstrap, database, settings, converter):
            _insert(cursor, 100)
            cursor.execute("UPDATE types SET i4 = i4 WHERE id = 100; DELETE FROM types WHERE id = 100")
            _insert(cursor, 100, only=0)
            values = _values(bootstrap, f"{mode}.public.types", 2 * ROWS + 4)
        declared = {
            name: kind for name, each in COLUMNS.items() if (kind := each.other.get(mode, each.declared)) is not None
        }
        options = {
            "schema": "id INT NOT NULL, " + ", ".join(f"`{name}` {kind}" for name, kind in declared.items()),
            "connector": MODES[mode],
            "milliseconds": ["ts3"] if mode == "default" else [],
        }
        found = decoded(decoder(FormatSpec("debezium", options)), values)
        assert not found.dead.num_rows, found.dead.to_pylist()
        rows = found.columns.to_pylist()
        operations = [row["change_operation"] for row in rows]
        assert operations == ["r"] * ROWS + ["c"] * ROWS + ["u", "d", None, "c"]
        for row in rows:
            if row["change_operation"] is not None:
                assert _differences(cursor, row, declared) == []
        changed = {**rows[0], "i4": 17, "tx": "another"}
        assert _differences(cursor, changed, declared) == ["i4", "tx"], "the judge must find what differs"
    finally:
        connection.close()


def _insert(cursor: Any, first: int, only: int | None = None) -> None:
    """Insert the values, each row the next of each column. A column that has no more values is null."""
    for number in range(ROWS) if only is None else [only]:
        values = [each.values[number] if number < len(each.values) else None for each in COLUMNS.values()]
        places = ", ".join(f"%s::{each.kind}" for each in COLUMNS.values())
        cursor.execute(f"INSERT INTO types VALUES (%s, {places})", [first + number, *values])


def _differences(cursor: Any, row: Mapping[str, Any], declared: Mapping[str, str]) -> list[str]:
    """Return the columns whose decoded value is not the one in the database, by PostgreSQL's own comparison."""
    wrong = []
    for name in declared:
        kind = COLUMNS[name].kind
        as_text = kind in ("json",)
        cast = "text" if as_text else kind
        cursor.execute(
            f'SELECT "{name}"::{cast} IS NOT DISTINCT FROM %s::{cast}, "{name}"::text FROM types WHERE id = %s',
            [_parameter(row[name]), row["id"]],
        )
        ((same, _),) = cursor.fetchall()
        if not same:
            wrong.append(name)
    return wrong


def _parameter(value: Any) -> Any:
    """Return a decoded value in the form in which PostgreSQL reads it."""
    if isinstance(value, list):
        return [_parameter(each) for each in value]
    if isinstance(value, bytes):
        return "\\x" + value.hex()
    return value.isoformat() if hasattr(value, "isoformat") else value if isinstance(value, bool) else _text(value)


def _text(value: Any) -> str | None:
    return None if value is None else repr(value) if isinstance(value, float) else str(value)


def _values(bootstrap: str, topic: str, count: int) -> list[bytes | None]:
    """Return the first values of a topic."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[bytes | None] = []
    deadline = time.monotonic() + 120
    try:
        while len(found) < count:
            assert time.monotonic() < deadline, f"only {len(found)} of {count} records arrived"
            message = consumer.poll(1)
            if message is not None and message.error() is None:
                found.append(message.value())
    finally:
        consumer.close()
    return found
