"""The row of `platform-assets status` for a topic's table of changes, built from the ledger and from Dagster's records."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

import dagster as dg
import pyarrow.compute as pc

from platform_assets.ledger import decisions, unloaded
from platform_assets.ledger.store import Ledger
from platform_assets.model.declaration import TopicDeclaration
from platform_assets.orchestration import dagster_records, health, names
from platform_assets.orchestration.health import CheckStatus
from platform_assets.windows.change import changing

_JUDGED: Final = 1_000


@dataclass(frozen=True, slots=True)
class ChangesStatus:
    """The table `changes/<topic>`. The field names are also those of the JSON and must not change.

    `windows_waiting` counts decoded windows whose changes were never made, and `windows_stale` those whose changes were
    made from an earlier load of the decoded window or with another declaration, or were lost with a damaged file. `rows`
    is the total over all windows. `problems` says what keeps changes from being made.
    """

    table: str
    windows_made: int
    windows_waiting: int
    windows_stale: int
    rows: int
    newest_window: str | None
    checks: tuple[CheckStatus, ...]
    problems: tuple[str, ...] = ()

    @property
    def healthy(self) -> bool:
        """True if nothing prevents changes from being made and no check fails; a warning does not count as a failure."""
        return not self.problems and not any(c.failed for c in self.checks)


def collect(
    declaration: TopicDeclaration, ledger: Ledger, instance: dg.DagsterInstance | None, now: datetime
) -> ChangesStatus:
    """Return the status of a topic's table of changes. Raises whatever reading the ledger raises."""
    d, table = declaration, declaration.changes_table
    newest_edge = ledger.newest_edges([d.topic]).get(d.topic)
    missing = {} if newest_edge is None else unloaded.find(ledger, table, newest_edge).windows
    waiting, stale = changing.unmade(ledger, d, missing), changing.stale_windows(ledger, d)
    rows = ledger.commit_rows(table, columns=["rows", "recorded_at"])
    newest = pc.max(rows["window"]).as_py() if rows.num_rows else None
    judged = health.latest_checks(instance, names.changes_check_keys(d))
    problems: list[str] = []
    if instance is not None and not d.paused:
        if (waiting or stale) and dagster_records.blocked_by(instance, names.blocking_changes(d)):
            problems.append(
                f"changes of {len({*waiting, *stale}):,} windows are not made, because a check of {d.decoded_table} failed. Follow "
                "that check's remedy; the sensor will then request the windows"
            )
        elif waiting or stale:
            keys = sorted({*waiting, *stale})[:_JUDGED]
            under_way = dagster_records.windows_in_flight(instance, names.table_key(table), keys)
            parked = decisions.parking(ledger.lake, table).parked
            windows = health.windows(d, instance, keys, under_way, parked, table)
            problems += health.failing(windows, "have no current changes")
        since = pc.min(rows["recorded_at"]).as_py()
        problems += health.checks_not_run(table, judged, newest, since, health.patience(d), now)
    return ChangesStatus(
        table=table.name,
        windows_made=len(set(rows["window"].to_pylist())),
        windows_waiting=len(waiting),
        windows_stale=len(stale),
        rows=pc.sum(rows["rows"]).as_py() or 0,
        newest_window=newest,
        checks=judged,
        problems=tuple(problems),
    )
