"""Each backup is complete, and consistent as of one moment, whatever is loaded while it is taken. An unfinished backup
does not count as a backup."""

from __future__ import annotations

import fcntl
import os
import shutil
import sqlite3
import threading
from pathlib import Path

import pytest

from platform_assets.backup import restoring, taking
from platform_assets.backup.copying import Copier
from platform_assets.backup.failures import BackupInterruptedError, BackupNotWritableError
from platform_assets.errors import ConfigurationError
from platform_assets.lake.location import Folder, Lake
from platform_assets.ledger import decisions
from platform_assets.ledger.decisions import Decision
from platform_assets.ledger.store import Ledger
from platform_assets.windows.load.sealing import check_ledger_knows_table
from platform_assets_tests.support.backed_up import ORDERS, BackedUp
from testbed.loads import table_rows


@pytest.fixture
def platform(tmp_path: Path) -> BackedUp:
    """Return a lake with three loaded windows. Dagster has a record of the first window."""
    made = BackedUp(tmp_path)
    made.seal(3)
    made.load()
    made.report("2026-01-01-00:00")
    return made


def test_a_backup_that_was_taken_later_copies_what_is_new_and_needs_none_before_it(platform: BackedUp) -> None:
    first = platform.take()
    assert first.copied == len(first.manifest.files)
    assert first.folder.stat().st_mode & 0o077 == 0, "what topics hold may be for few eyes"
    assert platform.take().copied == 0
    platform.seal()
    platform.load()
    wanted = platform.state

    third = platform.take()

    # The data file, and one commit and entry for each of table, cuts and receipts.
    assert third.copied < 10
    assert {f.path for f in first.manifest.files} < {f.path for f in third.manifest.files}
    for earlier in taking.backups(platform.destination)[:-1]:
        shutil.rmtree(earlier)
    platform.destroy("ledger", "raw/orders", "dagster")
    platform.restore()
    assert platform.state == wanted


def test_a_backup_after_a_restore_copies_nothing_of_the_lake_again(platform: BackedUp) -> None:
    platform.take()
    platform.destroy("ledger", "raw/orders")
    platform.restore("ledger", "orders")
    assert platform.take().copied == 0


def test_a_file_of_the_backup_before_that_was_cut_off_is_copied_again(platform: BackedUp) -> None:
    former = platform.take()
    named = next(f for f in former.manifest.files if f.path.endswith(".parquet"))
    (former.folder / named.path).write_bytes(b"")
    taken = platform.take()
    assert taken.copied == 1
    assert restoring.restore(restoring.find(taken.folder), platform.lake, platform.home, dry_run=True).files


def test_backups_that_are_taken_while_windows_are_sealed_and_loaded_are_of_one_moment(platform: BackedUp) -> None:
    """In the backup, each receipt has its rows, and each row has its cut. If a load was in progress, its window has no
    receipt, so it is loaded again."""
    stop, loaded = threading.Event(), threading.Event()

    def load_on() -> None:
        while not stop.is_set():
            platform.seal()
            platform.load()
            loaded.set()

    loads = threading.Thread(target=load_on)
    loads.start()
    taken: list[taking.BackupResult] = []
    try:
        for _ in range(4):
            taken.append(platform.take())
            # A backup may end before the concurrent load does; the next backup then sees a larger lake.
            loaded.clear()
            assert loaded.wait(timeout=300), "no window was loaded during the backups"
    finally:
        stop.set()
        loads.join()
    assert taken[-1].manifest.tables["raw/orders"] > taken[0].manifest.tables["raw/orders"]
    for number, backup in enumerate(taken):
        lake = Lake.at(platform.folder / f"lake {number}")
        restoring.restore(restoring.find(backup.folder), lake, platform.folder / f"home {number}")
        _assert_heals(lake)


@pytest.mark.parametrize("between", ["_ledger/commits", "raw/orders", "_ledger/cuts"])
def test_what_is_sealed_and_loaded_between_two_tables_of_a_backup_leaves_it_whole(
    platform: BackedUp, monkeypatch: pytest.MonkeyPatch, between: str
) -> None:
    pinned = taking._pinned

    def then_loaded(folder: Folder, name: str) -> taking.PinnedTable | None:
        found = pinned(folder, name)
        if name == between:
            platform.seal()
            platform.load()
        return found

    monkeypatch.setattr(taking, "_pinned", then_loaded)
    platform.take()
    monkeypatch.undo()
    platform.destroy("ledger", "raw/orders")
    platform.restore("ledger", "raw/orders")
    _assert_heals(platform.lake)
    # And what a run does when it finds the window without a receipt.
    assert set(platform.ledger.receipts(ORDERS)) <= {w.key for w in platform.ledger.windows("orders")}


def _assert_heals(lake: Lake) -> None:
    ledger = Ledger(lake)
    rows = {(r.window, r.partition, r.offset) for r in table_rows(lake.table(ORDERS).path)}
    sealed = {
        (w.key, p, o) for w in ledger.windows("orders") for p, r in w.ranges.items() for o in range(r.start, r.end)
    }
    assert rows <= sealed
    assert set(ledger.receipts(ORDERS)) <= {window for window, _, _ in rows}
    check_ledger_knows_table(ORDERS, lake, ledger.newest_cut("orders"))


def test_a_decision_that_is_taken_meanwhile_has_it_begin_again(
    platform: BackedUp, monkeypatch: pytest.MonkeyPatch
) -> None:
    pinned, decided = taking._pinned, list[str]()

    def then_decided(folder: Folder, name: str) -> taking.PinnedTable | None:
        if name == "raw/orders" and len(decided) < most:
            decided.append(name)
            decisions.record(platform.lake, Decision("orders", "park", (), "somebody", "because"))
        return pinned(folder, name)

    monkeypatch.setattr(taking, "_pinned", then_decided)
    most = 1
    assert platform.take().manifest.tables["_ledger/decisions"] == 1
    most = 100
    with pytest.raises(BackupInterruptedError, match="Run it again"):
        platform.take()
    assert len(taking.backups(platform.destination)) == 1
    monkeypatch.undo()
    platform.take()


def test_a_backup_that_dies_is_none_and_the_next_one_is(platform: BackedUp, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = platform.take()
    platform.seal()
    platform.load()
    copy = Copier.file

    def full(copier: Copier, origin: Path, path: str) -> bool:
        if copier.copied:
            raise KeyboardInterrupt
        return copy(copier, origin, path)

    monkeypatch.setattr(Copier, "file", full)
    with pytest.raises(KeyboardInterrupt):
        platform.take()
    monkeypatch.undo()
    assert taking.backups(platform.destination) == [whole.folder]
    assert platform.restore(dry_run=True).files == len(whole.manifest.files)
    newest = platform.take()
    assert taking.backups(platform.destination) == [whole.folder, newest.folder]
    assert sorted(p.name for p in platform.destination.iterdir() if p.is_dir()) == [
        whole.folder.name,
        newest.folder.name,
    ]


def test_a_file_that_is_deleted_meanwhile_is_named_and_there_is_no_backup(
    platform: BackedUp, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = taking.PinnedTable.files
    lost = next(platform.lake.table(ORDERS).path.rglob("*.parquet"))

    def then_vacuumed(table: taking.PinnedTable) -> list[str]:
        found = list(files(table))
        lost.unlink(missing_ok=True)
        return found

    monkeypatch.setattr(taking.PinnedTable, "files", then_vacuumed)
    with pytest.raises(BackupInterruptedError, match=lost.name):
        platform.take()
    assert taking.backups(platform.destination) == []


def test_two_backups_to_one_folder_at_once_are_refused(platform: BackedUp) -> None:
    platform.take()
    with (platform.destination / ".lock").open() as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(BackupInterruptedError, match="another process is writing a backup to this folder"):
            platform.take()
    platform.take()


@pytest.mark.parametrize("inside", ["lake", "lake/raw", "dagster/backups"])
def test_a_backup_inside_of_what_it_is_of_is_refused(platform: BackedUp, inside: str) -> None:
    with pytest.raises(ConfigurationError, match="another disk"):
        taking.take(platform.lake, platform.home, platform.folder / inside, platform.now)


def test_a_folder_that_cannot_be_written_is_named(platform: BackedUp) -> None:
    (platform.folder / "file").touch()
    with pytest.raises(BackupNotWritableError, match="no backup was made"):
        taking.take(platform.lake, platform.home, platform.folder / "file" / "backups", platform.now)


def test_nothing_to_back_up_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="LAKE_ROOT"):
        BackedUp(tmp_path).take()
    assert taking.backups(tmp_path / "backups") == []


def test_what_is_none_of_the_platforms_is_left_out_and_named(platform: BackedUp) -> None:
    root = platform.lake.root.path
    (root / "_ledger" / "schemas").mkdir()
    (root / "_ledger" / "schemas" / "1.avsc").write_text("{}")
    (root / "_ledger" / "baselines").mkdir()
    (root / "_ledger" / "baselines" / "orders.json").write_text("{}")
    (root / "replays" / "one").mkdir(parents=True)
    (root / "raw" / "other").mkdir()
    (root / "notes.txt").touch()
    (root / "raw" / "no topic\n" / "_delta_log").mkdir(parents=True)
    taken = platform.take().manifest
    assert taken.left_out == ("raw/no topic\n", "raw/other", "replays", "notes.txt")
    loose = {f.place for f in taken.files if f.place.endswith((".avsc", ".json")) and "_delta_log" not in f.place}
    assert loose == {"_ledger/schemas/1.avsc", "_ledger/version.json"}


def test_a_database_is_copied_as_of_one_moment_while_it_is_written_to(platform: BackedUp) -> None:
    """Two rows that were written in one transaction are either both in the copy or both missing."""
    stop, begun = threading.Event(), threading.Event()

    def write() -> None:
        live = sqlite3.connect(platform.home / "pairs.db", isolation_level=None)
        live.execute("PRAGMA journal_mode=WAL")
        live.execute("CREATE TABLE pairs (number INTEGER)")
        number = 0
        while not stop.is_set():
            live.executescript(
                f"BEGIN; INSERT INTO pairs VALUES ({number}); INSERT INTO pairs VALUES ({number}); COMMIT;"
            )
            begun.set()
            number += 1
        live.close()

    writer = threading.Thread(target=write)
    writer.start()
    try:
        assert begun.wait(30)
        counts = []
        for _ in range(3):
            copy = sqlite3.connect(platform.take().folder / "dagster" / "pairs.db")
            assert copy.execute("PRAGMA integrity_check").fetchone() == ("ok",)
            assert copy.execute("SELECT count(*) FROM pairs GROUP BY number HAVING count(*) <> 2").fetchall() == []
            counts.append(copy.execute("SELECT count(*) FROM pairs").fetchone()[0])
            copy.close()
    finally:
        stop.set()
        writer.join()
    assert counts == sorted(counts)
    assert counts[0] > 0


def test_a_backup_has_its_name_once_it_is_on_the_disk(platform: BackedUp, monkeypatch: pytest.MonkeyPatch) -> None:
    named = list[int]()
    monkeypatch.setattr(os, "sync", lambda: named.append(len(taking.backups(platform.destination))))
    platform.take()
    assert named == [0]
    assert len(taking.backups(platform.destination)) == 1
