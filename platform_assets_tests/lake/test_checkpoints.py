from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake
from deltalake.transaction import AddAction, RemoveAction

from platform_assets.lake import checkpoints, delta_log
from platform_assets.lake.location import Folder
from platform_assets.lake.redaction import Statistics, redact, without_columns

FILES, REMOVED = 6, 4


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A table of six files, of which four have been removed."""
    path = tmp_path / "table"
    for number in range(FILES):
        write_deltalake(path, pa.table({"n": pa.array([number], pa.int64())}), mode="append")
    delta = DeltaTable(path)
    actions = pa.table(delta.get_add_actions()).sort_by("modification_time").to_pylist()
    removes: list[AddAction | RemoveAction] = [
        RemoveAction(a["path"], False, 1 << 42, a["size_bytes"], {}) for a in actions[:REMOVED]
    ]
    delta.create_write_transaction(
        removes,
        "append",
        delta.schema(),
        commit_properties=CommitProperties(custom_metadata={"userMetadata": "upkeep"}),
    )
    return path


def checkpoint_of(path: Path) -> Path:
    return path / delta_log.checkpoint_name(DeltaTable(path).version())


def entries(checkpoint: Path) -> list[str]:
    return sorted(json.dumps(row, default=str) for row in pq.read_table(checkpoint).to_pylist())


def without_commits(path: Path) -> None:
    """Delete all commits, so that readers depend on the checkpoint."""
    for commit in (path / "_delta_log").glob("*.json"):
        if commit.name != f"{DeltaTable(path).version():020}.json":
            commit.unlink()


def test_removed_files_have_row_groups_of_their_own(table: Path) -> None:
    held = pl.scan_delta(str(table)).collect().sort("n")
    checkpoints.write(Folder.at(table))
    file = pq.ParquetFile(checkpoint_of(table))
    columns = [
        [(rows["add"] is not None, rows["remove"] is not None) for rows in file.read_row_group(group).to_pylist()]
        for group in range(file.num_row_groups)
    ]
    others, removed = columns
    assert removed == [(False, True)] * REMOVED
    assert sorted(others, reverse=True)[: FILES - REMOVED] == [(True, False)] * (FILES - REMOVED)
    assert not any(is_removed for _, is_removed in others)
    without_commits(table)
    assert pl.scan_delta(str(table)).collect().sort("n").equals(held)
    hint = json.loads((table / "_delta_log" / "_last_checkpoint").read_text())
    assert hint["version"] == DeltaTable(table).version()
    assert hint["sizeInBytes"] == checkpoint_of(table).stat().st_size


def test_the_entries_are_those_of_delta_rs(table: Path) -> None:
    checkpoints.write(Folder.at(table))
    divided = checkpoint_of(table)
    found, schema = entries(divided), pq.read_schema(divided)
    divided.unlink()
    (table / "_delta_log" / "_last_checkpoint").unlink()
    DeltaTable(table).create_checkpoint()
    assert found == entries(divided)
    assert schema.equals(pq.read_schema(divided))


def test_a_checkpoint_continues_from_the_previous_one(table: Path) -> None:
    checkpoints.write(Folder.at(table))
    without_commits(table)
    write_deltalake(table, pa.table({"n": pa.array([FILES], pa.int64())}), mode="append")
    checkpoints.write(Folder.at(table))
    without_commits(table)
    assert pl.scan_delta(str(table)).collect()["n"].sort().to_list() == [4, 5, 6]


def test_an_existing_checkpoint_stays(table: Path) -> None:
    DeltaTable(table).create_checkpoint()
    before = checkpoint_of(table).read_bytes()
    checkpoints.write(Folder.at(table))
    assert checkpoint_of(table).read_bytes() == before


def test_a_hint_to_a_newer_checkpoint_stays(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hint = table / "_delta_log" / "_last_checkpoint"
    divided: Callable[[Path], bytes] = checkpoints._divided

    def while_another_writer_makes_one(checkpoint: Path) -> bytes:
        write_deltalake(table, pa.table({"n": pa.array([FILES], pa.int64())}), mode="append")
        DeltaTable(table).create_checkpoint()
        return divided(checkpoint)

    monkeypatch.setattr(checkpoints, "_divided", while_another_writer_makes_one)
    checkpoints.write(Folder.at(table))
    assert json.loads(hint.read_text())["version"] == FILES + 1


def test_after_a_checkpoint_of_several_files_delta_rs_writes_the_next_one(table: Path) -> None:
    DeltaTable(table).create_checkpoint()
    whole, hint = checkpoint_of(table), table / "_delta_log" / "_last_checkpoint"
    content: dict[str, Any] = json.loads(hint.read_text())
    whole.rename(whole.with_name(whole.name.replace(".parquet", ".0000000001.0000000001.parquet")))
    hint.write_text(json.dumps({**content, "parts": 1}))
    without_commits(table)
    write_deltalake(table, pa.table({"n": pa.array([FILES], pa.int64())}), mode="append")
    checkpoints.write(Folder.at(table))
    without_commits(table)
    assert pl.scan_delta(str(table)).collect()["n"].sort().to_list() == [4, 5, 6]


def test_copies_of_killed_processes_are_deleted_by_the_next_checkpoint(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    abandoned, running = (tmp_path / f"{checkpoints._COPY}{name}" for name in ("abandoned", "running"))
    for copy in (abandoned, running):
        (copy / "_delta_log").mkdir(parents=True)
    os.utime(abandoned, (0, 0))
    checkpoints.write(Folder.at(table))
    assert sorted(tmp_path.glob(f"{checkpoints._COPY}*")) == [running]
    assert checkpoint_of(table).exists()


def test_a_copy_has_no_descriptions_of_commits(table: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    sources = list(checkpoints._sources(Folder.at(table), None, DeltaTable(table).version()))
    assert checkpoints._is_copied(Folder.at(table), copy, sources)
    commits = [path.read_text() for path in (copy / "_delta_log").glob("*.json")]
    assert len(commits) == FILES + 1
    assert not any("commitInfo" in commit or "upkeep" in commit for commit in commits)


def erase(path: Path) -> int:
    """Remove the bounds of all columns from the log, as an erasure does."""
    return redact(Folder.at(path), lambda partition, known: without_columns(known, lambda column: True))


def shown(path: Path) -> set[str]:
    """Return the names of log files with bounds of the column `n`."""
    found = set[str]()
    for file in (path / "_delta_log").iterdir():
        if file.suffix in (".json", ".parquet"):
            lines = map(json.loads, file.read_text().splitlines()) if file.suffix == ".json" else rows_of(file)
            actions = [line[kind] for line in lines for kind in ("add", "remove") if line.get(kind)]
            if any(json.loads(action.get("stats") or "{}").get("minValues") for action in actions):
                found.add(file.name)
    return found


def rows_of(checkpoint: Path) -> Iterator[dict[str, Any]]:
    return iter(pq.read_table(checkpoint).to_pylist())


def test_a_checkpoint_of_a_log_that_is_redacted_meanwhile_is_made_again(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, divided = pl.scan_delta(str(table)).collect().sort("n"), checkpoints._divided
    redacted = list[int]()

    def while_values_are_erased(checkpoint: Path) -> bytes:
        found = divided(checkpoint)
        if not redacted:
            redacted.append(erase(table))
        return found

    monkeypatch.setattr(checkpoints, "_divided", while_values_are_erased)
    checkpoints.write(Folder.at(table))
    assert redacted[0] >= FILES
    assert shown(table) == set()
    without_commits(table)
    assert pl.scan_delta(str(table)).collect().sort("n").equals(held)


def test_a_checkpoint_that_appears_during_a_redaction_is_redacted(table: Path) -> None:
    DeltaTable(table).create_checkpoint()
    write_deltalake(table, pa.table({"n": pa.array([FILES], pa.int64())}), mode="append")
    appeared = list[bool]()
    DeltaTable(table).create_checkpoint()
    old, content = checkpoint_of(table), checkpoint_of(table).read_bytes()
    old.unlink()

    def of_file(_: dict[str, str | None], known: Statistics) -> Statistics:
        # Statistics of the first checkpoint are looked at after those of all commits.
        appeared.append(True)
        if len(appeared) > FILES + 1 and not old.exists():
            old.write_bytes(content)
        return without_columns(known, lambda column: True)

    redact(Folder.at(table), of_file)
    assert old.exists()
    assert shown(table) == set()


def test_statistics_of_removed_files_are_redacted_in_checkpoints(table: Path) -> None:
    log = table / "_delta_log"
    adds = [json.loads(line)["add"] for line in (log / f"{5:020}.json").read_text().splitlines() if '"add"' in line]
    remove = {"deletionTimestamp": 1 << 42, "dataChange": True, "extendedFileMetadata": True, "partitionValues": {}}
    remove |= {name: adds[0][name] for name in ("path", "size", "stats")}
    (log / f"{FILES + 1:020}.json").write_text(json.dumps({"remove": remove}) + "\n")
    checkpoints.write(Folder.at(table))
    assert checkpoint_of(table).name in shown(table)
    erase(table)
    assert shown(table) == set()


@pytest.mark.parametrize("by", ["redaction", "checkpoint"])
def test_an_unfinished_checkpoint_of_a_killed_process_is_deleted(table: Path, by: str) -> None:
    left = table / "_delta_log" / f".{3:020}.checkpoint.parquet.{'a' * 32}"
    left.write_bytes(b"values")
    if by == "redaction":
        erase(table)
    else:
        running = left.with_name(left.name[:-1] + "b")
        running.write_bytes(b"values")
        os.utime(left, (0, 0))
        checkpoints.write(Folder.at(table))
        assert running.exists()
    assert not left.exists()


def test_without_space_for_a_copy_delta_rs_writes_the_checkpoint_in_place(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    held, write = pl.scan_delta(str(table)).collect().sort("n"), Path.write_bytes

    def full(self: Path, content: bytes) -> int:
        if checkpoints._COPY in str(self):
            raise OSError(28, "No space left on device")
        return write(self, content)

    monkeypatch.setattr(Path, "write_bytes", full)
    checkpoints.write(Folder.at(table))
    assert "No space left on device" in caplog.text
    without_commits(table)
    assert pl.scan_delta(str(table)).collect().sort("n").equals(held)


def test_any_entry_of_the_temporary_folder_may_have_the_name_of_a_copy(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    loop = tmp_path / f"{checkpoints._COPY}loop"
    loop.symlink_to(loop)
    checkpoints.write(Folder.at(table))
    assert checkpoint_of(table).exists()
