"""A topic's state in Dagster: its assets, which have no partitions, their checks, and the runs that a tick requests."""

# No postponed annotations here: Dagster reads those of the functions below.
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Any, Final

import dagster as dg

from platform_assets.checks import state as checks
from platform_assets.checks.findings import CheckResult
from platform_assets.errors import NoChangesError, PlatformError
from platform_assets.lake import delta_log, state_table
from platform_assets.ledger import unloaded
from platform_assets.ledger.store import Ledger
from platform_assets.model.declaration import TopicDeclaration
from platform_assets.model.logs import logger
from platform_assets.model.state import StateDeclaration
from platform_assets.model.tables import StateRef
from platform_assets.model.untrusted import line, markdown
from platform_assets.orchestration import dagster_records, names
from platform_assets.orchestration.names import STATE_TAG, fold_op, state_checks_op, state_tag, table_key
from platform_assets.orchestration.resources import LakeResource
from platform_assets.orchestration.run_steps import as_dagster
from platform_assets.windows.state.folding import FoldOutcome, Pending, TopicState

_log = logger(__name__)

_FIRST_WAIT: Final = timedelta(minutes=1)
_LONGEST_WAIT: Final = timedelta(hours=1)
"""Time after which a failed run is requested again: at first, and at most."""
_LONGEST_HOLD: Final = timedelta(minutes=10)
"""Time for which a fold that is due waits for windows that are being loaded, at most."""
_LAST_RUNS: Final = 10


def build_asset(
    declaration: TopicDeclaration,
    state: StateDeclaration,
    schema: Mapping[StateRef, Mapping[str, Any]],
    group: str,
    owners: Sequence[str],
) -> dg.AssetsDefinition:
    """Build the assets. `schema` has the metadata of each table's columns."""
    topic, source = declaration.topic, table_key(declaration.changes_table)
    live, dead, *history = declaration.state_tables
    which = "last" if state.keep == "last" else "first"
    key = ", ".join(state.key)
    texts = {
        live: f"The current row of each key ({key}) of Kafka topic {topic}: its {which} record of all windows, unless that "
        "deletes the key. It is a maximum over a total order, so the order in which windows are applied does not matter.",
        dead: f"The keys ({key}) of Kafka topic {topic} that are deleted, and the position of the record that deleted each. "
        "Later windows need it, so that a late record does not bring a deleted key back.",
    }
    for table in history:
        texts[table] = (
            f"All rows and deletes of each key ({key}) of Kafka topic {topic}, with the windows in which each counted. The rows that "
            f"counted in a window are those of {live.name} as it was when it had all windows up to that one."
        )
    specs = [
        dg.AssetSpec(
            table_key(table),
            deps=[source],
            group_name=group,
            kinds={"delta"},
            owners=list(owners),
            code_version=state.digest,
            description=markdown(text),
            metadata=dict(schema[table]),
        )
        for table, text in texts.items()
    ]

    @dg.multi_asset(specs=specs, name=fold_op(topic), op_tags={STATE_TAG: live.name})
    def _fold(context: dg.AssetExecutionContext, lake: LakeResource) -> Iterator[dg.MaterializeResult[Any]]:
        found = TopicState(topic, state, lake.lake(), context.run.run_id)
        # Rows that were found to be wrong may be those of any key.
        is_wrong = dagster_records.blocked_by(context.instance, names.state_check_keys(declaration))
        try:
            done = found.fold(rebuild=is_wrong)
        except PlatformError as e:
            raise as_dagster({live.name: e}, str(e), context.retry_number) from e
        context.log.info(line(f"{live}: {summary(done)}"))
        for table in declaration.state_tables:
            yield dg.MaterializeResult(
                asset_key=table_key(table),
                metadata=_metadata(found, done, table),
                data_version=dg.DataVersion(_data_version(found)),
            )

    return _fold


def summary(done: FoldOutcome) -> str:
    """Describe a fold in one sentence."""
    earlier = "" if done.history is None else f", and {done.history:,} rows in the history"
    since = f" (those deleted after window {done.collected})" if done.collected else ""
    size = (
        f"{done.rows:,} rows and {done.deleted:,} deleted keys{since}{earlier}, through window {done.through or 'none'}"
    )
    if done.made == "unchanged":
        return f"nothing to apply: {size}"
    windows = f"{len(done.windows):,} window" + ("" if len(done.windows) == 1 else "s")
    how = f"made from all changes ({done.reason})" if done.made == "rebuild" else "folded"
    return f"{windows} with {done.changes:,} changes {how} in {done.seconds:.1f} s: {size}"


def _metadata(state: TopicState, done: FoldOutcome, table: StateRef) -> dict[str, Any]:
    folder = state.lake.table(table)
    rows = {"state": done.rows, "state_deleted": done.deleted, "history": done.history or 0}[table.kind]
    return {
        "dagster/row_count": rows,
        "summary": line(summary(done)),
        "made": done.made,
        "reason": line(done.reason),
        "windows_applied": len(done.windows),
        "changes_applied": done.changes,
        "through": done.through,
        "rows": done.rows,
        "deleted_keys": done.deleted,
        "deleted_keys_collected_to": done.collected or "none",
        "seconds": done.seconds,
        "table_version": delta_log.version(folder),
        "path": dg.MetadataValue.path(str(folder)),
    }


def _data_version(state: TopicState) -> str:
    fold = state_table.opened(state.live_folder).fold
    what = [] if fold is None else [fold.declaration, fold.changes_id, fold.changes.version]
    return sha256(json.dumps(what).encode()).hexdigest()[:32]


def build_checks(declaration: TopicDeclaration, state: StateDeclaration) -> dg.AssetChecksDefinition:
    """Build all checks of the state in one step, because they read the same logs."""
    live, _, *history = declaration.state_tables
    texts = {
        checks.COMPLETE: "Every window of the changes, up to the newest one, is applied, and both tables are as the newest fold "
        "committed them.",
        checks.ONE_ROW: "Each key is in one row, either of the live keys or of the deleted keys.",
        checks.EQUALS: f"{checks.KEYS} keys, compared with all changes, have the row that counts.",
    }
    specs = [
        dg.AssetCheckSpec(n, asset=table_key(live), blocking=True, description=markdown(t)) for n, t in texts.items()
    ]
    text = f"The rows of {checks.KEYS} keys, compared with all changes, are those that counted one after another."
    for table in history:
        specs.append(
            dg.AssetCheckSpec(checks.HISTORY, asset=table_key(table), blocking=True, description=markdown(text))
        )

    @dg.multi_asset_check(specs=specs, name=state_checks_op(declaration.topic), can_subset=True)
    def _evaluate(context: dg.AssetCheckExecutionContext, lake: LakeResource) -> Iterator[dg.AssetCheckResult]:
        wanted = {key.name for key in context.selected_asset_check_keys}
        for found in checks.results(declaration, state, Ledger(lake.lake()), seed=context.run.run_id):
            if found.check in wanted:
                yield as_result(declaration, found)

    return _evaluate


def build_job(declaration: TopicDeclaration) -> Any:
    """Build the job that folds changes into the state. It is apart from the job that loads windows: otherwise a backfill
    would fold once for each partition, and each fold may write the whole state."""
    tables = ", ".join(table.name for table in declaration.state_tables)
    return dg.define_asset_job(
        names.fold_job(declaration.topic),
        selection=dg.AssetSelection.assets(*names.state_keys(declaration)),
        tags={STATE_TAG: state_tag(declaration)},
        description=markdown(f"Folds changes of {declaration.changes_table} into {tables}, and checks them."),
    )


def as_result(declaration: TopicDeclaration, found: CheckResult) -> dg.AssetCheckResult:
    """Return a check's result for Dagster. Only what is wrong is an error; work that is not done yet is a warning."""
    text = found.headline
    if found.findings:
        worst = sorted(found.findings, key=lambda f: not f.alarming)[0]
        text = f"{text.rstrip('.')}. {worst.sentence()} What to do: {worst.remedy}"
    return dg.AssetCheckResult(
        asset_key=next(table_key(t) for t in declaration.state_tables if t == found.table),
        check_name=found.check,
        passed=found.passed,
        severity=dg.AssetCheckSeverity.ERROR if found.alarming else dg.AssetCheckSeverity.WARN,
        description=markdown(text),
        metadata={**dict(found.figures), "findings": len(found.findings)},
    )


def run_requests(
    declaration: TopicDeclaration,
    ledger: Ledger,
    instance: dg.DagsterInstance,
    now: datetime,
    *,
    requested: int = 0,
    log: dagster_records.RunLog | None = None,
) -> list[dg.RunRequest]:
    """Return the run that folds pending changes, if a fold is due or a check of the state found wrong rows, no other run
    is under way, and no check of the table of changes blocks it.

    While more windows are being loaded than are pending, a fold waits, for `_LONGEST_HOLD` at most. `requested` is the number
    of windows of which this tick requests a run of one of the topic's tables.

    A run that failed is requested again after a minute, then after twice as long each time, up to an hour. An error of the
    state is logged; the topic's windows are loaded all the same.
    """
    if declaration.state is None:
        return []
    try:
        state = TopicState(declaration.topic, declaration.state, ledger.lake)
        place = _place(state)
        if place is None:
            return []
        pending, keys = _due(state, place), names.state_keys(declaration)
        is_due = pending is not None and not _is_held(
            state, pending, declaration, ledger, instance, now, requested, log
        )
        if not is_due and dagster_records.blocked_by(instance, names.state_check_keys(declaration)):
            # Rows are wrong: they are made again. If that was done already, only the checks are evaluated again, once.
            is_due, is_made = True, _is_made_again(state)
            keys = [] if is_made else keys
        if not is_due:
            return []
    except NoChangesError:
        return []
    except PlatformError as e:
        _log.warning("%s: whether a fold is due is unknown: %s", declaration.state_tables[0], e)
        return []
    if dagster_records.blocked_by(instance, names.blocking_state(declaration)):
        return []
    tag = state_tag(declaration)
    # Runs that somebody launched do not have the tag, but name the asset.
    if any(
        r.tags.get(STATE_TAG) == tag or names.state_keys(declaration)[0] in (r.asset_selection or ())
        for r in dagster_records.under_way(instance)
    ):
        return []
    failed = _failed(instance, tag)
    wait = min(_FIRST_WAIT * 2 ** min(max(len(failed) - 1, 0), 10), _LONGEST_WAIT)
    if failed and now.timestamp() - failed[0].update_timestamp.timestamp() < wait.total_seconds():
        return []
    what = "fold" if keys else "checks"
    run_key = (
        f"{tag}:{what}:{sha256(json.dumps(place).encode()).hexdigest()[:16]}:{failed[0].storage_id if failed else 0}"
    )
    return [
        dg.RunRequest(
            run_key,
            tags={STATE_TAG: tag},
            job_name=names.fold_job(declaration.topic),
            asset_selection=keys,
            asset_check_keys=names.state_check_keys(declaration),
        )
    ]


def _failed(instance: dg.DagsterInstance, tag: str) -> list[dg.RunRecord]:
    """Return the newest runs of a state that failed, newest first, since its last run that did not."""
    found = list[dg.RunRecord]()
    for record in instance.get_run_records(dg.RunsFilter(tags={STATE_TAG: tag}), limit=_LAST_RUNS):
        if record.dagster_run.status not in (dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED):
            break
        found.append(record)
    return found


_Place = tuple[str, int, *tuple[int | None, ...]]
_Where = tuple[str, str]
_not_due: dict[_Where, _Place] = {}
_held_since: dict[_Where, datetime] = {}
_lock = threading.Lock()


def _place(state: TopicState) -> _Place | None:
    """Return the declaration and the versions of the tables; None if there are no changes."""
    changes = delta_log.newest_version(state.changes_folder)
    if changes is None:
        return None
    folders = [state.live_folder, state.dead_folder, *([state.history_folder] if state.declared.history else [])]
    return state.declared.digest, changes, *(delta_log.newest_version(folder) for folder in folders)


def _is_made_again(state: TopicState) -> bool:
    """Return True if the newest fold made the state from all changes."""
    fold = state_table.opened(state.live_folder).fold if state.exists else None
    return fold is not None and fold.made == "rebuild"


def _due(state: TopicState, place: _Place) -> Pending | None:
    """Return the pending changes if a fold is due, else None. That none is due is remembered while the tables have the same
    versions, unless changes have yet to be made again: that may end with an entry of the ledger alone."""
    where = _where(state)
    with _lock:
        if _not_due.get(where) == place:
            return None
    found = state.pending()
    with _lock:
        if found.is_due or found.waits:
            _not_due.pop(where, None)
        else:
            _not_due[where] = place
        if not found.is_due:
            _held_since.pop(where, None)
    return found if found.is_due else None


def _is_held(
    state: TopicState,
    pending: Pending,
    d: TopicDeclaration,
    ledger: Ledger,
    instance: dg.DagsterInstance,
    now: datetime,
    requested: int,
    log: dagster_records.RunLog | None,
) -> bool:
    """Return True if a fold that is due waits for windows that runs load, decode, or make changes of."""
    where = _where(state)
    is_held = False
    if not pending.is_urgent:
        edge = ledger.newest_edges([d.topic]).get(d.topic)
        keys = sorted(unloaded.find(ledger, d.changes_table, edge).windows) if edge is not None else []
        running = {
            key
            for table in d.tables
            for key in dagster_records.windows_in_flight(instance, table_key(table), keys, log=log)
        }
        is_held = pending.awaits_more(len(running) + requested)
    with _lock:
        if is_held and now - _held_since.setdefault(where, now) < _LONGEST_HOLD:
            return True
        _held_since.pop(where, None)
    return False


def _where(state: TopicState) -> _Where:
    return str(state.lake), state.topic
