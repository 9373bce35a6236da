"""XXH64 with a running seed, which chains the hashes of columns in the same way as Spark's `xxhash64`.

The function is the one in https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md. The hash of a column is the
seed for the next column, and a null leaves the seed unchanged.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from platform_assets.kernels.compilation import (
    BYTES,
    FILLED_LONGS,
    HASH,
    INT,
    INTS,
    LONGS,
    SUMS,
    Whole,
    inlined,
    kernel,
)
from platform_assets.kernels.memory import load32, load64

Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]
Ints = npt.NDArray[np.int32]
Totals = npt.NDArray[np.uint64]
Hash = np.uint64

_P1 = np.uint64(0x9E3779B185EBCA87)
_P2 = np.uint64(0xC2B2AE3D27D4EB4F)
_P3 = np.uint64(0x165667B19E3779F9)
_P4 = np.uint64(0x85EBCA77C2B2AE63)
_P5 = np.uint64(0x27D4EB2F165667C5)
ROWS_AT_A_TIME = 1024
"""Number of rows whose hashes fit in the processor's first-level cache. Callers give kernels memory for this number of
hashes."""
_SEED = np.uint64(42)
_NO_HEADERS = -1
_LOW = np.uint64(0xFFFFFFFF)


@inlined
def _rotated(value: Hash, bits: int) -> Hash:
    return (value << np.uint64(bits)) | (value >> np.uint64(64 - bits))


@inlined
def _finished(h: Hash) -> Hash:
    h = (h ^ (h >> np.uint64(33))) * _P2
    h = (h ^ (h >> np.uint64(29))) * _P3
    return h ^ (h >> np.uint64(32))


@inlined
def _mixed(h: Hash, word: Hash) -> Hash:
    """Add a word of 8 bytes to a running hash."""
    return _rotated(h ^ (_rotated(word * _P2, 31) * _P1), 27) * _P1 + _P4


@inlined
def hash_long(value: Whole, seed: Hash) -> Hash:
    """Hash a 64-bit number."""
    return _finished(_mixed(seed + _P5 + np.uint64(8), np.uint64(value)))


@inlined
def hash_int(value: Whole, seed: Hash) -> Hash:
    """Hash a 32-bit number, or a boolean as 0 or 1."""
    h = (seed + _P5 + np.uint64(4)) ^ (np.uint64(np.uint32(value)) * _P1)
    return _finished(_rotated(h, 23) * _P2 + _P3)


@inlined
def add_halves(hashes: Totals, sums: Totals, at: Whole) -> None:
    """Add the upper halves of hashes to `sums[at]` and the lower halves to `sums[at + 1]`. These sums cannot
    overflow."""
    for h in hashes:
        sums[at] += h >> np.uint64(32)
        sums[at + 1] += h & _LOW


@inlined
def _merged(h: Hash, lane: Hash) -> Hash:
    return (h ^ (_rotated(lane * _P2, 31) * _P1)) * _P1 + _P4


@kernel(BYTES, INT, INT, HASH)
def hash_bytes(data: Bytes, at: Whole, size: Whole, seed: Hash) -> Hash:
    """Hash `data[at:at + size]`."""
    end = at + size
    if size >= 32:
        one, two, three, four = seed + _P1 + _P2, seed + _P2, seed, seed - _P1
        while at + 32 <= end:
            one = _rotated(one + load64(data, at) * _P2, 31) * _P1
            two = _rotated(two + load64(data, at + 8) * _P2, 31) * _P1
            three = _rotated(three + load64(data, at + 16) * _P2, 31) * _P1
            four = _rotated(four + load64(data, at + 24) * _P2, 31) * _P1
            at += 32
        h = _rotated(one, 1) + _rotated(two, 7) + _rotated(three, 12) + _rotated(four, 18)
        h = _merged(_merged(_merged(_merged(h, one), two), three), four)
    else:
        h = seed + _P5
    h += np.uint64(size)
    while at + 8 <= end:
        h = _mixed(h, load64(data, at))
        at += 8
    if at + 4 <= end:
        h ^= np.uint64(load32(data, at)) * _P1
        h = _rotated(h, 23) * _P2 + _P3
        at += 4
    while at < end:
        h = _rotated(h ^ (np.uint64(data[at]) * _P5), 11) * _P1
        at += 1
    return _finished(h)


@inlined
def _tagged(data: Bytes, offsets: Ints, validity: Bytes, index: int, seed: Hash) -> Hash:
    """Hash the null flag, then the value. If `validity` is empty, no value is null."""
    if validity.size and not validity[index >> 3] >> (index & 7) & 1:
        return hash_int(1, seed)
    h = hash_int(0, seed)
    start = np.int64(offsets[index])
    return hash_bytes(data, start, np.int64(offsets[index + 1]) - start, h)


@kernel(INTS, LONGS, LONGS, INTS, *[BYTES, INTS, BYTES] * 2, LONGS, LONGS, SUMS, SUMS)
def add_content_hashes(
    partitions: Ints,
    offsets: Longs,
    timestamps: Longs,
    timestamp_types: Ints,
    keys: Bytes,
    key_offsets: Ints,
    key_validity: Bytes,
    values: Bytes,
    value_offsets: Ints,
    value_validity: Bytes,
    headers: Longs,
    ends: Longs,
    room: Totals,
    sums: Totals,
) -> None:
    """For each run of records, add the hashes of (partition, offset) to `sums[4 * run : 4 * run + 2]` and the hashes of
    whole records to the next two sums, in halves.

    Each run begins where the previous run ends. `headers` contains the hash of each record's headers. Timestamps are in
    microseconds. A record's hash is computed in a chain of steps, in which each step waits for the previous step. The
    kernel processes as many records as `room` allows column by column, so the processor can overlap the chains of these
    records.
    """
    begin = 0
    for run in range(ends.size):
        for first in range(begin, ends[run], room.size):
            hashes = room[: min(ends[run] - first, room.size)]
            for row in range(hashes.size):
                hashes[row] = hash_long(offsets[first + row], hash_int(partitions[first + row], _SEED))
            add_halves(hashes, sums, 4 * run)
            for row in range(hashes.size):
                hashes[row] = hash_int(timestamp_types[first + row], hash_long(timestamps[first + row], hashes[row]))
            for row in range(hashes.size):
                hashes[row] = _tagged(keys, key_offsets, key_validity, first + row, hashes[row])
            for row in range(hashes.size):
                hashes[row] = _tagged(values, value_offsets, value_validity, first + row, hashes[row])
            for row in range(hashes.size):
                hashes[row] = hash_long(headers[first + row], hashes[row])
            add_halves(hashes, sums, 4 * run + 2)
        begin = ends[run]


@kernel(INTS, BYTES, *[BYTES, INTS, BYTES] * 2, FILLED_LONGS)
def hash_headers(
    list_offsets: Ints,
    list_validity: Bytes,
    keys: Bytes,
    key_offsets: Ints,
    key_validity: Bytes,
    values: Bytes,
    value_offsets: Ints,
    value_validity: Bytes,
    hashes: Longs,
) -> None:
    """Hash each record's list of headers into `hashes`: first the number of headers, then the key and the value of each
    header."""
    for index in range(hashes.size):
        if list_validity.size and not list_validity[index >> 3] >> (index & 7) & 1:
            hashes[index] = _NO_HEADERS
            continue
        start, end = list_offsets[index], list_offsets[index + 1]
        h = hash_int(end - start, _SEED)
        for header in range(start, end):
            h = _tagged(keys, key_offsets, key_validity, header, h)
            h = _tagged(values, value_offsets, value_validity, header, h)
        hashes[index] = np.int64(h)
