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
    """One check of a raw table; `evaluate` runs the check. If a `blocking` check fails, downstream assets in the same
    run are blocked.

    `may_count` selects older windows in which the check cannot have a finding; it uses only the columns of cuts,
    receipts and files. Once selected, these windows are only counted in the facts of every check, until one of the
    windows changes. A window is only counted if every registered check agrees. A check without `may_count` gets every
    window. Raise `revision` whenever `may_count` becomes stricter, so that counted windows are evaluated again.
    """

    name: str
    description: str
    evaluate: Callable[[Evaluation], CheckResult]
    may_count: Callable[[History], Mask] | None = None
    blocking: bool = True
    revision: int = 1

    @property
    def fingerprint(self) -> str:
        """Identifier of the check, which includes the revision of its rule for older windows."""
        return f"{self.name}/{self.revision}"
