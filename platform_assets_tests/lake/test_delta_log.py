"""Commits read from the log one at a time: they agree with delta-rs, and missing and replaced commits are noticed."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from platform_assets.lake import delta_log, load_log
from platform_assets.lake.failures import LakeNotReadableError
from platform_assets.lake.location import Folder
from testbed.samples import loaded, overwrite, recorded


@pytest.fixture
def table(tmp_path: Path) -> Path:
    for window in recorded(tmp_path, "clicks", [{0: n * 3, 1: n} for n in range(5)]):
        loaded(tmp_path, window)
    return tmp_path / "raw" / "clicks"


def files(table: Path) -> dict[str, tuple[str | None, int, int | None]]:
    """Return files by path, computed from every commit in order."""
    found: dict[str, tuple[str | None, int, int | None]] = {}
    newest = delta_log.newest_version(Folder.at(table))
    assert newest is not None
    for version in range(newest + 1):
        commit = delta_log.commit(Folder.at(table), version)
        assert commit is not None
        for path in commit.removes:
            del found[path]
        found |= {f.path: (f.partition.get("window"), f.bytes, f.rows) for f in commit.adds}
    return found


def by_delta_rs(table: Path) -> dict[str, tuple[str | None, int, int | None]]:
    rows = load_log.file_actions(Folder.at(table)).to_pylist()
    return {r["path"]: (r.get("partition.window"), r["size_bytes"], r["num_records"]) for r in rows}


def test_commits_put_together_are_the_table(table: Path) -> None:
    assert files(table) == by_delta_rs(table)
    (window, *_) = recorded(table.parent.parent, "others", [{0: 0}, {0: 3}])
    overwrite(table.parent.parent, window)
    handle = DeltaTable(table)
    handle.delete("kafka_offset = 4")
    handle.delete("window = '2026-01-01-00:00'")
    assert files(table) == by_delta_rs(table)


def test_versions_are_those_of_delta_rs_with_and_without_checkpoints(table: Path) -> None:
    assert delta_log.newest_version(Folder.at(table)) == DeltaTable(table).version()
    DeltaTable(table).create_checkpoint()
    DeltaTable(table).delete("kafka_offset = 4")
    assert delta_log.newest_version(Folder.at(table)) == DeltaTable(table).version()
    assert delta_log.newest_version(Folder.at(table), at_least=1) == DeltaTable(table).version()
    assert delta_log.newest_version(Folder.at(table / "nothing")) is None


def test_only_what_comes_after_an_anchor_is_read(table: Path) -> None:
    seen = delta_log.newest_anchor(Folder.at(table))
    assert seen is not None
    assert delta_log.commits_after(Folder.at(table), seen) == []
    DeltaTable(table).delete("window = '2026-01-01-00:00'")
    after = delta_log.commits_after(Folder.at(table), seen)
    assert after is not None
    assert [(c.version, len(c.adds), len(c.removes), c.rearranges) for c in after] == [(seen.version + 1, 0, 1, False)]


def test_an_anchor_that_is_gone_or_another_is_no_anchor(table: Path) -> None:
    seen = delta_log.newest_anchor(Folder.at(table))
    assert seen is not None
    entry = table / "_delta_log" / f"{seen.version:020}.json"
    content = entry.read_bytes()
    entry.write_bytes(content.replace(b'"size":', b'"size": '))
    assert delta_log.commits_after(Folder.at(table), seen) is None
    entry.unlink()
    assert delta_log.commits_after(Folder.at(table), seen) is None


def test_folding_files_changes_no_data_and_a_load_does(table: Path) -> None:
    rows = DeltaTable(table).to_pyarrow_table(filters=[("window", "=", "2026-01-01-00:00")])
    write_deltalake(table, rows, mode="append")
    DeltaTable(table).optimize.compact(partition_filters=[("window", "=", "2026-01-01-00:00")])
    newest = delta_log.newest_version(Folder.at(table))
    assert newest is not None
    told = [delta_log.commit(Folder.at(table), v) for v in (newest - 1, newest)]
    assert [c is not None and c.rearranges for c in told] == [False, True]


def test_transactions_of_a_commit_are_told(tmp_path: Path) -> None:
    table = tmp_path / "t"
    for version in (3, 8):
        properties = CommitProperties(app_transactions=[Transaction("a", version), Transaction("b", version + 1)])
        write_deltalake(table, pa.table({"x": [1]}), mode="append", commit_properties=properties)
    first, second = delta_log.commit(Folder.at(table), 0), delta_log.commit(Folder.at(table), 1)
    assert first is not None
    assert second is not None
    assert (first.transactions, second.transactions) == ({"a": 3, "b": 4}, {"a": 8, "b": 9})


def test_a_table_is_there_as_long_as_an_end_of_its_log_is(table: Path) -> None:
    assert not delta_log.exists(Folder.at(table.parent / "another"))
    assert not delta_log.exists(Folder.at(table.parent))
    (table / "file").touch()
    with pytest.raises(LakeNotReadableError, match="Not a directory"):
        delta_log.exists(Folder.at(table / "file" / "table"))
    log = table / "_delta_log"
    first, *later = sorted(log.glob("*.json"))
    first.unlink()
    assert delta_log.exists(Folder.at(table))
    for entry in later:
        entry.unlink()
    assert not delta_log.exists(Folder.at(table))


def test_a_table_of_a_checkpoint_alone_is_one(table: Path) -> None:
    DeltaTable(table).create_checkpoint()
    log = table / "_delta_log"
    for entry in log.glob("*.json"):
        entry.unlink()
    assert delta_log.exists(Folder.at(table))
