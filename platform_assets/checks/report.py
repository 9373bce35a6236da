"""How a verdict looks in Dagster: a headline, figures that plot over time, the worst findings, and what to do."""

from __future__ import annotations

from typing import Any

import dagster as dg

from platform_assets.checks.findings import Finding, Verdict, ranges_short

_MOST = 20


def result(verdict: Verdict) -> dg.AssetCheckResult:
    """The check's result: an ERROR, which blocks, unless all that was found is work that nobody has asked for yet."""
    values: dict[str, Any] = dict(verdict.figures)
    values["findings"] = len(verdict.findings)
    if verdict.findings:
        values["worst"] = dg.MetadataValue.table([_record(f) for f in verdict.findings[:_MOST]], _SCHEMA)
        left = len(verdict.findings) - _MOST
        if left > 0:
            values["findings_not_listed"] = left
        values["remedy"] = "\n".join(dict.fromkeys(f.remedy for f in verdict.findings[:_MOST]))
    return dg.AssetCheckResult(
        passed=verdict.passed,
        severity=dg.AssetCheckSeverity.ERROR if verdict.alarming else dg.AssetCheckSeverity.WARN,
        description=verdict.headline,
        metadata=values,
    )


_SCHEMA = dg.TableSchema(
    [
        dg.TableColumn("kind", "string"),
        dg.TableColumn("window", "string"),
        dg.TableColumn("partition", "int", description="Kafka partition; -1 where all are meant"),
        dg.TableColumn("offsets", "string", description="ranges of offsets, end exclusive"),
        dg.TableColumn("detail", "string"),
        dg.TableColumn("remedy", "string"),
    ]
)


def _record(finding: Finding) -> dg.TableRecord:
    return dg.TableRecord(
        {
            "kind": finding.kind,
            "window": finding.window,
            "partition": -1 if finding.partition is None else finding.partition,
            "offsets": ranges_short(finding.ranges),
            "detail": finding.detail,
            "remedy": finding.remedy,
        }
    )
