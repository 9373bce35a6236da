"""Erasures as rules: they apply to records that are restored, repaired, loaded later, or copied into another log.

No Kafka, no Spark.
"""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from platform_assets.backup import restoring, taking
from platform_assets.errors import ConfigurationError, ErasureUnfinishedError, FilesLostError
from platform_assets.lake import holdings
from platform_assets.ledger import decisions, unloaded
from platform_assets.ledger.entries import ERASED, SealedWindow
from platform_assets.ledger.erasure_rules import erased_of
from platform_assets.model.offsets import OffsetRange
from platform_assets.model.tables import TableRef
from platform_assets.windows.decide import clusters, generations
from platform_assets.windows.decide.clusters import Continuation
from platform_assets.windows.decide.deciding import Deciding
from platform_assets.windows.decide.generations import NewGeneration
from platform_assets.windows.erase import erased_keys, erased_logs, reapplying
from platform_assets.windows.erase.erasing import WindowEraser
from platform_assets.windows.recover import accept_partial
from platform_assets_tests.support.erasures import AUTHOR, MadeTopic, found_in
from platform_assets_tests.support.kept_cluster import KeptCluster, ends_of, loader_of
from platform_assets_tests.support.local_engine import Kept
from platform_assets_tests.support.variants import long_after
from testbed import samples

WHO, NEEDLE = b"customer-4711", b"zebra-in-pyjamas"
OTHER_ID = "B" * 22
HERS, OURS = (WHO, NEEDLE), (b"customer-1", b"value-1")


@pytest.fixture
def topic(tmp_path: Path) -> MadeTopic:
    return MadeTopic(tmp_path / "lake")


@pytest.fixture
def windows(topic: MadeTopic) -> list[SealedWindow]:
    """Two windows, each with one record to erase."""
    sealed = topic.seal([{0: [OURS, HERS]}, {0: [HERS, OURS]}])
    topic.fill(sealed)
    return sealed


def deciding(topic: MadeTopic, said: list[str] | None = None) -> Deciding:
    def never() -> None:
        raise AssertionError("no service is needed")

    say = [].append if said is None else said.append
    return Deciding(topic.declaration, topic.ledger, never, never, never, AUTHOR, say, lambda _: None)  # type: ignore[arg-type]


def erase(topic: MadeTopic, said: list[str] | None = None, *, forget_keys: bool = False) -> None:
    deciding(topic, said).erasure({}, [WHO], forget_keys=forget_keys)


def check_gone(topic: MadeTopic) -> None:
    for needle in (WHO, NEEDLE):
        assert not found_in(topic.root, needle)


def damage(topic: MadeTopic, window: SealedWindow) -> None:
    """Delete the window's file, as if a disk had failed."""
    folder = topic.lake.table(topic.declaration.raw_table)
    (path,) = holdings.files_of(folder, window.key).paths
    (folder.path / path.replace("%25", "%")).unlink()


# --- restored -------------------------------------------------------------------------------------------------------


def restored(topic: MadeTopic, home: Path, *parts: str) -> list[reapplying.Reapplied]:
    """Restore as `platform-assets restore --force` does."""
    before = reapplying.decided(topic.lake)
    backup = restoring.find(home / "backups")
    restoring.restore(backup, topic.lake, home / "dagster", parts, force=True)
    return reapplying.reapply(topic.lake, before, AUTHOR, lambda _: topic.declaration)


@pytest.mark.parametrize(
    "parts",
    long_after(1, map(pytest.param, [("raw/people",), ("raw/people", "decoded/people", "dead_letters/people"), ()])),
)
def test_a_restore_applies_what_was_erased_since(
    topic: MadeTopic, windows: list[SealedWindow], tmp_path: Path, parts: tuple[str, ...]
) -> None:
    taking.take(topic.lake, tmp_path / "dagster", tmp_path / "backups", datetime(2026, 2, 1, tzinfo=UTC))
    erase(topic)
    (done,) = restored(topic, tmp_path, *parts)
    assert done.rows["raw/people"] == 2
    assert not done.unfinished
    check_gone(topic)
    assert topic.values() == [b"value-1"] * 2
    for window in windows:
        assert loader_of(topic).load(window.key).outcome == "unchanged"
        topic.decoder().decode(window.key)
    check_gone(topic)
    assert restored(topic, tmp_path, "raw/people")
    assert not reapplying.reapply(topic.lake, [], AUTHOR, lambda _: topic.declaration)


@pytest.mark.parametrize("parts", long_after(1, map(pytest.param, [("raw/people",), ()])))
def test_a_restore_that_ends_before_it_erases_again_is_completed_by_the_next_tick(
    topic: MadeTopic, windows: list[SealedWindow], tmp_path: Path, parts: tuple[str, ...]
) -> None:
    taking.take(topic.lake, tmp_path / "dagster", tmp_path / "backups", datetime(2026, 2, 1, tzinfo=UTC))
    erase(topic)
    reapplying.remember(topic.lake, reapplying.decided(topic.lake))
    restoring.restore(restoring.find(tmp_path / "backups"), topic.lake, tmp_path / "dagster", parts, force=True)
    assert len(topic.values()) == 4
    reapplying.finish(topic.ledger, replace(topic.declaration, topic="another"))
    assert len(topic.values()) == 4
    reapplying.finish(topic.ledger, topic.declaration)
    assert topic.values() == [b"value-1"] * 2
    topic.decoder().decode(windows[0].key)
    check_gone(topic)
    assert reapplying.remember(topic.lake, []) == [], "nothing is left to be done"


def test_a_second_restore_knows_the_erasures_that_the_first_one_did_not_apply(
    topic: MadeTopic, windows: list[SealedWindow], tmp_path: Path
) -> None:
    """The first restore replaced the ledger that had the erasures with an older ledger."""
    taking.take(topic.lake, tmp_path / "dagster", tmp_path / "backups", datetime(2026, 2, 1, tzinfo=UTC))
    erase(topic)
    before = reapplying.remember(topic.lake, reapplying.decided(topic.lake))
    restoring.restore(restoring.find(tmp_path / "backups"), topic.lake, tmp_path / "dagster", (), force=True)
    assert reapplying.decided(topic.lake) == []
    again = reapplying.remember(topic.lake, reapplying.decided(topic.lake))
    assert again == before
    assert reapplying.reapply(topic.lake, again, AUTHOR, lambda _: topic.declaration)
    assert topic.values() == [b"value-1"] * 2
    assert reapplying.remember(topic.lake, []) == []


def test_erase_reads_the_tables_before_it_says_that_all_is_erased(
    topic: MadeTopic, windows: list[SealedWindow], tmp_path: Path
) -> None:
    """A table was restored with other tools, so no notice of unapplied erasures exists."""
    taking.take(topic.lake, tmp_path / "dagster", tmp_path / "backups", datetime(2026, 2, 1, tzinfo=UTC))
    erase(topic)
    restoring.restore(
        restoring.find(tmp_path / "backups"), topic.lake, tmp_path / "dagster", ["raw/people"], force=True
    )
    assert topic.values().count(NEEDLE) == 2
    assert topic.erasure.unfinished() == [w.key for w in windows]
    said: list[str] = []
    erase(topic, said)
    assert said[-1] == "erased; 2 windows no longer hold any of the records, and no later load restores these records"
    check_gone(topic)
    erase(topic, said)
    assert "nothing was erased" in said[-1]


def test_a_window_that_is_sealed_again_with_other_edges_leaves_the_records_out(tmp_path: Path) -> None:
    """A full restore brings back a ledger that lacks the window, and then the window is cut at other offsets."""
    topic = MadeTopic(tmp_path / "lake")
    topic.fill(topic.seal([{0: [OURS, HERS]}, {0: [HERS, OURS]}]))
    erase(topic)
    (asked,) = decisions.decisions(topic.lake, "people", ("erase",))
    again = MadeTopic(tmp_path / "again", records=topic.records)
    (window,) = samples.recorded(again.root, "people", [{0: 0}, {0: 4}])
    reapplying.reapply(again.lake, [asked], AUTHOR, lambda _: again.declaration)
    assert loader_of(again).load(window.key).receipt.rows == 2
    assert erased_of(again.ledger, "people") == {window.key: {0: (OffsetRange(1, 3),)}}
    check_gone(again)


# --- damaged, and not loaded yet ------------------------------------------------------------------------------------


def test_a_damaged_window_is_named_and_its_load_leaves_the_records_out(
    topic: MadeTopic, windows: list[SealedWindow]
) -> None:
    damage(topic, windows[0])
    with pytest.raises(
        ErasureUnfinishedError, match=rf"{windows[0].key}: these windows are damaged.*platform-assets load"
    ):
        erase(topic)
    # The remedy: no past version has the window, so Kafka's records are loaded, and hers left out in the end.
    assert loader_of(topic).load(windows[0].key).outcome == "healed"
    assert topic.values() == [b"value-1"] * 2
    said: list[str] = []
    erase(topic, said)
    check_gone(topic)
    assert topic.receipts()[windows[0].key].holes == {ERASED: 1}
    for window in windows:
        assert loader_of(topic).load(window.key).outcome == "unchanged"


def test_rows_that_somebody_deleted_before_the_erasure_do_not_come_back(
    topic: MadeTopic, windows: list[SealedWindow]
) -> None:
    topic.lake.table(topic.declaration.raw_table).delta().delete(f"window = '{windows[0].key}'")
    with pytest.raises(ErasureUnfinishedError, match=windows[0].key):
        erase(topic)
    # Its past version comes back, as Kafka has expired.
    cluster = KeptCluster("people", dict(ends_of(topic)), starts={0: 4})
    assert loader_of(topic, cluster).load(windows[0].key).outcome == "restored"
    erase(topic)
    check_gone(topic)


@pytest.mark.parametrize("many", [False, True])
def test_a_window_that_waits_leaves_the_records_out_when_it_is_loaded(topic: MadeTopic, many: bool) -> None:
    from platform_assets.windows.load.catching_up import load_many

    windows = topic.seal([{0: [OURS, HERS]}, {0: [HERS, OURS]}])
    said: list[str] = []
    erase(topic, said)
    assert (
        "nothing was erased. Later loads leave out each record with one of these keys if its window is already sealed"
        in said[-1]
    )
    assert said[-1].endswith("Newer records with these keys are still loaded")
    # Kafka had this record by then, but no sealed window did.
    topic.records.append(Kept(0, 4, WHO, b"again", samples.edge(1.5)))
    topic.ledger.record_cuts([samples.cut("people", samples.edge(3), {0: 5})], samples.edge(2))
    keys = [w.key for w in topic.ledger.windows("people")]
    if many:
        assert [key for key, _ in load_many(loader_of(topic), keys)] == keys
    else:
        for key in keys:
            loader_of(topic).load(key)
    assert topic.values() == [b"value-1", b"value-1", b"again"]
    assert not found_in(topic.root, NEEDLE)
    assert sorted(erased_of(topic.ledger, "people")) == [w.key for w in windows]
    assert not topic.erasure.unfinished()


def test_keys_that_are_to_be_forgotten_are_in_no_decision(topic: MadeTopic, windows: list[SealedWindow]) -> None:
    erase(topic, forget_keys=True)
    (forgotten,) = decisions.decisions(topic.lake, "people", ("erase",))
    assert "keys" not in forgotten.details
    check_gone(topic)


def test_the_digests_of_two_lakes_differ(tmp_path: Path) -> None:
    seen = set()
    for name in ("one", "other"):
        made = MadeTopic(tmp_path / name)
        made.fill(made.seal([{0: [HERS]}]))
        erase(made)
        erase(made)
        first, second = (d.details["keys"] for d in decisions.decisions(made.lake, "people", ("erase",)))
        assert first["digests"] == second["digests"]
        assert WHO.hex() not in str(first)
        seen.add(str(first["digests"]))
    assert len(seen) == 2


def test_a_topic_with_a_very_long_name_is_erased_too(tmp_path: Path) -> None:
    """The topic's key in the ledger is not the name of its table."""
    topic = MadeTopic(tmp_path / "lake", "p" * 245)
    loaded, waiting = topic.seal([{0: [OURS, HERS]}, {0: [HERS, OURS]}])
    topic.fill([loaded], decode=False)
    deciding(topic).erasure({0: (OffsetRange(1, 3),)}, [])
    assert erased_of(topic.ledger, topic.topic) == {
        loaded.key: {0: (OffsetRange(1, 2),)},
        waiting.key: {0: (OffsetRange(2, 3),)},
    }
    assert sorted(unloaded.accepted(topic.ledger, topic.declaration.raw_table, [loaded.key, waiting.key])) == [
        loaded.key, waiting.key,
    ]  # fmt: skip
    assert loader_of(topic).load(waiting.key).receipt.rows == 1
    check_gone(topic)
    assert not topic.erasure.unfinished()


# --- another log under the topic's name -----------------------------------------------------------------------------


def moved(topic: MadeTopic, at: int) -> NewGeneration:
    """Replace the log with one that has another id and the same name."""
    newest = topic.ledger.newest_cut("people")
    assert newest is not None
    first = samples.cut("people", newest.edge, {0: at}, topic_id=OTHER_ID, generation=2)
    return NewGeneration("moved to another cluster", newest, replace(first, taken={0: "accepted"}), ())


def test_records_that_a_mirror_copied_do_not_come_again(topic: MadeTopic, windows: list[SealedWindow]) -> None:
    erase(topic)
    generations.accept(moved(topic, 0), AUTHOR, topic.ledger)
    now = datetime.now(UTC)
    topic.records[:] = [
        *(Kept(0, o, k, v, samples.edge(0)) for o, (k, v) in enumerate((OURS, HERS, OURS))),
        Kept(0, 3, WHO, b"sent after the erasure", now + timedelta(days=1)),
    ]
    topic.ledger.record_cuts(
        [samples.cut("people", samples.edge(3), {0: 4}, topic_id=OTHER_ID, generation=2)], samples.edge(2)
    )
    window = topic.ledger.windows("people")[-1]
    cluster = KeptCluster("people", {0: 4}, topic_id=OTHER_ID)
    loaded = loader_of(topic, cluster).load(window.key)
    assert loaded.receipt.rows == 3
    assert sorted(topic.values()) == [b"sent after the erasure", *[b"value-1"] * 4]
    assert not found_in(topic.root, NEEDLE)
    assert erased_of(topic.ledger, "people")[window.key] == {0: (OffsetRange(1, 2),)}
    assert loader_of(topic, cluster).load(window.key).outcome == "unchanged"


def test_offsets_that_were_erased_stay_so_where_a_log_goes_on_with_its_offsets(tmp_path: Path) -> None:
    """The waiting window is closed; the first window of the new generation contains its offsets."""
    topic = MadeTopic(tmp_path / "lake")
    first, waiting = topic.seal([{0: [OURS, OURS]}, {0: [HERS, OURS]}])
    topic.load(first)
    erasure = topic.erasure
    erasure.record(erasure.at_offsets({0: (OffsetRange(2, 3),)}), AUTHOR)
    erasure.run(AUTHOR)
    found = moved(topic, 2)
    clusters.accept(Continuation(found.newest, found.first, (waiting,)), AUTHOR, topic.ledger)
    topic.ledger.record_cuts(
        [samples.cut("people", samples.edge(3), {0: 4}, topic_id=OTHER_ID, generation=2)], samples.edge(2)
    )
    window = topic.ledger.windows("people")[-1]
    assert (window.generation, list(window.ranges.triples())) == (2, [(0, 2, 4)])
    loader_of(topic, KeptCluster("people", {0: 4}, topic_id=OTHER_ID)).load(window.key)
    assert topic.values() == [b"value-1"] * 3
    assert not found_in(topic.root, NEEDLE)
    holes = topic.receipts()[waiting.key].holes
    assert holes == {ERASED: 1, "accepted loss": 1}


def test_a_window_of_an_earlier_generation_that_waits_leaves_the_records_out(tmp_path: Path) -> None:
    """The rule is made after the topic has moved. The waiting window can still be loaded, because the log is the same."""
    topic = MadeTopic(tmp_path / "lake")
    loaded, waiting = topic.seal([{0: [OURS, HERS]}, {0: [HERS, OURS]}])
    topic.fill([loaded])
    newest = topic.ledger.newest_cut("people")
    assert newest is not None
    first = samples.cut("people", newest.edge, dict(newest.cut.offsets), generation=2)
    first = replace(first, taken={0: "accepted"}, cluster_id="other")
    clusters.accept(Continuation(newest, first, ()), AUTHOR, topic.ledger)
    erase(topic)
    cluster = KeptCluster("people", {0: 4}, cluster_id="other")
    assert loader_of(topic, cluster).load(waiting.key).receipt.rows == 1
    check_gone(topic)


def test_a_rule_counts_all_records_of_earlier_logs_as_sent_before_it(topic: MadeTopic) -> None:
    """This holds for any timestamp, because nothing is appended to a log after another log has replaced it."""
    (waiting,) = topic.seal([{0: [OURS, HERS]}])
    topic.records[:] = [replace(r, timestamp=datetime.now(UTC) + timedelta(days=1)) for r in topic.records]
    generations.accept(moved(topic, 2), AUTHOR, topic.ledger)
    erase(topic)
    topic.load(waiting)
    folder = topic.lake.table(topic.declaration.raw_table)
    assert erased_keys.record_found(topic.ledger, folder, holdings.files_of(folder, waiting.key).paths, waiting)
    assert erased_of(topic.ledger, "people") == {waiting.key: {0: (OffsetRange(1, 2),)}}


def test_a_topic_that_was_copied_to_a_new_name_takes_the_erasures_over(
    topic: MadeTopic, windows: list[SealedWindow]
) -> None:
    """The test follows the guide: it adopts the rules before or after the first windows of the new topic are loaded."""
    erase(topic)
    copy = MadeTopic(topic.root, "persons")
    first, second = copy.seal([{0: [OURS, HERS, OURS]}, {0: [HERS, OURS]}])
    copy.fill([first])
    assert copy.values().count(NEEDLE) == 1
    said: list[str] = []
    with pytest.raises(ConfigurationError, match="topic 'nobody' has no erasure with stored keys"):
        deciding(copy, said).adoption("nobody")
    found = deciding(copy, said).adoption("people")
    assert (found["adopted"], found["done"]["rows"]["raw/persons"]) == (1, 1)
    loader_of(copy).load(second.key)
    check_gone(copy)
    assert copy.values() == [b"value-1"] * 3
    assert deciding(copy, said).adoption("people")["adopted"] == 0
    # A record that she sends to the new name afterwards is loaded.
    copy.records.append(Kept(0, 5, WHO, b"again", datetime.now(UTC) + timedelta(days=1)))
    copy.ledger.record_cuts([samples.cut("persons", samples.edge(3), {0: 6})], samples.edge(2))
    assert loader_of(copy).load(copy.ledger.windows("persons")[-1].key).receipt.rows == 1


def test_offsets_of_a_damaged_window_are_erased_once_it_is_healed(
    topic: MadeTopic, windows: list[SealedWindow]
) -> None:
    """The table has no row at the erased offset now, and loading the window brings that row back."""
    topic.lake.table(topic.declaration.raw_table).delta().delete("kafka_offset = 1")
    with pytest.raises(ErasureUnfinishedError, match=windows[0].key):
        deciding(topic).erasure({0: (OffsetRange(1, 2),)}, [])
    loader_of(topic).load(windows[0].key)
    deciding(topic).erasure({}, [])
    assert topic.values() == [b"value-1", NEEDLE, b"value-1"]
    assert loader_of(topic).load(windows[0].key).outcome == "unchanged"


def test_samples_of_a_record_that_a_load_has_erased_go_too(topic: MadeTopic) -> None:
    (window,) = topic.seal([{0: [HERS, HERS, OURS]}])
    topic.fill([window])
    assert [p for p in found_in(topic.root, NEEDLE) if "decoded/people/_delta_log" in p], (
        "samples of what is not unique"
    )
    # Somebody deletes one of her rows, so the erasure cannot find it; the load that brings it back does.
    topic.lake.table(topic.declaration.raw_table).delta().delete("kafka_offset = 1")
    with pytest.raises(ErasureUnfinishedError):
        erase(topic)
    assert loader_of(topic).load(window.key).outcome in ("healed", "restored")
    erase(topic)
    assert not found_in(topic.root, NEEDLE)


def test_logs_that_a_load_could_not_clean_any_more_are_cleaned_by_the_next_erasure(
    topic: MadeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    (window,) = topic.seal([{0: [HERS, HERS, OURS]}])
    topic.fill([window])
    topic.lake.table(topic.declaration.raw_table).delta().delete("kafka_offset = 1")
    with pytest.raises(ErasureUnfinishedError):
        erase(topic)

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(erased_logs, "clean", die)
        with pytest.raises(KeyboardInterrupt):
            loader_of(topic).load(window.key)
    loader_of(topic).load(window.key)
    erase(topic)
    assert not found_in(topic.root, NEEDLE)


def failing_on(table: str, window: str) -> Any:
    """Return `WindowEraser.erase` that reports a lost file instead of rewriting this window."""
    erased = WindowEraser.erase

    def erase_each(self: WindowEraser, of: TableRef, windows: Any, sealed: Any = None) -> Any:
        if of.name == table and window in windows:
            yield FilesLostError(table, window, "a file is missing")
            windows = {key: ranges for key, ranges in windows.items() if key != window}
        yield from erased(self, of, windows, sealed)

    return erase_each


@pytest.mark.parametrize("forget_keys", [False, True])
def test_decoded_rows_of_a_raw_row_that_is_lost_for_good_are_erased(
    topic: MadeTopic, forget_keys: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    (window,) = topic.seal([{0: [HERS, OURS]}])
    topic.fill([window])
    folder = topic.lake.table(topic.declaration.raw_table)
    for path in holdings.files_of(folder, window.key).paths:
        (folder.path / path.replace("%25", "%")).unlink()
    topic.records[:] = []
    kafka = KeptCluster(topic.topic, {0: 2}, starts={0: 2})
    left = accept_partial.find(loader_of(topic, kafka), window)
    assert left is not None
    assert left.accept(AUTHOR).rows == 0
    assert found_in(topic.root, NEEDLE), "decoded rows are there, and no raw row has a key"
    said = list[str]()
    dry = replace(deciding(topic, said), author=None).erasure({}, [WHO], forget_keys=forget_keys)
    assert dry["without_raw_row"] == {"decoded/people": [window.key]}
    assert any("decoded/people: 2 rows in 1 windows" in text and "erased too" in text for text in said), said
    # A window that cannot be rewritten is reported, and erased once the cause has ended.
    with monkeypatch.context() as patch:
        patch.setattr(WindowEraser, "erase", failing_on("decoded/people", window.key))
        with pytest.raises(ErasureUnfinishedError, match=re.escape(window.key)):
            erase(topic, forget_keys=forget_keys)
    assert found_in(topic.root, NEEDLE)
    erase(topic, forget_keys=forget_keys)
    assert not found_in(topic.root, NEEDLE)
