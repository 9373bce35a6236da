"""Progress of a topic: its table's status, and its runs."""

from __future__ import annotations

from collections.abc import Mapping
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
    """A run that ended without having loaded and checked its windows."""

    run_id: str
    windows: str


@dataclass(frozen=True, slots=True)
class TopicView:
    """One topic at one moment.

    Attributes:
        table: what `platform-assets status` tells of its raw table, and of those that it is decoded into.
        under_way: number of queued or running runs of the table.
        failed: runs since the demo began that failed, newest first.
    """

    table: TableStatus
    under_way: int
    failed: tuple[FailedRun, ...]

    @property
    def undecoded(self) -> int:
        """Number of windows of the raw table that the decoded one lacks."""
        d = self.table.decoded
        return 0 if d is None else d.windows_waiting + d.windows_failed

    @property
    def checks(self) -> dict[str, str]:
        """Those of both tables by name: `passed`, `failed` or `not run`."""
        return {c.name: _result(c.passed) for c in self._all_checks}

    @property
    def check_faults(self) -> tuple[str, ...]:
        """The checks that have not passed, each with its result in a sentence."""
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
        """True if everything in the topic is in both tables and nothing is under way."""
        t = self.table
        return (
            t.lag == 0
            and t.error is None
            and not (t.windows_waiting or t.windows_failed or self.undecoded or self.under_way)
        )

    @property
    def settled(self) -> bool:
        """True if everything is loaded and every check has passed since."""
        return self.loaded and not self.check_faults

    @property
    def position(self) -> tuple[object, ...]:
        """Figures that change while loading makes progress, without windows that have no records, which come every
        minute."""
        t = self.table
        missing = t.windows_sealed - t.windows_loaded
        return t.rows, missing, t.lag, tuple(self.checks.items()), self.undecoded, self.under_way, len(self.failed)


@dataclass(frozen=True, slots=True)
class Observer:
    """Looks at the demo's topics.

    Attributes:
        since: when the demo began, aware.
        declared: the declaration of each topic.
    """

    ledger: Ledger
    cluster: Cluster
    instance: dg.DagsterInstance
    since: datetime
    declared: Mapping[str, TopicDeclaration]

    def look(self) -> dict[TopicName, TopicView]:
        """Every topic as it is now. What cannot be found out is named in its table's status, and never raised."""
        # Before the tables: where no run is under way, they and their checks are as the last run left them.
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
    """The first line of a check's description, which is Markdown."""
    return headline.partition("\n")[0].replace("**", "").strip()


def _windows_of(tags: Mapping[str, str]) -> str:
    first = tags.get(ASSET_PARTITION_RANGE_START_TAG, tags.get(PARTITION_NAME_TAG, "unknown windows"))
    last = tags.get(ASSET_PARTITION_RANGE_END_TAG, first)
    return first if first == last else f"{first} to {last}"
