"""Expectations: the vectorized search for failing values, and the check that an expectation fits its column. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from platform_assets.decoding.schema import type_name
from platform_assets.errors import ConfigurationError
from platform_assets.model.expectations import Expectation, Value

Failing = Callable[[pa.Array], pa.BooleanArray]
"""Function that marks the failing values in a column. The marks have no nulls."""

_WHOLE: Final = (pa.int8(), pa.int16(), pa.int32(), pa.int64())


def check(expectation: Expectation, columns: pa.Schema) -> None:
    """Raise ConfigurationError if `expectation` cannot apply to rows with these columns."""
    for name in expectation.columns:
        kind = columns.field(name).type
        if expectation.kind == "unique" and _has_list(kind):
            raise ConfigurationError(
                f"unique: column {name!r} is {type_name(kind)}, but keys with arrays cannot be compared: list only columns "
                "without arrays"
            )
    if expectation.kind != "unique":
        failing(expectation, columns.field(expectation.columns[0]).type)


def failing(expectation: Expectation, kind: pa.DataType) -> Failing:
    """Return the function that finds failing values in a column of type `kind`, for any expectation except `unique`.

    Raises ConfigurationError if the type does not support the expectation, or if an argument is not a value of the
    type.
    """
    e, column = expectation, expectation.columns[0]
    if e.kind == "not_null":
        return lambda values: pc.is_null(values)
    if e.kind == "in":
        if kind not in (pa.string(), pa.bool_()) and not _is_exact(kind):
            raise _wrong_kind(e, kind, "text, whole numbers, decimals, dates, timestamps or booleans")
        wanted = pa.array([argument(value, kind, column).as_py() for value in e.values], kind)
        return lambda values: pc.and_(values.is_valid(), pc.invert(pc.is_in(values, value_set=wanted)))
    if e.kind == "range":
        if not _is_exact(kind) and not pa.types.is_floating(kind):
            raise _wrong_kind(e, kind, "numbers, dates or timestamps")
        least, most = (None if value is None else argument(value, kind, column) for value in (e.least, e.most))
        if least is not None and most is not None and least.as_py() > most.as_py():
            raise ConfigurationError(
                f"range: min {e.least!r} of column {column!r} is above its max {e.most!r}: swap or correct the two bounds"
            )
        return lambda values: _outside(values, least, most)
    if e.kind == "pattern":
        if kind != pa.string():
            raise _wrong_kind(e, kind, "text")
        whole = rf"\A(?:{e.pattern})\z"
        for regex in (e.pattern, whole):
            try:
                pc.match_substring_regex(pa.array([""]), regex)
            except pa.ArrowInvalid as error:
                raise ConfigurationError(
                    f"pattern: {e.pattern!r} of column {column!r} is not a valid RE2 regular expression ({error}): correct "
                    "it; RE2 supports neither look-around nor backreferences"
                ) from error
        return lambda values: pc.invert(pc.fill_null(pc.match_substring_regex(values, whole), True))
    raise AssertionError(f"unreachable: {e.kind} applies to whole windows")


def argument(given: Value, kind: pa.DataType, column: str) -> pa.Scalar:
    """Convert a YAML value to a column's type. Raises ConfigurationError if the conversion is not possible or would
    need rounding."""
    wanted = f"column {column!r} is {type_name(kind)}"
    refused = ConfigurationError(f"{given!r} is not a valid value, because {wanted}: give {_example(kind)}")
    number = isinstance(given, int | float) and not isinstance(given, bool)
    try:
        if kind == pa.string() or kind == pa.bool_():
            if not isinstance(given, str if kind == pa.string() else bool):
                raise refused
            return pa.scalar(given, kind)
        if kind in _WHOLE:
            if not isinstance(given, int) or isinstance(given, bool):
                raise refused
            return pa.scalar(given, kind)
        if pa.types.is_floating(kind):
            if not number or not math.isfinite(given):  # type: ignore[arg-type]
                raise refused
            return pa.scalar(float(given), kind)
        if pa.types.is_decimal(kind):
            if not number and not isinstance(given, str):
                raise refused
            return pa.scalar(Decimal(str(given)), kind)
        if not isinstance(given, str):
            raise refused
        if pa.types.is_date(kind):
            return pa.scalar(date.fromisoformat(given), kind)
        time = datetime.fromisoformat(given)
        return pa.scalar(time if time.tzinfo else time.replace(tzinfo=UTC), kind)
    except (pa.ArrowException, ValueError, OverflowError, InvalidOperation) as error:
        raise refused from error


def _outside(values: pa.Array, least: pa.Scalar | None, most: pa.Scalar | None) -> pa.BooleanArray:
    """Mark values outside `[least, most]`. NaN counts as outside every range, and null counts as inside every range."""
    inside = pa.repeat(True, len(values))
    if least is not None:
        inside = pc.and_kleene(inside, pc.greater_equal(values, least))
    if most is not None:
        inside = pc.and_kleene(inside, pc.less_equal(values, most))
    return pc.invert(pc.fill_null(inside, True))


def _is_exact(kind: pa.DataType) -> bool:
    """Return True if values of the type have an order and if equal values are always written alike."""
    return (
        kind in _WHOLE
        or bool(pa.types.is_decimal(kind))
        or bool(pa.types.is_date(kind))
        or bool(pa.types.is_timestamp(kind))
    )


def _has_list(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        return any(_has_list(kind.field(index).type) for index in range(kind.num_fields))
    return bool(pa.types.is_list(kind) or pa.types.is_map(kind))


def _wrong_kind(e: Expectation, kind: pa.DataType, of: str) -> ConfigurationError:
    return ConfigurationError(
        f"{e.kind}: column {e.columns[0]!r} is {type_name(kind)}, but {e.kind!r} needs {of}: remove the expectation, or change the "
        "column's type"
    )


def _example(kind: pa.DataType) -> str:
    if kind == pa.string():
        return "text, in quotes if it looks like a number, a date or a boolean"
    if kind == pa.bool_():
        return "true or false"
    if pa.types.is_decimal(kind):
        return "a number with no more digits than the column has"
    if kind in _WHOLE:
        return "a whole number that the column can hold"
    if pa.types.is_floating(kind):
        return "a finite number"
    return "a date such as 2026-01-31" if pa.types.is_date(kind) else "a time such as 2026-01-31T14:00Z"
