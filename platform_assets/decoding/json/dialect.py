"""What is declared of a JSON decoder: columns, how timestamps are written, bounds; docs/json-dialect.md says what each means."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

import pyarrow as pa

from platform_assets.decoding.schema import schema_of_ddl, schema_of_json_schema
from platform_assets.errors import ConfigurationError

Timestamps = Literal["iso8601", "iso8601_or_utc", "seconds", "milliseconds", "microseconds"]
TIMESTAMPS: Final[tuple[Timestamps, ...]] = get_args(Timestamps)

DEFAULT_DEPTH: Final = 100
MOST_DEPTH: Final = 500
"""Below what Python's own recursion allows, which the exact path's parser is bounded by."""
DEFAULT_BYTES: Final = 16 << 20
MOST_BYTES: Final = 256 << 20
_OPTIONS: Final = ("schema", "json_schema", "timestamps", "max_depth", "max_bytes")


@dataclass(frozen=True, slots=True)
class Dialect:
    """The columns of a value, and what else decides on what it becomes."""

    fields: pa.Schema
    timestamps: Timestamps = "iso8601"
    max_depth: int = DEFAULT_DEPTH
    max_bytes: int = DEFAULT_BYTES

    @property
    def decimals(self) -> int | None:
        """Digits behind the point that turn a number into microseconds; None where timestamps are text."""
        return {"seconds": 6, "milliseconds": 3, "microseconds": 0}.get(self.timestamps)


def dialect(options: Mapping[str, Any]) -> Dialect:
    """As the options of a format `json` declare it. Raises ConfigurationError, which names the option."""
    for name in options:
        if name not in _OPTIONS:
            raise ConfigurationError(f"json: there is no option {name!r}; there are: {', '.join(_OPTIONS)}")
    if ("schema" in options) == ("json_schema" in options):
        raise ConfigurationError(
            "json: one of `schema` (Spark DDL) and `json_schema` declares the columns; give one of them"
        )
    fields = schema_of_ddl(options["schema"]) if "schema" in options else schema_of_json_schema(options["json_schema"])
    timestamps = options.get("timestamps", TIMESTAMPS[0])
    if timestamps not in TIMESTAMPS:
        raise ConfigurationError(f"json: timestamps is {timestamps!r}; it may be: {', '.join(TIMESTAMPS)}")
    return Dialect(
        fields,
        timestamps,
        _bound(options, "max_depth", DEFAULT_DEPTH, MOST_DEPTH),
        _bound(options, "max_bytes", DEFAULT_BYTES, MOST_BYTES),
    )


def _bound(options: Mapping[str, Any], name: str, default: int, most: int) -> int:
    value = options.get(name, default)
    if type(value) is not int or not 1 <= value <= most:
        raise ConfigurationError(f"json: {name} is {value!r}; it may be a number from 1 to {most}")
    return value
