"""The position of a value's schema id: in the value's head, or in a header of the record.

A head is a byte 0 followed by the id in four bytes, big-endian. A header `__value_schema_id` or `__key_schema_id`
contains a head, or a byte 1 and a GUID in sixteen bytes, as Confluent's header serializers write it. Apicurio's
serializers write a byte 0 and an id in eight bytes before the value, or put these eight bytes into a header
`apicurio.value.contentId` or `apicurio.value.globalId`. If a record has such a header, the header's content is put
before the value as its head, so there is only one form to decode.
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
from platform_assets.decoding.registry.cache import LARGEST_ID
from platform_assets.errors import ConfigurationError
from platform_assets.kernels import arrow

IdFrom = Literal["prefix", "header", "apicurio", "apicurio_global"]
"""Declared position of the schema id. An id of eight bytes before a value is either a content id or a global id."""
Side = Literal["value", "key"]
Key = int | str
"""The id of a schema, the schema's GUID in canonical text of 36 characters, or Apicurio's `contentId-7` or
`globalId-7`."""

SIZE: Final = 5
GUID_SIZE: Final = 17
LONG_SIZE: Final = 9
NONE: Final = -1
"""Number that replaces the id of a value that is null or has no valid head."""
_FIRST_NAMED: Final = -2
_HEADERS: Final[Mapping[Side, bytes]] = {"value": b"__value_schema_id", "key": b"__key_schema_id"}
CONTENT_ID: Final = "contentId"
GLOBAL_ID: Final = "globalId"
_LONG_IDS: Final[Mapping[str, int]] = {CONTENT_ID: 2, GLOBAL_ID: 3}
"""Suffixes of Apicurio's header names. In a head, the byte listed for the suffix precedes the eight bytes of the id."""


@dataclass(frozen=True, slots=True)
class Heads:
    """One number for each value: the id of the value's schema, `NONE`, or a number below `NONE`. Numbers below `NONE`
    are local to this block, and `names` maps them to keys."""

    numbers: npt.NDArray[np.int64]
    names: Mapping[int, str]

    def key(self, number: int) -> Key:
        """Return the key of a number."""
        return self.names.get(number, number)


def heads_of(values: pa.BinaryArray, id_from: IdFrom) -> Heads:
    """Return the heads of a block of values that `framed` returned. Only the kinds of heads that `id_from` declares are
    recognized."""
    pieces = pieces_of(values)
    ids = np.full(len(pieces), NONE, np.int64)
    if id_from in ("prefix", "header"):
        long_enough = np.flatnonzero(pieces.sizes >= SIZE)
        starts = pieces.starts[long_enough].astype(np.int64)
        found = np.zeros(starts.size, np.int64)
        for byte in range(1, SIZE):
            found = found << 8 | pieces.data[starts + byte]
        ids[long_enough] = np.where(pieces.data[starts] == 0, found, NONE)
    if id_from == "prefix":
        return Heads(ids, {})
    size = GUID_SIZE if id_from == "header" else LONG_SIZE
    rows = np.flatnonzero(pieces.sizes >= size)
    first = pieces.data[pieces.starts[rows].astype(np.int64)]
    rows = rows[first == 1] if id_from == "header" else rows[np.isin(first, (0, *_LONG_IDS.values()))]
    if not rows.size:
        return Heads(ids, {})
    named = pc.binary_slice(values.take(pa.array(rows)), 0, size).dictionary_encode()
    ids[rows] = _FIRST_NAMED - named.indices.to_numpy().astype(np.int64)
    keys = [_key_of_head(each, id_from) for each in named.dictionary.to_pylist()]
    return Heads(ids, {_FIRST_NAMED - at: key for at, key in enumerate(keys)})


def heads_exactly(values: pa.BinaryArray, id_from: IdFrom) -> Heads:
    """Return the same result as `heads_of`, but value by value in plain Python."""
    ids, numbers = [], dict[str, int]()
    for value in values.to_pylist():
        first = value[0] if value else None
        if id_from in ("prefix", "header") and first == 0 and len(value) >= SIZE:
            ids.append(int.from_bytes(value[1:SIZE], "big"))
        elif (id_from == "header" and first == 1 and len(value) >= GUID_SIZE) or (
            id_from not in ("prefix", "header") and first in (0, *_LONG_IDS.values()) and len(value) >= LONG_SIZE
        ):
            key = _key_of_head(value[: GUID_SIZE if id_from == "header" else LONG_SIZE], id_from)
            ids.append(numbers.setdefault(key, _FIRST_NAMED - len(numbers)))
        else:
            ids.append(NONE)
    return Heads(np.array(ids, np.int64), {number: key for key, number in numbers.items()})


def _key_of_head(head: bytes, id_from: IdFrom) -> str:
    if id_from == "header":
        return str(uuid.UUID(bytes=head[1:]))
    kinds = {0: GLOBAL_ID if id_from == "apicurio_global" else CONTENT_ID} | {n: kind for kind, n in _LONG_IDS.items()}
    return f"{kinds[head[0]]}-{int.from_bytes(head[1:], 'big')}"


def long_id(key: Key) -> tuple[str, int] | None:
    """Return the kind and the number of an Apicurio id, or None for any other key."""
    kind, _, number = str(key).partition("-")
    return (kind, int(number)) if kind in _LONG_IDS else None


def data_of(values: pa.BinaryArray, key: Key) -> pa.BinaryArray:
    """Return the bytes after the head of each value. All values must be null or have a head with the id `key`."""
    pieces = pieces_of(values)
    size = np.int32(SIZE if isinstance(key, int) else LONG_SIZE if long_id(key) else GUID_SIZE)
    starts = pieces.starts + size
    sizes = np.where(pieces.nulls, np.int32(-1), pieces.sizes - size)
    offsets, found = np.empty(len(pieces) + 1, np.int32), np.empty(arrow.total_size(sizes), np.uint8)
    validity = np.zeros((len(pieces) + 7) // 8, np.uint8)
    nulls = arrow.gather(pieces.data, starts, sizes, offsets, found, validity)
    buffers = [pa.py_buffer(validity) if nulls else None, pa.py_buffer(offsets), pa.py_buffer(found)]
    return pa.Array.from_buffers(pa.binary(), len(pieces), buffers, nulls)


def fault_of(value: bytes) -> str:
    """Return the reason why a value has no head."""
    if len(value) < SIZE:
        return f"{len(value)} bytes, but the prefix with a schema id takes {SIZE}"
    return f"it begins with the byte 0x{value[0]:02x}, but a schema id begins with 0x00"


@dataclass(frozen=True, slots=True)
class Framed:
    """Values with the declared head. For each row without such a head, `faults` contains the reason."""

    values: pa.BinaryArray
    faults: Mapping[int, str]


def framed(values: pa.BinaryArray, headers: pa.ListArray, side: Side, id_from: IdFrom) -> Framed:
    """Return the values with their heads. `headers` are the headers of the values' records: lists of structs with key
    and value.

    If a record names its schema in a header although the declaration says `prefix`, the record's value gets no head.
    Bytes that only look like a head would select the wrong schema.
    """
    if id_from in ("apicurio", "apicurio_global"):
        return _framed_by_apicurio(values, headers, side)
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
        **dict.fromkeys(_rows(missing), f"the record has no header {text}, where `id: header` looks for the schema id"),
        **{
            row: f"header {text} has {lengths[row]} bytes, but should be 0x00 and a 4-byte id, or 0x01 and a 16-byte GUID"
            for row in _rows(odd)
        },
    }
    # Null values stay null; a value without a head is not read.
    return _without(pc.binary_join_element_wise(given, values, b""), pc.or_(missing, odd), faults)


def _framed_by_apicurio(values: pa.BinaryArray, headers: pa.ListArray, side: Side) -> Framed:
    """Return the values with their heads, like `framed`, but for Apicurio. A header takes precedence over a prefix, and
    a content id over a global id."""
    found, there = values, pa.array(np.zeros(len(values), bool))
    faults: dict[int, str] = {}
    for kind in (GLOBAL_ID, CONTENT_ID):
        name = f"apicurio.{side}.{kind}"
        given = last_header(headers, name.encode())
        whole = pc.equal(pc.binary_length(given), LONG_SIZE - 1).fill_null(False)
        head = pc.binary_join_element_wise(pa.scalar(bytes([_LONG_IDS[kind]])), given, values, b"")
        found, there = pc.if_else(whole, head, found), pc.or_(there, whole)
        odd = pc.and_(pc.and_(given.is_valid(), pc.invert(whole)), values.is_valid())
        faults |= dict.fromkeys(_rows(odd), f"header {name} should be an 8-byte id")
    begins = pc.equal(pc.binary_slice(values, 0, 1), pa.scalar(b"\0")).fill_null(True)
    bare = pc.and_(pc.invert(there), pc.invert(begins))
    text = (
        f"the record has no header apicurio.{side}.{CONTENT_ID} or .{GLOBAL_ID}, and the value does not begin with "
        "0x00 and an 8-byte id"
    )
    faults = dict.fromkeys(_rows(bare), text) | faults
    marks = np.zeros(len(values), bool)
    marks[list(faults)] = True
    return _without(found, pa.array(marks), faults)


def apicurio_rows(headers: pa.ListArray, side: Side) -> npt.NDArray[np.bool_]:
    """Mark the records that name a schema in one of Apicurio's headers."""
    found = np.zeros(len(headers), bool)
    for end in _LONG_IDS:
        found |= last_header(headers, f"apicurio.{side}.{end}".encode()).is_valid().to_numpy(zero_copy_only=False)
    return found


def last_header(headers: pa.ListArray, name: bytes) -> pa.BinaryArray:
    """Return, for each record, the value of the last header with the name `name`, like Kafka's `lastHeader`. The result
    is null if the record has no such header or if the header's value is null."""
    entries = headers.values
    edges = headers.offsets.to_numpy().astype(np.int64)
    keys = entries.field("key").cast(pa.binary())
    at = np.flatnonzero(pc.equal(keys, pa.scalar(name)).fill_null(False).to_numpy(zero_copy_only=False))
    at = at[(at >= edges[0]) & (at < edges[-1])] if len(edges) else at
    chosen = np.full(len(headers), -1, np.int64)
    chosen[np.searchsorted(edges, at, side="right") - 1] = at  # ascending, so the last one wins
    return entries.field("value").take(pa.array(chosen, mask=chosen < 0))


def key_of(text: str) -> Key:
    """Parse an id or a GUID. Raises ConfigurationError."""
    if text.isascii() and text.isdigit() and 1 <= int(text[:11]) <= LARGEST_ID:
        return int(text)
    kind, _, number = text.partition("-")
    if kind in _LONG_IDS and number.isascii() and number.isdigit() and len(number) < 20:
        return f"{kind}-{int(number)}"
    try:
        return str(uuid.UUID(text))
    except ValueError as error:
        raise ConfigurationError(
            f"{text[:60]!r} is not a schema id: give a number from 1 to {LARGEST_ID}, a GUID such as "
            "123e4567-e89b-12d3-a456-426614174000, or an Apicurio id such as contentId-7"
        ) from error


def _without(values: pa.BinaryArray, marks: pa.BooleanArray, faults: Mapping[int, str]) -> Framed:
    return Framed(pc.if_else(marks, pa.scalar(b""), values) if faults else values, faults)


def _rows(marks: pa.BooleanArray) -> list[int]:
    rows: list[int] = np.flatnonzero(marks.to_numpy(zero_copy_only=False)).tolist()
    return rows
