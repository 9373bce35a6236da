"""Commits that replace one window each. Of two concurrent commits to the same window, only one succeeds; commits to
different windows both succeed; no row is duplicated."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake

from platform_assets.errors import CommitOutcomeUnknownError, ConcurrentLoadError, FilesLostError, TableRefusedError
from platform_assets.lake import data_files, delta_log, holdings, load_log, raw_table
from platform_assets.lake.commits import WindowCommit
from platform_assets.lake.data_files import NewFile
from platform_assets.lake.load_log import LoadMetadata
from platform_assets.lake.location import Lake, load_folder
from platform_assets.ledger.entries import SealedWindow
from platform_assets.model.tables import TableRef
from platform_assets.model.windows import key_of
from testbed.layouts import Layout
from testbed.samples import edge, rows, sealed

TABLE = TableRef.raw("t")


@pytest.fixture
def lake(layout: Layout, tmp_path: Path) -> Lake:
    made = Lake.at(tmp_path)
    raw_table.create(made.table(TABLE), TABLE.topic)
    return made


def window(number: int) -> SealedWindow:
    return sealed("t", key_of(edge(number)), p0=(number * 10, number * 10 + 10))


def metadata(of: SealedWindow, load_id: str) -> LoadMetadata:
    return LoadMetadata(of.topic, of.topic_id, 1, of.window, of.ranges, load_id=load_id, run_id="r")


def files(lake: Lake, of: SealedWindow, load_id: str, count: int = 10) -> tuple[NewFile, ...]:
    """Write the first `count` rows of a window as an engine does."""
    below = load_folder(of.key, load_id)
    folder = lake.table(TABLE)
    (folder / below).make()
    start = of.ranges.by_partition[0].start
    found = in_files(lake, rows(of.key, {0: range(start, start + count)}))
    pq.write_table(found, folder.path / below / "part-0.parquet", row_group_size=4)
    return data_files.written_files(folder, below)


def in_files(lake: Lake, found: pa.Table) -> pa.Table:
    """Return rows with the columns that the table's files have."""
    return found if holdings.is_flat(lake.table(TABLE).delta()) else found.drop_columns(["window"])


def held(lake: Lake) -> dict[str, int]:
    """Return the table's rows by window, as read by an independent reader."""
    found = lake.table(TABLE).delta().to_pyarrow_table()
    counts = found.group_by("window").aggregate([("kafka_offset", "count")])
    return dict(zip(counts["window"].to_pylist(), counts["kafka_offset_count"].to_pylist(), strict=True))


def test_a_window_is_replaced_and_the_others_stay(lake: Lake) -> None:
    for number, count in ((0, 10), (1, 7), (0, 3)):
        made = WindowCommit(lake, TABLE).replace(
            metadata(window(number), f"load {count}"), files(lake, window(number), f"{count}", count)
        )
        assert made.metadata.load_id == f"load {count}"
        assert made.adds is not None
        assert [f.rows for f in made.adds] == [count]
    assert held(lake) == {window(0).key: 3, window(1).key: 7}
    assert [c.version for c in load_log.load_commits(lake.table(TABLE))] == [3, 2, 1]


def test_no_files_are_a_commit_too(lake: Lake) -> None:
    WindowCommit(lake, TABLE).replace(metadata(window(0), "a"), files(lake, window(0), "a"))
    made = WindowCommit(lake, TABLE).replace(metadata(window(0), "b"), ())
    assert (made.version, made.adds, held(lake)) == (2, (), {})


def test_of_two_first_loads_of_one_window_the_second_is_refused(lake: Lake) -> None:
    """Neither load removes anything, so delta-rs sees no conflict in the log; its own retries would commit both loads."""
    one, other = WindowCommit(lake, TABLE), WindowCommit(lake, TABLE)
    one.replace(metadata(window(0), "a"), files(lake, window(0), "a"))
    with pytest.raises(ConcurrentLoadError, match=window(0).key):
        other.replace(metadata(window(0), "b"), files(lake, window(0), "b"))
    assert held(lake) == {window(0).key: 10}


def test_a_load_without_rows_is_a_conflict_too(lake: Lake) -> None:
    one, other = WindowCommit(lake, TABLE), WindowCommit(lake, TABLE)
    one.replace(metadata(window(0), "a"), ())
    with pytest.raises(ConcurrentLoadError):
        other.replace(metadata(window(0), "b"), files(lake, window(0), "b"))


def test_loads_of_other_windows_in_between_are_no_conflict(lake: Lake) -> None:
    first = WindowCommit(lake, TABLE)
    for number in (1, 2, 3):
        WindowCommit(lake, TABLE).replace(metadata(window(number), "x"), files(lake, window(number), f"{number}"))
    assert first.replace(metadata(window(0), "a"), files(lake, window(0), "a")).version == 4
    assert set(held(lake).values()) == {10}
    assert len(held(lake)) == 4


def delete(table: DeltaTable, key: str) -> None:
    table.delete(f"window = '{key}' AND kafka_offset = 3")


def append(table: DeltaTable, key: str) -> None:
    write_deltalake(table, rows(key, {0: [3]}), mode="append")


def optimize(table: DeltaTable, key: str) -> None:
    append(table, key)
    table.optimize.compact(partition_filters=[("window", "=", key)])


@pytest.mark.parametrize("change", [delete, append, optimize])
def test_a_change_by_others_to_the_window_is_a_conflict(lake: Lake, change: Callable[[DeltaTable, str], None]) -> None:
    WindowCommit(lake, TABLE).replace(metadata(window(0), "a"), files(lake, window(0), "a"))
    late = WindowCommit(lake, TABLE)
    change(lake.table(TABLE).delta(), window(0).key)
    with pytest.raises(ConcurrentLoadError):
        late.replace(metadata(window(0), "b"), files(lake, window(0), "b"))


def test_a_load_deletes_what_dead_loads_of_its_window_have_left(lake: Lake) -> None:
    of, other = window(1), window(2)
    WindowCommit(lake, TABLE).replace(metadata(of, "first"), files(lake, of, "first"))
    for dead in ("dead-1", "dead-2"):
        files(lake, of, dead)
    files(lake, other, "at-work")
    WindowCommit(lake, TABLE).replace(metadata(of, "second"), files(lake, of, "second"))

    left = {path.parent.name for path in lake.table(TABLE).path.rglob("*.parquet") if "_delta_log" not in path.parts}
    assert left == {"first", "second", "at-work"}
    past = lake.table(TABLE).delta(1).to_pyarrow_table()
    assert past.num_rows == 10, "a past version can still be read"


def test_a_load_deletes_what_its_own_tasks_have_left_that_spark_ran_twice(lake: Lake) -> None:
    """File names begin with the load's folder. Inside that folder, a connector task has its own folder until the task
    is done."""
    of, folder = window(1), lake.table(TABLE).path
    named = files(lake, of, "load")
    (own,) = {(folder / file.path).parent for file in named}
    sums = {own / f".{(folder / file.path).name}.crc" for file in named}
    for path in (*sums, own / "twin.parquet", own / ".twin.parquet.crc", own / "_temporary" / "0" / "twin.parquet"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"not whole")
    other = files(lake, window(2), "at-work")

    WindowCommit(lake, TABLE).replace(metadata(of, "load"), named)
    assert set(own.rglob("*")) == {*sums, *(folder / file.path for file in named)}
    assert all((folder / file.path).exists() for file in other)
    assert held(lake) == {of.key: 10}


def test_a_commit_that_is_refused_deletes_nothing_of_others(lake: Lake) -> None:
    of = window(1)
    late = WindowCommit(lake, TABLE)
    late_files = files(lake, of, "late")
    WindowCommit(lake, TABLE).replace(metadata(of, "fast"), fast_files := files(lake, of, "fast"))
    assert late.is_overtaken(of.key)
    assert not late.is_overtaken(window(2).key)
    folder = lake.table(TABLE)
    assert all(folder.has(f.path) for f in fast_files)
    assert not any(folder.has(f.path) for f in late_files), "a load that has lost can no longer commit them"
    with pytest.raises(ConcurrentLoadError):
        late.replace(metadata(of, "late"), late_files)
    assert all(folder.has(f.path) for f in fast_files)
    assert held(lake) == {of.key: 10}


def test_many_loads_at_once_put_each_window_in_once(lake: Lake) -> None:
    """Each of five windows has four loaders; all loaders start from the same table version."""
    loaders = 4
    barrier = threading.Barrier(5 * loaders)

    def load(number: int, name: str) -> bool:
        written = files(lake, window(number), name)
        commit = WindowCommit(lake, TABLE)
        barrier.wait(60)
        try:
            commit.replace(metadata(window(number), name), written)
        except ConcurrentLoadError:
            return False
        return True

    with ThreadPoolExecutor(5 * loaders) as pool:
        won = list(pool.map(load, [n for n in range(5) for _ in range(loaders)], [f"l{i}" for i in range(5 * loaders)]))
    assert sum(won) == 5
    assert held(lake) == {window(n).key: 10 for n in range(5)}


def test_a_write_whose_answer_was_lost_is_no_conflict_with_itself(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store accepted the commit, but the client got no answer and sent the commit again. The store refuses the
    second request."""
    sent = DeltaTable.create_write_transaction

    def twice(self: DeltaTable, *arguments: object, **options: object) -> None:
        sent(self, *arguments, **options)  # type: ignore[arg-type]
        sent(self, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(DeltaTable, "create_write_transaction", twice)
    made = WindowCommit(lake, TABLE).replace(metadata(window(0), "a"), files(lake, window(0), "a"))
    assert (made.version, made.metadata.load_id, held(lake)) == (1, "a", {window(0).key: 10})


@pytest.mark.parametrize("took_place", [True, False])
def test_an_error_behind_the_commit_is_told_by_the_log(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, took_place: bool
) -> None:
    sent = DeltaTable.create_write_transaction

    def failing(self: DeltaTable, *arguments: object, **options: object) -> None:
        if took_place:
            sent(self, *arguments, **options)  # type: ignore[arg-type]
        raise OSError("the connection was reset")

    monkeypatch.setattr(DeltaTable, "create_write_transaction", failing)
    commit, written = WindowCommit(lake, TABLE), files(lake, window(0), "a")
    if took_place:
        assert commit.replace(metadata(window(0), "a"), written).version == 1
    else:
        with pytest.raises(CommitOutcomeUnknownError, match="the connection was reset"):
            commit.replace(metadata(window(0), "a"), written)


def test_a_table_that_delta_rs_cannot_write_is_named_and_the_remedy_with_it(lake: Lake) -> None:
    folder = lake.table(TABLE)
    action = (
        '{"protocol":{"minReaderVersion":3,"minWriterVersion":7,"readerFeatures":[],"writerFeatures":["rowTracking",'
        '"domainMetadata"]}}\n'
    )
    (folder.path / "_delta_log" / f"{1:020}.json").write_text(action)
    with pytest.raises(TableRefusedError, match=r"raw/t cannot be committed to.*DROP FEATURE"):
        WindowCommit(lake, TABLE).replace(metadata(window(0), "a"), files(lake, window(0), "a"))
    assert folder.delta().version() == 1


def test_statistics_are_those_of_the_rows(lake: Lake) -> None:
    (file,) = files(lake, window(1), "a", 9)
    assert file.statistics["minValues"]["kafka_offset"] == 10
    assert file.statistics["maxValues"]["kafka_offset"] == 18
    assert (file.rows, file.statistics["nullCount"]["kafka_partition"]) == (9, 0)
    WindowCommit(lake, TABLE).replace(metadata(window(1), "a"), (file,))
    (entry,) = holdings.actions(lake.table(TABLE)).to_pylist()
    stamp = rows(window(1).key, {0: [0]})["kafka_timestamp"][0].as_py()
    assert (entry["min.kafka_timestamp"], entry["max.kafka_timestamp"]) == (stamp, stamp)
    assert entry["size_bytes"] == lake.table(TABLE).size(file.path)


@pytest.mark.parametrize("micros", [-1, 253_402_300_800_000_000, 2**63 - 1])
def test_a_timestamp_that_no_text_can_say_has_no_statistics(lake: Lake, micros: int) -> None:
    below = "2026/odd"
    folder = lake.table(TABLE)
    (folder / below).make()
    found = in_files(lake, rows(window(0).key, {0: [1, 2]}))
    stamps = pa.array([0, micros], pa.int64()).cast(pa.timestamp("us", "UTC"))
    at = found.column_names.index("kafka_timestamp")
    pq.write_table(found.set_column(at, "kafka_timestamp", stamps), folder.path / below / "a.parquet")
    (file,) = data_files.written_files(folder, below)
    assert set(file.statistics["minValues"]) - {"window"} == {"kafka_partition", "kafka_offset"}
    WindowCommit(lake, TABLE).replace(metadata(window(0), "a"), (file,))
    assert held(lake) == {window(0).key: 2}


@pytest.mark.parametrize("layout", ["partitioned"], indirect=True)
def test_files_of_a_past_version_are_named_again(lake: Lake) -> None:
    """This includes files in a folder whose name is percent-encoded in the log, as the first release wrote it."""
    first = window(0)
    folder = lake.table(TABLE)
    found = rows(first.key, {0: range(10)})
    metadata_of = CommitProperties(custom_metadata={"userMetadata": metadata(first, "a").to_json()})
    write_deltalake(folder.uri, found, mode="append", partition_by=["window"], commit_properties=metadata_of)
    before = holdings.files_of(folder, first.key)
    assert "%" in before.paths[0]
    folder.delta().delete(f"window = '{first.key}'")
    assert held(lake) == {}
    again = data_files.past_files(folder, first.key, 1, "new", flat=False)
    WindowCommit(lake, TABLE).replace(replace(metadata(first, "b"), run_id="s"), again)
    assert held(lake) == {first.key: 10}
    assert holdings.files_of(folder, first.key).digest == before.digest


def test_a_past_file_that_is_gone_is_said_to_be(lake: Lake) -> None:
    WindowCommit(lake, TABLE).replace(metadata(window(0), "a"), files(lake, window(0), "a"))
    folder = lake.table(TABLE)
    folder.delta().delete(f"window = '{window(0).key}'")
    folder.delta().vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    with pytest.raises(FilesLostError):
        data_files.past_files(folder, window(0).key, 1, "new", flat=WindowCommit(lake, TABLE).is_flat)


@pytest.mark.parametrize("change", [append, delete])
def test_files_that_a_past_version_shares_with_the_newest_one_stay(
    lake: Lake, change: Callable[[DeltaTable, str], None]
) -> None:
    """A reader may lose a path that one commit both adds and removes, so files that the table still has are copied."""
    first, folder = window(0), lake.table(TABLE)
    parts = (*files(lake, first, "a", 5), *files_from(lake, first, "b", 5))
    WindowCommit(lake, TABLE).replace(metadata(first, "a"), parts)
    before = holdings.files_of(folder, first.key)
    change(folder.delta(), first.key)
    damaged = holdings.files_of(folder, first.key)
    assert set(damaged.paths) & set(before.paths)
    assert damaged.digest != before.digest
    commit_again = WindowCommit(lake, TABLE)
    again = data_files.past_files(folder, first.key, 1, "new", flat=commit_again.is_flat)
    made = commit_again.replace(metadata(first, "b"), again)
    assert held(lake) == {first.key: 10}
    commit = delta_log.commit(folder, made.version)
    assert commit is not None
    assert not {f.path for f in commit.adds} & set(commit.removes)


def files_from(lake: Lake, of: SealedWindow, load_id: str, start: int) -> tuple[NewFile, ...]:
    """Write the rows of a window, starting at offset `start`."""
    below = load_folder(of.key, load_id)
    folder = lake.table(TABLE)
    (folder / below).make()
    found = in_files(lake, rows(of.key, {0: range(start, 10)}))
    pq.write_table(found, folder.path / below / "part-1.parquet")
    return data_files.written_files(folder, below)
