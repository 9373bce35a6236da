"""Restoring: lost data returns as it was backed up, replacing existing data requires `--force`, and incomplete backups
are refused."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from platform_assets.backup import manifest, restoring, taking
from platform_assets.backup.failures import BackupDamagedError, BackupInterruptedError, RestoreInterruptedError
from platform_assets.errors import ConfigurationError, LedgerLostError
from platform_assets.lake.location import Lake
from platform_assets.ledger import unloaded
from platform_assets.windows.load.sealing import check_ledger_knows_table
from platform_assets_tests.support.backed_up import ORDERS, BackedUp
from platform_assets_tests.support.variants import long_after

PARTS = ("ledger", "raw/orders", "dagster")


@pytest.fixture
def platform(tmp_path: Path) -> BackedUp:
    """Return a lake with three windows, all loaded and backed up."""
    made = BackedUp(tmp_path)
    made.seal(3)
    made.load()
    made.report("2026-01-01-00:00")
    made.take()
    return made


def left_to_load(platform: BackedUp) -> list[str]:
    """Return the windows that a sensor requests in a process without earlier state."""
    unloaded._known.clear()
    newest = platform.ledger.newest_edges(["orders"])["orders"]
    return list(unloaded.find(platform.ledger, ORDERS, newest).windows)


@pytest.mark.parametrize(
    "lost", long_after(2, map(pytest.param, [PARTS, *((part,) for part in PARTS)])), ids=" and ".join
)
def test_what_is_lost_is_restored_and_all_is_as_it_was(platform: BackedUp, lost: tuple[str, ...]) -> None:
    wanted = platform.state
    platform.destroy(*lost)
    done = platform.restore(*lost)
    assert done.parts == lost
    assert done.forgotten == {}
    assert platform.state == wanted
    assert left_to_load(platform) == []
    assert list(platform.folder.rglob(".re*")) == []


def test_all_is_restored_to_another_root_too(platform: BackedUp, tmp_path: Path) -> None:
    moved = BackedUp(tmp_path / "elsewhere")
    restoring.restore(restoring.find(platform.destination), moved.lake, moved.home)
    assert moved.state == platform.state


def test_a_lake_that_was_moved_names_no_former_place_and_goes_on(platform: BackedUp, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    former = platform.lake.root.path
    former.rename(tmp_path / "elsewhere" / "lake")
    moved = BackedUp(tmp_path / "elsewhere")
    named = {f.name for f in moved.lake.root.path.rglob("*") if f.is_file() and bytes(former) in f.read_bytes()}
    # A table's first commit records, for information, where the table was created.
    assert named <= {"00000000000000000000.json"}
    assert left_to_load(moved) == []
    moved.seal()
    assert left_to_load(moved) == ["2026-01-01-03:00"]
    moved.load()
    assert left_to_load(moved) == []


def test_what_is_there_is_not_replaced_unasked(platform: BackedUp) -> None:
    platform.destroy("raw/orders")
    with pytest.raises(ConfigurationError, match=r"ledger, dagster would be replaced.*--only.*--force"):
        platform.restore()
    assert not platform.lake.table(ORDERS).path.exists()
    # Both remedies in the message.
    platform.restore("raw/orders")
    wanted = platform.state
    platform.seal()
    platform.report("2026-01-01-01:00")
    platform.restore(force=True)
    assert platform.state == wanted


def test_a_file_of_dagsters_home_that_came_later_goes_with_force(platform: BackedUp) -> None:
    (platform.home / "later.txt").touch()
    platform.restore("dagster", force=True)
    assert not (platform.home / "later.txt").exists()
    assert (platform.home / "dagster.yaml").is_file()


def test_windows_loaded_since_the_backup_of_a_table_are_asked_for_again(platform: BackedUp) -> None:
    """In the meantime, the first window is loaded again, and two new windows are added."""
    before = platform.ledger.receipts(ORDERS)
    platform.load("2026-01-01-00:00")
    platform.seal(2)
    platform.load()
    later = ["2026-01-01-03:00", "2026-01-01-04:00"]
    assert list(platform.ledger.receipts(ORDERS)) == [*before, *later]
    platform.destroy("raw/orders")

    done = platform.restore("orders")

    assert done.forgotten == {"raw/orders": tuple(later)}
    assert platform.ledger.receipts(ORDERS) == before
    assert left_to_load(platform) == later
    platform.load()
    assert [r.table_version for r in platform.ledger.receipts(ORDERS).values()] == [1, 2, 3, 4, 5]


def test_accepted_losses_and_windows_without_offsets_stay_where_receipts_go(platform: BackedUp) -> None:
    from platform_assets.windows.load.receipts import empty_receipt

    platform.seal()
    window = platform.ledger.windows("orders")[-1]
    platform.ledger.record_acceptance(window, {0: [window.ranges.by_partition[0]]}, "gone")
    platform.load()
    other = platform.ledger.windows("orders")[0]
    platform.ledger.record_receipts([empty_receipt(ORDERS, other, "")])
    platform.restore("raw/orders", force=True)
    assert platform.ledger.accepted_losses(ORDERS, window.key) == {0: (window.ranges.by_partition[0],)}
    assert left_to_load(platform) == [window.key]


def test_a_ledger_that_is_older_than_a_table_is_named(platform: BackedUp) -> None:
    platform.seal()
    platform.load()
    platform.destroy("ledger")
    done = platform.restore("ledger")
    assert restoring.newer_tables(done, platform.lake) == ["raw/orders"]
    # Until the ledger is rebuilt, nothing is cut or loaded.
    with pytest.raises(LedgerLostError, match="rebuild-ledger"):
        check_ledger_knows_table(ORDERS, platform.lake, platform.ledger.newest_cut("orders"))


@pytest.mark.parametrize("damage", ["changed", "cut off", "gone"])
def test_a_damaged_backup_is_refused_before_anything_is_touched(platform: BackedUp, damage: str) -> None:
    backup = restoring.find(platform.destination)
    paths = [f.path for f in backup.manifest.files if f.part == "raw/orders" and f.path.endswith(".parquet")]
    file = backup.folder / next(path for path in paths if "_delta_log" not in path)
    content = file.read_bytes()
    if damage == "gone":
        file.unlink()
    else:
        file.write_bytes(content[:-1] + (b"" if damage == "cut off" else bytes([content[-1] ^ 1])))
    platform.seal()
    platform.load()
    wanted = platform.state
    for dry_run in (True, False):
        with pytest.raises(BackupDamagedError, match=file.name):
            platform.restore(force=True, dry_run=dry_run)
    assert platform.state == wanted
    assert list(platform.folder.rglob(".re*")) == []
    # The remedy in the message: restore the parts that are complete.
    platform.restore("ledger", "dagster", force=True)


@pytest.mark.parametrize(
    "path",
    ["lake/../../etc/x", "/etc/x", "lake/raw/orders/../x", "other/x", "lake/x", "dagster", "lake/.restoring/a/b",
     "dagster/.replaced/x", "lake/raw/orders/\ud800"],
    ids=ascii,
)  # fmt: skip
def test_a_manifest_that_leads_elsewhere_is_refused(platform: BackedUp, path: str) -> None:
    file = restoring.find(platform.destination).folder / manifest.FILE
    fields = json.loads(file.read_text())
    fields["files"][0][0] = path
    file.write_text(json.dumps(fields))
    with pytest.raises(BackupDamagedError, match="is not a valid path in a backup"):
        platform.restore(force=True)


def test_a_manifest_of_a_later_release_is_refused(platform: BackedUp) -> None:
    file = restoring.find(platform.destination).folder / manifest.FILE
    file.write_text(file.read_text().replace('"platform_assets_backup":1', '"platform_assets_backup":2'))
    with pytest.raises(ConfigurationError, match="the release that made it"):
        platform.restore(force=True)


def test_a_folder_without_a_backup_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no backup"):
        restoring.find(tmp_path)


def test_an_unknown_part_is_refused_and_the_known_ones_are_named(platform: BackedUp) -> None:
    with pytest.raises(ConfigurationError, match="it contains: ledger, raw/orders, dagster"):
        platform.restore("raw/payments")


def test_a_restore_that_is_killed_amid_is_run_again_and_ends_whole(
    platform: BackedUp, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = platform.state
    platform.seal()
    platform.load()
    rename, done = Path.rename, list[Path]()

    def killed(path: Path, target: Path) -> Path:
        done.append(path)
        if len(done) == 4:
            raise OSError(5, "Input/output error", str(path))
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", killed)
    with pytest.raises(RestoreInterruptedError, match=r"run the same restore again with `--force`"):
        platform.restore(force=True)
    monkeypatch.undo()
    # Otherwise it would be the newest one, and the next restore would use it.
    with pytest.raises(BackupInterruptedError, match=r"an earlier restore into .* did not finish.*--force"):
        platform.take()
    platform.restore(force=True)
    assert platform.state == wanted
    assert list(platform.folder.rglob(".re*")) == []


def test_the_newest_backup_of_a_folder_is_taken_or_the_one_that_is_named(platform: BackedUp) -> None:
    first = restoring.find(platform.destination)
    second = platform.take()
    assert restoring.find(platform.destination).folder == second.folder
    assert restoring.find(first.folder) == first
    assert first.manifest.at < second.manifest.at <= datetime.now(UTC).replace(year=2027)


@pytest.mark.parametrize("inner", ["lake", "dagster"])
def test_a_lake_in_dagsters_home_is_neither_backed_up_nor_restored_over(platform: BackedUp, inner: str) -> None:
    """In the past, `restore --only dagster --force` also rolled back the lake, because the lake was inside the home.
    The test follows the remedy in the error."""
    backup = restoring.find(platform.destination)
    platform.seal()
    platform.load()
    before, root, home = platform.state, platform.lake.root.path, platform.home
    moved = home / "lake" if inner == "lake" else root / "home"
    (root if inner == "lake" else home).rename(moved)
    nested = (Lake.at(moved), home) if inner == "lake" else (platform.lake, moved)
    with pytest.raises(ConfigurationError, match=r"are nested, so restoring.*move one of the two folders elsewhere"):
        taking.take(*nested, platform.destination, platform.now)
    with pytest.raises(ConfigurationError, match=r"are nested, so restoring.*move one of the two folders elsewhere"):
        restoring.restore(backup, *nested, ["dagster"], force=True)
    moved.rename(root if inner == "lake" else home)
    assert platform.restore("dagster", force=True).parts == ("dagster",)
    assert platform.state == before


def test_a_table_behind_a_link_is_backed_up_and_restored_as_any_other(platform: BackedUp, tmp_path: Path) -> None:
    """In the past, such a table was loaded and read, but was missing from backups and vacuum without any message."""
    wanted, at = platform.state, platform.lake.root.path / "raw" / "orders"
    at.rename(tmp_path / "another disk")
    at.symlink_to(tmp_path / "another disk")
    assert platform.lake.tables() == [ORDERS]
    platform.take()
    at.unlink()
    platform.restore("raw/orders")
    assert platform.state == wanted
    # Also in place of a link whose target does not exist.
    shutil.rmtree(at)
    at.symlink_to(tmp_path / "gone")
    platform.restore("raw/orders", force=True)
    assert platform.state == wanted


def a_pipe(file: Path) -> None:
    os.mkfifo(file)


def a_device(file: Path) -> None:
    file.symlink_to("/dev/zero")


def a_file_of_a_terabyte(file: Path) -> None:
    with file.open("wb") as opened:
        opened.truncate(1 << 40)


@pytest.mark.parametrize("put", [a_pipe, a_device, a_file_of_a_terabyte])
def test_what_would_be_read_without_end_in_the_place_of_a_file_is_refused(
    platform: BackedUp, put: Callable[[Path], None]
) -> None:
    found = restoring.find(platform.destination)
    wanted = platform.state
    file = next(f for f in found.manifest.files if f.path.endswith(".parquet"))
    (found.folder / file.path).unlink()
    put(found.folder / file.path)
    with pytest.raises(BackupDamagedError, match=r"parquet.*(not a regular file|differs from what was backed up)"):
        platform.restore(force=True)
    assert platform.state == wanted


@pytest.mark.parametrize("content", [b"[" * 200_000, b'{"platform_assets_backup":1,"files":[["a",Infinity,"",""]]}'])
def test_a_manifest_of_odd_json_is_refused(platform: BackedUp, content: bytes) -> None:
    file = restoring.find(platform.destination).folder / manifest.FILE
    file.write_bytes(content)
    with pytest.raises(BackupDamagedError, match="it is not a backup manifest"):
        platform.restore(force=True)


@pytest.mark.parametrize("version", [None, -1])
def test_a_manifest_without_the_version_of_a_table_is_refused(platform: BackedUp, version: int | None) -> None:
    file = restoring.find(platform.destination).folder / manifest.FILE
    fields = json.loads(file.read_text())
    del fields["tables"]["raw/orders"]
    if version is not None:
        fields["tables"]["raw/orders"] = version
    file.write_text(json.dumps(fields))
    with pytest.raises(BackupDamagedError, match="it does not record the version of table 'raw/orders'"):
        platform.restore("orders", force=True)


def test_a_folder_of_backups_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    with pytest.raises(BackupDamagedError, match="circle"):
        restoring.find(tmp_path / "circle")


def test_a_manifest_of_a_terabyte_is_refused_unread(platform: BackedUp) -> None:
    with (restoring.find(platform.destination).folder / manifest.FILE).open("ab") as opened:
        opened.truncate(1 << 40)
    with pytest.raises(BackupDamagedError, match=r"it has 1,099,511,627,776 bytes, more than"):
        platform.restore(force=True)
