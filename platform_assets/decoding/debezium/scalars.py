"""Conversion of the connector's JSON values to a column's values, one at a time. Readers raise Fault.

A reader takes the parser's value, like those of `json.scalars`, and returns pyarrow's value for the column.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Mapping
from decimal import Context, Decimal
from types import MappingProxyType
from typing import Any, Final

import pyarrow as pa

from platform_assets.decoding.conversion import Conversion
from platform_assets.decoding.debezium.declaration import BYTES, DECIMALS, Declared
from platform_assets.decoding.decoder import DecodeFault
from platform_assets.decoding.json.faults import Fault, brief
from platform_assets.decoding.json.scalars import EARLIEST, LATEST, Number, scalar_reader
from platform_assets.decoding.schema import type_name

Read = Callable[[Any], Any]
FIRST_DAY: Final = -719_162
LAST_DAY: Final = 2_932_896
"""The first and the last day of the years 1 to 9999, in days since 1970-01-01."""
ENDLESS: Final = frozenset({9223372036825200000, -9223372036832400000, 9223372036825200, -9223372036832400})
"""Numbers that the connector writes for `infinity` and `-infinity`, in microseconds and in milliseconds."""
_NOT_FINITE: Final = MappingProxyType({"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")})
_NOT_NUMBERS: Final = frozenset({"nan", "infinity", "-infinity", "positive_infinity", "negative_infinity"})
_ISO_DAY: Final = re.compile(r"([0-9]{4}-[0-9]{2}-[0-9]{2})Z?")
_HEX: Final = re.compile(r"(?:[0-9a-fA-F]{2})*")
_EXACT: Final = Context(prec=200)
_MOST_SCALE: Final = 20_000


def scalars(d: Declared, unit: int) -> Callable[[pa.DataType], Read]:
    """Return the function that gives the reader for a type. `unit` is the number of nanoseconds in one unit of the
    column's timestamps."""

    def reader(kind: pa.DataType) -> Read:
        if pa.types.is_decimal(kind):
            return _decimal(kind, d)
        if pa.types.is_timestamp(kind):
            return _timestamp(kind, unit)
        if pa.types.is_date(kind):
            return _date
        if pa.types.is_binary(kind):
            return _binary(d)
        if pa.types.is_floating(kind):
            return _real(kind)
        plain = scalar_reader(kind, None, "strict")
        return plain if not pa.types.is_string(kind) else lambda value: _string(plain, value)

    return reader


def is_placeholder(value: Any, placeholders: tuple[str, ...], content: bytes) -> bool:
    """Return True if a value stands for a TOASTed value that PostgreSQL did not send. `content` is the placeholder's
    bytes."""
    if type(value) is str:
        return value in placeholders
    if type(value) is list:
        texts = bool(value) and all(
            type(each) is not list and is_placeholder(each, placeholders, b"") for each in value
        )
        return texts or are_bytes(value, content)
    return isinstance(value, Mapping) and bool(value) and all(name == placeholders[0] for name in value)


def are_bytes(values: list[Any], content: bytes) -> bool:
    """Return True if values, parsed or decoded, are numbers that equal the bytes of a placeholder."""
    return len(values) == len(content) > 0 and all(map(_is_byte, values, content))


def _is_byte(value: Any, byte: int) -> bool:
    if type(value) is Number:
        return float(value) == byte
    return type(value) in (int, float, Decimal) and bool(value == byte)


def _string(plain: Read, value: Any) -> Any:
    try:
        return plain(value)
    except Fault as fault:
        if type(value) is int or type(value) is Number:
            fault.detail += "; the connector writes a number here: declare BIGINT, DOUBLE, DATE or TIMESTAMP"
        elif isinstance(value, dict) and value.keys() == {"scale", "value"}:
            fault.detail += (
                f"; this is a NUMERIC: declare DECIMAL, or set `{DECIMALS}` to `string` in the connector and, without "
                "`registry`, here"
            )
        raise


def _wrong(value: Any, kind: pa.DataType, expected: str, hint: str) -> Fault:
    return Fault("wrong_type", f"found {brief(value)}, where {type_name(kind)} as {expected} was expected; {hint}")


def _decimal(kind: pa.DataType, d: Declared) -> Read:
    if d.decimals == "double":
        number = scalar_reader(kind, None, "strict")

        def read_number(value: Any) -> Decimal:
            if type(value) is str:
                raise _no_number(value, kind) if value.lower() in _NOT_NUMBERS else _other_mode(value, kind, "a number")
            return number(value)  # type: ignore[no-any-return]

        return read_number
    if d.decimals == "string":
        convert = Conversion(kind)

        def read_text(value: Any) -> Decimal:
            if type(value) is not str:
                raise _other_mode(value, kind, "text")
            if value.lower() in _NOT_NUMBERS:
                raise _no_number(value, kind)
            try:
                return convert.value(value)  # type: ignore[no-any-return]
            except DecodeFault as fault:
                raise Fault(fault.reason, fault.detail) from None

        return read_text
    return lambda value: _precise(value, kind)


def _other_mode(value: Any, kind: pa.DataType, expected: str) -> Fault:
    return _wrong(value, kind, expected, f"declare the connector's `{DECIMALS}` under `connector`")


def _no_number(value: Any, kind: pa.DataType) -> Fault:
    return Fault("out_of_range", f"{brief(value)} is not a value of {type_name(kind)}: declare STRING to keep it")


def _precise(value: Any, kind: pa.DataType) -> Decimal:
    scale, text = kind.scale, value
    if isinstance(value, dict) and value.keys() == {"scale", "value"}:
        scale, text = value["scale"], value["value"]
        if type(scale) is not int or abs(scale) > _MOST_SCALE:
            raise Fault("wrong_type", f"the scale of a number is {brief(scale)}, which is not a number of digits")
    if type(text) is not str:
        if type(text) in (int, Number):
            raise _other_mode(value, kind, "bytes")
        raise _wrong(value, kind, "bytes", f"the connector's `{DECIMALS}` is precise")
    content = _of_base64(text)
    if content == b"":
        raise Fault("wrong_type", f"found no bytes, where {type_name(kind)} as bytes in base64 was expected")
    if content is None:
        raise _other_mode(value, kind, "bytes in base64")
    number = int.from_bytes(content, "big", signed=True)
    if not number:
        return _EXACT.scaleb(Decimal(0), -kind.scale)
    more = kind.scale - scale
    # A number of n bits is below 10 ** n, which is not worth computing.
    if more > 0:
        number *= 10 ** min(more, kind.precision)
    elif more < 0:
        number, rest = divmod(number, 10 ** min(-more, number.bit_length()))
        if rest:
            raise Fault(
                "out_of_range", f"a number with {scale} digits after the point is more precise than {type_name(kind)}"
            )
    if abs(number) >= 10**kind.precision:
        raise Fault("out_of_range", f"a number of {number.bit_length()} bits is beyond {type_name(kind)}")
    return _EXACT.scaleb(Decimal(number), -kind.scale)


def _of_base64(text: str) -> bytes | None:
    """Return the bytes, or None if the text is not base64 with padding in which unused bits are zero."""
    try:
        content = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None
    return content if base64.b64encode(content).decode() == text else None


def _timestamp(kind: pa.DataType, unit: int) -> Read:
    of_text = scalar_reader(kind, None, "strict")

    def read(value: Any) -> int:
        if type(value) is int:
            micros, rest = divmod(value * unit, 1_000)
            if rest:
                raise Fault(
                    "out_of_range", f"{brief(value)} nanoseconds are more precise than the microseconds of TIMESTAMP"
                )
            if not EARLIEST <= micros <= LATEST:
                endless = "PostgreSQL's `infinity`, or a time" if value in ENDLESS else "a time"
                raise Fault(
                    "out_of_range",
                    f"{brief(value)} is {endless} outside of the years 1 to 9999: declare BIGINT to keep it",
                )
            return micros
        try:
            return of_text(value)  # type: ignore[no-any-return]
        except Fault as fault:
            if type(value) is str:
                fault.detail += "; declare STRING to keep it"
            raise

    return read


def _date(value: Any) -> int:
    if type(value) is int:
        if not FIRST_DAY <= value <= LAST_DAY:
            raise Fault(
                "out_of_range", f"day {value} is `infinity` or outside of the years 1 to 9999: declare INT to keep it"
            )
        return value
    found = _ISO_DAY.fullmatch(value) if type(value) is str else None
    try:
        return _DAY(found[1] if found else value)  # type: ignore[no-any-return]
    except Fault as fault:
        if type(value) is str:
            fault.detail += "; declare STRING to keep it"
        raise


_DAY: Final = scalar_reader(pa.date32(), None, "strict")


def _binary(d: Declared) -> Read:
    def read(value: Any) -> bytes:
        content = None
        if type(value) is str and d.binary == "hex":
            content = bytes.fromhex(value) if _HEX.fullmatch(value) else None
        elif type(value) is str:
            plain = value.translate(_OF_URLS) if d.binary == "base64-url-safe" else value
            content = _of_base64(plain)
        if content is None:
            what = "hexadecimal digits" if d.binary == "hex" else "base64"
            raise _wrong(value, pa.binary(), what, f"declare the connector's `{BYTES}` under `connector`")
        return content

    return read


_OF_URLS: Final = str.maketrans("-_+/", "+/!!")


def _real(kind: pa.DataType) -> Read:
    plain = scalar_reader(kind, None, "strict")
    return lambda value: _NOT_FINITE[value] if type(value) is str and value in _NOT_FINITE else plain(value)
