"""Shares of a job, run as a Spark worker runs them. Their files contain the same records that a consumer reads at these
offsets."""

from __future__ import annotations

import random
import re
import time
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from confluent_kafka import TopicPartition

from platform_assets.engines.columnar import task
from platform_assets.engines.columnar.work import Share, Source, Work, shares
from platform_assets.engines.shared.digests import measured
from platform_assets.engines.shared.reports import Report, UnsupportedError, WrittenFile
from platform_assets.errors import (
    BrokerUnreachableError,
    LakeNotWritableError,
    LoadError,
    OffsetsVanishedError,
    TimestampOverflowError,
    TopicRecreatedError,
    TruncationError,
    UnreadableTimestampError,
    UnstableEndError,
)
from platform_assets.model.digest import Measured
from platform_assets.model.offsets import OffsetRange
from platform_assets_tests.conftest import Broker, LakeMaker, TopicMaker
from platform_assets_tests.support.every_kind import EVERY_KIND
from platform_assets_tests.support.made_batches import Made, made_batch
from platform_assets_tests.support.quotas import fetch_quota
from platform_assets_tests.support.raw_produce import produce_batch
from platform_assets_tests.support.variants import long_after
from testbed.loads import Record, TopicLake, wait_until

pytestmark = pytest.mark.broker

Ranges = Mapping[int, tuple[int, int]]
FOR_EVER = {"retention.ms": "-1"}
"""Topic settings that keep all records. With other settings, retention would delete records with old timestamps."""


@pytest.fixture
def lake(broker: Broker, topic: TopicMaker, tmp_path: Path) -> LakeMaker:
    """Make a topic and its lake in the same way as the common fixture, but without Spark."""

    def make(*, partitions: int = 1, config: Mapping[str, str] | None = None) -> TopicLake:
        name = topic(partitions=partitions, config=config)
        return TopicLake(broker.bootstrap, name, tmp_path / "lake", _no_spark)

    return make


def _no_spark() -> Any:
    raise AssertionError("Spark has no part in this")


def work_of(lk: TopicLake, ranges: Ranges, table: Path, *, most: int = 3, smallest: int = 1, **more: Any) -> Work:
    """Return the work of loading `ranges` of a topic into files in `table`."""
    table.mkdir(exist_ok=True)
    pieces = shares({p: [OffsetRange(*r)] for p, r in ranges.items()}, smallest, most)
    source = Source(lk.topic, lk.cluster.topic(lk.topic).topic_id, str(table))
    given: dict[str, Any] = {
        "bootstrap": lk.bootstrap,
        "options": (),
        "shares": tuple(Share("window", "window/load", some, source) for some in pieces),
        "rows_apart": 1000,
        "patience": 5.0,
        "fetch_bytes": 8 << 20,
    }
    return Work(**{**given, **more})


def reports(wanted: Work) -> list[Report]:
    return [report for number in range(len(wanted.shares)) for report in task.reports(wanted, [number])]


def of_source(work: Work, **changes: str) -> Work:
    """Return a copy of `work` with a changed source."""
    return replace(work, shares=tuple(replace(s, source=replace(s.source, **changes)) for s in work.shares))


def done(wanted: Work) -> list[WrittenFile]:
    """Run a job that must succeed. Return its files."""
    found = reports(wanted)
    for report in found:
        if report.error is not None:
            raise report.error
    assert [r.share for r in found if r.seconds is not None] == list(range(len(wanted.shares)))
    return [r.file for r in found if r.file is not None]


def failed(wanted: Work) -> list[Any]:
    return [report.error for report in reports(wanted) if report.error is not None]


def rows(table: Path, files: Iterable[WrittenFile]) -> list[dict[str, Any]]:
    """Return the rows of all files in order. Timestamps are in microseconds."""
    found: list[dict[str, Any]] = []
    for file in files:
        content = pq.read_table(table / file.path, partitioning=None)
        moments = content["kafka_timestamp"].cast(pa.int64())
        found += content.set_column(3, "kafka_timestamp", moments).to_pylist()
    return found


def by_consumer(lk: TopicLake, ranges: Ranges) -> list[dict[str, Any]]:
    """Return the rows that a read_committed consumer reads, in the form of `rows`."""
    topic_id = lk.cluster.topic(lk.topic).topic_id
    return [
        {
            "topic_id": topic_id,
            "kafka_partition": row.partition,
            "kafka_offset": row.offset,
            "kafka_timestamp": row.timestamp * 1000,
            "kafka_timestamp_type": row.timestamp_type,
            "key": row.key,
            "value": row.value,
            "headers": None if row.headers is None else [{"key": k, "value": v} for k, v in row.headers],
        }
        for row in lk.committed()
        if row.partition in ranges and ranges[row.partition][0] <= row.offset < ranges[row.partition][1]
    ]


def same(lk: TopicLake, table: Path, ranges: Ranges, **more: Any) -> list[WrittenFile]:
    """Load `ranges`. Compare the loaded rows with the rows that a consumer reads, and the reported digests with the
    digests of the files."""
    files = done(work_of(lk, ranges, table, **more))
    found = sorted(rows(table, files), key=lambda r: (r["kafka_partition"], r["kafka_offset"]))
    assert found == by_consumer(lk, ranges)
    for file in files:
        content = pq.read_table(table / file.path, partitioning=None).to_batches()
        assert file.measured == sum(map(measured, content), Measured.of_nothing())
    return files


def test_all_that_a_record_has_is_as_a_consumer_reads_it(lake: LakeMaker, tmp_path: Path) -> None:
    lk = lake(partitions=2, config=FOR_EVER)
    lk.send(EVERY_KIND)
    produce_batch(lk.bootstrap, lk.topic, made_batch([Made(0, timestamp=-1)]))
    ends = lk.high_watermarks()
    assert len(same(lk, tmp_path / "t", {p: (0, end) for p, end in ends.items()})) >= 3


def test_history_with_transactions_is_read_as_a_consumer_reads_it(
    lake: LakeMaker, tmp_path: Path, rng: random.Random
) -> None:
    """The log is divided at random offsets, so that pieces begin and end inside transactions."""
    lk = lake(partitions=2)
    for number in range(12):
        some = [
            Record(b"%d" % rng.randrange(1000), b"k%d" % number, rng.randrange(2)) for _ in range(rng.randint(1, 9))
        ]
        rng.choice([lk.send, lk.commit, lk.abort])(some)
    with_both = lk.open_transaction([Record(b"late", partition=p) for p in (0, 1)])
    lk.send([Record(b"between", partition=p) for p in (0, 1)])
    with_both.end(commit=False)
    lk.send([Record(b"last", partition=p) for p in (0, 1)])
    ends = lk.high_watermarks()
    for n in range(4):
        ranges = {p: (s := rng.randrange(end), rng.randint(s + 1, end)) for p, end in ends.items()}
        same(lk, tmp_path / f"t{n}", ranges, most=rng.randint(1, 5))


@pytest.mark.parametrize("codec", long_after(2, ["none", "gzip", "snappy", "lz4", "zstd"]))
def test_compressed_topic_is_read_as_a_consumer_reads_it(lake: LakeMaker, tmp_path: Path, codec: str) -> None:
    lk = lake(config={"compression.type": "uncompressed" if codec == "none" else codec})
    lk.send(Record(b"value %d " % n * (n % 50), b"key", headers=(("h", b"%d" % n),)) for n in range(2_000))
    files = same(lk, tmp_path / "t", {0: (3, 1_990)}, most=2, smallest=500)
    assert [f.rows for f in files] == [994, 993]


def test_record_larger_than_a_fetch_is_read(lake: LakeMaker, tmp_path: Path) -> None:
    lk = lake(config={"max.message.bytes": str(30 << 20), **FOR_EVER})
    records = [Made(0, b"small"), Made(1, b"large", bytes(20 << 20)), Made(2, b"small")]
    for record in records:
        produce_batch(lk.bootstrap, lk.topic, made_batch([record]))
    files = done(work_of(lk, {0: (0, 3)}, tmp_path / "t", fetch_bytes=1 << 20))
    assert [len(r["value"]) for r in rows(tmp_path / "t", files)] == [5, 20 << 20, 5]


def test_statistics_and_places_are_those_of_the_rows(lake: LakeMaker, tmp_path: Path) -> None:
    lk = lake(partitions=3, config=FOR_EVER)
    lk.send(Record(b"v", partition=n % 2 * 2, timestamp=1_772_323_200_000 + n) for n in range(100))
    (file,) = done(work_of(lk, {0: (10, 50), 1: (0, 0), 2: (0, 50)}, tmp_path / "t", most=1))
    assert file.path.startswith("window/load/")
    assert file.bytes == (tmp_path / "t" / file.path).stat().st_size
    assert {p: (r.rows, r.first, r.last) for p, r in file.partitions.items()} == {0: (40, 10, 49), 2: (50, 0, 49)}
    assert file.statistics == {
        "minValues": {
            "kafka_partition": 0, "kafka_offset": 0, "kafka_timestamp": "2026-03-01T00:00:00.001Z",
        },
        "maxValues": {"kafka_partition": 2, "kafka_offset": 49, "kafka_timestamp": "2026-03-01T00:00:00.099Z"},
        "nullCount": {"kafka_partition": 0, "kafka_offset": 0, "kafka_timestamp": 0},
    }  # fmt: skip
    found = [(r["kafka_partition"], r["kafka_offset"]) for r in rows(tmp_path / "t", [file])]
    assert found == sorted(found)


def test_large_partitions_have_files_of_their_own_and_small_ones_share(lake: LakeMaker, tmp_path: Path) -> None:
    lk = lake(partitions=3)
    lk.send(Record(b"v", partition=p) for p in range(3) for _ in range(20))
    wanted = work_of(lk, dict.fromkeys(range(3), (0, 20)), tmp_path / "t", most=1)
    assert [list(f.partitions) for f in done(replace(wanted, rows_apart=20))] == [[0], [1], [2]]
    assert [list(f.partitions) for f in done(replace(wanted, rows_apart=21))] == [[0, 1], [2]]
    assert [list(f.partitions) for f in done(wanted)] == [[0, 1, 2]]


def test_aborted_records_alone_make_no_file(lake: LakeMaker, tmp_path: Path) -> None:
    lk = lake()
    lk.abort([Record(b"never")] * 5)
    assert done(work_of(lk, {0: (0, 6)}, tmp_path / "t")) == []
    assert not [p for p in (tmp_path / "t").rglob("*") if p.is_file()]


def test_a_quota_of_a_megabyte_a_second_is_waited_out(
    lake: LakeMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The quota applies to one client id. The task gets this client id from its environment."""
    lk = lake()
    lk.send(Record(b"v" * 100_000) for _ in range(60))
    monkeypatch.setenv("KAFKA_CLIENT_ID", f"columnar-{lk.topic}")

    def waited() -> bool:
        folder = tmp_path / uuid.uuid4().hex
        wanted = work_of(lk, {0: (0, 60)}, folder, most=1, patience=1.0, options=("client.id",), fetch_bytes=2 << 20)
        began = time.monotonic()
        assert [f.rows for f in done(wanted)] == [60]
        return time.monotonic() - began > 1.5

    with fetch_quota(lk.bootstrap, f"columnar-{lk.topic}", 1 << 20):
        # The broker confirms a quota before it applies the quota. Until then, everything is read at once.
        wait_until("the broker applies the quota", waited)


# --- failures -----------------------------------------------------------------------------------------------------


def test_offsets_that_went_away_are_named_and_other_shares_are_done(
    broker: Broker, lake: LakeMaker, tmp_path: Path
) -> None:
    lk = lake(partitions=2)
    lk.send([Record(b"%d" % n, partition=n % 2) for n in range(20)])
    (deleted,) = broker.admin.delete_records([TopicPartition(lk.topic, 0, 5)]).values()
    deleted.result(30)
    told = reports(work_of(lk, {0: (0, 10), 1: (0, 10)}, tmp_path / "t", most=2))
    assert [(r.share, type(r.error)) for r in told if r.error is not None] == [(0, OffsetsVanishedError)]
    assert "partition 0 offsets [0, 5)" in str(told[0].error)
    assert [(r.share, r.file.rows) for r in told if r.file is not None] == [(1, 10)]
    for gone, ranges in (((0, 5), {0: (0, 5)}), ((3, 5), {0: (3, 7)})):
        (error,) = failed(work_of(lk, ranges, tmp_path / "t", most=1))
        assert f"partition 0 offsets [{gone[0]}, {gone[1]})" in str(error)


def test_timestamp_that_spark_cannot_represent_is_refused(lake: LakeMaker, tmp_path: Path) -> None:
    lk = lake(config={"message.timestamp.after.max.ms": str(2**63 - 1), **FOR_EVER})
    produce_batch(lk.bootstrap, lk.topic, made_batch([Made(0), Made(1, timestamp=2**62)]))
    (error,) = failed(work_of(lk, {0: (0, 2)}, tmp_path / "t", most=1))
    assert isinstance(error, TimestampOverflowError)
    assert len(done(work_of(lk, {0: (0, 1)}, tmp_path / "t"))) == 1


def test_failures_come_back_typed_and_leave_no_file(lake: LakeMaker, tmp_path: Path) -> None:
    lk, table = lake(), tmp_path / "t"
    lk.send([Record(b"%d" % n) for n in range(10)])
    waiting = lk.open_transaction([Record(b"open")])
    wanted = work_of(lk, {0: (0, 10)}, table, most=1, patience=1.0)
    past = work_of(lk, {0: (0, 11)}, table, most=1, patience=1.0)
    (tmp_path / "file").touch()
    broken: Any = None
    for changed, kind, text in (
        (past, UnstableEndError, "stable only up to offset 10"),
        (of_source(wanted, topic_id="AAAAAAAAAAAAAAAAAAAAAA"), TopicRecreatedError, "was re-created"),
        (replace(wanted, bootstrap="127.0.0.1:1"), BrokerUnreachableError, "within 1 s"),
        (of_source(wanted, table=str(tmp_path / "file")), LakeNotWritableError, "Not a directory"),
        (replace(wanted, options=("sasl.password",)), UnsupportedError, "KAFKA_SASL_PASSWORD"),
        (replace(wanted, fetch_bytes=broken), LoadError, r"partition 0 offsets \[0, 10\) raised TypeError"),
    ):
        (error,) = failed(changed)
        assert type(error) is kind, error
        assert re.search(text, str(error))
        assert not [p for p in table.rglob("*") if p.is_file()]
    waiting.end(commit=True)
    assert [f.rows for f in done(past)] == [11]


def test_errors_survive_the_way_back() -> None:
    """The errors keep their class, their fields and their message."""
    for error in (
        UnreadableTimestampError("raw/t", "w", [(0, 1, 2)]),
        OffsetsVanishedError("t", "w", "detail"),
        BrokerUnreachableError("reading", 1.5, "reason"),
        TruncationError("t", 1, 2, 3),
        UnsupportedError("reason"),
    ):
        back = Report.from_json(Report(7, error=error).to_json()).error
        assert type(back) is type(error)
        assert str(back) == str(error)
        assert vars(back) == vars(error)
