"""A topic that has moved to another cluster: the move is detected before anything is cut or loaded, and an operator
decides with a command. The other cluster is a second broker. Loads run without Spark; a fake engine records the reads
that loads request."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from platform_assets.engines.protocol import LoadEngine, Records
from platform_assets.errors import (
    ClusterChangedError,
    ConfigurationError,
    PartitionsAbsentError,
    PlatformError,
    TruncationError,
)
from platform_assets.kafka.cluster import Cluster, TopicState
from platform_assets.ledger import decisions
from platform_assets.ledger.decisions import Author
from platform_assets.orchestration.planning import cause_of
from platform_assets.services import platform
from platform_assets.services.broker import BrokerSettings
from platform_assets.services.platform import UpOptions
from platform_assets.windows.decide import clusters, generations
from platform_assets.windows.load import retention_forecast
from platform_assets_tests.support import answers
from platform_assets_tests.support.shell import DAGSTER_WARNINGS, Shell, follow
from testbed import samples
from testbed.clients import librdkafka
from testbed.homes import home_at, service_environment
from testbed.loads import Record, TopicLake, wait_until

if TYPE_CHECKING:
    from platform_assets_tests.conftest import Broker, TopicMaker

pytestmark = [pytest.mark.broker, *map(pytest.mark.filterwarnings, DAGSTER_WARNINGS)]

SMALL = UpOptions(broker=BrokerSettings(heap="384m"))
ANN = Author("ann", "the old one is switched off")


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of another cluster."""
    home = home_at(tmp_path_factory.mktemp("other") / "cluster")
    record = platform.start_service("kafka", home, SMALL, report=lambda _: None, environ=service_environment())
    try:
        yield record.address
    finally:
        platform.down(home, report=lambda _: None)


@pytest.fixture
def lk(broker: Broker, topic: TopicMaker, tmp_path: Path) -> TopicLake:
    """Two windows with five records each; the first window is loaded."""
    lake = TopicLake(broker.bootstrap, topic(), tmp_path / "lake", answers.nothing_answers)
    for loaded in (True, False):
        key = lake.window_of([Record()] * 5)
        window = lake.ledger.window(lake.topic, key)
        assert window is not None
        if loaded:
            samples.loaded(lake.root, window)
    return lake


def moved(lk: TopicLake, bootstrap: str, records: int) -> TopicLake:
    """Return the same lake with the brokers of another cluster, where the topic of the same name has `records` records."""
    admin = AdminClient({**librdkafka(bootstrap), "log_level": 2})
    admin.create_topics([NewTopic(lk.topic, 1, 1)])[lk.topic].result(30)
    there = TopicLake(bootstrap, lk.topic, lk.root, lk.spark, closed=lk.closed)

    def led() -> bool:
        try:
            fresh = Cluster.connect(there.settings)
            return 0 in fresh.last_stable_offsets(fresh.topic(lk.topic))
        except (KafkaException, PlatformError):
            return False

    wait_until("the topic is led", led)
    there.send([Record()] * records)
    return there


class SameId(Cluster):
    """A cluster that reports a topic id other than its brokers' own, as if the brokers' disks had been restored there."""

    def __init__(self, cluster: Cluster, topic_id: str) -> None:
        super().__init__(cluster._admin, cluster.settings, cluster.timeout, cluster.deadline)
        self.topic_id = topic_id

    def with_deadline(self, deadline: float) -> Cluster:
        return SameId(super().with_deadline(deadline), self.topic_id)

    def topic(self, name: str) -> TopicState:
        return replace(super().topic(name), topic_id=self.topic_id)


class Asked:
    """An engine that only records the reads requested from it."""

    def __init__(self) -> None:
        self.records: list[Records] = []

    def write(self, records: Records, *_: object) -> None:
        self.records.append(records)
        raise ConfigurationError("read no further")

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_: pytest.fail(f"the engine was asked to {name}")


def load(there: TopicLake, key: str, engine: Asked) -> None:
    real: LoadEngine = engine  # type: ignore[assignment]
    loader = replace(there.loader(engine=real))
    loader.load(key)


def keys(lk: TopicLake) -> Sequence[str]:
    return [w.key for w in lk.ledger.windows(lk.topic)]


def test_cuts_say_which_cluster_they_are_of(lk: TopicLake) -> None:
    cluster_id = lk.cluster.topic(lk.topic).cluster_id
    assert cluster_id
    assert {cut.cluster_id for cut in lk.ledger.cuts(lk.topic)} == {cluster_id}


def test_another_cluster_is_found_before_a_cut_and_before_a_load(lk: TopicLake, other: str) -> None:
    there = moved(lk, other, 20)
    before = lk.snapshot()
    ids = (lk.cluster.topic(lk.topic).cluster_id, there.cluster.topic(lk.topic).cluster_id)
    with pytest.raises(ClusterChangedError) as caught:
        there.close_window()
    assert (caught.value.recorded_id, caught.value.found_id) == ids
    assert f"`platform-assets accept-cluster {lk.topic} " in str(caught.value)
    assert f"`platform-assets accept-generation {lk.topic} " in str(caught.value)
    with pytest.raises(ClusterChangedError):
        load(there, keys(lk)[1], Asked())
    assert lk.snapshot() == before
    # No window needs an accepted loss: with the right cluster, everything works again.
    assert cause_of(caught.value) == "log"
    table_forecast = retention_forecast.look(there.declaration, there.ledger, there.cluster)
    assert table_forecast.partitions[0].loaded == 0, "offsets of one cluster say nothing of another's"
    lk.window_of([Record()])
    assert len(keys(lk)) == 3


def test_a_topic_that_kept_its_id_goes_on_and_windows_that_wait_are_read_from_the_other_cluster(
    lk: TopicLake, other: str
) -> None:
    there = moved(lk, other, 12)
    there.cluster = SameId(there.cluster, lk.cluster.topic(lk.topic).topic_id)
    with pytest.raises(ConfigurationError, match="accept-cluster"):
        generations.find(lk.topic, there.ledger, there.cluster)
    found = clusters.find(lk.topic, there.ledger, there.cluster)
    assert found is not None
    assert (found.first.cut.offsets, found.moved) == ({0: 10}, ())
    clusters.accept(found, ANN, there.ledger)
    assert clusters.find(lk.topic, there.ledger, there.cluster) is None
    engine = Asked()
    with pytest.raises(ConfigurationError, match="read no further"):
        load(there, keys(lk)[1], engine)
    (asked,) = engine.records
    assert list(asked.ranges.triples()) == [(0, 5, 10)]
    assert not any(asked.without.values())
    third = there.close_window()
    window = there.ledger.window(lk.topic, third)
    assert window is not None
    assert (window.generation, list(window.ranges.triples())) == (2, [(0, 10, 12)])


def test_a_mirror_that_kept_offsets_goes_on_where_loads_ended(lk: TopicLake, other: str) -> None:
    there = moved(lk, other, 12)
    found = clusters.find(lk.topic, there.ledger, there.cluster)
    assert found is not None
    first, waiting = keys(lk)
    assert (found.first.cut.offsets, found.keys) == ({0: 5}, [waiting])
    before = lk.snapshot()
    clusters.accept(found, ANN, there.ledger)
    assert lk.snapshot() != before
    # The waiting window has nothing left to read, and its records come with the next window, each once.
    engine = Asked()
    with pytest.raises(ConfigurationError, match="read no further"):
        load(there, waiting, engine)
    skipped = there.ledger.accepted_losses(there.declaration.raw_table, waiting)
    assert {p: [(r.start, r.end) for r in parts] for p, parts in skipped.items()} == {0: [(5, 10)]}
    third = there.close_window()
    window = there.ledger.window(lk.topic, third)
    assert window is not None
    assert (window.generation, list(window.ranges.triples())) == (2, [(0, 5, 12)])
    (decided,) = decisions.decisions(there.ledger.lake, lk.topic)
    assert (decided.kind, decided.decided_by, decided.reason, decided.windows) == (
        "cluster", "ann", ANN.reason, (waiting,)
    )  # fmt: skip
    assert decided.details["from"]["cluster_id"] != decided.details["to"]["cluster_id"]
    assert first not in decided.windows


def test_a_gap_before_what_is_loaded_is_not_moved(lk: TopicLake, other: str) -> None:
    key = lk.window_of([Record()] * 5)
    window = lk.ledger.window(lk.topic, key)
    assert window is not None
    samples.loaded(lk.root, window)
    there = moved(lk, other, 20)
    with pytest.raises(ConfigurationError, match="Load it from the previous cluster first") as caught:
        clusters.find(lk.topic, there.ledger, there.cluster)
    assert key in str(caught.value)
    # The other remedy in the message.
    found = generations.find(lk.topic, there.ledger, there.cluster)
    assert found is not None
    assert (found.kind, found.first.cut.offsets) == ("moved to another cluster", {0: 0})
    assert [lost.window.key for lost in found.lost] == [keys(lk)[1]]
    generations.accept(found, ANN, there.ledger)
    there.close_window()
    assert there.ledger.windows(lk.topic)[-1].generation == 2


def test_a_log_with_less_than_was_cut_is_no_continuation(lk: TopicLake, other: str) -> None:
    there = moved(lk, other, 9)
    with pytest.raises(TruncationError, match="now ends at offset 9, before offset 10"):
        clusters.find(lk.topic, there.ledger, there.cluster)


def test_a_log_of_fewer_partitions_is_no_continuation_and_the_remedy_goes_on_with_it(
    broker: Broker, topic: TopicMaker, other: str, tmp_path: Path
) -> None:
    lk = TopicLake(broker.bootstrap, topic(partitions=2), tmp_path / "lake", answers.nothing_answers)
    window = lk.ledger.window(lk.topic, lk.window_of([Record()] * 5))
    assert window is not None
    samples.loaded(lk.root, window)
    there = moved(lk, other, records=10)
    with pytest.raises(
        PartitionsAbsentError,
        match=r"has 1 partition on the brokers at .* the ledger also has sealed offsets of partition 1",
    ) as e:
        clusters.find(lk.topic, lk.ledger, Cluster.connect(there.settings))
    shell = Shell(tmp_path)
    shell.declare(lk.topic, f"{lk.start:%Y-%m-%dT%H:%MZ}", "* * * * *")
    shell.variables |= {"KAFKA_BOOTSTRAP_SERVERS": other, "LAKE_ROOT": str(lk.lake)}
    refused = shell.run("accept-cluster", lk.topic, "--reason", "moved", "--yes")
    assert refused.exit_code == 1
    assert "no Kafka broker answered" not in refused.output
    assert "generation 2" in follow(shell, e.value, "--yes")


def test_the_command_decides_after_it_was_shown(lk: TopicLake, other: str, tmp_path: Path) -> None:
    there = moved(lk, other, 12)
    shell = Shell(tmp_path / "project")
    shell.declare(lk.topic, f"{lk.start:%Y-%m-%dT%H:%MZ}", "* * * * *")
    shell.variables |= {"KAFKA_BOOTSTRAP_SERVERS": other, "LAKE_ROOT": str(lk.root)}
    before = lk.snapshot()
    shown = json.loads(shell.run("accept-cluster", lk.topic, "--dry-run", "--json").output)
    assert (shown["accepted"], shown["to"]["offsets"], shown["moved"]) == (False, {"0": 5}, [keys(lk)[1]])
    assert shell.run("accept-cluster", lk.topic, "--yes").exit_code == 1, "a decision needs a reason"
    assert lk.snapshot() == before
    done = shell.run("accept-cluster", lk.topic, "--reason", "moved", "--yes")
    assert done.exit_code == 0, done.output
    assert (
        f"waiting windows whose offsets would become part of the first window of that generation: {keys(lk)[1]}"
        in done.output
    )
    there.close_window()
    again = shell.run("accept-cluster", lk.topic, "--reason", "moved", "--yes")
    assert "is still on the cluster that the ledger records, so nothing was accepted" in again.output


def test_a_ledger_of_an_earlier_release_gets_to_know_the_cluster_with_its_next_cut(lk: TopicLake, other: str) -> None:
    cuts = DeltaTable(lk.root / "_ledger" / "cuts")
    transaction = Transaction(f"cuts/{lk.topic}", round(lk.closed.timestamp()))
    older = TopicLake(lk.bootstrap, lk.topic, lk.root.with_name("older"), lk.spark, closed=lk.closed)
    write_deltalake(
        older.root / "_ledger" / "cuts",
        cuts.to_pyarrow_table().drop_columns(["cluster_id"]),
        partition_by=["topic"],
        commit_properties=CommitProperties(app_transactions=[transaction]),
    )
    there = moved(older, other, 12)
    assert [cut.cluster_id for cut in older.ledger.cuts(lk.topic)] == [None] * 3
    assert clusters.find(lk.topic, older.ledger, there.cluster) is None, "nothing says that it is another one"
    older.window_of([Record()])
    known = lk.cluster.topic(lk.topic).cluster_id
    assert [cut.cluster_id for cut in older.ledger.cuts(lk.topic)] == [None, None, None, known]
    older.window_of([Record()])
    assert len(older.ledger.windows(lk.topic)) == 4
    there.closed = older.closed
    with pytest.raises(ClusterChangedError):
        there.close_window()
