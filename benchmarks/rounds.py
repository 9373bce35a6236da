"""Running contenders in turn, so that what the machine does meanwhile falls on all of them alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Timed:
    """Seconds of each round of one contender, warm-up left out."""

    name: str
    seconds: Sequence[float]

    @property
    def median(self) -> float:
        """Seconds."""
        return statistics.median(self.seconds)

    @property
    def spread(self) -> float:
        """Half of what lies between the fastest and the slowest round, as a share of the median."""
        return (max(self.seconds) - min(self.seconds)) / 2 / self.median


def alternate(
    contenders: Mapping[str, Callable[[], object]], rounds: int, report: Callable[[str], None]
) -> dict[str, Timed]:
    """Time each contender `rounds` times, one after the other in each round, after one round that does not count."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(rounds + 1):
        for name, run in contenders.items():
            began = time.perf_counter()
            run()
            took = time.perf_counter() - began
            if number:
                seconds[name].append(took)
            report(f"round {number} of {rounds}{'' if number else ' (warm-up)'}: {name} {took:.2f} s")
    return {name: Timed(name, tuple(s)) for name, s in seconds.items()}
