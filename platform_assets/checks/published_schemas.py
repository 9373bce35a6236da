"""Judgement of published keys and values whose format has a schema, by the formats' own libraries. No code is shared with
the publisher's encoder: `fastavro` reads Avro, and Google's library reads Protobuf, with the schema that the registry has
for the id in the record."""

from __future__ import annotations

import io
import json
import math
import os
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Context, Decimal
from functools import cached_property, lru_cache
from typing import Any, Final

import fastavro
import fastavro.schema
import pyarrow as pa
from google.protobuf import descriptor_pb2
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from platform_assets.decoding.avro.types import BadSchema
from platform_assets.decoding.protobuf.compiler import descriptor_set
from platform_assets.decoding.protobuf.messages import class_of, is_map
from platform_assets.decoding.registry.cache import PROTOBUF, BadReferences, Registered, UnknownId
from platform_assets.decoding.registry.client import RegistryClient
from platform_assets.decoding.registry.settings import RegistrySettings
from platform_assets.errors import RegistryUnreachableError
from platform_assets.model.publishing import PublishDeclaration, Side
from platform_assets.windows.publish.forms import is_same

_HEAD: Final = struct.Struct(">bI")
_SCHEMAS: Final = 32
"""Number of schemas that are kept in the form in which the libraries read with them."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_EXACT: Final = Context(prec=100)
_UNREADABLE: Final = (
    ValueError,
    TypeError,
    LookupError,
    ArithmeticError,
    AttributeError,
    EOFError,
    RecursionError,
    struct.error,
    fastavro.schema.SchemaParseException,
    BadSchema,
    DecodeError,
)


@dataclass(frozen=True)
class SchemaReader:
    """Reads the records of a published topic. `own` returns the schemas with which the publisher would send now."""

    declaration: PublishDeclaration
    own: Callable[[], Mapping[Side, Registered]]
    _known: dict[int, Registered | None] = field(default_factory=dict)
    _failed: list[RegistryUnreachableError] = field(default_factory=list)
    """The first failure, so that a registry that does not answer is not waited for again and again."""

    def agrees(
        self,
        side: Side,
        given: bytes,
        row: Mapping[str, Any],
        types: Mapping[str, pa.DataType],
        wanted: set[str] | None,
    ) -> bool:
        """See `published_values.Reader`. Raises RegistryUnreachableError, RegistryRefusedError and ConfigurationError."""
        part = self.declaration.sides[side]
        if part.registry:
            if len(given) < _HEAD.size:
                return False
            magic, number = _HEAD.unpack_from(given)
            schema = self._registered(side, number) if magic == 0 else None
            given = given[_HEAD.size :]
        else:
            schema = self._own[side]
        if schema is None:
            return False
        try:
            if schema.kind == PROTOBUF:
                return _is_protobuf(
                    schema.text, given, row, types, wanted, self.declaration.name_of(side), named=part.registry
                )
            return _is_avro(schema.text, given, row, types, wanted)
        except _UNREADABLE:
            return False

    @cached_property
    def _own(self) -> Mapping[Side, Registered]:
        return self.own()

    def _registered(self, side: Side, number: int) -> Registered | None:
        if number not in self._known:
            if self._failed:
                raise self._failed[0]
            client = RegistryClient(RegistrySettings.of(os.environ))
            try:
                self._known[number] = self._expected(side, client.schema(number))
            except (UnknownId, BadReferences):
                self._known[number] = None
            except RegistryUnreachableError as e:
                self._failed.append(e)
                raise
            finally:
                client.close()
        return self._known[number]

    def _expected(self, side: Side, found: Registered) -> Registered | None:
        """Return the registry's schema if it is the declared one: a record must not choose with which schema it is read."""
        return found if is_same(self._own[side], found) else None


@lru_cache(maxsize=_SCHEMAS)
def _avro_schemas(text: str) -> tuple[Any, Any]:
    """Return a schema as fastavro reads with it, and with each name replaced by its definition."""
    schema = json.loads(text)
    # Without logical types: fastavro has no times after the year 9999, and rounds decimals.
    return fastavro.parse_schema(_plain(schema)), fastavro.schema.expand_schema(schema)


def _is_avro(
    text: str, given: bytes, row: Mapping[str, Any], types: Mapping[str, pa.DataType], wanted: set[str] | None
) -> bool:
    stream = io.BytesIO(given)
    reader, schema = _avro_schemas(text)
    found: Any = fastavro.schemaless_reader(stream, reader, None)
    if stream.read(1):
        return False
    column: str
    if isinstance(schema, dict) and schema["type"] == "record":
        fields = {each["name"]: each["type"] for each in schema["fields"]}
        if (wanted is not None and set(fields) != wanted) or found.keys() != fields.keys():
            return False
        return all(_is_same(of, found[name], row[name], types[name]) for name, of in fields.items())
    (column,) = wanted or set()
    return _is_same(schema, found, row[column], types[column])


def _plain(schema: Any) -> Any:
    """Return a schema without logical types."""
    if isinstance(schema, list):
        return [_plain(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {
        name: part for name, part in schema.items() if name not in ("logicalType", "precision", "scale", "default")
    }
    for name in ("type", "items", "values"):
        if name in found and not isinstance(found[name], str):
            found[name] = _plain(found[name])
    if isinstance(found.get("fields"), list):
        found["fields"] = [_plain(each) for each in found["fields"]]
    return found


def _is_same(of: Any, found: Any, value: Any, kind: pa.DataType) -> bool:
    """Return True if what fastavro has read is the value of a row."""
    if isinstance(of, list):
        (of,) = (each for each in of if each != "null")
    elif value is None:
        return False
    if value is None or found is None:
        return value is None and found is None
    name = of if isinstance(of, str) else of["type"]
    if isinstance(name, dict | list):
        return _is_same(name, found, value, kind)
    if name == "record":
        types = {each.name: each.type for each in kind}
        fields = {each["name"]: each["type"] for each in of["fields"]}
        return fields.keys() == types.keys() and all(_is_same(fields[n], found[n], value[n], types[n]) for n in types)
    if name == "array":
        pairs = zip(found, value, strict=True)
        return all(_is_same(of["items"], each, other, kind.value_type) for each, other in pairs)
    if name == "map":
        given = dict(value)
        return found.keys() == given.keys() and all(
            _is_same(of["values"], found[n], given[n], kind.item_type) for n in given
        )
    return _is_leaf(of if isinstance(of, dict) else {}, found, value, kind)


def _is_leaf(of: Mapping[str, Any], found: Any, value: Any, kind: pa.DataType) -> bool:
    logical = of.get("logicalType")
    if isinstance(value, Decimal):
        whole = int.from_bytes(found, "big", signed=True)
        return logical == "decimal" and Decimal(whole).scaleb(-of.get("scale", 0), _EXACT) == value
    if pa.types.is_timestamp(kind):
        micros = value if isinstance(value, int) else _micros(value)
        each = {"timestamp-micros": 1, "timestamp-millis": 1000}
        unit = each[str(logical).removeprefix("local-")]
        return str(logical).startswith("local-") == (kind.tz is None) and found * unit == micros
    if pa.types.is_date(kind):
        days = (value - date(1970, 1, 1)).days if isinstance(value, date) else value
        return logical == "date" and found == days
    if isinstance(value, float):
        if math.isnan(value):
            return isinstance(found, float) and math.isnan(found)
        return isinstance(found, float) and struct.pack("d", found) == struct.pack("d", value)
    return type(found) is type(value) and bool(found == value)


def _micros(value: datetime) -> int:
    since = value.replace(tzinfo=UTC) - _EPOCH if value.tzinfo is None else value - _EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


@lru_cache(maxsize=_SCHEMAS)
def _message_class(text: str, name: str) -> Any:
    files = descriptor_pb2.FileDescriptorSet()
    files.ParseFromString(descriptor_set(text, {}))
    return class_of(files.file, name)


def _is_protobuf(
    text: str,
    given: bytes,
    row: Mapping[str, Any],
    types: Mapping[str, pa.DataType],
    wanted: set[str] | None,
    name: str,
    *,
    named: bool,
) -> bool:
    """Return True if a message has the content of a row. If it is `named`, the indexes of the first message precede it."""
    if named and given[:1] != b"\0":
        return False
    message = _message_class(text, name)()
    message.ParseFromString(given[1:] if named else given)
    fields = set(message.DESCRIPTOR.fields_by_name)
    if fields != (wanted or fields) or len(UnknownFieldSet(message)):
        return False
    return all(_is_field(message, field, row[field], types[field]) for field in fields)


def _is_field(message: Any, name: str, value: Any, kind: pa.DataType) -> bool:
    """Return True if a field of a message is the value of a row."""
    field = message.DESCRIPTOR.fields_by_name[name]
    found = getattr(message, name)
    if is_map(field):
        given = dict(value)
        return set(found) == set(given) and all(_is_single(found[n], given[n], kind.item_type) for n in given)
    if field.is_repeated:
        pairs = zip(found, value, strict=True)
        return all(_is_single(each, other, kind.value_type) for each, other in pairs)
    if value is None or not message.HasField(name):
        return value is None and not message.HasField(name)
    return _is_single(found, value, kind)


def _is_single(found: Any, value: Any, kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        types = {each.name: each.type for each in kind}
        return set(found.DESCRIPTOR.fields_by_name) == set(types) and all(
            _is_field(found, n, value[n], types[n]) for n in types
        )
    if isinstance(value, Decimal):
        return "e" not in found.lower() and Decimal(found) == value
    if pa.types.is_timestamp(kind):
        micros = value if isinstance(value, int) else _micros(value)
        return bool(found.seconds * 1_000_000_000 + found.nanos == micros * 1000)
    if pa.types.is_date(kind):
        # A number if a date nearby is outside the years 1 to 9999, which earlier versions published.
        return bool(
            found == (pa.scalar(value, kind).cast(pa.string()).as_py() if isinstance(value, int) else value.isoformat())
        )
    return _is_leaf({}, found, value, kind)
