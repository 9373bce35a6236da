"""Format `protobuf`: a value is one message, whose type is in a set of descriptors.

Options: `descriptor_set` (the output of `protoc --include_imports --descriptor_set_out` in base64), `message` (the full
name of the message type), `maps`, `max_bytes`. The library's C core reads values one by one. There is no vectorized
path.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from dataclasses import dataclass
from dataclasses import fields as dataclass_fields
from decimal import Decimal
from functools import cached_property
from typing import Any, Final

import pyarrow as pa
from google.protobuf import descriptor_pb2
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message

from platform_assets.decoding.by_value import Row, decoded
from platform_assets.decoding.decoder import Decoded, DecodeFault
from platform_assets.decoding.maps import map_type
from platform_assets.decoding.options import Options
from platform_assets.decoding.protobuf.messages import class_of, is_map, keys_of, rescued_text
from platform_assets.decoding.schema import checked
from platform_assets.errors import ConfigurationError
from platform_assets.model.decoding import FormatSpec

MOST_PARTS: Final = 10_000
"""Maximum number of parts in a message, including the parts of nested messages. Without a limit, a few lines of
descriptors could create billions of parts."""
_FIRST_SECOND, _LAST_SECOND = -62_135_596_800, 253_402_300_799
"""Limits of a Timestamp as Protobuf defines them: the years 1 to 9999."""
TIMESTAMP: Final = "google.protobuf.Timestamp"
WRAPPERS: Final = frozenset(
    f"google.protobuf.{kind}Value"
    for kind in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)
_TYPES: Final = {
    FieldDescriptor.CPPTYPE_INT32: pa.int32(),
    FieldDescriptor.CPPTYPE_INT64: pa.int64(),
    FieldDescriptor.CPPTYPE_UINT32: pa.int64(),
    FieldDescriptor.CPPTYPE_UINT64: pa.decimal128(20, 0),
    FieldDescriptor.CPPTYPE_DOUBLE: pa.float64(),
    FieldDescriptor.CPPTYPE_FLOAT: pa.float32(),
    FieldDescriptor.CPPTYPE_BOOL: pa.bool_(),
    FieldDescriptor.CPPTYPE_ENUM: pa.string(),
}


def decoder(spec: FormatSpec) -> ProtobufDecoder:
    """Return the decoder. Raises ConfigurationError."""
    options = Options(spec, ("descriptor_set", "message", "maps", "max_bytes"))
    name = options.text("message")
    try:
        content = base64.b64decode(options.text("descriptor_set"), validate=True)
        made = ProtobufDecoder(content, name, options.max_bytes(), options.map_columns())
        assert made.kind is not None
    except (binascii.Error, DecodeError) as error:
        raise ConfigurationError(
            "option 'descriptor_set' of format 'protobuf' is not a descriptor set in base64; create one with "
            "`protoc --include_imports --descriptor_set_out=/dev/stdout FILE | base64 -w0`"
        ) from error
    except TypeError as error:
        raise ConfigurationError(
            f"option 'descriptor_set' of format 'protobuf' is incomplete ({error}): run protoc with --include_imports"
        ) from error
    except KeyError as error:
        raise ConfigurationError(
            f"option 'message' of format 'protobuf' is {name!r}, which 'descriptor_set' does not contain; it must be a "
            "full name, package.Message"
        ) from error
    checked(made.fields, "descriptor_set")
    return made


@dataclass(frozen=True)
class ProtobufDecoder:
    """Decodes messages of one type. Fields that the type lacks are rescued under their field numbers.

    With `map_columns`, maps with string keys become MAP columns.
    """

    descriptor_set: bytes
    message: str
    max_bytes: int
    map_columns: bool = False

    @cached_property
    def kind(self) -> Any:
        """The message class. Raises TypeError if a file is missing, KeyError if the type is missing, or DecodeError."""
        return class_of(descriptor_pb2.FileDescriptorSet.FromString(self.descriptor_set).file, self.message)

    @cached_property
    def fields(self) -> pa.Schema:
        """See `Decoder.fields`. Raises ConfigurationError for a message without columns."""
        return pa.schema(_Columns(self.map_columns).fields(self.kind.DESCRIPTOR, self.message, ()))

    def __getstate__(self) -> dict[str, Any]:
        # Classes of messages cannot be pickled.
        return {each.name: getattr(self, each.name) for each in dataclass_fields(self)}

    def decode(self, values: pa.BinaryArray) -> Decoded:
        """See `Decoder.decode`. This method is identical to `decode_exactly`."""
        return self.decode_exactly(values)

    def decode_exactly(self, values: pa.BinaryArray) -> Decoded:
        """See `Decoder.decode_exactly`."""
        return decoded(self.fields, values, self._read)

    def _read(self, value: bytes) -> Row:
        if len(value) > self.max_bytes:
            raise DecodeFault("too_large", f"{len(value)} bytes, but max_bytes is {self.max_bytes}")
        message = self.kind()
        try:
            message.MergeFromString(value)
        except DecodeError as error:
            raise DecodeFault("malformed", f"not a valid {self.message} message: {error}") from error
        if missing := message.FindInitializationErrors():
            raise DecodeFault("missing", f"required: {', '.join(missing)[:100]}", f"$.{missing[0]}")
        row = _row(message, "$", self.map_columns)
        return row, rescued_text(message, self.fields, "$")


class _Columns:
    """Builder of columns. It counts the parts of the message."""

    def __init__(self, map_columns: bool) -> None:
        self._parts, self._map_columns = 0, map_columns

    def fields(self, of: Descriptor, place: str, around: tuple[str, ...]) -> list[pa.Field]:
        """Return the columns of the message type `of`. `around` are the full names of the types that enclose it."""
        if of.full_name in around:
            raise ConfigurationError(
                f"descriptor_set: {place}: {of.full_name} contains itself, which columns cannot represent"
            )
        if not of.fields:
            raise ConfigurationError(f"descriptor_set: {place}: {of.full_name} has no fields, and so no columns")
        inside = (*around, of.full_name)
        return [self._field(field, f"{place}.{field.name}", inside) for field in of.fields]

    def _field(self, field: FieldDescriptor, place: str, around: tuple[str, ...]) -> pa.Field:
        self._parts += 1
        if self._parts > MOST_PARTS:
            raise ConfigurationError(f"descriptor_set: {place}: the message has more than {MOST_PARTS} parts")
        kind = self._type(field, place, around)
        if self._map_columns and _has_text_keys(field):
            return pa.field(field.name, map_type(kind.field("value")), nullable=False)
        if field.is_repeated:
            return pa.field(field.name, pa.list_(pa.field("element", kind, nullable=False)), nullable=False)
        return pa.field(field.name, kind, nullable=field.has_presence and not field.is_required)

    def _type(self, field: FieldDescriptor, place: str, around: tuple[str, ...]) -> pa.DataType:
        if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
            return pa.binary() if field.type == FieldDescriptor.TYPE_BYTES else pa.string()
        inner = field.message_type
        if inner is None:
            return _TYPES[field.cpp_type]
        if inner.full_name == TIMESTAMP:
            return pa.timestamp("us", "UTC")
        if inner.full_name in WRAPPERS:
            return self._type(inner.fields[0], place, around)
        return pa.struct(self.fields(inner, place, around))


def _has_text_keys(field: FieldDescriptor) -> bool:
    return is_map(field) and field.message_type.fields_by_name["key"].type == FieldDescriptor.TYPE_STRING


def _row(message: Message, place: str, map_columns: bool) -> dict[str, Any]:
    fields = message.DESCRIPTOR.fields
    return {field.name: _part(message, field, f"{place}.{field.name}", map_columns) for field in fields}


def _part(message: Message, field: FieldDescriptor, place: str, map_columns: bool) -> Any:
    if field.has_presence and not message.HasField(field.name):
        return None
    value = getattr(message, field.name)
    if is_map(field):
        keys_are, values_are = (field.message_type.fields_by_name[name] for name in ("key", "value"))
        entries = [
            (_value(keys_are, key, place, map_columns), _value(values_are, value[key], place, map_columns))
            for key in _placed(keys_of, value, place)
        ]
        is_column = map_columns and _has_text_keys(field)
        return entries if is_column else [{"key": key, "value": each} for key, each in entries]
    if field.is_repeated:
        return [_value(field, item, f"{place}[{number}]", map_columns) for number, item in enumerate(value)]
    return _value(field, value, place, map_columns)


def _value(field: FieldDescriptor, value: Any, place: str, map_columns: bool) -> Any:
    inner = field.message_type
    if inner is not None:
        if inner.full_name == TIMESTAMP:
            return _placed(micros_of, value, place)
        if inner.full_name in WRAPPERS:
            return _value(inner.fields[0], value.value, place, map_columns)
        return _row(value, place, map_columns)
    if field.cpp_type == FieldDescriptor.CPPTYPE_UINT64:
        return Decimal(value)
    if field.type == FieldDescriptor.TYPE_STRING:
        return _placed(text_of, value, place)
    if field.cpp_type != FieldDescriptor.CPPTYPE_ENUM:
        return value
    return _placed(lambda number: symbol_of(field, number), value, place)


def _placed(read: Callable[[Any], Any], value: Any, place: str) -> Any:
    try:
        return read(value)
    except DecodeFault as fault:
        fault.place = f"{place}{fault.place or ''}"
        raise


def symbol_of(field: FieldDescriptor, number: int) -> str:
    """Return the name of an enum value. Raises DecodeFault if the value has no name."""
    symbol = field.enum_type.values_by_number.get(number)
    if symbol is None:
        raise DecodeFault("wrong_type", f"{number} is not among the values of enum {field.enum_type.full_name}")
    return str(symbol.name)


def text_of(value: str | bytes) -> str:
    """Return the value of a string field. Raises DecodeFault if the value is not UTF-8. The older syntax allows such
    values, and the library returns them as bytes."""
    if isinstance(value, bytes):
        raise DecodeFault("malformed", "a string is not UTF-8")
    return value


def micros_of(value: Any) -> int:
    """Return a Timestamp as microseconds since 1970. Raises DecodeFault."""
    micros, rest = divmod(value.seconds * 1_000_000_000 + value.nanos, 1_000)
    if not _FIRST_SECOND <= value.seconds <= _LAST_SECOND or not 0 <= value.nanos < 1_000_000_000 or rest:
        what = "not whole microseconds in the years 1 to 9999"
        raise DecodeFault("out_of_range", f"{value.seconds} s and {value.nanos} ns, which are {what}")
    return int(micros)
