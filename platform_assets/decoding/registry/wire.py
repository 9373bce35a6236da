"""The head of a value that names its schema: a byte 0, and the id in four bytes, big-endian."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from platform_assets.decoding.pieces import pieces_of
from platform_assets.kernels import arrow

SIZE: Final = 5
NONE: Final = -1
"""In place of an id where a value is null or has no such head."""


def ids_of(values: pa.BinaryArray) -> npt.NDArray[np.int64]:
    """The id of each value."""
    pieces = pieces_of(values)
    ids = np.full(len(pieces), NONE, np.int64)
    long_enough = np.flatnonzero(pieces.sizes >= SIZE)
    starts = pieces.starts[long_enough].astype(np.int64)
    found = np.zeros(starts.size, np.int64)
    for byte in range(1, SIZE):
        found = found << 8 | pieces.data[starts + byte]
    ids[long_enough] = np.where(pieces.data[starts] == 0, found, NONE)
    return ids


def data_of(values: pa.BinaryArray) -> pa.BinaryArray:
    """What is behind the head of each value, all of which have one or are null."""
    pieces = pieces_of(values)
    starts = pieces.starts + np.int32(SIZE)
    sizes = np.where(pieces.nulls, np.int32(-1), pieces.sizes - np.int32(SIZE))
    offsets, found = np.empty(len(pieces) + 1, np.int32), np.empty(arrow.total_size(sizes), np.uint8)
    validity = np.zeros((len(pieces) + 7) // 8, np.uint8)
    nulls = arrow.gather(pieces.data, starts, sizes, offsets, found, validity)
    buffers = [pa.py_buffer(validity) if nulls else None, pa.py_buffer(offsets), pa.py_buffer(found)]
    return pa.Array.from_buffers(pa.binary(), len(pieces), buffers, nulls)


def id_of(value: bytes) -> int:
    """The same for one value, by itself."""
    return int.from_bytes(value[1:SIZE], "big") if len(value) >= SIZE and value[0] == 0 else NONE


def fault_of(value: bytes) -> str:
    """Why a value has no head."""
    if len(value) < SIZE:
        return f"{len(value)} bytes, and the id of a schema takes {SIZE}"
    return f"it begins with the byte 0x{value[0]:02x}, and the id of a schema with 0x00"
