"""Rows as Avro: the schema that columns give, the comparison of a declared schema with columns, and the encoder, which
works column by column."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from platform_assets.decoding.avro import types
from platform_assets.decoding.avro.types import AvroType, BadSchema, Enum, Fixed, Items, Plain, Record, Union
from platform_assets.errors import ConfigurationError
from platform_assets.windows.publish import datums
from platform_assets.windows.publish.datums import Datums, Marks, Misfit

KIND: Final = "AVRO"
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_UUID: Final = r"^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$"
_PLAIN: Final[dict[pa.DataType, Any]] = {
    pa.bool_(): "boolean",
    pa.int8(): "int",
    pa.int16(): "int",
    pa.int32(): "int",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.large_string(): "string",
    pa.binary(): "bytes",
    pa.large_binary(): "bytes",
    pa.date32(): {"type": "int", "logicalType": "date"},
    pa.timestamp("us"): {"type": "long", "logicalType": "local-timestamp-micros"},
    pa.timestamp("us", "UTC"): {"type": "long", "logicalType": "timestamp-micros"},
    pa.timestamp("us", "+00:00"): {"type": "long", "logicalType": "timestamp-micros"},
}


def derived(fields: Sequence[pa.Field], name: str) -> str:
    """Return the schema that these columns give, as JSON: a record with the full name `name`, whose fields are the
    columns in order, all of which may be null. Raises ConfigurationError if Avro cannot represent a column."""
    if not fields:
        raise ConfigurationError("an Avro record needs columns: name them in `columns`")
    space, _, own = name.rpartition(".")
    if not all(_NAME.fullmatch(part) for part in name.split(".")):
        raise ConfigurationError(
            f"name {name!r} is not an Avro name: use letters, digits and _, and dots between parts"
        )
    taken: set[str] = set()
    record = _record(fields, own, taken)
    return json.dumps({**({"namespace": space} if space else {}), **record}, separators=(",", ":"))


def _record(fields: Sequence[pa.Field], name: str, taken: set[str]) -> dict[str, Any]:
    if name in taken:
        raise ConfigurationError(
            f"two nested columns would both have the record name {name!r} in Avro: declare `schema`, with names of your own"
        )
    taken.add(name)
    made = []
    for field in fields:
        if not _NAME.fullmatch(field.name):
            raise ConfigurationError(
                f"column {field.name!r} cannot be a field in Avro: its name may have letters, digits and _"
            )
        made.append(
            {
                "name": field.name,
                "type": _nullable(field.type, f"{name}_{field.name}", field.name, taken),
                "default": None,
            }
        )
    return {"type": "record", "name": name, "fields": made}


def _nullable(kind: pa.DataType, name: str, column: str, taken: set[str]) -> list[Any]:
    return ["null", _type(kind, name, column, taken)]


def _type(kind: pa.DataType, name: str, column: str, taken: set[str]) -> Any:
    if kind in _PLAIN:
        return _PLAIN[kind]
    if pa.types.is_decimal128(kind) and 0 <= kind.scale <= kind.precision:
        return {"type": "bytes", "logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
    if pa.types.is_struct(kind):
        return _record(list(kind), name, taken)
    if pa.types.is_map(kind):
        if kind.key_type not in (pa.string(), pa.large_string()):
            raise ConfigurationError(
                f"column {column!r} has a map with keys of type {kind.key_type}: Avro's maps have text keys"
            )
        return {"type": "map", "values": _nullable(kind.item_type, name, column, taken)}
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return {"type": "array", "items": _nullable(kind.value_type, name, column, taken)}
    raise ConfigurationError(f"column {column!r} has type {kind}, which Avro cannot represent")


@dataclass(frozen=True, slots=True)
class AvroForm:
    """The form of keys or values: the schema as text and parsed, and the columns to which it belongs, in its order.
    `may_refuse` is true if there are values of these columns that it does not have."""

    text: str
    schema: AvroType
    columns: tuple[str, ...]
    may_refuse: bool
    kind: str = KIND

    def check_named(self) -> None:
        """Refuse bytes that are not in a record or union: Confluent's Java clients have no length before them, and other
        clients do. Raises ConfigurationError."""
        if isinstance(self.schema, Plain) and self.schema.kind == "bytes":
            raise ConfigurationError(
                "schema is `bytes` alone, which clients of registries read in different ways: declare a record with this "
                'column, or `["null", ...]`'
            )

    def encode(self, rows: pa.Table, alive: Marks, head: bytes) -> pa.LargeBinaryArray:
        """Return one datum for each row, after `head`. Rows that are not alive become meaningless. Raises Misfit."""
        columns = [datums.whole(rows[name]) for name in self.columns]
        if isinstance(self.schema, Record):
            parts = [
                _encoded(column, field.type, field.name, alive)
                for column, field in zip(columns, self.schema.fields, strict=True)
            ]
        else:
            parts = [_encoded(columns[0], self.schema, self.columns[0], alive)]
        found = datums.joined(parts, rows.num_rows)
        return (found.marked(np.ones(rows.num_rows, bool), head, b"") if head else found).to_arrow()


def form(fields: Sequence[pa.Field], named: Sequence[str], schema: str | None, name: str) -> AvroForm:
    """Return the form in which columns are published. `fields` are the columns of the table that may be published, and
    `named` those that are declared. Without a `schema`, the columns give it, and the record has the name `name`. Raises
    ConfigurationError if a schema is not one, or does not go with the columns."""
    by_name = {field.name: field for field in fields}
    if schema is None:
        chosen = [by_name[each] for each in named] if named else list(fields)
        schema = derived(chosen, name)
    try:
        parsed = types.parsed(json.loads(schema), writes=True)
    except (BadSchema, ValueError, RecursionError) as error:
        raise ConfigurationError(f"schema is not a valid Avro schema: {error}") from error
    if isinstance(parsed, Record):
        columns = tuple(field.name for field in parsed.fields)
        if not columns:
            raise ConfigurationError("schema is a record without fields: give it the columns to publish")
        if unknown := [each for each in columns if each not in by_name]:
            raise ConfigurationError(
                f"schema has field {unknown[0]!r}, but the table has no such column: its columns are {', '.join(by_name)}"
            )
        if named and set(named) != set(columns):
            different = sorted(set(named) ^ set(columns))
            raise ConfigurationError(f"columns and schema differ in {', '.join(different)}: leave out `columns`")
        pairs = [(by_name[each.name].type, each.type, each.name) for each in parsed.fields]
    else:
        if len(named) != 1:
            raise ConfigurationError("schema is not a record, so `columns` must name exactly one column")
        columns = tuple(named)
        pairs = [(by_name[columns[0]].type, parsed, columns[0])]
    may_refuse = [_judged(kind, of, place) for kind, of, place in pairs]
    return AvroForm(schema, parsed, columns, any(may_refuse))


def is_same(text: str, other: str) -> bool:
    """Return True if two schemas describe the same bytes, with the same names. False if one is not a schema."""
    try:
        first, second = (types.parsed(json.loads(each), writes=True) for each in (text, other))
        return first == second
    except (BadSchema, ValueError, RecursionError):
        return False


# --- declared schemas and columns -----------------------------------------------------------------------------------


def _judged(kind: pa.DataType, of: AvroType, place: str) -> bool:
    """Return True if some values of a column do not fit into a type. Raises ConfigurationError if none of them fits."""
    if isinstance(of, Union):
        return _judged_value(kind, _of_union(of, place), place)
    _judged_value(kind, of, place)
    return True  # Columns may be null.


def _of_union(of: Union, place: str) -> AvroType:
    others = [branch for branch in of.branches if branch != Plain("null")]
    if len(others) != 1 or len(of.branches) != 2:
        raise ConfigurationError(f"{place} is a union in the schema; only unions of null and one type can be published")
    return others[0]


def _judged_value(kind: pa.DataType, of: AvroType, place: str) -> bool:
    if isinstance(of, Record) and pa.types.is_struct(kind):
        members = {field.name: field.type for field in kind}
        if set(members) != {field.name for field in of.fields}:
            different = sorted(set(members) ^ {field.name for field in of.fields})
            raise ConfigurationError(f"{place}: schema and column differ in {', '.join(different)}")
        refuses_one = [_judged(members[field.name], field.type, f"{place}.{field.name}") for field in of.fields]
        return any(refuses_one)
    if isinstance(of, Items) and not of.is_map and (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        return _judged(kind.value_type, of.item, f"{place}[]")
    if isinstance(of, Items) and of.is_map and pa.types.is_map(kind) and pa.types.is_string(kind.key_type):
        return _judged(kind.item_type, of.item, f"{place}{{}}")
    refuses = next((refuses for fits, refuses in _fitting(kind, of) if fits), None)
    if refuses is None:
        raise ConfigurationError(
            f"column {place} has type {kind}, which does not fit {types.described(of)} in the schema"
        )
    return refuses


def _fitting(kind: pa.DataType, of: AvroType) -> Iterator[tuple[bool, bool]]:
    """Yield, for each rule, whether a column's type goes with an Avro type by it, and if so, whether some values do
    not."""
    logical: Any = getattr(of, "logical", None)
    name = None if logical is None else logical.name
    plain = of.kind if isinstance(of, Plain) else None
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    is_bytes = pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
    is_time = pa.types.is_timestamp(kind) and kind.unit == "us"
    local = "" if is_time and kind.tz in ("UTC", "+00:00") else "local-"
    if pa.types.is_decimal128(kind):
        fits = name == "decimal" and logical.scale == kind.scale and logical.precision >= kind.precision
        yield fits and (plain == "bytes" or (isinstance(of, Fixed) and of.size <= 16)), False
    yield is_time and name == f"{local}timestamp-micros", False
    yield is_time and name == f"{local}timestamp-millis", True
    yield pa.types.is_date32(kind) and name == "date", False
    yield is_text and name == "uuid" and plain == "string", True
    yield is_text and isinstance(of, Enum), True
    yield is_bytes and isinstance(of, Fixed) and name is None, True
    if name is None:
        yield pa.types.is_boolean(kind) and plain == "boolean", False
        yield pa.types.is_signed_integer(kind) and plain == "long", False
        yield pa.types.is_signed_integer(kind) and plain == "int", kind == pa.int64()
        yield pa.types.is_float32(kind) and plain in ("float", "double"), False
        yield pa.types.is_float64(kind) and plain == "double", False
        yield is_text and plain == "string", False
        yield is_bytes and plain == "bytes", False


# --- encoding -------------------------------------------------------------------------------------------------------


def _encoded(column: pa.Array, of: AvroType, place: str, alive: Marks) -> Datums:
    """Return the encodings of a column's values. Raises Misfit for a value that does not fit in a row that is alive."""
    valid = datums.validity(column)
    if isinstance(of, Union):
        index = next(n for n, branch in enumerate(of.branches) if branch != Plain("null"))
        found = _values(column, of.branches[index], place, alive & valid)
        return found.marked(valid, bytes([2 * index]), bytes([2 * (1 - index)]))
    datums.require(valid | ~alive, place, "is null, which its schema does not allow")
    return _values(column, of, place, alive)


def _values(column: pa.Array, of: AvroType, place: str, alive: Marks) -> Datums:
    if isinstance(of, Record):
        parts = {field.name: n for n, field in enumerate(column.type)}
        return datums.joined(
            [_encoded(column.field(parts[f.name]), f.type, f"{place}.{f.name}", alive) for f in of.fields], len(column)
        )
    if isinstance(of, Items):
        return _items(column, of, place, alive)
    if isinstance(of, Enum):
        found = pc.index_in(column, pa.array(of.symbols, column.type))
        datums.require(datums.validity(found) | ~alive, place, f"is not a symbol of {of.name}")
        return datums.varints(datums.longs(found), zigzag=True)
    if isinstance(of, Fixed):
        if of.logical is not None:
            return datums.big_endian(column, of.size)
        found = datums.contents(column)
        fits = np.diff(found.bounds) == of.size
        datums.require(fits | ~alive, place, f"does not have {of.size} bytes, as {of.name} has")
        return found
    if not isinstance(of, Plain):
        raise AssertionError("unreachable: refused by `form`")
    return _plain(column, of, place, alive)


def _items(column: pa.Array, of: Items, place: str, alive: Marks) -> Datums:
    found = datums.items(column)
    below = f"{place}{{}}" if of.is_map else f"{place}[]"
    try:
        values = _encoded(found.values, of.item, below, found.alive(alive))
    except Misfit as e:
        raise Misfit(e.place, e.what, found.row_of(e.row)) from e
    if found.keys is not None:
        values = datums.joined([datums.contents(found.keys).sized(zigzag=True), values], len(found.values))
    return values.grouped(found.groups, counted=True)


def _plain(column: pa.Array, of: Plain, place: str, alive: Marks) -> Datums:
    name = None if of.logical is None else of.logical.name
    if of.kind == "boolean":
        return datums.fixed(datums.longs(column.cast(pa.uint8())).astype(np.uint8))
    if of.kind in ("int", "long"):
        numbers = datums.longs(column)
        if name is not None and name.endswith("millis"):
            datums.require((numbers % 1000 == 0) | ~alive, place, "is not a whole millisecond")
            numbers = numbers // 1000
        elif of.kind == "int" and column.type == pa.int64():
            fits = (numbers >= -(2**31)) & (numbers < 2**31)
            datums.require(fits | ~alive, place, "does not fit into 32 bits, as its schema demands")
        return datums.varints(numbers, zigzag=True)
    if of.kind in ("float", "double"):
        return datums.fixed(datums.doubles(column, "<f4" if of.kind == "float" else "<f8"))
    if name == "decimal":
        return datums.big_endian(column).sized(zigzag=True)
    if name == "uuid":
        fits = pc.fill_null(pc.match_substring_regex(column, _UUID), False).to_numpy(zero_copy_only=False)
        datums.require(fits | ~alive, place, "is not a UUID")
    return datums.contents(column).sized(zigzag=True)
