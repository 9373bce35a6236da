"""Follows the topics until all streamed rows are loaded and checked, or until progress stops."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import dagster as dg
from dagster._core.storage.tags import (
    ASSET_PARTITION_RANGE_END_TAG,
    ASSET_PARTITION_RANGE_START_TAG,
    PARTITION_NAME_TAG,
)

from platform_assets.checks.registry import CHECKS
from platform_assets.demo.dataset import SOURCES, TopicName
from platform_assets.demo.display import Counters
from platform_assets.errors import PlatformError
from platform_assets.kafka.cluster import Cluster
from platform_assets.ledger.store import Ledger
from platform_assets.model.declaration import TopicDeclaration
from platform_assets.model.tables import TableRef
from platform_assets.orchestration import status
from platform_assets.orchestration.dagster_records import windows_of
from platform_assets.orchestration.health import CheckStatus
from platform_assets.orchestration.names import table_key
from platform_assets.orchestration.status import TableStatus

_FAILED: Final = (dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED)
_UNDER_WAY: Final = (
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
)
_MOST_RUNS: Final = 50


@dataclass(frozen=True, slots=True)
class FailedRun:
    """A run that ended before all its windows were loaded and checked."""

    run_id: str
    windows: str


@dataclass(frozen=True, slots=True)
class TopicView:
    """One topic at one moment.

    Attributes:
        table: the status of the topic's raw and decoded tables, as `platform-assets status` shows it.
        under_way: number of the table's queued or running runs.
        failed: runs that have failed since the demo began, newest first.
    """

    table: TableStatus
    under_way: int
    failed: tuple[FailedRun, ...]

    @property
    def undecoded(self) -> int:
        """Number of windows that are in the raw table but not in the decoded table."""
        d = self.table.decoded
        return 0 if d is None else d.windows_waiting + d.windows_failed

    @property
    def checks(self) -> dict[str, str]:
        """Maps the name of each check of both tables to `passed`, `failed` or `not run`."""
        return {c.name: _result(c.passed) for c in self._all_checks}

    @property
    def check_faults(self) -> tuple[str, ...]:
        """For each check that has not passed, a sentence that includes the result."""
        return tuple(
            f"check {c.name} has no result" if c.passed is None else f"check {c.name} failed: {_first_line(c.headline)}"
            for c in self._all_checks
            if not c.passed
        )

    @property
    def _all_checks(self) -> tuple[CheckStatus, ...]:
        return (*self.table.checks, *(() if self.table.decoded is None else self.table.decoded.checks))

    @property
    def loaded(self) -> bool:
        """True if everything in the topic is in both tables and no run is queued or running."""
        t = self.table
        return (
            t.lag == 0
            and t.error is None
            and not (t.windows_waiting or t.windows_failed or self.undecoded or self.under_way)
        )

    @property
    def complete(self) -> bool:
        """True if everything is loaded and every check has passed since then."""
        return self.loaded and not self.check_faults

    @property
    def position(self) -> tuple[object, ...]:
        """Figures that change while loading makes progress. Empty windows are not included, because a new empty window
        is added every minute."""
        t = self.table
        missing = t.windows_sealed - t.windows_loaded
        return t.rows, missing, t.lag, tuple(self.checks.items()), self.undecoded, self.under_way, len(self.failed)


@dataclass(frozen=True, slots=True)
class Observer:
    """Looks at the demo's topics.

    Attributes:
        since: the time when the demo began, timezone-aware.
        declared: the declaration of each topic.
    """

    ledger: Ledger
    cluster: Cluster
    instance: dg.DagsterInstance
    since: datetime
    declared: Mapping[str, TopicDeclaration]

    def look(self) -> dict[TopicName, TopicView]:
        """Return the current view of every topic.

        If a fact cannot be determined, this is reported in the status of the topic's table, and no error is raised.
        """
        # Before the tables: if no run is left, they and their checks are as the last run left them.
        under_way = self.instance.get_runs(dg.RunsFilter(statuses=list(_UNDER_WAY)))
        failed = self.instance.get_runs(
            dg.RunsFilter(statuses=list(_FAILED), created_after=self.since), limit=_MOST_RUNS
        )
        now = datetime.now(UTC)
        found = status.collect(
            [self.declared[topic] for topic in SOURCES], self.ledger, self.cluster, self.instance, CHECKS, now
        )
        return {
            topic: TopicView(
                table,
                sum(1 for run in under_way if _loads(run, topic)),
                tuple(FailedRun(run.run_id, _windows_of(run.tags)) for run in failed if _loads(run, topic)),
            )
            for topic, table in zip(SOURCES, found.tables, strict=True)
        }


def _result(passed: bool | None) -> str:
    return "not run" if passed is None else "passed" if passed else "failed"


def _loads(run: dg.DagsterRun, topic: str) -> bool:
    return any(windows_of(run, table_key(TableRef(kind, topic)), ()) is not None for kind in ("raw", "decoded"))


def _first_line(headline: str) -> str:
    """Return the first line of a check's description. The description is Markdown."""
    return headline.partition("\n")[0].replace("**", "").strip()


def _windows_of(tags: Mapping[str, str]) -> str:
    first = tags.get(ASSET_PARTITION_RANGE_START_TAG, tags.get(PARTITION_NAME_TAG, "unknown windows"))
    last = tags.get(ASSET_PARTITION_RANGE_END_TAG, first)
    return first if first == last else f"{first} to {last}"


LOOK_SECONDS: Final = 2.0
"""Minimum time between two views. Views must be polled, because neither the ledger's files nor Dagster's database send
notifications."""

LOOK_SHARE: Final = 0.1
"""Maximum share of the time to spend on gathering views, because gathering them slows down the loads."""

IDLE_SECONDS: Final = 150.0
"""Time limit without progress and without a run. It is ample, because a window closes within a minute and its run
follows within seconds."""

UNCHECKED_SECONDS: Final = 30.0
"""Time limit for checks once everything is loaded and no run is left. It is short, because checks are part of the runs
that load."""

STALLED_SECONDS: Final = 600.0
"""Time limit without progress during a run. It is long, because a load may take a while on a slow machine."""


class StalledError(PlatformError):
    """Streamed records are not loaded, and there has been no progress for a while; the message lists these records."""


def follow(
    streaming: Future[None],
    *,
    look: Callable[[], Mapping[TopicName, TopicView]],
    alive: Callable[[], None],
    counters: Counters,
    explain: Callable[[TopicName, TopicView], str],
    unchecked_seconds: float = UNCHECKED_SECONDS,
    idle_seconds: float = IDLE_SECONDS,
    stalled_seconds: float = STALLED_SECONDS,
) -> Mapping[TopicName, TopicView]:
    """Wait until `streaming` is done and every topic is loaded and checked; return the last views.

    A failing check also ends the wait, because its description is part of the result.

    Args:
        streaming: sends the live records. If it fails, its error is raised.
        look: returns the views of all topics.
        alive: raises if a service has died.
        counters: shows the numbers of windows.
        explain: returns a sentence that says why a topic is not complete, and what to do next.
        unchecked_seconds: time limit for checks once everything is loaded.
        idle_seconds: time limit without progress and without a run, once everything is sent.
        stalled_seconds: time limit without progress during a run.

    Raises:
        StalledError: there was no progress for too long.
    """
    before: dict[TopicName, object] = {}
    moved = time.monotonic()
    while True:
        # In this order: a view after the last record was sent includes that record.
        sent = streaming.done()
        looked_at = time.monotonic()
        views = look()
        pause = max(LOOK_SECONDS, (time.monotonic() - looked_at) / LOOK_SHARE)
        for topic, view in views.items():
            counters.note(topic, progress(view))
        if sent:
            streaming.result()
            if all(view.complete for view in views.values()):
                return views
        positions: dict[TopicName, object] = {topic: view.position for topic, view in views.items()}
        if positions != before or not sent:
            before, moved = positions, time.monotonic()
        alive()
        still = time.monotonic() - moved
        if all(view.loaded for view in views.values()) and still > unchecked_seconds:
            return views
        patience = stalled_seconds if any(view.under_way for view in views.values()) else idle_seconds
        if still > patience:
            behind = [explain(topic, view) for topic, view in views.items() if not view.complete]
            raise StalledError(f"no progress for {patience:g} s. {' '.join(behind)}")
        if sent:
            threading.Event().wait(pause)
        else:
            wait([streaming], timeout=pause)


def progress(view: TopicView) -> str:
    """Describe the state of one topic's windows in a few words."""
    table = view.table
    if table.error is not None:
        return table.error
    text = (
        f"{table.windows_loaded} of {table.windows_sealed} windows loaded"
        if table.windows_sealed
        else "no windows sealed"
    )
    text += f", {view.undecoded} not decoded yet" if view.undecoded else ""
    return f"{text}, {len(view.failed)} runs failed" if view.failed else text
