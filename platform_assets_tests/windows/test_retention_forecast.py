"""Forecasts for a table, made with a real broker: transactions that hold windows back, and approaching retention
limits."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from kafka.protocol.producer import ProduceRequest
from kafka.protocol.producer.transaction import WriteTxnMarkersRequest

from platform_assets.checks.evaluation import Evaluation
from platform_assets.checks.facts import Orchestration
from platform_assets.checks.registry import CHECKS
from platform_assets.errors import BrokerRefusedError
from platform_assets.kafka.batches.observing import ObservingBrokers, OpenTransaction
from platform_assets.kafka.batches.wire import Connection, Security, addresses
from platform_assets.kafka.cluster import Cluster
from platform_assets.orchestration import retention_check, status
from platform_assets.orchestration.status import TableStatus
from platform_assets.windows.load import retention_forecast
from platform_assets.windows.load.retention_forecast import RetentionForecast
from platform_assets_tests.support import answers
from platform_assets_tests.support.made_batches import Made, made_batch
from platform_assets_tests.support.variants import long_after
from testbed import samples
from testbed.clients import client_settings, librdkafka
from testbed.loads import OpenTransaction as HeldOpen
from testbed.loads import Record, TopicLake, send, wait_until

if TYPE_CHECKING:
    from platform_assets_tests.conftest import Broker, TopicMaker

pytestmark = pytest.mark.broker

LakeMaker = Callable[..., TopicLake]


@pytest.fixture
def lake(broker: Broker, topic: TopicMaker, tmp_path: Path) -> LakeMaker:
    """Function that makes a topic with its own lake, to which tests add rows without Spark."""

    def make(config: Mapping[str, str] | None = None, partitions: int = 1) -> TopicLake:
        name = topic(config=config, partitions=partitions)
        return TopicLake(broker.bootstrap, name, tmp_path / "lake", answers.nothing_answers)

    return make


def look(lk: TopicLake, now: datetime | None = None) -> RetentionForecast:
    lk.ledger.create()
    return retention_forecast.look(lk.declaration, lk.ledger, lk.cluster, now)


def evaluation(lk: TopicLake) -> Evaluation:
    engine = answers.unanswered(lk.root, lk.topic).engine
    return Evaluation(lk.declaration, lk.ledger, Orchestration(), lambda: lk.settings, lambda: lk.cluster, engine)


def shown(lk: TopicLake, now: datetime) -> TableStatus:
    (table,) = status.collect([lk.declaration], lk.ledger, lk.cluster, None, (), now).tables
    return table


def begun(lk: TopicLake, timeout_ms: int, records: int) -> tuple[Producer, str]:
    """Begin a transaction with `records` records and leave it open; return the transaction and its transactional id."""
    name = f"{lk.topic}-{uuid.uuid4()}"
    producer = Producer(
        {
            **librdkafka(lk.bootstrap),
            "transactional.id": name,
            "transaction.timeout.ms": timeout_ms,
            "log_level": 0,
        }
    )
    producer.init_transactions(30)
    producer.begin_transaction()
    send(producer, lk.topic, [Record()] * records)
    return producer, name


def loaded(lk: TopicLake, key: str, offsets: range) -> None:
    """Load a window with rows at these offsets."""
    window = lk.ledger.window(lk.topic, key)
    assert window is not None
    samples.loaded(lk.root, window, {0: offsets})


# --- transactions ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ended_by", long_after(1, ["its time", "its producer's next start"]))
def test_a_transaction_left_open_is_named_holds_windows_back_and_then_they_go_on(
    lake: LakeMaker, ended_by: str
) -> None:
    lk = lake()
    lk.send([Record()] * 5)
    _, name = begun(lk, 4_000 if ended_by == "its time" else 60_000, 3)
    lk.send([Record()] * 2)
    first = lk.close_window()
    loaded(lk, first, range(5))
    now = datetime.now(UTC)
    table_forecast = look(lk, now)
    (partition,) = table_forecast.partitions
    assert (partition.loaded, partition.stable, partition.end) == (5, 5, 10)
    assert (partition.lag, partition.held_back) == (0, 5)
    (found,) = table_forecast.transactions
    assert (found.partition, found.start) == (0, 5)
    assert found.coordinated is not None
    assert (found.coordinated.transactional_id, found.coordinated.state) == (name, "Ongoing")
    assert timedelta() <= found.coordinated.ends_at - found.coordinated.began <= timedelta(seconds=60)
    assert abs(now - found.since) < timedelta(minutes=2)
    # Once it is open for unusually long, it is named with its end, but is not a problem yet.
    later = replace(found, coordinated=replace(found.coordinated, timeout=timedelta(minutes=10)))
    text = " ".join(
        retention_check.warnings(
            replace(table_forecast, transactions=(later,)), lk.bootstrap, now + timedelta(minutes=2)
        )
    )
    assert f"producer id {found.producer_id}, transactional id {name!r}" in text
    assert "from offset 5 on" in text
    assert "holds back 5 offsets" in text
    assert "transaction.timeout.ms 600,000" in text
    # A transaction that outlives its timeout is a problem.
    t = shown(lk, found.coordinated.ends_at + timedelta(minutes=2))
    assert (t.lag, t.lag_to_high_watermark) == (0, 5)
    (told,) = t.open_transactions
    assert (told.producer_id, told.offsets, told.transactional_id) == (found.producer_id, 5, name)
    assert any(f"abort --topic {lk.topic} --partition 0 --start-offset 5" in p for p in t.problems)

    if ended_by != "its time":
        again = Producer({**librdkafka(lk.bootstrap), "transactional.id": name, "log_level": 0})
        again.init_transactions(30)
    wait_until("the transaction is aborted", lambda: not look(lk).transactions)
    assert look(lk).partitions[0].held_back == 0
    second = lk.close_window()
    window = lk.ledger.window(lk.topic, second)
    assert window is not None
    # Three aborted records, two later records, and the marker.
    assert list(window.ranges.triples()) == [(0, 5, 11)]
    loaded(lk, second, range(8, 10))
    check_results = {name: check.evaluate(evaluation(lk)) for name, check in CHECKS.items()}
    assert {name: v.passed for name, v in check_results.items()} == dict.fromkeys(CHECKS, True)
    assert look(lk).partitions[0].lag == 0


def test_a_transaction_that_no_coordinator_knows_is_named_and_the_remedy_ends_it(
    lake: LakeMaker, broker: Broker
) -> None:
    lk = lake()
    lk.send([Record()] * 4)
    with unverified(broker):
        write_in_no_transaction(lk, producer=987_654)
    lk.send([Record()])
    table_forecast = look(lk)
    (found,) = table_forecast.transactions
    assert (found.producer_id, found.start, found.coordinated) == (987_654, 4, None)
    assert list(retention_check.problems(table_forecast, lk.bootstrap, datetime.now(UTC))) == []
    (problem,) = retention_check.problems(table_forecast, lk.bootstrap, datetime.now(UTC) + timedelta(minutes=17))
    assert "No coordinator that this client is allowed to query knows this transaction" in problem
    assert "holds back 2 offsets" in problem
    command = problem.partition("`kafka-transactions.sh ")[2].rstrip("`").split()
    assert command == [
        "--bootstrap-server", lk.bootstrap, "abort", "--topic", lk.topic, "--partition", "0", "--start-offset", "4",
    ]  # fmt: skip
    aborted(lk, found)
    wait_until("it is aborted", lambda: not look(lk).transactions)
    assert look(lk).partitions[0].stable == 7


def test_what_a_broker_refuses_to_tell_is_said_and_the_rest_is_known(
    lake: LakeMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: Any) -> None:
        raise BrokerRefusedError("asking", "TopicAuthorizationFailedError")

    lk = lake({"retention.ms": "3600000", "retention.bytes": "1000000"})
    lk.open_transaction([Record()])
    for name in ("open_transactions", "sizes"):
        monkeypatch.setattr(ObservingBrokers, name, refused)
    table_forecast = look(lk)
    assert len(table_forecast.unknown) == 3
    (partition,) = table_forecast.partitions
    assert partition.held_back == 1
    assert partition.forecast is not None
    assert partition.forecast.by_time is not None
    assert partition.forecast.by_time <= 1
    (warning,) = retention_check.warnings(table_forecast, lk.bootstrap, datetime.now(UTC))
    assert "the forecast is incomplete: open transactions: the Kafka broker refused" in warning
    monkeypatch.setattr(Cluster, "topic_config", refused)
    assert look(lk).partitions[0].forecast is None


@pytest.mark.long
def test_many_transactions_at_once_are_told_apart(lake: LakeMaker) -> None:
    lk = lake(partitions=2)
    held: list[HeldOpen] = [lk.open_transaction([Record(partition=p)]) for p in (1, 0, 1)]
    found = look(lk).transactions
    assert [(t.partition, t.start) for t in found] == [(0, 0), (1, 0), (1, 1)]
    assert len({t.producer_id for t in found}) == 3
    for transaction in held:
        transaction.end(commit=True)
    assert look(lk).transactions == ()


# --- retention ------------------------------------------------------------------------------------------------------

KEPT_SECONDS = 12


def test_the_warning_of_a_retention_by_time_comes_before_the_loss(lake: LakeMaker) -> None:
    lk = lake({"retention.ms": str(KEPT_SECONDS * 1000), "segment.ms": "1000", "file.delete.delay.ms": "100"})
    foretold, warned_at = [], None
    lk.send([Record(b"first")])
    while True:
        now = datetime.now(UTC)
        (partition,) = look(lk, now).partitions
        start = lk.cluster.log_starts(lk.cluster.topic(lk.topic))[0].offset
        # Nothing was ever cut, so unloaded offsets begin at the log's start, which moves: offset 0 is requested.
        if start > 0:
            break
        assert partition.forecast is not None
        assert partition.forecast.by_time is not None
        foretold.append(now + timedelta(hours=partition.forecast.by_time))
        if partition.forecast.near and warned_at is None:
            warned_at = now
        lk.send([Record(b"next")])
        time.sleep(0.2)
    gone = datetime.now(UTC)
    assert warned_at is not None
    errors = [(gone - at).total_seconds() for at in foretold]
    print(
        f"\nretention.ms {KEPT_SECONDS} s, segment.ms 1 s: lost {(gone - foretold[0]).total_seconds():.1f} s after the first forecast "
        f"said; warned {(gone - warned_at).total_seconds():.1f} s before; errors {min(errors):.1f} to {max(errors):.1f} s"
    )
    # The broker's clock is this machine's, so a loss never comes before its forecast.
    assert min(errors) >= 0


@pytest.mark.long
def test_the_warning_of_a_retention_by_size_comes_before_the_loss(lake: LakeMaker) -> None:
    """Segments are 1 MiB, the smallest size that brokers accept, and the topic keeps 4 MiB."""
    kept = 4 << 20
    lk = lake({"retention.bytes": str(kept), "segment.bytes": str(1 << 20), "file.delete.delay.ms": "100"})
    # Cut now, so that the rate covers only later records.
    lk.ledger.create()
    state = lk.cluster.topic(lk.topic)
    began = datetime.now(UTC)
    cut = samples.cut(lk.topic, began.replace(microsecond=0), {0: 0}, topic_id=state.topic_id)
    assert lk.ledger.record_cuts([cut], None)
    warned: list[tuple[datetime, float]] = []
    while True:
        lk.send([Record(bytes(50_000))] * 6)
        now = datetime.now(UTC)
        (partition,) = look(lk, now).partitions
        assert partition.forecast is not None
        if partition.forecast.lost:
            break
        if partition.forecast.near:
            assert partition.forecast.by_size is not None
            warned.append((now, partition.forecast.by_size * 3600))
        time.sleep(0.05)
    gone = datetime.now(UTC)
    assert warned
    errors = [(gone - at).total_seconds() - left for at, left in warned]
    print(
        f"\nretention.bytes 4 MiB in segments of 1 MiB: warned {(gone - warned[0][0]).total_seconds():.1f} s before the loss, after "
        f"{(warned[0][0] - began).total_seconds():.1f} s; errors {min(errors):.1f} to {max(errors):.1f} s"
    )


# --- a hanging transaction ------------------------------------------------------------------------------------------


@contextmanager
def unverified(broker: Broker) -> Iterator[None]:
    """Brokers that do not verify a producer's transaction with the transaction coordinator, as before Kafka 3.6."""

    def change(operation: AlterConfigOpType) -> None:
        entry = ConfigEntry("transaction.partition.verification.enable", "false", incremental_operation=operation)
        wanted = ConfigResource(ResourceType.BROKER, "1", incremental_configs=[entry])
        for future in broker.admin.incremental_alter_configs([wanted]).values():
            future.result(30)

    change(AlterConfigOpType.SET)
    try:
        yield
    finally:
        change(AlterConfigOpType.DELETE)


def write_in_no_transaction(lk: TopicLake, producer: int) -> None:
    """Write a batch with a transaction that no coordinator knows."""
    batch = made_batch([Made(0, timestamp=round(time.time() * 1000))], producer=producer, transactional=True)
    of_topic = ProduceRequest.TopicProduceData
    data = of_topic(name=lk.topic, partition_data=[of_topic.PartitionProduceData(index=0, records=batch)])
    request = ProduceRequest(version=9, transactional_id="nobody", acks=-1, timeout_ms=10_000, topic_data=[data])

    def written() -> bool:
        (answer,) = ask(lk, request, ProduceRequest, 9).responses[0].partition_responses
        return bool(answer.error_code == 0)

    # The change of the configuration reaches the broker a moment after its answer.
    wait_until("the batch is taken", written)


def aborted(lk: TopicLake, transaction: OpenTransaction) -> None:
    """Make the partition's leader write the abort marker, as `kafka-transactions.sh abort` does."""
    of = WriteTxnMarkersRequest.WritableTxnMarker
    marker = of(
        producer_id=transaction.producer_id,
        producer_epoch=transaction.producer_epoch,
        transaction_result=False,
        topics=[of.WritableTxnMarkerTopic(name=lk.topic, partition_indexes=[transaction.partition])],
        coordinator_epoch=0,
    )
    answer = ask(lk, WriteTxnMarkersRequest(version=1, markers=[marker]), WriteTxnMarkersRequest, 1)
    assert answer.markers[0].topics[0].partitions[0].error_code == 0, answer


def ask(lk: TopicLake, request: Any, kind: type, version: int) -> Any:
    security = Security(client_settings(lk.bootstrap))
    connection = Connection(addresses(lk.bootstrap)[0], security, {kind: version}, timeout=10, stopped=lambda: False)
    try:
        return connection.request(request, lambda answer: answer)
    finally:
        connection.close()
