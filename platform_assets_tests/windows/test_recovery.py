"""Recovery of tables after OPTIMIZE, VACUUM and the clean-up of their logs: a load restores the original rows, or
refuses and correctly reports the loss. No Kafka, no Spark."""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from deltalake import DeltaTable, write_deltalake

from platform_assets.checks.registry import CHECKS
from platform_assets.errors import (
    LedgerLostError,
    PlatformError,
    ReloadDiffersError,
    UnprovedRowsError,
)
from platform_assets.lake import holdings, load_log
from platform_assets.lake.location import Folder
from platform_assets.ledger.entries import SealedWindow
from platform_assets.windows.load import sealing
from platform_assets_tests.support.erasures import MadeTopic, evaluation_of
from platform_assets_tests.support.local_engine import Kept
from platform_assets_tests.support.made_kafka import MadeCluster, deciding_of, loader_of
from platform_assets_tests.support.recovery import (
    ROWS,
    a_history,
    append_elsewhere,
    clean_log,
    compact,
    loaded_windows,
    lose_ledger,
    made_topic,
    rebuilt,
    table,
    vacuum,
    z_order,
)
from platform_assets_tests.support.variants import long_after
from testbed import samples
from testbed.layouts import new_tables_are


@pytest.fixture
def topic(tmp_path: Path) -> MadeTopic:
    """A topic with two partitions and several files per window."""
    return made_topic(tmp_path)


@pytest.fixture
def kafka(topic: MadeTopic) -> MadeCluster:
    """The topic's brokers."""
    return MadeCluster(topic)


@pytest.fixture
def windows(topic: MadeTopic, kafka: MadeCluster) -> list[SealedWindow]:
    """Load four windows of the topic without decoding them."""
    return loaded_windows(topic, kafka)


def contents(topic: MadeTopic) -> dict[str, tuple[Any, Any]]:
    return {key: (r.offsets, r.content) for key, r in topic.receipts().items()}


REARRANGED = [compact, z_order]


@pytest.mark.parametrize("rearrange", long_after(1, REARRANGED))
def test_windows_that_were_optimized_and_vacuumed_have_their_receipts_again(
    topic: MadeTopic, kafka: MadeCluster, windows: list[SealedWindow], rearrange: Callable[[DeltaTable], None]
) -> None:
    """Without receipts, the next load would replace the rows with the records that a compacted topic still has."""
    values, before = topic.values(), contents(topic)
    rearrange(table(topic))
    vacuum(table(topic))
    lose_ledger(topic)
    kafka.forget(0, range(5, 15))
    done = rebuilt(topic)
    assert (done.receipts, done.unread) == (len(windows), ())
    assert contents(topic) == before
    with pytest.raises(
        ReloadDiffersError, match=r"gone: partition 0 offsets \[5, 15\).*The table keeps what was loaded"
    ):
        loader_of(topic, kafka).load(windows[0].key)
    for window in windows[1:]:
        assert loader_of(topic, kafka).load(window.key).outcome == "unchanged"
    assert topic.values() == values


def test_a_load_without_a_receipt_finds_its_rows_where_optimize_has_put_them(
    topic: MadeTopic, kafka: MadeCluster, windows: list[SealedWindow]
) -> None:
    """A run was killed before it wrote its receipt, and the ledger was not rebuilt."""
    values = topic.values()
    forget_receipts(topic)
    compact(table(topic))
    vacuum(table(topic))
    kafka.expire(0, 80)
    loaded = loader_of(topic, kafka).load(windows[0].key)
    assert (loaded.outcome, loaded.receipt.kind, loaded.receipt.rows) == ("kept", "load", 2 * ROWS)
    assert topic.values() == values


def forget_receipts(topic: MadeTopic) -> None:
    DeltaTable(topic.root / "_ledger" / "commits").delete()


def rewrite(delta: DeltaTable, key: str, predicate: str = "true") -> None:
    """Rewrite rows of a window in a commit that changes data, so nothing proves that these are the loaded rows."""
    rows = delta.to_pyarrow_table(filters=[("window", "=", key)])
    write_deltalake(delta, rows, mode="overwrite", predicate=f"window = '{key}'")
    if predicate != "true":
        delta.delete(f"window = '{key}' AND NOT ({predicate})")


def test_rows_without_a_receipt_are_not_replaced_by_fewer(
    topic: MadeTopic, kafka: MadeCluster, windows: list[SealedWindow]
) -> None:
    """Nothing proves the rows, and they may be the only copies. After the error's remedy, the table has all available
    rows."""
    rewrite(table(topic), windows[0].key)
    vacuum(table(topic))
    values = topic.values()
    lose_ledger(topic)
    kafka.forget(1, range(3, 5))
    done = rebuilt(topic)
    assert [error.window for error in done.unread] == [windows[0].key]
    with pytest.raises(
        UnprovedRowsError, match=r"no longer has partition 1 offsets \[3, 5\).*accept-loss raw/people"
    ) as e:
        loader_of(topic, kafka).load(windows[0].key)
    assert (e.value.held, e.value.found) == (2 * ROWS, 2 * ROWS - 2)
    assert topic.values() == values

    said = list[str]()
    deciding_of(topic, kafka, said).loss(windows[0].key)
    assert said[-1].startswith(f"accepted; the window holds {2 * ROWS} rows"), said
    assert topic.values() == values
    receipt = topic.receipts()[windows[0].key]
    assert (receipt.rows, receipt.holes, receipt.proved_by) == (2 * ROWS, {}, "load digest")
    with pytest.raises(ReloadDiffersError, match="The table keeps what was loaded first"):
        loader_of(topic, kafka).load(windows[0].key)


def test_what_is_left_of_an_expired_window_without_a_receipt_is_named(
    topic: MadeTopic, kafka: MadeCluster, windows: list[SealedWindow]
) -> None:
    """The errors of `load` and `accept-loss` used to refer to each other endlessly."""
    rewrite(table(topic), windows[0].key, "kafka_partition = 0 OR kafka_offset < 18")
    vacuum(table(topic))
    lose_ledger(topic)
    kafka.expire(0, ROWS)
    kafka.expire(1, ROWS)
    rebuilt(topic)
    with pytest.raises(UnprovedRowsError, match=r"38 rows.*no longer has partition 0 offsets \[0, 20\).*accept-loss"):
        loader_of(topic, kafka).load(windows[0].key)
    said = list[str]()
    deciding_of(topic, kafka, said).loss(windows[0].key)
    assert (
        f"people {windows[0].key}: nothing proves which rows were loaded; offsets that have no row: partition 1 offsets [18, 20)"
        in (said[0].removeprefix("raw/"))
    )
    receipt = topic.receipts()[windows[0].key]
    assert (receipt.rows, receipt.missing) == (2 * ROWS - 2, 2)
    accepted = topic.ledger.accepted_losses(topic.declaration.raw_table, windows[0].key)
    assert {p: [(r.start, r.end) for r in parts] for p, parts in accepted.items()} == {1: [(18, 20)]}
    assert loader_of(topic, kafka).load(windows[0].key).outcome == "kept"


@pytest.mark.parametrize("rearrange", long_after(1, REARRANGED))
def test_an_intact_window_that_was_optimized_vacuumed_and_expired_is_kept_and_decoded(
    topic: MadeTopic, kafka: MadeCluster, windows: list[SealedWindow], rearrange: Callable[[DeltaTable], None]
) -> None:
    values = topic.values()
    rearrange(table(topic))
    vacuum(table(topic))
    kafka.expire(0, 80)
    kafka.expire(1, 80)
    assert topic.decoder().decode(windows[1].key).decoded.rows == 2 * ROWS
    for window in windows:
        loaded = loader_of(topic, kafka).load(window.key)
        assert (loaded.outcome, loaded.receipt.kind) == ("kept", "proof")
    # The receipts name the current files, so nothing is read again.
    version = load_log.version(topic.lake.commits)
    for window in windows:
        assert loader_of(topic, kafka).load(window.key).receipt == topic.receipts()[window.key]
        assert topic.decoder().decode(window.key).decoded.rows == 2 * ROWS
    assert topic.values() == values
    assert version <= load_log.version(topic.lake.commits)


def test_rows_that_were_changed_are_not_decoded(
    topic: MadeTopic, kafka: MadeCluster, windows: list[SealedWindow]
) -> None:
    """The offsets are the same, but values differ, and no version with the loaded rows is left."""
    where = f"window = '{windows[0].key}' AND kafka_partition = 1 AND kafka_offset = 4"
    table(topic).update({"value": "arrow_cast('changed', 'Binary')"}, predicate=where)
    vacuum(table(topic))
    with pytest.raises(PlatformError, match="rows differ from those that the load committed"):
        topic.decoder().decode(windows[0].key)
    # The error's remedy.
    assert loader_of(topic, kafka).load(windows[0].key).outcome == "healed"
    assert topic.decoder().decode(windows[0].key).decoded.rows == 2 * ROWS


@pytest.mark.parametrize("value", ["NULL", "'other'"])
def test_rows_whose_topic_id_was_changed_are_restored_though_no_other_copy_is_left(
    topic: MadeTopic, kafka: MadeCluster, windows: list[SealedWindow], value: str
) -> None:
    """No digest covers the topic id, but the receipt contains it."""
    values = topic.values()
    where = f"window = '{windows[0].key}' AND kafka_partition = 1 AND kafka_offset = 4"
    table(topic).update({"topic_id": value}, predicate=where)
    vacuum(table(topic))
    kafka.expire(0, 80)
    kafka.expire(1, 80)
    loaded = loader_of(topic, kafka).load(windows[0].key)
    assert (loaded.outcome, loaded.receipt.rows) == ("restored", 2 * ROWS)
    assert topic.values() == values
    assert set(table(topic).to_pyarrow_table()["topic_id"].to_pylist()) == {windows[0].topic_id}
    assert loader_of(topic, kafka).load(windows[0].key).outcome == "kept"


def test_a_window_is_restored_from_any_version_that_the_log_reaches_back_to(
    topic: MadeTopic, kafka: MadeCluster, windows: list[SealedWindow]
) -> None:
    """The log no longer has the receipt's version, and more than fifty versions were committed after it."""
    values = topic.values()
    clean_log(table(topic))
    compact(table(topic))
    table(topic).delete(f"window = '{windows[0].key}' AND kafka_partition = 0")
    for _ in range(60):
        append_elsewhere(table(topic))
    kafka.expire(0, 80)
    loaded = loader_of(topic, kafka).load(windows[0].key)
    assert (loaded.outcome, loaded.receipt.rows) == ("restored", 2 * ROWS)
    assert topic.values() == values


def test_a_rebuilt_window_leaves_their_offsets_to_those_that_wait(
    topic: MadeTopic, kafka: MadeCluster, windows: list[SealedWindow]
) -> None:
    """The log no longer has the commits of the first windows. Of the three later windows, two were never loaded."""
    more = [{p: [(b"k", b"%d/%d" % (w, i)) for i in range(4)] for p in (0, 1)} for w in range(3)]
    clean_log(table(topic))
    ends = {0: 4 * ROWS, 1: 4 * ROWS}
    sealed = seal_more(topic, ends, more)
    loader_of(topic, kafka).load(sealed[-1].key)
    lose_ledger(topic)
    done = rebuilt(topic)
    assert done.merged == (sealed[0].key,)
    found = {w.key: w.ranges for w in topic.ledger.windows(topic.topic)}
    assert found[windows[-1].key] == windows[-1].ranges
    assert found[sealed[0].key].triples() == ((0, 80, 88), (1, 80, 88))
    assert loader_of(topic, kafka).load(sealed[0].key).receipt.rows == 16
    assert topic.values() == [r.value for r in topic.records]


def seal_more(
    topic: MadeTopic, ends: dict[int, int], more: Sequence[dict[int, list[tuple[bytes, bytes]]]]
) -> list[SealedWindow]:
    """Seal further windows after those that are recorded."""
    newest = topic.ledger.newest_cut(topic.topic)
    assert newest is not None
    cuts, at = [], dict(ends)
    for number, window in enumerate(more, 1):
        edge = newest.edge + number * samples.HOUR
        for p, pairs in window.items():
            for key, value in pairs:
                topic.records.append(Kept(p, at[p], key, value, edge))
                at[p] += 1
        cuts.append(samples.cut(topic.topic, edge, dict(at)))
    topic.records.sort(key=lambda r: (r.partition, r.offset))
    assert topic.ledger.record_cuts(cuts, newest.edge)
    return topic.ledger.windows(topic.topic, start=newest.edge)


@pytest.mark.parametrize("known", [0, 2])
def test_a_lost_ledger_is_noticed_though_no_load_is_left_in_the_log(
    topic: MadeTopic, kafka: MadeCluster, windows: list[SealedWindow], known: int
) -> None:
    """If the loss were not noticed, sealing would start from nothing, and loads would replace rows with the records
    that Kafka still has.

    In the other case, the ledger is a restored older one.
    """
    values = topic.values()
    clean_log(table(topic))
    lose_ledger(topic)
    topic.ledger.create()
    if known:
        assert topic.ledger.record_cuts(samples.hourly(topic.topic, [{0: 0, 1: 0}, {0: ROWS, 1: ROWS}]), None)
    kafka.expire(0, 10)
    kafka.expire(1, 10)
    now = windows[-1].window.end
    with pytest.raises(LedgerLostError, match=f"the table has window {windows[-1].key}.*rebuild-ledger"):
        sealing.propose(topic.declaration, kafka, topic.ledger, now, deadline=time.monotonic() + 5)
    done = rebuilt(topic)
    assert (done.receipts, done.unread) == (len(windows), ())
    sealing.check_ledger_knows_table(topic.declaration.raw_table, topic.lake, topic.ledger.newest_cut(topic.topic))
    for window in windows:
        assert loader_of(topic, kafka).load(window.key).outcome in ("kept", "unchanged")
    assert topic.values() == values


def test_rows_that_others_have_brought_are_no_lost_ledger(tmp_path: Path) -> None:
    """This also holds if the log begins later, provided that it has the commit that added the rows."""
    topic = MadeTopic(tmp_path)
    clean_log(table(topic))
    samples.append(tmp_path, topic.topic, samples.rows("2026-01-01-00:00", {0: [3]}))
    sealing.check_ledger_knows_table(topic.declaration.raw_table, topic.lake, None)


def test_a_table_that_was_moved_away_and_loaded_again_agrees_with_the_ledger(
    topic: MadeTopic, kafka: MadeCluster, windows: list[SealedWindow]
) -> None:
    """The new table's versions start at zero. Receipts of the old table have higher versions, and used to take
    precedence."""
    values = topic.values()
    for _ in range(3):
        table(topic).delete(f"window = '{windows[0].key}' AND kafka_partition = 0")
        assert loader_of(topic, kafka).load(windows[0].key).outcome == "healed"
    former = topic.receipts()
    (topic.root / "raw" / topic.topic).rename(topic.root / "moved away")
    for window in windows:
        loaded = loader_of(topic, kafka).load(window.key)
        assert loaded.outcome == "healed"
        assert topic.receipts()[window.key] == loaded.receipt
    assert {r.table_id for r in topic.receipts().values()}.isdisjoint({r.table_id for r in former.values()})
    assert topic.values() == values
    evaluation = evaluation_of(topic)
    for name, check in CHECKS.items():
        assert check.evaluate(evaluation).passed, name
    assert [loader_of(topic, kafka).load(w.key).outcome for w in windows] == ["unchanged"] * len(windows)
    # And back: the previous table counts again once one of its windows is proved.
    shutil.rmtree(topic.root / "raw" / topic.topic)
    (topic.root / "moved away").rename(topic.root / "raw" / topic.topic)
    for window in windows:
        assert loader_of(topic, kafka).load(window.key).outcome == "unchanged"
    assert {r.table_id for r in topic.receipts().values()} == {r.table_id for r in former.values()}


def test_lost_files_of_a_window_whose_commit_has_left_the_log_hold_up_no_other(
    topic: MadeTopic, kafka: MadeCluster, windows: list[SealedWindow]
) -> None:
    """The window's offsets come from the files' statistics in the log, so Kafka returns the same rows again."""
    values, ranges = topic.values(), {w.key: w.ranges for w in windows}
    clean_log(table(topic))
    for number in (0, 2):
        path = holdings.files_of(Folder.at(topic.root / "raw" / topic.topic), windows[number].key).paths[0]
        (topic.root / "raw" / topic.topic / unquote(path)).unlink()
    lose_ledger(topic)
    done = rebuilt(topic)
    assert [error.window for error in done.unread] == [windows[0].key, windows[2].key]
    assert done.receipts == 2
    assert {w.key: w.ranges for w in topic.ledger.windows(topic.topic)} == ranges
    for number in (0, 2):
        assert loader_of(topic, kafka).load(windows[number].key).outcome == "loaded"
    assert topic.values() == values


@pytest.mark.parametrize("number", long_after(2, range(5)))
def test_whatever_happens_a_load_ends_with_the_rows_or_is_right_that_they_are_lost(tmp_path: Path, number: int) -> None:
    """Maintenance, damage and lost ledgers happen in random order; then the test follows each error's remedy to its
    end.

    The five cases are fixed, three of them with a flat table; `make soak SCENARIO=recovery` draws others.
    """
    with new_tables_are("partitioned" if number % 2 else "flat"):
        history = a_history(tmp_path, random.Random(number))
    history.ends_well()
