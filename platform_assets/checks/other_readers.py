"""Decoded rows compared with what readers that share no code with the decoders make of the raw values.

They are Python's `json` and `csv`, and `fastavro`. Protobuf is not judged here: its decoder has the library read the values.
"""

from __future__ import annotations

import csv
import functools
import io
import json
import math
import re
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Context, Decimal, InvalidOperation
from fractions import Fraction
from typing import Any, Final

import fastavro
import fastavro.read
import fastavro.schema
import pyarrow as pa
import pyarrow.compute as pc

from platform_assets.decoding.formats import decoder_of
from platform_assets.decoding.registry.cache import AVRO, Registered, kept
from platform_assets.lake import load_log, rows
from platform_assets.lake.files import files_below
from platform_assets.lake.location import Lake
from platform_assets.ledger.entries import Receipt
from platform_assets.model.declaration import TopicDeclaration
from platform_assets.model.decoding import FormatSpec

SAMPLE: Final = 64
"""Rows of a window that are judged."""
_OF_A_BATCH: Final = 16
_OPTIONS: Final[Mapping[str, frozenset[str]]] = {
    "json": frozenset({"schema", "json_schema", "timestamps", "max_depth", "max_bytes", "registry"}),
    "csv": frozenset({"schema", "delimiter", "quote", "escape", "null", "timestamps", "max_bytes"}),
    "avro": frozenset({"schema", "writer_schema", "maps", "max_bytes", "registry"}),
}
_HEAD: Final = 5
_MOST_NAMES: Final = 5
_MOST_FIELDS: Final = 20
"""Fields of an array's item that are looked at, and names that are followed, to find out that it takes bytes."""
_SHOWN: Final = 60
_SINGLE_BITS: Final = 24
_NOT_JUDGED: Final = object()
_NO_ROW: Final = (
    ValueError,
    RecursionError,
    csv.Error,
    EOFError,
    LookupError,
    TypeError,
    struct.error,
    fastavro.read.SchemaResolutionError,
)
"""What readers raise for a value that they do not read."""
_NO_SCHEMA: Final = (
    ValueError,
    RecursionError,
    LookupError,
    TypeError,
    AttributeError,
    fastavro.schema.SchemaParseException,
)
"""What fastavro raises for schemas that it does not accept, and this module for those that have another form."""
Place = tuple[int, int]
"""A partition and an offset."""
Registry = Callable[[int], list[Registered]]
"""Returns the schemas that the lake has kept of an id, one for each meaning that it had in any registry."""


@dataclass(frozen=True, slots=True)
class Disagreement:
    """A row of which another reader has another value: where it is, and what both say, in ASCII."""

    partition: int
    offset: int
    detail: str


def disagreements(declaration: TopicDeclaration, lake: Lake, raw: Receipt) -> tuple[int, list[Disagreement]]:
    """Judge a sample of a window's decoded rows: how many were judged, and those that differ. Raises FilesLostError."""
    declared = declaration.decode
    if declared is None or not is_judged(declared.value) or raw.table_version is None:
        return 0, []
    key, folder = raw.window.key, lake.table(declaration.raw_table)
    fields = decoder_of(declared.value).fields
    found = _sample(declaration, lake, key, fields)
    repaired = {(r.partition, r.offset) for r in declared.repairs_of(key)}
    schemas = files_below(str(lake.schemas))
    registry = functools.cache(lambda number: kept(schemas, number))
    wanted = pc.field("kafka_offset").isin(pa.array([offset for _, offset in found], pa.int64()))
    version = load_log.version_with(folder, key, raw.files_digest, raw.table_version)
    judged, wrong = 0, []
    for batch in rows.batches_of(folder, key, version, ["kafka_partition", "kafka_offset", "value"], wanted):
        for place, value in _placed(batch):
            row = found.get(place)
            if row is None or value["value"] is None or place in repaired:
                continue
            detail = difference(declared.value, fields, value["value"], row, registry)
            if detail is _NOT_JUDGED:
                continue
            judged += 1
            if detail is not None:
                wrong.append(Disagreement(*place, detail))
    return judged, wrong


def is_judged(spec: FormatSpec) -> bool:
    """Return whether another reader supports the format with these options."""
    return spec.format in _OPTIONS and set(spec.options) <= _OPTIONS[spec.format]


def difference(
    spec: FormatSpec,
    fields: pa.Schema,
    value: bytes,
    row: Mapping[str, Any],
    registry: Registry = lambda number: [],
) -> Any:
    """Return the first column of a decoded row for which another reader has another value, as text; None if there is none.

    The result is neither if the value names a schema that is not known for certain, or a schema is one that fastavro does not accept.
    Columns that have a default of Avro, which is not in the value, are not compared. A row of Avro has its instants as microseconds
    and its dates as days since 1970: Python has no dates beyond the year 9999.
    """
    reader = "fastavro" if spec.format == "avro" else f"Python's {spec.format}"
    try:
        if spec.format == "avro":
            theirs = _avro(spec, value, registry)
        else:
            theirs = _json(spec, value) if spec.format == "json" else _csv(spec, fields, value)
    except _NO_ROW as error:
        return f"{reader} reads no row: {ascii(str(error))[:_SHOWN]}"
    if theirs is None:
        return _NOT_JUDGED
    judge_times = spec.options.get("timestamps", "iso8601") == "iso8601"
    for field in fields:
        other = theirs.get(field.name)
        mine = row[field.name]
        is_same = (
            _same_avro(field.type, other, mine)
            if spec.format == "avro"
            else other is _NOT_JUDGED or _same(field.type, other, mine, judge_times=judge_times)
        )
        if not is_same:
            return f"column {field.name!a} holds {ascii(mine)[:_SHOWN]}, and {reader} reads {ascii(other)[:_SHOWN]}"
    return None


def _json(spec: FormatSpec, value: bytes) -> dict[str, Any]:
    content = value[_HEAD:] if spec.options.get("registry") is True else value
    document = json.loads(content, parse_float=_number)
    if not isinstance(document, dict):
        raise ValueError("no object")
    return document


def _number(text: str) -> Decimal | float:
    """The number; the nearest double if it has an exponent of which no Decimal knows."""
    try:
        return Decimal(text)
    except InvalidOperation:
        return float(text)


def _csv(spec: FormatSpec, fields: pa.Schema, value: bytes) -> dict[str, Any]:
    """Fields that are written as a null is are not judged: Python's reader does not say whether they had quotes."""
    given = spec.options
    quote, null, escape = given.get("quote", '"'), given.get("null", ""), given.get("escape", "")
    found = list(
        csv.reader(
            [value.decode()],
            delimiter=given.get("delimiter", ","),
            quoting=csv.QUOTE_MINIMAL if quote else csv.QUOTE_NONE,
            quotechar=quote or None,
            escapechar=escape or None,
            strict=True,
        )
    )
    if len(found) != 1 or len(found[0]) != len(fields):
        raise ValueError(f"{len(found)} rows")
    texts = zip(fields.names, found[0], strict=True)
    # Python's reader takes the escapes out of a null such as `\N` too.
    nulls = (null, re.sub(rf"{re.escape(escape)}(.)", r"\1", null)) if escape else (null,)
    return {name: _NOT_JUDGED if text in nulls else text for name, text in texts}


@dataclass(frozen=True, slots=True)
class _Moment:
    """A number that stands for an instant, and the nanoseconds of its unit."""

    number: int
    unit: int


_UNITS: Final = {"timestamp-millis": 1_000_000, "timestamp-micros": 1_000, "timestamp-nanos": 1}


def _moment(number: int, writer_schema: Any, *_: Any) -> _Moment:
    return _Moment(number, _UNITS[writer_schema["logicalType"].removeprefix(_OWN)])


# fastavro's own conversions of logical types know no instants beyond the year 9999, and round decimals.
_OWN: Final = "platform-assets-"
for _name in _UNITS:
    fastavro.read.LOGICAL_READERS[f"long-{_OWN}{_name}"] = _moment
# fastavro leaves a number of a logical type as it is: read as a float, it would be rounded twice.
_WHOLE: Final = _OWN + "whole"
fastavro.read.LOGICAL_READERS[f"long-{_WHOLE}"] = lambda number, *_: number
_DEFAULT: Final = _OWN + "default"


def _plain(schema: Any) -> Any:
    """The schema without logical types, except instants, and with a mark where a field has a default."""
    if isinstance(schema, list):
        return [_plain(branch) for branch in schema]
    if schema == "long":
        return {"type": "long", "logicalType": _WHOLE}
    if not isinstance(schema, dict):
        return schema
    if isinstance(schema["type"], dict | list):
        return _plain(schema["type"])
    made = {name: part for name, part in schema.items() if name != "logicalType"}
    if schema["type"] == "long":
        unit = schema.get("logicalType")
        return {**made, "logicalType": _OWN + unit if unit in _UNITS else _WHOLE}
    made |= {name: _plain(made[name]) for name in ("items", "values") if name in made}
    if "fields" in made:
        made["fields"] = [_plain_field(field) for field in made["fields"]]
    return made


def _plain_field(field: dict[str, Any]) -> dict[str, Any]:
    made = {name: part for name, part in field.items() if name not in ("logicalType", "default")}
    return {**made, "type": _plain(field["type"]), _DEFAULT: "default" in field}


def _avro(spec: FormatSpec, value: bytes, registry: Registry) -> Mapping[str, Any] | None:
    """The columns by name; None if the value's schema is not known, or not one that fastavro accepts."""
    is_registered = spec.options.get("registry") is True
    try:
        schemas = _schemas(spec, value, registry if is_registered else None)
    except _NO_SCHEMA:
        return None
    if schemas is None:
        return None
    content = value[_HEAD:] if is_registered else value
    stream = io.BytesIO(content)
    read: Any = fastavro.schemaless_reader(stream, schemas.writer, schemas.reader)
    if stream.tell() != len(content):
        raise ValueError(f"{len(content) - stream.tell()} bytes are left")
    theirs = read["value"]
    return theirs if schemas.is_record else {"value": theirs}


@dataclass(frozen=True, slots=True)
class _Schemas:
    """Two schemas for fastavro, each of a record with the field `value`; `is_record` if its fields are the columns."""

    writer: Any
    reader: Any
    is_record: bool


def _schemas(spec: FormatSpec, value: bytes, registry: Registry | None) -> _Schemas | None:
    documents = list[Any]()
    if registry is None:
        writer = _plain(_document(spec.options.get("writer_schema", spec.options["schema"])))
    else:
        found = registry(int.from_bytes(value[1:_HEAD], "big")) if value[:1] == b"\0" else []
        if len(found) != 1 or found[0].kind != AVRO:
            return None
        writer = _plain(json.loads(found[0].text))
        documents = [_plain(json.loads(text)) for text in found[0].references.values()]
    if not _is_bounded([*documents, writer]):
        return None
    written, read = dict[str, Any](), dict[str, Any]()
    for document in documents:
        fastavro.parse_schema(document, written)
    reader = _plain(_document(spec.options["schema"]))
    schemas = _Schemas(
        fastavro.parse_schema(_as_field(writer), written),
        fastavro.parse_schema(_as_field(reader), read),
        is_record=isinstance(reader, dict) and reader["type"] in ("record", "error"),
    )
    # A default is text in the schema whatever its type is, and may omit fields that have defaults.
    for record in read.values():
        for field in record.get("fields", ()):
            if field[_DEFAULT]:
                field["default"] = _NOT_JUDGED
    return schemas


def _as_field(schema: Any) -> dict[str, Any]:
    field = {"name": "value", "type": schema, _DEFAULT: False}
    return {"type": "record", "name": "platform_assets_value", "fields": [field]}


def _is_bounded(documents: list[Any]) -> bool:
    """Return false if an array may have items without bytes: fastavro would count any number of them, one by one."""
    waiting, by_name, items = [*documents], dict[str, Any](), []
    while waiting:
        schema = waiting.pop()
        if isinstance(schema, list):
            waiting += schema
        elif isinstance(schema, dict):
            if isinstance(name := schema.get("name"), str) and schema.get("type") in ("record", "error", "fixed"):
                by_name[name.rpartition(".")[2]] = schema
            items += [schema["items"]] if schema.get("type") == "array" and "items" in schema else []
            waiting += [schema[part] for part in ("type", "items", "values", "fields") if part in schema]
    return all(_takes_bytes(item, by_name, 0) for item in items)


def _takes_bytes(schema: Any, by_name: Mapping[str, Any], depth: int) -> bool:
    if isinstance(schema, str):
        named = by_name.get(schema.rpartition(".")[2])
        return schema != "null" if named is None else depth < _MOST_NAMES and _takes_bytes(named, by_name, depth + 1)
    if not isinstance(schema, dict):
        return True  # the number of a union's branch
    if schema.get("type") == "fixed":
        return bool(schema["size"])
    if schema.get("type") in ("record", "error"):
        return any(_takes_bytes(field["type"], by_name, depth + 1) for field in schema["fields"][:_MOST_FIELDS])
    return _takes_bytes(schema["type"], by_name, depth)


def _document(given: Any) -> Any:
    return json.loads(given) if isinstance(given, str) and given.lstrip()[:1] in ("{", "[") else given


def _same_avro(kind: pa.DataType, theirs: Any, mine: Any) -> bool:
    """Numbers are promoted and texts converted here: fastavro leaves them as they were written."""
    if theirs is _NOT_JUDGED:
        return True
    if theirs is None or mine is None:
        return theirs is None and mine is None
    try:
        if pa.types.is_struct(kind):
            return all(_same_avro(part.type, theirs[part.name], mine[part.name]) for part in kind)
        if pa.types.is_map(kind) or (pa.types.is_list(kind) and isinstance(theirs, dict)):
            is_map = pa.types.is_map(kind)
            item = kind.item_type if is_map else kind.value_type.field("value").type
            own = dict(mine) if is_map else {entry["key"]: entry["value"] for entry in mine}
            return own.keys() == theirs.keys() and all(_same_avro(item, theirs[name], own[name]) for name in own)
        if pa.types.is_list(kind):
            return all(_same_avro(kind.value_type, *pair) for pair in zip(theirs, mine, strict=True))
        if pa.types.is_timestamp(kind):
            # A number without a unit of its own has the unit of the declaration, which no other reader knows.
            return not isinstance(theirs, _Moment) or theirs.number * theirs.unit == mine * 1_000
        theirs = theirs.number if isinstance(theirs, _Moment) else theirs
        if pa.types.is_floating(kind):
            is_single = pa.types.is_float32(kind)
            return _same_real(
                _single(theirs) if is_single and isinstance(theirs, int) else theirs, mine, single=is_single
            )
        if pa.types.is_decimal(kind):
            return bool(mine.scaleb(kind.scale, Context(prec=100)) == int.from_bytes(theirs, "big", signed=True))
        if pa.types.is_string(kind):
            return bool(mine == (theirs.decode() if isinstance(theirs, bytes) else theirs))
        if pa.types.is_binary(kind):
            return bool(mine == (theirs.encode() if isinstance(theirs, str) else theirs))
        return isinstance(theirs, bool) == pa.types.is_boolean(kind) and bool(theirs == mine)
    except (TypeError, ValueError, ArithmeticError, AttributeError, KeyError):
        return False


def _same(kind: pa.DataType, theirs: Any, mine: Any, *, judge_times: bool) -> bool:
    if theirs is None or mine is None:
        return theirs is None and mine is None
    try:
        if pa.types.is_struct(kind):
            return all(_same(f.type, theirs.get(f.name), mine[f.name], judge_times=judge_times) for f in kind)
        if pa.types.is_list(kind):
            pairs = zip(theirs, mine, strict=True)
            return all(_same(kind.value_type, other, own, judge_times=judge_times) for other, own in pairs)
        if pa.types.is_map(kind):
            own = dict(mine)
            return own.keys() == theirs.keys() and all(
                _same(kind.item_type, theirs[name], own[name], judge_times=judge_times) for name in own
            )
        if pa.types.is_floating(kind):
            return _same_real(theirs, mine, single=pa.types.is_float32(kind))
        if pa.types.is_integer(kind) or pa.types.is_decimal(kind):
            return not isinstance(theirs, bool) and Decimal(theirs) == mine
        if pa.types.is_boolean(kind):
            return (theirs.lower() == str(mine).lower()) if isinstance(theirs, str) else theirs is mine
        if pa.types.is_date(kind):
            return bool(not judge_times or date.fromisoformat(theirs) == mine)
        if pa.types.is_timestamp(kind):
            return bool(not judge_times or _instant(theirs) == mine)
        return bool(theirs == mine) if pa.types.is_string(kind) else True
    except (TypeError, ValueError, ArithmeticError, AttributeError):
        return False


def _instant(text: str) -> datetime:
    found = datetime.fromisoformat(text)
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found


def _single(number: int) -> int:
    """The nearest number of 24 bits, the even one of two."""
    dropped = max(number.bit_length() - _SINGLE_BITS, 0)
    return round(Fraction(number, 1 << dropped)) << dropped


def _same_real(theirs: Any, mine: float, *, single: bool) -> bool:
    number = float(theirs)
    if single and math.isfinite(number):
        (number,) = struct.unpack("<f", struct.pack("<f", number))
    return (math.isnan(number) and math.isnan(mine)) or (
        number == mine and math.copysign(1, number) == math.copysign(1, mine)
    )


def _sample(declaration: TopicDeclaration, lake: Lake, key: str, fields: pa.Schema) -> dict[Place, dict[str, Any]]:
    """Some decoded rows of a window, from all over its files."""
    folder = lake.table(declaration.decoded_table)
    declared = declaration.decode
    is_avro = declared is not None and declared.value.format == "avro"
    found: dict[Place, dict[str, Any]] = {}
    columns = ["kafka_partition", "kafka_offset", *fields.names]
    for batch in rows.batches_of(folder, key, load_log.version(folder), columns):
        step = max(batch.num_rows // _OF_A_BATCH, 1)
        taken = batch.take(pa.array(range(0, batch.num_rows, step)))
        found.update(_placed(without_times(taken) if is_avro else taken))
        if len(found) >= SAMPLE:
            break
    return found


def without_times(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the batch with instants as numbers of microseconds, and dates as numbers of days."""
    return batch.cast(pa.schema([*map(_without_times, batch.schema)]))


def _without_times(field: pa.Field) -> pa.Field:
    """A field that may be null: in rows of dead letters, any is."""
    kind = field.type
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        kind = pa.int64() if pa.types.is_timestamp(kind) else pa.int32()
    elif pa.types.is_struct(kind):
        kind = pa.struct([*map(_without_times, kind)])
    elif pa.types.is_map(kind):
        kind = pa.map_(kind.key_field, _without_times(kind.item_field))
    elif pa.types.is_list(kind):
        kind = pa.list_(_without_times(kind.value_field))
    return field.with_type(kind).with_nullable(True)


def _placed(batch: pa.RecordBatch) -> Iterator[tuple[Place, dict[str, Any]]]:
    for row in batch.to_pylist():
        yield (row["kafka_partition"], row["kafka_offset"]), row
