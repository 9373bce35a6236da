"""Asset keys and Dagster names that follow from a topic's name."""

from __future__ import annotations

import re
from hashlib import sha256

import dagster as dg

from platform_assets.model.declaration import TopicDeclaration
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


def sensor_name(topic: str, together: str | None = None) -> str:
    """The name of a topic's sensor, which is that of all topics that are `together` under one name."""
    return f"{identifier(topic)}_windows" if together is None else f"{together}_together_windows"


def together_job(name: str) -> str:
    """The job that loads windows of topics which are together under this name."""
    return f"{name}_together_load"


def together_op(name: str) -> str:
    """The op of that job whose config names the windows."""
    return f"{together_job(name)}_op"


def load_job(topic: str) -> str:
    """The job by which the topic's sensor has windows loaded that are partitions."""
    return f"{identifier(topic)}_load"


def assets_job(d: TopicDeclaration) -> str:
    """The same of any topic. Those that are together have one for each schedule, for what is not done by runs of many.

    A job a topic would be thousands, which take minutes to load; and a job has partitions of one kind.
    """
    if d.together is None:
        return load_job(d.topic)
    partitions = f"{d.schedule} from {d.first_edge.isoformat()}"
    return f"{d.together}_together_assets_{sha256(partitions.encode()).hexdigest()[:6]}"


def earlier_windows_job(topic: str) -> str:
    """The job by which it has all others loaded."""
    return f"{identifier(topic)}_earlier_windows"


def earlier_windows_op(topic: str) -> str:
    """The op of that job whose config names the windows."""
    return f"{earlier_windows_job(topic)}_load_op"
