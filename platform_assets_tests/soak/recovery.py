"""Lakes that go through maintenance, damage and lost ledgers, repeatedly and in varying order, until the time is up."""

from __future__ import annotations

import random
import shutil
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from platform_assets.errors import PlatformError
from platform_assets_tests.support.recovery import a_history
from testbed.layouts import new_tables_are

HEADER: Final = "| seed | histories | loads judged, by outcome | differences |\n|---|---|---|---|"


@dataclass
class SeedResult:
    """Result of one seed. Each string in `anomalies` mentions the history and the fault. The lakes of these histories
    are kept."""

    seed: int
    histories: int = 0
    met: Counter[str] = field(default_factory=Counter)
    anomalies: list[str] = field(default_factory=list)

    def line(self) -> str:
        """Return the result as a row of the table."""
        met = ", ".join(f"{number:,} {what}" for what, number in sorted(self.met.items()))
        return f"| {self.seed} | {self.histories:,} | {met} | {'; '.join(self.anomalies) or 'none'} |"


def run(seed: int, seconds: float, root: Path) -> SeedResult:
    """Run as many histories as fit in the given seconds, but at least one. Each history has a separate lake below
    `root`."""
    found, until = SeedResult(seed), time.monotonic() + seconds
    while not found.histories or time.monotonic() < until:
        folder = root / str(found.histories)
        try:
            with new_tables_are("partitioned" if found.histories % 4 == 0 else "flat"):
                history = a_history(folder, random.Random(f"{seed}:{found.histories}"))
            history.ends_well()
        except (AssertionError, PlatformError, OSError) as error:
            found.anomalies.append(f"history {found.histories}: {ascii(str(error))[:2000]}")
        else:
            found.met += history.met
            shutil.rmtree(folder)
        found.histories += 1
    return found
