"""Starting and stopping the platform, also without some of its services."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from platform_assets.services import platform, state
from platform_assets.services.errors import ConfigurationError, PortTakenError
from platform_assets.services.home import Home
from platform_assets.services.platform import UpOptions
from platform_assets.services.ports import LOOPBACK
from platform_assets_tests.support import services
from platform_assets_tests.support.listening import listening
from testbed.homes import home_at, service_environment

DAGSTER = ("dagster-webserver", "dagster-daemon")


def quiet(message: str) -> None:
    """Discard the reported text."""


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    """Return an empty home. Afterwards, end everything that runs in that home."""
    made = home_at(tmp_path / "a home")
    try:
        yield made
    finally:
        platform.down(made, report=quiet)


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """Return a minimal workspace with one asset."""
    folder = tmp_path / "a workspace"
    folder.mkdir()
    (folder / "one.py").write_text(
        "import dagster as dg\n\n@dg.asset\ndef one() -> None: ...\n\ndefs = dg.Definitions([one])\n"
    )
    path = folder / "workspace.yaml"
    path.write_text("load_from:\n  - python_file: one.py\n")
    return path


def ask(address: str, query: str) -> dict[str, object]:
    """Query the API of the UI."""
    request = urllib.request.Request(
        f"{address}/graphql", json.dumps({"query": query}).encode(), {"Content-Type": "application/json"}
    )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=60) as answer:
        found: dict[str, object] = json.load(answer)["data"]
        return found


def test_dagster_comes_up_with_its_code_and_goes_down_with_its_children(home: Home, workspace: Path) -> None:
    environ = {**service_environment(), "KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:1", "SPARK_REMOTE": "sc://localhost:1"}
    said: list[str] = []
    states = {
        each.service: each
        for each in platform.up(home, UpOptions(workspace=workspace), report=said.append, environ=environ)
    }
    assert states["kafka"].status == states["spark"].status == "given"
    assert "kafka: not started, because KAFKA_BOOTSTRAP_SERVERS is set" in said
    assert states["dagster-daemon"].status == "running"
    address = states["dagster-webserver"].address
    assert address is not None
    assert address.startswith("http://127.0.0.1:")
    for name in DAGSTER:
        record = state.read_records(home)[name]
        assert listening(record) == {(LOOPBACK, port) for port in record.ports}
    found = ask(address, "{assetsOrError {... on AssetConnection {nodes {key {path}}}} instance {info}}")
    assert '"one"' in json.dumps(found)
    assert (home.dagster / "dagster.yaml").is_file()

    # Calling it again starts nothing, and edits are visible at once.
    before = {name: state.read_records(home)[name].pid for name in DAGSTER}
    code = workspace.parent / "one.py"
    code.write_text(code.read_text().replace("def one()", "def two()").replace("[one]", "[two]"))
    said.clear()
    platform.up(home, UpOptions(workspace=workspace), report=said.append, environ=environ)
    assert {name: state.read_records(home)[name].pid for name in DAGSTER} == before
    assert "dagster-webserver: reloaded the definitions" in said
    assert "dagster-daemon: reloads edited definitions by itself within a minute" in said
    found = ask(address, "{assetsOrError {... on AssetConnection {nodes {key {path}}}}}")
    assert '"two"' in json.dumps(found)
    assert '"one"' not in json.dumps(found)

    # Code that cannot be loaded is reported, and nothing is stopped.
    code.write_text("raise ValueError('line 7 of defs.yaml')\n")
    with pytest.raises(
        ConfigurationError, match=r"(?s)cannot be loaded: .*line 7 of defs\.yaml.*run the command again"
    ):
        platform.up(home, UpOptions(workspace=workspace), report=quiet, environ=environ)
    assert {name: state.read_records(home)[name].pid for name in DAGSTER} == before

    # With another broker address, both are restarted.
    environ["KAFKA_BOOTSTRAP_SERVERS"] = "127.0.0.1:2"
    platform.up(home, UpOptions(workspace=workspace), report=said.append, environ=environ)
    records = state.read_records(home)
    assert not {records[name].pid for name in DAGSTER} & set(before.values())
    # The message names what changed and is not alarming.
    (why,) = (line for line in said if line.startswith("dagster-daemon: ") and "ending" in line)
    assert why.startswith("dagster-daemon: KAFKA_BOOTSTRAP_SERVERS changed; ending it (pid ")
    told = Path(f"/proc/{records['dagster-daemon'].pid}/environ")
    assert not told.exists() or b"KAFKA_BOOTSTRAP_SERVERS=127.0.0.1:2" in told.read_bytes().split(b"\0")
    assert all(len(services.marked(records[name])) >= 2 for name in DAGSTER)
    assert platform.down(home, report=quiet) == 2
    assert [pid for record in records.values() for pid in services.marked(record)] == []
    assert state.read_records(home) == {}


def test_given_dagster_home_leaves_dagster_out(home: Home, tmp_path: Path) -> None:
    environ = {
        **service_environment(),
        "DAGSTER_HOME": str(tmp_path / "theirs"),
        "KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:1",
        "SPARK_REMOTE": "sc://localhost:1",
    }
    states = platform.up(home, report=quiet, environ=environ)
    assert [each.status for each in states] == ["given"] * 4
    assert not (tmp_path / "theirs").exists()


def test_changed_variables_are_named_and_their_values_never(home: Home) -> None:
    from platform_assets.services import dagster_services

    before = dagster_services.fingerprint({"A": "1", "SPARK_REMOTE": "sc://x;token=canary", "C": "3"})
    assert "canary" not in before
    assert dagster_services.changed(before, {"A": "1", "SPARK_REMOTE": "sc://x;token=canary", "C": "3"}) == ""
    assert dagster_services.changed(before, {"A": "1", "SPARK_REMOTE": "sc://y", "D": "4"}) == "C, D, SPARK_REMOTE"
    # As an earlier release wrote it.
    assert dagster_services.changed("0123abcd", {"A": "1"}) == "its environment"


def test_an_address_of_this_home_gives_its_service_only_where_somebody_else_listens_there(home: Home) -> None:
    import socket

    home.prepare()
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        state.remember_ports(home, "kafka", (port,))
        environ = {"KAFKA_BOOTSTRAP_SERVERS": f"127.0.0.1:{port}"}
        assert platform.given(home, environ=environ) == {"kafka"}
    assert platform.given(home, environ=environ) == frozenset()
    # The service does not run, so it has no address.
    assert "KAFKA_BOOTSTRAP_SERVERS" not in platform.environment(home, environ=environ)
    assert platform.given(home, environ={"DAGSTER_HOME": str(home.root / "dagster")}) == frozenset()


def test_own_dagster_settings_are_left_as_they_are(home: Home) -> None:
    from platform_assets.services import dagster_services

    dagster_services.prepare(home)
    (home.dagster / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    dagster_services.prepare(home)
    assert (home.dagster / "dagster.yaml").read_text() == "telemetry: {enabled: false}\n"


def test_storage_is_there_before_two_processes_open_it(home: Home) -> None:
    from platform_assets.services import dagster_services

    dagster_services.prepare(home)
    stores = {str(path.relative_to(home.dagster)) for path in home.dagster.rglob("*.db")}
    assert {"history/runs.db", "history/runs/index.db", "schedules/schedules.db"} <= stores


def test_settings_that_dagster_does_not_take_are_named(home: Home) -> None:
    from platform_assets.services import dagster_services

    home.dagster.mkdir(parents=True)
    (home.dagster / "dagster.yaml").write_text("no_such_setting: 1\n")
    with pytest.raises(ConfigurationError, match=r"dagster\.yaml.*"):
        dagster_services.prepare(home)


def test_instance_settings_are_ones_that_dagster_takes(home: Home) -> None:
    from dagster import DagsterInstance

    from platform_assets.services import dagster_services

    dagster_services.prepare(home)
    with DagsterInstance.from_config(str(home.dagster)) as instance:
        assert not instance.telemetry_enabled
        assert instance.run_monitoring_enabled
        queue = instance.get_concurrency_config().run_queue_config
        assert queue is not None
        assert queue.max_concurrent_runs == 2
        assert instance.code_server_process_startup_timeout == 180


@pytest.mark.parametrize("variable", ["KAFKA_PORT", "SPARK_CONNECT_PORT", "DAGSTER_PORT"])
def test_any_port_taken_stops_all_before_the_first_start(home: Home, workspace: Path, variable: str) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        environ = {**service_environment(), variable: str(server.getsockname()[1])}
        with pytest.raises(PortTakenError, match=variable):
            platform.up(home, UpOptions(workspace=workspace), report=quiet, environ=environ)
    assert state.read_records(home) == {}
    assert services.naming(home.root) == []


def test_missing_workspace_is_told_before_the_first_start(home: Home, tmp_path: Path) -> None:
    options = UpOptions(workspace=tmp_path / "none.yaml")
    with pytest.raises(ConfigurationError, match=r"none\.yaml"):
        platform.up(home, options, report=quiet, environ=service_environment())
    assert state.read_records(home) == {}


def test_down_of_what_never_ran_says_so(home: Home) -> None:
    said: list[str] = []
    assert platform.down(home, report=said.append) == 0
    assert said == ["nothing was running"]


def test_environment_of_a_stopped_platform_has_no_addresses(home: Home) -> None:
    assert platform.environment(home, environ={}) == {
        "DAGSTER_HOME": str(home.root / "dagster"),
        "LAKE_ROOT": str(home.root / "lake"),
    }


def test_variables_of_the_data_folder_are_known_and_the_environment_wins(home: Home) -> None:
    home.prepare()
    home.variables_file.write_text("DEMO_START=2026-03-01T12:03:00Z\nOTHER='a b'\n")
    found = platform.environment(home, environ={"OTHER": "c"})
    assert (found["DEMO_START"], found["OTHER"]) == ("2026-03-01T12:03:00Z", "c")


@pytest.mark.parametrize(
    ("line", "why"), [("KAFKA_BOOTSTRAP_SERVERS=x:1", "in the environment"), ("no", "NAME=value"), ("a-b=1", "NAME")]
)
def test_a_line_that_does_not_belong_into_the_variables_is_named(home: Home, line: str, why: str) -> None:
    home.prepare()
    home.variables_file.write_text(line + "\n")
    with pytest.raises(ConfigurationError, match=rf"platform\.env: .*{line.split('=')[0]}.*{why}"):
        platform.environment(home, environ={})


def test_dead_service_is_told_apart_from_one_never_started(home: Home) -> None:
    from platform_assets.services.process import ProcessRecord

    home.prepare()
    state.write_record(home, ProcessRecord("kafka", 1, "boot:0", "m", "/the/log", "127.0.0.1:1", (1,), ready=True))
    found = {each.service: each for each in platform.running_state(home, environ={})}
    assert (found["kafka"].status, found["kafka"].log) == ("dead", "/the/log")
    assert found["spark"].status == "stopped"


def test_packaged_files_are_all_there() -> None:
    for name in ("ivy.xml", "ivysettings.xml", "jars.lock", "dagster.yaml"):
        assert Path(platform.__file__).with_name(name).is_file(), name
