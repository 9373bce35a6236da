"""Three brokers: the leader from which a load reads is killed, and a replica that lacks records is deliberately made
leader.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import ElectionType, KafkaException, TopicPartition

from platform_assets.engines.columnar import task
from platform_assets.engines.columnar.work import Piece, Share, Source, Work
from platform_assets.errors import ReloadDiffersError, Retryable, TruncationError
from platform_assets.kafka.batches.fetching import Brokers
from platform_assets.kafka.batches.wire import Connection
from platform_assets.kafka.cluster import Cluster, FoundOffset, TopicState
from platform_assets.kafka.evidence.gathering import gather_evidence
from platform_assets.kafka.settings import ClientSettings
from platform_assets.model.declaration import ENGINES, EngineName
from platform_assets.model.offsets import OffsetRange, TopicRanges
from platform_assets_tests.support.damage import data_files
from platform_assets_tests.support.quotas import fetch_quota
from platform_assets_tests.support.runs_of import minutes_ago
from platform_assets_tests.support.shell import DAGSTER_WARNINGS, Shell, ShellOf, follow, proved
from platform_assets_tests.support.trio import Trio, three_brokers
from testbed.loads import Record, TopicLake, numbered, records, wait_until

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.broker,
    pytest.mark.spark,
    *map(pytest.mark.filterwarnings, DAGSTER_WARNINGS),
]

RECORDS = 60_000
VALUE = 100
"""Bytes of each value, large enough that a load takes long under the quota."""
QUOTA = 1_000_000
"""Bytes per second from each broker to a load, until the leader is killed."""


@pytest.fixture(scope="module")
def trio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trio]:
    """Three brokers for all tests of this module; each test leaves all of them running."""
    with three_brokers(tmp_path_factory.mktemp("three brokers")) as made:
        yield made


def reported_and_proved(shell: Shell, lk: TopicLake) -> None:
    """Report the loads that were made without Dagster, and check that every check passes."""
    reported = shell.run("report-loads", lk.topic)
    assert reported.exit_code == 0, reported.output
    proved(shell, lk)


# --- the leader is killed in the middle of a load -------------------------------------------------------------------


@pytest.mark.parametrize("engine", ENGINES)
def test_a_load_outlives_the_leader_that_it_reads_from(
    trio: Trio, connection: Callable[[], SparkSession], tmp_path: Path, shell_of: ShellOf, engine: EngineName
) -> None:
    topic = f"led-{engine}"
    trio.create(topic, [[2, 3, 1], [2, 1, 3]])
    lk = TopicLake(
        trio.bootstrap, topic, tmp_path / "lake", connection, 2_500, start=minutes_ago(8), engine_name=engine
    )
    first = lk.window_of(Record(b"%d" % i * (VALUE // len(b"%d" % i)), b"%d" % i, i % 2) for i in range(RECORDS))
    with ThreadPoolExecutor(2) as pool:
        with fetch_quota(trio.record(1).address, None, QUOTA):
            load = pool.submit(lk.load, first)
            wait_until("files of the load appear", lambda: bool(data_files(lk, first)) or load.done(), 120)
            # Producers that wait for all in-sync replicas lose nothing.
            sending = pool.submit(lk.send, numbered(5_000, 2, stem="while the leader dies"))
            trio.kill(2)
            assert not load.done(), "the load ended before the kill: make the window larger"
            assert lk.version() == 0, "the commit came before the kill: make the window larger"
        # A new client, as in the retry of a run and in the next tick, which does not remember the dead broker.
        after = replace(lk)
        try:
            loaded = load.result(300)
        except Retryable:
            loaded = after.load(first)
        sending.result(120)
    assert (loaded.outcome, loaded.receipt.rows) == ("loaded", RECORDS)
    assert {trio.leader(topic, p) for p in (0, 1)} <= {1, 3}
    second = after.close_window()
    assert after.load(second).receipt.rows == 5_000
    assert records(after.rows()) == records(after.committed())
    reported_and_proved(shell_of(after), after)
    trio.up()
    wait_until("the one that died has caught up", lambda: all(len(trio.in_sync(topic, p)) == 3 for p in (0, 1)))
    # The table is unchanged: reading from the other leader gives the same rows.
    assert [after.load(key).outcome for key in (first, second)] == ["unchanged", "unchanged"]


def test_a_client_that_remembers_another_leader_finds_the_new_one(trio: Trio) -> None:
    """The leader changes between the description of a topic and a look-up, so the admin client asks the previous
    leader."""
    topic, cluster = "moved", Cluster.connect(ClientSettings(trio.bootstrap))
    trio.create(topic, [[1, 2, 3], [2, 3, 1], [3, 1, 2]])
    state = cluster.topic(topic)
    assert len(cluster.log_starts(state)) == 3
    admin = trio.admin()
    admin.delete_topics([topic])[topic].result(30)
    wait_until("the topic is gone", lambda: topic not in admin.list_topics(timeout=10).topics)
    trio.create(topic, [[2, 3, 1], [3, 1, 2], [1, 2, 3]])
    assert {p: f.offset for p, f in cluster.log_starts(state).items()} == {0: 0, 1: 0, 2: 0}


# --- a replica in the reader's own rack -----------------------------------------------------------------------------


def test_a_reader_with_a_rack_reads_from_the_replica_there_and_from_the_leader_where_that_is_gone(
    trio: Trio, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = "near"
    trio.create(topic, [[2, 1, 3]])
    lk = TopicLake(trio.bootstrap, topic, tmp_path / "lake", no_spark)
    lk.send(numbered(500))
    lk.settings = ClientSettings(trio.bootstrap, {"client.rack": "r3"})
    monkeypatch.setenv("KAFKA_CLIENT_RACK", "r3")
    asked: list[str] = []
    ask = Brokers.ask

    def noted(self: Brokers, *arguments: Any, **options: Any) -> Connection:
        connection = ask(self, *arguments, **options)
        asked.append(connection._name)
        return connection

    monkeypatch.setattr(Brokers, "ask", noted)

    def by_evidence() -> int:
        state = lk.cluster.topic(topic)
        ranges = TopicRanges({0: OffsetRange(0, 500)})
        found = gather_evidence(
            lk.settings, topic, state.topic_id, ranges, compacted=False, deadline=time.monotonic() + 120
        )
        assert (found.complete, found.unexplained) == (True, ())
        return found.records

    def by_the_engine() -> int:
        """Read as a Spark worker would, with settings from its environment."""
        table = tmp_path / "table"
        table.mkdir(exist_ok=True)
        source = Source(topic, lk.cluster.topic(topic).topic_id, str(table))
        shares = (Share("window", "window/load", (Piece(0, OffsetRange(0, 500)),), source),)
        work = Work(trio.bootstrap, ("client.rack",), shares, 1_000, 60.0, 8 << 20)
        found = list(task.reports(work, [0]))
        assert not [report.error for report in found if report.error is not None]
        return sum(report.file.rows for report in found if report.file is not None)

    def read_by(read: Callable[[], int]) -> list[str]:
        asked.clear()
        assert read() == 500
        return list(dict.fromkeys(asked))

    leader, near = trio.record(2).address, trio.record(3).address
    for read in (by_evidence, by_the_engine):
        # Until the replica knows that everything is copied, it lags behind, and the leader is read.
        wait_until("the replica is read", lambda read=read: read_by(read) == [leader, near])  # type: ignore[misc]
    trio.kill(3)
    try:
        for read in (by_evidence, by_the_engine):
            assert read_by(read)[-1] == leader
    finally:
        trio.up()


def no_spark() -> Any:
    raise AssertionError("Spark has no part in this")


# --- a leader that lacks records, made so on purpose ----------------------------------------------------------------


class WithoutEpochs(Cluster):
    """Brokers that, like very old ones, do not report the leader epochs of offsets."""

    def with_deadline(self, deadline: float) -> Cluster:
        bounded = super().with_deadline(deadline)
        return WithoutEpochs(bounded._admin, bounded.settings, bounded.timeout, bounded.deadline)

    def last_stable_offsets(self, topic: TopicState) -> dict[int, FoundOffset]:
        return {p: replace(f, leader_epoch=None) for p, f in super().last_stable_offsets(topic).items()}

    def log_starts(self, topic: TopicState) -> dict[int, FoundOffset]:
        return {p: replace(f, leader_epoch=None) for p, f in super().log_starts(topic).items()}


@dataclass(frozen=True)
class Shorter:
    """A topic whose first 6 records were on both replicas. 4 more records, two in each of two windows, were only on the
    previous leader."""

    lake: TopicLake
    windows: tuple[str, str, str]
    rows: list[tuple[object, ...]]


@pytest.fixture
def shorter(
    trio: Trio,
    connection: Callable[[], SparkSession],
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> Iterator[Shorter]:
    """Make the third broker, which was stopped in the meantime, the leader. Of three windows, two are loaded and the
    last one is sealed."""
    with_epochs: bool = request.param
    topic = "epochs" if with_epochs else "digests"
    trio.create(topic, [[2, 3]], {"min.insync.replicas": "1"})
    lk = TopicLake(trio.bootstrap, topic, tmp_path / "lake", connection, start=minutes_ago(14))
    if not with_epochs:
        lk.cluster = WithoutEpochs(lk.cluster._admin, lk.cluster.settings)
    first = lk.window_of(numbered(6, stem="both"))
    wait_until("both have them", lambda: trio.in_sync(topic) == {2, 3})
    trio.kill(3)
    wait_until("one is left", lambda: trio.in_sync(topic) == {2})
    second = lk.window_of(numbered(2, stem="one"))
    for key in (first, second):
        assert lk.load(key).outcome == "loaded"
    third = lk.window_of(numbered(2, stem="one, not loaded"))
    rows = records(lk.rows())
    trio.kill(2)
    trio.start(3)
    wait_until("nobody leads, since the one who is back lacks records", lambda: trio.leader(topic) is None)
    elect(trio, topic, 3)
    try:
        # A new client, which does not remember the previous leader.
        fresh = replace(lk)
        if not with_epochs:
            fresh.cluster = WithoutEpochs(fresh.cluster._admin, fresh.cluster.settings)
        wait_until("the shorter log is read", lambda: fresh.high_watermarks() == {0: 6})
        yield Shorter(fresh, (first, second, third), rows)
    finally:
        trio.up()


def elect(trio: Trio, topic: str, node: int) -> None:
    """Make an out-of-sync replica the leader."""
    admin = trio.admin()

    def elected() -> bool:
        try:
            admin.elect_leaders(ElectionType.UNCLEAN, [TopicPartition(topic, 0)]).result(30)
        except KafkaException:
            return False  # the controller has just been elected itself
        return trio.leader(topic) == node

    wait_until(f"broker {node} leads", elected)


@pytest.mark.parametrize("shorter", [True], indirect=True)
def test_a_shorter_log_that_was_elected_is_found_by_its_leader_epoch_decided_loaded_and_proved(
    shorter: Shorter, shell_of: ShellOf
) -> None:
    lk, (first, second, third) = shorter.lake, shorter.windows
    shell = shell_of(lk)
    # The log grows beyond the cut, so offsets alone show nothing.
    lk.send(numbered(7, stem="of the new leader"))
    assert lk.high_watermarks() == {0: 13}
    epoch = lk.ledger.cuts(lk.topic)[-1].leader_epochs[0]
    assert epoch is not None
    before = lk.snapshot()
    said = (
        rf"has a cut at offset 10 under leader epoch {epoch}, but that epoch now ends at offset 6: .* "
        r"Offsets \[6, 10\) may now hold different records"
    )
    with pytest.raises(TruncationError, match=said) as found:
        lk.close_window()
    lk.closed -= timedelta(minutes=1)
    with pytest.raises(TruncationError, match=said):
        lk.load(third)
    assert lk.snapshot() == before

    told = follow(shell, found.value, "--yes")
    assert "partition 0 at offset 6 (the previous log was sealed up to 10)" in told
    assert f"window {third} was never loaded: 2 offsets: partition 0 offsets [8, 10)" in told
    fourth = lk.close_window()
    # Dagster knows of the first two windows then, which were loaded without it.
    assert shell.run("report-loads", lk.topic).exit_code == 0
    loaded = shell.run("load", lk.topic, third, fourth)
    assert loaded.exit_code == 0, loaded.output
    assert records(lk.rows(first) + lk.rows(second)) == shorter.rows
    assert [(r.offset, r.value) for r in lk.rows(fourth)] == [(6 + i, b"of the new leader%d" % i) for i in range(7)]
    assert records(lk.rows(first) + lk.rows(fourth)) == records(lk.committed())
    reported_and_proved(shell, lk)
    assert [lk.load(key).outcome for key in (first, second, fourth)] == ["unchanged", "kept", "unchanged"]


@pytest.mark.parametrize("shorter", [False], indirect=True)
def test_where_no_epoch_is_known_a_log_that_has_grown_back_is_found_by_digest(shorter: Shorter) -> None:
    lk, (first, second, _) = shorter.lake, shorter.windows
    assert {c.leader_epochs[0] for c in lk.ledger.cuts(lk.topic) if 0 in c.leader_epochs} == {None}
    lk.send(numbered(6, stem="of the new leader"))
    before = lk.snapshot()
    with pytest.raises(ReloadDiffersError, match="with different content at the same offsets") as found:
        lk.load(second)
    assert "unclean leader election" in str(found.value)
    assert lk.snapshot() == before
    assert records(lk.rows()) == shorter.rows
    assert lk.load(first).outcome == "unchanged"
