"""Proof of a derived table: groups, or the whole table, are computed again from the pinned inputs and compared by digest."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from platform_assets.decoding import expectations
from platform_assets.engines.deriving import DerivingEngine, PinnedInput, quoted
from platform_assets.errors import ConfigurationError, DerivedQueryError
from platform_assets.lake import delta_log, derived_table
from platform_assets.lake.derived_table import Made
from platform_assets.lake.location import Lake
from platform_assets.model.derived import DerivedDeclaration
from platform_assets.model.expectations import Expectation
from platform_assets.windows.derive.deriving import Updater
from platform_assets.windows.derive.query import Input

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

EQUALS_REBUILD: Final = "equals_rebuild"
"""Name of the check that computes rows again."""
QUERY_CHANGED: Final = "`sql` or `by` changed after the newest run, so its rows are those of another query"
MOST_REBUILT: int = 1_000_000
"""Maximum number of rows of the driving table of totals, of which each run computes all again. The totals of a few groups alone cannot
be compared, because a row of the table counts rows of all groups."""
SAMPLED: int = 10
"""Number of groups that each run compares."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Result of computing rows again: the number of `groups`, or None for all of them, and the number of `rows`.

    `columns` names the columns that differ. If the rows could not be computed again, `unknown` says why. If `is_rebuilt` is false,
    the rows were only compared with what the newest run recorded.
    """

    groups: int | None
    rows: int
    columns: tuple[str, ...] = ()
    unknown: str | None = None
    is_rebuilt: bool = True

    @property
    def other(self) -> str:
        """The rows with which the table's rows were compared, as a part of a sentence."""
        if self.is_rebuilt:
            return "the query's result over the recorded versions of its inputs"
        return (
            "those that the newest run recorded; they were not computed again, because they are totals of too many rows"
        )

    @property
    def is_equal(self) -> bool:
        """True if the rows are proved to be equal."""
        return not self.columns and self.unknown is None


def compare(
    lake: Lake,
    declaration: DerivedDeclaration,
    spark: Callable[[], SparkSession],
    made: Made,
    *,
    seed: str | None,
    replaced: pa.Table | None = None,
) -> Comparison:
    """Compute rows again from the inputs of the derivation `made`, and compare them with the table's rows.

    `seed` selects a few groups, up to half of them from `replaced`, which a run just computed, and the others from the groups of the
    derived table and of a few files of the driving table; without it, all rows are compared. Totals are compared as a whole, or, with
    `seed` and a large driving table, with what was recorded. Raises DerivedQueryError if the table itself cannot be read.
    """
    if made.derivation.declaration != declaration.digest:
        return Comparison(0, 0, unknown=QUERY_CHANGED)
    engine = DerivingEngine(spark, declaration.table.name, declaration.by)
    updater = Updater(lake, declaration, spark)
    pinned = updater.pinned_at(made.derivation)
    groups: pa.Table | None = None
    with engine.failures():
        table = engine.read(PinnedInput(declaration.table.name, lake.table(declaration.table), made.version))
        own = updater.engine_of(table)
    if declaration.totals is not None and seed is not None:
        if _is_large(updater, pinned):
            with engine.failures():
                rows = own.digest(table)
            differ = () if rows == made.derivation.whole else tuple(table.columns)
            return Comparison(None, rows.rows, differ, is_rebuilt=False)
        seed = None
    if seed is not None:
        try:
            with engine.failures():
                driving = engine.read_some(pinned[updater.query.driving], seed)
                groups = _sampled(engine.sample(table, driving, SAMPLED, seed), replaced, seed)
        except DerivedQueryError as e:
            return Comparison(0, 0, unknown=e.reason)
    with engine.failures():
        mine = table if groups is None else engine.of_groups(table, groups)
        number = None if groups is None else groups.num_rows
        held = engine.digest(mine)

    def differing(frame: Any) -> tuple[str, ...]:
        if engine.digest(frame.select(*map(quoted, mine.columns))) == held:
            return ()
        again, before = own.column_digests(frame), own.column_digests(mine)
        return tuple(name for name in before if again.get(name) != before[name]) or tuple(before)

    try:
        return Comparison(number, held.rows, updater.rows(pinned, groups, differing))
    except DerivedQueryError as e:
        return Comparison(number, held.rows, unknown=e.reason)


def _is_large(updater: Updater, pinned: Mapping[Input, PinnedInput]) -> bool:
    """Return True if totals have too many rows to compute all of them after each run. Of a version that the log no longer has, no
    row can be computed, so this is False, and the computation says why."""
    driving = pinned[updater.query.driving]
    return driving.folder.delta_if_kept(driving.version) is not None and updater.records(pinned) > MOST_REBUILT


def _sampled(any_groups: pa.Table, replaced: pa.Table | None, seed: str) -> pa.Table:
    """Return distinct groups, half of them from those that were just replaced, if there are so many."""
    if replaced is None or not replaced.num_rows:
        return any_groups
    chosen = sorted(random.Random(seed).sample(range(replaced.num_rows), min(SAMPLED // 2, replaced.num_rows)))
    own = replaced.take(chosen).cast(any_groups.schema)
    both = pa.concat_tables([own, any_groups.slice(0, SAMPLED - own.num_rows)])
    try:
        return both.group_by(both.column_names).aggregate([])
    except pa.ArrowNotImplementedError:
        # Structs and arrays. A group may then be listed twice, which selects the same rows.
        return both


@dataclass(frozen=True, slots=True)
class Expected:
    """Result of an expectation on all rows of a derived table. `problem` is set if it cannot apply to the table's columns."""

    expectation: Expectation
    rows: int
    failing: int
    problem: str | None = None


def expected(lake: Lake, declaration: DerivedDeclaration, spark: Callable[[], SparkSession]) -> list[Expected]:
    """Evaluate the expectations on all rows of the newest version. Memory is bounded by the size of a row group."""
    folder = lake.table(declaration.table)
    handle = folder.delta()
    columns = pa.schema(handle.schema().to_arrow())
    files = derived_table.files_of(folder, handle)
    rows = sum(count or 0 for _, count in files.values())
    found = []
    for each in declaration.expect:
        problem = _problem(each, columns)
        if problem is not None:
            found.append(Expected(each, rows, 0, problem))
            continue
        if each.kind == "unique":
            found.append(Expected(each, rows, _doubled(folder, handle.version(), each, declaration, spark)))
            continue
        fails = expectations.failing(each, columns.field(each.columns[0]).type)
        failing = 0
        for path in files:
            for batch in derived_table.batches(folder, path, list(each.columns)):
                failing += fails(batch.column(0).cast(columns.field(each.columns[0]).type)).true_count
        found.append(Expected(each, rows, failing))
    return found


def _problem(expectation: Expectation, columns: pa.Schema) -> str | None:
    missing = [name for name in expectation.columns if name not in columns.names]
    if missing:
        return f"the table has no column {missing[0]!r}: use one of {', '.join(columns.names)}"
    try:
        expectations.check(expectation, columns)
    except ConfigurationError as e:
        return str(e)
    return None


def _doubled(
    folder: Any, version: int, each: Expectation, declaration: DerivedDeclaration, spark: Callable[[], SparkSession]
) -> int:
    from pyspark.sql import functions as F

    engine = DerivingEngine(spark, declaration.table.name, declaration.by)
    with engine.failures():
        frame = engine.read(PinnedInput(declaration.table.name, folder, version))
        # Without dots in their names, which `dropna` and `groupBy` would take for fields.
        names = [f"c{number}" for number in range(len(each.columns))]
        rows = frame.select(*(F.col(quoted(c)).alias(name) for c, name in zip(each.columns, names, strict=True)))
        known = rows.dropna() if len(names) == 1 else rows
        counted = known.groupBy(*names).count().where(F.col("count") > 1)
        return int(counted.agg(F.sum(F.col("count") - 1)).collect()[0][0] or 0)


def newest(lake: Lake, declaration: DerivedDeclaration) -> Made | None:
    """Return the newest derivation of a table; None if there is none."""
    folder = lake.table(declaration.table)
    return derived_table.newest(folder)[0] if delta_log.exists(folder) else None
