"""Loads, decoding and audits that are spread over executors. Executors and workers are lost in the meantime."""

from __future__ import annotations

import logging
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from platform_assets.engines.decoding.engine import DecodeEngine
from platform_assets.kafka.settings import ClientSettings
from platform_assets.model.declaration import ENGINES, EngineName
from platform_assets.model.decoding import DecodeDeclaration, FormatSpec
from platform_assets.windows.decode.decoding import WindowDecoder
from platform_assets_tests.spark_cluster.conftest import WORKERS_HAVE
from platform_assets_tests.support.cluster_loads import RECORDS, assert_exact, in_the_middle_of_a_load, large_window
from platform_assets_tests.support.shell import DAGSTER_WARNINGS, Shell
from testbed.loads import Record, numbered, records, wait_until
from testbed.spark_cluster import WORKERS, ConnectServer, SparkCluster, resume

if TYPE_CHECKING:
    from platform_assets_tests.spark_cluster.conftest import ClusterLakeMaker

pytestmark = [
    pytest.mark.broker,
    pytest.mark.spark,
    pytest.mark.cluster,
    *map(pytest.mark.filterwarnings, DAGSTER_WARNINGS),
]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_load_is_spread_over_the_executors_and_is_exact(
    cluster_lake: ClusterLakeMaker, server: ConnectServer, engine: EngineName
) -> None:
    lk = cluster_lake(engine=engine)
    key = lk.window_of(numbered(20_000, 2))
    seen = server.last_task()
    loaded = lk.load(key)
    assert (loaded.outcome, loaded.receipt.rows, loaded.receipt.engine) == ("loaded", 20_000, engine)
    (*_, newest) = server.stages_since(seen)
    assert sorted(task["executorId"] for task in newest) == sorted(server.active()), newest
    assert_exact(lk, key)


def test_decoding_and_the_deep_audit_are_spread_too(
    cluster_lake: ClusterLakeMaker, server: ConnectServer, tmp_path: Path
) -> None:
    lk = cluster_lake()
    values = ((b"\xff" if n % 10 == 0 else b"%06d" % n) * 170 for n in range(RECORDS))
    key = lk.window_of(Record(value, partition=n % 2) for n, value in enumerate(values))
    lk.load(key)
    declaration = replace(lk.declaration, decode=DecodeDeclaration(FormatSpec("string"), fail_share=0.2))
    seen = server.last_task()
    decoder = WindowDecoder(declaration, lk.ledger, DecodeEngine(lk.lake, lk.spark))
    assert decoder.decode(key).outcome == "loaded"
    (*_, newest) = server.stages_since(seen)
    assert sorted(task["executorId"] for task in newest) == sorted(server.active()), newest

    shell = Shell.of_lake(tmp_path / "project", lk, server.remote)
    file = shell.root / "defs" / lk.topic / "defs.yaml"
    file.write_text(file.read_text() + "  decode:\n    value: {format: string}\n    dead_letters: {fail: 0.2}\n")
    assert shell.run("report-loads").exit_code == 0
    for table in (lk.topic, f"decoded/{lk.topic}"):
        seen = server.last_task()
        audit = shell.run("audit", table, "--deep")
        assert audit.exit_code == 0, audit.output
        assert {task["executorId"] for stage in server.stages_since(seen) for task in stage} == server.active()


@pytest.mark.parametrize("engine", ENGINES)
def test_an_executor_killed_in_the_middle_of_a_load_costs_nothing_but_time(
    cluster_lake: ClusterLakeMaker, server: ConnectServer, cluster: SparkCluster, engine: EngineName
) -> None:
    lk = cluster_lake(engine=engine)
    key = large_window(lk)
    with in_the_middle_of_a_load(cluster, lk, key) as load:
        before = server.active()
        cluster.executor_of(load.writer).kill()
        resume(load.writer)
        wait_until("Spark has noticed", lambda: not before <= server.active())
    assert load.loading.result().outcome == "loaded"
    assert not load.file.exists()
    server.wait_for_executors(WORKERS)
    assert_exact(lk, key)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_worker_lost_in_the_middle_of_a_load_leaves_the_rest_to_the_other(
    cluster_lake: ClusterLakeMaker, server: ConnectServer, cluster: SparkCluster, engine: EngineName
) -> None:
    lk = cluster_lake(engine=engine)
    key = large_window(lk)
    with ExitStack() as repaired:
        with in_the_middle_of_a_load(cluster, lk, key) as load:
            lost = cluster.kill_worker_of(load.writer)
            repaired.callback(server.wait_for_executors, WORKERS)
            repaired.callback(cluster.start_worker, lost)
            wait_until("Spark has noticed", lambda: len(server.active()) == WORKERS - 1)
        assert load.loading.result().outcome == "loaded"
        assert not load.file.exists()
        assert_exact(lk, key)


def test_settings_come_from_the_workers_environment_and_the_connector_loads_where_they_lack_one(
    cluster_lake: ClusterLakeMaker, caplog: pytest.LogCaptureFixture
) -> None:
    lk = cluster_lake(engine="auto")
    ((name, value),) = WORKERS_HAVE.items()
    option = name.removeprefix("KAFKA_").lower().replace("_", ".")
    lk.settings = ClientSettings(lk.bootstrap, {option: value})
    assert lk.load(lk.window_of(numbered(100, 2))).receipt.engine == "columnar"
    assert caplog.text == ""

    lk.settings = ClientSettings(lk.bootstrap, {option: value, "client.rack": "canary"})
    with caplog.at_level(logging.WARNING):
        assert lk.load(lk.window_of(numbered(100, 2))).receipt.engine == "connector"
    assert "the environment of Spark's workers lacks ['KAFKA_CLIENT_RACK']" in caplog.text
    assert "canary" not in caplog.text
    assert records(lk.rows()) == records(lk.committed())
