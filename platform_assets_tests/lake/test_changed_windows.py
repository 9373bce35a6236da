"""The windows that changed between two versions, and that groups found from them suffice, on thousands of random histories."""

from __future__ import annotations

import random
import shutil
import uuid
from pathlib import Path

from deltalake import DeltaTable

from platform_assets.lake.changed_windows import changed_windows, changes_in, changes_rows
from platform_assets.lake.delta_log import Anchor, Commit, DataFile
from platform_assets.lake.load_log import Expiry, Fence, LoadMetadata
from platform_assets.lake.location import Folder
from platform_assets.model.offsets import OffsetRange, TopicRanges
from platform_assets_tests.conftest import SEED
from platform_assets_tests.support.derived_lake import Flights, flights, key, window
from testbed.samples import TOPIC_ID

HISTORIES = 3_000
Rows = dict[str, list[tuple[int, int]]]
"""Rows of each window: a group and a number."""


def metadata(number: int, expired: str = "") -> LoadMetadata:
    ranges = TopicRanges({0: OffsetRange(0, 9)})
    return LoadMetadata("t", TOPIC_ID, 1, window(number), ranges, uuid.uuid4().hex, "run", expired=expired)


def commit(version: int, text: str | None, *, rearranges: bool = False) -> Commit:
    file = DataFile("f", {}, 1, None)
    return Commit(Anchor(version, ""), (file,), ("g",), rearranges, text, {})


def rebuilt(rows: Rows) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for some in rows.values():
        for group, number in some:
            found.setdefault(group, []).append(number)
    return {group: sorted(numbers) for group, numbers in found.items()}


def test_groups_of_changed_windows_before_and_after_suffice() -> None:
    """A model of derived tables: old rows of changed windows at the version of the last run, and their new rows."""
    seed, partial = random.Random(SEED), 0
    for history in range(HISTORIES):
        versions: list[Rows] = [{}]
        log: list[Commit] = [commit(0, None)]
        derived: dict[int, list[int]] = {}
        since = 0
        for _ in range(seed.randrange(2, 12)):
            rows, number = dict(versions[-1]), seed.randrange(5)
            what = seed.choice(["load", "load", "erase", "expire", "compact", "fence", "run"])
            version = len(log)
            if what == "load":
                rows[key(number)] = [(seed.randrange(6), seed.randrange(9)) for _ in range(seed.randrange(4))]
                text = metadata(number).to_json()
            elif what == "erase":
                rows[key(number)] = [row for row in rows.get(key(number), []) if seed.random() < 0.5]
                text = metadata(number).to_json()
            elif what == "expire":
                gone = {number, seed.randrange(5)}
                rows = {k: some for k, some in rows.items() if k not in map(key, gone)}
                text = Expiry("e", tuple(metadata(n, "1 day") for n in gone)).to_json()
            elif what == "fence":
                text = Fence(window(number), "f").to_json()
            elif what == "compact":
                log.append(commit(version, None, rearranges=True))
                versions.append(rows)
                continue
            else:
                changes = changes_in(((c.version, c) for c in log[since + 1 :]), since, len(log) - 1)
                groups = {g for at in (since, -1) for k in changes.keys for g, _ in versions[at].get(k, [])}
                partial += len(groups) < len(rebuilt(versions[-1]))
                whole = rebuilt(versions[-1])
                derived = {g: numbers for g, numbers in derived.items() if g not in groups}
                derived |= {g: numbers for g, numbers in whole.items() if g in groups}
                assert derived == whole, (SEED, history)
                since = len(log) - 1
                continue
            log.append(commit(version, text))
            versions.append(rows)
    assert partial > HISTORIES / 20


def test_loads_erasures_and_expiries_are_changes_and_compactions_are_not(tmp_path: Path) -> None:
    lake, seed = Flights(tmp_path), random.Random(1)
    folder = Folder.at(lake.path)
    assert not changed_windows(folder, 0)
    lake.load(0, flights(seed, 3))
    lake.load(1, flights(seed, 3))
    since = lake.version
    lake.load(2, flights(seed, 3))
    lake.erase(1, lake.windows[key(1)][:1])
    assert changed_windows(folder, since).keys == (key(1), key(2))
    assert changed_windows(folder, since, since + 1).keys == (key(2),)
    since = lake.version
    lake.compact()
    assert lake.version > since
    assert not changed_windows(folder, since)
    assert not changes_rows(folder, since, lake.version)
    lake.expire([0, 2])
    assert changed_windows(folder, since).keys == (key(0), key(2))
    assert changes_rows(folder, since, lake.version)


def test_what_the_log_does_not_show_is_unknown(tmp_path: Path) -> None:
    lake, seed = Flights(tmp_path), random.Random(1)
    folder = Folder.at(lake.path)
    lake.load(0, flights(seed, 3))
    since = lake.version
    lake.append(flights(seed, 1), key(0))
    found = changed_windows(folder, since)
    assert found
    assert found.unknown == f"another writer made version {since + 1}"
    since = lake.version
    DeltaTable(lake.path).alter.set_table_properties({"delta.logRetentionDuration": "interval 1 day"})
    assert "columns or settings" in str(changed_windows(folder, since).unknown)
    lake.load(1, flights(seed, 3))
    (lake.path / "_delta_log" / f"{lake.version:020}.json").unlink()
    older = changed_windows(folder, 5, 2)
    assert older.unknown is not None
    first = changed_windows(folder, None)
    assert first.unknown == "no version was read before"
    for each in (older, first):
        assert each.digest
        assert not changed_windows(folder, each.version, each.version, digest=each.digest)
    assert "no longer has version" in str(changed_windows(folder, since + 1, since + 2).unknown)


def test_a_table_that_was_restored_and_grew_again_is_another_table(tmp_path: Path) -> None:
    lake, seed, kept = Flights(tmp_path / "lake"), random.Random(1), tmp_path / "kept"
    folder = Folder.at(lake.path)
    lake.load(0, flights(seed, 3))
    shutil.copytree(lake.path, kept)
    lake.load(1, flights(seed, 3))
    since = lake.version
    known = changed_windows(folder, 0).digest
    assert not changed_windows(folder, since, digest=known)
    shutil.rmtree(lake.path)
    shutil.copytree(kept, lake.path)
    for number in (2, 3):
        lake.load(number, flights(seed, 3))
    found = changed_windows(folder, since, digest=known)
    assert "the table was replaced" in str(found.unknown)
    assert found.digest != known
    assert changes_rows(folder, since, since, digest=known)
    (lake.path / "_delta_log" / f"{since:020}.json").unlink()
    assert "no longer has version" in str(changed_windows(folder, since, digest=known).unknown)
