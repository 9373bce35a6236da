"""Spark's `xxhash64` over typed columns of any depth, for the digests of tables with declared columns.

Spark chains the columns of a row: the hash of a column is the seed for the next column, and a null leaves the seed
unchanged. The fields of a struct and the elements of an array are chained too. Each value is preceded by a mark of its
column, so a value in the wrong column changes the digest. A column that was added later is null in older rows, and does
not change the digest of these rows.

A tree of columns is a flat array of `NODE` numbers per node, in which children follow their parent. Buffers are given
by their addresses, relative to the lowest address, and are not copied.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from platform_assets.kernels.compilation import (
    BYTES,
    FILLED_BYTES,
    HASH,
    INT,
    LONGS,
    SUMS,
    Whole,
    inlined,
    kernel,
)
from platform_assets.kernels.hashing import Hash, add_halves, hash_bytes, hash_int, hash_long
from platform_assets.kernels.memory import load32, load64

Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]
Totals = npt.NDArray[np.uint64]

NODE = 6
"""Number of entries per node: the kind, the start of the validity bitmap (or NO_NULLS), the index of the first value,
the start of the values (for a list: of the offsets), the start of the bytes, and the node after the last descendant."""
NO_NULLS = -1
BOOLEAN, BYTE, SHORT, INTEGER, LONG, FLOAT, DOUBLE, SMALL_DECIMAL, DECIMAL, TEXT, STRUCT, LIST = range(12)
"""Kinds of nodes. A SMALL_DECIMAL has at most 18 digits. A TEXT is a string or a binary value."""

NO_MARK = -1
"""Value that means "no mark". A mark is a CRC-32 and therefore never negative."""
_SEED = np.uint64(42)
_FLOAT_NAN, _DOUBLE_NAN = 0x7FC00000, 0x7FF8000000000000


@inlined
def _bit(memory: Bytes, at: Whole, index: Whole) -> Whole:
    return np.int64(memory[at + (index >> 3)]) >> (index & 7) & 1


@inlined
def _hash_float(bits: Whole, seed: Hash) -> Hash:
    """Hash a float as Java's `floatToIntBits` represents it, with only one NaN. Spark treats -0.0 as 0.0."""
    if (bits & 0x7FFFFFFF) > 0x7F800000:
        bits = np.int64(_FLOAT_NAN)
    elif bits == 0x80000000:
        bits = np.int64(0)
    return hash_int(bits, seed)


@inlined
def _hash_double(bits: Whole, seed: Hash) -> Hash:
    size = bits & 0x7FFFFFFFFFFFFFFF
    if size > 0x7FF0000000000000:
        bits = np.int64(_DOUBLE_NAN)
    elif size == 0:
        bits = np.int64(0)
    return hash_long(bits, seed)


@inlined
def _hash_decimal(memory: Bytes, at: Whole, scratch: Bytes, seed: Hash) -> Hash:
    """Hash 16 little-endian bytes. Spark hashes the shortest big-endian two's complement form, which Java's BigInteger
    returns."""
    top = memory[at + 15]
    fill = np.uint8(0xFF) if top >= 128 else np.uint8(0)
    size = 16
    while size > 1 and memory[at + size - 1] == fill and (memory[at + size - 2] ^ fill) < 128:
        size -= 1
    for index in range(size):
        scratch[index] = memory[at + size - 1 - index]
    return hash_bytes(scratch, np.int64(0), np.int64(size), seed)


@kernel(BYTES, LONGS, INT, INT, HASH, FILLED_BYTES)
def hash_value(memory: Bytes, nodes: Longs, node: Whole, index: Whole, seed: Hash, scratch: Bytes) -> Hash:
    """Hash the value of a node at `index`, chained to `seed`."""
    at = node * NODE
    kind, validity, first, values = nodes[at], nodes[at + 1], nodes[at + 2], nodes[at + 3]
    index = first + index
    if validity != NO_NULLS and not _bit(memory, validity, index):
        return seed
    if kind == TEXT:
        start = np.int64(np.int32(load32(memory, values + 4 * index)))
        end = np.int64(np.int32(load32(memory, values + 4 * index + 4)))
        return hash_bytes(memory, nodes[at + 4] + start, end - start, seed)
    if kind == INTEGER:
        return hash_int(np.int64(np.int32(load32(memory, values + 4 * index))), seed)
    if kind == LONG:
        return hash_long(np.int64(load64(memory, values + 8 * index)), seed)
    if kind == DOUBLE:
        return _hash_double(np.int64(load64(memory, values + 8 * index)), seed)
    if kind == FLOAT:
        return _hash_float(np.int64(load32(memory, values + 4 * index)), seed)
    if kind == BOOLEAN:
        return hash_int(_bit(memory, values, index), seed)
    if kind == SMALL_DECIMAL:
        return hash_long(np.int64(load64(memory, values + 16 * index)), seed)
    if kind == DECIMAL:
        return _hash_decimal(memory, values + 16 * index, scratch, seed)
    if kind == BYTE:
        return hash_int(np.int64(np.int8(memory[values + index])), seed)
    if kind == SHORT:
        low, high = np.int64(memory[values + 2 * index]), np.int64(np.int8(memory[values + 2 * index + 1]))
        return hash_int(high * 256 + low, seed)
    h = seed
    if kind == STRUCT:
        child, end = node + 1, nodes[at + 5]
        while child < end:
            h = hash_value(memory, nodes, child, index, h, scratch)
            child = nodes[child * NODE + 5]
        return h
    start = np.int64(np.int32(load32(memory, values + 4 * index)))
    end = np.int64(np.int32(load32(memory, values + 4 * index + 4)))
    for element in range(start, end):
        h = hash_value(memory, nodes, node + 1, element, h, scratch)
    return h


@kernel(BYTES, LONGS, INT, INT, INT, SUMS, FILLED_BYTES)
def chain_column(memory: Bytes, nodes: Longs, node: int, mark: int, first: int, hashes: Totals, scratch: Bytes) -> None:
    """Chain the values of a column to `hashes`, which has one hash for each row, starting with row `first`. Each value
    is preceded by `mark`, unless `mark` is NO_MARK.

    The most common kinds have separate loops, without decisions for each value.
    """
    at = node * NODE
    kind, validity, begin, values = nodes[at], nodes[at + 1], nodes[at + 2] + first, nodes[at + 3]
    if kind == INTEGER and validity == NO_NULLS and mark != NO_MARK:
        for row in range(hashes.size):
            number = np.int64(np.int32(load32(memory, values + 4 * (begin + row))))
            hashes[row] = hash_int(number, hash_long(mark, hashes[row]))
    elif kind == INTEGER and mark != NO_MARK:
        for row in range(hashes.size):
            number = np.int64(np.int32(load32(memory, values + 4 * (begin + row))))
            h = hash_int(number, hash_long(mark, hashes[row]))
            hashes[row] = h if _bit(memory, validity, begin + row) else hashes[row]
    elif kind == LONG and validity == NO_NULLS and mark != NO_MARK:
        for row in range(hashes.size):
            number = np.int64(load64(memory, values + 8 * (begin + row)))
            hashes[row] = hash_long(number, hash_long(mark, hashes[row]))
    elif kind == LONG and mark != NO_MARK:
        for row in range(hashes.size):
            number = np.int64(load64(memory, values + 8 * (begin + row)))
            h = hash_long(number, hash_long(mark, hashes[row]))
            hashes[row] = h if _bit(memory, validity, begin + row) else hashes[row]
    elif kind == TEXT and mark != NO_MARK:
        content = nodes[at + 4]
        for row in range(hashes.size):
            if validity == NO_NULLS or _bit(memory, validity, begin + row):
                start = np.int64(np.int32(load32(memory, values + 4 * (begin + row))))
                end = np.int64(np.int32(load32(memory, values + 4 * (begin + row) + 4)))
                hashes[row] = hash_bytes(memory, content + start, end - start, hash_long(mark, hashes[row]))
    else:
        for row in range(hashes.size):
            if validity == NO_NULLS or _bit(memory, validity, begin + row):
                h = hashes[row] if mark == NO_MARK else hash_long(mark, hashes[row])
                hashes[row] = hash_value(memory, nodes, node, first + row, h, scratch)


@kernel(BYTES, LONGS, LONGS, INT, LONGS, FILLED_BYTES, SUMS, SUMS)
def add_row_hashes(
    memory: Bytes,
    nodes: Longs,
    marks: Longs,
    identity: int,
    ends: Longs,
    scratch: Bytes,
    room: Totals,
    sums: Totals,
) -> None:
    """For each run of rows, add the hashes of the first `identity` columns to `sums[4 * run : 4 * run + 2]`, and the
    hashes of whole rows to the next two sums, in halves.

    Each run begins where the previous run ends. The first `identity` columns have no children and no marks. `marks` has
    a mark for every column. A row's hash is computed in a chain of steps, in which each step waits for the previous
    step. The kernel processes as many rows as `room` allows column by column, so the processor can overlap the chains
    of these rows.
    """
    count = nodes.size // NODE
    begin = 0
    for run in range(ends.size):
        for first in range(begin, ends[run], room.size):
            hashes = room[: min(ends[run] - first, room.size)]
            hashes[:] = _SEED
            node = column = 0
            while node < count:
                mark = marks[column] if column >= identity else NO_MARK
                chain_column(memory, nodes, node, mark, first, hashes, scratch)
                node = nodes[node * NODE + 5]
                column += 1
                if node == identity:
                    add_halves(hashes, sums, 4 * run)
            add_halves(hashes, sums, 4 * run + 2)
        begin = ends[run]
