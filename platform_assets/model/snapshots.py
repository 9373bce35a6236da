"""Attempts of a connector to read a whole table of the database into its topic, and the rows that a complete one proves
deleted. Pure.

All rows of an attempt have the same position in the database's log. A connector that is killed during a snapshot starts
another attempt, with another position. A row of which the first attempt has a record, and which is deleted before the
second one, has no record that deletes it. But once the second attempt is complete, it has a record of every row, so a
key without a record since the attempt's first one has no row.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

Position = tuple[int, str, int, int]
"""Generation, window, partition and offset of a record. Positions compare as the order of a state does."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """The attempt whose records have the log position `lsn`, in one generation of the topic, as far as it is known.

    `first` is its first record, and `end` the first one that says that the table is complete; None if there is none yet.
    `elsewhere` is its first record in another partition than 0, if any.
    """

    generation: int
    lsn: int
    first: Position
    end: Position | None = None
    elsewhere: Position | None = None

    @property
    def is_complete(self) -> bool:
        """True if the keys of all records before `first` are known to be deleted. In several partitions, nothing tells
        which records come before it."""
        return self.end is not None and (self.elsewhere is None or self.elsewhere[1] > self.end[1])

    @property
    def windows(self) -> frozenset[str]:
        """The windows of the records that are named here."""
        return frozenset(each[1] for each in (self.first, self.end, self.elsewhere) if each is not None)

    def to_json(self) -> list[Any]:
        """Return the attempt as a list for JSON."""
        places = (self.first, self.end, self.elsewhere)
        return [self.generation, self.lsn, *(None if each is None else list(each) for each in places)]

    @classmethod
    def from_json(cls, fields: list[Any]) -> Attempt:
        """Return the attempt that `to_json` wrote."""
        generation, lsn, *places = fields
        first, end, elsewhere = (None if each is None else (each[0], each[1], each[2], each[3]) for each in places)
        if first is None:
            raise ValueError("an attempt has no first record")
        return cls(generation, lsn, first, end, elsewhere)


def merged(attempts: Iterable[Attempt]) -> tuple[Attempt, ...]:
    """Return one attempt for each generation and log position, in ascending order: the first of all records that are
    named for it."""
    found: dict[tuple[int, int], Attempt] = {}
    for each in attempts:
        known = found.get((each.generation, each.lsn), each)
        found[each.generation, each.lsn] = Attempt(
            each.generation,
            each.lsn,
            min(known.first, each.first),
            _first(known.end, each.end),
            _first(known.elsewhere, each.elsewhere),
        )
    return tuple(found[place] for place in sorted(found))


def swept_to(attempts: Iterable[Attempt]) -> Position | None:
    """Return the first record of the complete attempt that begins last: all keys whose last record comes before it are
    deleted. None if no attempt is complete."""
    return max((each.first for each in attempts if each.is_complete), default=None)


def _first(one: Position | None, other: Position | None) -> Position | None:
    return min((each for each in (one, other) if each is not None), default=None)
