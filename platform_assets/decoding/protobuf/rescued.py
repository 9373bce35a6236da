"""What a message has and the declared columns lack, as plain values of JSON.

Fields that its schema has are there by name; those that it lacks by number, undecoded. Bytes are base64, and numbers that JSON lacks
are text.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

from platform_assets.decoding.protobuf.descriptors import is_map, plain


def rescued_of(message: Message, columns: Iterable[pa.Field]) -> dict[str, Any]:
    """Of a message that was read as `columns`; empty where nothing is lacking."""
    found = _unknown(message)
    declared = {column.name: column.type for column in columns}
    for field, value in message.ListFields():
        kind = declared.get(field.name)
        inner = _whole(field, value) if kind is None else _within(field, value, kind)
        if inner not in (None, {}):
            found[field.name] = inner
    return found


def _within(field: FieldDescriptor, value: Any, kind: pa.DataType) -> Any:
    """Of a field that is declared; messages alone can have more than their columns."""
    if is_map(field):
        if field.message_type.fields_by_name["value"].message_type is None:
            return None
        inner = kind.value_type.field("value").type
        return {str(key): part for key in sorted(value) if (part := _of_one(value[key], inner))}
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
    """A field that is not declared."""
    if is_map(field):
        of = field.message_type.fields_by_name["value"]
        return {str(key): _plain(of, value[key]) for key in sorted(value)}
    if field.is_repeated:
        return [_plain(field, item) for item in value]
    return _plain(field, value)


def _plain(field: FieldDescriptor, value: Any) -> Any:
    if field.message_type is not None:
        return {**_unknown(value), **{each.name: _whole(each, part) for each, part in value.ListFields()}}
    if field.enum_type is not None:
        symbol = field.enum_type.values_by_number.get(value)
        return value if symbol is None else symbol.name
    if isinstance(value, bytes):  # also of a string that is not UTF-8, which an older syntax allows
        return base64.b64encode(value).decode("ascii")
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _unknown(message: Message) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for part in UnknownFieldSet(message):
        found.setdefault(str(part.field_number), []).append(plain(part.data))
    return found
