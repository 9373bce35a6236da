"""Flat tables that Spark's workers merge, other writers maintain, and a streaming reader follows: each row is there
exactly once."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.errors import StreamingQueryException

from platform_assets.checks.decoded import conserved, windows_of
from platform_assets.checks.evaluation import Evaluation
from platform_assets.checks.facts import Orchestration
from platform_assets.checks.registry import CHECKS
from platform_assets.engines.choice import merge_engine
from platform_assets.lake import delta_log
from platform_assets.ledger.entries import SealedWindow
from platform_assets.model.offsets import OffsetRange
from platform_assets.model.tables import TableKind
from platform_assets.model.windows import edge_of
from platform_assets.windows.maintain.merging import MergedFiles, Upkeep
from platform_assets.windows.maintain.upkeep import TableUpkeep
from platform_assets_tests.support.erasures import AUTHOR, MadeTopic, proved
from platform_assets_tests.support.variants import long_after
from testbed.loads import Record

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.connect.session import SparkSession as ConnectSession

    from platform_assets_tests.conftest import LakeMaker

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("flat")]
LATER = "2030-01-01-00:00"
WINDOWS, MORE, EACH = 5, 4, 20
KINDS: tuple[TableKind, ...] = ("raw", "decoded")


def batches(windows: range) -> list[dict[int, list[tuple[bytes | None, bytes | None]]]]:
    return [{p: [(b"k%d" % n, b"%d/%d/%d" % (w, p, n)) for n in range(EACH)] for p in (0, 1)} for w in windows]


@pytest.fixture
def people(tmp_path: Path) -> MadeTopic:
    """A topic whose tables have separate files for each window."""
    made = MadeTopic(tmp_path / "lake")
    made.fill(made.seal(batches(range(WINDOWS + MORE)))[:WINDOWS])
    return made


def windows(topic: MadeTopic) -> list[SealedWindow]:
    """The windows that are loaded at first."""
    return topic.ledger.windows(topic.topic)[:WINDOWS]


def more(topic: MadeTopic) -> list[SealedWindow]:
    """The windows that are not loaded at first."""
    return topic.ledger.windows(topic.topic)[WINDOWS:]


def place(topic: MadeTopic, kind: TableKind) -> Path:
    return topic.root / kind / topic.topic


def rows(topic: MadeTopic, kind: TableKind) -> list[tuple[Any, ...]]:
    """Return the rows that another reader finds."""
    columns = ["window", "kafka_partition", "kafka_offset", "value"]
    return sorted(pl.scan_delta(str(place(topic, kind))).select(columns).collect().rows())


def upkeep(
    topic: MadeTopic, session: Callable[[], ConnectSession], **options: Any
) -> dict[TableKind, list[MergedFiles]]:
    engine = merge_engine(topic.lake, session)
    found: dict[TableKind, list[MergedFiles]] = {}
    for table in topic.declaration.tables:
        each = Upkeep(table, topic.ledger, engine, **options)
        found[table.kind] = list(each.run(LATER))
    return found


@pytest.mark.long
def test_sparks_workers_merge_what_this_process_commits(
    people: MadeTopic, connection: Callable[[], ConnectSession]
) -> None:
    before = {kind: rows(people, kind) for kind in KINDS}
    assert len(before["raw"]) == WINDOWS * EACH * 2
    size = max(f["size_bytes"] for f in pa.table(DeltaTable(place(people, "raw")).get_add_actions()).to_pylist())
    done = upkeep(people, connection, target=2 * size + 1, cluster_by=("value",))
    assert len(done["raw"]) > 1
    assert all(d.version is not None for kind in KINDS for d in done[kind])
    assert {kind: rows(people, kind) for kind in KINDS} == before
    proved(people)
    assert all(people.load(w).outcome == "unchanged" for w in windows(people))


@pytest.mark.long
def test_spark_reads_and_continues_the_checkpoint_of_upkeep(people: MadeTopic, spark: SparkSession) -> None:
    """All commits before the checkpoint are deleted, so that Spark has to read its removed files too."""
    at, before = place(people, "raw"), rows(people, "raw")
    done = TableUpkeep(people.declaration.raw_table, people.ledger).run(edge_of(LATER))
    assert done is not None
    version = DeltaTable(at).version()
    assert (at / delta_log.checkpoint_name(version)).exists()
    for commit in (at / "_delta_log").glob("*.json"):
        if commit.name != f"{version:020}.json":
            commit.unlink()
    columns = ["window", "kafka_partition", "kafka_offset", "value"]
    found = spark.read.format("delta").load(str(at)).select(*columns).collect()
    assert sorted((*row[:3], bytes(row.value)) for row in found) == before
    spark.sql(f"ALTER TABLE delta.`{at}` SET TBLPROPERTIES ('delta.checkpointInterval' = '1')")
    spark.sql(f"DELETE FROM delta.`{at}` WHERE kafka_offset = 0")
    removed = [r for r in pq.read_table(at / delta_log.checkpoint_name(version + 2))["remove"].to_pylist() if r]
    assert len(removed) > WINDOWS


Maintenance = Callable[["SparkSession", Path], Any]


def spark_sql(text: str) -> Maintenance:
    return lambda spark, table: spark.sql(text.format(f"delta.`{table}`"))


STRANGERS: dict[str, Maintenance] = {
    "OPTIMIZE": spark_sql("OPTIMIZE {}"),
    "OPTIMIZE ZORDER BY": spark_sql("OPTIMIZE {} ZORDER BY (kafka_offset, kafka_partition)"),
    "compact": lambda spark, table: DeltaTable(table).optimize.compact(),
    "z_order": lambda spark, table: DeltaTable(table).optimize.z_order(["kafka_offset", "kafka_partition"]),
}


def vacuum(spark: SparkSession, table: Path, *, by_spark: bool) -> None:
    """Delete, without a retention period, all files that the newest version does not refer to. Spark's command takes
    seconds."""
    if not by_spark:
        DeltaTable(table).vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
        return
    spark.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
    try:
        spark.sql(f"VACUUM delta.`{table}` RETAIN 0 HOURS")
    finally:
        spark.conf.unset("spark.databricks.delta.retentionDurationCheck.enabled")


# `make test` has one of each writer: Spark only merges files, and delta-rs also sorts rows.
@pytest.mark.parametrize("names", long_after(1, [["OPTIMIZE", "z_order"], list(STRANGERS)]), ids=len)
def test_strangers_maintain_live_tables_and_a_deleted_decoded_row_is_found_and_healed(
    people: MadeTopic, spark: SparkSession, names: list[str]
) -> None:
    """After each of the other writers has rewritten and vacuumed both tables, all checks pass, and the next load,
    decode and upkeep work. Then one of them deletes a row: a check reports the row, and the next load or decode
    restores it."""
    for name, new in zip(names, more(people)[: len(names)], strict=True):
        before = {kind: rows(people, kind) for kind in KINDS}
        for kind in KINDS:
            version, on_disk = DeltaTable(place(people, kind)).version(), files_of(people, kind)
            STRANGERS[name](spark, place(people, kind))
            assert DeltaTable(place(people, kind)).version() > version, name
            vacuum(spark, place(people, kind), by_spark=(name, kind) == ("OPTIMIZE", "raw"))
            assert not on_disk <= files_of(people, kind), name
        assert {kind: rows(people, kind) for kind in KINDS} == before
        proved(people)
        loaded = [w for w in people.ledger.windows(people.topic) if w.key in people.receipts()]
        assert [people.load(w).outcome for w in (loaded[0], loaded[-1])] == ["unchanged"] * 2
        assert [people.decoder().decode(w.key).outcome for w in (loaded[0], loaded[-1])] == ["unchanged"] * 2
        assert not [d for d in Upkeep(people.declaration.raw_table, people.ledger).run(LATER) if d.damaged]
        # The next stranger finds two files to rewrite.
        people.fill([new])
        assert [row for row in rows(people, "raw") if row[0] != new.key] == before["raw"]
    proved(people)
    before_damage = rows(people, "decoded")
    window, partition, offset, _ = before_damage[EACH + 7]
    spark.sql(
        f"DELETE FROM delta.`{place(people, 'decoded')}` WHERE kafka_partition = {partition} AND kafka_offset = {offset}"
    )
    found = conserved(windows_of(people.declaration, people.ledger)).findings
    assert [(f.window, f.partition, f.ranges) for f in found] == [
        (window, partition, (OffsetRange(offset, offset + 1),))
    ]
    assert people.decoder().decode(window).outcome == "healed"
    assert rows(people, "decoded") == before_damage
    proved(people)


def files_of(topic: MadeTopic, kind: TableKind) -> set[Path]:
    return set(place(topic, kind).rglob("*.parquet")) - set(place(topic, kind).glob("_delta_log/*"))


@pytest.mark.long
@pytest.mark.broker
def test_a_row_that_a_stranger_deletes_from_a_merged_file_is_named_and_healed(
    lake: LakeMaker, spark: SparkSession, connection: Callable[[], ConnectSession]
) -> None:
    lk = lake(partitions=2)
    keys = [lk.window_of(Record(b"%d/%d" % (w, i), b"k", i % 2) for i in range(2 * EACH)) for w in range(3)]
    for key in keys:
        lk.load(key)
    before = lk.rows()
    (done,) = Upkeep(lk.declaration.raw_table, lk.ledger, merge_engine(lk.lake, connection)).run(LATER)
    assert done.version is not None
    deleted = before[EACH + 7]
    spark.sql(
        f"DELETE FROM delta.`{lk.lake.table(lk.declaration.raw_table).spark_path}` "
        f"WHERE kafka_partition = {deleted.partition} AND kafka_offset = {deleted.offset}"
    )
    evaluation = Evaluation(
        lk.declaration, lk.ledger, Orchestration(), lambda: lk.settings, lambda: lk.cluster, lk.engine
    )
    found = [f for check in CHECKS.values() for f in check.evaluate(evaluation).findings if f.alarming]
    gone = (OffsetRange(deleted.offset, deleted.offset + 1),)
    assert {f.window for f in found} == {deleted.window}
    assert any((f.partition, f.ranges) == (deleted.partition, gone) for f in found), found
    assert [lk.load(key).outcome for key in keys].count("healed") == 1
    assert [row.whole for row in lk.rows()] == [row.whole for row in before]


def test_a_streaming_reader_gets_each_row_once_through_loads_and_upkeep(
    people: MadeTopic, spark: SparkSession, tmp_path: Path
) -> None:
    """The reader does not set `skipChangeCommits`: neither a first load nor upkeep changes an existing row."""
    sink, table = tmp_path / "sink", place(people, "decoded")
    query = (
        spark.readStream.format("delta")
        .load(str(table))
        .writeStream.format("parquet")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start(str(sink))
    )
    try:
        for new in more(people):
            query.processAllAvailable()
            people.fill([new])
            done = list(Upkeep(people.declaration.decoded_table, people.ledger, cluster_by=("value",)).run(LATER))
            assert [d.version is not None for d in done] == [True]
        query.processAllAvailable()
    finally:
        query.stop()
    columns = ["window", "kafka_partition", "kafka_offset", "value"]
    got = pl.concat([pl.read_parquet(file) for file in sink.glob("*.parquet")]).select(columns).rows()
    assert len(got) == (WINDOWS + MORE) * EACH * 2
    assert sorted(got) == rows(people, "decoded")


Change = Callable[[MadeTopic], Any]


def repair(topic: MadeTopic, rows_gone: str) -> None:
    """Delete rows of a window as another writer, then decode the window again."""
    of = windows(topic)[1]
    DeltaTable(place(topic, "decoded")).delete(rows_gone.format(of.key))
    assert topic.decoder().decode(of.key).outcome == "healed"


def erase(topic: MadeTopic) -> None:
    first = windows(topic)[2].ranges.by_partition[0].start
    erasure = topic.erasure
    erasure.record(erasure.at_offsets({0: (OffsetRange(first, first + 1),)}), AUTHOR)
    erasure.run(AUTHOR)


def decode_again(topic: MadeTopic) -> None:
    assert topic.decoder(revision=2).decode(windows(topic)[3].key).outcome == "replaced"


ALL = EACH * 2
STREAMED: dict[str, tuple[Change, tuple[int | str, int, int | None]]] = {
    # What a reader without options sees, with skipChangeCommits, and with ignoreChanges: new rows, or its end.
    "a load": (lambda topic: topic.fill(more(topic)[:1]), (ALL, ALL, ALL)),
    "upkeep": (lambda topic: list(Upkeep(topic.declaration.decoded_table, topic.ledger).run(LATER)), (0, 0, 0)),
    "a repair": (lambda topic: repair(topic, "\"window\" = '{}' AND kafka_offset % 7 = 0"), ("ends", 0, None)),
    "an erasure": (erase, ("ends", 0, None)),
    "another declaration": (decode_again, ("ends", 0, None)),
    "the repair of a deleted window": (lambda topic: repair(topic, "\"window\" = '{}'"), ("ends", ALL, None)),
}
OPTIONS: tuple[dict[str, str], ...] = ({}, {"skipChangeCommits": "true"}, {"ignoreChanges": "true"})


@pytest.mark.long
def test_what_a_streaming_reader_sees_of_each_change(people: MadeTopic, spark: SparkSession, tmp_path: Path) -> None:
    """The results are those in the guide's table. With ignoreChanges, the reader gets rows again, including rows of
    other windows in the same files."""
    table = place(people, "decoded")

    def streamed(checkpoint: Path, sink: Path, options: dict[str, str]) -> int | str:
        query = (
            spark.readStream.format("delta")
            .options(**options)
            .load(str(table))
            .writeStream.format("parquet")
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start(str(sink))
        )
        try:
            query.awaitTermination()
        except StreamingQueryException as e:
            return "ends" if "DELTA_SOURCE_" in str(e) else str(e)
        return sum(len(pl.read_parquet(file)) for file in sink.glob("*.parquet"))

    known = tmp_path / "known"
    assert streamed(known, tmp_path / "first", {}) == WINDOWS * ALL
    for name, (change, (plain, skipping, ignoring)) in STREAMED.items():
        change(people)
        seen = []
        for number, options in enumerate(OPTIONS):
            checkpoint = tmp_path / f"{name} {number}"
            shutil.copytree(known, checkpoint)
            seen.append(streamed(checkpoint, tmp_path / f"{name} {number} sink", options))
        assert seen[:2] == [plain, skipping], name
        if ignoring is None:
            assert isinstance(seen[2], int), name
            assert seen[2] >= ALL - 1, name
        else:
            assert seen[2] == ignoring, name
        known = tmp_path / f"{name} 1"
