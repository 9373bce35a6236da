"""The data files of one version of a table that may have rows with some values, so that a reader does not open the others.

A file is left out only if the bounds of a column show that it has none of the values. Bounds are taken from the table's log or, for
files without bounds there, from their Parquet footers. A file without bounds may have any value.
"""

from __future__ import annotations

import json
import random
import re
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final, Literal
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from platform_assets.errors import PlatformError
from platform_assets.lake import column_bounds
from platform_assets.lake.location import Folder
from platform_assets.lake.remembered import Remembered
from platform_assets.model.logs import logger

_log = logger(__name__)

Function = Literal["same", "date", "second", "minute", "hour", "day"]
"""A function of a column that never decreases as the value grows: the value itself, its date, or a time truncated to a unit."""

_UNITS: Final = {"second": 1, "minute": 60, "hour": 3_600, "day": 86_400}
_TRUNCATED_TEXT: Final = 32
"""From this length on, a text in the log may be the beginning of a longer one."""
_LOG_PRECISION: Final = timedelta(milliseconds=1)
"""Writers cut off the microseconds of times in the log, also of upper bounds."""
_ANY_ZONE: Final = timedelta(days=2)
"""More than the time zone of a session can shift the beginning of a day."""
_MOST_FOOTERS: Final = 512
_READERS: Final = 8
_BYTES_A_FILE: Final = 512
_SPECIAL: Final = re.compile(r"[{}\[\]*?\\]")


@dataclass(frozen=True, slots=True)
class Bounds:
    """The smallest and the largest value of a column in a file, both inclusive, and True in `has_null` if it may have nulls."""

    low: Any
    high: Any
    has_null: bool


_footers: Remembered[tuple[Folder, str, str], Bounds] = Remembered(8 << 20)


@dataclass(frozen=True, slots=True)
class Wanted:
    """The values that a function of a column is to have: `values`, in ascending order and without nulls, and null if `has_null`."""

    column: str
    function: Function
    values: tuple[Any, ...]
    has_null: bool

    @classmethod
    def of(cls, column: str, function: Function, values: Iterable[Any]) -> Wanted | None:
        """Return the values of which some may be null; None if values of their type cannot be compared with bounds."""
        given = list(values)
        held = [value for value in given if value is not None]
        kinds = {type(value) for value in held}
        if len(kinds) > 1 or not kinds <= {int, str, date, datetime}:
            return None
        if any(isinstance(value, datetime) and value.tzinfo is None for value in held):
            return None
        # Python compares times in one zone by their clocks, which repeat an hour in autumn.
        held = [value.astimezone(UTC) if isinstance(value, datetime) else value for value in held]
        return cls(column, function, tuple(sorted(set(held))), len(held) < len(given))

    def may_be_in(self, bounds: Bounds | None, *, is_utc: bool) -> bool:
        """Return True if a file with these bounds of the column may have one of the values. `is_utc` is true if dates and truncated
        times are those in UTC."""
        if bounds is None or (self.has_null and bounds.has_null):
            return True
        shift = timedelta() if is_utc or self.function == "same" else _ANY_ZONE
        try:
            # Computed also if only null is wanted, because a text that is no date gives null without being null.
            low, high = _image(self.function, bounds.low, -shift), _image(self.function, bounds.high, shift)
            at = bisect_left(self.values, low)
            return at < len(self.values) and bool(self.values[at] <= high)
        except (TypeError, OverflowError):
            # The column has another type than the function expects, or its times are at the end of the calendar.
            return True


def _image(function: Function, value: Any, shift: timedelta) -> Any:
    """Return the function's value, shifted before and after."""
    if function == "same":
        return value
    if isinstance(value, datetime) and value.tzinfo is not None:
        value = value.astimezone(UTC)
    elif isinstance(value, datetime) or not isinstance(value, date) or function != "date":
        raise TypeError
    moved = value + shift
    if function == "date":
        return (moved.date() if isinstance(moved, datetime) else moved) + shift
    unit = _UNITS[function]
    since = timedelta(days=moved.toordinal(), hours=moved.hour, minutes=moved.minute, seconds=moved.second)
    rest = timedelta(seconds=int(since.total_seconds()) % unit, microseconds=moved.microsecond)
    return moved - rest + shift


@dataclass(frozen=True, slots=True)
class PinnedFiles:
    """Data files of a version of a table, whose rows are those of the version.

    `rows_of` maps the paths below the table's folder, not percent-encoded, to the numbers of rows, or to None if the log does not have
    them. `schema` has the columns as JSON in Delta's form.
    """

    rows_of: Mapping[str, int | None]
    schema: str

    @property
    def rows(self) -> int | None:
        """Number of rows in all files; None if it is not known."""
        return None if None in self.rows_of.values() else sum(rows or 0 for rows in self.rows_of.values())

    def without(self, others: PinnedFiles) -> PinnedFiles:
        """Return the files that are not among `others`."""
        return replace(self, rows_of={path: rows for path, rows in self.rows_of.items() if path not in others.rows_of})

    def some(self, number: int, seed: str) -> PinnedFiles:
        """Return up to `number` files that `seed` selects."""
        chosen = random.Random(seed).sample(sorted(self.rows_of), min(number, len(self.rows_of)))
        return replace(self, rows_of={path: self.rows_of[path] for path in chosen})


def with_values(folder: Folder, version: int, wanted: Sequence[Wanted], *, is_utc: bool) -> PinnedFiles | None:
    """Return the files that may have rows with these values, in all columns at once.

    None if the log no longer has the version; if the files alone do not determine the rows, because the table is partitioned, or
    needs more of a reader than the first version of Delta's protocol; or if Spark would read another file than a path names, or
    none. Raises the errors of `Folder.delta_if_kept`.
    """
    handle = folder.delta_if_kept(version)
    if handle is None:
        return None
    with folder.reading():
        if handle.protocol().min_reader_version > 1 or handle.metadata().partition_columns:
            return None
        actions = pa.table(handle.get_add_actions(flatten=True))
        # The order of a field's metadata differs each time.
        schema = json.dumps(json.loads(handle.schema().to_json()), sort_keys=True)
    paths = [unquote(path) for path in actions["path"].to_pylist()]
    if _SPECIAL.search(str(folder)) or any(map(_is_unusual, paths)):
        return None
    kept = list(range(len(paths)))
    names = _by_lower_case(pa.schema(handle.schema().to_arrow()))
    for each in wanted:
        name = names.get(each.column.lower())
        if name is None:
            continue
        bounds = _in_log(actions, name)
        kept = [at for at in kept if each.may_be_in(bounds[at], is_utc=is_utc)]
        unknown = [at for at in kept if bounds[at] is None]
        if 0 < len(unknown) <= _MOST_FOOTERS:
            found = dict(zip(unknown, _in_footers(folder, [paths[at] for at in unknown], name), strict=True))
            kept = [at for at in kept if at not in found or each.may_be_in(found[at], is_utc=is_utc)]
    rows = actions["num_records"].to_pylist()
    return PinnedFiles({paths[at]: rows[at] for at in kept}, schema)


def _is_unusual(path: str) -> bool:
    """Return True if Spark takes a path for a pattern, or leaves out the file as hidden, or if the path is not below the table."""
    hidden = path.rpartition("/")[2].startswith(("_", "."))
    return bool(_SPECIAL.search(path)) or hidden or path.startswith(("/", "file:")) or "://" in path


def _by_lower_case(columns: pa.Schema) -> Mapping[str, str]:
    """Return each name by its lower-case form, except names that differ only in case, and those that could be a field of a struct."""
    lower = [name.lower() for name in columns.names]
    return {name.lower(): name for name in columns.names if lower.count(name.lower()) == 1 and "." not in name}


def _in_log(actions: pa.Table, name: str) -> list[Bounds | None]:
    parts = [f"{part}.{name}" for part in ("min", "max", "null_count")]
    if any(actions.column_names.count(part) != 1 for part in parts):
        return [None] * actions.num_rows
    try:
        columns = [actions[part].to_pylist() for part in parts]
    except (ValueError, OverflowError):
        # Python has no dates after the year 9999.
        return [None] * actions.num_rows
    return [_bounds(*row, precision=_LOG_PRECISION) for row in zip(*columns, strict=True)]


def _bounds(low: Any, high: Any, nulls: int | None, *, precision: timedelta) -> Bounds | None:
    if low is None or high is None:
        return None
    if isinstance(high, str) and len(high) >= _TRUNCATED_TEXT and precision:
        return None
    if isinstance(high, datetime):
        try:
            high += precision
        except OverflowError:
            return None
    return Bounds(low, high, nulls != 0)


def _in_footers(folder: Folder, paths: Sequence[str], name: str) -> list[Bounds | None]:
    with ThreadPoolExecutor(_READERS) as pool:
        return list(pool.map(lambda path: _in_footer(folder, path, name), paths))


def _in_footer(folder: Folder, path: str, name: str) -> Bounds | None:
    known = _footers.get((folder, path, name), "")
    if known is not None:
        return known
    try:
        with folder.reading(), folder.open(path) as opened:
            footer = pq.ParquetFile(opened).metadata
            found = column_bounds.of(footer, name)
            kind = footer.schema.to_arrow_schema().field(name).type if found is not None else None
    except (PlatformError, pa.ArrowException) as e:
        _log.info("data file %s of %s has no bounds that can be read: %s", path, folder.name, e)
        return None
    if found is None or kind is None:
        return None
    low, high = (_value(kind, value) for value in found[:2])
    bounds = _bounds(low, high, found[2], precision=timedelta())
    if bounds is not None:
        _footers.keep((folder, path, name), "", bounds, _BYTES_A_FILE)
    return bounds


def _value(kind: pa.DataType, value: Any) -> Any:
    """Return a bound in the form of Delta's log as a value of its type."""
    if pa.types.is_timestamp(kind):
        return datetime.fromisoformat(value)
    return date.fromisoformat(value) if pa.types.is_date(kind) else value
