"""Decoding of a block one value at a time, for every format. Each format supplies a function that decodes a single
value."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import pyarrow as pa

from platform_assets.decoding.decoder import DeadLetter, Decoded, DecodeFault, dead_letters

Row: TypeAlias = tuple[Mapping[str, Any], str | None]
"""Function that returns two results for one value: its columns by name, and its rescued fields as a string, or None if
nothing is rescued."""


def decoded(fields: pa.Schema, values: pa.BinaryArray, read: Callable[[bytes], Row]) -> Decoded:
    """Decode each value with `read` into the columns `fields`. If `read` raises DecodeFault for a value, the value
    becomes a dead letter."""
    rows: list[Mapping[str, Any]] = []
    rescued: list[str | None] = []
    dead: list[DeadLetter] = []
    nothing: Mapping[str, Any] = dict.fromkeys(fields.names)
    for number, value in enumerate(values.to_pylist()):
        row, lacking = nothing, None
        if value is not None:
            try:
                row, lacking = read(value)
            except DecodeFault as fault:
                dead.append(DeadLetter(number, fault.reason, fault.place, fault.detail))
        rows.append(row)
        rescued.append(lacking)
    arrays = [pa.array([row[field.name] for row in rows], field.type) for field in fields]
    columns = pa.RecordBatch.from_arrays(arrays, schema=fields)
    return Decoded(columns, pa.array(rescued, pa.string()), dead_letters(dead))
