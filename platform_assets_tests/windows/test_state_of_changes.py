"""A state of real changes: made, erased from, and compared, from records to the current row of each key."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import polars as pl
import pyarrow as pa
import pytest

from platform_assets.checks import state as checks
from platform_assets.errors import (
    ConcurrentFoldError,
    FilesLostError,
    StateErasureUnfinishedError,
)
from platform_assets.lake import holdings, state_table
from platform_assets.lake.location import Folder
from platform_assets.ledger import decisions
from platform_assets.ledger.decisions import Author
from platform_assets.model.keeping import Keep
from platform_assets.model.offsets import OffsetRange
from platform_assets.model.state import StateDeclaration
from platform_assets.orchestration import state_status
from platform_assets.windows.change.changing import WindowChanger, stale_windows
from platform_assets.windows.decide.deciding import Deciding
from platform_assets.windows.decide.parking import park, unpark
from platform_assets.windows.erase.erasing import WindowEraser
from platform_assets.windows.recover import accept_partial
from platform_assets.windows.state.folding import TopicState
from platform_assets_tests.support.erasures import MadeTopic, found_in
from platform_assets_tests.support.kept_cluster import KeptCluster, loader_of
from platform_assets_tests.support.made_changes import COLUMNS, DAYS, MadeChanges, change

DECLARED = StateDeclaration(("key",))


def values(root: Path, topic: str) -> dict[object, object]:
    rows = pl.scan_delta(str(root / "state" / topic)).select("key", "value").collect().rows()
    assert len(dict(rows)) == len(rows), "a key occurs twice"
    return dict(rows)


AUTHOR = Author("tester", "asked to")


def folded(root: Path, declared: StateDeclaration = DECLARED) -> tuple[MadeTopic, TopicState]:
    """Return a topic whose state has the value `secret`, at offset 2, and its state."""
    topic = MadeTopic(root)
    topic.declaration = replace(topic.declaration, state=declared)
    windows = topic.seal([{0: [(b"a", b"older"), (b"b", b"other")]}, {0: [(b"a", b"secret"), (b"c", b"new")]}])
    topic.fill(windows)
    changer = WindowChanger(topic.declaration, topic.ledger)
    state = TopicState(topic.declaration.topic, declared, topic.ledger.lake)
    for window in reversed(windows):
        changer.make(window.key)
        state.fold()
    assert values(root, topic.topic) == {"a": "secret", "b": "other", "c": "new"}
    return topic, state


def erase(topic: MadeTopic, start: int, end: int) -> None:
    topic.erasure.record(topic.erasure.at_offsets({0: (OffsetRange(start, end),)}), AUTHOR)
    topic.erasure.run(AUTHOR)


def test_erased_records_leave_a_state_and_its_past_files(tmp_path: Path) -> None:
    topic, state = folded(tmp_path)
    erase(topic, 2, 3)
    assert state.pending().windows == ()
    assert values(tmp_path, topic.topic) == {"a": "older", "b": "other", "c": "new"}
    assert not found_in(tmp_path, b"secret")
    assert state.compare().is_equal


def test_a_state_is_complete_also_with_changes_without_a_receipt(tmp_path: Path) -> None:
    """A run was killed before it recorded the receipt."""
    topic = MadeTopic(tmp_path)
    topic.declaration = replace(topic.declaration, state=DECLARED)
    first, second = topic.seal([{0: [(b"a", b"1")]}, {0: [(b"b", b"2"), (b"c", b"3")]}])
    topic.fill([first, second])
    WindowChanger(topic.declaration, topic.ledger).make(first.key)
    TopicState(topic.topic, DECLARED, topic.lake).fold()

    def killed(step: str) -> None:
        if step == "receipt":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        WindowChanger(topic.declaration, topic.ledger, before_step=killed).make(second.key)
    TopicState(topic.topic, DECLARED, topic.lake).fold()
    results = list(checks.results(topic.declaration, DECLARED, topic.ledger, seed="1"))
    assert not [finding for each in results for finding in each.findings if finding.alarming]
    facts = checks.facts_of(topic.declaration, DECLARED, topic.ledger)
    assert facts is not None
    source = replace(facts.source, handle=topic.lake.table(topic.declaration.changes_table).delta(0))
    assert not checks.complete(replace(facts, source=source)).passed, "three keys, but one change"


@pytest.mark.parametrize("interrupted", [1, 2])
def test_an_interrupt_after_a_commit_deletes_no_files_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interrupted: int
) -> None:
    made, commit, commits = MadeChanges(tmp_path), state_table.commit, list[int]()
    made.load(DAYS[0], [change(1, DAYS[0], 0, "a"), change(2, DAYS[0], 1, None)])

    def then_interrupted(*arguments: Any) -> int:
        commits.append(commit(*arguments))
        if len(commits) == interrupted:
            raise KeyboardInterrupt
        return commits[-1]

    with monkeypatch.context() as patched:
        patched.setattr(state_table, "commit", then_interrupted)
        with pytest.raises(KeyboardInterrupt):
            made.state().fold()
    assert list(made.dead()) == [2]
    assert list(made.live()) == ([] if interrupted == 1 else [1])
    made.state().fold()
    assert (list(made.live()), list(made.dead())) == ([1], [2])


def test_erasing_a_record_that_only_past_files_have_deletes_them(tmp_path: Path) -> None:
    topic = MadeTopic(tmp_path)
    topic.declaration = replace(topic.declaration, state=DECLARED)
    windows = topic.seal([{0: [(b"a", b"secret")]}, {0: [(b"a", b"newer")]}])
    topic.fill(windows)
    state = TopicState(topic.topic, DECLARED, topic.ledger.lake)
    for window in windows:
        WindowChanger(topic.declaration, topic.ledger).make(window.key)
        state.fold()
    assert found_in(tmp_path / "state", b"secret")
    erase(topic, 0, 1)
    assert values(tmp_path, topic.topic) == {"a": "newer"}
    assert not found_in(tmp_path, b"secret")


def lose_for_good(topic: MadeTopic) -> str:
    """Lose the raw rows of the newest window, which Kafka no longer has, and accept the loss. Return the window's key."""
    window, folder = topic.ledger.windows(topic.topic)[-1], topic.lake.table(topic.declaration.raw_table)
    for path in holdings.files_of(folder, window.key).paths:
        (folder.path / path.replace("%25", "%")).unlink()
    end = window.ranges.by_partition[0].end
    left = accept_partial.find(loader_of(topic, KeptCluster(topic.topic, {0: end}, starts={0: end})), window)
    assert left is not None
    assert left.accept(AUTHOR).rows == 0
    return window.key


def test_rows_whose_raw_rows_are_lost_for_good_leave_a_state_and_its_past_files(tmp_path: Path) -> None:
    topic, state = folded(tmp_path, replace(DECLARED, history=True))
    lose_for_good(topic)
    topic.erasure.run(AUTHOR)
    assert not found_in(tmp_path, b"secret")
    assert values(tmp_path, topic.topic) == {"a": "older", "b": "other"}
    assert state.compare().is_equal
    assert stale_windows(topic.ledger, topic.declaration) == []


@pytest.mark.parametrize("killed_after", ["changes", "decoded", "all tables"])
@pytest.mark.parametrize("by", ["erase", "sensor"])
def test_a_killed_erasure_of_rows_whose_raw_rows_are_lost_for_good_is_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed_after: str, by: str
) -> None:
    topic, state = folded(tmp_path, replace(DECLARED, history=True))
    lose_for_good(topic)
    erase_rows = WindowEraser.erase

    def killed(self: WindowEraser, table: Any, *arguments: Any) -> Any:
        yield from erase_rows(self, table, *arguments)
        if table.kind == killed_after:
            raise KeyboardInterrupt

    def killed_before_fold(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(WindowEraser, "erase", killed)
        patched.setattr(TopicState, "fold", killed_before_fold)
        with pytest.raises(KeyboardInterrupt):
            topic.erasure.run(AUTHOR)
    assert found_in(tmp_path / "state", b"secret")
    assert state.pending().erases
    if by == "erase":
        topic.erasure.run(AUTHOR)
        assert not found_in(tmp_path, b"secret")
        assert decisions.decisions(topic.lake, topic.topic, ("erased",)), "derived tables count it"
    else:
        for window in stale_windows(topic.ledger, topic.declaration):
            WindowChanger(topic.declaration, topic.ledger).make(window)
        state.fold()
    assert values(tmp_path, topic.topic) == {"a": "older", "b": "other"}
    for kind in ("state", "state_deleted", "history", "changes"):
        assert not found_in(tmp_path / kind, b"secret"), kind
    assert state.compare().is_equal


def test_changes_of_rows_that_are_no_longer_decoded_leave_a_state_and_its_past_files(tmp_path: Path) -> None:
    topic, state = folded(tmp_path)
    key = lose_for_good(topic)
    topic.decoder().decode(key)
    assert topic.erasure.without_raw_row() == {topic.declaration.changes_table: {key: {0: (OffsetRange(2, 4),)}}}
    topic.erasure.run(AUTHOR)
    for kind in ("state", "state_deleted", "changes"):
        assert not found_in(tmp_path / kind, b"secret"), kind
    assert values(tmp_path, topic.topic) == {"a": "older", "b": "other"}
    assert state.compare().is_equal


@pytest.mark.parametrize("declared", [None, DECLARED])
def test_each_erasure_fails_while_a_table_that_is_no_longer_declared_has_rows_without_a_raw_row(
    tmp_path: Path, declared: StateDeclaration | None
) -> None:
    topic, _ = folded(tmp_path, replace(DECLARED, history=True))
    lose_for_good(topic)
    topic.declaration = replace(topic.declaration, state=declared)
    for _ in range(2):
        with pytest.raises(StateErasureUnfinishedError, match="history/people, then run"):
            topic.erasure.run(AUTHOR)
    assert found_in(tmp_path / "history", b"secret")
    topic.declaration = replace(topic.declaration, state=replace(DECLARED, history=True))
    topic.erasure.run(AUTHOR)
    assert not found_in(tmp_path, b"secret")


def test_a_failed_fold_leaves_the_erasure_unfinished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    topic, _ = folded(tmp_path)

    def fails(*_: object, **__: object) -> None:
        raise FilesLostError("changes/people", "a-window", "lost.parquet")

    with monkeypatch.context() as patched:
        patched.setattr(TopicState, "fold", fails)
        with pytest.raises(StateErasureUnfinishedError, match=r"lost\.parquet.*`platform-assets erase people` again"):
            erase(topic, 2, 3)
    assert found_in(tmp_path / "state", b"secret")
    topic.erasure.run(AUTHOR)
    assert not found_in(tmp_path, b"secret")


def test_an_erasure_folds_again_after_another_fold_was_faster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    topic, state = folded(tmp_path)
    fold, races = TopicState.fold, iter([True, True, False])

    def raced(self: TopicState, **options: Any) -> object:
        if next(races):
            raise ConcurrentFoldError("state/people")
        return fold(self, **options)

    monkeypatch.setattr(TopicState, "fold", raced)
    erase(topic, 2, 3)
    assert not found_in(tmp_path, b"secret")
    assert state.compare().is_equal


def test_a_state_that_is_no_longer_declared_is_not_forgotten(tmp_path: Path) -> None:
    topic, _ = folded(tmp_path)
    topic.declaration = replace(topic.declaration, state=None)
    with pytest.raises(StateErasureUnfinishedError, match="Declare `state` again, or delete the folders state/people"):
        erase(topic, 2, 3)
    topic.declaration = replace(topic.declaration, state=DECLARED)
    topic.erasure.run(AUTHOR)
    assert not found_in(tmp_path, b"secret")


def test_an_erasure_reaches_a_history_also_if_it_is_no_longer_declared(tmp_path: Path) -> None:
    topic = MadeTopic(tmp_path)
    both = replace(DECLARED, history=True)
    topic.declaration = replace(topic.declaration, state=both)
    windows = topic.seal([{0: [(b"a", b"secret"), (b"b", b"hidden")]}, {0: [(b"a", b"newer")]}])
    topic.fill(windows)
    for window in windows:
        WindowChanger(topic.declaration, topic.ledger).make(window.key)
    TopicState(topic.topic, both, topic.ledger.lake).fold()
    assert found_in(tmp_path / "history", b"secret")
    erase(topic, 0, 1)
    assert not found_in(tmp_path, b"secret")
    topic.declaration = replace(topic.declaration, state=DECLARED)
    with pytest.raises(StateErasureUnfinishedError, match="delete the folder history/people, then run"):
        erase(topic, 1, 2)
    assert found_in(tmp_path / "history", b"hidden")
    assert not found_in(tmp_path / "state", b"hidden")
    shutil.rmtree(tmp_path / "history")
    topic.erasure.run(AUTHOR)
    assert not found_in(tmp_path, b"hidden")


def test_an_erasure_makes_no_state_that_does_not_exist(tmp_path: Path) -> None:
    topic = MadeTopic(tmp_path)
    topic.declaration = replace(topic.declaration, state=DECLARED)
    (window,) = topic.seal([{0: [(b"a", b"secret")]}])
    topic.fill([window])
    WindowChanger(topic.declaration, topic.ledger).make(window.key)
    erase(topic, 0, 1)
    assert not (tmp_path / "state").exists()


def test_deletes_are_collected_up_to_the_first_window_that_is_not_applied(tmp_path: Path) -> None:
    kept = replace(DECLARED, deletes_kept=Keep(1))
    topic = MadeTopic(tmp_path)
    topic.declaration = replace(topic.declaration, state=kept)
    windows = topic.seal(
        [{0: [(b"a", b"1"), (b"b", b"1")]}, {0: [(b"a", None)]}, {0: [(b"b", b"2")]}, {0: [(b"b", None)]}]
    )
    topic.fill([windows[number] for number in (0, 1, 3)])
    changer, state = WindowChanger(topic.declaration, topic.ledger), TopicState(topic.topic, kept, topic.ledger.lake)

    def dead() -> set[object]:
        return set(pl.scan_delta(str(tmp_path / "state_deleted" / topic.topic)).select("key").collect()["key"])

    keys = [window.key for window in windows]
    park(topic.declaration.changes_table, [keys[0]], AUTHOR, topic.ledger)
    for number in (1, 3):
        changer.make(keys[number])
    assert (state.fold().collected, dead()) == ("", {"a", "b"}), "the first window is parked"
    unpark(topic.declaration.changes_table, [keys[0]], AUTHOR, topic.ledger)
    changer.make(keys[0])
    assert (state.fold().collected, dead()) == (keys[1], {"b"}), "the third window is not loaded"
    topic.fill([windows[2]])
    assert state.fold().collected == keys[1], "the third window has no changes yet"
    changer.make(keys[2])
    assert (state.fold().collected, dead()) == (keys[3], set())
    assert values(tmp_path, topic.topic) == {}
    assert state.compare().is_equal
    found = list(checks.results(topic.declaration, kept, topic.ledger, seed="1"))
    assert all(each.passed for each in found), found
    status = state_status.collect(topic.declaration, kept, topic.ledger, None)
    assert (status.deleted_keys, status.collected) == (0, keys[3])

    erase(topic, 2, 3)
    assert values(tmp_path, topic.topic) == {"a": "1"}, "the delete was erased, so the record before it counts"
    assert state.compare().is_equal
    with patch.object(Folder, "time", lambda _: windows[-1].window.end):
        assert state.fold(rebuild=True).collected == "", "all windows ended less than a day ago"
    assert dead() == {"b"}


def test_a_delete_whose_key_lacks_a_column_is_no_truncate(tmp_path: Path) -> None:
    """So changes with another key cannot empty a state."""
    declared = StateDeclaration(("id", "rev"), deletes="debezium")
    made = MadeChanges(tmp_path, declared)
    made.load(DAYS[0], [change(key, DAYS[0], key, "kept", rev=key) for key in range(10)])
    made.load(DAYS[1], [change(1, DAYS[1], 10, None) | {"id": None, "rev": 1}])
    made.state().fold()
    assert len(made.live()) == 10


def test_a_column_may_be_called_in_window(tmp_path: Path) -> None:
    made = MadeChanges(tmp_path, columns=COLUMNS.insert(7, pa.field("in_window", pa.string())))
    made.load(DAYS[0], [change(1, DAYS[0], 0, "a")])
    made.state().fold()
    assert made.state().compare().is_equal


def by_command(topic: MadeTopic, keys: list[bytes], reported: list[str] | None = None) -> list[str]:
    """Erase as the command does, and return what it reports, also as `reported`."""

    def never() -> None:
        raise AssertionError("no service is needed")

    said = list[str]() if reported is None else reported
    made: Any = Deciding
    made(topic.declaration, topic.ledger, never, never, never, AUTHOR, said.append, lambda _: None).erasure({}, keys)
    return said


@pytest.mark.parametrize("folds_first", [False, True])
def test_an_erasure_ends_after_a_state_that_had_to_be_made_again(tmp_path: Path, *, folds_first: bool) -> None:
    """While changes have yet to be made again, the state and its past files keep the rows."""
    topic, _ = folded(tmp_path)
    lose_for_good(topic)
    declared = replace(DECLARED, deletes="none")
    topic.declaration = replace(topic.declaration, state=declared)
    with pytest.raises(StateErasureUnfinishedError):
        by_command(topic, [b"somebody"])
    for window in stale_windows(topic.ledger, topic.declaration):
        WindowChanger(topic.declaration, topic.ledger).make(window)
    if folds_first:
        TopicState(topic.topic, declared, topic.lake).fold()
    by_command(topic, [])
    assert not found_in(tmp_path / "state", b"secret")
    assert not found_in(tmp_path / "state_deleted", b"secret")
    kinds = [each.kind for each in decisions.decisions(topic.lake, topic.topic)]
    assert kinds[-1] == "erased", kinds
    assert "nothing was erased" in by_command(topic, [])[-1]


@pytest.mark.parametrize("lost", ["the log of the changes", "the live keys"])
def test_an_erasure_ends_although_nothing_tells_since_when_the_state_lacks_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    """It was killed before it made the state. No receipt lists what it erased: rows without a raw row."""
    topic, _ = folded(tmp_path, replace(DECLARED, history=True))
    lose_for_good(topic)

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(TopicState, "fold", killed)
        with pytest.raises(KeyboardInterrupt):
            by_command(topic, [b"somebody"])
    if lost == "the live keys":
        shutil.rmtree(tmp_path / "state")
    else:
        changes = topic.lake.table(topic.declaration.changes_table).delta()
        changes.create_checkpoint()
        for log in sorted((tmp_path / "changes" / topic.topic / "_delta_log").glob("*.json"))[:-1]:
            log.unlink()
    assert found_in(tmp_path / "history", b"secret")
    by_command(topic, [])
    for kind in ("state", "state_deleted", "history"):
        assert not found_in(tmp_path / kind, b"secret"), kind
    assert decisions.decisions(topic.lake, topic.topic)[-1].kind == "erased"
    assert "nothing was erased" in by_command(topic, [])[-1]


def test_an_erasure_that_finds_nothing_does_not_wait_for_a_state(tmp_path: Path) -> None:
    topic, _ = folded(tmp_path)
    topic.declaration = replace(topic.declaration, state=replace(DECLARED, deletes="none"))
    assert "nothing was erased" in " ".join(by_command(topic, [b"somebody"]))
    assert TopicState(topic.topic, replace(DECLARED, deletes="none"), topic.lake).pending().waits


def test_an_erasure_does_not_wait_for_a_state_that_cannot_be_read(tmp_path: Path) -> None:
    topic, state = folded(tmp_path)
    newest = max((tmp_path / "state" / topic.topic / "_delta_log").glob("*.json"))
    sound = newest.read_text()
    newest.write_text("{broken")
    said = list[str]()
    with pytest.raises(StateErasureUnfinishedError, match="then run `platform-assets erase people` again"):
        by_command(topic, [b"a"], said)
    assert any(
        f"because it cannot be read: the table at {tmp_path}/state/people is damaged" in each for each in said
    ), said
    assert [each.kind for each in decisions.decisions(topic.lake, topic.topic)] == ["erase"]
    assert not found_in(tmp_path / "raw", b"secret")
    newest.write_text(sound)
    assert "erased; " in by_command(topic, [])[-1]
    assert not found_in(tmp_path, b"secret")
    assert (values(tmp_path, topic.topic), state.compare().is_equal) == ({"b": "other", "c": "new"}, True)
    assert "nothing was erased" in by_command(topic, [])[-1]


def killed_before_past_files(topic: MadeTopic, state: TopicState, *, by_sensor: bool) -> None:
    """Erase rows without a raw row, in a process that is killed before it deletes past files of the state, or before its fold,
    with the sensor's fold killed instead."""
    lose_for_good(topic)
    if by_sensor:
        with patch.object(TopicState, "fold", side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
            topic.erasure.run(AUTHOR)
    ended: Callable[[], object] = state.fold if by_sensor else lambda: by_command(topic, [b"somebody"])
    with (
        patch.object(state_table, "delete_past_files", side_effect=KeyboardInterrupt),
        pytest.raises(KeyboardInterrupt),
    ):
        ended()
    assert found_in(topic.root / "state", b"secret")


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("by_sensor", [False, True])
def test_an_erasure_that_was_killed_before_past_files_goes_on(tmp_path: Path, *, by_sensor: bool, waits: bool) -> None:
    topic, state = folded(tmp_path)
    killed_before_past_files(topic, state, by_sensor=by_sensor)
    if waits:
        topic.declaration = replace(topic.declaration, state=replace(DECLARED, deletes="none"))
    said = by_command(topic, [])
    assert "state/people: may still hold records of an earlier erasure" in said
    assert "erased; " in said[-1]
    assert not found_in(tmp_path / "state", b"secret")
    assert not found_in(tmp_path / "state_deleted", b"secret")
    assert decisions.decisions(topic.lake, topic.topic)[-1].kind == "erased"
    assert "nothing was erased" in by_command(topic, [])[-1]


def test_past_files_that_no_fold_will_delete_are_named(tmp_path: Path) -> None:
    topic, state = folded(tmp_path)
    killed_before_past_files(topic, state, by_sensor=True)
    topic.declaration = replace(topic.declaration, state=None)
    with pytest.raises(StateErasureUnfinishedError, match="no longer declares `state`"):
        by_command(topic, [])
    topic.declaration = replace(topic.declaration, state=DECLARED)
    assert "erased; " in by_command(topic, [])[-1]
    assert not found_in(tmp_path / "state", b"secret")


def test_an_erasure_does_not_end_while_a_history_that_is_no_longer_declared_has_the_rows(tmp_path: Path) -> None:
    topic, _ = folded(tmp_path, replace(DECLARED, history=True))
    lose_for_good(topic)
    topic.declaration = replace(topic.declaration, state=DECLARED)
    for _ in range(2):
        with pytest.raises(StateErasureUnfinishedError, match="no longer declares `history: true`"):
            by_command(topic, [])
    shutil.rmtree(tmp_path / "history" / topic.topic)
    by_command(topic, [])
    for kind in ("state", "state_deleted", "history"):
        assert not found_in(tmp_path / kind, b"secret")
    assert "nothing was erased" in by_command(topic, [])[-1]
