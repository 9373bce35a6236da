"""Backups of a lake in an object store: to a folder, and from there restored to a store or to a folder. No Kafka, no
Spark."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from platform_assets.backup import restoring, taking
from platform_assets.backup.failures import (
    BackupDamagedError,
    BackupInterruptedError,
    RestoreHalfDoneError,
    RestoreInterruptedError,
)
from platform_assets.backup.taking import BackupResult
from platform_assets.errors import ConfigurationError
from platform_assets.lake.location import Lake
from platform_assets.lake.object_files import ObjectFiles
from platform_assets.ledger.entries import SealedWindow
from platform_assets.model.tables import TableRef
from platform_assets_tests.support.erasures import MadeTopic, proved
from testbed.object_store import ObjectStore

pytestmark = pytest.mark.cluster

RAW = TableRef.raw("people")


@dataclass
class BackedUp:
    """A topic, loaded and decoded, together with a Dagster home and a backup folder."""

    made: MadeTopic
    home: Path
    destination: Path
    now: datetime = datetime(2026, 1, 2, tzinfo=UTC)

    def take(self) -> BackupResult:
        self.now += timedelta(hours=1)
        return taking.take(self.made.lake, self.home, self.destination, self.now)

    def restore(self, *only: str, lake: Lake | None = None, **more: Any) -> restoring.Restored:
        found = restoring.find(self.destination)
        return restoring.restore(found, lake or self.made.lake, self.home, only, **more)

    @property
    def state(self) -> tuple[Any, ...]:
        """Return everything that a restore has to bring back."""
        m = self.made
        receipts = {k: (r.load_id, r.table_version) for k, r in m.receipts().items()}
        return m.values(), m.values("decoded"), m.values("dead_letters"), receipts, m.ledger.cuts(m.topic)

    @property
    def objects(self) -> dict[str, bytes]:
        """Return all objects below the lake's root in the store."""
        return {p.relative_to(self.made.root).as_posix(): p.read_bytes() for p in files_below(self.made.root)}


def files_below(folder: Path) -> list[Path]:
    return sorted(p for p in folder.rglob("*") if p.is_file())


def sealed(made: MadeTopic, windows: int) -> list[SealedWindow]:
    """Seal this many windows without loading them. Each window has one record that can be decoded, and one that cannot."""
    return made.seal([{0: [(b"k", b"value-%d" % n), (b"k", b"\xff")]} for n in range(windows)])


@pytest.fixture
def made(store: ObjectStore) -> MadeTopic:
    """Return a topic without records whose lake is in the store."""
    name = f"lake-{uuid.uuid4().hex[:12]}"
    return MadeTopic(store.bucket / name, address=store.root(name))


@pytest.fixture
def backed_up(made: MadeTopic, tmp_path: Path) -> BackedUp:
    """Return three windows, all loaded and decoded, of which no backup exists yet."""
    made.fill(sealed(made, 3))
    (tmp_path / "dagster").mkdir()
    (tmp_path / "dagster" / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    return BackedUp(made, tmp_path / "dagster", tmp_path / "backups")


def test_a_lost_lake_is_restored_as_it_was(backed_up: BackedUp) -> None:
    wanted, objects = backed_up.state, backed_up.objects
    taken = backed_up.take()
    assert taken.copied == len(taken.manifest.files)
    backed_up.made.lake.root.delete()
    shutil.rmtree(backed_up.home)
    assert not backed_up.objects
    done = backed_up.restore()
    assert done.forgotten == {}
    assert backed_up.state == wanted
    # Omitted: notes that may be deleted at any time, and the pointer to a checkpoint.
    left_out = {name for name in objects if "/baselines/" in name or name.endswith("_last_checkpoint")}
    assert backed_up.objects == {n: c for n, c in objects.items() if n not in left_out}
    assert (backed_up.home / "dagster.yaml").is_file()
    proved(backed_up.made)


def test_a_later_backup_copies_what_is_new_and_one_after_a_restore_nothing(made: MadeTopic, tmp_path: Path) -> None:
    before, after = sealed(made, 2)
    made.fill([before])
    backed_up = BackedUp(made, tmp_path / "dagster", tmp_path / "backups")
    backed_up.take()
    assert backed_up.take().copied == 0
    made.lake.table(RAW).write("_delta_log/_note.json", b"{}")  # not a file of the table
    made.load(before)
    assert backed_up.take().copied == 0
    had = {*backed_up.objects}
    made.fill([after])
    new = {name for name in {*backed_up.objects} - had if "/baselines/" not in name}
    taken = backed_up.take()
    assert taken.copied == len(new)
    assert new <= {file.place for file in taken.manifest.files}
    made.lake.root.delete()
    backed_up.restore("ledger", "people", "decoded/people", "dead_letters/people")
    assert backed_up.take().copied == 0


def test_what_is_there_goes_only_by_force_and_no_file_is_sent_that_is_there(backed_up: BackedUp) -> None:
    backed_up.take()
    wanted = backed_up.state
    data = [p for p in files_below(backed_up.made.root / "raw") if p.suffix == ".parquet"]
    before = {p: p.stat().st_ino for p in data}
    backed_up.made.lake.table(RAW).write("stray.parquet", b"PAR1")
    with pytest.raises(ConfigurationError, match=r"ledger, dead_letters/people.* would be replaced.*--force"):
        backed_up.restore()
    backed_up.restore(force=True)
    assert backed_up.state == wanted
    assert {p: p.stat().st_ino for p in data} == before
    assert "raw/people/stray.parquet" not in backed_up.objects


def test_a_table_that_is_restored_alone_has_later_windows_asked_for_again(made: MadeTopic, tmp_path: Path) -> None:
    before, after = sealed(made, 2)
    made.fill([before])
    backed_up = BackedUp(made, tmp_path / "dagster", tmp_path / "backups")
    backed_up.take()
    made.fill([after])
    values = made.values()
    made.lake.table(RAW).delete()
    done = backed_up.restore("people")
    assert done.forgotten == {"raw/people": (after.key,)}
    assert list(made.receipts()) == [before.key]
    assert made.load(after).outcome == "loaded"
    assert made.values() == values


@pytest.mark.parametrize("to_store", [True, False], ids=["from a folder to a store", "from a store to a folder"])
def test_a_lake_moves_by_a_backup(store: ObjectStore, tmp_path: Path, to_store: bool) -> None:
    name = f"lake-{uuid.uuid4().hex[:12]}"
    addresses: list[tuple[Path, str | None]] = [(tmp_path / "lake", None), (store.bucket / name, store.root(name))]
    (origin, there), (target, here) = addresses if to_store else reversed(addresses)
    made = MadeTopic(origin, address=there)
    made.fill(sealed(made, 2))
    backed_up = BackedUp(made, tmp_path / "dagster", tmp_path / "backups")
    backed_up.take()
    backed_up.restore(lake=Lake.at(here or target))
    moved = MadeTopic(target, address=here, records=made.records)
    assert BackedUp(moved, backed_up.home, backed_up.destination).state == backed_up.state
    assert [moved.load(w).outcome for w in moved.ledger.windows("people")] == ["unchanged", "unchanged"]
    proved(moved)


def test_a_damaged_backup_is_noticed_before_anything_is_changed(backed_up: BackedUp) -> None:
    taken, before = backed_up.take(), backed_up.objects
    damaged = next(f for f in taken.manifest.files if f.path.endswith(".parquet"))
    (taken.folder / damaged.path).write_bytes(b"")
    with pytest.raises(BackupDamagedError, match="Nothing was restored or changed"):
        backed_up.restore(force=True)
    assert backed_up.objects == before


def failing_at(part: str) -> Callable[..., None]:
    """Return a version of `ObjectFiles.send` that fails for names containing `part`, as if the store did not answer."""
    send = ObjectFiles.send

    def refused(files: ObjectFiles, name: str, pieces: Iterable[bytes], size: int) -> None:
        if part in name:
            raise OSError(5, "the store does not answer", name)
        send(files, name, pieces, size)

    return refused


@pytest.mark.parametrize(
    "part", [".parquet", "decoded/people/_delta_log", "raw/people/_delta_log", "_ledger/commits/_delta_log"]
)
@pytest.mark.parametrize("all_gone", [True, False], ids=["all is gone", "a newer lake is there"])
def test_a_restore_that_was_cut_short_is_whole_once_it_is_run_again(
    made: MadeTopic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str, all_gone: bool
) -> None:
    before, after = sealed(made, 2)
    made.fill([before])
    backed_up = BackedUp(made, tmp_path / "dagster", tmp_path / "backups")
    wanted = backed_up.state
    backed_up.take()
    if all_gone:
        made.lake.root.delete()
    else:
        made.fill([after])
        next(p for p in files_below(made.root / "raw") if p.suffix == ".parquet").unlink()
        # Make each log differ from the existing one.
        monkeypatch.setattr("platform_assets.backup.restoring._is_there", lambda log, stamps: False)
    receipts = {} if all_gone else made.receipts()
    with monkeypatch.context() as patched:
        patched.setattr(ObjectFiles, "send", failing_at(part))
        with pytest.raises(
            RestoreInterruptedError, match=r"does not answer.*run the same restore again with `--force`"
        ):
            backed_up.restore(force=True)
    if part == ".parquet":
        # No log was touched.
        assert made.receipts() == receipts
    else:
        # Receipts are restored last: a window with a receipt has its rows.
        assert made.receipts() == {}
    # Otherwise it would be the newest one, and the next restore would use it.
    with pytest.raises(BackupInterruptedError, match=r"an earlier restore into .* did not finish.*--force"):
        backed_up.take()
    backed_up.restore(force=True)
    assert backed_up.state == wanted
    proved(made)
    backed_up.take()


def test_what_was_damaged_since_it_was_compared_replaces_nothing(
    backed_up: BackedUp, monkeypatch: pytest.MonkeyPatch
) -> None:
    another, taken, wanted = backed_up.take(), backed_up.take(), backed_up.state
    objects = backed_up.objects
    (commit,) = (f for f in taken.manifest.files if f.place == f"raw/people/_delta_log/{0:020}.json")
    monkeypatch.setattr("platform_assets.backup.restoring._is_there", lambda log, stamps: False)
    monkeypatch.setattr("platform_assets.backup.restoring.StorePlace.take", lambda place: iter(place.files))
    # Not changed in place: both backups share the file.
    (taken.folder / commit.path).unlink()
    (taken.folder / commit.path).write_bytes(b"{}")
    with pytest.raises(RestoreHalfDoneError, match="Restore another backup with `--force`"):
        backed_up.restore(force=True)
    # Logs were removed first, and nothing of this one was sent.
    assert commit.place in objects
    assert commit.place not in backed_up.objects
    restoring.restore(restoring.find(another.folder), backed_up.made.lake, backed_up.home, force=True)
    assert backed_up.state == wanted
    proved(backed_up.made)


def test_logs_that_are_there_are_left_alone(backed_up: BackedUp) -> None:
    backed_up.take()
    wanted = backed_up.state
    logs = {n: (backed_up.made.root / n).stat().st_ino for n in backed_up.objects if n.endswith(".json")}
    gone = next(p for p in files_below(backed_up.made.root / "raw") if p.suffix == ".parquet")
    gone.unlink()
    backed_up.restore("people", force=True)
    assert gone.is_file()
    assert {n: (backed_up.made.root / n).stat().st_ino for n in logs} == logs
    assert backed_up.state == wanted


def test_a_file_that_is_gone_leaves_no_backup(backed_up: BackedUp) -> None:
    next(p for p in files_below(backed_up.made.root / "raw") if p.suffix == ".parquet").unlink()
    with pytest.raises(BackupInterruptedError, match="a file of raw/people no longer exists, although version"):
        backed_up.take()
    assert taking.backups(backed_up.destination) == []
