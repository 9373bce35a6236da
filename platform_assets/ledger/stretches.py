"""The ledger of cuts read by stretches of time, so that what one tick reads does not grow with the ledger."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from platform_assets.lake import delta_log
from platform_assets.lake.location import Folder
from platform_assets.ledger import newest_cuts
from platform_assets.ledger.entries import UTC_MICROS, SealedWindow, recorded_cuts, windows_between
from platform_assets.ledger.store import Ledger
from platform_assets.model.offsets import Cut

_FIRST: Final = timedelta(hours=1)
"""How long the first stretch is; each is four times as long as the one before, until it holds enough."""


def rows(path: Folder, condition: pc.Expression, columns: list[str] | None, partition: tuple[str, str]) -> pa.Table:
    """Rows of one partition of a ledger; what statistics rule out is not opened."""
    name, value = partition
    with path.reading():
        dataset = path.delta().to_pyarrow_dataset(file_pruning_predicate=[(name, "=", value)])
        return dataset.to_table(filter=condition, columns=columns)


def first_edge(ledger: Ledger, topic: str) -> datetime | None:
    """The oldest recorded edge of `topic`; by the statistics of files, so that no row is read."""
    cuts = ledger.lake.cuts
    known = newest_cuts.of(cuts)
    first = known.first(topic)
    if first is not None or not delta_log.exists(cuts):
        return first
    adds = pa.table(cuts.delta().get_add_actions(flatten=True))
    oldest = (
        pc.min(adds.filter(pc.equal(adds["partition.topic"], topic))["min.edge"]).as_py() if adds.num_rows else None
    )
    if oldest is None:
        return None
    edge: datetime = oldest.astimezone(UTC)
    known.keep_first(topic, edge)
    return edge


def first_cut(ledger: Ledger, topic: str, generation: int, before: datetime) -> tuple[datetime, Cut]:
    """The first edge of a generation, and its cut; `before` is the start of one of its windows."""
    if generation > 1:
        first = next(c for c in ledger.cuts(topic, end=before) if c.generation == generation)
    else:
        edge = first_edge(ledger, topic)
        first = ledger.cuts(topic, edge, edge)[0]
    return first.edge, first.cut


def next_edges(ledger: Ledger, topic: str, start: datetime, number: int) -> list[datetime]:
    """The first `number` recorded edges at `start` or later, ascending."""
    newest = ledger.newest_edges([topic]).get(topic)
    if newest is None or start > newest:
        return []
    span = _FIRST
    while True:
        end = min(start + span, newest)
        within = (pc.field("edge") >= pa.scalar(start, UTC_MICROS)) & (pc.field("edge") <= pa.scalar(end, UTC_MICROS))
        found = rows(ledger.lake.cuts, (pc.field("topic") == topic) & within, ["edge"], ("topic", topic))
        edges = pc.unique(found["edge"]).sort()
        if len(edges) >= number or end == newest:
            return [edge.astimezone(UTC) for edge in edges[:number].to_pylist()]
        span *= 4


def next_windows(ledger: Ledger, topic: str, start: datetime | None, limit: int) -> list[SealedWindow]:
    """The first `limit` sealed windows from the edge `start` on, ascending; from the first edge on without one."""
    start = start or first_edge(ledger, topic)
    edges = [] if start is None else next_edges(ledger, topic, start, limit + 1)
    if len(edges) < 2:
        return []
    within = (pc.field("edge") >= pa.scalar(edges[0], UTC_MICROS)) & (
        pc.field("edge") <= pa.scalar(edges[-1], UTC_MICROS)
    )
    return windows_between(
        recorded_cuts(rows(ledger.lake.cuts, (pc.field("topic") == topic) & within, None, ("topic", topic)))
    )
