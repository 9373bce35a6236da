"""`platform-assets status`: each table at a glance, from the ledger, the brokers and Dagster's records, without queries
to Spark."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

import dagster as dg
import pyarrow as pa
import pyarrow.compute as pc
from dagster._core.scheduler.instigation import InstigatorState

from platform_assets.checks.baseline import snapshot
from platform_assets.errors import PlatformError
from platform_assets.kafka.cluster import Cluster
from platform_assets.ledger import cut_ranges, decisions
from platform_assets.ledger.store import Ledger
from platform_assets.model import offsets
from platform_assets.model.declaration import TopicDeclaration
from platform_assets.model.derived import DerivedDeclaration
from platform_assets.model.windows import edge_of, key_of
from platform_assets.orchestration import (
    changes_status,
    decoded_status,
    derived_status,
    health,
    planning,
    raw_checks,
    retention_check,
    state_status,
    upkeep_status,
)
from platform_assets.orchestration.aging_checks import Subject
from platform_assets.orchestration.changes_status import ChangesStatus
from platform_assets.orchestration.dagster_records import windows_in_flight
from platform_assets.orchestration.decoded_status import DecodedStatus
from platform_assets.orchestration.derived_status import DerivedStatus
from platform_assets.orchestration.health import CheckStatus, SensorStatus, UnloadedWindow
from platform_assets.orchestration.names import sensor_name, table_key
from platform_assets.orchestration.retention_check import TransactionStatus
from platform_assets.orchestration.state_status import StateStatus
from platform_assets.orchestration.upkeep_status import UpkeepStatus
from platform_assets.windows.load import clocks, sealing
from platform_assets.windows.load.retention_forecast import PartitionForecast
from platform_assets.windows.load.sealing import StartMovedError
from platform_assets.windows.maintain import expiry_text, last_expiry
from platform_assets.windows.maintain.last_expiry import LastExpiry

JSON_VERSION = 1
_BROKER_BUDGET_SECONDS = 3.0
_MOST_UNLOADED = 20
_JUDGED = 1_000
"""Maximum number of windows that are not loaded to examine one by one, oldest first: a backlog may have a hundred
thousand windows."""


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """One Kafka partition. Offsets are exclusive ends, and None if they are unknown.

    `committed` is the end of the gap-free loaded range; `sealed` is the newest cut; `end` is the current last stable
    offset. `lag` counts the offsets from `committed` to `end`; before the first load, it counts from the start of the
    first window. `high_watermark` is the end including open transactions, and `lag_to_high_watermark` is the lag to it.
    `hours_left` is the number of hours until retention may remove the first offset that is not loaded; it is None if
    that is unknown, or if no removal is expected.
    """

    partition: int
    committed: int | None
    sealed: int | None
    end: int | None
    lag: int | None
    high_watermark: int | None = None
    lag_to_high_watermark: int | None = None
    hours_left: float | None = None


@dataclass(frozen=True, slots=True)
class TableStatus:
    """One raw table, and the tables into which it is decoded. The field names are also those of the JSON and must not
    change.

    `windows_failed` counts sealed windows that are not loaded although newer windows are, and for which no run is in
    progress. `windows_waiting` counts windows still to be loaded, and `windows_parked` counts windows that an operator
    has set aside. `newest_window_age_seconds` is the time since the end of the newest loaded window. `broker_error`
    explains why end offsets are unknown, and `error` explains why anything else is unknown. `warning` says what will
    need attention later. `unloaded` lists the oldest windows that are not loaded, at most 20. `sensor` is None if
    Dagster has no record of the sensor. `problems` says what keeps windows from being loaded, or soon will.
    `lag_to_high_watermark` also counts offsets that open transactions hold back. `hours_left` is the value for the
    partition that retention overtakes first. `decoded` is None if the topic is not decoded, or if nothing could be
    read. `changes` and `state` are None if the topic has no state, or if nothing could be read. For a `paused` topic, no window
    counts as failed, and only problems with its log are listed. `upkeep` has the newest upkeep of each of the topic's
    tables, if there is any. `keep` has what it removed as expired, for a topic that has `keep` in its YAML.
    """

    table: str
    topic: str
    windows_sealed: int
    windows_loaded: int
    windows_waiting: int
    windows_failed: int
    rows: int
    offsets_without_row: int
    newest_window: str | None
    newest_window_age_seconds: float | None
    lag: int | None
    partitions: tuple[PartitionStatus, ...]
    checks: tuple[CheckStatus, ...]
    broker_error: str | None
    error: str | None
    warning: str | None = None
    unloaded: tuple[UnloadedWindow, ...] = ()
    sensor: SensorStatus | None = None
    problems: tuple[str, ...] = ()
    windows_parked: int = 0
    lag_to_high_watermark: int | None = None
    open_transactions: tuple[TransactionStatus, ...] = ()
    hours_left: float | None = None
    decoded: DecodedStatus | None = None
    paused: bool = False
    upkeep: tuple[UpkeepStatus, ...] = ()
    keep: LastExpiry | None = None
    changes: ChangesStatus | None = None
    state: StateStatus | None = None


@dataclass(frozen=True, slots=True)
class Status:
    """All tables at the time `at` (ISO 8601, UTC). `spark_error` says why Spark does not answer, if it was queried.

    `left_out` has the declared topics without a table here, each with the reason and what to do. `derived` has the derived
    tables.
    """

    at: str
    tables: tuple[TableStatus, ...]
    spark_error: str | None = None
    left_out: tuple[str, ...] = ()
    derived: tuple[DerivedStatus, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the documented JSON, with a version number."""
        return {"version": JSON_VERSION, **asdict(self)}

    @property
    def healthy(self) -> bool:
        """True if every table and its topic could be read, nothing prevents loading and decoding, and no check
        fails."""
        return (
            self.spark_error is None
            and not self.left_out
            and all(each.healthy for each in self.derived)
            and all(
                t.error is None
                and t.broker_error is None
                and not t.windows_failed
                and not t.problems
                and all(c.passed is not False for c in t.checks)
                and (t.decoded is None or t.decoded.healthy)
                and (t.changes is None or t.changes.healthy)
                and (t.state is None or t.state.healthy)
                for t in self.tables
            )
        )


def collect(
    declared: Iterable[TopicDeclaration],
    ledger: Ledger,
    cluster: Cluster | None,
    instance: dg.DagsterInstance | None,
    checks: Iterable[str],
    now: datetime,
    broker_silence: str | None = None,
    spark_error: str | None = None,
    left_out: Iterable[str] = (),
    derived: Sequence[DerivedDeclaration] = (),
) -> Status:
    """Return the status of every declared table. Facts that cannot be determined are reported in the table's row;
    nothing is raised.

    `broker_silence` is the reason why the brokers are not queried, if they are not, and `spark_error` is the reason why
    loads cannot use Spark, if they cannot. `left_out` has the declared topics without a table, with the reasons.
    """
    names, topics = tuple(checks), tuple(declared)
    states = {} if instance is None else health.sensors(instance)
    with ThreadPoolExecutor(max_workers=8) as pool:
        tables = pool.map(lambda d: _table(d, ledger, cluster, instance, states, names, now, broker_silence), topics)
        at = now.astimezone(UTC).isoformat(timespec="seconds")
        others = derived_status.collect(derived, topics, ledger.lake, instance, states)
        return Status(at, tuple(tables), spark_error, tuple(left_out), others)


def _table(
    declaration: TopicDeclaration,
    ledger: Ledger,
    cluster: Cluster | None,
    instance: dg.DagsterInstance | None,
    states: Mapping[str, InstigatorState],
    checks: tuple[str, ...],
    now: datetime,
    broker_silence: str | None,
) -> TableStatus:
    topic = declaration.topic
    subject = _subject(declaration, ledger, cluster, now, broker_silence)
    found = subject.forecast
    table_forecast, broker_error = (None, found) if isinstance(found, str) else (found, None)
    by_partition = {} if table_forecast is None else {p.partition: p for p in table_forecast.partitions}
    ends = {p: a.stable for p, a in by_partition.items() if a.stable is not None}
    try:
        older = snapshot.older(ledger.lake, declaration.raw_table)
        edges = ledger.edges(topic, older.until)
        rows = ledger.commit_rows(declaration.raw_table, start=older.until)
        newest_cut = ledger.newest_cut(topic)
        first = cut_ranges.first_edge(ledger, topic)
        moved = _moved_start(declaration, ledger)
        unfinished = decisions.unfinished_erasures(ledger.lake, topic)
        unerased = decisions.unerased_replays(ledger.lake, topic)
        replays_left = sorted(set(unerased).intersection(ledger.lake.replays())) if unerased else []
        upkeep = tuple(upkeep_status.collect(declaration, ledger))
        keep = None if declaration.keep is None else last_expiry.recall(ledger, topic)
        past_keep = {} if keep is None else last_expiry.standing(ledger, topic, keep)
    except PlatformError as e:
        return TableStatus(
            table=declaration.raw_table.name,
            topic=topic,
            windows_sealed=0,
            windows_loaded=0,
            windows_waiting=0,
            windows_failed=0,
            rows=0,
            offsets_without_row=0,
            newest_window=None,
            newest_window_age_seconds=None,
            lag=None,
            partitions=(),
            checks=(),
            broker_error=broker_error,
            error=str(e),
        )
    sealed = edges[:-1]
    loaded = set(rows["window"].to_pylist())
    missing = sorted(set(sealed) - loaded)
    newest = max(loaded, default=None)
    under_way: frozenset[str] = frozenset()
    if instance is not None and missing:
        under_way = windows_in_flight(instance, table_key(declaration.raw_table), missing)
    parked = decisions.parking(ledger.lake, declaration.raw_table).parked if missing else {}
    set_aside = [k for k in missing if k in parked and k not in under_way]
    failed = [k for k in missing if newest is not None and k < newest and k not in {*under_way, *set_aside}]
    if declaration.paused:
        failed = []
    unloaded = health.windows(declaration, instance, missing[:_JUDGED], under_way, parked)
    sensor = None if instance is None else health.sensor(instance, states, sensor_name(topic, declaration.together))
    pending = next(iter(sealing.pending_edges(declaration, newest_cut.edge, now, 1)), None) if newest_cut else None
    late = pending is not None and now - pending > health.patience(declaration)
    clock = _clock_error(cluster, ledger, topic, now, pending) if late and pending is not None else None
    generation = newest_cut.generation if newest_cut is not None else 1
    # Offsets of an earlier generation do not show how far the current log is loaded.
    committed = _committed(rows.filter(pc.equal(rows["generation"], generation)), edges, loaded)
    if not committed and older.until is not None:
        last = ledger.cuts(topic, older.until, older.until)[-1]
        committed = dict(last.cut.offsets) if last.generation == generation else {}
    cut = dict(newest_cut.cut.offsets) if newest_cut is not None else {}
    partitions = tuple(
        _partition(p, committed, cut, ends, by_partition.get(p)) for p in sorted({*committed, *cut, *ends})
    )
    newest_end = pc.max(rows["window_end"]).as_py() if loaded else None
    behind = health.backlog(
        declaration,
        [edge_of(end) for key, end in zip(sealed, edges[1:], strict=True) if key not in {*loaded, *set_aside}],
        _recorded(rows) if missing else (),
        now,
    )
    aged = [check.messages(subject) for check in raw_checks.aging_of(declaration)]
    passing = [warning for messages in aged for warning in messages.warnings]
    held_up = health.problems(declaration, unloaded, sensor, pending if instance else None, now, moved or clock, behind)
    decoded, error = _decoded(declaration, ledger, instance, older.windows + len(loaded), frozenset(missing), now)
    changes, error_of_changes = _changes(declaration, ledger, instance, now)
    state, error_of_state = _state(declaration, ledger, instance)
    held = older.rows + (pc.sum(rows["rows"]).as_py() or 0)
    judged = health.latest_checks(instance, [dg.AssetCheckKey(table_key(declaration.raw_table), n) for n in checks])
    unjudged: Iterable[str] = ()
    if instance is not None:
        since = first if older.windows else pc.min(rows["recorded_at"]).as_py()
        patience = health.patience(declaration)
        unjudged = health.checks_not_run(declaration.raw_table, judged, newest, since, patience, now)
    parked_past_keep = expiry_text.warnings(topic, past_keep, {} if keep is None else keep.more)
    far = None if moved or clock else health.catching_up(declaration, sensor, older.windows + len(sealed), pending, now)
    return TableStatus(
        table=declaration.raw_table.name,
        topic=topic,
        windows_sealed=older.windows + len(sealed),
        windows_loaded=older.windows + len(loaded),
        windows_waiting=len(missing) - len(failed) - len(set_aside),
        windows_failed=len(failed),
        rows=held,
        offsets_without_row=older.offsets + (pc.sum(pc.subtract(rows["end"], rows["start"])).as_py() or 0) - held,
        newest_window=newest,
        newest_window_age_seconds=None if newest_end is None else round((now - newest_end).total_seconds(), 1),
        lag=_sum(p.lag for p in partitions),
        partitions=partitions,
        checks=judged,
        broker_error=broker_error,
        error=error or error_of_changes or error_of_state,
        warning=" ".join([*_warnings(declaration, first, now), *([far] if far else []), *passing, *parked_past_keep])
        or None
        if newest_cut is not None or declaration.paused
        else _not_begun(declaration, sensor, now),
        unloaded=tuple(unloaded[:_MOST_UNLOADED]),
        sensor=sensor,
        windows_parked=len(set_aside),
        problems=(
            *(() if declaration.paused else held_up),
            *(problem for messages in aged for problem in messages.problems),
            *unjudged,
            *_unerased(declaration.raw_table.name, unfinished, replays_left),
            *upkeep_status.problems(upkeep),
            *expiry_text.problems(topic, past_keep, {} if keep is None else keep.more),
        ),
        lag_to_high_watermark=_sum(p.lag_to_high_watermark for p in partitions),
        open_transactions=() if table_forecast is None else retention_check.transactions(table_forecast),
        hours_left=None if table_forecast is None or table_forecast.hours is None else round(table_forecast.hours, 2),
        decoded=decoded,
        paused=declaration.paused,
        upkeep=upkeep,
        keep=keep,
        changes=changes,
        state=state,
    )


def _unerased(
    table: str, unfinished: Mapping[str, decisions.UnfinishedErasure], replays: Sequence[str]
) -> Iterator[str]:
    """Yield what to do about an interrupted erasure, in case it is not running again."""
    continued = f'if it is no longer running, continue it with `platform-assets erase {table} --reason "…"`'
    if unfinished:
        by = next(iter(unfinished.values())).decision.decided_by
        yield f"an erasure requested by {by} is not complete in {len(unfinished):,} windows: {continued}"
    if replays:
        named = ", ".join(f"replays/{name}" for name in replays[:3])
        more = f" and {len(replays) - 3:,} more" if len(replays) > 3 else ""
        yield f"an erasure is not complete in {named}{more}: {continued}, which also reports anything that has to be done first"


def _decoded(
    declaration: TopicDeclaration,
    ledger: Ledger,
    instance: dg.DagsterInstance | None,
    loaded: int,
    missing: Collection[str],
    now: datetime,
) -> tuple[DecodedStatus | None, str | None]:
    """Return the status of the tables into which the topic is decoded, if any, or the reason why this status is
    unknown."""
    if declaration.decode is None:
        return None, None
    try:
        found = decoded_status.collect(declaration, declaration.decode, ledger, instance, loaded, missing, now)
        return (decoded_status.at_rest(found) if declaration.paused else found), None
    except PlatformError as e:
        return None, str(e)


def _changes(
    declaration: TopicDeclaration, ledger: Ledger, instance: dg.DagsterInstance | None, now: datetime
) -> tuple[ChangesStatus | None, str | None]:
    """Return the status of the topic's table of changes, if it has a state, or the reason why this status is unknown."""
    if declaration.state is None:
        return None, None
    try:
        return changes_status.collect(declaration, ledger, instance, now), None
    except PlatformError as e:
        return None, str(e)


def _state(
    declaration: TopicDeclaration, ledger: Ledger, instance: dg.DagsterInstance | None
) -> tuple[StateStatus | None, str | None]:
    """Return the status of the topic's state, if it has one, or the reason why this status is unknown."""
    if declaration.state is None:
        return None, None
    try:
        return state_status.collect(declaration, declaration.state, ledger, instance), None
    except PlatformError as e:
        return None, str(e)


def _recorded(rows: pa.Table) -> list[tuple[datetime, datetime]]:
    """Return, for each loaded window, its end and the time when its newest entry was recorded."""
    found = rows.group_by("window_end").aggregate([("recorded_at", "max")])
    return list(zip(found["window_end"].to_pylist(), found["recorded_at_max"].to_pylist(), strict=True))


def _not_begun(declaration: TopicDeclaration, sensor: SensorStatus | None, now: datetime) -> str | None:
    """Return the message for a topic that has no sealed window although a window has ended."""
    name = sensor_name(declaration.topic, declaration.together)
    if sensor is not None or not sealing.pending_edges(declaration, None, now, 2)[1:]:
        return None
    return (
        f"no window has been sealed yet, and its sensor {name} has never ticked. It should tick within a minute after "
        f"`platform-assets up`; if it does not, start it in the UI under Automation"
    )


def _subject(
    declaration: TopicDeclaration, ledger: Ledger, cluster: Cluster | None, now: datetime, broker_silence: str | None
) -> Subject:
    """Return the table for its aging checks, with a time limit for calls to the brokers, or with the reason why the
    brokers are not queried."""
    silence = broker_silence
    if silence is None and cluster is None:
        silence = (
            "KAFKA_BOOTSTRAP_SERVERS is not set and no embedded broker is running; start one with `platform-assets up`"
        )
    if silence is not None or cluster is None:
        return Subject(declaration, ledger, silence or "", now)
    return Subject(declaration, ledger, cluster.with_deadline(time.monotonic() + _BROKER_BUDGET_SECONDS), now)


def _sum(values: Iterable[int | None]) -> int | None:
    """Return None if there are no values, or if one of them is unknown."""
    known = list(values)
    return None if not known or None in known else sum(v for v in known if v is not None)


def _moved_start(declaration: TopicDeclaration, ledger: Ledger) -> str | None:
    try:
        sealing.check_start(declaration, ledger)
    except StartMovedError as e:
        return str(e)
    return None


def _warnings(declaration: TopicDeclaration, first: datetime | None, now: datetime) -> Iterator[str]:
    if declaration.paused:
        yield "it is paused in its YAML: no window is sealed, loaded or decoded until you remove `paused`."
    if first is None:
        return
    many = planning.limit_warning(declaration, now)
    if many is not None:
        yield many
    if declaration.start > first:
        yield (
            f"its `start` is later than its first window, {key_of(first)}: windows before `start` stay in the table and "
            f"are still loaded and checked, but are not partitions in Dagster"
        )


def _clock_error(cluster: Cluster | None, ledger: Ledger, topic: str, now: datetime, edge: datetime) -> str | None:
    """Return the reason why an edge that passed long ago by this machine's clock has no cut: by another clock, it has
    not passed yet."""
    if cluster is None:
        return None
    try:
        other = clocks.other_clock(cluster, ledger.lake, now)
    except PlatformError as e:
        return str(e)
    return None if other.ahead(now) is None or other.now >= edge else str(other.error(topic, now, edge))


def _committed(rows: pa.Table, edges: list[str], loaded: set[str]) -> dict[int, int]:
    """Return, by partition, the end of the last window before the first window that is not loaded."""
    unbroken = next((e for e in edges[:-1] if e not in loaded), None)
    held = rows if unbroken is None else rows.filter(pc.less(rows["window"], unbroken))
    if held.num_rows == 0:
        return {}
    ends = held.group_by("partition").aggregate([("end", "max")])
    return dict(zip(ends["partition"].to_pylist(), ends["end_max"].to_pylist(), strict=True))


def _partition(
    partition: int,
    committed: Mapping[int, int],
    sealed: Mapping[int, int],
    ends: Mapping[int, int],
    forecast: PartitionForecast | None,
) -> PartitionStatus:
    at, end = committed.get(partition), ends.get(partition)
    # Before the first load, the lag counts from the start of the first window, which may be far above 0.
    reached = at if at is not None or forecast is None else forecast.loaded
    lag = None if end is None else offsets.lag(end, reached)
    watermark = None if forecast is None else forecast.end
    beyond = None if watermark is None else offsets.lag(watermark, reached)
    left = None if forecast is None or forecast.forecast is None else forecast.forecast.hours
    return PartitionStatus(
        partition=partition,
        committed=at,
        sealed=sealed.get(partition),
        end=end,
        lag=lag,
        high_watermark=watermark,
        lag_to_high_watermark=beyond,
        hours_left=None if left is None else round(left, 2),
    )
