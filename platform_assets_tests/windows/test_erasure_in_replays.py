"""Erasures also apply to replays: to records that only a replay has, and to replays that begin afterwards.

No Kafka, no Spark.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from platform_assets.ledger.entries import SealedWindow
from platform_assets.windows.decide.deciding import Deciding
from platform_assets.windows.erase import replayed
from platform_assets.windows.replay import replaying
from platform_assets.windows.replay.replaying import Replay
from platform_assets_tests.support.erasures import AUTHOR, MadeTopic, found_in
from platform_assets_tests.support.kept_cluster import loader_of
from platform_assets_tests.support.local_engine import LocalEngine

WHO, NEEDLE = b"customer-4711", b"zebra-in-pyjamas"
OURS = (b"customer-1", b"value-1")


@pytest.fixture
def topic(tmp_path: Path) -> MadeTopic:
    return MadeTopic(tmp_path / "lake")


@pytest.fixture
def windows(topic: MadeTopic) -> list[SealedWindow]:
    """Two windows: only the first is loaded, and only the second contains the record to erase."""
    sealed = topic.seal([{0: [OURS, OURS]}, {0: [(WHO, NEEDLE), OURS]}])
    topic.fill(sealed[:1])
    return sealed


def replay(topic: MadeTopic, windows: list[SealedWindow]) -> list[str]:
    """Replay the windows; return the outcomes."""
    live = loader_of(topic)
    fresh = replaying.fresh_loader(live, "june", lambda lake: LocalEngine(lake, topic.records))
    begun = Replay.begin(live, fresh, replaying.plan(live, windows))
    return [getattr(outcome, "outcome", str(outcome)) for _, outcome in begun.load(windows, lambda: None)]


def erase(topic: MadeTopic, *, forget_keys: bool = False) -> list[str]:
    def never() -> None:
        raise AssertionError("no service is needed")

    said: list[str] = []
    deciding = Deciding(topic.declaration, topic.ledger, never, never, never, AUTHOR, said.append, lambda _: None)  # type: ignore[arg-type]
    deciding.erasure({}, [WHO], forget_keys=forget_keys)
    return said


@pytest.mark.parametrize("forget_keys", [False, True])
def test_a_record_that_only_a_replay_has_is_erased_from_it(
    topic: MadeTopic, windows: list[SealedWindow], forget_keys: bool
) -> None:
    assert replay(topic, windows) == ["loaded", "loaded"]
    assert found_in(topic.root, NEEDLE)
    said = erase(topic, forget_keys=forget_keys)
    assert said[0] == "replays/june/raw/people: 1 records"
    assert not found_in(topic.root, NEEDLE)
    assert replay(topic, windows) == ["unchanged", "unchanged"]


def test_a_replay_that_begins_after_the_erasure_leaves_the_record_out(
    topic: MadeTopic, windows: list[SealedWindow]
) -> None:
    erase(topic)
    assert replay(topic, windows) == ["loaded", "loaded"]
    assert not found_in(topic.root, NEEDLE)


def test_an_erasure_that_died_before_it_reached_the_replay_is_finished_by_the_next(
    topic: MadeTopic, windows: list[SealedWindow], monkeypatch: pytest.MonkeyPatch
) -> None:
    replay(topic, windows)

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(replayed, "take_over", die)
        with pytest.raises(KeyboardInterrupt):
            erase(topic)
    assert found_in(topic.root, NEEDLE)
    topic.erasure.run(AUTHOR)
    assert not found_in(topic.root, NEEDLE)
