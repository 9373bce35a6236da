"""What the orchestrator knows of windows: loads under way, and partitions that were reported."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import dagster as dg
from dagster._cli.utils import TMP_DAGSTER_HOME_PREFIX
from dagster._core.storage.tags import (
    ASSET_PARTITION_RANGE_END_TAG,
    ASSET_PARTITION_RANGE_START_TAG,
    PARTITION_NAME_TAG,
)

from platform_assets.checks.facts import Orchestration
from platform_assets.errors import ThrowawayInstanceError
from platform_assets.model.tables import TableRef
from platform_assets.model.windows import edge_of
from platform_assets.orchestration import evaluated
from platform_assets.orchestration.metadata import LOAD_ID, OUTCOME
from platform_assets.orchestration.names import (
    earlier_windows_op,
    key_prefix,
    read_run_tag,
    run_tag,
    table_key,
    topic_key,
)
from platform_assets.orchestration.retries import FailedRun, Failures, Named, tries_of

if TYPE_CHECKING:
    from platform_assets.orchestration.run_log import RunLog

TABLE_TAG: Final = "platform_assets/table"
"""Of a run: the table that it loads windows into, as `names.run_tag` says it. Runs that a person started have it once they have
failed. A run of many topics names them in its config."""
FAILURES_TAG: Final = "platform_assets/failures"
"""Of a failed run: why windows of it were not loaded, as `retries.Failures`."""

_LISTED: Final = "windows"
_NO_WINDOWS: Final = Named.list_of(())
_NEWEST_EVENTS = 200
NEWEST_FAILURES = 500
_TOLD_IN_FULL: Final = 20
"""Of the topics of one run: the errors of the others are shortened, since all of them go into one tag."""
_SHORT: Final = 300
_UNDER_WAY = [
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
]
_FAILED = [dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED]


def check_is_kept(instance: dg.DagsterInstance, table: TableRef) -> None:
    """Raise ThrowawayInstanceError for an instance that a command of Dagster made because it found no `DAGSTER_HOME`."""
    if TMP_DAGSTER_HOME_PREFIX in instance.root_directory:
        raise ThrowawayInstanceError(table.name)


def orchestration(
    instance: dg.DagsterInstance, table: TableRef, but: str | None = None, log: RunLog | None = None
) -> Orchestration:
    """What `instance` knows of the windows of `table`, run `but` left aside.

    A sensor asks for a window's load when it reports the window on the topic asset, so what was reported was asked for;
    and it asks again for what is not loaded, unless the window waits for somebody.
    """

    def asked(keys: Collection[str]) -> frozenset[str]:
        return reported_partitions(instance, topic_key(table.topic), sorted(keys))

    def again(keys: Collection[str]) -> frozenset[str]:
        tries = tries_of(sorted(keys), failed_runs(instance, table, sorted(keys), log))
        stuck = {key for key, tried in tries.items() if tried.waits_for_somebody}
        return frozenset((asked(keys) | tries.keys()) - stuck) if keys else frozenset()

    return Orchestration(
        in_flight=lambda keys: windows_in_flight(instance, table_key(table), keys, but, log),
        asked=asked,
        again=again,
        reported=lambda keys: reported_loads(instance, table_key(table), keys),
    )


def under_way(instance: dg.DagsterInstance) -> Sequence[dg.DagsterRun]:
    """Queued and running runs."""
    return instance.get_runs(dg.RunsFilter(statuses=_UNDER_WAY))


def windows_in_flight(
    instance: dg.DagsterInstance,
    table: dg.AssetKey,
    keys: Iterable[str],
    but: str | None = None,
    log: RunLog | None = None,
) -> frozenset[str]:
    """Those of `keys` that a queued or running run will load into `table`, run `but` left aside."""
    wanted = sorted(keys)
    found: set[str] = set()
    for run in log.under_way if log else under_way(instance):
        if run.run_id != but:
            found.update(windows_of(run, table, wanted) or ())
    return frozenset(found)


def failed_runs(
    instance: dg.DagsterInstance, table: TableRef, keys: Sequence[str], log: RunLog | None = None
) -> list[FailedRun]:
    """The runs that were to load one of the windows `keys`, which ascend, into `table` and failed or were cancelled.

    Newest first, of the newest 500 that failed since the first of these windows began.
    """
    if not keys:
        return []
    since = edge_of(keys[0])
    records = log.failed(table, since) if log else newest_failed(instance, [run_tag(table), run_tag(None)], since)
    found: list[FailedRun] = []
    for record in records:
        run = record.dagster_run
        ended = record.update_timestamp.replace(tzinfo=UTC).timestamp() if record.end_time is None else record.end_time
        if (named := named_in(run, table.topic)) != _NO_WINDOWS:
            failures = _failures_of(run, table)
            found.append(FailedRun(run.run_id, datetime.fromtimestamp(ended, UTC), named, failures))
    return found


def newest_failed(
    instance: dg.DagsterInstance, tables: Sequence[str], since: datetime | None = None
) -> Sequence[dg.RunRecord]:
    """The newest 500 runs that were to load windows into one of `tables`, which are named as run tags do, were created `since`, and
    failed or were cancelled."""
    own: Any = list(tables)
    wanted = dg.RunsFilter(statuses=_FAILED, tags={TABLE_TAG: own}, created_after=since)
    return instance.get_run_records(wanted, limit=NEWEST_FAILURES)


def _failures_of(run: dg.DagsterRun, table: TableRef) -> Failures | None:
    said = run.tags.get(FAILURES_TAG)
    if said is None:
        return None
    if run.tags.get(TABLE_TAG) != run_tag(None):
        return Failures.from_tag(said)
    fields = json.loads(said)
    # Of a topic that it does not name none was tried, since a service was gone.
    return (
        Failures.from_tag(fields["tables"][table.name])
        if table.name in fields["tables"]
        else Failures({}, fields["error"])
    )


def failed_since(instance: dg.DagsterInstance, table: TableRef, since: datetime) -> dict[str, Named]:
    """The runs, by id, that were to load windows into `table` and have failed or were cancelled since, and the windows that
    each named. Of the newest 500."""
    found = newest_failed_since(instance, [run_tag(table), run_tag(None)], since)
    return {r.run_id: n for r in found if (n := named_in(r, table.topic)).first}


def newest_failed_since(
    instance: dg.DagsterInstance, tables: Sequence[str], since: datetime
) -> Sequence[dg.DagsterRun]:
    """The newest 500 runs that were to load windows into one of `tables`, which are named as run tags do, and have failed or were
    cancelled since."""
    own: Any = list(tables)
    wanted = dg.RunsFilter(statuses=_FAILED, tags={TABLE_TAG: own}, updated_after=since)
    return instance.get_runs(wanted, limit=NEWEST_FAILURES)


def record_failures(instance: dg.DagsterInstance, run_id: str, table: TableRef, failures: Failures) -> None:
    """Write on a run that is about to fail why, for the sensor and for `status`."""
    instance.add_run_tags(run_id, {TABLE_TAG: run_tag(table), FAILURES_TAG: failures.to_tag()})


def record_failures_of_many(instance: dg.DagsterInstance, run_id: str, failures: Mapping[TableRef, Failures]) -> None:
    """The same of a run that loads windows of many topics, by table."""
    tables: dict[str, str] = {}
    for number, (table, of_table) in enumerate(failures.items()):
        text = of_table.to_tag()
        if number >= _TOLD_IN_FULL:
            text = replace(of_table, error=of_table.error[:_SHORT], errors={}).to_tag()
        tables[table.name] = text
    error = next((f.error for f in failures.values()), "")
    instance.add_run_tags(run_id, {FAILURES_TAG: json.dumps({"tables": tables, "error": error}, ensure_ascii=False)})


def reported_by(instance: dg.DagsterInstance, run_id: str, table: dg.AssetKey) -> dict[str, str]:
    """The windows of `table` that this run has reported as loaded so far, with the outcome of each."""
    return all_reported_by(instance, run_id).get(table, {})


def all_reported_by(instance: dg.DagsterInstance, run_id: str) -> dict[dg.AssetKey, dict[str, str]]:
    """The same of every table."""
    records = instance.get_records_for_run(run_id, of_type=dg.DagsterEventType.ASSET_MATERIALIZATION).records
    found: dict[dg.AssetKey, dict[str, str]] = {}
    for record in records:
        event = record.asset_materialization
        if event is not None and event.partition is not None and OUTCOME in event.metadata:
            found.setdefault(event.asset_key, {})[event.partition] = str(event.metadata[OUTCOME].value)
    return found


def checks_in_flight(instance: dg.DagsterInstance, checks: Iterable[dg.AssetCheckKey]) -> bool:
    """Whether a queued or running run will evaluate all of `checks`."""
    wanted = set(checks)
    return any(
        wanted <= set(run.asset_check_selection or ()) for run in instance.get_runs(dg.RunsFilter(statuses=_UNDER_WAY))
    )


def windows_of(run: dg.DagsterRun, table: dg.AssetKey, keys: Iterable[str]) -> frozenset[str] | None:
    """Those of `keys` that `run` loads into `table`; None for a run that loads nothing into it.

    A job that somebody defined over assets names no selection in its runs: it may load any table.
    """
    prefix, into = (key_prefix(), None) if TABLE_TAG not in run.tags else read_run_tag(run.tags[TABLE_TAG])
    if prefix != tuple(table.path[:-2]):
        # Another code location's topic of this name is none of this one's.
        return None
    named = named_in(run, table.path[-1])
    if run.tags.get(TABLE_TAG) == run_tag(None):
        # Into the raw table, and on from there.
        return None if named == _NO_WINDOWS else frozenset(named.among(sorted(keys)))
    if named.listed is not None:
        # What is loaded into a raw table is decoded by the same run.
        covers = into is not None and (
            (into.kind == "raw" and into.topic == table.path[-1]) or table_key(into) == table
        )
        return frozenset(named.among(sorted(keys))) if covers else None
    if run.asset_selection is not None and table not in run.asset_selection:
        return None
    if run.asset_selection is None and run.asset_check_selection:
        return None
    return frozenset(named.among(sorted(keys)))


def named_by(run: dg.DagsterRun, keys: Iterable[str]) -> frozenset[str]:
    """Those of `keys` that `run` names, whatever it does with them."""
    return frozenset(named_in(run).among(sorted(keys)))


def listed_by(run: dg.DagsterRun) -> frozenset[str]:
    """The windows that its config lists; empty for a run that names its windows by partitions."""
    return named_in(run).listed or frozenset()


def config_listing(topic: str, keys: Sequence[str], *, decode_only: bool = False) -> dict[str, Any]:
    """The config of a run that loads just the windows `keys`, whatever partitions there are; or decodes them alone."""
    config: dict[str, Any] = {_LISTED: list(keys), **({"decode_only": True} if decode_only else {})}
    return {"ops": {earlier_windows_op(topic): {"config": config}}}


def config_of_many(op: str, windows: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """The config of a run of that op, which loads just these windows, by topic."""
    return {"ops": {op: {"config": {_LISTED: {topic: list(keys) for topic, keys in windows.items()}}}}}


def blocked_by(instance: dg.DagsterInstance, checks: Sequence[dg.AssetCheckKey]) -> bool:
    """Whether the newest evaluation of any of these blocking checks has failed with an error."""
    found = evaluated.newest(instance, checks).values()
    return any(not e.passed and e.severity == dg.AssetCheckSeverity.ERROR for _, e in found)


def topics_of_many(run: dg.DagsterRun) -> Sequence[str]:
    """The topics whose windows a run of many names."""
    ops: Any = run.run_config.get("ops", {})
    (config,) = ops.values()
    return list(config["config"][_LISTED])


def named_in(run: dg.DagsterRun, topic: str | None = None) -> Named:
    """The windows that a run names: by partitions, or by the config of the job of earlier windows.

    Of a run that loads windows of many topics, those of `topic`.
    """
    ops: Any = run.run_config.get("ops", {})
    if TABLE_TAG in run.tags:
        _, table = read_run_tag(run.tags[TABLE_TAG])
        if table is None:
            (config,) = ops.values()
            return Named.list_of(config["config"][_LISTED].get(topic, ()))
        config = ops.get(earlier_windows_op(table.topic))
        if config is not None:
            return Named.list_of(config["config"][_LISTED])
    first = run.tags.get(ASSET_PARTITION_RANGE_START_TAG, run.tags.get(PARTITION_NAME_TAG, ""))
    return Named(first, run.tags.get(ASSET_PARTITION_RANGE_END_TAG, first))


def reported_partitions(instance: dg.DagsterInstance, asset: dg.AssetKey, keys: Sequence[str]) -> frozenset[str]:
    """Those of `keys` that have a materialisation of `asset` on record."""
    found: set[str] = set()
    # SQLite bounds the number of values in one query.
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
    """Every partition of `table` with a materialisation on record, and of the newest ones the load that they name.

    With `keys`, those of them alone, each with the load of its newest materialisation.
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
    """Newest first: the newest events of `table`, or all those of the partitions `keys`, page by page."""
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
