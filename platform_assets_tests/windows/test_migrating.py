"""A lake written by a release that had no flat tables yet: its tables are migrated during normal use, and rows, proofs
and past versions are kept. The tests read the results with polars. No Kafka, no Spark."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, Field, write_deltalake
from deltalake.schema import PrimitiveType

from platform_assets.engines.protocol import Records
from platform_assets.errors import (
    ConcurrentLoadError,
    MigrationDamageError,
    MigrationOutcomeUnknownError,
    TableRefusedError,
)
from platform_assets.lake import contents, decoded_table, delta_log, field_ids, holdings, migration, row_copies
from platform_assets.lake.data_files import NewFile
from platform_assets.lake.delta_log import DataFile
from platform_assets.lake.files import LocalFiles
from platform_assets.lake.load_log import LoadMetadata
from platform_assets.lake.migration import Copy
from platform_assets.ledger.entries import Receipt, SealedWindow
from platform_assets.model.offsets import OffsetRange
from platform_assets.model.tables import TableKind
from platform_assets.windows.maintain.merging import Upkeep
from platform_assets.windows.maintain.migrating import Migrated, Migration
from platform_assets_tests.support import dying_migration, partitioned_lake
from platform_assets_tests.support.erasures import AUTHOR, MadeTopic, found_in, proved, shown
from platform_assets_tests.support.field_ids import field_ids_in
from platform_assets_tests.support.partitioned_lake import ERASED

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KINDS: tuple[TableKind, ...] = ("raw", "decoded", "dead_letters")
FOREIGN = "2025-12-31-00:00"


@pytest.fixture
def topic(tmp_path: Path) -> MadeTopic:
    return partitioned_lake.unpacked(tmp_path)


def path(topic: MadeTopic, kind: TableKind = "raw") -> Path:
    return topic.root / kind / topic.topic


def table(topic: MadeTopic, kind: TableKind = "raw") -> DeltaTable:
    return DeltaTable(path(topic, kind))


def of(topic: MadeTopic, kind: TableKind = "raw", target: int = 1) -> Migration:
    """Return a migration that by default copies each window to a separate file."""
    return Migration(replace(topic.declaration.raw_table, kind=kind), topic.ledger, target)


def migrated(topic: MadeTopic, kind: TableKind = "raw", target: int = 1) -> Migrated:
    return of(topic, kind, target).run()


def rows(topic: MadeTopic, kind: TableKind = "raw") -> pl.DataFrame:
    found = pl.read_delta(str(path(topic, kind)))
    return found.select(sorted(found.columns)).sort("window", "topic_id", "kafka_partition", "kafka_offset")


def windows(topic: MadeTopic) -> list[SealedWindow]:
    return topic.ledger.windows(topic.topic)


def is_flat(topic: MadeTopic, kind: TableKind = "raw") -> bool:
    return table(topic, kind).metadata().partition_columns == []


def copies_on_disk(topic: MadeTopic) -> set[Path]:
    return set((path(topic) / "windows").rglob("*.parquet"))


def damage(topic: MadeTopic, window: SealedWindow) -> None:
    """Delete a row as another writer."""
    first = window.ranges.by_partition[0].start
    table(topic).delete(f"window = '{window.key}' AND kafka_partition = 0 AND kafka_offset = {first}")


# --- the whole


def test_a_lake_of_a_release_before_flat_tables_is_migrated(topic: MadeTopic) -> None:
    proved(topic)
    for kind in KINDS:
        before, log, past = rows(topic, kind), table(topic, kind), pl.read_delta(str(path(topic, kind)), version=1)
        done = migrated(topic, kind, target=1 << 20)
        now = table(topic, kind)
        assert done.version == now.version() == log.version() + 1
        assert (done.files, done.unproved, now.metadata().partition_columns) == (1, (), [])
        assert rows(topic, kind).equals(before)
        assert pl.read_delta(str(path(topic, kind)), version=1).equals(past), "time travel goes on"
        assert (now.metadata().id, now.metadata().name) == (log.metadata().id, log.metadata().name)
        settings = log.metadata().configuration
        statistics = "delta.dataSkippingStatsColumns"
        assert now.metadata().configuration == {**settings, statistics: f"{settings[statistics]},window"}
        commit = delta_log.commit(topic.lake.table(of(topic, kind).table), now.version())
        assert commit is not None
        assert commit.rearranges
        assert not (path(topic, kind) / "_migration").exists()
    proved(topic)
    assert [topic.load(w).outcome for w in windows(topic)] == ["unchanged"] * 6 + ["loaded"]
    assert all(topic.decoder().decode(w.key) for w in windows(topic))
    proved(topic)
    assert next(Upkeep(topic.declaration.raw_table, topic.ledger).run("9")).version is not None
    proved(topic)


def test_what_copies_hold_is_written_down_so_that_checks_read_no_row(topic: MadeTopic) -> None:
    migrated(topic, target=1 << 20)
    folder, table_id = topic.lake.table(topic.declaration.raw_table), str(table(topic).metadata().id)
    (found,) = pa.table(table(topic).get_add_actions()).select(["path", "size_bytes"]).to_pylist()
    held = contents.recorded(folder, table_id, found["path"], found["size_bytes"])
    receipts = {(key, r.topic_id): r for key, r in topic.receipts().items() if r.rows}
    assert held is not None
    assert {place: (m.offsets, m.content) for place, m in held.items()} == {
        place: (r.offsets, r.content) for place, r in receipts.items()
    }


def test_receipts_name_copies_of_one_window(topic: MadeTopic) -> None:
    migrated(topic)
    files = holdings.window_files(holdings.actions(topic.lake.table(topic.declaration.raw_table)))
    receipts = topic.receipts()
    assert {key: f.digest for key, f in files.items()} == {key: receipts[key].files_digest for key in files}


def test_a_migrated_table_still_says_when_it_started_over(topic: MadeTopic) -> None:
    """Receipts from before that version name rows that the table no longer has."""
    folder, kept = topic.lake.table(of(topic, "decoded").table), pa.schema(table(topic, "decoded").schema().to_arrow())
    assert decoded_table.begun_at(folder) == 0
    at = kept.get_field_index("kafka_offset")
    for columns in (kept.set(at, pa.field("kafka_offset", pa.string())), kept):
        decoded_table.prepare(folder, topic.topic, columns, decoded_table.ANY)
    began, held = (
        decoded_table.begun_at(folder),
        [w.key for w in windows(topic)[:6] if w.key in receipts_of_decoded(topic)],
    )
    assert began == table(topic, "decoded").version() > 0
    with pytest.raises(MigrationDamageError, match=held[0]):
        migrated(topic, "decoded")
    for key in held:
        topic.decoder().decode(key)
    assert decoded_table.begun_at(folder) == began
    assert migrated(topic, "decoded").unproved == ()
    assert (is_flat(topic, "decoded"), decoded_table.begun_at(folder)) == (True, began)
    assert all((receipt.table_version or 0) > began for receipt in receipts_of_decoded(topic).values())


def receipts_of_decoded(topic: MadeTopic) -> dict[str, Receipt]:
    """Return the receipts of the decoded windows that have rows."""
    return {k: r for k, r in topic.ledger.receipts(of(topic, "decoded").table).items() if r.rows}


def test_copies_have_the_columns_and_ids_of_the_table(topic: MadeTopic) -> None:
    for kind in KINDS:
        migrated(topic, kind)
        ids = field_ids.ids_of(pa.schema(table(topic, kind).schema().to_arrow()))
        for file in table(topic, kind).file_uris():
            assert dict(field_ids_in(file)) == dict(ids.pairs)
            assert pq.read_schema(file).names == [f.name for f in table(topic, kind).schema().fields]


def test_windows_share_files_up_to_the_target_size_and_stay_whole(topic: MadeTopic) -> None:
    sizes = [f["size_bytes"] for f in pa.table(table(topic).get_add_actions(flatten=True)).to_pylist()]
    done = migrated(topic, target=max(sizes) + 1)
    assert done.files == 3, "five windows, two a file"
    held = [set(pl.read_parquet(file, columns=["window"])["window"]) for file in table(topic).file_uris()]
    assert sum(map(len, held)) == len(set().union(*held)) == 5
    assert migrated(topic).version is None, "it is flat by now"


def test_a_dry_look_changes_nothing(topic: MadeTopic) -> None:
    before = {p: p.stat().st_mtime_ns for p in topic.root.rglob("*")}
    planned = of(topic).planned()
    assert (planned.is_flat, planned.windows, planned.files, planned.copied) == (False, 5, 5, 0)
    assert {p: p.stat().st_mtime_ns for p in topic.root.rglob("*")} == before
    migrated(topic)
    assert of(topic).planned().is_flat


# --- runs that die


def test_a_run_that_is_killed_at_any_moment_is_continued(topic: MadeTopic, rng: random.Random) -> None:
    """Each run continues with the files that earlier runs have copied."""
    before, at = rows(topic), sorted(rng.sample(range(2, 40), 3))
    for number in at:
        command = [sys.executable, "-m", dying_migration.__name__, str(topic.root), topic.topic, "raw", str(number)]
        ended = subprocess.run(command, check=False, capture_output=True, text=True)
        assert ended.returncode in (0, -9), ended.stderr
        assert rows(topic).equals(before), number
    migrated(topic)
    assert is_flat(topic)
    assert rows(topic).equals(before)
    proved(topic)


def test_what_was_copied_before_a_failure_is_not_copied_again(
    topic: MadeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, merged = list[Any](), row_copies.merged

    def failing(*args: Any) -> Any:
        calls.append(args)
        if len(calls) == 4:
            raise OSError("the disk is full")
        return merged(*args)

    monkeypatch.setattr(row_copies, "merged", failing)
    with pytest.raises(OSError, match="full"):
        migrated(topic)
    assert not is_flat(topic)
    assert of(topic).planned().copied > 0
    migrated(topic)
    assert len(calls) == 6, "three and one that failed, and then the two that were left"
    proved(topic)


def test_a_run_that_dies_after_its_commit_is_ended_by_the_next(
    topic: MadeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Migration, "_prove", _interrupt)
        with pytest.raises(KeyboardInterrupt):
            migrated(topic)
    assert is_flat(topic)
    assert migrated(topic).version is None
    assert not (path(topic) / "_migration").exists()
    files = holdings.window_files(holdings.actions(topic.lake.table(topic.declaration.raw_table)))
    assert {key: f.digest for key, f in files.items()} == {key: topic.receipts()[key].files_digest for key in files}
    proved(topic)


def _interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("text", [b"", b"{}", b"[]", b'{"version":2}', b'{"version":1,"file":{"path":"x"}}'])
def test_a_record_that_is_none_is_not_trusted(topic: MadeTopic, text: bytes) -> None:
    folder = path(topic) / "_migration"
    folder.mkdir()
    (folder / "a.json").write_bytes(text)
    migrated(topic)
    proved(topic)


@pytest.mark.parametrize(
    "named", ["x.parquet", "window=a/b.parquet", "windows/../../a/part-0.parquet", "_delta_log/0.json", 7]
)
def test_a_record_can_name_nothing_but_copies(topic: MadeTopic, named: object) -> None:
    """Files of stale copies are deleted with their folders."""
    before = {p for p in topic.root.rglob("*") if p.is_file()}
    folder = path(topic) / "_migration"
    folder.mkdir()
    record = {
        "version": 1,
        "since": 0,
        "file": {"path": named, "bytes": 1, "rows": 1, "statistics": {}},
        "sources": [["gone", 1]],
        "digests": [],
    }
    (folder / "a.json").write_text(json.dumps(record))
    (path(topic) / "x.parquet").write_bytes(b"1")
    migrated(topic)
    assert before <= {p for p in topic.root.rglob("*") if p.is_file()}
    proved(topic)


# --- others at work


def between(topic: MadeTopic, done: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Run an action once, just before the migration commits."""
    commit, left = migration.commit, [done]

    def first(*args: Any) -> Any:
        if left:
            left.pop()()
        return commit(*args)

    monkeypatch.setattr(migration, "commit", first)


def test_loads_during_the_copy_are_copied_too(topic: MadeTopic, monkeypatch: pytest.MonkeyPatch) -> None:
    new, old = windows(topic)[6], windows(topic)[0]

    def others() -> None:
        assert topic.load(new).outcome == "loaded"
        damage(topic, old)
        assert topic.load(old).outcome == "healed"

    between(topic, others, monkeypatch)
    before = rows(topic)
    migrated(topic)
    assert is_flat(topic)
    found = rows(topic)
    assert found.filter(pl.col("window") != new.key).equals(before)
    assert found.filter(pl.col("window") == new.key).height == new.ranges.size
    topic.decoder().decode(new.key)
    proved(topic)


def test_a_load_in_flight_is_refused_and_succeeds_when_it_is_tried_again(topic: MadeTopic) -> None:
    for window, outcome in ((windows(topic)[6], "loaded"), (windows(topic)[0], "unchanged")):
        records = topic.replacer.open()
        metadata = LoadMetadata(window.topic, window.topic_id, 1, window.window, window.ranges, "late", "run")
        order = Records(
            window.topic, window.topic_id, window.key, window.ranges, {}, records.is_flat, records.field_ids()
        )
        files = topic.engine.write(order, topic.declaration.raw_table, "late", 1000).files
        if not is_flat(topic):
            migrated(topic)
            with pytest.raises(ConcurrentLoadError):
                records.replace(metadata, files)
        assert topic.load(window).outcome == outcome
    topic.decoder().decode(windows(topic)[6].key)
    proved(topic)


def test_a_load_that_commits_first_makes_the_commit_of_the_migration_fail(topic: MadeTopic) -> None:
    folder = topic.lake.table(topic.declaration.raw_table)
    handle = folder.delta()
    files, columns = migration.files_in_order(folder, handle), migration.flat_columns(folder, handle)
    topic.load(windows(topic)[6])
    assert migration.commit(folder, handle, files, [], columns) is None
    assert not is_flat(topic)
    proved_raw = rows(topic).height
    assert proved_raw == sum(r.rows for r in topic.receipts().values())


def test_two_migrations_at_once_make_one_commit(topic: MadeTopic) -> None:
    before, version = rows(topic), table(topic).version()
    with ThreadPoolExecutor(2) as both:
        done = list(both.map(lambda _: migrated(topic), range(2)))
    assert table(topic).version() == version + 1
    assert sorted((d.version is None) for d in done) == [False, True]
    assert rows(topic).equals(before)
    proved(topic)


@pytest.mark.parametrize("is_written", [True, False])
def test_a_commit_whose_answer_is_lost_is_looked_up(
    topic: MadeTopic, monkeypatch: pytest.MonkeyPatch, *, is_written: bool
) -> None:
    before, version, write_new = rows(topic), table(topic).version(), LocalFiles.write_new

    def answer_lost(files: LocalFiles, name: str, content: bytes) -> bool:
        if "_delta_log" not in name:
            return write_new(files, name, content)
        if is_written:
            write_new(files, name, content)
        raise ConnectionError("the answer is lost")

    with monkeypatch.context() as patched:
        patched.setattr(LocalFiles, "write_new", answer_lost)
        if is_written:
            assert migrated(topic).version == version + 1
        else:
            with pytest.raises(MigrationOutcomeUnknownError, match=r"the answer is lost.*Migrate again"):
                migrated(topic)
    # The error's remedy is followed to its end.
    assert (migrated(topic).version is None) == is_written
    assert rows(topic).equals(before)
    proved(topic)


@pytest.mark.parametrize("when", ["copied", "committed"])
def test_an_erasure_leaves_no_erased_byte_in_copies(
    topic: MadeTopic, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    needle, window = b"v-5-1-9", windows(topic)[5]
    at = next(r for r in topic.records if r.value == needle)

    def erase() -> None:
        erasure = topic.erasure
        erasure.record(erasure.at_offsets({at.partition: (OffsetRange(at.offset, at.offset + 1),)}), AUTHOR)
        erasure.run(AUTHOR)
        assert found_in(topic.root, needle) == [], shown(found_in(topic.root, needle))

    for kind in KINDS[:2]:
        assert found_in(path(topic, kind), needle)
    if when == "copied":
        between(topic, erase, monkeypatch)
    migrated(topic, target=1 << 20)
    migrated(topic, "decoded", target=1 << 20)
    if when == "committed":
        erase()
    assert found_in(topic.root, needle) == []
    assert found_in(topic.root, ERASED) == []
    assert topic.load(window).outcome == "unchanged"
    proved(topic)


def test_a_compaction_by_another_writer_during_the_copy_is_followed(
    topic: MadeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = rows(topic)
    between(topic, lambda: table(topic).optimize.z_order(["kafka_timestamp"]), monkeypatch)
    migrated(topic)
    assert rows(topic).equals(before)
    proved(topic)


def test_a_restore_of_the_version_before_brings_the_partitions_back(topic: MadeTopic) -> None:
    """The guide describes this restore as the way back. The table can be migrated again after the restore."""
    before, version = rows(topic), table(topic).version()
    migrated(topic)
    topic.load(windows(topic)[6])
    table(topic).restore(version)
    assert not is_flat(topic)
    assert rows(topic).equals(before)
    assert [topic.load(w).outcome for w in windows(topic)] == ["unchanged"] * 6 + ["healed"]
    topic.decoder().decode(windows(topic)[6].key)
    proved(topic)
    migrated(topic)
    assert is_flat(topic)
    proved(topic)


# --- what no receipt proves


def other_topic_id(topic: MadeTopic, window: SealedWindow) -> None:
    """Change a column that no digest covers, as another writer."""
    first = window.ranges.by_partition[0].start
    predicate = f"window = '{window.key}' AND kafka_partition = 0 AND kafka_offset = {first}"
    table(topic).update(predicate=predicate, updates={"topic_id": "NULL"})


@pytest.mark.parametrize("damaged", [damage, other_topic_id])
def test_a_damaged_window_is_named_and_migrated_once_it_is_loaded_again(
    topic: MadeTopic, damaged: Callable[[MadeTopic, SealedWindow], None]
) -> None:
    """The test follows the error's remedy to its end."""
    window = windows(topic)[2]
    damaged(topic, window)
    version = table(topic).version()
    with pytest.raises(MigrationDamageError, match=f"load raw/people {window.key}`") as raised:
        migrated(topic)
    assert raised.value.windows == (window.key,)
    assert table(topic).version() == version
    assert topic.load(window).outcome == "healed"
    copied = len(copies_on_disk(topic))
    migrated(topic)
    assert len(copies_on_disk(topic)) == copied, "only the healed window was copied again"
    proved(topic)


def test_a_lost_file_is_named_and_the_other_windows_are_copied_meanwhile(topic: MadeTopic) -> None:
    window = windows(topic)[0]
    (lost,) = [f for f in table(topic).file_uris() if window.key.replace(":", "%3A") in f.replace("%253A", "%3A")]
    Path(lost).write_bytes(Path(lost).read_bytes()[:100])
    with pytest.raises(MigrationDamageError, match=window.key):
        migrated(topic, target=1 << 20)
    assert of(topic).planned().copied > 0
    assert topic.load(window).outcome == "healed"
    migrated(topic)
    proved(topic)


def test_rows_of_another_writer_and_of_a_load_without_receipt_are_copied_as_they_are(topic: MadeTopic) -> None:
    first, new = windows(topic)[0], windows(topic)[6]
    found = table(topic).to_pyarrow_table(filters=[("window", "=", first.key)]).slice(0, 2)
    at = found.column_names.index("window")
    write_deltalake(table(topic), found.set_column(at, "window", pa.array([FOREIGN] * 2)), mode="append")
    opened = topic.replacer.open()
    metadata = LoadMetadata(new.topic, new.topic_id, 1, new.window, new.ranges, "dead", "run")
    order = Records(new.topic, new.topic_id, new.key, new.ranges)
    opened.replace(metadata, topic.engine.write(order, topic.declaration.raw_table, "dead", 1000).files)
    before = rows(topic)
    assert migrated(topic).unproved == (FOREIGN, new.key)
    assert rows(topic).equals(before)
    table(topic).delete(f"window = '{FOREIGN}'")
    assert topic.load(new).outcome == "loaded"
    topic.decoder().decode(new.key)
    proved(topic)


def test_a_decoded_table_whose_columns_grew_is_migrated(topic: MadeTopic) -> None:
    folder = topic.lake.table(of(topic, "decoded").table)
    table(topic, "decoded").alter.add_columns([Field("more", PrimitiveType("integer"))])
    before = rows(topic, "decoded")
    migrated(topic, "decoded")
    assert rows(topic, "decoded").equals(before)
    assert "more" in folder.delta().schema().to_arrow().names


# --- other readers


@pytest.mark.long
@pytest.mark.spark
def test_spark_duckdb_and_a_stream_go_on_with_a_migrated_table(
    topic: MadeTopic, spark: SparkSession, tmp_path: Path
) -> None:
    """The stream gets each row once, and gets no row because of the migration."""
    where, sink, columns = str(path(topic)), str(tmp_path / "sink"), ["window", "kafka_partition", "kafka_offset"]

    def streamed() -> list[tuple[Any, ...]]:
        source = spark.readStream.format("delta").load(where).select(*columns)
        query = source.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
        query.trigger(availableNow=True).start(sink).awaitTermination()
        return sorted(pl.read_parquet(f"{sink}/*.parquet").select(columns).rows())

    def of_spark(version: int) -> list[tuple[Any, ...]]:
        found = spark.read.format("delta").option("versionAsOf", version).load(where).select(*columns).collect()
        return sorted(tuple(row) for row in found)

    before, version = sorted(rows(topic).select(columns).rows()), table(topic).version()
    migrated(topic)
    assert of_spark(version) == of_spark(version + 1) == before
    found = spark.read.format("delta").load(where)
    key = windows(topic)[0].key
    assert found.where(f"window = '{key}'").count() == windows(topic)[0].ranges.size
    # The stream begins with the migrated table, since versions before it have replaced rows.
    assert streamed() == before
    topic.load(windows(topic)[6])
    assert streamed() == sorted(rows(topic).select(columns).rows())
    with duckdb.connect() as db:
        db.register("migrated", table(topic).to_pyarrow_dataset())
        counted = db.execute('select count(*) from migrated where "window" = ?', [key]).fetchone()
    assert counted == (windows(topic)[0].ranges.size,)
    spark.sql(f"OPTIMIZE delta.`{where}`").collect()
    assert of_spark(table(topic).version()) == sorted(rows(topic).select(columns).rows())
    assert topic.load(windows(topic)[6]).outcome == "unchanged"


# --- what is refused, and the plan


def test_a_table_with_other_partition_columns_is_refused(topic: MadeTopic) -> None:
    found = table(topic).to_pyarrow_table()
    write_deltalake(table(topic), found, mode="overwrite", schema_mode="overwrite", partition_by=["window", "topic_id"])
    with pytest.raises(TableRefusedError, match="only a table that is partitioned by `window`"):
        migrated(topic)


def test_a_table_with_a_feature_that_the_commit_does_not_know_is_refused(topic: MadeTopic) -> None:
    log = sorted((path(topic) / "_delta_log").glob("*.json"))
    number = len(log)
    protocol = {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": [],
        "writerFeatures": ["rowTracking", "domainMetadata"],
    }
    (path(topic) / "_delta_log" / f"{number:020}.json").write_text(json.dumps({"protocol": protocol}) + "\n")
    with pytest.raises(TableRefusedError, match="domainMetadata, rowTracking"):
        migrated(topic)


def file(window: str, name: str, size: int = 10) -> DataFile:
    return DataFile(name, {"window": window}, size, None)


def copy(name: str, *sources: tuple[str, int]) -> Copy:
    return Copy(name, NewFile(name, 1, 1, {}), sources, {}, 0)


def test_the_plan_keeps_windows_whole_and_ends_a_group_at_the_target() -> None:
    files = [file("a", "1"), file("a", "2"), file("a", "3"), file("b", "4"), file("c", "5", 30), file("d", "6")]
    groups = migration.plan(files, [], 20).groups
    assert [[f.path for f in group] for group in groups] == [["1", "2", "3"], ["4", "5"], ["6"]]


def test_a_copy_counts_while_all_its_sources_are_there_and_each_source_once() -> None:
    files = [file("a", "1"), file("b", "2"), file("c", "3"), file("d", "4")]
    good, again, gone, other = (
        copy("good", ("1", 10)), copy("again", ("1", 10), ("2", 10)), copy("gone", ("9", 10)), copy("other", ("3", 11)),
    )  # fmt: skip
    plan = migration.plan(files, [good, again, gone, other], 1)
    assert plan.copies == (good,)
    assert plan.overtaken == (), "another run may count them"
    assert [[f.path for f in group] for group in plan.groups] == [["2"], ["3"], ["4"]]


def test_a_file_is_written_only_if_there_is_none(tmp_path: Path) -> None:
    files = LocalFiles(str(tmp_path))
    assert files.write_new("a", b"1")
    assert not files.write_new("a", b"2")
    assert (tmp_path / "a").read_bytes() == b"1"
    assert [p.name for p in tmp_path.iterdir()] == ["a"]
