"""Text formats for times: ISO 8601, or a strptime format with a few directives. Each directive is parsed exactly."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import lru_cache
from types import MappingProxyType
from typing import Final

import numpy as np
import numpy.typing as npt

from platform_assets.decoding.decoder import DecodeFault
from platform_assets.errors import ConfigurationError
from platform_assets.kernels import conversion as steps

MONTHS: Final = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_FRACTION: Final = r"(?P<fraction>[0-9]+)"
_ZONE: Final = r"(?P<zone>Z|[+-][0-9]{2}(?::?[0-9]{2})?)"
_WORDS: Final = MappingProxyType(
    {
        "Y": (steps.YEAR, r"(?P<year>[0-9]{4})"),
        "y": (steps.SHORT_YEAR, r"(?P<short_year>[0-9]{2})"),
        "m": (steps.MONTH, r"(?P<month>[0-9]{2})"),
        "b": (steps.MONTH_NAME, rf"(?P<month_name>{'|'.join(MONTHS)})"),
        "d": (steps.DAY, r"(?P<day>[0-9]{2})"),
        "e": (steps.PADDED_DAY, r"(?P<padded_day>[ 0-9][0-9])"),
        "H": (steps.HOUR, r"(?P<hour>[0-9]{2})"),
        "M": (steps.MINUTE, r"(?P<minute>[0-9]{2})"),
        "S": (steps.SECOND, r"(?P<second>[0-9]{2})"),
        "f": (steps.FRACTION, _FRACTION),
        "z": (steps.ZONE, _ZONE),
    }
)
_NEEDED: Final = (("Y", "y"), ("m", "b"), ("d", "e"))
_EPOCH: Final = datetime(1970, 1, 1)
_MICROSECOND: Final = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class TimeFormat:
    """A text format for times. Messages show its `name`."""

    name: str
    program: tuple[int, ...]
    pattern: str
    cut: bool = False
    """True if digits beyond microseconds are cut off; false if they are a fault."""

    def steps(self) -> npt.NDArray[np.int32]:
        """Return the format in the form that the kernel needs."""
        return np.array(self.program, np.int32)

    def accepts(self, text: str) -> bool:
        """Return True if `microseconds` can read the text."""
        try:
            self.microseconds(text)
        except DecodeFault:
            return False
        return True

    def microseconds(self, text: str) -> int:
        """Return microseconds since 1970 in UTC. Text without an offset is taken as UTC. Raises DecodeFault."""
        found = _compiled(self.pattern).fullmatch(text)
        if found is None:
            raise DecodeFault("wrong_type", f"not of the form {self.name}")
        parts = found.groupdict()
        try:
            hour, minute, second = (int(parts.get(name) or 0) for name in _CLOCK)
            time = datetime(_year(parts), _month(parts), _day(parts), hour, minute, second)
            shift = _offset(parts.get("zone"))
        except ValueError as error:
            raise DecodeFault("out_of_range", f"not a calendar time: {error}") from error
        fraction = parts.get("fraction") or ""
        if fraction[6:].strip("0") and not self.cut:
            raise DecodeFault("out_of_range", "more precise than microseconds")
        micros = (time - _EPOCH) // _MICROSECOND + int(fraction[:6].ljust(6, "0")) - shift * 1_000_000
        if not steps.FIRST_TIME <= micros <= steps.LAST_TIME:
            raise DecodeFault("out_of_range", "not within the years 1 to 9999, in UTC")
        return micros


_CLOCK: Final = ("hour", "minute", "second")
_DAY_STEPS: Final = (steps.YEAR, ord("-"), steps.MONTH, ord("-"), steps.DAY)
_DAY_PATTERN: Final = r"(?P<year>[0-9]{4})-(?P<month>[0-9]{2})-(?P<day>[0-9]{2})"
ISO_DATE: Final = TimeFormat("YYYY-MM-DD", _DAY_STEPS, _DAY_PATTERN)
_ISO_STEPS: Final = (
    *_DAY_STEPS, steps.SEPARATOR, steps.HOUR, ord(":"), steps.MINUTE, ord(":"), steps.SECOND, steps.FRACTION_IF_ANY,
)  # fmt: skip
_ISO_PATTERN: Final = (
    rf"{_DAY_PATTERN}[T ](?P<hour>[0-9]{{2}}):(?P<minute>[0-9]{{2}}):(?P<second>[0-9]{{2}})(?:\.{_FRACTION})?"
)
_OFFSET: Final = r"(?P<zone>Z|[+-][0-9]{2}:[0-9]{2})"
ISO_TIME: Final = TimeFormat(
    "YYYY-MM-DDThh:mm:ss[.ffffff](Z|±hh:mm)", (*_ISO_STEPS, steps.OFFSET), _ISO_PATTERN + _OFFSET
)
ISO_TIME_OR_UTC: Final = TimeFormat(
    "YYYY-MM-DDThh:mm:ss[.ffffff][Z|±hh:mm]", (*_ISO_STEPS, steps.OFFSET_IF_ANY), f"{_ISO_PATTERN}{_OFFSET}?"
)
ISO_TIME_LENIENT: Final = TimeFormat(
    "YYYY-MM-DDThh:mm[:ss[.fffffffff]][Z|±hh[[:]mm]]",
    (
        *_DAY_STEPS,
        steps.LENIENT_SEPARATOR,
        steps.HOUR,
        ord(":"),
        steps.MINUTE,
        steps.LENIENT_SECOND,
        steps.LENIENT_OFFSET,
    ),
    rf"{_DAY_PATTERN}[Tt ](?P<hour>[0-9]{{2}}):(?P<minute>[0-9]{{2}})(?::(?P<second>[0-9]{{2}})(?:[.,]{_FRACTION})?)?"
    r"(?P<zone>[Zz]|[+-][0-9]{2}(?::?[0-9]{2})?)?",
    cut=True,
)
TIMESTAMPS: Final = MappingProxyType(
    {"iso8601": ISO_TIME, "iso8601_or_utc": ISO_TIME_OR_UTC, "iso8601_lenient": ISO_TIME_LENIENT}
)
"""Formats, keyed by the values that the option `timestamps` accepts, here and in JSON."""


def timestamps_hint(times: TimeFormat, text: str) -> str:
    """Return a hint that names the value of the option `timestamps` that reads `text`, which `times` does not accept.
    Return "" if there is no such value, or if `times` is a column's own format, to which the option does not apply."""
    if times not in TIMESTAMPS.values():
        return ""
    for name, other in TIMESTAMPS.items():
        if other.accepts(text):
            is_exact = replace(other, cut=False).accepts(text)
            return f"; `timestamps: {name}` {'accepts it' if is_exact else 'drops the extra digits'}"
    return ""


def time_format(text: str) -> TimeFormat:
    """Parse a format with strptime's %Y %y %m %b %d %e %H %M %S %f %z %%, each at most once. Raises
    ConfigurationError."""
    program: list[int] = []
    pattern = ""
    seen: set[str] = set()
    parts = re.split(r"(%.?)", text)
    for part in parts:
        if part.startswith("%") and part != "%%":
            word = part[1:]
            if word not in _WORDS or word in seen:
                what = "comes twice" if word in seen else "is unknown"
                known = " ".join(f"%{each}" for each in _WORDS)
                raise ConfigurationError(f"time format {text!r}: {part!r} {what}; use, each at most once: {known} %%")
            seen.add(word)
            step, piece = _WORDS[word]
            program.append(step)
            pattern += piece
        else:
            literal = part.replace("%%", "%")
            if not literal.isascii():
                raise ConfigurationError(f"time format {text!r}: {literal!r} is not ASCII")
            program += literal.encode()
            pattern += re.escape(literal)
    for group in _NEEDED:
        if len(seen.intersection(group)) != 1:
            raise ConfigurationError(
                f"time format {text!r} must contain exactly one of {' and '.join(f'%{each}' for each in group)}; "
                "declare a column with values "
                "that are not complete times as STRING"
            )
    return TimeFormat(text, tuple(program), pattern)


@lru_cache(maxsize=64)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)


def _year(parts: dict[str, str | None]) -> int:
    short = parts.get("short_year")
    if short is not None:
        return int(short) + (2000 if int(short) < 69 else 1900)
    return int(parts["year"] or 0)


def _month(parts: dict[str, str | None]) -> int:
    name = parts.get("month_name")
    return MONTHS.index(name) + 1 if name else int(parts["month"] or 0)


def _day(parts: dict[str, str | None]) -> int:
    return int(parts.get("day") or parts.get("padded_day") or 0)


def _offset(zone: str | None) -> int:
    """Return the offset in seconds east of UTC. Raises ValueError."""
    if zone is None or zone in ("Z", "z"):
        return 0
    digits = zone[1:].replace(":", "").ljust(4, "0")
    hours, minutes = int(digits[:2]), int(digits[2:])
    if hours > 23 or minutes > 59:
        raise ValueError(f"{zone} is not an offset from UTC")
    seconds = hours * 3600 + minutes * 60
    return seconds if zone[0] == "+" else -seconds
