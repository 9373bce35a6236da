"""A lost ledger is rebuilt from the table, without losing sealed windows."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest
from deltalake import DeltaTable

from platform_assets.engines.protocol import LoadEngine
from platform_assets.errors import LedgerCorruptError
from platform_assets.lake import holdings
from platform_assets.lake.load_log import LoadCommit, LoadMetadata
from platform_assets.lake.location import Folder, Lake
from platform_assets.ledger.entries import Receipt, RecordedCut, SealedWindow, windows_between
from platform_assets.ledger.store import Ledger
from platform_assets.model.declaration import TopicDeclaration
from platform_assets.model.digest import Measured, dense_digest
from platform_assets.model.offsets import Cut, OffsetRange, TopicRanges
from platform_assets.model.tables import TableRef
from platform_assets.model.windows import Window
from platform_assets.windows.recover.expired_loads import newest_loads, with_expired
from platform_assets.windows.recover.rebuild import Rebuilt, cuts_of, rebuild
from platform_assets_tests.support.damage import data_files
from testbed.loads import Record, TopicLake, numbered, records
from testbed.samples import TOPIC_ID, overwrite, sealed

if TYPE_CHECKING:
    from platform_assets_tests.conftest import LakeMaker

START = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
DECLARATION = TopicDeclaration("orders", "* * * * *", START)


def edge(minute: int) -> datetime:
    return START + timedelta(minutes=minute)


def load(minute: int, ranges: Mapping[int, tuple[int, int]], first: Mapping[int, int] | None = None) -> LoadCommit:
    """Return the commit of the one-minute window that starts `minute` minutes after the start."""
    metadata = LoadMetadata(
        "orders",
        "C-o_VJXETNWQtfYhLseebg",
        1,
        Window(edge(minute), edge(minute + 1)),
        TopicRanges({p: OffsetRange(a, b) for p, (a, b) in ranges.items()}),
        f"load-{minute}",
        "",
        None if first is None else (START, Cut(first)),
    )
    return LoadCommit(minute, metadata)


def windows(cuts: list[RecordedCut]) -> dict[str, tuple[tuple[int, int, int], ...]]:
    return {w.key[-5:]: w.ranges.triples() for w in windows_between(cuts)}


def test_cuts_between_neighbouring_loads_are_those_of_their_commits() -> None:
    cuts, merged = cuts_of(DECLARATION, [load(0, {0: (5, 9)}, {0: 5}), load(1, {0: (9, 12)}, {0: 5})], None)
    assert windows(cuts) == {"12:00": ((0, 5, 9),), "12:01": ((0, 9, 12),)}
    assert merged == ()


def test_edges_between_loads_without_offsets_are_windows_without_offsets() -> None:
    cuts, merged = cuts_of(DECLARATION, [load(0, {0: (0, 9)}, {0: 0}), load(3, {0: (9, 12)}, {0: 0})], None)
    assert windows(cuts) == {
        "12:00": ((0, 0, 9),), "12:01": ((0, 9, 9),), "12:02": ((0, 9, 9),), "12:03": ((0, 9, 12),),
    }  # fmt: skip
    assert merged == ()


def test_sealed_windows_that_were_never_loaded_become_one_window_and_keep_their_offsets() -> None:
    cuts, merged = cuts_of(DECLARATION, [load(0, {0: (0, 9)}, {0: 0}), load(3, {0: (20, 22)}, {0: 0})], None)
    assert windows(cuts) == {"12:00": ((0, 0, 9),), "12:01": ((0, 9, 20),), "12:03": ((0, 20, 22),)}
    assert merged == ("2026-03-01-12:01",)


def test_windows_before_the_first_load_are_not_forgotten() -> None:
    cuts, merged = cuts_of(DECLARATION, [load(4, {0: (100, 110)}, {0: 7})], None)
    assert windows(cuts) == {"12:00": ((0, 7, 100),), "12:04": ((0, 100, 110),)}
    assert merged == ("2026-03-01-12:00",)


def test_without_a_word_of_the_first_cut_all_below_the_first_load_waits() -> None:
    cuts, _ = cuts_of(DECLARATION, [load(4, {0: (100, 110)})], None)
    assert windows(cuts) == {"12:00": ((0, 0, 100),), "12:04": ((0, 100, 110),)}


def test_a_partition_that_was_added_later_starts_at_zero() -> None:
    cuts, _ = cuts_of(DECLARATION, [load(0, {0: (0, 9)}, {0: 0}), load(1, {0: (9, 9), 1: (0, 4)}, {0: 0})], None)
    assert windows(cuts) == {"12:00": ((0, 0, 9),), "12:01": ((0, 9, 9), (1, 0, 4))}


def test_only_what_an_older_ledger_lacks_is_added() -> None:
    known = RecordedCut("orders", "C-o_VJXETNWQtfYhLseebg", 1, edge(1), Cut({0: 9}), {0: "timestamp"}, {0: 3})
    cuts, _ = cuts_of(DECLARATION, [load(0, {0: (0, 9)}, {0: 0}), load(1, {0: (9, 12)}, {0: 0})], known)
    assert [(c.edge, dict(c.cut.offsets)) for c in cuts] == [(edge(2), {0: 12})]


def of_another_log(commit: LoadCommit, first: tuple[int, Mapping[int, int]]) -> LoadCommit:
    """Move the commit into the topic's second generation, which starts with the cut `first`."""
    cut = (edge(first[0]), Cut(first[1]))
    return replace(commit, metadata=replace(commit.metadata, topic_id="B" * 22, generation=2, first_cut=cut))


def test_a_generation_starts_with_its_own_first_cut_and_ends_none_of_the_one_before() -> None:
    new = [of_another_log(load(m, {0: r}), (1, {0: 3})) for m, r in ((1, (3, 5)), (2, (5, 6)))]
    cuts, merged = cuts_of(DECLARATION, [load(0, {0: (0, 9), 1: (0, 2)}, {0: 0, 1: 0}), *new], None)
    assert windows(cuts) == {"12:00": ((0, 0, 9), (1, 0, 2)), "12:01": ((0, 3, 5),), "12:02": ((0, 5, 6),)}
    assert [w.generation for w in windows_between(cuts)] == [1, 2, 2]
    assert merged == ()


def test_windows_on_both_sides_of_a_new_generation_that_nobody_loaded_are_not_forgotten() -> None:
    """The contents of the old log's windows are unknown, and lost with that log. The new log's windows keep their
    offsets."""
    cuts, _ = cuts_of(
        DECLARATION, [load(0, {0: (0, 9)}, {0: 0}), of_another_log(load(4, {0: (7, 8)}), (2, {0: 0}))], None
    )
    assert windows(cuts) == {"12:00": ((0, 0, 9),), "12:01": ((0, 9, 9),), "12:02": ((0, 0, 7),), "12:04": ((0, 7, 8),)}
    assert [w.generation for w in windows_between(cuts)] == [1, 1, 2, 2]


@pytest.mark.parametrize("known", [0, 1, 3])
def test_windows_whose_commits_have_left_the_log_are_of_the_generation_of_their_rows(
    tmp_path: Path, known: int
) -> None:
    """Two topic ids with two windows each; the log still has the commits of the newest `known` windows."""
    hours = [
        ("00", (4, 9), TOPIC_ID, 1),
        ("01", (9, 12), TOPIC_ID, 1),
        ("02", (0, 5), "B" * 22, 2),
        ("03", (5, 8), "B" * 22, 2),
    ]
    for hour, r, topic_id, generation in hours:
        window = replace(sealed("clicks", f"2026-01-01-{hour}:00", p0=r), topic_id=topic_id, generation=generation)
        overwrite(tmp_path, window, load_id=hour)
    table = Folder.at(tmp_path / "raw" / "clicks")
    loads = newest_loads(table)
    declared = TopicDeclaration("clicks", "0 * * * *", datetime(2026, 1, 1, tzinfo=UTC))
    whole = with_expired(table, declared, loads[len(loads) - known :] if known else [])
    assert [(m.generation, m.topic_id, m.ranges.triples()) for m in (load.metadata for load in whole)] == [
        (generation, topic_id, ((0, *r),)) for _, r, topic_id, generation in hours
    ]


def test_overlapping_loads_are_refused() -> None:
    with pytest.raises(LedgerCorruptError, match="12:01"):
        cuts_of(DECLARATION, [load(0, {0: (0, 9)}, {0: 0}), load(1, {0: (8, 12)}, {0: 0})], None)


def test_metadata_survives_its_way_through_a_commit() -> None:
    metadata = load(4, {0: (100, 110), 3: (0, 0)}, {0: 7}).metadata
    assert LoadMetadata.from_json(metadata.to_json()) == metadata
    assert LoadMetadata.from_json('{"somebody": "else"}') is None
    assert LoadMetadata.from_json("free text") is None
    newer = json.dumps({**json.loads(metadata.to_json()), "platform_assets": 99})
    with pytest.raises(LedgerCorruptError, match="version 99"):
        LoadMetadata.from_json(newer)


class ReadsItself:
    """An engine that only measures windows: it derives the digests of their rows from the keys."""

    name = "a test's"

    def __init__(self, windows: Mapping[str, SealedWindow]) -> None:
        self.windows = windows

    def measure(self, table: TableRef, keys: Sequence[str], version: int) -> Iterator[tuple[str, Measured]]:
        for key in keys:
            digest = dense_digest(self.windows[key].ranges)
            yield key, Measured(digest, digest)


def opens(root: Path, windows: int, in_log: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """Count how often a rebuild opens a table with `windows` windows; the log still has the commits of the newest
    `in_log` windows."""
    table = root / "raw" / "clicks"
    made = {}
    for number in range(windows):
        window = sealed(
            "clicks", f"2026-01-01-{number:02}:00", p0=(2 * number, 2 * number + 2), p1=(2 * number, 2 * number + 2)
        )
        overwrite(root, window, load_id=str(number))
        made[window.key] = window
    DeltaTable(table).create_checkpoint()
    for version in range(windows + 1 - in_log):
        (table / "_delta_log" / f"{version:020}.json").unlink()
    declared = TopicDeclaration("clicks", "0 * * * *", datetime(2026, 1, 1, tzinfo=UTC))
    ledger = Ledger(Lake.at(root))
    opened: list[str] = []
    delta = Folder.delta

    def counted(folder: Folder, version: int | None = None) -> DeltaTable:
        opened.append(folder.name)
        return delta(folder, version)

    with monkeypatch.context() as patched:
        patched.setattr(Folder, "delta", counted)
        done = rebuild(declared, ledger, cast(LoadEngine, ReadsItself(made)))
    assert (done.receipts, done.unread) == (windows, ())
    found = ledger.receipts(declared.raw_table)
    assert {k: (w.ranges, r.rows) for (k, r), w in zip(found.items(), made.values(), strict=True)} == {
        k: (w.ranges, 4) for k, w in made.items()
    }
    assert {r.files_digest for r in found.values()} == {
        files.digest for files in holdings.window_files(holdings.actions(Folder.at(table))).values()
    }
    return opened.count("clicks")


@pytest.mark.parametrize("in_log", [1, 5])
def test_a_rebuild_does_not_open_the_table_for_each_window(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_log: int
) -> None:
    """The cost of opening a table grows with its number of files: with ten thousand windows, a rebuild would take
    hours."""
    few, many = (opens(tmp_path / str(n), n, in_log, monkeypatch) for n in (6, 18))
    assert many == few


# --- with services ------------------------------------------------------------------------------------------------


def rebuilt(lk: TopicLake, told: list[str]) -> Rebuilt:
    return rebuild(lk.declaration, lk.ledger, lk.engine, progress=told.append)


def lose_the_ledger(lk: TopicLake) -> None:
    shutil.rmtree(lk.root / "_ledger")


def receipts(lk: TopicLake) -> dict[str, Receipt]:
    """Return receipts without kind, time and duration. Omit the load if there are no rows."""
    return {
        k: replace(r, kind="load", load_id=r.load_id if r.rows else "", run_id="", seconds=0.0, proved_at=None)
        for k, r in lk.ledger.receipts(lk.declaration.raw_table).items()
    }


@pytest.mark.broker
@pytest.mark.spark
def test_a_lost_ledger_comes_back_as_it_was_and_every_window_is_proved_unchanged(lake: LakeMaker) -> None:
    lk = lake(partitions=2)
    keys = [lk.window_of(numbered(20, 2))]
    lk.abort([Record(b"aborted", partition=0)])
    keys.append(lk.window_of(numbered(10, 2, "holes")))
    keys += [lk.close_window() for _ in range(2)]
    keys += [lk.window_of(numbered(10, 2, stem)) for stem in ("healed", "touched", "last")]
    for key in keys:
        lk.load(key)
    healed, touched, _ = keys[4:]
    DeltaTable(lk.table).delete(f"window = '{healed}' AND kafka_partition = 1")
    lk.load(healed)
    DeltaTable(lk.table).delete(f"window = '{touched}' AND kafka_partition = 0")
    before, windows_before = receipts(lk), [(w.key, w.ranges) for w in lk.ledger.windows(lk.topic)]
    lose_the_ledger(lk)
    told: list[str] = []

    done = rebuilt(lk, told)

    assert (done.receipts, done.merged, done.unread) == (5, (), ())
    assert [(w.key, w.ranges) for w in lk.ledger.windows(lk.topic)] == windows_before
    assert receipts(lk) == before
    # One query for unchanged windows, and one for the changed one.
    assert [text.partition(" (")[2] for text in told] == ["4 of 5)", "5 of 5)"]
    expected = dict.fromkeys(keys, "unchanged") | dict.fromkeys(keys[2:4], "empty") | {touched: "healed"}
    assert {key: lk.load(key).outcome for key in keys} == expected
    assert records(lk.rows()) == records(lk.committed())
    assert rebuilt(lk, []).receipts == 0


@pytest.mark.broker
def test_lost_files_of_one_window_hold_up_no_other(lake: LakeMaker) -> None:
    lk = lake(partitions=2)
    keys = [lk.window_of(numbered(10, 2, stem)) for stem in "abc"]
    for key in keys:
        lk.load(key)
    before = receipts(lk)
    for path in data_files(lk, keys[1]):
        path.unlink()
    lose_the_ledger(lk)

    done = rebuilt(lk, [])

    assert [error.window for error in done.unread] == [keys[1]]
    assert receipts(lk) == {k: r for k, r in before.items() if k != keys[1]}
    # Its offsets are sealed as before, so that Kafka gives the same rows again.
    lk.load(keys[1])
    assert records(lk.rows()) == records(lk.committed())
    assert rebuilt(lk, []).receipts == 0
