"""Deletion of old runs from Dagster's store without losing what Dagster shows about partitions, assets and checks.

When Dagster deletes a run, it also deletes the run's materializations, and then treats the partitions as missing. So
pruning keeps the newest event of each kind without its run: the last materialization of each partition and the last
evaluations of each check. It deletes the run's record, the run's log, and events that were superseded by events of
later runs.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

import dagster as dg
from dagster._core.execution.backfill import BulkActionsFilter, BulkActionStatus
from dagster._core.storage.asset_check_execution_record import AssetCheckExecutionRecordStatus
from dagster._core.storage.dagster_run import FINISHED_STATUSES
from dagster._core.storage.tags import BACKFILL_ID_TAG, REPOSITORY_LABEL_TAG

from platform_assets.checks.findings import counted
from platform_assets.orchestration import dagster_records, events
from platform_assets.orchestration.maintenance.event_store import (
    MATERIALISED,
    PLANNED,
    Deleted,
    Evaluation,
    Event,
    EventStore,
)
from platform_assets.orchestration.names import is_own, read_run_tag

DEFAULT_KEEP: Final = timedelta(days=30)
DEFAULT_SECONDS: Final = 600.0

PROTECTED: Final = timedelta(days=1)
"""Minimum age at which a run can be deleted. Until then, an interrupted tick may request the run again by its id."""
FAILURES_ASKED: Final = events.LOOKED_BACK
"""Minimum age at which a failed run can be deleted. Until then, ticks query which windows the run loaded without
reporting them."""
_PAGE: Final = 100

_FAILED: Final = (dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED)
_UNSETTLED: Final = [BulkActionStatus.REQUESTED, BulkActionStatus.CANCELING, BulkActionStatus.FAILING]


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits on which runs stay, and on how long the deletion takes.

    Attributes:
        keep: time to keep a run after its end.
        most: maximum number of finished runs to keep, whatever their age; None for no limit.
        seconds: start no further run after this time; the next call continues.
    """

    keep: timedelta = DEFAULT_KEEP
    most: int | None = None
    seconds: float = DEFAULT_SECONDS


@dataclass(frozen=True, slots=True)
class Pruned:
    """Result of pruning: what was deleted or, with `dry_run`, what would be deleted.

    Attributes:
        runs: number of runs.
        spared: number of runs beyond the budget that were kept, by reason.
        deleted: events, and bytes of texts and files.
        left: finished runs that stay.
        complete: False if time ran out.
    """

    runs: int
    spared: Mapping[str, int]
    deleted: Deleted
    left: int
    complete: bool
    dry_run: bool

    def text(self) -> str:
        """The result in a few lines."""
        did = "would delete" if self.dry_run else "deleted"
        lines = [
            f"{did} {counted(self.runs, 'run')}, {counted(self.deleted.events, 'event')}, {self.deleted.bytes:,} bytes; "
            f"{counted(self.left, 'finished run')} kept",
            *(f"{counted(number, 'run')} spared: {why}" for why, number in self.spared.items()),
        ]
        return "\n".join(
            [*lines, *([] if self.complete else ["the time limit was reached; run this again to continue"])]
        )


@dataclass
class _Page:
    """Some of the oldest runs, and the events and evaluations that they reported."""

    records: Sequence[dg.RunRecord]
    events: Mapping[str, list[Event]]
    evaluations: Mapping[str, list[Evaluation]]
    newest: Mapping[tuple[str, str], Mapping[str | None, int]] = field(default_factory=dict)


def label_of(location: str) -> str:
    """Return the tag with which Dagster marks the runs of a code location. If the location's name contains @, it is
    already such a tag."""
    return location if "@" in location else f"__repository__@{location}"


def prune(
    instance: dg.DagsterInstance,
    location: str,
    budget: Budget,
    now: datetime,
    *,
    dry_run: bool = False,
    but: str | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Pruned:
    """Delete the finished runs of the code location `location` that are beyond `budget` at `now`, oldest first, except
    the run `but`.

    If pruning is interrupted, the next call finishes the work, because the record of a run is deleted last.

    Raises:
        ConfigurationError: the instance does not keep its events in an SQL store.
    """
    begun = clock()
    store = EventStore.of(instance)
    of_location = dg.RunsFilter(statuses=FINISHED_STATUSES, tags={REPOSITORY_LABEL_TAG: label_of(location)})
    total = instance.get_runs_count(of_location)
    beyond = 0 if budget.most is None else max(total - budget.most, 0)
    judge = _Judge(instance, store, now, but)
    pruned, spared, deleted, complete = 0, Counter[str](), Deleted(), True
    for page in _pages(instance, store, of_location, beyond, now - budget.keep):
        for record in page.records:
            if clock() - begun > budget.seconds:
                complete = False
                break
            why = judge.spares(record, page)
            if why is not None:
                spared[why] += 1
                continue
            deleted += _delete(instance, store, record.dagster_run.run_id, page, dry_run)
            pruned += 1
        if not complete:
            break
    if complete:
        before = now - max(budget.keep, PROTECTED)
        deleted += _without_run(store, before, dry_run) + store.delete_leftovers(instance, before, dry_run=dry_run)
    return Pruned(pruned, dict(spared), deleted, total - (0 if dry_run else pruned), complete, dry_run)


def _pages(
    instance: dg.DagsterInstance, store: EventStore, wanted: dg.RunsFilter, beyond: int, before: datetime
) -> Iterator[_Page]:
    """Yield the runs that ended before `before` and the oldest `beyond` runs, oldest first, in pages."""
    number = 0
    records = instance.get_run_records(wanted, limit=_PAGE, ascending=True)
    while records:
        # Queried before the runs of this page are deleted, because a cursor is a run.
        more = instance.get_run_records(wanted, limit=_PAGE, ascending=True, cursor=records[-1].dagster_run.run_id)
        chosen = [r for n, r in enumerate(records, number) if n < beyond or ended_at(r) < before]
        if chosen:
            yield _page(store, chosen)
        # Runs end roughly in the order in which they were requested; the next pruning finds an exception.
        elif number >= beyond:
            return
        number += len(records)
        records = more


def _page(store: EventStore, records: Sequence[dg.RunRecord]) -> _Page:
    ids = [record.dagster_run.run_id for record in records]
    events: defaultdict[str, list[Event]] = defaultdict(list)
    evaluations: defaultdict[str, list[Evaluation]] = defaultdict(list)
    for event in store.events(ids):
        events[event.run_id].append(event)
    for evaluation in store.evaluations(ids):
        evaluations[evaluation.run_id].append(evaluation)
    return _Page(records, events, evaluations, _newest(store, [e for found in events.values() for e in found]))


def _newest(store: EventStore, events: Sequence[Event]) -> dict[tuple[str, str], dict[str | None, int]]:
    """Return, by asset and kind, the newest event of each partition that these events mention. Materializations are
    included for each asset."""
    partitions: defaultdict[tuple[str, str], set[str | None]] = defaultdict(set)
    for event in events:
        partitions[event.asset, event.kind].add(event.partition)
        partitions[event.asset, MATERIALISED].add(event.partition)
    return {key: store.newest_by_partition(*key, named) for key, named in partitions.items()}


def ended_at(record: dg.RunRecord) -> datetime:
    """Return the time at which the run ended."""
    if record.end_time is not None:
        return datetime.fromtimestamp(record.end_time, UTC)
    return record.update_timestamp.replace(tzinfo=UTC)


def _is_current(event: Event, newest: Mapping[tuple[str, str], Mapping[str | None, int]]) -> bool:
    """Return True if no later event replaces this one for its partition; a materialization replaces a plan."""
    if newest[event.asset, event.kind].get(event.partition) != event.id:
        return False
    return event.kind != PLANNED or newest[event.asset, MATERIALISED].get(event.partition, -1) < event.id


@dataclass
class _Judge:
    """Decides which runs must be kept."""

    instance: dg.DagsterInstance
    store: EventStore
    now: datetime
    but: str | None
    _backfills: frozenset[str] = frozenset()
    _newest: frozenset[str | None] = frozenset()
    _failures: dict[str, frozenset[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        under_way = self.instance.get_backfills(filters=BulkActionsFilter(statuses=_UNSETTLED))
        self._backfills = frozenset(backfill.backfill_id for backfill in under_way)
        newest = [record.dagster_run.run_id for record in self.instance.get_run_records(limit=1)]
        self._newest = frozenset([*newest, self.store.newest_run(), self.but])

    def spares(self, record: dg.RunRecord, page: _Page) -> str | None:
        """Return the reason why the run must be kept; None if it can be deleted."""
        run = record.dagster_run
        age, failed = self.now - ended_at(record), run.status in _FAILED
        if run.run_id in self._newest or age < PROTECTED:
            return "ended within a day, or is the newest"
        if failed and age < FAILURES_ASKED:
            return "failed within a week"
        if run.tags.get(BACKFILL_ID_TAG) in self._backfills:
            return "of a backfill that has not ended"
        if failed and self._is_open_try(run, page):
            return "an attempt at a partition that was not loaded since"
        if self._is_last_of_asset(run, page):
            return "the last of an asset"
        if self._is_last_plan_of_check(run, page):
            return "the last of a check, which it did not evaluate"
        return None

    def _is_open_try(self, run: dg.DagsterRun, page: _Page) -> bool:
        """Return True if the run should have loaded a partition that has not been loaded since. Retries and `status`
        count such runs."""
        planned = [e for e in page.events.get(run.run_id, []) if e.kind == PLANNED]
        if any(_is_current(e, page.newest) for e in planned):
            return True
        table = run.tags.get(dagster_records.TABLE_TAG)
        if table is None or run.run_id not in self._counted(table):
            return False
        prefix, ref = read_run_tag(table)
        if ref is None or any(page.newest[e.asset, MATERIALISED].get(e.partition, -1) < e.id for e in planned):
            return True
        listed = frozenset((dagster_records.listed_in(run) or {}).get(ref.topic, ()))
        if not listed:
            return False
        asset = dg.AssetKey([*prefix, *ref.parts])
        return not listed <= dagster_records.reported_partitions(self.instance, asset, sorted(listed))

    def _counted(self, table: str) -> frozenset[str]:
        """Return the failed runs of a table that the retry logic takes into account."""
        if table not in self._failures:
            found = dagster_records.newest_failed(self.instance, [table])
            self._failures[table] = frozenset(record.dagster_run.run_id for record in found)
        return self._failures[table]

    def _is_last_of_asset(self, run: dg.DagsterRun, page: _Page) -> bool:
        """Return True if Dagster's catalog shows this run, with its status and tags, for an asset."""
        keys = {dg.AssetKey.from_db_string(e.asset) for e in page.events.get(run.run_id, [])} - {None}
        records = self.instance.get_asset_records([key for key in keys if key is not None]) if keys else []
        return any(record.asset_entry.last_run_id == run.run_id for record in records)

    def _is_last_plan_of_check(self, run: dg.DagsterRun, page: _Page) -> bool:
        planned = AssetCheckExecutionRecordStatus.PLANNED.value
        return any(
            e.status == planned and e.id == max(self.store.newest_evaluations(e.asset, e.check), default=None)
            for e in page.evaluations.get(run.run_id, [])
        )


def _delete(instance: dg.DagsterInstance, store: EventStore, run_id: str, page: _Page, dry_run: bool) -> Deleted:
    evaluations = page.evaluations.get(run_id, [])
    kept_evaluations = {e.id for e in evaluations if e.id in store.newest_evaluations(e.asset, e.check)}
    kept = {e.id for e in page.events.get(run_id, []) if _is_current(e, page.newest)}
    kept |= {e.event for e in evaluations if e.id in kept_evaluations and e.event is not None}
    found = store.delete(run_id, kept, kept_evaluations, dry_run=dry_run)
    if not dry_run:
        instance.compute_log_manager.delete_logs(prefix=[run_id])
        instance.run_storage.delete_run(run_id)
    return found


def _is_own(asset: str) -> bool:
    """Return True if the platform made the asset, with this code location's prefix."""
    key = dg.AssetKey.from_db_string(asset)
    return key is not None and is_own(key)


def _without_run(store: EventStore, before: datetime, dry_run: bool) -> Deleted:
    """Delete events that do not belong to a run and were superseded by later events. Most of them are checks of idle
    topics."""
    reported, judged = store.without_run(before)
    # Such events belong to no code location.
    events = [e for e in reported if _is_own(e.asset)]
    evaluations = [e for e in judged if _is_own(e.asset)]
    newest = _newest(store, events)
    outlived = [e for e in evaluations if e.id not in store.newest_evaluations(e.asset, e.check)]
    doomed = {e.id for e in events if not _is_current(e, newest)} | {e.event for e in outlived if e.event is not None}
    return store.delete_without_run(doomed, [e.id for e in outlived], before, dry_run=dry_run)
