"""The raw table has every field of a record, and one commit for each load. Different rows have different digests."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, cast

import pytest
from deltalake import DeltaTable

from platform_assets.checks import facts
from platform_assets.checks.rules import no_duplicates, no_gaps
from platform_assets.engines.connector import raw
from platform_assets.engines.connector.engine import SparkEngine
from platform_assets.engines.protocol import Records, StagedFiles
from platform_assets.engines.shared import session
from platform_assets.errors import ReloadDiffersError
from platform_assets.lake import holdings, load_log, raw_table
from platform_assets.lake.location import Folder, Lake
from platform_assets.model.declaration import ENGINES, EngineName
from platform_assets.model.digest import Measured
from platform_assets.model.offsets import OffsetRange, TopicRanges
from platform_assets.model.tables import TableRef
from platform_assets.model.windows import milliseconds
from platform_assets_tests.support.engines import ONE_ENGINE
from platform_assets_tests.support.every_kind import EVERY_KIND
from testbed.loads import Record, records

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

    from platform_assets_tests.conftest import LakeMaker

pytestmark = [pytest.mark.broker, pytest.mark.spark]


@pytest.fixture(params=ENGINES)
def engine_name(request: pytest.FixtureRequest) -> EngineName:
    """Run each test with both engines, but not with `auto`, which would hide the failure of one engine."""
    return cast(EngineName, request.param)


def test_all_that_a_record_has_survives(lake: LakeMaker) -> None:
    lk = lake(partitions=2)
    before = milliseconds(datetime.now(UTC)) - 1  # the current time is rounded, while record timestamps are truncated
    key = lk.window_of(EVERY_KIND)
    after = milliseconds(datetime.now(UTC))
    loaded = lk.load(key)
    rows = lk.rows()
    # Compared with what was sent, then with what a consumer reads.
    assert [(r.partition, r.key, r.value, r.headers) for r in rows] == [
        (s.partition, s.key, s.value, s.headers) for s in EVERY_KIND
    ]
    for row, sent in zip(rows, EVERY_KIND, strict=True):
        assert row.timestamp == sent.timestamp if sent.timestamp is not None else before <= row.timestamp <= after
    assert records(rows) == records(lk.committed())
    topic_id = lk.cluster.topic(lk.topic).topic_id
    assert {(r.timestamp_type, r.topic_id, r.window) for r in rows} == {(0, topic_id, key)}
    assert (loaded.outcome, loaded.receipt.rows, loaded.receipt.missing) == ("loaded", len(EVERY_KIND), 0)


def test_a_timestamp_that_the_broker_set_is_told_from_one_that_the_producer_set(lake: LakeMaker) -> None:
    lk = lake(config={"message.timestamp.type": "LogAppendTime"})
    before = milliseconds(datetime.now(UTC)) - 1
    key = lk.window_of([Record(timestamp=1), Record(timestamp=1)])
    lk.load(key)
    rows = lk.rows()
    assert {r.timestamp_type for r in rows} == {1}
    assert all(before <= r.timestamp <= milliseconds(datetime.now(UTC)) for r in rows)
    assert records(rows) == records(lk.committed())


@pytest.mark.long
@pytest.mark.usefixtures("flat")
def test_a_table_says_what_it_holds_and_keeps_statistics_that_help(lake: LakeMaker) -> None:
    lk = lake()
    lk.load(lk.window_of([Record(b"value", b"key"), Record(b"value", b"key")]))
    table = DeltaTable(lk.table)
    assert lk.topic in (table.metadata().description or "")
    assert table.metadata().partition_columns == []
    comments = {f.name: f.metadata.get("comment") for f in table.schema().fields}
    assert list(comments) == list(raw_table.COLUMN_NAMES)
    assert all(comments.values())
    columns = set(holdings.actions(Folder.at(lk.table)).column_names)
    for name in ("kafka_partition", "kafka_offset", "kafka_timestamp"):
        assert {f"min.{name}", f"max.{name}"} <= columns
    for name in ("key", "value", "headers", "topic_id"):
        assert not any(c.startswith((f"min.{name}", f"max.{name}", f"null_count.{name}")) for c in columns)


@pytest.mark.usefixtures("flat")
def test_each_load_is_one_commit_that_carries_its_ranges(lake: LakeMaker) -> None:
    lk = lake(partitions=2)
    keys = [lk.window_of([Record(partition=p) for p in (0, 1, 1)]) for _ in range(2)]
    before = 0
    for number, key in enumerate(keys):
        loaded = lk.load(key)
        assert lk.version() == before + 1 == loaded.receipt.table_version
        before = lk.version()
        commit = DeltaTable(lk.table).history(1)[0]
        fields = json.loads(commit["userMetadata"])
        topic_id = lk.cluster.topic(lk.topic).topic_id
        assert fields["platform_assets"] == 1
        assert fields["window"] == key
        assert fields["ranges"] == [
            {"topic_id": topic_id, "partition": 0, "start": number, "end": number + 1},
            {"topic_id": topic_id, "partition": 1, "start": 2 * number, "end": 2 * number + 2},
        ]
        metadata = load_log.LoadMetadata.from_json(commit["userMetadata"])
        assert metadata is not None
        assert metadata.ranges == lk.ledger.windows(lk.topic)[number].ranges == loaded.receipt.ranges
        # The commit names each file that it removes.
        assert commit["operationParameters"]["mode"] == "Append"


@pytest.mark.parametrize("engine_name", ONE_ENGINE)
def test_a_window_of_aborted_records_alone_is_a_commit_with_no_rows(lake: LakeMaker) -> None:
    lk = lake()
    lk.load(lk.window_of([Record(b"before")]))
    lk.abort([Record(b"never")] * 5)
    key = lk.close_window()
    loaded = lk.load(key)
    assert (loaded.outcome, loaded.receipt.rows, loaded.receipt.kind) == ("loaded", 0, "load")
    assert loaded.receipt.ranges == TopicRanges({0: OffsetRange(1, 7)})
    assert loaded.receipt.table_version == lk.version() == 2
    newest = load_log.newest_load(Folder.at(lk.table))
    assert newest is not None
    assert newest.metadata.ranges == loaded.receipt.ranges
    assert [r.value for r in lk.rows()] == [b"before"]
    # It is a normal loaded window: a new load proves it unchanged, and it is not a gap.
    again = lk.load(key)
    assert (again.outcome, again.receipt, lk.version()) == ("unchanged", loaded.receipt, 2)
    found = facts.collect(TableRef.raw(lk.topic), lk.ledger)
    assert no_gaps.check_result(found).passed
    assert no_duplicates.check_result(found).passed
    assert dict(no_gaps.check_result(found).figures)["offsets_without_row"] == 6


@pytest.mark.parametrize("engine_name", ONE_ENGINE)
def test_a_window_without_offsets_is_loaded_without_a_commit(lake: LakeMaker) -> None:
    lk = lake()
    lk.load(lk.window_of([Record()]))
    key = lk.close_window()
    loaded = lk.load(key)
    assert (loaded.outcome, loaded.receipt.rows, lk.version()) == ("empty", 0, 1)
    assert key in lk.ledger.receipts(lk.declaration.raw_table)


@pytest.mark.parametrize("engine_name", ONE_ENGINE)
def test_small_windows_have_few_files_and_large_ones_a_file_a_partition(lake: LakeMaker) -> None:
    lk = lake(partitions=4, records_per_file=100)
    for per_partition, files in ((1, 1), (25, 1), (26, 2), (200, 4)):
        key = lk.window_of(Record(partition=p) for p in range(4) for _ in range(per_partition))
        receipt = lk.load(key).receipt
        assert len(holdings.files_of(Folder.at(lk.table), key).paths) == files
        # Counts and bounds for each partition are right whether they come from statistics or from the files.
        last = {p: r.end for p, r in receipt.ranges.items()}
        for partition, part in receipt.partitions.items():
            assert (part.rows, part.last_offset) == (per_partition, last[partition] - 1)


def test_rows_outside_of_the_window_are_refused_before_the_commit(lake: LakeMaker) -> None:
    """Simulate an engine that reads other offsets than the requested offsets. No such engine is known, but if there
    were one, its rows would be refused."""
    lk = lake()
    keys = [lk.window_of([Record()]) for _ in range(2)]
    lk.load(keys[0])
    before = lk.snapshot()
    sealed = lk.ledger.windows(lk.topic)

    class Astray(SparkEngine):
        def write(self, records: Records, table: TableRef, load_id: str, records_per_file: int) -> StagedFiles:
            return super().write(replace(records, ranges=sealed[0].ranges), table, load_id, records_per_file)

    engine = Astray(Lake.at(lk.root), lambda: lk.settings, lk.spark)
    with pytest.raises(ReloadDiffersError, match=r"rows of partition 0 from offset 0 to 0, outside \[1, 2\)"):
        lk.loader(engine=engine).load(keys[1])
    assert lk.snapshot() == before
    assert not lk.orphans()


@pytest.mark.parametrize("engine_name", ["connector"])
@pytest.mark.parametrize("compiled_first", [True, False])
def test_compiled_and_interpreted_queries_load_the_same(
    lake: LakeMaker, monkeypatch: pytest.MonkeyPatch, compiled_first: bool
) -> None:
    """Spark interprets the plans of small windows and compiles the plans of large windows. Rows and digests must be the
    same in both cases."""
    lk = lake(partitions=2)
    key = lk.window_of(EVERY_KIND)
    for compiled in (compiled_first, not compiled_first):
        monkeypatch.setattr(session, "COMPILED_FROM", 0 if compiled else len(EVERY_KIND) + 1)
        lk.spark().conf.unset("spark.sql.codegen.factoryMode")
        outcome = lk.load(key).outcome
        mode = lk.spark().conf.get("spark.sql.codegen.factoryMode")
        assert mode == ("FALLBACK" if compiled else "NO_CODEGEN")
        assert outcome == ("loaded" if compiled == compiled_first else "unchanged")
        assert records(lk.rows()) == records(lk.committed())


# --- digests ---------------------------------------------------------------------------------------------------

BASE: dict[str, Any] = {
    "topic_id": "t",
    "kafka_partition": 0,
    "kafka_offset": 1,
    "kafka_timestamp": datetime(2026, 1, 1, tzinfo=UTC),
    "kafka_timestamp_type": 0,
    "key": b"k",
    "value": b"v",
    "headers": [("a", b"1"), ("b", b"2")],
    "window": "2026-01-01-00:00",
}
SCHEMA = (
    "topic_id string, kafka_partition int, kafka_offset long, kafka_timestamp timestamp, kafka_timestamp_type int, "
    "key binary, value binary, headers array<struct<key: string, value: binary>>, window string"
)
Row = dict[str, Any]


@pytest.fixture
def measure(connection: Callable[[], SparkSession]) -> Callable[..., Measured]:
    """Return the digests of rows. Each row equals `BASE` except for the given changes."""

    def digests(*changes: Row, parts: int = 1) -> Measured:
        rows = [tuple({**BASE, **change}.values()) for change in changes]
        return raw.measure(connection().createDataFrame(rows, SCHEMA).repartition(parts))

    return digests


@pytest.mark.parametrize(
    ("left", "right"),
    [
        pytest.param({"key": None}, {"key": b""}, id="null and empty key"),
        pytest.param({"value": None}, {"value": b""}, id="null and empty value"),
        pytest.param({"key": None, "value": b"x"}, {"key": b"x", "value": None}, id="null changes its place"),
        pytest.param({"key": b"v", "value": b"k"}, {}, id="key and value swapped"),
        pytest.param({"key": b"kv", "value": b""}, {"key": b"", "value": b"kv"}, id="boundary moved"),
        pytest.param({"headers": None}, {"headers": []}, id="no headers and none in the list"),
        pytest.param({"headers": [("b", b"2"), ("a", b"1")]}, {}, id="headers in another order"),
        pytest.param({"headers": [("a", b"1")]}, {"headers": [("a", b"1"), ("a", b"1")]}, id="header doubled"),
        pytest.param({"headers": [("a", None)]}, {"headers": [("a", b"")]}, id="null and empty header"),
        pytest.param({"headers": [("a", b"b")]}, {"headers": [("b", b"a")]}, id="header key and value swapped"),
        pytest.param(
            {"headers": [("a", None), ("b", b"1")]}, {"headers": [("a", b"1"), ("b", None)]}, id="null header moved"
        ),
        pytest.param({"kafka_timestamp_type": 1}, {}, id="timestamp type"),
        pytest.param({"kafka_timestamp": datetime(2026, 1, 1, 0, 0, 0, 1000, tzinfo=UTC)}, {}, id="a millisecond"),
    ],
)
def test_content_digests_differ_where_rows_do(measure: Callable[..., Measured], left: Row, right: Row) -> None:
    one, other = measure(left), measure(right)
    assert one.content != other.content
    assert one.offsets == other.offsets


def test_digests_of_offsets_tell_what_sums_cannot(measure: Callable[..., Measured]) -> None:
    """The sets {0, 3, 5, 6} and {1, 2, 4, 7} have the same count, sum and sum of squares."""
    one = measure(*({"kafka_offset": o} for o in (0, 3, 5, 6)))
    other = measure(*({"kafka_offset": o} for o in (1, 2, 4, 7)))
    assert one.offsets != other.offsets
    assert measure({"kafka_partition": 1, "kafka_offset": 0}).offsets != measure({"kafka_offset": 1}).offsets
    assert measure({}).offsets != measure({}, {}).offsets


def test_digests_do_not_depend_on_order_nor_on_files(measure: Callable[..., Measured]) -> None:
    rows = [{"kafka_offset": o, "value": str(o).encode()} for o in range(50)]
    assert measure(*rows) == measure(*reversed(rows), parts=7)
    shifted = [{**row, "value": str(row["kafka_offset"] + 1).encode()} for row in rows]  # type: ignore[operator]
    assert measure(*rows).content != measure(*shifted).content


@pytest.mark.parametrize("engine_name", ONE_ENGINE)
def test_a_load_observes_the_digests_of_what_it_wrote(lake: LakeMaker) -> None:
    """The digests in the receipt equal the digests of the rows that are read back from the table. This shows that the
    digests were computed from the rows and not from the plan."""
    lk = lake(partitions=2)
    key = lk.window_of([Record(str(i).encode(), partition=i % 2) for i in range(100)])
    receipt = lk.load(key).receipt
    measured = raw.measure(lk.spark().read.format("delta").load(str(lk.table)))
    assert (measured.offsets, measured.content) == (receipt.offsets, receipt.content)


@pytest.mark.parametrize(
    ("offsets", "records", "fetched"),
    [(1, "1", 1 << 18), (1_000, "1000", 1_000 << 10), (10_000_000, "20000", 16 << 20)],
)
def test_a_small_range_fetches_little_beyond_its_end(offsets: int, records: str, fetched: int) -> None:
    """Spark keeps fetched records after the end of a window in memory. If many small windows follow one another, these
    records would fill Spark's heap."""
    options = raw.client_options(TopicRanges({0: OffsetRange(5, 5 + offsets), 1: OffsetRange(7, 8)}))
    assert options["kafka.max.poll.records"] == records
    assert options["kafka.max.partition.fetch.bytes"] == str(fetched)


@pytest.mark.parametrize("engine_name", ["connector"])
def test_digests_that_spark_does_not_hand_on_are_taken_from_the_files(
    lake: LakeMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark's listener can be late on a busy server. In that case, the answer does not contain the observed values."""
    from pyspark.sql.connect.observation import Observation

    lk = lake(partitions=2)
    key = lk.window_of(EVERY_KIND)
    asked: list[Observation] = []

    def nothing(observation: Observation) -> dict[str, Any]:
        asked.append(observation)
        return {}

    monkeypatch.setattr(Observation, "get", property(nothing))
    late = lk.load(key).receipt
    assert len(asked) == 1
    monkeypatch.undo()
    assert lk.load(key).outcome == "unchanged"
    assert late.rows == len(EVERY_KIND)
