"""Spark runs a second copy of a slow task: there are never two sets of rows, and no file of the slower copy remains.

A slow task is one whose executor or Python process is frozen while it writes. If the window has only one task, the copy
runs on an executor that has no data of the window yet.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Literal

import pytest

from platform_assets.model.declaration import EngineName
from platform_assets_tests.support.cluster_loads import (
    RECORDS,
    SPECULATION,
    assert_exact,
    in_the_middle_of_a_load,
    large_window,
)
from testbed.spark_cluster import WORKERS, ConnectServer, SparkCluster, frozen

if TYPE_CHECKING:
    from platform_assets_tests.spark_cluster.conftest import ClusterLakeMaker

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.cluster]


@pytest.fixture(scope="module")
def server_settings() -> Mapping[str, str]:
    """Enable speculative copies of slow tasks."""
    return SPECULATION


@pytest.mark.parametrize(
    ("engine", "what", "tasks"),
    [
        ("columnar", "python", 2),
        ("columnar", "executor", 2),
        ("connector", "executor", 2),
        ("columnar", "executor", 1),
        ("connector", "executor", 1),
    ],
)
def test_of_two_copies_of_a_task_one_is_committed(
    cluster_lake: ClusterLakeMaker,
    server: ConnectServer,
    cluster: SparkCluster,
    engine: EngineName,
    what: Literal["python", "executor"],
    tasks: int,
) -> None:
    lk = cluster_lake(engine=engine, records_per_file=RECORDS // tasks)
    key = large_window(lk)
    seen = server.last_task()
    with ExitStack() as until_it_is_loaded:
        with in_the_middle_of_a_load(cluster, lk, key) as load:
            if what == "executor":
                until_it_is_loaded.enter_context(frozen(cluster.executor_of(load.writer)))
        assert load.loading.result().outcome == "loaded"
        (*_, attempts) = server.stages_since(seen)
        assert not load.file.exists()
    assert [a for a in attempts if a["speculative"]], attempts
    assert Counter(a["index"] for a in attempts if a["status"] == "SUCCESS") == dict.fromkeys(range(tasks), 1), attempts
    server.wait_for_executors(WORKERS)
    assert_exact(lk, key)
