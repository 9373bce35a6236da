"""The definition of a check: one object, in its own module under `rules/`, listed in `registry`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from platform_assets.checks.baseline.history import History, Mask
from platform_assets.checks.findings import CheckResult

if TYPE_CHECKING:
    from platform_assets.checks.evaluation import Evaluation


@dataclass(frozen=True, slots=True)
class Check:
    """One check of a raw table.

    `evaluate` judges the table. `blocking` checks hold back what is downstream in the same run, where they alarm.

    `may_count` says for which older windows, by the columns of cuts, receipts and files, the check has nothing to find:
    these are only counted from then on, in every check's facts, until one of them changes. A window is only counted
    where every registered check agrees; a check that leaves `may_count` out is given every window, one by one. Raise
    `revision` whenever `may_count` becomes stricter, so that what was counted before is judged again.
    """

    name: str
    description: str
    evaluate: Callable[[Evaluation], CheckResult]
    may_count: Callable[[History], Mask] | None = None
    blocking: bool = True
    revision: int = 1

    @property
    def fingerprint(self) -> str:
        """Identifies the check and its rule for older windows."""
        return f"{self.name}/{self.revision}"
