"""Code that users can paste to read a topic's state together with the changes that are not folded yet, or the state as of
a window from its history."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, Literal

from platform_assets.cli.snippets import datasets, register
from platform_assets.model import debezium
from platform_assets.model.tables import StateRef, TableRef
from platform_assets.orchestration.names import catalogue_table

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

    from platform_assets.lake.location import Folder
    from platform_assets.model.state import StateDeclaration
    from platform_assets.windows.state.folding import Pending, TopicState

_ORDER: Final = ("generation", "window", "kafka_partition", "kafka_offset")
_WINDOW: Final = re.compile(r"[0-9][0-9T:Z.+-]{,40}")
_PLAIN: Final = re.compile(r"[A-Za-z0-9_./:+~-]*")
"""A path or address that is the same when it is percent-encoded."""
FRESH_SCHEMA: Final = "state_fresh"
"""The schema of the views on a Spark server."""
_ALL: Final = ">= ''"
"""The condition for all windows."""
_BROADCAST: Final = "/*+ BROADCAST(pending) */ "
_BROADCAST_BYTES: Final = 64 << 20
"""The most bytes that the pending changes may have in files, if their keys are sent to each task of Spark."""
_NO_ADDRESS: Final = "sc://localhost:15002/;token=…"


def fresh_view(
    state: TopicState,
    columns: Sequence[str],
    since: str,
    remote: str | None,
    *,
    is_folded: bool = False,
    broadcasts: bool = False,
) -> Mapping[Literal["spark", "polars", "duckdb"], str]:
    """Return Python code for each reader that makes `fresh`: the current row of each key, with the `columns` of the
    table of live keys. It replaces the rows of keys that have changes from the window `since` on or, if the state has that
    window and all before it (`is_folded`), after it. A change that is in the state already makes no difference. `remote` is a
    Spark Connect address with its token, if there is one. With `broadcasts`, Spark sends all pending keys to each task.

    If the last record by position counts, these changes are not compared with the state: they replace its rows. A row of the
    state from a window before `since` comes before them, and one from a later window is among them, as is a delete. So the
    table of deleted keys is not needed either. Otherwise, no record deletes a key.
    """
    declared = state.declared
    places = {"live": state.live_folder, "changes": state.changes_folder}
    # A window in a row that another program wrote may be any text. All changes are read then, as they are if a snapshot, which
    # may have begun in any window, deletes keys.
    since = since if _WINDOW.fullmatch(since) and not declared.has_sweeps else ""
    bound = f"{'>' if since and is_folded else '>='} '{since}'"
    sql = _sql(declared, columns, bound, '"')
    spark_sql = _sql(declared, columns, bound, "`", _BROADCAST if since and broadcasts else "")
    return {
        "spark": "\n".join(
            (
                "from pyspark.sql import SparkSession",
                f"spark = SparkSession.builder.remote({remote or _NO_ADDRESS!r}).getOrCreate()",
                *(
                    f"spark.read.format('delta').load({folder.spark_path!r}).createOrReplaceTempView('{name}')"
                    for name, folder in places.items()
                ),
                f"fresh = spark.sql({_quoted(spark_sql)})",
                "fresh.show(5)",
            )
        ),
        "polars": "\n".join(
            (
                "import polars as pl",
                *_scanned(places),
                *_in_polars(declared, columns, bound),
                "print(fresh.head(5).collect())",
            )
        ),
        "duckdb": "\n".join(
            (
                "import duckdb",
                *datasets(places),
                f"fresh = duckdb.sql({_quoted(sql)})",
                "print(fresh.limit(5))",
            )
        ),
    }


def changes_from(pending: Pending) -> tuple[str, bool]:
    """Return the window `since` for `fresh_view`, and `is_folded`."""
    first, through = min(pending.windows, default=""), pending.through
    # Not only from the first pending window on: another window may come between both.
    return (through, True) if through and (not first or first > through) else (first, False)


def can_broadcast(pending: Pending) -> bool:
    """Return True if Spark should send the keys of the changes to each of its tasks. Otherwise it shuffles all rows of the
    state to find those that have changes, because it does not know how few changes there are."""
    _, is_folded = changes_from(pending)
    return is_folded and 0 < pending.rows * pending.state_bytes <= _BROADCAST_BYTES * pending.state_rows


def register_fresh(spark: SparkSession, state: TopicState) -> str:
    """Register a view with the fresh rows of a state on the Spark server; return its name. Like a table's name, it is
    forgotten when the embedded server stops.

    The view stays right after later folds, also if a window is loaded late or replaced. For that, it reads all changes: with
    a bound, it would mix a window's new changes with the old ones in the state. Raises PySparkException and
    ConfigurationError as `snippets.register` does.
    """
    tables = (
        ("live", StateRef("state", state.topic), state.live_folder),
        ("changes", TableRef("changes", state.topic), state.changes_folder),
    )
    named = ", ".join(f"{name} AS (TABLE {register(spark, table, folder)})" for name, table, folder in tables)
    _, own = catalogue_table(tables[0][1])
    sql = view_of_all(state.declared, state.opened().live.columns.names, "`")
    spark.sql(f"CREATE SCHEMA IF NOT EXISTS {FRESH_SCHEMA}")
    spark.sql(f"CREATE OR REPLACE VIEW {FRESH_SCHEMA}.`{own}` AS WITH {named}, {sql.removeprefix('WITH ')}")
    return f"{FRESH_SCHEMA}.{own}" if own[0].isalpha() else f"{FRESH_SCHEMA}.`{own}`"


def view_of_all(declared: StateDeclaration, columns: Sequence[str], quote: str = '"') -> str:
    """Return a query for the fresh rows that reads all changes, from the tables `live` and `changes`. The state's rows count
    only if that table lacks their window."""
    return _sql(declared, columns, _ALL, quote)


def as_of(state: TopicState, window: str, remote: str | None) -> Mapping[Literal["spark", "polars", "duckdb"], str]:
    """Return Python code for each reader that makes `rows`: the rows of the state as it was when it had all windows up to
    `window`. Readers can use any other window."""
    folder, window = state.history_folder, window if _WINDOW.fullmatch(window) else ""
    condition = "NOT deleted AND valid_from <= '{window}' AND (valid_to IS NULL OR valid_to > '{window}')"
    return {
        "spark": "\n".join(
            (
                "from pyspark.sql import SparkSession",
                f"spark = SparkSession.builder.remote({remote or _NO_ADDRESS!r}).getOrCreate()",
                f"window = {window!r}",
                f"history = spark.read.format('delta').load({folder.spark_path!r})",
                f'rows = history.where(f"{condition}")',
                "rows.show(5)",
            )
        ),
        "polars": "\n".join(
            (
                "import polars as pl",
                f"window = {window!r}",
                *_scanned({"history": folder}),
                "is_valid = (pl.col('valid_from') <= window) & (pl.col('valid_to').is_null() | (pl.col('valid_to') > window))",
                "rows = history.filter(is_valid & ~pl.col('deleted'))",
                "print(rows.head(5).collect())",
            )
        ),
        "duckdb": "\n".join(
            (
                "import duckdb",
                *datasets({"history": folder}),
                f"window = {window!r}",
                f'rows = duckdb.sql("FROM history").filter(f"{condition}")',
                "print(rows.limit(5))",
            )
        ),
    }


def _scanned(folders: Mapping[str, Folder]) -> tuple[str, ...]:
    """Return code that opens the tables in these folders, one after another, as lazy frames with these names."""
    if all(_PLAIN.fullmatch(folder.uri) for folder in folders.values()):
        scans = (f"{name} = pl.scan_delta(DeltaTable({folder.uri!r}))" for name, folder in folders.items())
        return ("from deltalake import DeltaTable", *scans)
    # `scan_delta` looks for the files below the percent-encoded path, and finds none.
    return (*datasets(folders), *(f"{name} = pl.scan_pyarrow_dataset({name})" for name in folders))


def _order(declared: StateDeclaration) -> tuple[str, ...]:
    return (*(() if declared.version is None else (declared.version,)), *_ORDER)


def _in_polars(declared: StateDeclaration, columns: Sequence[str], bound: str) -> tuple[str, ...]:
    """Return code that makes `fresh` from the lazy frames `live` and `changes`."""
    held = "live.join(keys, on=key, how='semi').with_columns(deleted=pl.lit(False))"
    rows = "pending" if _changes_win(declared) else f"pl.concat([{held}, pending], how='diagonal_relaxed')"
    return (
        f"key = {list(declared.key)!r}",
        f"order = {list(_order(declared))!r}",
        f"columns = {list(columns)!r}",
        f"pending = changes.filter(pl.col('window') {bound})",
        *(_truncates_in_polars() if declared.has_truncates else ()),
        *(_snapshots_in_polars(declared) if declared.has_sweeps else ()),
        "keys = pending.select(key)",
        f"rows = {rows}",
        f"best = rows.sort(order).unique(key, keep={declared.keep!r}, maintain_order=True)",
        "others = live.join(keys, on=key, how='anti')",
        "best = best.filter(~pl.col('deleted'))",
        "fresh = pl.concat([others.select(columns), best.select(columns)], how='vertical_relaxed')",
        *(("fresh = fresh.filter(is_after)",) if declared.has_truncates else ()),
        *(("fresh = fresh.filter(is_kept)",) if declared.has_sweeps else ()),
    )


def _truncates_in_polars() -> tuple[str, ...]:
    """Return code that takes the truncates, which have no key, out of `pending`, and makes `is_after`: a condition for the
    rows after the last one."""
    return (
        "no_key = pl.col(key[0]).is_null()",
        "last = pending.filter(no_key).select(order).sort(order).tail(1).collect().rows()",
        "pending, is_after = pending.filter(~no_key), pl.lit(not last)",
        "for name, value in zip(reversed(order), reversed(last[0] if last else ())):",
        "    is_after = (pl.col(name) > value) | ((pl.col(name) == value) & is_after)",
    )


def _snapshots_in_polars(declared: StateDeclaration) -> tuple[str, ...]:
    """Return code that makes `is_kept`: a condition for the rows from the first row of the last complete snapshot on."""
    place, kind = [*_ORDER[:-1], declared.lsn, declared.snapshot], f"pl.col({declared.snapshot!r})"
    return (
        f"of_snapshot = (pl.col({declared.operation!r}) == 'r') & {kind}.is_in({list(debezium.SNAPSHOT_ROWS)!r})",
        f"read = pending.filter(of_snapshot & pl.col({declared.lsn!r}).is_not_null())",
        f"read = read.group_by({place!r}).agg(pl.col({_ORDER[-1]!r}).min()).collect()",
        "attempts = {}",
        "for generation, window, partition, lsn, kind, offset in read.rows():",
        "    found = ((generation, window, partition, offset), kind)",
        "    attempts.setdefault((generation, lsn), []).append(found)",
        "swept = ()",
        "for found in attempts.values():",
        f"    ends = [place for place, kind in found if kind in {debezium.SNAPSHOT_ENDS!r}]",
        "    if ends and not any(place[2] and place[1] <= min(ends)[1] for place, _ in found):",
        "        swept = max(swept, min(found)[0])",
        "is_kept = pl.lit(True)",
        "for name, value in zip(reversed(order), reversed(swept)):",
        "    is_kept = (pl.col(name) > value) | ((pl.col(name) == value) & is_kept)",
    )


def _changes_win(declared: StateDeclaration) -> bool:
    """Return True if a change from a later window always replaces the row of its key."""
    return declared.keep == "last" and declared.version is None


def _sql(declared: StateDeclaration, columns: Sequence[str], bound: str, quote: str, hint: str = "") -> str:
    """Return a query for the fresh rows, from the tables `live` and `changes`. `hint` is for joins with `pending`."""

    def named(name: str) -> str:
        return quote + name.replace(quote, quote * 2) + quote

    order, taken, rank = _order(declared), {name.lower() for name in columns}, "place"
    while rank in taken:
        rank += "_"
    names, key = ", ".join(map(named, columns)), ", ".join(map(named, declared.key))
    by = ", ".join(f"{named(name)} {'DESC' if declared.keep == 'last' else 'ASC'}" for name in order)
    held_key = " AND ".join(f"pending.{name} = held.{name}" for name in map(named, declared.key))
    pending = f"EXISTS (SELECT {hint}1 FROM pending WHERE {held_key})"  # noqa: S608  the names are the table's columns, and quoted
    is_since, no_key = f"{named('window')} {bound}", f"{named(declared.key[0])} IS NULL"
    is_pending = f"{is_since} AND NOT {no_key}" if declared.has_truncates else is_since
    tables = f"pending AS (SELECT {names}, deleted FROM changes WHERE {is_pending})"  # noqa: S608  as above
    held = "live AS held"
    if bound == _ALL:
        # The state may have rows of a window that was replaced. Of windows that are in the table of changes, the changes count
        # alone.
        tables += f", windows AS (SELECT DISTINCT {named('window')} FROM changes)"  # noqa: S608  as above
        own = f"SELECT 1 FROM windows WHERE windows.{named('window')} = old.{named('window')}"  # noqa: S608  as above
        held = f"(SELECT * FROM live AS old WHERE NOT EXISTS ({own})) AS held"  # noqa: S608  as above
    candidates = "pending"
    if not _changes_win(declared):
        candidates = f"""(
    SELECT {names}, false AS deleted FROM {held} WHERE {pending} UNION ALL SELECT {names}, deleted FROM pending
  ) AS candidates"""  # noqa: S608  as above
    others = f"SELECT {names} FROM {held} WHERE NOT {pending}"  # noqa: S608  as above
    best = f"""SELECT {names} FROM (
  SELECT *, row_number() OVER (PARTITION BY {key} ORDER BY {by}) AS {rank} FROM {candidates}
) AS found WHERE {rank} = 1 AND NOT deleted"""  # noqa: S608  as above
    if not declared.has_truncates:
        return f"WITH {tables}\n{others}\nUNION ALL {best}"
    places, before = ", ".join(map(named, order)), "false"
    for name in map(named, reversed(order)):
        before = f"(found.{name} < last.{name} OR (found.{name} = last.{name} AND {before}))"
    is_after = f"NOT EXISTS (SELECT 1 FROM truncates AS last WHERE {before})"  # noqa: S608  as above
    # A truncate has no key.
    tables += f""",
truncates AS (
  SELECT {places} FROM changes WHERE {is_since} AND {no_key}
)"""  # noqa: S608  as above
    if bound != _ALL:
        # A truncate comes after all rows from earlier windows, and the other rows are among the changes.
        return f"""WITH {tables}
{others} AND NOT EXISTS (SELECT 1 FROM truncates)
UNION ALL {best} AND {is_after}"""  # noqa: S608  as above
    if declared.has_sweeps:
        # The first row of each complete snapshot deletes what comes before it, as a truncate does.
        window, lsn, kind = map(named, ("window", declared.lsn, declared.snapshot))
        rows_of, ends_of = (
            ", ".join(f"'{each}'" for each in kinds) for kinds in (debezium.SNAPSHOT_ROWS, debezium.SNAPSHOT_ENDS)
        )
        tables = f"""{tables.removesuffix(")")}  UNION ALL SELECT {places} FROM attempts AS own WHERE nth = 1 AND EXISTS (
    SELECT 1 FROM ends WHERE ends.generation = own.generation AND ends.lsn = own.lsn AND NOT EXISTS (
      SELECT 1 FROM attempts AS other WHERE other.generation = ends.generation AND other.lsn = ends.lsn
        AND other.kafka_partition <> 0 AND other.{window} <= ends.{window}
    )
  )
)"""  # noqa: S608  as above
        tables = f"""attempts AS (
  SELECT {places}, {lsn} AS lsn, {kind} AS kind, row_number() OVER (PARTITION BY generation, {lsn} ORDER BY {places}) AS nth
  FROM changes WHERE {named(declared.operation)} = 'r' AND {kind} IN ({rows_of}) AND {lsn} IS NOT NULL
),
ends AS (
  SELECT generation, lsn, min({window}) AS {window} FROM attempts WHERE kind IN ({ends_of}) GROUP BY generation, lsn
),
{tables}"""  # noqa: S608  as above
    return f"WITH {tables}\nSELECT {names} FROM (\n{others}\nUNION ALL {best}\n) AS found WHERE {is_after}"


def _quoted(sql: str) -> str:
    return '"""\n' + sql.replace("\\", "\\\\").replace('"""', '\\"\\"\\"') + '\n"""'
