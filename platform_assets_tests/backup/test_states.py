"""States, which backups leave out: after a restore they are never taken for states of the restored changes."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime
from pathlib import Path

import dagster as dg
import polars as pl
import pytest

from platform_assets.backup import restoring, taking
from platform_assets.checks import state as checks
from platform_assets.errors import ChangesOutdatedError
from platform_assets.lake import delta_log
from platform_assets.ledger.decisions import Author
from platform_assets.model.decoding import DecodeDeclaration, FormatSpec
from platform_assets.model.keeping import Keep
from platform_assets.model.state import StateDeclaration
from platform_assets.orchestration import state_definitions, state_status
from platform_assets.windows.decide.parking import park, unpark
from platform_assets.windows.state.folding import TopicState
from platform_assets_tests.support.change_events import event, read_by
from platform_assets_tests.support.decoded_topic import DecodedTopic, order
from testbed.samples import Keyed

STATE = StateDeclaration(("id",), deletes="none")
DECODE = DecodeDeclaration(
    FormatSpec("debezium", {"schema": "id BIGINT, name STRING"}), FormatSpec("json", {"schema": "id BIGINT"})
)
PARTS = ("ledger", "raw/orders", "decoded/orders", "dead_letters/orders", "changes/orders")


def noted(number: int) -> bytes:
    """Return a value with a field that is not declared at first."""
    return b'{"id": %d, "amount": %d.50, "note": "x"}' % (number, number)


class Platform:
    """A topic with three windows. Two of them are in its state and in a backup; the third one follows later."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.topic = DecodedTopic(folder / "lake", "orders")
        self.topic.state = STATE
        self.keys = self.topic.load([noted(1), noted(2)], [noted(2), noted(3)], [noted(3), noted(4)])
        self.state = TopicState("orders", STATE, self.topic.lake)
        self.make(*self.keys[:2])
        self.state.fold()
        taking.take(self.topic.lake, folder / "home", folder / "backups", datetime(2026, 1, 2, tzinfo=UTC))
        self.later()
        self.state.fold()
        self.whole = self.rows()

    def make(self, *keys: str) -> None:
        """Decode windows and make their changes."""
        self.topic.decode(*keys)
        for key in keys:
            self.topic.changer.make(key)

    def later(self) -> None:
        """Decode the third window, and make its changes."""
        self.make(self.keys[2])

    def restore(self, *only: str) -> None:
        found = restoring.find(self._folder / "backups")
        restoring.restore(found, self.topic.lake, self._folder / "home", only, force=True)

    def rows(self) -> list[tuple[int, str]]:
        return sorted(pl.scan_delta(str(self.state.live_folder)).select("id", "window").collect().rows())

    def check(self) -> None:
        """Assert that the state is complete, and that of all changes."""
        assert self.state.compare().is_equal
        found = list(checks.results(self.topic.declaration, STATE, self.topic.ledger, seed="1"))
        assert all(each.passed for each in found), found


@pytest.fixture
def platform(tmp_path: Path) -> Platform:
    return Platform(tmp_path)


def requested(platform: Platform, instance: dg.DagsterInstance) -> list[dg.RunRequest]:
    """Return what the first tick of a new process requests: Dagster is stopped during a restore."""
    state_definitions._not_due.clear()
    end = platform.topic.windows[-1].window.end
    return state_definitions.run_requests(platform.topic.declaration, platform.topic.ledger, instance, end)


def test_a_state_ahead_of_restored_changes_is_made_again(platform: Platform, instance: dg.DagsterInstance) -> None:
    platform.restore(*PARTS)
    assert platform.rows() == platform.whole, "a restore does not touch the state"
    assert all(c.undecided for c in checks.results(platform.topic.declaration, STATE, platform.topic.ledger, seed="1"))
    assert len(requested(platform, instance)) == 1
    assert platform.state.fold().made == "rebuild"
    assert max(window for _, window in platform.rows()) == platform.keys[1]
    platform.check()
    platform.later()
    assert platform.state.fold().made == "fold"
    assert platform.rows() == platform.whole
    platform.check()


def test_restored_changes_that_have_as_many_versions_again_are_not_taken_for_those_of_the_fold(
    platform: Platform, instance: dg.DagsterInstance
) -> None:
    before = delta_log.version(platform.state.changes_folder)
    platform.restore(*PARTS)
    platform.later()
    assert delta_log.version(platform.state.changes_folder) == before
    assert len(requested(platform, instance)) == 1
    assert platform.state.fold().made == "rebuild"
    assert platform.rows() == platform.whole
    platform.check()


def test_a_state_does_not_go_back_to_restored_changes(platform: Platform, instance: dg.DagsterInstance) -> None:
    platform.restore("changes/orders")
    waits = platform.state.pending().waits
    assert f"1 window has no changes, but may be in the state, for example window {platform.keys[2]}" in waits
    status = state_status.collect(platform.topic.declaration, STATE, platform.topic.ledger, instance)
    assert not status.is_due
    assert waits in status.waits_for[0]
    assert requested(platform, instance) == []
    for rebuild in (False, True):
        with pytest.raises(ChangesOutdatedError, match="left as they are"):
            platform.state.fold(rebuild=rebuild)
    assert platform.rows() == platform.whole
    platform.topic.changer.make(platform.keys[2])
    assert len(requested(platform, instance)) == 1
    platform.state.fold()
    assert platform.rows() == platform.whole
    platform.check()


def test_a_state_does_not_go_back_to_changes_of_rows_that_were_replaced_since(platform: Platform) -> None:
    spec = FormatSpec("json", {"schema": "id BIGINT NOT NULL, amount DECIMAL(12, 2), note STRING"})
    platform.topic.declared = DecodeDeclaration(spec, warn_share=1.0, fail_share=1.0)
    platform.make(*platform.keys)
    platform.state.fold()
    platform.restore("changes/orders")
    assert "or from earlier rows, or by a run" in platform.state.pending().waits
    with pytest.raises(ChangesOutdatedError, match="left as they are"):
        platform.state.fold()
    for key in platform.keys:
        platform.topic.changer.make(key)
    platform.state.fold()
    assert platform.rows() == platform.whole
    platform.check()


def test_a_parked_window_holds_up_no_state(tmp_path: Path) -> None:
    topic = DecodedTopic(tmp_path / "lake", "orders")
    topic.state = STATE
    state = TopicState("orders", STATE, topic.lake)
    keys = topic.load([order(1)], [order(2)], [order(3)], [order(4)])
    topic.decode(*keys)
    park(topic.declaration.changes_table, [keys[1]], Author.of("me", "a bad window"), topic.ledger)
    for key in (keys[0], keys[2]):
        topic.changer.make(key)
    state.fold()
    state.live_folder.delta().delete("id = 1")
    topic.changer.make(keys[3])
    assert state.pending().waits == ""
    assert state.fold().made == "rebuild"
    assert sorted(pl.scan_delta(str(state.live_folder)).collect()["id"]) == [1, 3, 4]
    state.fold()
    unpark(topic.declaration.changes_table, [keys[1]], Author.of("me", "it is good"), topic.ledger)
    topic.changer.make(keys[1])
    state.fold()
    assert sorted(pl.scan_delta(str(state.live_folder)).collect()["id"]) == [1, 2, 3, 4]


def test_changes_of_a_window_that_was_parked_once_are_made_again_like_all_others(tmp_path: Path) -> None:
    topic = DecodedTopic(tmp_path / "lake", "orders")
    topic.state = STATE
    (key,) = topic.load([order(1)])
    topic.decode(key)
    park(topic.declaration.changes_table, [key], Author.of("me", "a bad window"), topic.ledger)
    topic.changer.make(key)
    state = TopicState("orders", STATE, topic.lake)
    state.fold()
    topic.state = StateDeclaration(("amount",), deletes="none")
    changed = TopicState("orders", topic.state, topic.lake)
    assert "1 window has changes that were made with other columns" in changed.pending().waits


def test_a_lost_lake_gets_a_state_of_the_restored_changes(platform: Platform, instance: dg.DagsterInstance) -> None:
    shutil.rmtree(platform.topic.root)
    platform.restore()
    assert not platform.state.exists
    assert len(requested(platform, instance)) == 1
    platform.state.fold()
    platform.check()


def test_all_tables_of_a_state_follow_the_restored_changes(tmp_path: Path) -> None:
    """Also with deleted keys that are not kept any longer, a history, and a snapshot that deletes keys."""
    state = StateDeclaration(("id",), deletes="debezium", snapshots="whole", history=True, deletes_kept=Keep(1))
    topic = DecodedTopic(tmp_path / "lake", "orders", DECODE)
    topic.state, made = state, TopicState("orders", state, topic.lake)
    deleted = Keyed(b'{"id": 1}', event("d", before={"id": 1}))
    keys = topic.load(
        [read_by(10, 1, "first"), read_by(10, 2)],
        [read_by(20, 1, "first"), read_by(20, 3, "last"), deleted],
        [read_by(20, 4, "last")],
        [read_by(30, 3, "first"), read_by(30, 5, "last")],
    )

    def make(*numbers: int) -> None:
        for number in numbers:
            topic.decode(keys[number])
            topic.changer.make(keys[number])

    def found(kind: str) -> set[int]:
        return set(pl.scan_delta(str(topic.root / kind / "orders")).collect()["id"])

    def check() -> None:
        assert made.compare().is_equal
        results = list(checks.results(topic.declaration, state, topic.ledger, seed="1"))
        assert all(each.passed for each in results), results

    make(0, 1, 2)
    outcome = made.fold()
    assert (outcome.collected, found("state"), found("state_deleted")) == (keys[2], {3, 4}, set())
    taking.take(topic.lake, tmp_path / "home", tmp_path / "backups", datetime(2026, 1, 2, tzinfo=UTC))
    make(3)
    made.fold()
    assert (found("state"), found("history")) == ({3, 5}, {1, 2, 3, 4, 5})
    for is_lost in (False, True):
        if is_lost:
            shutil.rmtree(topic.root)
        backup = restoring.find(tmp_path / "backups")
        restoring.restore(backup, topic.lake, tmp_path / "home", () if is_lost else PARTS, force=True)
        assert made.fold().made == "rebuild"
        assert (found("state"), found("state_deleted"), found("history")) == ({3, 4}, set(), {1, 2, 3, 4})
        check()
        make(3)
        assert made.fold().made == "fold"
        assert (found("state"), found("history")) == ({3, 5}, {1, 2, 3, 4, 5})
        check()
