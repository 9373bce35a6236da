"""Decoding of a block value by value, for every format: columns, rescued texts and dead letters from a function of one value."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import pyarrow as pa

from platform_assets.decoding.decoder import DeadLetter, Decoded, DecodeFault, dead_letters

Row: TypeAlias = tuple[Mapping[str, Any], str | None]
"""The columns of a value by name, and its rescued text; None if nothing is rescued."""


def decoded(fields: pa.Schema, values: pa.BinaryArray, read: Callable[[bytes], Row]) -> Decoded:
    """Decode each value with `read` into the columns `fields`; a value for which it raises DecodeFault becomes a dead letter."""
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
