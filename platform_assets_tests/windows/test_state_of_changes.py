"""A state of real changes: made, erased from, and compared, from records to the current row of each key."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import polars as pl

from platform_assets.ledger.decisions import Author
from platform_assets.model.offsets import OffsetRange
from platform_assets.model.state import StateDeclaration
from platform_assets.windows.change.changing import WindowChanger
from platform_assets.windows.state.folding import TopicState
from platform_assets_tests.support.erasures import MadeTopic, found_in

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
