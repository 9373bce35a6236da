"""Values of rows as JSON.

A kernel joins the columns of each row. It writes whole numbers, times and strings without escapes itself; Arrow gives it the
texts of other columns. Nested columns go through Python. Integers keep all their digits, decimals are strings unless declared
as numbers, timestamps are ISO 8601 in UTC with microseconds, and binary columns are base64.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from math import isfinite
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from platform_assets.errors import ConfigurationError, UnpublishableRowError
from platform_assets.lake.parquet import python_values
from platform_assets.model.publishing import PublishDeclaration
from platform_assets.windows.publish.datums import (
    END_OF_DAYS,
    END_OF_TIMES,
    FIRST_DAY,
    FIRST_TIME,
    items,
    longs,
    validity,
    whole,
)

_NEEDS_ESCAPES: Final = r'["\\\x00-\x1f]'
_NO_BYTES: Final = np.zeros(1, np.uint8)
_NO_LONGS: Final = np.zeros(1, np.int64)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROS: Final = {"s": 1_000_000, "ms": 1_000, "us": 1}
_FAR_TIME: Final = "a time outside the years 1 to 9999"
_FAR_DATE: Final = "a date outside the years 1 to 9999"


@dataclass(frozen=True, slots=True)
class _Column:
    """A column as `join_columns` takes it: its form, marks of its values that are not null, and its numbers or texts."""

    form: int
    valid: npt.NDArray[np.bool_]
    numbers: npt.NDArray[np.int64] | None = None
    texts: pa.LargeStringArray | None = None


@dataclass(frozen=True, slots=True)
class JsonTexts:
    """Writes values in JSON, as a declaration says. With `past`, rows may have been published by an earlier version, which
    refused less: nothing is refused, and dates outside the years 1 to 9999 have that version's texts."""

    declaration: PublishDeclaration
    past: bool = False

    def check(self, column: pa.ChunkedArray, name: str) -> None:
        """Raise UnpublishableRowError if a value of a column, at any depth, cannot be published."""
        kind = column.type
        if pa.types.is_floating(kind):
            self._finite(column, name)
        elif pa.types.is_timestamp(kind):
            self._in_years(column, name)
        elif pa.types.is_date(kind):
            self._near_dates(column, name)
        elif pa.types.is_nested(kind):
            for place, part in (each for chunk in column.chunks for each in _parts_of(chunk.drop_null(), name)):
                self.check(pa.chunked_array([part]), place)

    def objects(self, rows: pa.Table, names: Sequence[str]) -> pa.LargeBinaryArray:
        """Return these columns of each row as a JSON object. Raises UnpublishableRowError."""
        if not names:
            return pa.array([b"{}"] * rows.num_rows, pa.large_binary())
        openings = ["," + json.dumps(name, ensure_ascii=False) + ":" for name in names]
        openings[0] = "{" + openings[0][1:]
        return _joined([self._column(rows[name], name) for name in names], [*openings, "}"], rows.num_rows)

    def plain(self, column: pa.ChunkedArray, name: str) -> pa.LargeBinaryArray:
        """Return each value of a column that has no strings as in JSON, without quotes around times, dates and decimals. Nulls stay
        nulls. Raises UnpublishableRowError."""
        found = self._column(column, name)
        texts = _joined([found], ["", ""], len(column))
        if not (pa.types.is_integer(column.type) or pa.types.is_boolean(column.type)):
            texts = pc.utf8_trim(texts.cast(pa.large_string()), characters='"').cast(pa.large_binary())
        return texts if column.null_count == 0 else pc.if_else(column.is_valid().combine_chunks(), texts, None)

    def _column(self, column: pa.ChunkedArray, name: str) -> _Column:
        # Compiled code, which definitions do not need.
        from platform_assets.kernels import published

        kind = column.type
        if pa.types.is_signed_integer(kind):
            values = whole(column)
            return _Column(published.NUMBER, validity(values), longs(values))
        if pa.types.is_timestamp(kind) and kind.tz in ("UTC", "+00:00"):
            values = whole(self._in_years(column, name))
            return _Column(published.TIME, validity(values), longs(values))
        if pa.types.is_string(kind) or pa.types.is_large_string(kind):
            texts = column.cast(pa.large_string()).combine_chunks()
            if not _may_need_escapes(texts):
                return _Column(published.QUOTED, validity(texts), texts=texts)
            found = _escaped(texts)
        else:
            found = self._literals(column, name).cast(pa.large_string()).combine_chunks()
        return _Column(published.TEXT, validity(found), texts=found)

    def _literals(self, column: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
        """Return each value of a column as JSON. Nulls may stay nulls."""
        kind = column.type
        if pa.types.is_boolean(kind):
            return pc.if_else(column, "true", "false")
        if pa.types.is_integer(kind):
            return column.cast(pa.string())
        if pa.types.is_floating(kind):
            return self._finite(column, name).cast(pa.string())
        if pa.types.is_decimal(kind):
            return self._decimals(column)
        if pa.types.is_date(kind):
            column = self._near_dates(column, name)
            return pc.binary_join_element_wise('"', column.cast(pa.string()), '"', "")
        values = python_values(column.combine_chunks())
        plain = [None if v is None else _compact(self._plain(v, kind, name)) for v in values]
        return pa.chunked_array([pa.array(plain, pa.large_string())])

    def _finite(self, column: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
        finite = pc.fill_null(pc.is_finite(column), True)
        if pc.all(finite, min_count=0).as_py():
            return column
        self._refuse(name)
        return pc.if_else(finite, column, pa.scalar(None, column.type))

    def _decimals(self, column: pa.ChunkedArray) -> pa.ChunkedArray:
        texts = column.cast(pa.string())
        if pc.any(pc.match_substring(texts, "E")).as_py():
            # Arrow writes some small numbers with an exponent.
            plain = [None if v is None else format(v, "f") for v in column.to_pylist()]
            texts = pa.chunked_array([pa.array(plain, pa.string())])
        if self.declaration.decimals == "number":
            return texts
        return pc.binary_join_element_wise('"', texts, '"', "")

    def _in_years(self, column: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
        numbers = column.cast(pa.timestamp("us", column.type.tz), safe=False).cast(pa.int64())
        inside = pc.and_(pc.greater_equal(numbers, FIRST_TIME), pc.less(numbers, END_OF_TIMES))
        if pc.all(pc.fill_null(inside, True), min_count=0).as_py():
            return column
        self._refuse(name, _FAR_TIME)
        return pc.if_else(inside, column, pa.scalar(None, column.type))

    def _near_dates(self, column: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
        days = column.cast(pa.date32()).cast(pa.int32())
        inside = pc.and_(pc.greater_equal(days, FIRST_DAY), pc.less(days, END_OF_DAYS))
        if pc.all(pc.fill_null(inside, True), min_count=0).as_py():
            return column
        if self.past and self.declaration.non_finite == "refuse":
            return column
        self._refuse(name, _FAR_DATE)
        return pc.if_else(inside, column, pa.scalar(None, column.type))

    def _refuse(self, name: str, what: str = "a number that is not finite (NaN or infinity)") -> None:
        """Raise UnpublishableRowError, unless null is declared instead."""
        if self.declaration.non_finite == "refuse" and not self.past:
            raise UnpublishableRowError(self.declaration.topic, self.declaration.table.name, name, what)

    def _plain(self, value: Any, kind: pa.DataType, name: str) -> Any:
        """Return a nested value with only what JSON has."""
        if value is None:
            return None
        # Before numbers: times and dates that Python does not have are numbers, and with them their neighbours.
        if pa.types.is_timestamp(kind) and kind.tz is not None:
            return self._time(value, kind, name)
        if pa.types.is_date(kind):
            return self._date(value, kind, name)
        if isinstance(value, str | bool) or pa.types.is_integer(kind):
            return value
        if pa.types.is_struct(kind):
            return {f.name: self._plain(value[f.name], f.type, f"{name}.{f.name}") for f in kind}
        if pa.types.is_map(kind):
            keys = [(self._plain(k, kind.key_type, name), v) for k, v in value]
            return {k if isinstance(k, str) else _compact(k): self._plain(v, kind.item_type, name) for k, v in keys}
        if pa.types.is_list(kind) or pa.types.is_large_list(kind):
            return [self._plain(v, kind.value_type, name) for v in value]
        if isinstance(value, float):
            if isfinite(value):
                # The shortest text that a reader of this width turns into the same number.
                return _Number(str(pa.scalar(value, kind).cast(pa.string())))
            self._refuse(name)
            return None
        if isinstance(value, Decimal):
            text = format(value, "f")
            return _Number(text) if self.declaration.decimals == "number" else text
        if isinstance(value, bytes):
            return b64encode(value).decode()
        raise ConfigurationError(f"column {name!r} has type {kind}, which cannot be published as JSON")

    def _time(self, value: datetime | int, kind: pa.DataType, name: str) -> str | None:
        if isinstance(value, int):
            micros = value // 1000 if kind.unit == "ns" else value * _MICROS[kind.unit]
            if not FIRST_TIME <= micros < END_OF_TIMES:
                self._refuse(name, _FAR_TIME)
                return None
            value = _EPOCH + timedelta(microseconds=micros)
        return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ").rjust(27, "0")

    def _date(self, value: date | int, kind: pa.DataType, name: str) -> str | None:
        if isinstance(value, int):
            days = value if pa.types.is_date32(kind) else value // 86_400_000
            if not FIRST_DAY <= days < END_OF_DAYS:
                self._refuse(name, _FAR_DATE)
                return None
            value = _EPOCH.date() + timedelta(days=days)
        return value.isoformat()


def _parts_of(column: pa.Array, name: str) -> Iterator[tuple[str, pa.Array]]:
    """Yield the members, or keys and values, of a column without nulls, each with its place."""
    kind = column.type
    if pa.types.is_struct(kind):
        yield from ((f"{name}.{member.name}", column.field(n)) for n, member in enumerate(kind))
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_map(kind):
        found = items(column)
        yield from ((name, part) for part in (found.keys, found.values) if part is not None)


class _Number(str):
    """A number's own text, which JSON shows without quotes."""

    __slots__ = ()


def _compact(value: Any) -> str:
    if isinstance(value, _Number):
        return str(value)
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(k, ensure_ascii=False)}:{_compact(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_compact, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


def _joined(columns: Sequence[_Column], openings: Sequence[str], rows: int) -> pa.LargeBinaryArray:
    """Return the columns joined row by row, each after its opening, and the last opening at the end."""
    from platform_assets.kernels import published

    if not rows:
        return pa.array([], pa.large_binary())
    texts = [column.texts for column in columns if column.texts is not None]
    numbers = [column.numbers for column in columns if column.numbers is not None]
    data, bounds, size = _NO_BYTES, _NO_LONGS, 0
    if texts:
        together = pa.concat_arrays(texts)
        _, edges, content = together.buffers()
        bounds = np.frombuffer(edges, np.int64, together.offset + len(together) + 1)[together.offset :]
        size = int(bounds[-1] - bounds[0])
        data = np.frombuffer(content, np.uint8) if content is not None and content.size else _NO_BYTES
    marks = [opening.encode() for opening in openings]
    opening_bounds = np.cumsum([0, *map(len, marks)], dtype=np.int64)
    forms = np.array([column.form for column in columns], np.int64)
    size += rows * (int(opening_bounds[-1]) + sum(published.MOST[column.form] for column in columns))
    into, ends = np.empty(max(size, 1), np.uint8), np.empty(rows + 1, np.int64)
    published.join_columns(
        forms,
        np.concatenate([column.valid for column in columns]).view(np.uint8),
        np.concatenate(numbers) if numbers else _NO_LONGS,
        data,
        bounds,
        rows,
        np.frombuffer(b"".join(marks), np.uint8) if opening_bounds[-1] else _NO_BYTES,
        opening_bounds,
        into,
        ends,
    )
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), rows, [None, pa.py_buffer(ends), pa.py_buffer(into)])


def _escaped(texts: pa.LargeStringArray) -> pa.LargeStringArray:
    """Return strings in quotes, escaped where necessary. Nulls stay nulls."""
    mark = pa.scalar('"', texts.type)
    quoted = pc.binary_join_element_wise(mark, texts, mark, pa.scalar("", texts.type))
    needs = pc.fill_null(pc.match_substring_regex(texts, _NEEDS_ESCAPES), False)
    escaped = [json.dumps(v, ensure_ascii=False) for v in texts.filter(needs).to_pylist()]
    return pc.replace_with_mask(quoted, needs, pa.array(escaped, quoted.type))


def _may_need_escapes(texts: pa.LargeStringArray) -> bool:
    """Return False only if no text has a character that JSON escapes. This is much faster than a regular expression."""
    _, offsets, data = texts.buffers()
    if data is None or not len(texts):
        return False
    bounds = np.frombuffer(offsets, np.int64, texts.offset + len(texts) + 1)
    found = np.frombuffer(data, np.uint8)[bounds[texts.offset] : bounds[-1]]
    return bool(((found < 0x20) | (found == ord('"')) | (found == ord("\\"))).any())
