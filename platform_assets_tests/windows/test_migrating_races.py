"""A migration commits no copy that another run, an erasure or VACUUM deletes, and it leaves no copy that it does not
commit.

The tests list the files and read with polars. No Kafka, no Spark.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from platform_assets.engines.measuring import measure_of
from platform_assets.lake import commits, holdings, migration, row_copies
from platform_assets.lake.data_files import NewFile
from platform_assets.lake.delta_log import DataFile
from platform_assets.lake.location import shared_folder
from platform_assets.lake.migration import Copy, Event
from platform_assets.ledger.entries import SealedWindow
from platform_assets.model.offsets import OffsetRange
from platform_assets.windows.maintain.migrating import Migration
from platform_assets_tests.support import partitioned_lake
from platform_assets_tests.support.erasures import AUTHOR, MadeTopic, found_in, proved

DAY = 86_400


class _StopError(BaseException):
    """An exception that ends a run as a kill would."""


@pytest.fixture
def topic(tmp_path: Path) -> MadeTopic:
    return partitioned_lake.unpacked(tmp_path)


def path(topic: MadeTopic) -> Path:
    return topic.root / "raw" / topic.topic


def table(topic: MadeTopic) -> DeltaTable:
    return DeltaTable(path(topic))


def of(topic: MadeTopic, target: int = 1) -> Migration:
    return Migration(topic.declaration.raw_table, topic.ledger, target)


def rows(topic: MadeTopic) -> pl.DataFrame:
    found = pl.read_delta(str(path(topic)))
    return found.select(sorted(found.columns)).sort("window", "topic_id", "kafka_partition", "kafka_offset")


def windows(topic: MadeTopic) -> list[SealedWindow]:
    return topic.ledger.windows(topic.topic)


def on_disk(topic: MadeTopic) -> set[Path]:
    return set((path(topic) / "windows").rglob("*.parquet"))


def named(topic: MadeTopic) -> set[Path]:
    return {path(topic) / unquote(name) for name in pa.table(table(topic).get_add_actions())["path"].to_pylist()}


def repaired(topic: MadeTopic, window: SealedWindow) -> None:
    """Delete a row as another writer, and let a load restore it: the window gets another file."""
    first = window.ranges.by_partition[0].start
    table(topic).delete(f"window = '{window.key}' AND kafka_partition = 0 AND kafka_offset = {first}")
    assert topic.load(window).outcome == "healed"


def erase(topic: MadeTopic, window: SealedWindow, partition: int, at: int = 0) -> None:
    offset = window.ranges.by_partition[partition].start + at
    erasure = topic.erasure
    erasure.record(erasure.at_offsets({partition: (OffsetRange(offset, offset + 1),)}), AUTHOR)
    erasure.run(AUTHOR)


def stopped(topic: MadeTopic, monkeypatch: pytest.MonkeyPatch, target: int = 1) -> None:
    """Run a migration that ends just before its commit."""

    def stop(*_: Any) -> None:
        raise _StopError

    with monkeypatch.context() as patch:
        patch.setattr(migration, "commit", stop)
        with pytest.raises(_StopError):
            of(topic, target).run()


def before_the_commit(monkeypatch: pytest.MonkeyPatch, done: Callable[[], Any]) -> None:
    """Run an action once, just before the migration writes its commit."""
    commit, left = migration.commit, [done]

    def late(*args: Any) -> Any:
        if left:
            left.pop()()
        return commit(*args)

    monkeypatch.setattr(migration, "commit", late)


def test_no_run_deletes_copies_of_another(topic: MadeTopic, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two runs have copied the same files. The slower run plans again while the other is about to commit. File names
    are random."""
    before, folder = rows(topic), topic.lake.table(topic.declaration.raw_table)
    handle = folder.delta()
    columns, version = migration.flat_columns(folder, handle), handle.version()
    groups = migration.plan(migration.files_in_order(folder, handle), [], 1).groups

    def other() -> None:
        for group in groups:
            migration.copied(folder, group, columns, measure_of("raw"), version)
        stopped(topic, monkeypatch)

    before_the_commit(monkeypatch, other)
    of(topic).run()
    assert rows(topic).equals(before)
    assert on_disk(topic) == named(topic), "copies of the other run are deleted once the table is flat"
    proved(topic)


def test_an_erasure_deletes_no_copy_that_is_named_later(topic: MadeTopic, monkeypatch: pytest.MonkeyPatch) -> None:
    """The erasure lists a half-written copy of other windows. By its file name, that copy may contain the erased
    window. The erasure is slow to delete the copy."""
    first, erased, last = (windows(topic)[n] for n in (0, 1, 5))
    folder = topic.lake.table(topic.declaration.raw_table)
    handle = folder.delta()
    files = [f for f in migration.files_in_order(folder, handle) if f.partition["window"] in (first.key, last.key)]
    reached, go = threading.Event(), threading.Event()
    made, close = commits.WindowCommit._made, row_copies._Copy.close

    def slow(self: Any, *args: Any) -> Any:
        found = made(self, *args)
        reached.set()
        assert go.wait(120)
        return found

    eraser = threading.Thread(target=erase, args=(topic, erased, 1))

    def half(self: Any) -> Any:
        self.write()
        eraser.start()
        assert reached.wait(120)
        return close(self)

    with monkeypatch.context() as patch:
        patch.setattr(commits.WindowCommit, "_made", slow)
        patch.setattr(row_copies._Copy, "close", half)
        columns = migration.flat_columns(folder, handle)
        copy = migration.copied(folder, files, columns, measure_of("raw"), handle.version())
    assert copy is not None
    of(topic).run()
    go.set()
    eraser.join()
    assert on_disk(topic) == named(topic)
    proved(topic)


def test_copies_of_erased_rows_that_a_killed_run_left_are_deleted_by_the_next(
    topic: MadeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The killed run read the rows before they were erased, and wrote them afterwards."""
    needle, window = b"v-2-0-4", windows(topic)[2]
    close = row_copies._Copy.close

    def late(self: Any) -> Any:
        self._table, kept = self._table, self._waiting
        monkeypatch.setattr(row_copies._Copy, "close", close)
        erase(topic, window, 0, 4)
        assert found_in(topic.root, needle) == []
        self._waiting = kept
        return close(self)

    monkeypatch.setattr(row_copies._Copy, "close", late)
    stopped(topic, monkeypatch, target=1 << 20)
    # The run's second attempt deletes what the first one has copied.
    assert found_in(topic.root, needle) == []
    of(topic).run()
    assert on_disk(topic) == named(topic)
    proved(topic)


def test_a_vacuum_before_the_commit_deletes_no_copy_that_is_named(
    topic: MadeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The vacuum leaves no commit in the log, like Spark's VACUUM in an object store. Some copies are 8 days old,
    others are new."""
    before = rows(topic)
    stopped(topic, monkeypatch)
    past = time.time() - 8 * DAY
    old = on_disk(topic)
    for file in old:
        os.utime(file, (past, past))

    def vacuum() -> None:
        for file in on_disk(topic):
            if file.stat().st_mtime < time.time() - 7 * DAY:
                file.unlink()

    before_the_commit(monkeypatch, vacuum)
    of(topic).run()
    assert rows(topic).equals(before)
    assert named(topic).isdisjoint(old)
    assert on_disk(topic) == named(topic)


def test_copies_that_are_gone_or_too_old_at_the_commit_are_made_again(
    topic: MadeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = rows(topic)

    def lose() -> None:
        first, second, *_ = sorted(on_disk(topic))
        first.unlink()
        past = time.time() - 4 * DAY
        os.utime(second, (past, past))

    before_the_commit(monkeypatch, lose)
    of(topic).run()
    assert rows(topic).equals(before)
    assert on_disk(topic) == named(topic)


def test_copies_of_a_former_run_are_read_again_before_they_are_named(
    topic: MadeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The earlier run's machine died before some copies were fully on disk: those files have the right sizes, but
    contain zeros."""
    before = rows(topic)
    stopped(topic, monkeypatch)
    first, second, *_ = sorted(on_disk(topic))
    first.write_bytes(bytes(first.stat().st_size))
    content = bytearray(second.read_bytes())
    content[100:200] = bytes(100)
    second.write_bytes(bytes(content))
    of(topic).run()
    assert rows(topic).equals(before)
    assert on_disk(topic) == named(topic)
    proved(topic)


def test_a_run_that_died_after_its_commit_leaves_its_other_copies_to_the_next(
    topic: MadeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files that upkeep or a load has replaced since then still belong to past versions."""
    stopped(topic, monkeypatch)
    table(topic).optimize.z_order(["kafka_timestamp"])  # replaces each file

    def stop(*_: Any) -> None:
        raise _StopError

    with monkeypatch.context() as patch:
        patch.setattr(Migration, "_prove", stop)
        with pytest.raises(_StopError):
            of(topic).run()
    flat, version = named(topic), table(topic).version()
    assert on_disk(topic) > flat
    repaired(topic, windows(topic)[0])
    assert of(topic).run().version is None
    assert on_disk(topic) >= flat, "time travel to the migration's version goes on"
    assert on_disk(topic) - flat <= named(topic)
    assert pl.read_delta(str(path(topic)), version=version).height == rows(topic).height


# --- the rule, alone

KEYS = ("2026-01-01-00:00", "2026-01-01-05:00")
NAME = f"{shared_folder(*KEYS, 0, 'x')}/part-1.parquet"


@pytest.mark.parametrize(
    ("events", "fate"),
    [
        ([], "counts"),
        ([Event(4, KEYS[0])], "counts"),
        ([Event(6, "2026-01-01-06:00")], "counts"),
        ([Event(6)], "counts"),
        ([Event(6, "2026-01-01-03:00")], "overtaken"),
        ([Event(6, KEYS[0]), Event(7, lost=True)], "kept"),
        ([Event(6, migrates=True)], "kept"),
        ([Event(6, migrates=True, named=frozenset({NAME})), Event(7, KEYS[1])], "kept"),
    ],
)
def test_commits_since_the_copying_began_decide_about_a_copy(events: list[Event], fate: str) -> None:
    files = [DataFile("1", {holdings.WINDOW: KEYS[0]}, 10, None)]
    copy = Copy("a.json", NewFile(NAME, 1, 1, {}), (("1", 10),), {}, 5)
    plan = migration.plan(files, [copy], 1, events)
    assert (plan.copies, plan.overtaken) == (
        (copy,) if fate == "counts" else (),
        (copy,) if fate == "overtaken" else (),
    )
    assert bool(plan.groups) is (fate != "counts")


def test_a_group_ends_at_copied_files_and_at_rows_without_a_window() -> None:
    keys = [None, "2026-01-01-00:00", "2026-01-01-01:00", "2026-01-01-02:00", "2026-01-01-03:00"]
    files = [DataFile(str(n), {holdings.WINDOW: key}, 10, None) for n, key in enumerate(keys)]
    good = Copy("a.json", NewFile(NAME, 1, 1, {}), (("2", 10),), {}, 5)
    groups = migration.plan(files, [good], 1000).groups
    assert [[f.path for f in group] for group in groups] == [["0"], ["1"], ["3", "4"]]
