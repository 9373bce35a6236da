"""A replay's ledger has the live ledger's cuts for the replayed range and all later cuts, or the replay is refused."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from platform_assets.errors import ConfigurationError
from platform_assets.lake.location import Lake
from platform_assets.ledger.entries import SealedWindow
from platform_assets.ledger.store import Ledger
from platform_assets.model.declaration import TopicDeclaration
from platform_assets.model.offsets import OffsetRange
from platform_assets.windows.load.loading import Loader
from platform_assets.windows.replay.replaying import PlannedWindow, Replay, fresh_loader
from testbed import samples

TOPIC = "orders"


@pytest.fixture
def live(tmp_path: Path) -> Loader:
    """A loader without brokers, and a ledger with three windows of ten offsets each."""
    samples.recorded(tmp_path, TOPIC, [{0: 10 * n} for n in range(4)])
    declaration = TopicDeclaration(TOPIC, "0 * * * *", samples.START)
    nobody = cast(Any, None)
    return Loader(declaration, nobody, Ledger(Lake.at(tmp_path)), nobody)


def begin(live: Loader, name: str, windows: Sequence[SealedWindow]) -> Ledger:
    """Begin a replay of these windows, for which Kafka has all records; return the replay's ledger."""
    planned = [PlannedWindow(w, None, {p: (r,) for p, r in w.ranges.items()}, {}, {}) for w in windows]
    return Replay.begin(live, fresh_loader(live, name, lambda lake: cast(Any, None)), planned).fresh.ledger


def places(ledger: Ledger, since: int = 0) -> list[tuple[Any, ...]]:
    found = ledger.cuts(TOPIC, start=samples.edge(since))
    return [(c.edge, c.generation, c.topic_id, dict(c.cut.offsets), c.cluster_id, c.leader_epochs) for c in found]


def test_it_has_the_cuts_from_its_first_window_on_and_follows_the_live_one(live: Loader) -> None:
    windows = live.ledger.windows(TOPIC)
    fresh = begin(live, "r", windows[1:2])
    assert places(fresh) == places(live.ledger, since=1)
    assert [w.key for w in fresh.windows(TOPIC)] == [w.key for w in windows[1:]]
    # Later cuts, and a new generation at the newest edge, come with the next replay of the same name.
    again: dict[str, Any] = {"topic_id": "B" * 22, "generation": 2}
    assert live.ledger.record_cuts([samples.cut(TOPIC, samples.edge(4), {0: 44})], samples.edge(3))
    assert live.ledger.record_cuts(
        [samples.cut(TOPIC, samples.edge(4), {0: 0}, **again), samples.cut(TOPIC, samples.edge(5), {0: 7}, **again)],
        samples.edge(4),
    )
    for _ in range(2):
        assert places(begin(live, "r", windows[2:])) == places(live.ledger, since=1)


def test_a_name_that_holds_another_selection_is_refused_and_another_name_or_a_deleted_folder_is_not(
    live: Loader,
) -> None:
    windows = live.ledger.windows(TOPIC)
    begin(live, "r", windows[1:])
    with pytest.raises(ConfigurationError, match="Choose another name, or delete that folder"):
        begin(live, "r", windows)
    assert places(begin(live, "s", windows)) == places(live.ledger)
    live.ledger.lake.replay("r").root.delete()
    assert places(begin(live, "r", windows)) == places(live.ledger)


def test_cuts_that_are_not_the_live_ones_are_refused(live: Loader, tmp_path: Path) -> None:
    samples.recorded(tmp_path / "replays" / "r", TOPIC, [{0: 0}, {0: 11}])
    with pytest.raises(ConfigurationError, match="holds a replay of another range"):
        begin(live, "r", live.ledger.windows(TOPIC))


def test_where_kafka_has_nothing_any_more_nothing_is_made(live: Loader, tmp_path: Path) -> None:
    (window, *_) = live.ledger.windows(TOPIC)
    gone = PlannedWindow(window, None, {}, {0: (OffsetRange(0, 10),)}, {})
    with pytest.raises(ConfigurationError, match="Replay without --into instead"):
        Replay.begin(live, fresh_loader(live, "r", lambda lake: cast(Any, None)), [gone])
    assert not (tmp_path / "replays").exists()


@pytest.mark.parametrize("name", ["", ".", "..", "../raw", "a/b", ".hidden", "a b", "x" * 101])
def test_a_name_that_would_lead_elsewhere_is_refused(live: Loader, name: str) -> None:
    with pytest.raises(ConfigurationError, match="cannot be the name of a replay"):
        fresh_loader(live, name, lambda lake: cast(Any, None))


def test_losses_that_were_accepted_of_the_live_table_are_taken_over_once(live: Loader) -> None:
    windows = live.ledger.windows(TOPIC)
    lost = {0: (OffsetRange(3, 5),)}
    live.ledger.record_acceptance(windows[0], lost, "a test")
    for _ in range(2):
        fresh = begin(live, "r", windows)
    assert fresh.accepted_losses_of(live.declaration.raw_table, [w.key for w in windows]) == {windows[0].key: lost}
