"""Pieces of bytes: the form in which kernels read a column of values, without a copy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from platform_assets.kernels import arrow, text

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int32]
Marks = npt.NDArray[np.bool_]
"""A boolean for each row of a block."""


@dataclass(frozen=True, slots=True)
class Pieces:
    """Pieces of `data`. Piece `i` is `data[starts[i]:starts[i] + sizes[i]]`, or null if its size is negative."""

    data: Bytes
    starts: Ints
    sizes: Ints

    def __len__(self) -> int:
        return int(self.sizes.size)

    @property
    def nulls(self) -> Marks:
        """Return marks of the pieces that are null."""
        marks: Marks = self.sizes < 0
        return marks

    def without(self, marks: Marks) -> Pieces:
        """Return the pieces, with null for each marked piece."""
        if not marks.any():
            return self
        return Pieces(self.data, self.starts, np.where(marks, np.int32(-1), self.sizes))

    def invalid_utf8(self) -> Marks:
        """Return marks of the pieces that are not UTF-8."""
        marks = np.zeros(len(self), np.uint8)
        text.mark_invalid_utf8(self.data, self.starts, self.sizes, marks)
        return marks.view(np.bool_)

    def strings(self) -> pa.StringArray:
        """Return the pieces as an array. Each piece must be UTF-8."""
        size = arrow.total_size(self.sizes)
        offsets, values = np.empty(len(self) + 1, np.int32), np.empty(size, np.uint8)
        validity = np.zeros((len(self) + 7) // 8, np.uint8)
        nulls = arrow.gather(self.data, self.starts, self.sizes, offsets, values, validity)
        buffers = pa.py_buffer(offsets), pa.py_buffer(values), pa.py_buffer(validity) if nulls else None
        return pa.StringArray.from_buffers(len(self), *buffers, nulls)


def pieces_of(values: pa.BinaryArray | pa.StringArray) -> Pieces:
    """Return the pieces of an array, which can be a slice of another array."""
    _, offsets, data = values.buffers()
    if offsets is None or not len(values):
        return Pieces(np.zeros(0, np.uint8), np.zeros(0, np.int32), np.zeros(0, np.int32))
    edges = np.frombuffer(offsets, np.int32)[values.offset : values.offset + len(values) + 1]
    sizes = np.diff(edges)
    if values.null_count:
        sizes[values.is_null().to_numpy(zero_copy_only=False)] = -1
    content = np.zeros(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)
    return Pieces(content, edges[:-1], sizes)
