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
    """One check of a raw table, which `evaluate` runs. If a `blocking` check alarms, downstream assets of the same run
    are blocked.

    `may_count` selects the older windows, by the columns of cuts, receipts and files, in which the check cannot have a
    finding. From then on, these are only counted in every check's facts, until one of them changes. A window is only
    counted if every registered check agrees; a check without `may_count` gets every window. Raise `revision` whenever
    `may_count` becomes stricter, so that counted windows are evaluated again.
    """

    name: str
    description: str
    evaluate: Callable[[Evaluation], CheckResult]
    may_count: Callable[[History], Mask] | None = None
    blocking: bool = True
    revision: int = 1

    @property
    def fingerprint(self) -> str:
        """Identifier of the check and its rule for older windows."""
        return f"{self.name}/{self.revision}"
