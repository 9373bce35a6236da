"""Record-batch bodies that are unpacked into reused memory."""

from __future__ import annotations

import random
import tracemalloc

import numpy as np
import pytest

from platform_assets.kafka.batches.unpacking import Damage, TooLarge, UnpackBuffer, unpacked
from platform_assets_tests.support.record_batches import CODECS, PACKERS

LIMIT = 1 << 28


def packed(codec: str, data: bytes) -> memoryview:
    return memoryview(PACKERS[codec](data))


def body(rng: random.Random) -> bytes:
    """Return a body of up to a few hundred thousand bytes, which can be compressed by a factor between 1 and about
    1,000."""
    return rng.randbytes(rng.randrange(1, 300)) * rng.choice([1, 10, 1_000])


def test_bodies_lie_behind_each_other_and_stay_as_the_room_grows(rng: random.Random) -> None:
    buffer = UnpackBuffer()
    for _ in range(3):  # the same buffer again and again
        bodies = [(rng.choice(sorted(CODECS)), body(rng)) for _ in range(40)]
        end = 0
        for codec, data in bodies:
            end = buffer.add(CODECS[codec], packed(codec, data), 0, end, LIMIT)
        assert buffer.filled(end).tobytes() == b"".join(data for _, data in bodies)


def test_what_was_in_the_room_is_in_no_later_body(rng: random.Random) -> None:
    buffer = UnpackBuffer()
    buffer.add(CODECS["zstd"], packed("zstd", b"x" * 100_000), 0, 0, LIMIT)
    for codec in sorted(CODECS):
        data = body(rng)
        end = buffer.add(CODECS[codec], packed(codec, data), 0, 0, LIMIT)
        assert buffer.filled(end).tobytes() == data == bytes(unpacked(CODECS[codec], packed(codec, data), 0, LIMIT))


@pytest.mark.parametrize("codec", CODECS)
def test_a_body_beyond_the_limit_is_refused_in_a_room_with_space_left(codec: str) -> None:
    buffer = UnpackBuffer()
    buffer.add(CODECS[codec], packed(codec, bytes(100_000)), 0, 0, LIMIT)
    for unpack in (
        lambda data: buffer.add(CODECS[codec], data, 7, 0, 500),
        lambda d: unpacked(CODECS[codec], d, 7, 500),
    ):
        with pytest.raises(TooLarge, match="offset 7: unpacks to more than 500 bytes") as large:
            unpack(packed(codec, bytes(501)))
        assert large.value.variable == "KAFKA_BATCH_MAX_BYTES"
        unpack(packed(codec, bytes(500)))


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_a_bomb_takes_no_more_memory_than_the_limit(codec: str) -> None:
    bomb, limit = packed(codec, bytes(100 << 20)), 1 << 20
    tracemalloc.start()
    try:
        with pytest.raises(TooLarge):
            unpacked(CODECS[codec], bomb, 0, limit)
        with pytest.raises(TooLarge):
            UnpackBuffer().add(CODECS[codec], bomb, 0, 0, limit)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4 * limit + len(bomb)


@pytest.mark.parametrize("codec", ["gzip", "lz4", "zstd"])
def test_a_body_cut_off_is_damage_and_leaves_what_came_before(codec: str) -> None:
    buffer, before = UnpackBuffer(), bytes(range(256))
    end = buffer.add(CODECS[codec], packed(codec, before), 0, 0, LIMIT)
    with pytest.raises(Damage, match="offset 9"):
        buffer.add(CODECS[codec], packed(codec, np.arange(5_000).tobytes())[:-20], 9, end, LIMIT)
    assert buffer.filled(end).tobytes() == before
