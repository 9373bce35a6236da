"""Comparison of decoded rows with what other readers return. These readers share no code with the decoders.

The other readers are Python's `json` and `csv`, and `fastavro`. Protobuf is not compared, because the decoder itself
uses the Protobuf library.
"""

from __future__ import annotations

import csv
import functools
import json
import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any, Final

import fastavro.read
import pyarrow as pa
import pyarrow.compute as pc

from platform_assets.checks import fastavro_reader
from platform_assets.checks.fastavro_reader import HEAD, NOT_JUDGED, Registry, same_real
from platform_assets.decoding.formats import FORMATS, decoder_of
from platform_assets.decoding.registry.cache import kept
from platform_assets.lake import holdings, load_log, rows
from platform_assets.lake.files import files_below
from platform_assets.lake.location import Lake
from platform_assets.ledger.entries import Receipt
from platform_assets.model.declaration import TopicDeclaration
from platform_assets.model.decoding import FormatSpec

SAMPLE: Final = 64
"""Number of rows to compare in each window."""
_OF_A_BATCH: Final = 16
_SHOWN: Final = 60
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
"""Errors that the readers raise for a value that they cannot read."""
Place = tuple[int, int]
"""A partition and an offset."""


@dataclass(frozen=True, slots=True)
class Disagreement:
    """A row for which another reader gives a different value: the row's partition and offset, and a description with
    both values, in ASCII."""

    partition: int
    offset: int
    detail: str


def disagreements(declaration: TopicDeclaration, lake: Lake, raw: Receipt) -> tuple[int, list[Disagreement]]:
    """Compare a sample of a window's decoded rows with another reader. Return the number of compared rows, and the
    differences.

    Raises FilesLostError.
    """
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
    version = holdings.version_with(folder, key, raw.files_digest, raw.table_version)
    judged, wrong = 0, []
    for batch in rows.batches_of(folder, key, version, ["kafka_partition", "kafka_offset", "value"], wanted):
        for place, value in _placed(batch):
            row = found.get(place)
            if row is None or value["value"] is None or place in repaired:
                continue
            detail = difference(declared.value, fields, value["value"], row, registry)
            if detail is NOT_JUDGED:
                continue
            judged += 1
            if detail is not None:
                wrong.append(Disagreement(*place, detail))
    return judged, wrong


def is_judged(spec: FormatSpec) -> bool:
    """Return True if another reader supports the format with these options."""
    known = FORMATS[spec.format]
    return known.other_reader is not None and set(spec.options) <= known.its_options


def difference(
    spec: FormatSpec,
    fields: pa.Schema,
    value: bytes,
    row: Mapping[str, Any],
    registry: Registry = lambda number: [],
) -> Any:
    """Describe the first column of a decoded row for which another reader gives a different value; return None if there
    is no such column.

    Return NOT_JUDGED if the value's schema is not known for certain, or if fastavro does not accept a schema. A column
    is not compared if its value is an Avro default, because the message does not contain this value. In an Avro row,
    instants must be given as microseconds and dates as days since 1970, because Python does not support dates after the
    year 9999.
    """
    reader = FORMATS[spec.format].other_reader
    try:
        match spec.format:
            case "avro":
                theirs = fastavro_reader.columns(spec, value, registry)
            case "json":
                theirs = _json(spec, value)
            case "csv":
                theirs = _csv(spec, fields, value)
            case _:
                raise AssertionError(f"no other reader for format {spec.format!r}")
    except _NO_ROW as error:
        return f"{reader} cannot read the row: {ascii(str(error))[:_SHOWN]}"
    if theirs is None:
        return NOT_JUDGED
    judge_times = spec.options.get("timestamps", "iso8601") == "iso8601"
    for field in fields:
        other = theirs.get(field.name)
        mine = row[field.name]
        is_same = (
            fastavro_reader.same(field.type, other, mine)
            if spec.format == "avro"
            else other is NOT_JUDGED or _same(field.type, other, mine, judge_times=judge_times)
        )
        if not is_same:
            return f"column {field.name!a} contains {ascii(mine)[:_SHOWN]}, but {reader} reads {ascii(other)[:_SHOWN]}"
    return None


def _json(spec: FormatSpec, value: bytes) -> dict[str, Any]:
    content = value[HEAD:] if spec.options.get("registry") is True else value
    document = json.loads(content, parse_float=_number)
    if not isinstance(document, dict):
        raise ValueError("the value is not a JSON object")
    return document


def _number(text: str) -> Decimal | float:
    """Parse a number as a Decimal. If its exponent is too large for Decimal, return the nearest double."""
    try:
        return Decimal(text)
    except InvalidOperation:
        return float(text)


def _csv(spec: FormatSpec, fields: pa.Schema, value: bytes) -> dict[str, Any]:
    """Read fields with Python's CSV reader.

    Fields that look like a null are not compared, because this reader does not report whether a field was quoted.
    """
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
    # Python's reader also removes the escape from a null such as `\N`.
    nulls = (null, re.sub(rf"{re.escape(escape)}(.)", r"\1", null)) if escape else (null,)
    return {name: NOT_JUDGED if text in nulls else text for name, text in texts}


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
            return same_real(theirs, mine, single=pa.types.is_float32(kind))
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


def _sample(declaration: TopicDeclaration, lake: Lake, key: str, fields: pa.Schema) -> dict[Place, dict[str, Any]]:
    """Return some decoded rows of a window, a few from each batch of the window's files."""
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
    """Return the batch with each instant as a number of microseconds, and each date as a number of days."""
    return batch.cast(pa.schema([*map(_without_times, batch.schema)]))


def _without_times(field: pa.Field) -> pa.Field:
    """Return the field as nullable, because any field can be null in rows that are dead letters."""
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
