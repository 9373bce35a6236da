"""Declaration of a JSON decoder: columns, timestamp formats and bounds. docs/json-dialect.md describes each of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, cast, get_args

import pyarrow as pa

from platform_assets.decoding.json.scalars import Form
from platform_assets.decoding.options import MOST_BYTES, Options
from platform_assets.decoding.schema import schema_of_ddl, schema_of_json_schema
from platform_assets.errors import ConfigurationError
from platform_assets.model.decoding import FormatSpec

Timestamps = Literal["iso8601", "iso8601_or_utc", "iso8601_lenient", "seconds", "milliseconds", "microseconds"]
TIMESTAMPS: Final[tuple[Timestamps, ...]] = get_args(Timestamps)

DEFAULT_DEPTH: Final = 100
MOST_DEPTH: Final = 500
"""Maximum depth of nesting. It is less than Python's recursion limit, which limits the parser of the exact path."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """The fields that become columns, and other settings for the conversion of values.

    `renamed` lists the fields whose columns have different names, as pairs of the field's name in the value and the
    column's name.
    """

    fields: pa.Schema
    timestamps: Timestamps = "iso8601"
    max_depth: int = DEFAULT_DEPTH
    max_bytes: int = MOST_BYTES
    renamed: tuple[tuple[str, str], ...] = ()

    @property
    def columns(self) -> pa.Schema:
        """The columns, in the order of `fields`."""
        if not self.renamed:
            return self.fields
        names = dict(self.renamed)
        return pa.schema([field.with_name(names.get(field.name, field.name)) for field in self.fields])

    @property
    def form(self) -> Form:
        """The accepted text format of timestamps."""
        forms: dict[Timestamps, Form] = {"iso8601_or_utc": "or_utc", "iso8601_lenient": "lenient"}
        return forms.get(self.timestamps, "strict")

    @property
    def decimals(self) -> int | None:
        """Number of decimal digits by which a number is shifted to become microseconds, or None if timestamps are
        strings."""
        return {"seconds": 6, "milliseconds": 3, "microseconds": 0}.get(self.timestamps)


def dialect(spec: FormatSpec) -> Dialect:
    """Return the dialect that the options of the format `json` declare. Raises ConfigurationError, which names the
    option."""
    options = Options(spec, ("schema", "json_schema", "columns", "timestamps", "max_depth", "max_bytes"))
    given = spec.options
    if ("schema" in given) == ("json_schema" in given):
        raise ConfigurationError(
            f"format {spec.format!r} needs the option `schema` (Spark DDL) or `json_schema` to declare its columns"
        )
    fields, renamed = _renamed(options, given)
    timestamps = cast(Timestamps, options.one_of("timestamps", TIMESTAMPS, TIMESTAMPS[0]))
    depth = given.get("max_depth", DEFAULT_DEPTH)
    if type(depth) is not int or not 1 <= depth <= MOST_DEPTH:
        raise options.wrong("max_depth", f"a number of levels from 1 to {MOST_DEPTH}")
    return Dialect(fields, timestamps, depth, options.max_bytes(), renamed)


def _renamed(options: Options, given: Mapping[str, Any]) -> tuple[pa.Schema, tuple[tuple[str, str], ...]]:
    """Return the fields of values, and the fields whose columns have a different name. Raises ConfigurationError."""
    names = given.get("columns", {})
    if not isinstance(names, Mapping) or not all(isinstance(n, str) and n for pair in names.items() for n in pair):
        raise options.wrong("columns", "a mapping of columns to fields of the value, such as {order_key: key}")
    if len(set(names.values())) < len(names):
        raise options.wrong("columns", "a mapping that gives each field of the value to only one column")
    if "schema" in given:
        declared = schema_of_ddl(given["schema"])
        _check_declared(declared.names, names, "`schema` declares no such column")
        fields = pa.schema([field.with_name(names.get(field.name, field.name)) for field in declared])
        if len(set(fields.names)) < len(fields.names):
            raise options.wrong("columns", "a mapping in which no field has the name of another column of `schema`")
        return fields, tuple((field, column) for column, field in names.items())
    columns = {field: column for column, field in names.items()}
    fields = schema_of_json_schema(given["json_schema"], columns)
    _check_declared(fields.names, columns, "`json_schema` has no such property")
    return fields, tuple(columns.items())


def _check_declared(known: list[str], names: Mapping[str, str], why: str) -> None:
    for name in names:
        if name not in known:
            raise ConfigurationError(f"columns: {name!r}: {why}; available: {', '.join(known)[:200]}")
