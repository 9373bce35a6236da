"""The right that a broker's refusal is about, as Kafka's own tools and the guide name it."""

from __future__ import annotations

from typing import Final

from confluent_kafka import KafkaError

INCLUDED: Final = "`Describe` (included in `Read` and `Write`)"
"""The right to see a topic at all."""


def needed(code: int, topic: str, on_topic: str = "`Read`", group: str = "") -> str:
    """The right that answers `code`; empty if the code is not about rights.

    `on_topic` is the right that the request needs on `topic`, and `group` the group that it names.
    """
    rights = {
        KafkaError.TOPIC_AUTHORIZATION_FAILED: f"{on_topic} on topic {topic!r}",
        KafkaError.GROUP_AUTHORIZATION_FAILED: f"`Read` on consumer group {group!r}",
        KafkaError.CLUSTER_AUTHORIZATION_FAILED: "`Describe` on the cluster",
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "`Describe` on the transactional id",
    }
    return rights.get(code, "")
