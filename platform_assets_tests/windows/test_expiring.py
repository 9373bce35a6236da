"""Upkeep removes windows past the topic's `keep`, and nothing else, whatever else happens to them; judged by polars and a byte
search. No Kafka, no Spark.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, cast

import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from platform_assets.checks import proving
from platform_assets.checks.decoded import conserved, windows_of
from platform_assets.checks.rules import accounted
from platform_assets.errors import (
    CommitOutcomeUnknownError,
    ConcurrentLoadError,
    ExpiredForGoodError,
    LostForGoodError,
    UnprovedRowsError,
    WindowExpiredError,
)
from platform_assets.kafka.evidence.gathering import Evidence
from platform_assets.kafka.evidence.partition import OffsetListing, PartitionEvidence
from platform_assets.lake import delta_log, expiring, flat, holdings, load_log
from platform_assets.lake.delta_log import DataFile
from platform_assets.lake.location import window_folders
from platform_assets.lake.vacuum import vacuum as vacuumed
from platform_assets.ledger import decisions, unloaded
from platform_assets.ledger.entries import Receipt, SealedWindow
from platform_assets.model.keeping import GRACE, Keep, keep_of
from platform_assets.model.offsets import OffsetRange
from platform_assets.model.state import StateDeclaration
from platform_assets.model.tables import TableRef
from platform_assets.orchestration import topic_tick
from platform_assets.orchestration.decoded_status import stale_windows
from platform_assets.orchestration.topic_tick import TopicTick
from platform_assets.windows.change.changing import WindowChanger
from platform_assets.windows.decide import parking
from platform_assets.windows.decide.deciding import Deciding
from platform_assets.windows.decode.decoding import DecodedWindow
from platform_assets.windows.decode.decoding_many import decode_many
from platform_assets.windows.erase import expired_files
from platform_assets.windows.load.catching_up import load_many
from platform_assets.windows.load.receipts import expired_receipt
from platform_assets.windows.load.replacing import Loaded
from platform_assets.windows.maintain import expiring as expiring_windows
from platform_assets.windows.maintain import expiry_text, last_expiry, notice
from platform_assets.windows.maintain.expiring import Expiring, ExpiryPlan
from platform_assets.windows.maintain.expiry_reasons import (
    BLOCKED,
    DAMAGED,
    DAMAGED_DECODED,
    ERASING,
    OPEN,
    PARKED,
    RETURNED,
    UNDECODED,
    UNKNOWN,
)
from platform_assets.windows.maintain.merging import Upkeep
from platform_assets.windows.maintain.migrating import Migration
from platform_assets.windows.maintain.notice import UNSEEN, ClocksDisagreeError, times_of
from platform_assets.windows.maintain.upkeep import TableUpkeep
from platform_assets.windows.recover.rebuild import rebuild
from platform_assets.windows.replay.replaying import plan
from platform_assets_tests.support.erasures import AUTHOR, DECODE, MadeTopic, evaluation_of, found_in, proved
from platform_assets_tests.support.expiries import (
    DAY,
    EACH,
    END,
    KEEP,
    KINDS,
    NOW,
    OLD,
    SEEN,
    WINDOWS,
    check_expired,
    expiring_of,
    few,
    held,
    kafka_of,
    keys,
    lose_and_rebuild_ledger,
    made,
    run,
    sealed,
    sent,
    table,
    windows,
)
from platform_assets_tests.support.made_kafka import deciding_of
from platform_assets_tests.support.recovery import clean_log, lose_ledger, vacuum
from platform_assets_tests.support.variants import both_layouts, long_after
from testbed import samples


@pytest.fixture
def topic(layout: str, tmp_path: Path) -> MadeTopic:
    """A decoded topic whose `keep` was seen a week ago."""
    found = made(tmp_path / "lake")
    assert run(found, SEEN).done == ()
    return found


# --- what is removed ---------------------------------------------------------------------------------------------


@both_layouts
def test_windows_past_keep_are_removed_from_all_tables_in_one_commit_each(topic: MadeTopic) -> None:
    before = {kind: table(topic, kind).version() for kind in KINDS}
    done = run(topic)
    assert list(done.done) == keys(topic)[:OLD]
    assert done.rows == OLD * EACH * 2
    assert {kind: table(topic, kind).version() for kind in KINDS} == {kind: v + 1 for kind, v in before.items()}
    check_expired(topic, keys(topic)[:OLD])
    assert run(topic).done == ()
    assert {kind: table(topic, kind).version() for kind in KINDS} == {kind: v + 1 for kind, v in before.items()}


def test_changes_of_a_state_that_was_removed_from_the_declaration_are_removed_too(topic: MadeTopic) -> None:
    topic.declaration = replace(topic.declaration, keep=None, state=StateDeclaration(("key",)))
    changer = WindowChanger(topic.declaration, topic.ledger)
    for key in keys(topic):
        changer.make(key)
    topic.declaration = replace(topic.declaration, keep=KEEP, state=None)
    assert list(run(topic).done) == keys(topic)[:OLD]
    assert {window for window, _, _ in held(topic, "changes")} == set(keys(topic)[OLD:])
    check_expired(topic, keys(topic)[:OLD])
    assert run(topic).done == ()


def test_nothing_is_removed_for_a_week_after_a_keep_was_seen(layout: str, tmp_path: Path) -> None:
    """So that a mistyped value shows in reports before it does harm."""
    topic = made(tmp_path / "lake", decode=False)
    topic.declaration = replace(topic.declaration, decode=None)
    plan = expiring_of(topic).plan(NOW)
    assert plan is not None
    assert (len(plan.windows), plan.policy.is_new) == (OLD, True)
    first = run(topic)
    assert (first.done, first.is_due, len(first.plan.windows)) == ((), False, OLD)
    assert run(topic, NOW + GRACE - DAY).done == ()
    # A shorter one has to wait again, and so does one that was removed in between.
    topic.declaration = replace(topic.declaration, keep=Keep(2))
    assert not run(topic, NOW + GRACE).is_due
    topic.declaration = replace(topic.declaration, keep=None)
    assert expiring_of(topic).run(NOW + GRACE + DAY) is None
    topic.declaration = replace(topic.declaration, keep=Keep(2))
    assert not run(topic, NOW + 2 * GRACE).is_due
    assert held(topic) == sent(topic, keys(topic))
    assert len(run(topic, NOW + 3 * GRACE).done) == WINDOWS


def test_windows_expire_at_midnight(topic: MadeTopic) -> None:
    until = samples.START + 2 * DAY
    assert run(topic, until - timedelta(seconds=1)).done == ()
    assert list(run(topic, until).done) == keys(topic)[:OLD]


@pytest.mark.parametrize("target", [1 << 30])
@pytest.mark.usefixtures("flat")
def test_a_merged_file_is_divided_once_and_other_windows_keep_their_rows(target: int, tmp_path: Path) -> None:
    topic = made(tmp_path / "lake")
    run(topic, SEEN)
    for kind in KINDS:
        list(
            Upkeep(replace(topic.declaration.raw_table, kind=kind), topic.ledger, target=target).run("2030-01-01-00:00")
        )
    # As in a busy table, the removal reads the merged file from a checkpoint that is not the newest version.
    for kind in KINDS:
        table(topic, kind).create_checkpoint()
        table(topic, kind).alter.set_table_properties({"delta.logRetentionDuration": "interval 31 days"})
    assert len(table(topic).file_uris()) == 1
    version = table(topic).version()
    assert list(run(topic).done) == keys(topic)[:OLD]
    assert len(table(topic).file_uris()) == 1
    folder = topic.lake.table(topic.declaration.raw_table)
    divided, removed = (delta_log.commit(folder, version + n) for n in (1, 2))
    assert divided is not None
    assert removed is not None
    assert (divided.rearranges, len(divided.adds), len(removed.removes), len(removed.adds)) == (True, 2, 1, 0)
    check_expired(topic, keys(topic)[:OLD])


@pytest.mark.long
@pytest.mark.usefixtures("flat")
def test_a_file_with_few_expired_windows_waits_until_more_are_or_a_week_has_passed(tmp_path: Path) -> None:
    topic = made(tmp_path / "lake", windows=4 * OLD + 1)
    run(topic, SEEN)
    for kind in KINDS:
        list(
            Upkeep(replace(topic.declaration.raw_table, kind=kind), topic.ledger, target=1 << 30).run(
                "2030-01-01-00:00"
            )
        )
    version = table(topic).version()
    assert run(topic).done == ()
    assert table(topic).version() == version
    topic.declaration = replace(topic.declaration, keep=KEEP)
    assert list(run(topic, NOW + DAY).done) == keys(topic)[: 2 * OLD]
    check_expired(topic, keys(topic)[: 2 * OLD])


# --- clocks --------------------------------------------------------------------------------------------------------


def test_nothing_is_removed_while_clocks_disagree(topic: MadeTopic) -> None:
    """Neither the week of notice nor the age of windows is measured by the clock of this process alone."""
    recorded = len(noticed(topic))
    real = topic.lake.root.time()
    for wrong in (real + 3650 * DAY, real - 3650 * DAY):
        for act in (Expiring(topic.declaration, topic.ledger).run, Expiring(topic.declaration, topic.ledger).plan):
            with pytest.raises(ClocksDisagreeError, match=r"the clock of the lake.s store.*Correct the clock"):
                act(wrong)
    assert len(noticed(topic)) == recorded
    assert held(topic) == sent(topic, keys(topic))
    assert Expiring(topic.declaration, topic.ledger).plan(real) is not None


def test_windows_age_only_up_to_the_newest_boundary(topic: MadeTopic) -> None:
    """So even if the clocks of this process and of the lake are both ahead, the newest windows stay."""
    real = topic.lake.root.time()
    topic.declaration = replace(topic.declaration, keep=Keep(1))
    notice.record(topic.ledger, topic.topic, Keep(1), SEEN - DAY)
    done = Expiring(topic.declaration, topic.ledger, real).run(real)
    assert done is not None
    assert (done.is_due, done.done, dict(done.plan.windows)) == (True, (), {})
    assert done.plan.policy.aged == END
    assert held(topic) == sent(topic, keys(topic))
    text = expiry_text.plan_text(last_expiry.of_plan(done.plan, real))
    assert f"newest window boundary, {END:%Y-%m-%d %H:%M} UTC" in text


def test_the_week_of_notice_has_passed_only_once_a_boundary_shows_it(
    layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a local disk, the clocks of the process and of the store are the same one, which may jump ahead."""
    topic = made(tmp_path / "lake")
    expiring, later = Expiring(topic.declaration, topic.ledger), END + GRACE + DAY
    for now in (END, later, later + 2 * DAY):
        monkeypatch.setattr(type(topic.lake.root), "time", lambda self, now=now: now)
        done = expiring.run(now)
        assert done is not None
        assert (done.is_due, done.done) == (False, ())
        text = expiry_text.text(last_expiry.of_run(done, now))
    assert held(topic) == sent(topic, keys(topic))
    assert f"removes nothing until the topic has a window boundary of {END + GRACE:%Y-%m-%d %H:%M} UTC" in text
    assert f"newest window boundary, {END:%Y-%m-%d %H:%M} UTC" in text
    assert len(run(topic, END + GRACE).done) == WINDOWS


@pytest.mark.long
def test_upkeep_that_runs_monthly_removes_windows_in_its_third_run(layout: str, tmp_path: Path) -> None:
    topic = made(tmp_path / "lake", 3)
    seen, month = None, 30 * DAY
    found = list[int]()
    for number in range(3):
        done = replace(expiring_of(topic), seen=seen).run(SEEN + number * month)
        assert done is not None
        found.append(len(done.done))
        seen = SEEN + number * month
    assert found == [0, 0, 3]


def test_a_boundary_later_than_the_clocks_shows_that_they_are_behind(
    topic: MadeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = samples.START
    monkeypatch.setattr(type(topic.lake.root), "time", lambda self: before)
    with pytest.raises(ClocksDisagreeError, match="behind the topic's newest window boundary"):
        times_of(topic.ledger, topic.topic, before)


def noticed(topic: MadeTopic) -> list[decisions.Decision]:
    return decisions.decisions(topic.lake, topic.topic, ("keep",))


def test_a_notice_of_a_wrong_clock_does_not_stop_later_ones(layout: str, tmp_path: Path) -> None:
    topic = made(tmp_path / "lake", decode=False)
    topic.declaration = replace(topic.declaration, decode=None)
    run(topic, SEEN + 3650 * DAY)
    topic.declaration = replace(topic.declaration, keep=Keep(2))
    assert run(topic, SEEN).plan.policy.is_new
    for _ in range(3):
        assert not run(topic, SEEN + DAY).plan.policy.is_new
    assert len(noticed(topic)) == 2
    assert run(topic, SEEN + GRACE - DAY).done == ()
    assert len(run(topic, SEEN + GRACE + 3 * DAY).done) == WINDOWS


def test_a_notice_in_the_future_is_given_again(layout: str, tmp_path: Path) -> None:
    topic = made(tmp_path / "lake", decode=False)
    topic.declaration = replace(topic.declaration, decode=None)
    run(topic, NOW + 3650 * DAY)
    assert run(topic, SEEN).plan.policy.is_new
    assert list(run(topic).done) == keys(topic)[:OLD]


def test_different_values_that_were_noticed_at_once_get_new_notice(layout: str, tmp_path: Path) -> None:
    topic = made(tmp_path / "lake", decode=False)
    read = notice._newest(topic.ledger, topic.topic)
    notice.record(topic.ledger, topic.topic, Keep(1), SEEN)
    (first,) = noticed(topic)
    decisions.record(topic.lake, replace(first, details={**first.details, "days": 9, "keep": "9 days"}))
    assert read == []
    assert run(topic).plan.policy.is_new
    assert held(topic) == sent(topic, keys(topic))


def test_a_topic_that_comes_back_into_the_yaml_gets_new_notice(topic: MadeTopic) -> None:
    expiring = replace(expiring_of(topic), seen=SEEN)
    later = SEEN + UNSEEN + DAY
    plan = expiring.plan(later)
    assert plan is not None
    assert (plan.policy.is_new, plan.policy.is_due(later)) == (True, False)
    unknown = replace(expiring, seen=None).plan(later)
    assert unknown is not None
    assert unknown.policy.is_new
    weekly = replace(expiring, seen=later - GRACE).plan(later)
    assert weekly is not None
    assert weekly.policy.is_due(later)


# --- size of commits -----------------------------------------------------------------------------------------------


def test_a_removal_is_committed_in_parts_of_bounded_size(topic: MadeTopic, monkeypatch: pytest.MonkeyPatch) -> None:
    split = expiring.split
    monkeypatch.setattr(expiring, "split", partial(split, most=1_000))
    before = {kind: table(topic, kind).version() for kind in KINDS}
    assert list(run(topic).done) == keys(topic)[:OLD]
    sizes = [len(c.user_metadata or "") for c in _commits(topic)[before["raw"] + 1 :]]
    assert len(sizes) > 1
    assert max(sizes) < 2_000
    check_expired(topic, keys(topic)[:OLD])


def test_another_commit_between_two_parts_is_noticed(topic: MadeTopic, monkeypatch: pytest.MonkeyPatch) -> None:
    split, commit, key = expiring.split, expiring.commit, keys(topic)[OLD - 1]
    monkeypatch.setattr(expiring, "split", partial(split, most=1_000))
    calls: list[int] = []

    def act(folder: Any, *args: Any) -> Any:
        made = commit(folder, *args)
        if folder == topic.lake.table(topic.declaration.raw_table) and not calls:
            calls.append(1)
            table(topic).delete(f"window = '{key}' AND kafka_offset % 2 = 0")
        return made

    monkeypatch.setattr(expiring, "commit", act)
    done = run(topic)
    assert done.held == {key: DAMAGED}
    assert list(done.done) == keys(topic)[: OLD - 1]


def test_windows_that_share_a_file_are_removed_together() -> None:
    files = [(DataFile(f"f{n}", {}, 1, None), set(held)) for n, held in enumerate(("ab", "bc", "d", "e"))]
    removal = expiring.plan(files, set("abcde"))
    parts = list(expiring.split(removal, files, dict.fromkeys("abcde", 10), 20))
    assert [("".join(sorted(p.windows)), sorted(f.path for f in p.files)) for p in parts] == [
        ("abc", ["f0", "f1"]),
        ("de", ["f2", "f3"]),
    ]


def test_the_first_cut_is_written_once_in_a_commit(topic: MadeTopic) -> None:
    run(topic)
    text = _commits(topic)[-1].user_metadata
    expiry = load_log.Expiry.from_json(text)
    assert expiry is not None
    assert text is not None
    assert text.count('"offsets":') == 1
    assert {each.first_cut for each in expiry.windows if each.first_cut is None} == set()
    assert load_log.Expiry.from_json(expiry.to_json()) == expiry


# --- what is left ------------------------------------------------------------------------------------------------


def test_a_damaged_window_is_named_and_removed_once_it_is_loaded_again(topic: MadeTopic) -> None:
    key = keys(topic)[3]
    table(topic).delete(f"window = '{key}' AND kafka_offset % 2 = 0")
    done = run(topic)
    assert done.held == {key: DAMAGED}
    assert key not in done.done
    assert topic.load(windows(topic)[3]).outcome == "healed"
    topic.decoder().decode(key)
    assert run(topic).done == (key,)
    check_expired(topic, keys(topic)[:OLD])


def test_a_window_with_a_lost_file_is_named(topic: MadeTopic) -> None:
    key = keys(topic)[3]
    (path,) = holdings.files_of(topic.lake.table(topic.declaration.decoded_table), key).paths
    table(topic, "decoded").delete(f"window = '{key}'")
    assert path
    done = run(topic)
    assert done.held == {key: DAMAGED_DECODED}
    assert key in {k for k, _, _ in held(topic)}
    (text,) = expiry_text.problems(topic.topic, done.held, {})
    assert f"`platform-assets load decoded/{topic.topic} {key}`" in text
    # Loading the raw window again, which has no damage, would not help.
    topic.decoder().decode(key)
    assert run(topic).done == (key,)
    check_expired(topic, keys(topic)[:OLD])


def test_a_window_that_is_not_decoded_is_named(layout: str, tmp_path: Path) -> None:
    topic = made(tmp_path / "lake", decode=False)
    run(topic, SEEN)
    topic.decoder().decode(keys(topic)[0])
    done = run(topic)
    assert done.done == (keys(topic)[0],)
    assert done.held == dict.fromkeys(keys(topic)[1:OLD], UNDECODED)
    assert held(topic) == sent(topic, keys(topic)[1:])


def test_a_window_with_an_unfinished_erasure_is_left_until_it_is_finished(topic: MadeTopic) -> None:
    selected = topic.erasure.at_offsets({0: (OffsetRange(4, 5),)})
    topic.erasure.record(selected, AUTHOR)
    (key,) = (s.sealed.key for s in selected)
    assert run(topic).held == {key: ERASING}
    topic.erasure.run(AUTHOR)
    assert run(topic).done == (key,)
    check_expired(topic, keys(topic)[:OLD])
    assert found_in(topic.root, b"v-2-0-0") == []


def test_rows_of_another_writer_are_never_removed(topic: MadeTopic) -> None:
    """A window that the ledger does not know stays, and so does a window to which somebody has added rows."""
    rows = table(topic).to_pyarrow_table()
    foreign = rows.slice(0, 1)
    at = foreign.column_names.index("window")
    for name in (keys(topic)[1], "2025-12-31-00:00"):
        added = foreign.set_column(at, foreign.schema.field("window"), pa.array([name]))
        from deltalake import write_deltalake

        write_deltalake(topic.root / "raw" / topic.topic, added, mode="append")
    assert run(topic).held == {keys(topic)[1]: DAMAGED}
    rows = pl.scan_delta(str(topic.root / "raw" / topic.topic)).select("window").collect()
    assert set(rows["window"].to_list()) == {"2025-12-31-00:00", keys(topic)[1], *keys(topic)[OLD:]}


# --- loading -----------------------------------------------------------------------------------------------------


def test_a_reload_is_refused_until_keep_is_lengthened_and_then_loads_the_same_rows_from_kafka(topic: MadeTopic) -> None:
    before = topic.receipts()
    run(topic)
    _, loader = kafka_of(topic)
    key = keys(topic)[2]
    with pytest.raises(WindowExpiredError, match=rf"{key} of raw/people has expired.*`keep: 1 day`"):
        loader.load(key)
    with pytest.raises(WindowExpiredError, match=f"load raw/people {key}"):
        topic.decoder().decode(key)
    topic.declaration = replace(topic.declaration, keep=Keep(30))
    _, loader = kafka_of(topic)
    assert loader.load(key).outcome == "healed"
    again = topic.receipts()[key]
    assert (again.content, again.offsets) == (before[key].content, before[key].offsets)
    topic.decoder().decode(key)
    check_expired(topic, [k for k in keys(topic)[:OLD] if k != key])


def test_a_window_whose_receipt_from_before_is_lost_too_does_not_name_a_remedy_that_is_refused(
    layout: str, tmp_path: Path
) -> None:
    topic = made(tmp_path / "lake", 3)
    run(topic, SEEN)
    run(topic)
    lose_ledger(topic)
    rebuild(topic.declaration, topic.ledger, topic.engine)
    topic.declaration = replace(topic.declaration, keep=None)
    cluster, loader = kafka_of(topic)
    for partition in (0, 1):
        cluster.expire(partition, 20)
    with pytest.raises(ExpiredForGoodError, match="neither Kafka nor any version"):
        loader.load(keys(topic)[0])


def test_windows_whose_files_cannot_be_removed_are_named(
    layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = made(tmp_path / "lake", 3)
    run(topic, SEEN)
    with monkeypatch.context() as patched:
        patched.setattr(flat, "is_removable", lambda path: False)
        done = run(topic)
    assert (done.done, done.held) == ((), dict.fromkeys(keys(topic), BLOCKED))
    assert held(topic, "decoded") == held(topic) == sent(topic, keys(topic))
    unreadable = [(DataFile("f", {}, 1, None), None)]
    assert expiring.blocked(unreadable, {"a"}) == {"a"}
    assert len(run(topic).done) == 3


@both_layouts
def test_a_window_that_kafka_no_longer_has_comes_back_from_a_past_version_until_vacuum(topic: MadeTopic) -> None:
    before = topic.receipts()
    run(topic)
    topic.declaration = replace(topic.declaration, keep=None)
    cluster, loader = kafka_of(topic)
    for partition in (0, 1):
        cluster.expire(partition, 20)
    first, second = keys(topic)[:2]
    assert loader.load(first).outcome == "restored"
    assert topic.receipts()[first].content == before[first].content
    vacuum(table(topic))
    with pytest.raises(ExpiredForGoodError, match="neither Kafka nor any version"):
        loader.load(second)
    assert topic.receipts()[second].is_expired


def test_vacuum_keeps_removed_files_for_a_week_however_old_they_are(topic: MadeTopic) -> None:
    old = (NOW - 400 * DAY).timestamp()
    for path in topic.root.rglob("*.parquet"):
        os.utime(path, (old, old))
    run(topic)
    for kind in KINDS:
        of = replace(topic.declaration.raw_table, kind=kind)
        assert vacuumed(of, topic.lake.table(of)).files == ()
    topic.declaration = replace(topic.declaration, keep=None)
    cluster, loader = kafka_of(topic)
    for partition in (0, 1):
        cluster.expire(partition, 20)
    assert loader.load(keys(topic)[0]).outcome == "restored"


def test_expired_windows_are_neither_waiting_nor_planned_nor_accepted_as_lost(topic: MadeTopic) -> None:
    run(topic)
    cluster, loader = kafka_of(topic)
    newest = topic.ledger.newest_edges([topic.topic])[topic.topic]
    for kind in KINDS[:2]:
        assert not unloaded.find(topic.ledger, replace(topic.declaration.raw_table, kind=kind), newest).windows
    (planned,) = plan(loader, windows(topic)[:1])
    assert planned.deed == "expired"
    lengthened = replace(loader, declaration=replace(topic.declaration, keep=Keep(9)))
    assert plan(lengthened, windows(topic)[:1])[0].deed == "return"
    said: list[str] = []
    deciding_of(topic, cluster, said).loss(keys(topic)[0])
    assert any("expired" in text for text in said)
    assert topic.ledger.accepted_losses(topic.declaration.raw_table, keys(topic)[0]) == {}


# --- crashes -----------------------------------------------------------------------------------------------------


class Died(Exception):
    pass


@pytest.mark.parametrize(
    ("layout", "step"),
    [
        *(pytest.param("flat", n, marks=() if n % 3 != 1 else pytest.mark.long) for n in range(14)),
        *(pytest.param("partitioned", n, marks=() if n in (3, 5, 11) else pytest.mark.long) for n in range(14)),
    ],
    indirect=["layout"],
)
def test_a_run_that_dies_between_any_two_steps_is_finished_by_the_next(
    topic: MadeTopic, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step is dying before and after it; whatever is done by then is harmless."""
    calls: list[str] = []

    def dying(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def act(*args: Any, **options: Any) -> Any:
            calls.append(f"before {name}")
            if len(calls) - 1 == step:
                raise Died
            found = call(*args, **options)
            calls.append(f"after {name}")
            if len(calls) - 1 == step:
                raise Died
            return found

        return act

    with monkeypatch.context() as patched:
        patched.setattr(decisions, "record", dying("decision", decisions.record))
        patched.setattr(expiring, "commit", dying("commit", expiring.commit))
        record = type(topic.ledger).record_receipts
        patched.setattr(type(topic.ledger), "record_receipts", dying("receipts", record))
        with pytest.raises(Died):
            run(topic)
    left = keys(topic)[OLD:]
    assert sent(topic, left) <= held(topic) <= sent(topic, keys(topic))
    run(topic)
    check_expired(topic, keys(topic)[:OLD])


def test_there_are_no_other_steps(topic: MadeTopic, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def noted(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def act(*args: Any) -> Any:
            calls.append(name)
            return call(*args)

        return act

    monkeypatch.setattr(decisions, "record", noted("decision", decisions.record))
    monkeypatch.setattr(expiring, "commit", noted("commit", expiring.commit))
    ledger = type(topic.ledger)
    monkeypatch.setattr(ledger, "record_receipts", noted("receipts", ledger.record_receipts))
    run(topic)
    assert calls == ["decision", *["commit", "receipts"] * 3]


@both_layouts
def test_a_load_finds_a_removal_whose_receipts_are_missing(topic: MadeTopic, monkeypatch: pytest.MonkeyPatch) -> None:
    key = keys(topic)[2]
    with monkeypatch.context() as patched:
        done = iter([True, True, False])
        record = type(topic.ledger).record_receipts

        def recorded(*args: Any) -> None:
            if not next(done):
                raise Died
            record(*args)

        patched.setattr(type(topic.ledger), "record_receipts", recorded)
        with pytest.raises(Died):
            run(topic)
    assert not topic.receipts()[key].is_expired
    _, loader = kafka_of(topic)
    with pytest.raises(WindowExpiredError):
        loader.load(key)
    assert topic.receipts()[key].is_expired
    assert held(topic) == sent(topic, keys(topic)[OLD:])


def test_a_lost_answer_is_found_in_the_log(topic: MadeTopic, monkeypatch: pytest.MonkeyPatch) -> None:
    write = DeltaTable.create_write_transaction

    def lost(self: DeltaTable, *args: Any, **options: Any) -> None:
        write(self, *args, **options)
        raise OSError("the connection broke")

    with monkeypatch.context() as patched:
        patched.setattr(DeltaTable, "create_write_transaction", lost)
        assert list(run(topic).done) == keys(topic)[:OLD]
    check_expired(topic, keys(topic)[:OLD])


def test_an_unknown_outcome_is_named_and_finished_by_the_next_run(
    topic: MadeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(self: DeltaTable, *args: Any, **options: Any) -> None:
        raise OSError("the connection broke")

    with monkeypatch.context() as patched:
        patched.setattr(DeltaTable, "create_write_transaction", lost)
        with pytest.raises(CommitOutcomeUnknownError):
            run(topic)
    assert held(topic) == sent(topic, keys(topic))
    run(topic)
    check_expired(topic, keys(topic)[:OLD])


# --- races -------------------------------------------------------------------------------------------------------


def before_commits(monkeypatch: pytest.MonkeyPatch, act: Callable[[], Any], number: int = 1) -> None:
    """Call `act` just before each of the first `number` commits that remove expired windows."""
    commit, left = expiring.commit, [act] * number

    def interrupted(*args: Any) -> Any:
        if left:
            left.pop()()
        return commit(*args)

    monkeypatch.setattr(expiring, "commit", interrupted)


def test_a_damage_just_before_the_commit_keeps_the_window(topic: MadeTopic, monkeypatch: pytest.MonkeyPatch) -> None:
    key = keys(topic)[4]
    before_commits(
        monkeypatch,
        lambda: table(topic, "dead_letters").alter.set_table_properties(
            {"delta.logRetentionDuration": "interval 31 days"}
        ),
    )
    table_raw, commit = topic.declaration.raw_table, expiring.commit

    def damaged(folder: Any, *args: Any) -> Any:
        if folder == topic.lake.table(table_raw) and not any(True for _ in calls):
            calls.append(1)
            table(topic).delete(f"window = '{key}' AND kafka_offset % 2 = 0")
        return commit(folder, *args)

    calls: list[int] = []
    monkeypatch.setattr(expiring, "commit", damaged)
    done = run(topic)
    assert done.held == {key: DAMAGED}
    assert key in {k for k, _, _ in held(topic)}
    assert [k for k in keys(topic)[:OLD] if k not in done.done] == [key]


def test_a_load_of_a_window_that_commits_first_is_not_lost(topic: MadeTopic, monkeypatch: pytest.MonkeyPatch) -> None:
    """A heal, then the removal: the removal is planned again, on what the heal has committed."""
    window = windows(topic)[5]
    calls: list[int] = []
    commit = expiring.commit

    def act(folder: Any, *args: Any) -> Any:
        if folder == topic.lake.table(topic.declaration.raw_table) and not calls:
            calls.append(1)
            table(topic).delete(f"window = '{window.key}'")
            assert topic.load(window).outcome == "healed"
        return commit(folder, *args)

    monkeypatch.setattr(expiring, "commit", act)
    assert list(run(topic).done) == keys(topic)[:OLD]
    monkeypatch.undo()
    check_expired(topic, keys(topic)[:OLD])


def test_a_load_in_flight_cannot_bring_a_removed_window_back(topic: MadeTopic) -> None:
    window = windows(topic)[5]
    table(topic).delete(f"window = '{window.key}'")
    assert topic.load(window).outcome == "healed"
    topic.decoder().decode(window.key)

    def then() -> None:
        run(topic)

    with pytest.raises(ConcurrentLoadError):
        # The load finds the window damaged, and would repair it.
        _load_after(topic, window, then)
    check_expired(topic, keys(topic)[:OLD])


def _load_after(topic: MadeTopic, window: SealedWindow, act: Callable[[], None]) -> None:
    commit = topic.replacer.open()
    act()
    metadata = load_log.LoadMetadata(
        window.topic, window.topic_id, window.generation, window.window, window.ranges, "rival", "run"
    )
    commit.replace(metadata, ())


def test_an_erasure_recorded_just_before_the_commit_is_carried_out_in_past_versions(
    topic: MadeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    before_commits(
        monkeypatch, lambda: topic.erasure.record(topic.erasure.at_offsets({0: (OffsetRange(4, 5),)}), AUTHOR)
    )
    run(topic)
    monkeypatch.undo()
    assert found_in(topic.root, b"v-2-0-0")
    topic.erasure.run(AUTHOR)
    assert found_in(topic.root, b"v-2-0-0") == []
    run(topic)
    check_expired(topic, keys(topic)[:OLD])


def test_two_runs_at_once_remove_each_window_once(topic: MadeTopic, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = expiring.commit
    inside: list[int] = []

    def act(*args: Any) -> Any:
        if not inside:
            inside.append(1)
            run(topic)
        return commit(*args)

    monkeypatch.setattr(expiring, "commit", act)
    run(topic)
    monkeypatch.undo()
    check_expired(topic, keys(topic)[:OLD])
    commits = [load_log.Expiry.from_json(c.user_metadata) for c in _commits(topic)]
    named = [each.window.key for expiry in commits if expiry is not None for each in expiry.windows]
    assert sorted(named) == keys(topic)[:OLD]


def _commits(topic: MadeTopic) -> list[delta_log.Commit]:
    folder = topic.lake.table(topic.declaration.raw_table)
    found = (delta_log.commit(folder, version) for version in range(delta_log.version(folder) + 1))
    return [each for each in found if each is not None]


@pytest.mark.usefixtures("flat")
def test_upkeep_that_read_expired_windows_loses_and_leaves_nothing(tmp_path: Path) -> None:
    topic = made(tmp_path / "lake")
    run(topic, SEEN)
    upkeep = Upkeep(topic.declaration.raw_table, topic.ledger, target=1 << 30)
    planned = upkeep.plan("2030-01-01-00:00")
    assert planned is not None
    assert len(planned.groups) == 1
    run(topic)
    (merged,) = upkeep.merge(planned)
    assert (merged.version, merged.damaged) == (None, ())
    check_expired(topic, keys(topic)[:OLD])


def test_loads_of_other_windows_do_not_make_a_removal_start_over(
    topic: MadeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A busy topic commits before each attempt."""
    commit, read, younger = expiring.commit, Expiring._held, windows(topic)[OLD:]
    healed, kinds = list[str](), list[str]()
    for window in younger:
        table(topic).delete(f"window = '{window.key}'")

    def counted(self: Expiring, of: TableRef, *args: Any) -> Any:
        kinds.append(of.kind)
        return read(self, of, *args)

    def act(folder: Any, *args: Any) -> Any:
        if folder == topic.lake.table(topic.declaration.raw_table) and younger:
            healed.append(topic.load(younger.pop()).outcome)
        return commit(folder, *args)

    monkeypatch.setattr(Expiring, "_held", counted)
    monkeypatch.setattr(expiring, "commit", act)
    assert list(run(topic).done) == keys(topic)[:OLD]
    monkeypatch.undo()
    assert healed == ["healed"] * (WINDOWS - OLD)
    # Once for the plan, and once for the removal.
    assert kinds.count("raw") == 2
    check_expired(topic, keys(topic)[:OLD])


# --- what else meets expired windows -----------------------------------------------------------------------------


def test_an_erasure_by_key_finds_records_of_expired_windows_on_disk(topic: MadeTopic) -> None:
    run(topic)
    assert found_in(topic.root, b"v-2-1-1")
    selected = [s for s in topic.erasure.of_keys([b"k1"]) if s.sealed.key in keys(topic)[:OLD]]
    assert [s.sealed.key for s in selected] == keys(topic)[:OLD]
    topic.erasure.record(selected[:3], AUTHOR)
    topic.erasure.run(AUTHOR)
    for number in range(3):
        assert found_in(topic.root, b"v-%d-1-1" % number) == []
    assert found_in(topic.root, b"v-3-1-1")
    check_expired(topic, keys(topic)[:OLD])


def test_an_erasure_by_key_finds_records_that_a_load_brings_back_during_the_search(
    layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = few(tmp_path / "lake", 1)
    run(topic)
    vacuum(table(topic))
    topic.declaration = replace(topic.declaration, keep=None)
    (window,), of_table = windows(topic), expired_files.of_table

    def loads_first(*args: Any) -> Any:
        assert kafka_of(topic)[1].load(window.key).outcome == "healed"
        return of_table(*args)

    monkeypatch.setattr(expired_files, "of_table", loads_first)
    assert [s.sealed.key for s in topic.erasure.of_keys([b"k1"])] == [window.key]


def erase_key(topic: MadeTopic, key: bytes) -> list[str]:
    """Erase a key as the command does; return what it says."""
    said: list[str] = []
    deciding = Deciding(
        topic.declaration, topic.ledger, _never, _never, _never, AUTHOR, said.append, confirm=lambda question: None
    )
    deciding.erasure({}, [key])
    return said


def _never() -> NoReturn:
    raise AssertionError


@both_layouts
def test_an_erasure_by_key_finds_files_that_no_log_names(topic: MadeTopic) -> None:
    """Partitioned and flat: files of expired windows, after the log of each table was cleaned up."""
    run(topic)
    for kind in KINDS:
        clean_log(table(topic, kind))
    assert found_in(topic.root, b"v-2-1-1")
    said = erase_key(topic, b"k1")
    assert "erased" in said[-1]
    for number in range(WINDOWS):
        assert found_in(topic.root, b"v-%d-1-1" % number) == []
    assert found_in(topic.root, b"v-%d-1-0" % (WINDOWS - 1))


@pytest.mark.long
@pytest.mark.usefixtures("flat")
def test_an_erasure_by_key_finds_merged_files_that_no_log_names(tmp_path: Path) -> None:
    topic = made(tmp_path / "lake")
    run(topic, SEEN)
    for kind in KINDS:
        of = replace(topic.declaration.raw_table, kind=kind)
        list(Upkeep(of, topic.ledger, target=1 << 30).run("2030-01-01-00:00"))
    run(topic)
    for kind in KINDS:
        clean_log(table(topic, kind))
    assert found_in(topic.root, b"v-2-1-1")
    erase_key(topic, b"k1")
    for number in range(WINDOWS):
        assert found_in(topic.root, b"v-%d-1-1" % number) == []
    assert held(topic) == held(topic, "decoded")


def test_an_erasure_by_key_deletes_derived_files_whose_raw_rows_are_gone(topic: MadeTopic) -> None:
    """Their rows cannot be compared with a key. The report names them before it asks."""
    run(topic)
    vacuum(table(topic))
    assert found_in(topic.root, b"v-2-1-1")
    assert any(f"decoded/people: {OLD} files" in text and "will be deleted" in text for text in erase_key(topic, b"k1"))
    for number in range(OLD):
        assert found_in(topic.root, b"v-%d-1-" % number) == []
    assert {k for k, _, _ in held(topic, "decoded")} == set(keys(topic)[OLD:])
    proved(topic)


def test_files_of_topics_without_expired_windows_are_not_listed(
    topic: MadeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expiring, "files_on_disk", lambda *_: _never())
    assert topic.erasure.of_keys([b"k1"])


@pytest.mark.usefixtures("partitioned")
def test_upkeep_deletes_removed_files_of_partitioned_tables_after_their_retention(tmp_path: Path) -> None:
    topic = made(tmp_path / "lake")
    run(topic, SEEN)
    run(topic)
    upkeeps = [
        TableUpkeep.of(replace(topic.declaration.raw_table, kind=kind), topic.ledger, topic.declaration)
        for kind in KINDS
    ]
    for each in upkeeps:
        assert each.run(NOW) is None
    assert found_in(topic.root, b"v-2-1-1")
    for kind in KINDS:
        table(topic, kind).alter.set_table_properties({"delta.deletedFileRetentionDuration": "interval 0 hours"})
    # Files of other windows stay, whatever their state, since one of them may be the only one with its rows.
    for kind in KINDS[:2]:
        table(topic, kind).delete(f"window = '{keys(topic)[-1]}'")
    for each in upkeeps:
        assert each.run(NOW) is None
    assert found_in(topic.root, b"v-%d-1-1" % (WINDOWS - 1))
    assert found_in(topic.root, b"v-2-1-1") == []
    topic.load(windows(topic)[-1])
    topic.decoder().decode(keys(topic)[-1])
    check_expired(topic, keys(topic)[:OLD])


@pytest.mark.usefixtures("partitioned")
def test_upkeep_does_not_delete_files_that_a_restore_names_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = few(tmp_path / "lake")
    version = table(topic).version()
    run(topic)
    table(topic).alter.set_table_properties({"delta.deletedFileRetentionDuration": "interval 0 hours"})
    size, restored = type(topic.lake.root).size, list[int]()

    def then(folder: Any, name: str) -> Any:
        if name.startswith("window=") and not restored:
            restored.append(1)
            table(topic).restore(version)
        return size(folder, name)

    monkeypatch.setattr(type(topic.lake.root), "size", then)
    assert TableUpkeep.of(topic.declaration.raw_table, topic.ledger, topic.declaration).run(NOW) is None
    assert restored
    assert held(topic) == sent(topic, keys(topic))


@pytest.mark.usefixtures("partitioned")
def test_files_of_windows_that_count_again_by_the_time_of_deletion_are_left(tmp_path: Path) -> None:
    topic = few(tmp_path / "lake")
    run(topic)
    folder = topic.lake.table(topic.declaration.raw_table)
    table(topic).alter.set_table_properties({"delta.deletedFileRetentionDuration": "interval 0 hours"})
    expired = [{below for key in some for below in window_folders(key)} for some in (keys(topic), keys(topic)[1:])]
    vacuumed(topic.declaration.raw_table, folder, below=lambda: expired.pop(0))
    assert expired == []
    assert found_in(topic.root / "raw", b"v-0-1-1")
    assert found_in(topic.root / "raw", b"v-1-1-1") == []


@pytest.mark.usefixtures("partitioned")
def test_upkeep_of_a_partitioned_table_without_removals_reads_no_receipts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = few(tmp_path / "lake")
    monkeypatch.setattr(type(topic.ledger), "commit_rows", lambda *args, **options: _never())
    assert TableUpkeep.of(topic.declaration.raw_table, topic.ledger, None).run(NOW) is None


@pytest.mark.usefixtures("flat")
def test_upkeep_deletes_old_files_although_windows_have_expired(tmp_path: Path) -> None:
    """Their receipts have no rows, so nothing of them has to be proved."""
    topic = made(tmp_path / "lake")
    run(topic, SEEN)
    run(topic)
    done = TableUpkeep.of(topic.declaration.raw_table, topic.ledger, topic.declaration).run(NOW)
    assert done is not None
    assert (done.unproved, done.vacuumed_at) == ((), NOW)


@both_layouts
def test_rows_that_come_back_with_a_past_version_are_removed_again(topic: MadeTopic) -> None:
    version = {kind: table(topic, kind).version() for kind in KINDS}
    run(topic)
    for kind in KINDS[:2]:
        table(topic, kind).restore(version[kind])
    assert held(topic) == sent(topic, keys(topic))
    assert list(run(topic).done) == keys(topic)[:OLD]
    check_expired(topic, keys(topic)[:OLD])


def test_other_rows_that_come_back_are_named_until_they_are_deleted(topic: MadeTopic) -> None:
    key, version = keys(topic)[3], table(topic).version()
    run(topic)
    table(topic).restore(version)
    table(topic).delete(f"window = '{key}' AND kafka_offset % 2 = 0")
    done = run(topic)
    assert done.held == {key: RETURNED}
    (text,) = expiry_text.problems(topic.topic, done.held, {})
    assert "Delete the rows of this window" in text
    table(topic).delete(f"window = '{key}'")
    assert run(topic).held == {}
    check_expired(topic, keys(topic)[:OLD])


def test_rows_that_come_back_are_named_if_the_ledger_cannot_prove_them(topic: MadeTopic) -> None:
    version = table(topic).version()
    run(topic)
    lose_and_rebuild_ledger(topic)
    table(topic).restore(version)
    assert run(topic).held == dict.fromkeys(keys(topic)[:OLD], RETURNED)


def test_a_lost_ledger_is_rebuilt_with_expired_windows(topic: MadeTopic) -> None:
    run(topic)
    sealed = keys(topic)
    lose_and_rebuild_ledger(topic)
    assert keys(topic) == sealed
    check_expired(topic, sealed[:OLD])
    _, loader = kafka_of(topic)
    with pytest.raises(WindowExpiredError):
        loader.load(sealed[0])


def test_a_later_run_does_not_mind_a_cleaned_log(topic: MadeTopic) -> None:
    run(topic)
    for kind in KINDS[:2]:
        clean_log(table(topic, kind))
        vacuum(table(topic, kind))
    assert run(topic).done == ()
    assert held(topic) == held(topic, "decoded") == sent(topic, keys(topic)[OLD:])


@pytest.mark.usefixtures("partitioned")
def test_a_table_with_expired_windows_is_migrated(tmp_path: Path) -> None:
    topic = made(tmp_path / "lake")
    run(topic, SEEN)
    run(topic)
    for kind in KINDS:
        done = Migration(replace(topic.declaration.raw_table, kind=kind), topic.ledger).run()
        assert done.version is not None
    check_expired(topic, keys(topic)[:OLD])
    assert len(run(topic, NOW + DAY).done) == WINDOWS - OLD


def test_kafka_may_have_less_than_keep(layout: str, tmp_path: Path) -> None:
    """Retention of the brokers does not matter: a window is removed when it is past `keep`, and not before."""
    topic = made(tmp_path / "lake")
    run(topic, SEEN)
    cluster, loader = kafka_of(topic)
    for partition in (0, 1):
        cluster.expire(partition, WINDOWS * EACH)
    assert loader.load(keys(topic)[0]).outcome == "kept"
    assert list(run(topic).done) == keys(topic)[:OLD]
    assert loader.load(keys(topic)[OLD]).outcome == "kept"
    check_expired_without_records(topic)


def check_expired_without_records(topic: MadeTopic) -> None:
    assert {k for k, _, _ in held(topic)} == set(keys(topic)[OLD:])
    proved(topic)


# --- decoding, restoring and evidence ----------------------------------------------------------------------------------


def test_windows_that_expired_before_the_topic_was_decoded_are_not_requested(layout: str, tmp_path: Path) -> None:
    topic = made(tmp_path / "lake", decode=False)
    declared = topic.declaration
    topic.declaration = replace(declared, decode=None)
    run(topic, SEEN)
    run(topic)
    topic.declaration = declared
    newest = topic.ledger.newest_edges([topic.topic])[topic.topic]
    waiting = partial(unloaded.find, topic.ledger, declared.decoded_table, newest)
    assert list(waiting().windows) == keys(topic)
    nothing: Any = None
    tick = TopicTick(declared, nothing, topic.ledger, nothing, NOW, nothing)
    assert list(tick._undecoded(newest, unloaded.Unloaded())) == keys(topic)[OLD:]
    assert list(waiting().windows) == keys(topic)[OLD:]
    outcomes = dict(decode_many(topic.decoder(), keys(topic)))
    assert [key for key, o in outcomes.items() if isinstance(o, WindowExpiredError)] == keys(topic)[:OLD]
    check_expired(topic, keys(topic)[:OLD])
    topic.declaration = replace(declared, keep=None)
    _, loader = kafka_of(topic)
    assert loader.load(keys(topic)[0]).outcome == "healed"
    topic.decoder().decode(keys(topic)[0])
    check_expired(topic, keys(topic)[1:OLD])


def test_ticks_of_topics_without_removals_read_no_receipts_of_undecoded_windows(
    layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = made(tmp_path / "lake", 3, decode=False)
    monkeypatch.setattr(topic_tick, "record_undecoded", lambda *args: _never())
    newest, nothing = topic.ledger.newest_edges([topic.topic])[topic.topic], cast("Any", None)
    tick = TopicTick(replace(topic.declaration, keep=None), nothing, topic.ledger, nothing, NOW, nothing)
    assert list(tick._undecoded(newest, unloaded.Unloaded())) == keys(topic)


def test_decoding_such_a_window_records_it_too(layout: str, tmp_path: Path) -> None:
    topic = few(tmp_path / "lake", decode=False)
    run(topic)
    topic.declaration = replace(topic.declaration, decode=DECODE)
    with pytest.raises(WindowExpiredError):
        topic.decoder().decode(keys(topic)[0])
    assert {kind: list(topic.receipts(kind)) for kind in KINDS[1:]} == dict.fromkeys(KINDS[1:], keys(topic)[:1])


@pytest.mark.parametrize("has_kafka", long_after(1, [True, False]))
@pytest.mark.parametrize("compacts", [True, False])
def test_restored_rows_count_again_once_keep_is_lengthened(
    layout: str, tmp_path: Path, *, has_kafka: bool, compacts: bool
) -> None:
    topic = few(tmp_path / "lake")
    before = {kind: (table(topic, kind).version(), topic.receipts(kind)) for kind in KINDS}
    run(topic)
    topic.declaration = replace(topic.declaration, keep=None)
    for kind in KINDS[:2]:
        table(topic, kind).restore(before[kind][0])
        if compacts:
            table(topic, kind).optimize.compact()
    cluster, loader = kafka_of(topic)
    if not has_kafka:
        for partition in (0, 1):
            cluster.expire(partition, 3 * EACH)
    for key in keys(topic):
        assert loader.load(key).outcome == ("unchanged" if has_kafka else "kept")
        topic.decoder().decode(key)
    assert not any(r.is_expired for kind in KINDS for r in topic.receipts(kind).values())
    assert {key: r.content for key, r in topic.receipts().items()} == {
        k: r.content for k, r in before["raw"][1].items()
    }
    assert len(held(topic)) == len(held(topic, "decoded")) == 3 * EACH * 2
    proved(topic)


@pytest.mark.parametrize(
    ("log", "lost", "gone"),
    long_after(
        2,
        [
            ("has the loads", "before the load", 2 * EACH),
            ("has only the removal", "before the load", 0),
            ("has only the removal", "before the load", 1),
            ("has only the removal", "after the load", 2 * EACH),
            ("has only the removal", "before and after", 2 * EACH),
        ],
    ),
)
def test_rows_that_were_restored_outlive_a_lost_ledger(
    layout: str, tmp_path: Path, log: str, lost: str, gone: int
) -> None:
    topic = few(tmp_path / "lake", 2)
    every, content = keys(topic), {key: r.content for key, r in topic.receipts().items()}
    if log == "has only the removal":
        for kind in KINDS[:2]:
            clean_log(table(topic, kind))
    version = {kind: table(topic, kind).version() for kind in KINDS[:2]}
    run(topic)
    topic.declaration = replace(topic.declaration, keep=None)
    for kind in KINDS[:2]:
        table(topic, kind).restore(version[kind])
    cluster, loader = kafka_of(topic)
    for partition in (0, 1):
        cluster.expire(partition, gone)
    everything = held(topic)
    assert len(everything) == len(held(topic, "decoded")) == 2 * EACH * 2
    for step in ("before the load", "after the load"):
        if lost in (step, "before and after"):
            _rebuilt_anew(topic)
        assert held(topic) == everything
        accepted = list[str]()
        for key, outcome in load_many(loader, every):
            if isinstance(outcome, UnprovedRowsError):
                assert "accept-loss raw/people" in str(outcome)
                deciding_of(topic, cluster, accepted).loss(key)
            else:
                assert isinstance(outcome, Loaded)
        assert held(topic) == everything
        # Only rows that neither a load in the log nor Kafka proves need a decision, and only once.
        needs = step != "after the load" and lost != "after the load" and log != "has the loads" and gone
        assert bool(accepted) == bool(needs)
        assert {key: r.content for key, r in topic.receipts().items()} == content
        decoded = dict(decode_many(topic.decoder(), every))
        assert all(isinstance(outcome, DecodedWindow) for outcome in decoded.values()), decoded
        assert held(topic, "decoded") == everything
        proved(topic)
    assert {o.outcome for _, o in load_many(loader, every) if isinstance(o, Loaded)} <= {"unchanged", "kept"}


def _rebuilt_anew(topic: MadeTopic) -> None:
    lose_and_rebuild_ledger(topic)


def test_a_part_of_the_restored_rows_is_kept_until_its_loss_is_accepted(layout: str, tmp_path: Path) -> None:
    topic = few(tmp_path / "lake", 1)
    (key,), version = keys(topic), table(topic).version()
    run(topic)
    topic.declaration = replace(topic.declaration, keep=None)
    table(topic).restore(version)
    table(topic).delete("kafka_offset = 0")
    vacuum(table(topic))
    left = held(topic)
    cluster, loader = kafka_of(topic)
    for partition in (0, 1):
        cluster.expire(partition, EACH)
    with pytest.raises(LostForGoodError, match="accept-loss raw/people"):
        loader.load(key)
    assert held(topic) == left
    assert len(left) == 2
    said: list[str] = []
    replace(deciding_of(topic, cluster, said), author=None).loss(key)
    assert "only the loss of rows that no longer exist" in said[-1]
    deciding_of(topic, cluster, said).loss(key)
    assert (held(topic), topic.receipts()[key].rows) == (left, 2)
    topic.decoder().decode(key)
    assert held(topic, "decoded") == left


def test_a_window_whose_holes_nobody_could_explain_stays_until_the_loss_is_accepted(
    layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = MadeTopic(tmp_path / "lake")
    topic.declaration = replace(topic.declaration, keep=KEEP)
    (window,) = sealed(topic, 1)
    topic.records[:] = [r for r in topic.records if (r.partition, r.offset) != (0, 1)]
    topic.fill([window])
    run(topic, SEEN)
    raw, key = topic.declaration.raw_table, window.key
    lacking = topic.receipts()[key]
    assert (lacking.rows, lacking.holes) == (EACH * 2 - 1, None)
    assert run(topic).held == {key: OPEN}
    topic.ledger.record_receipts([replace(lacking, holes={"below log start": 1}, proved_by="broker evidence")])
    assert run(topic).held == {key: UNKNOWN}
    (text,) = expiry_text.problems(topic.topic, {key: UNKNOWN}, {})
    assert f"`platform-assets accept-loss raw/people {key} --reason" in text
    cluster, _ = kafka_of(topic)
    for partition in (0, 1):
        cluster.expire(partition, EACH)
    deciding_of(topic, cluster, []).loss(key)
    assert topic.ledger.accepted_losses(raw, key) == {0: (OffsetRange(1, 2),)}
    monkeypatch.setattr(proving, "_evidence", lambda e, receipt, accepted, **_: _all_below_log_start(receipt))
    assert accounted.evaluate(evaluation_of(topic)).passed
    assert topic.receipts()[key].holes == {"accepted loss": 1}
    assert run(topic).done == (key,)
    proved(topic)


def _all_below_log_start(receipt: Receipt) -> Evidence:
    return Evidence(
        receipt.topic,
        receipt.topic_id,
        False,
        {
            p: PartitionEvidence(r, r.end, below_log_start=OffsetListing((r,), 1, r.size, r.end))
            for p, r in receipt.ranges.items()
        },
    )


def test_no_evidence_turns_an_expired_window_into_one_without_rows(layout: str, tmp_path: Path) -> None:
    topic = few(tmp_path / "lake")
    run(topic)
    (first, *_), raw = windows(topic), topic.receipts()
    known = raw[first.key]
    topic.ledger.record_receipts([replace(known, holes={"below log start": first.ranges.size})])
    topic.ledger.record_acceptance(first, dict.fromkeys((0, 1), (OffsetRange(0, EACH),)), "a test")
    accounted.evaluate(evaluation_of(topic))
    assert topic.receipts()[first.key].is_expired
    before = topic.ledger.receipts_before_expiry(topic.declaration.raw_table, [first.key])[first.key]
    assert before.rows == EACH * 2


def test_a_changed_declaration_does_not_keep_windows(layout: str, tmp_path: Path) -> None:
    topic = few(tmp_path / "lake")
    topic.declaration = replace(topic.declaration, decode=replace(DECODE, revision=2))
    assert topic.declaration.decode is not None
    assert topic.declaration.decode.digest != DECODE.digest
    assert list(run(topic).done) == keys(topic)


def test_damaged_decoded_rows_of_a_topic_that_is_no_longer_decoded_can_be_moved_away(
    layout: str, tmp_path: Path
) -> None:
    topic = few(tmp_path / "lake")
    topic.declaration = replace(topic.declaration, decode=None)
    key = keys(topic)[0]
    table(topic, "decoded").delete(f"window = '{key}' AND kafka_offset % 2 = 0")
    assert run(topic).held == {key: DAMAGED_DECODED}
    (text,) = expiry_text.problems(topic.topic, {key: DAMAGED_DECODED}, {})
    assert "move the tables decoded/people and dead_letters/people away" in text
    for kind in KINDS[1:]:
        (topic.root / kind / topic.topic).rename(tmp_path / kind)
    assert run(topic).done == (key,)
    assert held(topic) == set()


def test_windows_that_stay_hold_up_no_younger_ones(
    layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = few(tmp_path / "lake", windows=6)
    for key in keys(topic)[:2]:
        table(topic).delete(f"window = '{key}' AND kafka_offset % 2 = 0")
    monkeypatch.setattr(expiring_windows, "MOST_WINDOWS", 2)
    done = run(topic)
    assert done.held == dict.fromkeys(keys(topic)[:2], DAMAGED)
    assert (list(done.done), done.plan.later) == (keys(topic)[2:4], 2)
    assert list(run(topic).done) == keys(topic)[4:]


# --- tables whose removals come apart ----------------------------------------------------------------------------------


def test_rows_that_are_decoded_just_before_raw_rows_are_removed_are_removed_by_the_next_run(
    layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = few(tmp_path / "lake")
    commit, key = expiring.commit, keys(topic)[0]

    def act(folder: Any, *args: Any) -> Any:
        if folder == topic.lake.table(topic.declaration.raw_table):
            topic.decoder().decode(key)
        return commit(folder, *args)

    with monkeypatch.context() as patched:
        patched.setattr(expiring, "commit", act)
        assert list(run(topic).done) == keys(topic)
    assert {k for k, _, _ in held(topic, "decoded")} == {key}
    assert run(topic).held == {}
    check_expired(topic, keys(topic))


def test_a_window_that_expires_while_it_is_decoded_is_not_committed(
    layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = few(tmp_path / "lake")
    decoder, key = topic.decoder(expect=()), keys(topic)[0]
    decode, versions = type(decoder.engine).decode, {kind: table(topic, kind).version() for kind in KINDS}

    def act(self: Any, order: Any) -> Any:
        raw = topic.receipts()[key]
        topic.ledger.record_receipts([expired_receipt(raw, versions["raw"] + 1, "a removal", raw.table_id or "")])
        return decode(self, order)

    monkeypatch.setattr(type(decoder.engine), "decode", act)
    with pytest.raises(WindowExpiredError):
        decoder.decode(key)
    assert {kind: table(topic, kind).version() for kind in KINDS} == versions


def test_windows_that_lost_only_their_decoded_rows_are_named_and_decoded_again(
    layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Upkeep died before it removed raw rows, and then `keep` was removed."""
    topic = few(tmp_path / "lake")
    commit = expiring.commit

    def dying(folder: Any, *args: Any) -> Any:
        if folder == topic.lake.table(topic.declaration.raw_table):
            raise Died
        return commit(folder, *args)

    with monkeypatch.context() as patched:
        patched.setattr(expiring, "commit", dying)
        with pytest.raises(Died):
            run(topic)
    assert held(topic, "decoded") == set()
    with monkeypatch.context() as patched:
        # While they are past `keep`, the next upkeep removes the others.
        patched.setattr(type(topic.ledger), "newest_edges", lambda self, topics: dict.fromkeys(topics, NOW))
        assert conserved(windows_of(topic.declaration, topic.ledger)).passed
        assert stale_windows(topic.declaration, DECODE, topic.ledger, NOW) == []
    topic.declaration = replace(topic.declaration, keep=None)
    found = conserved(windows_of(topic.declaration, topic.ledger)).findings
    assert [f.window for f in found] == keys(topic)
    assert all("Materialize partition" in f.remedy for f in found)
    assert stale_windows(topic.declaration, DECODE, topic.ledger, NOW) == keys(topic)
    list(decode_many(topic.decoder(), keys(topic)))
    assert stale_windows(topic.declaration, DECODE, topic.ledger, NOW) == []
    assert held(topic) == held(topic, "decoded") == sent(topic, keys(topic))
    proved(topic)


@pytest.mark.usefixtures("flat")
def test_decoded_rows_stay_as_long_as_raw_rows_in_a_shared_file(tmp_path: Path) -> None:
    """And a run that removes nothing records no decision."""
    topic = made(tmp_path / "lake", windows=4 * OLD + 1)
    run(topic, SEEN)
    list(Upkeep(topic.declaration.raw_table, topic.ledger, target=1 << 30).run("2030-01-01-00:00"))
    version = table(topic, "decoded").version()
    done = run(topic)
    assert (done.done, len(done.plan.windows)) == ((), OLD)
    assert table(topic, "decoded").version() == version
    assert decisions.decisions(topic.lake, topic.topic, ("expire",)) == []
    assert list(run(topic, NOW + DAY).done) == keys(topic)[: 2 * OLD]
    (decision,) = decisions.decisions(topic.lake, topic.topic, ("expire",))
    assert decision.windows == (keys(topic)[0], keys(topic)[2 * OLD - 1])


def test_decisions_are_folded(layout: str, tmp_path: Path) -> None:
    topic = few(tmp_path / "lake")
    decision = decisions.Decision(topic.topic, "expire", ("a", "b"), "upkeep", "a test", {})
    for number in range(20):
        decisions.record(topic.lake, replace(decision, details={"number": number}))
    assert len(topic.lake.decisions.delta().file_uris()) < 10
    found = decisions.decisions(topic.lake, topic.topic, ("expire",))
    assert [each.details["number"] for each in found] == list(range(20))
    assert len(noticed(topic)) == 1


def test_a_missing_window_of_a_topic_without_keep_costs_no_search_of_the_log(
    layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = few(tmp_path / "lake")
    key = keys(topic)[0]
    table(topic).delete(f"window = '{key}'")
    receipt, read = topic.receipts()[key], list[int]()
    commit = delta_log.commit

    def counted(folder: Any, version: int) -> Any:
        if folder == topic.lake.table(topic.declaration.raw_table):
            read.append(version)
        return commit(folder, version)

    _, loader = kafka_of(topic)
    opened = loader.replacer.open()
    monkeypatch.setattr(delta_log, "commit", counted)
    loader._unless_expired(windows(topic)[0], opened, receipt)
    assert receipt.table_version is not None
    assert read
    assert min(read) > receipt.table_version
    read.clear()
    without = replace(loader, declaration=replace(topic.declaration, keep=None))
    without._unless_expired(windows(topic)[0], opened, receipt)
    assert read == []


@pytest.mark.parametrize(
    ("text", "days"),
    [("400 days", 400), ("1 day", 1), ("60 weeks", 420), (" 2 weeks ", 14)],
)
def test_a_keep_has_a_unit(text: str, days: int) -> None:
    assert keep_of(text) == Keep(days)


@pytest.mark.parametrize(
    "text",
    ["400", "4d", "0 days", "1 month", "36501 days", "-1 day", "1.5 days", "٤ days", "400  days", "00004 days", ""],
)
def test_other_texts_are_no_keep(text: str) -> None:
    assert keep_of(text) is None


def test_an_unfinished_erasure_is_the_reason_of_a_parked_window(tmp_path: Path) -> None:
    topic = made(tmp_path / "lake", 3, decode=False)
    run(topic, SEEN)
    first, second, third = keys(topic)
    topic.decoder().decode(first)
    parking.park(topic.declaration.decoded_table, [second], AUTHOR, topic.ledger)
    topic.erasure.record(topic.erasure.at_offsets({0: (OffsetRange(2, 3),)}), AUTHOR)
    assert planned(topic).held == {second: ERASING, third: UNDECODED}
    topic.erasure.run(AUTHOR)
    assert planned(topic).held == {second: PARKED, third: UNDECODED}


def test_a_parked_window_with_a_receipt_of_other_decoded_rows_is_not_only_parked(tmp_path: Path) -> None:
    topic = made(tmp_path / "lake", 1)
    run(topic, SEEN)
    (key,) = keys(topic)
    decoded = topic.declaration.decoded_table
    decisions.record(
        topic.lake, decisions.Decision(topic.topic, "park", (key,), "me", "no need", {decisions.TABLE: decoded.name})
    )
    receipt = topic.receipts()[key]
    topic.ledger.record_receipts([replace(receipt, offsets_digest=receipt.offsets_digest + 1)])
    assert planned(topic).held == {key: UNDECODED}


def planned(topic: MadeTopic) -> ExpiryPlan:
    found = expiring_of(topic).plan(NOW)
    assert found is not None
    return found
