"""Damaged windows whose rows are scattered: some are in Kafka, the others in data files. No Kafka, no Spark."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa
import pytest

from platform_assets.errors import (
    DamagedRowsError,
    LakeNotWritableError,
    LoadError,
    LostForGoodError,
    OffsetsExpiredError,
    UnrecordedLoadError,
)
from platform_assets.lake import data_files, holdings
from platform_assets.lake.location import Folder
from platform_assets.ledger.entries import SealedWindow
from platform_assets.model.offsets import OffsetRange
from platform_assets.windows.erase.erasing import WindowEraser
from platform_assets_tests.support.erasures import MadeTopic
from platform_assets_tests.support.made_kafka import MadeCluster, deciding_of, loader_of
from platform_assets_tests.support.recovery import (
    ROWS,
    clean_log,
    loaded_windows,
    lose_ledger,
    made_topic,
    rebuilt,
    table,
    vacuum,
)


@pytest.fixture
def topic(tmp_path: Path) -> MadeTopic:
    """A topic with two partitions."""
    return made_topic(tmp_path / "lake")


@pytest.fixture
def kafka(topic: MadeTopic) -> MadeCluster:
    """The topic's brokers."""
    return MadeCluster(topic)


@pytest.fixture
def windows(topic: MadeTopic, kafka: MadeCluster) -> list[SealedWindow]:
    """Load four windows of the topic, each with two files per partition."""
    return loaded_windows(topic, kafka)


def lose_rows(topic: MadeTopic, window: SealedWindow, partition: int) -> None:
    """Delete the data files of one partition."""
    folder = topic.root / "raw" / topic.topic
    for file in holdings.files_at(Folder.at(folder), window.key, table(topic).version())[1]:
        if file["min.kafka_partition"] == partition:
            (folder / unquote(file["path"])).unlink()


def write_again(topic: MadeTopic, partition: int, offset: int, value: bytes) -> None:
    """Put another record at this offset in Kafka, as after an unclean leader election."""
    at = next(i for i, r in enumerate(topic.records) if (r.partition, r.offset) == (partition, offset))
    topic.records[at] = replace(topic.records[at], value=value)


def accept_loss(topic: MadeTopic, kafka: MadeCluster, key: str, named_by: LoadError) -> list[str]:
    """Run the command that the error names."""
    assert f"platform-assets accept-loss raw/people {key} --reason" in str(named_by)
    said = list[str]()
    deciding_of(topic, kafka, said).loss(key)
    assert said[-1].startswith("accepted"), said
    return said


def test_an_expired_offset_that_the_table_lacks_too_is_all_that_is_named(
    topic: MadeTopic, kafka: MadeCluster, windows: list[SealedWindow]
) -> None:
    """The window has no receipt, but Kafka has every remaining row: the load replaces all rows."""
    key = windows[3].key
    clean_log(table(topic))
    table(topic).delete("kafka_partition = 1 AND kafka_offset >= 60 AND kafka_offset % 3 = 0")
    vacuum(table(topic))
    kafka.expire(1, 61)
    lose_ledger(topic)
    assert [e.window for e in rebuilt(topic).unread] == [key]
    with pytest.raises(OffsetsExpiredError, match="no longer holds partition 1 offsets") as e:
        loader_of(topic, kafka).load(key)
    assert e.value.lost == ((1, 60, 61),)
    said = accept_loss(topic, kafka, key, e.value)
    assert "offsets that have no row: partition 1 offsets [60, 61)" in said[0]
    assert topic.receipts()[key].rows == 2 * ROWS - 1
    assert loader_of(topic, kafka).load(key).outcome == "unchanged"


def test_a_receipt_of_before_an_erasure_gets_its_rows_from_kafka_and_the_table(
    topic: MadeTopic, kafka: MadeCluster, windows: list[SealedWindow]
) -> None:
    """The restored older ledger lacks the erasure. The table has all rows except the erased one, and Kafka has the
    erased record."""
    key, values = windows[3].key, topic.values()
    backup = shutil.copytree(topic.root / "_ledger", topic.root.parent / "backup")
    deciding_of(topic, kafka, []).erasure({1: (OffsetRange(79, 80),)}, [])
    kafka.forget(0, range(67, 72))
    clean_log(table(topic))
    lose_ledger(topic)
    shutil.copytree(backup, topic.root / "_ledger")
    rebuilt(topic)
    assert topic.receipts()[key].rows == 2 * ROWS
    restored = loader_of(topic, kafka).load(key)
    assert restored.outcome == "restored"
    assert (restored.receipt.holes, restored.receipt.proved_by) == ({}, "load digest")
    assert topic.values() == values


@pytest.mark.parametrize("erased", [False, True])
def test_a_partition_that_has_expired_comes_from_the_table_and_the_lost_one_from_kafka(
    topic: MadeTopic, kafka: MadeCluster, windows: list[SealedWindow], erased: bool
) -> None:
    key = windows[1].key
    if erased:
        deciding_of(topic, kafka, []).erasure({0: (OffsetRange(25, 26),), 1: (OffsetRange(22, 23),)}, [])
    values = topic.values()
    lose_rows(topic, windows[1], 0)
    kafka.expire(1, 30)
    assert loader_of(topic, kafka).load(key).outcome == "restored"
    assert topic.values() == values
    assert loader_of(topic, kafka).load(key).outcome == "kept"


def test_other_records_at_offsets_that_the_table_has_do_not_replace_its_rows(
    topic: MadeTopic, kafka: MadeCluster, windows: list[SealedWindow]
) -> None:
    key, values = windows[1].key, topic.values()
    lose_rows(topic, windows[1], 0)
    write_again(topic, 1, 25, b"another record")
    assert loader_of(topic, kafka).load(key).outcome == "restored"
    assert topic.values() == values


def test_a_disk_that_is_full_leaves_no_files(
    topic: MadeTopic, kafka: MadeCluster, windows: list[SealedWindow], monkeypatch: pytest.MonkeyPatch
) -> None:
    lose_rows(topic, windows[1], 0)
    kafka.expire(1, 30)
    files, write, written = set(topic.root.rglob("*.parquet")), data_files.write_rows, list[str]()

    def once(table: Folder, path: str, found: pa.Table, window: str | None = None) -> None:
        if written:
            raise LakeNotWritableError(path, "no space left")
        write(table, path, found, window)
        written.append(path)

    monkeypatch.setattr(data_files, "write_rows", once)
    with pytest.raises(LakeNotWritableError):
        loader_of(topic, kafka).load(windows[1].key)
    assert written
    assert set(topic.root.rglob("*.parquet")) == files
    monkeypatch.undo()
    assert loader_of(topic, kafka).load(windows[1].key).outcome == "restored"


def test_a_row_that_a_stranger_has_changed_comes_from_kafka(
    topic: MadeTopic, kafka: MadeCluster, windows: list[SealedWindow]
) -> None:
    """Kafka has lost a different record, which the table has."""
    key, values = windows[1].key, topic.values()
    table(topic).update(predicate="kafka_partition = 1 AND kafka_offset = 25", updates={"value": "X'00'"})
    vacuum(table(topic))
    assert topic.values() != values
    kafka.forget(0, range(30, 31))
    assert loader_of(topic, kafka).load(key).outcome == "restored"
    assert topic.values() == values


@pytest.mark.parametrize("erased", [(46, 43), (43, 46)])
def test_an_erasure_that_finds_no_rows_does_not_hide_what_was_loaded(
    topic: MadeTopic, kafka: MadeCluster, windows: list[SealedWindow], erased: tuple[int, int]
) -> None:
    """The table is rolled back to a version before the load, between two erasures. The receipt still counts one of the
    erased rows."""
    key = windows[2].key
    first, second = erased
    deciding_of(topic, kafka, []).erasure({0: (OffsetRange(first, first + 1),)}, [])
    table(topic).restore(0)
    vacuum(table(topic))
    deciding_of(topic, kafka, []).erasure({0: (OffsetRange(second, second + 1),)}, [])
    assert topic.receipts()[key].rows == 2 * ROWS - 1
    assert loader_of(topic, kafka).load(key).outcome == "restored"
    assert topic.receipts()[key].rows == 2 * ROWS - 2
    assert not {f"2/0/{offset - 40}".encode() for offset in erased} & set(topic.values())
    assert loader_of(topic, kafka).load(key).outcome == "unchanged"


class KilledError(BaseException):
    """An exception that stands for a killed process."""


@pytest.mark.parametrize("damaged", ["gathered", "healed"])
def test_no_erased_record_is_in_the_table_if_a_load_is_killed_once_it_has_repaired_a_window(
    topic: MadeTopic, kafka: MadeCluster, windows: list[SealedWindow], monkeypatch: pytest.MonkeyPatch, damaged: str
) -> None:
    """The erasure is already complete, so no later command would run it again."""
    key, others = windows[2].key, topic.values()
    if damaged == "gathered":
        deciding_of(topic, kafka, []).erasure({0: (OffsetRange(43, 44),)}, [])
    table(topic).restore(0)
    vacuum(table(topic))
    deciding_of(topic, kafka, []).erasure({0: (OffsetRange(46, 47),)}, [])
    erase_pending, calls = WindowEraser.erase_pending, list[str]()

    def killed(self: WindowEraser, window: str, erased: Mapping[int, tuple[OffsetRange, ...]]) -> bool:
        calls.append(window)
        if len(calls) == 2:
            raise KilledError
        return erase_pending(self, window, erased)

    with monkeypatch.context() as patch:
        patch.setattr(WindowEraser, "erase_pending", killed)
        with pytest.raises(KilledError):
            loader_of(topic, kafka).load(key)
    gone = {b"2/0/6", b"2/0/3"} if damaged == "gathered" else {b"2/0/6"}
    left = sorted(value for value in others if value.startswith(b"2/") and value not in gone)
    assert sorted(topic.values()) == left
    receipt = topic.receipts()[key]
    assert (receipt.rows, receipt.holes) == (2 * ROWS - len(gone), {"erased": len(gone)})
    assert loader_of(topic, kafka).load(key).outcome == "unchanged"


def test_a_record_that_was_erased_and_is_nowhere_leaves_the_others_unproved(
    topic: MadeTopic, kafka: MadeCluster, windows: list[SealedWindow]
) -> None:
    """The receipt's digest includes the content of the erased record."""
    key = windows[2].key
    table(topic).restore(0)
    vacuum(table(topic))
    deciding_of(topic, kafka, []).erasure({0: (OffsetRange(46, 47),)}, [])
    kafka.forget(0, range(46, 47))
    with pytest.raises(
        DamagedRowsError, match=r"have 39 rows of this window, but .* the 40 rows that were loaded"
    ) as e:
        loader_of(topic, kafka).load(key)
    said = accept_loss(topic, kafka, key, e.value)
    assert said[0].endswith("offsets that have no row: none")
    assert topic.receipts()[key].rows == 2 * ROWS - 1
    assert loader_of(topic, kafka).load(key).outcome == "unchanged"


@pytest.mark.parametrize("damaged", [0, 1])
def test_records_that_a_rewritten_log_has_besides_are_told_from_those_that_were_loaded(
    topic: MadeTopic, kafka: MadeCluster, damaged: int
) -> None:
    """The only proof is the receipt's number of rows per partition."""
    sealed = topic.seal([{p: [(b"k", b"%d/%d" % (p, i)) for i in range(ROWS)] for p in (0, 1)}])
    besides = [r for r in topic.records if (r.partition, r.offset) == (1, 7)]
    kafka.forget(1, range(7, 8))
    key = sealed[0].key
    assert loader_of(topic, kafka).load(key).receipt.rows == 2 * ROWS - 1
    values = topic.values()
    topic.records[:] = sorted([*topic.records, *besides], key=lambda r: (r.partition, r.offset))
    lose_rows(topic, sealed[0], damaged)
    if damaged == 0:
        assert loader_of(topic, kafka).load(key).outcome == "restored"
        assert topic.values() == values
        return
    files = set(topic.root.rglob("*.parquet"))
    with pytest.raises(
        DamagedRowsError, match=r"have 40 rows of this window, but.*the 39 rows that were loaded.*backup"
    ) as e:
        loader_of(topic, kafka).load(key)
    assert "lost for good" not in str(e.value)
    assert set(topic.root.rglob("*.parquet")) == files
    said = accept_loss(topic, kafka, key, e.value)
    assert said[0].endswith("nothing proves which rows were loaded; offsets that have no row: none")
    assert topic.receipts()[key].rows == 2 * ROWS
    assert loader_of(topic, kafka).load(key).outcome == "unchanged"


def test_what_is_lost_for_good_is_what_neither_has(
    topic: MadeTopic, kafka: MadeCluster, windows: list[SealedWindow]
) -> None:
    key = windows[1].key
    lose_rows(topic, windows[1], 0)
    kafka.forget(0, range(25, 28))
    kafka.expire(1, 80)
    with pytest.raises(
        LostForGoodError,
        match=r"3 of its 40 rows are lost for good, unless you have a backup: neither .* has partition 0 offsets \[25, 28\)\.",
    ) as e:
        loader_of(topic, kafka).load(key)
    assert (e.value.lost, e.value.gone) == (3, ((0, 25, 28),))
    said = accept_loss(topic, kafka, key, e.value)
    assert said[0].endswith(
        "3 of 40 rows no longer exist anywhere; offsets without a row: partition 0 offsets [25, 28)"
    )
    assert topic.receipts()[key].rows == 2 * ROWS - 3


def test_a_rebuilt_ledgers_rows_come_from_both_and_stay_found(
    topic: MadeTopic, kafka: MadeCluster, windows: list[SealedWindow]
) -> None:
    """The digest proves that these are the rows that the rebuild found, but not that they are complete."""
    key = windows[1].key
    table(topic).delete("kafka_partition = 1 AND kafka_offset = 25")
    clean_log(table(topic))
    lose_ledger(topic)
    assert rebuilt(topic).found == (key,)
    values = topic.values()
    lose_rows(topic, windows[1], 0)
    kafka.forget(1, range(30, 31))
    assert loader_of(topic, kafka).load(key).outcome == "restored"
    assert topic.values() == values
    assert topic.receipts()[key].is_found
    with pytest.raises(UnrecordedLoadError, match=r"partition 1 offsets \[25, 26\)"):
        loader_of(topic, kafka).load(key)


def test_a_rebuilt_ledgers_rows_that_neither_has_are_not_called_all_that_was_lost(
    topic: MadeTopic, kafka: MadeCluster, windows: list[SealedWindow]
) -> None:
    key = windows[1].key
    table(topic).delete("kafka_partition = 1 AND kafka_offset = 25")
    clean_log(table(topic))
    lose_ledger(topic)
    rebuilt(topic)
    lose_rows(topic, windows[1], 0)
    kafka.forget(0, range(25, 26))
    with pytest.raises(
        UnrecordedLoadError, match=r"no past version of the table has the 39 rows .* nothing proves"
    ) as e:
        loader_of(topic, kafka).load(key)
    assert "lost for good" not in str(e.value)
    said = accept_loss(topic, kafka, key, e.value)
    assert said[0].endswith(
        "nothing proves which rows were loaded; offsets that have no row: partition 0 offsets [25, 26)"
    )
    assert topic.receipts()[key].rows == 2 * ROWS - 1
