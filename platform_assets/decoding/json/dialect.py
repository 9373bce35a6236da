"""What is declared of a JSON decoder: columns, how timestamps are written, bounds; docs/json-dialect.md says what each means."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, cast, get_args

import pyarrow as pa

from platform_assets.decoding.options import MOST_BYTES, Options
from platform_assets.decoding.schema import schema_of_ddl, schema_of_json_schema
from platform_assets.errors import ConfigurationError
from platform_assets.model.decoding import FormatSpec

Timestamps = Literal["iso8601", "iso8601_or_utc", "seconds", "milliseconds", "microseconds"]
TIMESTAMPS: Final[tuple[Timestamps, ...]] = get_args(Timestamps)

DEFAULT_DEPTH: Final = 100
MOST_DEPTH: Final = 500
"""Below what Python's own recursion allows, which the exact path's parser is bounded by."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """The columns of a value, and what else decides on what it becomes."""

    fields: pa.Schema
    timestamps: Timestamps = "iso8601"
    max_depth: int = DEFAULT_DEPTH
    max_bytes: int = MOST_BYTES

    @property
    def decimals(self) -> int | None:
        """Digits behind the point that turn a number into microseconds; None where timestamps are text."""
        return {"seconds": 6, "milliseconds": 3, "microseconds": 0}.get(self.timestamps)


def dialect(spec: FormatSpec) -> Dialect:
    """As the options of a format `json` declare it. Raises ConfigurationError, which names the option."""
    options = Options(spec, ("schema", "json_schema", "timestamps", "max_depth", "max_bytes"))
    given = spec.options
    if ("schema" in given) == ("json_schema" in given):
        raise ConfigurationError(
            f"format {spec.format!r} needs one of the options `schema` (Spark DDL) and `json_schema`, which declare its columns"
        )
    fields = schema_of_ddl(given["schema"]) if "schema" in given else schema_of_json_schema(given["json_schema"])
    timestamps = cast(Timestamps, options.one_of("timestamps", TIMESTAMPS, TIMESTAMPS[0]))
    depth = given.get("max_depth", DEFAULT_DEPTH)
    if type(depth) is not int or not 1 <= depth <= MOST_DEPTH:
        raise options.wrong("max_depth", f"a number of levels from 1 to {MOST_DEPTH}")
    return Dialect(fields, timestamps, depth, options.max_bytes())
