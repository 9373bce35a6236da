"""Correctly encoded answers that no honest broker sends. The broker in these tests is a script without a socket."""

from __future__ import annotations

import random
import struct
import tracemalloc
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from kafka.protocol.admin.cluster import DescribeLogDirsResponse
from kafka.protocol.admin.transactions import DescribeProducersResponse, ListTransactionsResponse
from kafka.protocol.consumer.offsets import ListOffsetsResponse, OffsetForLeaderEpochResponse
from kafka.protocol.metadata import FindCoordinatorResponse, MetadataResponse
from kafka.protocol.sasl import SaslAuthenticateResponse, SaslHandshakeResponse

from platform_assets.errors import BrokerRefusedError, BrokerUnreachableError
from platform_assets.kafka.batches.fetching import Brokers, topic_id_text
from platform_assets.kafka.batches.observing import EpochBrokers, ObservingBrokers
from platform_assets.kafka.batches.positions import PositionBrokers
from platform_assets.kafka.settings import ClientSettings
from platform_assets_tests.fuzzing.wires import FakeWire, faked
from platform_assets_tests.support.made_batches import Made, MadeLog, made_batch
from platform_assets_tests.support.scripted_broker import TOPIC_ID

SASL = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "SCRAM-SHA-256",
    "sasl.username": "u",
    "sasl.password": "p",
}
Ask = Callable[..., Any]


@pytest.fixture
def wire() -> Iterator[FakeWire]:
    with faked() as made:
        yield made


@pytest.fixture
def ask(wire: FakeWire, rng: random.Random) -> Ask:
    """Return a function that calls `call` with a client of the class `kind`. The client's requests are answered from
    `fixed`."""

    def asked(kind: type[Brokers], call: Callable[[Any], Any], fixed: dict[str, Any], **options: str) -> Any:
        wire.broker(rng, MadeLog.at_random(rng, 3), fixed=fixed)
        settings = ClientSettings("127.0.0.1:9092", options)
        return call(kind(settings, "t", topic_id_text(TOPIC_ID), patience=2.0, stopped=lambda: False))

    return asked


def metadata(host: Any = "127.0.0.1", port: int = 9092, *, topics: int = 1, topic_id: Any = TOPIC_ID) -> Any:
    of_topic = MetadataResponse.MetadataResponseTopic
    partition = of_topic.MetadataResponsePartition(
        error_code=0,
        partition_index=0,
        leader_id=7,
        leader_epoch=5,
        replica_nodes=[7],
        isr_nodes=[7],
        offline_replicas=[],
    )
    topic = of_topic(error_code=0, name="t", topic_id=topic_id, is_internal=False, partitions=[partition])
    node = MetadataResponse.MetadataResponseBroker(node_id=7, host=host, port=port, rack=None)
    return MetadataResponse(
        throttle_time_ms=0, brokers=[node], cluster_id="c", controller_id=7, topics=[topic] * topics
    )


def no_start(of: Brokers) -> Any:
    return of.log_start(0)


NO_ANSWER = "sent a malformed answer"
NOWHERE = FindCoordinatorResponse(throttle_time_ms=0, error_code=0, error_message=None, node_id=7, host="", port=-1)


@pytest.mark.parametrize(
    ("kind", "call", "fixed", "says"),
    [
        (Brokers, no_start, {"MetadataRequest": metadata(topics=0)}, NO_ANSWER),
        (Brokers, no_start, {"MetadataRequest": metadata(topics=2)}, NO_ANSWER),
        (Brokers, no_start, {"MetadataRequest": metadata(topic_id=None)}, NO_ANSWER),
        (Brokers, no_start, {"MetadataRequest": metadata("a..b")}, "is not the name of a host"),
        (Brokers, no_start, {"MetadataRequest": metadata("x" * 70)}, "is not the name of a host"),
        (Brokers, no_start, {"MetadataRequest": metadata(port=70_000)}, "is not the address of a broker"),
        (Brokers, no_start, {"ListOffsetsRequest": ListOffsetsResponse(throttle_time_ms=0, topics=[])}, NO_ANSWER),
        (
            EpochBrokers, lambda of: of.epoch_end(0, 5),
            {"OffsetForLeaderEpochRequest": OffsetForLeaderEpochResponse(throttle_time_ms=0, topics=[])}, NO_ANSWER,
        ),
        (
            ObservingBrokers, lambda of: of.open_transactions([0]),
            {"DescribeProducersRequest": DescribeProducersResponse(throttle_time_ms=0, topics=[])}, NO_ANSWER,
        ),
        (PositionBrokers, lambda of: of.commit("g", {0: 1}), {"FindCoordinatorRequest": NOWHERE}, "is not the address of a broker"),
    ],
)  # fmt: skip
def test_an_answer_that_lacks_what_every_brokers_has_is_asked_again_and_then_given_up(
    ask: Ask, kind: type[Brokers], call: Callable[[Any], Any], fixed: dict[str, Any], says: str
) -> None:
    with pytest.raises(BrokerUnreachableError, match=says) as raised:
        ask(kind, call, fixed)
    assert len(str(raised.value)) < 1_000


def test_a_log_folder_without_a_topic_has_no_sizes(ask: Ask) -> None:
    folder = DescribeLogDirsResponse.DescribeLogDirsResult(error_code=0, log_dir="/", topics=[])
    answer = DescribeLogDirsResponse(throttle_time_ms=0, error_code=0, results=[folder])
    assert ask(ObservingBrokers, lambda of: of.sizes([0]), {"DescribeLogDirsRequest": answer}) == {}


def test_a_time_that_no_calendar_has_is_the_last_one(ask: Ask) -> None:
    of_topic = DescribeProducersResponse.TopicResponse
    of_partition = of_topic.PartitionResponse
    producer = of_partition.ProducerState(
        producer_id=7, producer_epoch=1, last_sequence=1, last_timestamp=(1 << 63) - 1, coordinator_epoch=1,
        current_txn_start_offset=0,
    )  # fmt: skip
    partition = of_partition(partition_index=0, error_code=0, error_message=None, active_producers=[producer])
    fixed = {
        "DescribeProducersRequest": DescribeProducersResponse(
            throttle_time_ms=0, topics=[of_topic(name="t", partitions=[partition])]
        ),
        "ListTransactionsRequest": ListTransactionsResponse(
            throttle_time_ms=0, error_code=0, unknown_state_filters=[], transaction_states=[]
        ),
    }
    (found,) = ask(ObservingBrokers, lambda of: of.open_transactions([0]), fixed)
    assert found.written_at == datetime(9999, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize("token", [None, b"", b"x", b"\xff", b"r=,s=,i=", b"v=x"])
def test_a_login_that_is_answered_by_nonsense_is_refused(ask: Ask, token: bytes | None) -> None:
    answer = SaslAuthenticateResponse(error_code=0, error_message=None, auth_bytes=token, session_lifetime_ms=0)
    with pytest.raises(BrokerRefusedError, match="the exchange failed"):
        ask(Brokers, no_start, {"SaslAuthenticateRequest": answer}, **SASL)


def test_an_answer_that_says_to_be_large_takes_no_memory_before_it_comes(wire: FakeWire, rng: random.Random) -> None:
    log = MadeLog.at_random(rng, 3)
    broker = wire.broker(rng, log)
    answered = broker.answer

    def announced(data: bytes) -> bytes | None:
        answer = answered(data)
        is_fetch = struct.unpack_from(">h", data, 4)[0] == 1
        return struct.pack(">i", 1 << 30) + answer[4:] if is_fetch and answer else answer

    broker.answer = announced  # type: ignore[method-assign]
    of = Brokers(
        ClientSettings("127.0.0.1:9092", {}), "t", topic_id_text(TOPIC_ID), patience=2.0, stopped=lambda: False
    )
    tracemalloc.start()
    with pytest.raises(BrokerUnreachableError, match="did not answer"):
        of.persist("fetching", lambda: of.receive(of.ask(0, 0, 1 << 20), 0, 0, bytearray()))
    used = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert used < 40 << 20


def test_an_answer_that_is_large_comes_whole(wire: FakeWire, rng: random.Random) -> None:
    value = rng.randbytes(1 << 20) * 40
    log = MadeLog([made_batch([Made(0, value=value)])], [0], [0], [], [], 1)
    wire.broker(rng, log)
    of = Brokers(
        ClientSettings("127.0.0.1:9092", {}), "t", topic_id_text(TOPIC_ID), patience=2.0, stopped=lambda: False
    )
    found = of.receive(of.ask(0, 0, 1 << 20), 0, 0, bytearray())
    assert bytes(found.records) == log.batches[0]


def test_mechanisms_are_named_in_a_few_words(ask: Ask) -> None:
    answer = SaslHandshakeResponse(error_code=33, mechanisms=["x" * 30_000] * 100)
    with pytest.raises(BrokerRefusedError, match="it offers") as raised:
        ask(Brokers, no_start, {"SaslHandshakeRequest": answer}, **SASL)
    assert len(str(raised.value)) < 3_000
