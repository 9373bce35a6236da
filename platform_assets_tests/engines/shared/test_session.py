"""The Spark session that processes share. A process joins the session by its id, leaves it without harm to other
processes, and replaces it if it has ended."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from platform_assets.engines.columnar.engine import ColumnarEngine
from platform_assets.engines.shared.session import SharedSession, connect, end, set_up_client
from platform_assets.engines.shared.worker import CODE
from platform_assets.lake.location import Lake
from platform_assets.services import platform, spark_server
from platform_assets.services.home import Home
from platform_assets.services.platform import UpOptions
from platform_assets.services.spark_server import SparkSettings
from platform_assets.windows.load.catching_up import load_many
from platform_assets.windows.load.replacing import Loaded
from testbed.homes import home_at, service_environment
from testbed.loads import Record, numbered, records

if TYPE_CHECKING:
    from platform_assets_tests.conftest import LakeMaker

IDLE_SECONDS = 10
SETTINGS = SparkSettings(
    heap="1g",
    configuration={
        "spark.connect.session.manager.defaultSessionTimeout": f"{IDLE_SECONDS}s",
        "spark.connect.session.manager.maintenanceInterval": "1s",
    },
)
OTHER_PROCESS = """
import json, os, sys
import pyarrow as pa
from platform_assets.engines.shared.job import parallelism
from platform_assets.engines.shared.session import SharedSession
from platform_assets.lake.location import Lake
def daemon(batches):
    for _ in batches:
        yield pa.RecordBatch.from_pydict({"pid": [os.getppid()]})
shared = SharedSession(sys.argv[1], Lake.at(sys.argv[2]), sys.argv[3])
session = shared.session()
assert parallelism(session) >= 1  # in a process that has no session of its own
((pid,),) = session.range(1, numPartitions=1).mapInArrow(daemon, "pid long").collect()
print(json.dumps([session.session_id, pid]))
"""


class Server:
    """A Spark Connect server used only by these tests."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self.start()

    def start(self) -> None:
        record = platform.start_service("spark", self._home, UpOptions(spark=SETTINGS), environ=service_environment())
        self.remote = spark_server.remote(self._home, record.address)

    def stop(self) -> None:
        platform.down(self._home)


def joined(remote: str, root: Path, code: str) -> tuple[str, int]:
    """Join the session from a new process. Return the session's id, and the id of the process that is the parent of the
    session's Python workers."""
    program = [sys.executable, "-c", OTHER_PROCESS, remote, str(root), code]
    said = subprocess.run(program, capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stderr
    session_id, pid = json.loads(said.stdout.splitlines()[-1])
    return session_id, pid


@pytest.fixture(autouse=True)
def apart(one_session: Callable[[SharedSession, int], str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions depend on the lake, as they do outside tests."""
    monkeypatch.setattr(SharedSession, "session_id", one_session)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    home = home_at(tmp_path_factory.mktemp("shared"))
    home.prepare()
    found = Server(home)
    try:
        yield found
    finally:
        found.stop()


@pytest.mark.spark
def test_a_session_leaves_out_no_files_and_replaces_no_variables_whatever_the_server_does(spark_remote: str) -> None:
    names = [
        "spark.sql.files.ignoreMissingFiles",
        "spark.sql.files.ignoreCorruptFiles",
        "spark.sql.variable.substitute",
    ]
    session = connect(spark_remote)
    for name in names:
        session.conf.set(name, "true")
    session = connect(spark_remote)
    assert [session.conf.get(name) for name in names] == ["false"] * 3
    kept = session.sql("SELECT '${spark.app.id} ${env:PATH}' AS text").selectExpr("text", "'${spark.app.id}'").collect()
    assert tuple(kept[0]) == ("${spark.app.id} ${env:PATH}", "${spark.app.id}")


@pytest.mark.spark
def test_processes_with_the_same_code_and_lake_share_warm_workers_and_others_do_not(
    spark_remote: str, tmp_path: Path
) -> None:
    """When a process ends, the session continues for other processes. A process with other code, for example after an
    upgrade, never gets the workers of this session."""
    from pyspark.sql import SparkSession

    first, second = joined(spark_remote, tmp_path, "code"), joined(spark_remote, tmp_path, "code")
    assert first == second
    upgraded, another = joined(spark_remote, tmp_path, "newer code"), joined(spark_remote, tmp_path / "another", "code")
    assert len({first, upgraded, another}) == 3
    assert len({pid for _, pid in (first, upgraded, another)}) == 3
    # A private session in the same process is separate: ending it does not affect the shared one.
    shared = SharedSession(spark_remote, Lake.at(tmp_path), "code")
    assert shared.session().session_id == first[0]
    # Not by `connect`, which joins a session that other tests of this process use.
    own: Any = SparkSession.builder.remote(spark_remote).create()
    set_up_client(own)
    assert own.session_id != first[0]
    end(own)
    assert shared.session().range(3).count() == 3
    shared.forget()
    assert joined(spark_remote, tmp_path, "code") == first


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.broker
def test_a_session_that_was_idle_or_lost_its_server_is_followed_by_another_within_the_load(
    lake: LakeMaker, server: Server
) -> None:
    lk = lake()
    found = Lake.at(lk.root)

    def engine() -> ColumnarEngine:
        own = SharedSession(server.remote, found, CODE)
        return ColumnarEngine(found, lambda: lk.settings, lambda: connect(server.remote), own)

    def generation() -> int:
        return int(found.sessions.read(f"{CODE}.generation") or 0)

    def idle() -> None:
        time.sleep(IDLE_SECONDS + 3)  # any request to the server would keep the session alive

    kept = engine()
    assert lk.loader(engine=kept).load(lk.window_of([Record(b"1")])).outcome == "loaded"
    idle()
    assert lk.loader(engine=kept).load(lk.window_of([Record(b"2")])).outcome == "loaded"
    known = generation()
    assert known >= 1, "the earlier id is refused permanently"
    # A new process starts with that session, or with its successor if the machine is slow.
    other = engine()
    assert other.shared is not None
    joined_now = other.shared.session().session_id
    assert generation() >= known
    assert joined_now == other.shared.session_id(generation())
    idle()
    third = [lk.window_of(numbered(3, stem=f"{n}-")) for n in range(3)]
    outcomes: list[Any] = [o for _, o in load_many(lk.loader(engine=engine()), third)]
    assert [o.outcome for o in outcomes if isinstance(o, Loaded)] == ["loaded"] * 3
    server.stop()
    server.start()
    assert lk.loader(engine=kept).load(lk.window_of([Record(b"4")])).outcome == "loaded"
    assert records(lk.rows()) == records(lk.committed())
    assert not lk.orphans()
