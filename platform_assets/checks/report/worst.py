"""Findings in the order in which readers want to see them: grouped by window, the most severe first, each with its
remedy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from platform_assets.checks.findings import Finding, FindingKind, counted
from platform_assets.checks.report.heatmap import State, state_of
from platform_assets.model.offsets import OffsetRange, text_of

_RANGES: Final = 3
_PLACES: Final = 3
_PARTITIONS: Final = 8
_LONGEST: Final = 200
_VIEWS: Final[frozenset[FindingKind]] = frozenset({"orchestrator behind", "orchestrator ahead"})
"""Kinds of findings that are about what Dagster displays. Findings about the table and the ledger are more severe."""


@dataclass(frozen=True, slots=True)
class WorstWindow:
    """All findings of one kind in one window, ordered by partition."""

    window: str
    kind: FindingKind
    findings: tuple[Finding, ...]

    @property
    def state(self) -> State:
        """Severity of the findings."""
        return state_of(self.kind)

    @property
    def offsets(self) -> int:
        """Number of offsets that the findings list."""
        return sum(f.offsets for f in self.findings)

    @property
    def where(self) -> str:
        """Partitions and offsets in short form; the ends of ranges are exclusive."""
        partitions: dict[tuple[OffsetRange, ...], list[int]] = {}
        for f in self.findings:
            partitions.setdefault(f.ranges, []).extend(() if f.partition is None else (f.partition,))
        named = [_place(members, ranges) for ranges, members in partitions.items()]
        left = len(named) - _PLACES
        return "; ".join(named[:_PLACES]) + (f"; {left} more" if left > 0 else "")

    @property
    def found(self) -> str:
        """Detail of the first finding, and the number of further findings."""
        left = len(self.findings) - 1
        return shortened(f"{self.kind}: {self.findings[0].detail}", _LONGEST) + (
            f" (and {left} more like it)" if left else ""
        )


@dataclass(frozen=True, slots=True)
class Remedy:
    """A remedy, and the windows to which it applies."""

    text: str
    windows: tuple[str, ...]

    def __str__(self) -> str:
        left = len(self.windows) - 1
        return self.text + (f" This also applies to {counted(left, 'more window')}, listed below." if left else "")


def worst_windows(findings: Iterable[Finding]) -> list[WorstWindow]:
    """Group findings by window and kind, and sort the groups by severity. Groups of equal severity are sorted by the
    number of offsets, then the newest first, except that faults that only affect Dagster's display come last."""
    grouped: dict[tuple[str, FindingKind], list[Finding]] = {}
    for finding in findings:
        grouped.setdefault((finding.window, finding.kind), []).append(finding)
    windows = [
        WorstWindow(key, kind, tuple(sorted(members, key=lambda f: -1 if f.partition is None else f.partition)))
        for (key, kind), members in grouped.items()
    ]
    newest_first = sorted(windows, key=lambda w: w.window, reverse=True)
    return sorted(newest_first, key=lambda w: (-w.state, w.kind in _VIEWS, -w.offsets))


def remedies(worst: Sequence[WorstWindow]) -> list[Remedy]:
    """Return each remedy once, for the most severe findings first. The wording is the one for the worst window that
    needs the remedy."""
    # Windows of one kind differ in nothing but their names.
    alike: dict[str, list[WorstWindow]] = {}
    for window in worst:
        text = window.findings[0].remedy
        alike.setdefault(text.replace(window.window, "…") if window.window else text, []).append(window)
    return [
        Remedy(members[0].findings[0].remedy, tuple(dict.fromkeys(m.window for m in members)))
        for members in alike.values()
    ]


def shortened(text: str, longest: int) -> str:
    """Return `text`, truncated to `longest` characters."""
    return text if len(text) <= longest else text[: longest - 1].rstrip() + "…"


def _place(partitions: Sequence[int], ranges: Sequence[OffsetRange]) -> str:
    left = len(partitions) - _PARTITIONS
    named = ", ".join(f"p{p}" for p in partitions[:_PARTITIONS]) + (f" and {left} more" if left > 0 else "")
    return f"{named} {text_of(ranges, _RANGES)}".strip()
