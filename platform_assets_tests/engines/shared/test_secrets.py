"""A user's own Spark server that shows as much as possible: Connect's page in the UI, event logs, the REST interface.

The server has none of the platform's redaction settings, only Spark's defaults and one pattern set by its operator.
Loads send Kafka's password to this server.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from platform_assets.engines.choice import choose_engine
from platform_assets.engines.shared import session as sessions
from platform_assets.engines.shared.session import connect
from platform_assets.errors import ConfigurationError
from platform_assets.kafka.cluster import Cluster
from platform_assets.kafka.settings import ClientSettings
from platform_assets.lake.location import Lake
from platform_assets.model.declaration import ENGINES, EngineName
from platform_assets.services import platform, spark_server
from platform_assets.services.broker import BrokerSettings
from platform_assets.services.home import Home
from platform_assets.services.platform import UpOptions
from platform_assets.services.ports import LOOPBACK, choose_ports
from platform_assets.services.spark_server import SparkSettings
from platform_assets_tests.support.spark_ui import fetched, pages
from testbed.homes import home_at, service_environment
from testbed.loads import Record, TopicLake, wait_until

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

pytestmark = [pytest.mark.broker, pytest.mark.spark]

PASSWORD = 'canary-4f1c"behind-7b2e'
"""A password that contains a quote. If a pattern takes the quote for the end of the value, it does not hide the part of
the password after the quote."""
PARTS = PASSWORD.split('"')
KEY_PASSWORD = "canary-of-a-key-91d0"
LOGIN = {
    "KAFKA_SECURITY_PROTOCOL": "SASL_PLAINTEXT",
    "KAFKA_SASL_MECHANISM": "PLAIN",
    "KAFKA_SASL_USERNAME": "loader",
    "KAFKA_SASL_PASSWORD": PASSWORD,
    # Not needed without TLS, but passed to Spark anyway.
    "KAFKA_SSL_KEY_PASSWORD": KEY_PASSWORD,
}
SPARK_DEFAULTS = {
    "spark.sql.redaction.string.regex": "of-the-operator-[0-9]+",
    "spark.redaction.regex": "(?i)secret|password|token|access[.]?key",
    "spark.sql.redaction.options.regex": "(?i)url",
}


@dataclass(frozen=True)
class ShownServer:
    """A Spark server with all its pages and logs, and a broker that requires a password."""

    home: Home
    remote: str
    ui: str
    events: Path
    plain: str
    sasl: str

    def settings(self) -> ClientSettings:
        return ClientSettings.from_environment(LOGIN, self.sasl)

    def shown(self) -> dict[str, str]:
        """Return everything that the server shows, keyed by source: all pages of the UI and of the UI's REST interface,
        the event logs, and the server's own log."""
        found = dict(pages(self.ui))
        found |= {str(p): p.read_text(errors="replace") for p in self.events.rglob("*") if p.is_file()}
        log = self.home.log_file("spark")
        return {**found, str(log): log.read_text(errors="replace")}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShownServer]:
    plain, sasl, controller, ui = choose_ports(4, "KAFKA_PORT", environ={})
    home = home_at(tmp_path_factory.mktemp("shown"))
    home.prepare()
    events = home.root / "events"
    events.mkdir()
    quoted = PASSWORD.replace('"', '\\"')
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    listeners = f"CLIENTS://{LOOPBACK}:{plain},SASL://{LOOPBACK}:{sasl}"
    broker = BrokerSettings(
        properties={
            "listeners": f"{listeners},CONTROLLER://{LOOPBACK}:{controller}",
            "advertised.listeners": listeners,
            "controller.quorum.voters": f"1@{LOOPBACK}:{controller}",
            "listener.security.protocol.map": "CLIENTS:PLAINTEXT,SASL:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
            "listener.name.sasl.sasl.enabled.mechanisms": "PLAIN",
            "listener.name.sasl.plain.sasl.jaas.config": f'{module} required user_loader="{quoted}";',
        }
    )
    spark = SparkSettings(
        heap="1g",
        configuration={
            **SPARK_DEFAULTS,
            "spark.ui.enabled": "true",
            "spark.ui.port": str(ui),
            "spark.eventLog.enabled": "true",
            "spark.eventLog.compress": "false",
            "spark.eventLog.dir": events.as_uri(),
        },
    )
    environment = {**service_environment(), "KAFKA_PORT": str(plain)}
    options = UpOptions(broker=broker, spark=spark)
    try:
        with pytest.MonkeyPatch.context() as patch:
            # Workers of the columnar engine take the credentials from the server's environment.
            for name, value in LOGIN.items():
                patch.setenv(name, value)
            platform.start_service("kafka", home, options, environ=environment)
            record = platform.start_service("spark", home, options, environ=environment)
        remote = spark_server.remote(home, record.address)
        yield ShownServer(home, remote, f"http://{LOOPBACK}:{ui}", events, f"{LOOPBACK}:{plain}", f"{LOOPBACK}:{sasl}")
    finally:
        platform.down(home)


@pytest.fixture(scope="module")
def session(server: ShownServer) -> Iterator[SparkSession]:
    made = connect(server.remote)
    yield made
    made.stop()


@pytest.fixture
def lk(server: ShownServer, session: SparkSession, tmp_path: Path) -> TopicLake:
    from confluent_kafka.admin import AdminClient, NewTopic

    topic = f"shown-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": server.plain})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(30)
    return TopicLake(server.plain, topic, tmp_path / "lake", lambda: session)


def check_nothing_is_shown(server: ShownServer, statements: int) -> dict[str, str]:
    """Wait until the server lists `statements` statements that have ended, and return the server's pages. Fail if a
    page contains a secret."""
    wait_until(
        "Connect's page has the statements",
        lambda: (fetched(f"{server.ui}/connect/") or "").count("CLOSED") >= statements,
    )
    shown = server.shown()
    kept = "".join(text for where, text in shown.items() if where.startswith(str(server.events)))
    assert kept.count("SparkListenerConnectOperationStarted") >= statements
    secrets = (*PARTS, KEY_PASSWORD)
    assert {where: secret for where, text in shown.items() for secret in secrets if secret in text} == {}
    return shown


@pytest.mark.parametrize("engine", ENGINES)
def test_loads_show_no_password(server: ShownServer, session: SparkSession, lk: TopicLake, engine: EngineName) -> None:
    key = lk.window_of([Record(b"one"), Record(b"two")])
    settings = server.settings()
    loader = replace(
        lk.loader(),
        cluster=Cluster.connect(settings),
        engine=choose_engine(Lake.at(lk.root), lambda: settings, lambda: session, engine),
    )
    assert loader.load(key).receipt.rows == 2
    check_nothing_is_shown(server, 1)


@pytest.mark.long
def test_a_statement_that_shows_the_options_of_its_reader_shows_no_password(
    server: ShownServer, session: SparkSession, lk: TopicLake
) -> None:
    """Spark omits deeply nested parts of a statement. The reader of a load is nested that deeply. In a shorter
    statement, Spark shows the reader."""
    lk.send([Record(b"one"), Record(b"two")])
    options = server.settings().java()
    assert KEY_PASSWORD in options.values()
    reader = session.read.format("kafka").options(**{f"kafka.{name}": value for name, value in options.items()})
    frame = reader.option("subscribe", lk.topic).load()
    assert [bytes(row["value"]) for row in frame.select("value").collect()] == [b"one", b"two"]
    session.sql("select 'of-the-operator-4711'").collect()
    shown = check_nothing_is_shown(server, 2)
    # Values that match the operator's pattern stay hidden; Spark itself hides them only in statements.
    assert not [
        w for w, text in shown.items() if w.startswith(f"{server.ui}/connect/") and "of-the-operator-4711" in text
    ]
    for place in (f"{server.ui}/connect/", f"{server.ui}/SQL/", str(server.events)):
        texts = "".join(text for where, text in shown.items() if where.startswith(place))
        assert "kafka.security.protocol" in texts
        assert "(redacted)" in texts


class Settings:
    """Session settings on a server that forbids some of them, as a locked-down server does."""

    def __init__(self, given: dict[str, str], forbidden: str = "") -> None:
        self.given, self.forbidden = given, forbidden

    @property
    def conf(self) -> Settings:
        return self

    def get(self, name: str, default: str | None) -> str | None:
        return self.given.get(name, default)

    def set(self, name: str, value: str) -> None:
        from pyspark.errors import AnalysisException

        if name == self.forbidden:
            raise AnalysisException(f"[CANNOT_MODIFY_CONFIG] {name}")
        self.given[name] = value


@pytest.mark.parametrize("name", sessions.REDACTED)
def test_a_server_that_forbids_a_pattern_is_refused_with_the_setting_that_it_needs(name: str) -> None:
    made: Any = Settings({}, name)
    with pytest.raises(ConfigurationError, match=re.escape(f"Start the server with {name}={sessions.REDACTED[name]}")):
        sessions._redact(made)
    # A server started like this is accepted, whatever else it hides.
    started: Any = Settings({name: f"mine|{sessions.REDACTED[name]}"}, name)
    sessions._redact(started)


def test_a_server_that_shows_passwords_among_its_own_settings_is_named(caplog: pytest.LogCaptureFixture) -> None:
    for shows, pattern in ((False, "(?i)password"), (True, "nothing"), (False, "(?<=[Java's own)")):
        caplog.clear()
        settings: Any = Settings({"spark.redaction.regex": pattern})
        sessions._redact(settings)
        assert bool(caplog.records) is shows
        assert not shows or "start it with spark.redaction.regex=(?i)secret|password" in caplog.text
