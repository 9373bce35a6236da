"""Pieces of bytes: the kernels' form of a column of values, without a copy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from platform_assets.kernels import arrow, text

KEY: Final = "key"
VALUE: Final = "value"


def map_type(value: pa.Field) -> pa.DataType:
    """Return the type of a map from text to `value`, whose name is ignored."""
    return pa.map_(pa.string(), value.with_name(VALUE))


def repeated_keys(keys: pa.StringArray, offsets: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
    """Return the entries whose key occurs earlier in the same map; map `i` has the entries `[offsets[i], offsets[i + 1])`."""
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
    """Return maps as lists of structs `key`, `value`, in the order of each map's entries."""
    kind = entries_type(array.type)
    entries = pa.StructArray.from_arrays([array.keys, array.items], fields=list(kind.value_type))
    return pa.Array.from_buffers(
        kind, len(array), array.buffers()[:2], array.null_count, array.offset, children=[entries]
    )


def map_of(lists: pa.ListArray, kind: pa.DataType) -> pa.MapArray:
    """Return lists of structs of two fields, key and value, as maps of type `kind`; no key may be null."""
    pairs = lists.values
    entries = pa.StructArray.from_arrays(
        [pairs.field(0).cast(kind.key_type), pairs.field(1)], fields=[kind.key_field, kind.item_field]
    )
    return pa.Array.from_buffers(
        kind, len(lists), lists.buffers()[:2], lists.null_count, lists.offset, children=[entries]
    )


Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int32]
Marks = npt.NDArray[np.bool_]
"""A truth value for each row of a block."""


@dataclass(frozen=True, slots=True)
class Pieces:
    """Piece i is `data[starts[i]:starts[i] + sizes[i]]`; a negative size is a null."""

    data: Bytes
    starts: Ints
    sizes: Ints

    def __len__(self) -> int:
        return int(self.sizes.size)

    @property
    def nulls(self) -> Marks:
        """Mark the nulls."""
        marks: Marks = self.sizes < 0
        return marks

    def without(self, marks: Marks) -> Pieces:
        """Return the pieces with null for the marked ones."""
        if not marks.any():
            return self
        return Pieces(self.data, self.starts, np.where(marks, np.int32(-1), self.sizes))

    def invalid_utf8(self) -> Marks:
        """Mark the pieces that are not UTF-8."""
        marks = np.zeros(len(self), np.uint8)
        text.mark_invalid_utf8(self.data, self.starts, self.sizes, marks)
        return marks.view(np.bool_)

    def strings(self) -> pa.StringArray:
        """Return the pieces as an array. Each must be UTF-8."""
        size = arrow.total_size(self.sizes)
        offsets, values = np.empty(len(self) + 1, np.int32), np.empty(size, np.uint8)
        validity = np.zeros((len(self) + 7) // 8, np.uint8)
        nulls = arrow.gather(self.data, self.starts, self.sizes, offsets, values, validity)
        buffers = pa.py_buffer(offsets), pa.py_buffer(values), pa.py_buffer(validity) if nulls else None
        return pa.StringArray.from_buffers(len(self), *buffers, nulls)


def pieces_of(values: pa.BinaryArray | pa.StringArray) -> Pieces:
    """Return the pieces of an array, sliced or not."""
    _, offsets, data = values.buffers()
    if offsets is None or not len(values):
        return Pieces(np.zeros(0, np.uint8), np.zeros(0, np.int32), np.zeros(0, np.int32))
    edges = np.frombuffer(offsets, np.int32)[values.offset : values.offset + len(values) + 1]
    sizes = np.diff(edges)
    if values.null_count:
        sizes[values.is_null().to_numpy(zero_copy_only=False)] = -1
    content = np.zeros(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)
    return Pieces(content, edges[:-1], sizes)
