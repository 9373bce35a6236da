"""Digests computed from Arrow columns equal the digests that Spark computes from the same rows."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from platform_assets.engines.columnar.columns import SCHEMA
from platform_assets.engines.connector import raw
from platform_assets.engines.shared.digests import measured, measured_by_run
from platform_assets.kernels.hashing import hash_bytes
from platform_assets.model.digest import Digest, Measured, offsets_digest
from platform_assets_tests.support import digest_reference
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
    """Return a row that is empty except for the given values. The timestamp is in microseconds."""
    plain = {"kafka_timestamp": 0, "kafka_timestamp_type": 0, "key": None, "value": None, "headers": None}
    return {"kafka_partition": partition, "kafka_offset": offset, **plain, **more}


def batch_of(rows: Sequence[Row]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{**r, "topic_id": "t"} for r in rows], schema=SCHEMA)


def random_rows(rng: random.Random, count: int) -> list[Row]:
    rows = []
    for _ in range(count):
        made = random_record(rng, rng.choice([0, 1, 2**31, rng.randrange(2**63)])).row(rng.choice([0, 1]))
        # Within the range of Python's dates, so that Spark receives the same value.
        moment = rng.choice([-1000, 0, 999_000, rng.randrange(-(10**12), 10**17)]) // 1000 * 1000
        rows.append({"kafka_partition": rng.choice([0, 1, 7, 2**31 - 1]), **made, "kafka_timestamp": moment})
    return rows


@pytest.fixture
def by_spark(connection: Callable[[], SparkSession]) -> Callable[[Sequence[Row]], Measured]:
    """Return the digests that Spark computes."""

    def measure(rows: Sequence[Row]) -> Measured:
        values = [
            tuple({**r, "kafka_timestamp": EPOCH + timedelta(microseconds=r["kafka_timestamp"])}.values()) for r in rows
        ]
        found = raw.measure(connection().createDataFrame(values, COLUMNS))
        return Measured(found.offsets, found.content)

    return measure


@pytest.mark.spark
def test_digests_of_random_rows_are_those_of_spark(
    rng: random.Random, by_spark: Callable[[Sequence[Row]], Measured]
) -> None:
    rows = random_rows(rng, 400)
    assert measured(batch_of(rows)) == by_spark(rows)
    for one in rows[:15]:
        assert measured(batch_of([one])) == by_spark([one])


def test_golden_vectors_have_their_digests() -> None:
    for v in digest_reference.vectors():
        headers = None if v.headers is None else [{"key": k, "value": h} for k, h in v.headers]
        one = row(
            v.partition,
            v.offset,
            kafka_timestamp=v.timestamp,
            kafka_timestamp_type=v.timestamp_type,
            key=v.key,
            value=v.value,
            headers=headers,
        )
        assert measured(batch_of([one])) == Measured(Digest(1, v.offsets_hash), Digest(1, v.content_hash)), v


def test_random_rows_have_the_digests_of_the_definition(rng: random.Random) -> None:
    for one in random_rows(rng, 200):
        headers = None if one["headers"] is None else [(h["key"], h["value"]) for h in one["headers"]]
        partition, offset, moment, kind, key, value, _ = one.values()
        hashed = digest_reference.content_hash(partition, offset, moment, kind, key, value, headers)
        place = digest_reference.offsets_hash(one["kafka_partition"], one["kafka_offset"])
        assert measured(batch_of([one])) == Measured(Digest(1, place), Digest(1, hashed)), one


def test_the_digest_of_all_is_the_sum_of_its_parts_wherever_they_are_cut(rng: random.Random) -> None:
    """Parts are slices of shared buffers. Their validity bits and offsets can begin at any position in these buffers."""
    rows = random_rows(rng, 100)
    whole = batch_of(rows)
    expected = sum((measured(batch_of([r])) for r in rows), Measured.of_nothing())
    assert measured(whole) == expected
    for _ in range(10):
        cut = rng.randrange(101)
        assert measured(whole.slice(0, cut)) + measured(whole.slice(cut)) == expected
    assert measured(whole.slice(0, 0)) == Measured.of_nothing()
    shuffled = rng.sample(rows, len(rows))
    assert measured(batch_of(shuffled)) == expected


def test_runs_of_rows_have_the_digests_of_their_rows(rng: random.Random) -> None:
    """Runs can be longer than the kernel's scratch memory, and the rows can be a slice."""
    whole = batch_of([*random_rows(rng, 60), *[row(1, n, value=b"v" * (n % 40)) for n in range(2_500)]])
    for rows in (whole, whole.slice(13)):
        ends = [*sorted(rng.sample(range(1, 60), 9)), 1_200, rows.num_rows]
        starts = [0, *ends[:-1]]
        expected = [measured(rows.slice(start, end - start)) for start, end in zip(starts, ends, strict=True)]
        assert measured_by_run(rows, ends) == expected
    assert measured_by_run(whole, [0, 3, 3, whole.num_rows])[::2] == [Measured.of_nothing()] * 2


def test_digests_of_offsets_are_those_of_the_evidence(rng: random.Random) -> None:
    rows = [r for r in random_rows(rng, 100) if r["kafka_partition"] == 7]
    offsets = np.array([r["kafka_offset"] for r in rows], np.int64)
    assert measured(batch_of(rows)).offsets == offsets_digest(7, offsets)


def test_each_difference_of_a_row_changes_its_content_digest() -> None:
    rows = [
        row(), row(1), row(0, 1), row(kafka_timestamp=1000), row(kafka_timestamp_type=1),
        row(key=b""), row(value=b""), row(key=b"a"), row(value=b"a"), row(key=b"ab", value=b""), row(key=b"a", value=b"b"),
        row(headers=[]), row(headers=[{"key": "a", "value": None}]), row(headers=[{"key": "a", "value": b""}]),
        row(headers=[{"key": "", "value": b"a"}]), row(headers=[{"key": "a", "value": None}] * 2),
        row(headers=[{"key": "a", "value": b"1"}, {"key": "b", "value": None}]),
        row(headers=[{"key": "a", "value": None}, {"key": "b", "value": b"1"}]),
    ]  # fmt: skip
    assert len({measured(batch_of([r])).content for r in rows}) == len(rows)


def test_xxh64_is_that_of_its_specification() -> None:
    """The test vectors come from the reference implementation's own sanity check: the buffer, the lengths and the
    seeds."""
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
            measured(good.set_column(good.schema.get_field_index(name), name, array))
