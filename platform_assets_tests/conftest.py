"""Real services for the tests: each JVM is started at most once a session, on free ports, and is ended by its pid."""

from __future__ import annotations

import gc
import os
import random
import signal
import uuid
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from platform_assets.engines.shared.session import SharedSession, end
from platform_assets.lake.location import Lake
from platform_assets.model.declaration import DEFAULT_ENGINE, EngineName
from platform_assets.services import brokers, platform, spark_server, state
from platform_assets.services.broker import BrokerSettings
from platform_assets.services.home import Home
from platform_assets.services.platform import UpOptions
from platform_assets.services.spark_server import SparkSettings
from platform_assets_tests.support import browser as browsers
from platform_assets_tests.support import in_process, lake_switch, parts, schedule, turns, variants
from platform_assets_tests.support.lake_switch import session_store as session_store
from platform_assets_tests.support.lake_switch import tmp_path as tmp_path
from platform_assets_tests.support.shell import Shell, ShellOf
from testbed import layouts
from testbed.browser import launched
from testbed.clients import librdkafka
from testbed.homes import home_at, service_environment
from testbed.layouts import Layout
from testbed.loads import START, TopicLake, wait_until

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient
    from playwright.sync_api import Browser, BrowserContext
    from pyspark.sql import SparkSession
    from pyspark.sql.connect.session import SparkSession as ConnectSession

    from testbed.object_store import ObjectStore

SEED_VARIABLE = "PLATFORM_TEST_SEED"
SEED = int(os.environ.setdefault(SEED_VARIABLE, str(random.SystemRandom().randrange(2**32))))
"""Seed that is also stored in the environment, so that all processes of a test run use the same one."""

TopicMaker = Callable[..., str]
LakeMaker = Callable[..., TopicLake]


def pytest_configure(config: pytest.Config) -> None:
    """Let programs that tests start receive signals again that the shell made pytest ignore, as it does for background
    jobs.

    Refuse a session whose parts are not available.
    """
    try:
        parts.line()
        parts.together(getattr(config.option, "numprocesses", None) or 0)
    except ValueError as e:
        raise pytest.UsageError(str(e)) from e
    if not hasattr(config, "workerinput"):
        durations = os.environ.pop(schedule.VARIABLE, None)
        config.pluginmanager.register(schedule.Durations(Path(durations) if durations else None))
        if repeatable := os.environ.pop(schedule.REPEATABLE_VARIABLE, None):
            config.pluginmanager.register(schedule.Repeatable(Path(repeatable)))
    # The services of tests live for minutes: the optimizing compiler would cost them more than it saves. Without it, Java
    # reserves only 48 MB for compiled code, which Spark fills within two minutes: after that, Java compiles nothing.
    os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m")
    if parts.LAYOUT.chosen() == "partitioned":
        session = ExitStack()
        session.enter_context(layouts.new_tables_are("partitioned"))
        config.add_cleanup(session.close)
    for number in (signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_IGN:
            # Unlike SIG_IGN, a handler is not inherited.
            signal.signal(number, lambda number, frame: None)


def pytest_report_header() -> list[str]:
    """Return the seed, with which a failure can be repeated, and the services in use."""
    return [f"seed: {SEED} (set {SEED_VARIABLE} to repeat it)", parts.line()]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Assign each file to one process, the longest files first, and mark portable tests. One process runs the tests that
    disturb the services.

    All tests of a topic with a fixed name must be in one file.
    """
    group_of: dict[pytest.Item, str] = {}
    for item in items:
        file = item.path.relative_to(item.config.rootpath).as_posix()
        group_of[item] = schedule.DISTURBING if _shares(item) and item.get_closest_marker("alone") else file
        item.add_marker(pytest.mark.xdist_group(group_of[item]))
        item.user_properties.append((schedule.USES_SERVICES, _shares(item)))
        if _shares(item) and item.path.relative_to(Path(__file__).parent) in parts.PORTABLE:
            item.add_marker(pytest.mark.portable)
    if items and hasattr(items[0].config, "workerinput"):
        order = schedule.order(((group, _shares(item)) for item, group in group_of.items()), schedule.recorded())
        place = {group: number for number, group in enumerate(order)}
        items.sort(key=lambda item: place[group_of[item]])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Wait until no other process disturbs the services that `item` needs, or uses services that `item` disturbs."""
    if not _shares(item):
        return (yield)
    with turns.turn(_common_folder(item.config), alone=item.get_closest_marker("alone") is not None):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Do not look for garbage during the collection: its objects stay, and looking would take a quarter of its time.

    Later, the modules and tests of the session, which live as long as it does, are left out. The process that only
    distributes tests collects none, so it looks for garbage as usual.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def _shares(item: pytest.Item) -> bool:
    return "platform_home" in getattr(item, "fixturenames", ())


def _common_folder(config: pytest.Config) -> Path | None:
    """Return the folder that contains the folders of all test processes; None if there is only one process."""
    return Path(config.option.basetemp).parent if hasattr(config, "workerinput") else None


@pytest.fixture(scope="session", autouse=True)
def unsynced_databases() -> Iterator[None]:
    """Do not make this process's SQLite databases, which Dagster uses, wait for the disk.

    A run in the test process would wait some hundred times. Without waiting, writes still survive a killed process;
    only a power failure could lose them.
    """
    from sqlalchemy import event
    from sqlalchemy.pool import Pool

    def unsynced(connection: Any, _: object) -> None:
        if type(connection).__module__.startswith("sqlite3"):
            connection.execute("PRAGMA synchronous=OFF")

    event.listen(Pool, "connect", unsynced)
    yield
    event.remove(Pool, "connect", unsynced)


@pytest.fixture(scope="session", autouse=True)
def kept_migrations() -> Iterator[None]:
    """Read Dagster's database migrations once for each process, not for each database that a test or run creates.

    An instance and each of its runs have new databases, which Dagster stamps with the newest migration. For that,
    Alembic executes all of Dagster's migration files. The files do not change while tests run.
    """
    from alembic.script import ScriptDirectory

    read = ScriptDirectory.from_config
    kept: dict[str | None, ScriptDirectory] = {}

    def from_config(cls: type[ScriptDirectory], config: Any) -> ScriptDirectory:
        place = config.get_main_option("script_location")
        if place not in kept:
            kept[place] = read(config)
        return kept[place]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(ScriptDirectory, "from_config", classmethod(from_config))
        yield


class Broker:
    """The session's broker or brokers. A test that stops them starts them again; the address does not change."""

    def __init__(self, home: Home, settings: BrokerSettings) -> None:
        self._home, self._options = home, UpOptions(services=("kafka",), broker=settings)
        self._environ = service_environment()
        self._admin: AdminClient | None = None
        self.bootstrap = ""
        self.start()

    def start(self) -> None:
        """Start the broker with its existing data; return when it answers."""
        platform.up(self._home, self._options, report=lambda _: None, environ=self._environ)
        self.bootstrap = brokers.remembered_addresses(self._home)

    @property
    def pid(self) -> int:
        """Return the current process id, because another test process may have restarted the broker."""
        return state.read_records(self._home)["kafka"].pid

    def stop(self) -> None:
        """Stop the broker cleanly; its data stays. Raises RuntimeError if the test is not marked `alone`."""
        turns.require_alone("stopping the broker")
        platform.down(self._home, services=brokers.ALL)

    def client_environment(self) -> dict[str, str]:
        """Return the environment variables that the broker's clients need in addition to its address."""
        found = brokers.security_of(self._home)
        return {} if found is None else found.client_environment()

    def segment(self, topic: str, partition: int) -> Path:
        """Return the first segment of a partition, on the broker that leads the partition."""
        from confluent_kafka import TopicCollection

        described = self.admin.describe_topics(TopicCollection([topic]))[topic].result(30)
        (leader,) = (int(p.leader.id) for p in described.partitions if p.id == partition)
        return self._home.root / brokers.ALL[leader - 1] / f"{topic}-{partition}" / f"{0:020}.log"

    @property
    def admin(self) -> AdminClient:
        """An admin client, kept alive: its pending requests fail when it is garbage-collected."""
        from confluent_kafka.admin import AdminClient

        if self._admin is None:
            self._admin = AdminClient({**librdkafka(self.bootstrap), "log_level": 2})
        return self._admin


@pytest.fixture(scope="session")
def platform_home(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, session_store: ObjectStore | None
) -> Iterator[Home]:
    """Return the session's data folder; its services end when the last process that uses them is done."""
    folder = _common_folder(request.config) or tmp_path_factory.getbasetemp()
    home = lake_switch.in_store(home_at(folder / "platform home"), session_store)
    with turns.until_the_last_leaves(folder, lambda: platform.down(home)):
        home.prepare()
        yield home


@pytest.fixture(scope="session")
def broker(platform_home: Home) -> Iterator[Broker]:
    """Return a real broker, or three of them. It looks for expired and compactable records every second, so that tests
    soon see both. A quota limits the last two seconds, so that a few megabytes use it up.

    The environment has the variables that clients of these brokers need, and none for other brokers.
    """
    properties = {
        "log.retention.check.interval.ms": "1000",
        "log.cleaner.backoff.ms": "1000",
        "log.segment.delete.delay.ms": "100",
        "log.initial.task.delay.ms": "500",
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
        "quota.window.num": "3",
    }
    kind = parts.BROKERS.chosen()
    settings = BrokerSettings(
        heap=None if kind == "plain" else "384m",
        properties=properties,
        brokers=1 if kind == "plain" else 3,
        secure="password" if kind == "secure3" else "certificate" if kind == "mutual3" else None,
    )
    made = Broker(platform_home, settings)
    with pytest.MonkeyPatch.context() as patched:
        for name in [name for name in os.environ if name.startswith(platform.CLIENT_SETTINGS)]:
            patched.delenv(name)
        for name, value in made.client_environment().items():
            patched.setenv(name, value)
        yield made


class Registry:
    """The session's schema registry. A test that stops it starts it again; its address and schemas do not change."""

    def __init__(self, home: Home) -> None:
        self._home, self._environ = home, service_environment()
        self.url = ""
        self.start()

    def start(self) -> None:
        """Start the registry with its existing data; return when it answers."""
        self.url = platform.start_service("registry", self._home, environ=self._environ).address

    def stop(self) -> None:
        """Stop the registry cleanly; its data stays. Raises RuntimeError if the test is not marked `alone`."""
        turns.require_alone("stopping the schema registry")
        platform.down(self._home, services=("registry",))


@pytest.fixture(scope="session")
def registry(platform_home: Home) -> Registry:
    """Return a real schema registry, started only if a test needs it."""
    return Registry(platform_home)


@pytest.fixture
def topic(broker: Broker) -> TopicMaker:
    """Make topics with unique names: `topic(partitions=4, config={"cleanup.policy": "compact"}, stem="x")`."""

    def make(*, partitions: int = 1, config: Mapping[str, str] | None = None, stem: str = "test") -> str:
        from confluent_kafka.admin import NewTopic

        name = f"{stem}-{uuid.uuid4().hex[:12]}"
        created = broker.admin.create_topics(
            [NewTopic(name, num_partitions=partitions, replication_factor=-1, config=dict(config or {}))]
        )
        created[name].result(30)
        # The controller answers before the broker knows the topic and leads its partitions.
        wait_until(f"topic {name} is led", lambda: _is_led(broker, name, partitions))
        return name

    return make


def _is_led(broker: Broker, topic: str, partitions: int) -> bool:
    from confluent_kafka import KafkaException, TopicPartition
    from confluent_kafka.admin import AdminClient, OffsetSpec

    # A new client each time: a client that received "no leader" remembers it for a minute.
    admin = AdminClient({**librdkafka(broker.bootstrap), "log_level": 2})
    asked = {TopicPartition(topic, p): OffsetSpec.latest() for p in range(partitions)}
    try:
        return all(f.result(30).offset == 0 for f in admin.list_offsets(asked, request_timeout=10).values())
    except KafkaException:
        return False


@pytest.fixture(scope="session")
def one_session(platform_home: Home) -> Iterator[Callable[[SharedSession, int], str]]:
    """Let the runs in this process share one Spark session, with warm workers, although each test has a lake of its own.
    Return the function that gives each lake a session of its own."""
    apart = SharedSession.session_id
    common = Lake.at(platform_home.root / f"lakes of {os.getpid()}")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(
            SharedSession, "session_id", lambda self, generation: apart(replace(self, lake=common), generation)
        )
        yield apart


@pytest.fixture(autouse=True)
def without_spark(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the tasks of jobs in this process, unless the test or the session is for Spark. Tests without the session's
    services replace what they need themselves."""
    if _shares(request.node) and parts.does_without_spark(mark.name for mark in request.node.iter_markers()):
        in_process.replace_spark(monkeypatch)


@pytest.fixture(scope="session")
def spark_remote(
    request: pytest.FixtureRequest,
    one_session: object,
    platform_home: Home,
    tmp_path_factory: pytest.TempPathFactory,
    session_store: ObjectStore | None,
) -> Iterator[str]:
    """Return the address of a real Spark Connect server, including the token. The server runs tasks itself or on a
    cluster."""
    if parts.BROKERS.chosen() != "plain":
        # Its workers take the settings of Kafka clients from its environment.
        request.getfixturevalue("broker")
    if parts.SPARK.chosen() == "cluster":
        # This imports numba, which few sessions need in this process.
        from testbed.spark_cluster import spark_cluster

        with (
            spark_cluster(tmp_path_factory.mktemp("spark cluster")) as cluster,
            cluster.server(tmp_path_factory.mktemp("connect")) as server,
        ):
            yield server.remote
        return
    settings = SparkSettings(heap="2g", configuration=lake_switch.SPARK if session_store is not None else {})
    record = platform.start_service("spark", platform_home, UpOptions(spark=settings), environ=service_environment())
    yield spark_server.remote(platform_home, record.address)


@pytest.fixture(scope="session")
def spark(spark_remote: str) -> Iterator[SparkSession]:
    """Return a Connect session for the tests."""
    from pyspark.sql import SparkSession

    session: Any = SparkSession.builder.remote(spark_remote).create()
    try:
        yield session
    finally:
        end(session)


@pytest.fixture(scope="session")
def connection(spark_remote: str) -> Callable[[], ConnectSession]:
    """Return the session that a run of the platform would create; return a new session after a test has stopped the
    previous one."""
    from platform_assets.engines.shared.session import connect

    sessions: list[ConnectSession] = []

    def session() -> ConnectSession:
        if not sessions or sessions[-1].is_stopped:
            sessions.append(connect(spark_remote))
        return sessions[-1]

    return session


@pytest.fixture
def flat() -> Iterator[None]:
    """Create flat tables, whatever layout the session chose, for tests of features that only flat tables have."""
    with layouts.new_tables_are("flat"):
        yield


@pytest.fixture
def partitioned() -> Iterator[None]:
    """Create tables that are partitioned by window, as earlier releases did."""
    with layouts.new_tables_are("partitioned"):
        yield


@pytest.fixture(params=variants.long_after(1, variants.LAYOUTS))
def layout(request: pytest.FixtureRequest) -> Iterator[Layout]:
    """Run a test once for each layout; return the layout. `make test` runs only tests marked `both_layouts` twice."""
    with layouts.new_tables_are(request.param):
        yield request.param


@pytest.fixture
def engine_name() -> EngineName:
    """Return the load engine of a test: the default, unless the test's module overrides it."""
    return DEFAULT_ENGINE


@pytest.fixture
def lake(
    broker: Broker,
    topic: TopicMaker,
    connection: Callable[[], ConnectSession],
    tmp_path: Path,
    engine_name: EngineName,
) -> LakeMaker:
    """Make topics with separate lakes: `lake(partitions=2, config={...}, records_per_file=1_000)`."""

    def make(
        *,
        partitions: int = 1,
        config: Mapping[str, str] | None = None,
        records_per_file: int = 200_000,
        start: datetime = START,
    ) -> TopicLake:
        name = topic(partitions=partitions, config=config)
        return TopicLake(
            broker.bootstrap,
            name,
            tmp_path / "lake",
            connection,
            records_per_file,
            start=start,
            engine_name=engine_name,
        )

    return make


@pytest.fixture
def shell_of(tmp_path: Path, spark_remote: str) -> ShellOf:
    """Make the shell of a topic's lake: `shell_of(lake())`."""
    return lambda lk: Shell.of_lake(tmp_path / "project", lk, spark_remote)


@pytest.fixture(scope="session")
def chromium() -> str:
    """Return the path of the browser; skip the test if there is none. Expensive fixtures of browser tests request this
    fixture first."""
    return browsers.executable()


@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[Browser]:
    """Return a headless Chromium.

    It keeps an event loop in this thread. List fixtures that run Dagster jobs before this one.
    """
    with launched(chromium) as found:
        yield found


@pytest.fixture(scope="module")
def pages(browser: Browser) -> Iterator[BrowserContext]:
    """Return a browser profile for pages of Dagster's UI. Its cache spares all pages of a module but the first the
    loading of the UI's program."""
    made = browser.new_context(viewport={"width": 1440, "height": 1000})
    made.set_default_timeout(120_000)
    yield made
    made.close()


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> random.Random:
    """Return random numbers that depend only on the session's seed and the test's name."""
    return random.Random(f"{SEED}:{request.node.nodeid}")
