"""Evidence gathered from a real broker, compared with what the producers themselves recorded about every offset."""

from __future__ import annotations

import random
import threading
import time
import tracemalloc
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import NewTopic, OffsetSpec

from platform_assets.errors import (
    BrokerUnreachableError,
    ConfigurationError,
    DamagedBatchError,
    TopicMissingError,
    TopicRecreatedError,
    TruncationError,
    UnstableEndError,
)
from platform_assets.kafka.batches import fetching, record_batches
from platform_assets.kafka.batches.reading import Buffers, PartitionReading
from platform_assets.kafka.batches.unpacking import unpacked
from platform_assets.kafka.cluster import Cluster
from platform_assets.kafka.evidence.gathering import Evidence, gather_evidence
from platform_assets.kafka.evidence.tally import PartitionTally
from platform_assets.kafka.settings import ClientSettings
from platform_assets.model.digest import Digest, dense_digest, offsets_digest
from platform_assets.model.offsets import OffsetRange, TopicRanges, ranges_of
from platform_assets_tests.support.evidence import by_kind, ranged
from platform_assets_tests.support.quotas import fetch_quota
from platform_assets_tests.support.variants import long_after
from testbed.clients import client_settings, librdkafka
from testbed.loads import wait_until

if TYPE_CHECKING:
    from platform_assets_tests.conftest import Broker, TopicMaker

pytestmark = pytest.mark.broker

Truth = dict[int, dict[int, str]]


@dataclass
class History:
    """A topic, and the kind of each offset according to its producers: `truth[partition][offset]`."""

    broker: Broker
    topic: str
    truth: Truth = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.settings = client_settings(self.broker.bootstrap)
        self.topic_id = Cluster.connect(self.settings).topic(self.topic).topic_id
        self.producers: list[Producer] = []

    def producer(self, *, transactional: bool = True, options: Mapping[str, str | int] | None = None) -> Producer:
        settings = {**librdkafka(self.broker.bootstrap), "linger.ms": 5, "log_level": 2, **(options or {})}
        if transactional:
            settings["transactional.id"] = uuid.uuid4().hex
        producer = Producer(settings)
        if transactional:
            producer.init_transactions(30)
        self.producers.append(producer)
        return producer

    def send(self, producer: Producer, count: int, kind: str = "records", partition: int = 0, size: int = 20) -> None:
        """Produce `count` records; record the offsets that the broker assigns."""

        def note(error: KafkaError | None, message: Message) -> None:
            assert error is None
            self.truth.setdefault(partition, {})[message.offset()] = kind

        for n in range(count):
            producer.produce(self.topic, key=b"%d" % (n % 7), value=b"v" * size, partition=partition, on_delivery=note)
            producer.poll(0)
        assert producer.flush(30) == 0

    def transaction(self, producer: Producer, counts: Mapping[int, int], *, commit: bool) -> None:
        """Run one complete transaction with `counts[partition]` records."""
        producer.begin_transaction()
        for partition, count in counts.items():
            self.send(producer, count, "records" if commit else "aborted_records", partition)
        self.finish(producer, tuple(counts), commit=commit)

    def finish(self, producer: Producer, partitions: tuple[int, ...], *, commit: bool) -> None:
        """End the transaction and wait for its markers. No producer learns the offsets of markers."""
        before = {p: self.end(p) for p in partitions}
        producer.commit_transaction(30) if commit else producer.abort_transaction(30)
        for partition in partitions:
            deadline = time.monotonic() + 20
            while self.end(partition) == before[partition] and time.monotonic() < deadline:
                time.sleep(0.01)
            assert self.end(partition) == before[partition] + 1
            self.truth[partition][before[partition]] = "commit_markers" if commit else "abort_markers"

    def end(self, partition: int = 0, *, committed: bool = False) -> int:
        asked = {TopicPartition(self.topic, partition): OffsetSpec.latest()}
        isolation = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        (future,) = self.broker.admin.list_offsets(asked, isolation_level=isolation).values()
        return int(future.result(30).offset)

    def delete_below(self, offset: int, partition: int = 0) -> None:
        (future,) = self.broker.admin.delete_records([TopicPartition(self.topic, partition, offset)]).values()
        assert future.result(30).low_watermark == offset
        for gone in range(offset):
            self.truth[partition][gone] = "below_log_start"

    def gather(self, *ranges: tuple[int, int], **options: Any) -> Evidence:
        wanted = TopicRanges({p: OffsetRange(*r) for p, r in enumerate(ranges)})
        settings = {"compacted": False, "deadline": time.monotonic() + 60, **options}
        return gather_evidence(self.settings, self.topic, self.topic_id, wanted, **settings)

    def check(self, *ranges: tuple[int, int], **options: Any) -> Evidence:
        """Gather evidence for `ranges`, one range per partition, and compare each offset's kind with the truth."""
        evidence = self.gather(*ranges, **options)
        assert evidence.complete
        for partition, (start, end) in enumerate(ranges):
            kinds = {o: self.truth.get(partition, {})[o] for o in range(start, end)}
            found = evidence.by_partition[partition]
            assert by_kind(found) == ranged(kinds)
            records = np.array([o for o, kind in kinds.items() if kind == "records"], dtype=np.int64)
            assert found.digest == offsets_digest(partition, records)
        return evidence


@pytest.fixture
def history(broker: Broker, topic: TopicMaker) -> History:
    """Return an empty topic with two partitions, which the test itself fills."""
    return History(broker, topic(partitions=2, stem="evidence"))


@pytest.fixture(scope="module")
def mixed(broker: Broker) -> History:
    """Return a topic with all kinds of transactions in one partition. Tests only read it."""
    name = f"evidence-mixed-{uuid.uuid4().hex[:8]}"
    broker.admin.create_topics([NewTopic(name, 1, -1)])[name].result(30)
    h = History(broker, name)
    one, two, plain = h.producer(), h.producer(), h.producer(transactional=False)
    h.transaction(one, {0: 4}, commit=True)
    h.send(plain, 3)
    h.transaction(two, {0: 5}, commit=False)
    h.transaction(one, {0: 1}, commit=False)
    one.begin_transaction()  # an empty transaction
    one.commit_transaction(30)
    one.begin_transaction()
    two.begin_transaction()
    h.send(one, 2)
    h.send(two, 3, "aborted_records")
    h.send(plain, 2)
    h.send(one, 1)
    h.finish(two, (0,), commit=False)
    h.send(plain, 1)
    two.begin_transaction()
    h.send(two, 2)
    h.finish(one, (0,), commit=True)
    h.finish(two, (0,), commit=True)
    h.send(plain, 4)
    h.transaction(one, {0: 2}, commit=False)
    return h


# --- transactions -----------------------------------------------------------------------------------------------------


def test_whole_log_of_mixed_transactions(mixed: History) -> None:
    evidence = mixed.check((0, mixed.end()))
    assert evidence.records + sum(evidence.holes.values()) == mixed.end()
    assert evidence.holes == {"commit_markers": 3, "abort_markers": 4, "aborted_records": 11}


def test_any_range_of_mixed_transactions(mixed: History, rng: random.Random) -> None:
    """The transactions include all four corner cases of SPARK-25005, and aborted transactions that began before the
    range."""
    for _ in range(60):
        start, end = sorted((rng.randint(0, mixed.end()), rng.randint(0, mixed.end())))
        mixed.check((start, end), fetch_bytes=rng.choice([1, 300, 1 << 20]))


def test_what_a_read_committed_consumer_gets_is_what_the_records_are(mixed: History) -> None:
    consumer = Consumer(
        {**librdkafka(mixed.broker.bootstrap), "group.id": "g", "isolation.level": "read_committed",
         "enable.auto.commit": False, "enable.partition.eof": True}
    )  # fmt: skip
    consumer.assign([TopicPartition(mixed.topic, 0, 0)])
    offsets: list[int] = []
    while not (message := consumer.poll(30)).error():
        offsets.append(message.offset())
    consumer.close()
    found = mixed.gather((0, mixed.end()))
    assert found.by_partition[0].records.listed == ranges_of(offsets)
    assert found.digest == offsets_digest(0, np.array(offsets))


def test_range_without_data_records(history: History) -> None:
    one = history.producer()
    history.transaction(one, {0: 2}, commit=False)
    history.transaction(one, {0: 1}, commit=True)
    history.check((0, 3))
    history.check((4, 5))
    history.check((2, 3))


def test_first_offset_not_a_committed_record(history: History) -> None:
    one = history.producer()
    history.transaction(one, {0: 2}, commit=False)
    history.transaction(one, {0: 2}, commit=True)
    history.check((1, 5))
    history.check((2, 5))


def test_last_offset_not_a_committed_record(history: History) -> None:
    one = history.producer()
    history.transaction(one, {0: 3}, commit=True)
    history.transaction(one, {0: 3}, commit=False)
    history.check((0, 4))
    history.check((0, 7))


def test_gap_in_the_middle(history: History) -> None:
    one = history.producer()
    for commit in (True, False, True):
        history.transaction(one, {0: 3}, commit=commit)
    history.check((1, 10))


def test_transaction_over_several_partitions(history: History) -> None:
    one, two = history.producer(), history.producer()
    history.transaction(one, {0: 3, 1: 5}, commit=True)
    history.transaction(two, {0: 1, 1: 2}, commit=False)
    history.transaction(two, {1: 2}, commit=True)
    evidence = history.check((1, history.end(0)), (0, history.end(1)))
    assert evidence.records == 2 + 7
    assert evidence.digest == sum((p.digest for p in evidence.by_partition.values()), Digest(0, 0))


@pytest.mark.parametrize("codec", long_after(2, ["none", "gzip", "snappy", "lz4", "zstd"]))
def test_compressed_transactions(history: History, codec: str) -> None:
    one = history.producer(options={"compression.type": codec})
    history.transaction(one, {0: 50}, commit=True)
    history.transaction(one, {0: 50}, commit=False)
    history.transaction(one, {0: 50}, commit=True)
    history.check((0, 153))
    history.check((13, 140))


def test_open_transaction_bounds_what_may_be_asked(history: History) -> None:
    one, plain = history.producer(), history.producer(transactional=False)
    history.send(plain, 3)
    one.begin_transaction()
    history.send(one, 2)
    history.send(plain, 2)
    history.check((0, 3), (0, 0))
    with pytest.raises(UnstableEndError, match=r"stable only up to offset 3; offsets \[3, 4\)"):
        history.gather((0, 4))
    with pytest.raises(TruncationError, match="ends at offset 7, before offset 8"):
        history.gather((0, 8))
    history.finish(one, (0,), commit=True)
    history.check((0, 8))


# --- retention and compaction -----------------------------------------------------------------------------------------


def test_deleted_records_are_below_the_log_start(history: History) -> None:
    plain = history.producer(transactional=False)
    history.send(plain, 30)  # few batches, so that the log start is inside one
    history.delete_below(13)
    evidence = history.check((0, 30))
    assert evidence.by_partition[0].below_log_start.end == 13
    history.check((5, 20))
    history.check((2, 13))
    history.check((2, 9))
    history.check((13, 30))
    history.delete_below(30)
    history.check((7, 30))


def test_records_deleted_while_they_are_read(history: History) -> None:
    plain = history.producer(transactional=False)
    for _ in range(20):
        history.send(plain, 10)
    brokers = fetching.Brokers(history.settings, history.topic, history.topic_id, patience=10, stopped=lambda: False)
    tally = PartitionTally(0, OffsetRange(0, 200), compacted=False)
    reader = PartitionReading(brokers, tally, Buffers(1))
    reader.step()
    position = tally.position
    assert 0 < position < 100
    reader.abandon()
    history.delete_below(150)
    while not tally.done:
        reader.step()
    brokers.close()
    assert by_kind(tally.evidence()) == {"records": [(0, position), (150, 200)], "below_log_start": [(position, 150)]}


def test_dropped_segments_are_below_the_log_start(broker: Broker, topic: TopicMaker) -> None:
    config = {"segment.bytes": str(1 << 20), "retention.bytes": str(1 << 20)}
    h = History(broker, topic(config=config, stem="evidence"))
    h.send(h.producer(transactional=False), 40, size=100_000)
    cluster = Cluster.connect(h.settings)
    deadline = time.monotonic() + 60
    while not (start := cluster.log_starts(cluster.topic(h.topic))[0].offset):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    found = h.gather((0, 40)).by_partition[0]
    start = found.below_log_start.end
    assert 0 < start < 40
    assert by_kind(found) == {"records": [(start, 40)], "below_log_start": [(0, start)]}


@pytest.fixture(scope="module")
def compacted(broker: Broker) -> dict[str, tuple[History, list[int]]]:
    """Create a compacted topic for each compression type; return each topic with the offsets that a consumer can still
    read."""
    config = {
        "cleanup.policy": "compact", "segment.ms": "300", "min.cleanable.dirty.ratio": "0.001",
        "delete.retention.ms": "60000", "min.compaction.lag.ms": "0", "max.compaction.lag.ms": "500",
    }  # fmt: skip
    histories = {}
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        name = f"evidence-compacted-{codec}-{uuid.uuid4().hex[:8]}"
        broker.admin.create_topics([NewTopic(name, 2, -1, config=config)])[name].result(30)
        h = histories[codec] = History(broker, name)
        plain = h.producer(transactional=False, options={"compression.type": codec})
        one = h.producer(options={"compression.type": codec})
        h.send(plain, 200)
        h.transaction(one, {0: 30}, commit=False)
        h.send(plain, 30)
        h.transaction(one, {0: 3}, commit=True)
    time.sleep(0.5)
    for h in histories.values():  # a newer segment, since the active one is never compacted
        h.send(h.producers[0], 3)
    deadline, left = time.monotonic() + 90, {codec: [0] for codec in histories}
    while True:
        before, left = left, {codec: _consumed(h) for codec, h in histories.items()}
        # 7 keys, 3 records in a transaction, 3 in the active segment: compaction is complete when the count stays the
        # same.
        if left == before and all(len(offsets) <= 20 for offsets in left.values()):
            return {codec: (h, left[codec]) for codec, h in histories.items()}
        assert time.monotonic() < deadline, f"not compacted: {left}"
        time.sleep(2)


def _consumed(h: History) -> list[int]:
    consumer = Consumer(
        {**librdkafka(h.broker.bootstrap), "group.id": "g", "isolation.level": "read_committed",
         "enable.auto.commit": False, "enable.partition.eof": True}
    )  # fmt: skip
    consumer.assign([TopicPartition(h.topic, 0, 0)])
    offsets: list[int] = []
    while not (message := consumer.poll(30)).error():
        offsets.append(message.offset())
    consumer.close()
    return offsets


@pytest.mark.parametrize("codec", long_after(1, ["none", "gzip", "snappy", "lz4", "zstd"]))
def test_compacted_topic(
    compacted: Mapping[str, tuple[History, list[int]]], codec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    h, left = compacted[codec]
    end = h.end(committed=True)
    unpack, codecs = unpacked, set()

    def noting(codec: int, *rest: Any) -> Any:
        codecs.add(codec)
        return unpack(codec, *rest)

    monkeypatch.setattr(record_batches, "unpacked", noting)
    evidence = h.gather((0, end), compacted=True)
    assert ["none", "gzip", "snappy", "lz4", "zstd"].index(codec) in codecs
    found = evidence.by_partition[0]
    assert not evidence.unexplained
    assert [o for r in found.records.listed for o in range(r.start, r.end)] == left
    assert found.digest == offsets_digest(0, np.array(left))
    assert found.compacted_away.offsets > 200
    assert sum(found.holes.values()) + len(left) == end
    # Aborted records and markers may have been compacted away, but no other offset may count as one.
    for kind in ("aborted_records", "commit_markers", "abort_markers"):
        assert all(h.truth[0][o] == kind for r in getattr(found, kind).listed for o in range(r.start, r.end))


def test_any_range_of_a_compacted_topic(compacted: Mapping[str, tuple[History, list[int]]], rng: random.Random) -> None:
    h, left = compacted["zstd"]
    last = h.end(committed=True)
    for _ in range(30):
        start, end = sorted((rng.randint(0, last), rng.randint(0, last)))
        found = h.gather((start, end), compacted=True, fetch_bytes=rng.choice([1, 1 << 20])).by_partition[0]
        assert [o for r in found.records.listed for o in range(r.start, r.end)] == [o for o in left if start <= o < end]


def test_missing_records_of_a_topic_that_is_not_compacted_are_unexplained(
    compacted: Mapping[str, tuple[History, list[int]]],
) -> None:
    h, _ = compacted["none"]
    claimed = h.gather((0, h.end(committed=True)), compacted=True)
    blamed = h.gather((0, h.end(committed=True)), compacted=False)
    assert blamed.by_partition[0].unexplained == claimed.by_partition[0].compacted_away
    assert blamed.unexplained[0][0] == 0
    assert blamed.records == claimed.records


# --- the topic's id ---------------------------------------------------------------------------------------------------


def test_wrong_topic_id_is_refused(history: History) -> None:
    history.send(history.producer(transactional=False), 3)
    right, wrong = history.topic_id, fetching.topic_id_text(uuid.uuid4())
    history.topic_id = wrong
    with pytest.raises(TopicRecreatedError) as refusal:
        history.gather((0, 3))
    assert (refusal.value.recorded_id, refusal.value.found_id) == (wrong, right)


def test_missing_topic_is_refused(history: History) -> None:
    history.topic = "evidence-no-such-topic"
    with pytest.raises(TopicMissingError):
        history.gather((0, 3))


def test_missing_partition_is_refused(history: History) -> None:
    with pytest.raises(ConfigurationError, match="only partitions 0 to 1; partition 2 does not exist"):
        history.gather((0, 1), (0, 1), (0, 1))


@pytest.mark.parametrize("again", [True, False])
def test_topic_re_created_or_deleted_while_it_is_read(history: History, again: bool) -> None:
    plain = history.producer(transactional=False)
    for _ in range(5):
        history.send(plain, 10)
    brokers = fetching.Brokers(history.settings, history.topic, history.topic_id, patience=10, stopped=lambda: False)
    tally = PartitionTally(0, OffsetRange(0, 50), compacted=False)
    reader = PartitionReading(brokers, tally, Buffers(1))
    reader.step()
    reader.abandon()
    admin = history.broker.admin
    admin.delete_topics([history.topic])[history.topic].result(30)
    if again:
        deadline = time.monotonic() + 20
        while True:
            try:
                admin.create_topics([NewTopic(history.topic, 2, -1)])[history.topic].result(30)
                break
            except KafkaException:  # the old topic is still being deleted
                assert time.monotonic() < deadline
                time.sleep(0.1)
        for _ in range(5):
            history.send(plain, 10)
    position = tally.position
    with pytest.raises(TopicRecreatedError if again else TopicMissingError):
        reader.step()
    brokers.close()
    assert tally.position == position < 50


# --- cutting short and failing ----------------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_quota_of_a_megabyte_a_second_is_waited_out(history: History) -> None:
    """The broker first serves as much as its quota window of two seconds allows, and then sends empty answers without
    delay."""
    producer = history.producer(transactional=False, options={"compression.type": "none"})
    history.send(producer, 60, size=100_000)
    client = f"evidence-{history.topic}"
    settings = ClientSettings(history.broker.bootstrap, {"client.id": client})

    def waited() -> bool:
        began = time.monotonic()
        found = gather_evidence(
            settings,
            history.topic,
            history.topic_id,
            TopicRanges({0: OffsetRange(0, 60)}),
            compacted=False,
            deadline=time.monotonic() + 120,
            patience=1.0,
            fetch_bytes=2 << 20,
        )
        assert (found.complete, found.records, found.unexplained) == (True, 60, ())
        return time.monotonic() - began > 1.5

    with fetch_quota(history.broker.bootstrap, client, 1 << 20):
        # The broker confirms a quota before it applies the quota. Until then, everything is read at once.
        wait_until("the broker applies the quota", waited)


@pytest.fixture(scope="module")
def long(broker: Broker) -> History:
    """Return a topic with two partitions, which tests only read. Each partition has a few thousand records in many
    batches, some of them transactional."""
    name = f"evidence-long-{uuid.uuid4().hex[:8]}"
    broker.admin.create_topics([NewTopic(name, 2, -1)])[name].result(30)
    h = History(broker, name)
    plain, one = h.producer(transactional=False, options={"batch.num.messages": 20}), h.producer()
    for partition in (0, 1):
        h.send(plain, 3000, partition=partition)
        h.transaction(one, {partition: 20}, commit=False)
        h.send(plain, 1000, partition=partition)
    return h


def slow_down(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Make each fetch take at least `seconds`."""
    step = PartitionReading.step

    def slow_step(self: PartitionReading) -> None:
        time.sleep(seconds)
        step(self)

    monkeypatch.setattr(PartitionReading, "step", slow_step)


def test_reading_cut_short_says_how_far_it_came(long: History, monkeypatch: pytest.MonkeyPatch) -> None:
    ranges = [(5, long.end(0)), (17, long.end(1) - 100)]
    slow_down(monkeypatch, 0.02)
    budget, done = 0.2, 0
    while not done:  # on a busy machine, gathering may not even have begun
        budget *= 2
        evidence = long.gather(*ranges, fetch_bytes=2000, deadline=time.monotonic() + budget)
        done = evidence.done
    assert not evidence.complete
    assert done < evidence.total
    for partition, (start, _) in enumerate(ranges):
        found = evidence.by_partition[partition]
        assert by_kind(found) == ranged({o: long.truth[partition][o] for o in range(start, found.reached)})


def test_error_in_one_partition_ends_the_reading_of_all(long: History, monkeypatch: pytest.MonkeyPatch) -> None:
    step, both = PartitionReading.step, threading.Barrier(2)
    positions: list[int] = []

    def failing_step(self: PartitionReading) -> None:
        first = self._sink.position == 0
        if first:
            both.wait(30)
        if first and self._sink.partition == 1:
            raise DamagedBatchError(long.topic, 1, 0, "as a test has it")
        time.sleep(0.1)
        positions.append(self._sink.position)
        step(self)

    monkeypatch.setattr(PartitionReading, "step", failing_step)
    with pytest.raises(DamagedBatchError, match="as a test has it"):
        long.gather((0, long.end(0)), (0, long.end(1)), fetch_bytes=500)
    assert positions[-1] < long.end(0) // 2
    assert not [t for t in threading.enumerate() if t.name.startswith("evidence")]


def test_past_deadline_asks_nobody(long: History) -> None:
    evidence = gather_evidence(
        ClientSettings("127.0.0.1:1"), long.topic, long.topic_id, TopicRanges({0: OffsetRange(0, 5)}),
        compacted=False, deadline=time.monotonic() - 1,
    )  # fmt: skip
    assert (evidence.done, evidence.total, evidence.complete) == (0, 5, False)


@pytest.mark.long
@pytest.mark.alone
def test_broker_gone_and_back_while_it_is_read(request: pytest.FixtureRequest, broker: Broker, long: History) -> None:
    end = long.end(0)
    brokers = fetching.Brokers(long.settings, long.topic, long.topic_id, patience=300, stopped=lambda: False)
    request.addfinalizer(brokers.close)
    tally = PartitionTally(0, OffsetRange(0, end), compacted=False)
    reader = PartitionReading(brokers, tally, Buffers(2000))
    reader.step()
    assert tally.position > 0
    assert tally.position < end
    starting = threading.Timer(1.0, broker.start)
    broker.stop()
    try:
        begun = time.monotonic()
        with pytest.raises(BrokerUnreachableError, match="looking up last stable offsets"):
            long.gather((0, 100), patience=1.0)
        assert time.monotonic() - begun < 10
        assert long.gather((0, 100), deadline=time.monotonic() + 0.5).done == 0
    finally:
        starting.start()
    while not tally.done:
        reader.step()
    starting.join()
    assert by_kind(tally.evidence()) == ranged(long.truth[0])


def test_the_leader_tells_which_offsets_are_on_its_own_disks(broker: Broker, topic: TopicMaker) -> None:
    """The proof that the end of a log was compacted depends on this; see `kafka.batches.reading`."""
    h = History(broker, topic(stem="evidence"))
    brokers = fetching.Brokers(h.settings, h.topic, h.topic_id, patience=10, stopped=lambda: False)
    try:
        assert brokers.persist("asking", lambda: brokers.local_log_start(0)) == brokers.log_start(0) == 0
    finally:
        brokers.close()


@pytest.mark.long
def test_memory_is_flat_over_a_long_range(broker: Broker, topic: TopicMaker) -> None:
    h = History(broker, topic(stem="evidence"))
    plain = h.producer(transactional=False)
    for _ in range(8):
        h.send(plain, 500, size=20_000)
    end = h.end()
    tracemalloc.start()
    try:
        evidence = h.gather((0, end), fetch_bytes=1 << 20)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert evidence.records == end == 4000  # 80 MB of records
    assert evidence.digest == dense_digest(TopicRanges({0: OffsetRange(0, end)}))
    assert peak < 8 << 20
