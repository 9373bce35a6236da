"""Reading the ledger of cuts by time ranges, so that the reads of a tick do not grow with the ledger."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

import pyarrow.compute as pc

from platform_assets.ledger import known_files
from platform_assets.ledger.entries import SealedWindow, recorded_cuts, windows_between
from platform_assets.ledger.store import Ledger
from platform_assets.model.offsets import Cut

_FIRST: Final = timedelta(hours=1)
"""Length of the first range. Each further range is four times as long as the previous one, until there are enough
entries."""


def first_edge(ledger: Ledger, topic: str) -> datetime | None:
    """Return the oldest recorded edge of `topic`. It comes from file statistics, so no row is read."""
    return known_files.of_cuts(ledger.lake).first(topic)


def first_cut(ledger: Ledger, topic: str, generation: int, before: datetime) -> tuple[datetime, Cut]:
    """Return the first edge of a generation, and the cut at this edge; `before` is the start of a window in that
    generation."""
    if generation > 1:
        first = next(c for c in ledger.cuts(topic, end=before) if c.generation == generation)
    else:
        edge = first_edge(ledger, topic)
        first = ledger.cuts(topic, edge, edge)[0]
    return first.edge, first.cut


def next_edges(ledger: Ledger, topic: str, start: datetime, number: int) -> list[datetime]:
    """Return the first `number` recorded edges at `start` or later, in ascending order."""
    newest = ledger.newest_edges([topic]).get(topic)
    if newest is None or start > newest:
        return []
    span = _FIRST
    while True:
        end = min(start + span, newest)
        found = known_files.of_cuts(ledger.lake).rows(topic, ["edge"], start=start, end=end)
        edges = pc.unique(found["edge"]).sort()
        if len(edges) >= number or end == newest:
            return [edge.astimezone(UTC) for edge in edges[:number].to_pylist()]
        span *= 4


def next_windows(ledger: Ledger, topic: str, start: datetime | None, limit: int) -> list[SealedWindow]:
    """Return the first `limit` sealed windows from the edge `start` on, by default from the first edge on, in ascending
    order."""
    start = start or first_edge(ledger, topic)
    edges = [] if start is None else next_edges(ledger, topic, start, limit + 1)
    if len(edges) < 2:
        return []
    found = known_files.of_cuts(ledger.lake).rows(topic, start=edges[0], end=edges[-1])
    return windows_between(recorded_cuts(found))
