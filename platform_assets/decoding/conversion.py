"""Conversion of strings to typed values, by rules that all text formats share (described in docs/csv-dialect.md).

Kernels and Arrow convert whole columns, and leave unclear strings undecided. `Conversion.value` decides unclear strings
one at a time.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Decimal
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import pyarrow as pa

from platform_assets.decoding.decoder import DecodeFault
from platform_assets.decoding.pieces import Marks, Pieces
from platform_assets.decoding.schema import type_name
from platform_assets.decoding.times import ISO_DATE, ISO_TIME, TimeFormat, timestamps_hint
from platform_assets.errors import ConfigurationError
from platform_assets.kernels import conversion as kernels

_BOOLEANS: Final = MappingProxyType({"true": True, "false": False})
_INTEGER: Final = re.compile(r"([+-]?)0*([0-9]+)")
_NUMBER: Final = re.compile(r"([+-]?)(?=\.?[0-9])([0-9]*)(?:\.([0-9]*))?(?:[eE]([+-]?)0*([0-9]+))?")
_NOT_NUMBERS: Final = MappingProxyType(
    {
        "NaN": float("nan"),
        "Infinity": float("inf"),
        "-Infinity": float("-inf"),
        "Inf": float("inf"),
        "-Inf": float("-inf"),
    }
)
_LARGEST_FLOAT: Final = float(np.finfo(np.float32).max)
_MOST_SHOWN: Final = 60
_UNBOUNDED: Final = 1 << 40
_EPOCH: Final = date(1970, 1, 1)


@dataclass(frozen=True, slots=True)
class Conversion:
    """Conversion of the strings in one column to values of `type`. Times have the format `times`. The function
    `conversion` creates this object."""

    type: pa.DataType
    times: TimeFormat = ISO_TIME

    @property
    def name(self) -> str:
        """The type's name in Spark DDL."""
        return type_name(self.type)

    def column(self, pieces: Pieces) -> tuple[pa.Array, Marks]:
        """Return the values, and marks for the undecided values. Undecided values are null. Each piece must be UTF-8."""
        if pa.types.is_string(self.type):
            return pieces.strings(), np.zeros(len(pieces), np.bool_)
        marks = np.zeros(len(pieces), np.uint8)
        undecided = marks.view(np.bool_)
        where = pieces.data, pieces.starts, pieces.sizes
        if pa.types.is_floating(self.type):
            kernels.mark_unlike_numbers(*where, _UNBOUNDED, _UNBOUNDED, 1, marks)
            return self._floats(pieces.without(undecided), undecided)
        if pa.types.is_decimal(self.type):
            kernels.mark_unlike_numbers(*where, self.type.precision - self.type.scale, self.type.scale, 0, marks)
            return pieces.without(undecided).strings().cast(self.type), undecided
        if pa.types.is_boolean(self.type):
            flags = np.zeros(len(pieces), np.uint8)
            kernels.booleans(*where, flags, marks)
            return pa.array(flags.view(np.bool_), mask=pieces.nulls | undecided), undecided
        values = np.zeros(len(pieces), np.int64)
        if pa.types.is_date(self.type):
            kernels.times(*where, self.times.steps(), values, marks)
            values = (values // kernels.MICROSECONDS_A_DAY).astype(np.int32)
        elif pa.types.is_timestamp(self.type):
            kernels.times(*where, self.times.steps(), values, marks)
        else:
            limits = np.iinfo(self.type.to_pandas_dtype())
            kernels.integers(*where, limits.min, limits.max, values, marks)
            values = values.astype(limits.dtype)
        return pa.array(values, mask=pieces.nulls | undecided).cast(self.type), undecided

    def _floats(self, pieces: Pieces, undecided: Marks) -> tuple[pa.Array, Marks]:
        numbers = pieces.strings().cast(pa.float64()).cast(self.type)
        values = numbers.fill_null(0).to_numpy()
        undecided = undecided | np.isinf(values)
        return pa.array(values, self.type, mask=pieces.nulls | undecided), undecided

    def value(self, text: str) -> Any:
        """Convert one string to a value in pyarrow's form. Raises DecodeFault."""
        try:
            return self._value(text)
        except DecodeFault as fault:
            shown = text if len(text) <= _MOST_SHOWN else text[:_MOST_SHOWN] + "…"
            hint = timestamps_hint(self.times, text) if pa.types.is_timestamp(self.type) else ""
            raise DecodeFault(fault.reason, f"{shown!r} is not a valid {self.name}: {fault.detail}{hint}") from None

    def _value(self, text: str) -> Any:
        if pa.types.is_string(self.type):
            return text
        if pa.types.is_boolean(self.type):
            if text.lower() not in _BOOLEANS or not text.isascii():
                raise DecodeFault("wrong_type", "true or false was expected")
            return _BOOLEANS[text.lower()]
        if pa.types.is_floating(self.type):
            return self._float(text)
        if pa.types.is_decimal(self.type):
            return self._decimal(text)
        if pa.types.is_date(self.type):
            return _EPOCH + timedelta(microseconds=self.times.microseconds(text))
        if pa.types.is_timestamp(self.type):
            return self.times.microseconds(text)
        return self._integer(text)

    def _integer(self, text: str) -> int:
        found = _INTEGER.fullmatch(text)
        if found is None:
            raise DecodeFault("wrong_type", "digits were expected, with or without a sign")
        limits = np.iinfo(self.type.to_pandas_dtype())
        # Python refuses to convert thousands of digits, and a number of 20 or more digits never fits.
        value = int(found[1] + found[2]) if len(found[2]) < 20 else _UNBOUNDED << 40
        if not limits.min <= value <= limits.max:
            raise DecodeFault("out_of_range", f"a number from {limits.min} to {limits.max} was expected")
        return value

    def _float(self, text: str) -> float:
        if text in _NOT_NUMBERS:
            return _NOT_NUMBERS[text]
        if _NUMBER.fullmatch(text) is None:
            raise DecodeFault("wrong_type", "a decimal number was expected, or NaN, Infinity or -Infinity")
        value = float(text)
        if pa.types.is_float32(self.type):
            with np.errstate(over="ignore"):
                value = float(np.float32(value))
        if np.isinf(value):
            largest = _LARGEST_FLOAT if pa.types.is_float32(self.type) else float(np.finfo(np.float64).max)
            raise DecodeFault("out_of_range", f"a magnitude of at most {largest:g} was expected")
        return value

    def _decimal(self, text: str) -> Decimal:
        found = _NUMBER.fullmatch(text)
        if found is None:
            raise DecodeFault("wrong_type", "a decimal number was expected")
        sign, whole, behind, exponent_sign, exponent = (part or "" for part in found.groups())
        digits = (whole + behind).lstrip("0")
        significant = digits.rstrip("0")
        if not significant:
            return Decimal(0)
        # A larger exponent does not fit, however many digits the text has.
        power = int(exponent or "0") if len(exponent) < 10 else 10**10 + len(text)
        lowest = (-power if exponent_sign == "-" else power) - len(behind) + len(digits) - len(significant)
        precision, scale = self.type.precision, self.type.scale
        if lowest < -scale:
            raise DecodeFault("out_of_range", f"at most {scale} digits after the point were expected")
        if len(significant) + lowest > precision - scale:
            raise DecodeFault("out_of_range", f"at most {precision - scale} digits before the point were expected")
        units = significant + "0" * (lowest + scale)
        return Decimal((int(sign == "-"), tuple(map(int, units)), -scale))


def conversion(field: pa.Field, times: TimeFormat | None = None) -> Conversion:
    """Return the conversion for one column. Raises ConfigurationError for a type that strings cannot represent."""
    if pa.types.is_nested(field.type) or pa.types.is_binary(field.type):
        raise ConfigurationError(
            f"column {field.name!r}: text cannot be converted to {type_name(field.type)}; "
            "declare the column as STRING, a number, BOOLEAN, "
            "DATE or TIMESTAMP"
        )
    if pa.types.is_timestamp(field.type):
        return Conversion(field.type, times or ISO_TIME)
    if pa.types.is_date(field.type):
        return Conversion(field.type, times or ISO_DATE)
    if times is not None:
        raise ConfigurationError(f"column {field.name!r}: a time format applies only to DATE and TIMESTAMP")
    return Conversion(field.type)
