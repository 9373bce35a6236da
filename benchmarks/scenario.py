"""Input and result of each scenario."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Bench:
    """One run of the benchmarks. It has its own broker and Spark Connect server, and a folder that is deleted at the
    end of the run. If `quick` is true, there are fewer records and rounds, and a scenario takes at most a minute.
    `report` shows the progress."""

    root: Path
    bootstrap: str
    remote: str
    quick: bool
    report: Callable[[str], None]

    def pick(self, whole: int, quick: int) -> int:
        """Return `whole` for a full run, or `quick` for a quick run."""
        return quick if self.quick else whole


@dataclass(frozen=True, slots=True)
class Goal:
    """One figure and its goal. If `spread` is given, it is half of the figure's range over the rounds, divided by the
    median."""

    what: str
    value: float
    bound: float
    at_most: bool
    unit: str = "×"
    spread: float | None = None

    @property
    def reached(self) -> bool:
        """True if the figure reaches the goal."""
        return self.value <= self.bound if self.at_most else self.value >= self.bound

    @property
    def sentence(self) -> str:
        """The figure and its goal in one line, for the terminal."""
        sign = "≤" if self.at_most else "≥"
        around = "" if self.spread is None else f" ± {self.spread:.0%}"
        return f"{self.what}: {self.value:,.2f} {self.unit}{around} (goal {sign} {self.bound:g} {self.unit})"


def at_least(what: str, bound: float, found: tuple[float, float | None], unit: str = "×") -> Goal:
    """Return a goal with a lower bound. `found` contains the figure and its spread, as returned by `rounds.middle` or
    `rounds.ratio`."""
    return Goal(what, found[0], bound, False, unit, found[1])


def at_most(what: str, bound: float, found: tuple[float, float | None], unit: str = "×") -> Goal:
    """Return a goal with an upper bound. `found` contains the figure and its spread."""
    return Goal(what, found[0], bound, True, unit, found[1])


@dataclass(frozen=True, slots=True)
class Measured:
    """Result of one scenario: `rounds` has the measurements of each contender in `unit`, without the warm-up, and
    `goals` has the figures derived from them. `setting` describes the size of the scenario. `more` has other results
    worth keeping."""

    name: str
    rounds: Mapping[str, Sequence[float]]
    goals: Sequence[Goal] = ()
    unit: str = "s"
    setting: Mapping[str, Any] = field(default_factory=dict)
    more: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the result in the form that the results file uses."""
        return {
            "unit": self.unit,
            "setting": dict(self.setting),
            "rounds": {name: list(values) for name, values in self.rounds.items()},
            "goals": [{**asdict(goal), "reached": goal.reached} for goal in self.goals],
            **({"more": dict(self.more)} if self.more else {}),
        }
