"""Evidence in a form that a test can compare with its own list of offsets."""

from __future__ import annotations

from collections.abc import Mapping

from platform_assets.kafka.evidence.partition import OFFSET_KINDS, PartitionEvidence
from platform_assets.model.offsets import ranges_of

Kinds = dict[str, list[tuple[int, int]]]
"""For each kind of offset, ascending `(start, end)` ranges, in which the end is exclusive. Kinds that do not occur are
left out."""


def by_kind(found: PartitionEvidence) -> Kinds:
    """Return the entries of the evidence."""
    return {kind: [(r.start, r.end) for r in found.of(kind).listed] for kind in OFFSET_KINDS if found.of(kind).offsets}


def ranged(kinds: Mapping[int, str]) -> Kinds:
    """Return the offsets in `kinds` as ranges, by kind."""
    found = {kind: ranges_of(o for o, k in kinds.items() if k == kind) for kind in OFFSET_KINDS}
    return {kind: [(r.start, r.end) for r in ranges] for kind, ranges in found.items() if ranges}
