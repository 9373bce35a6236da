"""A ledger that is rebuilt after the table's log has lost the loads: the tests show what the rows prove, what they do
not prove, and each remedy. The loaded rows are the topic's original records. No Kafka, no Spark."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path
from urllib.parse import unquote

import click
import pytest

from platform_assets.cli.erase import erase
from platform_assets.cli.main import main
from platform_assets.cli.rebuild_ledger import lines
from platform_assets.errors import (
    ErasureUnfinishedError,
    LoadError,
    ReloadDiffersError,
    UnprovedRowsError,
    UnrecordedLoadError,
)
from platform_assets.lake import holdings
from platform_assets.lake.location import Folder
from platform_assets.ledger.entries import SealedWindow
from platform_assets.model.offsets import OffsetRange
from platform_assets.windows.erase.erasure_ranges import parsed_ranges
from platform_assets_tests.support.erasures import MadeTopic
from platform_assets_tests.support.made_kafka import MadeCluster, deciding_of, loader_of
from platform_assets_tests.support.recovery import (
    ROWS,
    append_elsewhere,
    clean_log,
    compact,
    loaded_windows,
    lose_file,
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
    """Load four windows of the topic."""
    return loaded_windows(topic, kafka)


def delete_rows(topic: MadeTopic, partition: int, *offsets: int) -> None:
    """Delete rows as another writer would."""
    named = ", ".join(map(str, offsets))
    assert table(topic).delete(f"kafka_partition = {partition} AND kafka_offset IN ({named})")["num_deleted_rows"]


def ranges(topic: MadeTopic) -> dict[str, tuple[tuple[int, int, int], ...]]:
    return {w.key: w.ranges.triples() for w in topic.ledger.windows(topic.topic)}


def accept_loss(topic: MadeTopic, kafka: MadeCluster, key: str, named_by: LoadError) -> list[str]:
    """Run the command that the error names."""
    assert f"platform-assets accept-loss raw/people {key} --reason" in str(named_by)
    said = list[str]()
    deciding_of(topic, kafka, said).loss(key)
    assert said[-1].startswith("accepted"), said
    return said


@pytest.mark.parametrize("damaged", [False, True])
def test_a_row_at_a_cut_that_was_deleted_before_the_ledger_was_lost_is_named_and_comes_back(
    topic: MadeTopic, kafka: MadeCluster, windows: list[SealedWindow], damaged: bool
) -> None:
    """The cut is derived from the remaining rows, so the next window has one additional offset. Kafka has a record for
    that offset."""
    values = topic.values()
    delete_rows(topic, 0, 2 * ROWS - 1)
    clean_log(table(topic))
    lose_ledger(topic)
    done = rebuilt(topic)
    assert done.found == (windows[2].key,)
    assert ranges(topic)[windows[2].key][0] == (0, 2 * ROWS - 1, 3 * ROWS)
    assert loader_of(topic, kafka).load(windows[1].key).outcome == "unchanged"
    if damaged:
        lose_file(topic, windows[2].key)
        assert loader_of(topic, kafka).load(windows[2].key).outcome == "restored"
    with pytest.raises(
        UnrecordedLoadError, match=r"was not loaded, and the table was not changed.*ledger was rebuilt"
    ) as e:
        loader_of(topic, kafka).load(windows[2].key)
    assert "partition 0 offsets [39, 40)" in str(e.value)
    said = accept_loss(topic, kafka, windows[2].key, e.value)
    assert "offsets that have no row: none" in said[0]
    assert topic.values() == values
    receipt = topic.receipts()[windows[2].key]
    assert (receipt.rows, receipt.kind, receipt.proved_by) == (2 * ROWS + 1, "load", "load digest")
    assert {loader_of(topic, kafka).load(w.key).outcome for w in windows} == {"unchanged"}


def test_records_that_were_erased_before_the_ledger_was_lost_do_not_come_back(
    topic: MadeTopic, kafka: MadeCluster, windows: list[SealedWindow]
) -> None:
    """The error names the command that keeps the records erased. This includes records that were deleted inside a
    window."""
    deciding_of(topic, kafka, []).erasure({1: (OffsetRange(24, 26), OffsetRange(28, 29))}, [])
    values = topic.values()
    clean_log(table(topic))
    lose_ledger(topic)
    assert rebuilt(topic).found == (windows[1].key,)
    with pytest.raises(
        UnrecordedLoadError, match=r"partition 1 offsets \[24, 26\), partition 1 offsets \[28, 29\)"
    ) as e:
        loader_of(topic, kafka).load(windows[1].key)
    assert topic.values() == values

    (command,) = re.findall(r"`(platform-assets erase [^`]*)`", str(e.value))
    given = erase.make_context(
        "erase", shlex.split(command)[2:], parent=click.Context(main, **main.context_settings)
    ).params
    assert given["table"] == "raw/people"
    deciding_of(topic, kafka, []).erasure(parsed_ranges(given["offsets"]), [], given["generation"])
    assert loader_of(topic, kafka).load(windows[1].key).outcome == "unchanged"
    assert topic.values() == values


def test_an_erased_record_is_not_named_as_one_that_the_table_lacks(
    topic: MadeTopic, kafka: MadeCluster, windows: list[SealedWindow]
) -> None:
    """Kafka has lost another record in the meantime; the error reports only that difference."""
    delete_rows(topic, 0, 25)
    clean_log(table(topic))
    lose_ledger(topic)
    rebuilt(topic)
    deciding_of(topic, kafka, []).erasure({0: (OffsetRange(25, 26),)}, [])
    kafka.forget(0, range(30, 31))
    with pytest.raises(ReloadDiffersError, match=r"gone: partition 0 offsets \[30, 31\)"):
        loader_of(topic, kafka).load(windows[1].key)


def test_an_erasure_does_not_take_what_others_have_left_for_what_was_loaded(
    topic: MadeTopic, kafka: MadeCluster, windows: list[SealedWindow]
) -> None:
    """The window has no receipt, because the rows of its load are lost. It is loaded first, as the error says."""
    values = topic.values()
    delete_rows(topic, 0, 25)
    vacuum(table(topic))
    lose_ledger(topic)
    assert [e.window for e in rebuilt(topic).unread] == [windows[1].key]
    with pytest.raises(
        ErasureUnfinishedError, match=f"differ from those that its load committed.*load raw/people {windows[1].key}"
    ):
        deciding_of(topic, kafka, []).erasure({0: (OffsetRange(27, 28),)}, [])
    assert loader_of(topic, kafka).load(windows[1].key).outcome == "loaded"
    deciding_of(topic, kafka, []).erasure({}, [])
    assert topic.values() == [value for value in values if value != b"1/0/7"]


def test_found_rows_stay_found_when_a_damaged_window_is_healed_and_the_ledger_is_lost_again(
    topic: MadeTopic, kafka: MadeCluster, windows: list[SealedWindow]
) -> None:
    """The load that repairs the window does not prove that the rows are complete."""
    values = topic.values()
    delete_rows(topic, 0, 25)
    clean_log(table(topic))
    lose_ledger(topic)
    rebuilt(topic)
    records = list(topic.records)
    kafka.forget(0, range(25, 26))
    lose_file(topic, windows[1].key)
    assert loader_of(topic, kafka).load(windows[1].key).outcome == "healed"
    assert topic.receipts()[windows[1].key].is_found
    lose_ledger(topic)
    assert rebuilt(topic).found == (windows[1].key,)
    topic.records[:] = records
    with pytest.raises(UnrecordedLoadError) as e:
        loader_of(topic, kafka).load(windows[1].key)
    accept_loss(topic, kafka, windows[1].key, e.value)
    assert topic.values() == values


@pytest.mark.parametrize("expired", [False, True])
def test_what_was_deleted_since_the_oldest_version_is_not_believed(
    topic: MadeTopic, kafka: MadeCluster, windows: list[SealedWindow], expired: bool
) -> None:
    """The log no longer has the loads, but still has the commits that deleted rows. In one window, they deleted all
    rows."""
    values, before = topic.values(), ranges(topic)
    clean_log(table(topic))
    delete_rows(topic, 0, 25, 39)
    assert table(topic).delete(f"window = '{windows[2].key}'")["num_deleted_rows"] == 2 * ROWS
    lose_ledger(topic)
    done = rebuilt(topic)
    assert (done.receipts, done.found, done.unread) == (len(windows), (), ())
    assert ranges(topic) == before
    if expired:
        kafka.expire(0, 80)
        kafka.expire(1, 80)
    outcomes = [loader_of(topic, kafka).load(w.key).outcome for w in windows]
    again, back = ("kept", "restored") if expired else ("unchanged", "healed")
    assert outcomes == [again, back, back, again]
    assert topic.values() == values


def test_rows_that_are_left_of_a_window_which_was_changed_prove_nothing(
    topic: MadeTopic, kafka: MadeCluster, windows: list[SealedWindow]
) -> None:
    """The window's earlier rows are lost, and its current rows are known to be incomplete. It has no receipt, so it is
    loaded again."""
    values = topic.values()
    clean_log(table(topic))
    delete_rows(topic, 0, 25)
    vacuum(table(topic))
    lose_ledger(topic)
    done = rebuilt(topic)
    assert [e.window for e in done.unread] == [windows[1].key]
    assert loader_of(topic, kafka).load(windows[1].key).outcome == "loaded"
    assert topic.values() == values


@pytest.mark.usefixtures("partitioned")
@pytest.mark.parametrize("number", range(4))
def test_a_lost_file_without_statistics_holds_up_nothing(
    topic: MadeTopic, kafka: MadeCluster, windows: list[SealedWindow], number: int
) -> None:
    """OPTIMIZE has put both Kafka partitions of a window into one file, and nothing shows the window's offsets; the
    rows of the next window limit them. In a flat table, OPTIMIZE would put all windows into one file."""
    values = topic.values()
    compact(table(topic))
    vacuum(table(topic))
    clean_log(table(topic))
    key = windows[number].key
    lose_file(topic, key)
    lose_ledger(topic)
    done = rebuilt(topic)
    assert [e.window for e in done.unread] == [key]
    assert done.receipts == 3
    if number < 3:
        assert ranges(topic)[key] == windows[number].ranges.triples()
        # As the error says.
        assert loader_of(topic, kafka).load(key).outcome == "loaded"
        assert topic.values() == values
    else:
        # Nothing bounds the newest window: its records come with the next one.
        newest = topic.ledger.newest_cut(topic.topic)
        assert newest is not None
        assert dict(newest.cut.offsets) == {0: 60, 1: 60}
        assert loader_of(topic, kafka).load(key).outcome == "empty"
        assert topic.values() == [r.value for r in topic.records if r.offset < 60]
    for window in windows[:number]:
        assert loader_of(topic, kafka).load(window.key).outcome == "unchanged"


@pytest.mark.usefixtures("partitioned")
def test_a_lost_file_of_an_expired_window_is_named_and_the_rest_is_what_is_left(
    topic: MadeTopic, kafka: MadeCluster, windows: list[SealedWindow]
) -> None:
    compact(table(topic))
    clean_log(table(topic))
    vacuum(table(topic))
    lose_file(topic, windows[1].key)
    lose_ledger(topic)
    kafka.expire(0, 30)
    rebuilt(topic)
    with pytest.raises(UnprovedRowsError, match=r"no longer has partition 0 offsets \[20, 30\)") as e:
        loader_of(topic, kafka).load(windows[1].key)
    said = accept_loss(topic, kafka, windows[1].key, e.value)
    assert "offsets that have no row: partition 0 offsets [20, 30)" in said[0]
    assert topic.receipts()[windows[1].key].rows == 2 * ROWS - 10


def test_a_table_of_which_nothing_can_be_read_is_named_with_a_way_on(
    topic: MadeTopic, kafka: MadeCluster, windows: list[SealedWindow]
) -> None:
    folder = topic.root / "raw" / topic.topic
    values = topic.values()
    clean_log(table(topic))
    kept = topic.root.parent / "backup"
    shutil.copytree(folder, kept)
    for window in windows:
        for path in holdings.files_of(Folder.at(folder), window.key).paths:
            (folder / unquote(path)).unlink()
    lose_ledger(topic)
    with pytest.raises(
        LoadError, match=r"none of the table's data files can be read.*Restore the table from a backup.*move"
    ) as e:
        rebuilt(topic)
    assert "raw/people" in str(e.value)
    # Without a backup: after the table is moved away, everything is loaded for the first time again.
    folder.rename(topic.root.parent / "moved away")
    assert rebuilt(topic).receipts == 0
    # With a backup.
    shutil.copytree(kept, folder)
    assert rebuilt(topic).receipts == len(windows)
    assert {loader_of(topic, kafka).load(w.key).outcome for w in windows} == {"unchanged"}
    assert topic.values() == values


def test_an_older_ledger_keeps_its_cuts(topic: MadeTopic, kafka: MadeCluster, windows: list[SealedWindow]) -> None:
    """Windows without receipts keep their recorded cuts: a cut never changes."""
    values, before = topic.values(), ranges(topic)
    table_of_receipts = topic.root / "_ledger" / "commits"
    shutil.rmtree(table_of_receipts)
    delete_rows(topic, 0, 39)
    clean_log(table(topic))
    rebuilt(topic)
    assert ranges(topic) == before
    with pytest.raises(UnrecordedLoadError, match=r"partition 0 offsets \[39, 40\)") as e:
        loader_of(topic, kafka).load(windows[1].key)
    accept_loss(topic, kafka, windows[1].key, e.value)
    assert topic.values() == values


def test_an_older_ledger_gets_the_receipts_of_loads_since(
    topic: MadeTopic, kafka: MadeCluster, windows: list[SealedWindow]
) -> None:
    """The receipt was written before an erasure. It used to make a window look damaged, and even lost once Kafka had
    lost another record of that window."""
    kept = shutil.copytree(topic.root / "_ledger", topic.root.parent / "backup of the ledger")
    deciding_of(topic, kafka, []).erasure({1: (OffsetRange(7, 8),)}, [])
    values = topic.values()
    lose_ledger(topic)
    shutil.copytree(kept, topic.root / "_ledger")
    assert rebuilt(topic).receipts == 1
    assert topic.receipts()[windows[0].key].rows == 2 * ROWS - 1
    kafka.forget(0, range(3, 5))
    with pytest.raises(ReloadDiffersError, match=r"gone: partition 0 offsets \[3, 5\).*keeps what was loaded"):
        loader_of(topic, kafka).load(windows[0].key)
    assert topic.values() == values
    assert rebuilt(topic).receipts == 0


def test_a_first_window_begins_where_a_load_that_is_left_says(
    topic: MadeTopic, kafka: MadeCluster, windows: list[SealedWindow]
) -> None:
    values = topic.values()
    delete_rows(topic, 0, 0, 1)
    clean_log(table(topic))
    lose_file(topic, windows[3].key)
    assert loader_of(topic, kafka).load(windows[3].key).outcome == "healed"
    lose_ledger(topic)
    done = rebuilt(topic)
    assert (done.first, done.found) == ({}, (windows[0].key,))
    with pytest.raises(UnrecordedLoadError, match=r"partition 0 offsets \[0, 2\)") as e:
        loader_of(topic, kafka).load(windows[0].key)
    accept_loss(topic, kafka, windows[0].key, e.value)
    assert topic.values() == values


def test_a_first_window_that_begins_with_its_first_rows_is_named(topic: MadeTopic, windows: list[SealedWindow]) -> None:
    delete_rows(topic, 0, 0, 1)
    clean_log(table(topic))
    lose_ledger(topic)
    done = rebuilt(topic)
    assert done.first == {0: 2}
    assert "partition 0 offset 2. Earlier records are not in any window" in lines(topic.declaration.raw_table, done)[-1]


def test_a_window_whose_erasure_is_unfinished_is_healed_to_what_an_erasure_before_has_left(
    topic: MadeTopic, kafka: MadeCluster, windows: list[SealedWindow]
) -> None:
    """The window used to be reported as lost: its receipt lacks one of two erased records, but Kafka has both."""
    deciding_of(topic, kafka, []).erasure({0: (OffsetRange(25, 26),)}, [])
    lose_file(topic, windows[1].key)
    with pytest.raises(ErasureUnfinishedError):
        deciding_of(topic, kafka, []).erasure({0: (OffsetRange(27, 28),)}, [])
    assert loader_of(topic, kafka).load(windows[1].key).outcome == "healed"
    assert topic.receipts()[windows[1].key].rows == 2 * ROWS - 2
    assert not {b"1/0/5", b"1/0/7"} & set(topic.values())
    assert loader_of(topic, kafka).load(windows[1].key).outcome == "unchanged"


def test_what_the_command_prints_counts_windows_whose_rows_were_found(
    topic: MadeTopic, windows: list[SealedWindow]
) -> None:
    delete_rows(topic, 0, 25, 45)
    clean_log(table(topic))
    lose_ledger(topic)
    printed = lines(topic.declaration.raw_table, rebuilt(topic))
    assert printed[0] == "raw/people: 5 cuts and 4 receipts restored"
    assert f"loads of 2 windows ({windows[1].key} to {windows[2].key})" in printed[1]
    assert len(printed) == 2


def test_rows_of_a_version_that_only_an_older_checkpoint_has_are_restored(
    topic: MadeTopic, kafka: MadeCluster, windows: list[SealedWindow]
) -> None:
    """A clean-up deletes commits first. The checkpoint is still there, and is read without those commits."""
    values = topic.values()
    delta = table(topic)
    delta.create_checkpoint()
    delete_rows(topic, 0, *range(2 * ROWS))
    for _ in range(3):
        append_elsewhere(table(topic))
    clean_log(table(topic))
    kafka.expire(0, 80)
    kafka.expire(1, 80)
    outcomes = [loader_of(topic, kafka).load(w.key).outcome for w in windows]
    assert outcomes == ["restored", "restored", "kept", "kept"]
    assert topic.values() == values
