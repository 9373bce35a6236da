"""A clock that runs ahead: an edge is not cut while another clock shows that it has not passed. Cutting then continues
without help."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from platform_assets.kafka import quorum
from platform_assets.kafka.quorum import controller_time
from platform_assets.kafka.settings import ClientSettings
from platform_assets.lake.location import Lake
from platform_assets.ledger.store import Ledger
from platform_assets.model.declaration import TopicDeclaration
from platform_assets.windows.load import clocks, sealing
from platform_assets.windows.load.clocks import TOLERANCE, ClockAheadError, OtherClock
from platform_assets_tests.support.streams import Stream
from testbed.clients import client_settings
from testbed.samples import START

if TYPE_CHECKING:
    from platform_assets_tests.conftest import Broker, TopicMaker

MINUTE = timedelta(minutes=1)
CONTROLLER = "Kafka's controller"


class Sealer(Stream):
    """One topic with a ledger and one-minute windows."""

    def __init__(self, bootstrap: str, topic: str, root: Path, start: datetime) -> None:
        super().__init__(bootstrap, topic)
        self.ledger = Ledger(Lake.at(root))
        self.ledger.create()
        self.declaration = TopicDeclaration(topic, "* * * * *", start)

    def seal(self, now: datetime) -> int:
        """Cut the edges that have passed at `now`; return the number of edges."""
        deadline = time.monotonic() + 60
        return len(sealing.seal(self.declaration, self.cluster, self.ledger, now, deadline=deadline).recorded)

    def seal_all(self, now: datetime) -> None:
        """Seal until nothing is left to seal, because a minute may have passed in the meantime."""
        while self.seal(now):
            pass

    @property
    def newest(self) -> datetime | None:
        return self.ledger.newest_edges([self.topic]).get(self.topic)


@pytest.fixture
def sealer(broker: Broker, topic: TopicMaker, tmp_path: Path) -> Callable[[datetime], Sealer]:
    return lambda start: Sealer(broker.bootstrap, topic(), tmp_path / "lake", start)


@pytest.mark.broker
def test_the_controller_tells_its_clock(broker: Broker) -> None:
    before = datetime.now(UTC) - timedelta(milliseconds=1)
    told = controller_time(client_settings(broker.bootstrap))
    assert told is not None
    assert before <= told <= datetime.now(UTC)


@pytest.mark.broker
def test_a_broker_behind_one_that_is_gone_tells_it_too(broker: Broker) -> None:
    assert controller_time(ClientSettings(f"127.0.0.1:1,{broker.bootstrap}")) is not None
    assert controller_time(ClientSettings("127.0.0.1:1")) is None


@pytest.mark.broker
@pytest.mark.parametrize("by", [CONTROLLER, "the lake's file system"])
def test_a_clock_that_is_a_day_ahead_cuts_nothing_that_has_not_come(
    sealer: Callable[[datetime], Sealer], by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if by != CONTROLLER:
        # As where this client may not describe the cluster.
        monkeypatch.setattr(quorum, "controller_time", lambda *_: None)
    now = datetime.now(UTC)
    s = sealer(now - 3 * MINUTE)
    wrong = now + timedelta(days=1)
    assert s.seal(wrong) >= 3
    assert s.newest is not None
    assert s.newest <= datetime.now(UTC)
    with pytest.raises(ClockAheadError) as caught:
        s.seal_all(wrong)
    assert caught.value.clock == by
    assert 86_000 < caught.value.seconds < 87_000
    assert s.newest <= datetime.now(UTC)


@pytest.mark.broker
def test_cutting_goes_on_by_itself_once_the_clocks_agree(
    sealer: Callable[[datetime], Sealer], monkeypatch: pytest.MonkeyPatch
) -> None:
    s = sealer(START)
    told = [OtherClock(CONTROLLER, START + 5.5 * MINUTE)]
    monkeypatch.setattr(clocks, "other_clock", lambda *_: told[0])
    assert s.seal(START + 90 * MINUTE) == 6
    with pytest.raises(ClockAheadError):
        s.seal(START + 91 * MINUTE)
    told[0] = OtherClock(CONTROLLER, START + 8 * MINUTE)
    assert s.seal(START + 8 * MINUTE + TOLERANCE) == 3
    assert s.newest == START + 8 * MINUTE


@pytest.mark.broker
def test_a_machine_that_lies_behind_or_a_little_ahead_is_let_be(
    sealer: Callable[[datetime], Sealer], monkeypatch: pytest.MonkeyPatch
) -> None:
    s = sealer(START)
    monkeypatch.setattr(clocks, "other_clock", lambda *_: OtherClock(CONTROLLER, START + 5 * MINUTE - TOLERANCE))
    assert s.seal(START + 3 * MINUTE) == 4
    assert s.seal(START + 5 * MINUTE) == 2


@pytest.mark.broker
def test_no_clock_is_asked_for_while_no_edge_is_to_be_cut(
    sealer: Callable[[datetime], Sealer], monkeypatch: pytest.MonkeyPatch
) -> None:
    s = sealer(START)
    assert s.seal(START + 3 * MINUTE) == 4
    monkeypatch.setattr(clocks, "other_clock", lambda *_: pytest.fail("asked"))
    assert s.seal(START + 3.9 * MINUTE) == 0


@pytest.mark.broker
def test_topics_that_close_at_one_time_are_cut_by_one_answer(
    sealer: Callable[[datetime], Sealer], monkeypatch: pytest.MonkeyPatch
) -> None:
    s, asked = sealer(START), []

    def counted(*given: object) -> datetime | None:
        asked.append(given)
        return controller_time(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(quorum, "controller_time", counted)
    now = datetime.now(UTC)
    first = clocks.other_clock(s.cluster, s.ledger.lake, now)
    again = clocks.other_clock(s.cluster, s.ledger.lake, now)
    assert len(asked) == 1
    assert first.now < again.now <= datetime.now(UTC)
    # Before an edge is refused because of an old answer, the clock is read again.
    assert clocks.other_clock(s.cluster, s.ledger.lake, now + MINUTE).ahead(now + MINUTE) is not None
    assert len(asked) == 2
