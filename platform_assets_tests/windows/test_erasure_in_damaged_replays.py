"""A damaged replay does not block an erasure: the live tables are erased, the message names the replay, and each
remedy in the message lets the erasure finish.

No Kafka, no Spark.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from platform_assets.errors import ErasureUnfinishedError, ReplayErasureUnfinishedError, Terminal
from platform_assets.ledger import decisions
from platform_assets.ledger.decisions import Author
from platform_assets.ledger.entries import SealedWindow
from platform_assets.model.offsets import OffsetRange
from platform_assets.orchestration import status
from platform_assets.windows.decide.deciding import Deciding
from platform_assets.windows.erase import in_replays
from platform_assets.windows.replay import replaying
from platform_assets.windows.replay.replaying import Replay
from platform_assets_tests.support.erasures import AUTHOR, MadeTopic, found_in, shown
from platform_assets_tests.support.kept_cluster import loader_of
from platform_assets_tests.support.local_engine import LocalEngine
from testbed import samples

WHO, NEEDLE = b"customer-4711", b"zebra-in-pyjamas"
HERS, OURS = (WHO, NEEDLE), (b"customer-1", b"value-1")
BY_KEY: dict[str, Any] = {"offsets": {}, "keys": [WHO]}
BY_OFFSETS: dict[str, Any] = {"offsets": {0: (OffsetRange(0, 2),)}, "keys": []}
FORGETTING: dict[str, Any] = {**BY_KEY, "forget_keys": True}
CONTINUING: dict[str, Any] = {"offsets": {}, "keys": []}


@pytest.fixture
def topic(tmp_path: Path) -> MadeTopic:
    made = MadeTopic(tmp_path / "lake")
    # A file for each record, so that a damaged window still has files with her records.
    made.declaration = replace(made.declaration, records_per_file=1)
    return made


@pytest.fixture
def windows(topic: MadeTopic) -> list[SealedWindow]:
    """One window with two records to erase, in the live table and in a replay."""
    sealed = topic.seal([{0: [HERS, HERS, OURS]}])
    topic.fill(sealed)
    assert replay(topic, sealed) == ["loaded"]
    return sealed


def replay(topic: MadeTopic, windows: list[SealedWindow], name: str = "june") -> list[str]:
    """Replay the windows; return the outcomes."""
    live = loader_of(topic)
    fresh = replaying.fresh_loader(live, name, lambda lake: LocalEngine(lake, topic.records))
    begun = Replay.begin(live, fresh, replaying.plan(live, windows))
    return [getattr(outcome, "outcome", str(outcome)) for _, outcome in begun.load(windows, lambda: None)]


def erase(topic: MadeTopic, said: list[str], author: Author | None = AUTHOR, **selected: Any) -> dict[str, Any]:
    def never() -> None:
        raise AssertionError("no service is needed")

    deciding = Deciding(topic.declaration, topic.ledger, never, never, never, author, said.append, lambda _: None)  # type: ignore[arg-type]
    return deciding.erasure(**selected)


def lose_a_file(topic: MadeTopic, name: str = "june", table: str = "raw") -> None:
    sorted((topic.root / "replays" / name / table).rglob("*.parquet"))[0].unlink()


def problems(topic: MadeTopic) -> str:
    """Return the problems that `status` reports."""
    (table,) = status.collect(
        [topic.declaration], topic.ledger, None, None, (), samples.edge(2), broker_silence=None
    ).tables
    return " ".join(p for p in table.problems if "erasure" in p)


def live_places(topic: MadeTopic) -> list[str]:
    return [place for place in found_in(topic.root, NEEDLE) if not place.startswith("replays/")]


def replay_again(topic: MadeTopic, windows: list[SealedWindow], error: ReplayErasureUnfinishedError) -> None:
    keys = " ".join(w.key for w in windows)
    assert f"Run `platform-assets replay raw/people {keys} --into june`, which repairs these windows if Kafka" in str(
        error
    )
    assert replay(topic, windows) == ["healed"]


def delete_folder(topic: MadeTopic, windows: list[SealedWindow], error: ReplayErasureUnfinishedError) -> None:
    folder = topic.root / "replays" / "june"
    assert f"elete the folder {folder}, which nothing else uses" in str(error)
    shutil.rmtree(folder)


@pytest.mark.parametrize("remedy", [replay_again, delete_folder])
@pytest.mark.parametrize("selected", [BY_KEY, BY_OFFSETS, FORGETTING], ids=["key", "offsets", "forgetting"])
def test_a_lost_file_of_a_replay_does_not_hold_up_the_live_tables(
    topic: MadeTopic,
    windows: list[SealedWindow],
    selected: dict[str, Any],
    remedy: Callable[[MadeTopic, list[SealedWindow], ReplayErasureUnfinishedError], None],
) -> None:
    lose_a_file(topic)
    said: list[str] = []
    erase(topic, said, author=None, **selected)
    assert said[0].startswith(f"raw/people {windows[0].key}: 2 records")
    assert any(line.startswith("replays/june: not all rows can be compared") for line in said) == bool(selected["keys"])
    assert live_places(topic)

    with pytest.raises(ReplayErasureUnfinishedError, match=r"raw/people .* replays/june: data files") as failed:
        erase(topic, said, **selected)
    assert isinstance(failed.value, Terminal), "the exit code is 1"
    assert "raw/people: 2 rows erased" in " ".join(said)
    assert not (places := live_places(topic)), shown(places)
    assert not topic.erasure.unfinished(), "the live table is recorded as erased"
    assert "an erasure is not complete in replays/june: " in problems(topic)
    with pytest.raises(ReplayErasureUnfinishedError, match="replays/june"):
        erase(topic, [], **CONTINUING)

    remedy(topic, windows, failed.value)
    again = FORGETTING if selected is FORGETTING else CONTINUING
    assert ("with the same keys" in str(failed.value)) == (selected is FORGETTING)
    erase(topic, [], **again)
    assert not (places := found_in(topic.root, NEEDLE)), shown(places)
    assert not problems(topic)
    erase(topic, said, **CONTINUING)
    assert said[-1] == "raw/people has no such records; nothing was erased"


@pytest.mark.parametrize("forget_keys", [False, True])
def test_a_key_in_a_damaged_replay_alone_leaves_no_bytes_after_the_remedy(topic: MadeTopic, forget_keys: bool) -> None:
    windows = topic.seal([{0: [HERS, HERS, OURS]}])
    assert replay(topic, windows) == ["loaded"]
    lose_a_file(topic)
    with pytest.raises(ReplayErasureUnfinishedError, match="replays/june") as failed:
        erase(topic, [], **BY_KEY, forget_keys=forget_keys)
    replay_again(topic, windows, failed.value)
    erase(topic, [], **(FORGETTING if forget_keys else CONTINUING))
    assert not (places := found_in(topic.root, NEEDLE)), shown(places)
    assert not problems(topic)


@pytest.mark.parametrize("lost", ["_ledger/cuts", "_ledger", "raw/people/_delta_log"])
def test_a_replay_without_its_ledger_or_log_does_not_hold_up_others(
    topic: MadeTopic, windows: list[SealedWindow], lost: str
) -> None:
    assert replay(topic, windows, "july") == ["loaded"]
    folder = topic.root / "replays" / "june" / lost
    if lost == "_ledger":
        shutil.rmtree(folder)
    else:
        for file in [f for f in folder.rglob("*") if f.is_file()]:
            file.write_bytes(b"")
    with pytest.raises(ReplayErasureUnfinishedError, match="replays/june: ") as failed:
        erase(topic, [], **BY_KEY)
    assert list(failed.value.replays) == ["june"]
    assert not [p for p in found_in(topic.root, NEEDLE) if not p.startswith("replays/june/")]
    assert "replays/june" in problems(topic)
    delete_folder(topic, windows, failed.value)
    erase(topic, [], **CONTINUING)
    assert not problems(topic)


def test_status_names_replays_of_an_erasure_that_died_after_the_live_tables(
    topic: MadeTopic, windows: list[SealedWindow], monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(in_replays, "run", die)
        with pytest.raises(KeyboardInterrupt):
            erase(topic, [], **BY_OFFSETS)
    assert not topic.erasure.unfinished()
    assert "replays/june" in problems(topic)
    erase(topic, [], **CONTINUING)
    assert not problems(topic)
    assert not found_in(topic.root, NEEDLE)


def test_damage_in_the_live_table_and_in_a_replay_is_named_at_once(
    topic: MadeTopic, windows: list[SealedWindow]
) -> None:
    lose_a_file(topic)
    sorted((topic.root / "raw" / "people").rglob("*.parquet"))[0].unlink()
    with pytest.raises(ErasureUnfinishedError, match=r"load raw/people .*replays/june: .*--into june`"):
        erase(topic, [], **BY_KEY)
    assert loader_of(topic).load(windows[0].key).outcome == "healed"
    assert replay(topic, windows) == ["healed"]
    erase(topic, [], **CONTINUING)
    assert not (places := found_in(topic.root, NEEDLE)), shown(places)
    assert not problems(topic)
    assert not decisions.unerased_replays(topic.lake, "people")
