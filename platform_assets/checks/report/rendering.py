"""Rendering of a check result for Dagster: headline, heatmap, figures to plot over time, worst windows, and remedy."""

from __future__ import annotations

from typing import Any, Final

import dagster as dg

from platform_assets.checks.facts import Facts
from platform_assets.checks.findings import CheckResult
from platform_assets.checks.report.description import describe
from platform_assets.checks.report.heatmap import heatmap_of
from platform_assets.checks.report.worst import WorstWindow, remedies, worst_windows
from platform_assets.model.untrusted import line

ANOMALIES: Final = "anomalies"
"""Metadata key of the worst windows. The UI sorts metadata by key, and this entry must come first."""
FINDINGS: Final = "findings"
NOT_LISTED: Final = "findings_not_listed"
REMEDY: Final = "remedy"

_MOST: Final = 20


def result(asset: dg.AssetKey, check_result: CheckResult, facts: Facts) -> dg.AssetCheckResult:
    """Return the result of a check of `asset`. The severity is ERROR, which blocks, unless all findings are about
    windows that were not requested yet or could not be evaluated."""
    worst = worst_windows(check_result.findings)
    values: dict[str, Any] = {**dict(check_result.figures), FINDINGS: len(check_result.findings)}
    if worst:
        values[ANOMALIES] = _table(worst[:_MOST])
        left = sum(len(w.findings) for w in worst[_MOST:])
        if left:
            values[NOT_LISTED] = left
        values[REMEDY] = _numbered([line(r) for r in remedies(worst)])
    return dg.AssetCheckResult(
        asset_key=asset,
        check_name=check_result.check,
        passed=check_result.passed,
        severity=dg.AssetCheckSeverity.ERROR if check_result.alarming else dg.AssetCheckSeverity.WARN,
        description=describe(check_result, heatmap_of(facts, check_result.findings), worst),
        metadata=values,
    )


def evaluation(asset: dg.AssetKey, check_result: CheckResult, facts: Facts) -> dg.AssetCheckEvaluation:
    """Return the result as an event that does not belong to a run."""
    return as_event(result(asset, check_result, facts))


def as_event(found: dg.AssetCheckResult) -> dg.AssetCheckEvaluation:
    """Return the result as an event that does not belong to a check step."""
    if found.asset_key is None or found.check_name is None:
        raise AssertionError("unreachable: results name both")
    return dg.AssetCheckEvaluation(
        found.asset_key,
        found.check_name,
        found.passed,
        found.metadata,
        severity=found.severity,
        description=found.description,
    )


_COLUMNS: Final = (
    dg.TableColumn("window", "string", description="window key, which is also the asset's partition key"),
    dg.TableColumn("found", "string", description="the problem, and what was observed"),
    dg.TableColumn(
        "where", "string", description="Kafka partitions and offset ranges; the end of a range is exclusive"
    ),
    dg.TableColumn("offsets", "int", description="number of affected offsets; 0 if no offset is listed"),
)


def _table(worst: list[WorstWindow]) -> dg.TableMetadataValue:
    """Return a table with one row per window. If no window has partitions or offsets, the columns for them are left
    out."""
    placed = any(w.where for w in worst)
    columns = [c for c in _COLUMNS if placed or c.name not in ("where", "offsets")]
    records = [dg.TableRecord({c.name: _cell(getattr(w, c.name)) for c in columns}) for w in worst]
    return dg.MetadataValue.table(records, dg.TableSchema(columns))


def _cell(value: str | int) -> str | int:
    return line(value) if isinstance(value, str) else value


def _numbered(texts: list[str]) -> str:
    """Join several texts into one numbered string, because the UI shows them in one line."""
    if len(texts) == 1:
        return texts[0]
    shown = texts[:_MOST]
    left = len(texts) - len(shown)
    return " ".join(f"{n}. {t}" for n, t in enumerate(shown, 1)) + (f" And {left} more." if left else "")
