"""The list `expect:` of a topic's `decode:`: what is expected of the values of columns, checked against the columns themselves."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from typing import Any, Final

import pyarrow as pa

from platform_assets.decoding import expectations
from platform_assets.errors import ConfigurationError
from platform_assets.model.expectations import KINDS, SEVERITIES, Expectation, ExpectationKind, Value

_FIELDS: Final = ("column", *KINDS, "severity", "name")
_FORM: Final = "{column: month, range: {min: 1, max: 12}, severity: error}"
_NAME: Final = re.compile(r"[A-Za-z0-9_]+", re.ASCII)


def expectations_of(given: Any, columns: pa.Schema, taken: Sequence[str]) -> tuple[Expectation, ...]:
    """Return the expectations of the list on rows with `columns`, without the table's own ones. `taken` are names of
    other checks.

    Raises ConfigurationError, which names the entry of the list, counted from 1, and the fix.
    """
    if not isinstance(given, list | tuple):
        raise ConfigurationError(f"expect: must be a list of expectations such as {_FORM}, not {given!r}")
    found: list[Expectation] = []
    for number, each in enumerate(given, 1):
        try:
            expectation = _expectation(each, columns)
            expectations.check(expectation, columns)
            if expectation.digest in [other.digest for other in found]:
                raise ConfigurationError(f"the same is expected twice ({expectation}): keep one of them")
            if expectation.name in (*taken, *(other.name for other in found)):
                raise ConfigurationError(
                    f"there is another check named {expectation.name!r}: give this one a `name:` of its own"
                )
        except ConfigurationError as e:
            raise ConfigurationError(f"expect: entry {number}: {e}") from e
        found.append(expectation)
    return tuple(found)


def _expectation(given: Any, columns: pa.Schema) -> Expectation:
    if not isinstance(given, Mapping):
        raise ConfigurationError(f"must be a mapping such as {_FORM}, not {given!r}")
    for field in given:
        if field not in _FIELDS:
            raise ConfigurationError(f"there is no such field as {field!r}: {_hint(str(field), _FIELDS)}")
    kinds = [kind for kind in KINDS if kind in given]
    if len(kinds) != 1:
        said = "names none" if not kinds else f"names {' and '.join(kinds)}"
        raise ConfigurationError(f"it {said} of {', '.join(KINDS)}: give just one, such as {_FORM}")
    kind = kinds[0]
    severity = given.get("severity", "warn")
    if severity not in SEVERITIES:
        raise ConfigurationError(f"severity: must be one of {', '.join(SEVERITIES)}, not {severity!r}")
    names = tuple(_columns(kind, given, columns))
    name = given.get("name", re.sub(r"[^A-Za-z0-9_]", "_", "_".join((*names, kind)), flags=re.ASCII))
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigurationError(f"name: must be of letters, digits and underscores, not {name!r}")
    return Expectation(name, kind, names, severity, **_arguments(kind, given[kind]))


def _columns(kind: ExpectationKind, given: Mapping[str, Any], columns: pa.Schema) -> Iterator[str]:
    if kind == "unique" and "column" not in given:
        wanted = given[kind] if isinstance(given[kind], list | tuple) else [given[kind]]
        if not wanted or any(not isinstance(each, str) for each in wanted):
            raise ConfigurationError(
                f"unique: must name columns, such as [carrier, flight], or `key` for the Kafka key, not {given[kind]!r}"
            )
        if len(set(wanted)) < len(wanted):
            raise ConfigurationError(f"unique: {given[kind]!r} has a column twice: keep one of them")
    else:
        wanted = [given.get("column")]
        if wanted[0] is None:
            raise ConfigurationError(f"column: it is missing: name the column that {kind!r} is of, as in {_FORM}")
        if kind in ("not_null", "unique") and given[kind] is not True:
            other = " or columns without the field `column`" if kind == "unique" else ""
            raise ConfigurationError(f"{kind}: must be true{other}, not {given[kind]!r}")
    for name in wanted:
        if name not in columns.names:
            key = "; for the Kafka key, declare `key:` under `decode:` first" if name == "key" else ""
            raise ConfigurationError(f"there is no column {name!r}: {_hint(str(name), columns.names)}{key}")
        yield name


def _arguments(kind: ExpectationKind, given: Any) -> dict[str, Any]:
    if kind == "in":
        if not isinstance(given, list | tuple) or not given:
            raise ConfigurationError(f"in: must be a list of values such as [EWR, JFK, LGA], not {given!r}")
        values = tuple(_value(kind, each) for each in given)
        for at, value in enumerate(values):
            if (type(value), value) in [(type(other), other) for other in values[:at]]:
                raise ConfigurationError(f"in: {value!r} is given twice: keep one of them")
        return {"values": values}
    if kind == "range":
        if not isinstance(given, Mapping) or not given or not set(given) <= {"min", "max"}:
            raise ConfigurationError(
                f"range: must be a mapping with min, max or both, which are inclusive, such as {{min: 1, max: 12}}, not {given!r}"
            )
        return {to: _value(kind, given[of]) for of, to in (("min", "least"), ("max", "most")) if of in given}
    if kind == "pattern":
        if not isinstance(given, str):
            raise ConfigurationError(f"pattern: must be a regular expression as text, not {given!r}")
        return {"pattern": given}
    return {}


def _value(kind: ExpectationKind, given: Any) -> Value:
    if isinstance(given, str | int | float):
        return given
    if isinstance(given, date):
        # YAML reads a date without quotes as one.
        return given.isoformat()
    raise ConfigurationError(f"{kind}: {given!r} is no single value: give text, a number, a date, or true or false")


def _hint(name: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(name, known, 1)
    return f"did you mean {close[0]!r}?" if close else f"known are {', '.join(known)}"
