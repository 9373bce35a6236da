"""Reads from Dagster's storage: runs and the windows that they load, reported partitions, and check evaluations."""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from importlib.util import find_spec
from typing import Any, Final, cast
from uuid import uuid4

import dagster as dg
from dagster._cli.utils import TMP_DAGSTER_HOME_PREFIX
from dagster._core.events import (
    AssetMaterializationPlannedData,
    DagsterEvent,
    DagsterEventBatchMetadata,
)
from dagster._core.storage.asset_check_execution_record import (
    AssetCheckExecutionRecord,
    AssetCheckExecutionRecordStatus,
)
from dagster._core.storage.tags import (
    ASSET_PARTITION_RANGE_END_TAG,
    ASSET_PARTITION_RANGE_START_TAG,
    PARTITION_NAME_TAG,
)
from sqlalchemy.exc import SQLAlchemyError

from platform_assets.checks.facts import Orchestration
from platform_assets.errors import ThrowawayInstanceError
from platform_assets.model.tables import TableRef
from platform_assets.model.windows import edge_of
from platform_assets.orchestration.names import (
    LOAD_ID,
    OUTCOME,
    earlier_windows_op,
    key_prefix,
    read_run_tag,
    run_tag,
    table_key,
    topic_key,
)
from platform_assets.orchestration.planning import FailedRun, Failures, RunWindows, tries_of

TABLE_TAG: Final = "platform_assets/table"
"""Run tag: the table into which the run loads windows, in the form that `names.run_tag` returns. A run that a user
launched gets the tag when it fails. A run for many topics lists the topics in its config."""
FAILURES_TAG: Final = "platform_assets/failures"
"""Tag of a failed run: the reasons why the run's windows were not loaded, in the form of `planning.Failures`."""

_LISTED: Final = "windows"
_NO_WINDOWS: Final = RunWindows.list_of(())
_NEWEST_EVENTS = 200
_EVALUATIONS: Final = 100
NEWEST_FAILURES = 500
_SHOWN_IN_FULL: Final = 20
"""Maximum number of topics in one run whose errors are shown in full. The errors of other topics are shortened, because
all errors share one tag."""
_SHORT: Final = 300
UNDER_WAY = [
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
]
"""Statuses of runs that are not finished."""
_FAILED = [dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED]


def check_is_kept(instance: dg.DagsterInstance, table: TableRef) -> None:
    """Raise ThrowawayInstanceError if a Dagster command created this instance because `DAGSTER_HOME` is not set."""
    if TMP_DAGSTER_HOME_PREFIX in instance.root_directory:
        raise ThrowawayInstanceError(table.name)


@dataclass(frozen=True, slots=True)
class DagsterRecords(Orchestration):
    """The knowledge of `instance` about the windows of `table`, ignoring the run `but`. `log` caches runs.

    A sensor requests the load of a window when it reports the window on the topic asset, so every reported window was
    requested. The sensor requests a window again if the window is not loaded, unless the window needs a decision.
    """

    instance: dg.DagsterInstance
    table: TableRef
    but: str | None = None
    log: RunLog | None = None

    def in_flight(self, keys: Collection[str]) -> frozenset[str]:
        """See `Orchestration.in_flight`."""
        return windows_in_flight(self.instance, table_key(self.table), keys, self.but, self.log)

    def requested(self, keys: Collection[str]) -> frozenset[str]:
        """See `Orchestration.requested`."""
        return reported_partitions(self.instance, topic_key(self.table.topic), sorted(keys))

    def will_be_requested_again(self, keys: Collection[str]) -> frozenset[str]:
        """See `Orchestration.will_be_requested_again`."""
        tries = tries_of(sorted(keys), failed_runs(self.instance, self.table, sorted(keys), self.log))
        stuck = {key for key, tried in tries.items() if tried.waits_for_somebody}
        return frozenset((self.requested(keys) | tries.keys()) - stuck) if keys else frozenset()

    def reported(self, keys: Sequence[str] | None) -> Mapping[str, str | None]:
        """See `Orchestration.reported`."""
        return reported_loads(self.instance, table_key(self.table), keys)


def under_way(instance: dg.DagsterInstance) -> Sequence[dg.DagsterRun]:
    """Return queued and running runs."""
    return instance.get_runs(dg.RunsFilter(statuses=UNDER_WAY))


def windows_in_flight(
    instance: dg.DagsterInstance,
    table: dg.AssetKey,
    keys: Iterable[str],
    but: str | None = None,
    log: RunLog | None = None,
) -> frozenset[str]:
    """Return the `keys` that a queued or running run will load into `table`, ignoring the run `but`."""
    wanted = sorted(keys)
    found: set[str] = set()
    for run in log.under_way if log else under_way(instance):
        if run.run_id != but:
            found.update(windows_of(run, table, wanted) or ())
    return frozenset(found)


def failed_runs(
    instance: dg.DagsterInstance, table: TableRef, keys: Sequence[str], log: RunLog | None = None
) -> list[FailedRun]:
    """Return the runs that failed or were canceled and should have loaded one of the windows `keys` into `table`.
    `keys` must be in ascending order.

    The newest runs come first; at most 500 are returned, all of which failed after the first of these windows began.
    """
    found: list[FailedRun] = []
    for record in (log or RunLog(instance)).failed(table, edge_of(keys[0])) if keys else ():
        run = record.dagster_run
        if (named := named_in(run, table.topic)) != _NO_WINDOWS:
            failures = _failures_of(run, table)
            found.append(FailedRun(run.run_id, datetime.fromtimestamp(_ended(record), UTC), named, failures))
    return found


def newest_failed(
    instance: dg.DagsterInstance, tables: Sequence[str], since: datetime | None = None
) -> Sequence[dg.RunRecord]:
    """Return the newest 500 runs that failed or were canceled, were created after `since`, and should have loaded
    windows into one of `tables`, given as run tags."""
    own: Any = list(tables)
    wanted = dg.RunsFilter(statuses=_FAILED, tags={TABLE_TAG: own}, created_after=since)
    return instance.get_run_records(wanted, limit=NEWEST_FAILURES)


def _failures_of(run: dg.DagsterRun, table: TableRef) -> Failures | None:
    """Return the reasons why windows of `table` failed in `run`; None if the run ended without reporting them."""
    said = run.tags.get(FAILURES_TAG)
    if said is None:
        return None
    fields = json.loads(said)
    if "tables" not in fields:
        # Earlier releases wrote this form for a run of one table.
        return Failures.from_tag(said)
    # A table that is not named was not attempted, because a service was unavailable.
    of_table = fields["tables"].get(table.name)
    return Failures({}, fields["error"]) if of_table is None else Failures.from_tag(of_table)


def failed_after(instance: dg.DagsterInstance, since: float | None) -> list[str]:
    """Return the newest 500 runs that failed or were canceled after `since`, a POSIX time, or ever."""
    # With a margin, because Dagster's storage has this time from another clock.
    after = None if since is None else datetime.fromtimestamp(since, UTC) - _MARGIN
    found = instance.get_run_records(dg.RunsFilter(statuses=_FAILED, updated_after=after), limit=NEWEST_FAILURES)
    return [r.dagster_run.run_id for r in found if since is None or _ended(r) > since]


def _ended(record: dg.RunRecord) -> float:
    return record.update_timestamp.replace(tzinfo=UTC).timestamp() if record.end_time is None else record.end_time


def has_evaluated(instance: dg.DagsterInstance, run_id: str, checks: Collection[dg.AssetCheckKey]) -> bool:
    """Return True if a run has evaluated one of these checks, and all of them that it was to evaluate."""
    kinds = {dg.DagsterEventType.ASSET_CHECK_EVALUATION, dg.DagsterEventType.ASSET_CHECK_EVALUATION_PLANNED}
    done, planned = set[dg.AssetCheckKey](), set[dg.AssetCheckKey]()
    for record in instance.get_records_for_run(run_id, of_type=kinds).records:
        event = record.event_log_entry.dagster_event
        if event is None:
            continue
        if event.event_type == dg.DagsterEventType.ASSET_CHECK_EVALUATION:
            done.add(event.asset_check_evaluation_data.asset_check_key)
        else:
            planned.add(event.asset_check_planned_data.asset_check_key)
    return bool(done & set(checks)) and planned & set(checks) <= done


def newest_failed_since(
    instance: dg.DagsterInstance, tables: Sequence[str], since: datetime
) -> Sequence[dg.DagsterRun]:
    """Return the newest 500 runs that should have loaded windows into one of `tables`, given as run tags, and that
    failed or were canceled after `since`."""
    own: Any = list(tables)
    wanted = dg.RunsFilter(statuses=_FAILED, tags={TABLE_TAG: own}, updated_after=since)
    return instance.get_runs(wanted, limit=NEWEST_FAILURES)


def record_failures(instance: dg.DagsterInstance, run_id: str, failures: Mapping[TableRef, Failures]) -> None:
    """Add a tag with the reasons for failure, by table, to a run that is about to fail. The sensor and `status` read
    this tag."""
    tables: dict[str, str] = {}
    for number, (table, of_table) in enumerate(failures.items()):
        in_full = number < _SHOWN_IN_FULL
        shown = of_table if in_full else replace(of_table, error=of_table.error[:_SHORT], errors={})
        tables[table.name] = shown.to_tag()
    first, error = next(iter(failures)), next(f.error for f in failures.values())
    tags = {FAILURES_TAG: json.dumps({"tables": tables, "error": error}, ensure_ascii=False)}
    run = instance.get_run_by_id(run_id)
    if run is None or run.tags.get(TABLE_TAG) != run_tag(None):
        tags[TABLE_TAG] = run_tag(first)
    instance.add_run_tags(run_id, tags)


def report_planned(
    instance: dg.DagsterInstance, run: dg.DagsterRun, step: str, windows: Mapping[TableRef, Collection[str]]
) -> None:
    """Report that `step` of a run will load `windows`, by table: the UI then shows them as in progress and, if the run
    fails before they are loaded, as failed.

    Dagster itself reports this for runs that specify partitions, but not for runs whose config lists windows.
    """
    planned = [AssetMaterializationPlannedData(table_key(t), key) for t, keys in windows.items() for key in keys]
    batch = str(uuid4())
    for number, data in enumerate(planned, 1):
        event = DagsterEvent.build_asset_materialization_planned_event(run.job_name, step, data)
        metadata = DagsterEventBatchMetadata(batch, number == len(planned))
        instance.report_dagster_event(event, run.run_id, logging.DEBUG, metadata)


def store_errors() -> tuple[type[Exception], ...]:
    """Return the types of the errors that Dagster's SQL storage raises if it cannot write."""
    if find_spec("dagster_postgres") is None:
        return (SQLAlchemyError,)
    from dagster_postgres.utils import DagsterPostgresException

    return SQLAlchemyError, DagsterPostgresException


def reported_by(instance: dg.DagsterInstance, run_id: str) -> dict[dg.AssetKey, dict[str, str]]:
    """Return the windows that this run has reported as loaded so far, with the outcome of each window, by table."""
    records = instance.get_records_for_run(run_id, of_type=dg.DagsterEventType.ASSET_MATERIALIZATION).records
    found: dict[dg.AssetKey, dict[str, str]] = {}
    for record in records:
        event = record.asset_materialization
        if event is not None and event.partition is not None and OUTCOME in event.metadata:
            found.setdefault(event.asset_key, {})[event.partition] = str(event.metadata[OUTCOME].value)
    return found


def checks_in_flight(instance: dg.DagsterInstance, checks: Iterable[dg.AssetCheckKey]) -> bool:
    """Return True if a queued or running run will evaluate all of `checks`."""
    wanted = set(checks)
    return any(
        wanted <= set(run.asset_check_selection or ()) for run in instance.get_runs(dg.RunsFilter(statuses=UNDER_WAY))
    )


def windows_of(run: dg.DagsterRun, table: dg.AssetKey, keys: Iterable[str]) -> frozenset[str] | None:
    """Return those of `keys` that `run` loads into `table`; None if the run loads nothing into it.

    A run of a user-defined job over assets does not state which assets the job selects, so it may load any table.
    """
    prefix, into = (key_prefix(), None) if TABLE_TAG not in run.tags else read_run_tag(run.tags[TABLE_TAG])
    if prefix != tuple(table.path[:-2]):
        # In another code location, a topic with this name is a different topic.
        return None
    named = named_in(run, table.path[-1])
    if listed_in(run) is not None:
        # A run that loads into a raw table also decodes, and a run that decodes also makes changes.
        covers = into is None or into.kind == "raw" or table_key(into) == table
        covers = covers or (into is not None and into.kind == "decoded" and table.path[-2] == "changes")
        return frozenset(named.among(sorted(keys))) if covers and named != _NO_WINDOWS else None
    if run.asset_selection is not None and table not in run.asset_selection:
        return None
    if run.asset_selection is None and run.asset_check_selection:
        return None
    return frozenset(named.among(sorted(keys)))


def named_by(run: dg.DagsterRun, topic: str, keys: Iterable[str]) -> frozenset[str]:
    """Return those of `keys` that `run` lists for `topic`, whatever the run does with them."""
    return frozenset(named_in(run, topic).among(sorted(keys)))


def listed_in(run: dg.DagsterRun) -> Mapping[str, Collection[str]] | None:
    """Return the windows listed in the config of `run`, by topic; None if the run specifies its windows by partition.

    The config for the job of one topic is a list; the config for the job of a group is grouped by topic.
    """
    if TABLE_TAG not in run.tags:
        return None
    ops: Any = run.run_config.get("ops", {})
    _, table = read_run_tag(run.tags[TABLE_TAG])
    if table is None:
        (config,) = ops.values()
        return cast("Mapping[str, Collection[str]]", config["config"][_LISTED])
    config = ops.get(earlier_windows_op(table.topic))
    return None if config is None else {table.topic: config["config"][_LISTED]}


def config_listing(
    topic: str, keys: Sequence[str], *, decode_only: bool = False, changes_only: bool = False
) -> dict[str, Any]:
    """Return the config for a run that loads, or only decodes, or only makes the changes of, exactly the windows
    `keys`, whether or not they are partitions."""
    config: dict[str, Any] = {_LISTED: list(keys)}
    config |= {"decode_only": True} if decode_only else {}
    config |= {"changes_only": True} if changes_only else {}
    return {"ops": {earlier_windows_op(topic): {"config": config}}}


def config_of_many(op: str, windows: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Return the config for a run of a group's job that loads exactly these windows, by topic."""
    return {"ops": {op: {"config": {_LISTED: {topic: list(keys) for topic, keys in windows.items()}}}}}


def blocked_by(instance: dg.DagsterInstance, checks: Sequence[dg.AssetCheckKey]) -> bool:
    """Return True if the newest evaluation of any of these checks failed with an error, so that the check blocks."""
    found = newest_evaluations(instance, checks).values()
    return any(not e.passed and e.severity == dg.AssetCheckSeverity.ERROR for _, e in found)


def blocking_checks(context: dg.SensorEvaluationContext, assets: Collection[dg.AssetKey]) -> list[dg.AssetCheckKey]:
    """Return the blocking checks of these assets that the sensor's code location defines."""
    repository = context.repository_def
    if repository is None:
        return []
    graph = repository.asset_graph
    return [k for k in graph.asset_check_keys if k.asset_key in assets and graph.get_check_spec(k).blocking]


def failing(instance: dg.DagsterInstance, checks: Iterable[dg.AssetCheckKey]) -> list[str]:
    """Return the names of those blocking checks that fail."""
    return [f"{k.asset_key.to_user_string()} {k.name}" for k in checks if blocked_by(instance, [k])]


def named_in(run: dg.DagsterRun, topic: str) -> RunWindows:
    """Return the windows of `topic` that a run specifies, by partition or in its config."""
    listed = listed_in(run)
    if listed is not None:
        return RunWindows.list_of(listed.get(topic, ()))
    first = run.tags.get(ASSET_PARTITION_RANGE_START_TAG, run.tags.get(PARTITION_NAME_TAG, ""))
    return RunWindows(first, run.tags.get(ASSET_PARTITION_RANGE_END_TAG, first))


def reported_partitions(instance: dg.DagsterInstance, asset: dg.AssetKey, keys: Sequence[str]) -> frozenset[str]:
    """Return the `keys` for which Dagster has a materialization of `asset`."""
    found: set[str] = set()
    # SQLite limits the number of values in one query.
    for at in range(0, len(keys), 500):
        some = list(keys[at : at + 500])
        records = dg.AssetRecordsFilter(asset_key=asset, asset_partitions=some)
        cursor: str | None = None
        while True:
            page = instance.fetch_materializations(records, limit=1000, cursor=cursor)
            found.update(r.partition_key for r in page.records if r.partition_key is not None)
            if not page.has_more:
                break
            cursor = page.cursor
    return frozenset(found)


def reported_loads(
    instance: dg.DagsterInstance, table: dg.AssetKey, keys: Sequence[str] | None
) -> dict[str, str | None]:
    """Return every partition of `table` that has a materialization. For the newest partitions, also return the load
    that the materialization names.

    With `keys`, return only these partitions, each with the load of its newest materialization.
    """
    found: dict[str, str | None] = {}
    if keys is None:
        found |= dict.fromkeys(instance.get_materialized_partitions(table))
    named: set[str] = set()
    for record in _materialisations(instance, table, keys):
        event = record.asset_materialization
        if event is None or event.partition is None or event.partition in named:
            continue
        named.add(event.partition)
        load_id = event.metadata.get(LOAD_ID)
        found[event.partition] = None if load_id is None else str(load_id.value)
        if keys is not None and len(named) == len(keys):
            break
    return found


def _materialisations(
    instance: dg.DagsterInstance, table: dg.AssetKey, keys: Sequence[str] | None
) -> Iterator[dg.EventLogRecord]:
    """Yield the newest events of `table` or, with `keys`, all events of these partitions. Newest first, page by page."""
    if keys is None:
        yield from instance.fetch_materializations(table, limit=_NEWEST_EVENTS).records
        return
    records = dg.AssetRecordsFilter(asset_key=table, asset_partitions=list(keys))
    cursor: str | None = None
    more = bool(keys)
    while more:
        page = instance.fetch_materializations(records, limit=_NEWEST_EVENTS, cursor=cursor)
        yield from page.records
        cursor, more = page.cursor, page.has_more


_MARGIN: Final = timedelta(hours=1)
"""Time by which queries go further back than requested, because the next table may need slightly older runs."""


class RunLog:
    """Cached records of the runs of `instance`, shared by callers that process one table after another.

    Runs that load windows of a single table are only cached for the tables in `tables`.
    """

    def __init__(self, instance: dg.DagsterInstance, tables: Iterable[TableRef] = ()) -> None:
        self._instance = instance
        self._tables = frozenset(run_tag(table) for table in tables)
        self._failed: list[dg.RunRecord] = []
        self._own: dict[str, list[dg.RunRecord]] | None = {}
        self._since: datetime | None = None
        self._lately: tuple[datetime, _FailedLately | None] | None = None

    @cached_property
    def under_way(self) -> Sequence[dg.DagsterRun]:
        """Return queued and running runs."""
        return under_way(self._instance)

    def failed(self, table: TableRef, since: datetime) -> Sequence[dg.RunRecord]:
        """Return failed runs that should have loaded windows of `table`, alone or together with other tables, and began
        after `since` or slightly earlier.

        The newest runs come first. Of each of the two kinds of runs, the newest 500 are considered.
        """
        if self._since is None or since < self._since:
            # Positions differ between topics; a slightly older one should not cause another query for some minutes.
            self._since = since - _MARGIN
            self._failed = list(newest_failed(self._instance, [run_tag(None)], self._since))
            self._own = self._own_failed(self._since)
        if self._own is None or run_tag(table) not in self._tables:
            return [*newest_failed(self._instance, [run_tag(table)], since), *self._failed]
        return [*self._own.get(run_tag(table), ()), *self._failed]

    def _own_failed(self, since: datetime) -> dict[str, list[dg.RunRecord]] | None:
        """Return the runs by table; None if there are more than one query returns, so that each table needs its own
        query."""
        if not self._tables:
            return {}
        found = newest_failed(self._instance, sorted(self._tables), since)
        if len(found) == NEWEST_FAILURES:
            return None
        by_table: dict[str, list[dg.RunRecord]] = {}
        for record in found:
            by_table.setdefault(record.dagster_run.tags[TABLE_TAG], []).append(record)
        return by_table

    def failed_since(self, table: TableRef, since: datetime) -> dict[str, RunWindows]:
        """Return the runs that should have loaded windows into `table` and failed or were canceled after `since`: the
        windows of each run, by run id. Only the newest 500 runs are considered; use the same `since` for all tables."""
        if self._lately is None or self._lately[0] != since:
            found = newest_failed_since(self._instance, [*sorted(self._tables), run_tag(None)], since)
            # With more runs than one query returns, those of one table may be missing.
            self._lately = (since, _FailedLately.of(found) if len(found) < NEWEST_FAILURES else None)
        lately = self._lately[1]
        if lately is None or run_tag(table) not in self._tables:
            return _failed_since(self._instance, table, since)
        return lately.of_table(table)


def _failed_since(instance: dg.DagsterInstance, table: TableRef, since: datetime) -> dict[str, RunWindows]:
    found = newest_failed_since(instance, [run_tag(table), run_tag(None)], since)
    return {r.run_id: n for r in found if (n := named_in(r, table.topic)).first}


@dataclass(frozen=True, slots=True)
class _FailedLately:
    """Failed runs of the last days. Runs for a single table are grouped by table; the windows in runs for many topics
    are grouped by topic."""

    own: Mapping[str, Sequence[dg.DagsterRun]]
    among_many: Mapping[str, Mapping[str, RunWindows]]

    @classmethod
    def of(cls, found: Iterable[dg.DagsterRun]) -> _FailedLately:
        own: dict[str, list[dg.DagsterRun]] = {}
        among_many: dict[str, dict[str, RunWindows]] = {}
        for run in found:
            if run.tags[TABLE_TAG] != run_tag(None):
                own.setdefault(run.tags[TABLE_TAG], []).append(run)
                continue
            for topic, keys in (listed_in(run) or {}).items():
                if (named := RunWindows.list_of(keys)).first:
                    among_many.setdefault(topic, {})[run.run_id] = named
        return cls(own, among_many)

    def of_table(self, table: TableRef) -> dict[str, RunWindows]:
        own = {r.run_id: n for r in self.own.get(run_tag(table), ()) if (n := named_in(r, table.topic)).first}
        return {**own, **self.among_many.get(table.topic, {})}


_OVER = {AssetCheckExecutionRecordStatus.SUCCEEDED, AssetCheckExecutionRecordStatus.FAILED}


def newest_evaluations(
    instance: dg.DagsterInstance, keys: Sequence[dg.AssetCheckKey]
) -> Mapping[dg.AssetCheckKey, tuple[AssetCheckExecutionRecord, dg.AssetCheckEvaluation]]:
    """Return the newest evaluation, with its record, of each of `keys` that has been evaluated.

    A check's result holds until the next result. A run that is about to evaluate the check changes nothing yet, and a
    run that ended before it reached the check changes nothing either.
    """
    storage = instance.event_log_storage
    found = {}
    for key, record in storage.get_latest_asset_check_execution_by_key(list(keys)).items():
        records = (
            [record] if record.status in _OVER else storage.get_asset_check_execution_history(key, 1, status=_OVER)
        )
        for one in records:
            evaluation = one.event.asset_check_evaluation if one.event is not None else None
            if evaluation is not None:
                found[key] = (one, evaluation)
    return found


def newest_begin(
    instance: dg.DagsterInstance, checks: Sequence[dg.AssetCheckKey], *, without_run: bool, all_planned: bool = False
) -> float | None:
    """Return when the newest run began that evaluated one of `checks`, as POSIX time, or `without_run` also when one was
    evaluated without a run. None if none was; of each check, the newest 100 evaluations are considered. With
    `all_planned`, a run only counts if it evaluated all of `checks` that it was to evaluate."""
    found = list[float]()
    for key in checks:
        history = instance.event_log_storage.get_asset_check_execution_history(key, _EVALUATIONS, status=_OVER)
        for record in history:
            if record.event is None or not (record.run_id or without_run):
                continue
            if all_planned and record.run_id and not has_evaluated(instance, record.run_id, checks):
                continue
            runs = instance.get_run_records(dg.RunsFilter(run_ids=[record.run_id]), limit=1) if record.run_id else ()
            started = runs[0].start_time if runs else None
            found.append(record.event.timestamp if started is None else started)
            break
    return max(found, default=None)
