"""Upkeep merges small files of flat tables: rows stay exact and proved, readers see no change, and a commit that loses
a race leaves nothing behind."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError

from platform_assets.checks.decoded import conserved, windows_of
from platform_assets.engines.merging import task
from platform_assets.errors import CommitOutcomeUnknownError, LakeUnavailableError, LoadError, PlatformError
from platform_assets.lake import delta_log, holdings, load_log, merging
from platform_assets.lake.commits import WindowCommit
from platform_assets.lake.location import Folder
from platform_assets.lake.separating import separate
from platform_assets.lake.vacuum import old_files
from platform_assets.ledger.entries import SealedWindow
from platform_assets.ledger.store import Ledger
from platform_assets.model.offsets import OffsetRange
from platform_assets.model.tables import TableKind
from platform_assets.windows.maintain import last_upkeep, upkeep_text
from platform_assets.windows.maintain.merging import MergedFiles, Upkeep
from platform_assets.windows.maintain.upkeep import VACUUM_EVERY, TableUpkeep
from platform_assets.windows.proved_files import recognised
from platform_assets_tests.support.erasures import AUTHOR, MadeTopic, found_in, proved
from platform_assets_tests.support.odd_measure import OddMeasure
from testbed.layouts import new_tables_are

pytestmark = pytest.mark.usefixtures("flat")

LATER = "2030-01-01-00:00"
WINDOWS, EACH = 6, 20
Rows = dict[tuple[str, int, int], bytes | None]


@pytest.fixture
def topic(tmp_path: Path) -> MadeTopic:
    """A topic with two partitions and one file per window."""
    made = MadeTopic(tmp_path / "lake")
    made.fill(
        made.seal(
            [{p: [(b"k%d" % n, b"%d/%d/%d" % (w, p, n)) for n in range(EACH)] for p in (0, 1)} for w in range(WINDOWS)]
        ),
        decode=False,
    )
    return made


def table(topic: MadeTopic) -> DeltaTable:
    return DeltaTable(topic.root / "raw" / topic.topic)


def upkeep(topic: MadeTopic, before: str = LATER, target: int = 1 << 20, **options: Any) -> list[MergedFiles]:
    return list(Upkeep(topic.declaration.raw_table, topic.ledger, target=target, **options).run(before))


def windows(topic: MadeTopic) -> list[SealedWindow]:
    return topic.ledger.windows(topic.topic)


def held(topic: MadeTopic) -> Rows:
    """Return the rows that another reader finds. Fail if two rows have the same partition and offset."""
    columns = ["window", "kafka_partition", "kafka_offset", "value"]
    rows = pl.scan_delta(str(topic.root / "raw" / topic.topic)).select(columns).collect().rows()
    found = {(key, p, o): value for key, p, o, value in rows}
    assert len(found) == len(rows)
    return found


def sent(topic: MadeTopic) -> Rows:
    return {
        (w.key, r.partition, r.offset): r.value
        for w in windows(topic)
        for r in topic.records
        if r.offset in w.ranges.by_partition.get(r.partition, ())
    }


def unnamed(topic: MadeTopic) -> set[str]:
    """Return merged files on disk that the newest version does not have."""
    root = topic.root / "raw" / topic.topic
    named = {unquote(p) for p in pa.table(table(topic).get_add_actions(flatten=True))["path"].to_pylist()}
    return {str(p.relative_to(root)) for p in (root / "windows").rglob("*.parquet")} - named


def test_small_files_become_one_in_a_commit_that_changes_no_data(topic: MadeTopic) -> None:
    (done,) = upkeep(topic)
    assert done.version == table(topic).version()
    assert len(table(topic).file_uris()) == 1
    commit = delta_log.commit(topic.lake.table(topic.declaration.raw_table), done.version)
    assert commit is not None
    assert commit.rearranges
    assert len(commit.removes) == WINDOWS
    assert held(topic) == sent(topic)
    proved(topic)
    assert all(topic.load(w).outcome == "unchanged" for w in windows(topic))


def test_rows_are_in_order_and_known_to_be_those_of_the_receipts(topic: MadeTopic) -> None:
    """Checks therefore read no rows afterwards."""
    upkeep(topic)
    (path,) = (topic.root / "raw" / topic.topic / "windows").rglob("*.parquet")
    rows = pq.ParquetFile(path).read().select(["window", "kafka_partition", "kafka_offset"]).to_pylist()
    assert rows == sorted(rows, key=lambda r: (r["window"], r["kafka_partition"], r["kafka_offset"]))
    assert pq.ParquetFile(path).num_row_groups == 1
    files = holdings.window_files(holdings.actions(topic.lake.table(topic.declaration.raw_table)))
    receipts = topic.receipts()
    known = recognised(topic.lake, topic.declaration.raw_table, files, receipts.values(), reads=False)
    assert {k: f.proved_as for k, f in known.items()} == {k: r.files_digest for k, r in receipts.items()}
    share = sum(f.bytes for f in files.values())
    assert path.stat().st_size - WINDOWS < share <= path.stat().st_size


def test_only_quiet_windows_are_merged_up_to_the_target_size(topic: MadeTopic) -> None:
    size = max(f["size_bytes"] for f in pa.table(table(topic).get_add_actions(flatten=True)).to_pylist())
    newest = windows(topic)[-1]
    done = upkeep(topic, before=newest.key, target=size * 2 + 1)
    assert [len(d.group.files) for d in done] == [3, 2]
    assert all(newest.key not in d.group.windows for d in done)
    assert held(topic) == sent(topic)
    proved(topic)


def test_a_second_upkeep_finds_nothing_to_do(topic: MadeTopic) -> None:
    upkeep(topic)
    version = table(topic).version()
    assert upkeep(topic) == []
    assert table(topic).version() == version


def test_a_damaged_window_is_reported_and_its_group_left_alone(topic: MadeTopic) -> None:
    of = windows(topic)[2]
    table(topic).delete(f"window = '{of.key}' AND kafka_offset % 7 = 0")
    before, version = held(topic), table(topic).version()
    (done,) = upkeep(topic)
    assert (done.version, done.damaged) == (None, (of.key,))
    assert (held(topic), table(topic).version(), unnamed(topic)) == (before, version, set())
    assert topic.load(of).outcome == "healed"
    assert all(d.version is not None for d in upkeep(topic))
    assert held(topic) == sent(topic)


def test_rows_that_a_stale_compact_of_delta_rs_doubles_are_found_and_healed(topic: MadeTopic) -> None:
    """delta-rs 1.6.6 does not notice that a commit without changed data has removed the files of its plan, even if both
    commits are its own. If this test fails because the commit is refused, the warning in the guide can go, and so can
    the lock in the streaming soak."""
    stale = table(topic)
    upkeep(topic)
    stale.optimize.compact()
    assert len(pl.scan_delta(str(topic.root / "raw" / topic.topic)).collect()) == 2 * len(sent(topic))
    with pytest.raises(AssertionError, match="Materialize"):
        proved(topic)
    assert {topic.load(w).outcome for w in windows(topic)} == {"healed"}
    assert held(topic) == sent(topic)
    proved(topic)


@pytest.mark.parametrize("kind", ["decoded", "dead_letters"])
def test_rows_that_a_stale_compact_doubles_in_tables_made_from_raw_rows_are_found_and_decoded_again(
    tmp_path: Path, kind: TableKind
) -> None:
    topic = MadeTopic(tmp_path / "lake")
    topic.fill(topic.seal([{p: [(b"k", b"v-%d" % w), (b"k", b"\xff")] for p in (0, 1)} for w in range(WINDOWS)]))
    of, keys = replace(topic.declaration.raw_table, kind=kind), [w.key for w in windows(topic)]
    before = {k: topic.values(k) for k in ("decoded", "dead_letters")}
    stale = topic.lake.table(of).delta()
    (merged,) = Upkeep(of, topic.ledger, target=1 << 20).run(LATER)
    assert merged.version is not None
    stale.optimize.compact()
    assert len(topic.values(kind)) == 2 * len(before[kind])
    found = conserved(windows_of(topic.declaration, topic.ledger)).findings
    assert sorted(f.window for f in found) == keys
    assert all(f"Materialize partition {f.window} of decoded/people" in f.remedy for f in found)
    assert {topic.decoder().decode(key).outcome for key in keys} == {"healed"}
    assert {k: topic.values(k) for k in ("decoded", "dead_letters")} == before
    proved(topic)


@pytest.mark.parametrize("target", [1, 1 << 20])
def test_upkeep_names_doubled_rows_until_they_are_loaded_again(topic: MadeTopic, target: int) -> None:
    """Also of files that are too large to be merged, and without reading them."""
    stale, keys = table(topic), [w.key for w in windows(topic)]
    upkeep(topic)
    stale.optimize.compact()
    named = TableUpkeep(topic.declaration.raw_table, topic.ledger, target=target)
    done = named.run(datetime.now(UTC))
    assert done is not None
    assert sorted(done.damaged) == keys
    (text,) = upkeep_text.damage_texts("raw/people", sorted(done.damaged))
    # With the larger target, there was nothing to merge: the text must not tell of an attempt.
    assert f"{len(keys)} windows of raw/people have rows that differ from those that were loaded" in text
    assert f"`platform-assets load raw/people {' '.join(keys[:3])} …`" in text
    assert last_upkeep.standing(topic.ledger, topic.declaration.raw_table, done) == tuple(keys)
    for of in windows(topic):
        topic.load(of)
    assert last_upkeep.standing(topic.ledger, topic.declaration.raw_table, done) == ()
    done = named.run(datetime.now(UTC))
    assert done is not None
    assert done.damaged == {}
    proved(topic)


def test_a_window_without_a_receipt_stays_out(topic: MadeTopic) -> None:
    """Nothing proves the window's content: its load may be about to be recorded."""
    of = windows(topic)[2]
    ledger = DeltaTable(topic.root / "_ledger" / "commits")
    ledger.delete(f"\"window\" = '{of.key}'")
    (done,) = upkeep(topic)
    assert of.key not in done.group.windows
    assert held(topic) == sent(topic)


Meanwhile = Callable[[MadeTopic, SealedWindow], Any]


def load(topic: MadeTopic, of: SealedWindow) -> None:
    table(topic).delete(f"window = '{of.key}' AND kafka_partition = 0")
    assert topic.load(of).outcome == "healed"


def erase(topic: MadeTopic, of: SealedWindow) -> None:
    erasure = topic.erasure
    first = of.ranges.by_partition[0].start
    erasure.record(erasure.at_offsets({0: (OffsetRange(first, first + 1),)}), AUTHOR)
    erasure.run(AUTHOR)


def another_upkeep(topic: MadeTopic, of: SealedWindow) -> None:
    assert [d.version is not None for d in upkeep(topic)] == [True]


def optimize(topic: MadeTopic, of: SealedWindow) -> None:
    assert table(topic).optimize.compact()["numFilesRemoved"]


@pytest.mark.parametrize("meanwhile", [load, erase, another_upkeep, optimize])
def test_upkeep_loses_to_whatever_commits_first_and_deletes_its_file(
    topic: MadeTopic, monkeypatch: pytest.MonkeyPatch, meanwhile: Meanwhile
) -> None:
    """Another process commits after upkeep has read the files and before upkeep commits."""
    of, commit = windows(topic)[2], merging.commit

    def late(*arguments: Any) -> int | None:
        monkeypatch.setattr(merging, "commit", commit)
        meanwhile(topic, of)
        return commit(*arguments)

    monkeypatch.setattr(merging, "commit", late)
    (done,) = upkeep(topic)
    assert (done.version, done.damaged) == (None, ())
    wanted = sent(topic)
    if meanwhile is erase:
        del wanted[of.key, 0, of.ranges.by_partition[0].start]
        assert not found_in(topic.root / "raw", b"2/0/0")
    assert held(topic) == wanted
    assert unnamed(topic) == set()
    proved(topic)


def test_files_that_an_erasure_deletes_before_upkeep_reads_them_are_no_damage(
    topic: MadeTopic, caplog: pytest.LogCaptureFixture
) -> None:
    """No message asks an operator to repair anything."""
    merging_files = Upkeep(topic.declaration.raw_table, topic.ledger)
    plan = merging_files.plan(LATER)
    assert plan is not None
    erase(topic, windows(topic)[2])
    (done,) = merging_files.merge(plan)
    assert (done.version, done.damaged) == (None, ())
    assert "not merged" not in caplog.text
    proved(topic)


def test_a_commit_of_others_that_leaves_the_files_is_no_conflict(
    topic: MadeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = merging.commit

    def late(*arguments: Any) -> int | None:
        table(topic).alter.set_table_properties({"delta.logRetentionDuration": "interval 40 days"})
        return commit(*arguments)

    monkeypatch.setattr(merging, "commit", late)
    (done,) = upkeep(topic)
    assert done.version == table(topic).version()
    assert held(topic) == sent(topic)


@pytest.mark.parametrize("what", [load, erase])
def test_a_window_is_replaced_while_upkeep_moves_it(
    topic: MadeTopic, monkeypatch: pytest.MonkeyPatch, what: Meanwhile
) -> None:
    """Upkeep commits between a load's read and the load's commit; the load then starts again from the merged file."""
    of, version = windows(topic)[2], table(topic).version()
    opened = topic.replacer.open
    moved: list[int] = []

    def then_moved() -> Any:
        commit = opened()
        if not moved:
            moved.append(1)
            upkeep(topic)
        return commit

    monkeypatch.setattr(type(topic.replacer), "open", lambda self: then_moved())
    what(topic, of)
    wanted = sent(topic)
    if what is erase:
        del wanted[of.key, 0, of.ranges.by_partition[0].start]
    assert table(topic).version() > version
    assert held(topic) == wanted
    proved(topic)


@pytest.mark.long
def test_upkeep_races_loads_erasures_and_itself(topic: MadeTopic, rng: random.Random) -> None:
    """Each loser of a race ends with a clear outcome; nothing is lost or duplicated."""
    barrier, failed = threading.Barrier(4), list[Exception]()
    gone = windows(topic)[4]

    def heals() -> None:
        for of in windows(topic)[:3]:
            topic.replacer.open()
            assert topic.load(of).outcome in ("unchanged", "healed", "loaded")

    def replaces() -> None:
        for of in windows(topic)[1:4]:
            topic.load(of)

    jobs: list[Callable[[], Any]] = [
        lambda: upkeep(topic),
        lambda: upkeep(topic, target=4_000),
        heals,
        lambda: erase(topic, gone),
    ]
    rng.shuffle(jobs)

    def run(job: Callable[[], Any]) -> None:
        barrier.wait(60)
        try:
            job()
        except PlatformError as e:
            failed.append(e)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(run, jobs))
    assert not [e for e in failed if "Concurrent" not in type(e).__name__], failed
    topic.erasure.run(AUTHOR)
    wanted = sent(topic)
    wanted.pop((gone.key, 0, gone.ranges.by_partition[0].start))
    assert held(topic) == wanted
    replaces()
    upkeep(topic)
    assert held(topic) == wanted
    proved(topic)


def test_erasing_from_many_windows_of_one_file_divides_it_once(topic: MadeTopic) -> None:
    """The file is not divided once for each window, because the cost of copying would then grow with the square of the
    number of windows."""
    upkeep(topic)
    before = table(topic).version()
    erasure = topic.erasure
    erasure.record(erasure.of_keys([b"k3"]), AUTHOR)
    erasure.run(AUTHOR)
    folder = topic.lake.table(topic.declaration.raw_table)
    commits = [delta_log.commit(folder, v) for v in range(before + 1, table(topic).version() + 1)]
    assert [c.rearranges for c in commits if c is not None] == [True] + [False] * WINDOWS
    loads = [c for c in map(load_log.load_in, filter(None, commits)) if c is not None]
    assert not any(load.metadata.kept for load in loads)
    assert held(topic) == {place: v for place, v in sent(topic).items() if not (v or b"").endswith(b"/3")}
    assert not found_in(topic.root / "raw", b"k3")
    proved(topic)


def test_what_is_separated_is_compared_first(topic: MadeTopic) -> None:
    upkeep(topic)
    before, version, on_disk = held(topic), table(topic).version(), unnamed(topic)
    folder, keys = topic.lake.table(topic.declaration.raw_table), [w.key for w in windows(topic)[:3]]
    with pytest.raises(LoadError, match="was not separated"):
        separate(folder, keys, OddMeasure(WINDOWS))
    assert (held(topic), table(topic).version(), unnamed(topic)) == (before, version, on_disk)


@pytest.mark.parametrize("whole", [True, False], ids=["whole", "half-written"])
def test_erased_bytes_leave_the_files_of_a_dead_upkeep_too(
    topic: MadeTopic, monkeypatch: pytest.MonkeyPatch, whole: bool
) -> None:
    """No commit refers to these files, and only the folder of a half-written file shows its possible content."""

    def dies(*arguments: Any) -> int | None:
        raise SystemExit

    with monkeypatch.context() as patched:
        patched.setattr(merging, "commit", dies)
        with pytest.raises(SystemExit):
            upkeep(topic)
    (left,) = (topic.root / "raw" / topic.topic / name for name in unnamed(topic))
    if not whole:
        left.write_bytes(left.read_bytes()[:-8])
    erase(topic, windows(topic)[2])
    assert not left.exists()
    assert not found_in(topic.root / "raw", b"2/0/0")
    proved(topic)


def big_window(topic: MadeTopic) -> SealedWindow:
    """Return the third window. Its file is too large to be merged, so merged files contain rows before and after it,
    but none of it."""
    return windows(topic)[2]


@pytest.fixture
def uneven(tmp_path: Path, rng: random.Random) -> MadeTopic:
    """A topic whose third window is large."""
    made = MadeTopic(tmp_path / "uneven")
    sizes = [EACH, EACH, 100 * EACH, EACH, EACH]
    made.fill(
        made.seal(
            [
                {0: [(b"k%d" % n, b"%d/%d-%s" % (w, n, rng.randbytes(20))) for n in range(r)]}
                for w, r in enumerate(sizes)
            ]
        ),
        decode=False,
    )
    return made


@pytest.mark.parametrize("moment", ["before its commit", "before it deletes files"])
def test_an_erasure_deletes_no_file_that_upkeep_commits_meanwhile(
    uneven: MadeTopic, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """The erasure cannot determine what a half-written file contains, only which windows it may contain."""
    half_written, goes_on = threading.Event(), threading.Event()
    row_group, done, calls = task._row_group, list[MergedFiles](), list[int]()
    made, erased = WindowCommit._made, Folder.erase

    def slow(rows: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            half_written.set()
            assert goes_on.wait(60)
        return row_group(rows)

    def finish() -> None:
        goes_on.set()
        running.join(60)

    def commit_after_upkeep(self: Any, *arguments: Any) -> Any:
        finish()
        return made(self, *arguments)

    def erase_after_upkeep(self: Any, names: Any) -> Any:
        finish()
        return erased(self, names)

    size = max(f["size_bytes"] for f in pa.table(table(uneven).get_add_actions(flatten=True)).to_pylist())
    monkeypatch.setattr(task, "_row_group", slow)
    running = threading.Thread(target=lambda: done.extend(upkeep(uneven, target=size)))
    running.start()
    assert half_written.wait(60)
    if moment == "before its commit":
        monkeypatch.setattr(WindowCommit, "_made", commit_after_upkeep)
    else:
        monkeypatch.setattr(Folder, "erase", erase_after_upkeep)
    of = big_window(uneven)
    erase(uneven, of)
    assert not running.is_alive()
    (group,) = done
    assert of.key not in group.group.windows
    assert group.group.windows[0] < of.key < group.group.windows[-1]
    assert (group.version is not None) == (moment == "before its commit")
    wanted = sent(uneven)
    del wanted[of.key, 0, of.ranges.by_partition[0].start]
    assert held(uneven) == wanted
    assert unnamed(uneven) == set()
    proved(uneven)


def test_a_partitioned_table_is_left_alone(tmp_path: Path) -> None:
    with new_tables_are("partitioned"):
        made = MadeTopic(tmp_path / "partitioned")
        made.fill(made.seal([{0: [(b"k", b"v")]}, {0: [(b"k", b"v")]}]), decode=False)
    assert upkeep(made) == []


def test_a_window_whose_load_has_not_recorded_its_receipt_yet_is_no_damage(
    topic: MadeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The window's rows do not match its previous receipt."""
    record, done = Ledger.record_receipts, list[MergedFiles]()

    def late(self: Ledger, receipts: Any) -> Any:
        monkeypatch.setattr(Ledger, "record_receipts", record)
        done.extend(upkeep(topic))
        return record(self, receipts)

    monkeypatch.setattr(Ledger, "record_receipts", late)
    erase(topic, windows(topic)[2])
    assert [(d.version, d.damaged) for d in done] == [(None, ())]
    assert [d.version is not None for d in upkeep(topic)] == [True]
    proved(topic)


def test_a_client_that_finds_its_own_commit_keeps_the_files_in_it(
    topic: MadeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client got no answer, retried, and got the error that another commit came first. The clients of object stores
    do that."""
    commit = DeltaTable.create_write_transaction

    def twice(self: DeltaTable, *arguments: Any, **options: Any) -> None:
        commit(self, *arguments, **options)
        raise CommitFailedError("version already exists")

    of = windows(topic)[2]
    with monkeypatch.context() as patched:
        patched.setattr(DeltaTable, "create_write_transaction", twice)
        (done,) = upkeep(topic)
        assert done.version == table(topic).version()
        assert held(topic) == sent(topic)
        load(topic, of)
        assert held(topic) == sent(topic)
        erase(topic, of)
    wanted = sent(topic)
    del wanted[of.key, 0, of.ranges.by_partition[0].start]
    assert held(topic) == wanted
    proved(topic)


@pytest.mark.parametrize("fails", [False, True], ids=["committed", "outcome unknown"])
def test_a_log_that_cannot_be_read_after_the_commit_does_not_cost_the_merged_files(
    topic: MadeTopic, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    commit = DeltaTable.create_write_transaction

    def unreadable(folder: Folder, version: int) -> Any:
        raise LakeUnavailableError(str(folder), "no route to host")

    def then_unreadable(self: DeltaTable, *arguments: Any, **options: Any) -> None:
        commit(self, *arguments, **options)
        patched.setattr(delta_log, "commit", unreadable)
        if fails:
            raise OSError("the answer was lost")

    with monkeypatch.context() as patched:
        patched.setattr(DeltaTable, "create_write_transaction", then_unreadable)
        with pytest.raises(CommitOutcomeUnknownError):
            upkeep(topic)
    assert held(topic) == sent(topic)
    assert upkeep(topic) == []
    proved(topic)


def test_windows_are_compared_before_old_files_are_deleted_and_only_then(
    topic: MadeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared, unproved = list[str](), TableUpkeep._unproved

    def counted(self: TableUpkeep) -> tuple[str, ...]:
        compared.append(self.table.name)
        return unproved(self)

    monkeypatch.setattr(TableUpkeep, "_unproved", counted)
    one, now = TableUpkeep(topic.declaration.raw_table, topic.ledger), datetime.now(UTC)
    done = one.run(now)
    assert done is not None
    assert (done.vacuumed_at, done.deleted_files, compared) == (now, 0, [])
    old = topic.root / "raw" / topic.topic / "old.parquet"
    old.write_bytes(b"of a dead load")
    os.utime(old, (0, 0))
    done = one.run(now + VACUUM_EVERY)
    assert done is not None
    assert (done.vacuumed_at, done.deleted_files, compared) == (now + VACUUM_EVERY, 1, [one.table.name])
    assert not old.exists()


def test_a_file_that_becomes_old_after_the_comparison_stays(topic: MadeTopic, monkeypatch: pytest.MonkeyPatch) -> None:
    late, listed = topic.root / "raw" / topic.topic / "late.parquet", old_files

    def then_older(folder: Folder) -> list[str]:
        found = listed(folder)
        late.write_bytes(b"the only copy of a row")
        os.utime(late, (0, 0))
        return found

    one, now = TableUpkeep(topic.declaration.raw_table, topic.ledger), datetime.now(UTC)
    with monkeypatch.context() as patched:
        patched.setattr("platform_assets.windows.maintain.upkeep.old_files", then_older)
        done = one.run(now)
    assert done is not None
    assert (done.deleted_files, late.exists()) == (0, True)
    done = one.run(now + VACUUM_EVERY)
    assert done is not None
    assert (done.deleted_files, late.exists()) == (1, False)
