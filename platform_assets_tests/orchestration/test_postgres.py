"""Dagster with a real PostgreSQL server: `up`, runs and their display, pruning, and an outage of the server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import dagster as dg
import pytest

from platform_assets.orchestration.maintenance.pruning import Budget, prune
from platform_assets.services import dagster_services, platform, state
from platform_assets.services.dagster_services import POSTGRES_VARIABLE
from platform_assets.services.home import CHECKOUT, Home
from platform_assets.services.platform import UpOptions
from platform_assets.services.ports import choose_ports
from platform_assets_tests.support import services
from platform_assets_tests.support.dagster_view import KEYS, LOCATION, TABLE, Breaks, load, view
from platform_assets_tests.support.manifests import BASE, containers
from testbed import postgres
from testbed.homes import home_at, service_environment
from testbed.loads import wait_until
from testbed.postgres import Postgres

pytestmark = [pytest.mark.cluster, pytest.mark.skipif(postgres.programs() is None, reason=postgres.HOW)]

WORKSPACE = '''\
import dagster as dg

@dg.asset(partitions_def=dg.StaticPartitionsDefinition([str(n) for n in range(100)]))
def counted() -> None: ...

job = dg.define_asset_job("count", [counted])

@dg.sensor(job=job, minimum_interval_seconds=1, default_status=dg.DefaultSensorStatus.RUNNING)
def each_second(context):
    """Asks for one partition after the other, one a tick."""
    number = int(context.cursor or 0)
    if number == 100:
        return dg.SkipReason("all were asked for")
    request = dg.RunRequest(str(number), partition_key=str(number))
    return dg.SensorResult([request], cursor=str(number + 1))

defs = dg.Definitions([counted], jobs=[job], sensors=[each_second], executor=dg.in_process_executor)
'''


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    """Run a separate PostgreSQL server outside pytest's folder, which the server's user cannot enter."""
    with TemporaryDirectory(prefix="platform-postgres-") as folder:
        Path(folder).chmod(0o755)
        with postgres.server(Path(folder)) as made:
            yield made


@pytest.fixture
def home(server: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Home]:
    """Provide a home whose Dagster uses the PostgreSQL server; the home's services are stopped afterwards."""
    made = home_at(tmp_path / "home")
    monkeypatch.setenv(POSTGRES_VARIABLE, server.url)
    try:
        yield made
    finally:
        platform.down(made, report=lambda _: None)


def test_what_dagster_shows_is_the_same_before_and_after_pruning(home: Home) -> None:
    dagster_services.prepare(home)
    with dg.DagsterInstance.from_config(str(home.dagster)) as instance:
        for key in (*KEYS[:4], KEYS[0]):
            load(instance, key)
        load(instance, KEYS[1], breaks=Breaks(loads=[KEYS[1]]))
        load(instance, KEYS[5], breaks=Breaks(loads=[KEYS[5]]))
        load(instance, KEYS[6], breaks=Breaks(checks=[KEYS[6]]))
        load(instance, KEYS[7])
        before = view(instance)
        assert before[str(TABLE.path)]["failed"] == [KEYS[1], KEYS[5]]
        now = datetime.now(UTC) + timedelta(days=60)
        done = prune(instance, LOCATION, Budget(), now)
        assert done.complete
        assert done.runs == 6
        assert view(instance) == before
        assert instance.get_runs_count() == 3
        assert prune(instance, LOCATION, Budget(), now).deleted.events == 0
    assert not (home.dagster / "history").exists()


def test_a_server_that_goes_away_under_load_is_gone_on_with(home: Home, server: Postgres, tmp_path: Path) -> None:
    folder = tmp_path / "workspace"
    folder.mkdir()
    (folder / "one.py").write_text(WORKSPACE)
    workspace = folder / "workspace.yaml"
    workspace.write_text("load_from:\n  - python_file: one.py\n")
    environ = {**service_environment(), "KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:1", "SPARK_REMOTE": "sc://localhost:1"}
    states = platform.up(home, UpOptions(workspace=workspace), report=lambda _: None, environ=environ)
    address = next(s.address for s in states if s.service == "dagster-webserver")
    assert address is not None

    for loaded in (2, 4, 6):
        wait_until("runs load, and nobody acted", lambda n=loaded: _materialised(address) >= n, 300)  # type: ignore[misc]
        if loaded < 6:
            server.stop()
            server.start()

    pids = [pid for record in state.read_records(home).values() for pid in services.marked(record)]
    for pid in pids:
        assert server.password.encode() not in Path(f"/proc/{pid}/cmdline").read_bytes()
    platform.down(home, report=lambda _: None)
    secret = server.password.encode()
    assert [p for p in home.root.rglob("*") if p.is_file() and secret in p.read_bytes()] == []

    # What the daemon has asked for is there: no tick was lost, and none was doubled. A run that died was started
    # again, as another.
    with dg.DagsterInstance.from_config(str(home.dagster)) as instance:
        # The server has runs of other tests too.
        asked_for = instance.get_runs(dg.RunsFilter(job_name="count"))
        first = [run for run in asked_for if run.parent_run_id is None]
        asked = [int(run.tags["dagster/run_key"]) for run in first]
        assert sorted(asked) == list(range(len(asked)))


def test_a_password_that_changes_in_its_file_is_used_by_the_next_connection(
    server: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sqlalchemy

    def change(password: str) -> None:
        engine = sqlalchemy.create_engine(server.url, isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.execute(sqlalchemy.text(f"ALTER ROLE rotated PASSWORD '{password}'"))
        engine.dispose()
        file.write_text(f"postgresql://rotated:{password}@{address}\n")

    file, address = tmp_path / "address", server.database("rotated").rpartition("@")[2]
    engine = sqlalchemy.create_engine(server.url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(sqlalchemy.text("CREATE ROLE rotated LOGIN SUPERUSER"))
    engine.dispose()
    change("the-first")
    home = home_at(tmp_path / "home")
    monkeypatch.delenv(POSTGRES_VARIABLE, raising=False)
    monkeypatch.setenv(f"{POSTGRES_VARIABLE}_FILE", str(file))
    dagster_services.prepare(home)
    with dg.DagsterInstance.from_config(str(home.dagster)) as instance:
        assert instance.get_runs_count() == 0
        change("the-second")
        assert instance.get_runs_count() == 0
        file.write_text(f"postgresql://rotated:wrong@{address}")
        with pytest.raises(Exception, match="too many retries for DB connection"):
            instance.get_runs_count()


def _materialised(address: str) -> int:
    """Return the number of partitions that the UI shows as materialized, or -1 while the number is unknown."""
    query = '{assetNodeOrError(assetKey: {path: ["counted"]}) {... on AssetNode {partitionStats {numMaterialized}}}}'
    request = urllib.request.Request(
        f"{address}/graphql", json.dumps({"query": query}).encode(), {"Content-Type": "application/json"}
    )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=60) as answer:
            found: dict[str, Any] = json.load(answer)
            return int(found["data"]["assetNodeOrError"]["partitionStats"]["numMaterialized"])
    except (OSError, KeyError, TypeError):
        return -1


def test_the_pod_of_kubernetes_makes_its_storage_and_serves_the_code(server: Postgres, tmp_path: Path) -> None:
    """Run the commands from the manifests: storage, code server, webserver and the daemon's heartbeat check."""
    own = tmp_path / "dagster"
    own.mkdir()
    (own / "dagster.yaml").write_text((BASE / "dagster.yaml").read_text("utf-8"))
    code, ui = choose_ports(2, "DAGSTER_PORT", environ={})
    environ = {
        **service_environment(),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(CHECKOUT),
        "DAGSTER_HOME": str(own),
        "DAGSTER_POSTGRES_URL": server.database("pod"),
        "PLATFORM_HOME": str(tmp_path / "home"),
        "KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:1",
        "SPARK_REMOTE": "sc://localhost:1",
        "LAKE_ROOT": str(tmp_path / "lake"),
    }
    ports = {"4000": str(code), "3000": str(ui), "0.0.0.0": "127.0.0.1"}
    commands = {
        c["name"]: [ports.get(word, word) for word in (*c["command"], *c.get("args", []))] for _, c in containers()
    }
    run = partial(subprocess.run, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    made = run(commands["storage"])
    assert made.returncode == 0, made.stderr
    (probe,) = (c["livenessProbe"]["exec"]["command"] for _, c in containers() if c["name"] == "code")
    with ExitStack() as stack:
        for name in ("code", "webserver", "daemon"):
            log = stack.enter_context((tmp_path / f"{name}.log").open("wb"))
            process = subprocess.Popen(commands[name], env=environ, cwd=tmp_path, stdout=log, stderr=log)
            stack.callback(process.wait, 60)
            stack.callback(process.terminate)
            if name == "code":
                answers = [ports.get(word, word) for word in probe]
                wait_until("the code server answers", lambda: run(answers).returncode == 0, 180)  # noqa: B023
        address = f"http://127.0.0.1:{ui}"
        wait_until("the UI has the code", lambda: bool(_repositories(address)), 180)
        alive = next(c["livenessProbe"]["exec"]["command"] for _, c in containers() if c["name"] == "daemon")
        wait_until("the daemon's heartbeats are in the storage", lambda: run(alive).returncode == 0, 180)


def _repositories(address: str) -> list[Any]:
    query = b'{"query": "{repositoriesOrError {... on RepositoryConnection {nodes {name}}}}"}'
    try:
        request = urllib.request.Request(f"{address}/graphql", query, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=30) as answer:
            found: list[Any] = json.load(answer)["data"]["repositoriesOrError"].get("nodes", [])
            return found
    except OSError:  # it is not there yet
        return []
