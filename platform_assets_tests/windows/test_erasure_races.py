"""An erasure by key and a load of the same topic at the same time: whichever finishes first, the record ends up erased."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from platform_assets.ledger.entries import SealedWindow
from platform_assets.windows.decide.deciding import Deciding
from platform_assets.windows.erase.erasure import Erasure
from platform_assets.windows.load.catching_up import load_many
from platform_assets.windows.load.loading import Loader
from platform_assets_tests.support.erasures import AUTHOR, MadeTopic, found_in
from platform_assets_tests.support.kept_cluster import loader_of

WHO, NEEDLE = b"customer-4711", b"zebra-in-pyjamas"
HERS, OURS = (WHO, NEEDLE), (b"customer-1", b"value-1")


@pytest.fixture
def topic(tmp_path: Path) -> MadeTopic:
    return MadeTopic(tmp_path / "lake")


@pytest.fixture
def waiting(topic: MadeTopic) -> SealedWindow:
    """A sealed window that is not loaded, after a loaded window. Each of the two contains a record to erase."""
    first, second = topic.seal([{0: [OURS, HERS]}, {0: [HERS, OURS]}])
    topic.fill([first])
    return second


def deciding(topic: MadeTopic, meanwhile: Callable[[], object] = lambda: None) -> Deciding:
    """Return a decision that runs `meanwhile` while it waits for confirmation."""
    return Deciding(
        topic.declaration, topic.ledger, never, never, never, AUTHOR, lambda _: None, lambda _: void(meanwhile())
    )


def never() -> Any:
    raise AssertionError("no service is needed")


def erase(topic: MadeTopic) -> None:
    deciding(topic).erasure({}, [WHO])


class Interrupted(Loader):
    """A load during which `action` happens once: either before the last check, or between that check and the commit."""

    action: Callable[[], None]
    after: bool

    def last_check(self, *args: Any) -> Callable[[], None]:
        inner = super().last_check(*args)

        def check() -> None:
            if self.after:
                inner()
            once, action = self.__dict__.pop("once", None), self.action
            if once is not None:
                action()
            if not self.after:
                inner()

        return check


def interrupted(topic: MadeTopic, action: Callable[[], None], *, after: bool) -> Loader:
    made = loader_of(topic)
    loader = Interrupted(made.declaration, made.cluster, made.ledger, made.engine, run_id="run")
    loader.__dict__.update(action=action, after=after, once=True)
    return loader


def check_gone(topic: MadeTopic) -> None:
    for needle in (WHO, NEEDLE):
        assert not found_in(topic.root, needle)
    assert topic.values() == [b"value-1"] * 2
    assert not topic.erasure.unfinished()


@pytest.mark.parametrize("after", [False, True])
def test_a_load_that_wrote_its_files_before_the_rule_leaves_the_record_out(
    topic: MadeTopic, waiting: SealedWindow, after: bool
) -> None:
    loader = interrupted(topic, lambda: erase(topic), after=after)
    assert loader.load(waiting.key).receipt.rows == 1
    check_gone(topic)
    assert loader_of(topic).load(waiting.key).outcome == "unchanged"


def test_windows_that_are_loaded_together_leave_the_record_out(topic: MadeTopic) -> None:
    windows = topic.seal([{0: [OURS, HERS]}, {0: [HERS, OURS]}])
    loader = interrupted(topic, lambda: erase(topic), after=False)
    assert [loaded.receipt.rows for _, loaded in load_many(loader, [w.key for w in windows])] == [1, 1]  # type: ignore[union-attr]
    check_gone(topic)


@pytest.mark.parametrize("forget_keys", [False, True])
def test_a_load_that_commits_while_the_operator_is_asked_is_searched_too(
    topic: MadeTopic, waiting: SealedWindow, forget_keys: bool
) -> None:
    found = deciding(topic, lambda: loader_of(topic).load(waiting.key)).erasure({}, [WHO], forget_keys=forget_keys)
    check_gone(topic)
    assert [each["offsets"] for each in found["windows"]] == [[[0, 1, 2]], [[0, 2, 3]]]
    assert found["done"]["rows"]["raw/people"] == 2


def test_a_load_that_commits_as_the_rule_is_recorded_is_searched_too(
    topic: MadeTopic, waiting: SealedWindow, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = Erasure.record

    def late(self: Erasure, *args: Any) -> Any:
        topic.load(waiting)  # asks no rule
        monkeypatch.setattr(Erasure, "record", record)
        return record(self, *args)

    monkeypatch.setattr(Erasure, "record", late)
    erase(topic)
    check_gone(topic)


@pytest.mark.parametrize("after", [False, True])
def test_rules_that_are_adopted_hold_for_a_load_under_way(topic: MadeTopic, after: bool) -> None:
    topic.fill(topic.seal([{0: [HERS]}]))
    erase(topic)
    copy = MadeTopic(topic.root, "persons")
    (window,) = copy.seal([{0: [OURS, HERS, OURS]}])
    loader = interrupted(copy, lambda: void(deciding(copy).adoption("people")), after=after)
    assert loader.load(window.key).receipt.rows == 2
    check_gone(copy)


def void(_: object) -> None:
    """Turn a function that returns a result into one that returns nothing."""
