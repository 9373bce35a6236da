"""Compare decoders with other readers, in rounds with new values, until the time is up."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field
from typing import Final

from platform_assets_tests.support.other_readers import JUDGES

HEADER: Final = "| seed | rounds | values judged | differences |\n|---|---|---|---|"


@dataclass
class SeedResult:
    """Result of one seed. Each string in `anomalies` mentions the other reader, the round and the value."""

    seed: int
    rounds: int = 0
    values: int = 0
    anomalies: list[str] = field(default_factory=list)

    def line(self) -> str:
        """Return the result as a row of the table."""
        return f"| {self.seed} | {self.rounds:,} | {self.values:,} | {'; '.join(self.anomalies) or 'none'} |"


def run(seed: int, seconds: float) -> SeedResult:
    """Run every comparison once per round, for as many rounds as fit in the given seconds, but for at least one."""
    found, until = SeedResult(seed), time.monotonic() + seconds
    while not found.rounds or time.monotonic() < until:
        for name, judge in JUDGES.items():
            try:
                found.values += judge(random.Random(f"{seed}:{found.rounds}:{name}"))
            except AssertionError as error:
                found.anomalies.append(f"{name}, round {found.rounds}: {ascii(str(error))[:200]}")
        found.rounds += 1
    return found
