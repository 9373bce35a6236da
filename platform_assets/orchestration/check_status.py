"""The last result of each check of a table, as Dagster has it on record."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import dagster as dg

from platform_assets.checks.report.description import plain
from platform_assets.model.tables import TableRef
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


def not_run(
    table: TableRef,
    checks: Sequence[CheckStatus],
    window: str | None,
    since: datetime | None,
    patience: timedelta,
    now: datetime,
) -> Iterator[str]:
    """What is to be done about checks of `table` that never ran, although it has windows.

    `window` is one of them and `since` when the first of them was recorded, None if there is none. It is given `patience`, for the run
    that loaded it to come to its checks.
    """
    missing = [check.name for check in checks if check.passed is None]
    if not missing or window is None or since is None or now - since <= patience:
        return
    yield (
        f"whether {', '.join(missing)} would pass is not known: Dagster has no result of {'it' if len(missing) == 1 else 'them'} "
        f"on record, as after its store was replaced. `platform-assets load {table} {window}` has them evaluated and reported; "
        f"`platform-assets audit {table}` judges all windows without Dagster"
    )


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
