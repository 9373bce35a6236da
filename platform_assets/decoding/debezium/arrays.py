"""Conversion of whole columns from the types in which the Avro kernel reads them to their declared types.

A conversion only decides how fast a value is decoded. Values that it does not convert are left to the exact path.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from platform_assets.decoding.conversion import Conversion
from platform_assets.decoding.debezium.connect import Schema
from platform_assets.decoding.debezium.declaration import Declared
from platform_assets.decoding.debezium.wire import date, decimal, of_base64, of_hex, timestamp
from platform_assets.decoding.maps import repeated_keys
from platform_assets.decoding.pieces import Marks, pieces_of

_VARIABLE: Final = {"scale": pa.int32(), "value": pa.binary()}


def shaped(array: pa.Array, schema: Schema, kind: pa.DataType, d: Declared, unit: int) -> tuple[pa.Array, Marks]:
    """Return a column that was written with `schema` as a column of the type `kind`, and marks of the undecided rows,
    whose content does not matter. `unit` is the number of nanoseconds in one unit of the column's timestamps."""
    written = schema["type"]
    if pa.types.is_struct(kind) and written == "struct":
        return _struct(array, schema, kind, d, unit)
    if pa.types.is_list(kind) and written == "array":
        values, marks = shaped(array.values, schema["items"], kind.value_type, d, unit)
        made = pa.Array.from_buffers(kind, len(array), array.buffers()[:2], array.null_count, children=[values])
        return made, _of_parts(array, marks)
    if pa.types.is_map(kind) and written == "map":
        return _map(array, schema, kind, d, unit)
    if pa.types.is_nested(kind) or written in ("array", "map"):
        return _nothing(array, kind)
    return _scalar(array, kind, d, unit)


def _nothing(array: pa.Array, kind: pa.DataType) -> tuple[pa.Array, Marks]:
    """Return nulls, and marks of all rows that have a value."""
    return pa.nulls(len(array), kind), array.is_valid().to_numpy(zero_copy_only=False)


def _nulls(array: pa.Array) -> Marks:
    found: Marks = array.is_null().to_numpy(zero_copy_only=False)
    return found


def _of_parts(array: pa.ListArray, marks: Marks) -> Marks:
    """Return marks of the lists that contain a marked item."""
    found = np.zeros(len(array), np.bool_)
    if marks.any():
        offsets = array.offsets.to_numpy()
        found[np.searchsorted(offsets, np.flatnonzero(marks), side="right") - 1] = True
    return found


def _struct(array: pa.StructArray, schema: Schema, kind: pa.DataType, d: Declared, unit: int) -> tuple[pa.Array, Marks]:
    fields = {each["field"]: each for each in schema["fields"]}
    is_there = ~_nulls(array)
    marks, parts = np.zeros(len(array), np.bool_), []
    for field in kind:
        if field.name in fields:
            part, bad = shaped(array.field(field.name), fields[field.name], field.type, d, unit)
            marks |= bad
        else:
            part = pa.nulls(len(array), field.type)
        if not field.nullable and part.null_count:
            marks |= is_there & _nulls(part)
        parts.append(part)
    mask = array.is_null() if array.null_count else None
    return pa.StructArray.from_arrays(parts, fields=list(kind), mask=mask), marks


def _map(array: pa.ListArray, schema: Schema, kind: pa.DataType, d: Declared, unit: int) -> tuple[pa.Array, Marks]:
    keys = array.values.field("key")
    items, marks = shaped(array.values.field("value"), schema["values"], kind.item_type, d, unit)
    marks[repeated_keys(keys, array.offsets.to_numpy())] = True
    entries = pa.StructArray.from_arrays([keys, items], fields=[kind.key_field, kind.item_field])
    made = pa.Array.from_buffers(kind, len(array), array.buffers()[:2], array.null_count, children=[entries])
    return made, _of_parts(array, marks)


def _scalar(array: pa.Array, kind: pa.DataType, d: Declared, unit: int) -> tuple[pa.Array, Marks]:
    read = array.type
    if read == kind:
        return array, np.zeros(len(array), np.bool_)
    is_text, is_whole, is_real = pa.types.is_string(read), pa.types.is_integer(read), pa.types.is_floating(read)
    if pa.types.is_decimal(kind):
        is_variable = pa.types.is_struct(read) and {each.name: each.type for each in read} == _VARIABLE
        if is_text or is_variable or pa.types.is_binary(read):
            return decimal(array, kind)
        if is_whole or is_real:
            numbers = array.cast(pa.float64()) if is_real else array
            return decimal(numbers.cast(pa.string()), kind)
    elif pa.types.is_timestamp(kind):
        if is_whole:
            return timestamp(array.cast(pa.int64()), kind, unit)
        if is_text:
            return Conversion(kind).column(pieces_of(array))
    elif pa.types.is_date(kind) and (read == pa.int32() or is_text):
        return date(array)
    elif pa.types.is_binary(kind) and is_text:
        return of_hex(array) if d.binary == "hex" else of_base64(array, of_urls=d.binary == "base64-url-safe")
    elif pa.types.is_string(kind) and pa.types.is_binary(read):
        # Texts of bits, which the JSON converter writes too. They are rare, and one column of a row.
        texts = [None if each is None else base64.b64encode(each).decode() for each in array.to_pylist()]
        return pa.array(texts, kind), np.zeros(len(array), np.bool_)
    elif pa.types.is_integer(kind) and is_whole:
        return _whole(array, kind)
    elif pa.types.is_floating(kind) and (is_whole or is_real):
        return _real(array, kind)
    return _nothing(array, kind)


def _whole(array: pa.Array, kind: pa.DataType) -> tuple[pa.Array, Marks]:
    numbers, limits = array.fill_null(0).to_numpy(), np.iinfo(kind.to_pandas_dtype())
    marks = (numbers < limits.min) | (numbers > limits.max)
    return pa.array(numbers.astype(kind.to_pandas_dtype()), kind, mask=marks | _nulls(array)), marks


def _real(array: pa.Array, kind: pa.DataType) -> tuple[pa.Array, Marks]:
    numbers = array.fill_null(0).to_numpy().astype(np.float64)
    with np.errstate(over="ignore"):
        made = numbers.astype(kind.to_pandas_dtype())
    marks = np.isinf(made) & ~np.isinf(numbers)
    return pa.array(made, kind, mask=marks | _nulls(array), from_pandas=False), marks


def placeholder_bytes(texts: tuple[str, ...]) -> list[bytes]:
    """Return the bytes whose text in base64 is one of these."""
    found = []
    for text in texts:
        try:
            content = base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            continue
        if base64.b64encode(content).decode() == text:
            found.append(content)
    return found


def with_placeholders(array: pa.Array, texts: tuple[str, ...]) -> Marks:
    """Return marks of the rows that contain a text of `texts`, or the bytes that it encodes, at any depth."""
    if pa.types.is_string(array.type):
        return _is_in(array, list(texts))
    if pa.types.is_binary(array.type):
        return _is_in(array, placeholder_bytes(texts))
    if pa.types.is_struct(array.type):
        marks = np.zeros(len(array), np.bool_)
        if not set(texts).isdisjoint(array.type.names):
            return ~marks
        for index in range(array.type.num_fields):
            marks |= with_placeholders(array.field(index), texts)
        return marks
    if pa.types.is_list(array.type):
        return _of_parts(array, with_placeholders(array.values, texts))
    return np.zeros(len(array), np.bool_)


def _is_in(array: pa.Array, values: list[Any]) -> Marks:
    found: Marks = pc.is_in(array, pa.array(values, array.type)).to_numpy(zero_copy_only=False)
    return found
