"""Findings: what a check has to say, each with the window, the partition, the offsets and what to do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from platform_assets.model.offsets import OffsetRange
from platform_assets.model.tables import TableRef

Kind = Literal[
    "cuts do not tile",
    "window not loaded",
    "window not asked for",
    "receipt contradicts cuts",
    "rows missing",
    "rows outside the window",
    "unknown window",
    "duplicate in a window",
    "duplicate across windows",
    "files lost",
    "altered value",
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
]

_NOT_ALARMING: frozenset[Kind] = frozenset({"window not asked for", "could not tell"})


@dataclass(frozen=True, slots=True)
class Finding:
    """One anomaly: `ranges` of offsets (end exclusive) in `partition` of `topic`, in `window`, and the remedy."""

    kind: Kind
    topic: str
    window: str
    partition: int | None
    ranges: tuple[OffsetRange, ...]
    detail: str
    remedy: str

    @property
    def alarming(self) -> bool:
        """Whether something is wrong, rather than not done or not known yet."""
        return self.kind not in _NOT_ALARMING

    @property
    def offsets(self) -> int:
        """Number of offsets concerned."""
        return sum(r.size for r in self.ranges)

    def sentence(self, limit: int = 3) -> str:
        """What was found and where, in one line, at most `limit` ranges of it."""
        where = f"window {self.window}"
        if self.partition is not None:
            where += f" partition {self.partition}"
        if self.ranges:
            where += " offsets " + ranges_short(self.ranges, limit)
        return f"{self.kind[0].upper()}{self.kind[1:]}: {where}: {self.detail.rstrip('.')}."


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of one check of one table.

    `headline` is a short sentence: what was found is told by the findings. `figures` are plotted over time.
    """

    check: str
    table: TableRef
    findings: tuple[Finding, ...]
    headline: str
    figures: tuple[tuple[str, int], ...]

    @property
    def passed(self) -> bool:
        """Whether nothing was found."""
        return not self.findings

    @property
    def alarming(self) -> bool:
        """Whether any finding says that something is wrong, rather than not done or not known yet."""
        return any(f.alarming for f in self.findings)

    @property
    def undecided(self) -> bool:
        """Whether nothing was found to be wrong, and something could not be found out."""
        return not self.alarming and any(f.kind == "could not tell" for f in self.findings)


def ranges_short(ranges: Sequence[OffsetRange], limit: int = 5) -> str:
    """`ranges` in text, those beyond `limit` counted."""
    text = ", ".join(str(r) for r in ranges[:limit])
    return text + (f" and {len(ranges) - limit} more ranges" if len(ranges) > limit else "")


def runs_of(offsets: npt.NDArray[np.int64]) -> tuple[OffsetRange, ...]:
    """The ranges that hold just these sorted, distinct offsets."""
    if not len(offsets):
        return ()
    breaks = np.flatnonzero(np.diff(offsets) != 1) + 1
    starts = offsets[np.concatenate(([0], breaks))]
    ends = offsets[np.concatenate((breaks - 1, [len(offsets) - 1]))] + 1
    return tuple(OffsetRange(int(a), int(b)) for a, b in zip(starts, ends, strict=True))


def counted(number: int, noun: str) -> str:
    """`1 window`, `2,000 windows`."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")
