"""Operators' decisions in the midst of loads, maintenance, damage and crashes, in random order, until the time is up."""

from __future__ import annotations

import random
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from platform_assets_tests.support import decision_machine

STEPS: Final = 18
"""Number of steps in a history, not counting its first loads."""
HEADER: Final = "| seed | histories | steps | commands by outcome | findings |\n|---|---|---|---|---|"


@dataclass
class SeedResult:
    """Result of one seed. `anomalies` are the faults, each with the shortest part of its history that still shows it."""

    seed: int
    histories: int = 0
    steps: int = 0
    met: Counter[str] = field(default_factory=Counter)
    anomalies: list[str] = field(default_factory=list)

    def line(self) -> str:
        """Return the result as a row of the table."""
        met = ", ".join(f"{number:,} {what}" for what, number in sorted(self.met.items()))
        found = "; ".join(self.anomalies) or "none"
        return f"| {self.seed} | {self.histories:,} | {self.steps:,} | {met} | {found} |"


def run(seed: int, seconds: float, root: Path) -> SeedResult:
    """Run as many histories as fit in the given seconds, but at least two. Half of the histories use flat tables."""
    found, until = SeedResult(seed), time.monotonic() + seconds
    while found.histories < 2 or time.monotonic() < until:
        number, flat = found.histories, bool(found.histories % 2)
        history = decision_machine.steps(random.Random(f"{seed}:{number}"), STEPS)
        found.histories += 1
        found.steps += len(history)
        try:
            found.met += decision_machine.run(root, history, flat=flat)
        except Exception as error:  # noqa: BLE001 - each error that a command does not document is a finding
            shortest = decision_machine.shortened(root, history, flat=flat)
            what = f"{type(error).__name__}: {ascii(str(error))[:1000]}"
            found.anomalies.append(f"history {number} ({'flat' if flat else 'partitioned'}): {what}: {shortest}")
    return found
