"""Names that Kafka accepts, and names that must never become a path or part of an SQL statement."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from platform_assets.errors import ConfigurationError, TopicNameError
from platform_assets.model.names import checked_topic

if TYPE_CHECKING:
    from platform_assets_tests.conftest import Broker

LEGAL = ("a", "A.b_c-9", "x" * 249, "...", "-", "__consumer_offsets", "..a")
ILLEGAL = ("", ".", "..", "x" * 250, "a/b", "../a", "a b", "a\n", "a\0", "ä", "a'b", "a%2e", "a\\b", "٣", "a:b")


@pytest.mark.parametrize("name", LEGAL)
def test_a_legal_name_passes_unchanged(name: str) -> None:
    assert checked_topic(name) == name


@pytest.mark.parametrize("name", ILLEGAL)
def test_an_illegal_name_is_refused_and_named(name: str) -> None:
    with pytest.raises(TopicNameError) as caught:
        checked_topic(name)
    assert caught.value.topic == name
    assert repr(name) in str(caught.value)
    assert isinstance(caught.value, ConfigurationError)


@pytest.mark.broker
def test_the_broker_agrees(broker: Broker) -> None:
    """The broker only validates names and creates no topics. NUL is omitted, because it would end the C string before
    the name is sent."""
    from confluent_kafka import KafkaError, KafkaException
    from confluent_kafka.admin import NewTopic

    def codes(names: tuple[str, ...]) -> dict[str, int]:
        asked = [NewTopic(n, num_partitions=1, replication_factor=1) for n in names]
        found: dict[str, int] = {}
        for name, future in broker.admin.create_topics(asked, validate_only=True).items():
            try:
                future.result(30)
            except KafkaException as e:
                found[name] = e.args[0].code()
            else:
                found[name] = KafkaError.NO_ERROR
        return found

    legal = tuple(n for n in LEGAL if not n.startswith("__"))
    assert codes(legal) == dict.fromkeys(legal, KafkaError.NO_ERROR)
    illegal = tuple(n for n in ILLEGAL if n and "\0" not in n)
    assert codes(illegal) == dict.fromkeys(illegal, KafkaError.TOPIC_EXCEPTION)
