"""Records of published topics without a header that identifies them: which rows they are, by the offsets that the
progress names.

The records of a window in a partition are in the order of the rows that were dealt to that partition. So each record
is matched with a row by its place in that order, and its content decides whether it is that row.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappush, heapreplace
from zlib import crc32

import numpy as np
import numpy.typing as npt

from platform_assets.checks.published_values import Sampled
from platform_assets.windows.publish.progress import Position, Progress

Place = tuple[int, int]
"""Partition and offset of the published topic."""


class Spans:
    """The windows of all offsets that the progress names."""

    def __init__(self, known: Mapping[str, Progress]) -> None:
        found: dict[int, list[tuple[int, int, str]]] = {}
        for key, state in known.items():
            for span in state.spans:
                found.setdefault(span.partition, []).append((span.start, span.end, key))
        self._spans = {partition: sorted(each) for partition, each in found.items()}
        self._starts = {partition: [start for start, _, _ in each] for partition, each in self._spans.items()}

    def window(self, partition: int, offset: int) -> str | None:
        """Return the key of the window with a row at this offset; None if there is none."""
        at = bisect_right(self._starts.get(partition, ()), offset) - 1
        if at < 0:
            return None
        start, end, key = self._spans[partition][at]
        return key if start <= offset < end else None


@dataclass
class Unnamed:
    """Records of one window that no header identifies: their offsets and content hashes by partition, and a sample."""

    parts: dict[int, tuple[array[int], array[int]]] = field(default_factory=dict)
    sample: dict[Place, Sampled] = field(default_factory=dict)
    _chosen: list[tuple[int, Place]] = field(default_factory=list)

    def add(self, place: Place, value: int, record: Sampled, most: int) -> None:
        """Keep the hash of a record, and the whole record if it is one of `most` with the lowest checksums."""
        offsets, values = self.parts.setdefault(place[0], (array("q"), array("q")))
        offsets.append(place[1])
        values.append(value)
        order = crc32(b"%d:%d" % place)
        if len(self._chosen) < most:
            heappush(self._chosen, (-order, place))
        elif order < -self._chosen[0][0]:
            del self.sample[heapreplace(self._chosen, (-order, place))[1]]
        else:
            return
        self.sample[place] = record

    def __len__(self) -> int:
        return sum(len(offsets) for offsets, _ in self.parts.values())


@dataclass
class Matched:
    """The content hash of the record of each row, by the row's position, and the sampled records. `surplus` are the
    places of records that match no row."""

    held: dict[Position, int] = field(default_factory=dict)
    sample: dict[Position, Sampled] = field(default_factory=dict)
    surplus: list[Place] = field(default_factory=list)


def match(
    unnamed: Unnamed,
    state: Progress,
    rows: Sequence[Position],
    hashes: Sequence[int],
    partitions: npt.NDArray[np.int32],
) -> Matched:
    """Match the records of a window with its rows, which are in order, with the hashes of their content and the
    partitions to which they were dealt."""
    found = Matched()
    spans = {span.partition for span in state.spans}
    for partition in sorted({*unnamed.parts, *spans, *np.unique(partitions).tolist()}):
        offsets, values = unnamed.parts.get(partition, (array("q"), array("q")))
        mine = np.flatnonzero(partitions == partition).tolist()
        pairs = _pairs(values, [hashes[n] for n in mine])
        taken = bytearray(len(values))
        for at, n in pairs:
            taken[at] = 1
            found.held[rows[mine[n]]] = values[at]
            if (record := unnamed.sample.get((partition, offsets[at]))) is not None:
                found.sample[rows[mine[n]]] = record
        found.surplus += [(partition, offset) for offset, each in zip(offsets, taken, strict=True) if not each]
    return found


def _pairs(values: Sequence[int], wanted: Sequence[int]) -> list[tuple[int, int]]:
    """Return which values belong to which wanted ones, by their indexes, in order of both.

    If there are as many values as wanted ones, they belong to them in order, also if some differ. Otherwise equal ones
    are matched: the shorter sequence is part of the longer one if nothing is wrong.
    """
    if len(values) == len(wanted):
        return [(n, n) for n in range(len(values))]
    if len(values) < len(wanted):
        # From the end, because Kafka deletes from the start.
        last = len(values) - 1, len(wanted) - 1
        pairs = _in_order(values[::-1], wanted[::-1])
        return [(last[0] - at, last[1] - n) for at, n in reversed(pairs)]
    return [(at, n) for n, at in _in_order(wanted, values)]


def _in_order(shorter: Sequence[int], longer: Sequence[int]) -> list[tuple[int, int]]:
    """Return, for each member of a sequence, the next equal member of a longer one, if there is one."""
    places: dict[int, list[int]] = {}
    for n, each in enumerate(longer):
        places.setdefault(each, []).append(n)
    found: list[tuple[int, int]] = []
    start = 0
    for n, each in enumerate(shorter):
        candidates = places.get(each, [])
        at = bisect_left(candidates, start)
        if at < len(candidates):
            found.append((n, candidates[at]))
            start = candidates[at] + 1
    return found


def dealt_to(state: Progress, choices: Mapping[int, npt.NDArray[np.int32]]) -> npt.NDArray[np.int32]:
    """Return the partition of each row of a window's load. `choices` are the partitions of all rows, by the number of
    partitions among which they are dealt; `state` names the numbers."""
    (_, number), *later = state.dealt
    found = choices[number].copy()
    for first, number in later:
        found[first:] = choices[number][first:]
    return found
