"""Run contenders in turn, so that other work of the machine affects all of them alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

WARM_UP: Final = 3
"""Number of warm-up rounds: a Java server compiles frequently run code, and gets faster for minutes."""


def counted(rounds: int) -> range:
    """Yield the numbers of all rounds; those of the warm-up are below 1."""
    return range(1 - WARM_UP, rounds + 1)


def alternate(
    contenders: Mapping[str, Callable[[], object]],
    rounds: int,
    report: Callable[[str], None],
    clear: Callable[[], object] = lambda: None,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, tuple[float, ...]]:
    """Return the seconds of each contender's `rounds` runs, one after the other in each round, after `WARM_UP`
    uncounted rounds.

    `clear` is called after each run and not timed. `clock` is `time.process_time` for what runs on one thread of this process alone.
    """
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for number in counted(rounds):
        for name, run in contenders.items():
            began = clock()
            run()
            took = clock() - began
            clear()
            if number > 0:
                seconds[name].append(took)
            report(f"round {number} of {rounds}{'' if number > 0 else ' (warm-up)'}: {name} {took:.2f} s")
    return {name: tuple(s) for name, s in seconds.items()}


def ratio(over: Sequence[float], under: Sequence[float]) -> tuple[float, float]:
    """Return the median of the ratios `over / under` per round, and half of their range as a share of it."""
    return middle([a / b for a, b in zip(over, under, strict=True)])


def middle(values: Sequence[float]) -> tuple[float, float]:
    """Return the median, and half of the range as a share of it."""
    median = statistics.median(values)
    return median, (max(values) - min(values)) / 2 / median
