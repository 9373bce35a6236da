"""Record batches built field by field, in any shape that a log can contain."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Mapping, Sequence

import cramjam
from crc32c import crc32c
from kafka.record.default_records import DefaultRecordBatchBuilder

from platform_assets.kafka.batches.record_batches import Batches

CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
PACKERS: Mapping[str, Callable[[bytes], bytes]] = {
    "none": lambda data: data,
    "gzip": lambda data: zlib.compress(data, wbits=31),
    "snappy": lambda data: bytes(cramjam.snappy.compress_raw(data)),
    "lz4": lambda data: bytes(cramjam.lz4.compress(data)),
    "zstd": lambda data: bytes(cramjam.zstd.compress(data)),
}


def xerial(data: bytes) -> bytes:
    """Return Snappy data in two blocks, framed in the same way as by Java producers."""
    blocks = [bytes(cramjam.snappy.compress_raw(part)) for part in (data[:10], data[10:])]
    framed = b"".join(struct.pack(">i", len(b)) + b for b in blocks)
    return b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1) + framed


def batch(
    base: int,
    deltas: Sequence[int],
    *,
    span: int | None = None,
    producer: int = -1,
    transactional: bool = False,
    control: int | None = None,
    codec: str = "none",
    packer: Callable[[bytes], bytes] | None = None,
    value: bytes = b"v" * 20,
    stamp: int = 1_700_000_000_000,
    append_time: bool = False,
) -> bytes:
    """Return a batch of magic 2 at offset `base` that spans `span` offsets. Its records are at `base + delta`, and
    their timestamps are `stamp + delta`. kafka-python's builder makes the batch, and the other settings are then
    written into its bytes."""
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=0,
        is_transactional=transactional or control is not None,
        producer_id=producer,
        producer_epoch=0,
        base_sequence=0,
        batch_size=1 << 30,
    )
    for delta in deltas:
        key = struct.pack(">hh", 0, control) if control is not None else b"key"
        builder.append(delta, timestamp=stamp + delta, key=key, value=value, headers=[])
    raw = bytearray(builder.build())
    body = bytes(raw[61:]) if deltas else b""
    raw[61:] = (packer or PACKERS[codec])(body) if body else b""
    struct.pack_into(">q", raw, 0, base)
    struct.pack_into(">i", raw, 8, len(raw) - 12)
    attributes = struct.unpack_from(">h", raw, 21)[0] | CODECS[codec] | (0x20 if control is not None else 0)
    attributes |= 0x08 if append_time else 0
    last_delta = (span or (max(deltas) + 1)) - 1
    struct.pack_into(">hi", raw, 21, attributes, last_delta)
    struct.pack_into(">i", raw, 57, len(deltas))
    struct.pack_into(">I", raw, 17, crc32c(bytes(raw[21:])))
    return bytes(raw)


def marker(offset: int, producer: int, *, commit: bool, stamp: int = 1_700_000_000_000) -> bytes:
    return batch(offset, [0], producer=producer, control=1 if commit else 0, stamp=stamp)


def scanned(*batches: bytes) -> Batches:
    return Batches.scan(memoryview(b"".join(batches)))
