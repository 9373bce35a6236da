"""A real broker's answers about its topics, and calls that no broker answers."""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import NewPartitions

from platform_assets.errors import BrokerRefusedError, BrokerUnreachableError, TopicMissingError, TopicNameError
from platform_assets.kafka import cluster as cluster_module
from platform_assets.kafka.cluster import Cluster, TopicState
from platform_assets.kafka.settings import ClientSettings
from platform_assets_tests.support.streams import ANY_TIME, Stream, create_again, delete_before, freeze, thaw
from testbed.clients import client_settings
from testbed.loads import wait_until

if TYPE_CHECKING:
    from platform_assets_tests.conftest import Broker, TopicMaker

T0 = 1_767_225_600_000
AGES = 60
"""Seconds within which a call with a timeout of one or two seconds ends, however busy the machine is."""
NOWHERE = ClientSettings("localhost:1")


@pytest.fixture
def cluster(broker: Broker) -> Cluster:
    return Cluster.connect(client_settings(broker.bootstrap))


def offsets(found: dict[int, Any]) -> dict[int, int]:
    return {p: f.offset for p, f in found.items()}


@pytest.fixture
def silent() -> Iterator[str]:
    """Return the address of a server that accepts connections but never answers."""
    held: list[socket.socket] = []
    with closing(socket.create_server(("127.0.0.1", 0))) as server:

        def accept() -> None:
            while True:
                try:
                    held.append(server.accept()[0])
                except OSError:
                    return

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
        thread.join(AGES)
    for connection in held:
        connection.close()


@contextmanager
def frozen(broker: Broker) -> Iterator[None]:
    try:
        freeze(broker)
        yield
    finally:
        thaw(broker)


# --- existing things ------------------------------------------------------------------------------------------------


@pytest.mark.broker
def test_a_topic_has_its_partitions_and_an_id_as_kafkas_tools_print_it(cluster: Cluster, topic: TopicMaker) -> None:
    """The test creates so many topics that, in the base64 alphabet of librdkafka, some of their ids would contain + or
    /."""
    states = [cluster.topic(topic(partitions=1)) for _ in range(30)]
    for state in states:
        assert re.fullmatch(r"[A-Za-z0-9_-]{22}", state.topic_id)
    assert len({s.topic_id for s in states}) == 30
    name = topic(partitions=5)
    assert cluster.topic(name) == TopicState(name, cluster.topic(name).topic_id, (0, 1, 2, 3, 4))


@pytest.mark.broker
def test_a_topic_created_again_has_another_id_and_one_that_grew_the_same(
    broker: Broker, cluster: Cluster, topic: TopicMaker
) -> None:
    name = topic()
    before = cluster.topic(name)
    broker.admin.create_partitions([NewPartitions(name, 3)])[name].result(30)
    wait_until("the new partitions are there", lambda: cluster.topic(name).partitions == (0, 1, 2))
    grown = cluster.topic(name)
    assert (grown.topic_id, grown.partitions) == (before.topic_id, (0, 1, 2))
    create_again(broker, name)
    assert cluster.topic(name).topic_id != before.topic_id


@pytest.mark.broker
def test_log_starts_follow_deleted_records(broker: Broker, cluster: Cluster, topic: TopicMaker) -> None:
    name = topic(partitions=2, config=ANY_TIME)
    Stream(broker.bootstrap, name).send([T0] * 5)
    delete_before(broker.bootstrap, name, 0, 3)
    state = cluster.topic(name)
    assert offsets(cluster.log_starts(state)) == {0: 3, 1: 0}
    assert offsets(cluster.last_stable_offsets(state)) == {0: 5, 1: 0}


@pytest.mark.broker
def test_an_open_transaction_holds_the_last_stable_offset_and_not_the_high_watermark(
    broker: Broker, cluster: Cluster, topic: TopicMaker
) -> None:
    name = topic(config=ANY_TIME)
    stream = Stream(broker.bootstrap, name)
    stream.send([T0, T0 + 1])
    transaction = stream.open_transaction([T0 + 2] * 3)
    stream.send([T0 + 3])
    state = cluster.topic(name)
    assert offsets(cluster.high_watermarks(state)) == {0: 6}
    assert offsets(cluster.last_stable_offsets(state)) == {0: 2}
    assert cluster.offsets_at(state, {0: T0 + 2}) == {0: None}
    transaction.end(commit=False)
    assert offsets(cluster.last_stable_offsets(state)) == {0: 7}
    found = cluster.offsets_at(state, {0: T0 + 3})[0]
    assert found is not None
    assert (found.offset, found.timestamp) == (5, T0 + 3)


@pytest.mark.broker
def test_a_look_up_finds_the_first_record_as_new_as_asked(broker: Broker, cluster: Cluster, topic: TopicMaker) -> None:
    """Timestamps may be in any order: all records before the record that was found are older, but later records need
    not be newer."""
    name = topic(partitions=2, config=ANY_TIME)
    stamps = [T0 + 5, T0 + 9, T0 + 7, T0 + 20, T0 + 1]
    stream = Stream(broker.bootstrap, name)
    for stamp in stamps:
        stream.send([stamp])
    state = cluster.topic(name)
    for asked in range(T0, T0 + 22):
        expected = next(((o, t) for o, t in enumerate(stamps) if t >= asked), None)
        found = cluster.offsets_at(state, {0: asked})[0]
        assert (found and (found.offset, found.timestamp)) == expected
    assert cluster.offsets_at(state, {0: T0, 1: T0})[1] is None
    assert cluster.offsets_at(state, {}) == {}


@pytest.mark.broker
def test_the_configuration_of_a_topic_is_the_effective_one(cluster: Cluster, topic: TopicMaker) -> None:
    config = cluster.topic_config(topic(config={"cleanup.policy": "compact"}))
    assert config["cleanup.policy"] == "compact"
    # The embedded broker keeps everything unless a topic's settings say otherwise.
    assert config["retention.ms"] == "-1"


# --- missing things -------------------------------------------------------------------------------------------------


@pytest.mark.broker
def test_a_missing_topic_is_named_and_stays_missing(broker: Broker, cluster: Cluster) -> None:
    for call in (cluster.topic, cluster.topic_config):
        with pytest.raises(TopicMissingError, match="'no-such-topic' does not exist"):
            call("no-such-topic")
    assert "no-such-topic" not in broker.admin.list_topics(timeout=30).topics


@pytest.mark.broker
def test_a_topic_that_went_away_since_it_was_described_may_be_asked_for_again(cluster: Cluster) -> None:
    with pytest.raises(BrokerUnreachableError, match="last stable offsets of topic 'no-such-topic'"):
        cluster.last_stable_offsets(TopicState("no-such-topic", "x" * 22, (0, 1)))


def test_an_illegal_name_is_refused_before_anything_is_asked() -> None:
    cluster = Cluster.connect(ClientSettings("127.0.0.1:1"), timeout=AGES)
    for call in (cluster.topic, cluster.topic_config):
        with pytest.raises(TopicNameError):
            call("a/b")


def test_a_closed_port_is_unreachable_within_the_time_allowed() -> None:
    began = time.monotonic()
    with pytest.raises(BrokerUnreachableError, match=r"describing topic 't'.*KAFKA_BOOTSTRAP_SERVERS"):
        Cluster.connect(ClientSettings("127.0.0.1:1"), timeout=1.0).topic("t")
    assert time.monotonic() - began < AGES


def test_a_broker_that_never_answers_is_unreachable_within_the_time_allowed(silent: str) -> None:
    cluster = Cluster.connect(ClientSettings(silent), timeout=float(AGES)).with_deadline(time.monotonic() + 1.0)
    for call in (cluster.topic, lambda t: cluster.last_stable_offsets(TopicState(t, "x" * 22, (0,)))):
        with pytest.raises(BrokerUnreachableError, match="no Kafka broker answered within 1 s"):
            call("t")


@pytest.mark.alone
@pytest.mark.broker
def test_a_look_up_that_times_out_is_no_answer(broker: Broker, cluster: Cluster, topic: TopicMaker) -> None:
    """In this case the client library returns an invalid offset and no error, which must not be read as "no record is
    that new"."""
    name = topic(partitions=2, config=ANY_TIME)
    Stream(broker.bootstrap, name).send([T0])
    state = cluster.topic(name)
    cluster.offsets_at(state, {0: T0})
    calls: tuple[Callable[[Cluster], object], ...] = (
        lambda c: c.log_starts(state),
        lambda c: c.last_stable_offsets(state),
        lambda c: c.offsets_at(state, {0: T0, 1: T0}),
    )
    for call in calls:
        with frozen(broker), pytest.raises(BrokerUnreachableError, match=r"timed out|time limit for all lookups"):
            call(cluster.with_deadline(time.monotonic() + 0.5))
        call(cluster)


def test_a_deadline_that_has_passed_asks_nothing_more() -> None:
    class Untouchable:
        def __getattr__(self, name: str) -> Any:
            pytest.fail(f"asked for {name}")

    cluster = Cluster(Untouchable(), NOWHERE).with_deadline(time.monotonic())
    for call in (lambda: cluster.topic("t"), lambda: cluster.log_starts(TopicState("t", "x" * 22, (0,)))):
        with pytest.raises(BrokerUnreachableError, match="time limit"):
            call()


# --- refusals that a single plain broker does not send --------------------------------------------------------------


class Answering:
    """An admin client whose look-ups raise the error given for each partition; if the error is None, the look-up
    succeeds."""

    def __init__(self, failures: dict[int, int | None]) -> None:
        self.failures = failures

    def list_topics(self, **_: Any) -> None:
        pass

    def list_offsets(self, asked: dict[TopicPartition, Any], **_: Any) -> dict[TopicPartition, Future[Any]]:
        return {where: self._answer(self.failures[where.partition]) for where in asked}

    def describe_topics(self, topics: Any, **_: Any) -> dict[str, Future[Any]]:
        return {"t": self._answer(self.failures[0])}

    def describe_cluster(self, **_: Any) -> Future[Any]:
        return self._answer(None)

    def _answer(self, failure: int | None) -> Future[Any]:
        answer: Future[Any] = Future()
        if failure is None:
            answer.set_result(type("Info", (), {"offset": 5, "leader_epoch": 1, "timestamp": -1}))
        else:
            answer.set_exception(KafkaException(KafkaError(failure)))
        return answer


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, BrokerRefusedError),
        (KafkaError.CLUSTER_AUTHORIZATION_FAILED, BrokerRefusedError),
        (KafkaError._AUTHENTICATION, BrokerRefusedError),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, TopicMissingError),
        (KafkaError.UNKNOWN_TOPIC_ID, TopicMissingError),
        (KafkaError._UNKNOWN_TOPIC, TopicMissingError),
        (KafkaError.REQUEST_TIMED_OUT, BrokerUnreachableError),
        (KafkaError._ALL_BROKERS_DOWN, BrokerUnreachableError),
        (KafkaError._TIMED_OUT, BrokerUnreachableError),
        (KafkaError._DESTROY_BROKER, BrokerUnreachableError),
        (KafkaError._FAIL, BrokerUnreachableError),
        (KafkaError._MSG_TIMED_OUT, BrokerUnreachableError),
        (KafkaError._UNKNOWN_BROKER, BrokerUnreachableError),
        (KafkaError.LEADER_NOT_AVAILABLE, BrokerUnreachableError),
        (KafkaError.UNKNOWN_LEADER_EPOCH, BrokerUnreachableError),
        (KafkaError.FENCED_LEADER_EPOCH, BrokerUnreachableError),
    ],
)
def test_each_refusal_has_the_error_that_says_what_to_do(code: int, error: type[Exception]) -> None:
    cluster = Cluster(Answering({0: code}), NOWHERE)
    with pytest.raises(error):
        cluster.topic("t")
    with pytest.raises(error):
        cluster.log_starts(TopicState("t", "x" * 22, (0,)))


def test_a_partition_without_a_leader_is_left_out_and_the_others_answer() -> None:
    state = TopicState("t", "x" * 22, (0, 1, 2))
    some = Cluster(Answering({0: None, 1: KafkaError.LEADER_NOT_AVAILABLE, 2: None}), NOWHERE)
    assert offsets(some.last_stable_offsets(state)) == {0: 5, 2: 5}
    refused = Cluster(Answering({0: None, 1: KafkaError.TOPIC_AUTHORIZATION_FAILED, 2: None}), NOWHERE)
    with pytest.raises(BrokerRefusedError):
        refused.last_stable_offsets(state)


class WithoutController:
    """An admin client whose call waits until the client looks up brokers, as in librdkafka after the controller has
    died."""

    def __init__(self) -> None:
        self.waiting: Future[object] = Future()

    def describe_cluster(self, request_timeout: float) -> Future[object]:
        return self.waiting

    def list_topics(self, topic: str, timeout: float) -> None:
        self.waiting.set_result(topic)


def test_a_call_whose_controller_has_died_goes_on_once_brokers_are_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the platform's help, librdkafka would look up the brokers only minutes later."""
    monkeypatch.setattr(cluster_module, "_PATIENCE_SECONDS", 0.01)
    admin: Any = WithoutController()
    Cluster(admin, NOWHERE, timeout=AGES).check_reachable()
    assert admin.waiting.done()
