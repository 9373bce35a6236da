"""Shared code of both Protobuf readers: message classes, and conversion of values to rows one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import FieldDescriptor

from platform_assets.decoding.decoder import DeadLetter, Decoded, dead_letters
from platform_assets.decoding.reading import Unfit

Row: TypeAlias = tuple[dict[str, Any], str | None]
"""The columns of a value by name, and its rescued text; None if nothing is rescued."""


def class_of(files: Iterable[descriptor_pb2.FileDescriptorProto], name: str) -> Any:
    """Return the class of messages with that full name, in a pool of only these files, each after its imports.

    Raises TypeError if a file is missing or they do not fit together, KeyError if the message is not in them.
    """
    pool = descriptor_pool.DescriptorPool()
    for file in files:
        pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


def is_map(field: FieldDescriptor) -> bool:
    """Return true if a field is a map, which the library represents as a list of messages."""
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


def keys_of(entries: Mapping[Any, Any]) -> list[Any]:
    """Return the keys of a map, ascending: the library has no order, and rows must be the same each time.

    Raises Unfit for a text that is not UTF-8, which proto2 allows: the library returns bytes for it, and finds no value by them.
    """
    keys = list(entries)
    if any(isinstance(key, bytes) for key in keys):
        raise Unfit("malformed", "a key of the map is not UTF-8", "{}")
    return sorted(keys)


def decoded(fields: pa.Schema, values: pa.BinaryArray, read: Callable[[bytes], Row]) -> Decoded:
    """Decode each value with `read` into the columns `fields`; a value for which it raises Unfit becomes a dead letter."""
    rows: list[dict[str, Any]] = []
    rescued: list[str | None] = []
    dead: list[DeadLetter] = []
    nothing: dict[str, Any] = dict.fromkeys(fields.names)
    for number, value in enumerate(values.to_pylist()):
        row, lacking = nothing, None
        if value is not None:
            try:
                row, lacking = read(value)
            except Unfit as unfit:
                dead.append(DeadLetter(number, unfit.reason, unfit.place, unfit.detail))
        rows.append(row)
        rescued.append(lacking)
    arrays = [pa.array([row[field.name] for row in rows], field.type) for field in fields]
    columns = pa.RecordBatch.from_arrays(arrays, schema=fields)
    return Decoded(columns, pa.array(rescued, pa.string()), dead_letters(dead))
