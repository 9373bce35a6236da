"""Racing loads, and loads whose process or server is killed: the table is exact, or the next run makes it exact."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from platform_assets.lake import holdings
from platform_assets.lake.location import Folder, window_folder
from platform_assets.ledger.store import Ledger
from platform_assets.model.declaration import EngineName
from platform_assets.services import platform, spark_server
from platform_assets.services.platform import UpOptions
from platform_assets.services.process import ProcessRecord
from platform_assets.services.spark_server import SparkSettings
from platform_assets_tests.support.damage import data_files, delete_rows
from platform_assets_tests.support.engines import ONE_ENGINE
from platform_assets_tests.support.load_process import LoadProcess
from platform_assets_tests.support.runs_of import minutes_ago
from platform_assets_tests.support.streams import delete_before
from testbed.homes import home_at, service_environment
from testbed.loads import Record, TopicLake, numbered, records, wait_until

if TYPE_CHECKING:
    from platform_assets_tests.conftest import Broker, LakeMaker

pytestmark = pytest.mark.broker

LARGE = 100_000
"""Number of records, large enough that a load takes long after its first file has appeared."""


@pytest.fixture(params=ONE_ENGINE)
def engine_name(request: pytest.FixtureRequest) -> EngineName:
    """The engine that a test uses: killed loads are tested with both engines, because their files differ; everything
    else with one."""
    return cast(EngineName, request.param)


def large_window(lk: TopicLake) -> str:
    value = os.urandom(64)
    return lk.window_of(Record(value, b"%d" % i, i % 2) for i in range(LARGE))


def assert_exact(lk: TopicLake) -> None:
    """Check that the table matches the topic, and that the ledger matches the table."""
    assert records(lk.rows()) == records(lk.committed())
    for key, receipt in lk.ledger.receipts(lk.declaration.raw_table).items():
        assert receipt.files_digest == holdings.files_of(Folder.at(lk.table), key).digest
        assert receipt.rows == len(lk.rows(key))


def unfinished(lk: TopicLake, key: str) -> list[Path]:
    """Return the folders in which Spark keeps the files of unfinished writes to a window."""
    return list((lk.table / window_folder(key)).glob("*/_temporary"))


# --- races -----------------------------------------------------------------------------------------------------


def race(lk: TopicLake, keys: list[str], remote: str) -> list[dict[str, Any]]:
    """Load `keys` at the same time, each in its own process; all processes write at the same moment."""
    with ExitStack() as stack:
        processes = [stack.enter_context(LoadProcess(lk, key, remote, hold=True)) for key in keys]
        for process in processes:
            process.wait_for_hold()
        for process in processes:
            process.go()
        return [process.result() for process in processes]


def test_of_two_first_loads_of_one_window_one_wins_and_the_other_compares(lake: LakeMaker, spark_remote: str) -> None:
    lk = lake(partitions=2)
    key = lk.window_of(numbered(2_000, 2))
    # Delta refuses the loser of the race, which reads the winner's commit and proves its own rows equal.
    outcomes = race(lk, [key, key], spark_remote)
    assert sorted(o["outcome"] for o in outcomes) == ["loaded", "unchanged"]
    assert [o["rows"] for o in outcomes] == [2_000, 2_000]
    assert lk.version() == 1
    assert_exact(lk)


@pytest.mark.long
def test_of_two_loads_that_heal_one_window_one_wins_and_the_other_compares(lake: LakeMaker, spark_remote: str) -> None:
    lk = lake(partitions=2)
    key = lk.window_of(numbered(40, 2))
    lk.load(key)
    delete_rows(lk, key)
    outcomes = race(lk, [key, key], spark_remote)
    assert {o["outcome"] for o in outcomes} <= {"healed", "unchanged"}
    assert_exact(lk)


@pytest.mark.long
def test_loads_of_different_windows_at_once_both_succeed(lake: LakeMaker, spark_remote: str) -> None:
    lk = lake(partitions=2)
    keys = [lk.window_of(numbered(2_000, 2, stem)) for stem in ("a", "b")]
    outcomes = race(lk, keys, spark_remote)
    assert [(o["outcome"], o["rows"]) for o in outcomes] == [("loaded", 2_000)] * 2
    assert lk.version() == 2
    assert_exact(lk)
    assert [lk.load(key).outcome for key in keys] == ["unchanged", "unchanged"]


# --- killed ----------------------------------------------------------------------------------------------------


@pytest.mark.spark
def test_a_run_killed_in_the_middle_of_a_load_is_made_good_by_the_next(lake: LakeMaker, spark_remote: str) -> None:
    lk = lake(partitions=2)
    key = large_window(lk)
    with LoadProcess(lk, key, spark_remote) as run:
        wait_until("files of the load appear", lambda: bool(data_files(lk, key)))
        run.kill()
    assert lk.version() == 0, "the commit came before the kill: make the window larger"
    assert lk.ledger.receipts(lk.declaration.raw_table) == {}
    # The server continues to write the killed run's files, and nobody will commit them.
    assert lk.load(key).receipt.rows == LARGE
    wait_until("the server has ended the killed load", lambda: not unfinished(lk, key))
    assert_exact(lk)
    assert lk.load(key).outcome == "unchanged"
    assert_exact(lk)


@contextmanager
def server_of_its_own(folder: Path) -> Iterator[Callable[[], tuple[str, ProcessRecord]]]:
    """Start a Spark server, or restart it after it died, on the same port and with the same token."""
    home = home_at(folder)

    def start() -> tuple[str, ProcessRecord]:
        options = UpOptions(spark=SparkSettings(heap="1g"))
        record = platform.start_service("spark", home, options, environ=service_environment())
        return spark_server.remote(home, record.address), record

    try:
        yield start
    finally:
        platform.down(home)


@pytest.mark.long
@pytest.mark.spark
def test_a_server_killed_in_the_middle_of_a_load_leaves_the_table_as_it_was(lake: LakeMaker, tmp_path: Path) -> None:
    """The run reports an unknown outcome and retries automatically; the next run finds the window exact."""
    lk = lake(partitions=2, start=minutes_ago(3))
    key = large_window(lk)
    with server_of_its_own(tmp_path / "spark home") as start:
        remote, record = start()
        with LoadProcess(lk, key, remote, dagster=True) as run:
            wait_until("files of the load appear", lambda: bool(data_files(lk, key)), 120)
            os.kill(record.pid, signal.SIGKILL)
            assert lk.version() == 0, "the commit came before the kill: make the window larger"
            assert lk.rows() == []
            start()
            result = run.result(300)
    assert result["retries"] >= 1
    # On a slow machine the server may come back after the run's last try; the error then names the next step.
    assert result["success"] or "run it again" in result["message"], result
    assert lk.load(key).receipt.rows == LARGE
    assert_exact(lk)
    assert lk.load(key).outcome == "unchanged"


# --- between table and ledger ----------------------------------------------------------------------------------


class Crashed(Exception):
    """An exception that stands for the end of the process, at a point where no signal can arrive in time."""


@contextmanager
def crash_before_the_ledger(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """End the run between its commit to the table and its entry in the ledger."""

    def crash(self: Ledger, receipts: Any) -> None:
        raise Crashed

    with monkeypatch.context() as patched:
        patched.setattr(Ledger, "record_receipts", crash)
        with pytest.raises(Crashed):
            yield


@pytest.mark.parametrize("aborted", [False, True], ids=["rows", "no rows"])
def test_a_commit_that_the_ledger_lacks_is_found_by_the_next_run(
    lake: LakeMaker, monkeypatch: pytest.MonkeyPatch, aborted: bool
) -> None:
    lk = lake(partitions=2)
    if aborted:
        lk.abort(numbered(10, 2))
    else:
        lk.send(numbered(10, 2))
    key = lk.close_window()
    with crash_before_the_ledger(monkeypatch):
        lk.load(key)
    assert lk.version() == 1
    assert lk.ledger.receipts(lk.declaration.raw_table) == {}
    mended = lk.load(key)
    if not aborted:
        assert (mended.outcome, mended.receipt.table_version, lk.version()) == ("unchanged", 1, 1)
    assert mended.receipt.rows == (0 if aborted else 10)
    assert_exact(lk)
    version = lk.version()
    again = lk.load(key)
    assert (again.outcome, again.receipt, lk.version()) == ("unchanged", mended.receipt, version)


def test_a_commit_that_the_ledger_lacks_is_found_although_kafka_has_lost_the_records(
    lake: LakeMaker, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    lk = lake()
    key = lk.window_of(numbered(10))
    with crash_before_the_ledger(monkeypatch):
        lk.load(key)
    good = lk.rows()
    delete_before(broker.bootstrap, lk.topic, 0, 10)
    assert lk.load(key).outcome == "kept"
    assert lk.ledger.receipts(lk.declaration.raw_table)[key].rows == 10
    assert lk.rows() == good


def test_a_window_damaged_before_its_commit_came_into_the_ledger_is_healed(
    lake: LakeMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The receipt that is recorded late describes the committed version, not the table after later changes."""
    lk = lake()
    key = lk.window_of(numbered(10))
    with crash_before_the_ledger(monkeypatch):
        lk.load(key)
    delete_rows(lk, key)
    assert len(lk.rows()) < 10
    assert lk.load(key).outcome == "healed"
    assert_exact(lk)


def test_a_crash_after_healing_is_made_good(lake: LakeMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    lk = lake()
    key = lk.window_of(numbered(10))
    lk.load(key)
    delete_rows(lk, key)
    with crash_before_the_ledger(monkeypatch):
        lk.load(key)
    assert records(lk.rows()) == records(lk.committed())
    lk.load(key)
    assert_exact(lk)
    assert lk.load(key).outcome == "unchanged"
