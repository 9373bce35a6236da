"""Tables without partition columns: a file may contain many windows, and replacing one window leaves the others
unchanged.

The independent reader is polars. No Kafka, no Spark.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, Schema, write_deltalake
from deltalake.transaction import AddAction, RemoveAction

from platform_assets.errors import ConcurrentLoadError, TableRefusedError
from platform_assets.lake import delta_log, holdings, load_log
from platform_assets.lake.commits import WindowCommit
from platform_assets.lake.flat import is_removable
from platform_assets.lake.load_log import Fence, LoadMetadata
from platform_assets.lake.location import Folder
from platform_assets.lake.rows import offsets_of
from platform_assets.ledger.entries import Receipt, SealedWindow
from platform_assets.model.offsets import OffsetRange
from platform_assets_tests.support.erasures import AUTHOR, MadeTopic, found_in, proved, shown
from platform_assets_tests.support.odd_measure import OddMeasure
from testbed.layouts import new_tables_are

pytestmark = pytest.mark.usefixtures("flat")

Rows = dict[str, dict[tuple[int, int], bytes | None]]
"""Values by window, partition and offset."""
WINDOWS, EACH = 4, 12
NO_WINDOW = "none"
"""The key that stands for a null window."""


@pytest.fixture
def topic(tmp_path: Path) -> MadeTopic:
    """Return a topic with two partitions and four windows, loaded and not decoded."""
    made = MadeTopic(tmp_path / "lake")
    made.fill(made.seal(values()), decode=False)
    return made


def values() -> list[Mapping[int, list[tuple[bytes | None, bytes | None]]]]:
    return [{p: [(b"k%d" % n, b"v-%d-%d-%d" % (w, p, n)) for n in range(EACH)] for p in (0, 1)} for w in range(WINDOWS)]


def delta(topic: MadeTopic, kind: str = "raw") -> DeltaTable:
    return DeltaTable(topic.root / kind / topic.topic)


def folder(topic: MadeTopic) -> Folder:
    return topic.lake.table(topic.declaration.raw_table)


def windows(topic: MadeTopic) -> list[SealedWindow]:
    return topic.ledger.windows(topic.topic)


def held(topic: MadeTopic) -> Rows:
    """Return the rows that polars reads. Fail if an offset has two rows."""
    found: Rows = {}
    columns = ["window", "kafka_partition", "kafka_offset", "value"]
    for window, partition, offset, value in (
        pl.scan_delta(str(topic.root / "raw" / topic.topic)).select(columns).collect().rows()
    ):
        key = NO_WINDOW if window is None else window
        of_window = found.setdefault(key, {})
        assert (partition, offset) not in of_window, f"{key} has two rows at {partition}/{offset}"
        of_window[partition, offset] = value
    return found


def sent(topic: MadeTopic) -> Rows:
    """Return the values that the producer sent."""
    return {
        w.key: {
            (r.partition, r.offset): r.value
            for r in topic.records
            if r.offset in w.ranges.by_partition.get(r.partition, ())
        }
        for w in windows(topic)
    }


def contents(topic: MadeTopic) -> dict[str, tuple[Any, Any]]:
    return {key: (r.offsets, r.content) for key, r in topic.receipts().items()}


def merged(topic: MadeTopic) -> str:
    """Merge all windows into one file as another program would; return the file's path in the log."""
    assert delta(topic).optimize.compact()["numFilesRemoved"]
    (path,) = pa.table(delta(topic).get_add_actions(flatten=True))["path"].to_pylist()
    return str(path)


def metadata(of: SealedWindow, load_id: str) -> LoadMetadata:
    return LoadMetadata(of.topic, of.topic_id, 1, of.window, of.ranges, load_id=load_id, run_id="r")


def written(topic: MadeTopic, of: SealedWindow, load_id: str) -> Any:
    from platform_assets.engines.protocol import Records

    records = Records(of.topic, of.topic_id, of.key, of.ranges, window_column=True)
    return topic.engine.write(records, topic.declaration.raw_table, load_id, 1000).files


def unnamed(topic: MadeTopic) -> set[str]:
    """Return data files on disk that the newest version does not have."""
    root = topic.root / "raw" / topic.topic
    named = {unquote(p) for p in pa.table(delta(topic).get_add_actions(flatten=True))["path"].to_pylist()}
    return {str(p.relative_to(root)) for p in root.rglob("*.parquet") if "_delta_log" not in p.parts} - named


# --- one window of a shared file


def test_new_tables_have_no_partition_and_files_name_their_window(topic: MadeTopic) -> None:
    assert delta(topic).metadata().partition_columns == []
    files = pa.table(delta(topic).get_add_actions(flatten=True)).to_pylist()
    assert {f["min.window"] for f in files} == {f["max.window"] for f in files} == {w.key for w in windows(topic)}
    assert held(topic) == sent(topic)
    proved(topic)


def test_a_window_in_a_shared_file_is_replaced_in_one_commit(topic: MadeTopic) -> None:
    path, of, before = merged(topic), windows(topic)[1], delta(topic).version()
    made = topic.replacer.open().replace(metadata(of, "again"), written(topic, of, "again"))
    assert made.version == before + 1 == delta(topic).version()
    commit = delta_log.commit(folder(topic), made.version)
    assert commit is not None
    assert commit.removes == (path,)
    assert not commit.rearranges
    assert made.adds is not None
    kept = {add.path for add in commit.adds} - {add.path for add in made.adds}
    assert kept == set(made.metadata.kept)
    assert len(kept) == 1
    assert {holdings.only_window(add) for add in made.adds} == {of.key}
    assert held(topic) == sent(topic)


def test_other_windows_stay_proved_by_their_receipts(topic: MadeTopic) -> None:
    before = contents(topic)
    merged(topic)
    of = windows(topic)[2]
    delta(topic).delete(f"window = '{of.key}' AND kafka_offset % 2 = 0")
    assert topic.load(of).outcome == "healed"
    assert held(topic) == sent(topic)
    assert contents(topic) == before
    for window in windows(topic):
        assert topic.load(window).outcome == "unchanged"
    proved(topic)


def test_two_windows_of_one_file_are_replaced_at_once(topic: MadeTopic) -> None:
    """The second replacement copies the kept rows again, from the files that the first replacement wrote."""
    merged(topic)
    one, two = windows(topic)[1:3]
    commits = [(topic.replacer.open(), of, written(topic, of, f"load {of.key}")) for of in (one, two)]
    for commit, of, files in commits:
        commit.replace(metadata(of, f"load {of.key}"), files)
    assert held(topic) == sent(topic)
    assert {name for name in unnamed(topic) if name.startswith("windows/")}, "the first copies are past files"
    version = delta(topic).version()
    assert [c.metadata.window.key for c in load_log.load_commits(folder(topic), 2)] == [two.key, one.key]
    assert holdings.files_of(folder(topic), one.key, version).shared == frozenset()


def test_of_two_commits_of_one_window_one_is_refused_and_leaves_no_copies(topic: MadeTopic) -> None:
    merged(topic)
    of = windows(topic)[1]
    first, late = topic.replacer.open(), topic.replacer.open()
    first.replace(metadata(of, "first"), written(topic, of, "first"))
    before = unnamed(topic)
    with pytest.raises(ConcurrentLoadError):
        late.replace(metadata(of, "late"), written(topic, of, "late"))
    assert {name for name in unnamed(topic) - before if "late" not in name} == set()
    assert held(topic) == sent(topic)


def test_a_fence_refuses_a_load_of_its_window_and_of_no_other(topic: MadeTopic) -> None:
    merged(topic)
    one, two = windows(topic)[1:3]
    commits = [(topic.replacer.open(), of, written(topic, of, f"load {of.key}")) for of in (one, two)]
    topic.replacer.open().fence(Fence(one.window, "fence"))
    with pytest.raises(ConcurrentLoadError):
        commits[0][0].replace(metadata(one, f"load {one.key}"), commits[0][2])
    commits[1][0].replace(metadata(two, f"load {two.key}"), commits[1][2])
    assert held(topic) == sent(topic)


@pytest.mark.parametrize("moved", ["compact", "z_order"])
def test_rows_that_are_only_moved_meanwhile_are_no_conflict(topic: MadeTopic, moved: str) -> None:
    of = windows(topic)[1]
    commit, files = topic.replacer.open(), written(topic, of, "again")
    if moved == "compact":
        merged(topic)
    else:
        delta(topic).optimize.z_order(["kafka_timestamp"])
    assert not commit.is_overtaken(of.key)
    commit.replace(metadata(of, "again"), files)
    assert held(topic) == sent(topic)


@pytest.mark.parametrize("rows", ["kafka_offset = 13", "kafka_offset >= 0"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_rows_that_are_deleted_meanwhile_are_a_conflict(topic: MadeTopic, when: str, rows: str) -> None:
    """This also holds if the rows have moved to another file since, and if the window has no rows left."""
    if when == "before":
        merged(topic)
    of = windows(topic)[1]
    commit, files = topic.replacer.open(), written(topic, of, "again")
    if when == "after":
        merged(topic)
    delta(topic).delete(f"window = '{of.key}' AND {rows}")
    assert commit.is_overtaken(of.key)
    with pytest.raises(ConcurrentLoadError):
        commit.replace(metadata(of, "again"), files)


def test_the_copies_are_compared_before_the_commit(topic: MadeTopic) -> None:
    from platform_assets.errors import LoadError

    merged(topic)
    of, before = windows(topic)[1], held(topic)
    odd = OddMeasure(WINDOWS - 1)
    files, on_disk = written(topic, of, "again"), unnamed(topic)
    with pytest.raises(LoadError, match="the rows in the new file differ from the original rows"):
        WindowCommit(topic.lake, topic.declaration.raw_table, odd).replace(metadata(of, "again"), files)
    assert held(topic) == before
    assert unnamed(topic) == on_disk


def test_a_file_that_does_not_name_its_window_is_refused(topic: MadeTopic) -> None:
    """The table's layout may change between writing and committing."""
    of = windows(topic)[1]
    files = written(topic, of, "again")
    bare = [replace(f, statistics={k: {} for k in f.statistics}) for f in files]
    with pytest.raises(ConcurrentLoadError):
        topic.replacer.open().replace(metadata(of, "again"), bare)


def test_a_partitioned_table_refuses_files_with_a_column_of_windows(tmp_path: Path) -> None:
    with new_tables_are("partitioned"):
        made = MadeTopic(tmp_path / "partitioned")
        made.fill(made.seal(values()), decode=False)
    of = windows(made)[1]
    with pytest.raises(ConcurrentLoadError):
        made.replacer.open().replace(metadata(of, "again"), written(made, of, "again"))


def test_delta_rs_does_not_make_a_partitioned_table_flat(tmp_path: Path) -> None:
    """delta-rs reports no error, and windows become null. Each commit therefore checks the layout of its files."""
    rows = pa.table({"kafka_offset": pa.array([1, 2], pa.int64()), "window": ["a", "b"]})
    write_deltalake(str(tmp_path), rows, partition_by=["window"])
    pq.write_table(rows, tmp_path / "flat.parquet")
    add = AddAction("flat.parquet", (tmp_path / "flat.parquet").stat().st_size, {}, 0, True, '{"numRecords":2}')
    handle = DeltaTable(tmp_path)
    handle.create_write_transaction([add], "overwrite", handle.schema(), partition_by=[])
    assert DeltaTable(tmp_path).metadata().partition_columns == ["window"]
    assert DeltaTable(tmp_path).to_pyarrow_table()["window"].to_pylist() == [None, None]


# --- files of others


@pytest.mark.parametrize("name", [*" !\"#$%&'()*+,-:;<=>?@[\\]^_`{|}~", "é", "日", "%3A", "a%253Ab"])
def test_a_file_of_any_name_is_removed_as_it_was_added(tmp_path: Path, name: str) -> None:
    """For files that delta-rs added, the encoding of their names in the log is known."""
    schema = Schema.from_arrow(pa.schema([("window", pa.string())]))
    DeltaTable.create(tmp_path, schema)
    added = AddAction(f"d/a{name}b.parquet", 1, {}, 0, True, "{}")
    DeltaTable(tmp_path).create_write_transaction([added], "append", schema)
    (path,) = pa.table(DeltaTable(tmp_path).get_add_actions())["path"].to_pylist()
    assert holdings.in_log(added.path) == path
    assert is_removable(path)
    DeltaTable(tmp_path).create_write_transaction([RemoveAction(unquote(path), True, 0, 1, {})], "append", schema)
    assert DeltaTable(tmp_path).file_uris() == []


def test_a_file_whose_name_another_writer_encoded_is_not_removed_in_vain(topic: MadeTopic) -> None:
    """delta-rs would write a different path into the log without an error, so the table would have the rows twice."""
    path = merged(topic)
    odd = path.replace("-", "%2D")
    rewrite_log(topic, lambda add: add | {"path": odd})
    assert not is_removable(odd)
    of = windows(topic)[1]
    with pytest.raises(TableRefusedError, match="because another writer encoded its path differently"):
        topic.replacer.open().replace(metadata(of, "again"), written(topic, of, "again"))
    assert held(topic) == sent(topic)


def test_files_without_statistics_are_read_once(topic: MadeTopic, monkeypatch: pytest.MonkeyPatch) -> None:
    path = merged(topic)
    rewrite_log(topic, lambda add: add | {"stats": None})
    opened: list[str] = []
    read = Folder.open

    def counted(self: Folder, name: str) -> Any:
        opened.append(name)
        return read(self, name)

    monkeypatch.setattr(Folder, "open", counted)
    holdings._remembered._values.clear()
    for window in windows(topic):
        assert holdings.files_of(folder(topic), window.key).paths == (path,)
    assert opened == [unquote(path)]
    counts = {key: files.rows for key, files in holdings.window_files(holdings.actions(folder(topic))).items()}
    assert counts == {w.key: 2 * EACH for w in windows(topic)}


@pytest.mark.parametrize("statistics", ["none", "truncated", "without nulls"])
def test_windows_are_replaced_whatever_statistics_others_write(topic: MadeTopic, statistics: str) -> None:
    merged(topic)

    def changed(add: dict[str, Any]) -> dict[str, Any]:
        found = json.loads(add["stats"])
        if statistics == "none":
            return add | {"stats": None}
        if statistics == "truncated":
            found["minValues"]["window"], found["maxValues"]["window"] = "2026-0", "2026-02"
        else:
            del found["nullCount"]
        return add | {"stats": json.dumps(found)}

    rewrite_log(topic, changed)
    holdings._remembered._values.clear()
    topic.replacer.open().replace(metadata(windows(topic)[1], "again"), written(topic, windows(topic)[1], "again"))
    assert held(topic) == sent(topic)


def rewrite_log(topic: MadeTopic, changed: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Change how the newest commit describes the files that it adds."""
    name = topic.root / "raw" / topic.topic / "_delta_log" / f"{delta(topic).version():020}.json"
    actions = [json.loads(line) for line in name.read_text().splitlines()]
    lines = [{"add": changed(a["add"])} if "add" in a else a for a in actions]
    name.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_a_file_without_windows_does_not_hide_one(topic: MadeTopic) -> None:
    """Another program wrote a row without a window. The row is kept, and checks report it."""
    stray = pa.table(delta(topic).to_pyarrow_table()).slice(0, 1)
    at = stray.column_names.index("window")
    stray = stray.set_column(at, "window", pa.nulls(1, pa.string()))
    root = topic.root / "raw" / topic.topic
    pq.write_table(stray, root / "stray.parquet")
    handle, now = delta(topic), round(time.time() * 1000)
    size = (root / "stray.parquet").stat().st_size
    handle.create_write_transaction([AddAction("stray.parquet", size, {}, now, True, "{}")], "append", handle.schema())
    assert holdings.window_files(holdings.actions(folder(topic)))[""].rows == 1
    assert holdings.files_of(folder(topic), "").rows == 1
    assert sum(map(len, offsets_of(folder(topic), "").values())) == 1
    delta(topic).optimize.compact()
    of = windows(topic)[0]
    topic.replacer.open().replace(metadata(of, "again"), written(topic, of, "again"))
    found = held(topic)
    of_none = {(stray["kafka_partition"][0].as_py(), stray["kafka_offset"][0].as_py()): stray["value"][0].as_py()}
    assert found.pop(NO_WINDOW) == of_none
    assert found == sent(topic)


def test_a_row_without_a_place_does_not_hold_up_its_neighbours(topic: MadeTopic) -> None:
    """No load writes a row without an offset, and row digests ignore it; the row is kept."""
    one, of = windows(topic)[:2]
    row = pa.table(delta(topic).to_pyarrow_table()).filter(pc.field("window") == one.key).slice(0, 1)
    for name in ("kafka_offset", "kafka_timestamp"):
        row = row.set_column(row.column_names.index(name), name, pa.nulls(1, row[name].type))
    write_deltalake(str(topic.root / "raw" / topic.topic), row, mode="append")
    merged(topic)
    topic.replacer.open().replace(metadata(of, "again"), written(topic, of, "again"))
    found = pl.scan_delta(str(topic.root / "raw" / topic.topic)).collect()
    assert found.filter(pl.col("kafka_offset").is_null())["value"].to_list() == row["value"].to_pylist()
    assert len(found) == sum(map(len, sent(topic).values())) + 1


def test_a_row_with_a_null_header_does_not_hold_up_its_neighbours(topic: MadeTopic) -> None:
    """No load writes a row with a null header. The digests of its neighbors in the same block exclude the row."""
    one, of = windows(topic)[:2]
    row = pa.table(delta(topic).to_pyarrow_table()).filter(pc.field("window") == one.key).slice(0, 1)
    for name, value in (
        ("headers", [[None, {"key": "k", "value": b"v"}, None]]),
        ("kafka_offset", [99_999]),
    ):
        at = row.column_names.index(name)
        row = row.set_column(at, name, pa.array(value, row[name].type))
    write_deltalake(str(topic.root / "raw" / topic.topic), row, mode="append")
    merged(topic)
    topic.replacer.open().replace(metadata(of, "again"), written(topic, of, "again"))
    found = pl.scan_delta(str(topic.root / "raw" / topic.topic)).collect()
    assert found.filter(pl.col("kafka_offset") == 99_999)["headers"].to_list() == row["headers"].to_pylist()
    assert len(found) == sum(map(len, sent(topic).values())) + 1


def test_a_damaged_shared_file_loses_no_more_than_what_cannot_be_read(topic: MadeTopic) -> None:
    """Replacing a window keeps all rows that can be read. Loading the window of the lost rows restores them."""
    path = topic.root / "raw" / topic.topic / unquote(merged(topic))
    table = pq.ParquetFile(path).read()
    # A row group for each window; a value of the last row group is overwritten on disk.
    with pq.ParquetWriter(path, table.schema, use_dictionary=False, compression="none") as out:
        for window in windows(topic):
            out.write_table(table.filter(pc.equal(table["window"], window.key)))
    content = path.read_bytes()
    at = content.index(b"v-3-0-0") - 4
    path.write_bytes(content[:at] + b"\xff\xff\xff\x7f" + content[at + 4 :])
    rewrite_log(topic, lambda add: add | {"size": len(content)})
    of, lost = windows(topic)[1], windows(topic)[3]
    made = topic.replacer.open().replace(metadata(of, "again"), written(topic, of, "again"))
    assert [unquote(name) for name in made.metadata.lost] == [path.name]
    kept = held(topic)
    assert len(kept.pop(lost.key, {})) < 2 * EACH
    assert kept == {key: rows for key, rows in sent(topic).items() if key != lost.key}
    assert topic.load(lost).outcome == "healed"
    assert held(topic) == sent(topic)


# --- other operations on windows


def test_erased_bytes_leave_merged_files_too(topic: MadeTopic) -> None:
    merged(topic)
    delta(topic).optimize.z_order(["kafka_offset"])
    of = windows(topic)[1]
    place, needle = (0, of.ranges.by_partition[0].start), b"v-1-0-0"
    assert found_in(topic.root / "raw", needle)
    erasure = topic.erasure
    erasure.record(erasure.at_offsets({0: (OffsetRange(place[1], place[1] + 1),)}), AUTHOR)
    erasure.run(AUTHOR)
    assert not (places := found_in(topic.root / "raw", needle)), shown(places)
    left = sent(topic)
    del left[of.key][place]
    assert held(topic) == left
    proved(topic)


def test_keys_are_erased_from_every_window_of_a_merged_file(topic: MadeTopic) -> None:
    """The search reads a shared file for all of its windows."""
    merged(topic)
    erasure = topic.erasure
    selected = erasure.of_keys([b"k5"])
    assert {s.sealed.key for s in selected} == {w.key for w in windows(topic)}
    erasure.record(selected, AUTHOR)
    erasure.run(AUTHOR)
    assert not any(v is not None and v.endswith(b"-5") for rows in held(topic).values() for v in rows.values())
    wanted = {
        k: {p: v for p, v in rows.items() if v is None or not v.endswith(b"-5")} for k, rows in sent(topic).items()
    }
    assert held(topic) == wanted
    assert not found_in(topic.root / "raw", b"k5")
    proved(topic)


def test_windows_are_decoded_from_and_into_shared_files(topic: MadeTopic) -> None:
    merged(topic)
    decoder = topic.decoder()
    for window in windows(topic):
        assert topic.load(window).outcome == "unchanged", "from now on, the shared file is that of the receipt"
        decoder.decode(window.key)
    delta(topic, "decoded").optimize.compact()
    before = topic.receipts("decoded")
    for window in windows(topic):
        assert decoder.decode(window.key).outcome == "unchanged"
    delta(topic, "decoded").delete(f"window = '{windows(topic)[1].key}' AND kafka_offset = 13")
    assert decoder.decode(windows(topic)[1].key).outcome == "healed"
    now = topic.receipts("decoded")
    assert {k: (r.offsets, r.content) for k, r in now.items()} == {k: (r.offsets, r.content) for k, r in before.items()}
    typed = pl.scan_delta(str(topic.root / "decoded" / topic.topic)).collect()
    assert sorted(typed["value"].to_list()) == sorted(
        (v or b"").decode() for rows in sent(topic).values() for v in rows.values()
    )
    proved(topic)


def test_columns_are_added_without_losing_files_that_have_no_statistics(topic: MadeTopic) -> None:
    """delta-rs's overwrite with a filter would remove files that have no statistics."""
    from platform_assets.lake import decoded_table

    decoder = topic.decoder()
    for window in windows(topic):
        decoder.decode(window.key)
    root = topic.lake.table(replace(topic.declaration.raw_table, kind="decoded"))
    log = topic.root / "decoded" / topic.topic / "_delta_log" / f"{delta(topic, 'decoded').version():020}.json"
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    log.write_text("".join(json.dumps({"add": a["add"] | {"stats": None}} if "add" in a else a) + "\n" for a in lines))
    before = sorted(delta(topic, "decoded").file_uris())
    now = decoded_table.held(root)
    more = pa.schema([*list(now)[:-2], pa.field("more", pa.string()), *list(now)[-2:]])
    assert "more" in decoded_table.prepare(root, topic.topic, more, None).names
    assert sorted(delta(topic, "decoded").file_uris()) == before


# --- histories


@pytest.mark.parametrize("number", range(3))
def test_whatever_strangers_merge_windows_are_exact(tmp_path: Path, number: int) -> None:
    """Loads, repairs and maintenance by other programs happen in random order. After each step, the table's rows are
    exactly those that were sent."""
    rng = random.Random(number)
    topic = MadeTopic(tmp_path / "lake")
    sealed = topic.seal(
        [
            {p: [(b"k", b"%d/%d/%d" % (w, p, n)) for n in range(rng.choice((0, 1, 5, 40)))] for p in (0, 1)}
            for w in range(12)
        ]
    )
    rng.shuffle(sealed)
    loaded, digests, story = list[SealedWindow](), dict[str, Receipt](), list[str]()
    for _ in range(30):
        what = rng.choice(("load", "load", "again", "compact", "z_order", "delete", "replace", "vacuum"))
        window = rng.choice(loaded) if loaded else None
        story.append(f"{what} {None if window is None else window.key}")
        table = delta(topic)
        if what == "load" and sealed:
            loaded.append(sealed.pop())
            if loaded[-1].ranges.size:
                topic.load(loaded[-1])
                digests[loaded[-1].key] = topic.receipts()[loaded[-1].key]
        elif window is None or not window.ranges.size:
            continue
        elif what == "again":
            assert topic.load(window).outcome == "unchanged", story
        elif what == "compact":
            table.optimize.compact(target_size=rng.choice((2_000, 10_000, 1 << 20)))
        elif what == "z_order":
            table.optimize.z_order([rng.choice(("kafka_offset", "value", "window"))])
        elif what == "delete":
            r = window.ranges.by_partition
            gone = [(p, o) for p in r for o in range(r[p].start, r[p].end) if rng.random() < 0.3]
            for partition, offset in gone[:2]:
                table.delete(f"window = '{window.key}' AND kafka_partition = {partition} AND kafka_offset = {offset}")
                table = delta(topic)
            assert topic.load(window).outcome == ("healed" if gone else "unchanged"), story
        elif what == "replace":
            name = f"load {len(story)}"
            topic.replacer.open().replace(metadata(window, name), written(topic, window, name))
        elif what == "vacuum":
            table.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False, full=True)
        wanted = {w.key: rows for w in loaded if (rows := sent(topic)[w.key])}
        assert held(topic) == wanted, story
        now = topic.receipts()
        assert all((now[k].offsets, now[k].content) == (r.offsets, r.content) for k, r in digests.items()), story


def test_a_plain_path_stays_the_same_when_delta_rs_encodes_it_again(rng: random.Random) -> None:
    pieces = ["%25", "%3A", "%2525", "%", "%2", "%2F", "a", "9", "/", ":", "=", "+", " ", "ä", "\n", "%25\n", "_", "~"]
    for _ in range(2_000):
        path = "".join(rng.choices(pieces, k=rng.randrange(1, 6)))
        if holdings.is_plain(path):
            assert holdings.in_log(unquote(path)) == path
    assert holdings.is_plain("window=2026-01-01-00%253A00/f2/part-00000-1.parquet")
    assert not holdings.is_plain("window=2026-01-01-00%3A00/f2/part-00000-1.parquet")
