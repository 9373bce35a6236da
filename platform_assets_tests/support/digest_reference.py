"""The digests of docs/DIGEST.md in plain Python. This is the reference for all implementations."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

VECTORS = Path(__file__).parents[1] / "model" / "digest_vectors.json"

_MASK = (1 << 64) - 1
_P1, _P2, _P3, _P4, _P5 = (
    0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5,
)  # fmt: skip
SEED = 42

Headers = Sequence[tuple[str | None, bytes | None]]


@dataclass(frozen=True, slots=True)
class Vector:
    """A row and its hashes. `timestamp` is in microseconds."""

    partition: int
    offset: int
    timestamp: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: Headers | None
    offsets_hash: int
    content_hash: int


def vectors() -> list[Vector]:
    """Return the golden vectors."""
    return [
        Vector(
            v["partition"], v["offset"], v["timestamp"], v["timestamp_type"], _bytes(v["key"]), _bytes(v["value"]),
            None if v["headers"] is None else [(name, _bytes(value)) for name, value in v["headers"]],
            int(v["offsets_hash"], 16), int(v["content_hash"], 16),
        )
        for v in json.loads(VECTORS.read_text())
    ]  # fmt: skip


def offsets_hash(partition: int, offset: int) -> int:
    """Return the hash of a row's topic id, partition and offset."""
    return _chain(SEED, _int(partition), _long(offset))


def content_hash(
    partition: int, offset: int, timestamp: int, timestamp_type: int, key: bytes | None, value: bytes | None,
    headers: Headers | None,
) -> int:  # fmt: skip
    """Return the hash of a row's content. `timestamp` is in microseconds."""
    parts = [_int(partition), _long(offset), _long(timestamp), _int(timestamp_type), *_nullable(key), *_nullable(value)]
    return _chain(SEED, *parts, _long(_headers(headers)))


def _headers(headers: Headers | None) -> int:
    if headers is None:
        return -1
    parts = [_int(len(headers))]
    for name, value in headers:
        parts += [*_nullable(None if name is None else name.encode()), *_nullable(value)]
    return _chain(SEED, *parts)


def _nullable(value: bytes | None) -> list[bytes]:
    return [_int(1)] if value is None else [_int(0), value]


def _int(value: int) -> bytes:
    return struct.pack("<I", value & 0xFFFFFFFF)


def _long(value: int) -> bytes:
    return struct.pack("<Q", value & _MASK)


def _chain(seed: int, *values: bytes) -> int:
    for value in values:
        seed = xxh64(value, seed)
    return seed


def xxh64(data: bytes, seed: int) -> int:
    """Compute XXH64 according to its specification."""
    at, left = 0, len(data)
    if left >= 32:
        lanes = [(seed + _P1 + _P2) & _MASK, (seed + _P2) & _MASK, seed, (seed - _P1) & _MASK]
        while left - at >= 32:
            for lane in range(4):
                (word,) = struct.unpack_from("<Q", data, at + 8 * lane)
                lanes[lane] = _round(lanes[lane], word)
            at += 32
        h = sum(_rotl(lane, r) for lane, r in zip(lanes, (1, 7, 12, 18), strict=True)) & _MASK
        for lane_value in lanes:
            h = ((h ^ _round(0, lane_value)) * _P1 + _P4) & _MASK
    else:
        h = (seed + _P5) & _MASK
    h = (h + left) & _MASK
    while left - at >= 8:
        (word,) = struct.unpack_from("<Q", data, at)
        h = (_rotl(h ^ _round(0, word), 27) * _P1 + _P4) & _MASK
        at += 8
    if left - at >= 4:
        (word,) = struct.unpack_from("<I", data, at)
        h = (_rotl(h ^ ((word * _P1) & _MASK), 23) * _P2 + _P3) & _MASK
        at += 4
    for byte in data[at:]:
        h = (_rotl(h ^ ((byte * _P5) & _MASK), 11) * _P1) & _MASK
    h = ((h ^ (h >> 33)) * _P2) & _MASK
    h = ((h ^ (h >> 29)) * _P3) & _MASK
    return h ^ (h >> 32)


def _round(lane: int, word: int) -> int:
    return (_rotl((lane + word * _P2) & _MASK, 31) * _P1) & _MASK


def _rotl(value: int, bits: int) -> int:
    return ((value << bits) | (value >> (64 - bits))) & _MASK


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else bytes.fromhex(text)


def as_json(rows: Sequence[tuple[Any, ...]]) -> str:
    """Return rows (partition, offset, timestamp, type, key, value, headers) with their hashes, in the form of the
    golden vectors."""
    found = [
        {
            "partition": p, "offset": o, "timestamp": t, "timestamp_type": kind,
            "key": None if k is None else k.hex(), "value": None if v is None else v.hex(),
            "headers": None if h is None else [[name, None if x is None else x.hex()] for name, x in h],
            "offsets_hash": f"{offsets_hash(p, o):016x}", "content_hash": f"{content_hash(p, o, t, kind, k, v, h):016x}",
        }
        for p, o, t, kind, k, v, h in rows
    ]  # fmt: skip
    return "[\n" + ",\n".join(json.dumps(entry) for entry in found) + "\n]\n"
