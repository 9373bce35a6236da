"""Kafka's own rule for topic names, kept before a name becomes a path, a SQL text or an asset key."""

from __future__ import annotations

import re

from platform_assets.errors import TopicNameError

_LEGAL = re.compile(r"[a-zA-Z0-9._-]{1,249}")


def checked_topic(name: str) -> str:
    """Return `name` if Kafka allows it, else raise TopicNameError.

    The rule is that of Kafka's `org.apache.kafka.common.internals.Topic`: 1 to 249 of `[a-zA-Z0-9._-]`, and neither
    "." nor "..". Such a name needs no escaping in a path.
    """
    if not _LEGAL.fullmatch(name) or name in {".", ".."}:
        raise TopicNameError(name)
    return name
