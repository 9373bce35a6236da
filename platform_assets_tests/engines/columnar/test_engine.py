"""Windows loaded by the columnar engine on Spark equal windows loaded by the connector engine."""

from __future__ import annotations

import logging
import os
import random
import socket
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from platform_assets.engines.choice import AutoEngine
from platform_assets.engines.columnar.columns import java_text
from platform_assets.engines.columnar.engine import ColumnarEngine
from platform_assets.engines.connector.engine import SparkEngine
from platform_assets.engines.protocol import Records
from platform_assets.engines.shared import job, worker
from platform_assets.engines.shared.reports import UnsupportedError
from platform_assets.errors import (
    TimestampShiftedError,
    TopicRecreatedError,
    UnreadableTimestampError,
    WorkerLostError,
)
from platform_assets.kafka.settings import ClientSettings
from platform_assets.lake import raw_table
from platform_assets.lake.location import Lake
from platform_assets.model.offsets import OffsetRange, TopicRanges
from platform_assets.model.tables import TableRef
from platform_assets_tests.soak.proxy import Proxy
from platform_assets_tests.support.every_kind import EVERY_KIND
from platform_assets_tests.support.made_batches import Made, made_batch
from platform_assets_tests.support.raw_produce import produce_batch
from testbed.clients import client_settings
from testbed.loads import Record, TopicLake, records, wait_until

if TYPE_CHECKING:
    from platform_assets_tests.conftest import LakeMaker

pytestmark = [pytest.mark.broker, pytest.mark.spark]

FOR_EVER = {"retention.ms": "-1"}
"""Topic settings that keep all records. With other settings, retention would delete records with old timestamps."""

NOT_UTF8 = (b"\xff\xfe", b"a\xc3", b"\xed\xa0\x80", b"\xed\xa0A", b"\xf0\x9f\x98", b"\xe0\x80\x80")
"""Header keys that are not UTF-8."""


def engines(lk: TopicLake, settings: ClientSettings | None = None) -> tuple[ColumnarEngine, SparkEngine]:
    """Return both engines for a topic's lake."""
    lake = Lake.at(lk.root)
    return (
        ColumnarEngine(lake, lambda: settings or lk.settings, lk.spark),
        SparkEngine(lake, lambda: lk.settings, lk.spark),
    )


def whole(lk: TopicLake, **changes: Any) -> Records:
    """Return the `Records` of a window that covers everything in the topic."""
    ranges = TopicRanges({p: OffsetRange(0, end) for p, end in lk.high_watermarks().items()})
    raw_table.create(Lake.at(lk.root).table(TableRef.raw(lk.topic)), lk.topic)
    found = Records(lk.topic, lk.cluster.topic(lk.topic).topic_id, "2026-03-01-00:00", ranges)
    return replace(found, **changes)


def test_both_engines_load_the_same_and_prove_each_other(lake: LakeMaker, rng: random.Random) -> None:
    """The topic has transactions, all kinds of records, and header keys that are not UTF-8. Each engine proves that a
    window loaded by the other engine is unchanged."""
    lk = lake(partitions=2, config=FOR_EVER)
    first, second = engines(lk)
    for one, other in ((first, second), (second, first)):
        lk.send(EVERY_KIND)
        for _ in range(6):
            some = [Record(b"%d" % rng.randrange(99), b"k", rng.randrange(2)) for _ in range(rng.randint(1, 9))]
            rng.choice([lk.send, lk.commit, lk.abort])(some)
        for header_key in NOT_UTF8:
            produce_batch(lk.bootstrap, lk.topic, made_batch([Made(0, headers=((header_key, b"1"),))]))
        produce_batch(lk.bootstrap, lk.topic, made_batch([Made(0, timestamp=-1)]))
        key = lk.close_window()
        loaded = lk.loader(engine=one).load(key)
        again = lk.loader(engine=other).load(key)
        assert (loaded.outcome, again.outcome) == ("loaded", "unchanged")
        assert loaded.receipt.engine == one.name
        assert lk.ledger.receipts(TableRef.raw(lk.topic), [key])[key].engine == one.name
        assert [r.headers for r in lk.rows(key) if r.timestamp == Made(0).timestamp] == [
            ((java_text(header_key), b"1"),) for header_key in NOT_UTF8
        ]


AGES = (
    *(-12_219_292_800_000 + n for n in (0, 1)),  # 1582-10-15, when calendars changed
    *(-2_208_988_800_000 + n for n in (-1, 0)),  # 1900, before which Spark once moved timestamps in Parquet files
    -1,
    0,
    *(253_402_300_800_000 + n for n in (-1, 0)),  # the year 10,000
    9_223_372_036_854_775,
)
"""Timestamps (ms) that different programs have converted differently."""
BEFORE_1582 = (
    -12_219_292_800_001,
    *(-62_135_596_800_000 + n for n in (-1, 0)),  # the year 1
    -14_831_769_600_000,  # 1500-01-01, and a day in February that exists only in the Julian calendar
    -14_826_499_200_000,
    -9_223_372_036_854_775,
)


def test_timestamps_of_any_age_are_the_same_for_both_engines_and_all_readers(lake: LakeMaker) -> None:
    lk = lake(config={"message.timestamp.after.max.ms": str(2**63 - 1), **FOR_EVER})
    own, connector = engines(lk)

    def window(moments: Sequence[int]) -> str:
        for moment in moments:
            produce_batch(lk.bootstrap, lk.topic, made_batch([Made(0, timestamp=moment)]))
        return lk.close_window()

    def read(key: str) -> list[tuple[int, ...]]:
        """Return the table's rows, once as read by delta-rs and once as read by Spark."""
        frame = lk.spark().read.format("delta").load(str(lk.table)).where(f"window = '{key}'").orderBy("kafka_offset")
        by_spark = [row[0] for row in frame.selectExpr("unix_millis(kafka_timestamp)").collect()]
        return [tuple(r.timestamp for r in lk.rows(key)), tuple(by_spark)]

    for one, other in ((own, connector), (connector, own)):
        key = window(AGES)
        assert lk.loader(engine=one).load(key).outcome == "loaded"
        assert lk.loader(engine=other).load(key).outcome == "unchanged"
        assert read(key) == [AGES, AGES]
    # Spark's connector shifts these timestamps, so it has to refuse them and leaves no file.
    key = window(BEFORE_1582)
    with pytest.raises(TimestampShiftedError, match=r"The columnar engine reads them correctly"):
        lk.loader(engine=connector).load(key)
    assert not lk.orphans()
    assert lk.loader(engine=own).load(key).outcome == "loaded"
    assert read(key) == [BEFORE_1582, BEFORE_1582]


def test_a_driver_needs_none_of_what_workers_compile() -> None:
    """A code location imports quickly, and a code location without numba uses the connector engine."""
    program = "import sys; from platform_assets.engines import choice; print({'numba', 'pyspark'} & set(sys.modules))"
    assert (
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "set()\n"
    )


@pytest.mark.long
def test_a_large_window_is_shared_out_and_holds_every_record(lake: LakeMaker) -> None:
    lk = lake(partitions=3, records_per_file=1_000)
    own, connector = engines(lk)
    key = lk.window_of(Record(b"%d" % n, partition=n % 3) for n in range(9_000))
    receipt = lk.loader(engine=own).load(key).receipt
    assert receipt.rows == 9_000
    found = {p: (r.rows, r.first_offset, r.last_offset) for p, r in receipt.partitions.items()}
    assert found == dict.fromkeys(range(3), (3000, 0, 2999))
    assert records(lk.rows()) == records(lk.committed())
    assert lk.loader(engine=connector).load(key).outcome == "unchanged"
    assert job.parallelism(lk.spark()) >= 1


def test_offsets_left_out_are_not_read(lake: LakeMaker) -> None:
    lk = lake()
    lk.send(Record(b"%d" % n) for n in range(20))
    own, connector = engines(lk)
    without = {0: (OffsetRange(0, 3), OffsetRange(7, 8), OffsetRange(19, 20))}
    found = [e.write(whole(lk, without=without), TableRef.raw(lk.topic), e.name, 100) for e in (own, connector)]
    assert found[0].measured == found[1].measured
    assert found[0].measured.rows == 15
    assert [f.rows for f in found[0].files] == [15]
    nothing = own.write(whole(lk, without={0: (OffsetRange(0, 20),)}), TableRef.raw(lk.topic), "none", 100)
    assert (nothing.files, nothing.measured.rows) == ((), 0)


def test_failures_are_the_platforms_own_and_leave_no_file(lake: LakeMaker) -> None:
    lk = lake(config={"message.timestamp.after.max.ms": str(2**63 - 1), **FOR_EVER})
    lk.send([Record(b"first")])
    table, own = TableRef.raw(lk.topic), engines(lk)[0]
    far = whole(lk)
    produce_batch(lk.bootstrap, lk.topic, made_batch([Made(0, timestamp=2**62), Made(1), Made(2, timestamp=2**62 + 1)]))
    with pytest.raises(UnreadableTimestampError) as unreadable:
        own.write(whole(lk), table, "a", 100)
    assert unreadable.value.records == ((0, 1, 2**62), (0, 3, 2**62 + 1))
    with pytest.raises(TopicRecreatedError):
        own.write(whole(lk, topic_id="AAAAAAAAAAAAAAAAAAAAAA"), table, "b", 100)
    folder = lk.root / "raw" / lk.topic
    assert not list(folder.rglob("*.parquet"))
    assert own.write(far, table, "c", 100).measured.rows == 1
    assert len(list(folder.rglob("*.parquet"))) == 1


def test_a_worker_that_is_killed_is_named_by_what_it_read(lake: LakeMaker) -> None:
    """The worker waits for an unresponsive broker, so it is killed in the middle of its work. In each retry, the new
    worker is killed in the same way."""
    lk = lake(partitions=2)
    lk.send([Record(partition=p) for p in (0, 1)])
    with socket.create_server(("127.0.0.1", 0)) as silent, ThreadPoolExecutor(1) as pool:
        silent.settimeout(0.2)
        settings = ClientSettings(f"127.0.0.1:{silent.getsockname()[1]}")
        own = engines(lk, settings)[0]
        loading = pool.submit(own.write, whole(lk), TableRef.raw(lk.topic), "killed", 100)
        while not loading.done():
            with suppress(TimeoutError):
                connection, (_, port) = silent.accept()
                with connection:
                    psutil.Process(owner_of(port)).kill()
        with pytest.raises(WorkerLostError, match=r"partition 0 offsets \[0, 1\), partition 1 offsets \[0, 1\)"):
            loading.result()
    assert engines(lk)[0].write(whole(lk), TableRef.raw(lk.topic), "again", 100).measured.rows == 2


@pytest.mark.long
def test_a_worker_without_memory_is_named_by_what_it_read_and_works_again_with_more(lake: LakeMaker) -> None:
    """After the worker has contacted its first broker, it can allocate only a few more megabytes."""
    lk = lake()
    key = lk.window_of([Record(bytes(100_000), partition=0) for _ in range(200)])
    proxy = Proxy(int(lk.bootstrap.rpartition(":")[2]))
    with proxy.serving(), ThreadPoolExecutor(1) as pool:
        own = engines(lk, client_settings(f"127.0.0.1:{proxy.port}"))[0]
        with proxy.stalled():
            loading = pool.submit(own.write, whole(lk), TableRef.raw(lk.topic), "poor", 1_000)
            wait_until("a worker has connected", lambda: connected_to(proxy.port) is not None, 120)
            worker = psutil.Process(connected_to(proxy.port) or 0)
            before = worker.rlimit(psutil.RLIMIT_AS)
            worker.rlimit(psutil.RLIMIT_AS, (worker.memory_info().vms + (4 << 20), before[1]))
        try:
            with pytest.raises(WorkerLostError, match=r"partition 0 offsets \[0, 200\).*ran out of memory"):
                loading.result(120)
        finally:
            # Spark keeps the worker for the loads of other tests.
            worker.rlimit(psutil.RLIMIT_AS, before)
    assert not lk.orphans()
    assert lk.loader(engine=engines(lk)[0]).load(key).receipt.rows == 200


def connected_to(port: int) -> int | None:
    """Return the id of the Python process whose connection leads to this local port."""
    for process in psutil.process_iter(["name"]):
        if "python" in (process.info["name"] or "") and process.pid != os.getpid():
            for one in _connections(process):
                if one.raddr and one.raddr.port == port and one.status == psutil.CONN_ESTABLISHED:
                    return int(process.pid)
    return None


def owner_of(port: int) -> int:
    """Return the id of the Python process whose connection comes from this local port."""
    for process in psutil.process_iter(["name"]):
        if "python" in (process.info["name"] or ""):
            for one in _connections(process):
                if one.laddr and one.laddr.port == port and one.status == psutil.CONN_ESTABLISHED and one.raddr:
                    return int(process.pid)
    raise AssertionError(f"nobody has port {port}")


def _connections(process: psutil.Process) -> list[Any]:
    with suppress(psutil.Error):  # the process has just ended
        return list(process.net_connections("tcp"))
    return []


def test_where_it_is_not_fit_the_connector_loads_and_the_log_says_why(
    lake: LakeMaker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    lk = lake()
    own, connector = engines(lk)
    key = lk.window_of([Record(b"v")])
    secret = ClientSettings(lk.bootstrap, {**lk.settings.options, "ssl.key.password": "canary"})
    with pytest.raises(UnsupportedError, match=r"lacks .*KAFKA_SSL_KEY_PASSWORD") as unsupported:
        engines(lk, secret)[0].write(whole(lk), TableRef.raw(lk.topic), "a", 100)
    assert "canary" not in str(unsupported.value)
    monkeypatch.setattr(job, "CODE", "another")
    auto = AutoEngine(own, connector)
    assert auto.name == "columnar"
    with caplog.at_level(logging.WARNING):
        assert lk.loader(engine=auto).load(key).outcome == "loaded"
    assert auto.name == "connector"
    assert (
        f"workers have version {worker.CODE} of the platform's code, but this process has version another"
        in caplog.text
    )
    assert records(lk.rows()) == records(lk.committed())
