"""Any window, loaded any number of times, is in the table exactly once, or the load is refused and changes nothing."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from platform_assets.errors import (
    LostForGoodError,
    OffsetsExpiredError,
    ReloadDiffersError,
    TopicRecreatedError,
    UnreadableTimestampError,
)
from platform_assets.kafka.timestamps import LAST_READABLE_MS
from platform_assets.lake import holdings, rows
from platform_assets.lake.location import Folder
from platform_assets.ledger.decisions import Author
from platform_assets.ledger.entries import Receipt
from platform_assets.model.declaration import EngineName
from platform_assets.model.digest import dense_digest
from platform_assets.model.offsets import OffsetRange, TopicRanges, repeats
from platform_assets.model.windows import milliseconds
from platform_assets.windows.decide.acceptance import accept, find_losses
from platform_assets_tests.support.damage import delete_rows
from platform_assets_tests.support.engines import ONE_ENGINE, both_engines
from platform_assets_tests.support.streams import ANY_TIME, create_again, delete_before
from platform_assets_tests.support.variants import long_after
from testbed.loads import START, Record, TopicLake, numbered, records, wait_until, whole

if TYPE_CHECKING:
    from platform_assets_tests.conftest import Broker, LakeMaker

pytestmark = pytest.mark.broker


@pytest.fixture(params=ONE_ENGINE)
def engine_name(request: pytest.FixtureRequest) -> EngineName:
    """The engine that a test uses: reading and writing are tested with both engines, everything else with one."""
    return cast(EngineName, request.param)


# --- loading again ---------------------------------------------------------------------------------------------


def test_loading_again_gives_the_same_rows_whatever_was_produced_since(lake: LakeMaker) -> None:
    lk = lake(partitions=2)
    first = lk.window_of(numbered(40, 2, "a"))
    second = lk.window_of(numbered(30, 2, "b"))
    loaded = {key: lk.load(key) for key in (second, first)}
    assert {key: one.outcome for key, one in loaded.items()} == {first: "loaded", second: "loaded"}
    before = lk.snapshot()
    lk.send(numbered(50, 2, "later"))
    for key in (first, second, first):
        again = lk.load(key)
        assert (again.outcome, again.receipt) == ("unchanged", loaded[key].receipt)
    assert lk.snapshot() == before
    # Also after later records are closed, loaded and committed.
    third = lk.close_window()
    lk.load(third)
    for key in (first, second):
        assert lk.load(key).outcome == "unchanged"
    assert records(lk.rows()) == records(lk.committed())
    assert [len(lk.rows(key)) for key in (first, second, third)] == [40, 30, 50]


def test_a_load_by_hand_needs_no_sensor(lake: LakeMaker) -> None:
    """The load itself seals the window and all earlier windows by timestamp, because no sensor has run."""
    lk = lake(config={"retention.ms": "-1"})
    lk.send(Record(str(i).encode(), timestamp=milliseconds(START) + i * 20_000) for i in range(12))
    lk.closed = START + timedelta(minutes=10)
    assert lk.load("2026-03-01-00:02").receipt.ranges == TopicRanges({0: OffsetRange(6, 9)})
    assert [(r.value, r.window) for r in lk.rows()] == [(b"%d" % i, "2026-03-01-00:02") for i in (6, 7, 8)]
    for minute in (0, 1, 3):
        assert lk.load(f"2026-03-01-00:0{minute}").receipt.rows == 3
    assert records(lk.rows()) == records(lk.committed())


def test_a_first_load_opens_its_table_once(lake: LakeMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Opening a table takes longer with each window that it contains.

    The window's only file mixes partitions, so the file's statistics do not give the rows per partition.
    """
    lk = lake(partitions=4)
    lk.load(lk.window_of(numbered(40, 4, "a")))
    key = lk.window_of(numbered(20, 4, "b"))
    opened: list[Folder] = []
    delta = Folder.delta

    def noted(folder: Folder, version: int | None = None) -> DeltaTable:
        opened.append(folder)
        return delta(folder, version)

    monkeypatch.setattr(Folder, "delta", noted)
    receipt = lk.load(key).receipt
    assert {p: part.rows for p, part in receipt.partitions.items()} == dict.fromkeys(range(4), 5)
    assert opened.count(Folder.at(lk.table)) == 1


def append_rows(lk: TopicLake, key: str) -> None:
    """Append duplicate rows of the window, and one row that was never in the topic."""
    table = DeltaTable(lk.table)
    some = table.to_pyarrow_table(filters=[("window", "=", key)]).slice(0, 4)
    rogue = some.slice(0, 1).set_column(
        some.column_names.index("kafka_offset"), "kafka_offset", pa.array([999_999], pa.int64())
    )
    write_deltalake(table, pa.concat_tables([some, rogue]), mode="append")


def change_rows(lk: TopicLake, key: str) -> None:
    """Change one value, but no number of rows and no offset."""
    where = f"window = '{key}' AND kafka_offset = 4"
    DeltaTable(lk.table).update({"value": "arrow_cast('changed', 'Binary')"}, predicate=where)


def remove_file(lk: TopicLake, key: str) -> None:
    """Remove one of the window's data files from the table with a manual commit."""
    path = holdings.files_of(Folder.at(lk.table), key).paths[0]
    version = lk.version() + 1
    action = {"remove": {"path": path, "deletionTimestamp": 1, "dataChange": True, "extendedFileMetadata": False}}
    (lk.table / "_delta_log" / f"{version:020}.json").write_text(json.dumps(action) + "\n")
    assert path not in holdings.files_of(Folder.at(lk.table), key).paths


def rewrite_files(lk: TopicLake, key: str) -> None:
    """Move the rows to other files, which is not damage: a load reads the rows, and the receipt lists the new files."""
    rows = DeltaTable(lk.table).to_pyarrow_table(filters=[("window", "=", key)])
    write_deltalake(lk.table, rows, mode="overwrite", predicate=f"window = '{key}'")


@pytest.mark.parametrize("damage", long_after(3, [delete_rows, append_rows, change_rows, remove_file, rewrite_files]))
def test_a_damaged_window_is_healed_by_loading_it_again(
    lake: LakeMaker, damage: Callable[[TopicLake, str], None]
) -> None:
    lk = lake(partitions=2, records_per_file=10)
    key, other = lk.window_of(numbered(40, 2)), lk.window_of(numbered(20, 2, "other"))
    first = lk.load(key)
    lk.load(other)
    good = whole(lk.rows())
    damage(lk, key)
    damaged = lk.version()
    before_files = set(lk.table.rglob("*.parquet"))
    assert (whole(lk.rows()) != good) == (damage is not rewrite_files)
    healed = lk.load(key)
    expected = ("unchanged", damaged) if damage is rewrite_files else ("healed", damaged + 1)
    assert (healed.outcome, lk.version()) == expected
    assert whole(lk.rows()) == good
    # Every digest is the first recorded one.
    assert healed.receipt.offsets == first.receipt.offsets == dense_digest(first.receipt.ranges)
    assert healed.receipt.content == first.receipt.content
    assert healed.receipt.partitions == first.receipt.partitions
    assert healed.receipt.duplicates == 0
    assert [lk.load(k).outcome for k in (key, other)] == ["unchanged", "unchanged"]
    # Uncommitted files were deleted; files that the new commit removed wait for a VACUUM.
    assert set(lk.orphans()) <= before_files


# --- refusals --------------------------------------------------------------------------------------------------


def retire(broker: Broker, lk: TopicLake) -> None:
    """Let retention delete all segments except the newest."""
    state = lk.cluster.topic(lk.topic)
    wait_until("retention has run", lambda: lk.cluster.log_starts(state)[0].offset > 0)


def test_a_reload_after_records_were_deleted_keeps_what_the_table_has(lake: LakeMaker, broker: Broker) -> None:
    lk = lake(partitions=2)
    key = lk.window_of(numbered(40, 2))
    lk.load(key)
    before = lk.snapshot()
    delete_before(broker.bootstrap, lk.topic, 1, 7)
    kept = lk.load(key)
    assert (kept.outcome, kept.receipt.rows) == ("kept", 40)
    assert kept.receipt.engine == lk.engine.name
    assert lk.snapshot() == before
    # A damaged table restores the window from its past versions, as long as they exist.
    rows_before = whole(lk.rows())
    delete_rows(lk, key)
    restored = lk.load(key)
    assert (restored.outcome, restored.receipt.engine) == ("restored", kept.receipt.engine)
    assert whole(lk.rows()) == rows_before
    delete_rows(lk, key)
    DeltaTable(lk.table).vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    before = lk.snapshot()
    with pytest.raises(
        LostForGoodError, match=r"2 of its 40 rows are lost for good.*1 offsets \[3, 4\).*\[5, 6\).*\[0, 7\)"
    ):
        lk.load(key)
    assert lk.snapshot() == before


def test_a_reload_after_retention_keeps_what_the_table_has(lake: LakeMaker, broker: Broker) -> None:
    """Segments are rolled every hundredth of a second, and the records' timestamps are far in the past."""
    lk = lake(config={"segment.ms": "10", "retention.ms": "-1"})
    key = lk.window_of([Record(b"a", timestamp=1000), Record(b"b", timestamp=2000)])
    lk.load(key)
    before = lk.snapshot()
    lk.send([Record(b"new segment")])
    set_config(broker, lk.topic, "retention.ms", "1000")
    retire(broker, lk)
    assert lk.load(key).outcome == "kept"
    assert lk.snapshot() == before


def test_a_first_load_of_expired_records_is_refused_and_names_them(lake: LakeMaker, broker: Broker) -> None:
    lk = lake()
    key, next_key = lk.window_of(numbered(10)), lk.window_of(numbered(5))
    delete_before(broker.bootstrap, lk.topic, 0, 12)
    before = lk.snapshot()
    with pytest.raises(OffsetsExpiredError, match=r"partition 0 offsets \[0, 10\).*accept-loss") as e:
        lk.load(key)
    assert e.value.lost == ((0, 0, 10),)
    with pytest.raises(OffsetsExpiredError, match=r"partition 0 offsets \[10, 12\)"):
        lk.load(next_key)
    assert lk.ledger.receipts(lk.declaration.raw_table) == {}
    assert lk.rows() == []
    assert lk.snapshot()["cuts"] == before["cuts"]


def test_what_held_no_row_cannot_be_lost(lake: LakeMaker, broker: Broker) -> None:
    """Aborted records at the start of a window expire. All rows of the window still exist, so the load proves them
    equal."""
    lk = lake()
    lk.abort(numbered(5))
    key = lk.window_of(numbered(5, stem="kept"))
    loaded = lk.load(key)
    delete_before(broker.bootstrap, lk.topic, 0, 6)
    assert lk.load(key).outcome == "unchanged"
    delete_rows(lk, key)
    append_rows(lk, key)
    assert lk.load(key).receipt.content == loaded.receipt.content
    assert [r.value for r in lk.rows()] == [f"kept{i}".encode() for i in range(5)]


def test_a_topic_that_was_made_anew_is_refused(lake: LakeMaker, broker: Broker) -> None:
    lk = lake()
    key = lk.window_of(numbered(10))
    lk.load(key)
    later = lk.window_of(numbered(10))
    before = lk.snapshot()
    create_again(broker, lk.topic)
    lk.send(numbered(30, stem="other topic"))
    for window in (key, later):
        with pytest.raises(TopicRecreatedError, match="re-created"):
            lk.load(window)
    with pytest.raises(TopicRecreatedError, match="re-created"):
        lk.close_window()
    assert lk.snapshot() == before


def test_a_topic_made_anew_while_it_is_read_again_is_refused(
    lake: LakeMaker, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kafka reads use the topic's name, so the staged rows may come from the old or the new topic. The topic id is
    therefore read again."""
    lk = lake()
    key = lk.window_of(numbered(10))
    lk.load(key)
    delete_rows(lk, key)
    before = lk.snapshot()
    loader = lk.loader()
    described = loader.cluster.topic

    def after_the_first(name: str) -> Any:
        answer = described(name)
        monkeypatch.setattr(loader.cluster, "topic", described)
        create_again(broker, lk.topic)
        lk.send(numbered(10))
        return answer

    monkeypatch.setattr(loader.cluster, "topic", after_the_first)
    with pytest.raises((TopicRecreatedError, OffsetsExpiredError)):
        loader.load(key)
    assert lk.snapshot() == before


COMPACTED = {
    "cleanup.policy": "compact",
    "segment.ms": "10",
    "min.cleanable.dirty.ratio": "0.001",
    "min.compaction.lag.ms": str(10**9),
}
"""Settings of a topic that keeps all records until `compact` is called."""


def compacted_window(lk: TopicLake) -> str:
    """A window with eight records, of which `compact` removes three."""
    return lk.window_of([Record(b"%d" % i, b"same key" if i in (2, 3, 6) else b"k%d" % i) for i in range(8)])


def compact(broker: Broker, lk: TopicLake) -> None:
    lk.send([Record(b"newer", b"same key")])
    set_config(broker, lk.topic, "min.compaction.lag.ms", "0")
    lk.send([Record(b"new segment", b"another")])
    # A first pass of the cleaner may still spare the third: its successor may be in the active segment.
    wait_until("the log is compacted", lambda: len(lk.committed()) == 7)


def test_a_damaged_window_of_a_compacted_topic_is_restored(lake: LakeMaker, broker: Broker) -> None:
    """Kafka's records have changed, but past versions of the table contain the loaded records."""
    lk = lake(config=COMPACTED)
    key = compacted_window(lk)
    first = lk.load(key).receipt
    good = whole(lk.rows())
    compact(broker, lk)
    delete_rows(lk, key)
    before_files = set(lk.table.rglob("*.parquet"))
    restored = lk.load(key)
    assert (restored.outcome, restored.receipt.content) == ("restored", first.content)
    assert whole(lk.rows()) == good
    # Kafka's records were written, compared and deleted.
    assert set(lk.table.rglob("*.parquet")) <= before_files
    # Without a past version, the error says of both that they do not have the rows.
    delete_rows(lk, key)
    DeltaTable(lk.table).vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    before = lk.snapshot()
    with pytest.raises(
        LostForGoodError,
        match=r"1 of its 8 rows is lost for good.*offsets \[3, 4\).*Kafka has 5 rows, fewer than the 8 in the receipt",
    ):
        lk.load(key)
    assert lk.snapshot() == before


def test_a_reload_after_compaction_is_refused_and_names_what_is_gone(lake: LakeMaker, broker: Broker) -> None:
    lk = lake(config=COMPACTED)
    key = compacted_window(lk)
    lk.load(key)
    before = lk.snapshot()
    compact(broker, lk)
    with pytest.raises(
        ReloadDiffersError,
        match=r"5 rows, fewer than the 8 .*gone: partition 0 offsets \[2, 4\), partition 0 offsets \[6, 7\)\. Likely cause: "
        r"compaction or retention .*The table keeps what was loaded first",
    ):
        lk.load(key)
    assert lk.snapshot() == before


def more_rows(receipt: Receipt) -> Receipt:
    return replace(receipt, partitions={0: replace(receipt.partitions[0], rows=receipt.rows + 2)})


def fewer_rows(receipt: Receipt) -> Receipt:
    return replace(receipt, partitions={0: replace(receipt.partitions[0], rows=receipt.rows - 2)})


def other_offsets(receipt: Receipt) -> Receipt:
    return replace(receipt, offsets_digest=receipt.offsets_digest + 1)


def other_content(receipt: Receipt) -> Receipt:
    return replace(receipt, content_digest=receipt.content_digest + 1)


def test_a_reload_against_an_edited_receipt_is_refused_and_says_that_it_was_edited(lake: LakeMaker) -> None:
    lk = lake()
    key = lk.window_of(numbered(10))
    true = lk.load(key).receipt
    rows_before, version = whole(lk.rows()), lk.version()
    for edit, seen in (
        (more_rows, "10 rows, fewer than the 12 in the receipt"),
        (fewer_rows, "10 rows, more than the 8 in the receipt"),
        (other_offsets, "10 rows, the same number as in the receipt, but with different offsets"),
        (other_content, "10 rows, the same number as in the receipt, but with different content at the same offsets"),
    ):
        lk.ledger.record_receipts([edit(true)])
        with pytest.raises(ReloadDiffersError, match=f"{seen}, but the table's own rows .* The ledger was edited"):
            lk.load(key)
        assert (whole(lk.rows()), lk.version()) == (rows_before, version)
    lk.ledger.record_receipts([true])
    assert lk.load(key).outcome == "unchanged"


def test_a_partition_that_was_added_starts_at_zero(lake: LakeMaker, broker: Broker) -> None:
    from confluent_kafka.admin import NewPartitions

    lk = lake()
    first = lk.window_of(numbered(3))
    for future in broker.admin.create_partitions([NewPartitions(lk.topic, 2)]).values():
        future.result(30)
    wait_until("the partition is known", lambda: len(lk.cluster.topic(lk.topic).partitions) == 2)
    wait_until("it has a leader", lambda: len(lk.high_watermarks()) == 2)
    second = lk.window_of([Record(b"new", partition=1), Record(b"old", partition=0)])
    assert lk.load(second).receipt.ranges == TopicRanges({0: OffsetRange(3, 4), 1: OffsetRange(0, 1)})
    assert lk.load(first).receipt.ranges == TopicRanges({0: OffsetRange(0, 3)})
    assert records(lk.rows()) == records(lk.committed())


def set_config(broker: Broker, topic: str, name: str, value: str) -> None:
    """Change one setting of a topic."""
    from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    for future in broker.admin.incremental_alter_configs([resource]).values():
        future.result(30)


# --- transactions ----------------------------------------------------------------------------------------------


def test_a_transaction_that_is_open_at_a_cut_is_in_no_window_until_it_is_decided(lake: LakeMaker) -> None:
    lk = lake(partitions=2)
    lk.commit([Record(b"committed", partition=p) for p in (0, 1)])
    lk.abort([Record(b"aborted", partition=0)])
    commits_later = lk.open_transaction([Record(b"committed later", partition=0)])
    aborts_later = lk.open_transaction([Record(b"aborted later", partition=1)])
    lk.send([Record(b"behind the open one", partition=p) for p in (0, 1)])
    first = lk.close_window()
    # The log: [committed][marker][aborted][marker][open…]; records after an open transaction wait with it.
    assert lk.load(first).receipt.ranges == TopicRanges({0: OffsetRange(0, 4), 1: OffsetRange(0, 2)})
    assert [(r.partition, r.value) for r in lk.rows()] == [(0, b"committed"), (1, b"committed")]
    second = lk.close_window()
    assert lk.load(second).outcome == "empty"
    aborts_later.end(commit=False)
    third = lk.close_window()
    lk.load(third)
    assert [r.value for r in lk.rows(third)] == [b"behind the open one"]
    commits_later.end(commit=True)
    fourth = lk.close_window()
    lk.load(fourth)
    assert [r.value for r in lk.rows(fourth)] == [b"committed later", b"behind the open one"]
    assert records(lk.rows()) == records(lk.committed())
    assert len(lk.rows()) == 5
    for key in (first, third, fourth):
        assert lk.load(key).outcome == "unchanged"


def test_a_transaction_may_straddle_a_cut_record_by_record(lake: LakeMaker) -> None:
    """The transaction spans two partitions, and another transaction holds one of them back: its records are in two
    windows, each record once."""
    lk = lake(partitions=2)
    holder = lk.open_transaction([Record(b"holder", partition=1)])
    lk.commit([Record(b"straddles", partition=p) for p in (0, 1)])
    first = lk.close_window()
    holder.end(commit=True)
    second = lk.close_window()
    for key in (first, second):
        lk.load(key)
    assert [(r.partition, r.value) for r in lk.rows(first)] == [(0, b"straddles")]
    assert [(r.partition, r.value) for r in lk.rows(second)] == [(1, b"holder"), (1, b"straddles")]
    assert records(lk.rows()) == records(lk.committed())


# --- clocks ----------------------------------------------------------------------------------------------------

YEAR_MS = 31_556_952_000


def test_records_with_clocks_off_by_years_are_loaded_exactly_once(lake: LakeMaker) -> None:
    lk = lake(partitions=2, config=ANY_TIME)
    now = int(time.time() * 1000)
    keys = []
    for number in range(3):
        stamps = [now, now - 30 * YEAR_MS, now + 40 * YEAR_MS, now + 5_000 * YEAR_MS, LAST_READABLE_MS, 1]
        keys.append(
            lk.window_of(Record(f"{number}/{i}".encode(), partition=i % 2, timestamp=t) for i, t in enumerate(stamps))
        )
    for key in reversed(keys):
        assert lk.load(key).receipt.rows == 6
    assert records(lk.rows()) == records(lk.committed())
    for key in keys:
        assert lk.load(key).outcome == "unchanged"


@both_engines
def test_a_timestamp_that_spark_cannot_read_is_named_and_its_window_alone_waits(lake: LakeMaker) -> None:
    lk = lake(partitions=2, config=ANY_TIME)
    before = lk.window_of(numbered(4, 2))
    bad = [Record(b"bad", b"k", 1, timestamp=2**62), Record(b"worse", b"k", 1, timestamp=2**63 - 1)]
    key = lk.window_of([*numbered(4, 2), *bad, *numbered(4, 2, "behind")])
    after = lk.window_of(numbered(4, 2))
    for other in (before, after):
        assert lk.load(other).outcome == "loaded"
    at_rest = lk.snapshot()
    with pytest.raises(UnreadableTimestampError, match=r"partition 1 offset 4 .*, partition 1 offset 5 ") as e:
        lk.load(key)
    assert e.value.records == ((1, 4, 2**62), (1, 5, 2**63 - 1))
    assert lk.snapshot() == at_rest
    # Accepting half of the loss is not enough; accepting all of it is, and loses only these records.
    window = lk.ledger.window(lk.topic, key)
    assert window is not None
    lk.ledger.record_acceptance(window, {1: (OffsetRange(4, 5),)}, "the first of them")
    with pytest.raises(UnreadableTimestampError, match="partition 1 offset 5 "):
        lk.load(key)
    (loss,) = find_losses(window, lk.ledger, lk.cluster, lk.settings)
    assert loss.ranges == {1: (OffsetRange(5, 6),)}
    accept(window, [loss], Author("a test", "the producer's clock was broken"), lk.ledger)
    loaded = lk.load(key)
    assert (loaded.outcome, loaded.receipt.rows, loaded.receipt.missing) == ("loaded", 8, 2)
    expected = [r for r in lk.committed() if (r.partition, r.offset) not in {(1, 4), (1, 5)}]
    assert records(lk.rows()) == records(expected)
    assert lk.load(key).outcome == "unchanged"


# --- histories -------------------------------------------------------------------------------------------------


@both_engines
def test_any_history_of_producing_and_loading_leaves_the_table_exact(lake: LakeMaker, rng: random.Random) -> None:
    """Random transactions and windows, then loads, reloads and damage in random order: in the end, the table has every
    record once."""
    lk = lake(partitions=3, records_per_file=rng.choice([5, 50, 1_000_000]))
    keys: list[str] = []
    open_transactions: list[Any] = []
    sent = 0
    for _ in range(4):
        for _ in range(rng.randint(0, 4)):
            some = [
                Record(
                    rng.choice([None, b"", f"{sent + i}".encode()]),
                    rng.choice([None, b"", b"k%d" % rng.randint(0, 5)]),
                    rng.randrange(3),
                    rng.choice([None, (("h", None),), (("h", b""), ("h", b"2"))]),
                )
                for i in range(rng.randint(1, 40))
            ]
            sent += len(some)
            what = rng.choice(["plain", "commit", "abort", "open"])
            if what == "plain":
                lk.send(some)
            elif what == "open":
                open_transactions.append(lk.open_transaction(some))
            else:
                lk.open_transaction(some).end(commit=what == "commit")
        while open_transactions and rng.random() < 0.6:
            open_transactions.pop(rng.randrange(len(open_transactions))).end(commit=rng.random() < 0.5)
        keys.append(lk.close_window())
        for key in rng.sample(keys, rng.randint(0, min(2, len(keys)))):
            lk.load(key)
    for transaction in open_transactions:
        transaction.end(commit=rng.random() < 0.5)
    keys.append(lk.close_window())
    held = {key: lk.load(key).receipt for key in rng.sample(keys, len(keys))}
    victim = rng.choice([k for k in keys if held[k].rows] or keys)
    DeltaTable(lk.table).delete(f"window = '{victim}'")
    for key in rng.sample(keys, len(keys)):
        again = lk.load(key)
        assert again.outcome in {"unchanged", "empty"} or (key == victim and again.outcome == "healed")
        assert again.receipt.content == held[key].content
    expected = lk.committed()
    assert records(lk.rows()) == records(expected)
    assert sum(r.rows for r in held.values()) == len(expected)
    for key in keys:
        assert not any(len(repeats(found)) for found in rows.offsets_of(Folder.at(lk.table), key).values())
