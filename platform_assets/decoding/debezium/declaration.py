"""Declaration of a Debezium decoder: the columns of the row, the columns for facts about the change, and the settings
of the connector that determine how it writes values. docs/debezium.md describes them."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final
from uuid import UUID

import pyarrow as pa

from platform_assets.decoding.json.dialect import DEFAULT_DEPTH, MOST_DEPTH
from platform_assets.decoding.options import MOST_BYTES, Options
from platform_assets.decoding.schema import checked, schema_of_ddl, type_name
from platform_assets.errors import ConfigurationError
from platform_assets.model import debezium
from platform_assets.model.decoding import FormatSpec

DECIMALS: Final = "decimal.handling.mode"
TIMES: Final = "time.precision.mode"
BYTES: Final = "binary.handling.mode"
PLACEHOLDER: Final = "unavailable.value.placeholder"
_MODES: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        DECIMALS: ("precise", "string", "double"),
        TIMES: (
            "adaptive",
            "adaptive_time_microseconds",
            "connect",
            "isostring",
            "microseconds",
            "nanoseconds",
        ),
        BYTES: ("bytes", "base64", "base64-url-safe", "hex"),
    }
)
"""Settings of the connector and their values, the connector's default first."""
_UNAVAILABLE: Final = "__debezium_unavailable_value"
_WITH_PLACEHOLDER: Final = (pa.string(), pa.binary(), pa.int32(), pa.int64())
"""Types of elements of arrays for which the connector has a placeholder."""
_WITHOUT_PLACEHOLDER: Final = ("base64", "base64-url-safe")
"""Modes of bytes in which the connector has no placeholder."""
_OF_POINT: Final = frozenset({"x", "y"})
EXACT_DIGITS: Final = 15
"""Number of decimal digits that survive a conversion to a double and back."""
NANOS_PER_UNIT: Final = MappingProxyType({"connect": 1_000_000, "nanoseconds": 1})
MILLISECOND: Final = 1_000_000
MICROSECOND: Final = 1_000
FACTS: Final = pa.schema(
    [
        pa.field(debezium.DEFAULT_NAMES[fact], kind, fact != debezium.OPERATION, {"comment": comment})
        for fact, kind, comment in (
            (
                debezium.OPERATION,
                pa.string(),
                "c created, r read by a snapshot, u updated, d deleted, t table truncated",
            ),
            (debezium.LSN, pa.int64(), "position of the change in the database's log"),
            (debezium.SEQUENCE, pa.string(), "JSON list of the positions of the last commit and of the change"),
            (debezium.TX_ID, pa.int64(), "id of the database's transaction"),
            (debezium.TIMESTAMP, pa.timestamp("us", tz="UTC"), "time of the change in the database"),
            (debezium.SNAPSHOT, pa.string(), "false for a streamed change, or the place in a snapshot"),
        )
    ]
)
"""The columns of facts about a change."""


@dataclass(frozen=True, slots=True)
class Declared:
    """Declaration of a topic's change events.

    `row` has the columns of the table in the database. They may be required, but only for creates, reads and updates.
    `facts` has the columns of facts about the change, under their declared names, in the order of `FACTS`.
    `milliseconds` names the timestamp columns that the connector writes in milliseconds.
    """

    row: pa.Schema
    facts: pa.Schema
    decimals: str = "precise"
    times: str = "adaptive"
    binary: str = "bytes"
    placeholder: str = _UNAVAILABLE
    milliseconds: frozenset[str] = frozenset()
    max_depth: int = DEFAULT_DEPTH
    max_bytes: int = MOST_BYTES

    @property
    def columns(self) -> pa.Schema:
        """All columns of the decoder. Columns of the row can be null, because a truncate has no row."""
        return pa.schema([*(field.with_nullable(True) for field in self.row), *self.facts])

    def unit(self, column: str) -> int:
        """Return the number of nanoseconds in the unit in which the connector writes timestamps of a column."""
        if column in self.milliseconds:
            return MILLISECOND
        return NANOS_PER_UNIT.get(self.times, MICROSECOND)

    @property
    def placeholder_bytes(self) -> bytes:
        """The bytes of the placeholder, which the connector also writes as numbers, one for each byte."""
        return placeholder_bytes(self.placeholder)

    def placeholders(self) -> tuple[str, ...]:
        """Return the texts that stand for a TOASTed value that was not sent: the placeholder, its bytes as base64, as
        base64 for URLs, in hex, and as a UUID, and the placeholder as a JSON object."""
        content = self.placeholder_bytes
        text = content.decode(errors="replace")
        encoded = base64.b64encode(content).decode()
        named = str(UUID(bytes=hashlib.md5(content, usedforsecurity=False).digest(), version=3))
        pair = json.dumps({text: text}, separators=(",", ":"), ensure_ascii=False)
        return text, encoded, encoded.translate(str.maketrans("+/", "-_")), content.hex(), named, pair

    def may_be_unsent(self, kind: pa.DataType) -> bool:
        """Return True if the connector may write null for a TOASTed value that was not sent. It has no placeholder for
        these types of arrays, for bytes in base64, and for objects such as PostGIS' geometry."""
        if pa.types.is_list(kind):
            return not any(each in _WITH_PLACEHOLDER for each in leaves(kind.value_type))
        if pa.types.is_struct(kind):
            # A point always has 16 bytes, which are never TOASTed.
            return not {kind.field(index).name for index in range(kind.num_fields)} >= _OF_POINT
        return bool(pa.types.is_binary(kind)) and self.binary in _WITHOUT_PLACEHOLDER


def placeholder_bytes(written: str) -> bytes:
    """Return the bytes of a placeholder, which are in hex after the prefix `hex:`. Raises ValueError."""
    return bytes.fromhex(written[4:]) if written.lower().startswith("hex:") else written.encode()


def declared(spec: FormatSpec, *, by_registry: bool = False) -> Declared:
    """Return what the options of the format `debezium` declare. With `by_registry`, each value has a schema, which shows
    the modes of decimals and times, so these are not declared. Raises ConfigurationError, which names the option."""
    known = ("schema", "connector", debezium.ENVELOPE, "milliseconds", "max_depth", "max_bytes")
    if by_registry:
        _check_registry(spec)
    options = Options(spec, known)
    if "schema" not in spec.options:
        raise ConfigurationError(
            "format 'debezium' needs the option `schema` (Spark DDL), which declares the table's columns"
        )
    row = schema_of_ddl(spec.options["schema"])
    settings = _settings(options, spec.options.get("connector", {}))
    facts = _facts(options, spec.options.get(debezium.ENVELOPE, {}))
    checked(pa.schema([*row, *facts]), f"schema and {debezium.ENVELOPE}")
    depth = spec.options.get("max_depth", DEFAULT_DEPTH)
    if type(depth) is not int or not 1 <= depth <= MOST_DEPTH:
        raise options.wrong("max_depth", f"a number of levels from 1 to {MOST_DEPTH}")
    for field in row:
        _check_decimals(field, settings[DECIMALS])
    return Declared(
        row,
        facts,
        settings[DECIMALS],
        settings[TIMES],
        settings[BYTES],
        settings[PLACEHOLDER],
        _milliseconds(options, spec.options.get("milliseconds", []), row, settings[TIMES]),
        depth,
        options.max_bytes(),
    )


def check_json_key(value: FormatSpec, key: pa.Schema) -> None:
    """Raise ConfigurationError if the format `json` cannot read the columns of `key` as the connector writes them, which
    would make each record a dead letter, or read other bytes. `value` declares the topic's change events."""
    connector = value.options.get("connector", {})
    modes = {name: connector.get(name, known[0]) for name, known in _MODES.items()}
    for field in key:
        for kind in leaves(field.type):
            wrong = None
            if pa.types.is_date(kind):
                wrong = (
                    "a date as days or, with `isostring`, as text ending with Z",
                    f"INT or, with `{TIMES}: isostring`, STRING",
                )
            elif pa.types.is_decimal(kind) and modes[DECIMALS] != "double" and "registry" not in value.options:
                wrong = (
                    "a decimal as text or bytes",
                    f"STRING, and set `{DECIMALS}` to `string` in the connector and in `value`",
                )
            elif pa.types.is_binary(kind) and modes[BYTES] in ("hex", "base64-url-safe"):
                wrong = f"bytes as {modes[BYTES]}", "STRING"
            if wrong is not None:
                raise ConfigurationError(
                    f"column {field.name!r} is {type_name(kind)}, but the connector writes {wrong[0]} in the record's key, which "
                    f"`format: json` cannot read: declare the column in `key` and in `value` as {wrong[1]}; or let the connector "
                    "write keys in Avro"
                )


def _check_registry(spec: FormatSpec) -> None:
    """Raise ConfigurationError if an option declares what a registry's schema shows, or applies only to JSON."""
    connector = spec.options.get("connector")
    given = [f"connector: {name}" for name in (DECIMALS, TIMES) if isinstance(connector, Mapping) and name in connector]
    for name in [*given, *(name for name in ("milliseconds", "max_depth") if name in spec.options)]:
        why = "applies only to JSON" if name == "max_depth" else "is in the schema of each value"
        raise ConfigurationError(f"{name}: with `registry`, this {why}: leave it out")


def _settings(options: Options, given: Any) -> dict[str, str]:
    found = {**{name: modes[0] for name, modes in _MODES.items()}, PLACEHOLDER: _UNAVAILABLE}
    if not isinstance(given, Mapping):
        raise options.wrong("connector", f"a mapping of the connector's settings, such as {{{DECIMALS}: string}}")
    for name, value in given.items():
        if name not in found:
            raise ConfigurationError(
                f"connector: {name!r} does not matter to the decoder; the settings that do are: {', '.join(found)}. "
                "Leave it out"
            )
        if name in _MODES and value not in _MODES[name]:
            raise ConfigurationError(f"connector: {name} is {value!r}; it must be one of: {', '.join(_MODES[name])}")
        if not isinstance(value, str) or not value:
            raise ConfigurationError(f"connector: {name} is {value!r}; it must be a non-empty string")
        found[name] = value
    try:
        empty = not placeholder_bytes(found[PLACEHOLDER])
    except ValueError:
        empty = True
    if empty:
        raise ConfigurationError(
            f"connector: {PLACEHOLDER} is {found[PLACEHOLDER]!r}; two hexadecimal digits for each byte must follow `hex:`"
        )
    return found


def _facts(options: Options, given: Any) -> pa.Schema:
    names = debezium.DEFAULT_NAMES
    is_mapping = isinstance(given, Mapping) and all(
        name in names and isinstance(column, str) and column for name, column in given.items()
    )
    if not is_mapping:
        raise options.wrong(debezium.ENVELOPE, f"a mapping of {', '.join(names)} to other names of columns")
    return pa.schema([FACTS.field(column).with_name(given.get(fact, column)) for fact, column in names.items()])


def _milliseconds(options: Options, given: Any, row: pa.Schema, times: str) -> frozenset[str]:
    if not isinstance(given, list | tuple) or any(not isinstance(each, str) for each in given):
        raise options.wrong("milliseconds", "a list of columns, such as [placed]")
    for name in given:
        if name not in row.names or not any(map(pa.types.is_timestamp, leaves(row.field(name).type))):
            raise ConfigurationError(f"milliseconds: {name!r} is not a TIMESTAMP column of `schema`: leave it out")
        if not times.startswith("adaptive"):
            raise ConfigurationError(
                f"milliseconds: with {TIMES}: {times}, all columns have the same unit: leave this option out"
            )
    return frozenset(given)


def leaves(kind: pa.DataType) -> Iterator[pa.DataType]:
    """Yield the types in a type that are not nested."""
    if pa.types.is_struct(kind):
        for index in range(kind.num_fields):
            yield from leaves(kind.field(index).type)
    elif pa.types.is_list(kind):
        yield from leaves(kind.value_type)
    elif pa.types.is_map(kind):
        yield from leaves(kind.item_type)
    else:
        yield kind


def _check_decimals(field: pa.Field, mode: str) -> None:
    for kind in leaves(field.type):
        if pa.types.is_decimal(kind) and mode == "double" and kind.precision > EXACT_DIGITS:
            raise ConfigurationError(
                f"schema: column {field.name!r} is {type_name(kind)}, but with {DECIMALS}: double the connector writes doubles, "
                f"which have {EXACT_DIGITS} exact digits: set `{DECIMALS}` to `string` in the connector and here, or declare "
                "DOUBLE"
            )
