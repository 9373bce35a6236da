"""A table in PostgreSQL as one snapshot sees it: its columns, its rows in the order of their keys, and which
transactions the snapshot includes. Nothing is written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from platform_assets.checks.postgres.values import DatabaseType
from platform_assets.errors import ConfigurationError, PlatformError, Retryable, Terminal

_NEWEST: Final = "pg_current_wal_insert_lsn() - '0/0'"
_SETTINGS: Final = (
    "SET search_path = pg_catalog; SET datestyle = 'ISO, YMD'; SET timezone = 'UTC'; SET bytea_output = 'hex'; "
    "SET extra_float_digits = 1; SET row_security = off; SET statement_timeout = 0; "
    "SET idle_in_transaction_session_timeout = 0"
)
_SETTINGS_SINCE: Final = {140_000: "SET idle_session_timeout = 0", 170_000: "SET transaction_timeout = 0"}
"""More settings, by the first version of the server that has them."""
_COLUMNS: Final = """
SELECT a.attname, a.attgenerated <> '', coalesce(b.typname, t.typname), coalesce(b.typtype, t.typtype), e.typname, e.typtype
FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_type t ON t.oid = a.atttypid LEFT JOIN pg_type b ON t.typtype = 'd' AND b.oid = t.typbasetype
LEFT JOIN pg_type e ON e.oid = coalesce(b.typelem, t.typelem) AND coalesce(b.typcategory, t.typcategory) = 'A'
WHERE n.nspname = %s AND c.relname = %s AND c.relkind IN ('r', 'p') AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY a.attnum"""
_PRIMARY_KEY: Final = """
SELECT a.attname FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid JOIN pg_namespace n ON n.oid = c.relnamespace
CROSS JOIN unnest(i.indkey::int2[]) WITH ORDINALITY AS k (attnum, place)
JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
WHERE n.nspname = %s AND c.relname = %s AND i.indisprimary AND k.place <= i.indnkeyatts ORDER BY k.place"""
_FILES: Final = """
WITH RECURSIVE parts (oid) AS (
  SELECT c.oid FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = %s AND c.relname = %s
  UNION SELECT i.inhrelid FROM pg_inherits i JOIN parts ON i.inhparent = parts.oid
  JOIN pg_class p ON p.oid = i.inhparent AND p.relkind = 'p')
SELECT oid::bigint, pg_relation_filenode(oid)::bigint FROM parts ORDER BY oid"""
_IS_PARTITIONED: Final = """
SELECT c.relkind = 'p' FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = %s AND c.relname = %s"""
_SLOTS: Final = """
SELECT slot_name, confirmed_flush_lsn - '0/0' FROM pg_replication_slots
WHERE slot_type = 'logical' AND database = current_database() AND (%s IS NULL OR slot_name = %s) ORDER BY slot_name"""
_ROWS_AT_ONCE: Final = 2_000
_HALF: Final = 1 << 31
_FUTURE: Final = 1 << 20
"""Transaction ids this far after a snapshot cannot have been given out when the snapshot was taken."""
_IDS: Final = 1 << 32
"""Number of transaction ids. After these, ids begin again."""
_EPOCH: Final = 1 << 32
"""Bytes of the log that come at least between two transactions with the same id, because each transaction writes several
bytes at its end. The connector's position of a change may lie a little before the change, but not this far."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A snapshot: transactions before `low` are in it, and those from `high` on are not; of those between, the ones in
    `running` are not. `text` is PostgreSQL's text of it. `lsn` is the end of the log after the snapshot was taken, and
    `before` the end of the log before that."""

    text: str
    lsn: int
    before: int

    @property
    def high(self) -> int:
        """The first transaction id that is in no case in the snapshot."""
        return int(self.text.split(":")[1])

    @property
    def running(self) -> list[int]:
        """The transactions that were running."""
        return [int(each) for each in self.text.split(":")[2].split(",") if each]

    def sees(self, ids: npt.NDArray[np.int64], lsns: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Return which of these transactions the snapshot includes. Pure.

        `ids` are transaction ids modulo 2^32, and `lsns` are positions in the log at which the transactions wrote; -1
        is an unknown one. An id means the transaction nearest to the snapshot. If that one began after the snapshot, but
        its position lies before what it can have written, the id is from before the ids began again.
        """
        ahead = self._ahead(ids)
        is_old = (ahead >= 0) & (lsns >= 0) & (lsns < np.where(ahead >= _FUTURE, self.before, self.before - _EPOCH))
        return np.asarray((ahead < 0) & ~self._is_running(ahead) | is_old)

    def doubts(self, ids: npt.NDArray[np.int64], lsns: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Return for which of these transactions, given as to `sees`, the answer may be wrong. Pure.

        There were earlier transactions with the same ids. The ids are those of running transactions, which may have begun
        at any position, and their positions lie far before the snapshot; or the positions are unknown.
        """
        ahead = self._ahead(ids)
        is_running = self._is_running(ahead)
        is_far, is_unknown = is_running & (lsns < self.before - _EPOCH), (lsns < 0) & (is_running | (ahead >= 0))
        return np.asarray((ahead + self.high >= _IDS) & (is_far | is_unknown))

    def _is_running(self, ahead: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        return np.isin(ahead + self.high, np.array(self.running, np.int64))

    def _ahead(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return how far after `high` the nearest transactions with these ids are."""
        ahead = ((ids - self.high) & 0xFFFF_FFFF).astype(np.int64)
        ahead[ahead >= _HALF] -= _IDS
        return ahead


class DatabaseUnreachableError(Retryable):
    """PostgreSQL does not answer, or a connection broke."""


class ServerLimitError(Terminal):
    """PostgreSQL reached a limit of its disk, memory, connections or configuration."""


@dataclass(frozen=True, slots=True)
class Slot:
    """A replication slot: up to `confirmed`, its connector has written all changes to Kafka."""

    name: str
    confirmed: int


class Database:
    """A table, as one snapshot sees it. `snapshot` is taken when this is made."""

    def __init__(self, reading: Any, control: Any, schema: str, table: str) -> None:
        self._reading, self._control = reading, control
        self.schema, self.table = schema, table
        # Before the snapshot, so that no change of the files after it is overlooked.
        self._files = self._ask(control, _FILES, [schema, table])
        ((before,),) = self._ask(control, f"SELECT {_NEWEST}")
        ((text, lsn),) = self._ask(reading, f"SELECT pg_current_snapshot()::text, {_NEWEST}")
        self.snapshot = Snapshot(text, int(lsn), int(before))

    def columns(self) -> dict[str, DatabaseType]:
        """Return the table's columns. Raises ConfigurationError if there is no such table."""
        found = self._ask(self._reading, _COLUMNS, [self.schema, self.table])
        if not found:
            raise ConfigurationError(
                f"the database has no table {self.schema}.{self.table}: name the topic's table with `--table schema.table`"
            )
        return {
            name: DatabaseType(
                kind, letter, None if element is None else DatabaseType(element, element_letter), is_generated
            )
            for name, is_generated, kind, letter, element, element_letter in found
        }

    def primary_key(self) -> list[str]:
        """Return the columns of the table's primary key; none if it has no primary key."""
        return [name for (name,) in self._ask(self._reading, _PRIMARY_KEY, [self.schema, self.table])]

    def is_rewritten(self) -> bool:
        """Return True if the table or a partition of it was truncated, rewritten, added or removed since the snapshot.

        A snapshot does not protect rows from these: the table may look empty to it. Call this after the rows were read.
        """
        return self._ask(self._control, _FILES, [self.schema, self.table]) != self._files

    def slots(self, name: str | None) -> list[Slot]:
        """Return the logical replication slots of this database as they are now, or the one with this name."""
        found = self._ask(self._control, _SLOTS, [name, name])
        return [Slot(each, int(confirmed)) for each, confirmed in found if confirmed is not None]

    def rows(
        self, key: Sequence[str], columns: dict[str, DatabaseType]
    ) -> Iterator[tuple[tuple[str | None, ...], list[Any]]]:
        """Yield the key and the columns of each row, as PostgreSQL's texts, sorted by the bytes of the key's texts, null
        last.
        Memory does not depend on the number of rows."""
        from psycopg2 import sql

        keys = [_text(name, DatabaseType("text")) for name in key]
        # Rows of tables that inherit from this one are in other topics; those of partitions are not.
        only = self._ask(self._reading, _IS_PARTITIONED, [self.schema, self.table]) != [(True,)]
        query = sql.SQL("SELECT {} FROM {}{} ORDER BY {}").format(
            sql.SQL(", ").join([*keys, *(_text(name, kind) for name, kind in columns.items())]),
            sql.SQL("ONLY " if only else ""),
            sql.Identifier(self.schema, self.table),
            sql.SQL(", ").join(sql.SQL('{} COLLATE "C"').format(each) for each in keys),
        )
        with _translated(), closing(self._reading.cursor("rows")) as cursor:
            cursor.itersize = _ROWS_AT_ONCE
            cursor.execute(query)
            for row in cursor:
                yield tuple(row[: len(key)]), list(row[len(key) :])

    def _ask(self, connection: Any, query: str, parameters: Sequence[Any] = ()) -> list[Any]:
        with _translated(), closing(connection.cursor()) as cursor:
            cursor.execute(query, list(parameters))
            return list(cursor.fetchall())


def _text(name: str, kind: DatabaseType) -> Any:
    """Return an expression for PostgreSQL's own text of a column. A cast to text would remove the blanks of `char`."""
    from psycopg2 import sql

    column = sql.Identifier(name)
    if kind.name == "money":
        # The text depends on the server's locale.
        return sql.SQL("{}::numeric::text").format(column)
    return sql.SQL("CASE WHEN {0} IS NOT NULL THEN concat({0}) END").format(column)


@contextmanager
def opened(address: str, variable: str, schema: str, table: str) -> Iterator[Database]:
    """Connect to the database at `address`, which the environment variable `variable` contains, and take a snapshot
    that stays until the block ends. No error shows the address. Raises ConfigurationError, also for a standby, and
    DatabaseUnreachableError."""
    with closing(_connected(address, variable)) as control, closing(_connected(address, variable)) as reading:
        control.set_session(readonly=True, autocommit=True)
        reading.set_session(isolation_level="REPEATABLE READ", readonly=True)
        for connection in (control, reading):
            connection.set_client_encoding("UTF8")
            with _translated(), closing(connection.cursor()) as cursor:
                cursor.execute("; ".join(settings(connection.server_version)))
        check_primary(control, variable)
        yield Database(reading, control, schema, table)


def settings(version: int) -> list[str]:
    """Return the settings of a session on a server with this version, such as 150004. Pure.

    No timeout ends the session, because one connection is idle while the other one reads a large table.
    """
    return [_SETTINGS, *(text for since, text in _SETTINGS_SINCE.items() if version >= since)]


def check_primary(connection: Any, variable: str) -> None:
    """Raise ConfigurationError if the server is a standby. The snapshots of a standby do not list which transactions
    were running."""
    with _translated(), closing(connection.cursor()) as cursor:
        cursor.execute("SELECT pg_is_in_recovery()")
        ((is_standby,),) = cursor.fetchall()
    if is_standby:
        raise ConfigurationError(
            f"the server at the address in {variable} is a standby, whose snapshots do not list the running transactions: "
            "use the primary's address"
        )


def _connected(address: str, variable: str) -> Any:
    try:
        import psycopg2
    except ImportError as e:
        raise ConfigurationError(
            "comparing with PostgreSQL needs the package psycopg2, which is not installed: install "
            "`platform-assets[postgres]`"
        ) from e
    try:
        found = psycopg2.connect(address, application_name="platform-assets compare-postgres", connect_timeout=10)
    except psycopg2.ProgrammingError:
        raise ConfigurationError(
            f"{variable} is not an address of PostgreSQL: write it like postgresql://user:password@host:5432/database"
        ) from None
    except psycopg2.Error as e:
        # libpq's text can quote parts of the address, and so of the password.
        if "authentication" in str(e):
            raise ConfigurationError(f"PostgreSQL refused the user or the password in {variable}: correct it") from None
        raise DatabaseUnreachableError(
            f"PostgreSQL at the address in {variable} does not accept a connection: check that host, port and database are "
            "right, and that the server is running"
        ) from None
    if found.server_version < 130_000:
        found.close()
        raise ConfigurationError(
            "PostgreSQL is older than version 13, which has no `pg_current_snapshot()`: upgrade it"
        )
    return found


@contextmanager
def _translated() -> Iterator[None]:
    import psycopg2

    try:
        yield
    except psycopg2.Error as e:
        raise _translation(e.pgcode, e.diag.message_primary) from e


def _translation(code: str | None, message: str | None) -> PlatformError:
    """Return the platform's error for one of PostgreSQL, given its SQLSTATE."""
    if code is not None and code[:2] == "53":
        return ServerLimitError(
            f"PostgreSQL reached a limit: {message} (SQLSTATE {code}). Nothing was compared. It sorts the table once in temporary "
            "files: raise the limit, such as `temp_file_limit` of the user, or free the server's disk, and run the command again"
        )
    if code is None or code[:2] in ("08", "57"):
        return DatabaseUnreachableError(
            f"the connection to PostgreSQL broke: {message or 'no answer'}. Nothing was compared. Run the command again."
        )
    if code == "42501":
        return ConfigurationError(
            f"PostgreSQL refuses to read: {message}. Grant the user SELECT on the table, and BYPASSRLS if it has row security"
        )
    return ConfigurationError(f"PostgreSQL refuses a query: {message} (SQLSTATE {code})")
