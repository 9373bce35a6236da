"""The row of `platform-assets status` for a topic's state, built from the tables' logs and from Dagster's records."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import dagster as dg

from platform_assets.checks.findings import counted
from platform_assets.errors import NoChangesError
from platform_assets.lake import delta_log
from platform_assets.ledger import decisions, unloaded
from platform_assets.ledger.store import Ledger
from platform_assets.model.declaration import TopicDeclaration
from platform_assets.model.state import StateDeclaration
from platform_assets.model.tables import TableRef
from platform_assets.orchestration import dagster_records, health, names
from platform_assets.orchestration.health import CheckStatus
from platform_assets.windows.state.folding import Pending, TopicState


@dataclass(frozen=True, slots=True)
class StateStatus:
    """The table `state/<topic>`. The field names are also those of the JSON and must not change.

    `pending_windows` and `pending_rows` count the changes that it lacks; `is_due` is true if the next fold should not wait
    for more. `through` is the newest window in it; None before the first fold. `problems` says what keeps changes from
    being folded. `waits_for` says which changes and windows it lacks, and the next step for each of them. `deleted_keys`
    is the number of deleted keys that are kept: if `collected` is not None, those that were deleted after that window.
    """

    table: str
    rows: int
    pending_windows: int
    pending_rows: int
    is_due: bool
    through: str | None
    checks: tuple[CheckStatus, ...]
    problems: tuple[str, ...] = ()
    waits_for: tuple[str, ...] = ()
    deleted_keys: int = 0
    collected: str | None = None

    @property
    def healthy(self) -> bool:
        """True if nothing prevents folds and no check fails; a warning does not count as a failure."""
        return not self.problems and not any(c.failed for c in self.checks)


def collect(
    declaration: TopicDeclaration, state: StateDeclaration, ledger: Ledger, instance: dg.DagsterInstance | None
) -> StateStatus:
    """Return the status of a topic's state. Raises whatever reading the tables raises."""
    table = declaration.state_tables[0]
    judged = health.latest_checks(instance, names.state_check_keys(declaration))
    try:
        topic = TopicState(declaration.topic, state, ledger.lake)
        found = topic.pending() if delta_log.exists(topic.changes_folder) else None
    except NoChangesError:
        found = None
    if found is None:
        return StateStatus(table.name, 0, 0, 0, is_due=False, through=None, checks=judged)
    problems: list[str] = []
    if instance is not None and not declaration.paused and found.is_due:
        if dagster_records.blocked_by(instance, names.blocking_state(declaration)):
            problems.append(
                f"changes are not folded, because a check of {declaration.changes_table} failed. Follow that check's remedy; the "
                "sensor then requests the fold"
            )
        elif (run := _failed(instance, declaration)) is not None:
            problems.append(
                f"the last fold failed in run {run}; the sensor requests it again. Its log says why, or run `platform-assets "
                f"fold {declaration.topic}`"
            )
    return StateStatus(
        table=table.name,
        rows=found.state_rows,
        pending_windows=len(found.windows),
        pending_rows=found.rows,
        is_due=found.is_due,
        through=found.through or None,
        checks=judged,
        problems=tuple(problems),
        waits_for=(*_waiting(declaration, found), *_missing(declaration, ledger, found.through)),
        deleted_keys=found.deleted_keys,
        collected=found.collected or None,
    )


def _waiting(declaration: TopicDeclaration, pending: Pending) -> Iterator[str]:
    """Yield what is known about changes that are made, but not folded."""
    load = f"`platform-assets load {declaration.changes_table}"
    fold = _requested(declaration, "the fold", f"`platform-assets fold {declaration.topic}`")
    if pending.waits:
        commands = f"{load} --stale`, and {load} WINDOW` for windows without changes"
        yield f"nothing is folded yet: {pending.waits}; {_requested(declaration, 'these changes', commands)}"
    elif pending.rebuild:
        what = f"made from all changes ({pending.rebuild}), {counted(len(pending.windows), 'window')}"
        yield f"it is to be {what}: {fold}"
    elif pending.windows:
        changes = counted(pending.rows, "change")
        what = f"{counted(len(pending.windows), 'window')} with {changes}, from {pending.windows[0]} on"
        if pending.is_due:
            yield f"{what}: {fold}"
        else:
            now = f"To apply them now, run `platform-assets fold {declaration.topic}`"
            yield f"{what}: a fold is due from {counted(pending.due_from, 'change')} on. {now}"


def _requested(declaration: TopicDeclaration, what: str, command: str) -> str:
    return f"run {command}" if declaration.paused else f"the sensor requests {what}, or run {command}"


def _missing(declaration: TopicDeclaration, ledger: Ledger, through: str) -> Iterator[str]:
    """Yield a sentence for each reason why windows up to `through`, the newest one in the state, have no changes."""
    d = declaration
    edge = ledger.newest_edges([d.topic]).get(d.topic)
    if edge is None:
        return
    tables = (d.raw_table, d.decoded_table, d.changes_table)
    lacking = {d.changes_table: unloaded.find(ledger, d.changes_table, edge).windows}
    left = [key for key in lacking[d.changes_table] if key <= through]
    if not left:
        return
    lacking |= {table: unloaded.find(ledger, table, edge).windows for table in tables[:-1]}
    parkings = {table: decisions.parking(ledger.lake, table).parked for table in tables}
    found: dict[tuple[TableRef, bool], list[str]] = {}
    for key in left:
        # The first table on the way that lacks the window.
        table = next(each for each in tables if key in lacking[each])
        found.setdefault((table, key in parkings[table]), []).append(key)
    for (table, is_parked), keys in found.items():
        number = "older window is" if len(keys) == 1 else "older windows are"
        what = f"{len(keys):,} {number} {'parked' if is_parked else 'not yet'} in {table}, for example {keys[0]}"
        if is_parked:
            yield f"{what}: `platform-assets unpark {table} {keys[0]}` brings it back"
        else:
            yield f"{what}: {_requested(d, 'it', f'`platform-assets load {table} {keys[0]}`')}"


def _failed(instance: dg.DagsterInstance, declaration: TopicDeclaration) -> str | None:
    """Return the id of the newest run that folded the state, if it failed."""
    runs = instance.get_runs(dg.RunsFilter(tags={names.STATE_TAG: names.state_tag(declaration)}), limit=1)
    return runs[0].run_id if runs and runs[0].status == dg.DagsterRunStatus.FAILURE else None
