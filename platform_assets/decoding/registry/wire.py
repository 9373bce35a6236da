"""Where a value names its schema: in its head, or in a header of its record.

A head is a byte 0 and the id in four bytes, big-endian. A header `__value_schema_id` or `__key_schema_id` is the same, or
a byte 1 and a GUID in sixteen bytes, as Confluent's header serializers write it. A value whose header is read is handed on
with that header as its head, so that there is one kind of value to decode.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from platform_assets.decoding.pieces import pieces_of
from platform_assets.decoding.registry.schemas import LARGEST_ID
from platform_assets.errors import ConfigurationError
from platform_assets.kernels import arrow

IdFrom = Literal["prefix", "header"]
"""Where values of a declaration name their schema."""
Side = Literal["value", "key"]
Key = int | str
"""An id of a schema, or its GUID in the canonical text of 36 characters."""

SIZE: Final = 5
GUID_SIZE: Final = 17
NONE: Final = -1
"""In place of an id if a value is null or has no such head."""
_FIRST_GUID: Final = -2
_HEADERS: Final[Mapping[Side, bytes]] = {"value": b"__value_schema_id", "key": b"__key_schema_id"}
_APICURIO: Final = ("globalId", "contentId")
"""Ends of the names of Apicurio's headers."""


@dataclass(frozen=True, slots=True)
class Heads:
    """A number for each value: its schema's id, `NONE`, or below that a number of this block alone, by which `guids` has the GUID."""

    numbers: npt.NDArray[np.int64]
    guids: Mapping[int, str]

    def key(self, number: int) -> Key:
        """Return what a number stands for."""
        return self.guids.get(number, number)


def heads_of(values: pa.BinaryArray, id_from: IdFrom) -> Heads:
    """The heads of a block; a GUID is one only if ids are from headers."""
    pieces = pieces_of(values)
    ids = np.full(len(pieces), NONE, np.int64)
    long_enough = np.flatnonzero(pieces.sizes >= SIZE)
    starts = pieces.starts[long_enough].astype(np.int64)
    found = np.zeros(starts.size, np.int64)
    for byte in range(1, SIZE):
        found = found << 8 | pieces.data[starts + byte]
    ids[long_enough] = np.where(pieces.data[starts] == 0, found, NONE)
    guids: dict[int, str] = {}
    if id_from == "header":
        rows = long_enough[(pieces.data[starts] == 1) & (pieces.sizes[long_enough] >= GUID_SIZE)]
        if rows.size:
            named = pc.binary_slice(values.take(pa.array(rows)), 1, GUID_SIZE).dictionary_encode()
            ids[rows] = _FIRST_GUID - named.indices.to_numpy().astype(np.int64)
            guids = {
                _FIRST_GUID - at: str(uuid.UUID(bytes=each)) for at, each in enumerate(named.dictionary.to_pylist())
            }
    return Heads(ids, guids)


def heads_exactly(values: pa.BinaryArray, id_from: IdFrom) -> Heads:
    """Like `heads_of`, value by value in plain Python."""
    ids, numbers = [], dict[str, int]()
    for value in values.to_pylist():
        if value is None or len(value) < SIZE:
            ids.append(NONE)
        elif value[0] == 0:
            ids.append(int.from_bytes(value[1:SIZE], "big"))
        elif id_from == "header" and value[0] == 1 and len(value) >= GUID_SIZE:
            guid = str(uuid.UUID(bytes=value[1:GUID_SIZE]))
            ids.append(numbers.setdefault(guid, _FIRST_GUID - len(numbers)))
        else:
            ids.append(NONE)
    return Heads(np.array(ids, np.int64), {number: guid for guid, number in numbers.items()})


def data_of(values: pa.BinaryArray, key: Key) -> pa.BinaryArray:
    """The bytes after the head of each value, all of which name `key` or are null."""
    pieces = pieces_of(values)
    size = np.int32(SIZE if isinstance(key, int) else GUID_SIZE)
    starts = pieces.starts + size
    sizes = np.where(pieces.nulls, np.int32(-1), pieces.sizes - size)
    offsets, found = np.empty(len(pieces) + 1, np.int32), np.empty(arrow.total_size(sizes), np.uint8)
    validity = np.zeros((len(pieces) + 7) // 8, np.uint8)
    nulls = arrow.gather(pieces.data, starts, sizes, offsets, found, validity)
    buffers = [pa.py_buffer(validity) if nulls else None, pa.py_buffer(offsets), pa.py_buffer(found)]
    return pa.Array.from_buffers(pa.binary(), len(pieces), buffers, nulls)


def fault_of(value: bytes) -> str:
    """Say why a value has no head."""
    if len(value) < SIZE:
        return f"{len(value)} bytes, and the id of a schema takes {SIZE}"
    return f"it begins with the byte 0x{value[0]:02x}, and the id of a schema with 0x00"


@dataclass(frozen=True, slots=True)
class Framed:
    """Values that have the head which the declaration asks for, and by row why others are left without one."""

    values: pa.BinaryArray
    faults: Mapping[int, str]


def framed(values: pa.BinaryArray, headers: pa.ListArray, side: Side, id_from: IdFrom) -> Framed:
    """Hand the values on with their heads; `headers` are those of their records: lists of structs of key and value.

    A value whose record names its schema in a header, although the declaration says `prefix`, gets no head: bytes that happen
    to look like one would have it read by a schema that did not write it.
    """
    name = _HEADERS[side]
    given = last_header(headers, name)
    text = name.decode()
    if id_from == "prefix":
        named = pc.and_(given.is_valid(), values.is_valid())
        detail = f"the record names its schema in header {text}: declare `id: header`"
        return _without(values, named, dict.fromkeys(_rows(named), detail))
    sizes, first = pc.binary_length(given), pc.binary_slice(given, 0, 1)
    whole = pc.or_(
        pc.and_(pc.equal(sizes, SIZE), pc.equal(first, pa.scalar(b"\0"))),
        pc.and_(pc.equal(sizes, GUID_SIZE), pc.equal(first, pa.scalar(b"\1"))),
    ).fill_null(False)
    missing = pc.and_(given.is_null(), values.is_valid())
    odd = pc.and_(pc.and_(given.is_valid(), pc.invert(whole)), values.is_valid())
    lengths = sizes.to_pylist() if pc.any(odd).as_py() else []
    faults = {
        **dict.fromkeys(_rows(missing), f"the record has no header {text}, where `id: header` looks for its schema"),
        **{
            row: f"header {text} has {lengths[row]} bytes, and should be 0x00 and 4 bytes of an id, or 0x01 and 16 of a GUID"
            for row in _rows(odd)
        },
    }
    # The value's own null stays one; a head that is left out leaves nothing to read.
    return _without(pc.binary_join_element_wise(given, values, b""), pc.or_(missing, odd), faults)


def apicurio_rows(headers: pa.ListArray, side: Side) -> npt.NDArray[np.bool_]:
    """Mark the records that name a schema in one of Apicurio's headers."""
    found = np.zeros(len(headers), bool)
    for end in _APICURIO:
        found |= last_header(headers, f"apicurio.{side}.{end}".encode()).is_valid().to_numpy(zero_copy_only=False)
    return found


def last_header(headers: pa.ListArray, name: bytes) -> pa.BinaryArray:
    """The value of the last header of that name of each record, as Kafka's `lastHeader`; null if there is none, or it is null."""
    entries = headers.values
    edges = headers.offsets.to_numpy().astype(np.int64)
    keys = entries.field("key").cast(pa.binary())
    at = np.flatnonzero(pc.equal(keys, pa.scalar(name)).fill_null(False).to_numpy(zero_copy_only=False))
    at = at[(at >= edges[0]) & (at < edges[-1])] if len(edges) else at
    chosen = np.full(len(headers), -1, np.int64)
    chosen[np.searchsorted(edges, at, side="right") - 1] = at  # ascending, so that the last one stays
    return entries.field("value").take(pa.array(chosen, mask=chosen < 0))


def key_of(text: str) -> Key:
    """Return the id or the GUID that a text stands for. Raises ConfigurationError."""
    if text.isascii() and text.isdigit() and 1 <= int(text[:11]) <= LARGEST_ID:
        return int(text)
    try:
        return str(uuid.UUID(text))
    except ValueError as error:
        raise ConfigurationError(
            f"{text[:60]!r} is not a schema id: give a number from 1 to {LARGEST_ID}, or a GUID such as "
            "123e4567-e89b-12d3-a456-426614174000"
        ) from error


def _without(values: pa.BinaryArray, marks: pa.BooleanArray, faults: Mapping[int, str]) -> Framed:
    return Framed(pc.if_else(marks, pa.scalar(b""), values) if faults else values, faults)


def _rows(marks: pa.BooleanArray) -> list[int]:
    rows: list[int] = np.flatnonzero(marks.to_numpy(zero_copy_only=False)).tolist()
    return rows
