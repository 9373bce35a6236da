"""Code that users can paste to read a topic's state together with the changes that are not folded yet, or the state as of
a window from its history."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, Literal

from platform_assets.cli.snippets import register
from platform_assets.model import debezium
from platform_assets.model.tables import StateRef, TableRef
from platform_assets.orchestration.names import catalogue_table

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

    from platform_assets.model.state import StateDeclaration
    from platform_assets.windows.state.folding import TopicState

_ORDER: Final = ("generation", "window", "kafka_partition", "kafka_offset")
_WINDOW: Final = re.compile(r"[0-9][0-9T:Z.+-]{,40}")
FRESH_SCHEMA: Final = "state_fresh"
"""The schema of the views on a Spark server."""
_NO_ADDRESS: Final = "sc://localhost:15002/;token=…"


def fresh_view(
    state: TopicState, columns: Sequence[str], since: str, remote: str | None
) -> Mapping[Literal["spark", "polars", "duckdb"], str]:
    """Return Python code for each reader that makes `fresh`: the current row of each key, with the `columns` of the
    table of live keys. It replaces the rows of keys that have changes from the window `since` on; a change that is in the
    state already makes no difference. `remote` is a Spark Connect address with its token, if there is one."""
    places = {"live": state.live_folder, "dead": state.dead_folder, "changes": state.changes_folder}
    order = _order(state.declared)
    # A window in a row that another program wrote may be any text. All changes are read then, as they are if a snapshot, which
    # may have begun in any window, deletes keys.
    since = since if _WINDOW.fullmatch(since) and not state.declared.has_sweeps else ""
    sql = _sql(state.declared, columns, order, since, '"')
    spark_sql = _sql(state.declared, columns, order, since, "`")
    opened = [f"{name} = DeltaTable({folder.uri!r})" for name, folder in places.items()]
    descending, has_truncates = state.declared.keep == "last", state.declared.has_truncates
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
                "from deltalake import DeltaTable",
                *opened,
                f"key = {list(state.declared.key)!r}",
                f"pending = pl.scan_delta(changes).filter(pl.col('window') >= {since!r})",
                *(_truncates_in_polars(order) if has_truncates else ()),
                *(_snapshots_in_polars(state.declared) if state.declared.has_sweeps else ()),
                "keys = pending.select(key).unique()",
                "rows = pl.concat(",
                "    [",
                "        pl.scan_delta(live).join(keys, on=key, how='semi').with_columns(deleted=pl.lit(False)),",
                "        pl.scan_delta(dead).join(keys, on=key, how='semi').with_columns(deleted=pl.lit(True)),",
                "        pending,",
                "    ],",
                "    how='diagonal_relaxed',",
                ")",
                f"best = rows.sort({list(order)!r}, descending={descending}).unique(key, keep='first', maintain_order=True)",
                "others = pl.scan_delta(live).join(keys, on=key, how='anti')",
                f"columns = {list(columns)!r}",
                "fresh = pl.concat([others.select(columns), best.filter(~pl.col('deleted')).select(columns)], how='vertical_relaxed')",
                *(("fresh = fresh.filter(is_after)",) if has_truncates else ()),
                *(("fresh = fresh.filter(is_kept)",) if state.declared.has_sweeps else ()),
                "print(fresh.head(5).collect())",
            )
        ),
        "duckdb": "\n".join(
            (
                "import duckdb",
                "from deltalake import DeltaTable",
                *opened,
                "live, dead, changes = (each.to_pyarrow_dataset() for each in (live, dead, changes))",
                f"fresh = duckdb.sql({_quoted(sql)})",
                "print(fresh.limit(5))",
            )
        ),
    }


def register_fresh(spark: SparkSession, state: TopicState) -> str:
    """Register a view with the fresh rows of a state on the Spark server; return its name. Like a table's name, it is
    forgotten when the embedded server stops.

    Later folds and windows need no new view, so the view does not know which changes are pending: it reads all. Raises
    PySparkException and ConfigurationError as `snippets.register` does.
    """
    tables = (
        ("live", StateRef("state", state.topic), state.live_folder),
        ("dead", StateRef("state_deleted", state.topic), state.dead_folder),
        ("changes", TableRef("changes", state.topic), state.changes_folder),
    )
    named = ", ".join(f"{name} AS (TABLE {register(spark, table, folder)})" for name, table, folder in tables)
    _, own = catalogue_table(tables[0][1])
    sql = _sql(state.declared, state.opened().live.columns.names, _order(state.declared), "", "`")
    spark.sql(f"CREATE SCHEMA IF NOT EXISTS {FRESH_SCHEMA}")
    spark.sql(f"CREATE OR REPLACE VIEW {FRESH_SCHEMA}.`{own}` AS WITH {named}, {sql.removeprefix('WITH ')}")
    return f"{FRESH_SCHEMA}.{own}" if own[0].isalpha() else f"{FRESH_SCHEMA}.`{own}`"


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
                "from deltalake import DeltaTable",
                f"window = {window!r}",
                f"history = pl.scan_delta(DeltaTable({folder.uri!r}))",
                "is_valid = (pl.col('valid_from') <= window) & (pl.col('valid_to').is_null() | (pl.col('valid_to') > window))",
                "rows = history.filter(is_valid & ~pl.col('deleted'))",
                "print(rows.head(5).collect())",
            )
        ),
        "duckdb": "\n".join(
            (
                "import duckdb",
                "from deltalake import DeltaTable",
                f"window = {window!r}",
                f"history = DeltaTable({folder.uri!r}).to_pyarrow_dataset()",
                f'rows = duckdb.sql("FROM history").filter(f"{condition}")',
                "print(rows.limit(5))",
            )
        ),
    }


def _order(declared: StateDeclaration) -> tuple[str, ...]:
    return (*(() if declared.version is None else (declared.version,)), *_ORDER)


def _truncates_in_polars(order: Sequence[str]) -> tuple[str, ...]:
    """Return code that takes the truncates, which have no key, out of `pending`, and makes `is_after`: a condition for the
    rows after the last one."""
    return (
        "no_key = pl.col(key[0]).is_null()",
        f"order = {list(order)!r}",
        "truncates = pl.concat([rows.filter(no_key).select(order) for rows in (pending, pl.scan_delta(dead))])",
        "last = truncates.sort(order).tail(1).collect().rows()",
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


def _sql(declared: StateDeclaration, columns: Sequence[str], order: Sequence[str], since: str, quote: str) -> str:
    def named(name: str) -> str:
        return quote + name.replace(quote, quote * 2) + quote

    taken, rank = {name.lower() for name in columns}, "place"
    while rank in taken:
        rank += "_"
    names = ", ".join(map(named, columns))
    held = {*declared.key, "window", *_ORDER, "kafka_timestamp"}
    dead = ", ".join(named(name) if name in held else f"NULL AS {named(name)}" for name in columns)
    direction = "DESC" if declared.keep == "last" else "ASC"
    by = ", ".join(f"{named(name)} {direction}" for name in order)
    key = ", ".join(map(named, declared.key))
    held_key = " AND ".join(f"pending.{name} = held.{name}" for name in map(named, declared.key))
    pending = f"EXISTS (SELECT 1 FROM pending WHERE {held_key})"  # noqa: S608  as below
    is_since, no_key = f"{named('window')} >= '{since}'", f"{named(declared.key[0])} IS NULL"
    is_pending = f"{is_since} AND NOT {no_key}" if declared.has_truncates else is_since
    rows = f"""SELECT {names} FROM live AS held WHERE NOT {pending}
UNION ALL SELECT {names} FROM (
  SELECT *, row_number() OVER (PARTITION BY {key} ORDER BY {by}) AS {rank} FROM (
    SELECT {names}, false AS deleted FROM live AS held WHERE {pending}
    UNION ALL SELECT {dead}, true AS deleted FROM dead AS held WHERE {pending}
    UNION ALL SELECT {names}, deleted FROM pending
  ) AS candidates
) AS placed WHERE {rank} = 1 AND NOT deleted"""  # noqa: S608  the names are the table's columns, and quoted
    tables = f"pending AS (SELECT {names}, deleted FROM changes WHERE {is_pending})"  # noqa: S608  as above
    if not declared.has_truncates:
        return f"WITH {tables}\n{rows}"
    places, before = ", ".join(map(named, order)), "false"
    for name in map(named, reversed(order)):
        before = f"(found.{name} < last.{name} OR (found.{name} = last.{name} AND {before}))"
    # A truncate has no key, and the newest one that is folded is among the deleted keys.
    tables += f""",
truncates AS (
  SELECT {places} FROM changes WHERE {is_since} AND {no_key} UNION ALL SELECT {places} FROM dead WHERE {no_key}
)"""  # noqa: S608  as above
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
    return f"""WITH {tables}
SELECT {names} FROM (
{rows}
) AS found WHERE NOT EXISTS (SELECT 1 FROM truncates AS last WHERE {before})"""  # noqa: S608  as above


def _quoted(sql: str) -> str:
    return '"""\n' + sql.replace("\\", "\\\\").replace('"""', '\\"\\"\\"') + '\n"""'
