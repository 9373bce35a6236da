"""Logs that differ from their cuts: log ends that move back temporarily or permanently, and logs that have grown back.
A single broker has no followers, so a fake cluster that reports an earlier end stands for a newly elected leader.
Truncation and new growth happen in a real log, on disk."""

from __future__ import annotations

import os
import signal
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from platform_assets.engines.protocol import Records, StagedFiles
from platform_assets.errors import TruncationError
from platform_assets.kafka.cluster import Cluster, FoundOffset, TopicState
from platform_assets.lake import holdings, load_log
from platform_assets.lake.location import Lake
from platform_assets.ledger.store import Ledger
from platform_assets.model.declaration import TopicDeclaration
from platform_assets.model.tables import TableRef
from platform_assets.model.windows import milliseconds
from platform_assets.services import platform
from platform_assets.services.broker import BrokerSettings
from platform_assets.services.home import Home
from platform_assets.services.platform import UpOptions
from platform_assets.windows.load import sealing, truncation
from platform_assets.windows.load.loading import Loader
from platform_assets.windows.load.truncation import EndMovedBackError
from platform_assets_tests.support.local_engine import Kept, LocalEngine
from platform_assets_tests.support.streams import ANY_TIME, Stream
from testbed.clients import librdkafka
from testbed.homes import home_at, service_environment
from testbed.loads import wait_until
from testbed.samples import START, edge

if TYPE_CHECKING:
    from platform_assets_tests.conftest import Broker, TopicMaker

pytestmark = pytest.mark.broker

SMALL = UpOptions(broker=BrokerSettings(heap="384m"))


class SteppingBack(Cluster):
    """Reports the end of partition 0 `by` offsets too early, for the first `times` requests."""

    def __init__(self, cluster: Cluster, by: int, times: int) -> None:
        super().__init__(cluster._admin, cluster.settings)
        self.by, self.times, self.asked = by, times, 0

    def with_deadline(self, deadline: float) -> Cluster:
        self._deadline = deadline
        return self

    def last_stable_offsets(self, topic: TopicState) -> dict[int, FoundOffset]:
        found = super().last_stable_offsets(topic)
        self.asked += 1
        return {**found, 0: replace(found[0], offset=found[0].offset - self.by)} if self.asked <= self.times else found


class Sealer(Stream):
    """One topic with a ledger and hourly windows."""

    def __init__(self, bootstrap: str, topic: str, root: Path) -> None:
        super().__init__(bootstrap, topic)
        self.ledger = Ledger(Lake.at(root))
        self.ledger.create()
        self.declaration = TopicDeclaration(topic, "0 * * * *", START)

    def seal(self, hour: int, cluster: Cluster | None = None, seconds: float = 60) -> int:
        """Cut at the last stable offset; return the cut of partition 0."""
        deadline = time.monotonic() + seconds
        sealing.seal(self.declaration, cluster or self.cluster, self.ledger, edge(hour), deadline=deadline)
        newest = self.ledger.newest_cut(self.topic)
        assert newest is not None
        assert newest.edge == edge(hour)
        return newest.cut.at(0)


@pytest.fixture
def sealer(broker: Broker, topic: TopicMaker, tmp_path: Path) -> Sealer:
    """A sealer for a topic whose ten records are before the newest cut."""
    made = Sealer(broker.bootstrap, topic(config=ANY_TIME), tmp_path / "lake")
    made.send([milliseconds(START)] * 10)
    assert made.seal(1) == 10
    return made


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(truncation, "_PAUSE", 0.0)


@pytest.mark.usefixtures("hurried")
def test_an_end_that_steps_back_for_a_moment_is_waited_for(sealer: Sealer) -> None:
    sealer.send([milliseconds(START)] * 3)
    cluster = SteppingBack(sealer.cluster, 7, 3)
    assert sealer.seal(2, cluster) == 13
    assert cluster.asked == 4


@pytest.mark.usefixtures("hurried")
def test_an_end_that_stays_back_is_a_truncation(sealer: Sealer) -> None:
    cluster = SteppingBack(sealer.cluster, 7, 1_000)
    with pytest.raises(
        TruncationError, match=r"now ends at offset 3, before offset 10, which .* Offsets \[3, 10\)"
    ) as caught:
        sealer.seal(2, cluster)
    assert cluster.asked == truncation._ATTEMPTS
    assert caught.value.epoch is None
    assert len(sealer.ledger.cuts(sealer.topic)) == 2


def test_without_the_time_to_see_whether_it_passes_the_next_tick_asks_again(sealer: Sealer) -> None:
    with pytest.raises(EndMovedBackError, match="reported to end at offset 3, before offset 10"):
        sealer.seal(2, SteppingBack(sealer.cluster, 7, 1_000), seconds=0.4)
    assert sealer.seal(2) == 10


# --- a leader that changes between the first look and the commit ----------------------------------------------------


class Elected(Cluster):
    """A cluster in which another leader leads partition 0, in a later epoch, once `elected` is set."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster._admin, cluster.settings)
        self.elected = False

    def last_stable_offsets(self, topic: TopicState) -> dict[int, FoundOffset]:
        found = super().last_stable_offsets(topic)
        return {0: replace(found[0], leader_epoch=(found[0].leader_epoch or 0) + 1)} if self.elected else found


class ElectingEngine(LocalEngine):
    """An engine during whose reads the leader changes."""

    cluster: Elected

    def write(self, records: Records, table: TableRef, load_id: str, records_per_file: int) -> StagedFiles:
        written = super().write(records, table, load_id, records_per_file)
        self.cluster.elected = True
        return written


@pytest.mark.parametrize("again", [False, True], ids=["first load", "reload"])
@pytest.mark.parametrize("ends", [7, 10])
def test_a_log_that_is_cut_off_while_it_is_read_is_not_committed(
    sealer: Sealer, monkeypatch: pytest.MonkeyPatch, again: bool, ends: int
) -> None:
    """A new leader with a shorter log writes other records at the offsets that the load has read."""
    (window,) = [w for w in sealer.ledger.windows(sealer.topic) if w.ranges.size]
    cluster = Elected(sealer.cluster)
    engine = ElectingEngine(sealer.ledger.lake, [Kept(0, n, None, b"v", START) for n in range(10)])
    engine.cluster = cluster
    loader = Loader(sealer.declaration, cluster, sealer.ledger, engine)
    monkeypatch.setattr(truncation, "_epoch_ends", lambda *_: {0: 10})
    if again:
        assert loader.load(window.key).receipt.rows == 10
        cluster.elected = False
    version = load_log.exists(loader.table) and holdings.files_of(loader.table, window.key).paths
    monkeypatch.setattr(truncation, "_epoch_ends", lambda *_: {0: ends})
    if ends == 10:
        assert loader.load(window.key).receipt.rows == 10
        return
    with pytest.raises(
        TruncationError, match=r"now ends at offset 7: .* Offsets \[7, 10\) may now hold different records"
    ):
        loader.load(window.key)
    assert cluster.elected, "it was read"
    assert holdings.files_of(loader.table, window.key).paths == (version or ())
    folder = Path(str(loader.table))
    assert len(list(folder.rglob("*.parquet"))) == (1 if again else 0), "what was written is deleted"


# --- a log that was cut off and grew back ---------------------------------------------------------------------------


@pytest.fixture
def own_home(tmp_path: Path) -> Iterator[Home]:
    home = home_at(tmp_path / "own broker")
    try:
        yield home
    finally:
        platform.down(home, report=lambda _: None)


class OwnBroker:
    """A broker that a test can kill."""

    def __init__(self, home: Home) -> None:
        self.home = home
        self.start()

    def start(self) -> None:
        self.service = platform.start_service(
            "kafka", self.home, SMALL, report=lambda _: None, environ=service_environment()
        )

    def kill(self) -> None:
        os.kill(self.service.pid, signal.SIGKILL)
        psutil.Process(self.service.pid).wait(30)

    def cut_off(self, topic: str, offset: int) -> None:
        """Cut off the log of partition 0 at `offset`, where a batch begins."""
        (segment,) = (self.home.kafka / f"{topic}-0").glob("*.log")
        content, at = segment.read_bytes(), 0
        while struct.unpack_from(">q", content, at)[0] < offset:
            at += 12 + int(struct.unpack_from(">i", content, at + 8)[0])
        with segment.open("r+b") as file:
            file.truncate(at)


class NoEngine:
    """An engine that must not be called."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_: pytest.fail(f"the engine was asked to {name}")


@pytest.mark.long
def test_a_log_that_was_cut_off_and_has_grown_back_is_named_with_epoch_and_offsets(
    own_home: Home, tmp_path: Path
) -> None:
    broker = OwnBroker(own_home)
    bootstrap = broker.service.address
    admin = AdminClient(librdkafka(bootstrap))
    admin.create_topics([NewTopic("t", 1, 1, config=ANY_TIME)])["t"].result(30)
    s = Sealer(bootstrap, "t", tmp_path / "lake")

    def send(number: int) -> None:
        for _ in range(number):
            s.send([milliseconds(START)])

    def led() -> bool:
        # A new broker may not lead its partitions yet; a new client does not remember the previous leader.
        fresh = Sealer(bootstrap, "t", tmp_path / "lake")
        return 0 in fresh.cluster.last_stable_offsets(fresh.cluster.topic("t"))

    send(6)
    assert s.seal(1) == 6
    broker.kill()
    broker.start()
    wait_until("the partition is led", led)
    s = Sealer(bootstrap, "t", tmp_path / "lake")
    send(4)
    # The leader epoch changes, but nothing is lost.
    assert s.seal(2) == 10
    (first, second) = (c.leader_epochs[0] for c in s.ledger.cuts("t")[1:])
    assert first is not None
    assert second is not None
    assert second > first
    broker.kill()
    broker.cut_off("t", 8)
    broker.start()
    wait_until("the partition is led", led)
    s = Sealer(bootstrap, "t", tmp_path / "lake")
    send(5)
    assert s.stable() == {0: 13}
    said = rf"has a cut at offset 10 under leader epoch {second}, but that epoch now ends at offset 8: .* Offsets \[8, 10\) may"
    with pytest.raises(TruncationError, match=said):
        s.seal(3)
    assert len(s.ledger.cuts("t")) == 3
    # A window there is not loaded either; a window before it can be.
    (whole, cut_off) = s.ledger.windows("t")[-2:]
    with pytest.raises(TruncationError, match=said):
        Loader(s.declaration, s.cluster, s.ledger, NoEngine()).load(cut_off.key)  # type: ignore[arg-type]
    state, newest = s.cluster.topic("t"), s.ledger.newest_cut("t")
    assert whole.ranges.by_partition[0].end == 6
    assert truncation.stable_offsets(s.cluster, state, newest, {0: 6})[0].offset == 13
