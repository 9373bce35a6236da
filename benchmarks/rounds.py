"""Running contenders in turn, so that other work on the machine affects all of them alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

WARM_UP: Final = 3
"""Number of warm-up rounds. They are needed because a Java server compiles code that runs frequently, and gets faster
for minutes."""


def counted(rounds: int, warm_up: int = WARM_UP) -> range:
    """Return the numbers of all rounds. The numbers of warm-up rounds are below 1."""
    return range(1 - warm_up, rounds + 1)


def alternate(
    contenders: Mapping[str, Callable[[], object]],
    rounds: int,
    report: Callable[[str], None],
    clear: Callable[[], object] = lambda: None,
    clock: Callable[[], float] = time.perf_counter,
    warm_up: int = WARM_UP,
) -> dict[str, tuple[float, ...]]:
    """Return, for each contender, the seconds that each of `rounds` runs takes. They follow `warm_up` rounds that are
    not counted. In each round, the contenders run one after another.

    `clear` is called after each run and is not timed. If the work runs only on one thread of this process, `clock` can
    be `time.process_time`.
    """
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for number in counted(rounds, warm_up):
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
    """Compute the ratio `over / under` for each round. Return the median of the ratios, and half of their range divided
    by the median."""
    return middle([a / b for a, b in zip(over, under, strict=True)])


def middle(values: Sequence[float]) -> tuple[float, float]:
    """Return the median of the values, and half of their range divided by the median."""
    median = statistics.median(values)
    return median, (max(values) - min(values)) / 2 / median
