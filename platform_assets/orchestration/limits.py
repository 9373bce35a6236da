"""How many windows a table may have: Dagster's pages hold a partition for each, and end answering beyond its limit."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from platform_assets.model.declaration import TopicDeclaration
from platform_assets.model.windows import count_edges

WINDOW_LIMIT: Final = 100_000
"""What Dagster recommends as the most partitions of an asset."""

NEAR: Final = 0.9


def windows_until(declaration: TopicDeclaration, now: datetime) -> int:
    """How many windows of the topic's schedule have begun between its first edge and `now`."""
    return count_edges(declaration.schedule, declaration.first_edge, now)


def refusal(declaration: TopicDeclaration, now: datetime) -> str | None:
    """Why a topic without cuts must not begin, and what to do; None where its windows are few enough."""
    number = windows_until(declaration, now)
    if number <= WINDOW_LIMIT:
        return None
    # Half of the limit leaves as many windows for the time to come.
    span = (now - declaration.first_edge) * (WINDOW_LIMIT / 2 / number)
    later = (now - span).astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    return (
        f"start: {number:,} windows from there to today, and Dagster's pages bear {WINDOW_LIMIT:,}. Take a later start, "
        f"such as {later:%Y-%m-%dT%H:%MZ} (older records are in the first window), or a longer `window`"
    )


def warning(declaration: TopicDeclaration, now: datetime) -> str | None:
    """What to say of a running table that nears the limit or is beyond it; None for any other."""
    number = windows_until(declaration, now)
    if number < NEAR * WINDOW_LIMIT:
        return None
    return (
        f"{number:,} windows since its start, and Dagster's pages get slow beyond {WINDOW_LIMIT:,}: loading goes on; "
        "a longer `window` lets them grow more slowly"
    )
