"""Arithmetic on the offsets that an erasure lists, by partition, and their forms in commands and decisions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import chain
from typing import Final

from platform_assets.ledger.entries import SealedWindow
from platform_assets.model.offsets import OffsetRange, common, merge, merge_named
from platform_assets.windows.erase.erasing import Ranges

_RANGE: Final = re.compile(r"([0-9]{1,9}):([0-9]{1,18})-([0-9]{1,18})")


def parsed_ranges(texts: Sequence[str]) -> dict[int, tuple[OffsetRange, ...]]:
    """Parse strings `PARTITION:START-END` with exclusive ends into offsets by partition. Raises a ValueError that
    describes the mistake."""
    found: list[list[int]] = []
    for text in texts:
        named = _RANGE.fullmatch(text)
        if named is None or int(named[2]) >= int(named[3]):
            raise ValueError(f"{text!r} is not PARTITION:START-END with START before END, such as 0:4711-4712")
        found.append([int(part) for part in named.groups()])
    return merge_named(found)


def within(wanted: Ranges, window: SealedWindow) -> dict[int, tuple[OffsetRange, ...]]:
    """Return the parts of `wanted` that are inside a window."""
    found = {
        p: common(parts, [window.ranges.by_partition[p]])
        for p, parts in wanted.items()
        if p in window.ranges.by_partition
    }
    return {p: parts for p, parts in found.items() if parts}


def joined(ranges: Ranges, named: Sequence[Sequence[int]]) -> dict[int, tuple[OffsetRange, ...]]:
    """Return `ranges` joined with those given as `[partition, start, end]`."""
    return merge_named(chain(((p, r.start, r.end) for p, parts in ranges.items() for r in parts), named))


def triples(ranges: Ranges) -> list[list[int]]:
    """Return plain JSON values, `[partition, start, end]`."""
    return [[p, r.start, r.end] for p, parts in sorted(ranges.items()) for r in merge(parts)]
