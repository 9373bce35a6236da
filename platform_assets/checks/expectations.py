"""Expectations on decoded rows. They are checked using only the receipts, which contain the figures of each load."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from platform_assets.checks.decoded import Level, Windows
from platform_assets.model.expectations import Expectation, Figures


@dataclass(frozen=True, slots=True)
class WindowFigures:
    """A window and its figures. `figures` is None if this expectation was not measured in the window."""

    window: str
    figures: Figures | None


@dataclass(frozen=True, slots=True)
class ExpectationResult:
    """Result of one expectation. `windows`, which ascend, determine `level`. `others` are further decoded windows that
    are only shown: if they counted too, a single failure in one window would fail the check after each later load."""

    expectation: Expectation
    level: Level
    windows: tuple[WindowFigures, ...]
    others: tuple[WindowFigures, ...]

    @property
    def figures(self) -> Figures:
        """Sum of the figures of those windows that determine the level."""
        return sum((each.figures for each in self.windows if each.figures is not None), Figures())

    @property
    def failing(self) -> tuple[WindowFigures, ...]:
        """Windows with failing rows, those with the most failing rows first. Only windows that determine the level are
        included."""
        found = [each for each in self.windows if each.figures is not None and each.figures.failing]
        return tuple(sorted(found, key=lambda each: (-each.figures.failing, each.window)))  # type: ignore[union-attr]

    @property
    def unmeasured(self) -> tuple[str, ...]:
        """All windows that were decoded before this expectation was declared."""
        return tuple(each.window for each in (*self.windows, *self.others) if each.figures is None)


def result_of(windows: Windows, expectation: Expectation, keys: Sequence[str] | None) -> ExpectationResult:
    """Evaluate the expectation in the windows `keys`. If there are no keys, evaluate it in the newest window that has
    offsets."""
    each = {key: _figures(windows, expectation, key) for key in windows.keys if key in windows.decoded}
    newest = [key for key in each if windows.decoded[key].table_version is not None][-1:]
    deciding = set(newest if keys is None or not keys else keys)
    chosen = tuple(each[key] for key in each if key in deciding)
    others = tuple(each[key] for key in each if key not in deciding)
    level: Level = "passed"
    if any(found.figures is not None and found.figures.failing for found in chosen):
        level = "error" if expectation.severity == "error" else "warning"
    elif any(found.figures is None for found in chosen):
        level = "warning"
    return ExpectationResult(expectation, level, chosen, others)


def _figures(windows: Windows, expectation: Expectation, key: str) -> WindowFigures:
    receipt = windows.decoded[key]
    if receipt.table_version is None:
        return WindowFigures(key, Figures())
    return WindowFigures(key, (receipt.figures or {}).get(expectation.digest))
