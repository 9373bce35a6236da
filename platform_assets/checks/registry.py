"""The checks of a raw table: how each is evaluated, and what it says of itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from platform_assets.checks.evaluation import Evaluation
from platform_assets.checks.findings import Verdict
from platform_assets.checks.rules import accounted, agreement, deep_audit, no_duplicates, no_gaps


@dataclass(frozen=True, slots=True)
class Check:
    """One check. `blocking` ones hold back what is downstream in the same run, where they alarm."""

    name: str
    evaluate: Callable[[Evaluation], Verdict]
    description: str
    blocking: bool = True


CHECKS: Mapping[str, Check] = MappingProxyType(
    {
        check.name: check
        for check in (
            Check(
                no_gaps.NAME,
                lambda e: no_gaps.check(e.facts()),
                "Cuts tile, every sealed window is loaded, and each window's rows are all there and within its ranges.",
            ),
            Check(
                no_duplicates.NAME,
                lambda e: no_duplicates.check(e.facts()),
                "No (topic id, partition, offset) is in the table twice, within a window or across windows.",
            ),
            Check(
                accounted.NAME,
                accounted.evaluate,
                "Rows + explained holes = end - start for every window, by load digest or by the broker's evidence.",
            ),
            Check(
                agreement.NAME,
                agreement.evaluate,
                "The table's log, the ledger and Dagster say the same of every window.",
            ),
        )
    }
)
"""Evaluated after each load."""

DEEP_AUDIT = Check(
    deep_audit.NAME,
    deep_audit.evaluate,
    "Table files are read again and both digests recomputed, oldest proof first: finds later damage.",
    blocking=False,
)
"""Evaluated by a schedule of its own, within a budget."""
