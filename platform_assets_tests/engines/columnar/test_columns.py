"""Record batches become exactly the rows from which the batches were built, wherever batches and pieces begin and end."""

from __future__ import annotations

import random
import struct
import tracemalloc
import zlib
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pytest

from platform_assets.engines.columnar import columns
from platform_assets.engines.columnar.columns import OldFormat, TimestampOutOfRange, as_text, blocks, java_text
from platform_assets.engines.columnar.work import Piece
from platform_assets.kafka.batches.record_batches import Batches
from platform_assets.kafka.batches.unpacking import Damage, TooLarge, UnpackBuffer
from platform_assets.kafka.evidence.tally import PartitionTally
from platform_assets.kafka.settings import BatchLimits
from platform_assets.model.offsets import OffsetRange
from platform_assets_tests.support.made_batches import (
    Made,
    MadeLog,
    body,
    made_batch,
    made_marker,
    random_records,
    varint,
)
from platform_assets_tests.support.record_batches import CODECS, PACKERS

TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAA"
EVERYTHING = Piece(3, OffsetRange(0, 1 << 40))


def read(*batches: bytes, piece: Piece = EVERYTHING, aborted: Iterable[tuple[int, int]] = ()) -> list[dict[str, Any]]:
    """Read `batches` in one fetch, and return their rows without the columns that have the same value in every row."""
    found = Batches.scan(memoryview(b"".join(batches)))
    return rows_of(blocks(found, list(aborted), TOPIC_ID, piece, UnpackBuffer()))


def rows_of(made: Iterable[pa.RecordBatch]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for block in made:
        block.validate(full=True)
        assert block.num_rows
        assert block.schema == columns.SCHEMA
        plain = block.set_column(3, "kafka_timestamp", block["kafka_timestamp"].cast(pa.int64()))
        for row in plain.to_pylist():
            assert (row.pop("topic_id"), row.pop("kafka_partition")) == (TOPIC_ID, 3)
            rows.append(row)
    return rows


@pytest.mark.parametrize("codec", CODECS)
def test_all_that_a_record_has_is_read(codec: str) -> None:
    records = [
        Made(10),
        Made(11, None, None),
        Made(12, b"", b""),
        Made(13, b"k", None, timestamp=-1),
        Made(14, None, b"v" * 300, timestamp=5),
        Made(15, headers=((b"a", b"1"), (b"b", None), (b"a", b"2"), (b"", b""), ("ü€".encode(), b"\xff"))),
        Made(16, headers=((b"only", None),)),
        Made(17, bytes(range(256)), bytes(70_000)),
    ]
    assert read(made_batch(records, codec=codec)) == [r.row() for r in records]


def test_a_block_without_headers_has_nulls_and_no_empty_lists() -> None:
    assert [row["headers"] for row in read(made_batch([Made(0), Made(1)]))] == [None, None]
    some = [Made(0), Made(1, headers=((b"h", b"v"),)), Made(2)]
    assert [row["headers"] for row in read(made_batch(some))] == [None, [{"key": "h", "value": b"v"}], None]


def test_timestamps_are_the_brokers_where_it_set_them() -> None:
    made = [Made(0, timestamp=100), Made(1, timestamp=90)]
    assert [(r["kafka_timestamp"], r["kafka_timestamp_type"]) for r in read(made_batch(made))] == [
        (100_000, 0), (90_000, 0),
    ]  # fmt: skip
    assert [(r["kafka_timestamp"], r["kafka_timestamp_type"]) for r in read(made_batch(made, appended_at=777))] == [
        (777_000, 1), (777_000, 1),
    ]  # fmt: skip


def test_timestamps_that_microseconds_do_not_hold_are_named() -> None:
    largest = (2**63 - 1) // 1000
    assert [r["kafka_timestamp"] for r in read(made_batch([Made(0, timestamp=largest)]))] == [largest * 1000]
    assert [r["kafka_timestamp"] for r in read(made_batch([Made(0, timestamp=-largest)]))] == [-largest * 1000]
    for stamp in (largest + 1, -largest - 1, 2**63 - 1, -(2**63)):
        with pytest.raises(TimestampOutOfRange) as error:
            read(made_batch([Made(5, timestamp=1), Made(6, timestamp=stamp)]))
        assert (error.value.offset, error.value.timestamp) == (6, stamp)
    # An unwanted batch in between does not stop the reader.
    assert read(made_batch([Made(5), Made(6, timestamp=2**62)]), piece=Piece(3, OffsetRange(0, 6))) == [Made(5).row()]


def test_both_ends_are_trimmed_inside_a_batch() -> None:
    whole = made_batch([Made(o) for o in range(100, 110)])
    for start, end in ((100, 110), (103, 107), (0, 101), (109, 200), (109, 110)):
        found = read(whole, piece=Piece(3, OffsetRange(start, end)))
        assert [r["kafka_offset"] for r in found] == list(range(max(start, 100), min(end, 110)))
    for start, end in ((90, 100), (110, 120), (105, 105)):
        assert read(whole, piece=Piece(3, OffsetRange(start, end))) == []


def test_holes_and_batches_without_records_are_passed_over() -> None:
    thinned = made_batch([Made(101), Made(104)], base=100, last=109)
    assert [r["kafka_offset"] for r in read(thinned, made_batch([], base=110, last=115), made_batch([Made(200)]))] == [
        101, 104, 200,
    ]  # fmt: skip


def test_offsets_are_whole_where_a_batch_begins_behind_32_bits() -> None:
    far = 5 << 40
    piece = Piece(3, OffsetRange(far, far + 10))
    assert [r["kafka_offset"] for r in read(made_batch([Made(far), Made(far + 1)]), piece=piece)] == [far, far + 1]
    wide = made_batch([Made(0), Made((1 << 31) - 1)])
    assert [r["kafka_offset"] for r in read(wide)] == [0, (1 << 31) - 1]


def test_markers_and_aborted_records_are_no_rows() -> None:
    log = [
        made_batch([Made(0)], producer=1, transactional=True),
        made_batch([Made(1)], producer=2, transactional=True),
        made_batch([Made(2)]),
        made_marker(3, 1, commit=False),
        made_batch([Made(4)], producer=1, transactional=True),
        made_marker(5, 1, commit=True),
        made_batch([Made(6)], producer=2, transactional=True),
        made_marker(7, 2, commit=False),
    ]
    assert [r["kafka_offset"] for r in read(*log, aborted=[(1, 0), (2, 1)])] == [2, 4]
    assert [r["kafka_offset"] for r in read(*log, aborted=[(2, 1), (1, 0)])] == [2, 4]
    assert [r["kafka_offset"] for r in read(*log)] == [0, 1, 2, 4, 6]
    # The transaction began before the fetch, and its marker follows the fetched range.
    assert [r["kafka_offset"] for r in read(*log[4:7], aborted=[(2, 1)])] == [4]
    # The producer id also occurs in batches of a non-transactional producer.
    assert [r["kafka_offset"] for r in read(made_batch([Made(0)], producer=1), aborted=[(1, 0)])] == [0]


def test_a_marker_that_cannot_be_read_is_damage() -> None:
    short = made_batch([Made(3, b"\0\0")], producer=1, control=True)
    packed = made_batch([Made(3, struct.pack(">hh", 0, 0))], producer=1, control=True, codec="zstd")
    for broken in (short, packed):
        with pytest.raises(Damage, match="offset 3: it contains a control record without a type"):
            read(made_batch([Made(0)]), broken, aborted=[(1, 0)])


def test_a_control_batch_that_the_cleaner_emptied_is_no_marker() -> None:
    """When a marker's transaction has no records left, the log cleaner removes the marker, but keeps the empty batch
    for the producer state."""
    emptied = made_batch([], base=3, producer=1, control=True)
    log = [
        made_batch([Made(0)], producer=2, transactional=True),
        made_batch([Made(1)], producer=1, transactional=True),
        emptied,
        made_batch([Made(4)], producer=1, transactional=True),
        made_marker(5, 2, commit=False),
        made_marker(6, 1, commit=True),
    ]
    assert [r["kafka_offset"] for r in read(*log, aborted=[(2, 0)])] == [1, 4]
    assert [r["kafka_offset"] for r in read(*log, aborted=[(2, 0), (1, 1)])] == [], "it ends no transaction"


@pytest.mark.parametrize("fetch", [1, 2, 7, 1000])
def test_pieces_of_a_random_log_have_its_committed_records_between_them(rng: random.Random, fetch: int) -> None:
    """The log is divided into pieces at any offset, even inside batches and inside transactions that began earlier.
    Together, the pieces contain the whole log."""
    for _ in range(5):
        log = MadeLog.at_random(rng)
        cuts = sorted(rng.sample(range(1, log.end), min(6, log.end - 1)))
        found: list[dict[str, Any]] = []
        for start, end in zip([0, *cuts], [*cuts, log.end], strict=True):
            of_piece = read_log(log, start, end, fetch)
            assert of_piece == [r for r in log.rows if start <= r["kafka_offset"] < end]
            found += of_piece
        assert found == log.rows


def test_a_random_log_has_the_records_that_evidence_counts(rng: random.Random) -> None:
    """The engine and the evidence determine independently which records are committed."""
    for _ in range(20):
        log = MadeLog.at_random(rng)
        start, end = sorted(rng.sample(range(log.end + 1), 2))
        data, aborted = log.fetched(start, 1000)
        tally = PartitionTally(3, OffsetRange(start, end), compacted=True)
        tally.take(Batches.scan(memoryview(data)), aborted)
        counted = tally.evidence().records.listed
        found = read_log(log, start, end, 1000)
        assert [r["kafka_offset"] for r in found] == [o for r in counted for o in range(r.start, r.end)]


def read_log(log: MadeLog, start: int, end: int, fetch: int) -> list[dict[str, Any]]:
    """Return the rows of a piece of the log, which is fetched `fetch` batches at a time."""
    rows: list[dict[str, Any]] = []
    at = start
    while at < end:
        data, aborted = log.fetched(at, fetch)
        batches = Batches.scan(memoryview(data), end)
        rows += rows_of(blocks(batches, aborted, TOPIC_ID, Piece(3, OffsetRange(start, end)), UnpackBuffer()))
        at = end if batches.beyond else max(at + 1, batches.next_offset)
    return rows


@pytest.mark.parametrize(("limit", "blocks_made"), [(1, 20), (5_000, 4), (1 << 20, 1)])
def test_blocks_are_closed_when_they_are_large(limit: int, blocks_made: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "BLOCK_BYTES", limit)
    records = [Made(offset, value=bytes(100)) for offset in range(200)]
    batches = [made_batch(records[i : i + 10], codec="lz4") for i in range(0, 200, 10)]  # above 1,000 bytes each
    made = list(blocks(Batches.scan(memoryview(b"".join(batches))), [], TOPIC_ID, EVERYTHING, UnpackBuffer()))
    assert len(made) == blocks_made
    assert rows_of(made) == [r.row() for r in records]


def test_batches_of_all_codecs_in_one_fetch_keep_their_order(rng: random.Random) -> None:
    made = [made_batch([Made(o)], codec=rng.choice(list(CODECS))) for o in range(100)]
    assert [r["kafka_offset"] for r in read(*made)] == list(range(100))


# --- damage ---------------------------------------------------------------------------------------------------------


def limited(batch: bytes, **limits: int) -> list[pa.RecordBatch]:
    batches = Batches.scan(memoryview(batch), limits=BatchLimits(**limits))
    return list(blocks(batches, [], TOPIC_ID, EVERYTHING, UnpackBuffer()))


@pytest.mark.parametrize("codec", CODECS)
def test_a_batch_beyond_a_limit_is_not_opened(codec: str) -> None:
    """For each codec, a batch at the limit is read, and a batch above the limit is refused. The error names the
    environment variable that sets the limit."""
    few, many = (
        (Made(3, headers=((b"h", b"v"),) * 5), Made(4, headers=((b"h", None),) * 5)),
        Made(8, b"k", b"v" * 3_000),
    )
    at_limit = {"bytes": len(body([*few, many], 3, many.timestamp)), "records": 3, "headers": 10}
    made = made_batch([*few, many], codec=codec)
    assert [block.num_rows for block in limited(made, **at_limit)] == [3]
    for name, value in at_limit.items():
        with pytest.raises(TooLarge, match=f"offset 3: .* more than {value - 1:,} {name}") as large:
            limited(made, **{name: value - 1})
        assert large.value.variable == f"KAFKA_BATCH_MAX_{name.upper()}"


def test_headers_beyond_the_limit_are_not_allocated() -> None:
    """A few kilobytes can encode millions of empty headers."""
    record = varint(0) * 3 + varint(-1) + varint(-1) + varint(3_000_000) + bytes(6_000_000)
    bomb = made_batch([Made(0)], codec="zstd", altered=PACKERS["zstd"](varint(len(record)) + record))
    assert len(bomb) < 2_000
    tracemalloc.start()
    try:
        with pytest.raises(TooLarge, match="more than 1,000,000 headers"):
            limited(bomb, headers=1_000_000)
        assert tracemalloc.get_traced_memory()[1] < 40 << 20
    finally:
        tracemalloc.stop()


def test_a_body_that_is_not_what_its_header_says_is_damage() -> None:
    records = [Made(50), Made(51)]
    right = body(records, 50, records[0].timestamp)
    for altered, count, reason in (
        (right, 1, "bytes follow"),
        (right + b"\0" * 20, 3, "contradict"),
        (right[:-1], 2, "end before"),
        (right, 3, "end before"),
        (b"\x80" * 40, 2, "end before"),
        (right, 1 << 20, "impossible|end before"),
    ):
        with pytest.raises(Damage, match=reason) as damage:
            read(made_batch(records, last=50 + max(count, 2) - 1, altered=altered, count=count))
        assert damage.value.offset == 50
    backwards = made_batch([Made(4), Made(2)], base=0, last=9)
    with pytest.raises(Damage, match="offset 0: its records contradict"):
        read(backwards)
    with pytest.raises(Damage, match="contradict"):
        read(made_batch([Made(0), Made(7)], last=5))


def test_lengths_that_lie_are_damage_and_reach_nothing_outside() -> None:
    """Whatever lengths a record claims, no byte after the record is read."""
    for part in (
        varint(1 << 40), varint(-5) + varint(1 << 20), varint(-1) + varint(-1) + varint(-3),
        varint(-1) + varint(-1) + varint(1 << 30), varint(-1) + varint(-1) + varint(1) + varint(-1),
        varint(-1) + varint(-1) + varint(1) + varint(90) + b"x", varint(-1) + varint(-1) + varint(1) + varint(0),
        varint(-1) + varint(-1) + varint(0) + b"more", b"\xff" * 12, b"",
    ):  # fmt: skip
        one = b"\0" + varint(0) + varint(0) + part
        broken = made_batch([Made(0)], altered=varint(len(one)) + one)
        with pytest.raises(Damage, match=r"contradict|end before"):
            read(broken, made_batch([Made(1)]))


def test_random_bytes_with_a_right_crc_never_get_through_unseen(rng: random.Random) -> None:
    for _ in range(300):
        records = random_records(rng, range(5))
        altered = bytearray(body(records, 0, records[0].timestamp))
        for _ in range(rng.randint(1, 4)):
            altered[rng.randrange(len(altered))] = rng.randrange(256)
        try:
            found = read(made_batch(records, altered=bytes(altered)))
        except (Damage, TimestampOutOfRange):
            continue
        assert [r["kafka_offset"] for r in found] == sorted({r["kafka_offset"] for r in found})


def test_a_flipped_byte_is_damage() -> None:
    good, other = made_batch([Made(0)]), bytearray(made_batch([Made(1)]))
    other[-3] ^= 1
    with pytest.raises(Damage, match="offset 1: its CRC"):
        read(good, bytes(other))


def test_messages_of_an_old_format_are_refused_by_name() -> None:
    message = struct.pack(">bb", 0, 0) + struct.pack(">ii", -1, 1) + b"v"
    old = struct.pack(">qiI", 9, len(message) + 4, zlib.crc32(message)) + message
    with pytest.raises(OldFormat, match="offset 9"):
        read(old)


# --- header keys ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "parts"),
    [
        (b"plain", "plain"),
        ("ü€😀".encode(), "ü€😀"),
        (b"\xff", "?"),
        (b"a\xc3", "a?"),
        (b"\xc0\x80", "??"),
        (b"\xe2\x82", "?"),
        (b"\xe2\x82A", "?A"),
        (b"\xe0\x80\x80", "???"),
        (b"\xf0\x9f\x98", "?"),
        (b"\xf0\x9fA", "?A"),
        (b"\xf0\x80\x80\x80", "????"),
        (b"\xf4\x90\x80\x80", "????"),
        (b"\xed\xa0\x80", "?"),
        (b"\xed\xa0", "?"),
        (b"\xed\xa0A", "?A"),
        (b"\xed", "?"),
        (b"\xed\xa0\x80\xed\xb0\x80", "??"),
        (b"\x80\x80", "??"),
    ],
)
def test_header_keys_that_are_not_utf8_are_replaced_as_java_does(key: bytes, parts: str) -> None:
    assert java_text(key) == parts.replace("?", "\ufffd")
    keys = pa.array([b"before", key, b"after", key], pa.binary())
    assert as_text(keys).to_pylist() == ["before", java_text(key), "after", java_text(key)]
    (row,) = read(made_batch([Made(0, headers=((key, b"1"), (b"next", None)))]))
    assert row["headers"] == [{"key": java_text(key), "value": b"1"}, {"key": "next", "value": None}]
