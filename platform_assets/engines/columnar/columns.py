"""Conversion of record batches to the Arrow columns of a raw table, in blocks of bounded size."""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from platform_assets.engines.columnar.work import Piece
from platform_assets.kafka.batches.record_batches import (
    ABORT,
    APPEND_TIME,
    CODEC_MASK,
    CONTROL,
    HEADER,
    TRANSACTIONAL,
    Batches,
    check_count,
)
from platform_assets.kafka.batches.unpacking import Damage, TooLarge, UnpackBuffer, unpacked
from platform_assets.kafka.settings import BATCH_VARIABLES
from platform_assets.kernels import arrow, records
from platform_assets.kernels.records import control_types

# Selection of the batches in a fetch whose records a read_committed consumer gets.
#
# This code is independent of `kafka.evidence.tally`, which makes the same decision for evidence. Tests compare the two
# on random histories, so that an error in one of them does not go unnoticed.

Mask = npt.NDArray[np.bool]
Longs = npt.NDArray[np.int64]


def committed(batches: Batches, aborted: Sequence[tuple[int, int]]) -> Mask:
    """Return, for each batch of magic 2, True if the batch contains committed records and is not a marker.

    `aborted` is the broker's list for this fetch: (producer id, first offset) of each aborted transaction that overlaps
    the fetch. The producer's batches are aborted from this first offset up to the producer's next abort marker, or up
    to the end of the fetch if there is no such marker. A control batch that the log cleaner has emptied does not count
    as a marker, as in the Java client (`CompletedFetch.containsAbortMarker`). Raises Damage for a marker that cannot be
    read.
    """
    attributes = batches.attributes
    control: Mask = attributes & CONTROL != 0
    if not aborted:
        return ~control
    producers = batches.headers["producer_id"].astype(np.int64)
    in_transaction = attributes & TRANSACTIONAL != 0
    firsts = np.array([first for _, first in aborted], np.int64)
    begun = np.searchsorted(batches.last_offsets, firsts)  # the first batch of each transaction
    markers = np.flatnonzero(control & (batches.records_counts > 0))
    markers = markers[_types(batches, markers) == ABORT]
    gone: Mask = in_transaction & _inside(producers, np.array([p for p, _ in aborted], np.int64), begun, markers)
    return ~control & ~gone


def _inside(producers: Longs, aborting: Longs, begun: Longs, markers: Longs) -> Mask:
    """Return, for each batch, True if the batch is inside an aborted transaction of its producer: the transaction began
    at or before the batch, and no abort marker of the producer lies between the start of the transaction and the batch.

    `aborting[i]` is a producer that began a transaction at batch `begun[i]`. `markers` are the batches that are abort
    markers.
    """
    count = len(producers)
    names = np.unique(np.concatenate([producers, aborting]))

    def line(of: Longs, at: Longs) -> Longs:
        """Map each pair of producer and batch to one number, in the order of the pairs, so that a single binary search
        finds a pair."""
        return np.searchsorted(names, of) * (count + 1) + at

    starts = np.sort(line(aborting, begun))
    ends = np.sort(line(producers[markers], markers))
    here = line(producers, np.arange(count))
    latest = np.searchsorted(starts, here, side="right") - 1
    start = starts[np.maximum(latest, 0)]
    of_this: Mask = (latest >= 0) & (start // (count + 1) == here // (count + 1))
    ended: Mask = np.searchsorted(ends, here) > np.searchsorted(ends, start)
    return of_this & ~ended


def _types(batches: Batches, markers: Longs) -> npt.NDArray[np.int32]:
    types = np.empty(len(markers), np.int32)
    heads = batches.headers[markers]
    starts = batches.positions[markers] + HEADER.itemsize
    ends = batches.positions[markers] + heads["length"] + 12
    unreadable = control_types(np.frombuffer(batches.data, np.uint8), starts, ends, types)
    packed = heads["attributes"] & CODEC_MASK != 0
    if packed.any():
        unreadable = int(packed.argmax())
    if unreadable >= 0:
        raise Damage(int(heads["base_offset"][unreadable]), "it contains a control record without a type")
    return types


# Header keys as text. Kafka does not check that they are UTF-8, and the raw table's column is a string.
#
# Bytes that are not UTF-8 become U+FFFD as in the Java client, so that both engines load the same text. There is one
# U+FFFD for each part of a sequence that could be the beginning of a character. For Java, an encoded surrogate is one
# such part. For Python, it is three parts.

_REPLACEMENT = "\ufffd"


def as_text(keys: pa.Array) -> pa.Array:
    """Convert a binary array without nulls to a string array. Bytes that are valid UTF-8 are unchanged."""
    text = pa.Array.from_buffers(pa.string(), len(keys), keys.buffers(), 0)
    try:
        text.validate(full=True)
    except pa.ArrowInvalid:
        distinct = keys.dictionary_encode()
        return pa.array([java_text(k) for k in distinct.dictionary.to_pylist()], pa.string()).take(distinct.indices)
    return text


def java_text(key: bytes) -> str:
    """Decode `key` in the same way as the Java client."""
    return key.decode("utf-8", "java_replace")


def _replaced(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeDecodeError):
        raise error
    data, start = error.object, error.start
    if data[start] == 0xED and 0xA0 <= (data[start + 1] if start + 1 < len(data) else 0) <= 0xBF:
        third = data[start + 2] if start + 2 < len(data) else 0
        return _REPLACEMENT, start + (3 if 0x80 <= third <= 0xBF else 2)
    return _REPLACEMENT, error.end


codecs.register_error("java_replace", _replaced)


_HEADERS = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
SCHEMA = pa.schema(
    [
        ("topic_id", pa.dictionary(pa.int32(), pa.string())),
        ("kafka_partition", pa.int32()),
        ("kafka_offset", pa.int64()),
        ("kafka_timestamp", pa.timestamp("us", "UTC")),
        ("kafka_timestamp_type", pa.int32()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", _HEADERS),
    ]
)
"""Columns of a raw table, except `window`. Files of flat tables get the column `window` when they are written."""

BLOCK_BYTES = 1 << 20
"""Number of unpacked bytes after which a block of compressed batches is closed. If blocks are small, the output of one
step is still in the processor's cache when the next step begins. A batch is never divided. Adjacent uncompressed
batches form one block of any size."""
_SMALLEST_RECORD = 7
_WRONG = {
    records.CONTRADICTION: "its records contradict its header",
    records.CUT_OFF: "its records end before they are complete",
    records.TRAILING: "bytes follow its last record",
}


Ints = npt.NDArray[np.int32]


class OldFormat(Exception):
    """Raised for messages of magic 0 or 1 at `offset`; this engine does not read them."""

    def __init__(self, offset: int) -> None:
        self.offset = offset
        super().__init__(f"messages at offset {offset} have a format older than Kafka 0.11")


class TimestampOutOfRange(Exception):
    """Raised if the timestamp (in ms) of the record at `offset` does not fit in 64 bits as microseconds."""

    def __init__(self, offset: int, timestamp: int) -> None:
        self.offset, self.timestamp = offset, timestamp
        super().__init__(f"offset {offset}: timestamp {timestamp} ms")


@dataclass(frozen=True, slots=True)
class _Bodies:
    """Unpacked bodies of batches. The body of `batches[i]` is `data[starts[i]:ends[i]]`."""

    data: npt.NDArray[np.uint8]
    batches: npt.NDArray[np.int64]
    starts: Longs
    ends: Longs


def blocks(
    batches: Batches, aborted: Sequence[tuple[int, int]], topic_id: str, piece: Piece, unpack_buffer: UnpackBuffer
) -> Iterator[pa.RecordBatch]:
    """Yield the committed records of `batches` that are in `piece`, in blocks of ascending offsets that have the
    columns of SCHEMA. No block is empty.

    `aborted` is the broker's list for this fetch. Compressed batches are unpacked in `unpack_buffer`. Raises Damage,
    TooLarge, OldFormat and TimestampOutOfRange.
    """
    for block in _blocks(batches, wanted(batches, aborted, piece), piece, unpack_buffer):
        yield block.columns(topic_id)


def wanted(batches: Batches, aborted: Sequence[tuple[int, int]], piece: Piece) -> Longs:
    """Return the indices of the batches that have records in `piece`. Raises Damage and OldFormat."""
    if batches.old_format:
        raise OldFormat(int(next(iter(batches)).base_offset))
    batches.verify()
    kept = committed(batches, aborted) & (batches.records_counts > 0)
    kept &= (batches.last_offsets >= piece.wanted.start) & (batches.base_offsets < piece.wanted.end)
    return np.flatnonzero(kept)


def timestamps(
    batches: Batches, some: Longs, piece: Piece, unpack_buffer: UnpackBuffer
) -> Iterator[tuple[Longs, Longs]]:
    """Yield the offsets and timestamps (ms) of the records in the batches with the indices `some`. Records outside of
    `piece` are omitted. Raises Damage and TooLarge."""
    for block in _blocks(batches, some, piece, unpack_buffer):
        yield block.offsets, block.timestamps


def _blocks(batches: Batches, some: Longs, piece: Piece, unpack_buffer: UnpackBuffer) -> Iterator[_Block]:
    for bodies in _bodies(batches, some, unpack_buffer):
        block = _Block(batches, bodies, piece)
        if block.size:
            yield block


def _bodies(batches: Batches, some: Longs, unpack_buffer: UnpackBuffer) -> Iterator[_Bodies]:
    """Yield the bodies of the batches with the indices `some`, in order. Uncompressed bodies are not copied.

    Compressed bodies are unpacked into `unpack_buffer`. They stay there until the next bodies are requested.
    """
    packed = batches.attributes & CODEC_MASK
    counts, bases = batches.records_counts, batches.base_offsets
    starts = batches.positions + HEADER.itemsize
    ends = batches.positions + batches.headers["length"] + 12
    edges = np.flatnonzero(np.diff(packed[some] != 0)) + 1
    for run in np.split(some, edges):
        if not len(run):
            continue
        for index in run[counts[run] > batches.limits.records].tolist():
            check_count(int(bases[index]), int(counts[index]), batches.limits)
        if not packed[run[0]]:
            if (large := ends[run] - starts[run] > batches.limits.bytes).any():
                index = int(run[large.argmax()])
                unpacked(0, batches.data[starts[index] : ends[index]], int(bases[index]), batches.limits.bytes)
            yield _Bodies(np.frombuffer(batches.data, np.uint8), run, starts[run], ends[run])
            continue
        ends_in_room: list[int] = []
        first = size = 0
        for at, index in enumerate(run.tolist()):
            body = batches.data[starts[index] : ends[index]]
            size = unpack_buffer.add(int(packed[index]), body, int(bases[index]), size, batches.limits.bytes)
            ends_in_room.append(size)
            if size >= BLOCK_BYTES or at == len(run) - 1:
                until = np.array(ends_in_room, np.int64)
                yield _Bodies(unpack_buffer.filled(size), run[first : at + 1], np.append(0, until[:-1]), until)
                ends_in_room, first, size = [], at + 1, 0


class _Block:
    """The records of several batches. For each part of a record, its position and its size are stored."""

    def __init__(self, batches: Batches, bodies: _Bodies, piece: Piece) -> None:
        heads = batches.headers[bodies.batches]
        counts = heads["records_count"].astype(np.int64)
        bases = heads["base_offset"].astype(np.int64)
        # Allocations are limited by the data that exists, not by a header's claim.
        if (short := _SMALLEST_RECORD * counts > bodies.ends - bodies.starts).any():
            raise Damage(int(bases[short.argmax()]), _WRONG[records.CUT_OFF])
        unpack_buffer = int(counts.sum())
        self._data, self._partition = bodies.data, piece.partition
        longs, ints = np.empty((2, unpack_buffer), np.int64), np.empty((7, unpack_buffer), np.int32)
        self.size, wrong, where = records.find_records(
            bodies.data,
            bodies.starts,
            bodies.ends,
            counts,
            bases,
            bases + heads["last_offset_delta"],
            heads["base_timestamp"].astype(np.int64),
            heads["max_timestamp"].astype(np.int64),
            (heads["attributes"] & APPEND_TIME != 0).astype(np.int64),
            piece.wanted.start,
            piece.wanted.end,
            batches.limits.headers,
            *longs,
            *ints,
        )
        if wrong == records.TOO_MANY_HEADERS:
            reason = f"has more than {batches.limits.headers:,} headers"
            raise TooLarge(int(bases[where]), reason, BATCH_VARIABLES["headers"])
        if wrong:
            raise Damage(int(bases[where]), _WRONG[wrong])
        self.offsets, self.timestamps = (column[: self.size] for column in longs)
        self._types, *parts = (column[: self.size] for column in ints)
        self._keys, self._values, self._headers = parts[0:2], parts[2:4], parts[4:6]

    def columns(self, topic_id: str) -> pa.RecordBatch:
        """Return the records as Arrow columns."""
        out_of_range = arrow.to_microseconds(self.timestamps)
        if out_of_range >= 0:
            raise TimestampOutOfRange(int(self.offsets[out_of_range]), int(self.timestamps[out_of_range]))
        zeros = pa.array(np.zeros(self.size, np.int32))
        return pa.RecordBatch.from_arrays(
            [
                pa.DictionaryArray.from_arrays(zeros, pa.array([topic_id], pa.string())),
                pa.array(np.full(self.size, self._partition, np.int32)),
                pa.array(self.offsets),
                pa.Array.from_buffers(
                    SCHEMA.field("kafka_timestamp").type, self.size, [None, pa.py_buffer(self.timestamps)]
                ),
                pa.array(self._types),
                self._gathered(*self._keys),
                self._gathered(*self._values),
                self._header_lists(),
            ],
            schema=SCHEMA,
        )

    def _gathered(self, positions: Ints, sizes: Ints) -> pa.Array:
        """Return the bytes at these positions, one value for each position. A negative size stands for a null."""
        count = len(sizes)
        offsets, found = np.empty(count + 1, np.int32), np.empty(arrow.total_size(sizes), np.uint8)
        validity = np.zeros((count + 7) // 8, np.uint8)
        nulls = arrow.gather(self._data, positions, sizes, offsets, found, validity)
        buffers = [pa.py_buffer(validity) if nulls else None, pa.py_buffer(offsets), pa.py_buffer(found)]
        return pa.Array.from_buffers(pa.binary(), count, buffers, nulls)

    def _header_lists(self) -> pa.Array:
        positions, counts = self._headers
        total = arrow.total_size(counts)
        if not total:
            return pa.nulls(self.size, _HEADERS)
        parts = np.empty((4, total), np.int32)
        records.find_headers(self._data, positions, counts, *parts)
        keys, values = self._gathered(*parts[0:2]), self._gathered(*parts[2:4])
        offsets, validity = np.empty(self.size + 1, np.int32), np.zeros((self.size + 7) // 8, np.uint8)
        nulls = arrow.list_offsets(counts, offsets, validity)
        each = pa.StructArray.from_arrays([as_text(keys), values], fields=list(_HEADERS.value_type))
        buffers = [pa.py_buffer(validity) if nulls else None, pa.py_buffer(offsets)]
        return pa.Array.from_buffers(_HEADERS, self.size, buffers, nulls, children=[each])
