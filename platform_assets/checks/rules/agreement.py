"""`agrees_with_ledger`: the table's log, the ledger and the orchestrator agree on every window.

The Delta commit is the source of truth. Each way in which one of the three can lag behind or be ahead has its own
message and remedy. Only the newest commits and events are compared in detail. `no_gaps` compares older windows with
their data files. Windows that have not changed since the three agreed on them are not compared again, so the cost of
this check does not grow with the table. `platform-assets audit` compares all windows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from platform_assets.checks.baseline.history import History, Mask
from platform_assets.checks.check import Check
from platform_assets.checks.evaluation import Evaluation
from platform_assets.checks.facts import NEWEST_COMMITS, Facts
from platform_assets.checks.findings import CheckResult, Finding, FindingKind, counted
from platform_assets.errors import REPAIR_LEDGER
from platform_assets.lake import load_log
from platform_assets.lake.load_log import LoadCommit
from platform_assets.ledger.entries import UTC_MICROS, Receipt, receipts_in

NAME = "agrees_with_ledger"

_TICK: Final = timedelta(minutes=2)
"""Upper limit for the duration of a tick. Dagster ends a tick after one minute, and records the tick's reports when it
ends."""


@dataclass(frozen=True, slots=True)
class Accounts:
    """Statements of the table's log, the ledger and the orchestrator.

    `receipts` has the receipts of all windows that are not `older`. `commits` has the newest load of each window among
    the newest commits, down to version `since`. `reported` has, for each reported window that is not `older`, the load
    id in the event; it is None if the event has no load id.
    """

    facts: Facts
    receipts: Mapping[str, Receipt]
    commits: Mapping[str, LoadCommit]
    since: int
    version: int
    reported: Mapping[str, str | None] | None
    busy: frozenset[str] = frozenset()
    being_reported: frozenset[str] = frozenset()
    """Windows without offsets whose receipts were recorded by a tick so recently that the tick may still be running.
    Dagster gets the reports only when the tick ends."""

    def is_idle(self, key: str) -> bool:
        """Return True if the window is sealed, and neither waits for its load nor is being loaded."""
        return key in self.facts.windows and key not in self.facts.waiting and key not in self.busy


def may_count(history: History) -> Mask:
    """Return True for windows whose receipts list the table's files, and do not refer to a version that the table never
    had."""
    versions = history.by_window("table_version")
    known = np.array([version is None or version <= history.version for version in versions], dtype=bool)
    return known & history.files_as_recorded


def evaluate(e: Evaluation) -> CheckResult:
    """Gather the three statements, and evaluate them."""
    facts = e.facts()
    older = facts.older
    commits, since, version = _newest_loads(e, facts)
    receipts = {} if facts.entries is None else {r.window.key: r for r in receipts_in(facts.entries)}
    reported = e.orchestration.reported(None if older.until is None else sorted({*receipts, *facts.windows}))
    # While a window is being loaded, one of the three may be ahead for a moment.
    busy = facts.in_flight | set(e.orchestration.in_flight(list(facts.windows)))
    silent = _recorded_lately(facts.entries, "empty", datetime.now(UTC))
    return check_result(Accounts(facts, receipts, commits, since, version, reported, frozenset(busy), silent))


def _recorded_lately(entries: pa.Table | None, kind: str, now: datetime) -> frozenset[str]:
    """Return the windows for which the ledger has an entry of this kind that is so recent that the tick that wrote it
    may still be running."""
    if entries is None:
        return frozenset()
    lately = pc.greater(entries["recorded_at"], pa.scalar(now - _TICK, UTC_MICROS))
    return frozenset(entries.filter(pc.and_(lately, pc.equal(entries["kind"], kind)))["window"].to_pylist())


def _newest_loads(e: Evaluation, facts: Facts) -> tuple[dict[str, LoadCommit], int, int]:
    """Return three values: the newest load of each window among the newest commits, the oldest version that was read,
    and the newest version."""
    if facts.baseline is not None:
        return dict(facts.baseline.loads), facts.baseline.since, facts.baseline.table.version
    if not load_log.exists(e.table):
        return {}, -1, -1
    version = load_log.version(e.table)
    return load_log.newest_loads(e.table, NEWEST_COMMITS), max(version - NEWEST_COMMITS + 1, 0), version


def check_result(a: Accounts) -> CheckResult:
    """Evaluate the three statements. No I/O."""
    findings = (*_ledger_and_table(a), *_orchestrator(a))
    figures = (
        ("windows_in_ledger", a.facts.older.windows + len(a.receipts)),
        ("windows_compared", len(a.receipts)),
        ("table_version", a.version),
    )
    if findings:
        windows = len({f.window for f in findings})
        headline = f"Table log, ledger and orchestrator disagree on {counted(windows, 'window')}."
    else:
        by = "table log, ledger and orchestrator" if a.reported is not None else "table log and ledger"
        headline = f"Agreed: {by} agree on {counted(len(a.receipts), 'window')}"
        older = a.facts.older.windows
        headline += f"; {older:,} older windows have not changed since they were last checked." if older else "."
    return CheckResult(NAME, a.facts.table, findings, headline, figures)


def _ledger_and_table(a: Accounts) -> Iterator[Finding]:
    for key, commit in sorted(a.commits.items()):
        receipt = a.receipts.get(key)
        if key in a.facts.waiting:
            continue
        if (
            receipt is None
            or receipt.table_version is None
            or (receipt.table_version < commit.version and receipt.load_id != commit.metadata.load_id)
        ):
            yield _finding(
                a, "ledger behind", key,
                f"version {commit.version} of the table contains load {commit.metadata.load_id[:8]}, but the ledger has "
                + ("no receipt for the window" if receipt is None else f"version {receipt.table_version}"),
                "A run ended after the commit but before it recorded the load in the ledger. Materialize partition "
                "{key} of {table}: the run records the load "
                "from its commit.",
            )  # fmt: skip
        elif receipt.load_id == commit.metadata.load_id and receipt.ranges != commit.metadata.ranges:
            yield _finding(
                a, "ledger ahead", key,
                f"the receipt has ranges {receipt.ranges.triples()}, but the commit has "
                f"{commit.metadata.ranges.triples()}",
                REPAIR_LEDGER,
            )  # fmt: skip
    for key, receipt in sorted(a.receipts.items()):
        if receipt.table_version is None or not a.is_idle(key):
            continue
        commit_found = a.commits.get(key)
        missing = (
            receipt.kind == "load"
            and receipt.table_version >= a.since
            and (commit_found is None or commit_found.version < receipt.table_version)
        )
        if receipt.table_version > a.version or missing:
            yield _finding(
                a, "ledger ahead", key,
                f"the receipt refers to load {receipt.load_id[:8]} in version {receipt.table_version}, but the "
                f"table's log ends at version {a.version} and contains no such load",
                "The table was rolled back or replaced: materialize partition {key} of {table}. If that finds "
                "nothing to do, the ledger was edited: move _ledger away and run `platform-assets rebuild-ledger`.",
            )  # fmt: skip


def _orchestrator(a: Accounts) -> Iterator[Finding]:
    if a.reported is None:
        return
    for key in sorted(set(a.receipts) - set(a.reported)):
        if a.is_idle(key) and key not in a.being_reported:
            yield _finding(
                a, "orchestrator behind", key,
                f"the ledger records a load of {a.receipts[key].rows:,} rows, but Dagster has no materialization of the partition",
                "A run ended before it could report the load: materialize partition {key} of {table}; nothing is "
                "written twice.",
            )  # fmt: skip
    for key, load_id in sorted(a.reported.items()):
        if load_id is None and key in a.receipts:
            continue
        receipt, commit = a.receipts.get(key), a.commits.get(key)
        if not a.is_idle(key) or (commit is not None and commit.metadata.load_id == load_id):
            # Dagster shows what the table has: if the ledger does not, it is the ledger that is behind.
            continue
        if receipt is None or (load_id is not None and load_id != receipt.load_id and receipt.kind == "load"):
            yield _finding(
                a, "orchestrator ahead", key,
                f"Dagster shows load {(load_id or 'unnamed')[:8]}, but the ledger has "
                + ("no load of the window" if receipt is None else f"load {receipt.load_id[:8]}"),
                "The table is the source of truth: materialize partition {key} of {table} so that all three agree.",
            )  # fmt: skip


def _finding(a: Accounts, kind: FindingKind, key: str, detail: str, remedy: str) -> Finding:
    return Finding(kind, a.facts.topic, key, None, (), detail, remedy.format(key=key, table=a.facts.table))


CHECK = Check(NAME, "The table's log, the ledger and Dagster agree on every window.", evaluate, may_count)
