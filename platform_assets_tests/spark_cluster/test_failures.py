"""The error of a load whose tasks fail on each attempt: it names the window, its partitions and offsets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from platform_assets.engines.decoding.engine import DecodeEngine
from platform_assets.errors import DamagedBatchError, WorkerLostError
from platform_assets.model.declaration import ENGINES, EngineName
from platform_assets.model.decoding import DecodeDeclaration, FormatSpec
from platform_assets.windows.decode.decoding import WindowDecoder
from platform_assets_tests.support.cluster_loads import SLOW, assert_exact, large_window
from platform_assets_tests.support.quotas import fetch_quota
from testbed.loads import Record, records, wait_until
from testbed.spark_cluster import ConnectServer, SparkCluster

if TYPE_CHECKING:
    from platform_assets_tests.conftest import Broker
    from platform_assets_tests.spark_cluster.conftest import ClusterLakeMaker

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.cluster, pytest.mark.timeout(1800)]

TRIES = 2
"""Attempts for a task before Spark gives up. Spark's default of four takes twice as long and shows nothing more."""


@pytest.fixture(scope="module")
def server_settings() -> Mapping[str, str]:
    """Allow only a few attempts."""
    return {"spark.task.maxFailures": str(TRIES)}


def kill_until_it_ends(work: Future[Any], found: Callable[[], Iterable[psutil.Process]]) -> int:
    """Kill the processes that `found` returns, repeatedly, until the work has ended; return the number of killed
    processes."""
    killed = 0

    def has_ended() -> bool:
        nonlocal killed
        for one in found():
            with suppress(psutil.Error):  # the process has just ended
                one.kill()
                killed += 1
        return work.done()

    wait_until("Spark has given up", has_ended, 1200)
    return killed


@pytest.mark.parametrize(
    ("engine", "reading"),
    [
        ("columnar", r"partition [01] offsets \[0, 20000\) of"),
        ("connector", r"partition 0 offsets \[0, 20000\), partition 1 offsets \[0, 20000\) of"),
    ],
)
def test_a_window_whose_workers_die_each_time_is_named_by_what_they_read(
    cluster_lake: ClusterLakeMaker, server: ConnectServer, cluster: SparkCluster, engine: EngineName, reading: str
) -> None:
    lk = cluster_lake(engine=engine)
    key = large_window(lk)
    with ThreadPoolExecutor(1) as pool:
        with fetch_quota(lk.bootstrap, None, SLOW):
            loading = pool.submit(lk.load, key)
            assert kill_until_it_ends(loading, lambda: cluster.writers(lk.table)) >= TRIES
        with pytest.raises(WorkerLostError, match=reading) as lost:
            loading.result()
    assert (lost.value.topic, lost.value.window) == (lk.topic, key)
    assert lk.version() == 0
    server.wait_until_idle()
    assert lk.load(key).outcome == "loaded"
    assert_exact(lk, key)


def test_a_window_whose_decoders_die_each_time_is_named_by_its_offsets(
    cluster_lake: ClusterLakeMaker, server: ConnectServer, cluster: SparkCluster
) -> None:
    lk = cluster_lake()
    key = large_window(lk)
    lk.load(key)
    lk.declare(DecodeDeclaration(FormatSpec("string")))
    decoder = WindowDecoder(lk.declaration, lk.ledger, DecodeEngine(lk.lake, lk.spark))
    with ThreadPoolExecutor(1) as pool:
        decoding = pool.submit(decoder.decode, key)
        assert kill_until_it_ends(decoding, cluster.pythons) >= TRIES
        with pytest.raises(WorkerLostError, match=r"partition 0 offsets \[0, 20000\), partition 1 .*\[0, 20000\) of"):
            decoding.result()
    server.wait_until_idle()
    assert decoder.decode(key).outcome == "loaded"


@pytest.mark.parametrize("engine", ENGINES)
def test_a_damaged_batch_is_named_by_partition_and_offset(
    cluster_lake: ClusterLakeMaker, broker: Broker, engine: EngineName
) -> None:
    """One byte of the batch is changed on the broker's disk."""
    lk = cluster_lake(engine=engine)
    lk.send([Record(b"good" * 20, partition=p) for p in (0, 1)])
    lk.send([Record(b"bad" * 20, partition=1)])
    lk.send([Record(b"behind" * 20, partition=1)])
    key = lk.close_window()
    segment = broker.segment(lk.topic, 1)
    whole = segment.read_bytes()
    _put(segment, whole.replace(b"bad" * 20, b"Bad" + b"bad" * 19))
    with pytest.raises(DamagedBatchError) as damaged:
        lk.load(key)
    assert (damaged.value.topic, damaged.value.partition, damaged.value.offset) == (lk.topic, 1, 1)
    assert lk.orphans() == []
    _put(segment, whole)
    assert lk.load(key).outcome == "loaded"
    assert records(lk.rows()) == records(lk.committed())


def _put(segment: Path, content: bytes) -> None:
    """Write into the existing file instead of replacing it, because the broker has it open."""
    with segment.open("r+b") as file:
        file.write(content)
