"""`platform-assets audit`: run every check of one table from a shell; the exit code gives the outcome."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final, Literal, TypeVar

from platform_assets.checks.check import Check
from platform_assets.checks.evaluation import Evaluation
from platform_assets.checks.facts import Facts
from platform_assets.checks.findings import CheckResult, Finding, counted
from platform_assets.checks.registry import CHECKS, DEEP_AUDIT
from platform_assets.checks.report.heatmap import Heatmap, heatmap_of
from platform_assets.checks.report.worst import Remedy, WorstWindow, remedies, worst_windows
from platform_assets.errors import PlatformError
from platform_assets.model.windows import Span

JSON_VERSION: Final = 1
NOT_RECORDED: Final = "not recorded"

T = TypeVar("T")
AuditOutcome = Literal["proved", "anomalies", "undecided"]
EXIT_CODES: Final[Mapping[AuditOutcome, int]] = {"proved": 0, "anomalies": 1, "undecided": 2}
"""Maps each outcome to its exit code. An anomaly takes precedence over anything that could not be determined."""


@dataclass(frozen=True, slots=True)
class CheckOutcome:
    """Result of one check, or the error that prevented the result. Exactly one of the two is set."""

    check: str
    check_result: CheckResult | None
    error: str | None

    @property
    def outcome(self) -> AuditOutcome:
        """Outcome of the check. Windows that were never requested count as an anomaly, because the table lacks them."""
        if self.check_result is None or self.check_result.undecided:
            return "undecided"
        return "proved" if self.check_result.passed else "anomalies"

    @property
    def headline(self) -> str:
        """The headline of the result, or the error, as one sentence."""
        return self.check_result.headline if self.check_result is not None else f"Could not tell: {self.error}"

    @property
    def findings(self) -> tuple[Finding, ...]:
        """All findings of the check."""
        return self.check_result.findings if self.check_result is not None else ()


@dataclass(frozen=True, slots=True)
class Audit:
    """The outcome of all checks of one table. `at` is the time in ISO 8601, UTC."""

    table: str
    at: str
    span: Span
    deep: bool
    checks: tuple[CheckOutcome, ...]
    heatmap: Heatmap | None
    engines: Mapping[str, int] = field(default_factory=dict)
    """Maps each engine to the number of windows with rows that it loaded. `NOT_RECORDED` counts windows whose engine is
    unknown."""
    confirmed_by: Mapping[str, int] = field(default_factory=dict)
    """Maps each confirming engine to the number of windows that it confirmed. The other engine loaded these windows;
    the confirming engine read them from Kafka and got equal digests."""
    count: int = 0
    """Number of windows; used only if there is no heatmap."""

    @property
    def outcome(self) -> AuditOutcome:
        """The most severe of the checks' outcomes."""
        outcomes = {c.outcome for c in self.checks}
        if "anomalies" in outcomes:
            return "anomalies"
        return "undecided" if self.reasons else "proved"

    @property
    def reasons(self) -> tuple[str, ...]:
        """Reasons why checks have no result, without repetitions."""
        found = [c.error for c in self.checks if c.error is not None]
        found += [f.detail for c in self.checks for f in c.findings if f.kind == "could not tell"]
        if self.heatmap is not None and not self.heatmap.windows:
            found.append("the ledger contains no sealed window to audit")
        elif self.heatmap is None and not self.count and not found:
            found.append("the raw table contains no window to audit")
        return tuple(dict.fromkeys(found))

    @property
    def worst(self) -> list[WorstWindow]:
        """The findings of all checks, without repetitions, the most severe first."""
        found = {(f.kind, f.window, f.partition, f.ranges): f for c in reversed(self.checks) for f in c.findings}
        return worst_windows(found.values())

    @property
    def remedies(self) -> list[Remedy]:
        """Remedies, ordered so that the remedies for the most severe findings come first."""
        return remedies(self.worst)

    @property
    def exit_code(self) -> int:
        """Exit code for the shell."""
        return EXIT_CODES[self.outcome]

    def to_json(self) -> dict[str, Any]:
        """Return the documented JSON, which includes a version number. Nothing is truncated. Ranges are `[start, end]`;
        the end is exclusive."""
        return {
            "version": JSON_VERSION,
            "table": self.table,
            "at": self.at,
            "outcome": self.outcome,
            "reasons": list(self.reasons),
            "deep": self.deep,
            "windows": {
                "from": self.span.first,
                "to": self.span.last,
                "count": self.count if self.heatmap is None else self.heatmap.windows,
                "by_state": {} if self.heatmap is None else {s.label: n for s, n in self.heatmap.counts.items()},
                "by_engine": dict(self.engines),
                "confirmed_by": dict(self.confirmed_by),
            },
            "checks": [_check_json(c) for c in self.checks],
        }


def audit(evaluation: Evaluation, now: datetime, *, deep: bool = False) -> Audit:
    """Evaluate every check. With `deep`, also run the deep audit.

    If something cannot be determined, the outcome says so; no error is raised.
    """
    span = evaluation.span or Span()
    done = []
    for check in (*CHECKS.values(), *((DEEP_AUDIT,) if deep else ())):
        evaluation.progress(check.name)
        done.append(_evaluated(check, evaluation, span))
    heatmap = _attempt(lambda: heatmap_of(evaluation.facts(), [f for c in done for f in c.findings]))
    return Audit(
        evaluation.declaration.raw_table.name,
        now.isoformat(timespec="seconds"),
        span,
        deep,
        tuple(done),
        heatmap if isinstance(heatmap, Heatmap) else None,
        *(_engines(evaluation.facts()) if isinstance(heatmap, Heatmap) else ()),
    )


def _engines(facts: Facts) -> tuple[dict[str, int], dict[str, int]]:
    loaded = [r for r in facts.recorded.values() if r.total_rows]
    engines = Counter(r.engine or NOT_RECORDED for r in loaded)
    confirmed_by = Counter(r.confirmed_by for r in loaded if r.confirmed_by is not None)
    return dict(sorted(engines.items())), dict(sorted(confirmed_by.items()))


def _evaluated(check: Check, evaluation: Evaluation, span: Span) -> CheckOutcome:
    found = _attempt(lambda: check.evaluate(evaluation))
    if isinstance(found, str):
        return CheckOutcome(check.name, None, found)
    # A check that reads more than the facts may name windows outside.
    inside = tuple(f for f in found.findings if f.window in span)
    if inside != found.findings:
        headline = f"{counted(len({f.window for f in inside}), 'window')} of these have findings."
        found = replace(found, findings=inside, headline=headline)
    return CheckOutcome(check.name, found, None)


def _attempt(call: Callable[[], T]) -> T | str:
    """Return the result of `call`, or the error that says why the table, the ledger or a service could not be read."""
    try:
        return call()
    except PlatformError as e:
        return str(e)


def _check_json(done: CheckOutcome) -> dict[str, Any]:
    return {
        "check": done.check,
        "outcome": done.outcome,
        "headline": done.headline,
        "figures": {} if done.check_result is None else dict(done.check_result.figures),
        "findings": [
            {
                "kind": f.kind,
                "window": f.window,
                "partition": f.partition,
                "ranges": [[r.start, r.end] for r in f.ranges],
                "offsets": f.offsets,
                "detail": f.detail,
                "remedy": f.remedy,
            }
            for f in done.findings
        ],
    }
