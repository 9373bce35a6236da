"""A running platform is backed up, destroyed and restored: loads continue without a gap or a duplicate, and the deep
audit proves it."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import dagster as dg
import pytest

from platform_assets.backup import taking
from platform_assets.ledger import unloaded
from platform_assets_tests.support.daemon import Daemon
from platform_assets_tests.support.runs_of import minutes_ago
from platform_assets_tests.support.shell import DAGSTER_WARNINGS, Shell, ShellOf
from testbed.loads import TopicLake, numbered, records, wait_until

if TYPE_CHECKING:
    from platform_assets_tests.conftest import LakeMaker

pytestmark = [pytest.mark.broker, *map(pytest.mark.filterwarnings, DAGSTER_WARNINGS)]

ALL = ("ledger", "table", "dagster")


@dataclass
class AtWork:
    """A topic with a producer. Ticks and runs like those of Dagster's daemon seal and load the topic, and Dagster's
    home is on disk."""

    lk: TopicLake
    shell: Shell
    remote: str
    folder: Path

    @property
    def home(self) -> Path:
        return Path(self.shell.variables["PLATFORM_HOME"]) / "dagster"

    @property
    def backups(self) -> str:
        return str(self.folder / "backups")

    @contextmanager
    def daemon(self) -> Iterator[Daemon]:
        """Return a newly started daemon, which knows only what its home contains."""
        unloaded._known.clear()
        with dg.DagsterInstance.from_config(str(self.home)) as instance:
            made = Daemon(self.lk, instance, self.remote, self.lk.declaration)
            made.cursor = self.cursor.read_text() if self.cursor.is_file() else None
            yield made
            if made.cursor is not None:
                self.cursor.write_text(made.cursor)

    @property
    def cursor(self) -> Path:
        """Return the path of the file that stands for the state in the daemon's schedule storage."""
        return self.home / "cursor"

    def next_window(self, daemon: Daemon, count: int = 20) -> None:
        """Produce records, advance the clock of the ticks by a minute, and evaluate a tick."""
        self.lk.send(numbered(count, stem=f"{self.lk.closed:%H%M}-"))
        self.lk.close_window()
        daemon.now = self.lk.closed
        daemon.tick()

    def destroy(self, *parts: str) -> None:
        places = {"ledger": self.lk.root / "_ledger", "table": self.lk.table, "dagster": self.home}
        for part in parts:
            shutil.rmtree(places[part])

    def run(self, *arguments: str) -> str:
        done = self.shell.run(*arguments)
        assert done.exit_code == 0, done.output
        return done.output


@pytest.fixture
def at_work(lake: LakeMaker, shell_of: ShellOf, spark_remote: str, tmp_path: Path) -> AtWork:
    lk = lake(partitions=2, start=minutes_ago(60))
    return AtWork(lk, shell_of(lk), spark_remote, tmp_path)


@pytest.mark.parametrize(
    "lost", [ALL, *(pytest.param((part,), marks=pytest.mark.long) for part in ALL)], ids=" and ".join
)
def test_what_is_destroyed_behind_a_backup_under_load_is_restored_and_loads_go_on(
    at_work: AtWork, lost: tuple[str, ...]
) -> None:
    lk = at_work.lk
    with at_work.daemon() as daemon:
        at_work.next_window(daemon)
        # One window is being loaded during the backup, and one is loaded after it.
        loading = threading.Thread(target=at_work.next_window, args=(daemon,))
        loading.start()
        wait_until("the window is sealed", lambda: len(daemon.sealed) == 2)
        taking.take(lk.ledger.lake, at_work.home, Path(at_work.backups), datetime.now(UTC))
        loading.join()
        at_work.next_window(daemon)
        assert daemon.loaded == daemon.sealed
    at_work.destroy(*lost)
    only = [word for part in lost for word in ("--only", {"table": lk.topic}.get(part, part))]

    said = at_work.run("restore", at_work.backups, *only)
    # The remaining steps, word for word as the command prints them.
    for command in ("rebuild-ledger", "report-loads"):
        if f"`platform-assets {command}`" in said:
            at_work.run(command)
    with at_work.daemon() as daemon:
        at_work.next_window(daemon)
        assert daemon.loaded == daemon.sealed
        assert daemon.newest_succeeded()
        assert all(daemon.check_results().values()), daemon.check_results()
    assert records(lk.rows()) == records(lk.committed())
    assert len(lk.rows()) == 4 * 20
    # No file that is read contains the lake's path, so the lake can be moved: the log only records where tables were
    # created.
    named = {f.name for f in lk.root.rglob("*") if f.is_file() and bytes(lk.root) in f.read_bytes()}
    assert named <= {"00000000000000000000.json"}
    audit = at_work.shell.run("audit", lk.topic, "--deep")
    assert audit.exit_code == 0, audit.output
    status = at_work.shell.run("status", "--json")
    assert '"windows_failed": 0' in status.output
