"""Sealing windows with a real broker: whatever producers, brokers and rivals do, the windows cover the log without gaps
or overlaps."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka.admin import NewPartitions
from deltalake import DeltaTable

from platform_assets.errors import (
    BrokerUnreachableError,
    LedgerConflictError,
    LedgerLostError,
    TopicMissingError,
    TopicRecreatedError,
    TruncationError,
    UnknownWindowError,
    WindowBeforeStartError,
    WindowOpenError,
)
from platform_assets.kafka.cluster import Cluster, FoundOffset, TopicState
from platform_assets.kafka.evidence.search import BatchSearch
from platform_assets.kafka.lookup import TimestampLookup
from platform_assets.kafka.settings import ClientSettings
from platform_assets.lake import raw_table
from platform_assets.lake.location import Folder, Lake
from platform_assets.ledger.entries import RecordedCut, SealedWindow
from platform_assets.ledger.store import Ledger
from platform_assets.model.declaration import TopicDeclaration
from platform_assets.model.offsets import tiling_faults
from platform_assets.model.windows import edges_from, milliseconds
from platform_assets.windows.load import clocks, sealing
from platform_assets.windows.load.clocks import OtherClock
from platform_assets_tests.support.streams import (
    ANY_TIME,
    Stream,
    Transactions,
    create_again,
    delete_before,
    freeze,
    thaw,
)
from testbed.loads import wait_until
from testbed.samples import START, cut, edge, loaded, overwrite

if TYPE_CHECKING:
    from platform_assets_tests.conftest import Broker, TopicMaker

MINUTE = timedelta(minutes=1)
INTERVAL = timedelta(seconds=30)
T0 = milliseconds(START)
KEY = "2026-01-01-00:00"
LONG_AGO, FAR_AHEAD = 1, milliseconds(datetime.fromisoformat("2700-01-01T00:00+00:00"))


def minute(number: float) -> datetime:
    return START + number * MINUTE


def ms(number: float) -> int:
    """Return the timestamp `number` minutes after START."""
    return T0 + round(60_000 * number)


@dataclass
class Sealer(Stream):
    """One topic with a ledger; a test can seal it at any time."""

    root: Path
    schedule: str = "* * * * *"

    def __post_init__(self) -> None:
        self.ledger = Ledger(Lake.at(self.root))
        self.ledger.create()
        self.declaration = TopicDeclaration(self.topic, self.schedule, START, sensor_interval=INTERVAL)

    def seal(self, now: datetime, *, seconds: float = 60, cluster: Cluster | None = None) -> sealing.Sealing:
        return sealing.seal(
            self.declaration, cluster or self.cluster, self.ledger, now, deadline=time.monotonic() + seconds
        )

    def window(self, key: str, now: datetime, **changes: Any) -> SealedWindow:
        declaration = replace(self.declaration, **changes)
        return sealing.sealed_window(declaration, self.cluster, self.ledger, key, now, deadline=time.monotonic() + 60)

    @property
    def cuts(self) -> list[RecordedCut]:
        return self.ledger.cuts(self.topic)

    @property
    def windows(self) -> list[SealedWindow]:
        return self.ledger.windows(self.topic)

    def offsets(self) -> list[dict[int, int]]:
        return [dict(c.cut.offsets) for c in self.cuts]

    def taken(self) -> list[set[str]]:
        return [set(c.taken.values()) for c in self.cuts]

    def held_once(self, starts: Mapping[int, int]) -> None:
        """Check that every offset from the log start to the last stable offset is in exactly one window, and that
        windows neither overlap nor leave gaps."""
        assert tiling_faults([(w.key, w.ranges) for w in self.windows]) == ()
        held = [(p, o) for w in self.windows for p, r in w.ranges.items() for o in range(r.start, r.end)]
        assert len(set(held)) == len(held)
        assert set(held) == {(p, o) for p, end in self.stable().items() for o in range(starts.get(p, 0), end)}

    def key_of(self, offset: int, partition: int = 0) -> str:
        (found,) = [w.key for w in self.windows if offset in w.ranges.by_partition[partition]]
        return found


@pytest.fixture
def sealer(broker: Broker, topic: TopicMaker, tmp_path: Path) -> Callable[..., Sealer]:
    def make(*, partitions: int = 1, schedule: str = "* * * * *") -> Sealer:
        return Sealer(broker.bootstrap, topic(partitions=partitions, config=ANY_TIME), tmp_path / "lake", schedule)

    return make


pytestmark = pytest.mark.broker


# --- the three ways of taking a cut ---------------------------------------------------------------------------------


def test_the_first_edge_is_cut_at_the_log_start_and_makes_no_window(sealer: Callable[..., Sealer]) -> None:
    """Records older than the start are not left out: the first window contains them."""
    s = sealer(partitions=2)
    s.send([LONG_AGO, ms(-5), ms(0.5)])
    assert s.seal(START - timedelta(microseconds=1)) == sealing.Sealing((), more=False)
    assert s.cuts == []
    s.seal(START)
    assert (s.offsets(), s.taken(), s.windows) == ([{0: 0, 1: 0}], [{"log start"}], [])
    s.seal(minute(1))
    assert s.key_of(0) == s.key_of(1) == s.key_of(2) == KEY
    s.held_once({})


def test_a_log_that_starts_late_is_cut_where_it_starts(sealer: Callable[..., Sealer], broker: Broker) -> None:
    s = sealer(partitions=2)
    s.send([ms(0.1)] * 5)
    delete_before(broker.bootstrap, s.topic, 0, 3)
    s.seal(minute(1))
    assert s.offsets() == [{0: 3, 1: 0}, {0: 5, 1: 0}]
    s.held_once({0: 3})


def test_the_newest_edge_is_cut_at_the_last_stable_offset_up_to_one_interval_late(
    sealer: Callable[..., Sealer],
) -> None:
    """The cut does not depend on the records' clocks. A moment later, the edge is looked up by timestamp."""
    for late, expected, how in (
        (timedelta(0), 4, "last stable offset"),
        (INTERVAL, 4, "last stable offset"),
        (INTERVAL + timedelta(microseconds=1), 2, "timestamp"),
    ):
        s = sealer()
        s.seal(START)
        s.send([ms(0.2), ms(0.9), ms(1), FAR_AHEAD])
        s.seal(minute(1) + late)
        assert (s.offsets()[1], s.taken()[1]) == ({0: expected}, {how})


def test_an_edge_that_is_not_the_newest_closed_is_looked_up_however_recent(sealer: Callable[..., Sealer]) -> None:
    """An interval contains many windows, which are sealed manually or by a tick that ends before the newest edge."""
    s = sealer()
    s.declaration = replace(s.declaration, sensor_interval=9 * MINUTE, max_edges_per_tick=3)
    s.send([ms(n + 0.5) for n in range(4)])
    assert s.window(KEY, minute(4)).ranges.size == 1
    s.seal(minute(5))
    assert s.offsets() == [{0: n} for n in range(5)]
    assert s.taken() == [{"log start"}, *[{"timestamp"}] * 3, {"last stable offset"}]


def test_a_look_up_that_finds_nothing_as_new_cuts_at_the_last_stable_offset(sealer: Callable[..., Sealer]) -> None:
    s = sealer()
    s.send([ms(0.2), ms(0.9)])
    s.seal(minute(2.9))
    assert s.offsets() == [{0: 0}, {0: 2}, {0: 2}]
    assert s.taken() == [{"log start"}, {"last stable offset"}, {"last stable offset"}]


def test_cuts_name_topic_id_generation_and_leader_epoch(sealer: Callable[..., Sealer]) -> None:
    s = sealer()
    s.send([ms(0.2), ms(1.2)])
    s.seal(minute(2))
    state = s.cluster.topic(s.topic)
    assert {(c.topic, c.topic_id, c.generation) for c in s.cuts} == {(s.topic, state.topic_id, 1)}
    assert {c.leader_epochs[0] for c in s.cuts} == {0}


# --- time and its faults --------------------------------------------------------------------------------------------


def test_after_an_outage_of_several_windows_each_record_is_in_the_window_of_its_time(
    sealer: Callable[..., Sealer], rng: random.Random
) -> None:
    s = sealer(partitions=3)
    s.seal(START)
    sent: dict[int, list[int]] = {}
    for partition in range(3):
        sent[partition] = sorted(rng.randrange(T0, ms(12)) for _ in range(rng.randrange(60)))
        # Edges belong to the window that they start.
        sent[partition] = sorted([*sent[partition], ms(4), ms(4) - 1, ms(9)])
        s.send(sent[partition], partition)
    s.seal(minute(12.9))
    assert len(s.windows) == 12
    for partition, stamps in sent.items():
        for offset, stamp in enumerate(stamps):
            start = START + timedelta(minutes=(stamp - T0) // 60_000)
            assert s.key_of(offset, partition) == f"{start:%Y-%m-%d-%H:%M}"
    s.held_once({})


def test_clocks_off_by_years_both_ways_lose_and_double_nothing(
    sealer: Callable[..., Sealer], rng: random.Random
) -> None:
    """Edges are sealed a few at a time, early and late, live and by look-up."""
    s = sealer(partitions=3)
    s.declaration = replace(s.declaration, max_edges_per_tick=4)
    now = START + rng.random() * MINUTE
    for _ in range(12):
        for partition in range(3):
            honest = [milliseconds(now) - rng.randrange(120_000) for _ in range(rng.randrange(4))]
            wrong = [rng.choice((LONG_AGO, FAR_AHEAD, 0, 2**62 // 1000, ms(-(10**6)))) for _ in range(rng.randrange(3))]
            s.send(rng.sample(honest + wrong, len(honest + wrong)), partition)
        now += rng.choice((0.2, 1, 7)) * rng.random() * MINUTE
        s.seal(now)
        assert tiling_faults([(w.key, w.ranges) for w in s.windows]) == ()
    now = START + ((now - START) // MINUTE + 1) * MINUTE
    while s.seal(now).more:
        pass
    s.held_once({})


def test_a_record_from_the_future_swells_the_window_that_is_cut_live_next(sealer: Callable[..., Sealer]) -> None:
    """That record is the first one at or after every later edge, but the cuts still grow."""
    s = sealer()
    s.send([ms(0.5), FAR_AHEAD, ms(1.5)])
    s.seal(minute(2.9))
    s.send([ms(3.5)])
    s.seal(minute(5.9))
    assert s.offsets() == [{0: 0}, {0: 1}, {0: 1}, {0: 1}, {0: 1}, {0: 1}]
    s.seal(minute(6))
    assert s.key_of(1) == "2026-01-01-00:05"
    s.held_once({})


def test_reusing_answers_gives_the_cuts_that_asking_for_every_edge_gives(
    sealer: Callable[..., Sealer], rng: random.Random, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    s = sealer(partitions=3)
    for partition in range(2):
        stamps = [rng.choice((ms(30 * rng.random()), FAR_AHEAD, LONG_AGO)) for _ in range(40)]
        s.send(sorted(stamps) if partition else stamps, partition)
    counted = Counting(s.cluster)
    s.seal(minute(30.9), cluster=counted)
    reused = counted.calls
    asking = replace(s, root=tmp_path / "asking")
    monkeypatch.setattr(TimestampLookup, "_still_holds", lambda *_: False)
    asking.seal(minute(30.9), cluster=counted)
    assert asking.cuts == s.cuts
    assert len(s.cuts) == 31
    assert (reused < 30, counted.calls - reused) == (True, 30)


class Counting(Cluster):
    """Counts look-ups by timestamp."""

    def __init__(self, behind: Cluster) -> None:
        super().__init__(behind._admin, behind.settings, behind.timeout)
        self.calls = 0

    def with_deadline(self, deadline: float) -> Cluster:
        return self

    def offsets_at(self, topic: TopicState, timestamps: Mapping[int, int]) -> dict[int, FoundOffset | None]:
        self.calls += 1
        return super().offsets_at(topic, timestamps)


# --- transactions ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("late", [timedelta(0), 0.9 * MINUTE], ids=["live", "looked up"])
@pytest.mark.parametrize("commit", [True, False], ids=["committed", "aborted"])
def test_an_open_transaction_is_in_no_window_until_it_is_decided(
    sealer: Callable[..., Sealer], late: timedelta, commit: bool
) -> None:
    """Records that other producers committed later wait too, because the last stable offset is a single number."""
    s = sealer()
    s.send([ms(0.1)] * 2)
    transaction = s.open_transaction([ms(0.2)] * 3)
    s.send([ms(0.3)])
    s.seal(minute(2) + late)
    assert s.offsets() == [{0: 0}, {0: 2}, {0: 2}]
    transaction.end(commit=commit)
    s.seal(minute(3) + late)
    assert s.offsets()[2:] == [{0: 2}, {0: 7}]
    s.seal(minute(4))
    s.held_once({})


def test_a_window_of_aborted_records_alone_has_offsets(sealer: Callable[..., Sealer]) -> None:
    s = sealer()
    s.seal(START)
    s.open_transaction([ms(0.2)] * 3).end(commit=False)
    s.seal(minute(1))
    assert s.windows[0].ranges.triples() == ((0, 0, 4),)


def test_a_backlog_in_transactions_is_cut_by_its_records_not_by_its_markers(
    sealer: Callable[..., Sealer], rng: random.Random
) -> None:
    """All markers are newer than all edges, so brokers answer each look-up with the first marker. Transactions have one
    record or many, are committed or aborted, and have batches that span edges."""
    s = sealer(partitions=3)
    s.seal(START)
    sent: dict[tuple[int, int], int] = {}
    for partition in range(3):
        # The last partition starts late, with only markers before its first edges.
        stamps = sorted(rng.randrange(ms(10 if partition == 2 else 0), ms(19)) for _ in range(400))
        transactions = Transactions(s)
        while stamps:
            size = rng.choice((1, 2, 40, 90))
            taken, stamps = stamps[:size], stamps[size:]
            offset = s.ends()[partition]
            sent |= {(partition, offset + n): stamp for n, stamp in enumerate(taken)}
            transactions.write(taken, partition, commit=rng.random() < 0.8)
    s.seal(minute(20.9))
    assert len(s.windows) == 20
    for (partition, offset), stamp in sent.items():
        assert s.key_of(offset, partition) == f"{START + timedelta(minutes=(stamp - T0) // 60_000):%Y-%m-%d-%H:%M}"
    s.held_once({})


def test_markers_near_their_records_cost_no_search(
    sealer: Callable[..., Sealer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The topic was filled live during an outage of the platform: its markers are as old as its records."""
    s = sealer()
    s.declaration = replace(s.declaration, schedule="*/5 * * * *", start=datetime.now(UTC) - 10 * MINUTE)
    monkeypatch.setattr(BatchSearch, "first_record_at", None)
    now = milliseconds(datetime.now(UTC))
    Transactions(s).write([now - 1, now], commit=True)
    later = datetime.now(UTC) + 20 * MINUTE
    monkeypatch.setattr(clocks, "other_clock", lambda *_: OtherClock("a clock of the test's", later))
    s.seal(later)
    (window,) = [w for w in s.windows if w.ranges.size]
    assert window.ranges.triples() == ((0, 0, 3),)


@pytest.mark.alone
def test_a_search_behind_markers_ends_with_the_budget_and_keeps_what_it_found(
    sealer: Callable[..., Sealer], broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    s = sealer()
    transactions = Transactions(s)
    for n in range(6):
        transactions.write([ms(n + 0.5)], commit=True)
    search = BatchSearch.first_record_at

    def slow(self: BatchSearch, partition: int, moment: int, start: int, end: int) -> FoundOffset | None:
        if moment < ms(3):
            return search(self, partition, moment, start, end)
        freeze(broker)
        return search(self, partition, moment, start, end)

    monkeypatch.setattr(BatchSearch, "first_record_at", slow)
    try:
        done = s.seal(minute(6.9), seconds=3)
    finally:
        thaw(broker)
    assert done.more
    monkeypatch.undo()
    seal_all_after_a_thaw(lambda: s.seal(minute(6.9)))
    assert s.offsets() == [{0: 2 * n} for n in range(7)]


# --- partitions -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("late", [timedelta(0), 0.9 * MINUTE], ids=["live", "looked up"])
def test_a_partition_added_later_starts_at_zero(sealer: Callable[..., Sealer], broker: Broker, late: timedelta) -> None:
    """This also holds if the partition's log start advances before the cut: the missing records are a loss, and their
    offsets stay in the range."""
    s = sealer()
    s.send([ms(0.1)])
    s.seal(minute(1))
    broker.admin.create_partitions([NewPartitions(s.topic, 3)])[s.topic].result(30)
    wait_until("the partitions are there", lambda: len(s.cluster.topic(s.topic).partitions) == 3)
    wait_until("they have leaders", lambda: len(s.stable()) == 3)
    s.send([ms(1.1)] * 4, partition=1)
    delete_before(broker.bootstrap, s.topic, 1, 2)
    s.seal(minute(2) + late)
    assert s.windows[1].ranges.triples() == ((0, 1, 1), (1, 0, 4), (2, 0, 0))
    s.held_once({})


class Unreachable(Cluster):
    """Leaves partitions out of every answer, as if they had no leader."""

    def __init__(self, behind: Cluster, partitions: set[int]) -> None:
        super().__init__(behind._admin, behind.settings, behind.timeout)
        self.without = partitions

    def with_deadline(self, deadline: float) -> Cluster:
        return self

    def last_stable_offsets(self, topic: TopicState) -> dict[int, FoundOffset]:
        return self._rest(super().last_stable_offsets(topic))

    def log_starts(self, topic: TopicState) -> dict[int, FoundOffset]:
        return self._rest(super().log_starts(topic))

    def offsets_at(self, topic: TopicState, timestamps: Mapping[int, int]) -> dict[int, FoundOffset | None]:
        return self._rest(super().offsets_at(topic, timestamps))

    def _rest(self, found: dict[int, Any]) -> dict[int, Any]:
        return {p: f for p, f in found.items() if p not in self.without}


@pytest.mark.parametrize("late", [timedelta(0), 0.9 * MINUTE], ids=["live", "looked up"])
def test_a_partition_out_of_reach_carries_its_cut_forward_and_is_caught_up(
    sealer: Callable[..., Sealer], late: timedelta
) -> None:
    s = sealer(partitions=2)
    for partition in (0, 1):
        s.send([ms(0.1), ms(1.1), ms(2.1)], partition)
    s.seal(minute(1.9))
    s.seal(minute(2) + late, cluster=Unreachable(s.cluster, {1}))
    assert s.offsets()[1:] == [{0: 1, 1: 1}, {0: 2 if late else 3, 1: 1}]
    assert s.cuts[-1].taken[1] == "carried"
    s.seal(minute(3) + late)
    assert s.windows[-1].ranges.by_partition[1].size == 2
    s.held_once({})


def test_no_first_cut_is_taken_while_a_partition_is_out_of_reach(sealer: Callable[..., Sealer]) -> None:
    """Without an answer from the partition, its log start would be a guess."""
    s = sealer(partitions=2)
    with pytest.raises(BrokerUnreachableError, match=r"partitions \[1\] have no leader"):
        s.seal(minute(1), cluster=Unreachable(s.cluster, {1}))
    assert s.cuts == []


# --- another log under the same name --------------------------------------------------------------------------------


def test_a_topic_created_again_is_refused_and_nothing_recorded(sealer: Callable[..., Sealer], broker: Broker) -> None:
    s = sealer()
    s.send([ms(0.1)])
    s.seal(minute(1))
    former = s.cluster.topic(s.topic).topic_id
    create_again(broker, s.topic)
    s.send([ms(1.1)] * 50)
    with pytest.raises(TopicRecreatedError) as caught:
        s.seal(minute(2))
    assert (caught.value.recorded_id, caught.value.found_id) == (former, s.cluster.topic(s.topic).topic_id)
    with pytest.raises(TopicRecreatedError):
        s.window("2026-01-01-00:01", minute(2))
    assert len(s.cuts) == 2


@pytest.mark.parametrize("late", [timedelta(0), 0.9 * MINUTE], ids=["live", "looked up"])
def test_a_log_that_ends_before_a_recorded_cut_is_refused_and_nothing_recorded(
    sealer: Callable[..., Sealer], late: timedelta
) -> None:
    s = sealer(partitions=2)
    s.send([ms(0.1)] * 3)
    s.send([ms(0.1)] * 3, partition=1)
    topic_id = s.cluster.topic(s.topic).topic_id
    s.ledger.record_cuts([cut(s.topic, START, {0: 3, 1: 9}, topic_id=topic_id)], None)
    with pytest.raises(TruncationError) as caught:
        s.seal(minute(1) + late)
    assert (caught.value.partition, caught.value.recorded, caught.value.found) == (1, 9, 3)
    assert len(s.cuts) == 1


def test_a_missing_topic_is_named_and_nothing_recorded(sealer: Callable[..., Sealer]) -> None:
    s = replace(sealer(), topic="no-such-topic")
    with pytest.raises(TopicMissingError):
        s.seal(minute(1))
    assert s.cuts == []


# --- brokers that fail, and budgets that end ------------------------------------------------------------------------


def test_a_broker_out_of_reach_is_named_and_nothing_recorded(sealer: Callable[..., Sealer]) -> None:
    s = sealer()
    began = time.monotonic()
    for cluster in (Cluster.connect(ClientSettings("127.0.0.1:1")), Cluster.connect(ClientSettings("no.invalid:1"))):
        with pytest.raises(BrokerUnreachableError):
            s.seal(minute(1), cluster=cluster, seconds=0.5)
    assert time.monotonic() - began < 60
    assert s.cuts == []


def seal_all_after_a_thaw(tick: Callable[[], sealing.Sealing]) -> None:
    """Run ticks until one leaves no edge. After a long freeze, a broker leads in a new epoch and fences clients that do
    not know this epoch; a later tick knows it. A tick that waits for such a broker can reach its time limit half-way."""

    def sealed_all() -> bool:
        with suppress(BrokerUnreachableError):
            return not tick().more
        return False

    wait_until("a tick left no edge", sealed_all)


class Freezing(Cluster):
    """Freezes the broker at look-up number `at`."""

    def __init__(self, behind: Cluster, broker: Broker, at: int) -> None:
        super().__init__(behind._admin, behind.settings, behind.timeout)
        self.broker, self.at = broker, at

    def with_deadline(self, deadline: float) -> Cluster:
        self._deadline = deadline
        return self

    def offsets_at(self, topic: TopicState, timestamps: Mapping[int, int]) -> dict[int, FoundOffset | None]:
        self.at -= 1
        if self.at == 0:
            freeze(self.broker)
        return super().offsets_at(topic, timestamps)


@pytest.mark.alone
def test_a_broker_that_freezes_half_way_leaves_the_edges_before_and_the_next_tick_goes_on(
    sealer: Callable[..., Sealer], broker: Broker
) -> None:
    s = sealer()
    s.send([ms(n + 0.5) for n in range(10)])
    began = time.monotonic()
    try:
        sealed = s.seal(minute(10.9), cluster=Freezing(s.cluster, broker, 4), seconds=2)
    finally:
        thaw(broker)
    assert time.monotonic() - began < 60
    assert sealed.more
    assert s.offsets() == [{0: 0}, {0: 1}, {0: 2}, {0: 3}]
    seal_all_after_a_thaw(lambda: s.seal(minute(10.9)))
    assert s.offsets() == [{0: n} for n in range(11)]
    s.held_once({})


def test_a_budget_that_is_used_up_before_anything_was_found_is_an_error(sealer: Callable[..., Sealer]) -> None:
    s = sealer()
    with pytest.raises(BrokerUnreachableError, match="time limit for all lookups"):
        s.seal(minute(1), seconds=-1)
    assert s.cuts == []


def test_edges_beyond_the_limit_of_a_tick_wait_for_the_next(sealer: Callable[..., Sealer]) -> None:
    """No edge in the tick is treated as the newest edge, which is the only one that is cut live."""
    s = sealer()
    s.send([ms(n + 0.5) for n in range(5)])
    s.declaration = replace(s.declaration, max_edges_per_tick=2)
    assert [s.seal(minute(5)).more for _ in range(3)] == [True, True, False]
    assert s.offsets() == [{0: n} for n in range(6)]
    assert [t.pop() for t in s.taken()] == ["log start", *["timestamp"] * 4, "last stable offset"]
    assert s.seal(minute(5)) == sealing.Sealing((), more=False)


# --- rivals ---------------------------------------------------------------------------------------------------------


def test_the_loser_of_a_race_goes_on_from_the_winners_cut(
    sealer: Callable[..., Sealer], monkeypatch: pytest.MonkeyPatch
) -> None:
    s = sealer()
    s.send([ms(0.5), ms(1.5)])
    record, rival = Ledger.record_cuts, replace(s)

    def late(self: Ledger, cuts: Sequence[RecordedCut], after: datetime | None) -> bool:
        monkeypatch.setattr(Ledger, "record_cuts", record)
        rival.seal(minute(1))
        s.send([ms(1.6)])
        return record(self, cuts, after)

    monkeypatch.setattr(Ledger, "record_cuts", late)
    sealed = s.seal(minute(2))
    assert [c.edge for c in sealed.recorded] == [minute(2)]
    assert s.offsets() == [{0: 0}, {0: 2}, {0: 3}]
    s.held_once({})


def test_who_loses_every_race_says_so(sealer: Callable[..., Sealer], monkeypatch: pytest.MonkeyPatch) -> None:
    s = sealer()
    monkeypatch.setattr(Ledger, "record_cuts", lambda *_: False)
    with pytest.raises(LedgerConflictError, match="Run it again"):
        s.seal(minute(1))


# --- windows asked for by key ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("known", [False, True], ids=["before any cut", "after some cuts"])
@pytest.mark.parametrize(
    ("key", "error", "message"),
    [
        ("2026-01-01T00:00", UnknownWindowError, r"'2026-01-01T00:00' is not a window.*YYYY-MM-DD-HH:MM"),
        (
            "2026-01-01-00:30",
            UnknownWindowError,
            r"inside window 2026-01-01-00:00|schedule '0 \* \* \* \*' has no window boundary at that time",
        ),
        ("2026-01-01-05:30", UnknownWindowError, r"schedule '0 \* \* \* \*' has no window boundary at that time"),
        ("2025-12-31-23:00", WindowBeforeStartError, "before the topic's first window boundary, 2026-01-01-00:00"),
        ("2025-12-31-23:30", WindowBeforeStartError, "before the topic's first window boundary, 2026-01-01-00:00"),
        ("2026-01-01-03:00", WindowOpenError, r"still open: it closes at 2026-01-01T04:00:00\+00:00"),
        ("2027-01-01-03:00", WindowOpenError, r"still open: it closes at 2027-01-01T04:00:00\+00:00"),
    ],
)
def test_a_key_that_names_no_closed_window_is_an_error_and_nothing_is_recorded(
    sealer: Callable[..., Sealer], known: bool, key: str, error: type[Exception], message: str
) -> None:
    s = sealer(schedule="0 * * * *")
    now = edge(4) - timedelta(microseconds=1)
    if known:
        s.seal(edge(2))
    before = s.cuts
    with pytest.raises(error, match=message):
        s.window(key, now)
    assert s.cuts == before


def test_a_window_asked_for_by_hand_is_sealed_with_all_before_it_and_none_after(
    sealer: Callable[..., Sealer],
) -> None:
    """The cuts are the ones that the sensor would take, and the sensor's later result does not change."""
    s = sealer()
    s.send([ms(n + 0.5) for n in range(5)])
    found = s.window("2026-01-01-00:02", minute(5), max_edges_per_tick=2)
    assert (found.key, found.ranges.triples()) == ("2026-01-01-00:02", ((0, 2, 3),))
    assert s.offsets() == [{0: n} for n in range(4)]
    s.send([ms(2.9)])
    assert s.window("2026-01-01-00:02", minute(5)) == found
    assert len(s.cuts) == 4


def test_the_newest_closed_window_asked_for_by_hand_is_cut_live(sealer: Callable[..., Sealer]) -> None:
    s = sealer()
    s.send([ms(0.5), FAR_AHEAD])
    assert s.window(KEY, minute(1) + INTERVAL).ranges.size == 2


def test_windows_whose_length_changed_keep_their_ends(sealer: Callable[..., Sealer]) -> None:
    """Windows are hourly until 02:00, and one minute long from then on. 00:30 is inside a window; 02:30 is the start of
    a one-minute window."""
    s = sealer(schedule="0 * * * *")
    s.send([milliseconds(edge(h)) + 1 for h in (0, 0.5, 1.5, 2, 2.01, 2.02)])
    s.seal(edge(2.9))
    by_minute = replace(s, schedule="* * * * *")
    before = by_minute.windows
    by_minute.seal(edge(2) + 2.9 * MINUTE)
    assert by_minute.windows[:2] == before
    assert [w.window.end - w.window.start for w in by_minute.windows] == [60 * MINUTE] * 2 + [MINUTE] * 2
    assert by_minute.window("2026-01-01-01:00", edge(3)).window.end == edge(2)
    assert by_minute.window("2026-01-01-02:00", edge(3)).window.end == edge(2) + MINUTE
    for key in ("2026-01-01-00:30", "2026-01-01-01:59"):
        with pytest.raises(UnknownWindowError, match="inside window"):
            by_minute.window(key, edge(3))
    assert by_minute.window("2026-01-01-02:30", edge(3)).window.end == edge(2) + 31 * MINUTE
    by_minute.seal(edge(3))
    s.held_once({})


def test_windows_that_grew_longer_keep_their_ends(sealer: Callable[..., Sealer]) -> None:
    s = sealer()
    s.seal(minute(2))
    hourly = replace(s, schedule="0 * * * *")
    hourly.seal(edge(2))
    ends = [w.window.end for w in hourly.windows]
    assert ends == [minute(1), minute(2), edge(1), edge(2)]
    assert next(edges_from(hourly.schedule, minute(2))) == edge(1)


# --- a ledger that was lost -----------------------------------------------------------------------------------------


def table_of_three(s: Sealer) -> None:
    s.send([ms(n + 0.5) for n in range(3)])
    s.seal(minute(3))
    for window in s.windows:
        loaded(s.root, window)


def rolled_back(s: Sealer, edges: int) -> None:
    """Roll the ledger back to its first `edges` edges."""
    cuts = s.cuts[:edges]
    for name in ("cuts", "commits"):
        DeltaTable(s.root / "_ledger" / name).delete()
    (s.root / "_ledger").rename(s.root / "_ledger lost")
    s.ledger.create()
    if cuts:
        assert s.ledger.record_cuts(cuts, None)


@pytest.mark.parametrize("edges", [0, 1, 2, 3])
@pytest.mark.parametrize("again", [None, 0], ids=["", "an old window was loaded again last"])
def test_a_ledger_that_lacks_what_the_table_holds_stops_all_cutting(
    sealer: Callable[..., Sealer], edges: int, again: int | None
) -> None:
    s = sealer()
    table_of_three(s)
    if again is not None:
        overwrite(s.root, s.windows[again], load_id="again")
    rolled_back(s, edges)
    before = s.cuts
    with pytest.raises(LedgerLostError, match=r"raw/.*rebuild-ledger"):
        s.seal(minute(9))
    for key in (KEY, "2026-01-01-00:02", "2026-01-01-00:05"):
        with pytest.raises(LedgerLostError):
            s.window(key, minute(9))
    assert s.cuts == before


def test_a_ledger_that_knows_all_that_the_table_holds_goes_on(sealer: Callable[..., Sealer]) -> None:
    s = sealer()
    table_of_three(s)
    overwrite(s.root, s.windows[0], load_id="again")
    assert len(s.seal(minute(5)).recorded) == 2


def test_a_table_without_any_load_is_no_lost_ledger(sealer: Callable[..., Sealer]) -> None:

    s = sealer()
    raw_table.create(Folder.at(s.root / "raw" / s.topic), s.topic)
    assert len(s.seal(minute(1)).recorded) == 2
