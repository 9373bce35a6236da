"""An object store, and a Spark server that uses it. Each is started at most once a session, when a test needs it."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from platform_assets.engines.shared.session import connect, end
from platform_assets.lake import object_files
from platform_assets.model.declaration import DEFAULT_ENGINE, EngineName
from platform_assets.services import platform, spark_server
from platform_assets.services.home import Home
from platform_assets.services.platform import UpOptions
from platform_assets.services.ports import LOOPBACK, choose_ports
from platform_assets.services.process import ProcessRecord
from platform_assets.services.spark_server import SparkSettings
from platform_assets_tests.support.store_lake import StoreLake
from testbed.homes import home_at, service_environment
from testbed.object_store import ObjectStore, object_store

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

    from platform_assets_tests.conftest import Broker, TopicMaker

SECRET = "canary-of-the-store-4711"
StoreLakeMaker = Callable[..., StoreLake]


@pytest.fixture(scope="session")
def running_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    """Return the session's object store."""
    root = tmp_path_factory.mktemp("object-store")
    with object_store(home_at(root / "home"), root, SECRET) as store:
        yield store


@pytest.fixture
def store(running_store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> ObjectStore:
    """Return the session's object store; set up this process's environment for clients of the store."""
    for name, value in running_store.environment().items():
        monkeypatch.setenv(name, value)
    object_files._bucket.cache_clear()
    return running_store


@dataclass(frozen=True)
class StoreSpark:
    """A Spark Connect server whose lake is in the store. Everything that it can display is enabled: its UI, and event
    logs in `events`."""

    home: Home
    process: ProcessRecord
    remote: str
    ui: str
    events: Path


@pytest.fixture(scope="session")
def store_spark(running_store: ObjectStore, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreSpark]:
    """Return the session's Spark server."""
    home = replace(home_at(tmp_path_factory.mktemp("store-home")), lake=running_store.root("any"))
    home.prepare()
    with pytest.MonkeyPatch.context() as patched:
        for name, value in running_store.environment().items():
            patched.setenv(name, value)
        (ui,) = choose_ports(1, "SPARK_UI_PORT", environ={})
        events = home.root / "events"
        events.mkdir()
        shown = {
            "spark.ui.enabled": "true",
            "spark.ui.port": str(ui),
            "spark.eventLog.enabled": "true",
            "spark.eventLog.compress": "false",
            "spark.eventLog.dir": events.as_uri(),
        }
        options = UpOptions(spark=SparkSettings(heap="2g", configuration=shown))
        record = platform.start_service("spark", home, options, environ=service_environment())
    try:
        remote = spark_server.remote(home, record.address)
        yield StoreSpark(home, record, remote, f"http://{LOOPBACK}:{ui}", events)
    finally:
        platform.down(home)


@pytest.fixture(scope="session")
def store_remote(store_spark: StoreSpark) -> str:
    """Return the address of the Spark server, including the token."""
    return store_spark.remote


@pytest.fixture(scope="session")
def store_connection(store_remote: str) -> Iterator[Callable[[], SparkSession]]:
    """Return the session with the Spark server that a run of the platform would create."""
    session = connect(store_remote)
    yield lambda: session
    end(session)


@pytest.fixture
def engine_name() -> EngineName:
    """Return the load engine that the tests use."""
    return DEFAULT_ENGINE


@pytest.fixture
def store_lake(
    store: ObjectStore,
    broker: Broker,
    topic: TopicMaker,
    store_connection: Callable[[], SparkSession],
    engine_name: EngineName,
) -> StoreLakeMaker:
    """Make topics with separate lakes in the store: `store_lake(partitions=2)`."""

    def make(*, partitions: int = 1, records_per_file: int = 200_000, engine: EngineName = engine_name) -> StoreLake:
        name = f"lake-{uuid.uuid4().hex[:12]}"
        return StoreLake(
            broker.bootstrap,
            topic(partitions=partitions),
            store.bucket / name,
            store_connection,
            records_per_file,
            engine_name=engine,
            address=store.root(name),
        )

    return make
