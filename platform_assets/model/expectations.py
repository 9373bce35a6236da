"""Expectations on values of decoded columns, and the figures of windows: plain values. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal, get_args

CODE_VERSION: Final = 1
"""Version of the rules for failing rows.

A release that changes the rules raises it, so that earlier figures do not count.
"""
MOST_SAMPLES: Final = 3
"""Maximum number of failing rows kept per expectation and window."""

ExpectationKind = Literal["not_null", "in", "range", "pattern", "unique"]
"""not_null: the column has a value; in: the value is one of a set; range: it lies between two bounds, both inclusive;
pattern: an RE2 expression matches the whole value; unique: no two rows of a window have the same values in all of the
columns.
"""
KINDS: Final[tuple[ExpectationKind, ...]] = get_args(ExpectationKind)
Severity = Literal["warn", "error"]
"""error blocks downstream assets, warn does not."""
SEVERITIES: Final[tuple[Severity, ...]] = get_args(Severity)
Value = str | int | float
"""A value from YAML; for types that YAML lacks, such as decimals, the text."""


@dataclass(frozen=True, slots=True)
class Expectation:
    """One expectation of the rows of a window: `name` is that of its check.

    `columns` is one column, or several for `unique`. `values` belong to `in`; `least` and `most` are the inclusive
    bounds of `range`, one of which may be None; `pattern` is an RE2 expression. Tombstones are never checked, and nulls
    only by `not_null`.
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
        """Digest of everything that determines which rows fail; name and severity do not count."""
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
        """Describe the expectation for people."""
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
    """A failing row: its place, and the value for people, shortened and escaped; None if it is null."""

    partition: int
    offset: int
    value: str | None


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures of one expectation: `failing` of the checked `rows`, and the first few failing rows.

    For `unique`, rows count as failing if a row counted before has the same key: all rows of a key but one. `samples`
    ascend by partition and offset.
    """

    rows: int = 0
    failing: int = 0
    samples: tuple[FailingRow, ...] = ()

    def __add__(self, other: Figures) -> Figures:
        samples = sorted((*self.samples, *other.samples), key=lambda row: (row.partition, row.offset))[:MOST_SAMPLES]
        return Figures(self.rows + other.rows, self.failing + other.failing, tuple(samples))


FiguresByDigest = Mapping[str, Figures]
"""The figures of one window, by the digests of its expectations."""


def added(found: Iterable[FiguresByDigest]) -> dict[str, Figures]:
    """Return the combined figures of parts of one window."""
    whole: dict[str, Figures] = {}
    for part in found:
        for digest, figures in part.items():
            whole[digest] = whole.get(digest, Figures()) + figures
    return whole


def to_fields(figures: FiguresByDigest) -> dict[str, Any]:
    """Return them in the form of reports, commit metadata and the ledger; `from_fields` reads them back."""
    return {
        digest: {
            "rows": of.rows,
            "failing": of.failing,
            **({"samples": [asdict(sample) for sample in of.samples]} if of.samples else {}),
        }
        for digest, of in sorted(figures.items())
    }


def from_fields(fields: Mapping[str, Any]) -> dict[str, Figures]:
    """Read figures back from `to_fields`."""
    return {
        digest: Figures(of["rows"], of["failing"], tuple(FailingRow(**sample) for sample in of.get("samples", ())))
        for digest, of in fields.items()
    }
