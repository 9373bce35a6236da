"""Conversion of a parsed JSON value to a column's value, in plain Python, with the rules of the exact path for each
type.

A reader takes the parser's value (str, bool, int, `Number` for numbers with a fraction or an exponent, list, dict) and
returns pyarrow's value for the column: dates are days since 1970-01-01, and timestamps are microseconds since then.
Readers raise Fault.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
import struct
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal
from types import MappingProxyType
from typing import Any, Final, Literal

import pyarrow as pa

from platform_assets.decoding.json.faults import Fault, brief
from platform_assets.decoding.schema import type_name

Read = Callable[[Any], Any]


class Number(str):
    """A JSON number as it is written."""

    __slots__ = ()


_NUMBER: Final = re.compile(r"(-?)([0-9]+)(?:\.([0-9]+))?(?:[eE]([+-]?)0*([0-9]+))?")
_DATE: Final = re.compile(r"([0-9]{4})-([0-9]{2})-([0-9]{2})")
_TIMESTAMP: Final = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})[T ]([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.([0-9]+))?(?:Z|([+-])([0-9]{2}):([0-9]{2}))?"
)
_LENIENT: Final = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})[Tt ]([0-9]{2}):([0-9]{2})(?::([0-9]{2})(?:[.,]([0-9]+))?)?"
    r"(?:[Zz]|([+-])([0-9]{2})(?::?([0-9]{2}))?)?"
)
_BASE64: Final = re.compile(r"[A-Za-z0-9+/]*={0,2}")
_FAR: Final = 10**12
"""Exponent limit. A number with a larger exponent does not fit in any column, and a number with a smaller exponent than
the negative limit is zero."""
_MOST_DIGITS: Final = 60
_DECIMALS: Final = Context(prec=40)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_DAY: Final = date(1970, 1, 1).toordinal()
_MICROSECOND: Final = timedelta(microseconds=1)
EARLIEST: Final = (datetime.min.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND
LATEST: Final = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND
"""The first and the last instant of the years 1 to 9999, in microseconds."""


Form = Literal["strict", "or_utc", "lenient"]
"""Accepted text format of a timestamp."""


def scalar_reader(kind: pa.DataType, decimals: int | None, form: Form) -> Read:
    """Return the reader for a column of the type `kind`, which is neither a list nor a struct.

    `decimals` is the number of decimal digits by which a number is shifted to become microseconds, or None if
    timestamps are strings. `form` is the accepted format of these strings.
    """
    name = type_name(kind)
    if pa.types.is_integer(kind):
        bound = 1 << (kind.bit_width - 1)
        return lambda value: _whole(value, name, -bound, bound - 1)
    if pa.types.is_decimal(kind):
        return lambda value: _decimal(value, name, kind.precision, kind.scale)
    if pa.types.is_timestamp(kind):
        if decimals is None:
            return lambda value: _timestamp(value, name, form)
        return lambda value: _within(_scaled(value, decimals, name), value, name, EARLIEST, LATEST)
    readers: dict[Any, Read] = {
        pa.bool_(): _boolean,
        pa.float32(): _single,
        pa.float64(): _double,
        pa.string(): _text,
        pa.binary(): _bytes,
        pa.date32(): _date,
    }
    return readers[kind]


def _wrong(value: object, name: str, form: str = "") -> Fault:
    return Fault("wrong_type", f"found {brief(value)}, where {name}{form and ' as '}{form} was expected")


def _out(value: object, name: str, why: str) -> Fault:
    return Fault("out_of_range", f"{brief(value)} {why} {name}")


def _within(number: int, value: object, name: str, low: int, high: int) -> int:
    if not low <= number <= high:
        raise _out(value, name, "is beyond")
    return number


def _whole(value: object, name: str, low: int, high: int) -> int:
    number = value if type(value) is int else _scaled(value, 0, name)
    if not low <= number <= high:
        raise _out(value, name, "is beyond")
    return number


def _scaled(value: Any, scale: int, name: str) -> int:
    """Multiply a number by 10 to the power of `scale`. The result must be an integer."""
    if type(value) is int:
        number: int = value * 10**scale
        return number
    if type(value) is not Number:
        raise _wrong(value, name, "a number")
    found = _NUMBER.fullmatch(value)
    assert found is not None, "the parser accepts no other numbers"
    sign, whole, fraction, power_sign, power = found.groups(default="")
    exponent = 0 if not power else _FAR if len(power) > 12 else int(power)
    written = (whole + fraction).lstrip("0")
    digits = written.rstrip("0")
    if not digits:
        return 0
    shift = (-exponent if power_sign == "-" else exponent) - len(fraction) + scale + len(written) - len(digits)
    if shift < 0:
        raise _out(value, name, "is more precise than")
    if len(digits) + shift > _MOST_DIGITS:
        raise _out(value, name, "is beyond")
    return int(sign + digits) * int(10**shift)


def _decimal(value: object, name: str, precision: int, scale: int) -> Decimal:
    number = _scaled(value, scale, name)
    if abs(number) >= 10**precision:
        raise _out(value, name, "is beyond")
    return _DECIMALS.scaleb(Decimal(number), -scale)


def _double(value: object, name: str = "DOUBLE") -> float:
    if type(value) is not int and type(value) is not Number:
        raise _wrong(value, name, "a number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if math.isinf(number):
        raise _out(value, name, "is beyond")
    return number


def _single(value: object) -> float:
    number = _double(value, "FLOAT")
    try:
        packed = struct.pack("<f", number)
    except OverflowError as error:
        raise _out(value, "FLOAT", "is beyond") from error
    return float(struct.unpack("<f", packed)[0])


def _boolean(value: object) -> bool:
    if type(value) is not bool:
        raise _wrong(value, "BOOLEAN", "true or false")
    return value


def _text(value: object) -> str:
    if type(value) is not str:
        raise _wrong(value, "STRING", "text")
    if not value.isascii() and _has_surrogate(value):
        raise Fault("malformed", f"{brief(value)} contains half of a surrogate pair, which is not a character")
    return value


def _has_surrogate(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def _bytes(value: object) -> bytes:
    if type(value) is str and len(value) % 4 == 0 and _BASE64.fullmatch(value):
        try:
            content = base64.b64decode(value, validate=True)
        except binascii.Error as error:
            raise _wrong(value, "BINARY", "base64") from error
        if base64.b64encode(content).decode() == value:  # unused bits are zero
            return content
    raise _wrong(value, "BINARY", "base64")


def _date(value: object) -> int:
    found = _DATE.fullmatch(value) if type(value) is str else None
    if found is None:
        raise _wrong(value, "DATE", "YYYY-MM-DD")
    try:
        return date(*map(int, found.groups())).toordinal() - _EPOCH_DAY
    except ValueError as error:
        raise Fault("wrong_type", f"{brief(value)} is not a calendar date in the years 1 to 9999") from error


def _timestamp(value: object, name: str, form: Form) -> int:
    lenient = form == "lenient"
    found = (_LENIENT if lenient else _TIMESTAMP).fullmatch(value) if type(value) is str else None
    zoned = found is not None and (found[8] or found[0][-1] in "Zz")
    if found is None or (form == "strict" and not zoned):
        raise _wrong_time(value, name, form)
    fraction = found[7] or ""
    if fraction[6:].strip("0") and not lenient:
        out = _out(value, name, "is more precise than the microseconds of")
        out.detail += "; `timestamps: iso8601_lenient` drops the extra digits"
        raise out
    hours, minutes = int(found[9] or 0), int(found[10] or 0)
    if hours > 23 or minutes > 59:
        raise Fault("wrong_type", f"{brief(value)} has an offset of more than 23:59")
    clock = [int(found[i] or 0) for i in range(1, 7)]
    try:
        local = datetime(*clock, int(fraction[:6].ljust(6, "0")), tzinfo=UTC)  # type: ignore[misc,arg-type]
    except ValueError as error:
        raise Fault("wrong_type", f"{brief(value)} is not a calendar time in the years 1 to 9999") from error
    offset = (hours * 60 + minutes) * 60_000_000 * (-1 if found[8] == "-" else 1)
    return _within((local - _EPOCH) // _MICROSECOND - offset, value, name, EARLIEST, LATEST)


def _wrong_time(value: object, name: str, form: Form) -> Fault:
    expected = {
        "strict": "YYYY-MM-DDThh:mm:ss with Z or an offset",
        "or_utc": "YYYY-MM-DDThh:mm:ss",
        "lenient": "YYYY-MM-DDThh:mm[:ss]",
    }
    wrong = _wrong(value, name, expected[form])
    if type(value) is int or type(value) is Number:
        wrong.detail += "; `timestamps: seconds`, `milliseconds` or `microseconds` reads numbers"
    elif form != "lenient" and type(value) is str:
        for option, other in _OTHER_FORMS[form]:
            if _is_timestamp(value, name, other):
                wrong.detail += f"; `timestamps: {option}` accepts it"
                break
    return wrong


_LENIENT_FORM: Final[tuple[str, Form]] = ("iso8601_lenient", "lenient")
_OTHER_FORMS: Final[Mapping[Form, tuple[tuple[str, Form], ...]]] = MappingProxyType(
    {"strict": (("iso8601_or_utc", "or_utc"), _LENIENT_FORM), "or_utc": (_LENIENT_FORM,)}
)
"""For each form, the options whose forms accept more, the strictest first."""


def _is_timestamp(value: str, name: str, form: Form) -> bool:
    try:
        _timestamp(value, name, form)
    except Fault:
        return False
    return True
