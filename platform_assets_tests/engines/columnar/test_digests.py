"""Digests taken from Arrow columns are those that Spark takes of the same rows."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from platform_assets.engines.columnar.columns import SCHEMA
from platform_assets.engines.columnar.digests import NO_ROWS, Digests, digests_of
from platform_assets.engines.columnar.kernels.hashing import hash_bytes
from platform_assets.engines.spark import raw
from platform_assets.model.digest import Digest, offsets_digest
from platform_assets_tests.support.made_batches import random_record

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

COLUMNS = (
    "kafka_partition int, kafka_offset long, kafka_timestamp timestamp, kafka_timestamp_type int, key binary, "
    "value binary, headers array<struct<key: string, value: binary>>"
)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Row = dict[str, Any]


def row(partition: int = 0, offset: int = 0, **more: Any) -> Row:
    """A row without anything in it but for what is given; the timestamp in microseconds."""
    plain = {"kafka_timestamp": 0, "kafka_timestamp_type": 0, "key": None, "value": None, "headers": None}
    return {"kafka_partition": partition, "kafka_offset": offset, **plain, **more}


GOLDEN: Sequence[tuple[Row, int, int]] = (
    (row(), 0xD694C86695BAABBA, 0x4583FAC9CECEE679),
    (row(7, 2**40 + 1, kafka_timestamp=-1000, kafka_timestamp_type=1), 0x69F31D1DB38FA58D, 0x4ADEAC5A730D46E4),
    (row(2**31 - 1, 2**63 - 1, key=b"", value=b""), 0x44BB6BA613B7FC49, 0xE42F53799D87012B),
    (row(0, 5, key=b"key", value=b"v" * 31), 0xE09231F3187C159B, 0x268C26B0CB00BF0A),
    (row(0, 5, key=b"k" * 32, value=bytes(range(256))), 0xE09231F3187C159B, 0x63A23633390B86B6),
    (row(headers=[]), 0xD694C86695BAABBA, 0xCA6C91ECF72CD4EE),
    (
        row(headers=[{"key": "a", "value": b"1"}, {"key": "a", "value": None}, {"key": "", "value": b""}]),
        0xD694C86695BAABBA,
        0xBFD2455AE03C7418,
    ),
    (
        row(3, 9, kafka_timestamp=1_772_323_200_123_000, key=b"k", headers=[{"key": "ü€😀", "value": b"\xff" * 40}]),
        0x3085370464742258,
        0x434C2D4A7DC515A6,
    ),
)
"""A row, its offset hash and its content hash, as Spark computed them."""


def batch_of(rows: Sequence[Row]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{**r, "topic_id": "t"} for r in rows], schema=SCHEMA)


def random_rows(rng: random.Random, count: int) -> list[Row]:
    rows = []
    for _ in range(count):
        made = random_record(rng, rng.choice([0, 1, 2**31, rng.randrange(2**63)])).row(rng.choice([0, 1]))
        # What Python's dates can hold, so that Spark gets the same.
        moment = rng.choice([-1000, 0, 999_000, rng.randrange(-(10**12), 10**17)]) // 1000 * 1000
        rows.append({"kafka_partition": rng.choice([0, 1, 7, 2**31 - 1]), **made, "kafka_timestamp": moment})
    return rows


@pytest.fixture
def by_spark(connection: Callable[[], SparkSession]) -> Callable[[Sequence[Row]], Digests]:
    """Digests as Spark computes them."""

    def measured(rows: Sequence[Row]) -> Digests:
        values = [
            tuple({**r, "kafka_timestamp": EPOCH + timedelta(microseconds=r["kafka_timestamp"])}.values()) for r in rows
        ]
        found = raw.measure(connection().createDataFrame(values, COLUMNS))
        return Digests(found.offsets, found.content)

    return measured


@pytest.mark.spark
def test_digests_of_random_rows_are_those_of_spark(
    rng: random.Random, by_spark: Callable[[Sequence[Row]], Digests]
) -> None:
    rows = random_rows(rng, 400)
    assert digests_of(batch_of(rows)) == by_spark(rows)
    for one in rows[:15]:
        assert digests_of(batch_of([one])) == by_spark([one])


@pytest.mark.spark
def test_golden_digests_are_those_of_spark(by_spark: Callable[[Sequence[Row]], Digests]) -> None:
    for one, offsets, content in GOLDEN:
        assert by_spark([one]) == Digests(Digest(1, offsets), Digest(1, content)), one


@pytest.mark.parametrize(("one", "offsets", "content"), GOLDEN)
def test_golden_digests(one: Row, offsets: int, content: int) -> None:
    assert digests_of(batch_of([one])) == Digests(Digest(1, offsets), Digest(1, content))


def test_the_digest_of_all_is_the_sum_of_its_parts_wherever_they_are_cut(rng: random.Random) -> None:
    """Parts are slices of the same buffers, whose bits and offsets begin anywhere."""
    rows = random_rows(rng, 100)
    whole = batch_of(rows)
    expected = sum((digests_of(batch_of([r])) for r in rows), NO_ROWS)
    assert digests_of(whole) == expected
    for _ in range(10):
        cut = rng.randrange(101)
        assert digests_of(whole.slice(0, cut)) + digests_of(whole.slice(cut)) == expected
    assert digests_of(whole.slice(0, 0)) == NO_ROWS
    shuffled = rng.sample(rows, len(rows))
    assert digests_of(batch_of(shuffled)) == expected


def test_digests_of_offsets_are_those_of_the_evidence(rng: random.Random) -> None:
    rows = [r for r in random_rows(rng, 100) if r["kafka_partition"] == 7]
    offsets = np.array([r["kafka_offset"] for r in rows], np.int64)
    assert digests_of(batch_of(rows)).offsets == offsets_digest(7, offsets)


def test_each_difference_of_a_row_changes_its_content_digest() -> None:
    rows = [
        row(), row(1), row(0, 1), row(kafka_timestamp=1000), row(kafka_timestamp_type=1),
        row(key=b""), row(value=b""), row(key=b"a"), row(value=b"a"), row(key=b"ab", value=b""), row(key=b"a", value=b"b"),
        row(headers=[]), row(headers=[{"key": "a", "value": None}]), row(headers=[{"key": "a", "value": b""}]),
        row(headers=[{"key": "", "value": b"a"}]), row(headers=[{"key": "a", "value": None}] * 2),
        row(headers=[{"key": "a", "value": b"1"}, {"key": "b", "value": None}]),
        row(headers=[{"key": "a", "value": None}, {"key": "b", "value": b"1"}]),
    ]  # fmt: skip
    assert len({digests_of(batch_of([r])).content for r in rows}) == len(rows)


def test_xxh64_is_that_of_its_specification() -> None:
    """Vectors of the reference implementation's own sanity test: its buffer, lengths and seeds."""
    state, buffer = np.uint64(2654435761), bytearray()
    with np.errstate(over="ignore"):
        for _ in range(256):
            buffer.append(int(state >> np.uint64(56)))
            state *= np.uint64(11400714785074694797)
    data = np.frombuffer(bytes(buffer), np.uint8)
    prime = np.uint64(2654435761)
    for size, seed, expected in (
        (0, np.uint64(0), 0xEF46DB3751D8E999),
        (0, prime, 0xAC75FDA2929B17EF),
        (1, np.uint64(0), 0xE934A84ADB052768),
        (1, prime, 0x5014607643A9B4C3),
        (14, np.uint64(0), 0x8282DCC4994E35C8),
        (14, prime, 0xC3BD6BF63DEB6DF0),
        (222, np.uint64(0), 0xB641AE8CB691C174),
        (222, prime, 0x20CB8AB7AE10C14A),
    ):
        assert int(hash_bytes(data, 0, size, seed)) == expected


def test_columns_that_are_not_those_of_a_raw_table_are_refused() -> None:
    good = batch_of([row()])
    for name, array in (
        ("key", pa.array(["text"], pa.large_string())),
        ("kafka_offset", pa.array([1], pa.int32())),
        ("kafka_partition", pa.array([None], pa.int32())),
    ):
        with pytest.raises(TypeError):
            digests_of(good.set_column(good.schema.get_field_index(name), name, array))
