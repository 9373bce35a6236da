"""Rows of decoded and raw tables on a Kafka topic: each once, also after kills, takeovers and reloads."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import NewPartitions

from platform_assets.checks.published import gather
from platform_assets.errors import (
    PublishingInterruptedError,
    PublishingProgressLostError,
    PublishingRefusedError,
    SendingInterruptedError,
)
from platform_assets.kafka import publisher as publisher_module
from platform_assets.kafka.cluster import Cluster
from platform_assets.kafka.outbox import LetterTarget
from platform_assets.kafka.publisher import Record, Session, Target
from platform_assets.lake.vacuum import vacuum
from platform_assets.model.publishing import Part, PublishDeclaration
from platform_assets.windows.publish import loads
from platform_assets.windows.publish.publishing import Publisher, fingerprint
from platform_assets_tests.support.decoded_topic import DecodedTopic, order
from platform_assets_tests.support.published import consumed, identities, replayed
from testbed import samples
from testbed.clients import client_settings, librdkafka
from testbed.loads import wait_until

if TYPE_CHECKING:
    from platform_assets_tests.conftest import Broker, TopicMaker

pytestmark = pytest.mark.broker


def publisher(broker: Broker, made: DecodedTopic, target: str, **given: Any) -> Publisher:
    changes = {name: given.pop(name) for name in list(given) if name in PublishDeclaration.__slots__}
    declared = PublishDeclaration(target, made.declaration.decoded_table, key=Part("text", ("id",)))
    cluster = Cluster.connect(client_settings(broker.bootstrap))
    return Publisher(replace(declared, **{"transaction_rows": 10, **changes}), made.ledger, cluster, **given)


def orders(tmp_path: Path, *counts: int) -> DecodedTopic:
    """Return a decoded topic with windows of these numbers of rows; ids count from 0."""
    made = DecodedTopic(tmp_path / "lake", "orders")
    made.partitions = 2
    starts = [sum(counts[:n]) for n in range(len(counts))]
    made.load(*[[order(start + n) for n in range(count)] for start, count in zip(starts, counts, strict=True)])
    made.decode()
    return made


def ids(broker: Broker, target: str) -> list[int]:
    return sorted(json.loads(m.value)["id"] for m in consumed(broker.bootstrap, target) if m.value is not None)


def test_each_row_is_published_once(broker: Broker, topic: TopicMaker, tmp_path: Path) -> None:
    made, target = orders(tmp_path, 25, 3, 0, 4), topic(partitions=3)
    each = publisher(broker, made, target)
    assert each.plan().behind == 3
    done = each.run()
    assert (done.windows, done.records, done.corrections) == (3, 32, 0)
    assert done.transactions == 4
    messages = consumed(broker.bootstrap, target)
    assert sorted((int(m.key or b""), m.value) for m in messages) == [
        (n, b'{"id":%d,"amount":"%d.50"}' % (n, n)) for n in range(32)
    ]
    assert len(set(identities(messages))) == 32
    assert each.plan().behind == 0
    assert each.run().records == 0
    assert consumed(broker.bootstrap, target) == messages


def test_two_publishers_at_once_send_each_row_once(broker: Broker, topic: TopicMaker, tmp_path: Path) -> None:
    made, target = orders(tmp_path, 25), topic()
    overtaken: list[int] = []

    def overtake(step: str) -> None:
        if step == "commit" and not overtaken:
            overtaken.append(publisher(broker, made, target).run().records)

    with pytest.raises(PublishingInterruptedError, match="another publisher has taken over"):
        publisher(broker, made, target, before_step=overtake).run()
    assert overtaken == [25]
    assert ids(broker, target) == list(range(25))


def test_a_publisher_that_is_overtaken_while_it_sends_says_so(broker: Broker, topic: TopicMaker) -> None:
    name = topic(partitions=2)
    target = Target(Cluster.connect(client_settings(broker.bootstrap)), name)
    target.prepare(None)

    def records(session: Session) -> Iterator[Record]:
        yield b"1", b"sent", []
        session.producer.flush(30)
        target.session()
        yield from ((b"%d" % n, b"too late", []) for n in range(30))

    # The client may report the failed records before or after the fatal error of the producer.
    for _ in range(8):
        session = target.session()
        with pytest.raises(PublishingInterruptedError, match="another publisher has taken over"):
            session.send(records(session), {b"progress": b"{}"})
    assert consumed(broker.bootstrap, name) == []


def test_a_transaction_that_kafka_ended_for_its_age_is_not_taken_for_an_overtaken_one(
    broker: Broker, topic: TopicMaker
) -> None:
    name, cluster = topic(), Cluster.connect(client_settings(broker.bootstrap))

    def is_ended() -> bool:
        state = cluster.topic(name)
        ends, stable = cluster.high_watermarks(state), cluster.last_stable_offsets(state)
        return 0 < ends[0].offset == stable[0].offset

    def wait(step: str) -> None:
        if step == "commit":
            wait_until("Kafka has ended the transaction", is_ended)

    target, patient = Target(cluster, name, 4.0, wait), Target(cluster, name)
    target.prepare(None)
    patient.session()  # The first one of a broker takes long, because the broker creates a topic for it.
    with pytest.raises(PublishingInterruptedError, match="and Kafka ends transactions after 4 s") as raised:
        target.session().send([(b"1", b"late", [])], {b"progress": b"{}"})
    assert (raised.value.timed_out, raised.value.fenced) == (True, False)
    assert "declare a smaller `transaction_rows`" in str(raised.value)
    patient.session().send([(b"1", b"sent", [])], {b"progress": b"{}"})
    assert [m.value for m in consumed(broker.bootstrap, name)] == [b"sent"]


def test_only_a_transaction_that_was_open_for_long_has_timed_out() -> None:
    fenced = KafkaException(KafkaError(KafkaError._FENCED, "Local: fenced", fatal=True))
    for seconds, is_transaction, timed_out in ((0.0, True, True), (60.0, True, False), (0.0, False, False)):
        for target in (Target(None, "t", seconds), LetterTarget(None, "t", seconds, source="s")):  # type: ignore[arg-type]
            with (
                pytest.raises((PublishingInterruptedError, SendingInterruptedError)) as raised,
                target.translating("a transaction", is_transaction=is_transaction),
            ):
                raise fenced
            error: Any = raised.value
            assert (error.timed_out, error.fenced) == (timed_out, not timed_out)
            assert ("has taken over)" in str(error)) is not timed_out


@pytest.mark.parametrize("step", ["first", "flush", "commit", "next"])
def test_a_lost_answer_is_settled_by_the_next_producer(
    broker: Broker, topic: TopicMaker, tmp_path: Path, step: str
) -> None:
    made, target = orders(tmp_path, 25), topic()
    left = [2]

    def lose(name: str) -> None:
        if name == step:
            left[0] -= 1
            if not left[0]:
                raise PublishingInterruptedError(target, "a transaction", "the answer was lost")

    publisher(broker, made, target, before_step=lose).run()
    assert left[0] <= 0
    assert ids(broker, target) == list(range(25))


def reloads(tmp_path: Path) -> tuple[DecodedTopic, Callable[..., None]]:
    """Return a topic whose raw table has one window, and a function that loads the window again with other values. A
    value of None leaves out the row."""
    made = orders(tmp_path, 0, 30)
    (window,) = made.windows[1:]

    def load(name: str, values: Mapping[int, bytes | None]) -> None:
        ranges = sorted(window.ranges.items())
        places = [(p, o) for p, r in ranges for o in range(r.start, r.end)]
        held = {place: values.get(n, b"%d" % n) for n, place in enumerate(places)}
        kept = {p: [o for q, o in places if q == p and held[p, o] is not None] for p, _ in ranges}
        left_out = sum(value is None for value in held.values())
        samples.loaded(made.root, window, kept, load_id=name, values=held, holes={"compacted": left_out})

    return made, load


RAW: dict[str, Any] = {"key": Part("text", ("kafka_offset",)), "value": Part("bytes", ("value",)), "tombstones": True}


def test_a_window_loaded_again_publishes_only_what_differs(broker: Broker, topic: TopicMaker, tmp_path: Path) -> None:
    made, load = reloads(tmp_path)
    target, table = topic(), made.declaration.raw_table
    load("a", {29: None})
    each = publisher(broker, made, target, table=table, **RAW)
    assert each.run().records == 29
    load("b", {3: b"changed", 7: None})
    held = publisher(broker, made, target, table=table, **RAW, corrections="hold").run()
    assert (held.records, held.held) == (0, (made.windows[1].key,))
    done = each.run()
    assert (done.records, done.corrections, done.transactions) == (3, 3, 1)
    everything = consumed(broker.bootstrap, target)
    for since in (None, {0: 0}, {0: everything[29].offset}):
        evidence = gather(each, since=since)
        assert (evidence.passed, evidence.not_read) == (True, [])
        assert evidence.records == (3 if since == {0: everything[29].offset} else 32)
    changes = everything[29:]
    assert [(m.kind, m.key, m.value) for m in changes] == [
        ("removed", b"7", None), ("changed", b"3", b"changed"), ("added", b"14", b"29"),
    ]  # fmt: skip
    load("c", {3: b"changed", 7: None})
    assert each.run().records == 0


def test_a_correction_that_began_is_finished_before_the_next_load(
    broker: Broker, topic: TopicMaker, tmp_path: Path
) -> None:
    made, load = reloads(tmp_path)
    target, table = topic(), made.declaration.raw_table
    load("a", {})
    publisher(broker, made, target, table=table, **RAW).run()
    load("b", {n: b"b%d" % n for n in range(25)})

    def stop(step: str) -> None:
        if step == "next":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        publisher(broker, made, target, table=table, **RAW, before_step=stop).run()
    load("c", {n: b"%d" % n if n % 2 else None for n in range(30)})
    kept = loads.needed_files(made.ledger, table)
    assert kept
    publisher(broker, made, target, table=table, **RAW).run()
    messages = consumed(broker.bootstrap, target)
    assert len(set(identities(messages))) == len(messages) == 30 + 25 + 12 + 15
    assert sorted(v for _, v in replayed(messages).values() if v) == sorted(b"%d" % n for n in range(1, 30, 2))
    assert not loads.needed_files(made.ledger, table)


def test_vacuum_keeps_what_a_correction_is_compared_with(broker: Broker, topic: TopicMaker, tmp_path: Path) -> None:
    made, load = reloads(tmp_path)
    target, table = topic(), made.declaration.raw_table
    folder = made.lake.table(table)
    load("a", {})
    each = publisher(broker, made, target, table=table, **RAW)
    each.run()
    load("b", {3: b"changed"})
    configured = {"delta.deletedFileRetentionDuration": "interval 0 seconds"}
    folder.delta().alter.set_table_properties(configured)
    needed = loads.needed_files(made.ledger, table)
    assert needed
    vacuum(table, folder, keep=lambda: loads.needed_files(made.ledger, table))
    assert all(folder.has(path) for path in needed)
    assert each.run().corrections == 1
    vacuum(table, folder, keep=lambda: loads.needed_files(made.ledger, table))
    assert not any(folder.has(path) for path in needed)


def test_a_record_that_the_broker_refuses_is_an_error_of_that_name(
    broker: Broker, topic: TopicMaker, tmp_path: Path
) -> None:
    made, target = DecodedTopic(tmp_path / "lake", "orders"), topic(config={"max.message.bytes": "20000"})
    made.load([b"small", b"small", os.urandom(100_000), b"small"])
    declared = PublishDeclaration(target, made.declaration.raw_table, value=Part("bytes", ("value",)))
    with pytest.raises(PublishingRefusedError, match="Message size too large"):
        Publisher(declared, made.ledger, Cluster.connect(client_settings(broker.bootstrap))).run()
    assert consumed(broker.bootstrap, target) == []


def test_a_record_that_is_refused_before_the_last_one_is_sent_is_the_same_error(
    broker: Broker, topic: TopicMaker, tmp_path: Path
) -> None:
    name = topic(config={"max.message.bytes": "20000"})
    target = Target(Cluster.connect(client_settings(broker.bootstrap)), name)
    target.prepare(None)
    session = target.session()

    def records() -> Iterator[Record]:
        yield b"1", b"small", []
        # Only the first record has a delivery report, so it must not share the batch.
        session.producer.flush(30)
        yield b"2", os.urandom(100_000), []
        session.producer.flush(30)
        yield b"3", b"after the refusal", []

    with pytest.raises(PublishingRefusedError, match=r"Message size too large.*Raise max\.message\.bytes"):
        session.send(records(), {b"progress": b"{}"})
    assert consumed(broker.bootstrap, name) == []


def test_a_row_without_a_key_is_refused_by_a_compacted_topic_and_one_with_a_key_is_not(
    broker: Broker, topic: TopicMaker, tmp_path: Path
) -> None:
    made, target = orders(tmp_path, 3), topic(config={"cleanup.policy": "compact"})
    with pytest.raises(
        PublishingRefusedError, match=r"cleanup\.policy=compact, each record needs a key: publish a key"
    ):
        publisher(broker, made, target, key=None).run()
    assert publisher(broker, made, target).run().records == 3
    assert ids(broker, target) == [0, 1, 2]


def test_rows_of_a_raw_table_are_published_as_they_are(broker: Broker, topic: TopicMaker, tmp_path: Path) -> None:
    made, target = orders(tmp_path, 12), topic()
    parts = {"key": Part("bytes", ("key",)), "value": Part("bytes", ("value",)), "table": made.declaration.raw_table}
    publisher(broker, made, target, **parts, headers=(("offset", "kafka_offset"),)).run()
    messages = consumed(broker.bootstrap, target)
    assert sorted((m.value or b"") for m in messages) == sorted(order(n) for n in range(12))
    assert {m.headers[0] for m in messages} == {("offset", b"%d" % m.position[1]) for m in messages}


def test_evidence_names_records_that_are_foreign_missing_or_different(
    broker: Broker, topic: TopicMaker, tmp_path: Path
) -> None:
    made, load = reloads(tmp_path)
    table, (first, second) = made.declaration.raw_table, (topic(), topic())
    load("a", {})
    each, other = (publisher(broker, made, target, table=table, **RAW) for target in (first, second))
    each.run()
    other.run()
    messages = consumed(broker.bootstrap, first)
    producer = Producer(librdkafka(broker.bootstrap))
    sent = [dict(message_headers(broker, first)[n]) for n in (4, 5)]
    producer.produce(first, messages[4].value, messages[4].key, headers=sent[0])
    producer.produce(first, b"another value", messages[5].key, headers=sent[1])
    producer.produce(first, b"foreign")
    producer.flush()
    found = " ".join(gather(each).problems)
    for text in ("row 4 of load a of window", "was sent twice", "did not send", "differ from their rows"):
        assert text in found
    assert gather(other).passed
    broker.admin.delete_records([TopicPartition(second, 0, 12)])[TopicPartition(second, 0, 12)].result(30)
    cut = gather(other)
    assert cut.passed
    # A marker is among the twelve offsets.
    assert "Kafka may have deleted 11 of its records" in cut.not_read[0]


def message_headers(broker: Broker, target: str) -> list[list[tuple[str, bytes]]]:
    return [[*m.headers, m.identity] for m in consumed(broker.bootstrap, target)]


@pytest.mark.parametrize("again", [False, True])
def test_a_deleted_progress_topic_is_an_error_until_the_topic_is_created_again(
    broker: Broker, topic: TopicMaker, tmp_path: Path, again: bool
) -> None:
    made, target = orders(tmp_path, 25), topic()
    each = publisher(broker, made, target)
    each.run()
    delete(broker, f"{target}.published")
    if again:
        each.cluster.create_topic(f"{target}.published", {"cleanup.policy": "compact"})
    says = "was deleted and created again" if again else "but was deleted"
    for attempt in (each.plan, each.run):
        with pytest.raises(PublishingProgressLostError, match=says):
            attempt()
    assert ids(broker, target) == list(range(25))
    delete(broker, target)
    each.cluster.create_topic(target, {})
    assert each.run().records == 25
    assert ids(broker, target) == list(range(25))
    assert each.plan().behind == 0


def delete(broker: Broker, name: str) -> None:
    broker.admin.delete_topics([name], operation_timeout=30)[name].result(30)
    cluster = Cluster.connect(client_settings(broker.bootstrap))
    wait_until("the topic is deleted", lambda: name not in cluster.topics())


def test_the_progress_is_in_one_partition_however_many_there_are(
    broker: Broker, topic: TopicMaker, tmp_path: Path
) -> None:
    made, target = orders(tmp_path, 9, 9), topic()
    each = publisher(broker, made, target)
    each.cluster.create_topic(f"{target}.published", {"cleanup.policy": "compact"})
    name = f"{target}.published"
    broker.admin.create_partitions([NewPartitions(name, 5)])[name].result(30)
    wait_until("there are five partitions", lambda: len(each.cluster.topic(name).partitions) == 5)
    each.run()
    ends = each.cluster.high_watermarks(each.cluster.topic(name))
    assert [p for p, found in ends.items() if found.offset] == [0]
    assert each.run().records == 0


def test_a_full_queue_of_the_client_delays_all_records(
    broker: Broker, topic: TopicMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher_module, "_QUEUE", 3)
    made, target = orders(tmp_path, 3, 3, 3, 3), topic()
    publisher(broker, made, target, transaction_rows=12).run()
    assert ids(broker, target) == list(range(12))


def test_a_lake_without_windows_has_nothing_to_publish(broker: Broker, topic: TopicMaker, tmp_path: Path) -> None:
    made = DecodedTopic(tmp_path / "lake", "orders")
    each = publisher(broker, made, topic())
    assert each.plan().behind == 0
    assert each.run().records == 0
    assert fingerprint(each.declaration, made.ledger)
