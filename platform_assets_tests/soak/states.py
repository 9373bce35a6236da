"""Random histories of a topic's state, until the time is up: first in memory, then by turns in a lake, and in a lake with a
ledger from records on."""

from __future__ import annotations

import shutil
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from platform_assets_tests.soak.declared_states import DeclaredHistory
from platform_assets_tests.support.state_histories import history
from platform_assets_tests.support.state_lakes import LakeHistory

IN_MEMORY: Final = 1_000
"""Number of histories in memory of each seed."""
HEADER: Final = (
    "| seed | histories in memory | in a lake | with a ledger | steps by kind | findings |\n|--:|--:|--:|--:|---|---|"
)


@dataclass
class SeedResult:
    """Result of one seed. Each of the `anomalies` names its history, whose seed repeats it."""

    seed: int
    in_memory: int = 0
    in_lake: int = 0
    with_ledger: int = 0
    met: Counter[str] = field(default_factory=Counter)
    anomalies: list[str] = field(default_factory=list)

    def line(self) -> str:
        """Return the result as a row of the table."""
        met = ", ".join(f"{number:,} {what}" for what, number in sorted(self.met.items()))
        found = "; ".join(self.anomalies) or "none"
        return f"| {self.seed} | {self.in_memory:,} | {self.in_lake:,} | {self.with_ledger:,} | {met} | {found} |"


def run(seed: int, seconds: float, root: Path) -> SeedResult:
    """Run the histories in memory, then as many of each other kind below `root` as fit in the given seconds, but at least
    two. Lakes with anomalies are kept."""
    found = SeedResult(seed)
    for number in range(IN_MEMORY):
        made = history(f"{seed}/{number}")
        found.in_memory += 1
        try:
            made.run()
            made.check()
            found.met["rebuild in memory"] += made.rebuilds
        except Exception as error:  # noqa: BLE001 - any error of a fold is a finding
            found.anomalies.append(f"in memory, {_text(f'{seed}/{number}', error)}")
    until = time.monotonic() + seconds
    while found.in_lake < 2 or time.monotonic() < until:
        name, below = f"{seed}/{found.in_lake}", root / str(found.in_lake)
        found.in_lake += 1
        _run(found, "in a lake", LakeHistory(name, below / "lake"))
        found.with_ledger += 1
        _run(found, "with a ledger", DeclaredHistory(name, below / "ledger"))
    return found


def _run(found: SeedResult, where: str, history: LakeHistory | DeclaredHistory) -> None:
    try:
        found.met += history.run()
    except Exception as error:  # noqa: BLE001 - any error that a fold does not document is a finding
        found.anomalies.append(f"{where}, {_text(history.seed, error)}")
    else:
        shutil.rmtree(history.root)


def _text(history: str, error: Exception) -> str:
    return f"history {history}: {type(error).__name__}: {ascii(str(error))[:500]}"
