"""Loads on a deliberately slow cluster, so that tests can act in the middle of a load."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from platform_assets.lake.location import Folder
from platform_assets.lake.vacuum import vacuum
from platform_assets.windows.load.replacing import Loaded
from platform_assets_tests.support.quotas import fetch_quota
from testbed.loads import Record, TopicLake, records, wait_until
from testbed.spark_cluster import SparkCluster, frozen

RECORDS: Final = 40_000
"""Number of records in a large window. Each record has 1,020 bytes."""
SLOW: Final = 512 << 10
"""Bytes per second that a task gets from Kafka. After its first fetch, which is larger, the task must wait for several
seconds."""

SPECULATION: Final[Mapping[str, str]] = {
    "spark.speculation": "true",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.interval": "100ms",
    "spark.speculation.task.duration.threshold": "2s",
    # A copy fetches its task's code from an executor that has it, even from a frozen one, and waits that long for it.
    "spark.network.timeout": "30s",
    "spark.network.timeoutInterval": "5s",
    "spark.executor.heartbeatInterval": "5s",
}
"""Server settings that make Spark start a copy of a task as soon as the other of two tasks is done, or if the only task
takes a long time."""


@dataclass(frozen=True)
class UnderWay:
    """A load in progress. Its executor process `writer` was frozen while it wrote `file`, which is therefore
    incomplete."""

    loading: Future[Loaded]
    writer: psutil.Process
    file: Path


def large_window(lk: TopicLake) -> str:
    """Make a window of two partitions. Tasks fetch the window in several requests, and start to write before they have
    fetched everything."""
    return lk.window_of(Record(b"%06d" % n * 170, partition=n % 2) for n in range(RECORDS))


@contextmanager
def in_the_middle_of_a_load(cluster: SparkCluster, lk: TopicLake, key: str) -> Iterator[UnderWay]:
    """Run a load, and freeze one of its writers within the block. Kafka is slow, so tasks write slowly. The load ends
    before the context manager returns."""
    with ExitStack() as until_it_is_loaded, ThreadPoolExecutor(1) as pool:
        found: list[tuple[psutil.Process, Path]] = []

        def is_found() -> bool:
            for one in cluster.writers(lk.table):
                held = ExitStack()
                held.enter_context(frozen(one))
                # The file may have been closed just before the process was frozen.
                if (file := cluster.writers(lk.table).get(one)) is not None:
                    until_it_is_loaded.push(held)
                    found.append((one, file))
                    return True
                held.close()
            return loading.done()

        with fetch_quota(lk.bootstrap, None, SLOW):
            loading = pool.submit(lk.load, key)
            wait_until("a task writes", is_found, 120)
            assert found, loading.result()
        yield UnderWay(loading, *found[0])


def assert_exact(lk: TopicLake, key: str) -> None:
    """Check that the table contains each record once, that its folder contains no unlisted file, and that a second load
    finds nothing to do."""
    assert records(lk.rows()) == records(lk.committed())
    assert lk.orphans() == []
    version = lk.version()
    assert lk.load(key).outcome == "unchanged"
    assert (lk.version(), lk.orphans()) == (version, [])


def assert_vacuumed(lk: TopicLake, key: str) -> list[Path]:
    """Check that VACUUM removes all files in the table's folder that the current version does not list. Return those
    files."""
    assert records(lk.rows()) == records(lk.committed())
    left = _unnamed(lk)
    for path in left:
        os.utime(path, (0, 0))
    deleted = vacuum(lk.declaration.raw_table, Folder.at(lk.table)).files
    assert {lk.table / path for path in deleted} == set(left)
    assert _unnamed(lk) == []
    assert_exact(lk, key)
    return left


def _unnamed(lk: TopicLake) -> list[Path]:
    """Return the data files that no version refers to, and the checksum files that Spark writes next to them."""
    sums = [path for path in lk.table.rglob(".*.crc") if not path.with_name(path.name[1:-4]).exists()]
    return sorted({*lk.orphans(), *(path for path in sums if "_delta_log" not in path.parts)})
