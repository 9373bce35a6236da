"""Dead letters on a Kafka topic: a read_committed consumer reads each dead letter exactly once, no matter when a sender
is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewPartitions

from platform_assets.demo.topic_log import await_decided
from platform_assets.errors import (
    ConfigurationError,
    SendingInterruptedError,
    SendingRefusedError,
    TopicMissingError,
)
from platform_assets.kafka.cluster import Cluster
from platform_assets.kafka.outbox import BUCKET, SUFFIX, Letter, LetterTarget, Outbox, Sent
from platform_assets_tests.support.doomed_sender import letters
from testbed.clients import client_settings, librdkafka
from testbed.loads import wait_until

if TYPE_CHECKING:
    from platform_assets_tests.conftest import Broker, TopicMaker

pytestmark = pytest.mark.broker

Message = tuple[bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]
PART = 500
"""Number of dead letters in each transaction."""


def outbox(broker: Broker, target: str, **given: Any) -> Outbox:
    return Outbox(Cluster.connect(client_settings(broker.bootstrap)), "source", target, **given)


def committed(broker: Broker, target: str) -> list[Message]:
    """Return the messages that a read_committed consumer reads from a topic with one partition, in order."""
    from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

    # The markers of a commit follow its acknowledgement, and the first end that the consumer reports may be before them.
    await_decided(Cluster.connect(client_settings(broker.bootstrap)), target)
    consumer = Consumer(
        {
            **librdkafka(broker.bootstrap),
            "group.id": "reader",
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "fetch.wait.max.ms": 20,
        }
    )
    consumer.assign([TopicPartition(target, 0, OFFSET_BEGINNING)])
    found: list[Message] = []
    ended = False
    while not ended:
        if (message := consumer.poll(0.5)) is not None:
            if message.error() is None:
                found.append((message.key(), message.value(), tuple(message.headers() or ())))
            else:
                assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                ended = True
    consumer.close()
    return found


def as_messages(sent: Sequence[Letter]) -> list[Message]:
    return [(letter.key, letter.value, letter.headers) for letter in sent]


def killed_before(broker: Broker, target: str, step: str, times: int) -> None:
    """Start a process that sends. Kill it just before it executes `step` for the `times`-th time."""
    child = subprocess.Popen(
        [sys.executable, "-m", "platform_assets_tests.support.doomed_sender"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    with child:
        assert child.stdin is not None
        assert child.stdout is not None
        work = {"bootstrap": broker.bootstrap, "source": "source", "target": target, "number": 3 * PART + 10}
        print(json.dumps(work), file=child.stdin, flush=True)
        for line in child.stdout:
            times -= line.strip() == step
            if not times:
                break
            print(file=child.stdin, flush=True)
        assert not times
        os.kill(child.pid, signal.SIGKILL)
    assert child.returncode == -signal.SIGKILL


def test_a_sender_that_is_killed_again_and_again_sends_each_letter_once(broker: Broker, topic: TopicMaker) -> None:
    target = topic()
    everything = letters(3 * PART + 10)
    # All of its records have been delivered, and the transaction is open.
    killed_before(broker, target, "commit", 1)
    killed_before(broker, target, "commit", 2)
    killed_before(broker, target, "next", 1)
    assert outbox(broker, target).send(everything) == Sent(PART + 10, 2 * PART)
    assert committed(broker, target) == as_messages(everything)
    assert outbox(broker, target).send(everything) == Sent(0, 3 * PART + 10)
    assert committed(broker, target) == as_messages(everything)


def test_of_two_senders_the_later_one_goes_on_and_the_other_commits_nothing(broker: Broker, topic: TopicMaker) -> None:
    target = topic()
    everything = letters(20)

    def overtake(step: str) -> None:
        if step == "commit":
            assert outbox(broker, target).send(everything) == Sent(20, 0)

    with pytest.raises(SendingInterruptedError, match=r"another sender has taken over.* Run it again"):
        outbox(broker, target, before_step=overtake).send(everything)
    assert committed(broker, target) == as_messages(everything)
    assert outbox(broker, target).send(everything) == Sent(0, 20)


NAMES: Final = ("a", "b", "a.b", "b.c", "c", "a.b.c", "a_b", "a-b.c", "b..c", ".a", "a.")


def test_each_pair_of_topics_has_its_own_transactional_id() -> None:
    targets = [LetterTarget(None, target, source=source) for source in NAMES for target in NAMES]  # type: ignore[arg-type]
    own, earlier = {e.transactional_id for e in targets}, {i for e in targets for i in e.earlier_ids}
    assert len(own) == len(targets)
    assert not own & earlier, "a sender would be fenced by a sender of another pair"
    without_dots = LetterTarget(None, "to", source="from")  # type: ignore[arg-type]
    assert without_dots.transactional_id == "platform-assets.dead-letters.from.to"
    assert without_dots.earlier_ids == ()


def test_senders_whose_earlier_ids_are_the_same_do_not_fence_each_other(broker: Broker, topic: TopicMaker) -> None:
    plain, cluster = topic(), Cluster.connect(client_settings(broker.bootstrap))
    dotted = f"b.{plain}"
    cluster.create_topic(dotted, {})

    def send_other(step: str) -> None:
        if step == "commit":
            assert Outbox(cluster, "a", dotted).send(letters(20)) == Sent(20, 0)

    assert Outbox(cluster, "a.b", plain, before_step=send_other).send(letters(20)) == Sent(20, 0)
    assert committed(broker, plain) == committed(broker, dotted) == as_messages(letters(20))


def test_a_sender_of_an_earlier_release_is_fenced_and_its_progress_counts(
    broker: Broker, topic: TopicMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, cluster, everything = topic(), Cluster.connect(client_settings(broker.bootstrap)), letters(30)
    sender = Outbox(cluster, "a.b", target)

    def upgraded(step: str) -> None:
        if step == "commit":
            monkeypatch.undo()
            assert sender.send(everything) == Sent(20, 10)

    monkeypatch.setattr(LetterTarget, "transactional_id", f"platform-assets.dead-letters.a.b.{target}")
    assert sender.send(everything[:10]) == Sent(10, 0)
    with pytest.raises(SendingInterruptedError, match="another sender has taken over"):
        replace(sender, before_step=upgraded).send(everything)
    assert committed(broker, target) == as_messages(everything)


def test_letters_are_told_apart_by_topic_id_partition_and_offset(broker: Broker, topic: TopicMaker) -> None:
    target = topic()
    places = [(t, p, o) for t in ("a", "b") for p in (0, 1) for o in (0, BUCKET - 1, BUCKET, 2**62)]
    each = [Letter(*place, None, b"x", ()) for place in places]
    assert outbox(broker, target).send(each[::2]) == Sent(8, 0)
    assert outbox(broker, target).send(each) == Sent(8, 8)
    assert outbox(broker, target).send(each) == Sent(0, 16)


def test_progress_of_earlier_releases_counts_in_each_partition(broker: Broker, topic: TopicMaker) -> None:
    target, cluster = topic(), Cluster.connect(client_settings(broker.bootstrap))
    progress = f"{target}{SUFFIX}"
    cluster.create_topic(progress, {"cleanup.policy": "compact"})
    broker.admin.create_partitions([NewPartitions(progress, 3)])[progress].result(30)
    wait_until("there are three partitions", lambda: len(cluster.topic(progress).partitions) == 3)
    one, two = (Letter("a", 0, offset, None, b"x", ()) for offset in (1, 2))
    assert outbox(broker, target).send([one]) == Sent(1, 0)
    key = json.dumps([cluster.topic(target).topic_id, "a", 0, 0]).encode()
    producer = Producer(librdkafka(broker.bootstrap))
    producer.produce(progress, (1 << 2).to_bytes(BUCKET // 8, "little"), key, 2)
    for foreign in (b"foreign", b"[" * 100_000, b'["a"]', key):
        producer.produce(progress, b"foreign", foreign, 1)
    producer.flush(30)
    assert outbox(broker, target).send([one, two]) == Sent(0, 2)


def test_a_letter_without_a_key_for_a_compacted_topic_is_refused(broker: Broker, topic: TopicMaker) -> None:
    target = topic(config={"cleanup.policy": "compact"})
    with pytest.raises(SendingRefusedError, match="takes no record without a key: name a topic that is not compacted"):
        outbox(broker, target).send([Letter("a", 0, 1, None, b"x", ())])
    assert outbox(broker, target).send([Letter("a", 0, 1, b"key", b"x", ())]) == Sent(1, 0)


def test_a_letter_too_large_for_the_topic_is_refused_and_goes_once_it_may(broker: Broker, topic: TopicMaker) -> None:
    from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

    target = topic(config={"max.message.bytes": "10000"})
    large = [Letter("a", 0, 1, None, b"small", ()), Letter("a", 0, 2, None, os.urandom(50_000), ())]
    with pytest.raises(SendingRefusedError, match=rf"Raise max\.message\.bytes of topic '{target}'"):
        outbox(broker, target).send(large)
    assert committed(broker, target) == []
    raised = ConfigResource(
        ResourceType.TOPIC,
        target,
        incremental_configs=[ConfigEntry("max.message.bytes", "100000", incremental_operation=AlterConfigOpType.SET)],
    )
    broker.admin.incremental_alter_configs([raised])[raised].result(30)
    assert outbox(broker, target).send(large) == Sent(2, 0)
    assert committed(broker, target) == as_messages(large)


def test_topics_that_are_not_fit_are_refused(broker: Broker, topic: TopicMaker) -> None:
    with pytest.raises(TopicMissingError):
        outbox(broker, "no-such-topic").send([])
    with pytest.raises(ConfigurationError, match="cannot be sent to the same topic"):
        outbox(broker, "source").send([])
    target = topic()
    Cluster.connect(client_settings(broker.bootstrap)).create_topic(target + SUFFIX, {"cleanup.policy": "delete"})
    with pytest.raises(ConfigurationError, match=r"its cleanup\.policy is 'delete'. Set it to compact"):
        outbox(broker, target).send([])
