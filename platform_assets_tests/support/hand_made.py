"""Hand-made facts about an undamaged table and about tables with a single defect."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from platform_assets.checks.facts import Facts, Recorded
from platform_assets.lake.holdings import WindowFiles
from platform_assets.model.offsets import HeldOffsets, OffsetRange, TopicRanges
from platform_assets.model.tables import TableRef

A, B, C, D = "2026-01-01-00:00", "2026-01-01-01:00", "2026-01-01-02:00", "2026-01-01-03:00"
UNKNOWN = "2025-12-31-00:00"
EMPTY = C

RANGES = {
    A: TopicRanges({0: OffsetRange(5, 15), 1: OffsetRange(0, 4)}),
    B: TopicRanges({0: OffsetRange(15, 25), 1: OffsetRange(4, 4)}),
    C: TopicRanges({0: OffsetRange(25, 25), 1: OffsetRange(4, 4)}),
    D: TopicRanges({0: OffsetRange(25, 30), 1: OffsetRange(4, 10), 2: OffsetRange(0, 3)}),
}
HOLES = {B: {0: {17, 24}}}
"""Offsets that have no row, by window and partition."""


def offsets(key: str, partition: int) -> list[int]:
    """Return the offsets that the load of a window put into the table."""
    r = RANGES[key].by_partition[partition]
    return [o for o in range(r.start, r.end) if o not in HOLES.get(key, {}).get(partition, set())]


def recorded(key: str) -> Recorded:
    """Return the receipt of a successful load."""
    rows = {p: offsets(key, p) for p in RANGES[key].by_partition}
    return Recorded(
        key=key,
        ranges=RANGES[key],
        rows={p: len(o) for p, o in rows.items()},
        bounds={p: OffsetRange(o[0], o[-1] + 1) for p, o in rows.items() if o},
        offsets_digest=0,
        files_digest=f"files of {key}",
        table_version=1,
        run_id="run",
        duplicates=0,
        holes=None,
        proved_by=None,
    )


def sound(**changes: Any) -> Facts:
    """Return facts about four loaded windows in three partitions. The second window has holes, and the third has no
    offsets."""
    facts = Facts(
        table=TableRef.raw("t"),
        windows=RANGES,
        recorded={k: recorded(k) for k in RANGES},
        files={k: WindowFiles((k,), 100, recorded(k).total_rows, f"files of {k}") for k in RANGES if k != EMPTY},
        waiting=frozenset(),
        unasked=frozenset(),
        changed={},
    )
    return replace(facts, **changes)


def changed(*more: tuple[str, Mapping[int, list[int]]]) -> dict[str, dict[int, HeldOffsets]]:
    """Return windows that were read because their files changed. For each window, there are the offsets that were
    found, by partition."""
    return {k: {p: HeldOffsets.of(np.array(sorted(o), dtype=np.int64)) for p, o in found.items()} for k, found in more}


def rows_of(key: str, **changes: list[int]) -> dict[int, list[int]]:
    """Return the rows that a window has after its load, but with other offsets in the given partitions: `rows_of(A,
    p0=[5, 6])`."""
    found = {p: offsets(key, p) for p in RANGES[key].by_partition if offsets(key, p)}
    return {**found, **{int(name[1:]): some for name, some in changes.items()}}
