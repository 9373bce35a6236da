"""Asset keys and Dagster names that follow from a topic's name."""

from __future__ import annotations

import re
from hashlib import sha256

import dagster as dg

from platform_assets.model.tables import TableRef


def topic_key(topic: str) -> dg.AssetKey:
    """Key of the external source asset."""
    return dg.AssetKey(["kafka", topic])


def table_key(table: TableRef) -> dg.AssetKey:
    """Key of a lake table."""
    return dg.AssetKey(list(table.parts))


def identifier(topic: str) -> str:
    """A Dagster name for `topic`, which may hold dots and dashes that Dagster's names may not.

    Different topics get different names: `a.b` and `a_b` do not collide.
    """
    if re.fullmatch(r"[A-Za-z0-9_]+", topic):
        return topic
    return f"{re.sub(r'[^A-Za-z0-9_]', '_', topic)}_{sha256(topic.encode()).hexdigest()[:6]}"


def sensor_name(topic: str) -> str:
    """The name of a topic's sensor."""
    return f"{identifier(topic)}_windows"
