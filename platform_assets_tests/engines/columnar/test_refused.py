"""What no load can take is found, however long the window is, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from platform_assets.engines.columnar.refused import Refused, find_refused
from platform_assets.kafka.settings import BatchLimits
from platform_assets.kafka.timestamps import LAST_READABLE_MS
from platform_assets.model.offsets import OffsetRange, TopicRanges
from platform_assets_tests.support.made_batches import Made, made_batch
from platform_assets_tests.support.raw_produce import produce_batch
from platform_assets_tests.support.streams import ANY_TIME
from testbed.loads import Record, TopicLake

if TYPE_CHECKING:
    from platform_assets_tests.conftest import Broker, TopicMaker

pytestmark = pytest.mark.broker

LIMITS = BatchLimits(bytes=10_000, records=1_000, headers=1_000)


@pytest.fixture
def lk(broker: Broker, topic: TopicMaker, tmp_path: Path) -> TopicLake:
    """Two partitions. The log of the first has, from offset 0 on: 3 records, a bomb of 5, 2 records of which the second has a wrong
    timestamp, an aborted one with a wrong timestamp and its marker, 1 that the producer's clock made as old as can be."""
    made = TopicLake(
        broker.bootstrap, topic(partitions=2, config=ANY_TIME), tmp_path / "lake", lambda: pytest.fail("no Spark")
    )
    made.settings = replace(made.settings, limits=LIMITS)
    bomb = [Made(n, value=bytes(5_000)) for n in range(5)]
    far = [Made(0), Made(1, timestamp=LAST_READABLE_MS + 1)]
    for batch in (made_batch([Made(n) for n in range(3)]), made_batch(bomb, codec="zstd"), made_batch(far)):
        produce_batch(made.bootstrap, made.topic, batch)
    made.abort([Record(b"never", timestamp=2**62)])
    produce_batch(
        made.bootstrap, made.topic, made_batch([Made(0, timestamp=-(2**62)), Made(1, timestamp=LAST_READABLE_MS)])
    )
    produce_batch(made.bootstrap, made.topic, made_batch([Made(0, headers=((b"", None),) * 1_001)], codec="gzip"), 1)
    return made


def search(lk: TopicLake, *pieces: dict[int, tuple[int, int]], **options: int) -> Refused:
    wanted = [TopicRanges({p: OffsetRange(*r) for p, r in piece.items()}) for piece in pieces]
    return find_refused(lk.settings, lk.topic, lk.cluster.topic(lk.topic).topic_id, wanted, **options)


def test_wrong_timestamps_and_batches_beyond_the_limits_are_found(lk: TopicLake) -> None:
    found = search(lk, {0: (0, 14), 1: (0, 1)})
    assert found.records == ((0, 9, LAST_READABLE_MS + 1), (0, 12, -(2**62)))
    assert found.ranges == {0: (OffsetRange(9, 10), OffsetRange(12, 13))}
    assert found.batches == {0: (OffsetRange(3, 8),), 1: (OffsetRange(0, 1),)}


def test_only_what_is_asked_for_is_found(lk: TopicLake) -> None:
    assert search(lk, {0: (0, 3)}, {0: (8, 9)}, {0: (10, 12)}) == Refused((), {})
    assert search(lk, {0: (5, 9)}).batches == {0: (OffsetRange(5, 8),)}


def test_the_search_ends_once_it_has_found_enough(lk: TopicLake) -> None:
    found = search(lk, {0: (0, 8)}, {0: (8, 14)}, {1: (0, 1)}, most=1)
    assert found == Refused((), {0: (OffsetRange(3, 8),)})
