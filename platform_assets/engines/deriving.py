"""Spark's part of derived tables: it finds groups, computes their rows, and writes files. It never commits.

Groups reach Spark as a DataFrame and are joined, never written into the text of a query. Names of views are made here.
"""

from __future__ import annotations

import json
import re
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import TYPE_CHECKING, Any, Final, TypeGuard
from urllib.parse import unquote

import pyarrow as pa

from platform_assets.engines.connector.measure import row_hash
from platform_assets.engines.shared.session import configure_codegen, without_token
from platform_assets.errors import ConfigurationError, DerivedQueryError
from platform_assets.lake import pinned_files
from platform_assets.lake.derived_table import InputVersion, RowsDigest
from platform_assets.lake.location import Folder
from platform_assets.lake.pinned_files import PinnedFiles, Wanted
from platform_assets.model.derived import WINDOW

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.connect.session import SparkSession

_FIXED: Final = (
    "boolean", "byte", "short", "integer", "long", "float", "double", "string", "binary", "date", "timestamp",
)  # fmt: skip
"""Types, in addition to decimals, arrays, maps and structs, that all readers of the lake support."""
_BAD_NAME: Final = re.compile(r"[ ,;{}()\n\t=]")
_EXPRESSION: Final = "__by_"
_GROUP: Final = "__group_"
_FILE: Final = "__file"
_HASH: Final = "__hash"
_MOST_FILES: Final = 200
"""Maximum number of files that Spark reads by their names. Of more, it takes as long to look at each of them as to read the log."""
_SOME_FILES: Final = 4
_VIEW: Final = re.compile(r"`?__derived_[0-9a-f]{32}_(\d+)`?")


class AllRowsNeededError(Exception):
    """The rows of groups cannot be replaced separately, for the reason in the text, so all rows have to be computed."""


@dataclass(frozen=True, slots=True)
class PinnedInput:
    """An input of a query at one version. `name` is its name in messages. `identity` has the table's id and the commit's digest as
    they were before any row was read, or None if they are not needed."""

    name: str
    folder: Folder
    version: int
    identity: InputVersion | None = None


class DerivingEngine:
    """Queries for one derived table, named `table` in messages, in the session of this process."""

    def __init__(self, spark: Callable[[], SparkSession], table: str, by: Mapping[str, str]) -> None:
        self._session, self._table, self._by = spark, table, dict(by)

    @property
    def _spark(self) -> SparkSession:
        return self._session()

    def prepare(self, records: int) -> None:
        """Choose for this process's session how Spark runs the queries over about so many records; see `configure_codegen`."""
        with self.failures():
            configure_codegen(self._spark, records)

    def read(self, table: PinnedInput, wanted: Sequence[Wanted] = ()) -> DataFrame:
        """Return the rows of a table at its version; with `wanted`, at least those with these values, from few files."""
        files = self._files(table, wanted)
        return self._of_files(table, files) if _are_few(files) else self.read_all(table)

    def read_all(self, table: PinnedInput) -> DataFrame:
        """Return the rows of a table at its version, read by Delta's own reader."""
        frame: Any = self._spark.read.format("delta").option("versionAsOf", table.version)
        return frame.load(table.folder.spark_path)

    def read_both(self, old: PinnedInput, new: PinnedInput) -> tuple[DataFrame, DataFrame]:
        """Return the rows of two versions of a table, without those in files that both versions have, if the files are few."""
        before, now = self._files(old, (), new), self._files(new, (), old)
        if _are_few(before) and _are_few(now):
            return self._of_files(old, before), self._of_files(new, now)
        return self.read_all(old), self.read_all(new)

    @contextmanager
    def read_changed(
        self,
        old: PinnedInput,
        new: PinnedInput,
        wanted: Sequence[Wanted],
        groups: pa.Table,
        is_read: Callable[[str], bool],
    ) -> Iterator[tuple[DataFrame, DataFrame]]:
        """Give the driving table's rows of these groups at two versions. Rows in files that both versions have are read only once,
        and only the columns for which `is_read` is true."""
        before, now = self._files(old, wanted), self._files(new, wanted)
        if not (_are_few(before) and _are_few(now)) or before.schema != now.schema:
            yield self.among(self.read(old, wanted), groups), self.among(self.read(new, wanted), groups)
            return

        def rows(table: PinnedInput, files: PinnedFiles) -> DataFrame:
            frame = self._of_files(table, files)
            # Without any column, there would be no rows.
            names = [name for name in frame.columns if is_read(name)] or frame.columns[:1]
            return self.among(frame.select(*map(quoted, names)), groups)

        with self.cached(rows(new, now.without(now.without(before)))) as stay:
            yield stay.unionAll(rows(old, before.without(now))), stay.unionAll(rows(new, now.without(before)))

    @contextmanager
    def cached(self, frame: DataFrame) -> Iterator[DataFrame]:
        """Give a frame whose rows Spark keeps after their first use, until the end of the block."""
        kept = frame.persist()
        try:
            yield kept
        finally:
            with self.failures():
                kept.unpersist()

    def changed_share(self, old: PinnedInput, new: PinnedInput) -> tuple[int, float]:
        """Return the number of rows of `new` in files that `old` does not have, and their share of all rows. If the log does not show
        them, all rows count."""
        now, own = self._files(new, ()), self._files(new, (), old)
        if now is None or own is None or now.rows is None or own.rows is None:
            return sys.maxsize, 1.0
        return own.rows, own.rows / max(now.rows, 1)

    def records(self, table: PinnedInput, wanted: Sequence[Wanted]) -> int | None:
        """Return the number of rows in the files that `read` opens, by the log; None if it is not known."""
        files = self._files(table, wanted)
        return files.rows if _are_few(files) else None

    def read_some(self, table: PinnedInput, seed: str) -> DataFrame:
        """Return the rows of a few files of a table at its version, which `seed` selects."""
        files = self._files(table, ())
        return self.read_all(table) if files is None else self._of_files(table, files.some(_SOME_FILES, seed))

    def _files(
        self, table: PinnedInput, wanted: Sequence[Wanted], without: PinnedInput | None = None
    ) -> PinnedFiles | None:
        """Return the files that may have these values, except the files of `without`; None if Delta's own reader has to find them, or
        to say why it cannot.

        From a list of files, Spark reads neither the table's log, which takes it some jobs for each version, nor any other file.
        """
        found = pinned_files.with_values(table.folder, table.version, wanted, is_utc=self._is_utc)
        if found is None or without is None:
            return found
        other = pinned_files.with_values(without.folder, without.version, (), is_utc=self._is_utc)
        return None if other is None else found.without(other)

    def _of_files(self, table: PinnedInput, files: PinnedFiles) -> DataFrame:
        from pyspark.sql.types import StructType

        schema = _without_metadata(StructType.fromJson(json.loads(files.schema)))
        if not files.rows_of:
            return self._spark.createDataFrame([], schema)
        frame: Any = self._spark.read.schema(schema)
        return frame.parquet(*(f"{table.folder.spark_path}/{path}" for path in files.rows_of))

    @cached_property
    def _is_utc(self) -> bool:
        with self.failures():
            return self._spark.conf.get("spark.sql.session.timeZone") in ("UTC", "Etc/UTC", "Z", "GMT")

    def local(self, rows: pa.Table) -> DataFrame:
        """Return a frame with these rows."""
        frame: Any = self._spark.createDataFrame(rows)
        return frame

    def empty(self, schema: pa.Schema) -> DataFrame:
        """Return a frame without rows that has these columns, with which a query is analyzed."""
        from pyspark.sql.pandas.types import from_arrow_schema

        frame: Any = self._spark.createDataFrame([], from_arrow_schema(schema))
        return frame

    @contextmanager
    def failures(self, names: Sequence[str] = ()) -> Iterator[None]:
        """Translate Spark's errors inside the block. `names` are the names of the inputs, in the order of their views."""
        from grpc import RpcError
        from pyspark.errors import PySparkException

        try:
            yield
        except (PySparkException, RpcError) as e:
            raise DerivedQueryError(self._table, shown(str(e), names)) from e

    @contextmanager
    def result(self, text: Callable[[Sequence[str]], str], inputs: Sequence[DataFrame]) -> Iterator[DataFrame]:
        """Give the result of a query while the views of its inputs exist. `text` makes the query from the views' names."""
        views = [f"__derived_{uuid.uuid4().hex}_{number}" for number in range(len(inputs))]
        for view, frame in zip(views, inputs, strict=True):
            frame.createOrReplaceTempView(view)
        try:
            yield self._spark.sql(text(views))
        finally:
            for view in views:
                self._spark.catalog.dropTempView(view)

    def groups_of(self, frames: Sequence[DataFrame], most: int) -> pa.Table | None:
        """Return the distinct groups of rows of the driving table; None if there are more than `most`."""
        chosen = [frame.selectExpr(*(f"({e}) AS {quoted(n)}" for n, e in self._by.items())) for frame in frames]
        found = reduce(lambda one, other: one.union(other), chosen).distinct().limit(most + 1).toArrow()
        return None if found.num_rows > most else found

    def differing(self, one: DataFrame, other: DataFrame) -> DataFrame:
        """Return the rows that only one of two frames has, or has more often."""
        return one.exceptAll(other).unionAll(other.exceptAll(one))

    def joined_with(self, frame: DataFrame, others: DataFrame, pairs: Sequence[tuple[str, str]]) -> DataFrame:
        """Return the rows of `frame` that equal one of the rows `others` in all pairs of columns, by the rules of SQL's `<=>`."""
        from pyspark.sql import functions as F

        names = [f"{_GROUP}{i}" for i in range(len(pairs))]
        values = others.select(*(F.col(quoted(o)).alias(n) for (_, o), n in zip(pairs, names, strict=True))).distinct()
        equal = [F.col(quoted(mine)).eqNullSafe(F.col(n)) for (mine, _), n in zip(pairs, names, strict=True)]
        return frame.join(values, reduce(lambda a, b: a & b, equal), "left_semi")

    def among(self, frame: DataFrame, groups: pa.Table, *, other: bool = False) -> DataFrame:
        """Return the driving table's rows of these groups; of all other groups if `other`."""
        columns = [f"{_EXPRESSION}{i}" for i in range(len(self._by))]
        if not other and list(self._by.values()) == [WINDOW] and not groups.column(0).null_count:
            # Spark then opens only files with these windows, which it does not do for a join.
            frame = frame.where(frame[WINDOW].isin(groups.column(0).to_pylist()))
        expressions = frame.selectExpr("*", *(f"({e}) AS {c}" for c, e in zip(columns, self._by.values(), strict=True)))
        return self._join(expressions, groups, columns, "left_anti" if other else "left_semi").drop(*columns)

    def of_groups(self, frame: DataFrame, groups: pa.Table, *, other: bool = False) -> DataFrame:
        """Return the derived table's rows of these groups; of all other groups if `other`."""
        return self._join(frame, groups, list(self._by), "left_anti" if other else "left_semi")

    def _join(self, frame: DataFrame, groups: pa.Table, columns: Sequence[str], how: str) -> DataFrame:
        from pyspark.sql import functions as F

        named = self._spark.createDataFrame(groups.rename_columns([f"{_GROUP}{i}" for i in range(groups.num_columns)]))
        pairs = [F.col(quoted(c)).eqNullSafe(F.col(f"{_GROUP}{i}")) for i, c in enumerate(columns)]
        return frame.join(F.broadcast(named), reduce(lambda a, b: a & b, pairs), how)

    def sample(self, table: DataFrame, driving: DataFrame, number: int, seed: str) -> pa.Table:
        """Return up to `number` groups of the derived table or of the driving table, which `seed` selects."""
        from pyspark.sql import functions as F

        names = [F.col(quoted(name)) for name in self._by]
        computed = driving.selectExpr(*(f"({e}) AS {quoted(n)}" for n, e in self._by.items()))
        order = F.xxhash64(F.lit(seed), *names)
        found = table.select(*names).union(computed).distinct().orderBy(order, *names).limit(number)
        return found.toArrow()

    def placed(self, table: PinnedInput, wanted: Sequence[Wanted], groups: pa.Table) -> DataFrame | None:
        """Return the derived table's rows of these groups, each with the address of its file; None if the table has no files, because
        rows without files have no addresses. `wanted` has the values of the groups."""
        from pyspark.sql import functions as F

        if self.records(table, wanted) == 0:
            return None
        return self.of_groups(self.read(table, wanted).select("*", F.col("_metadata.file_path").alias(_FILE)), groups)

    def without_places(self, placed: DataFrame) -> DataFrame:
        """Return the rows of `placed` with the table's columns only."""
        return placed.drop(_FILE)

    def holding(
        self, table: PinnedInput, placed: DataFrame | None, lacking: DataFrame | None
    ) -> tuple[dict[str, str], RowsDigest, bool]:
        """Return the derived table's files with the rows of `placed`: Spark's address of each, by its path in the table; the digest of
        these rows; and True if `lacking` has no rows. One query finds all of this.
        """
        from pyspark.sql import functions as F

        queries: list[DataFrame] = []
        names = (_FILE, "row_high", "row_low", "rows")
        if placed is not None:
            hashed = placed.select(_FILE, self._hash_of(self.without_places(placed)))
            queries.append(hashed.groupBy(_FILE).agg(*_digest_sums()).select(*names))
        if lacking is not None:
            queries.append(lacking.limit(1).select(F.lit(None).cast("string"), *(F.lit(0) for _ in names[1:])))
        rows = reduce(lambda one, other: one.union(other), queries).toDF(*names).collect() if queries else []
        files = [row for row in rows if row[_FILE] is not None]
        digest = reduce(lambda one, other: one + other, map(_digest_of, files), RowsDigest())
        return {_below(row[_FILE], table.folder): row[_FILE] for row in files}, digest, len(files) == len(rows)

    def addresses(self, frame: DataFrame, folder: Folder, paths: Sequence[str]) -> dict[str, str]:
        """Return Spark's address of each of the files `paths`, which are relative to the table's folder."""
        from pyspark.sql import functions as F

        found = frame.select(F.col("_metadata.file_path")).distinct().collect()
        return {path: row[0] for row in found if (path := _below(row[0], folder)) in set(paths)}

    def kept(self, frame: DataFrame, groups: pa.Table, addresses: Sequence[str]) -> DataFrame:
        """Return the rows of other groups in the files at `addresses`."""
        from pyspark.sql import functions as F

        wanted = self._spark.createDataFrame(pa.table({_GROUP: pa.array(list(addresses), pa.string())}))
        placed = frame.withColumn(_FILE, F.col("_metadata.file_path"))
        inside = placed.join(F.broadcast(wanted), F.col(_FILE) == F.col(_GROUP), "left_semi")
        return self.of_groups(inside, groups, other=True).drop(_FILE)

    def write(self, frame: DataFrame, folder: Folder, below: str, *, moves: bool = True) -> None:
        """Write rows as Parquet files into the new folder `below` of the table. Rows of a group are near each other, unless `moves`
        is false: then rows stay in the order in which they are read, which takes less time."""
        near = frame.hint("rebalance", *self._by) if moves else frame
        writer = near.write.mode("error").option("compression", "zstd")
        writer = writer.option("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false")
        writer.parquet((folder / below).spark_path)

    def digest(self, frame: DataFrame) -> RowsDigest:
        """Return the digest of all columns of all rows."""
        return _digest_of(frame.select(self._hash_of(frame)).agg(*_digest_sums()).collect()[0])

    def digest_and_strays(self, frame: DataFrame, groups: pa.Table) -> tuple[RowsDigest, bool]:
        """Return the digest of all rows, and True if rows belong to other groups. One query finds both."""
        from pyspark.sql import functions as F

        whole = frame.select(self._hash_of(frame)).agg(F.lit(False).alias("stray"), *_digest_sums())
        other = self.of_groups(frame, groups, other=True).limit(1)
        rows = whole.union(other.select(F.lit(True), *(F.lit(0) for _ in whole.columns[1:]))).collect()
        (own,) = (row for row in rows if not row["stray"])
        return _digest_of(own), len(rows) > 1

    def _hash_of(self, frame: DataFrame) -> Column:
        return row_hash(frame, frame.columns).alias(_HASH)

    def column_digests(self, frame: DataFrame) -> dict[str, int]:
        """Return a digest of each column's values with their groups, to name the columns that differ."""
        by = list(self._by)
        sums = [s for i, name in enumerate(frame.columns) for s in _sums(f"c{i}", row_hash(frame, [*by, name]))]
        row = frame.agg(*sums).collect()[0]
        return {name: _total(row, f"c{i}") for i, name in enumerate(frame.columns)}

    def staged(self, folder: Folder, below: str, schema: Any) -> DataFrame:
        """Return the rows of the files that were written into the folder `below`."""
        frame: Any = self._spark.read.schema(schema).parquet((folder / below).spark_path)
        return frame

    def nullable_like(self, frame: DataFrame, schema: Any) -> DataFrame:
        """Return a result with the columns of the table. Raises AllRowsNeededError if the query has other columns now."""
        if self.nullable(frame).json() != _without_metadata(schema).json():
            raise AllRowsNeededError("the query has other columns now, because columns of its inputs changed")
        return frame

    def nullable(self, frame: DataFrame) -> Any:
        """Return the schema of a result in the form of a table, with all columns nullable.

        Raises ConfigurationError for a column name or a type that not all readers of the lake support.
        """
        from pyspark.sql.types import StructType

        given = frame.schema.jsonValue()
        names = [field["name"].lower() for field in given["fields"]]
        for field in given["fields"]:
            name = field["name"]
            if _BAD_NAME.search(name):
                raise ConfigurationError(f"the query's column {name!r} needs a name: write `{name} AS …`")
            if names.count(name.lower()) > 1:
                raise ConfigurationError(f"the query has two columns named {name!r}: rename or remove one of them")
            _check_type(name, field["type"])
        for by in self._by:
            if by.lower() not in names:
                raise ConfigurationError(f"the query has no column {by!r}, which `by` names: add it to SELECT")
        return StructType.fromJson(_all_nullable(given))


def _are_few(files: PinnedFiles | None) -> TypeGuard[PinnedFiles]:
    return files is not None and len(files.rows_of) <= _MOST_FILES


def _sums(name: str, hashed: Column) -> list[Column]:
    from pyspark.sql import functions as F

    return [
        F.sum(F.shiftrightunsigned(hashed, 32)).alias(f"{name}_high"),
        F.sum(hashed.bitwiseAND(F.lit(0xFFFFFFFF))).alias(f"{name}_low"),
    ]


def _digest_sums() -> list[Column]:
    from pyspark.sql import functions as F

    return [*_sums("row", F.col(_HASH)), F.count(F.lit(1)).alias("rows")]


def _digest_of(row: Any) -> RowsDigest:
    return RowsDigest(row["rows"], _total(row, "row"))


def _total(row: Any, name: str) -> int:
    return ((row[f"{name}_high"] or 0) << 32) + (row[f"{name}_low"] or 0)


def _check_type(name: str, kind: Any) -> None:
    if isinstance(kind, str):
        if kind not in _FIXED and not kind.startswith("decimal("):
            raise ConfigurationError(
                f"the query's column {name!r} has the type {kind}, which tables do not support: cast it"
            )
    elif kind["type"] == "struct":
        for field in kind["fields"]:
            _check_type(f"{name}.{field['name']}", field["type"])
    elif kind["type"] == "array":
        _check_type(name, kind["elementType"])
    elif kind["type"] == "map":
        _check_type(name, kind["keyType"])
        _check_type(name, kind["valueType"])
    else:
        raise ConfigurationError(
            f"the query's column {name!r} has the type {kind['type']}, which tables do not support: cast it"
        )


def _without_metadata(schema: Any) -> Any:
    from pyspark.sql.types import StructType

    return StructType.fromJson(_all_nullable(schema.jsonValue()))


def _all_nullable(kind: Any) -> Any:
    if isinstance(kind, dict):
        found = {key: _all_nullable(value) for key, value in kind.items()}
        for key in ("nullable", "containsNull", "valueContainsNull"):
            if key in found:
                found[key] = True
        if "metadata" in found:
            found["metadata"] = {}
        return found
    return [_all_nullable(each) for each in kind] if isinstance(kind, list) else kind


def _below(address: str, folder: Folder) -> str:
    """Return a file's path below the table's folder, from the URI that Spark shows."""
    path, root = _plain(unquote(address)), _plain(folder.spark_path)
    if not path.startswith(f"{root}/"):
        raise AssertionError(f"unreachable: {path} is not below {root}")
    return path[len(root) + 1 :]


def _plain(address: str) -> str:
    """Return an address without scheme and leading slashes."""
    return re.sub(r"^[a-z0-9]+:(?=/)", "", address).lstrip("/")


def quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def shown(text: str, names: Sequence[str]) -> str:
    """Return Spark's message on one line, without its own plan, and with the inputs' names in place of the views'."""
    lines = [line.strip() for line in without_token(text).splitlines()]
    kept: list[str] = []
    for line in lines:
        if line.startswith(("==", "JVM stacktrace", "'", "+-")):
            break
        kept += [line] if line else []

    def name(found: re.Match[str]) -> str:
        number = int(found[1])
        return names[number] if number < len(names) else found[0]

    return _VIEW.sub(name, " ".join(kept))[:600].rstrip(".")


def line_of(text: str) -> int | None:
    """Return the line of the query that Spark's message names; None if it names none."""
    found = re.search(r"line (\d+),? pos", text)
    return None if found is None else int(found[1])
