"""Erased records: no file of the lake contains them, the ledger lists them, and they never return. No Kafka, no Spark."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest
from deltalake import DeltaTable

from platform_assets.checks.evaluation import Evaluation
from platform_assets.checks.facts import Orchestration
from platform_assets.checks.report.heatmap import State, heatmap_of
from platform_assets.errors import ConcurrentLoadError, ConfigurationError, ErasureUnfinishedError
from platform_assets.lake import holdings, load_log
from platform_assets.lake.delta_log import DataFile
from platform_assets.lake.location import Folder, Lake
from platform_assets.ledger import decisions
from platform_assets.ledger.decisions import Decision
from platform_assets.ledger.entries import ERASED, SealedWindow
from platform_assets.ledger.erasure_rules import erased_of
from platform_assets.ledger.store import Ledger
from platform_assets.model.offsets import OffsetRange
from platform_assets.windows.erase import erased_logs, erasing
from platform_assets.windows.erase.erasing import WindowEraser
from platform_assets_tests.support.erasures import AUTHOR, MadeTopic, found_in, proved, shown
from platform_assets_tests.support.variants import long_after
from testbed import samples

WHO, NEEDLE = b"customer-4711", b"zebra-in-pyjamas"
A, B, C = 0, 1, 2


def other(number: int) -> tuple[bytes, bytes]:
    """Return a record to keep."""
    return b"customer-%d" % number, b"value-%d" % number


def hers(form: bytes = b"") -> tuple[bytes, bytes]:
    """Return a record to erase, with `form` in front of its value."""
    return WHO, form + NEEDLE


@pytest.fixture
def topic(tmp_path: Path) -> MadeTopic:
    """A topic with two partitions; nothing is loaded."""
    return MadeTopic(tmp_path)


@pytest.fixture
def windows(topic: MadeTopic) -> list[SealedWindow]:
    """Load three windows. The first and the last contain records to erase: one is a dead letter, and one fails an
    expectation."""
    sealed = topic.seal(
        [
            {0: [other(1), hers(), other(2)], 1: [hers(b"\xff"), other(3)]},
            {0: [other(4)], 1: [other(5)]},
            {0: [hers(b"NOT AS EXPECTED "), other(6)], 1: [other(7), other(7)]},
        ]
    )
    topic.fill(sealed)
    return sealed


def erase(topic: MadeTopic) -> Any:
    """Erase all records of the person."""
    erasure = topic.erasure
    erasure.record(erasure.of_keys([WHO]), AUTHOR)
    return erasure.run(AUTHOR)


def check_gone(topic: MadeTopic) -> None:
    """Check that no file of the lake contains the erased bytes, and that all other records are unchanged."""
    for needle in (WHO, NEEDLE):
        assert not (places := found_in(topic.root, needle)), shown(places)
    kept = [r.value for r in topic.records if r.key != WHO]
    assert topic.values() == kept
    proved(topic)


def test_the_search_finds_what_is_there(topic: MadeTopic, windows: list[SealedWindow]) -> None:
    """If the search could not find existing bytes, the other tests would prove nothing."""
    places = found_in(topic.root, NEEDLE)
    for table in ("raw", "decoded", "dead_letters"):
        assert any(p.startswith(table) for p in places), shown(places)
    assert any(p.startswith("_ledger/commits") for p in places), "samples of failing rows are in receipts"
    assert any("_delta_log" in p for p in places), "and in the commits of decoded rows"


def test_a_key_is_gone_from_every_file_and_the_ledger_says_which_offsets(
    topic: MadeTopic, windows: list[SealedWindow]
) -> None:
    before = topic.receipts()
    done = erase(topic)
    after = topic.receipts()
    check_gone(topic)
    assert done.windows == 2
    assert done.rows == {"raw/people": 3, "decoded/people": 2, "dead_letters/people": 1}
    assert after[windows[A].key].holes == {ERASED: 2}
    assert after[windows[C].key].holes == {ERASED: 1}
    assert after[windows[B].key] == before[windows[B].key]
    assert after[windows[A].key].ranges == windows[A].ranges
    assert erased_of(topic.ledger, topic.topic) == {
        windows[A].key: {0: (OffsetRange(1, 2),), 1: (OffsetRange(0, 1),)},
        windows[C].key: {0: (OffsetRange(4, 5),)},
    }
    assert topic.receipts("decoded")[windows[C].key].holes == {ERASED: 1}


def unasked() -> NoReturn:
    raise AssertionError("brokers were asked")


def test_an_erased_window_is_shown_as_such_and_not_as_failing(topic: MadeTopic, windows: list[SealedWindow]) -> None:
    erase(topic)
    evaluation = Evaluation(topic.declaration, topic.ledger, Orchestration(), unasked, unasked, topic.engine)
    heatmap = heatmap_of(evaluation.facts())
    assert heatmap.counts == {State.ERASED: 2, State.COMPLETE: 1}
    assert "2 with erased records" in heatmap.sentence


def test_a_decision_is_in_the_ledger_with_who_and_why_and_its_end(
    topic: MadeTopic, windows: list[SealedWindow]
) -> None:
    erase(topic)
    asked, done = decisions.decisions(topic.lake, topic.topic, ("erase", "erased"))
    assert (asked.decided_by, asked.reason) == (AUTHOR.name, AUTHOR.reason)
    assert asked.details["offsets"] == {windows[A].key: [[0, 1, 2], [1, 0, 1]], windows[C].key: [[0, 4, 5]]}
    assert done.details["windows"] == 2
    assert not decisions.unfinished_erasures(topic.lake, topic.topic)


def test_a_load_from_kafka_which_still_has_the_records_finds_the_window_unchanged(
    topic: MadeTopic, windows: list[SealedWindow]
) -> None:
    erase(topic)
    for window in windows:
        assert topic.load(window).outcome == "unchanged"
        assert topic.decoder().decode(window.key).outcome == "unchanged"
    check_gone(topic)


def test_a_window_that_is_damaged_afterwards_heals_without_them(topic: MadeTopic, windows: list[SealedWindow]) -> None:
    erase(topic)
    folder = topic.lake.table(topic.declaration.raw_table)
    (path,) = holdings.files_of(folder, windows[A].key).paths
    (folder.path / path.replace("%25", "%")).unlink()
    assert topic.load(windows[A]).outcome == "healed"
    check_gone(topic)


def test_offsets_are_erased_as_a_key_is(topic: MadeTopic, windows: list[SealedWindow]) -> None:
    erasure = topic.erasure
    selected = erasure.at_offsets({0: (OffsetRange(1, 2), OffsetRange(4, 5)), 1: (OffsetRange(0, 1),)})
    assert [s.sealed.key for s in selected] == [windows[A].key, windows[C].key]
    erasure.record(selected, AUTHOR)
    erasure.run(AUTHOR)
    check_gone(topic)


def test_offsets_of_no_sealed_window_are_refused(topic: MadeTopic, windows: list[SealedWindow]) -> None:
    with pytest.raises(ConfigurationError, match=r"\[5, 9\) of partition 1 .* no sealed window of generation 1"):
        topic.erasure.at_offsets({1: (OffsetRange(4, 9),)})


def test_offsets_of_a_window_that_is_not_loaded_never_are(topic: MadeTopic) -> None:
    (window,) = topic.seal([{0: [other(1), hers(), other(2)]}])
    orphan = topic.lake.table(topic.declaration.raw_table) / f"window={window.key.replace(':', '%3A')}" / "dead-load"
    orphan.write("part-0.parquet", WHO + NEEDLE)
    erasure = topic.erasure
    erasure.record(erasure.at_offsets({0: (OffsetRange(1, 2),)}), AUTHOR)
    erasure.run(AUTHOR)
    assert not found_in(topic.root, NEEDLE)
    assert topic.load(window).outcome == "loaded"
    topic.decoder().decode(window.key)
    assert topic.values() == [b"value-1", b"value-2"]
    assert not found_in(topic.root, NEEDLE)
    # Only brokers can explain its other holes, so it is open until a check has asked them.
    assert topic.receipts()[window.key].holes is None


def test_old_versions_of_touched_windows_go_and_those_of_others_stay(
    topic: MadeTopic, windows: list[SealedWindow]
) -> None:
    folder = topic.lake.table(topic.declaration.raw_table)
    version = load_log.version(folder)
    for window in windows:  # rewritten: the earlier files belong to a past version
        receipt = topic.receipts()[window.key]
        path = folder.path / holdings.files_of(folder, window.key).paths[0].replace("%25", "%")
        kept = path.read_bytes()
        path.unlink()
        assert topic.load(window).outcome == "healed"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(kept)
        assert receipt.files_digest != topic.receipts()[window.key].files_digest
    erase(topic)
    check_gone(topic)
    past = DeltaTable(folder.uri, version=version).to_pyarrow_dataset()
    import pyarrow.dataset as ds

    assert past.to_table(filter=ds.field("window") == windows[B].key).num_rows == 2
    with pytest.raises(FileNotFoundError):
        past.to_table(filter=ds.field("window") == windows[A].key)


def test_orphans_of_dead_loads_go(topic: MadeTopic, windows: list[SealedWindow]) -> None:
    for kind in ("raw", "decoded", "dead_letters"):
        below = f"window={windows[A].key.replace(':', '%3A')}"
        (topic.lake.root / kind / topic.topic / below / "dead" / "_temporary" / "0").write("x.parquet", NEEDLE)
    erase(topic)
    check_gone(topic)


def test_bounds_of_columns_that_another_writer_put_into_the_log_go(
    topic: MadeTopic, windows: list[SealedWindow]
) -> None:
    """OPTIMIZE run by another writer stores the smallest and the largest string of a column in commits and checkpoints."""
    table = DeltaTable(topic.root / "decoded" / topic.topic)
    table.alter.set_table_properties({"delta.dataSkippingStatsColumns": "kafka_partition,kafka_offset,value"})
    bound = "NOT AS EXPECTED zebra-in-pyjamas"
    log = topic.root / "decoded" / topic.topic / "_delta_log"
    for path in sorted(log.glob("*.json")):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        for action in lines:
            statistics = json.loads(action["add"]["stats"]) if "add" in action else {}
            if (
                holdings.only_window(DataFile("", action.get("add", {}).get("partitionValues", {}), 0, statistics))
                == windows[C].key
            ):
                statistics["minValues"]["value"] = statistics["maxValues"]["value"] = bound
                action["add"]["stats"] = json.dumps(statistics)
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    DeltaTable(topic.root / "decoded" / topic.topic).create_checkpoint()
    assert any("checkpoint" in place for place in found_in(topic.root, NEEDLE))
    erase(topic)
    check_gone(topic)
    assert DeltaTable(topic.root / "decoded" / topic.topic).to_pyarrow_table().num_rows == 8


def test_samples_of_what_failed_go_and_those_of_others_stay(topic: MadeTopic, windows: list[SealedWindow]) -> None:
    figures = topic.receipts("decoded")[windows[C].key].figures
    assert figures is not None
    assert sorted(f.failing for f in figures.values()) == [1, 1]
    erase(topic)
    left = topic.receipts("decoded")[windows[C].key].figures
    assert left is not None
    (once,) = (f for f in left.values() if f.failing)
    assert [(s.partition, s.offset) for s in once.samples] == [(1, 4)]


@pytest.mark.parametrize("table", long_after(1, ["raw", "dead_letters", "decoded"]))
@pytest.mark.parametrize("by", ["erase", "load"])
def test_one_that_is_cut_short_is_gone_on_with(
    topic: MadeTopic, windows: list[SealedWindow], monkeypatch: pytest.MonkeyPatch, table: str, by: str
) -> None:
    """A run dies after its commits to a table and before the receipts; a load or the next erasure completes the run's
    erasure."""

    class Died(BaseException):
        pass

    record = Ledger.record_receipts

    def die(ledger: Ledger, receipts: Any) -> None:
        if receipts and receipts[0].table.kind == table:
            raise Died
        record(ledger, receipts)

    with monkeypatch.context() as patched:
        patched.setattr(Ledger, "record_receipts", die)
        with pytest.raises(Died):
            erase(topic)
    assert list(decisions.unfinished_erasures(topic.lake, topic.topic)) == [windows[A].key, windows[C].key]
    if by == "load":
        eraser = WindowEraser(topic.declaration, topic.ledger)
        for key, ranges in erased_of(topic.ledger, topic.topic).items():
            eraser.erase_pending(key, ranges)
        for window in windows:
            assert topic.load(window).outcome == "unchanged"
            assert topic.decoder().decode(window.key).outcome == "unchanged"
    topic.erasure.run(AUTHOR)
    check_gone(topic)
    for window in windows:
        assert topic.load(window).outcome == "unchanged"


def test_one_that_dies_between_the_ledgers_is_gone_on_with(
    topic: MadeTopic, windows: list[SealedWindow], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(Ledger, "record_acceptances", lambda *args: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            erase(topic)
    topic.erasure.run(AUTHOR)
    check_gone(topic)
    assert topic.load(windows[A]).outcome == "unchanged"


def test_a_second_time_there_is_nothing_left_to_do(topic: MadeTopic, windows: list[SealedWindow]) -> None:
    erase(topic)
    versions = [load_log.version(topic.lake.table(t)) for t in topic.declaration.tables]
    assert not topic.erasure.of_keys([WHO])
    assert topic.erasure.run(AUTHOR).windows == 0
    assert [load_log.version(topic.lake.table(t)) for t in topic.declaration.tables] == versions


def test_a_window_whose_rows_are_not_its_receipts_waits_and_no_other_does(
    topic: MadeTopic, windows: list[SealedWindow]
) -> None:
    erasure = topic.erasure
    selected = erasure.of_keys([WHO])
    folder = topic.lake.table(topic.declaration.raw_table)
    (path,) = holdings.files_of(folder, windows[A].key).paths
    lost = folder.path / path.replace("%25", "%")
    content = lost.read_bytes()
    lost.unlink()
    erasure.record(selected, AUTHOR)
    with pytest.raises(ErasureUnfinishedError, match=windows[A].key):
        erasure.run(AUTHOR)
    assert erasure.unfinished() == [windows[A].key]
    assert topic.receipts()[windows[C].key].holes == {ERASED: 1}
    lost.write_bytes(content)
    erasure.run(AUTHOR)
    check_gone(topic)


@pytest.mark.long
def test_replays_lose_the_records_too(topic: MadeTopic, windows: list[SealedWindow]) -> None:
    beside = MadeTopic(topic.lake.replay("june").root.path, records=topic.records)
    beside.ledger.create()
    beside.ledger.record_cuts(topic.ledger.cuts(topic.topic), None)
    beside.fill(windows, decode=False)
    done = erase(topic)
    assert done.rows["replays/june/raw/people"] == 3
    check_gone(topic)
    assert beside.load(windows[A]).outcome == "unchanged"


def test_a_rebuilt_ledger_knows_what_was_erased(topic: MadeTopic, windows: list[SealedWindow]) -> None:
    from platform_assets.windows.recover.rebuild import rebuild

    erase(topic)
    known = erased_of(topic.ledger, topic.topic)
    topic.lake.root.path.joinpath("_ledger").rename(topic.root / "_gone")
    ledger = Ledger(Lake.at(topic.root))
    rebuild(topic.declaration, ledger, topic.engine)
    assert erased_of(ledger, topic.topic) == known
    assert topic.load(windows[A]).outcome == "unchanged"


def test_all_rows_of_a_window_may_go(topic: MadeTopic) -> None:
    windows = topic.seal([{0: [hers(), hers(b"\xff")]}, {0: [other(1)]}])
    topic.fill(windows)
    erase(topic)
    check_gone(topic)
    assert topic.receipts()[windows[A].key].holes == {ERASED: 2}
    assert topic.load(windows[A]).outcome == "unchanged"


@pytest.mark.long
def test_many_windows_are_committed_in_batches(topic: MadeTopic, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(erasing, "WINDOWS_PER_COMMIT", 3)
    windows = topic.seal([{0: [hers(), other(n)]} for n in range(8)])
    topic.fill(windows)
    assert erase(topic).windows == 8
    check_gone(topic)
    assert all(topic.load(w).outcome == "unchanged" for w in windows)


# --- erasures against loads, against each other, and on tables that are not as the ledger says ------------------------


def name(topic: MadeTopic, *offsets: int) -> None:
    """Record these offsets of partition 0 as erased in the ledger."""
    erasure = topic.erasure
    erasure.record(erasure.at_offsets({0: tuple(OffsetRange(o, o + 1) for o in offsets)}), AUTHOR)


def test_a_load_that_was_about_to_commit_is_refused_by_an_erasure(topic: MadeTopic) -> None:
    """The load has read the record and made its last check. The load's files must not be deleted while a commit lists
    them."""
    (window,) = topic.seal([{0: [other(1), hers(), other(2)]}])

    def erase_now() -> None:
        name(topic, 1)
        topic.erasure.run(AUTHOR)

    with pytest.raises(ConcurrentLoadError):
        topic.load(window, before_commit=erase_now)
    assert topic.values() == []
    assert not found_in(topic.root, NEEDLE)
    assert topic.load(window).outcome == "loaded"
    assert topic.values() == [b"value-1", b"value-2"]
    assert not topic.erasure.unfinished()


def test_a_load_that_commits_first_loses_the_record_to_the_erasure(topic: MadeTopic) -> None:
    (window,) = topic.seal([{0: [other(1), hers(), other(2)]}])
    topic.load(window, before_commit=lambda: name(topic, 1))
    assert NEEDLE in topic.values()
    topic.erasure.run(AUTHOR)
    topic.decoder().decode(window.key)
    check_gone(topic)
    assert topic.load(window).outcome == "unchanged"


def test_a_decoding_that_was_about_to_commit_is_refused_by_an_erasure(topic: MadeTopic) -> None:
    (window,) = topic.seal([{0: [other(1), hers(), other(2)]}])
    topic.load(window)

    def erase_now(step: str) -> None:
        if step == "dead letters" and not erased_of(topic.ledger, topic.topic):
            name(topic, 1)
            topic.erasure.run(AUTHOR)

    assert replace(topic.decoder(), before_step=erase_now).decode(window.key).outcome == "loaded"
    check_gone(topic)


def test_files_that_the_table_names_are_never_deleted_and_the_remedy_works(topic: MadeTopic) -> None:
    """The window's rows have neither a receipt nor a load commit: another writer wrote the rows, or the ledger was
    lost."""
    (window,) = topic.seal([{0: [other(1), hers(), other(2)]}])
    samples.append(topic.root, topic.topic, samples.rows(window.key, {0: range(3)}))
    name(topic, 1)
    with pytest.raises(ErasureUnfinishedError, match=rf"{window.key}.*`platform-assets load raw/people {window.key}`"):
        topic.erasure.run(AUTHOR)
    assert len(topic.values()) == 3
    assert topic.erasure.unfinished() == [window.key]
    topic.load(window)
    topic.erasure.run(AUTHOR)
    assert topic.values() == [b"value-1", b"value-2"]
    assert not found_in(topic.root, NEEDLE)


def test_an_erasure_that_ends_while_another_names_more_is_not_the_end_of_both(
    topic: MadeTopic, windows: list[SealedWindow], monkeypatch: pytest.MonkeyPatch
) -> None:
    clean = erased_logs.clean

    def clean_while_another_names(*args: Any) -> None:
        monkeypatch.undo()
        name(topic, 4)
        clean(*args)

    erasure = topic.erasure
    erasure.record(erasure.at_offsets({0: (OffsetRange(5, 6),)}), AUTHOR)
    monkeypatch.setattr(erased_logs, "clean", clean_while_another_names)
    erasure.run(AUTHOR)
    left = decisions.unfinished_erasures(topic.lake, topic.topic)
    assert {key: each.ranges for key, each in left.items()} == {windows[C].key: {0: (OffsetRange(4, 5),)}}
    topic.erasure.run(AUTHOR)
    assert not decisions.unfinished_erasures(topic.lake, topic.topic)
    assert b"NOT AS EXPECTED " + NEEDLE not in topic.values()


def test_an_erasure_within_one_second_of_a_store_that_counts_whole_ones_is_finished(
    topic: MadeTopic, windows: list[SealedWindow], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Folder, "time", lambda _: samples.edge(9))
    erase(topic)
    assert not decisions.unfinished_erasures(topic.lake, topic.topic)
    assert not topic.erasure.unfinished()


def test_an_erasure_that_an_earlier_release_finished_stays_finished(topic: MadeTopic) -> None:
    (window,) = topic.seal([{0: [other(1), hers()]}])
    details = {"topic_id": window.topic_id, "generation": 1, "offsets": {window.key: [[0, 1, 2]]}}
    for kind, said, at in (("erase", details, 1), ("erased", {"windows": 1, "rows": {}}, 1), ("erase", details, 2)):
        made = Decision(topic.topic, kind, (window.key,), "ann", "why", said, samples.edge(at))  # type: ignore[arg-type]
        decisions.record(topic.lake, made)
        assert bool(decisions.unfinished_erasures(topic.lake, topic.topic)) == (kind == "erase")
