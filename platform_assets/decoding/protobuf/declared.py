"""Decoding of messages with a registered schema into declared columns, which are matched to fields by name.

The library's C core reads values one by one. There is no vectorized path.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from dataclasses import fields as dataclass_fields
from decimal import Decimal
from functools import cached_property
from types import MappingProxyType
from typing import Any, Final

import pyarrow as pa
from google.protobuf import descriptor_pb2
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto
from google.protobuf.message import DecodeError, Message

from platform_assets.decoding.avro.types import BadSchema
from platform_assets.decoding.by_value import Row, decoded
from platform_assets.decoding.decoder import Decoded, DecodeFault
from platform_assets.decoding.protobuf.descriptors import TIMESTAMP, WRAPPERS, micros_of, symbol_of, text_of
from platform_assets.decoding.protobuf.messages import class_of, is_map, keys_of, rescued_text
from platform_assets.decoding.schema import type_name

# The message type of a value in its schema: Confluent's list of indexes, before the message itself.
#
# The number of indexes and each index are zigzag varints. The indexes lead from the file's messages, in order, to
# nested messages. Map entry messages do not count, because the file's text does not have them. The list `[0]` is
# written as a single byte 0.

Path = tuple[int, ...]

MOST_LEVELS: Final = 64
"""Maximum nesting of messages. The compiler's own limit is lower."""
_FIRST: Final = (0,)
_LONGEST: Final = 5
"""Maximum number of bytes in a 32-bit varint."""


def read(value: bytes) -> tuple[Path, int]:
    """Read the message indexes at the beginning of `value`. Return the indexes and the start of the message. Raises
    DecodeFault."""
    count, at = _varint(value, 0)
    if count == 0:
        return _FIRST, at
    if not 0 < count <= MOST_LEVELS:
        raise DecodeFault("malformed", f"it has {count} message indexes, but 1 to {MOST_LEVELS} were expected")
    path: list[int] = []
    for _ in range(count):
        index, at = _varint(value, at)
        path.append(index)
    return tuple(path), at


def names_of(file: FileDescriptorProto) -> dict[Path, str]:
    """Map message indexes to full names, for all messages in a file."""
    found: dict[Path, str] = {}
    pending: list[tuple[Path, str, DescriptorProto]] = [
        ((number,), file.package, message) for number, message in enumerate(file.message_type)
    ]
    while pending:
        path, around, message = pending.pop()
        found[path] = f"{around}.{message.name}" if around else message.name
        inner = [each for each in message.nested_type if not each.options.map_entry]
        pending += [((*path, number), found[path], each) for number, each in enumerate(inner)]
    return found


def _varint(value: bytes, at: int) -> tuple[int, int]:
    number = 0
    for position in range(_LONGEST):
        if at + position >= len(value):
            raise DecodeFault("malformed", "the value ends within its message indexes")
        byte = value[at + position]
        number |= (byte & 0x7F) << 7 * position
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), at + position + 1
    raise DecodeFault("malformed", f"a message index has more than {_LONGEST} bytes")


_Read = Callable[[Any], Any]

_WHOLE = (
    FieldDescriptor.CPPTYPE_INT32,
    FieldDescriptor.CPPTYPE_INT64,
    FieldDescriptor.CPPTYPE_UINT32,
    FieldDescriptor.CPPTYPE_UINT64,
)
_OF_32_BITS = (FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_UINT32)
_AS_THEY_ARE: Mapping[int, Callable[[pa.DataType], bool]] = MappingProxyType(
    {
        FieldDescriptor.CPPTYPE_FLOAT: pa.types.is_floating,
        FieldDescriptor.CPPTYPE_DOUBLE: pa.types.is_float64,
        FieldDescriptor.CPPTYPE_BOOL: pa.types.is_boolean,
    }
)
"""Map from each kind of field to a test for the columns that accept the field's values unchanged."""


@dataclass(frozen=True)
class DeclaredDecoder:
    """Decoder for values that begin with message indexes. The indexes refer to the last file in `descriptor_set`, and
    must lead to the type `message`."""

    descriptor_set: bytes
    message: str
    fields: pa.Schema
    max_bytes: int

    @cached_property
    def names(self) -> dict[Path, str]:
        """Map from message indexes to full names, for the messages in the schema's own file."""
        return names_of(self._files[-1])

    @cached_property
    def read(self) -> _Read:
        """The reader that turns a message into a row. Raises BadSchema if the messages cannot be read as declared."""
        return _structure(self._kind.DESCRIPTOR, self.fields, "$")

    @cached_property
    def _files(self) -> list[descriptor_pb2.FileDescriptorProto]:
        return list(descriptor_pb2.FileDescriptorSet.FromString(self.descriptor_set).file)

    @cached_property
    def _kind(self) -> Any:
        try:
            return class_of(self._files, self.message)
        except TypeError as error:
            raise BadSchema("$", f"its descriptors are inconsistent: {error}") from error

    def __getstate__(self) -> dict[str, Any]:
        # Message classes cannot be pickled.
        return {each.name: getattr(self, each.name) for each in dataclass_fields(self)}

    def decode(self, values: pa.BinaryArray) -> Decoded:
        """See `Decoder.decode`. This method is identical to `decode_exactly`."""
        return self.decode_exactly(values)

    def decode_exactly(self, values: pa.BinaryArray) -> Decoded:
        """See `Decoder.decode_exactly`."""
        return decoded(self.fields, values, self._placed)

    def _placed(self, value: bytes) -> Row:
        try:
            return self._read(value)
        except DecodeFault as fault:
            fault.place = None if fault.place is None else f"${fault.place}"
            raise

    def _read(self, value: bytes) -> Row:
        if len(value) > self.max_bytes:
            raise DecodeFault("too_large", f"{len(value)} bytes, but max_bytes is {self.max_bytes}")
        path, begin = read(value)
        name = self.names.get(path)
        if name is None:
            raise DecodeFault("malformed", f"message index {list(path)} does not exist in its schema")
        if name != self.message:
            raise DecodeFault("wrong_type", f"it is a {name} message, but {self.message} is declared")
        message = self._kind()
        try:
            message.MergeFromString(value[begin:])
        except DecodeError as error:
            raise DecodeFault("malformed", f"not a valid {self.message} message: {error}") from error
        if missing := message.FindInitializationErrors():
            raise DecodeFault("missing", f"required: {', '.join(missing)[:100]}", f".{missing[0]}")
        row = self.read(message)
        return row, rescued_text(message, self.fields)


def _structure(of: Descriptor, columns: Iterable[pa.Field], place: str) -> _Read:
    """Return the reader that turns a message into a row. Raises BadSchema."""
    parts: list[tuple[str, FieldDescriptor | None, bool, _Read]] = []
    for column in columns:
        where, field = f"{place}.{column.name}", of.fields_by_name.get(column.name)
        if field is not None:
            parts.append((column.name, field, column.nullable, _field(field, column.type, where)))
        elif column.nullable:
            parts.append((column.name, None, True, _as_it_is))
        else:
            raise BadSchema(where, f"{of.full_name} has no such field, but the column is NOT NULL")

    def read(message: Message) -> dict[str, Any]:
        row: dict[str, Any] = {}
        for name, field, nullable, read_value in parts:
            if field is None:
                row[name] = None
            elif field.has_presence and not message.HasField(name):
                if not nullable:
                    raise DecodeFault("missing", "is absent, but required", f".{name}")
                row[name] = None
            else:
                try:
                    row[name] = read_value(getattr(message, name))
                except DecodeFault as fault:
                    fault.place = f".{name}{fault.place or ''}"
                    raise
        return row

    return read


def _field(field: FieldDescriptor, wanted: pa.DataType, place: str) -> _Read:
    if is_map(field):
        return _entries(field.message_type, wanted, place)
    if not field.is_repeated:
        return _single(field, wanted, place)
    if not pa.types.is_list(wanted):
        raise _differs(place, f"repeated {_named(field)}", wanted)
    read = _single(field, wanted.value_type, f"{place}[]")

    def items(values: Any) -> list[Any]:
        found: list[Any] = []
        for value in values:
            try:
                found.append(read(value))
            except DecodeFault as fault:
                fault.place = f"[{len(found)}]{fault.place or ''}"
                raise
        return found

    return items


def _entries(entry: Descriptor, wanted: pa.DataType, place: str) -> _Read:
    """Return the reader for a map. The reader returns the entries in ascending order of keys."""
    as_map = pa.types.is_map(wanted)
    inner = wanted.value_type if pa.types.is_list(wanted) else None
    if as_map:
        inner = pa.struct([wanted.key_field.with_name("key"), wanted.item_field.with_name("value")])
    if inner is None or not pa.types.is_struct(inner) or {part.name for part in inner} != {"key", "value"}:
        raise BadSchema(
            place,
            f"it is a map, which becomes MAP<STRING, …> or ARRAY<STRUCT<key: …, value: …>>, not {type_name(wanted)}",
        )
    key = _single(entry.fields_by_name["key"], inner.field("key").type, f"{place}{{}}")
    value = _single(entry.fields_by_name["value"], inner.field("value").type, f"{place}{{}}")

    def entries(values: Any) -> list[Any]:
        found: list[Any] = []
        for each in keys_of(values):
            try:
                pair = key(each), value(values[each])
                found.append(pair if as_map else {"key": pair[0], "value": pair[1]})
            except DecodeFault as fault:
                fault.place = f"{{}}{fault.place or ''}"
                raise
        return found

    return entries


def _single(field: FieldDescriptor, wanted: pa.DataType, place: str) -> _Read:
    kind, inner = field.cpp_type, field.message_type
    if inner is not None:
        if pa.types.is_struct(wanted):
            return _structure(inner, [wanted.field(number) for number in range(wanted.num_fields)], place)
        if inner.full_name == TIMESTAMP and pa.types.is_timestamp(wanted):
            return micros_of
        if inner.full_name in WRAPPERS:
            read = _single(inner.fields[0], wanted, place)
            return lambda value: read(value.value)
    elif kind in _WHOLE and (pa.types.is_integer(wanted) or pa.types.is_decimal(wanted)):
        return _whole(wanted)
    elif kind in _OF_32_BITS and pa.types.is_float64(wanted):
        return float
    elif kind in _AS_THEY_ARE and _AS_THEY_ARE[kind](wanted):
        return _as_it_is
    elif kind == FieldDescriptor.CPPTYPE_ENUM and pa.types.is_string(wanted):
        return lambda number: symbol_of(field, number)
    elif field.type == FieldDescriptor.TYPE_BYTES and pa.types.is_binary(wanted):
        return _as_it_is
    elif field.type == FieldDescriptor.TYPE_STRING and pa.types.is_string(wanted):
        return text_of
    raise _differs(place, _named(field), wanted)


def _whole(wanted: pa.DataType) -> _Read:
    make: _Read
    if pa.types.is_decimal(wanted):
        bound = 10 ** (wanted.precision - wanted.scale)
        lowest, end, make = 1 - bound, bound, Decimal
    else:
        bound = 1 << (wanted.bit_width - 1)
        lowest, end, make = -bound, bound, int

    def read(number: int) -> Any:
        if not lowest <= number < end:
            raise DecodeFault("out_of_range", f"{number} does not fit into {type_name(wanted)}")
        return make(number)

    return read


def _as_it_is(value: Any) -> Any:
    return value


def _named(field: FieldDescriptor) -> str:
    if field.message_type is not None:
        return str(field.message_type.full_name)
    if field.enum_type is not None:
        return f"enum {field.enum_type.full_name}"
    return str(descriptor_pb2.FieldDescriptorProto.Type.Name(field.type)).removeprefix("TYPE_").lower()


def _differs(place: str, what: str, wanted: pa.DataType) -> BadSchema:
    return BadSchema(place, f"the writer's type is {what}, which cannot be read as {type_name(wanted)}")
