"""What a declared schema changes of a table's: additions, which old rows have as null, and all else, which is refused. Pure.

Old files stay as they are, so a column keeps its place, its name and its type for as long as the table does.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from typing import Final

import pyarrow as pa

REQUIRED: Final = "platform_assets.required"
"""Metadata of a column that has a value in each row that is no tombstone. Delta's own constraint would refuse those."""

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
    """A type as Spark's DDL has it."""
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
    """Names the columns of a table, their types and which are required; comments are no part of it."""
    text = "\n".join(f"{f.name} {type_name(f.type)} {is_required(f)}" for f in schema)
    return sha256(text.encode()).hexdigest()[:12]


def is_required(field: pa.Field) -> bool:
    """Whether a column was declared `NOT NULL`."""
    return (field.metadata or {}).get(REQUIRED.encode()) == b"true"


def breaking(table: pa.Schema, declared: pa.Schema) -> tuple[str, ...]:
    """What `declared` changes of the columns of `table` other than to add some, a sentence each, in order of the table."""
    return tuple(_breaking({f.name: f for f in table}, {f.name: f for f in declared}, ""))


def merged(table: pa.Schema, declared: pa.Schema, last: tuple[str, ...] = ()) -> pa.Schema:
    """The columns of `table` in their order, then what `declared` adds, then the columns `last`; comments as declared.

    Nothing may be `breaking`.
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
            yield f"{place} becomes NOT NULL, and rows of the table may lack it"


def _retyped(table: pa.DataType, declared: pa.DataType, place: str) -> Iterator[str]:
    if pa.types.is_struct(table) and pa.types.is_struct(declared):
        yield from _breaking({f.name: f for f in table}, {f.name: f for f in declared}, f"{place}.")
    elif pa.types.is_list(table) and pa.types.is_list(declared):
        yield from _retyped(table.value_type, declared.value_type, f"{place}[]")
    elif pa.types.is_map(table) and pa.types.is_map(declared):
        yield from _retyped(table.item_type, declared.item_type, f"{place}{{}}")
    elif table != declared:
        yield f"{place} is {type_name(table)} in the table and {type_name(declared)} as declared"


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
