"""Ticks with a real broker, a real ledger and Dagster's own storage: the reports and requests that ticks make, and how
often they make them."""

from __future__ import annotations

import random
import re
import uuid
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dagster as dg
import pytest
from dagster._core.storage.tags import (
    ASSET_PARTITION_RANGE_END_TAG,
    ASSET_PARTITION_RANGE_START_TAG,
    PARTITION_NAME_TAG,
)

from platform_assets.errors import BrokerUnreachableError, TopicRecreatedError
from platform_assets.kafka.cluster import Cluster
from platform_assets.kafka.settings import ClientSettings
from platform_assets.lake.location import Folder, Lake
from platform_assets.ledger.decisions import Author
from platform_assets.ledger.entries import SealedWindow
from platform_assets.ledger.store import Ledger
from platform_assets.model.declaration import TopicDeclaration
from platform_assets.model.decoding import DecodeDeclaration, FormatSpec
from platform_assets.model.tables import TableRef
from platform_assets.model.windows import key_of, milliseconds
from platform_assets.orchestration import status
from platform_assets.orchestration.dagster_records import TABLE_TAG, config_listing
from platform_assets.orchestration.definitions import DeepAudit, build_definitions
from platform_assets.orchestration.names import table_key, topic_key
from platform_assets.orchestration.publishing import group_of
from platform_assets.orchestration.resources import KafkaResource, LakeResource
from platform_assets.orchestration.tick import Group, Position
from platform_assets.windows.decide import generations
from platform_assets.windows.load import clocks, sealing
from platform_assets.windows.load.clocks import OtherClock
from platform_assets_tests.support.streams import ANY_TIME, Stream, create_again
from testbed.samples import START, loaded, receipt
from testbed.ticks import PlanningTick

if TYPE_CHECKING:
    from platform_assets_tests.conftest import Broker, TopicMaker

MINUTE = timedelta(minutes=1)
UNDER_WAY = (dg.DagsterRunStatus.NOT_STARTED, dg.DagsterRunStatus.STARTING, dg.DagsterRunStatus.STARTED)
OVER = (dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED)

pytestmark = pytest.mark.broker


def minute(number: float) -> datetime:
    return START + number * MINUTE


def key(number: int) -> str:
    return key_of(minute(number))


def asked(result: dg.SensorResult) -> list[tuple[str, str]]:
    """Return the first and last window of each requested run."""
    found: list[tuple[str, str]] = []
    for request in result.run_requests or []:
        one = request.partition_key
        tags = request.tags
        found.append(
            (one, one) if one else (tags[ASSET_PARTITION_RANGE_START_TAG], tags[ASSET_PARTITION_RANGE_END_TAG])
        )
    return found


def events(result: dg.SensorResult, asset: dg.AssetKey) -> list[str]:
    """Return the partitions of the materializations that are reported for `asset`."""
    return [e.partition for e in _materializations(result) if e.asset_key == asset and e.partition is not None]


def _materializations(result: dg.SensorResult) -> list[dg.AssetMaterialization]:
    assert all(isinstance(e, dg.AssetMaterialization) for e in result.asset_events)
    return [e for e in result.asset_events if isinstance(e, dg.AssetMaterialization)]


@dataclass
class Ticker(Stream):
    """The sensor of one topic, with its own Dagster storage; a test can make it tick at any time."""

    root: Path
    instance: dg.DagsterInstance
    settings: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.ledger = Ledger(Lake.at(self.root))
        self.declaration = TopicDeclaration(self.topic, "* * * * *", START, **self.settings)

    @property
    def source(self) -> dg.AssetKey:
        return topic_key(self.topic)

    @property
    def table(self) -> dg.AssetKey:
        return table_key(TableRef.raw(self.topic))

    def tick(self, now: datetime, cursor: str | None = None, cluster: Cluster | None = None) -> dg.SensorResult:
        """Evaluate the sensor once, without storing its result."""
        tick = PlanningTick(Group.of(self.declaration), cluster or self.cluster, self.ledger, self.instance, now)
        return tick.evaluate(cursor)

    def keep(self, result: dg.SensorResult, limit: int | None = None) -> None:
        """Store the first `limit` events of the result, as the daemon does."""
        for event in _materializations(result)[:limit]:
            self.instance.report_runless_asset_event(event)

    def run(
        self, status: dg.DagsterRunStatus, tags: dict[str, str], assets: Iterable[dg.AssetKey] | None = None
    ) -> dg.DagsterRun:
        """Add a run for this table, or for `assets`, to Dagster's records."""
        run = dg.DagsterRun(
            job_name="__ASSET_JOB",
            run_id=str(uuid.uuid4()),
            status=status,
            tags=tags,
            asset_selection=frozenset([self.table] if assets is None else assets),
        )
        return self.instance.add_run(run)

    def reports(self, asset: dg.AssetKey) -> Counter[str]:
        """Return how often each partition of `asset` is recorded as materialized."""
        records = self.instance.fetch_materializations(asset, limit=1000).records
        return Counter(r.partition_key for r in records if r.partition_key is not None)

    def windows(self) -> list[SealedWindow]:
        return self.ledger.windows(self.topic)


@pytest.fixture
def ticker(broker: Broker, topic: TopicMaker, tmp_path: Path) -> Iterable[Callable[..., Ticker]]:
    with dg.DagsterInstance.ephemeral() as instance:

        def make(partitions: int = 1, **settings: Any) -> Ticker:
            name = topic(partitions=partitions, config=ANY_TIME, stem="tick.s")
            return Ticker(broker.bootstrap, name, tmp_path / "lake", instance, settings)

        yield make


def backlog(t: Ticker, *sizes: int) -> None:
    """Produce the same number of records in each minute, starting at START."""
    for number, size in enumerate(sizes):
        t.send([milliseconds(minute(number + 0.5))] * size)


class Untouchable(Cluster):
    """A cluster that must not be queried."""

    def __init__(self) -> None:
        super().__init__(None, ClientSettings("localhost:1"))

    def with_deadline(self, deadline: float) -> Cluster:
        pytest.fail("asked the broker")


# --- one tick -------------------------------------------------------------------------------------------------------


def test_before_the_first_edge_a_tick_does_nothing_and_asks_nobody(ticker: Callable[..., Ticker]) -> None:
    t = ticker()
    result = t.tick(START - MINUTE, cluster=Untouchable())
    assert (asked(result), result.asset_events, result.cursor) == ([], [], None)
    assert result.skip_reason is not None
    assert "2026-01-01 00:00" in str(result.skip_reason)


def test_the_first_edge_alone_closes_no_window(ticker: Callable[..., Ticker]) -> None:
    t = ticker()
    result = t.tick(START)
    assert (asked(result), result.asset_events) == ([], [])
    assert len(t.ledger.cuts(t.topic)) == 1


def test_a_closed_window_is_reported_with_its_ranges_and_asked_for(ticker: Callable[..., Ticker]) -> None:
    t = ticker(partitions=2)
    t.send([milliseconds(minute(0.5))] * 3, partition=1)
    result = t.tick(minute(1))
    assert asked(result) == [(key(0), key(0))]
    (request,) = result.run_requests or []
    assert request.run_key == f"raw/{t.topic}/1/{key(0)}..{key(0)}"
    assert request.asset_selection == [t.table]
    (event,) = _materializations(result)
    assert (event.asset_key, event.partition) == (t.source, key(0))
    ranges = event.metadata["offset_ranges"]
    assert isinstance(ranges, dg.TableMetadataValue)
    assert [(r.data["partition"], r.data["start"], r.data["end"]) for r in ranges.records] == [(0, 0, 0), (1, 0, 3)]
    assert event.metadata["offsets"].value == 3
    assert event.tags is not None
    assert event.tags["dagster/data_version"]


def test_a_tick_at_which_no_window_closed_does_nothing_and_asks_nobody(ticker: Callable[..., Ticker]) -> None:
    t = ticker()
    backlog(t, 1)
    first = t.tick(minute(1))
    t.keep(first)
    loaded(t.root, t.windows()[0])
    result = t.tick(minute(1.9), first.cursor, Untouchable())
    assert (asked(result), result.asset_events, result.cursor) == ([], [], first.cursor)
    assert "no window has closed" in str(result.skip_reason)


def test_a_window_without_offsets_is_loaded_with_no_rows_and_no_run(ticker: Callable[..., Ticker]) -> None:
    t = ticker()
    backlog(t, 1, 0, 0, 1)
    result = t.tick(minute(4.9))
    assert asked(result) == [(key(0), key(0)), (key(3), key(3))]
    assert events(result, t.source) == [key(n) for n in range(4)]
    assert events(result, t.table) == [key(1), key(2)]
    for event in _materializations(result):
        if event.asset_key == t.table:
            assert (event.metadata["rows"].value, event.metadata["outcome"].value) == (0, "empty")
    entries = t.ledger.receipts(t.declaration.raw_table)
    assert {k: (r.kind, r.rows) for k, r in entries.items()} == {key(1): ("empty", 0), key(2): ("empty", 0)}


def test_a_backlog_is_asked_for_in_runs_of_bounded_size(ticker: Callable[..., Ticker]) -> None:
    t = ticker(max_records_per_run=10, max_windows_per_run=3)
    backlog(t, 4, 6, 1, 1, 1, 1, 25, 2)
    result = t.tick(minute(8.9))
    assert asked(result) == [(key(a), key(b)) for a, b in ((0, 1), (2, 4), (5, 5), (6, 6), (7, 7))]
    assert len({r.run_key for r in result.run_requests or []}) == 5


def test_a_tick_never_reports_more_windows_than_edges_may_be_sealed_in_one(ticker: Callable[..., Ticker]) -> None:
    """Hundreds of windows may have been sealed manually before the sensor's first tick."""
    t = ticker(max_edges_per_tick=3)
    backlog(t, *[1] * 7)
    whole = replace(t, settings={})
    whole.tick(minute(7.9))
    seen: list[str] = []
    cursor: str | None = None
    for _ in range(3):
        result = t.tick(minute(7.9), cursor, Untouchable())
        assert len(events(result, t.source)) <= 3
        seen += events(result, t.source)
        cursor = result.cursor
        t.keep(result)
    assert seen == [key(n) for n in range(7)]


def test_a_topic_with_years_of_backlog_is_sealed_reported_and_asked_for_in_even_portions(
    ticker: Callable[..., Ticker],
) -> None:
    """The test uses the default settings. The daemon stores a tick's reports one event at a time before it starts the
    runs."""
    t = ticker()
    start = START - timedelta(days=3 * 365)
    t.declaration = replace(t.declaration, schedule="0 * * * *", start=start)
    t.send([milliseconds(start + timedelta(hours=n, minutes=30)) for n in range(650)])
    portion, cursor, sealed = t.declaration.max_edges_per_tick, None, 0
    assert portion <= t.declaration.max_windows_per_run
    for number in range(3):
        result = t.tick(START, cursor)
        # The first edge begins a window and ends none.
        new = [w.key for w in t.windows()[sealed:]]
        assert len(new) == portion - (number == 0)
        assert events(result, t.source) == new
        assert asked(result) == [(new[0], new[-1])]
        t.run(UNDER_WAY[0], {ASSET_PARTITION_RANGE_START_TAG: new[0], ASSET_PARTITION_RANGE_END_TAG: new[-1]})
        t.keep(result)
        cursor, sealed = result.cursor, sealed + len(new)


# --- what was done is not done twice --------------------------------------------------------------------------------


@pytest.mark.parametrize("kept", [0, 1, 3, None], ids=["no event", "one event", "some events", "all events"])
def test_a_tick_that_crashed_before_its_cursor_was_kept_reports_nothing_twice(
    ticker: Callable[..., Ticker], kept: int | None
) -> None:
    """The next tick requests the same runs with the same run keys, so Dagster recognizes them."""
    t = ticker(max_windows_per_run=2)
    backlog(t, 1, 0, 1, 1, 1)
    crashed = t.tick(minute(5.9))
    t.keep(crashed, kept)
    again = t.tick(minute(5.9), None, Untouchable())
    t.keep(again)
    assert [r.run_key for r in again.run_requests or []] == [r.run_key for r in crashed.run_requests or []]
    assert again.cursor == crashed.cursor
    assert t.reports(t.source) == Counter(key(n) for n in range(5))
    assert t.reports(t.table) == Counter([key(1)])
    assert sum(r.kind == "empty" for r in t.ledger.receipts(t.declaration.raw_table).values()) == 1


@pytest.mark.parametrize("kept", [0, 4, 5, 6, None])
def test_decoded_windows_without_offsets_are_reported_once_where_a_tick_crashed(
    ticker: Callable[..., Ticker], kept: int | None
) -> None:
    t = ticker(decode=DecodeDeclaration(FormatSpec("string")))
    backlog(t, 1, 0, 1)
    crashed = t.tick(minute(3.9))
    assert len(_materializations(crashed)) == 6
    t.keep(crashed, kept)
    t.keep(t.tick(minute(3.9), None, Untouchable()))
    d = t.declaration
    for table in (d.raw_table, d.decoded_table, d.dead_letter_table):
        assert t.reports(table_key(table)) == Counter([key(1)])


@pytest.mark.parametrize("status", UNDER_WAY)
def test_windows_that_a_run_under_way_will_bring_are_not_asked_for(
    ticker: Callable[..., Ticker], status: dg.DagsterRunStatus
) -> None:
    t = ticker()
    backlog(t, *[1] * 7)
    t.run(status, {ASSET_PARTITION_RANGE_START_TAG: key(1), ASSET_PARTITION_RANGE_END_TAG: key(2)})
    t.run(status, {PARTITION_NAME_TAG: key(5)})
    result = t.tick(minute(7.9))
    assert asked(result) == [(key(0), key(0)), (key(3), key(4)), (key(6), key(6))]
    assert events(result, t.source) == [key(n) for n in range(7)]


def test_runs_that_are_over_or_of_other_tables_hold_nothing_back(ticker: Callable[..., Ticker]) -> None:
    t = ticker()
    backlog(t, 1, 1, 1)
    for outcome in OVER:
        t.run(outcome, {PARTITION_NAME_TAG: key(1)})
    t.run(UNDER_WAY[-1], {PARTITION_NAME_TAG: key(1)}, [table_key(TableRef.raw("another"))])
    assert asked(t.tick(minute(3.9))) == [(key(0), key(2))]


def test_windows_that_were_loaded_by_hand_are_reported_and_not_asked_for(ticker: Callable[..., Ticker]) -> None:
    t = ticker()
    backlog(t, 1, 1, 1)
    t.ledger.create()
    sealing.seal(t.declaration, t.cluster, t.ledger, minute(3.9), deadline=float("inf"))
    loaded(t.root, t.windows()[1])
    result = t.tick(minute(3.9))
    assert asked(result) == [(key(0), key(0)), (key(2), key(2))]
    assert events(result, t.source) == [key(n) for n in range(3)]
    assert events(result, t.table) == []


def test_windows_that_a_run_reported_itself_are_not_reported_again(ticker: Callable[..., Ticker]) -> None:
    t = ticker()
    backlog(t, 1, 1)
    t.instance.report_runless_asset_event(dg.AssetMaterialization(t.source, partition=key(0)))
    assert events(t.tick(minute(2.9)), t.source) == [key(1)]


def test_over_many_ticks_with_crashes_each_window_is_reported_once_and_the_cursor_only_grows(
    ticker: Callable[..., Ticker], rng: random.Random
) -> None:
    t = ticker(partitions=2, max_edges_per_tick=4, max_windows_per_run=2)
    now, cursor, reached = START, None, ""
    keys: dict[str, set[str]] = {}
    for _ in range(25):
        t.send([milliseconds(now)] * rng.randrange(2), rng.randrange(2))
        now += rng.choice((0, 0.3, 1, 3)) * MINUTE
        result = t.tick(now, cursor)
        assert (result.cursor or "") >= reached
        for first, last in asked(result):
            keys.setdefault(first, set()).add(last)
        crashed = rng.random() < 0.3
        events_kept = rng.randrange(len(result.asset_events) + 1) if crashed else None
        t.keep(result, events_kept)
        if not crashed:
            cursor, reached = result.cursor, result.cursor or ""
    while (result := t.tick(now, cursor)).cursor != cursor:
        t.keep(result)
        cursor = result.cursor
        for first, last in asked(result):
            keys.setdefault(first, set()).add(last)
    windows = t.windows()
    assert t.reports(t.source) == Counter(w.key for w in windows)
    assert t.reports(t.table) == Counter(w.key for w in windows if not w.ranges.size)
    wanted = {w.key for w in windows if w.ranges.size}
    assert {k for k in wanted if any(a <= k <= b for a, some in keys.items() for b in some)} == wanted


@pytest.mark.parametrize("cursor", ["", '{"version": 99, "reported": 1}', '{"version": 1, "reported": 1767225600}'])
def test_a_cursor_that_was_reset_or_is_of_another_release_repeats_no_report(
    ticker: Callable[..., Ticker], cursor: str
) -> None:
    t = ticker()
    backlog(t, 1, 0, 1)
    t.keep(t.tick(minute(3.9)))
    again = t.tick(minute(3.9), cursor)
    assert again.asset_events == []
    assert again.cursor is not None
    assert "1767225780" in again.cursor


def test_a_cursor_beyond_the_ledger_stays_where_it_is(ticker: Callable[..., Ticker]) -> None:
    """A cursor is beyond the ledger after the ledger is rolled back."""
    t = ticker()
    backlog(t, 1)
    t.tick(minute(1))
    beyond = '{"version": 1, "reported": 1893456000}'
    result = t.tick(minute(1), beyond)
    assert (result.cursor, asked(result), result.asset_events) == (beyond, [(key(0), key(0))], [])


# --- faults ---------------------------------------------------------------------------------------------------------


def test_a_tick_without_a_broker_fails_and_has_reported_nothing(ticker: Callable[..., Ticker]) -> None:
    t = ticker(tick_budget=timedelta(seconds=1))
    with pytest.raises(BrokerUnreachableError):
        t.tick(minute(1), cluster=Cluster.connect(ClientSettings("127.0.0.1:1")))
    assert t.ledger.cuts(t.topic) == []


def test_a_topic_created_again_stops_the_sensor_until_that_is_accepted(
    ticker: Callable[..., Ticker], broker: Broker
) -> None:
    t = ticker()
    backlog(t, 1)
    first = t.tick(minute(1))
    create_again(broker, t.topic)
    t.keep(first)
    t = Ticker(t.bootstrap, t.topic, t.root, t.instance)
    with pytest.raises(TopicRecreatedError):
        t.tick(minute(2), first.cursor)
    assert len(t.ledger.cuts(t.topic)) == 2
    # Once accepted, the topic continues: the window begun before belongs to the new log, and unloaded windows are requested.
    t.send([milliseconds(minute(1.5))] * 3)
    found = generations.find(t.topic, t.ledger, t.cluster)
    assert found is not None
    generations.accept(found, Author("a test", "made again"), t.ledger)
    second = t.tick(minute(2), first.cursor)
    assert [(w.key, w.generation, w.ranges.size) for w in t.windows()] == [(key(0), 1, 1), (key(1), 2, 3)]
    assert (events(second, t.source), asked(second)) == ([key(1)], [(key(0), key(0)), (key(1), key(1))])


def test_a_clock_that_runs_ahead_skips_the_tick_with_its_reason_and_what_was_sealed_is_still_asked_for(
    ticker: Callable[..., Ticker], monkeypatch: pytest.MonkeyPatch
) -> None:
    t = ticker()
    backlog(t, 1)
    monkeypatch.setattr(clocks, "other_clock", lambda *_: OtherClock("Kafka's controller", minute(1.2)))
    # The edges that have passed are cut, as with a correct clock.
    first = t.tick(minute(61))
    assert asked(first) == [(key(0), key(0))]
    assert len(t.windows()) == 1
    assert asked(t.tick(minute(61.5), first.cursor)) == [(key(0), key(0))]
    loaded(t.root, t.windows()[0])
    held = t.tick(minute(62), first.cursor)
    assert (asked(held), held.asset_events, held.cursor) == ([], [], first.cursor)
    assert "this machine's clock is 3,648 s ahead of the clock of Kafka's controller" in str(held.skip_reason)
    (row,) = status.collect([t.declaration], t.ledger, t.cluster, None, (), minute(62)).tables
    assert any("this machine's clock is 3,648 s ahead" in p for p in row.problems)
    # The clock was corrected.
    monkeypatch.setattr(clocks, "other_clock", lambda *_: OtherClock("Kafka's controller", minute(2)))
    t.tick(minute(2), first.cursor)
    assert [w.key for w in t.windows()] == [key(0), key(1)]


def test_an_earlier_start_is_refused_with_a_remedy_that_works_and_what_was_sealed_is_still_asked_for(
    ticker: Callable[..., Ticker],
) -> None:
    t = ticker()
    backlog(t, 1, 1)
    first = t.tick(minute(1))
    declared = t.declaration
    t.declaration = replace(declared, start=START - 5 * MINUTE)
    refused = t.tick(minute(2), first.cursor)
    assert asked(refused) == [(key(0), key(0))]
    loaded(t.root, t.windows()[0])
    refused = t.tick(minute(2), first.cursor)
    assert len(t.windows()) == 1
    assert isinstance(refused.skip_reason, dg.SkipReason)
    said = str(refused.skip_reason.skip_message)
    assert "start 2025-12-31T23:55Z" in said
    (row,) = status.collect([t.declaration], t.ledger, t.cluster, None, (), minute(2)).tables
    assert row.problems == (said,)
    (remedy,) = re.findall(r'to "([^"]+)"', said)
    t.declaration = replace(declared, start=datetime.fromisoformat(remedy))
    t.tick(minute(2), first.cursor)
    assert [w.key for w in t.windows()] == [key(0), key(1)]


def test_a_later_start_leaves_what_was_sealed_and_has_it_loaded(ticker: Callable[..., Ticker]) -> None:
    t = ticker()
    backlog(t, 1, 1, 1)
    first = t.tick(minute(2))
    t.declaration = replace(t.declaration, start=minute(1))
    second = t.tick(minute(3), first.cursor)
    assert [w.key for w in t.windows()] == [key(n) for n in range(3)]
    # Windows before the start are no longer partitions.
    (partition, by_key) = second.run_requests or []
    assert partition.partition_key == key(1)
    assert by_key.run_config == config_listing(t.topic, [key(0)])
    (row,) = status.collect([t.declaration], t.ledger, t.cluster, None, (), minute(3)).tables
    assert row.warning is not None
    assert f"its `start` is later than its first window, {key(0)}" in row.warning


def test_a_start_between_the_edges_of_an_earlier_schedule_is_not_one_that_was_moved(
    ticker: Callable[..., Ticker],
) -> None:
    """The schedule changes from every five minutes to every minute; the start is two minutes before the first edge."""
    t = ticker()
    t.declaration = replace(t.declaration, schedule="*/5 * * * *", start=START - 2 * MINUTE)
    first = t.tick(minute(5))
    t.declaration = replace(t.declaration, schedule="* * * * *")
    assert t.tick(minute(7), first.cursor).cursor != first.cursor
    assert len(t.windows()) == 3


# --- the definition -------------------------------------------------------------------------------------------------


@pytest.mark.alone
def test_the_sensor_of_the_definitions_ticks_and_consumes_nothing(
    broker: Broker, ticker: Callable[..., Ticker]
) -> None:
    """The sensor uses its resources and the current time; the only consumer group that it creates is the one for lag
    monitors."""
    t = ticker()
    now = datetime.now(UTC)
    declaration = replace(t.declaration, start=now - 3 * MINUTE)
    t.send([milliseconds(now - 1.5 * MINUTE)] * 5)
    definitions = build_definitions(
        declaration, group="g", description=None, owners=(), sensor_running=False, deep_audit=DeepAudit()
    )
    (sensor,) = definitions.sensors or ()
    assert isinstance(sensor, dg.SensorDefinition)
    groups = {g.group_id for g in broker.admin.list_consumer_groups().result(30).valid}
    kafka, lake = KafkaResource(bootstrap_servers=t.bootstrap), LakeResource(root=str(t.root))
    with dg.build_sensor_context(t.instance, resources={"kafka": kafka, "lake": lake}) as context:
        ticked = sensor(context)
    assert isinstance(ticked, dg.SensorResult)
    assert len(t.windows()) >= 2
    assert sum(w.ranges.size for w in t.windows()) == 5
    assert len(ticked.run_requests or []) == 1
    assert len(ticked.asset_events) >= 2
    assert ticked.cursor
    now_there = {g.group_id for g in broker.admin.list_consumer_groups().result(30).valid}
    assert now_there - groups <= {group_of(declaration.raw_table)}


def test_a_missing_topic_skips_the_tick_with_its_name_and_remedy_and_keeps_the_cursor(
    broker: Broker, tmp_path: Path
) -> None:
    """The tick does not log a stack trace. In the past, 280 kB of stack traces per minute hid the cause."""
    declaration = TopicDeclaration("no-such-topic", "* * * * *", datetime.now(UTC) - 3 * MINUTE)
    definitions = build_definitions(
        declaration, group="g", description=None, owners=(), sensor_running=False, deep_audit=DeepAudit()
    )
    (sensor,) = definitions.sensors or ()
    assert isinstance(sensor, dg.SensorDefinition)
    kafka, lake = KafkaResource(bootstrap_servers=broker.bootstrap), LakeResource(root=str(tmp_path))
    resources = {"kafka": kafka, "lake": lake}
    with (
        dg.DagsterInstance.ephemeral() as instance,
        dg.build_sensor_context(
            instance, cursor=Position({"no-such-topic": START}).to_cursor(), resources=resources
        ) as context,
    ):
        ticked = sensor(context)
    assert isinstance(ticked, dg.SensorResult)
    assert "topic 'no-such-topic' does not exist on the broker. Nothing was changed. Create it" in str(
        ticked.skip_reason
    )
    assert ticked.cursor == Position({"no-such-topic": START}).to_cursor()
    assert not ticked.run_requests


def test_a_load_that_failed_a_moment_ago_is_not_asked_for_by_the_next_tick(ticker: Callable[..., Ticker]) -> None:
    t = ticker()
    backlog(t, 1, 1)
    first = t.tick(minute(1.9))
    t.run(dg.DagsterRunStatus.FAILURE, {PARTITION_NAME_TAG: key(0), TABLE_TAG: t.declaration.raw_table.name})
    assert asked(t.tick(minute(2.9), first.cursor)) == [(key(1), key(1))]


def test_what_was_asked_for_and_is_neither_loaded_nor_under_way_is_asked_for_under_another_key(
    ticker: Callable[..., Ticker],
) -> None:
    """For example, the run of an earlier request was deleted. Dagster does not start a second run for a known key."""
    t = ticker()
    backlog(t, 1, 1)
    first = t.tick(minute(2.9))
    again = t.tick(minute(2.95), first.cursor, Untouchable())
    assert asked(first) == asked(again) == [(key(0), key(1))]
    assert {r.run_key for r in first.run_requests or []}.isdisjoint(r.run_key for r in again.run_requests or [])
    # A tick that is tried again asks for no second run.
    repeated = t.tick(minute(2.97), first.cursor, Untouchable())
    assert [r.run_key for r in repeated.run_requests or []] == [r.run_key for r in again.run_requests or []]
    assert again.cursor == first.cursor


def test_a_tick_reads_no_ledger_while_all_is_loaded_and_nothing_has_closed(
    ticker: Callable[..., Ticker], monkeypatch: pytest.MonkeyPatch
) -> None:
    t = ticker()
    backlog(t, 1, 1)
    cursor = t.tick(minute(2.5)).cursor
    for window in t.windows():
        loaded(t.root, window)
    assert asked(t.tick(minute(2.6), cursor)) == []
    monkeypatch.setattr(Folder, "delta", lambda folder: pytest.fail(f"opened {folder}"))
    monkeypatch.setattr(t.instance, "get_runs", lambda *_: pytest.fail("asked Dagster for runs"))
    monkeypatch.setattr(t.instance, "get_run_records", lambda *_: pytest.fail("asked Dagster for runs"))
    assert asked(t.tick(minute(2.7), cursor, Untouchable())) == []


def test_an_entry_of_an_empty_window_gives_way_to_that_of_a_load(ticker: Callable[..., Ticker]) -> None:
    t = ticker()
    t.tick(minute(1.9))
    (window,) = t.windows()
    assert t.ledger.receipts(t.declaration.raw_table)[window.key].kind == "empty"
    t.ledger.record_receipts([receipt(window, {}, version=0)])
    assert t.ledger.receipts(t.declaration.raw_table)[window.key].kind == "load"
