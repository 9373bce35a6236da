"""Three brokers with TLS, and with a login or client certificates: all clients connect, also while a leader stops, and
no secret leaks."""

from __future__ import annotations

import json
import logging
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from platform_assets.engines.choice import choose_engine
from platform_assets.engines.shared.session import connect
from platform_assets.errors import BrokerRefusedError, Retryable
from platform_assets.kafka.diagnosis import likely_cause
from platform_assets.kafka.evidence.gathering import gather_evidence
from platform_assets.kafka.settings import ClientSettings
from platform_assets.model.declaration import ENGINES, EngineName
from platform_assets.model.offsets import OffsetRange, TopicRanges
from platform_assets.services import brokers, platform, spark_server
from platform_assets.services.broker import BrokerSettings
from platform_assets.services.platform import UpOptions
from platform_assets.services.ports import LOOPBACK, choose_ports
from platform_assets.services.process import ProcessRecord, family
from platform_assets.services.security import USER, Secure
from platform_assets.services.spark_server import SparkSettings
from platform_assets_tests.support.damage import data_files
from platform_assets_tests.support.quotas import fetch_quota
from platform_assets_tests.support.spark_ui import fetched, pages
from platform_assets_tests.support.trio import Trio
from testbed.homes import home_at, service_environment
from testbed.loads import Record, TopicLake, numbered, records, wait_until

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

pytestmark = [pytest.mark.cluster, pytest.mark.broker, pytest.mark.spark]

RECORDS = 60_000
QUOTA = 1_000_000


@dataclass(frozen=True)
class Secured:
    """Three secured brokers and a Spark server, each started with one command, as a user would."""

    trio: Trio
    session: SparkSession
    spark: ProcessRecord
    ui: str

    def lake(self, root: Path, engine: EngineName, partitions: int = 1) -> TopicLake:
        topic = f"secured-{engine}-{uuid.uuid4().hex[:6]}"
        self.trio.create(topic, [[2, 3, 1]] * partitions)
        return TopicLake(self.trio.bootstrap, topic, root / "lake", lambda: self.session, 2_500, engine_name=engine)


@pytest.fixture(scope="module")
def secured(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, spark_remote: str
) -> Iterator[Secured]:
    """Run such brokers with their login or certificate in this process's environment. The session's Spark server was
    started earlier, without these settings."""
    kind: Secure = getattr(request, "param", "password")
    home = home_at(tmp_path_factory.mktemp("secured"))
    (ui,) = choose_ports(1, "KAFKA_PORT", environ={})
    events = home.root / "events"
    shown = {
        "spark.ui.enabled": "true",
        "spark.ui.port": str(ui),
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": events.as_uri(),
    }
    options = UpOptions(
        services=("kafka", "spark"),
        broker=BrokerSettings(heap="384m", brokers=3, secure=kind),
        spark=SparkSettings(heap="1g", configuration=shown),
    )
    environ = {n: v for n, v in service_environment().items() if not n.startswith(platform.CLIENT_SETTINGS)}
    events.mkdir(parents=True)
    try:
        platform.up(home, options, report=lambda _: None, environ=environ)
        made = brokers.security_of(home)
        assert made is not None
        with pytest.MonkeyPatch.context() as patched:
            for name, value in made.client_environment().items():
                patched.setenv(name, value)
            record = platform.start_service("spark", home, options, report=lambda _: None, environ=environ)
            session = connect(spark_server.remote(home, record.address))
            yield Secured(Trio(home), session, record, f"http://{LOOPBACK}:{ui}")
            session.stop()
    finally:
        platform.down(home, report=lambda _: None)


def files(*folders: Path) -> dict[str, str]:
    """Return the contents of all files below the folders, as text."""
    found = (path for folder in folders for path in folder.rglob("*"))
    return {str(path): path.read_bytes().decode(errors="replace") for path in found if path.is_file()}


def assert_every_client_comes_in(lk: TopicLake) -> None:
    """Check that librdkafka produces and looks up offsets, that an engine's client reads in Spark's workers, and that
    the evidence reader reads in this process."""
    loaded = lk.load(lk.window_of(numbered(200)))
    assert (loaded.outcome, loaded.receipt.rows, loaded.receipt.engine) == ("loaded", 200, lk.engine_name)
    assert records(lk.rows()) == records(lk.committed())
    assert read(lk, lk.settings) == 200


def read(lk: TopicLake, settings: ClientSettings) -> int:
    """Read the records of the whole topic with the evidence reader."""
    ends = TopicRanges({p: OffsetRange(0, end) for p, end in lk.high_watermarks().items()})
    topic_id = lk.cluster.topic(lk.topic).topic_id
    found = gather_evidence(settings, lk.topic, topic_id, ends, compacted=False, deadline=time.monotonic() + 120)
    assert found.complete
    return found.records


def test_every_client_comes_in_and_no_password_is_left_anywhere(
    secured: Secured, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    home = secured.trio.home
    for engine in ENGINES:
        assert_every_client_comes_in(secured.lake(tmp_path / engine, engine))
    wait_until("the statements are shown", lambda: (fetched(f"{secured.ui}/connect/") or "").count("CLOSED") >= 1, 120)
    made = home.root / "security"
    passwords = json.loads((made / "security.json").read_text())["passwords"]
    keys = [file.read_text().splitlines()[1] for file in made.iterdir() if "PRIVATE KEY" in file.read_text()]
    shown = dict(pages(secured.ui))
    assert any("/SQL/" in where for where in shown)
    private = (str(made), str(home.run))
    shown |= {where: text for where, text in files(home.root, tmp_path).items() if not where.startswith(private)}
    assert any("/events/" in where for where in shown)
    processes = [
        psutil.Process(),
        *family(secured.spark),
        *(psutil.Process(secured.trio.record(n).pid) for n in (1, 2, 3)),
    ]
    shown |= {f"arguments of {process.pid}": " ".join(process.cmdline()) for process in processes}
    shown["this process's log"] = caplog.text
    assert len(keys) >= 4
    assert [where for where, text in shown.items() for s in (*keys, *passwords.values()) if s in text] == []


@pytest.mark.parametrize("engine", ENGINES)
def test_a_load_over_tls_outlives_the_leader_that_it_reads_from(
    secured: Secured, tmp_path: Path, engine: EngineName
) -> None:
    trio = secured.trio
    lk = secured.lake(tmp_path, engine, 2)
    wait_until("all are in sync", lambda: all(trio.in_sync(lk.topic, p) == {1, 2, 3} for p in (0, 1)), 120)
    key = lk.window_of(Record(b"%d" % i * (100 // len(b"%d" % i)), b"%d" % i, i % 2) for i in range(RECORDS))
    try:
        with ThreadPoolExecutor(1) as pool:
            with fetch_quota(trio.record(1).address, None, QUOTA):
                load = pool.submit(lk.load, key)
                wait_until("files of the load appear", lambda: bool(data_files(lk, key)) or load.done(), 300)
                trio.kill(2)
                assert not load.done(), "the load ended before the kill: make the window larger"
            after = replace(lk)
            try:
                loaded = load.result(500)
            except Retryable:
                loaded = after.load(key)
        assert (loaded.outcome, loaded.receipt.rows) == ("loaded", RECORDS)
        assert {trio.leader(lk.topic, p) for p in (0, 1)} <= {1, 3}
        assert records(after.rows()) == records(after.committed())
    finally:
        trio.up()


def test_where_workers_lack_the_login_the_connector_loads_and_log_and_receipt_say_so(
    secured: Secured,
    connection: Callable[[], SparkSession],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The session's shared Spark server was started without the client settings for these brokers."""
    lk = replace(secured.lake(tmp_path, "auto"), spark=connection)
    key = lk.window_of(numbered(50))
    with caplog.at_level(logging.WARNING):
        loaded = lk.load(key)
    assert (loaded.outcome, loaded.receipt.rows, loaded.receipt.engine) == ("loaded", 50, "connector")
    assert "KAFKA_SASL_PASSWORD" in caplog.text
    assert lk.settings.options["sasl.password"] not in caplog.text
    # With these settings in Spark's workers, it loads by itself, and finds the same rows.
    engine = choose_engine(lk.lake, lambda: lk.settings, lambda: secured.session, "columnar")
    assert lk.loader(engine=engine).load(key).outcome == "unchanged"


def test_a_wrong_password_is_refused_by_name_and_the_right_one_heals_it(secured: Secured, tmp_path: Path) -> None:
    lk = secured.lake(tmp_path, "columnar")
    lk.send(numbered(5))
    wrong = ClientSettings(lk.bootstrap, {**lk.settings.options, "sasl.password": "canary-of-mine"})
    with pytest.raises(
        BrokerRefusedError, match=r"logging in to 127\.0\.0\.1:\d+ by SASL \(SCRAM-SHA-512\)"
    ) as refused:
        read(lk, wrong)
    said = str(refused.value) + likely_cause(wrong)
    assert "KAFKA_* client settings" in said
    assert "check KAFKA_SASL_*" in said
    assert "canary-of-mine" not in said
    assert lk.settings.options["sasl.username"] == USER
    assert read(lk, lk.settings) == 5


@pytest.mark.parametrize("secured", ["certificate"], indirect=True)
def test_clients_come_in_by_their_certificates_and_are_refused_without_one(secured: Secured, tmp_path: Path) -> None:
    for engine in ENGINES:
        lk = secured.lake(tmp_path / engine, engine)
        assert lk.settings.options["security.protocol"] == "SSL"
        assert_every_client_comes_in(lk)
    (ca,) = (value for name, value in lk.settings.options.items() if name == "ssl.ca.location")
    nobody = ClientSettings(lk.bootstrap, {"security.protocol": "SSL", "ssl.ca.location": ca})
    with pytest.raises(BrokerRefusedError, match=r"while setting up TLS with 127\.0\.0\.1:\d+"):
        read(lk, nobody)
    assert "KAFKA_SSL_CERTIFICATE_LOCATION" in likely_cause(nobody)
    assert read(lk, lk.settings) == 200
