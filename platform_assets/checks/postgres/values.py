"""PostgreSQL's text of a value, compared with the value in a decoded row. Pure.

The conversions share nothing with the decoder: they start from the text that PostgreSQL itself prints. A pair of types
without a conversion is not compared, and the comparison names it. docs/debezium.md lists the pairs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any, Final

import numpy as np
import pyarrow as pa

_TEXTS: Final = frozenset(
    [
        "text",
        "varchar",
        "bpchar",
        "name",
        "citext",
        "uuid",
        "json",
        "jsonb",
        "xml",
        "inet",
        "cidr",
        "macaddr",
        "macaddr8",
    ]
)
_INTEGERS: Final = frozenset(["int2", "int4", "int8", "oid"])
_DECIMALS: Final = {
    "nan": "NaN", "positive_infinity": "Infinity", "negative_infinity": "-Infinity",
}  # fmt: skip
"""Texts of the connector for decimals that are no numbers, in lower case, and PostgreSQL's texts."""
_NOT_A_NUMBER: Final = "NaN"


@dataclass(frozen=True, slots=True)
class DatabaseType:
    """A type in PostgreSQL: its name in `pg_type` and the letter of its kind (`e` is an enum, `r` a range). A domain
    counts as its base type. Of an array, `element` is the type of the elements. If it is generated, PostgreSQL computes the
    column from others."""

    name: str
    kind: str = "b"
    element: DatabaseType | None = None
    is_generated: bool = False

    @property
    def is_text(self) -> bool:
        """True if the connector writes PostgreSQL's text of a value."""
        # The connector writes a range of timestamptz in the time zone of its own machine.
        return self.name in _TEXTS or (self.kind in ("e", "r") and self.name != "tstzrange")

    def __str__(self) -> str:
        return self.name if self.element is None else f"{self.element}[]"


@dataclass(frozen=True, slots=True)
class Conversion:
    """Functions that give the same result for a text of PostgreSQL and for the value of a row, if they are equal."""

    of_text: Callable[[str], object]
    of_row: Callable[[Any], object]

    def same(self, text: str | None, value: Any) -> bool:
        """Return True if the database's value, given as PostgreSQL's text, equals the row's value. None is null."""
        if text is None or value is None:
            return text is None and value is None
        return self.of_text(text) == self.of_row(value)


def conversion(declared: DatabaseType, column: pa.DataType) -> Conversion | None:
    """Return how values of the two types are compared; None if this pair of types is not compared."""
    if declared.element is not None:
        # PostgreSQL's text of an array of money depends on the server's locale.
        is_known = pa.types.is_list(column) and declared.element.name != "money"
        of_element = conversion(declared.element, column.value_type) if is_known else None
        return None if of_element is None else _of_list(of_element)
    name, found = declared.name, _TEMPORAL.get(declared.name)
    if declared.is_text and pa.types.is_string(column):
        return Conversion(str, str)
    if name in ("bool", "bit") and pa.types.is_boolean(column):
        return Conversion(lambda text: text in ("t", "1"), bool)
    if name in _INTEGERS and pa.types.is_integer(column):
        return Conversion(int, int)
    if name == "float4" and pa.types.is_float32(column):
        return Conversion(lambda text: _number(float(np.float32(text))), _number)
    if name in ("float8", "numeric") and pa.types.is_float64(column):
        return Conversion(lambda text: _number(float(text)), _number)
    if name in ("numeric", "money") and pa.types.is_decimal(column):
        return Conversion(_decimal, _decimal)
    if name == "numeric" and pa.types.is_string(column):
        return Conversion(_decimal, _decimal)
    if name == "bytea" and pa.types.is_binary(column):
        return Conversion(lambda text: bytes.fromhex(text.removeprefix("\\x")), bytes)
    return None if found is None else found(column)


def key_text(declared: DatabaseType, column: pa.DataType) -> Callable[[Any], str] | None:
    """Return the function that gives PostgreSQL's text of a row's value in a key; None if a key cannot have this pair of
    types. Values are equal if and only if their texts are equal."""
    name = declared.name
    if (declared.is_text and pa.types.is_string(column)) or (name in _INTEGERS and pa.types.is_integer(column)):
        return str
    if name == "bool" and pa.types.is_boolean(column):
        return lambda value: "t" if value else "f"
    if name == "date" and pa.types.is_date(column):
        return date.isoformat
    if name == "bytea" and pa.types.is_binary(column):
        return lambda value: "\\x" + value.hex()
    return None


def elements(text: str) -> list[Any]:
    """Parse PostgreSQL's text of an array: a list of texts, of None for null, and of lists if the array has several
    dimensions. Raises ValueError."""
    start = text.index("{")
    found, end = _parsed(text, start)
    if end != len(text):
        raise ValueError("text after the end of an array")
    return found


def _parsed(text: str, start: int) -> tuple[list[Any], int]:
    found, at = list[Any](), start + 1
    while text[at] != "}":
        if text[at] == "{":
            inner, at = _parsed(text, at)
            found.append(inner)
        elif text[at] == '"':
            letters, at = list[str](), at + 1
            while text[at] != '"':
                at += text[at] == "\\"
                letters.append(text[at])
                at += 1
            found.append("".join(letters))
            at += 1
        else:
            end = min(e for e in (text.find(",", at), text.find("}", at)) if e >= 0)
            found.append(None if text[at:end] == "NULL" else text[at:end])
            at = end
        at += text[at] == ","
    return found, at + 1


def _of_list(element: Conversion) -> Conversion:
    def of(each: Callable[[Any], object], values: list[Any]) -> list[object]:
        # An array of arrays never equals a list of values.
        return [None if v is None else v if isinstance(v, list) else each(v) for v in values]

    return Conversion(lambda text: of(element.of_text, elements(text)), lambda values: of(element.of_row, values))


def _number(value: float) -> float | str:
    return _NOT_A_NUMBER if value != value else value


def _decimal(value: str | Decimal) -> Decimal | str:
    try:
        found = Decimal(_DECIMALS.get(value.lower(), value) if isinstance(value, str) else value)
    except InvalidOperation:
        return f"not a number: {value}"
    return _NOT_A_NUMBER if found.is_nan() else found


def _moment(value: str | datetime) -> str:
    """Return a time in UTC, or without a zone, as PostgreSQL prints it, without a zone."""
    if isinstance(value, datetime):
        value = value.replace(tzinfo=None).isoformat(" ")
    text = value.replace("T", " ", 1).removesuffix("Z").removesuffix("+00")
    return text.rstrip("0").removesuffix(".") if "." in text else text


def _of_moment(column: pa.DataType) -> Conversion | None:
    known = pa.types.is_timestamp(column) or pa.types.is_string(column)
    return Conversion(_moment, _moment) if known else None


def _of_date(column: pa.DataType) -> Conversion | None:
    if pa.types.is_date(column):
        return Conversion(str, date.isoformat)
    return Conversion(str, lambda value: value.removesuffix("Z")) if pa.types.is_string(column) else None


def _of_time(column: pa.DataType) -> Conversion | None:
    """The connector writes a time of day in microseconds, or in milliseconds, which need an INT."""
    if not (pa.types.is_int64(column) or pa.types.is_int32(column)):
        return None
    units = 1_000_000 if pa.types.is_int64(column) else 1_000

    def of_text(text: str) -> object:
        hours, minutes, seconds = text.split(":")
        return (int(hours) * 3600 + int(minutes) * 60 + Decimal(seconds)) * units

    return Conversion(of_text, int)


_TEMPORAL: Final[dict[str, Callable[[pa.DataType], Conversion | None]]] = {
    "date": _of_date, "timestamp": _of_moment, "timestamptz": _of_moment, "time": _of_time,
}  # fmt: skip
