"""Bad input leads to an error with a remedy and a failed run, and changes nothing."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
import traceback
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import dagster as dg
import pytest

from platform_assets.engines.connector import raw
from platform_assets.engines.connector.engine import SparkEngine
from platform_assets.engines.shared.session import connect
from platform_assets.errors import (
    BrokerUnreachableError,
    LakeNotWritableError,
    PlatformError,
    SparkUnreachableError,
    TopicMissingError,
    UnknownWindowError,
    WindowBeforeStartError,
    WindowOpenError,
)
from platform_assets.kafka.cluster import Cluster
from platform_assets.kafka.settings import ClientSettings
from platform_assets.lake.failures import LakeNotReadableError
from platform_assets.lake.location import Lake
from platform_assets.ledger.store import Ledger
from platform_assets.model.offsets import TopicRanges
from platform_assets.orchestration import run_steps
from platform_assets.services.home import CHECKOUT, Home
from platform_assets.windows.load.loading import Loader
from platform_assets_tests.support.runs_of import failure_of, materialize, minutes_ago
from platform_assets_tests.support.variants import long_after
from testbed.homes import service_environment
from testbed.loads import Record, TopicLake

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

    from platform_assets_tests.conftest import Broker, LakeMaker

pytestmark = pytest.mark.broker

NOBODY = "127.0.0.1:1"
CANARY = "canary-7f3a91-password"


@pytest.fixture(scope="module")
def at_rest(
    broker: Broker, connection: Callable[[], SparkSession], tmp_path_factory: pytest.TempPathFactory
) -> TopicLake:
    """Return a topic with one loaded and one unloaded window, which bad input must not change."""
    from confluent_kafka.admin import NewTopic

    name = f"bad-input-{uuid.uuid4().hex[:12]}"
    broker.admin.create_topics([NewTopic(name, num_partitions=1, replication_factor=1)])[name].result(30)
    root = tmp_path_factory.mktemp("bad input") / "lake"
    lk = TopicLake(broker.bootstrap, name, root, connection, start=minutes_ago(10), engine_name="connector")
    lk.load(lk.window_of([Record(b"loaded")]))
    lk.window_of([Record(b"not loaded yet")])
    return lk


@pytest.fixture
def unchanged(at_rest: TopicLake) -> Iterator[TopicLake]:
    """Return the topic of `at_rest`; after the test, check that the topic is unchanged."""
    before = at_rest.snapshot()
    yield at_rest
    assert at_rest.snapshot() == before


def sealed_keys(lk: TopicLake) -> tuple[str, str]:
    """Return the keys of the loaded window and of the unloaded window."""
    loaded, waiting = (w.key for w in lk.ledger.windows(lk.topic))
    return loaded, waiting


def with_broker(loader: Loader, bootstrap: str) -> Loader:
    settings = ClientSettings(bootstrap)
    engine = replace(spark_engine(loader), settings=lambda: settings)
    return replace(loader, engine=engine, cluster=Cluster.connect(settings, timeout=2))


def without_topic(loader: Loader) -> Loader:
    return replace(loader, declaration=replace(loader.declaration, topic="no-such-topic"))


def without_spark(loader: Loader) -> Loader:
    session = partial(connect, f"sc://{NOBODY}/;token={CANARY}")
    return replace(loader, engine=replace(spark_engine(loader), session=session))


def spark_engine(loader: Loader) -> SparkEngine:
    assert isinstance(loader.engine, SparkEngine)
    return loader.engine


Change = Callable[[Loader], Loader]


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        pytest.param(
            lambda loader: with_broker(loader, NOBODY),
            BrokerUnreachableError,
            "no Kafka broker answered.*KAFKA_BOOTSTRAP_SERVERS.*run it again",
            id="broker unreachable",
        ),
        pytest.param(without_topic, TopicMissingError, "'no-such-topic' does not exist.*defs.yaml", id="topic missing"),
        pytest.param(
            without_spark, SparkUnreachableError, "127.0.0.1:1 does not answer.*platform-assets up", id="no Spark"
        ),
    ],
)
def test_a_service_that_does_not_answer_is_named(
    unchanged: TopicLake, change: Change, error: type[PlatformError], says: str
) -> None:
    for key in sealed_keys(unchanged):
        with pytest.raises(error, match=says) as e:
            change(unchanged.loader()).load(key)
        assert CANARY not in str(e.value)


@pytest.mark.parametrize(
    "key",
    ["yesterday", "", "2026-03-01", "2026-03-01 00:00", "2026-03-01-00:00:30", "2026-3-1-0:0", "2026-02-30-00:00"],
)
def test_a_key_that_names_no_window_is_refused(unchanged: TopicLake, key: str) -> None:
    with pytest.raises(UnknownWindowError, match=re.escape(f"{key!r} is not a window")):
        unchanged.load(key)


def test_windows_outside_of_what_has_passed_are_refused(unchanged: TopicLake) -> None:
    with pytest.raises(WindowOpenError, match=r"still open: it closes at .* Load it after that"):
        unchanged.load(f"{unchanged.closed:%Y-%m-%d-%H:%M}")
    with pytest.raises(
        WindowBeforeStartError, match=r"before the topic's first window boundary, .* nothing to load before it"
    ):
        unchanged.load("2020-01-01-00:00")


def test_a_window_before_the_start_is_refused_also_when_nothing_was_ever_sealed(lake: LakeMaker) -> None:
    lk = lake()
    with pytest.raises(WindowBeforeStartError, match="before the topic's first window boundary"):
        lk.load("2020-01-01-00:00")
    assert lk.ledger.cuts(lk.topic) == []


@pytest.mark.parametrize("root", ["a file in the way", "no rights, root or not"])
def test_a_lake_root_that_cannot_be_written_is_named(unchanged: TopicLake, tmp_path: Path, root: str) -> None:
    (tmp_path / "file").write_text("not a folder")
    path = tmp_path / "file" / "lake" if root == "a file in the way" else Path("/proc/lake")
    loader = replace(unchanged.loader(), ledger=Ledger(Lake.at(path)))
    with pytest.raises((LakeNotWritableError, LakeNotReadableError), match=rf"lake cannot be \w+ at {path}.*LAKE_ROOT"):
        loader.load(sealed_keys(unchanged)[0])


def test_a_table_folder_that_cannot_be_written_is_named(lake: LakeMaker) -> None:
    lk = lake()
    key = lk.window_of([Record()])
    (lk.root / "raw").write_text("not a folder")
    with pytest.raises(LakeNotReadableError, match=r"cannot be read at .*/raw/.*: Not a directory"):
        lk.load(key)
    assert lk.ledger.receipts(lk.declaration.raw_table) == {}


# --- through Dagster -------------------------------------------------------------------------------------------


@pytest.fixture
def instance(monkeypatch: pytest.MonkeyPatch) -> Iterator[dg.DagsterInstance]:
    """Return a new Dagster instance that does not wait before it retries a run."""
    monkeypatch.setattr(run_steps, "_RETRY_AFTER_SECONDS", 0)
    with dg.DagsterInstance.ephemeral() as made:
        yield made


def test_a_run_without_a_broker_tries_again_and_then_fails_with_the_reason(
    unchanged: TopicLake, spark_remote: str, instance: dg.DagsterInstance
) -> None:
    key = sealed_keys(unchanged)[1]
    result = materialize(unchanged, spark_remote, [key], instance, bootstrap=NOBODY, timeout_seconds=1)
    assert "no Kafka broker answered" in failure_of(result)
    assert [e.event_type_value for e in result.all_events].count("STEP_UP_FOR_RETRY") == 2


def test_a_run_without_spark_fails_with_the_reason_and_without_the_token(
    unchanged: TopicLake, instance: dg.DagsterInstance
) -> None:
    result = materialize(unchanged, f"sc://{NOBODY}/;token={CANARY}", [sealed_keys(unchanged)[1]], instance)
    assert "Spark Connect server at 127.0.0.1:1 does not answer" in failure_of(result)
    assert not [record for record in instance.all_logs(result.run_id) if CANARY in repr(record)]


def test_a_run_on_a_lake_that_cannot_be_written_fails_at_once(
    unchanged: TopicLake, spark_remote: str, instance: dg.DagsterInstance
) -> None:
    result = materialize(unchanged, spark_remote, [sealed_keys(unchanged)[1]], instance, root=Path("/proc/lake"))
    assert "lake cannot be written at /proc/lake" in failure_of(result)
    assert "STEP_UP_FOR_RETRY" not in [e.event_type_value for e in result.all_events]


@pytest.mark.parametrize("key", long_after(1, ["yesterday", "2020-01-01-00:00", "2999-01-01-00:00"]))
def test_dagster_itself_refuses_a_run_of_no_window(
    unchanged: TopicLake, spark_remote: str, instance: dg.DagsterInstance, key: str
) -> None:
    with pytest.raises(dg.DagsterUnknownPartitionError, match=key):
        materialize(unchanged, spark_remote, [key], instance)


def test_malformed_yaml_is_refused_with_file_and_line(tmp_path: Path) -> None:
    """Run `dagster definitions validate` on a project whose only topic has a mistake."""
    folder = tmp_path / "wrong_project" / "defs" / "orders"
    folder.mkdir(parents=True)
    (tmp_path / "wrong_project" / "__init__.py").touch()
    (tmp_path / "wrong_project" / "definitions.py").write_text(
        "from pathlib import Path\nimport dagster as dg\n\n"
        "@dg.definitions\ndef defs():\n"
        "    return dg.load_from_defs_folder(path_within_project=Path(__file__).parent)\n"
    )
    (tmp_path / "pyproject.toml").write_text(
        '[tool.dg]\ndirectory_type = "project"\n[tool.dg.project]\nroot_module = "wrong_project"\n'
        'registry_modules = ["platform_assets.components"]\n'
    )
    (folder / "defs.yaml").write_text(
        "type: platform_assets.components.TopicTable\nattributes:\n  topic: orders\n"
        "  wimdow: '0 * * * *'\n  start: 2026-01-01T00:00Z\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "dagster", "definitions", "validate", "-m", "wrong_project.definitions"],
        cwd=tmp_path,
        env={
            **service_environment(),
            "DAGSTER_DISABLE_TELEMETRY": "yes",
            "PYTHONPATH": os.pathsep.join([str(tmp_path), str(CHECKOUT)]),
        },
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    output = done.stdout + done.stderr
    assert done.returncode != 0
    assert f"attributes.wimdow at {folder / 'defs.yaml'}:4" in output
    assert "Extra inputs are not permitted" in output


# --- secrets ---------------------------------------------------------------------------------------------------


def secret_settings(lk: TopicLake, monkeypatch: pytest.MonkeyPatch) -> ClientSettings:
    """Put a user and a password into the environment, as an operator would; return the settings read from it."""
    monkeypatch.setenv("KAFKA_SECURITY_PROTOCOL", "SASL_PLAINTEXT")
    monkeypatch.setenv("KAFKA_SASL_MECHANISM", "PLAIN")
    monkeypatch.setenv("KAFKA_SASL_USERNAME", "loader")
    monkeypatch.setenv("KAFKA_SASL_PASSWORD", CANARY)
    return ClientSettings.from_environment(os.environ, lk.bootstrap)


def test_a_password_is_in_nothing_that_a_failing_load_leaves_behind(
    unchanged: TopicLake,
    platform_home: Home,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Spark gets the password and cannot log in, because the broker offers no login."""
    caplog.set_level(logging.DEBUG)
    settings = secret_settings(unchanged, monkeypatch)
    assert CANARY in settings.java()["sasl.jaas.config"]
    loader = unchanged.loader()
    loader = replace(loader, engine=replace(spark_engine(loader), settings=lambda: settings))
    (window,) = (w for w in unchanged.ledger.windows(unchanged.topic) if w.key == sealed_keys(unchanged)[1])
    with pytest.raises(PlatformError) as e:
        loader.load(window.key)
    # A plan is created only if the broker answers: with the same options, but without the login.
    options = settings.java() | {"security.protocol": "PLAINTEXT"}
    ranges = TopicRanges(window.ranges.by_partition)
    raw.kafka_frame(unchanged.spark(), options, unchanged.topic, window.topic_id, window.key, [ranges]).explain(
        extended=True
    )
    captured = capfd.readouterr()
    left_behind = {
        "error": "".join(traceback.format_exception(e.value)),
        "settings": repr(settings) + repr(loader),
        "log": caplog.text,
        "output and plan": captured.out + captured.err,
        "server's log": platform_home.log_file("spark").read_text(errors="replace"),
        "lake": "".join(p.read_text(errors="replace") for p in unchanged.root.rglob("*.json")),
    }
    assert "Relation" in captured.out
    assert [where for where, text in left_behind.items() if CANARY in text] == []


def test_a_password_is_in_nothing_that_a_failing_run_leaves_behind(
    unchanged: TopicLake,
    spark_remote: str,
    instance: dg.DagsterInstance,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    secret_settings(unchanged, monkeypatch)
    result = materialize(unchanged, spark_remote, [sealed_keys(unchanged)[1]], instance, timeout_seconds=1)
    assert "no Kafka broker answered" in failure_of(result)
    captured = capfd.readouterr()
    run = instance.get_run_by_id(result.run_id)
    events = "".join(map(repr, instance.all_logs(result.run_id)))
    for text in (events, repr(run), caplog.text, captured.out, captured.err):
        assert CANARY not in text
