"""The groups of a derived table that changes of its inputs touch: changed windows, and changed rows of state tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from platform_assets.engines.deriving import AllRowsNeededError, DerivingEngine, PinnedInput
from platform_assets.errors import DerivedQueryError
from platform_assets.lake.changed_windows import ChangedWindows
from platform_assets.lake.pinned_files import Function, Wanted
from platform_assets.model.derived import WINDOW, DerivedRef
from platform_assets.model.logs import logger
from platform_assets.windows.derive import expressions, joins
from platform_assets.windows.derive.query import Query, quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_log = logger(__name__)

MOST_GROUPS: Final = 100_000
"""Maximum number of groups that a run replaces. If more have changed, it computes all rows."""
_MANY_ROWS: Final = 200_000
_LARGE_SHARE: Final = 0.2
"""If more rows than both are in changed files, comparing two versions takes longer than computing all rows."""


def by_windows(
    engine: DerivingEngine, changes: ChangedWindows, driving: PinnedInput, *, is_by_window: bool
) -> pa.Table:
    """Return the groups of the changed windows' rows, before and after the change. Raises AllRowsNeededError."""
    keys = list(changes.keys)
    if is_by_window:
        return pa.table({WINDOW: pa.array(keys, pa.string())})
    if changes.since is None:
        raise AssertionError("unreachable: changes since no version have no keys")
    old = PinnedInput(driving.name, driving.folder, changes.since)
    return _found(engine, old, lambda: [of_windows(engine, each, keys) for each in (old, driving)])


def of_windows(engine: DerivingEngine, table: PinnedInput, keys: Sequence[str]) -> DataFrame:
    """Return the rows of these windows of a table of windows."""
    from pyspark.sql import functions as F

    return engine.read(table, _in_windows(keys)).where(F.col(WINDOW).isin(list(keys)))


def records(engine: DerivingEngine, table: PinnedInput, keys: Sequence[str]) -> int | None:
    """Return the number of rows in the files that may have rows of these windows, by the log; None if it is not known."""
    return engine.records(table, _in_windows(keys))


def _in_windows(keys: Sequence[str]) -> tuple[Wanted, ...]:
    given = Wanted.of(WINDOW, "same", keys)
    return () if given is None else (given,)


def wanted(by: Mapping[str, str], groups: pa.Table) -> tuple[Wanted, ...]:
    """Return the values of columns that rows of these groups can have, as far as the expressions in `by` show them."""
    found = list[Wanted]()
    for (name, text), values in zip(by.items(), groups.columns, strict=True):
        known = expressions.never_decreasing(expressions.by_expression(name, text))
        found += [] if known is None else _values(*known, values)
    return tuple(found)


def wanted_columns(groups: pa.Table) -> tuple[Wanted, ...]:
    """Return the values of the group columns themselves, which the derived table has, for rows of these groups."""
    return tuple(
        each
        for name, values in zip(groups.column_names, groups.columns, strict=True)
        for each in _values(name, "same", values)
    )


def _values(column: str, function: Function, values: pa.ChunkedArray) -> list[Wanted]:
    try:
        each = Wanted.of(column, function, values.to_pylist())
    except (ValueError, OverflowError):
        # Python has no dates after the year 9999.
        return []
    return [] if each is None else [each]


def by_own_rows(engine: DerivingEngine, query: Query, old: PinnedInput, new: PinnedInput) -> pa.Table:
    """Return the groups of the rows of the driving table that differ between two versions. Raises AllRowsNeededError."""
    if isinstance(query.driving, DerivedRef):
        rows, share = engine.changed_share(old, new)
        if rows > _MANY_ROWS and share > _LARGE_SHARE:
            raise AllRowsNeededError(f"most files of {new.name}, which is derived, changed")
    return _found(engine, old, lambda: [_changed(engine, query, old, new)])


def by_joined_rows(
    engine: DerivingEngine, query: Query, pairs: Sequence[joins.Pairs], driving: PinnedInput, old: PinnedInput, new: PinnedInput
) -> pa.Table:  # fmt: skip
    """Return the groups of the driving table's rows that a keyed join connects with a row of the joined table that differs
    between two versions. `pairs` has the pairs of each such join. Raises AllRowsNeededError."""

    def frames() -> list[DataFrame]:
        changed, all_rows = _changed(engine, query, old, new), engine.read(driving)
        for each in pairs:
            _check_columns(driving.name, [mine for mine, _ in each], all_rows.columns)
            _check_columns(new.name, [other for _, other in each], changed.columns)
        return [engine.joined_with(all_rows, changed, each) for each in pairs]

    return _found(engine, old, frames)


def together(found: Sequence[pa.Table]) -> pa.Table | None:
    """Return the distinct groups of several tables of groups; None if there are no tables. Raises AllRowsNeededError."""
    if len(found) < 2:
        return found[0] if found else None
    schema = pa.schema([field.with_nullable(True) for field in found[0].schema])
    groups = pa.concat_tables([each.cast(schema) for each in found])
    first: dict[str, int] = {}
    for number, row in enumerate(groups.to_pylist()):
        first.setdefault(repr(row), number)
    if len(first) > MOST_GROUPS:
        raise _too_many()
    return groups.take(pa.array(first.values(), pa.int64()))


def _changed(engine: DerivingEngine, query: Query, old: PinnedInput, new: PinnedInput) -> DataFrame:
    """Return the rows of a table that only one of two versions has, with the columns that the query may read."""
    texts = (query.text, *query.by.values())
    if joins.is_named("_metadata", *texts):
        raise AllRowsNeededError(f"{new.name} changed, and the query reads _metadata")
    before, now = (
        frame.select(*(quoted(name) for name in frame.columns if query.reads_all or joins.is_named(name, *texts)))
        for frame in engine.read_both(old, new)
    )
    types = [{field.name: field.dataType.simpleString() for field in frame.schema} for frame in (before, now)]
    if types[0] != types[1]:
        raise AllRowsNeededError(f"columns of {new.name} changed")
    if any("map<" in kind for kind in types[1].values()):
        raise AllRowsNeededError(f"{new.name} changed, and the rows of a map column cannot be compared")
    # Rows are compared by position, and a table that started over may have another order.
    columns = [quoted(name) for name in before.columns]
    # The comparison takes -0.0 for 0.0, but a query may show the difference.
    floats = [quoted(name) for name, kind in types[1].items() if "double" in kind or "float" in kind]
    texts_of_floats = [f"CAST({name} AS STRING) AS `__text_{number}`" for number, name in enumerate(floats)]
    return engine.differing(*(frame.selectExpr(*columns, *texts_of_floats) for frame in (before, now)))


def _check_columns(table: str, wanted: Sequence[str], columns: Sequence[str]) -> None:
    known = {name.lower() for name in columns}
    if missing := [name for name in wanted if name.lower() not in known]:
        raise AllRowsNeededError(f"a joined table changed, and {missing[0]} is not a column of {table}")


def _found(engine: DerivingEngine, old: PinnedInput, frames: Callable[[], Sequence[DataFrame]]) -> pa.Table:
    try:
        with engine.failures():
            found = engine.groups_of(frames(), MOST_GROUPS)
    except DerivedQueryError as e:
        # The new version is read again with all rows, so only the old version's rows are given up.
        _log.warning("version %d of %s cannot be read any more: %s", old.version, old.name, e)
        raise AllRowsNeededError(f"version {old.version} of {old.name} can no longer be read") from e
    if found is None:
        raise _too_many()
    try:
        found.to_pylist()
    except UnicodeDecodeError as e:
        raise AllRowsNeededError("a changed group has a text that is not valid UTF-8") from e
    except (ValueError, OverflowError) as e:
        raise AllRowsNeededError("a changed group has a date outside the years 1 to 9999") from e
    return found


def _too_many() -> AllRowsNeededError:
    return AllRowsNeededError(f"more than {MOST_GROUPS:,} groups changed")
