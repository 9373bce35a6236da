"""Handmade record batches, compared with the records from which they were built."""

from __future__ import annotations

import struct

import pytest

from platform_assets.kafka.batches.record_batches import Batches
from platform_assets.kafka.batches.unpacking import Damage, TooLarge
from platform_assets.kafka.settings import BatchLimits
from platform_assets_tests.support.record_batches import CODECS, batch, scanned, xerial


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
    # If the broker sets timestamps, each record has the time at which the batch was appended.
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
def test_batch_beyond_a_limit_is_not_opened(codec: str) -> None:
    made = memoryview(batch(7, list(range(0, 100, 2)), codec=codec))
    for limits, reason in (
        (BatchLimits(bytes=500), "unpacks to more than 500 bytes"),
        (BatchLimits(records=49), "has more than 49 records"),
    ):
        (only,) = Batches.scan(made, limits=limits)
        with pytest.raises(TooLarge, match=f"offset 7: {reason}"):
            only.offsets()
    (only,) = Batches.scan(made, limits=BatchLimits(records=50))
    assert len(only.offsets()) == 50


def test_batch_cut_off_by_the_fetch_size_is_left_for_the_next() -> None:
    first, second = batch(0, [0, 1]), batch(2, [0])
    for cut in (1, 30, len(second) - 1):
        found = scanned(first, second[:cut])
        assert len(found) == 1
        assert found.next_offset == 2
    assert scanned(first, second).next_offset == 3
    assert len(scanned()) == 0
    assert len(scanned(first[:-1])) == 0


def test_batches_from_the_end_on_are_left_out_whatever_they_hold() -> None:
    whole = [batch(10 * n, list(range(10))) for n in range(3)]
    for until, count, beyond in (
        (0, 0, True),
        (1, 1, True),
        (10, 1, True),
        (11, 2, True),
        (20, 2, True),
        (21, 3, False),
    ):
        found = Batches.scan(memoryview(b"".join(whole)), until)
        assert (len(found), found.beyond) == (count, beyond)
        assert not count or found.next_offset == 10 * count
    for at, value in (
        (70, 0x55),
        (16, 3),
        (9, 0xFF),
        (11, 1),
        (60, 0xFF),
        (23, 0xFF),
    ):  # value, version, length, count, delta
        damaged = bytearray(whole[1])
        damaged[at] = value
        found = Batches.scan(memoryview(whole[0] + damaged + whole[2]), 10)
        found.verify()
        assert (len(found), found.next_offset, found.beyond) == (1, 10, True)
    # Also cut off after the end.
    assert len(Batches.scan(memoryview(whole[0] + whole[1][:30]), 10)) == 1


def test_a_batch_that_says_that_it_is_not_wanted_before_one_that_is_is_damage() -> None:
    """The CRC of a batch does not cover its base offset."""
    wrong = batch(77, [0]) + batch(2, [0])
    with pytest.raises(Damage, match="offset 77: the offsets in its header do not precede those of the next batch"):
        Batches.scan(memoryview(wrong), 10)
    after = Batches.scan(memoryview(batch(0, [0]) + wrong), 10)
    assert (len(after), after.next_offset, after.beyond) == (1, 1, False)


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
        scanned(struct.pack(">qi", 1, 3) + bytes(20))
    assert len(scanned(batch(0, [0]), struct.pack(">qi", 1, 3) + bytes(20))) == 1
    with pytest.raises(Damage, match="format version 3 is unknown"):
        scanned(batch(0, [0])[:16] + b"\x03" + batch(0, [0])[17:])
    with pytest.raises(Damage, match="are invalid, or do not follow those of the previous batch"):
        scanned(batch(0, [0, 1, 2]), batch(2, [0])).verify()
    with pytest.raises(Damage, match="are invalid, or do not follow those of the previous batch"):
        scanned(batch(5, [0, 1, 2], span=2)).verify()
    with pytest.raises(Damage, match="shorter than its own header"):
        scanned(batch(0, [0])[:8] + struct.pack(">i", 40) + batch(0, [0])[12:52]).verify()


@pytest.mark.parametrize("position", [0, 1, 2])
def test_the_batches_before_a_damaged_one_are_intact(position: int) -> None:
    batches = [bytearray(batch(10 * n, list(range(10)))) for n in range(3)]
    batches[position][70] ^= 1
    found, damage = Batches.scan(memoryview(b"".join(batches)), 25).intact()
    assert damage is not None
    assert damage.offset == 10 * position
    assert found.base_offsets.tolist() == [10 * n for n in range(position)]
    assert not found.beyond
    found.verify()


def test_of_two_batches_whose_offsets_do_not_ascend_either_may_be_wrong() -> None:
    found, damage = scanned(batch(0, [0]), batch(77, [0]), batch(2, [0])).intact()
    assert (damage and damage.offset, found.base_offsets.tolist()) == (2, [0])
    found, damage = scanned(batch(77, [0]), batch(2, [0])).intact()
    assert (damage and damage.offset, len(found)) == (2, 0)


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
