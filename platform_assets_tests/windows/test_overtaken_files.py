"""Files that killed workers left, with rows that were erased in the meantime: the next run deletes these files, and
keeps files that are needed.

The tests search the bytes of all files, and read with polars. No Kafka, no Spark.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from deltalake import DeltaTable

from platform_assets.engines.merging import task
from platform_assets.lake import row_copies
from platform_assets.lake.commits import WindowCommit
from platform_assets.lake.leftovers import delete_overtaken
from platform_assets.lake.load_log import Fence
from platform_assets.ledger.entries import SealedWindow
from platform_assets.model.offsets import OffsetRange
from platform_assets.windows.maintain.merging import MergedFiles, Upkeep
from platform_assets.windows.maintain.migrating import Migration
from platform_assets_tests.support import partitioned_lake
from platform_assets_tests.support.erasures import AUTHOR, MadeTopic, found_in, proved

LATER = "2030-01-01-00:00"
NEEDLE = b"1/0/2"


@pytest.fixture
def flat(flat: None, tmp_path: Path) -> MadeTopic:
    """A flat table with four windows, each in a separate file."""
    made = MadeTopic(tmp_path / "lake")
    windows = [{p: [(b"k%d" % n, b"%d/%d/%d" % (w, p, n)) for n in range(6)] for p in (0, 1)} for w in range(4)]
    made.fill(made.seal(windows), decode=False)
    return made


@pytest.fixture
def partitioned(tmp_path: Path) -> MadeTopic:
    return partitioned_lake.unpacked(tmp_path)


def path(topic: MadeTopic) -> Path:
    return topic.root / "raw" / topic.topic


def table(topic: MadeTopic) -> DeltaTable:
    return DeltaTable(path(topic))


def windows(topic: MadeTopic) -> list[SealedWindow]:
    return topic.ledger.windows(topic.topic)


def erase(topic: MadeTopic, window: SealedWindow, at: int) -> None:
    offset = window.ranges.by_partition[0].start + at
    erasure = topic.erasure
    erasure.record(erasure.at_offsets({0: (OffsetRange(offset, offset + 1),)}), AUTHOR)
    erasure.run(AUTHOR)


def upkeep(topic: MadeTopic) -> list[MergedFiles]:
    return list(Upkeep(topic.declaration.raw_table, topic.ledger).run(LATER))


def migrated(topic: MadeTopic) -> None:
    Migration(topic.declaration.raw_table, topic.ledger, 1 << 20).run()


def erased_again(topic: MadeTopic) -> None:
    topic.erasure.run(AUTHOR)


def damaged(topic: MadeTopic, window: SealedWindow) -> None:
    """Delete a row as another writer, so that the next load replaces the window."""
    first = window.ranges.by_partition[0].start
    table(topic).delete(f"window = '{window.key}' AND kafka_partition = 0 AND kafka_offset = {first}")


def killed_after_reading(
    monkeypatch: pytest.MonkeyPatch, topic: MadeTopic, run: Callable[[], Any], meanwhile: Callable[[], None]
) -> list[Path]:
    """Call `run`, with `meanwhile` between its reading and its writing; return the files that `run` leaves if it is
    killed at that point."""
    left = dict[Path, bytes]()

    def kept(name: str) -> None:
        if not left and "over" in begun:
            left[path(topic) / name] = (path(topic) / name).read_bytes()

    write, close, begun = task._write, row_copies._Copy.close, list[str]()

    def once() -> None:
        if not begun:
            begun.append("begun")
            meanwhile()
            begun.append("over")

    def written(files: Any, name: str, rows: Any, *others: Any) -> bool:
        held = list(rows)
        once()
        found = write(files, name, iter(held), *others)
        if found:
            kept(name)
        return found

    def closed(copy: Any) -> str | None:
        once()
        name = close(copy)
        assert name is not None
        kept(name)
        return name

    with monkeypatch.context() as patched:
        patched.setattr(task, "_write", written)
        patched.setattr(row_copies._Copy, "close", closed)
        run()
    assert begun
    for file, content in left.items():
        # As the killed worker would have left it: this one has deleted its file.
        assert not file.exists()
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    return list(left)


@pytest.mark.parametrize("following", [upkeep, erased_again])
def test_a_killed_upkeep_leaves_no_erased_bytes_after_the_next_run(
    flat: MadeTopic, monkeypatch: pytest.MonkeyPatch, following: Callable[[MadeTopic], Any]
) -> None:
    killed_after_reading(monkeypatch, flat, lambda: upkeep(flat), lambda: erase(flat, windows(flat)[1], 2))
    assert found_in(flat.root, NEEDLE)
    following(flat)
    assert found_in(flat.root, NEEDLE) == []
    proved(flat)


@pytest.mark.parametrize("following", [migrated, erased_again])
def test_a_killed_migration_leaves_no_erased_bytes_after_the_next_run(
    partitioned: MadeTopic, monkeypatch: pytest.MonkeyPatch, following: Callable[[MadeTopic], Any]
) -> None:
    needle, window = b"v-2-0-4", windows(partitioned)[2]
    killed_after_reading(monkeypatch, partitioned, lambda: migrated(partitioned), lambda: erase(partitioned, window, 4))
    assert found_in(partitioned.root, needle)
    following(partitioned)
    assert found_in(partitioned.root, needle) == []
    proved(partitioned)


@pytest.mark.parametrize("following", [upkeep, erased_again])
def test_a_killed_load_of_another_window_leaves_no_erased_bytes_after_the_next_run(
    flat: MadeTopic, monkeypatch: pytest.MonkeyPatch, following: Callable[[MadeTopic], Any]
) -> None:
    upkeep(flat)
    damaged(flat, windows(flat)[2])
    killed_after_reading(
        monkeypatch, flat, lambda: flat.load(windows(flat)[2]), lambda: erase(flat, windows(flat)[1], 2)
    )
    assert found_in(flat.root, NEEDLE)
    following(flat)
    assert found_in(flat.root, NEEDLE) == []
    proved(flat)


def test_files_of_workers_that_can_still_commit_stay(flat: MadeTopic, monkeypatch: pytest.MonkeyPatch) -> None:
    spans = windows(flat)
    upkeep_of_some = Upkeep(flat.declaration.raw_table, flat.ledger)
    measured = task._measured

    def late(*arguments: Any) -> Any:
        # The file is complete. A load outside of its span comes, and the next run begins.
        damaged(flat, spans[3])
        assert flat.load(spans[3]).outcome == "healed"
        assert delete_overtaken(upkeep_of_some.folder) == []
        return measured(*arguments)

    monkeypatch.setattr(task, "_measured", late)
    (merged,) = upkeep_of_some.run(spans[3].key)
    assert merged.version is not None
    assert pl.read_delta(str(path(flat))).height == 48


def test_files_of_past_versions_stay(flat: MadeTopic) -> None:
    upkeep(flat)
    version, rows = table(flat).version(), pl.read_delta(str(path(flat))).height
    damaged(flat, windows(flat)[2])
    assert flat.load(windows(flat)[2]).outcome == "healed"
    assert delete_overtaken(flat.lake.table(flat.declaration.raw_table)) == []
    assert pl.read_delta(str(path(flat)), version=version).height == rows


def test_a_load_whose_copy_was_deleted_as_overtaken_copies_again(
    flat: MadeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    upkeep(flat)
    for window in (windows(flat)[0], windows(flat)[2]):
        damaged(flat, window)
    compared, deleted = row_copies._compared, list[str]()

    def late(*arguments: Any) -> Any:
        if not deleted:
            deleted.append("begun")
            assert flat.load(windows(flat)[0]).outcome == "healed"
            deleted.extend(delete_overtaken(flat.lake.table(flat.declaration.raw_table)))
        return compared(*arguments)

    monkeypatch.setattr(row_copies, "_compared", late)
    assert flat.load(windows(flat)[2]).outcome == "healed"
    assert len(deleted) == 2
    assert pl.read_delta(str(path(flat))).height == 48


def test_a_migration_whose_copy_was_deleted_as_overtaken_copies_again(
    partitioned: MadeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared, begun = row_copies._compared, list[bool]()
    height, raw = pl.read_delta(str(path(partitioned))).height, partitioned.declaration.raw_table

    def late(*arguments: Any) -> Any:
        if not begun:
            begun.append(True)
            # An erasure fences windows without such rows: their files stay, and the copy is nevertheless overtaken.
            WindowCommit(partitioned.lake, raw).fence(Fence(windows(partitioned)[2].window, "fence"))
            assert len(delete_overtaken(partitioned.lake.table(raw))) == 1
        return compared(*arguments)

    monkeypatch.setattr(row_copies, "_compared", late)
    migrated(partitioned)
    assert pl.read_delta(str(path(partitioned))).height == height
    proved(partitioned)


def test_files_that_the_log_cannot_judge_stay(flat: MadeTopic, monkeypatch: pytest.MonkeyPatch) -> None:
    (left,) = killed_after_reading(monkeypatch, flat, lambda: upkeep(flat), lambda: erase(flat, windows(flat)[1], 2))
    foreign = left.parent.with_name("part-of-another-tool") / left.name
    foreign.parent.mkdir()
    foreign.write_bytes(left.read_bytes())
    since = int(left.parent.name.partition("-")[0].removeprefix("v"))
    damaged(flat, windows(flat)[0])
    assert flat.load(windows(flat)[0]).outcome == "healed"
    table(flat).create_checkpoint()
    (path(flat) / "_delta_log" / f"{since + 1:020}.json").unlink()
    assert delete_overtaken(flat.lake.table(flat.declaration.raw_table)) == []
    assert left.exists()
    assert foreign.exists()
