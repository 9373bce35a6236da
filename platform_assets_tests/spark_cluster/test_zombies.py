"""Tasks that continue after their load has committed: their files belong to no window, and VACUUM deletes these files."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from platform_assets.kafka.settings import ClientSettings
from platform_assets.model.declaration import ENGINES, EngineName
from platform_assets_tests.soak.proxy import Proxy
from platform_assets_tests.support.cluster_loads import RECORDS, SPECULATION, assert_vacuumed, large_window
from testbed.loads import wait_until
from testbed.spark_cluster import ConnectServer, SparkCluster, frozen, resume

if TYPE_CHECKING:
    from platform_assets_tests.spark_cluster.conftest import ClusterLakeMaker

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.cluster]


@pytest.fixture(scope="module")
def server_settings() -> Mapping[str, str]:
    """Enable speculative copies of tasks on a machine that hangs."""
    return SPECULATION


@pytest.mark.parametrize("engine", ENGINES)
def test_a_machine_that_hung_begins_its_task_after_the_commit(
    cluster_lake: ClusterLakeMaker, server: ConnectServer, cluster: SparkCluster, engine: EngineName
) -> None:
    """The task on that machine is frozen while another executor runs a copy. When the machine wakes up, the task may or
    may not start before the machine learns that the task is done."""
    lk = cluster_lake(engine=engine, records_per_file=RECORDS // 2)
    key = large_window(lk)
    seen = server.last_task()
    with frozen(cluster.executors()[0]):
        assert lk.load(key).outcome == "loaded"
    attempts = [task for stage in server.stages_since(seen) for task in stage]
    assert [task for task in attempts if task["speculative"]], attempts
    server.wait_until_idle()
    assert_vacuumed(lk, key)


def test_python_that_outlives_its_executor_writes_after_the_commit(
    cluster_lake: ClusterLakeMaker, server: ConnectServer, cluster: SparkCluster
) -> None:
    """The Python process hangs before it has read anything. Its executor hangs too, and for longer, so nothing ends the
    Python process."""
    lk = cluster_lake(engine="columnar")
    key = large_window(lk)
    proxy = Proxy(int(lk.bootstrap.rpartition(":")[2]))
    direct = lk.settings
    with proxy.serving(), ThreadPoolExecutor(1) as pool:
        lk.settings = ClientSettings(f"127.0.0.1:{proxy.port}")
        with proxy.stalled():
            loading = pool.submit(lk.load, key)
            wait_until("a task has asked for a broker", lambda: _asking(cluster, proxy.port) != [], 600)
            zombie = _asking(cluster, proxy.port)[0]
            zombie.suspend()
            executor = cluster.executor_of(zombie)
            executor.suspend()
        try:
            assert loading.result(900).outcome == "loaded"
            assert lk.orphans() == []
            resume(zombie)
            wait_until("it has written a file, and closed it", lambda: _has_written(zombie, lk.orphans()), 600)
        finally:
            resume(zombie)
            resume(executor)
    lk.settings = direct
    server.wait_until_idle()
    assert [path for path in assert_vacuumed(lk, key) if path.suffix == ".parquet"], "the test has shown nothing"


def _asking(cluster: SparkCluster, port: int) -> list[psutil.Process]:
    """Return the Python processes that have a connection to this local port."""
    return [
        one for one in cluster.pythons() if any(c.raddr and c.raddr.port == port for c in one.net_connections("tcp"))
    ]


def _has_written(zombie: psutil.Process, orphans: list[Path]) -> bool:
    return bool(orphans) and not [file for file in zombie.open_files() if file.path.endswith(".parquet")]
