"""Assignment of reads: ranges of offsets are cut into pieces, and pieces are divided among tasks. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from platform_assets.model.offsets import OffsetRange


@dataclass(frozen=True, slots=True, order=True)
class Piece:
    """Offsets `wanted` of one partition, for one task to read. Both ends may be inside a batch or a transaction."""

    partition: int
    wanted: OffsetRange


def shares(ranges: Mapping[int, Sequence[OffsetRange]], smallest: int, most: int) -> tuple[tuple[Piece, ...], ...]:
    """Divide the offsets of `ranges` (by partition, ascending and disjoint) into shares of equal size, one per task.

    Returns at most `most` shares, none with fewer than `smallest` offsets unless no others are left; pieces and shares are in
    order of partition and offset. A large partition is read by several tasks, and small ones share a task. Empty ranges are
    left out; without offsets, there are no shares.
    """
    if smallest < 1 or most < 1:
        raise ValueError(f"at most {most} shares of at least {smallest} offsets are impossible")
    line = [Piece(p, r) for p in sorted(ranges) for r in ranges[p] if r.size]
    total = sum(piece.wanted.size for piece in line)
    count = min(most, -(-total // smallest))
    found: list[list[Piece]] = [[] for _ in range(count)]
    passed = 0
    for piece in line:
        at = piece.wanted.start
        while at < piece.wanted.end:
            share = passed * count // total
            ends = -(-(share + 1) * total // count)  # the first position of the next share
            until = min(piece.wanted.end, at + ends - passed)
            found[share].append(Piece(piece.partition, OffsetRange(at, until)))
            passed += until - at
            at = until
    return tuple(tuple(share) for share in found)
