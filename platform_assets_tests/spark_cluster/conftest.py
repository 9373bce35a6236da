"""A Spark cluster, started at most once a session, and one Connect server for each test module."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from platform_assets.engines.shared.session import connect, end
from platform_assets.model.declaration import DEFAULT_ENGINE, EngineName
from testbed.loads import TopicLake
from testbed.spark_cluster import ConnectServer, SparkCluster, spark_cluster

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

    from platform_assets_tests.conftest import Broker, TopicMaker

ClusterLakeMaker = Callable[..., TopicLake]

WORKERS_HAVE: Mapping[str, str] = {"KAFKA_CLIENT_ID": "cluster"}
"""Kafka client settings in the environment of the workers' machines."""


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    """Return the session's cluster. A test that ends a worker must restart it."""
    with spark_cluster(tmp_path_factory.mktemp("spark cluster"), WORKERS_HAVE) as running:
        yield running


@pytest.fixture(scope="module")
def server_settings() -> Mapping[str, str]:
    """Return this module's additional settings for its Connect server."""
    return {}


@pytest.fixture(scope="module")
def server(
    cluster: SparkCluster, server_settings: Mapping[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ConnectServer]:
    """Return the module's Connect server."""
    with cluster.server(tmp_path_factory.mktemp("connect"), server_settings) as running:
        yield running


@pytest.fixture(scope="module")
def cluster_session(server: ConnectServer) -> Iterator[Callable[[], SparkSession]]:
    """Return the session with the module's Connect server that a run of the platform would create."""
    session = connect(server.remote)
    yield lambda: session
    end(session)


@pytest.fixture
def cluster_lake(
    broker: Broker, topic: TopicMaker, cluster_session: Callable[[], SparkSession], tmp_path: Path
) -> ClusterLakeMaker:
    """Make a topic whose lake is loaded by the cluster: `cluster_lake(engine="connector")`."""

    def make(*, partitions: int = 2, records_per_file: int = 1_000, engine: EngineName = DEFAULT_ENGINE) -> TopicLake:
        return TopicLake(
            broker.bootstrap,
            topic(partitions=partitions),
            tmp_path / "lake",
            cluster_session,
            records_per_file,
            engine_name=engine,
        )

    return make
