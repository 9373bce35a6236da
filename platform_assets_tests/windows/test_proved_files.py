"""Files with many windows that other writers rewrote: each file is measured once for all processes. The results are a
cache that can only confirm."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from platform_assets.checks.facts import Facts, collect
from platform_assets.checks.registry import CHECKS
from platform_assets.checks.rules import deep_audit
from platform_assets.errors import UnprovedRowsError
from platform_assets.lake import contents, holdings, load_log, measuring, rows
from platform_assets.lake.delta_log import DataFile
from platform_assets.ledger.entries import SealedWindow
from platform_assets.model.digest import Digest, Measured
from platform_assets.windows import proved_files
from platform_assets.windows.maintain.merging import Upkeep
from platform_assets_tests.support.erasures import AUTHOR, MadeTopic, evaluation_of, proved
from platform_assets_tests.support.variants import long_after

pytestmark = pytest.mark.usefixtures("flat")

WINDOWS, EACH = 8, 10
LATER = "2030-01-01-00:00"


@pytest.fixture
def topic(tmp_path: Path) -> MadeTopic:
    """A topic with two partitions and one file per window."""
    made = MadeTopic(tmp_path / "lake")
    made.fill(sealed(made), decode=False)
    return made


def sealed(made: MadeTopic) -> list[SealedWindow]:
    return made.seal(
        [{p: [(b"k", b"%d/%d/%d" % (w, p, n)) for n in range(EACH)] for p in (0, 1)} for w in range(WINDOWS)]
    )


class Read:
    """Data files measured and windows read since this object was created."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.files: list[str] = []
        self.windows: list[str] = []
        measured, offsets_of = measuring.measured, rows.Opened.offsets_of

        def measuring_counted(table: Any, file: Any, *others: Any) -> Any:
            self.files.append(file.path)
            return measured(table, file, *others)

        def reading_counted(opened: rows.Opened, key: str) -> Any:
            self.windows.append(key)
            return offsets_of(opened, key)

        monkeypatch.setattr(proved_files, "measured", measuring_counted)
        monkeypatch.setattr(rows.Opened, "offsets_of", reading_counted)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Read:
    """Count the files and windows that are read."""
    return Read(monkeypatch)


def table(topic: MadeTopic) -> DeltaTable:
    return DeltaTable(topic.root / "raw" / topic.topic)


def files(topic: MadeTopic) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pa.table(table(topic).get_add_actions(flatten=True)).to_pylist()
    return found


def entries(topic: MadeTopic) -> list[Path]:
    return sorted((topic.root / "_ledger" / "files" / "raw" / topic.topic).glob("*.parquet"))


def facts(topic: MadeTopic) -> Facts:
    """Return the facts that another process gathers."""
    holdings._remembered._values.clear()
    return collect(topic.declaration.raw_table, topic.ledger)


def is_green(found: Facts) -> bool:
    return not (found.changed or found.rewritten or found.not_held or found.unreadable or found.unknown)


def by_stranger(topic: MadeTopic) -> None:
    assert table(topic).optimize.compact()["numFilesRemoved"] == WINDOWS


# --- one read per file


def test_a_strangers_file_is_read_once_by_all_processes(topic: MadeTopic, read: Read) -> None:
    by_stranger(topic)
    receipts = topic.receipts()
    assert is_green(facts(topic))
    assert (len(read.files), read.windows) == (1, [])
    assert is_green(facts(topic))
    assert len(read.files) == 1
    assert topic.receipts() == receipts
    proved(topic)


def test_files_with_rows_of_each_window_are_read_once_each(topic: MadeTopic, read: Read) -> None:
    """The files look as they do after a Z-order: only the sum over all files matches a receipt."""
    rows_now = table(topic).to_pyarrow_table()
    place = pc.bit_wise_and(rows_now["kafka_offset"], 3)
    for n in range(4):
        mode: Any = "append" if n else "overwrite"
        write_deltalake(str(topic.root / "raw" / topic.topic), rows_now.filter(pc.equal(place, n)), mode=mode)
    made = files(topic)
    assert len(made) == 4
    assert is_green(facts(topic))
    assert sorted(read.files) == sorted(f["path"] for f in made)
    assert read.windows == []


def test_upkeep_writes_contents_and_no_receipts(topic: MadeTopic, read: Read) -> None:
    before = DeltaTable(topic.root / "_ledger" / "commits").version()
    list(Upkeep(topic.declaration.raw_table, topic.ledger).run(LATER))
    assert len(entries(topic)) == len(files(topic)) == 1
    assert is_green(facts(topic))
    assert (read.files, read.windows) == ([], [])
    assert DeltaTable(topic.root / "_ledger" / "commits").version() == before
    proved(topic)


def test_older_windows_stay_counted_after_upkeep(tmp_path: Path, read: Read) -> None:
    """Checks of a new window do not evaluate the older windows again one by one."""
    made = MadeTopic(tmp_path / "lake")
    made.load_many(made.seal([{0: [(b"k", b"%d" % w)]} for w in range(60)]))
    list(Upkeep(made.declaration.raw_table, made.ledger).run(LATER))
    found = collect(made.declaration.raw_table, made.ledger, counting=CHECKS.values())
    assert found.older.windows == 36
    assert is_green(found)
    assert (read.files, read.windows) == ([], [])


# --- the checks are as strict as before


def test_one_deleted_row_is_found_to_its_offset(topic: MadeTopic, read: Read) -> None:
    by_stranger(topic)
    facts(topic)
    of = topic.ledger.windows(topic.topic)[3]
    start = of.ranges.by_partition[1].start
    table(topic).delete(f"kafka_partition = 1 AND kafka_offset = {start + 4}")
    found = facts(topic)
    assert set(found.changed) == {of.key}
    assert [(r.start, r.end) for r in found.changed[of.key][1].ranges] == [
        (start, start + 4),
        (start + 5, start + EACH),
    ]
    assert (len(read.files), read.windows) == (2, [of.key])
    assert topic.load(of).outcome == "healed"
    assert is_green(facts(topic))


def test_an_altered_value_is_found(topic: MadeTopic) -> None:
    """The altered row's offset is the loaded one, so earlier checks of a shared file did not notice the change."""
    of = topic.ledger.windows(topic.topic)[2]
    by_stranger(topic)
    table(topic).update(predicate="kafka_partition = 0 AND kafka_offset = 25", updates={"value": "CAST('x' AS BYTEA)"})
    found = facts(topic)
    assert found.rewritten == {of.key}
    result = CHECKS["every_offset_accounted_for"].evaluate(evaluation_of(topic))
    assert {(f.kind, f.window) for f in result.findings} == {("altered value", of.key)}


def test_rows_of_another_topic_id_are_found(topic: MadeTopic) -> None:
    """No digest covers the topic id, so contents are kept per topic id."""
    of = topic.ledger.windows(topic.topic)[2]
    by_stranger(topic)
    table(topic).update(predicate="kafka_partition = 0 AND kafka_offset = 25", updates={"topic_id": "'other'"})
    assert of.key in facts(topic).rewritten


# --- the cache


def test_contents_are_those_that_another_reader_finds(topic: MadeTopic) -> None:
    by_stranger(topic)
    facts(topic)
    (entry,) = entries(topic)
    (file,) = files(topic)
    found = pq.read_table(entry)
    assert found.schema.equals(contents.SCHEMA)
    assert pq.read_schema(entry).metadata == {
        b"table_id": str(table(topic).metadata().id).encode(),
        b"path": file["path"].encode(),
        b"size": str(file["size_bytes"]).encode(),
    }
    receipts = topic.receipts()
    assert found.to_pylist() == [
        {
            "window": key,
            "topic_id": r.topic_id,
            "rows": r.rows,
            "offsets_digest": str(r.offsets_digest),
            "content_digest": str(r.content_digest),
        }
        for key, r in sorted(receipts.items())
    ]


DAMAGED_VALUES: dict[str, tuple[str, Any]] = {
    "no number": ("offsets_digest", "x"),
    "a very long number": ("content_digest", "9" * 5000),
    "null": ("content_digest", None),
    "no rows": ("rows", -1),
}


@pytest.mark.parametrize(
    "damage",
    long_after(
        4,
        [
            "deleted",
            "cut",
            "empty",
            "of another file",
            "of another table",
            "no number",
            "a very long number",
            "null",
            "no rows",
        ],
    ),
)
def test_without_its_entry_a_file_is_read_again(topic: MadeTopic, read: Read, damage: str) -> None:
    by_stranger(topic)
    facts(topic)
    (entry,) = entries(topic)
    if damage == "deleted":
        entry.unlink()
    elif damage in ("cut", "empty"):
        entry.write_bytes(entry.read_bytes()[: 300 if damage == "cut" else 0])
    elif damage in DAMAGED_VALUES:
        name, value = DAMAGED_VALUES[damage]
        found = pq.read_table(entry)
        at, kind = found.schema.get_field_index(name), found.schema.field(name)
        pq.write_table(found.set_column(at, kind, pa.array([value] * found.num_rows, kind.type)), entry)
    else:
        found = pq.read_table(entry)
        key = {"of another file": b"path", "of another table": b"table_id"}[damage]
        pq.write_table(found.replace_schema_metadata({**(found.schema.metadata or {}), key: b"other"}), entry)
    assert is_green(facts(topic))
    assert len(read.files) == 2
    assert is_green(facts(topic))
    assert len(read.files) == 2


def test_an_entry_can_only_confirm(topic: MadeTopic) -> None:
    """If a file is measured while it is damaged, and then restored under the same name, the file itself counts."""
    by_stranger(topic)
    facts(topic)
    (file,), folder = files(topic), topic.lake.table(topic.declaration.raw_table)
    table_id = str(table(topic).metadata().id)
    known = contents.recorded(folder, table_id, file["path"], file["size_bytes"])
    assert known is not None
    wrong = Measured(Digest(2 * EACH, 1), Digest(2 * EACH, 2))
    contents.record(folder, table_id, file["path"], file["size_bytes"], dict.fromkeys(known, wrong))
    found = facts(topic)
    assert found.rewritten == set(topic.receipts())
    assert not found.changed
    proved(topic)


def test_entries_of_files_that_the_table_no_longer_names_are_deleted(topic: MadeTopic) -> None:
    by_stranger(topic)
    facts(topic)
    (first,) = entries(topic)
    table(topic).delete("kafka_partition = 0 AND kafka_offset = 0")
    facts(topic)
    (second,) = entries(topic)
    assert second != first


def test_an_erasure_leaves_no_entry_of_a_file_that_it_removed(topic: MadeTopic) -> None:
    by_stranger(topic)
    facts(topic)
    (before,) = entries(topic)
    topic.erasure.record(topic.erasure.of_keys([b"k"]), AUTHOR)
    assert topic.erasure.run(AUTHOR).rows["raw/people"] == 2 * WINDOWS * EACH
    assert before not in entries(topic)


def test_a_file_of_very_many_windows_is_looked_into_once(topic: MadeTopic, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another writer may put two months of five-minute windows into one file."""
    keys = [f"2026-{d:05}-00:00" for d in range(20_000)]
    of_keys = pa.table({"window": keys})
    pq.write_table(of_keys, topic.root / "raw" / topic.topic / "many.parquet")
    folder, file = topic.lake.table(topic.declaration.raw_table), DataFile("many.parquet", {}, 1, None)
    assert len(holdings.held_by(folder, file)) == len(keys)
    monkeypatch.setattr(holdings, "_read", lambda *given: pytest.fail("it was read again"))
    assert len(holdings.held_by(folder, file)) == len(keys)


def test_contents_of_any_size_are_the_same_when_read(topic: MadeTopic, rng: random.Random) -> None:
    """Sums of many 64-bit hashes are longer than 64 bits."""
    digests = {
        (f"2026-01-{d:02}-00:00", topic_id): Measured(
            Digest(n := rng.randrange(1, 1 << 40), rng.randrange(n << 64)), Digest(n, rng.randrange(n << 64))
        )
        for d in range(1, 29)
        for topic_id in ("", "a", "b")
    }
    folder = topic.lake.table(topic.declaration.raw_table)
    contents.record(folder, "id", "windows/x%20y.parquet", 7, digests)
    assert contents.recorded(folder, "id", "windows/x%20y.parquet", 7) == digests
    assert contents.recorded(folder, "id", "windows/x%20y.parquet", 8) is None
    assert contents.recorded(folder, "other", "windows/x%20y.parquet", 7) is None


# --- lost files


@pytest.fixture
def lost(tmp_path: Path) -> tuple[MadeTopic, SealedWindow, Path]:
    """A topic whose windows share one file, except one window that was never loaded."""
    made = MadeTopic(tmp_path / "lake")
    windows = sealed(made)
    made.fill([w for n, w in enumerate(windows) if n != 4], decode=False)
    table(made).optimize.compact()
    (file,) = files(made)
    return made, windows[4], made.root / "raw" / made.topic / file["path"]


def test_a_lost_file_holds_what_was_written_down(lost: tuple[MadeTopic, SealedWindow, Path]) -> None:
    """The first load of a window between the windows of the lost file therefore succeeds."""
    topic, new, path = lost
    assert is_green(facts(topic))
    path.unlink()
    holdings._remembered._values.clear()
    assert topic.load(new).outcome == "loaded"
    (found,) = {f.kind for f in deep_audit.evaluate(evaluation_of(topic)).findings}
    assert found == "files lost"
    for window in topic.ledger.windows(topic.topic):
        if window.key != new.key:
            assert topic.load(window).outcome == "healed"
    assert is_green(facts(topic))


def test_of_a_lost_file_that_nobody_knows_any_window_may_be_lost(lost: tuple[MadeTopic, SealedWindow, Path]) -> None:
    topic, new, path = lost
    path.unlink()
    holdings._remembered._values.clear()
    with pytest.raises(UnprovedRowsError):
        topic.load(new)


def test_rows_that_nobody_can_read_are_not_taken_for_none(topic: MadeTopic) -> None:
    """A window that has all of its rows may have further rows in a lost file."""
    by_stranger(topic)
    facts(topic)
    two = sorted(topic.receipts())[2:4]
    more = table(topic).to_pyarrow_table().filter(pc.field("window").isin(two))
    before = {f["path"] for f in files(topic)}
    write_deltalake(str(topic.root / "raw" / topic.topic), more, mode="append")
    (added,) = {f["path"] for f in files(topic)} - before
    (topic.root / "raw" / topic.topic / added).unlink()
    assert sorted(facts(topic).unreadable) == two


# --- any history


def test_what_is_written_down_never_changes_what_checks_find(topic: MadeTopic, rng: random.Random) -> None:
    """After any history, the checks give the same result with all cache entries, with some of them, and with none."""
    written = topic.root / "_ledger" / "files"
    for _ in range(8):
        step(topic, rng)
        for entry in entries(topic):
            if rng.random() < 0.3:
                entry.unlink()
            elif rng.random() < 0.2:
                entry.write_bytes(entry.read_bytes()[: rng.randrange(400)])
        found = found_by(topic)
        assert found_by(topic) == found
        shutil.rmtree(written, ignore_errors=True)
        assert found_by(topic) == found


def step(topic: MadeTopic, rng: random.Random) -> None:
    """Change a table as another writer or the platform would."""
    of = rng.choice(topic.ledger.windows(topic.topic))
    place = f"kafka_partition = {rng.randrange(2)} AND kafka_offset = {rng.randrange(WINDOWS * EACH)}"
    what = rng.choice(["compact", "sort", "delete", "alter", "double", "load", "load", "upkeep"])
    if what == "compact":
        table(topic).optimize.compact()
    elif what == "sort":
        table(topic).optimize.z_order(["kafka_offset"])
    elif what == "delete":
        table(topic).delete(place)
    elif what == "alter":
        table(topic).update(predicate=place, updates={"value": "CAST('x' AS BYTEA)"})
    elif what == "double":
        row = table(topic).to_pyarrow_table(columns=None).filter(pc.field("window") == of.key).slice(0, 1)
        write_deltalake(str(topic.root / "raw" / topic.topic), row, mode="append")
    elif what == "load":
        topic.load(of)
    else:
        list(Upkeep(topic.declaration.raw_table, topic.ledger).run(LATER))


def found_by(topic: MadeTopic) -> tuple[object, ...]:
    found = facts(topic)
    return found.changed, found.rewritten, found.not_held, found.unreadable, found.unknown


def test_a_lost_file_that_leaves_the_table_with_another_window_is_named(topic: MadeTopic) -> None:
    """A lost file may contain rows of a window that is then repaired: the repair's commit removes the lost file and
    reports it."""
    window = topic.ledger.windows(topic.topic)[4]
    everything = table(topic).to_pyarrow_table()
    others = everything.filter(pc.not_equal(everything["window"], window.key))
    write_deltalake(table(topic), others, mode="overwrite", predicate=f"window != '{window.key}'")
    (shared,) = (f["path"] for f in files(topic) if f["min.window"] != f["max.window"])
    table(topic).delete(f"window = '{window.key}' AND kafka_offset % 3 = 0")
    (topic.root / "raw" / topic.topic / shared).unlink()
    holdings._remembered._values.clear()
    assert topic.load(window).outcome == "healed"
    assert shared not in [f["path"] for f in files(topic)]
    newest = next(load_log.load_commits(topic.lake.table(topic.declaration.raw_table)))
    assert newest.metadata.lost == (shared,)
    assert facts(topic).changed.keys() == topic.receipts().keys() - {window.key}
    for other in topic.ledger.windows(topic.topic):
        if other.key != window.key:
            assert topic.load(other).outcome == "healed"
    assert is_green(facts(topic))
