"""Differences of a declared schema and a table's: additions, null in old rows, and all others, which are refused. Pure.

Old files stay as they are, so a column keeps its place, its name and its type for as long as the table exists.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from typing import Final

import pyarrow as pa

REQUIRED: Final = "platform_assets.required"
"""Metadata of a column with a value in each row except tombstones, which Delta's own constraint would refuse."""

_NAMES: Final = {
    pa.bool_(): "BOOLEAN",
    pa.int8(): "TINYINT",
    pa.int16(): "SMALLINT",
    pa.int32(): "INT",
    pa.int64(): "BIGINT",
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
    pa.string(): "STRING",
    pa.binary(): "BINARY",
    pa.date32(): "DATE",
}
Fields = dict[str, pa.Field]


def type_name(kind: pa.DataType) -> str:
    """Return a type in Spark's DDL."""
    if pa.types.is_struct(kind):
        return f"STRUCT<{', '.join(f'{f.name}: {type_name(f.type)}' for f in kind)}>"
    if pa.types.is_list(kind):
        return f"ARRAY<{type_name(kind.value_type)}>"
    if pa.types.is_map(kind):
        return f"MAP<{type_name(kind.key_type)}, {type_name(kind.item_type)}>"
    if pa.types.is_decimal(kind):
        return f"DECIMAL({kind.precision}, {kind.scale})"
    return "TIMESTAMP" if pa.types.is_timestamp(kind) else _NAMES.get(kind, str(kind))


def fingerprint(schema: pa.Schema) -> str:
    """Return a fingerprint of a table's columns, their types and which are required; comments do not count."""
    text = "\n".join(f"{f.name} {type_name(f.type)} {is_required(f)}" for f in schema)
    return sha256(text.encode()).hexdigest()[:12]


def is_required(field: pa.Field) -> bool:
    """Return true if a column was declared `NOT NULL`."""
    return (field.metadata or {}).get(REQUIRED.encode()) == b"true"


def breaking(table: pa.Schema, declared: pa.Schema) -> tuple[str, ...]:
    """Return the changes of `declared` to the columns of `table` other than additions, one sentence each, in table order."""
    return tuple(_breaking({f.name: f for f in table}, {f.name: f for f in declared}, ""))


def merged(table: pa.Schema, declared: pa.Schema, last: tuple[str, ...] = ()) -> pa.Schema:
    """Return the columns of `table` in their order, then those that `declared` adds, then `last`; comments as declared.

    No change may be `breaking`.
    """
    fields = _merged(list(table), list(declared))
    return pa.schema([f for f in fields if f.name not in last] + [f for name in last for f in fields if f.name == name])


def _breaking(table: Fields, declared: Fields, below: str) -> Iterator[str]:
    added = [f for name, f in declared.items() if name not in table]
    for name, field in table.items():
        place = f"{below}{name}"
        now = declared.get(name)
        if now is None:
            alike = [f.name for f in added if f.type == field.type]
            renamed = f", or renamed to {below}{alike[0]}" if len(alike) == 1 else ""
            yield f"{place} {type_name(field.type)} is dropped{renamed}"
            continue
        yield from _retyped(field.type, now.type, place)
        if is_required(now) and not is_required(field):
            yield f"{place} becomes NOT NULL, but rows of the table may lack it"


def _retyped(table: pa.DataType, declared: pa.DataType, place: str) -> Iterator[str]:
    if pa.types.is_struct(table) and pa.types.is_struct(declared):
        yield from _breaking({f.name: f for f in table}, {f.name: f for f in declared}, f"{place}.")
    elif pa.types.is_list(table) and pa.types.is_list(declared):
        yield from _retyped(table.value_type, declared.value_type, f"{place}[]")
    elif pa.types.is_map(table) and pa.types.is_map(declared):
        yield from _retyped(table.item_type, declared.item_type, f"{place}{{}}")
    elif table != declared:
        yield f"{place} is {type_name(table)} in the table but {type_name(declared)} in the declaration"


def _merged(table: list[pa.Field], declared: list[pa.Field]) -> list[pa.Field]:
    now = {f.name: f for f in declared}
    known = {f.name for f in table}
    kept = [now[f.name].with_type(_merged_type(f.type, now[f.name].type)) for f in table]
    return kept + [f for f in declared if f.name not in known]


def _merged_type(table: pa.DataType, declared: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(table):
        return pa.struct(_merged(list(table), list(declared)))
    if pa.types.is_list(table):
        return pa.list_(table.value_field.with_type(_merged_type(table.value_type, declared.value_type)))
    if pa.types.is_map(table):
        return pa.map_(table.key_type, table.item_field.with_type(_merged_type(table.item_type, declared.item_type)))
    return table
