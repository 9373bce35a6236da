"""What has become of a topic so far: its windows, from the ledger, and its runs and checks, from Dagster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal

import dagster as dg
from dagster._core.storage.asset_check_execution_record import AssetCheckExecutionRecordStatus

from platform_assets.components.assets import CHECKS
from platform_assets.ledger import Ledger
from platform_assets.names import raw_key
from platform_assets.offsets import Cut, OffsetRange, TopicRanges
from platform_assets.runs import windows_in_flight

CheckState = Literal["passed", "failed", "not run"]

_CHECK_STATES: Final[Mapping[AssetCheckExecutionRecordStatus, CheckState]] = {
    AssetCheckExecutionRecordStatus.SUCCEEDED: "passed",
    AssetCheckExecutionRecordStatus.FAILED: "failed",
}
_FAILED: Final = [dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED]


@dataclass(frozen=True, slots=True)
class FailedRun:
    """A run that failed to load windows of the topic."""

    run_id: str
    windows: str


@dataclass(frozen=True, slots=True)
class TopicView:
    """One topic at one moment.

    Attributes:
        topic: its name.
        sealed: keys of the windows whose offsets are fixed, in order.
        waiting: those of them that the ledger has no receipt of.
        under_way: those of them that a queued or running run will load.
        with_rows: how many of the loaded ones have rows.
        rows: rows in all receipts.
        holes: offsets without a row in all receipts.
        ranges: the offsets of all sealed windows together.
        checks: the last result of each check of the raw table.
        failed_runs: runs since the demo began that failed, newest first.
    """

    topic: str
    sealed: tuple[str, ...]
    waiting: tuple[str, ...]
    under_way: frozenset[str]
    with_rows: int
    rows: int
    holes: int
    ranges: TopicRanges
    checks: Mapping[str, CheckState]
    failed_runs: tuple[FailedRun, ...]

    @property
    def loaded(self) -> int:
        """Number of windows that are in the table."""
        return len(self.sealed) - len(self.waiting)

    def reaches(self, ends: TopicRanges) -> bool:
        """Whether every offset below `ends` is in a sealed window."""
        reached = Cut({partition: span.end for partition, span in self.ranges.items()})
        return all(reached.at(partition) >= span.end for partition, span in ends.items())

    def settled(self, ends: TopicRanges) -> bool:
        """Whether all offsets below `ends` are loaded, no load is under way and every check has passed since."""
        checked = all(state == "passed" for state in self.checks.values())
        return self.reaches(ends) and not self.waiting and not self.under_way and checked


def observe(topic: str, ledger: Ledger, instance: dg.DagsterInstance, since: datetime) -> TopicView:
    """Look at one topic; `since` (aware) is when the demo began.

    Raises:
        PlatformError: the ledger cannot be read.
    """
    windows = ledger.windows(topic)
    keys = tuple(window.key for window in windows)
    # Before receipts and checks: where no run is under way, both are as the last run left them.
    under_way = windows_in_flight(instance, raw_key(topic), keys)
    receipts = ledger.receipts(f"raw/{topic}", list(keys)) if keys else {}
    return TopicView(
        topic=topic,
        sealed=keys,
        waiting=tuple(key for key in keys if key not in receipts),
        under_way=under_way,
        with_rows=sum(1 for receipt in receipts.values() if receipt.rows),
        rows=sum(receipt.rows for receipt in receipts.values()),
        holes=sum(receipt.missing for receipt in receipts.values()),
        ranges=_whole([window.ranges for window in windows]),
        checks=_check_states(topic, instance),
        failed_runs=_failed_runs(topic, instance, since),
    )


def _whole(ranges: Sequence[TopicRanges]) -> TopicRanges:
    """From the first window's start to the last one's end; a partition added in between starts where it appears."""
    if not ranges:
        return TopicRanges()
    starts: dict[int, int] = {}
    for window in ranges:
        for partition, span in window.items():
            starts.setdefault(partition, span.start)
    return TopicRanges({p: OffsetRange(starts[p], span.end) for p, span in ranges[-1].items()})


def _check_states(topic: str, instance: dg.DagsterInstance) -> dict[str, CheckState]:
    keys = [dg.AssetCheckKey(raw_key(topic), name) for name in CHECKS]
    records = instance.event_log_storage.get_latest_asset_check_execution_by_key(keys)
    states: dict[str, CheckState] = {}
    for key in keys:
        record = records.get(key)
        # A check that is planned, or whose run broke off, has no result.
        states[key.name] = "not run" if record is None else _CHECK_STATES.get(record.status, "not run")
    return states


def _failed_runs(topic: str, instance: dg.DagsterInstance, since: datetime) -> tuple[FailedRun, ...]:
    runs = instance.get_runs(dg.RunsFilter(statuses=_FAILED, created_after=since), limit=50)
    table = raw_key(topic)
    return tuple(FailedRun(run.run_id, _windows_of(run.tags)) for run in runs if table in (run.asset_selection or ()))


def _windows_of(tags: Mapping[str, str]) -> str:
    first = tags.get("dagster/asset_partition_range_start", tags.get("dagster/partition", "?"))
    last = tags.get("dagster/asset_partition_range_end", first)
    return first if first == last else f"{first} to {last}"
