"""Accounting for offsets from batches built by hand, against what went into them."""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import cramjam
import numpy as np
import pytest
from crc32c import crc32c
from kafka.record.default_records import DefaultRecordBatchBuilder
from kafka.record.legacy_records import LegacyRecordBatchBuilder

from platform_assets.kafka.batches import record_batches
from platform_assets.kafka.batches.record_batches import Batches, Damage
from platform_assets.kafka.evidence.tally import EXPLAINED_HOLES, KINDS, Kind, OffsetAccount, OffsetListing, Tally
from platform_assets.model.digest import Digest, offsets_digest
from platform_assets.model.offsets import OffsetRange, ranges_of

CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
PACKERS: Mapping[str, Callable[[bytes], bytes]] = {
    "none": lambda data: data,
    "gzip": lambda data: zlib.compress(data, wbits=31),
    "snappy": lambda data: bytes(cramjam.snappy.compress_raw(data)),
    "lz4": lambda data: bytes(cramjam.lz4.compress(data)),
    "zstd": lambda data: bytes(cramjam.zstd.compress(data)),
}


def xerial(data: bytes) -> bytes:
    """Snappy as Java producers frame it, in two blocks."""
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
    """A batch of magic 2 at offset `base` with records at `base + delta`, spanning `span` offsets; kafka-python's
    builder makes it, and what the builder cannot do is written over it. Timestamps are `stamp + delta`."""
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


def tally(start: int, end: int, *, compacted: bool = False, listed: int = 1000, partition: int = 3) -> Tally:
    return Tally(partition, OffsetAccount.empty(OffsetRange(start, end)), compacted=compacted, listed=listed)


def by_kind(account: OffsetAccount) -> dict[str, list[tuple[int, int]]]:
    return {kind: [(r.start, r.end) for r in account.of(kind).listed] for kind in KINDS if account.of(kind).offsets}


# --- batches ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", CODECS)
def test_thinned_batch_is_unpacked_for_its_offsets(codec: str) -> None:
    (only,) = scanned(batch(100, [0, 3, 4, 9], span=12, codec=codec))
    assert not only.dense
    assert (only.base_offset, only.last_offset) == (100, 111)
    assert only.offsets().tolist() == [100, 103, 104, 109]


@pytest.mark.parametrize("codec", CODECS)
def test_batch_tells_its_records_timestamps(codec: str) -> None:
    (only,) = scanned(batch(100, [0, 3, 9], codec=codec, stamp=5000))
    assert list(only.timestamps()) == [(100, 5000), (103, 5003), (109, 5009)]
    assert (only.max_timestamp, only.leader_epoch) == (5009, 0)
    # Where the broker stamps records, each has the time at which the batch was appended.
    (only,) = scanned(batch(100, [0, 3], codec=codec, stamp=5000, append_time=True))
    assert list(only.timestamps()) == [(100, 5003), (103, 5003)]


def test_snappy_framed_by_java_is_unpacked() -> None:
    (only,) = scanned(batch(100, [1, 3], span=4, codec="snappy", packer=xerial))
    assert only.offsets().tolist() == [101, 103]


def test_snappy_frame_cut_off_is_damage() -> None:
    (only,) = scanned(batch(100, [1, 3], span=4, codec="snappy", packer=lambda data: xerial(data)[:-1]))
    with pytest.raises(Damage, match="a block is cut off"):
        only.offsets()


def test_large_compressed_batch_outgrows_the_first_guess() -> None:
    deltas = list(range(0, 2000, 2))
    for codec in ("lz4", "zstd"):
        (only,) = scanned(batch(0, deltas, codec=codec, value=b"v" * 2000))
        assert len(only.body) * 8 < 1000 * 2000  # so that the first buffer is too small
        assert only.offsets().tolist() == deltas


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_batch_that_unpacks_to_too_much_is_damage(codec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_batches, "UNPACKED_LIMIT", 500)
    (only,) = scanned(batch(7, list(range(0, 100, 2)), codec=codec))
    with pytest.raises(Damage, match="offset 7: its records cannot be unpacked"):
        only.offsets()


def test_batch_cut_off_by_the_fetch_size_is_left_for_the_next() -> None:
    first, second = batch(0, [0, 1]), batch(2, [0])
    for cut in (1, 30, len(second) - 1):
        found = scanned(first, second[:cut])
        assert len(found) == 1
        assert found.next_offset == 2
    assert scanned(first, second).next_offset == 3
    assert len(scanned()) == 0
    assert len(scanned(first[:-1])) == 0


@pytest.mark.parametrize("position", [0, 1, -1])
def test_flipped_byte_is_damage_at_its_batch(position: int) -> None:
    batches = [bytearray(batch(10 * n, list(range(10)))) for n in range(3)]
    batches[position][70] ^= 1
    found = scanned(*map(bytes, batches))
    with pytest.raises(Damage, match="CRC does not match") as damage:
        found.verify()
    assert damage.value.offset == 10 * (position % 3)


def test_flipped_byte_in_each_place_that_the_crc_covers_is_damage() -> None:
    whole = batch(5, [0, 1])
    for at in range(17, len(whole)):
        flipped = bytearray(whole)
        flipped[at] ^= 0x10
        with pytest.raises(Damage):
            scanned(bytes(flipped)).verify()


def test_impossible_headers_are_damage() -> None:
    with pytest.raises(Damage, match="length is impossible"):
        scanned(batch(0, [0]), struct.pack(">qi", 1, 3) + bytes(20))
    with pytest.raises(Damage, match="format version 3 is unknown"):
        scanned(batch(0, [0])[:16] + b"\x03" + batch(0, [0])[17:])
    with pytest.raises(Damage, match="impossible after the batch before"):
        scanned(batch(0, [0, 1, 2]), batch(2, [0])).verify()
    with pytest.raises(Damage, match="impossible after the batch before"):
        scanned(batch(5, [0, 1, 2], span=2)).verify()
    with pytest.raises(Damage, match="shorter than its own header"):
        scanned(batch(0, [0])[:8] + struct.pack(">i", 40) + batch(0, [0])[12:52]).verify()


def test_records_that_contradict_the_header_are_damage() -> None:
    whole = bytearray(batch(50, [0, 2, 4], span=6))
    for count, reason in ((2, "bytes follow"), (4, "end before")):
        struct.pack_into(">i", whole, 57, count)
        with pytest.raises(Damage, match=reason):
            next(iter(scanned(bytes(whole)))).offsets()
    (backwards,) = scanned(batch(50, [4, 2], span=6))
    with pytest.raises(Damage, match="contradict"):
        backwards.offsets()
    (outside,) = scanned(batch(50, [0, 7], span=6))
    with pytest.raises(Damage, match="contradict"):
        outside.offsets()


@pytest.mark.parametrize(("magic", "codec"), [(0, 0), (1, 0), (0, 1), (1, 1)])
def test_old_message_sets_give_their_offsets(magic: int, codec: int) -> None:
    builder = LegacyRecordBatchBuilder(magic=magic, compression_type=codec, batch_size=1 << 20)
    for offset in range(3):
        builder.append(offset, timestamp=1, key=None, value=b"value" * 20)
    data = bytearray(builder.build())
    if codec:  # the broker numbers the outer message by its last record, and magic 1 the inner ones relative to it
        struct.pack_into(">q", data, 0, 2 if magic == 0 else 42)
    t = tally(0, 50)
    t.take(scanned(bytes(data)))
    first = 40 if codec and magic else 0
    assert by_kind(t.account())["records"] == [(first, first + 3)]
    data[-1] ^= 1
    with pytest.raises(Damage, match="CRC"):
        tally(0, 50).take(scanned(bytes(data)))


def test_old_messages_before_a_batch_are_counted_with_it() -> None:
    builder = LegacyRecordBatchBuilder(magic=1, compression_type=0, batch_size=1 << 20)
    for offset in (0, 1):
        builder.append(offset, timestamp=1, key=b"k", value=b"v")
    found = scanned(bytes(builder.build()), batch(2, [0, 1, 2]))
    assert found.next_offset == 5
    t = tally(0, 5)
    t.take(found)
    assert by_kind(t.account()) == {"records": [(0, 5)]}


# --- kinds ------------------------------------------------------------------------------------------------------------


def test_dense_batches_need_no_record_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_batches.Batch, "_walk", lambda _: pytest.fail("a record was opened"))
    t = tally(5, 27)
    t.take(scanned(batch(0, list(range(10)), codec="zstd"), batch(10, list(range(10))), batch(20, list(range(10)))))
    account = t.account()
    assert by_kind(account) == {"records": [(5, 27)]}
    assert account.complete
    assert account.digest == offsets_digest(3, np.arange(5, 27))


def test_gap_between_batches_is_unexplained_or_claimed_by_policy() -> None:
    for compacted, kind in ((False, "unexplained"), (True, "compacted_away")):
        t = tally(0, 30, compacted=compacted)
        t.take(scanned(batch(5, [0, 1]), batch(10, [0])))
        assert by_kind(t.account()) == {"records": [(5, 7), (10, 11)], kind: [(0, 5), (7, 10)]}
        t.missing(99)
        assert by_kind(t.account())[kind] == [(0, 5), (7, 10), (11, 30)]


def test_gap_before_the_log_start_is_below_it() -> None:
    t = tally(0, 30)
    t.observe(7)
    t.missing(7)
    t.take(scanned(batch(9, [0, 1])))
    assert by_kind(t.account()) == {"records": [(9, 11)], "below_log_start": [(0, 7)], "unexplained": [(7, 9)]}


def test_log_start_inside_a_batch_hides_its_first_records() -> None:
    t = tally(0, 10)
    t.observe(4)
    t.missing(4)
    t.take(scanned(batch(0, list(range(10)))))
    assert by_kind(t.account()) == {"records": [(4, 10)], "below_log_start": [(0, 4)]}


def test_empty_batch_that_compaction_left_is_a_hole() -> None:
    for codec in CODECS:
        t = tally(2, 20, compacted=True)
        t.take(scanned(batch(0, [], span=8, codec=codec, producer=5), batch(8, [0])))
        assert by_kind(t.account()) == {"records": [(8, 9)], "compacted_away": [(2, 8)]}


def test_empty_control_batch_is_a_hole_and_ends_no_abort() -> None:
    t = tally(0, 5, compacted=True)
    empty = batch(2, [], span=1, producer=5, control=0)
    after = batch(3, [0], producer=5, transactional=True)
    t.take(
        scanned(batch(0, [0, 1], producer=5, transactional=True), empty, after, marker(4, 5, commit=False)), [(5, 0)]
    )
    assert by_kind(t.account()) == {
        "aborted_records": [(0, 2), (3, 4)],
        "abort_markers": [(4, 5)],
        "compacted_away": [(2, 3)],
    }


def test_thinned_batch_across_both_bounds() -> None:
    t = tally(103, 110, compacted=True)
    t.take(scanned(batch(100, [0, 3, 4, 9, 11], span=12)))
    assert by_kind(t.account()) == {"records": [(103, 105), (109, 110)], "compacted_away": [(105, 109)]}


def test_thinned_batch_that_keeps_nothing_of_the_range() -> None:
    t = tally(105, 108, compacted=True)
    t.take(scanned(batch(100, [0, 9], span=12)))
    assert by_kind(t.account()) == {"compacted_away": [(105, 108)]}


def test_markers_and_interleaved_producers() -> None:
    one, two = 1, 2
    log = [
        batch(0, [0, 1], producer=one, transactional=True),
        batch(2, [0], producer=two, transactional=True),
        batch(3, [0]),
        marker(4, two, commit=False),
        batch(5, [0], producer=two, transactional=True),
        marker(6, one, commit=True),
        marker(7, two, commit=True),
    ]
    t = tally(0, 8)
    t.take(scanned(*log), [(two, 2)])
    assert by_kind(t.account()) == {
        "records": [(0, 2), (3, 4), (5, 6)],
        "aborted_records": [(2, 3)],
        "abort_markers": [(4, 5)],
        "commit_markers": [(6, 8)],
    }


def test_idempotent_records_of_an_aborting_producer_id_are_no_part_of_the_transaction() -> None:
    t = tally(0, 3)
    log = [batch(0, [0], producer=7), batch(1, [0], producer=7, transactional=True), marker(2, 7, commit=False)]
    t.take(scanned(*log), [(7, 0)])
    assert by_kind(t.account()) == {"records": [(0, 1)], "aborted_records": [(1, 2)], "abort_markers": [(2, 3)]}


def test_abort_begun_before_the_range_and_before_the_fetch() -> None:
    t = tally(50, 53)
    log = [batch(49, [0, 1], producer=7, transactional=True), batch(51, [0]), marker(52, 7, commit=False)]
    t.take(scanned(*log), [(7, 10)])
    assert by_kind(t.account()) == {"aborted_records": [(50, 51)], "records": [(51, 52)], "abort_markers": [(52, 53)]}


def test_unknown_control_record_is_unexplained() -> None:
    t = tally(0, 2)
    t.take(scanned(batch(0, [0], producer=1, control=2), batch(1, [0])))
    assert by_kind(t.account()) == {"records": [(1, 2)], "unexplained": [(0, 1)]}


def test_listing_is_cut_and_counted() -> None:
    t = tally(0, 40, compacted=True, listed=3)
    t.take(scanned(*[batch(4 * n, [0, 1]) for n in range(10)]))
    t.missing(40)
    account = t.account()
    assert by_kind(account)["records"] == [(0, 2), (4, 6), (8, 10)]
    assert (account.records.pieces, account.records.offsets, account.records.whole) == (10, 20, False)
    assert str(account.records) == "[0, 2), [4, 6), [8, 10) and 7 more ranges"
    offsets = np.arange(40).reshape(10, 4)[:, :2].ravel()
    assert account.digest == offsets_digest(3, offsets)
    again = OffsetAccount.from_json(account.as_json())
    assert again == account


def test_listing_at_its_limit_still_joins_its_last_range() -> None:
    t = tally(0, 10, listed=1)
    t.take(scanned(batch(0, [0, 1])))
    t.take(scanned(batch(2, [0, 1])))
    t.take(scanned(batch(6, [0, 1])))
    t.take(scanned(batch(8, [0, 1])))
    assert by_kind(t.account()) == {"records": [(0, 4)], "unexplained": [(4, 6)]}
    assert (t.account().records.pieces, t.account().records.offsets) == (2, 8)


def test_digest_of_a_long_dense_range_is_that_of_its_offsets() -> None:
    t = tally(17, 100_000)
    t.take(scanned(batch(0, list(range(60_000)))))
    t.take(scanned(batch(60_000, list(range(60_000)))))
    assert t.account().digest == offsets_digest(3, np.arange(17, 100_000))


def test_account_that_does_not_add_up_is_refused() -> None:
    one = OffsetListing((OffsetRange(0, 1),), 1, 1, 1)
    with pytest.raises(ValueError, match="do not add up"):
        OffsetAccount(OffsetRange(0, 5), 2, records=one, digest=Digest(1, 1))
    with pytest.raises(ValueError, match="lies outside"):
        OffsetAccount(OffsetRange(0, 5), 6)
    with pytest.raises(ValueError, match="digest"):
        OffsetAccount(OffsetRange(0, 5), 1, records=one)
    with pytest.raises(ValueError, match="contradict"):
        OffsetListing((OffsetRange(0, 1),), 1, 2, 1)


# --- any log ----------------------------------------------------------------------------------------------------------


@dataclass
class Log:
    """A log made at random, and what became of each of its offsets."""

    compacted: bool
    batches: list[tuple[int, int, bytes]] = field(default_factory=list)
    """`(base, last, bytes)`, last inclusive."""
    truth: dict[int, Kind] = field(default_factory=dict)
    aborted: list[tuple[int, int, int]] = field(default_factory=list)
    """`(producer, first offset, offset of the abort marker)`."""
    end: int = 0

    def fetch(self, offset: int, count: int) -> tuple[bytes, list[tuple[int, int]]]:
        """`count` batches from the one that holds `offset` or follows it, and the aborted transactions that overlap."""
        sent = [b for b in self.batches if b[1] >= offset][:count]
        upper = sent[-1][1] + 1 if sent else offset
        return b"".join(b[2] for b in sent), [(p, f) for p, f, last in self.aborted if last >= offset and f < upper]


def random_log(rng: random.Random) -> Log:
    log = Log(compacted=rng.random() < 0.5)
    missing: Kind = "compacted_away" if log.compacted else "unexplained"
    open_: dict[int, list[int]] = {}
    first: dict[int, int] = {}

    def add(raw: bytes, span: int) -> None:
        log.batches.append((log.end, log.end + span - 1, raw))
        log.end += span

    for _ in range(rng.randint(1, 40)):
        producer = rng.randint(1, 3)
        act = rng.random()
        if act < 0.15:
            size = rng.randint(1, 5)
            log.truth.update(dict.fromkeys(range(log.end, log.end + size), missing))
            log.end += size
        elif act < 0.4 and producer in open_:
            commit = rng.random() < 0.5
            for offset in open_.pop(producer):
                log.truth[offset] = "records" if commit else "aborted_records"
            log.truth[log.end] = "commit_markers" if commit else "abort_markers"
            if not commit:
                log.aborted.append((producer, first[producer], log.end))
            add(marker(log.end, producer, commit=commit), 1)
        else:
            span = rng.randint(1, 6)
            deltas = list(range(span))
            if rng.random() < 0.4:
                deltas = sorted(rng.sample(deltas, rng.randint(0, span)))
            transactional = rng.random() < 0.6
            offsets = [log.end + d for d in deltas]
            log.truth.update(dict.fromkeys(range(log.end, log.end + span), missing))
            log.truth.update(dict.fromkeys(offsets, "records"))
            if transactional:
                if producer not in open_:
                    first[producer] = log.end
                open_.setdefault(producer, []).extend(offsets)
            add(
                batch(
                    log.end,
                    deltas,
                    span=span,
                    producer=producer if transactional else -1,
                    transactional=transactional,
                    codec=rng.choice(list(CODECS)),
                ),
                span,
            )
    for producer, offsets in open_.items():
        log.truth.update(dict.fromkeys(offsets, "records"))
        log.truth[log.end] = "commit_markers"
        add(marker(log.end, producer, commit=True), 1)
    return log


def expected(log: Log, start: int, end: int) -> dict[str, list[tuple[int, int]]]:
    found: dict[str, list[tuple[int, int]]] = {}
    for kind in KINDS:
        ranges = ranges_of(o for o in range(start, end) if log.truth[o] == kind)
        if ranges:
            found[kind] = [(r.start, r.end) for r in ranges]
    return found


def read(log: Log, start: int, end: int, rng: random.Random) -> Iterator[OffsetAccount]:
    """Read `[start, end)` in answers of any size, taken up again from JSON after each."""
    account = OffsetAccount.empty(OffsetRange(start, end))
    while not account.complete:
        t = Tally(3, account, compacted=log.compacted)
        raw, aborted = log.fetch(t.position, rng.randint(1, 5))
        if raw:
            t.take(Batches.scan(memoryview(raw)), aborted)
        else:
            t.missing(end)
        assert t.position > account.reached
        account = OffsetAccount.from_json(t.account().as_json())
        yield account
    yield account


@pytest.mark.parametrize("seed", range(150))
def test_any_log_in_any_pieces_gives_each_offset_its_kind(seed: int) -> None:
    rng = random.Random(seed)
    log = random_log(rng)
    for _ in range(6):
        start, end = sorted((rng.randint(0, log.end), rng.randint(0, log.end)))
        *_, account = read(log, start, end, rng)
        assert by_kind(account) == expected(log, start, end)
        offsets = np.array([o for o in range(start, end) if log.truth[o] == "records"], dtype=np.int64)
        assert account.digest == offsets_digest(3, offsets)
        assert sum(account.holes.values()) + account.records.offsets == end - start


def test_explained_holes_are_all_kinds_but_records_and_unexplained() -> None:
    assert set(EXPLAINED_HOLES) == set(KINDS) - {"records", "unexplained"}
