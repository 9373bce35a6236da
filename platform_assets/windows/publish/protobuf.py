"""Rows as Protobuf: the schema that columns give, and the encoder, which works column by column."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf import descriptor_pb2
from google.protobuf.message import DecodeError

from platform_assets.decoding.avro.types import BadSchema
from platform_assets.decoding.protobuf.compiler import descriptor_set
from platform_assets.errors import ConfigurationError
from platform_assets.windows.publish import datums
from platform_assets.windows.publish.datums import (
    END_OF_DAYS,
    END_OF_TIMES,
    FIRST_DAY,
    FIRST_TIME,
    Datums,
    Marks,
    Misfit,
)

KIND: Final = "PROTOBUF"
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PLAIN: Final = {
    pa.bool_(): "bool",
    pa.int8(): "int32",
    pa.int16(): "int32",
    pa.int32(): "int32",
    pa.int64(): "int64",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.large_string(): "string",
    pa.binary(): "bytes",
    pa.large_binary(): "bytes",
    pa.date32(): "string",
    pa.timestamp("us", "UTC"): "google.protobuf.Timestamp",
    pa.timestamp("us", "+00:00"): "google.protobuf.Timestamp",
}
_VARINT, _FIXED64, _SIZED, _FIXED32 = 0, 1, 2, 5
_FIRST_MESSAGE: Final = b"\0"
"""Message indexes of the first message of a file, as Confluent's serializers write them."""


def derived(fields: Sequence[pa.Field], name: str) -> str:
    """Return the schema that these columns give, as the text of a .proto file: a message with the full name `name`, whose
    fields are the columns in order, numbered from 1. Raises ConfigurationError if Protobuf cannot represent a column."""
    if not fields:
        raise ConfigurationError("a Protobuf message needs columns: name them in `columns`")
    package, _, own = name.rpartition(".")
    if not all(_NAME.fullmatch(part) for part in name.split(".")):
        raise ConfigurationError(
            f"message {name!r} is not a name in Protobuf: use letters, digits and _, and dots between parts"
        )
    body = _message(fields, own, "")
    head = ['syntax = "proto3";']
    head += [f"package {package};"] if package else []
    head += ['import "google/protobuf/timestamp.proto";'] if "google.protobuf.Timestamp" in "\n".join(body) else []
    return "\n".join([*head, "", *body, ""])


def _message(fields: Sequence[pa.Field], name: str, indent: str) -> list[str]:
    lines, own = [f"{indent}message {name} {{"], f"{indent}  "
    for field in fields:
        if not _NAME.fullmatch(field.name):
            raise ConfigurationError(
                f"column {field.name!r} cannot be a field in Protobuf: its name may have letters, digits and _"
            )
        if (members := _members(field.type)) is not None:
            lines += _message(members, _nested(field.name), own)
    for number, field in enumerate(fields, 1):
        lines.append(f"{own}{_type(field.type, field.name)} {field.name} = {number};")
    return [*lines, f"{indent}}}"]


def _nested(name: str) -> str:
    """Return the name of the message of a column with members."""
    return "".join(part[:1].upper() + part[1:] for part in name.split("_")) + "Message"


def _members(kind: pa.DataType) -> list[pa.Field] | None:
    """Return the members of a column's structs, which may be in an array or a map; None if it has none."""
    if _is_list(kind):
        kind = kind.value_type
    elif pa.types.is_map(kind):
        kind = kind.item_type
    return list(kind) if pa.types.is_struct(kind) else None


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _type(kind: pa.DataType, column: str) -> str:
    if _is_list(kind):
        return f"repeated {_single(kind.value_type, column)}"
    if pa.types.is_map(kind):
        if kind.key_type not in (pa.string(), pa.large_string()):
            raise ConfigurationError(
                f"column {column!r} has a map with keys of type {kind.key_type}: only text keys can be published"
            )
        return f"map<string, {_single(kind.item_type, column)}>"
    return f"optional {_single(kind, column)}"


def _single(kind: pa.DataType, column: str) -> str:
    if kind in _PLAIN:
        return _PLAIN[kind]
    if pa.types.is_decimal128(kind):
        return "string"
    if pa.types.is_struct(kind):
        if not kind.num_fields:
            raise ConfigurationError(f"column {column!r} has a struct without members, which cannot be published")
        return _nested(column)
    if _is_list(kind) or pa.types.is_map(kind):
        raise ConfigurationError(
            f"column {column!r} has an array or a map directly in another one, which Protobuf cannot represent"
        )
    raise ConfigurationError(f"column {column!r} has type {kind}, which Protobuf cannot represent")


@dataclass(frozen=True, slots=True)
class ProtobufForm:
    """The form of keys or values: the schema's text, and the columns to which it belongs, in its order."""

    text: str
    columns: tuple[str, ...]
    may_refuse: bool
    kind: str = KIND

    def check_named(self) -> None:
        """Do nothing: all readers agree about messages."""

    def encode(self, rows: pa.Table, alive: Marks, head: bytes) -> pa.LargeBinaryArray:
        """Return one message for each row, after `head` and the message's indexes. Rows that are not alive become
        meaningless. Raises Misfit."""
        named = [(name, datums.whole(rows[name])) for name in self.columns]
        found = _fields(named, "", alive, rows.num_rows)
        if head:
            found = found.marked(np.ones(rows.num_rows, bool), head + _FIRST_MESSAGE, b"")
        return found.to_arrow()


def form(fields: Sequence[pa.Field], named: Sequence[str], schema: str | None, name: str) -> ProtobufForm:
    """Return the form in which columns are published. The arguments are as for `avro.form`, but no schema can be
    declared. Raises ConfigurationError."""
    if schema is not None:
        raise ConfigurationError("a Protobuf schema comes from the columns: leave out `schema`")
    by_name = {field.name: field for field in fields}
    chosen = [by_name[each] for each in named] if named else list(fields)
    text = derived(chosen, name)
    try:
        descriptor_set(text, {})
    except BadSchema as error:
        raise ConfigurationError(f"the columns give no valid Protobuf schema: {error}") from error
    return ProtobufForm(text, tuple(field.name for field in chosen), any(_may_refuse(field.type) for field in chosen))


def _may_refuse(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        return any(_may_refuse(field.type) for field in kind)
    return _is_list(kind) or bool(pa.types.is_map(kind) or pa.types.is_timestamp(kind) or pa.types.is_date(kind))


def is_same(text: str, other: str) -> bool:
    """Return True if two schemas have the same messages. False if one is not a schema. Raises SchemaCompilerError
    (retryable)."""
    try:
        return _messages(text) == _messages(other)
    except (BadSchema, DecodeError, IndexError):
        return False


def _file(text: str) -> descriptor_pb2.FileDescriptorProto:
    files = descriptor_pb2.FileDescriptorSet()
    files.ParseFromString(descriptor_set(text, {}))
    return files.file[-1]


def _messages(text: str) -> tuple[str, bytes]:
    own = _file(text)
    found = descriptor_pb2.FileDescriptorProto(package=own.package, message_type=own.message_type, syntax=own.syntax)
    return own.package, found.SerializeToString(deterministic=True)


def renumbered(text: str, later: str) -> str | None:
    """Return the name of a field that has another number in a later schema; None if there is none, or if one is not a
    schema. Raises SchemaCompilerError (retryable)."""
    try:
        before, after = (_numbers(_file(each).message_type[0], "") for each in (text, later))
    except (BadSchema, DecodeError, IndexError):
        return None
    return next((name for name, number in before.items() if after.get(name, number) != number), None)


def _numbers(message: descriptor_pb2.DescriptorProto, place: str) -> dict[str, int]:
    found = {f"{place}{field.name}": field.number for field in message.field}
    for nested in message.nested_type:
        found |= _numbers(nested, f"{place}{nested.name}.")
    return found


# --- encoding -------------------------------------------------------------------------------------------------------


def _tag(number: int, wire: int) -> bytes:
    left, found = number << 3 | wire, bytearray()
    while left > 127:
        found.append(left & 127 | 128)
        left >>= 7
    return bytes([*found, left])


def _fields(columns: Sequence[tuple[str, pa.Array]], place: str, alive: Marks, rows: int) -> Datums:
    parts = [_field(column, number, f"{place}{name}", alive) for number, (name, column) in enumerate(columns, 1)]
    return datums.joined(parts, rows)


def _field(column: pa.Array, number: int, place: str, alive: Marks) -> Datums:
    """Return the field of each row with its tag. Raises Misfit for a value that does not fit in a row that is alive."""
    valid = datums.validity(column)
    kind = column.type
    if not (_is_list(kind) or pa.types.is_map(kind)):
        found, wire = _single_values(column, place, alive & valid)
        return found.marked(valid, _tag(number, wire), b"")
    datums.require(valid | ~alive, place, "is null, which a repeated field cannot be")
    found_items = datums.items(column)
    below = f"{place}{{}}" if pa.types.is_map(kind) else f"{place}[]"
    inside = found_items.alive(alive)
    try:
        datums.require(datums.validity(found_items.values) | ~inside, below, "is null, which Protobuf cannot represent")
        values, wire = _single_values(found_items.values, below, inside)
    except Misfit as e:
        raise Misfit(e.place, e.what, found_items.row_of(e.row)) from e
    every = np.ones(len(found_items.values), bool)
    if found_items.keys is not None:
        keys = datums.contents(found_items.keys).sized(zigzag=False).marked(every, _tag(1, _SIZED), b"")
        entries = datums.joined([keys, values.marked(every, _tag(2, wire), b"")], len(every))
        return (
            entries.sized(zigzag=False)
            .marked(every, _tag(number, _SIZED), b"")
            .grouped(found_items.groups, counted=False)
        )
    if wire == _SIZED:
        return values.marked(every, _tag(number, wire), b"").grouped(found_items.groups, counted=False)
    packed = values.grouped(found_items.groups, counted=False).sized(zigzag=False)
    return packed.marked(np.diff(found_items.groups) > 0, _tag(number, _SIZED), b"")


def _single_values(column: pa.Array, place: str, alive: Marks) -> tuple[Datums, int]:
    """Return the encodings of values without tags, and their wire type."""
    kind = column.type
    if pa.types.is_struct(kind):
        members = [(field.name, column.field(n)) for n, field in enumerate(kind)]
        return _fields(members, f"{place}.", alive, len(column)).sized(zigzag=False), _SIZED
    if pa.types.is_boolean(kind):
        return datums.fixed(datums.longs(column.cast(pa.uint8())).astype(np.uint8)), _VARINT
    if pa.types.is_integer(kind):
        return datums.varints(datums.longs(column), zigzag=False), _VARINT
    if pa.types.is_float32(kind):
        return datums.fixed(datums.doubles(column, "<f4")), _FIXED32
    if pa.types.is_float64(kind):
        return datums.fixed(datums.doubles(column, "<f8")), _FIXED64
    if pa.types.is_timestamp(kind):
        return _times(datums.longs(column), place, alive), _SIZED
    if pa.types.is_decimal(kind):
        column = _decimals(column)
    elif pa.types.is_date(kind):
        days = datums.longs(column)
        inside = (days >= FIRST_DAY) & (days < END_OF_DAYS)
        datums.require(inside | ~alive, place, "is a date outside the years 1 to 9999")
        column = column.cast(pa.string())
    return datums.contents(column).sized(zigzag=False), _SIZED


def _decimals(column: pa.Array) -> pa.Array:
    texts = column.cast(pa.string())
    if not pc.any(pc.match_substring(texts, "E")).as_py():
        return texts
    # Arrow writes some small numbers with an exponent.
    return pa.array([None if v is None else format(v, "f") for v in column.to_pylist()], pa.string())


def _times(micros: datums.Longs, place: str, alive: Marks) -> Datums:
    inside = (micros >= FIRST_TIME) & (micros < END_OF_TIMES)
    datums.require(inside | ~alive, place, "is a time outside the years 1 to 9999")
    seconds, nanos = micros // 1_000_000, micros % 1_000_000 * 1_000
    parts = [
        datums.varints(each, zigzag=False).marked(each != 0, _tag(number, _VARINT), b"")
        for number, each in enumerate((seconds, nanos), 1)
    ]
    return datums.joined(parts, len(micros)).sized(zigzag=False)
