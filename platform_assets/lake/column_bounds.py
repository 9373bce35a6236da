"""The bounds of a declared column in a file, taken from the file's footer, in the form of Delta's log.

Readers skip files by these bounds, so a bound that some reader would misread is omitted. These are bounds of fractions,
because NaN has no place between them; of decimals, because JSON readers round them; and of long strings, because
writers truncate them.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

_LONGEST_TEXT: Final = 64
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_MICROS: Final = -62_135_596_800_000_000
_LAST_MICROS: Final = 253_402_300_799_999_000
"""The years 1 to 9999, less a millisecond. Readers differ in how they interpret other years in text form."""
_DAY_MICROS: Final = 86_400_000_000


def can_cluster(kind: pa.DataType) -> bool:
    """Return True if files can be sorted by columns of this type."""
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_string(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_date32(kind)
        or pa.types.is_timestamp(kind)
        or pa.types.is_decimal(kind)
    )


def of(footer: pq.FileMetaData, name: str) -> tuple[Any, Any, int] | None:
    """Return the smallest and the largest value, and the number of nulls; None if they are unknown or cannot be
    expressed."""
    schema = footer.schema.to_arrow_schema()
    if name not in schema.names:
        return None
    indexes = [i for i in range(footer.num_columns) if footer.schema.column(i).path == name]
    if len(indexes) != 1:
        # A struct, an array or a map has other paths, and a name with a dot may be that of a field, too.
        return None
    index = indexes[0]
    found = [footer.row_group(g).column(index).statistics for g in range(footer.num_row_groups)]
    if not found or any(s is None or not s.has_null_count for s in found):
        return None
    nulls = sum(s.null_count for s in found)
    # A row group without any value has no bounds.
    held = [s for s in found if s.has_min_max]
    if not held or any(not s.has_min_max and s.num_values for s in found):
        return None
    kind = schema.field(name).type
    if pa.types.is_timestamp(kind) or pa.types.is_date32(kind):
        return _with_nulls(_moments(kind, min(s.min_raw for s in held), max(s.max_raw for s in held)), nulls)
    low, high = min(s.min for s in held), max(s.max for s in held)
    if pa.types.is_integer(kind):
        return low, high, nulls
    if pa.types.is_string(kind) and max(len(low), len(high)) <= _LONGEST_TEXT:
        return low, high, nulls
    return None


def _with_nulls(bounds: tuple[str, str] | None, nulls: int) -> tuple[Any, Any, int] | None:
    return None if bounds is None else (*bounds, nulls)


def _moments(kind: pa.DataType, low: int, high: int) -> tuple[str, str] | None:
    """Return times with millisecond precision, as in Delta's log, rounded so that they remain valid bounds; or dates."""
    if pa.types.is_date32(kind):
        low, high = low * _DAY_MICROS, high * _DAY_MICROS
    elif kind.unit != "us":
        return None
    if low < _FIRST_MICROS or high > _LAST_MICROS:
        return None
    first, last = (_EPOCH + timedelta(milliseconds=millis) for millis in (low // 1000, -(-high // 1000)))
    if pa.types.is_date32(kind):
        return _date(first), _date(last)
    zone = "Z" if kind.tz is not None else ""
    return f"{_date(first)}T{_time(first)}{zone}", f"{_date(last)}T{_time(last)}{zone}"


def _date(moment: datetime) -> str:
    return f"{moment.year:04d}-{moment.month:02d}-{moment.day:02d}"


def _time(moment: datetime) -> str:
    return f"{moment:%H:%M:%S}.{moment.microsecond // 1000:03d}"
