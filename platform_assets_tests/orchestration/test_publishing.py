"""The position of a table as lag monitors read it from a real broker; loads run without Spark."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition

from platform_assets.kafka.cluster import Cluster
from platform_assets.kafka.settings import ClientSettings
from platform_assets.orchestration import publishing
from platform_assets.orchestration.publishing import Publisher
from platform_assets_tests.support import answers
from platform_assets_tests.support.streams import create_again
from testbed import samples
from testbed.clients import librdkafka
from testbed.loads import Record, TopicLake, wait_until

if TYPE_CHECKING:
    from platform_assets_tests.conftest import Broker, TopicMaker

pytestmark = pytest.mark.broker

LakeMaker = Callable[..., TopicLake]


@pytest.fixture
def lake(broker: Broker, topic: TopicMaker, tmp_path: Path) -> LakeMaker:
    """Function that makes a topic with its own lake, to which tests add rows without Spark."""

    def make(partitions: int = 2) -> TopicLake:
        return TopicLake(broker.bootstrap, topic(partitions=partitions), tmp_path / "lake", answers.nothing_answers)

    return make


@pytest.fixture(scope="module", autouse=True)
def coordinated(broker: Broker) -> None:
    """Wait until the broker has a group coordinator; a new broker has none yet."""

    def answers_for_groups() -> bool:
        try:
            committed(broker.bootstrap, "any", [TopicPartition("any", 0)])
        except KafkaException:
            return False
        return True

    wait_until("groups have a coordinator", answers_for_groups, 180)


@pytest.fixture(autouse=True)
def new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publishing, "_last", {})


class Clock:
    """A clock that a test advances."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def publisher(lk: TopicLake, clock: Clock | None = None) -> tuple[Publisher, list[str]]:
    """Return a publisher, and the list to which it adds its warnings."""
    warn: list[str] = []
    return Publisher(lk.declaration, lk.ledger, lk.cluster, warn.append, clock or Clock()), warn


def shown(lk: TopicLake) -> dict[int, int]:
    """Return the current offset of each partition, as `kafka-consumer-groups --describe` would show it."""
    asked = [TopicPartition(lk.topic, p) for p in lk.cluster.topic(lk.topic).partitions]
    found = committed(lk.bootstrap, f"platform-assets.raw/{lk.topic}", asked)
    return {t.partition: t.offset for t in found if t.offset >= 0}


def committed(bootstrap: str, group: str, asked: list[TopicPartition]) -> list[TopicPartition]:
    """Return the group's position as a consumer in the group reads it.

    A request by the admin client may end the process (librdkafka #5040).
    """
    consumer = Consumer({**librdkafka(bootstrap), "group.id": group, "log_level": 2})
    try:
        found: list[TopicPartition] = consumer.committed(asked, timeout=10)
        return found
    finally:
        consumer.close()


def sealed(lk: TopicLake, number: int) -> list[str]:
    """Seal windows, each with three records in partition 0 and two in partition 1; return their keys."""
    records = [Record(partition=p) for p in (0, 0, 0, 1, 1)]
    return [lk.window_of(records) for _ in range(number)]


def loaded(lk: TopicLake, key: str) -> None:
    window = lk.ledger.window(lk.topic, key)
    assert window is not None
    samples.loaded(lk.root, window)


def test_what_is_published_ends_the_gap_free_range_and_not_the_last_load(lake: LakeMaker) -> None:
    lk = lake()
    first, second, third, fourth = sealed(lk, 4)
    p, warn = publisher(lk)
    p.now()
    assert shown(lk) == {0: 0, 1: 0}
    for key in (first, second, fourth):
        loaded(lk, key)
    p.now()
    assert shown(lk) == {0: 6, 1: 4}
    loaded(lk, third)
    p.now()
    assert shown(lk) == {0: 12, 1: 8}
    assert warn == []


def test_a_run_of_many_windows_publishes_every_few_seconds(lake: LakeMaker) -> None:
    lk = lake()
    first, second, third = sealed(lk, 3)
    clock = Clock()
    p, _ = publisher(lk, clock)
    loaded(lk, first)
    p.after_commit()
    assert shown(lk) == {0: 3, 1: 2}
    loaded(lk, second)
    clock.seconds = 4
    p.after_commit()
    assert shown(lk) == {0: 3, 1: 2}
    loaded(lk, third)
    clock.seconds = 5
    p.after_commit()
    assert shown(lk) == {0: 9, 1: 6}


def test_the_sensor_publishes_what_is_new_and_renews_what_a_broker_might_forget(lake: LakeMaker) -> None:
    lk = lake()
    (key,) = sealed(lk, 1)
    loaded(lk, key)
    clock = Clock()
    p, _ = publisher(lk, clock)
    p.renew()
    assert shown(lk) == {0: 3, 1: 2}
    forgotten = {0: 1, 1: 1}
    publishing.commit(lk.cluster, lk.declaration.raw_table, lk.cluster.topic(lk.topic).topic_id, forgotten, 10)
    clock.seconds = 599
    p.renew()
    assert shown(lk) == forgotten
    clock.seconds = 600
    p.renew()
    assert shown(lk) == {0: 3, 1: 2}
    (key,) = sealed(lk, 1)
    loaded(lk, key)
    p.renew()
    assert shown(lk) == {0: 6, 1: 4}


def test_a_group_that_others_use_is_left_alone_and_said(lake: LakeMaker) -> None:
    lk = lake()
    sealed(lk, 1)
    p, warn = publisher(lk)
    group = publishing.group_of(lk.declaration.raw_table)
    member = Consumer({**librdkafka(lk.bootstrap), "group.id": group, "auto.offset.reset": "earliest"})
    assigned: list[object] = []
    member.subscribe([lk.topic], on_assign=lambda _, partitions: assigned.extend(partitions))
    while not assigned:
        member.poll(0.5)
    try:
        p.now()
    finally:
        member.close()
    (text,) = warn
    assert f"the position of raw/{lk.topic} was not published to consumer group {group}" in text
    assert "nothing else is affected" in text


def test_a_broker_that_does_not_answer_is_said_and_nothing_is_raised(
    lake: LakeMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publishing, "_BUDGET_SECONDS", 0.5)
    lk = lake()
    sealed(lk, 1)
    lk.cluster = Cluster.connect(ClientSettings("127.0.0.1:1"), timeout=0.5)
    p, warn = publisher(lk)
    p.now()
    p.renew()
    p.renew()
    assert len(warn) == 3
    assert all("no Kafka broker answered" in text for text in warn)


def test_nothing_is_published_where_that_is_switched_off_or_nothing_was_cut(lake: LakeMaker) -> None:
    lk = lake()
    lk.ledger.create()
    p, warn = publisher(lk)
    p.now()
    sealed(lk, 1)
    p = replace(p, declaration=replace(lk.declaration, publish_position=False))
    p.now()
    p.renew()
    assert shown(lk) == {}
    assert warn == []


def test_of_a_topic_that_was_created_again_nothing_is_published(lake: LakeMaker, broker: Broker) -> None:
    lk = lake(partitions=1)
    key = lk.window_of([Record()] * 3)
    loaded(lk, key)
    create_again(broker, lk.topic)
    p, warn = publisher(lk)
    p.now()
    assert shown(lk) == {}
    assert warn == []
