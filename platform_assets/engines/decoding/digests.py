"""Both digests of rows with declared columns, computed from Arrow columns; docs/DIGEST.md defines the digests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from platform_assets.decoding.maps import entries_of
from platform_assets.engines.shared.digests import by_run
from platform_assets.kernels import typed_hashing as kernels
from platform_assets.kernels.hashing import ROWS_AT_A_TIME
from platform_assets.model.digest import SPARK_SEED, Measured, mark_of

LEFT_OUT: Final = frozenset({"topic_id", "window"})
"""Columns that no digest covers, because their values are the same in each row of a window."""
_IDENTITY: Final = ("kafka_partition", "kafka_offset")
_KINDS: Final = {
    pa.bool_(): kernels.BOOLEAN,
    pa.int8(): kernels.BYTE,
    pa.int16(): kernels.SHORT,
    pa.int32(): kernels.INTEGER,
    pa.date32(): kernels.INTEGER,
    pa.int64(): kernels.LONG,
    pa.float32(): kernels.FLOAT,
    pa.float64(): kernels.DOUBLE,
    pa.string(): kernels.TEXT,
    pa.binary(): kernels.TEXT,
}
_LONGS: Final = 18
"""Maximum number of digits for which Spark stores and hashes decimals as 64-bit numbers."""


def measured(rows: pa.RecordBatch) -> Measured:
    """Return the digests of rows that begin with the columns of `_IDENTITY`, without the columns `LEFT_OUT`.

    Raises TypeError for a column type that has no digest.
    """
    return measured_by_run(rows, [rows.num_rows])[0]


def measured_by_run(rows: pa.RecordBatch, ends: Sequence[int]) -> list[Measured]:
    """Return the digests of each run of rows. `ends` are the exclusive ends of the runs, in ascending order; the last
    one is the number of rows. Raises TypeError in the same cases as `measured`."""
    names = [name for name in rows.schema.names if name not in LEFT_OUT]
    if tuple(names[:2]) != _IDENTITY:
        raise TypeError(f"rows begin with {names[:2]} instead of {list(_IDENTITY)}")
    tree = _Tree()
    for name in names:
        tree.add(rows[name])
    sums = np.zeros(4 * len(ends), np.uint64)
    memory, nodes = tree.finished()
    marks = np.array([mark_of(name) for name in names], np.int64)
    scratch, room = np.zeros(16, np.uint8), np.empty(ROWS_AT_A_TIME, np.uint64)
    kernels.add_row_hashes(memory, nodes, marks, len(_IDENTITY), np.array(ends, np.int64), scratch, room, sums)
    return by_run(ends, sums)


def row_hashes(columns: Sequence[pa.Array]) -> npt.NDArray[np.uint64]:
    """Return a hash of each row's values. Equal values have equal hashes, and null counts as a distinct value. NaN is
    equal to NaN, and 0.0 is equal to -0.0.

    Raises TypeError in the same cases as `measured`.
    """
    if not columns or not len(columns[0]):
        return np.zeros(0, np.uint64)
    hashes = np.full(len(columns[0]), SPARK_SEED, np.uint64)
    for mark, leaf in enumerate(leaf for column in columns for leaf in _leaves(column)):
        tree = _Tree()
        tree.add(leaf)
        memory, nodes = tree.finished()
        kernels.chain_column(memory, nodes, 0, mark, 0, hashes, np.zeros(16, np.uint8))
    return hashes


def _leaves(column: pa.Array) -> Iterator[pa.Array]:
    """Yield the fields of structs at any depth. A field is null if an enclosing struct is null. Marks distinguish the
    nulls of adjacent fields."""
    if not pa.types.is_struct(column.type):
        yield column
        return
    yield column.is_valid()
    for index in range(column.type.num_fields):
        yield from _leaves(pc.struct_field(column, index))


class _Tree:
    """Columns in the form that the kernels read. This object keeps the columns' buffers alive."""

    def __init__(self) -> None:
        self._nodes: list[list[int]] = []
        self._buffers: list[pa.Buffer] = []
        self._places: list[tuple[int, int, int]] = []

    def add(self, array: pa.Array) -> None:
        """Add one column with its children. A map is added as the list of its entries."""
        if pa.types.is_map(array.type):
            array = entries_of(array)
        number, kind = len(self._nodes), array.type
        node = [_kind_of(kind), kernels.NO_NULLS, array.offset, 0, 0, 0]
        self._nodes.append(node)
        buffers = array.buffers()
        if array.null_count:
            self._place(number, 1, buffers[0])
        if node[0] == kernels.STRUCT:
            node[2] = 0
            if array.null_count:
                # Fields are already sliced with their struct; the struct's own validity is not.
                self._place(number, 1, _bits(array))
            for index in range(kind.num_fields):
                self.add(array.field(index))
        elif node[0] == kernels.LIST:
            self._place(number, 3, buffers[1])
            self.add(array.values)
        else:
            self._place(number, 3, buffers[1])
            if node[0] == kernels.TEXT:
                self._place(number, 4, buffers[2])
        node[5] = len(self._nodes)

    def finished(self) -> tuple[np.ndarray[tuple[int], np.dtype[np.uint8]], np.ndarray[tuple[int], np.dtype[np.int64]]]:
        """Return the memory that starts at the lowest buffer, and the nodes. The positions in the nodes are relative to
        the start of that buffer."""
        nodes = np.array(self._nodes, np.int64)
        lowest = min(self._buffers, key=lambda buffer: buffer.address)
        for number, at, address in self._places:
            nodes[number, at] = address - lowest.address
        return np.frombuffer(lowest, np.uint8), nodes.reshape(-1)

    def _place(self, node: int, at: int, buffer: pa.Buffer | None) -> None:
        if buffer is None or not buffer.size:
            return  # an array without values, which is never read
        self._places = [p for p in self._places if p[:2] != (node, at)]
        self._buffers.append(buffer)
        self._places.append((node, at, buffer.address))


def _bits(array: pa.Array) -> pa.Buffer:
    return pa.py_buffer(np.packbits(array.is_valid().to_numpy(zero_copy_only=False), bitorder="little").tobytes())


def _kind_of(kind: pa.DataType) -> int:
    if kind in _KINDS:
        return _KINDS[kind]
    if pa.types.is_timestamp(kind) and kind.unit == "us":
        return kernels.LONG
    if pa.types.is_decimal128(kind):
        return kernels.SMALL_DECIMAL if kind.precision <= _LONGS else kernels.DECIMAL
    if pa.types.is_struct(kind):
        return kernels.STRUCT
    if pa.types.is_list(kind):
        return kernels.LIST
    raise TypeError(f"a column of type {kind} has no digest")
