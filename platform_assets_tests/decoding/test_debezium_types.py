"""Each of PostgreSQL's types, through the real connector in each of its modes and with each converter, compared with
what PostgreSQL says.

PostgreSQL is the judge: each decoded value is sent back to it, and it compares the value with its own.
"""

from __future__ import annotations

import base64
import json
import struct
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pytest

from platform_assets.decoding.debezium.declaration import BYTES
from platform_assets.decoding.formats import decoder_of
from platform_assets.model.decoding import FormatSpec
from platform_assets_tests.support.database_services import DatabaseServices, database_services
from platform_assets_tests.support.decoding import decoded
from testbed import postgres
from testbed.debezium import avro_converter, connector

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
MICROS = {"time.precision.mode": "adaptive_time_microseconds"}
MODES = {"default": DEFAULT, "text": TEXT, "double": DOUBLE, "connect": CONNECT, "micros": MICROS}
OTHERS: Mapping[str, Mapping[str, str]] = {
    "text": {"interval.handling.mode": "string", "hstore.handling.mode": "map"},
    "connect": {"interval.handling.mode": "string"},
    "micros": {"hstore.handling.mode": "map"},
}
"""The connector's other settings in a mode. The decoder needs none of them."""


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


MAP = "MAP<STRING, STRING>"
POINT = "STRUCT<x: DOUBLE, y: DOUBLE, wkb: BINARY, srid: INT>"
POINT_TEXT = "STRUCT<x: DOUBLE, y: DOUBLE, wkb: STRING, srid: INT>"
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
    "b1": column("bit(1)", "BOOLEAN", "1", "0"),
    "b12": column("bit(12)", "BINARY", "101100001111", "000000000001", "000000000000", text="STRING", double="STRING"),
    "b70": column("bit(70)", "BINARY", "1" + "0" * 68 + "1", text="STRING", double="STRING"),
    "bv": column("bit varying(20)", "BINARY", "10110000111101", "1", "00010", text="STRING", double="STRING"),
    "h": column("hstore", "STRING", 'a=>1, "b c"=>NULL, "ü\\""=>"€"', "", text=MAP, micros=MAP),
    "p": column("point", POINT, "(1.5,-2.25)", "(0,1e300)", text=POINT_TEXT, double=POINT_TEXT),
    "t": column("time", "BIGINT", "13:37:03.123456", "00:00", "23:59:59.999999", text="STRING", connect=None),
    "t3": column("time(3)", "INT", "13:37:03.123", "00:00", text="STRING", double="BIGINT", micros="BIGINT"),
    "tt": column("timetz", "STRING", "13:37:03.123456+02", "00:00-03"),
    "iv": column("interval", "BIGINT", "1 year 2 months 3 days 04:05:06.789", "-1 day", "1us", text="STRING", connect="STRING"),
}  # fmt: skip
ROWS = max(len(each.values) for each in COLUMNS.values())


@pytest.fixture(scope="module")
def services() -> Iterator[DatabaseServices]:
    """Provide a database, a folder and the address of a broker of their own."""
    with database_services() as found:
        yield found


@pytest.mark.parametrize("form", ["json", "avro"])
@pytest.mark.parametrize("mode", MODES)
def test_each_type_is_what_postgres_says(services: DatabaseServices, mode: str, form: str) -> None:
    import psycopg2

    root, bootstrap = services.folder, services.bootstrap
    name = f"{form}_{mode}"
    database = services.server.database(name)
    connection = psycopg2.connect(database)
    connection.autocommit = True
    try:
        cursor = connection.cursor()
        cursor.execute("CREATE EXTENSION hstore; SET TIME ZONE 'UTC'; CREATE TYPE mood AS ENUM ('sad', 'happy')")
        cursor.execute(
            "CREATE TABLE types (id int PRIMARY KEY, " + ", ".join(f'"{n}" {c.kind}' for n, c in COLUMNS.items()) + ")"
        )
        cursor.execute("ALTER TABLE types REPLICA IDENTITY FULL")
        _insert(cursor, 0)  # read by the snapshot
        settings = {"topic.prefix": name, "slot.name": name, **MODES[mode], **OTHERS.get(mode, {})}
        converter = {".schemas.enable": str(mode == "connect").lower()}
        if form == "avro":
            converter = avro_converter(services.registry())
        with connector(services.home, root / name, bootstrap, database, settings, converter):
            _insert(cursor, 100)
            cursor.execute("UPDATE types SET i4 = i4 WHERE id = 100; DELETE FROM types WHERE id = 100")
            _insert(cursor, 100, only=0)
            values = _values(bootstrap, f"{name}.public.types", 2 * ROWS + 4)
        declared = {
            column: kind
            for column, each in COLUMNS.items()
            if (kind := each.other.get(mode, each.declared)) is not None
        }
        options: dict[str, Any] = {
            "schema": "id INT NOT NULL, " + ", ".join(f"`{column}` {kind}" for column, kind in declared.items())
        }
        if form == "avro":  # everything else is in the schemas
            options |= {"registry": True, "connector": {BYTES: MODES[mode].get(BYTES, "bytes")}}
        else:
            options |= {"connector": MODES[mode], "milliseconds": ["ts3"] if mode in ("default", "micros") else []}
        found = decoded(
            decoder_of(FormatSpec("debezium", options), registry=services.registry() if form == "avro" else ""), values
        )
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


def test_a_table_that_changes_is_followed_through_a_registry(services: DatabaseServices) -> None:
    """Columns are added and changed, keys change, rows are deleted and the table is truncated; keys are in Avro too."""
    import psycopg2

    root, bootstrap, registry = services.folder, services.bootstrap, services.registry()
    database = services.server.database("changing")
    connection = psycopg2.connect(database)
    connection.autocommit = True
    try:
        cursor = connection.cursor()
        cursor.execute("CREATE TABLE t (id bigint PRIMARY KEY, amount numeric(12,2), note text, tags numeric[])")
        cursor.execute("INSERT INTO t VALUES (1, 1.50, repeat('x', 3), '{1.5,NULL}'), (2, NULL, NULL, NULL)")
        settings = {"topic.prefix": "changing", "slot.name": "changing"}
        with connector(services.home, root / "changing", bootstrap, database, settings, avro_converter(registry)):
            large = "(SELECT string_agg(md5(i::text), '') FROM generate_series(1, 3000) i)"
            cursor.execute(f"INSERT INTO t VALUES (3, 'NaN', {large}, NULL)")
            cursor.execute("UPDATE t SET amount = 3 WHERE id = 3")  # leaves the large value unsent
            cursor.execute("ALTER TABLE t ADD COLUMN more int DEFAULT 7; UPDATE t SET amount = 2 WHERE id = 1")
            cursor.execute("UPDATE t SET id = 4 WHERE id = 2; DELETE FROM t WHERE id = 1")
            cursor.execute("ALTER TABLE t ALTER amount TYPE numeric(12,4); INSERT INTO t VALUES (5, 2.25, 'y')")
            cursor.execute("TRUNCATE t")
            records = _records(bootstrap, "changing.public.t", 12)
        options = {"schema": "id BIGINT NOT NULL, amount DECIMAL(12,2), note STRING, more INT", "registry": True}
        found = decoded(decoder_of(FormatSpec("debezium", options), registry=registry), [value for _, value in records])
        rows = [
            tuple(row[name] for name in ("change_operation", "id", "amount", "note", "more"))
            for row in found.columns.to_pylist()
        ]
        unsent, scaled = 3, 10
        assert [(each["row"], each["reason"], each["place"]) for each in found.dead.to_pylist()] == [
            (unsent, "missing", "$.after.note"), (scaled, "wrong_type", "$.after.amount"),
        ]  # fmt: skip
        assert rows[:3] == [
            ("r", 1, Decimal("1.50"), "xxx", None), ("r", 2, None, None, None),
            ("c", 3, None, rows[2][3], None),  # the connector writes null for NaN
        ]  # fmt: skip
        assert len(rows[2][3]) == 96_000
        empty = (None,) * 5
        assert rows[4:10] == [
            ("u", 1, Decimal("2.00"), "xxx", 7), ("d", 2, *rows[5][2:]), empty, ("c", 4, None, None, 7),
            ("d", 1, *rows[8][2:]), empty,
        ]  # fmt: skip
        assert rows[11] == ("t", None, None, None, None)
        assert found.rescued.to_pylist()[0] == '{"tags":[{"scale":1,"value":"Dw=="},null]}'
        facts = [row["change_snapshot"] for row in found.columns.to_pylist()]
        assert facts[:3] == ["first", "last", "false"]
        row = found.columns.to_pylist()[4]
        assert row["change_lsn"] > 0
        assert row["change_tx_id"] > 0
        assert json.loads(row["change_sequence"])[1]

        schema = {"type": "record", "name": "Key", "fields": [{"name": "id", "type": "long"}]}
        keys = decoder_of(FormatSpec("avro", {"schema": schema, "registry": True}), registry=registry)
        key_rows = decoded(keys, [key for key, _ in records])
        assert not key_rows.dead.num_rows
        assert key_rows.columns["id"].to_pylist() == [1, 2, 3, 3, 1, 2, 2, 4, 1, 1, 5, None]
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("mode", "names"),
    [("avro", ("unit_price", "gr__e")), ("avro_unicode", ("unit_u002dprice", "gr_u00f6_u00dfe"))],
)
def test_names_that_avro_does_not_allow_are_adjusted(
    services: DatabaseServices, mode: str, names: tuple[str, str]
) -> None:
    """The topic's prefix, the table and two columns have such names."""
    import psycopg2

    registry, prefix = services.registry(), f"my-shop-{mode}"
    database = services.server.database(prefix)
    connection = psycopg2.connect(database)
    connection.autocommit = True
    try:
        cursor = connection.cursor()
        cursor.execute('CREATE TABLE "order-items" (id int PRIMARY KEY, "unit-price" numeric(9,2), "größe" text)')
        cursor.execute("""INSERT INTO "order-items" VALUES (1, 1.50, 'ü')""")
        settings = {
            "topic.prefix": prefix, "slot.name": mode,
            "schema.name.adjustment.mode": mode, "field.name.adjustment.mode": mode,
        }  # fmt: skip
        bootstrap, folder = services.bootstrap, services.folder / prefix
        with connector(services.home, folder, bootstrap, database, settings, avro_converter(registry)):
            cursor.execute(
                """INSERT INTO "order-items" VALUES (2, NULL, 'ß'); DELETE FROM "order-items" WHERE id = 2"""
            )
            values = _values(bootstrap, f"{prefix}.public.order-items", 3)
        price, size = names
        options = {"schema": f"id INT NOT NULL, {price} DECIMAL(9,2), {size} STRING", "registry": True}
        found = decoded(decoder_of(FormatSpec("debezium", options), registry=registry), values)
        assert not found.dead.num_rows, found.dead.to_pylist()
        assert found.rescued.to_pylist() == [None] * 3
        rows = [(row["change_operation"], row["id"], row[price], row[size]) for row in found.columns.to_pylist()]
        assert rows[:2] == [("r", 1, Decimal("1.50"), "ü"), ("c", 2, None, "ß")]
        assert rows[2][:2] == ("d", 2)
    finally:
        connection.close()


def test_without_adjusted_names_of_schemas_the_setting_is_named(services: DatabaseServices) -> None:
    import psycopg2

    registry = services.registry()
    database = services.server.database("plain")
    connection = psycopg2.connect(database)
    connection.autocommit = True
    try:
        cursor = connection.cursor()
        cursor.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
        settings = {"topic.prefix": "plain-shop", "slot.name": "plain"}
        bootstrap, folder = services.bootstrap, services.folder / "plain"
        with connector(services.home, folder, bootstrap, database, settings, avro_converter(registry)):
            values = _values(bootstrap, "plain-shop.public.t", 1)
        options = {"schema": "id INT NOT NULL", "registry": True}
        (dead,) = decoded(decoder_of(FormatSpec("debezium", options), registry=registry), values).dead.to_pylist()
        assert dead["reason"] == "bad_schema"
        assert "schema.name.adjustment.mode" in dead["detail"]
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
    for name, column in declared.items():
        there, here, parameters = _comparison(name, COLUMNS[name].kind, column, row[name])
        cursor.execute(
            f"SELECT {there} IS NOT DISTINCT FROM {here} FROM types WHERE id = %s",
            [*parameters, row["id"]],
        )
        ((same,),) = cursor.fetchall()
        if not same:
            wrong.append(name)
    return wrong


def _comparison(name: str, kind: str, declared: str, value: Any) -> tuple[str, str, list[Any]]:
    """Return SQL for the value in the database, SQL for the decoded value, and the latter's parameters."""
    there = f'"{name}"'
    if kind == "bit(1)":
        return there, "%s::bit(1)", [None if value is None else str(int(value))]
    if kind.startswith("bit"):
        content = base64.b64decode(value) if isinstance(value, str) else value
        bits = None if content is None else format(int.from_bytes(content, "little"), "b")
        if kind.startswith("bit varying"):  # the length is not written
            return f"ltrim({there}::text, '0')", "%s", [None if bits is None else bits.lstrip("0")]
        return there, f"lpad(%s, {kind[4:-1]}, '0')::{kind}", [bits]
    if kind == "hstore":
        pairs = value if value is None or isinstance(value, str) else json.dumps(dict(value))
        entries = "(SELECT coalesce(hstore(array_agg(key), array_agg(value)), '') FROM jsonb_each_text(%s::jsonb))"
        return there, f"CASE WHEN %s::text IS NULL THEN NULL ELSE {entries} END", [pairs, pairs]
    if kind == "point":
        x, y = (None, None) if value is None else (value["x"], value["y"])
        if value is not None:
            content = base64.b64decode(value["wkb"]) if isinstance(value["wkb"], str) else value["wkb"]
            assert content == struct.pack("<BIdd", 1, 1, x, y)
        return f"ARRAY[{there}[0], {there}[1]]", "ARRAY[%s, %s]::float8[]", [x, y]
    if kind.startswith("time") and "INT" in declared:
        unit = 1_000_000 if declared == "BIGINT" else 1_000
        return f"(extract(epoch FROM {there}) * {unit})::bigint", "%s::bigint", [value]
    if kind == "timetz":
        return f"{there} AT TIME ZONE 'UTC'", "%s::timetz AT TIME ZONE 'UTC'", [value]
    if kind == "interval" and declared == "BIGINT":
        parts = {
            "year": 12 * 30.4375 * 24 * 3600,
            "month": 30.4375 * 24 * 3600,
            "day": 24 * 3600,
            "hour": 3600,
            "minute": 60,
        }
        seconds = " + ".join(f"extract({part} FROM {there}) * {size}" for part, size in parts.items())
        micros = f"extract(microseconds FROM {there})"
        return f"(({seconds}) * 1000000 + {micros})::bigint", "%s::bigint", [value]
    cast = "text" if kind == "json" else kind
    return f"{there}::{cast}", f"%s::{cast}", [_parameter(value)]


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
    return [value for _, value in _records(bootstrap, topic, count)]


def _records(bootstrap: str, topic: str, count: int) -> list[tuple[bytes | None, bytes | None]]:
    """Return the first keys and values of a topic."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[tuple[bytes | None, bytes | None]] = []
    deadline = time.monotonic() + 120
    try:
        while len(found) < count:
            assert time.monotonic() < deadline, f"only {len(found)} of {count} records arrived"
            message = consumer.poll(1)
            if message is not None and message.error() is None:
                found.append((message.key(), message.value()))
    finally:
        consumer.close()
    return found
