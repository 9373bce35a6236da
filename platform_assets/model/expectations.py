"""Expectations on values in decoded columns, and the figures of windows, as plain values. No I/O."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal, get_args

CODE_VERSION: Final = 1
"""Version of the rules that decide which rows fail.

A release that changes the rules raises this version, so that earlier figures no longer count.
"""
MOST_SAMPLES: Final = 3
"""Maximum number of failing rows to keep for each expectation and window."""

ExpectationKind = Literal["not_null", "in", "range", "pattern", "unique"]
"""not_null: the column has a value; in: the value is one of a set; range: the value lies between two bounds, both
inclusive; pattern: an RE2 expression matches the whole value; unique: no two rows of a window have the same values in
all of the columns."""
KINDS: Final[tuple[ExpectationKind, ...]] = get_args(ExpectationKind)
Severity = Literal["warn", "error"]
"""`error` blocks downstream assets; `warn` does not."""
SEVERITIES: Final[tuple[Severity, ...]] = get_args(Severity)
Value = str | int | float
"""A value from YAML. If YAML has no such type, as for decimals, the value is a string."""


@dataclass(frozen=True, slots=True)
class Expectation:
    """One expectation on the rows of a window. `name` is the name of the expectation's check.

    `columns` has one column, or several for `unique`. `values` are the allowed values for `in`. `least` and `most` are
    the inclusive bounds for `range`; either of them can be None. `pattern` is an RE2 expression. Tombstones are never
    checked, and nulls are checked only by `not_null`.
    """

    name: str
    kind: ExpectationKind
    columns: tuple[str, ...]
    severity: Severity = "warn"
    values: tuple[Value, ...] = ()
    least: Value | None = None
    most: Value | None = None
    pattern: str | None = None

    @property
    def digest(self) -> str:
        """Digest of everything that determines which rows fail. It does not depend on the name or the severity."""
        what = {
            "code": CODE_VERSION,
            "kind": self.kind,
            "columns": self.columns,
            "values": sorted(json.dumps(value) for value in self.values),
            "bounds": [self.least, self.most],
            "pattern": self.pattern,
        }
        return hashlib.sha256(json.dumps(what, separators=(",", ":")).encode()).hexdigest()[:16]

    def __str__(self) -> str:
        """Return a readable description of the expectation."""
        column = self.columns[0]
        if self.kind == "unique":
            return f"({', '.join(self.columns)}) is unique"
        if self.kind == "not_null":
            return f"{column} is not null"
        if self.kind == "in":
            return f"{column} is one of {', '.join(map(repr, self.values))}"
        if self.kind == "pattern":
            return f"{column} matches {self.pattern!r} as a whole"
        if self.least is None or self.most is None:
            return f"{column} ≤ {self.most}" if self.least is None else f"{column} ≥ {self.least}"
        return f"{self.least} ≤ {column} ≤ {self.most}"


@dataclass(frozen=True, slots=True)
class FailingRow:
    """The position of a failing row and its value, which is shortened and escaped for display. `value` is None for a
    null."""

    partition: int
    offset: int
    value: str | None


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures for one expectation: the number of checked `rows`, the number of `failing` rows among them, and the first
    few failing rows.

    For `unique`, a row fails if a row that was counted before it has the same key. Of all rows that share a key, all
    but one therefore fail. `samples` are in ascending order of partition and offset.
    """

    rows: int = 0
    failing: int = 0
    samples: tuple[FailingRow, ...] = ()

    def __add__(self, other: Figures) -> Figures:
        samples = sorted((*self.samples, *other.samples), key=lambda row: (row.partition, row.offset))[:MOST_SAMPLES]
        return Figures(self.rows + other.rows, self.failing + other.failing, tuple(samples))


FiguresByDigest = Mapping[str, Figures]
"""Maps the digest of each expectation to its figures for one window."""


def added(found: Iterable[FiguresByDigest]) -> dict[str, Figures]:
    """Return the combined figures for parts of one window."""
    whole: dict[str, Figures] = {}
    for part in found:
        for digest, figures in part.items():
            whole[digest] = whole.get(digest, Figures()) + figures
    return whole


def to_fields(figures: FiguresByDigest) -> dict[str, Any]:
    """Return the figures in the form that reports, commit metadata and the ledger use. `from_fields` reads this
    form."""
    return {
        digest: {
            "rows": of.rows,
            "failing": of.failing,
            **({"samples": [asdict(sample) for sample in of.samples]} if of.samples else {}),
        }
        for digest, of in sorted(figures.items())
    }


def from_fields(fields: Mapping[str, Any]) -> dict[str, Figures]:
    """Read figures from the form that `to_fields` returns."""
    return {
        digest: Figures(of["rows"], of["failing"], tuple(FailingRow(**sample) for sample in of.get("samples", ())))
        for digest, of in fields.items()
    }
