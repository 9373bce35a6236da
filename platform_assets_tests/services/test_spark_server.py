"""The Spark Connect server: it is warmed up, private, and configured for loads."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import psutil
import pytest

from platform_assets.engines.shared import session
from platform_assets.services import connect_probe, platform, spark_server, state
from platform_assets.services.home import Home
from platform_assets.services.process import ProcessRecord, family
from platform_assets.services.spark_server import CONFIGURATION
from platform_assets_tests.support.listening import answers_to_a_stranger, listening
from testbed.homes import service_environment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.connect.session import SparkSession as ConnectSession

pytestmark = pytest.mark.spark


@pytest.fixture
def server(platform_home: Home, spark_remote: str) -> ProcessRecord:
    """Return the process record of the test session's server."""
    return state.read_records(platform_home)["spark"]


@pytest.fixture
def token(spark_remote: str) -> str:
    """Return the token of the test session's server."""
    return spark_remote.partition("token=")[2]


def files_below(root: Path) -> Iterator[tuple[Path, bytes]]:
    """Return all regular files of a home with their contents, but for files of which nothing is on disk: Kafka reserves
    megabytes for each of its indexes. Services may delete files during the call."""
    for folder, _, names in os.walk(root):
        for path in (Path(folder, name) for name in names):
            with suppress(FileNotFoundError):
                if path.is_file() and not path.is_symlink() and not _reserved(path.stat()):
                    yield path, path.read_bytes()


def _reserved(found: os.stat_result) -> bool:
    return found.st_blocks == 0 and found.st_size >= 1 << 20


def test_token_lets_in_and_nothing_else_does(server: ProcessRecord, token: str) -> None:
    (port,) = server.ports
    assert connect_probe.accepts("127.0.0.1", port, token)
    assert connect_probe.status("127.0.0.1", port, token[:-1]) == "UNAUTHENTICATED"
    assert connect_probe.status("127.0.0.1", port, "") == "UNAUTHENTICATED"


def test_wrong_token_is_refused_without_a_word_of_the_right_one(server: ProcessRecord, token: str) -> None:
    from pyspark.errors.exceptions.connect import SparkConnectException
    from pyspark.sql import SparkSession

    # Creating a session contacts no server; the first request is the one that is refused.
    spark = SparkSession.builder.remote(f"{server.address}/;token=wrong").create()
    try:
        with pytest.raises(SparkConnectException, match=r"(?i)unauthenticated|token") as caught:
            spark.range(1).collect()
    finally:
        end(spark)
    assert token not in str(caught.value)


def end(spark: ConnectSession) -> None:
    """Release a Spark session that its server refuses. If the session stayed, pyspark would return it to the next
    caller."""
    spark.release_session_on_close = False
    session.end(spark)


def test_connecting_gives_no_session_of_another_address_or_token(spark_remote: str, token: str) -> None:
    """pyspark returns the process's first Spark session, whatever address is requested."""
    from pyspark.sql import SparkSession

    stranger = SparkSession.builder.remote(spark_remote.replace(token, "wrong")).create()
    try:
        ours = session.connect(spark_remote)
        assert ours is not stranger
        assert ours.client.token == token
        assert ours.range(3).count() == 3
        assert SparkSession.getActiveSession() is ours
        assert session.connect(spark_remote) is ours
    finally:
        end(stranger)
    assert session.connect(spark_remote).range(3).count() == 3


@pytest.mark.parametrize("ended", [True, False])
def test_a_session_that_is_collected_takes_no_other_with_it(spark_remote: str, ended: bool) -> None:
    """pyspark closes a session's client when the client's memory is freed, which can happen in any thread. If the
    session has already ended, this closes the client a second time."""
    from pyspark.sql import SparkSession
    from pyspark.sql.connect.client.reattach import ExecutePlanResponseReattachableIterator as Execution

    gone, other = (SparkSession.builder.remote(spark_remote).create() for _ in range(2))
    session.set_up_client(gone)
    if ended:
        session.end(gone)
        assert gone.client.is_closed
    try:
        assert other.range(3).count() == 3
        pool = Execution._get_or_create_release_thread_pool()
        pool.submit(gone.__del__).result()
        assert Execution._get_or_create_release_thread_pool() is pool
        assert other.range(3).count() == 3
    finally:
        session.end(other)
        session.end(gone)


def test_token_is_in_no_argument_list(server: ProcessRecord, token: str) -> None:
    members = family(server)
    assert server.pid in {process.pid for process in members}
    for process in members:
        assert token not in "\n".join(process.cmdline())


def test_token_is_in_no_log_and_no_file_but_its_own(
    platform_home: Home, spark: SparkSession, server: ProcessRecord, token: str
) -> None:
    spark.range(10).collect()
    holding = [path for path, content in files_below(platform_home.root) if token.encode() in content]
    assert holding == [platform_home.token_file]
    assert stat.S_IMODE(platform_home.token_file.stat().st_mode) == 0o600


def test_run_state_shows_the_address_without_the_token(platform_home: Home, token: str) -> None:
    shown = repr(platform.running_state(platform_home, environ={})) + repr(state.read_records(platform_home))
    assert token not in shown
    assert "sc://localhost:" in shown


def test_environment_gives_a_client_all_it_needs(platform_home: Home, spark_remote: str) -> None:
    found = platform.environment(platform_home, environ={})
    assert found["SPARK_REMOTE"] == spark_remote
    assert found["LAKE_ROOT"] == str(platform_home.root / "lake")
    given = platform.environment(platform_home, environ={"SPARK_REMOTE": "sc://cluster:15002"})
    assert given["SPARK_REMOTE"] == "sc://cluster:15002"


def test_every_listening_port_is_on_loopback(server: ProcessRecord) -> None:
    assert {address for address, _ in listening(server)} == {"127.0.0.1"}


@pytest.mark.alone
def test_the_ports_of_tasks_deserialise_nothing_of_a_stranger(spark: SparkSession, server: ProcessRecord) -> None:
    assert spark.range(10).count() == 10
    own = {connection.laddr.port for connection in psutil.Process(server.pid).net_connections("tcp")}
    ports = {port for _, port in listening(server) if port in own} - {*server.ports}
    answers = {port: answers_to_a_stranger(port) for port in ports}
    # The driver's RPC and its block manager each refuse the first call and close the connection.
    assert len(answers) == 2
    for answer in answers.values():
        assert len(answer) == 1, answer
        assert b"Unknown challenge message" in answer[0]


def test_the_secret_of_tasks_is_made_inside_of_the_server(platform_home: Home, server: ProcessRecord) -> None:
    arguments = (platform_home.run / "spark.arguments").read_text()
    for setting in (
        "authenticate=true",
        "network.crypto.cipher=AES/GCM/NoPadding",
        "network.crypto.saslFallback=false",
    ):
        assert f'"-Dspark.{setting}"' in arguments
    assert "spark.authenticate.secret" not in arguments
    assert "_SPARK_AUTH_SECRET" not in psutil.Process(server.pid).environ()


def test_a_new_session_has_the_settings_that_loads_rely_on(spark: SparkSession) -> None:
    for name, value in CONFIGURATION.items():
        if name.startswith(("spark.sql.session", "spark.databricks.delta", "spark.sql.shuffle", "spark.sql.sources")):
            assert spark.conf.get(name) == value, name


def test_secrets_of_kafka_clients_are_redacted_from_plans(spark: SparkSession) -> None:
    options = {
        "assign": "shown",
        "kafka.sasl.jaas.config": "hunter1",
        "kafka.ssl.keystore.key": "hunter2",
        "kafka.ssl.key.password": "hunter3",
        "kafka.basic.auth.user.info": "hunter4",
    }
    listed = ", ".join(f"'{name}' '{value}'" for name, value in options.items())
    plan = spark.sql(f"explain extended create temporary view never using kafka options ({listed})").collect()[0][0]
    assert "assign -> shown" in plan
    assert "kafka.sasl.jaas.config ->" in plan
    assert "hunter" not in plan


@pytest.mark.parametrize("name", ["kafka.sasl.jaas.config", "kafka.ssl.keystore.key", "kafka.ssl.key.password"])
def test_names_of_kafka_secrets_match_each_redaction_pattern(name: str) -> None:
    for pattern in ("spark.redaction.regex", "spark.sql.redaction.options.regex"):
        assert re.search(CONFIGURATION[pattern], name)
    statement = f'options {{\n  key: "{name}"\n  value: "a \\"canary\\" b"\n}}\nkey: "assign"\nvalue: "c"'
    shown = re.sub(CONFIGURATION["spark.sql.redaction.string.regex"], "***", statement)
    assert shown == 'options {\n  ***\n}\nkey: "assign"\nvalue: "c"'


def test_the_server_and_sessions_redact_the_same() -> None:
    assert {name: CONFIGURATION[name] for name in session.REDACTED} == session.REDACTED


def test_a_commit_without_rows_is_recorded(spark: SparkSession, platform_home: Home) -> None:
    path = str(platform_home.root / "lake" / "a table" / "empty")
    empty = spark.range(0).selectExpr("id", "'w' as window")
    empty.write.format("delta").partitionBy("window").save(path)
    for _ in range(2):
        empty.write.format("delta").mode("overwrite").option("replaceWhere", "window = 'w'").save(path)
    history = spark.sql(f"describe history delta.`{path}`").collect()
    assert [row["version"] for row in history] == [2, 1, 0]


def test_nothing_is_written_beside_the_home(spark: SparkSession, platform_home: Home) -> None:
    spark.sql("create or replace temporary view seen as select 1 as one")
    assert spark.table("seen").collect()[0]["one"] == 1
    warehouse = spark.conf.get("spark.sql.warehouse.dir")
    assert warehouse is not None
    assert urlsplit(warehouse).path == str(platform_home.spark / "warehouse")
    assert " " in platform_home.root.name
    assert list(platform_home.root.parent.glob("*%20*")) == []


def test_second_start_finds_the_first(platform_home: Home, server: ProcessRecord) -> None:
    again = platform.start_service("spark", platform_home, report=lambda _: None, environ=service_environment())
    assert again == server


def test_token_stays_over_restarts(platform_home: Home, token: str) -> None:
    assert spark_server.ensure_token(platform_home) == token


def test_replaced_jars_come_before_those_of_pyspark(spark: SparkSession) -> None:
    found = (
        "SELECT java_method('java.lang.ClassLoader', 'getSystemResource', 'net/jpountz/lz4/LZ4Factory.class') AS place"
    )
    assert "/spark/lz4-java-1.10.1.jar!" in spark.sql(found).collect()[0]["place"]
