"""Field ids of a table's columns, including nested columns. Readers of Iceberg need them to find a column in a data
file.

A flat table stores the ids in the metadata of its columns, so that they survive an OPTIMIZE by other programs: delta-rs
and Spark write a column's `parquet.field.id` into each file. Delta has no place for the ids of elements, keys and
values, so these ids are in the metadata of the surrounding column. An id never changes, and the id of a dropped column
is never used again.

This module imports neither Delta nor Spark, so that Spark's Python workers can load it quickly.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

FIELD_ID: Final = b"PARQUET:field_id"
"""Metadata of an Arrow field; delta-rs translates it to and from `parquet.field.id`."""
NESTED: Final = b"platform_assets.nested_ids"
"""Metadata of a column of lists or maps: a JSON object with ids by their paths below the column, for example `element`
and `key.element`."""
LAST: Final = b"platform_assets.last_field_id"
"""Metadata of the column `window`: the largest id that any column of the table has ever had."""
_WINDOW: Final = "window"
_MOST: Final = (1 << 31) - 1

Path = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FieldIds:
    """The ids of a table's columns by their paths, which consist of names, and of `element`, `key` or `value`. Empty
    for a partitioned table."""

    pairs: tuple[tuple[Path, int], ...] = ()

    def in_file(self, schema: pa.Schema) -> pa.Schema:
        """Return the columns of a file with their ids, in the form that the Parquet writer expects."""
        known = dict(self.pairs)
        return pa.schema([_in_file(field, (field.name,), known) for field in schema])


NO_IDS: Final = FieldIds()


def ids_of(schema: pa.Schema) -> FieldIds:
    """Return the ids in the columns of a table."""
    return FieldIds(tuple(sorted((path, number) for path, _, number in _found(list(schema), ()) if number is not None)))


def has_ids(file: pa.Schema, ids: FieldIds) -> bool:
    """Return True if the columns of a file have these ids. Nested fields are ignored, because some writers omit their
    ids."""
    known = dict(ids.pairs)
    return all(_number((f.metadata or {}).get(FIELD_ID)) == known.get((f.name,)) for f in file)


def assigned(columns: pa.Schema, now: pa.Schema | None = None) -> pa.Schema:
    """Return the columns of a flat table with an id for each column: the id that it has among the columns `now`, or
    otherwise a new id. Pure.

    A column whose type changes counts as new.
    """
    before = {} if now is None else {path: (kind, number) for path, kind, number in _found(list(now), ())}
    numbers = [number for _, number in before.values() if number is not None]
    last = max([_last(now), *numbers])
    given: dict[Path, int] = {}
    taken = set[int]()
    for path, kind, _ in _found(list(columns), ()):
        known, number = before.get(path, (None, None))
        if number is None or number in taken or known is None or not _is_like(known, kind):
            last += 1
            number = last
        given[path] = number
        taken.add(number)
    return pa.schema([_with_ids(field, (field.name,), given, last) for field in columns])


def _found(fields: list[pa.Field], above: Path) -> Iterator[tuple[Path, pa.DataType, int | None]]:
    """Yield the path, type and id of each field, and of each element, key and value."""
    for field in fields:
        path = (*above, field.name)
        yield path, field.type, _number((field.metadata or {}).get(FIELD_ID))
        yield from _within(field.type, path, (), _nested(field))


def _within(
    kind: pa.DataType, column: Path, below: Path, ids: dict[str, int]
) -> Iterator[tuple[Path, pa.DataType, int | None]]:
    if pa.types.is_struct(kind):
        yield from _found(list(kind), (*column, *below))
    for name, inner in _parts(kind):
        at = (*below, name)
        yield (*column, *at), inner, ids.get(".".join(at))
        yield from _within(inner, column, at, ids)


def _parts(kind: pa.DataType) -> tuple[tuple[str, pa.DataType], ...]:
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return (("element", kind.value_type),)
    if pa.types.is_map(kind):
        return (("key", kind.key_type), ("value", kind.item_type))
    return ()


def _is_like(one: pa.DataType, other: pa.DataType) -> bool:
    for is_of in (pa.types.is_struct, pa.types.is_list, pa.types.is_map):
        if is_of(one) or is_of(other):
            return bool(is_of(one) and is_of(other))
    return bool(one == other)


def _number(text: bytes | None) -> int | None:
    """Return an id; None for a value that is not an id, which another writer may have stored there."""
    if text is None or not text.isdigit() or len(text) > len(str(_MOST)):
        return None
    number = int(text)
    return number if 0 < number <= _MOST else None


def _nested(field: pa.Field) -> dict[str, int]:
    try:
        found = json.loads((field.metadata or {}).get(NESTED) or b"{}")
    except ValueError:
        return {}
    if not isinstance(found, dict):
        return {}
    return {path: n for path, n in found.items() if type(n) is int and 0 < n <= _MOST}


def _last(columns: pa.Schema | None) -> int:
    if columns is None or _WINDOW not in columns.names:
        return 0
    return _number((columns.field(_WINDOW).metadata or {}).get(LAST)) or 0


def _with_ids(field: pa.Field, path: Path, given: dict[Path, int], last: int) -> pa.Field:
    """Return a column of a table with ids in its metadata."""
    nested = {".".join(p[len(path) :]): given[p] for p in _nested_paths(field.type, path)}
    metadata = {k: v for k, v in (field.metadata or {}).items() if k not in (FIELD_ID, NESTED, LAST)}
    metadata[FIELD_ID] = str(given[path]).encode()
    if nested:
        metadata[NESTED] = json.dumps(nested, separators=(",", ":")).encode()
    if path == (_WINDOW,):
        metadata[LAST] = str(last).encode()
    return field.with_type(_type_with_ids(field.type, path, given, last)).with_metadata(metadata)


def _nested_paths(kind: pa.DataType, path: Path) -> Iterator[Path]:
    for name, inner in _parts(kind):
        yield (*path, name)
        yield from _nested_paths(inner, (*path, name))


def _type_with_ids(kind: pa.DataType, path: Path, given: dict[Path, int], last: int) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([_with_ids(f, (*path, f.name), given, last) for f in kind])
    if pa.types.is_map(kind):
        key = _type_with_ids(kind.key_type, (*path, "key"), given, last)
        value = _type_with_ids(kind.item_type, (*path, "value"), given, last)
        return pa.map_(key, kind.item_field.with_type(value))
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_type_with_ids(kind.value_type, (*path, "element"), given, last)))
    return kind


def _in_file(field: pa.Field, path: Path, known: dict[Path, int]) -> pa.Field:
    number = known.get(path)
    metadata = None if number is None else {FIELD_ID: str(number).encode()}
    return field.with_type(_type_in_file(field.type, path, known)).with_metadata(metadata)


def _type_in_file(kind: pa.DataType, path: Path, known: dict[Path, int]) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([_in_file(f, (*path, f.name), known) for f in kind])
    if pa.types.is_map(kind):
        key = _in_file(kind.key_field, (*path, "key"), known).with_name("key")
        value = _in_file(kind.item_field, (*path, "value"), known).with_name("value")
        return pa.map_(key, value)
    if pa.types.is_list(kind):
        return pa.list_(_in_file(kind.value_field, (*path, "element"), known))
    return kind
