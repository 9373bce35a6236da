"""Findings of checks, each with its window, partition, offsets and remedy."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final, Literal

from platform_assets.model.derived import DerivedRef
from platform_assets.model.offsets import OffsetRange, size_of, text_of
from platform_assets.model.tables import StateRef, TableRef

FindingKind = Literal[
    "cuts do not tile",
    "window not loaded",
    "window not asked for",
    "window parked",
    "receipt contradicts cuts",
    "rows missing",
    "rows outside the window",
    "unknown window",
    "duplicate in a window",
    "duplicate across windows",
    "files lost",
    "altered value",
    "engines disagree",
    "record not in the table",
    "row without a record",
    "unexplained offsets",
    "offsets not accounted for",
    "ledger edited",
    "could not tell",
    "ledger behind",
    "ledger ahead",
    "orchestrator behind",
    "orchestrator ahead",
    "not conserved",
    "decoded by half",
    "window not decoded",
    "decoded otherwise",
]

_NAMED: Final = 3
_NOT_ALARMING: frozenset[FindingKind] = frozenset({"window not asked for", "window parked", "could not tell"})


@dataclass(frozen=True, slots=True)
class Finding:
    """One anomaly: the affected `ranges` of offsets (end exclusive) in a `partition` and a `window` of `topic`, and the
    remedy."""

    kind: FindingKind
    topic: str
    window: str
    partition: int | None
    ranges: tuple[OffsetRange, ...]
    detail: str
    remedy: str

    @property
    def alarming(self) -> bool:
        """True if something is wrong. Work that is not done yet and facts that are unknown do not count."""
        return self.kind not in _NOT_ALARMING

    @property
    def offsets(self) -> int:
        """Number of offsets that the finding lists."""
        return size_of(self.ranges)

    def sentence(self, limit: int = 3) -> str:
        """Describe the finding and its location in one line, with at most `limit` ranges."""
        where = f"window {self.window}" if self.window else "no window"
        if self.partition is not None:
            where += f" partition {self.partition}"
        if self.ranges:
            where += " offsets " + text_of(self.ranges, limit)
        return f"{self.kind[0].upper()}{self.kind[1:]}: {where}: {self.detail.rstrip('.')}."


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The outcome of one check of one table.

    `headline` is a short sentence; details are in the findings. `figures` are numbers that are plotted over time.
    """

    check: str
    table: TableRef | StateRef | DerivedRef
    findings: tuple[Finding, ...]
    headline: str
    figures: tuple[tuple[str, int], ...]

    @property
    def passed(self) -> bool:
        """True if there are no findings."""
        return not self.findings

    @property
    def alarming(self) -> bool:
        """True if any finding says that something is wrong. Work that is not done yet and facts that are unknown do not
        count."""
        return any(f.alarming for f in self.findings)

    @property
    def undecided(self) -> bool:
        """True if nothing is wrong, but something could not be determined."""
        return not self.alarming and any(f.kind == "could not tell" for f in self.findings)


def foreign_ids(topic_id: str, found: Collection[str | None]) -> str | None:
    """Describe the topic ids in a window's rows that differ from the topic id of the load; return None if no topic id
    differs."""
    foreign = sorted("no topic id" if name is None else f"topic id {name[:30]!r}" for name in set(found) - {topic_id})
    if not foreign:
        return None
    more = f" and {len(foreign) - _NAMED:,} more" if len(foreign) > _NAMED else ""
    return f"there are rows with {', '.join(foreign[:_NAMED])}{more} instead of topic id {topic_id!r}"


def of_another_writer(window: str, table: TableRef | None = None) -> str:
    """Return the remedy for rows whose window was never sealed. If `window` is '', return the remedy for rows without a
    window."""
    where = f"with window = '{window}'" if window else "whose `window` is null"
    return f"Another writer added these rows. Delete the rows {'' if table is None else f'of {table} '}{where}."


def counted(number: int, noun: str) -> str:
    """Return the number and the noun, in the plural if needed: `1 window`, `2,000 windows`."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")
