"""Code that both Protobuf readers share: message classes, keys of maps, and the rescue of undeclared fields."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

from platform_assets.decoding.decoder import DecodeFault


def class_of(files: Iterable[descriptor_pb2.FileDescriptorProto], name: str) -> Any:
    """Return the class for messages with the full name `name`, from a pool that contains only these files. `files` must
    be in dependency order.

    Raises TypeError if a file is missing or the files do not fit together, or KeyError if the files do not contain the
    message.
    """
    pool = descriptor_pool.DescriptorPool()
    for file in files:
        pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


def is_map(field: FieldDescriptor) -> bool:
    """Return True if a field is a map, which the library represents as a list of messages."""
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


def keys_of(entries: Mapping[Any, Any]) -> list[Any]:
    """Return the keys of a map in ascending order. The library does not order keys, but decoding must always give the
    same rows.

    Raises DecodeFault for a key that is not UTF-8. proto2 allows such keys, but the library returns them as bytes and
    cannot look them up.
    """
    keys = list(entries)
    if any(isinstance(key, bytes) for key in keys):
        raise DecodeFault("malformed", "a key of the map is not UTF-8", "{}")
    return sorted(keys)


# Rescue of a message's fields that the declared columns lack, as JSON values.
#
# Fields that are in the message's schema are stored by name, and extensions by full name. Fields that are not in the
# schema are stored by number, undecoded. Bytes become base64, and numbers that JSON lacks become strings.


def rescued_text(message: Message, columns: Iterable[pa.Field], place: str = "") -> str | None:
    """Return a JSON object with the fields of a message that are not in `columns`, or None if there are no such fields.
    `place` is the path to the message.

    Raises DecodeFault if a part of such a field cannot be written as JSON.
    """
    try:
        lacking = rescued_of(message, columns)
    except DecodeFault as fault:
        fault.place = f"{place}{fault.place or ''}"
        raise
    return json.dumps(lacking, ensure_ascii=False, separators=(",", ":")) if lacking else None


def rescued_of(message: Message, columns: Iterable[pa.Field]) -> dict[str, Any]:
    """Return the fields of a message that are not in `columns`. The result is empty if there are no such fields. Raises
    DecodeFault."""
    found = _unknown(message)
    declared = {column.name: column.type for column in columns}
    for field, value in message.ListFields():
        kind = None if field.is_extension else declared.get(field.name)
        try:
            inner = _whole(field, value) if kind is None else _within(field, value, kind)
        except DecodeFault as fault:
            fault.place = f".{_name(field)}{fault.place or ''}"
            raise
        if inner not in (None, {}):
            found[_name(field)] = inner
    return found


def _name(field: FieldDescriptor) -> str:
    """Return the name of a field within its message. Only the names of extensions have a dot."""
    if not field.is_extension:
        return str(field.name)
    return str(field.full_name) if "." in field.full_name else f".{field.full_name}"


def _within(field: FieldDescriptor, value: Any, kind: pa.DataType) -> Any:
    """Return the rescued part of a declared field. Only messages can have fields without a column."""
    if is_map(field):
        if field.message_type.fields_by_name["value"].message_type is None:
            return None
        inner = kind.item_type if pa.types.is_map(kind) else kind.value_type.field("value").type
        return {str(key): part for key in keys_of(value) if (part := _of_one(value[key], inner))}
    if field.message_type is None:
        return None
    if not field.is_repeated:
        return _of_one(value, kind)
    parts = [_of_one(item, kind.value_type) or None for item in value]
    return parts if any(parts) else None


def _of_one(message: Message, kind: pa.DataType) -> dict[str, Any]:
    if not pa.types.is_struct(kind):
        return _unknown(message)
    return rescued_of(message, [kind.field(number) for number in range(kind.num_fields)])


def _whole(field: FieldDescriptor, value: Any) -> Any:
    """Return the value of an undeclared field."""
    if is_map(field):
        of = field.message_type.fields_by_name["value"]
        return {str(key): _plain(of, value[key]) for key in keys_of(value)}
    if field.is_repeated:
        return [_plain(field, item) for item in value]
    return _plain(field, value)


def _plain(field: FieldDescriptor, value: Any) -> Any:
    if field.message_type is not None:
        return {**_unknown(value), **{_name(each): _whole(each, part) for each, part in value.ListFields()}}
    if field.enum_type is not None:
        symbol = field.enum_type.values_by_number.get(value)
        return value if symbol is None else symbol.name
    if isinstance(value, bytes):  # also for a string that is not UTF-8, which an older syntax allows
        return base64.b64encode(value).decode("ascii")
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _unknown(message: Message) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for part in UnknownFieldSet(message):
        found.setdefault(str(part.field_number), []).append(_undecoded(part.data))
    return found


def _undecoded(data: Any) -> Any:
    """Return an unknown field as JSON. Bytes become base64."""
    if isinstance(data, bytes):
        return base64.b64encode(data).decode("ascii")
    if isinstance(data, int):
        return data
    return {str(part.field_number): _undecoded(part.data) for part in data}
