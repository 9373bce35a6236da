"""The last result of each check of a table, as Dagster has it on record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import dagster as dg

from platform_assets.checks.report.description import plain
from platform_assets.orchestration import evaluated


@dataclass(frozen=True, slots=True)
class CheckStatus:
    """The last evaluation of one check. `at` is ISO 8601 in UTC; `passed` and `at` are None if it never ran.

    `warning` is true of one that did not pass, and is no more than a warning.
    """

    name: str
    passed: bool | None
    at: str | None
    headline: str
    warning: bool = False

    @property
    def failed(self) -> bool:
        """Whether it did not pass, and is more than a warning."""
        return self.passed is False and not self.warning


def latest(instance: dg.DagsterInstance | None, keys: Sequence[dg.AssetCheckKey]) -> tuple[CheckStatus, ...]:
    """The status of each of these checks, in their order. Without an instance none of them is known to have run."""
    if instance is None:
        return tuple(CheckStatus(key.name, None, None, "no DAGSTER_HOME") for key in keys)
    known = evaluated.newest(instance, keys)
    found: list[CheckStatus] = []
    for key in keys:
        if key not in known:
            found.append(CheckStatus(key.name, None, None, "never evaluated"))
            continue
        record, evaluation = known[key]
        at = datetime.fromtimestamp(record.create_timestamp, UTC).isoformat(timespec="seconds")
        warning = not evaluation.passed and evaluation.severity == dg.AssetCheckSeverity.WARN
        found.append(CheckStatus(key.name, evaluation.passed, at, plain(evaluation.description or ""), warning))
    return tuple(found)
