"""The `decode:` block in a topic's YAML, checked field by field, including the options of its formats."""

from __future__ import annotations

import base64
import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from typing import Any, Final

import pyarrow as pa

from platform_assets.checks import decoded as checks
from platform_assets.decoding import expectations
from platform_assets.decoding.formats import FORMATS, decoder_of
from platform_assets.decoding.options import MOST_BYTES
from platform_assets.errors import ConfigurationError
from platform_assets.lake import column_bounds, decoded_table
from platform_assets.model import debezium
from platform_assets.model.decoding import DecodeDeclaration, FormatSpec, Repair
from platform_assets.model.expectations import KINDS, SEVERITIES, Expectation, ExpectationKind, Value
from platform_assets.model.windows import edge_of

_EXPECT_FIELDS: Final = ("column", *KINDS, "severity", "name")
_FORM: Final = "{column: month, range: {min: 1, max: 12}, severity: error}"
_NAME: Final = re.compile(r"[A-Za-z0-9_]+", re.ASCII)


def expectations_of(given: Any, columns: pa.Schema, taken: Sequence[str]) -> tuple[Expectation, ...]:
    """Parse a list of expectations on rows that have `columns`. The result does not include the expectations that each
    table has anyway. `taken` lists the names of other checks.

    Raises ConfigurationError, which gives the number of the list entry (counted from 1) and the fix.
    """
    if not isinstance(given, list | tuple):
        raise ConfigurationError(f"expect: must be a list of expectations such as {_FORM}, not {given!r}")
    found: list[Expectation] = []
    for number, each in enumerate(given, 1):
        try:
            expectation = _expectation(each, columns)
            expectations.check(expectation, columns)
            if expectation.digest in [other.digest for other in found]:
                raise ConfigurationError(f"this expectation is declared twice ({expectation}): keep one of them")
            if expectation.name in (*taken, *(other.name for other in found)):
                raise ConfigurationError(
                    f"another check is already named {expectation.name!r}: give this expectation a different `name:`"
                )
        except ConfigurationError as e:
            raise ConfigurationError(f"expect: entry {number}: {e}") from e
        found.append(expectation)
    return tuple(found)


def expectations_without_types(given: Any, taken: Sequence[str]) -> tuple[Expectation, ...]:
    """Parse a list of expectations on rows whose columns are not known yet. `taken` lists the names of other checks.

    Raises ConfigurationError like `expectations_of`, but not for unknown columns and types that do not fit.
    """
    if not isinstance(given, list | tuple):
        raise ConfigurationError(f"expect: must be a list of expectations such as {_FORM}, not {given!r}")
    found: list[Expectation] = []
    for number, each in enumerate(given, 1):
        named = [each.get("column"), each.get("unique")] if isinstance(each, Mapping) else []
        names = [
            n
            for n in (m for some in named for m in (some if isinstance(some, list | tuple) else [some]))
            if isinstance(n, str)
        ]
        try:
            expectation = _expectation(each, pa.schema([pa.field(name, pa.null()) for name in dict.fromkeys(names)]))
            if expectation.name in (*taken, *(other.name for other in found)):
                raise ConfigurationError(
                    f"another check is already named {expectation.name!r}: give this expectation a different `name:`"
                )
        except ConfigurationError as e:
            raise ConfigurationError(f"expect: entry {number}: {e}") from e
        found.append(expectation)
    return tuple(found)


def _expectation(given: Any, columns: pa.Schema) -> Expectation:
    if not isinstance(given, Mapping):
        raise ConfigurationError(f"must be a mapping such as {_FORM}, not {given!r}")
    for field in given:
        if field not in _EXPECT_FIELDS:
            raise ConfigurationError(f"unknown field {field!r}: {_hint(str(field), _EXPECT_FIELDS)}")
    kinds = [kind for kind in KINDS if kind in given]
    if len(kinds) != 1:
        said = "none" if not kinds else " and ".join(kinds)
        raise ConfigurationError(f"must have exactly one of {', '.join(KINDS)}, such as {_FORM}; it has {said}")
    kind = kinds[0]
    severity = given.get("severity", "warn")
    if severity not in SEVERITIES:
        raise ConfigurationError(f"severity: must be one of {', '.join(SEVERITIES)}, not {severity!r}")
    names = tuple(_columns(kind, given, columns))
    name = given.get("name", re.sub(r"[^A-Za-z0-9_]", "_", "_".join((*names, kind)), flags=re.ASCII))
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigurationError(f"name: must consist of letters, digits and underscores only, not {name!r}")
    return Expectation(name, kind, names, severity, **_arguments(kind, given[kind]))


def _columns(kind: ExpectationKind, given: Mapping[str, Any], columns: pa.Schema) -> Iterator[str]:
    if kind == "unique" and "column" not in given:
        wanted = given[kind] if isinstance(given[kind], list | tuple) else [given[kind]]
        if not wanted or any(not isinstance(each, str) for each in wanted):
            raise ConfigurationError(
                f"unique: must list columns, such as [carrier, flight], or be `key` for the Kafka key, not {given[kind]!r}"
            )
        if len(set(wanted)) < len(wanted):
            raise ConfigurationError(f"unique: {given[kind]!r} lists a column twice: keep one of them")
    else:
        wanted = [given.get("column")]
        if wanted[0] is None:
            raise ConfigurationError(f"column: missing: name the column to which {kind!r} applies, as in {_FORM}")
        if kind in ("not_null", "unique") and given[kind] is not True:
            other = ", or a list of columns if there is no `column` field" if kind == "unique" else ""
            raise ConfigurationError(f"{kind}: must be true{other}; got {given[kind]!r}")
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
                f"range: must be a mapping with min, max or both, which are inclusive, such as {{min: 1, max: 12}}, "
                f"not {given!r}"
            )
        return {to: _value(kind, given[of]) for of, to in (("min", "least"), ("max", "most")) if of in given}
    if kind == "pattern":
        if not isinstance(given, str):
            raise ConfigurationError(f"pattern: must be a string with a regular expression, not {given!r}")
        return {"pattern": given}
    return {}


def _value(kind: ExpectationKind, given: Any) -> Value:
    if isinstance(given, str | int | float):
        return given
    if isinstance(given, date):
        # YAML reads a date without quotes as one.
        return given.isoformat()
    raise ConfigurationError(f"{kind}: {given!r} is not a single value: give text, a number, a date, or true or false")


def _hint(name: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(name, known, 1)
    return f"did you mean {close[0]!r}?" if close else f"use one of {', '.join(known)}"


_FIELDS: Final = ("value", "key", "dead_letters", "expect", "revision", "replaces", "repairs", "cluster_by")
_MOST_CLUSTERED: Final = 4
_SHARES: Final = ("warn", "fail")


def decode_declaration(block: Mapping[str, Any]) -> DecodeDeclaration:
    """Parse the block into a declaration. Raises ConfigurationError, which gives the field, its value and the allowed
    values."""
    _check_known("decode", block, _FIELDS)
    if block.get("value") is None:
        raise ConfigurationError("value: missing: add the format of values, such as `value: {format: string}`")
    value = _spec("value", block["value"])
    key = None if block.get("key") is None else _spec("key", block["key"])
    shares = block.get("dead_letters") or {}
    if not isinstance(shares, Mapping):
        raise ConfigurationError(f"dead_letters: must be a mapping such as {{warn: 0.001, fail: 0.05}}, not {shares!r}")
    _check_known("dead_letters", shares, _SHARES)
    given = {f"{name}_share": _share(name, shares[name]) for name in _SHARES if name in shares}
    fields, key_fields = decoder_of(value).fields, None if key is None else decoder_of(key).fields
    if key is not None and key_fields is not None and value.format == debezium.FORMAT and key.format == "json":
        from platform_assets.decoding.debezium.declaration import check_json_key

        try:
            check_json_key(value, key_fields)
        except ConfigurationError as e:
            raise ConfigurationError(f"key: {e}") from e
    columns = decoded_table.columns(key_fields, fields)
    judged = [*fields.names, *(() if key is None else (decoded_table.KEY,))]
    replaces, loses_rows = _replaces(block.get("replaces"))
    return DecodeDeclaration(
        value,
        key,
        **given,
        revision=_revision(block.get("revision", 1)),
        replaces=replaces,
        loses_rows=loses_rows,
        repairs=_repairs(block.get("repairs") or (), value),
        expect=expectations_of(
            block.get("expect") or (), pa.schema([columns.field(name) for name in judged]), checks.NAMES
        ),
        cluster_by=_cluster_by(block.get("cluster_by"), columns),
    )


def _cluster_by(given: Any, columns: pa.Schema) -> tuple[str, ...]:
    """Return the columns by which merged files are sorted. Raises ConfigurationError."""
    if given is None:
        return ()
    if not isinstance(given, list | tuple) or not given or any(not isinstance(name, str) for name in given):
        raise ConfigurationError(f"cluster_by: must be a list of columns such as [carrier, time_hour], not {given!r}")
    if len(given) > _MOST_CLUSTERED:
        raise ConfigurationError(
            f"cluster_by: lists {len(given)} columns, but sorting files by more than {_MOST_CLUSTERED} columns does not speed "
            f"up any filter: keep the first {_MOST_CLUSTERED}"
        )
    for name in given:
        if list(given).count(name) > 1:
            raise ConfigurationError(f"cluster_by: {name!r} is given twice: keep one of them")
        if name not in columns.names:
            raise ConfigurationError(f"cluster_by: there is no column {name!r}: {_hint(name, columns.names)}")
        if not column_bounds.can_cluster(columns.field(name).type):
            raise ConfigurationError(
                f"cluster_by: column {name!r} has the type {decoded_table.type_name(columns.field(name).type)}, but files can be "
                "sorted only by whole numbers, decimals, strings, booleans, dates and timestamps: choose a column of "
                "such a type"
            )
    return tuple(given)


def _spec(side: str, given: Any) -> FormatSpec:
    if not isinstance(given, Mapping) or not isinstance(given.get("format"), str):
        raise ConfigurationError(f"{side}: must be a mapping with a format, such as {{format: string}}, not {given!r}")
    spec = FormatSpec(given["format"], {name: option for name, option in given.items() if name != "format"})
    try:
        decoder_of(spec)
    except ConfigurationError as e:
        raise ConfigurationError(f"{side}: {e}") from e
    return spec


def _share(name: str, given: Any) -> float:
    if not isinstance(given, int | float) or isinstance(given, bool) or not 0 <= given <= 1:
        raise ConfigurationError(f"dead_letters: {name} must be a share from 0 to 1, not {given!r}")
    return float(given)


def _revision(given: Any) -> int:
    if not isinstance(given, int) or isinstance(given, bool) or given < 1:
        raise ConfigurationError(f"revision: must be a whole number of 1 or more, not {given!r}")
    return given


def _replaces(given: Any) -> tuple[str | None, bool]:
    """Return the fingerprint of the columns to replace, and True if the replacement may lose rows."""
    if isinstance(given, Mapping):
        if set(given) != {"columns", "lost_rows"} or given["lost_rows"] != "accepted":
            raise ConfigurationError(
                "replaces: a mapping must have the form {columns: …, lost_rows: accepted}, where `columns` is the text shown in the "
                f"error about the changed columns; got {given!r}"
            )
        return _replaces(given["columns"])[0], True
    if given is not None and (not isinstance(given, str) or not given):
        raise ConfigurationError(
            f"replaces: must be the text shown in the error about the changed columns, in quotes; got {given!r}"
        )
    return given, False


def _repairs(given: Any, spec: FormatSpec) -> tuple[Repair, ...]:
    if not isinstance(given, list | tuple):
        raise ConfigurationError(f"repairs: must be a list of records, not {given!r}")
    found = tuple(_repair(each, spec) for each in given)
    places = [(r.window, r.partition, r.offset) for r in found]
    if doubled := next((place for place in places if places.count(place) > 1), None):
        raise ConfigurationError(
            f"repairs: window {doubled[0]} partition {doubled[1]} offset {doubled[2]} is given twice: keep one of them"
        )
    return found


def _repair(given: Any, spec: FormatSpec) -> Repair:
    kind = "base64" if _takes_bytes(spec) else "value"
    wanted = f'{{window: 2026-01-31-14:00, partition: 0, offset: 17, {kind}: "…"}}'
    kinds = {"value", "base64"} & set(given) if isinstance(given, Mapping) else set()
    if len(kinds) != 1 or set(given) != {"window", "partition", "offset", *kinds}:
        raise ConfigurationError(f"repairs: each entry must have the form {wanted}, not {given!r}")
    window, value, binary = given["window"], given.get("value", given.get("base64")), "base64" in kinds
    numbers = [given["partition"], given["offset"]]
    try:
        edge_of(window)
    except (ValueError, TypeError) as e:
        raise ConfigurationError(f"repairs: {window!r} is not a window key, such as 2026-01-31-14:00") from e
    if not isinstance(value, str) or any(not isinstance(n, int) or isinstance(n, bool) or n < 0 for n in numbers):
        raise ConfigurationError(
            f"repairs: partition and offset must be whole numbers, and the value a quoted string, as in {wanted}; got {given!r}"
        )
    place = f"repairs: window {window} partition {given['partition']} offset {given['offset']}"
    if not binary and _takes_bytes(spec):
        head = " that begin with the five bytes of the schema id" if spec.options.get("registry") else ""
        raise ConfigurationError(
            f"{place} gives `value`, which is text, but values in format {spec.format!r} are bytes{head}: give the bytes as "
            "`base64: …`, as printed by the command base64"
        )
    try:
        content = base64.b64decode(value, validate=True) if binary else b""
    except ValueError as e:
        raise ConfigurationError(
            f"{place}: {value!r} is not valid base64 ({e}): give the output of the command base64"
        ) from e
    if len(content) > MOST_BYTES:
        raise ConfigurationError(
            f"{place}: the decoded base64 has {len(content):,} bytes, but a value can have at most {MOST_BYTES:,}"
        )
    return Repair(window, given["partition"], given["offset"], value, binary)


def _takes_bytes(spec: FormatSpec) -> bool:
    """Return True if values in this format cannot be written as text, because they are binary or begin with a schema
    id."""
    in_front = bool(spec.options.get("registry")) and spec.options.get("id", "prefix") != "header"
    return in_front or FORMATS[spec.format].binary


def _check_known(where: str, given: Mapping[str, Any], known: tuple[str, ...]) -> None:
    for name in given:
        if name not in known:
            close = difflib.get_close_matches(str(name), known, 1)
            hint = f"did you mean {close[0]!r}?" if close else f"use one of {', '.join(known)}"
            raise ConfigurationError(f"{where}: unknown field {name!r}: {hint}")
