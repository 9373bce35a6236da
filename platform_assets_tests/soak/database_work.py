"""Tables in PostgreSQL, and random transactions that change them: rows, keys, truncates, COPY, columns and large values."""

from __future__ import annotations

import io
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from typing import Any, Final, Literal

from platform_assets_tests.soak import database_judge as judge
from platform_assets_tests.soak.database_judge import Column, Key, Row, or_null, same

Change = Literal["insert", "update", "delete", "key", "again", "copy", "truncate"]
_WEIGHTS: Final[Mapping[Change, float]] = {
    "insert": 6, "update": 6, "delete": 3, "key": 2, "again": 1, "copy": 0.5, "truncate": 0.12,
}  # fmt: skip
COPIED: Final = 1_000_000
"""The first key that a large COPY writes."""
TEXT: Final[Mapping[str, str]] = {
    "decimal.handling.mode": "string", "time.precision.mode": "isostring", "binary.handling.mode": "hex",
}  # fmt: skip
"""Settings of the connector that make each value say what it is."""
TYPES: Final = "CREATE TYPE mood AS ENUM ('sad', 'happy')"
_KEYS: Final = 60
"""Number of keys that the random changes of a table use."""
_REGIONS: Final = ("eu", "us", "ünï", "a b", "")
_LARGE: Final = 3_000, 12_000
"""Least and most characters of a large text, which PostgreSQL keeps apart from the row."""

Value = Callable[[random.Random], Any]


@dataclass
class Table:
    """A table. `values` gives a random value for each column that is not in the key, as psycopg2 takes it. With `full`, the
    replica identity is FULL; with `whole`, the topic's state has `snapshots: whole`. `added` columns came later, and
    `declared` of these are in the topic's declaration."""

    name: str
    key: tuple[str, ...]
    columns: dict[str, Column]
    values: dict[str, Value]
    new_key: Callable[[random.Random], tuple[Any, ...]]
    full: bool = True
    whole: bool = False
    added: int = 0
    declared: int = 0

    @property
    def known(self) -> dict[str, Column]:
        """The columns that are declared."""
        return dict(list(self.columns.items())[: len(self.columns) - self.added + self.declared])

    def ddl(self, names: Sequence[str]) -> str:
        """Return these columns as Spark DDL."""
        return ", ".join(f"`{n}` {self.columns[n].declared}{' NOT NULL' if n in self.key else ''}" for n in names)

    def sql(self) -> list[str]:
        """Return the statements that create the table."""
        columns = ", ".join(f'"{name}" {column.kind}' for name, column in self.columns.items())
        created = [f"CREATE TABLE {self.name} ({columns}, PRIMARY KEY ({', '.join(self.key)}))"]
        if self.full:
            created.append(f"ALTER TABLE {self.name} REPLICA IDENTITY FULL")
        if "body" in self.columns:
            # Not compressed, so PostgreSQL keeps it apart from the row.
            created.append(f"ALTER TABLE {self.name} ALTER COLUMN body SET STORAGE EXTERNAL")
        return created

    def rows(self, cursor: Any) -> dict[Key, Row]:
        """Return all rows of the table, as canonical values."""
        names = ", ".join(f'"{name}"{column.select}' for name, column in self.columns.items())
        cursor.execute(f"SELECT {names} FROM {self.name}")
        found = {}
        for values in cursor.fetchall():
            row = dict(zip(self.columns, values, strict=True))
            found[judge.key_of(row, self.key)] = {n: c.of_python(row[n]) for n, c in self.columns.items()}
        return found


# --- columns ----------------------------------------------------------------------------------------------------------


def _column(
    kind: str, declared: str, of_json: Callable[[Any], Any] = same, of_python: Any = None, select: str = ""
) -> Column:
    return Column(kind, declared, or_null(of_json), or_null(of_python or of_json), select)


def _time(value: Any) -> int:
    """Return a time of day in microseconds."""
    if isinstance(value, time):
        return (value.hour * 3600 + value.minute * 60 + value.second) * 1_000_000 + value.microsecond
    return int(value)


def columns_of_types(*, text: bool) -> tuple[dict[str, Column], dict[str, Value]]:
    """Return a column of each type, with its values, for a connector that has the settings TEXT or its defaults."""
    cents = judge.exact if text else judge.unscaled(2)
    day = judge.day_of_text if text else judge.day_of_number
    at = judge.moment_of_text if text else judge.moment_of_microseconds
    long, numeric = ("STRING", judge.exact) if text else ("DECIMAL(38,9)", judge.scaled)
    of_bytes = bytes.fromhex if text else judge.of_base64
    listed, moments = judge.many, judge.many(judge.moment)
    all_columns: dict[str, tuple[Column, Sequence[Any]]] = {
        "b": (_column("boolean", "BOOLEAN"), (True, False)),
        "i2": (_column("smallint", "SMALLINT"), ("-32768", "0", "32767")),
        "i8": (_column("bigint", "BIGINT"), (str(-(2**63)), "-1", str(2**63 - 1), str(2**53 + 1))),
        "o": (_column("oid", "BIGINT"), (0, 2**32 - 1)),
        "f4": (_column("real", "FLOAT", judge.single), (1.5, "NaN", "-Infinity", 3.4028235e38, 0.1)),
        "f8": (_column("double precision", "DOUBLE", judge.number), (0.1, "NaN", "Infinity", 1e300, -0.0, 5e-324)),
        "n12": (_column("numeric(12,2)", "DECIMAL(12,2)", cents, judge.exact), ("-9999999999.99", "0", "0.01", "7.50")),
        "n": (
            _column("numeric", long, numeric, judge.exact),
            ("12345.678900", "0.000000001", "1e20", "-7", *(("NaN", "1e-30") if text else ())),
        ),
        "m": (_column("money", "DECIMAL(19,2)", cents, judge.exact, "::numeric"), ("12.34", "-92233720368547758.08")),
        "d": (_column("date", "DATE", day, same), ("2024-02-29", "0001-01-01", "9999-12-31", "1969-12-31")),
        "ts": (
            _column("timestamp", "TIMESTAMP", at, judge.moment),
            ("2024-02-29 13:37:03.123456", "0001-01-01", "9999-12-31 23:59:59.999999", "1969-12-31 23:59:59.1"),
        ),
        "tz": (
            _column("timestamptz", "TIMESTAMP", judge.moment_of_text, judge.moment),
            ("2024-02-29 13:37:03.123456+02", "9999-12-31 23:59:59.999999+00", "1970-01-01 00:00+00"),
        ),
        "tx": (_column("text", "STRING"), ("ü€😀", "", 'a"\\b', "null", "a\nb\tc")),
        "ch": (_column("char(5)", "STRING"), ("ab", "", "abcde")),
        "u": (_column("uuid", "STRING"), ("a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",)),
        "js": (_column("json", "STRING", select="::text"), ('{"a": 1.0, "a": 2}', "null", '"ü"')),
        "jb": (_column("jsonb", "STRING", select="::text"), ('{"a": 1.000000000000000000001}', "[]", '{"b": [1, null]}')),
        "e": (_column("mood", "STRING"), ("happy", "sad")),
        "ba": (_column("bytea", "BINARY", of_bytes, bytes), (b"\xde\xad\xbe\xef", b"", b"\xfb\xff\x00")),
        "ip": (_column("inet", "STRING"), ("10.0.0.1/8", "::1")),
        "r": (_column("int4range", "STRING", select="::text"), ("[1,5)", "empty")),
        "ai": (_column("integer[]", "ARRAY<INT>", tuple), ("{1,NULL,3}", "{}")),
        "at": (_column("text[]", "ARRAY<STRING>", tuple), ('{a,NULL,"b c",""}', "{}")),
        "an": (_column("numeric(12,2)[]", "ARRAY<DECIMAL(12,2)>", listed(cents), listed(judge.exact)), ("{1.50,NULL,-2}", "{}")),
        "af": (_column("double precision[]", "ARRAY<DOUBLE>", listed(judge.number)), ("{1.5,-Infinity}", "{}")),
        "as": (_column("timestamp[]", "ARRAY<TIMESTAMP>", listed(at), moments), ('{"2024-02-29 13:37:03.123456",NULL}', "{}")),
        "ad": (_column("date[]", "ARRAY<DATE>", listed(day), tuple), ("{2024-02-29,0001-01-01}", "{}")),
    }  # fmt: skip
    if not text:  # With these settings, the connector writes a time as text, which is not compared.
        all_columns["t"] = _column("time", "BIGINT", _time), ("00:00", "13:37:03.123456", "23:59:59.999999")
    return {n: c for n, (c, _) in all_columns.items()}, {n: _any_of((None, *v)) for n, (_, v) in all_columns.items()}


def _any_of(values: Sequence[Any]) -> Value:
    return lambda rng: rng.choice(values)


def _amount(rng: random.Random) -> Any:
    return rng.choice([None, "0.00", f"{rng.randrange(-(10**12) + 1, 10**12)}e-2", "1.50"])


def _note(rng: random.Random) -> Any:
    return rng.choice([None, "", "ü€😀", 'a"\\b', f"note {rng.randrange(10**6)}"])


def _placed(rng: random.Random) -> Any:
    return rng.choice([None, datetime(2026, 3, 1, tzinfo=UTC) + timedelta(microseconds=rng.randrange(10**14))])


def _large(rng: random.Random) -> Any:
    return rng.choice([None, "small", rng.randbytes(rng.randint(*_LARGE) // 2).hex()])


_ADDED: Final[tuple[tuple[Column, Value, str], ...]] = (
    (_column("integer", "INT"), lambda rng: rng.choice([None, rng.randrange(10**6)]), "7"),
    (_column("text", "STRING"), _note, "'first'"),
    (_column("boolean", "BOOLEAN"), _any_of((None, True, False)), "true"),
)
"""Columns that tables can get, with their values and a default."""


def tables(rng: random.Random, *, text: bool) -> list[Table]:
    """Return the tables of a seed: `orders`, and one or two of the others, in random order."""

    def small(of: random.Random) -> tuple[Any, ...]:
        return (of.randrange(_KEYS),)

    def composite(of: random.Random) -> tuple[Any, ...]:
        return of.choice(_REGIONS), of.randrange(_KEYS // len(_REGIONS) * 2)

    cents = judge.exact if text else judge.unscaled(2)
    day = judge.day_of_text if text else judge.day_of_number
    amount, note = _column("numeric(12,2)", "DECIMAL(12,2)", cents, judge.exact), _column("text", "STRING")
    bigint, integer = _column("bigint", "BIGINT"), _column("integer", "INT")
    placed = _column("timestamptz", "TIMESTAMP", judge.moment_of_text, judge.moment)
    orders = Table(
        "orders", ("id",), {"id": bigint, "amount": amount, "note": note, "placed": placed},
        {"amount": _amount, "note": _note, "placed": _placed}, small,
    )  # fmt: skip
    lines = Table(
        "lines", ("region", "number"),
        {"region": note, "number": integer, "price": amount, "day": _column("date", "DATE", day, same), "note": note},
        {"price": _amount, "day": _any_of((None, date(2024, 2, 29), date(1, 1, 1))), "note": _note}, composite,
    )  # fmt: skip
    tags = _column("text[]", "ARRAY<STRING>", tuple)
    documents = Table(
        "documents", ("id",), {"id": integer, "title": note, "body": note, "tags": tags},
        {"title": _note, "body": _large, "tags": _any_of((None, [], ["a", None, 'b "c']))}, small,
    )  # fmt: skip
    kinds, values = columns_of_types(text=text)
    types = Table("types", ("id",), {"id": integer, **kinds}, values, small)
    for each in (orders, lines, documents):
        each.full = rng.random() < 0.5
    chosen = [orders, *rng.sample([lines, documents, types], 2)]
    for each in chosen:
        each.whole = rng.random() < 0.5
    rng.shuffle(chosen)
    return chosen


# --- changes ----------------------------------------------------------------------------------------------------------


@dataclass
class Work:
    """Random changes of tables. `rows` counts changed rows of committed transactions."""

    rng: random.Random
    cursor: Any
    tables: Sequence[Table]
    transactions: int = 0
    rows: int = 0
    made: Counter[str] = field(default_factory=Counter)
    copied: int = 0

    def transaction(self) -> None:
        """Run a random transaction. Some roll back, entirely or up to a savepoint."""
        rng, cursor = self.rng, self.cursor
        cursor.execute("BEGIN")
        rows, made = 0, Counter[str]()
        for _ in range(rng.randint(1, 6)):
            table = rng.choice(self.tables)
            (what,) = rng.choices(list(_WEIGHTS), list(_WEIGHTS.values()))
            is_undone = rng.random() < 0.1
            if is_undone:
                cursor.execute("SAVEPOINT here")
            changed = self._change(table, what)
            if is_undone:
                cursor.execute("ROLLBACK TO here")
            else:
                rows += changed
                made[what] += 1
        if rng.random() < 0.85:
            cursor.execute("COMMIT")
            self.transactions += 1
            self.rows += rows
            self.made += made
        else:
            cursor.execute("ROLLBACK")

    def insert(self, table: Table) -> None:
        """Insert a row."""
        self.rows += self._insert(table, table.new_key(self.rng))
        self.transactions += 1

    def send_again(self, table: Table, keys: tuple[Key, ...], *, is_extra: bool) -> None:
        """Update rows without a change, or insert and delete them, so that the connector sends their keys again."""
        names = ", ".join(table.key)
        where = f" WHERE ({', '.join(f'{name}::text' for name in table.key)}) IN %s"
        if not is_extra:
            first = table.key[0]
            self.cursor.execute(f"UPDATE {table.name} SET {first} = {first}{where}", [keys])
            assert self.cursor.rowcount == len(keys)
            return
        places = ", ".join(f"%s::{table.columns[name].kind}" for name in table.key)
        for key in keys:
            self.cursor.execute(f"INSERT INTO {table.name} ({names}) VALUES ({places})", key)
        self.cursor.execute(f"DELETE FROM {table.name}{where}", [keys])

    def copy(self, rows: int) -> None:
        """Copy rows into `orders` in one transaction."""
        first = COPIED + self.copied
        self._copy(range(first, first + rows))
        self.copied += rows
        self.transactions += 1
        self.rows += rows
        self.made["large copy"] += 1

    def add_column(self) -> Table:
        """Add a column to a table, with or without a default, and return the table."""
        table = self.rng.choice(self.tables)
        column, value, default = self.rng.choice(_ADDED)
        name = f"extra{table.added}"
        with_default = f" DEFAULT {default}" if self.rng.random() < 0.3 else ""
        self.cursor.execute(f"ALTER TABLE {table.name} ADD COLUMN {name} {column.kind}{with_default}")
        table.columns[name], table.values[name] = column, value
        table.added += 1
        self.made["added column"] += 1
        return table

    def _change(self, table: Table, what: Change) -> int:
        rng, cursor, key = self.rng, self.cursor, ", ".join(table.key)
        keys = tuple({table.new_key(rng) for _ in range(rng.randint(1, 6))})
        where = f" WHERE ({key}) IN %s"
        if what == "truncate":
            cursor.execute(f"TRUNCATE {table.name}")
            return 0
        if what == "update":
            names = rng.sample(list(table.values), rng.randint(1, min(3, len(table.values))))
            assigned = ", ".join(f'"{n}" = %s::{table.columns[n].kind}' for n in names)
            values = [table.values[n](rng) for n in names]
            if table.name == "orders" and self.copied and rng.random() < 0.3:
                first = COPIED + rng.randrange(self.copied)
                cursor.execute(f"UPDATE orders SET {assigned} WHERE id BETWEEN {first} AND {first + 50}", values)
            else:
                cursor.execute(f"UPDATE {table.name} SET {assigned}{where}", [*values, keys])
            return int(cursor.rowcount)
        if what == "key":
            same_key = " AND ".join(f"{name} = %s" for name in table.key)
            old, new = table.new_key(rng), table.new_key(rng)
            cursor.execute(
                f"UPDATE {table.name} SET {', '.join(f'{name} = %s' for name in table.key)} WHERE {same_key} "
                f"AND NOT EXISTS (SELECT FROM {table.name} WHERE {same_key})",
                [*new, *old, *new],
            )
            return int(cursor.rowcount)
        changed = 0
        if what in ("delete", "again"):
            cursor.execute(f"DELETE FROM {table.name}{where}", [keys])
            changed += int(cursor.rowcount)
        if what in ("insert", "again"):
            for each in keys:
                changed += self._insert(table, each)
        if what == "copy" and table.name == "orders":
            first = rng.randrange(100, 400)
            span = range(first, first + rng.randrange(20, 200))
            cursor.execute("DELETE FROM orders WHERE id BETWEEN %s AND %s", [span.start, span.stop - 1])
            changed += int(cursor.rowcount) + len(span)
            self._copy(span)
        return changed

    def _insert(self, table: Table, key: tuple[Any, ...]) -> int:
        names = [*table.key, *table.values]
        places, quoted = ", ".join(f"%s::{table.columns[name].kind}" for name in names), '", "'.join(names)
        self.cursor.execute(
            f'INSERT INTO {table.name} ("{quoted}") VALUES ({places}) ON CONFLICT DO NOTHING',
            [*key, *(of(self.rng) for of in table.values.values())],
        )
        return int(self.cursor.rowcount)

    def _copy(self, ids: range) -> None:
        shift = self.rng.randrange(10**6)
        lines = (f"{n}\t{(n + shift) % 10**6}.50\tcopied {n + shift}\n" for n in ids)
        self.cursor.copy_expert("COPY orders (id, amount, note) FROM STDIN", io.StringIO("".join(lines)))
