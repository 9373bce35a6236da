"""Failures of a lake become platform errors with the location and the fix; the tests really cause each failure."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from platform_assets.errors import (
    CommitOutcomeUnknownError,
    FilesLostError,
    LakeNotWritableError,
    LakeUnavailableError,
    PlatformError,
    TableRefusedError,
)
from platform_assets.lake import delta_log, holdings, load_log, raw_table, rows
from platform_assets.lake.commits import WindowCommit
from platform_assets.lake.failures import (
    BucketMissingError,
    LakeNotReadableError,
    TableDamagedError,
    TableGoneError,
    TableUnsupportedError,
    WriteOutcomeUnknownError,
    to_platform_error,
)
from platform_assets.lake.load_log import LoadMetadata
from platform_assets.lake.location import Folder, Lake
from platform_assets.ledger import newest_cuts, unloaded
from platform_assets.ledger.store import Ledger
from platform_assets.model.offsets import OffsetRange
from platform_assets.model.tables import TableRef
from platform_assets.windows.recover.rebuild import rebuild
from platform_assets_tests.support.shell import DAGSTER_WARNINGS, Shell
from platform_assets_tests.support.variants import long_after
from testbed.loads import numbered, whole
from testbed.samples import edge, hourly, loaded, recorded

if TYPE_CHECKING:
    from platform_assets_tests.conftest import LakeMaker

pytestmark = [*map(pytest.mark.filterwarnings, DAGSTER_WARNINGS)]

TOPIC = "clicks"
TABLE = TableRef.raw(TOPIC)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return the root of a lake whose topic has three windows, all loaded."""
    recorded(tmp_path, TOPIC, [{0: n * 10} for n in range(3)])
    ledger = Ledger(Lake.at(tmp_path))
    assert ledger.record_cuts(hourly(TOPIC, [{0: n * 10} for n in range(4)])[3:], edge(2))
    for window in ledger.windows(TOPIC):
        loaded(tmp_path, window)
    return tmp_path


# --- ways to damage a table ----------------------------------------------------------------------------------------


def log_of(table: Path, version: int) -> Path:
    return table / "_delta_log" / f"{version:020}.json"


def no_json(table: Path) -> None:
    log_of(table, 1).write_text('{"add": {"path"')


def no_action(table: Path) -> None:
    log_of(table, 1).write_text('["add"]\n')


def missing_commit(table: Path) -> None:
    log_of(table, 1).unlink()


def missing_checkpoint(table: Path) -> None:
    DeltaTable(table).create_checkpoint()
    for file in (table / "_delta_log").glob("*.checkpoint.parquet"):
        file.unlink()


def damaged_checkpoint(table: Path) -> None:
    DeltaTable(table).create_checkpoint()
    for file in (table / "_delta_log").glob("*.checkpoint.parquet"):
        file.write_bytes(b"PAR1 and no more")


def unknown_feature(table: Path) -> None:
    features = ["columnMapping", "ofTheFuture"]
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": features, "writerFeatures": features}
    newest = DeltaTable(table).version() + 1
    log_of(table, newest).write_text(json.dumps({"protocol": protocol}) + "\n")


def unknown_reader_version(table: Path) -> None:
    newest = DeltaTable(table).version() + 1
    log_of(table, newest).write_text(json.dumps({"protocol": {"minReaderVersion": 9, "minWriterVersion": 9}}) + "\n")


def log_is_a_file(table: Path) -> None:
    shutil.rmtree(table / "_delta_log")
    (table / "_delta_log").write_text("a file")


def log_leads_round(table: Path) -> None:
    newest = log_of(table, DeltaTable(table).version() + 1)
    newest.symlink_to(newest.name)


def log_cannot_be_read_now(table: Path) -> None:
    """The operating system returns EIO, as for a failing disk."""
    newest = log_of(table, DeltaTable(table).version() + 1)
    newest.symlink_to("/proc/self/mem")


DAMAGES = [
    pytest.param(no_json, TableDamagedError, "is damaged", id="no JSON"),
    pytest.param(no_action, TableDamagedError, "is damaged", id="no action"),
    pytest.param(missing_commit, TableDamagedError, "is damaged: .*found gap", id="missing commit"),
    pytest.param(missing_checkpoint, TableDamagedError, "is damaged: .*checkpoint", id="missing checkpoint"),
    pytest.param(damaged_checkpoint, TableDamagedError, "is damaged: .*Parquet", id="damaged checkpoint"),
    pytest.param(unknown_feature, TableUnsupportedError, "ofTheFuture.*DROP FEATURE", id="unknown feature"),
    pytest.param(unknown_reader_version, TableUnsupportedError, "reader version 9", id="unknown reader version"),
    pytest.param(log_is_a_file, LakeNotReadableError, "Not a directory.*LAKE_ROOT", id="log is a file"),
    pytest.param(log_leads_round, LakeNotReadableError, "symbolic links", id="log leads round"),
]
Damage = Callable[[Path], None]


@pytest.mark.parametrize(("damage", "error", "says"), DAMAGES)
def test_a_table_that_cannot_be_read_is_named_with_the_way_on(
    root: Path, damage: Damage, error: type[PlatformError], says: str
) -> None:
    table = root / "raw" / TOPIC
    damage(table)
    for read in (
        lambda: holdings.actions(Folder.at(table)),
        lambda: rows.offsets_of(Folder.at(table), "2026-01-01-00:00"),
    ):
        with pytest.raises(error, match=says) as e:
            read()
        assert str(table) in str(e.value)
        assert "\n" not in str(e.value)
    if error is TableDamagedError:
        assert "load its windows again" in str(e.value)


@pytest.mark.parametrize(("damage", "error", "says"), DAMAGES)
@pytest.mark.parametrize("ledger", long_after(1, ["cuts", "commits"]))
def test_a_ledger_that_cannot_be_read_is_named_with_the_way_on(
    root: Path, ledger: str, damage: Damage, error: type[PlatformError], says: str
) -> None:
    damage(root / "_ledger" / ledger)
    newest_cuts.of.cache_clear()
    found = Ledger(Lake.at(root))
    if ledger == "cuts":
        calls: list[Callable[[], object]] = [
            lambda: found.cuts(TOPIC),
            lambda: found.window(TOPIC, "2026-01-01-00:00"),
            lambda: found.record_cuts(hourly(TOPIC, [{0: n * 10} for n in range(5)])[4:], edge(3)),
        ]
    else:
        calls = [
            lambda: found.receipts(TABLE),
            lambda: unloaded.find(found, TABLE, edge(3)),
            lambda: found.record_acceptance(found.windows(TOPIC)[0], {0: [OffsetRange(0, 1)]}, "because"),
        ]
    for call in calls:
        with pytest.raises(error) as e:
            call()
        assert str(root / "_ledger" / ledger) in str(e.value)
    if error is TableDamagedError:
        assert "rebuild-ledger" in str(e.value)


@pytest.mark.parametrize(("damage", "error", "says"), long_after(3, DAMAGES))
def test_a_command_ends_with_one_line_and_an_exit_code(
    root: Path, tmp_path_factory: pytest.TempPathFactory, damage: Damage, error: type[PlatformError], says: str
) -> None:
    shell = Shell(tmp_path_factory.mktemp("project"), {"LAKE_ROOT": str(root)})
    shell.declare(TOPIC)
    assert shell.run("rebuild-ledger").exit_code == 0
    damage(root / "_ledger" / "commits")
    for command in (["status"], ["rebuild-ledger"], ["audit", TOPIC]):
        result = shell.run(*command)
        assert result.exit_code in (1, 2), (command, result.output, result.exception)
        assert isinstance(result.exception, SystemExit)
        assert "Traceback" not in result.output
        assert str(root / "_ledger" / "commits") in result.output


def test_a_hint_that_cannot_be_read_is_done_without(root: Path) -> None:
    for place in (root / "raw" / TOPIC, root / "_ledger" / "cuts"):
        DeltaTable(place).create_checkpoint()
        (place / "_delta_log" / "_last_checkpoint").write_text("{no")
        assert delta_log.newest_version(Folder.at(place)) == DeltaTable(place).version()
    assert len(Ledger(Lake.at(root)).windows(TOPIC)) == 3


def test_a_table_that_is_gone_is_said_to_be(root: Path) -> None:
    table = Folder.at(root / "raw" / TOPIC)
    shutil.rmtree(table.path)
    for read in (
        lambda: load_log.version(table),
        lambda: holdings.actions(table),
        lambda: rows.offsets_of(table, "w"),
    ):
        with pytest.raises(TableGoneError, match=f"no Delta table at {table}: .*load its windows again"):
            read()


def test_what_passes_may_be_tried_again(root: Path) -> None:
    table = Folder.at(root / "raw" / TOPIC)
    log_cannot_be_read_now(table.path)
    with pytest.raises(LakeUnavailableError, match=r"Input/output error.*run it again"):
        delta_log.commit(table, delta_log.newest_version(table) or 0)


@pytest.mark.parametrize(
    "damage", [Path.unlink, lambda file: file.write_bytes(b"PAR1"), lambda file: os.truncate(file, 200)]
)
def test_a_data_file_that_is_gone_or_no_parquet_is_named_by_its_window_or_its_ledger(
    root: Path, damage: Callable[[Path], None]
) -> None:
    table = root / "raw" / TOPIC
    for path in DeltaTable(table).file_uris():
        damage(Path(path))
    with pytest.raises(FilesLostError, match=f"window 2026-01-01-00:00 of raw/{TOPIC} are missing or damaged"):
        rows.offsets_of(Folder.at(table), "2026-01-01-00:00")
    for path in DeltaTable(root / "_ledger" / "commits").file_uris():
        damage(Path(path))
    with pytest.raises(TableDamagedError, match=r"_ledger/commits is damaged.*rebuild-ledger"):
        Ledger(Lake.at(root)).receipts(TABLE)


# --- writing -------------------------------------------------------------------------------------------------------


@pytest.fixture
def read_only() -> Iterator[Callable[[Path], None]]:
    """Make a folder read-only for every user until the test ends."""
    made: list[Path] = []

    def make(folder: Path) -> None:
        if os.geteuid():
            folder.chmod(0o500)
        elif subprocess.run(["chattr", "+i", str(folder)], capture_output=True, check=False).returncode:
            pytest.skip("this file system knows no folder that root cannot write to")
        made.append(folder)

    yield make
    for folder in made:
        if os.geteuid():
            folder.chmod(0o700)
        else:
            subprocess.run(["chattr", "-i", str(folder)], check=True)


def fill(file: Path) -> None:
    """Write to `file` until its disk has less than a page of free space."""
    with file.open("wb", buffering=0) as rest, suppress(OSError):
        while True:
            rest.write(bytes(4096))


@pytest.fixture
def full(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Path], Path]]:
    """Copy a lake to a separate disk and fill that disk."""
    disk = tmp_path_factory.mktemp("small disk")
    if (
        os.geteuid()
        or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(disk)], check=False).returncode
    ):
        pytest.skip("mounting a small disk needs root")

    def copy(root: Path) -> Path:
        shutil.copytree(root, disk / "lake")
        fill(disk / "rest")
        return disk / "lake"

    yield copy
    subprocess.run(["umount", str(disk)], check=True)


def metadata(root: Path) -> LoadMetadata:
    window = Ledger(Lake.at(root)).windows(TOPIC)[0]
    return LoadMetadata(TOPIC, window.topic_id, 1, window.window, window.ranges, "another load", "run")


def test_a_lake_that_refuses_writes_is_named_wherever_something_is_written(
    root: Path, read_only: Callable[[Path], None]
) -> None:
    table, ledger = Lake.at(root).table(TABLE), Ledger(Lake.at(root))
    opened, windows = WindowCommit(Lake.at(root), TABLE), ledger.windows(TOPIC)
    receipts = list(ledger.receipts(TABLE).values())
    ledgers = (root / "_ledger" / "cuts", root / "_ledger" / "commits")
    for folder in (*(path / "_delta_log" for path in (table.path, *ledgers)), root / "raw", root):
        read_only(folder)
    for write in (
        lambda: opened.replace(metadata(root), ()),
        lambda: ledger.record_receipts(receipts),
        lambda: ledger.record_acceptance(windows[0], {0: [OffsetRange(0, 1)]}, "because"),
        lambda: ledger.record_cuts(hourly(TOPIC, [{0: n * 10} for n in range(5)])[4:], edge(3)),
        lambda: raw_table.create(Folder.at(root / "raw" / "other"), "other"),
        lambda: Folder.at(root / "_audits").write("a.json", b"{}"),
    ):
        with pytest.raises(
            LakeNotWritableError, match=r"cannot be written at .*(Operation not permitted|Permission denied).*LAKE_ROOT"
        ):
            write()


def test_a_full_disk_is_named_and_what_was_written_is_not_in_the_table(
    root: Path, full: Callable[[Path], Path]
) -> None:
    opened_at = DeltaTable(root / "raw" / TOPIC).version()
    root = full(root)
    ledger = Ledger(Lake.at(root))
    opened, receipts = WindowCommit(Lake.at(root), TABLE), list(ledger.receipts(TABLE).values())
    for write in (
        lambda: opened.replace(metadata(root), ()),
        lambda: ledger.record_receipts(receipts),
        lambda: ledger.record_cuts(hourly(TOPIC, [{0: n * 10} for n in range(5)])[4:], edge(3)),
        lambda: raw_table.create(Folder.at(root / "raw" / "other"), "other"),
        lambda: Folder.at(root / "_audits").write("a.json", bytes(1 << 20)),
    ):
        with pytest.raises(LakeNotWritableError, match=r"No space left on device.*Free some space"):
            write()
    assert DeltaTable(root / "raw" / TOPIC).version() == opened_at
    assert ledger.newest_edges([TOPIC]) == {TOPIC: edge(3)}
    assert list(ledger.receipts(TABLE).values()) == receipts


def test_a_command_on_a_full_disk_ends_with_one_line(
    root: Path, full: Callable[[Path], Path], tmp_path_factory: pytest.TempPathFactory
) -> None:
    lake = full(root)
    shell = Shell(tmp_path_factory.mktemp("project"), {"LAKE_ROOT": str(lake)})
    shell.declare(TOPIC)
    shutil.rmtree(lake / "_ledger")
    fill(lake.parent / "more")
    result = shell.run("rebuild-ledger")
    assert result.exit_code == 1
    assert f"cannot be written at {lake}/_ledger" in result.output
    assert "Free some space" in result.output


@pytest.mark.parametrize("error", [DeltaError("who knows"), OSError(errno.EIO, "Input/output error")])
def test_a_write_that_may_have_been_made_is_no_write_that_was_not(
    root: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    ledger = Ledger(Lake.at(root))
    window = ledger.windows(TOPIC)[0]

    def broken(*_: object, **__: object) -> None:
        raise error

    opened = WindowCommit(Lake.at(root), TABLE)
    monkeypatch.setattr(DeltaTable, "create_write_transaction", broken)
    with pytest.raises(CommitOutcomeUnknownError, match="The window may or may not be in the table"):
        opened.replace(metadata(root), ())
    for module in ("appending", "recording"):
        monkeypatch.setattr(f"platform_assets.ledger.{module}.write_deltalake", broken)
    for write in (
        lambda: ledger.record_receipts(list(ledger.receipts(TABLE).values())),
        lambda: ledger.record_cuts(hourly(TOPIC, [{0: n * 10} for n in range(5)])[4:], edge(3)),
    ):
        with pytest.raises(WriteOutcomeUnknownError, match=r"may or may not have taken effect. Run it again"):
            write()
    assert window.window.key in ledger.receipts(TABLE)


def test_a_commit_whose_log_cannot_be_read_afterwards_may_have_been_made(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = WindowCommit(Lake.at(root), TABLE)
    commit = DeltaTable.create_write_transaction

    def answer_lost(*given: object, **more: object) -> None:
        commit(*given, **more)  # type: ignore[arg-type]
        no_json(root / "raw" / TOPIC)
        log_of(root / "raw" / TOPIC, DeltaTable(root / "raw" / TOPIC, version=0).version() + 4).write_text("{")
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(DeltaTable, "create_write_transaction", answer_lost)
    with pytest.raises(CommitOutcomeUnknownError, match="is not a Delta commit"):
        opened.replace(metadata(root), ())


def test_a_feature_that_only_writers_need_refuses_the_commit(root: Path) -> None:
    table = root / "raw" / TOPIC
    protocol = {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["rowTracking", "domainMetadata"]}
    log_of(table, DeltaTable(table).version() + 1).write_text(json.dumps({"protocol": protocol}) + "\n")
    with pytest.raises(TableRefusedError, match=r"RowTracking.*DROP FEATURE"):
        WindowCommit(Lake.at(root), TABLE).replace(metadata(root), ())


@pytest.mark.broker
@pytest.mark.spark
@pytest.mark.parametrize("damage", [no_json, missing_checkpoint])
def test_the_ways_back_that_errors_name_work(lake: LakeMaker, damage: Damage) -> None:
    lk = lake()
    keys = [lk.window_of(numbered(5)), lk.window_of(numbered(3))]
    for key in keys:
        lk.load(key)
    before = lk.rows()
    damage(lk.table)
    for key in keys:
        with pytest.raises(TableDamagedError, match="move the folder away and load its windows again"):
            lk.load(key)
    lk.table.rename(lk.root / "moved away")
    assert [lk.load(key).outcome for key in keys] == ["healed", "healed"]
    assert whole(lk.rows()) == whole(before)
    damage(lk.root / "_ledger" / "commits")
    with pytest.raises(TableDamagedError, match="move it away and run `platform-assets rebuild-ledger`"):
        lk.load(keys[0])
    (lk.root / "_ledger").rename(lk.root / "ledger moved away")
    assert rebuild(lk.declaration, lk.ledger, lk.engine).receipts == 2
    assert [lk.load(key).outcome for key in keys] == ["unchanged", "unchanged"]


@pytest.mark.parametrize("writes", [False, True])
@pytest.mark.parametrize(
    "error",
    [
        OSError(
            "Generic S3 error\n  \x1b[31m↳\x1b[0m Error performing GET http://127.0.0.1:1/none?list-type=2 in 6ms - Server returned "
            "non-2xx status code\n  404 Not Found\n  <Error><Code>NoSuchBucket</Code><Message>no</Message></Error>"
        ),
        OSError(errno.EIO, "the store answers 404 Not Found, NoSuchBucket", "s3://none/lake/raw/"),
    ],
)
def test_a_bucket_that_is_missing_is_named_and_nobody_is_told_to_try_again(error: OSError, writes: bool) -> None:
    named = to_platform_error(error, "s3://none/lake/raw", writes=writes)
    assert isinstance(named, BucketMissingError)
    assert "the object store does not have the bucket 'none'" in str(named)
    assert "run it again" not in str(named)
