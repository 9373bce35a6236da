"""Python values of Arrow columns, as far as Python can represent them: its dates end with the year 9999."""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

_PER_DAY: Final = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896
"""First and last day of the years 1 to 9999, in days since 1970."""


def python_values(column: pa.Array) -> list[Any]:
    """Return values like `to_pylist`, but Arrow's numbers for dates and timestamps outside the years 1 to 9999.

    In structs and lists, all dates and timestamps are numbers if any is outside.
    """
    if not _is_far(column):
        return list(column.to_pylist())
    numbers = column.cast(_in_numbers(column.type))
    if pa.types.is_nested(column.type):
        return list(numbers.to_pylist())
    near = _near(numbers, column.type)
    times = pc.if_else(near, column, pa.scalar(None, column.type)).to_pylist()
    return [number if time is None else time for time, number in zip(times, numbers.to_pylist(), strict=True)]


def _is_far(column: pa.Array) -> bool:
    """Return true if a date or a timestamp in it, at any depth, is outside."""
    kind = column.type
    if pa.types.is_map(kind):
        entries = slice(column.offsets[0].as_py(), column.offsets[-1].as_py())
        return _is_far(column.items[entries]) if len(column) else False
    if pa.types.is_struct(kind) or pa.types.is_list(kind):
        children = column.flatten() if pa.types.is_struct(kind) else [column.flatten()]
        return any(_is_far(child) for child in children)
    if not _is_time(kind):
        return False
    return bool(pc.any(pc.invert(_near(column.cast(_in_numbers(kind)), kind))).as_py())


def _near(numbers: pa.Array, kind: pa.DataType) -> pa.BooleanArray:
    each = 1 if pa.types.is_date32(kind) else _PER_DAY["ms" if pa.types.is_date64(kind) else kind.unit]
    first, behind = (pa.scalar(day * each, numbers.type) for day in (_FIRST_DAY, _LAST_DAY + 1))
    return pc.and_(pc.greater_equal(numbers, first), pc.less(numbers, behind))


def _in_numbers(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_in_numbers(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_in_numbers(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, kind.item_field.with_type(_in_numbers(kind.item_type)))
    if not _is_time(kind):
        return kind
    return pa.int32() if pa.types.is_date32(kind) else pa.int64()


def _is_time(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind) or pa.types.is_date(kind))
