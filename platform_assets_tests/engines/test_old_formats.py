"""The connector engine loads records in the formats of Kafka before 0.11, which old brokers might still have. Brokers
no longer accept these formats from producers, so the tests write segment files into a broker's log folder."""

from __future__ import annotations

import logging
import struct
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

import pytest
from kafka.record.legacy_records import LegacyRecordBatchBuilder

from platform_assets.engines.choice import choose_engine
from platform_assets.kafka.evidence.gathering import gather_evidence
from platform_assets.lake.location import Lake
from platform_assets.model.offsets import OffsetRange, TopicRanges
from platform_assets.services.home import Home
from testbed.loads import Record, Row

if TYPE_CHECKING:
    from platform_assets_tests.conftest import Broker, LakeMaker

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.alone]

OLD_RECORDS = 5
NONE, GZIP = 0, 1
FORMATS = ((0, NONE), (0, GZIP), (1, NONE), (1, GZIP))
"""Magic number and codec, one pair for each partition."""


def segment(magic: int, codec: int) -> bytes:
    """Return records at the offsets from 0 to `OLD_RECORDS`, exclusive, in a segment like those that brokers wrote at
    that time."""
    builder = LegacyRecordBatchBuilder(magic=magic, compression_type=codec, batch_size=1 << 20)
    for offset in range(OLD_RECORDS):
        key = b"key" if offset % 2 else None
        builder.append(offset, timestamp=1_300_000_000_000 + offset, key=key, value=b"old %d" % offset * 20)
    data = bytearray(builder.build())
    if codec:
        struct.pack_into(">q", data, 0, OLD_RECORDS - 1)  # the outer message has the offset of the last inner one
    return bytes(data)


def contents(rows: Iterable[Row]) -> list[tuple[object, ...]]:
    return sorted((r.partition, r.offset, r.key, r.value) for r in rows)


@pytest.mark.long
def test_old_formats_are_loaded_by_the_connector(
    lake: LakeMaker, broker: Broker, platform_home: Home, caplog: pytest.LogCaptureFixture
) -> None:
    lk = lake(partitions=len(FORMATS), config={"retention.ms": "-1"})
    broker.stop()
    for partition, (magic, codec) in enumerate(FORMATS):
        folder = platform_home.kafka / f"{lk.topic}-{partition}"
        (folder / f"{0:020}.log").write_bytes(segment(magic, codec))
        for index in (*folder.glob("*.index"), *folder.glob("*.timeindex")):
            index.unlink()
    # Without these two files the broker scans all segments, as after a crash.
    for name in (".kafka_cleanshutdown", "recovery-point-offset-checkpoint"):
        (platform_home.kafka / name).unlink(missing_ok=True)
    broker.start()

    lk.send([Record(b"new", partition=p) for p in range(len(FORMATS))])
    key = lk.close_window()
    engine = choose_engine(Lake.at(lk.root), lambda: lk.settings, lk.spark, "auto")
    with caplog.at_level(logging.WARNING):
        loaded = lk.loader(engine=engine).load(key)
    assert loaded.receipt.rows == len(FORMATS) * (OLD_RECORDS + 1)
    assert engine.name == "connector"
    assert f"loading raw/{lk.topic} with Spark's connector, starting with window {key}: " in caplog.text
    # Without a timestamp, librdkafka returns 0, and Kafka's own client -1.
    assert contents(lk.rows()) == contents(lk.committed())
    assert {r.timestamp for r in lk.rows() if r.partition == 0 and r.offset < OLD_RECORDS} == {-1}, "magic 0 has none"

    ranges = TopicRanges(dict.fromkeys(range(len(FORMATS)), OffsetRange(0, OLD_RECORDS + 1)))
    topic_id = lk.cluster.topic(lk.topic).topic_id
    found = gather_evidence(lk.settings, lk.topic, topic_id, ranges, compacted=False, deadline=time.monotonic() + 60)
    assert (found.complete, found.records, found.unexplained) == (True, ranges.size, ())
