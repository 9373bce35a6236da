"""A state of real changes: made, erased from, and compared, from records to the current row of each key."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from platform_assets.lake import state_table
from platform_assets.ledger.decisions import Author
from platform_assets.model.offsets import OffsetRange
from platform_assets.model.state import StateDeclaration
from platform_assets.windows.change.changing import WindowChanger
from platform_assets.windows.state.folding import TopicState
from platform_assets_tests.support.erasures import MadeTopic, found_in
from platform_assets_tests.support.made_changes import DAYS, MadeChanges, change

DECLARED = StateDeclaration(("key",))


def values(root: Path, topic: str) -> dict[object, object]:
    rows = pl.scan_delta(str(root / "state" / topic)).select("key", "value").collect().rows()
    assert len(dict(rows)) == len(rows), "a key occurs twice"
    return dict(rows)


def test_erased_records_leave_a_state_and_its_past_files(tmp_path: Path) -> None:
    topic = MadeTopic(tmp_path)
    topic.declaration = replace(topic.declaration, state=DECLARED)
    windows = topic.seal([{0: [(b"a", b"older"), (b"b", b"other")]}, {0: [(b"a", b"secret"), (b"c", b"new")]}])
    topic.fill(windows)
    changer = WindowChanger(topic.declaration, topic.ledger)
    state = TopicState(topic.declaration.topic, DECLARED, topic.ledger.lake)
    for window in reversed(windows):
        changer.make(window.key)
        state.fold()
    assert values(tmp_path, topic.topic) == {"a": "secret", "b": "other", "c": "new"}
    topic.erasure.record(topic.erasure.at_offsets({0: (OffsetRange(2, 3),)}), author := Author("tester", "asked to"))
    topic.erasure.run(author)
    assert state.pending().erases
    state.fold()
    assert values(tmp_path, topic.topic) == {"a": "older", "b": "other", "c": "new"}
    assert not found_in(tmp_path, b"secret")
    assert state.compare().is_equal


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


def test_a_requested_rebuild_deletes_past_files(tmp_path: Path) -> None:
    made = MadeChanges(tmp_path)
    made.load(DAYS[0], [change(1, DAYS[0], 0, "a")])
    made.state().fold()
    made.state().fold(rebuild=True)
    assert len(list((tmp_path / "state").rglob("folds/*/*.parquet"))) == 1
