"""Rows of a table next to the same rows, computed from a source file by other means."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Comparison:
    """Rows next to the expected ones.

    Attributes:
        name: name of the table or topic.
        rows: number of rows in it.
        expected: number of rows computed from the source file.
        different: number of rows that only one of the two has.
        figures: figures to print, such as a total.
    """

    name: str
    rows: int
    expected: int
    different: int
    figures: str = ""

    @property
    def is_equal(self) -> bool:
        """True if both have the same rows."""
        return self.different == 0 and self.rows == self.expected

    def __str__(self) -> str:
        if not self.is_equal:
            return f"{self.name}: {self.different:,} rows differ; {self.rows:,} found, {self.expected:,} expected"
        return f"{self.name}: {self.rows:,} rows equal those computed from the source file{self.figures and f': {self.figures}'}"


def rows_compared(
    name: str, rows: Iterable[tuple[Any, ...]], expected: Iterable[tuple[Any, ...]], figures: str = ""
) -> Comparison:
    """Compare rows with the expected rows, in any order."""
    found, wanted = Counter(rows), Counter(expected)
    different = (found - wanted).total() + (wanted - found).total()
    return Comparison(name, found.total(), wanted.total(), different, figures)
