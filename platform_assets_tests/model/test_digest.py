"""Digests of sets of offsets: they are sensitive to every change, and Spark computes the same digests."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import pytest

from platform_assets.engines.connector import raw
from platform_assets.model.digest import Digest, dense_digest, offset_hashes, offsets_digest
from platform_assets.model.offsets import OffsetRange, TopicRanges
from platform_assets_tests.support import digest_reference

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.connect.session import SparkSession as ConnectSession

ROUNDS = 300
BIG = (2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**53 + 1, 2**62, 2**63 - 1)


def topic_ranges(**ranges: tuple[int, int]) -> TopicRanges:
    return TopicRanges({int(name[1:]): OffsetRange(*bounds) for name, bounds in ranges.items()})


def digest_of(*offsets: int, partition: int = 0) -> Digest:
    return offsets_digest(partition, np.array(offsets, dtype=np.int64))


def test_a_dense_range_has_the_digest_of_its_offsets_however_it_is_chunked(rng: random.Random) -> None:
    ranges = topic_ranges(p0=(3, 40), p2=(7, 7), p5=(2**40, 2**40 + 100))
    offsets = list(range(3, 40))
    rng.shuffle(offsets)
    whole = digest_of(*offsets) + digest_of(*range(2**40, 2**40 + 100), partition=5)
    assert dense_digest(ranges) == whole
    assert all(dense_digest(ranges, chunk) == whole for chunk in (1, 3, 37, 1000))


def test_lost_doubled_and_swapped_offsets_change_the_digest(rng: random.Random) -> None:
    dense = dense_digest(topic_ranges(p0=(0, 50)))
    for _ in range(ROUNDS):
        offsets = list(range(50))
        lost, doubled = rng.sample(offsets, 2)
        without = [o for o in offsets if o != lost]
        assert digest_of(*without) != dense
        assert digest_of(*offsets, doubled) != dense
        swapped = digest_of(*without, doubled)
        assert (swapped.rows, swapped != dense) == (dense.rows, True)
        moved = digest_of(*without) + digest_of(lost, partition=1)
        assert (moved.rows, moved != dense) == (dense.rows, True)


def test_sets_that_agree_in_count_sum_and_squares_differ_in_digest() -> None:
    left, right = (0, 3, 5, 6), (1, 2, 4, 7)
    assert all(sum(o**n for o in left) == sum(o**n for o in right) for n in (0, 1, 2))
    assert digest_of(*left) != digest_of(*right)


def test_a_digest_from_halves_is_exact_past_64_bits() -> None:
    assert Digest.from_halves(3, 3 * (2**32 - 1), 3 * (2**32 - 1)) == Digest(3, 3 * (2**64 - 1))


@pytest.mark.spark
def test_hashes_and_digests_equal_those_of_spark(spark: SparkSession, rng: random.Random) -> None:
    from pyspark.sql import functions as F

    pairs = [(p, o) for p in (0, 1, 7, 255, 2**31 - 1) for o in (0, 1, 2, 255, *BIG)]
    pairs += [(rng.randrange(2**31), rng.randrange(2**63)) for _ in range(500)]
    frame = spark.createDataFrame(pairs, "kafka_partition int, kafka_offset long")
    value = F.xxhash64("kafka_partition", "kafka_offset")
    hashes = {(row[0], row[1]): row[2] for row in frame.select("kafka_partition", "kafka_offset", value).collect()}
    total = Digest(0, 0)
    for partition, offset in pairs:
        mine = offset_hashes(partition, np.array([offset], dtype=np.int64))
        assert int(mine.view(np.int64)[0]) == hashes[partition, offset]
        total += digest_of(offset, partition=partition)
    high, low = F.sum(F.shiftrightunsigned(value, 32)), F.sum(value.bitwiseAND(F.lit(0xFFFFFFFF)))
    assert Digest.from_halves(len(pairs), *frame.agg(high, low).first()) == total


# --- docs/DIGEST.md -------------------------------------------------------------------------------------------------


def test_the_reference_has_the_hashes_of_the_golden_vectors() -> None:
    """A change to the reference or to the vectors fails here; another test compares the vectors with Spark."""
    found = digest_reference.vectors()
    assert len(found) >= 10
    for v in found:
        assert digest_reference.offsets_hash(v.partition, v.offset) == v.offsets_hash
        hashed = digest_reference.content_hash(
            v.partition, v.offset, v.timestamp, v.timestamp_type, v.key, v.value, v.headers
        )
        assert hashed == v.content_hash


def test_numpy_hashes_the_places_of_the_golden_vectors_alike() -> None:
    for v in digest_reference.vectors():
        assert int(offset_hashes(v.partition, np.array([v.offset], dtype=np.int64))[0]) == v.offsets_hash


@pytest.mark.spark
def test_spark_has_the_digests_of_the_golden_vectors(connection: Callable[[], ConnectSession]) -> None:
    """Digests are compared row by row and in total, with the expressions that loads and audits use."""
    from pyspark.sql import functions as F

    found = digest_reference.vectors()
    schema = (
        "kafka_partition int, kafka_offset long, micros long, kafka_timestamp_type int, key binary, value binary, "
        "headers array<struct<key: string, value: binary>>"
    )
    lines = [(v.partition, v.offset, v.timestamp, v.timestamp_type, v.key, v.value, v.headers) for v in found]
    frame = connection().createDataFrame(lines, schema).withColumn("kafka_timestamp", F.timestamp_micros("micros"))
    whole = raw.measure(frame)
    assert whole.offsets == Digest(len(found), sum(v.offsets_hash for v in found))
    assert whole.content == Digest(len(found), sum(v.content_hash for v in found))
    for v in found:
        place = (F.col("kafka_partition") == v.partition) & (F.col("kafka_offset") == v.offset)
        one = raw.measure(frame.where(place))
        assert (one.offsets.total, one.content.total) == (v.offsets_hash, v.content_hash), v
