"""Findings put into the order in which a reader wants them: by window, the gravest first, and what to do about each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from platform_assets.checks.findings import Finding, Kind, counted, ranges_short
from platform_assets.checks.strip import State, state_of

_RANGES = 3
_PARTITIONS = 3


@dataclass(frozen=True, slots=True)
class WorstWindow:
    """All findings of one kind in one window, in order of partition."""

    window: str
    kind: Kind
    findings: tuple[Finding, ...]

    @property
    def state(self) -> State:
        """How grave it is."""
        return state_of(self.kind)

    @property
    def offsets(self) -> int:
        """Number of offsets concerned, as far as they are named."""
        return sum(f.offsets for f in self.findings)

    @property
    def where(self) -> str:
        """Partitions and offsets, the ends exclusive, in short."""
        named = [
            (f"p{f.partition} " if f.partition is not None else "") + ranges_short(f.ranges, _RANGES)
            for f in self.findings
            if f.partition is not None or f.ranges
        ]
        left = len(named) - _PARTITIONS
        return "; ".join(n.strip() for n in named[:_PARTITIONS]) + (f"; {left} more" if left > 0 else "")

    @property
    def detail(self) -> str:
        """What was seen, in the words of the first finding."""
        left = len(self.findings) - 1
        return self.findings[0].detail + (f"; and {left} more like it" if left else "")


@dataclass(frozen=True, slots=True)
class Remedy:
    """What to do, and for how many more windows the same."""

    text: str
    windows: tuple[str, ...]

    def __str__(self) -> str:
        left = len(self.windows) - 1
        return self.text + (f" Likewise {counted(left, 'more window')}, listed below." if left else "")


def worst_windows(findings: Iterable[Finding]) -> list[WorstWindow]:
    """By gravity, then by the number of offsets concerned, then the newest first."""
    grouped: dict[tuple[str, Kind], list[Finding]] = {}
    for finding in findings:
        grouped.setdefault((finding.window, finding.kind), []).append(finding)
    windows = [
        WorstWindow(key, kind, tuple(sorted(members, key=lambda f: -1 if f.partition is None else f.partition)))
        for (key, kind), members in grouped.items()
    ]
    newest_first = sorted(windows, key=lambda w: w.window, reverse=True)
    return sorted(newest_first, key=lambda w: (-w.state, -w.offsets))


def remedies(worst: Sequence[WorstWindow]) -> list[Remedy]:
    """Each remedy once, worded for its worst window, the gravest first."""
    # Windows of one kind differ in nothing but their names.
    alike: dict[str, list[WorstWindow]] = {}
    for window in worst:
        text = window.findings[0].remedy
        alike.setdefault(text.replace(window.window, "…") if window.window else text, []).append(window)
    return [
        Remedy(members[0].findings[0].remedy, tuple(dict.fromkeys(m.window for m in members)))
        for members in alike.values()
    ]
