"""`platform-assets check`, and the same checks at the start of `up` and `status`: YAML, brokers, topics, Spark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from platform_assets.cli.answers import registry_silence
from platform_assets.cli.environment import Environment
from platform_assets.cli.main import main
from platform_assets.services import platform, state
from platform_assets.services.home import Home
from platform_assets.services.process import ProcessRecord
from platform_assets_tests.support.fake_registry import fake_registry
from platform_assets_tests.support.shell import DAGSTER_WARNINGS, Shell

if TYPE_CHECKING:
    from platform_assets_tests.conftest import Broker, TopicMaker

pytestmark = [*map(pytest.mark.filterwarnings, DAGSTER_WARNINGS)]

NOBODY = "127.0.0.1:1"


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    def nothing_starts(*args: object, **kwargs: object) -> None:
        raise AssertionError("something was started")

    monkeypatch.setattr(platform, "up", nothing_starts)
    return Shell(tmp_path / "project")


def test_sound_yaml_and_nothing_running_is_no_mistake(shell: Shell) -> None:
    shell.declare("orders")
    result = shell.run("check")
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines() == [
        "topics declared: orders; no mistakes",
        "kafka: is not running: `platform-assets up` starts it",
        "spark: is not running: `platform-assets up` starts it",
    ]


@pytest.mark.parametrize("command", ["check", "status", "up", "audit", "load"])
def test_a_broken_yaml_is_file_line_and_remedy_in_every_command(shell: Shell, command: str) -> None:
    file = shell.declare("orders", window="61 * * * *")
    arguments = {"audit": ["orders"], "load": ["orders", "2026-01-01-00:00"]}.get(command, [])
    result = shell.run(command, *arguments)
    assert result.exit_code == (2 if command == "audit" else 1)
    said = [line for line in (result.stdout + result.stderr).splitlines() if line.startswith(f"{file}:4: window: ")]
    assert len(said) == 1
    assert "write '0 * * * *' for every hour" in said[0]
    assert len((result.stdout + result.stderr).splitlines()) <= 2
    assert "Traceback" not in result.output


def test_check_prints_the_mistake_alone(shell: Shell) -> None:
    file = shell.declare("orders", window="every minute")
    (line,) = shell.run("check").stdout.splitlines()
    assert line.startswith(f"{file}:4: window: 'every minute'")
    ((mistake),) = json.loads(shell.run("check", "--json").stdout)["mistakes"]
    assert (mistake["file"], mistake["line"]) == (str(file), 4)


@pytest.mark.parametrize("command", ["check", "status", "up"])
def test_a_start_with_too_many_windows_is_refused_before_the_first_cut(shell: Shell, command: str) -> None:
    file = shell.declare("orders", start="2011-01-01T00:00Z", window="*/3 * * * *")
    result = shell.run(command)
    assert result.exit_code == 1
    assert f"{file}:5: start: there are 2," in result.output
    assert "Choose a later start" in result.output


@pytest.mark.parametrize(
    ("variables", "says"),
    [
        ({"KAFKA_BOOTSTRAP_SERVERS": "nohost.invalid:9092"}, "cannot resolve the name 'nohost.invalid'"),
        ({"KAFKA_BOOTSTRAP_SERVERS": NOBODY}, "no service is listening at 127.0.0.1:1"),
        ({"SPARK_REMOTE": f"sc://{NOBODY}/;token=canary-1b"}, "cannot connect to 127.0.0.1:1"),
        ({"SPARK_REMOTE": "http://localhost:1"}, "SPARK_REMOTE must have the form"),
    ],
)
def test_what_is_given_and_does_not_answer_ends_up_and_check(
    shell: Shell, variables: dict[str, str], says: str
) -> None:
    shell.declare("orders")
    for command in ("up", "check"):
        result = shell.run(command, **variables)
        assert result.exit_code == 1, command
        assert says in result.output
        assert "canary" not in result.output


def test_status_of_a_dead_broker_fails_and_says_why_once(shell: Shell) -> None:
    shell.declare("orders")
    shell.declare("returns")
    result = shell.run("status", KAFKA_BOOTSTRAP_SERVERS=NOBODY)
    assert result.exit_code == 1
    assert result.stdout.count("the Kafka brokers do not answer: no service is listening at 127.0.0.1:1") == 1


@pytest.mark.broker
def test_a_missing_topic_is_named_by_check_and_status(shell: Shell, broker: Broker, topic: TopicMaker) -> None:
    there = topic()
    shell.declare(there)
    shell.declare("no-such-topic")
    checked = shell.run("check", "--json", KAFKA_BOOTSTRAP_SERVERS=broker.bootstrap)
    assert checked.exit_code == 1
    answers = {a["what"]: a["state"] for a in json.loads(checked.stdout)["answers"]}
    assert answers == {
        "kafka": "answers", f"topic {there}": "answers", "topic no-such-topic": "missing", "spark": "absent"
    }  # fmt: skip
    status = shell.run("status", KAFKA_BOOTSTRAP_SERVERS=broker.bootstrap)
    assert status.exit_code == 1
    assert (
        "topic 'no-such-topic' does not exist on the broker. Nothing was changed. Create it"
        in status.stdout.replace("\n", " ")
    )
    (shell.root / "defs" / "no-such-topic" / "defs.yaml").unlink()
    assert shell.run("check", KAFKA_BOOTSTRAP_SERVERS=broker.bootstrap).exit_code == 0
    assert shell.run("status", KAFKA_BOOTSTRAP_SERVERS=broker.bootstrap).exit_code == 0


def test_a_registry_that_topics_need_is_checked(shell: Shell) -> None:
    events = '  decode:\n    value: {format: debezium, registry: true, schema: "id BIGINT"}\n'
    for topic in ("orders", "returns"):
        file = shell.declare(topic)
        file.write_text(file.read_text().rstrip() + "\n" + events)

    def answer(code: int, **variables: str | None) -> str:
        result = shell.run("check", **variables)
        assert result.exit_code == code, result.output
        assert "canary" not in result.output
        (line,) = [line for line in result.stdout.splitlines() if line.startswith("schema registry: ")]
        return line

    missing = answer(0, SCHEMA_REGISTRY_URL=None)
    assert "topic orders (and 1 more) cannot be decoded without it: set SCHEMA_REGISTRY_URL" in missing
    assert "contains a user or a password" in answer(1, SCHEMA_REGISTRY_URL="http://u:canary@127.0.0.1:1")
    assert "does not answer: NewConnectionError" in answer(1, SCHEMA_REGISTRY_URL=f"http://{NOBODY}")


def test_a_registry_answers_like_one() -> None:
    with fake_registry() as registry:
        environment = Environment({"SCHEMA_REGISTRY_URL": registry.url})
        assert registry_silence(environment) is None
        registry.unknown = (401, {}, b"")
        assert "HTTP 401: check SCHEMA_REGISTRY_URL, the credentials" in (registry_silence(environment) or "")


STATE = """\
  decode:
    value: {format: json, schema: "id BIGINT, name STRING"}
    key: {format: json, schema: "id BIGINT"}
  state:
    key: [id]
"""


@pytest.mark.broker
def test_a_state_of_a_compacted_topic_is_named_with_its_remedy(shell: Shell, broker: Broker, topic: TopicMaker) -> None:
    compacted = {"cleanup.policy": "compact", "delete.retention.ms": "3600000"}
    both, without, uncompacted = topic(config=compacted), topic(config=compacted), topic()
    for name, text in ((both, STATE), (without, STATE + "    deletes: none\n"), (uncompacted, STATE)):
        file = shell.declare(name)
        file.write_text(file.read_text().rstrip() + "\n" + text)
    checked = shell.run("check", "--json", KAFKA_BOOTSTRAP_SERVERS=broker.bootstrap)
    assert checked.exit_code == 0, checked.output
    causes = {a["what"]: a["cause"] for a in json.loads(checked.stdout)["answers"] if a["what"].startswith("topic ")}
    cause = causes.pop(f"topic {both}")
    assert "Kafka may remove a tombstone 1.0 h after it was written" in cause
    assert f"the deleted key can stay in state/{both}" in cause
    assert "increase the topic's delete.retention.ms" in cause
    assert set(causes.values()) == {None}
    assert (
        f"topic {both}: answers. It is compacted" in shell.run("check", KAFKA_BOOTSTRAP_SERVERS=broker.bootstrap).stdout
    )


@pytest.mark.spark
def test_spark_that_refuses_the_token_is_named(shell: Shell, spark_remote: str) -> None:
    shell.declare("orders")
    assert shell.run("check", SPARK_REMOTE=spark_remote).exit_code == 0
    address = spark_remote.partition(";")[0]
    result = shell.run("check", SPARK_REMOTE=f"{address};token=canary-7d")
    assert result.exit_code == 1
    assert "refuses the token: correct `;token=` in SPARK_REMOTE" in result.output
    assert "canary" not in result.output


# --- variables that `env` prints replace no service ------------------------------------------------------------------


def test_addresses_of_the_home_itself_give_no_service(tmp_path: Path, broker: Broker, platform_home: Home) -> None:
    own = {"PLATFORM_HOME": str(platform_home.root), "KAFKA_BOOTSTRAP_SERVERS": broker.bootstrap}
    assert platform.given(environ=own) == frozenset()
    theirs = {"PLATFORM_HOME": str(tmp_path), "KAFKA_BOOTSTRAP_SERVERS": broker.bootstrap}
    assert platform.given(environ=theirs) == {"kafka"}
    # The running embedded broker is not shown as the one in use.
    other = own | {"KAFKA_BOOTSTRAP_SERVERS": NOBODY}
    states = {s.service: s for s in platform.running_state(environ=other)}
    assert (states["kafka"].status, states["kafka"].address) == ("given", NOBODY)


def test_env_prints_what_a_shell_can_read(shell: Shell) -> None:
    result = shell.run("env", SPARK_REMOTE="sc://localhost:1/;token=a b'c", KAFKA_BOOTSTRAP_SERVERS=NOBODY)
    assert result.exit_code == 0
    assert """export SPARK_REMOTE='sc://localhost:1/;token=a b'"'"'c'""" in result.stdout.splitlines()
    assert f"export PLATFORM_DEFS={shell.variables['PLATFORM_DEFS']}" in result.stdout.splitlines()
    assert all(line.startswith("export ") for line in result.stdout.splitlines())
    assert "SECRETS INCLUDED" in main.commands["env"].get_help(main.make_context("x", ["env"], resilient_parsing=True))
    silent = shell.run("env")
    assert "no broker is running, and KAFKA_BOOTSTRAP_SERVERS is not set" in silent.stderr
    assert "KAFKA" not in silent.stdout


def test_status_names_a_given_spark_that_does_not_answer_and_one_that_died(shell: Shell) -> None:
    shell.declare("orders")
    assert "Spark" not in shell.run("status").output
    given = shell.run("status", SPARK_REMOTE=f"sc://{NOBODY}/;token=canary-31f7")
    assert given.exit_code == 1
    assert f"Spark is not answering, so nothing can be loaded: cannot connect to {NOBODY}" in given.output
    assert "canary" not in given.output
    home = Home.from_environment(shell.variables)
    home.prepare()
    # As after the embedded one was killed: it is on record but has no process.
    record = ProcessRecord(
        "spark", 1, "another start", "mark", str(home.log_file("spark")), "sc://localhost:1", (1,), True
    )
    state.write_record(home, record)
    died = shell.run("status")
    assert died.exit_code == 1
    assert "Spark has stopped, so nothing can be loaded: run `platform-assets up` to restart it" in died.output
