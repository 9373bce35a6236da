"""Aging checks: checks of raw tables whose results can change while nothing is loaded, such as `retention_is_far`.

Runs evaluate them after a load. Ticks evaluate them between loads, also for paused topics and for topics whose tick
fails. `status` also evaluates them, because the sensor may be stopped. `raw_checks.AGING` lists them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any, ClassVar, Final

import dagster as dg

from platform_assets.checks.report.rendering import as_event
from platform_assets.errors import PlatformError
from platform_assets.kafka.cluster import Cluster
from platform_assets.ledger.store import Ledger
from platform_assets.model.declaration import TopicDeclaration
from platform_assets.model.untrusted import markdown
from platform_assets.orchestration.names import table_key
from platform_assets.windows.load import retention_forecast
from platform_assets.windows.load.retention_forecast import RetentionForecast

_EVALUATION_SECONDS: Final = 5.0
"""Maximum time that a tick's evaluation waits for the brokers."""


@dataclass(frozen=True)
class Subject:
    """The raw table of `declaration` at the time `now`. If the brokers must not be queried, `cluster` is a string with
    the reason."""

    declaration: TopicDeclaration
    ledger: Ledger
    cluster: Cluster | str
    now: datetime

    @cached_property
    def forecast(self) -> RetentionForecast | str:
        """The retention forecast, or the reason why there is no forecast. The brokers are queried only once."""
        if isinstance(self.cluster, str):
            return self.cluster
        try:
            return retention_forecast.look(self.declaration, self.ledger, self.cluster, self.now)
        except PlatformError as e:
            return str(e)


@dataclass(frozen=True, slots=True)
class Messages:
    """Messages of `status` for a check.

    `problems` require a person's action. `warnings` go away without action, or say what could not be determined.
    """

    problems: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def _every_topic(_: TopicDeclaration) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class AgingCheck:
    """One aging check. Ticks evaluate it at intervals of `every`. Its settings are in the topic's declaration.

    A topic has the check only if `applies_to` is true for the topic. An aging check never blocks derived tables,
    because age does not make loaded rows wrong.
    """

    name: str
    description: str
    every: timedelta
    evaluate: Callable[[Subject], dg.AssetCheckResult]
    messages: Callable[[Subject], Messages]
    applies_to: Callable[[TopicDeclaration], bool] = _every_topic
    blocking: ClassVar[bool] = False


def result(check: AgingCheck, subject: Subject) -> dg.AssetCheckResult:
    """Evaluate `check`. If the evaluation fails, return a warning that the check could not be evaluated."""
    try:
        return check.evaluate(subject)
    except PlatformError as e:
        return could_not_tell(check.name, subject.declaration, e)


def could_not_tell(check: str, declaration: TopicDeclaration, reason: object) -> dg.AssetCheckResult:
    """Return the warning for a check that could not be evaluated."""
    return dg.AssetCheckResult(
        asset_key=table_key(declaration.raw_table),
        check_name=check,
        passed=False,
        severity=dg.AssetCheckSeverity.WARN,
        description=f"**Could not tell**: {markdown(reason)}",
    )


_evaluated: dict[tuple[str, str], datetime] = {}
"""Time of the last evaluation by a tick in this process, by table and check."""
_lock = threading.Lock()


def evaluate_due(
    checks: Iterable[AgingCheck], subject: Subject, reported: Sequence[Any] = ()
) -> list[dg.AssetCheckEvaluation]:
    """Evaluate those of `checks` that are due in a tick. A check is due when its interval has passed. It is also due if
    the events `reported` by this tick include a load, because Dagster ignores an evaluation that is older than the
    newest load."""
    due = [check for check in checks if _is_due(check, subject, reported)]
    if not isinstance(subject.cluster, str):
        bounded = subject.cluster.with_deadline(time.monotonic() + _EVALUATION_SECONDS)
        subject = replace(subject, cluster=bounded)
    return [as_event(result(check, subject)) for check in due]


def _is_due(check: AgingCheck, subject: Subject, reported: Sequence[Any]) -> bool:
    table = subject.declaration.raw_table
    place = (str(subject.ledger.lake.table(table)), check.name)
    loads = any(isinstance(e, dg.AssetMaterialization) and e.asset_key == table_key(table) for e in reported)
    with _lock:
        before = _evaluated.get(place)
        if before is not None and not loads and timedelta() <= subject.now - before < check.every:
            return False
        _evaluated[place] = subject.now
        return True
