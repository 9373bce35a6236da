"""The fast path: kernels turn a block of change events into columns, without Python code for each value.

It reads the envelope first, then the source and the image of the row that counts. It decides values that are clearly
correct, and marks the other rows. It never rejects a value.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from platform_assets.decoding.debezium.declaration import Declared
from platform_assets.decoding.debezium.exact import SOURCE
from platform_assets.decoding.debezium.schemas import mismatch
from platform_assets.decoding.debezium.wire import converted, wire_type
from platform_assets.decoding.decoder import DecodeFault
from platform_assets.decoding.json.dialect import Dialect
from platform_assets.decoding.json.exact import parsed
from platform_assets.decoding.json.fast import Block, DecodedBlock, Spans, program_of, rescued_of, spans_of
from platform_assets.decoding.json.scalars import EARLIEST, LATEST
from platform_assets.decoding.pieces import Bytes, Marks
from platform_assets.kernels.json_objects import NULL
from platform_assets.kernels.json_texts import is_ascii
from platform_assets.kernels.text import mark_invalid_utf8
from platform_assets.model.debezium import CREATE, DELETE, READ, TRUNCATE, UPDATE

_ANY: Final = pa.struct([("_", pa.bool_())])
_ENVELOPE: Final = pa.schema([("before", _ANY), ("after", _ANY), ("source", _ANY), ("op", pa.string())])
_WRAPPED: Final = pa.schema([*_ENVELOPE, pa.field("payload", _ANY), pa.field("schema", _ANY)])
_SAMPLES: Final = 16
"""Number of rows that are read to guess the wire types of a block."""


def find(values: pa.BinaryArray, d: Declared) -> DecodedBlock:
    """Decode the clearly correct events of a block."""
    outer = Dialect(_WRAPPED, max_depth=d.max_depth, max_bytes=d.max_bytes)
    # Each program may read a few bytes past the end of the data, as many as its longest name has.
    padding = max(program_of(each).padding for each in (outer, _source(d), _row_dialect(d, _guess(d, {}))))
    spans = spans_of(values, padding)
    undecided = np.zeros(len(values), np.uint8)
    undecided[spans.ends - spans.starts > d.max_bytes] = 1
    if not is_ascii(spans.data, 0, spans.data.size - padding):
        mark_invalid_utf8(spans.data, spans.starts, spans.ends - spans.starts, undecided)
    _mark_placeholders(values, spans, d, undecided)
    undecided[_search(values, _fractions(d))] = 1
    operations, images, source, partial = _envelope(spans, outer, d, undecided)
    block = Block(program_of(_source(d)), source, _source(d), undecided, extras="ignored")
    found = facts(dict(zip(SOURCE.names, block.columns(), strict=True)), operations, undecided)
    row = _row(d, images, operations, partial, undecided)
    return DecodedBlock([*row[0], *found], row[1], undecided.view(np.bool_))


def _source(d: Declared) -> Dialect:
    return Dialect(SOURCE, max_depth=d.max_depth)


def _mark_placeholders(values: pa.BinaryArray, spans: Spans, d: Declared, undecided: Bytes) -> None:
    """Set `undecided` for values that contain the placeholder of a TOASTed value, or that may hide it or a name in escapes.
    Nearly all blocks contain none, and then this takes one search for each form of the placeholder."""
    content = spans.data.tobytes()
    for form in dict.fromkeys(each for text in d.placeholders() for each in (text, _written(text)[1:-1])):
        if form.encode() in content:
            undecided[pc.fill_null(pc.match_substring(values, form), False).to_numpy(zero_copy_only=False)] = 1
    for start in (rb"\u", rb"\/"):
        if start in content:
            undecided[_search(values, _escapes(d))] = 1
            return


def _written(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _search(values: pa.BinaryArray, pattern: str) -> Marks:
    if not pattern:
        return np.zeros(len(values), np.bool_)
    return _true(pc.fill_null(pc.match_substring_regex(values, pattern), False))


@lru_cache(maxsize=16)
def _escapes(d: Declared) -> str:
    """Return the pattern of escapes that JSON does not require: of ASCII, and of other characters in a placeholder or a
    name of a column."""
    texts = "".join([*d.placeholders(), *(name for field in d.row for name, _ in _names(field.name, field.type))])
    others = sorted({each for each in texts if not " " <= each <= "~"})
    units = {each.encode("utf-16-be").hex()[at : at + 4] for each in others for at in (0, 4)} - {""}
    return r"\\(?:/|u(?i:00[2-7][0-9a-f]" + "".join(f"|{each}" for each in sorted(units)) + "))"


@lru_cache(maxsize=16)
def _fractions(d: Declared) -> str:
    """Return the pattern of numbers with a point or an exponent in columns of dates and times, or an empty string. The
    kernels read them as whole numbers, but the connector does not write them."""
    names: dict[bool, set[str]] = {False: set(), True: set()}
    for field in d.row:
        for name, kind in _names(field.name, field.type):
            leaf = kind
            while pa.types.is_list(leaf) or pa.types.is_map(leaf):
                leaf = leaf.value_type if pa.types.is_list(leaf) else leaf.item_type
            if pa.types.is_timestamp(leaf) or pa.types.is_date(leaf):
                names[_has_map(kind)].add(re.escape(_written(name)))
    between = {False: r"[\[\]\s,0-9+\-nul]*", True: r"[^}]*"}
    return "|".join(
        rf"(?:{'|'.join(sorted(found))})\s*:{between[is_map]}[0-9][.eE]" for is_map, found in names.items() if found
    )


def _has_map(kind: pa.DataType) -> bool:
    return bool(pa.types.is_map(kind)) or (bool(pa.types.is_list(kind)) and _has_map(kind.value_type))


def _names(name: str, kind: pa.DataType) -> Iterator[tuple[str, pa.DataType]]:
    """Yield the name and the type of a field, and of the fields in it."""
    yield name, kind
    while pa.types.is_list(kind) or pa.types.is_map(kind):
        kind = kind.value_type if pa.types.is_list(kind) else kind.item_type
    if pa.types.is_struct(kind):
        for index in range(kind.num_fields):
            yield from _names(kind.field(index).name, kind.field(index).type)


def _mark_mismatches(wrapped: Marks, data: Bytes, schema: tuple[Any, Any], d: Declared, undecided: Bytes) -> None:
    """Set `undecided` for the events whose schema contradicts the declaration."""
    starts, ends = schema
    for row in np.flatnonzero(wrapped & (starts != NULL)):
        if _contradicts(data[starts[row] : ends[row]].tobytes(), d):
            undecided[row] = 1


@lru_cache(maxsize=64)
def _contradicts(schema: bytes, d: Declared) -> bool:
    try:
        return mismatch(parsed(schema, d.max_bytes, d.max_depth)[1], d) is not None
    except DecodeFault:
        return True


def _envelope(spans: Spans, outer: Dialect, d: Declared, undecided: Bytes) -> tuple[Bytes, Spans, Spans, Marks]:
    """Return the code of each operation, the spans of rows and of sources, and marks of the rows that may lack TOASTed
    values. Mark the events that are undecided."""
    block = Block(program_of(outer), spans, outer, undecided, extras="ignored")
    fields = {name: block.spans_of(name) for name in _ENVELOPE.names}
    starts, ends = block.spans_of("payload")
    wrapped = (fields["op"][0] == NULL) & (starts != NULL)
    if wrapped.any():
        _mark_mismatches(wrapped, spans.data, block.spans_of("schema"), d, undecided)
        payload = Spans(spans.data, np.where(wrapped, starts, np.int32(NULL)), np.where(wrapped, ends, np.int32(NULL)))
        inner = Dialect(_ENVELOPE, max_depth=outer.max_depth)
        block = Block(program_of(inner), payload, inner, undecided, extras="ignored")
        for name in _ENVELOPE.names:
            others = block.spans_of(name)
            fields[name] = tuple(np.where(wrapped, o, f) for o, f in zip(others, fields[name], strict=True))  # type: ignore[assignment]
    begin, end = fields["op"]
    operations = np.where(end - begin == 1, spans.data[np.maximum(begin, 0)], np.uint8(0))
    operations[begin == NULL] = 0
    is_delete, is_truncate = operations == ord(DELETE), operations == ord(TRUNCATE)
    has_after = np.isin(operations, [ord(each) for each in (CREATE, READ, UPDATE)])
    (before, before_end), (after, after_end) = fields["before"], fields["after"]
    images = np.where(is_delete, before, np.where(has_after, after, np.int32(NULL)))
    image_ends = np.where(is_delete, before_end, np.where(has_after, after_end, np.int32(NULL)))
    is_event = spans.starts != NULL
    undecided[is_event & ~is_truncate & (images == NULL)] = 1
    undecided[is_event & ~(is_delete | is_truncate | has_after)] = 1
    partial: Marks = (operations == ord(UPDATE)) & (before == NULL)
    return operations, Spans(spans.data, images, image_ends), Spans(spans.data, *fields["source"]), partial


def facts(found: Mapping[str, pa.Array], operations: Bytes, undecided: Bytes) -> list[pa.Array]:
    """Return the columns of facts. `found` has the fields of `SOURCE`."""
    micros = found["ts_us"]
    if micros.null_count:
        near = pc.and_(
            pc.greater_equal(found["ts_ms"], EARLIEST // 1_000), pc.less_equal(found["ts_ms"], LATEST // 1_000)
        )
        millis = pc.if_else(near, found["ts_ms"], None)
        micros = pc.coalesce(micros, pc.multiply(millis, 1_000))
        undecided[_true(pc.and_(found["ts_us"].is_null(), pc.and_(millis.is_null(), found["ts_ms"].is_valid())))] = 1
    within = pc.and_(pc.greater_equal(micros, EARLIEST), pc.less_equal(micros, LATEST))
    undecided[_true(pc.invert(pc.fill_null(within, True)))] = 1
    times = pc.if_else(pc.fill_null(within, False), micros, None).cast(pa.timestamp("us", tz="UTC"))
    known, codes = np.unique(operations, return_inverse=True)
    names = pa.array([chr(each) if each else None for each in known], pa.string())
    operation = names.take(pa.array(codes))
    return [operation, found["lsn"], found["sequence"], found["txId"], times, found["snapshot"]]


def _true(array: pa.BooleanArray) -> Marks:
    found: Marks = array.to_numpy(zero_copy_only=False)
    return found


def _row(d: Declared, images: Spans, operations: Bytes, partial: Marks, undecided: Bytes) -> tuple[list[pa.Array], Any]:
    """Return the columns of the rows, and the undeclared fields of the rows."""
    kinds = _guess(d, _samples(images, undecided, d))
    dialect = _row_dialect(d, kinds)
    block = Block(program_of(dialect), images, dialect, undecided, extras=True)
    columns = []
    for field, read in zip(d.row, block.columns(), strict=True):
        column, marks = converted(read, field.type, d, d.unit(field.name))
        undecided[marks] = 1
        mark_unclear(column, field, d, operations, partial, undecided)
        columns.append(column)
    return columns, rescued_of(block.spans.data, block.extras, block.extra_count, undecided)


def mark_unclear(
    column: pa.Array, field: pa.Field, d: Declared, operations: Bytes, partial: Marks, undecided: Bytes
) -> None:
    """Set `undecided` for the rows in which a column lacks a required value, or may stand for a TOASTed value that was
    not sent. `partial` marks the rows that may lack such values."""
    if not field.nullable and column.null_count:
        must = (operations != ord(DELETE)) & (operations != ord(TRUNCATE)) & (operations != 0)
        undecided[must & _true(column.is_null())] = 1
    if pa.types.is_list(field.type):  # the bytes of a placeholder, as numbers or booleans
        lengths = pc.fill_null(pc.list_value_length(column), -1).to_numpy()
        undecided[lengths == len(d.placeholder_bytes)] = 1
    if d.may_be_unsent(field.type) and column.null_count:
        undecided[partial & _true(column.is_null())] = 1


@lru_cache(maxsize=64)
def _row_dialect(d: Declared, kinds: tuple[pa.DataType, ...]) -> Dialect:
    fields = [field.with_type(kind).with_nullable(True) for field, kind in zip(d.row, kinds, strict=True)]
    return Dialect(pa.schema(fields), max_depth=d.max_depth)


def _guess(d: Declared, samples: dict[str, Any]) -> tuple[pa.DataType, ...]:
    return tuple(wire_type(field.type, samples.get(field.name), d) for field in d.row)


def _samples(images: Spans, undecided: Bytes, d: Declared) -> dict[str, Any]:
    """Return a value for each column that has one in a few rows of the block."""
    rows: npt.NDArray[np.int64] = np.flatnonzero((images.starts != NULL) & (undecided == 0))
    found: dict[str, Any] = {}
    for row in rows[np.linspace(0, rows.size - 1, min(rows.size, _SAMPLES), dtype=np.int64)]:
        try:
            each = json.loads(images.data[images.starts[row] : images.ends[row]].tobytes())
        except ValueError:
            continue
        found = {name: value for name, value in each.items() if value is not None} | found
    return found
