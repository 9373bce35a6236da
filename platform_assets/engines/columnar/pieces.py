"""What is read by whom: ranges of offsets cut into pieces, and pieces shared out among tasks. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from platform_assets.model.offsets import OffsetRange


@dataclass(frozen=True, slots=True, order=True)
class Piece:
    """Offsets `wanted` of one partition, to be read by one task. Both ends may lie inside a batch or a transaction."""

    partition: int
    wanted: OffsetRange


def shares(ranges: Mapping[int, Sequence[OffsetRange]], smallest: int, most: int) -> tuple[tuple[Piece, ...], ...]:
    """The offsets of `ranges` (by partition, ascending and apart) in shares of equal size, one a task.

    At most `most` shares, none of fewer than `smallest` offsets unless there are no more; a share's pieces are in order
    of partition and offset, and so are the shares. A partition is read by as many tasks as its size asks for, and small
    ones share a task. Empty ranges vanish; no offsets make no share.
    """
    if smallest < 1 or most < 1:
        raise ValueError(f"shares of {smallest} offsets, {most} at most, are impossible")
    line = [Piece(p, r) for p in sorted(ranges) for r in ranges[p] if r.size]
    total = sum(piece.wanted.size for piece in line)
    count = min(most, -(-total // smallest))
    found: list[list[Piece]] = [[] for _ in range(count)]
    passed = 0
    for piece in line:
        at = piece.wanted.start
        while at < piece.wanted.end:
            share = passed * count // total
            ends = -(-(share + 1) * total // count)  # the first place in the line that the next share has
            until = min(piece.wanted.end, at + ends - passed)
            found[share].append(Piece(piece.partition, OffsetRange(at, until)))
            passed += until - at
            at = until
    return tuple(tuple(share) for share in found)
