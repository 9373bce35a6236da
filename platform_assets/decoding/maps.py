"""Conversion of map columns between Arrow's form and lists of the maps' entries, without a copy."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

KEY: Final = "key"
VALUE: Final = "value"


def map_type(value: pa.Field) -> pa.DataType:
    """Return the type of a map from strings to `value`; the field name in `value` is ignored."""
    return pa.map_(pa.string(), value.with_name(VALUE))


def repeated_keys(keys: pa.StringArray, offsets: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
    """Return the indices of the entries whose key occurs earlier in the same map. The entries of map `i` are
    `[offsets[i], offsets[i + 1])`."""
    if not len(keys):
        return np.zeros(0, np.int64)
    coded = keys.dictionary_encode()
    codes = coded.indices.fill_null(len(coded.dictionary)).to_numpy().astype(np.int64)
    maps = np.repeat(np.arange(offsets.size - 1, dtype=np.int64), np.diff(offsets))
    _, firsts = np.unique(maps * (len(coded.dictionary) + 1) + codes, return_index=True)
    again = np.ones(codes.size, bool)
    again[firsts] = False
    return np.flatnonzero(again)


def entries_type(kind: pa.DataType) -> pa.DataType:
    """Return a map type as a list of structs."""
    return pa.list_(pa.field("element", pa.struct([kind.key_field.with_name(KEY), kind.item_field.with_name(VALUE)])))


def entries_of(array: pa.MapArray) -> pa.ListArray:
    """Return maps as lists of structs with `key` and `value`. The entries of each map keep their order."""
    kind = entries_type(array.type)
    entries = pa.StructArray.from_arrays([array.keys, array.items], fields=list(kind.value_type))
    return pa.Array.from_buffers(
        kind, len(array), array.buffers()[:2], array.null_count, array.offset, children=[entries]
    )


def map_of(lists: pa.ListArray, kind: pa.DataType) -> pa.MapArray:
    """Convert lists of structs with two fields, key and value, to maps of type `kind`. No key may be null."""
    pairs = lists.values
    entries = pa.StructArray.from_arrays(
        [pairs.field(0).cast(kind.key_type), pairs.field(1)], fields=[kind.key_field, kind.item_field]
    )
    return pa.Array.from_buffers(
        kind, len(lists), lists.buffers()[:2], lists.null_count, lists.offset, children=[entries]
    )
