"""Record batches built from given or random records. The content of these batches is known to the test."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from crc32c import crc32c

from platform_assets_tests.support.record_batches import CODECS, PACKERS

Headers = tuple[tuple[bytes, bytes | None], ...]


@dataclass(frozen=True, slots=True)
class Made:
    """One record. `timestamp` is in milliseconds. Header keys are bytes, as in the Kafka protocol."""

    offset: int
    key: bytes | None = b"key"
    value: bytes | None = b"value"
    headers: Headers = ()
    timestamp: int = 1_700_000_000_000

    def row(self, timestamp_type: int = 0) -> dict[str, Any]:
        """Return the record as a row of a raw table, with timestamps in microseconds. Header keys must be UTF-8."""
        return {
            "kafka_offset": self.offset,
            "kafka_timestamp": self.timestamp * 1000,
            "kafka_timestamp_type": timestamp_type,
            "key": self.key,
            "value": self.value,
            "headers": [{"key": k.decode(), "value": v} for k, v in self.headers] or None,
        }


def varint(value: int) -> bytes:
    """Return a zigzag varint of 64 bits. Larger numbers wrap around, as in Java."""
    value = (value + (1 << 63)) % (1 << 64) - (1 << 63)
    value = (value << 1) ^ (value >> 63)
    value &= (1 << 64) - 1
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def sized(value: bytes | None) -> bytes:
    """Return the length of the bytes, followed by the bytes. For null, return only the length -1."""
    return varint(-1) if value is None else varint(len(value)) + value


def body(records: Sequence[Made], base: int, stamp: int) -> bytes:
    """Return the uncompressed records of a batch."""
    found = b""
    for r in records:
        headers = b"".join(varint(len(k)) + k + sized(v) for k, v in r.headers)
        one = b"\0" + varint(r.timestamp - stamp) + varint(r.offset - base) + sized(r.key) + sized(r.value)
        one += varint(len(r.headers)) + headers
        found += varint(len(one)) + one
    return found


def made_batch(
    records: Sequence[Made],
    *,
    base: int | None = None,
    last: int | None = None,
    producer: int = -1,
    transactional: bool = False,
    control: bool = False,
    codec: str = "none",
    appended_at: int | None = None,
    altered: bytes | None = None,
    count: int | None = None,
) -> bytes:
    """Return a batch of magic 2 with the offsets `[base, last]`, by default those of its records.

    If `appended_at` is given, it is the broker's timestamp for all records. `altered` replaces the body, which can be
    compressed, and `count` replaces the number of records.
    """
    first = (records[0].offset if records else 0) if base is None else base
    end = (records[-1].offset if records else first) if last is None else last
    stamp = records[0].timestamp if records else 0
    newest = max((r.timestamp for r in records), default=0) if appended_at is None else appended_at
    attributes = CODECS[codec] | (0x08 if appended_at is not None else 0)
    attributes |= (0x10 if transactional or control else 0) | (0x20 if control else 0)
    packed = PACKERS[codec](body(records, first, stamp)) if altered is None else altered
    covered = struct.pack(
        ">hiqqqhii", attributes, end - first, stamp, newest, producer, 0, 0, len(records) if count is None else count
    )
    covered += packed if records or altered is not None else b""
    return struct.pack(">qiibI", first, len(covered) + 9, 0, 2, crc32c(covered)) + covered


def made_marker(offset: int, producer: int, *, commit: bool) -> bytes:
    """Return the control batch that ends a transaction."""
    record = Made(offset, struct.pack(">hh", 0, int(commit)), struct.pack(">hi", 0, 7))
    return made_batch([record], producer=producer, control=True)


def random_record(rng: random.Random, offset: int) -> Made:
    """Return a random record with any of the parts that a record can have."""

    def some(longest: int) -> bytes | None:
        if rng.random() < 0.1:
            return None
        size = rng.choice([0, 1, 3, 4, 5, 7, 8, 9, 31, 32, 33, 63, 64, rng.randint(0, longest)])
        return rng.randbytes(size)

    names = [b"", b"a", b"trace-id", "ü€😀".encode(), b"x" * 40]
    headers = [(rng.choice(names), some(60)) for _ in range(rng.choice([0, 0, 0, 1, 2, 5]))]
    stamp = rng.choice([-1, 0, 1, 1_700_000_000_000, rng.randint(0, 2**42), (2**63 - 1) // 1000])
    return Made(offset, some(100), some(2000), tuple(headers), stamp)


def random_records(rng: random.Random, offsets: Sequence[int]) -> list[Made]:
    """Return a random record at each of `offsets`."""
    return [random_record(rng, o) for o in offsets]


@dataclass
class MadeLog:
    """A random log of a partition: transactions that commit or abort, markers without records, holes, and compression.

    `batches` are the log's batches in order, and `rows` are the rows that a read_committed consumer gets. `aborted`
    contains each aborted transaction as (producer, first offset, offset of its marker). The log ends at `end`,
    exclusive, and every transaction has ended.
    """

    batches: list[bytes]
    first_offsets: list[int]
    last_offsets: list[int]
    rows: list[dict[str, Any]]
    aborted: list[tuple[int, int, int]]
    end: int

    @classmethod
    def at_random(cls, rng: random.Random, size: int = 60, start: int = 0) -> MadeLog:
        """Make a log of about `size` batches, beginning at offset `start`."""
        log = cls([], [], [], [], [], start)
        open_since: dict[int, int] = {}
        waiting: dict[int, list[dict[str, Any]]] = {}
        for _ in range(size):
            producer = rng.choice([-1, -1, 7, 8, 9])
            if producer not in open_since and rng.random() < 0.1:
                log._append(made_batch([], base=log.end, producer=producer, control=True), 1)
                continue
            if producer in open_since and rng.random() < 0.35:
                log._end(producer, open_since, waiting, commit=rng.random() < 0.5)
                continue
            held = log._data(rng, producer)
            if producer < 0:
                log.rows += held
            else:
                open_since.setdefault(producer, log.first_offsets[-1])
                waiting.setdefault(producer, []).extend(held)
        for producer in list(open_since):
            log._end(producer, open_since, waiting, commit=rng.random() < 0.5)
        log.rows.sort(key=lambda row: row["kafka_offset"])
        return log

    def _data(self, rng: random.Random, producer: int) -> list[dict[str, Any]]:
        if rng.random() < 0.1:
            self.end += rng.randint(1, 5)  # a hole before the batch, as compaction leaves them
        span = rng.randint(1, 12)
        offsets = [self.end + d for d in range(span) if rng.random() < rng.choice([1.0, 1.0, 0.6])]
        stamped = rng.randint(1, 2**40) if rng.random() < 0.2 else None
        records = random_records(rng, offsets)
        if rng.random() < 0.7:
            records = [replace(r, timestamp=rng.randint(0, 2**41)) for r in records]
        self._append(
            made_batch(
                records,
                base=self.end,
                last=self.end + span - 1,
                producer=producer,
                transactional=producer >= 0,
                codec=rng.choice(list(CODECS)),
                appended_at=stamped,
            ),
            span,
        )
        if stamped is not None:
            return [replace(r, timestamp=stamped).row(1) for r in records]
        return [r.row() for r in records]

    def _end(
        self, producer: int, open_since: dict[int, int], waiting: dict[int, list[dict[str, Any]]], *, commit: bool
    ) -> None:
        first, held = open_since.pop(producer), waiting.pop(producer, [])
        if commit:
            self.rows += held
        else:
            self.aborted.append((producer, first, self.end))
        self._append(made_marker(self.end, producer, commit=commit), 1)

    def _append(self, batch: bytes, span: int) -> None:
        self.batches.append(batch)
        self.first_offsets.append(self.end)
        self.end += span
        self.last_offsets.append(self.end - 1)

    def fetched(self, offset: int, batches: int) -> tuple[bytes, list[tuple[int, int]]]:
        """Fetch `batches` batches, beginning with the first batch that ends at `offset` or later. Return the bytes of
        the batches, and the aborted transactions that a broker lists with them: transactions that end at `offset` or
        later and begin before the end of the fetch."""
        at = next(i for i, last in enumerate(self.last_offsets) if last >= offset)
        last = min(at + batches, len(self.batches))
        end = self.first_offsets[last] if last < len(self.batches) else self.end
        listed = [(p, first) for p, first, marker in self.aborted if marker >= offset and first < end]
        return b"".join(self.batches[at:last]), listed
