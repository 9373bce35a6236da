"""Finding the right whose absence made a broker refuse a request. Rights have the names that Kafka's tools and the
guide use."""

from __future__ import annotations

from typing import Final

from confluent_kafka import KafkaError

INCLUDED: Final = "`Describe` (included in `Read` and `Write`)"
"""Right to see that a topic exists."""


def needed(code: int, topic: str, on_topic: str = "`Read`", group: str = "") -> str:
    """Return the right that is missing according to `code`; empty if `code` does not concern rights.

    `on_topic` is the right that the request needs on `topic`, and `group` is the group in the request.
    """
    rights = {
        KafkaError.TOPIC_AUTHORIZATION_FAILED: f"{on_topic} on topic {topic!r}",
        KafkaError.GROUP_AUTHORIZATION_FAILED: f"`Read` on consumer group {group!r}",
        KafkaError.CLUSTER_AUTHORIZATION_FAILED: "`Describe` on the cluster",
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "`Describe` on the transactional id",
    }
    return rights.get(code, "")
