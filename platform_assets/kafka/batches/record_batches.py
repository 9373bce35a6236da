"""Parsing of Kafka's record batches. Headers are read in bulk; the body of a batch is opened only if its header does
not suffice.

Layout of a batch (magic 2), of a record and of a control record: https://kafka.apache.org/documentation/#messageformat.
The same page describes older message sets (magic 0 and 1, which brokers keep unchanged on disk) under "Old Message
Format".

This module does not depend on topics, brokers or transactions. Offsets are absolute; `last_offset` is inclusive, as in
Kafka.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from platform_assets.kafka.batches.unpacking import Damage, TooLarge, unpacked
from platform_assets.kafka.settings import BATCH_VARIABLES, BatchLimits
from platform_assets.model.offsets import OffsetRange

HEADER = np.dtype(
    [
        ("base_offset", ">i8"),
        ("length", ">i4"),
        ("leader_epoch", ">i4"),
        ("magic", "i1"),
        ("crc", ">u4"),
        ("attributes", ">i2"),
        ("last_offset_delta", ">i4"),
        ("base_timestamp", ">i8"),
        ("max_timestamp", ">i8"),
        ("producer_id", ">i8"),
        ("producer_epoch", ">i2"),
        ("base_sequence", ">i4"),
        ("records_count", ">i4"),
    ]
)
"""The 61 bytes before the records of a batch with magic 2."""

CODEC_MASK, APPEND_TIME, TRANSACTIONAL, CONTROL = 0x07, 0x08, 0x10, 0x20
ABORT, COMMIT = 0, 1
"""Types of control records that end a transaction."""
NO_SETTINGS: Final = BatchLimits()
"""Default limits."""
NO_END: Final = 1 << 63
"""Stands for "no end": an offset that no batch reaches."""

_LOG_OVERHEAD = 12  # base offset (8) and length (4), which the length itself leaves out
_MAGIC_AT = 16
_CRC_COVERS_FROM = 21
_DELTA_AT = 23
_EPOCH_AT, _BASE_TIMESTAMP_AT, _MAX_TIMESTAMP_AT = 12, 27, 35
_SMALLEST = 26  # an empty message of magic 0
_OLD_CRC_COVERS_FROM = 16
_base_at = struct.Struct(">q").unpack_from
_length_at = struct.Struct(">i").unpack_from
_old_head_at = struct.Struct(">qiIbb").unpack_from
_control_key = struct.Struct(">hh").unpack_from


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch, described by its header: it covers the offsets `base_offset` to `last_offset`, both inclusive. `body`
    is the whole batch. `records_count` is the number of records that remain in the batch: after compaction, it can be
    lower than the number of offsets. It is 0 if compaction kept the batch only for the producer's sequence number."""

    body: memoryview
    base_offset: int
    last_offset: int
    records_count: int
    attributes: int
    producer_id: int
    limits: BatchLimits = NO_SETTINGS

    @property
    def dense(self) -> bool:
        """True if the batch's header alone shows that every offset of the batch has a record."""
        return self.records_count == self.last_offset - self.base_offset + 1

    @property
    def control(self) -> bool:
        """True if the batch contains control records, such as transaction markers, which consumers never receive."""
        return bool(self.attributes & CONTROL)

    @property
    def transactional(self) -> bool:
        """True if the batch's records belong to a transaction of `producer_id`."""
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def leader_epoch(self) -> int | None:
        """Epoch of the leader that appended the batch; None for the older formats, which have no epoch."""
        return None if self._old else int(_length_at(self.body, _EPOCH_AT)[0])

    @property
    def max_timestamp(self) -> int:
        """The newest timestamp in ms, from the header; -1 for the older formats, whose headers may not contain one."""
        return -1 if self._old else int(_base_at(self.body, _MAX_TIMESTAMP_AT)[0])

    @property
    def _old(self) -> bool:
        return self.body[_MAGIC_AT] < 2

    def offsets(self) -> npt.NDArray[np.int64]:
        """Unpack the batch and return the offsets of its records, in ascending order. Raises Damage and TooLarge."""
        return np.fromiter((offset for offset, _, _ in self._walk()), dtype=np.int64)

    def timestamps(self) -> Iterator[tuple[int, int]]:
        """Yield `(offset, timestamp in ms)` for each record in the batch, in ascending order of offsets. Works only for
        magic 2. Raises Damage."""
        base, newest = int(_base_at(self.body, _BASE_TIMESTAMP_AT)[0]), self.max_timestamp
        for offset, delta, _ in self._walk():
            yield offset, newest if self.attributes & APPEND_TIME else base + delta

    def control_types(self) -> list[tuple[int, int]]:
        """Return `(offset, type)` for each control record in the batch; see ABORT and COMMIT. Raises Damage."""
        found = []
        for offset, _, key in self._walk():
            if len(key) < 4:
                raise Damage(self.base_offset, "it contains a control record without a type")
            found.append((offset, int(_control_key(key)[1])))
        return found

    def _walk(self) -> Iterator[tuple[int, int, memoryview]]:
        """Yield `(offset, timestamp relative to the batch's first timestamp, key)` for each record. Each record is read
        only up to the end of its key."""
        if not self.records_count:
            return
        check_count(self.base_offset, self.records_count, self.limits)
        packed = self.body[HEADER.itemsize :]
        data = memoryview(unpacked(self.attributes & CODEC_MASK, packed, self.base_offset, self.limits.bytes))
        at, previous = 0, self.base_offset - 1
        try:
            for _ in range(self.records_count):
                size, start = _varint(data, at)
                later, p = _varint(data, start + 1)  # after one byte of attributes
                delta, p = _varint(data, p)
                key_size, p = _varint(data, p)
                at = start + size
                offset = self.base_offset + delta
                if at > len(data) or p + key_size > at or not previous < offset <= self.last_offset:
                    raise Damage(self.base_offset, "its records contradict its header")
                previous = offset
                yield offset, later, data[p : p + max(key_size, 0)]
        except IndexError:
            raise Damage(self.base_offset, "its records end before they are complete") from None
        if at != len(data):
            raise Damage(self.base_offset, f"{len(data) - at} bytes follow its last record")


@dataclass(frozen=True, slots=True)
class Batches:
    """The complete batches in the answer to a fetch, in order. If the fetch's size limit truncates a batch, that batch
    is left out.

    The bytes are not copied, so use them before their buffer is reused. `beyond` is true if the next batch in the
    answer begins after the requested end. `limits` apply to each batch. `verified` is true if `verify` has nothing left
    to check.
    """

    data: memoryview
    positions: npt.NDArray[np.int64]
    headers: npt.NDArray[np.void]
    old_format: bool
    beyond: bool = False
    limits: BatchLimits = NO_SETTINGS
    verified: bool = False

    @classmethod
    def scan(cls, data: memoryview, until: int = NO_END, limits: BatchLimits = NO_SETTINGS) -> Batches:
        """Find the batches in `data` by their lengths. Batches that begin at the offset `until` or later are left out,
        so that damage in unwanted batches does no harm. In the old formats, this is impossible, because these formats
        identify message sets by their last offset. Raises Damage if the first batch has no valid length. If a later
        batch has no valid length, this batch and all following batches are left out, like a truncated batch: the next
        fetch begins with that batch."""
        at, end, positions, beyond, old = 0, len(data), list[int](), False, False
        while at + _SMALLEST <= end:
            base, magic = _base_at(data, at)[0], data[at + _MAGIC_AT]
            size = _LOG_OVERHEAD + _length_at(data, at + 8)[0]
            if base >= until and magic >= 2:
                wrong = _wanted_behind(data, at, until)
                beyond = wrong is None
            else:
                wrong = _not_a_batch(size, magic)
            if wrong is not None and not positions:
                raise Damage(base, wrong)
            if wrong is not None or beyond or at + size > end:
                break
            old = old or magic < 2
            positions.append(at)
            at += size
        found = np.array(positions, dtype=np.int64)
        if old or not positions:
            return cls(data, found, np.empty(0, HEADER), old, beyond, limits)
        # An array of overlapping elements, one starting at every byte: indexing it copies only the wanted headers.
        every_byte = np.ndarray((end - HEADER.itemsize + 1,), HEADER, data, strides=(1,))
        return cls(data, found, every_byte[found], False, beyond, limits)

    def __len__(self) -> int:
        return len(self.positions)

    @property
    def base_offsets(self) -> npt.NDArray[np.int64]:
        """First offset of each batch. In the old formats, this array is empty, and so are `last_offsets`,
        `records_counts` and `attributes`."""
        return self.headers["base_offset"].astype(np.int64)

    @property
    def last_offsets(self) -> npt.NDArray[np.int64]:
        """Last offset of each batch, inclusive."""
        return self.base_offsets + self.headers["last_offset_delta"].astype(np.int64)

    @property
    def records_counts(self) -> npt.NDArray[np.int64]:
        """Number of records that remain in each batch."""
        return self.headers["records_count"].astype(np.int64)

    @property
    def attributes(self) -> npt.NDArray[np.int64]:
        """Attributes of each batch: the bits of CODEC_MASK, APPEND_TIME, TRANSACTIONAL and CONTROL."""
        return self.headers["attributes"].astype(np.int64)

    @property
    def next_offset(self) -> int:
        """The first offset after the last batch; the next fetch continues there."""
        at = int(self.positions[-1])
        base, delta = _base_at(self.data, at)[0], 0
        if self.data[at + _MAGIC_AT] == 2:
            delta = _length_at(self.data, at + _DELTA_AT)[0]
        return int(base + delta + 1)  # an older message set is numbered by its last message

    def range_of(self, offset: int) -> OffsetRange:
        """Return the offset range of the batch that begins at `offset`. In the old formats, return `offset` alone."""
        if self.old_format:
            return OffsetRange.closed(offset, offset)
        index = int(np.flatnonzero(self.base_offsets == offset)[0])
        return OffsetRange.closed(offset, int(self.last_offsets[index]))

    def verify(self) -> None:
        """Check each batch's CRC, and check that headers are plausible and ascending.

        Raises Damage for the first batch that fails.
        """
        _, damage = self.intact()
        if damage is not None:
            raise damage

    def intact(self) -> tuple[Batches, Damage | None]:
        """Return the batches before the first batch with a wrong CRC or header, and the fault of that first wrong
        batch. The fault is None if all batches are intact.

        If the offsets of two adjacent batches do not ascend, either batch may be the wrong one, so the first of the two
        is left out too.
        """
        if self.old_format or self.verified:
            return self, None  # iterating checks each message of the old formats
        bases, deltas, counts = self.base_offsets, self.headers["last_offset_delta"], self.records_counts
        impossible = (bases < 0) | (deltas < 0) | (counts < 0) | (counts > deltas.astype(np.int64) + 1)
        behind = np.zeros(len(self), np.bool_)
        behind[1:] = bases[1:] <= self.last_offsets[:-1]
        number, damage = len(self), None
        if (impossible | behind).any():
            index = int((impossible | behind).argmax())
            number = index if impossible[index] else index - 1
            damage = Damage(
                int(bases[index]), "the offsets in its header are invalid, or do not follow those of the previous batch"
            )
        starts = self.positions[:number].tolist()
        ends = (self.positions + self.headers["length"] + _LOG_OVERHEAD)[:number].tolist()
        data, check, covers = self.data, crc32c, _CRC_COVERS_FROM
        for index, (start, end, crc) in enumerate(
            zip(starts, ends, self.headers["crc"][:number].tolist(), strict=True)
        ):
            if check(data[start + covers : end]) != crc:
                number, damage = index, Damage(int(bases[index]), "its CRC does not match its bytes")
                break
        if damage is None:
            return replace(self, verified=True), None
        positions, headers = self.positions[:number], self.headers[:number]
        return replace(self, positions=positions, headers=headers, beyond=False, verified=True), damage

    def __iter__(self) -> Iterator[Batch]:
        """Yield each batch separately, for cases in which the arrays above are not sufficient. Raises Damage in the old
        formats."""
        if self.old_format:
            yield from self._mixed()
            return
        ends = (self.positions + self.headers["length"] + _LOG_OVERHEAD).tolist()
        fields = (self.base_offsets, self.last_offsets, self.records_counts, self.attributes)
        columns = [c.tolist() for c in fields] + [self.headers["producer_id"].tolist()]
        for start, end, base, last, count, bits, producer in zip(self.positions.tolist(), ends, *columns, strict=True):
            yield Batch(self.data[start:end], base, last, count, bits, producer, self.limits)

    def _mixed(self) -> Iterator[Batch]:
        """Yield each record of message sets as a batch of its own. Batches with magic 2 in between are yielded
        unchanged."""
        for start in self.positions.tolist():
            size = _LOG_OVERHEAD + _length_at(self.data, start + 8)[0]
            piece = self.data[start : start + size]
            if piece[_MAGIC_AT] == 2:
                one = Batches.scan(piece, limits=self.limits)
                one.verify()
                yield from one
            else:
                for offset in old_offsets(piece, self.limits):
                    yield Batch(piece, offset, offset, 1, 0, -1)


def _not_a_batch(size: int, magic: int) -> str | None:
    """Return the reason why bytes with this `size` and format version are not a batch; None if they may be a batch."""
    if size < _SMALLEST:
        return "its length is impossible"
    if magic > 2:
        return f"its format version {magic} is unknown"
    return "it is shorter than its own header" if magic == 2 and size < HEADER.itemsize else None


def _wanted_behind(data: memoryview, at: int, until: int) -> str | None:
    """Return a fault if a batch that begins at `until` or later is followed by a batch that begins before `until`,
    because batches must ascend. `at` is the position of the first of the two batches."""
    end = len(data)
    while at + _SMALLEST <= end and data[at + _MAGIC_AT] == 2:
        if _base_at(data, at)[0] < until:
            return "the offsets in its header do not precede those of the next batch"
        size = _LOG_OVERHEAD + _length_at(data, at + 8)[0]
        if size < _SMALLEST:
            return None
        at += size
    return None


def check_count(offset: int, records: int, limits: BatchLimits) -> None:
    """Raise TooLarge if the header of the batch at `offset` states more records than the limit allows."""
    if records > limits.records:
        raise TooLarge(offset, f"has more than {limits.records:,} records", BATCH_VARIABLES["records"])


def old_offsets(message: memoryview, limits: BatchLimits = NO_SETTINGS) -> list[int]:
    """Return the offset of a message of magic 0 or 1. If the message is compressed, return the offsets of the messages
    packed inside it. Raises Damage and TooLarge."""
    offset, size, crc, magic, attributes = _old_head_at(message, 0)
    if zlib.crc32(message[_OLD_CRC_COVERS_FROM:]) != crc:
        raise Damage(offset, "its CRC does not match its bytes")
    codec = attributes & CODEC_MASK
    if not codec:
        return [offset]
    value_at = 18 + (8 if magic else 0)
    value_at += 4 + max(_length_at(message, value_at)[0], 0)  # after the key
    inner = memoryview(unpacked(codec, message[value_at + 4 :], offset, limits.bytes))
    found, at = list[int](), 0
    while at + _SMALLEST <= len(inner):
        check_count(offset, len(found) + 1, limits)
        found.append(_base_at(inner, at)[0])
        size = _LOG_OVERHEAD + _length_at(inner, at + 8)[0]
        if size < _SMALLEST or at + size > len(inner):
            raise Damage(offset, "the messages packed in it are cut off")
        at += size
    if at != len(inner) or not found:
        raise Damage(offset, "the messages packed in it are cut off")
    # Magic 1 numbers the inner messages relative to the last one, whose offset the outer message carries.
    return [offset - found[-1] + o for o in found] if magic else found


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    """Return the zigzag varint at `at`, and the position after it."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at
        shift += 7
        if shift > 63:
            raise IndexError
