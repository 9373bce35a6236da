"""The sensor's tick: it seals windows whose end has passed, reports them, and requests runs for windows that are not
loaded.

Every topic belongs to a group; by default, the topic is alone in its group. One tick serves all topics of a group. The
edges that the tick cuts are recorded in one commit, and Dagster's run records are queried once.

A tick never consumes messages. At most, it reads batch headers: around transaction markers and, if holes in a window
are not explained yet, in that window. A tick's reports are based on the ledger, never on the clock, so a tick that is
repeated after a crash reports the same events. Events that Dagster already has are not reported twice.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, Final

import dagster as dg
from dagster._core.storage.tags import ASSET_PARTITION_RANGE_END_TAG, ASSET_PARTITION_RANGE_START_TAG

from platform_assets.errors import BrokerUnreachableError, PlatformError, TopicMissingError
from platform_assets.kafka.cluster import Cluster
from platform_assets.ledger.store import Ledger
from platform_assets.model.declaration import TopicDeclaration
from platform_assets.model.logs import logger
from platform_assets.model.tables import TableRef
from platform_assets.model.untrusted import line, markdown
from platform_assets.orchestration import dagster_records, events, names, planning, raw_checks, state_definitions
from platform_assets.orchestration.aging_checks import Subject, evaluate_due
from platform_assets.orchestration.dagster_records import RunLog
from platform_assets.orchestration.names import run_tag, sensor_name, table_key
from platform_assets.orchestration.planning import LoadRequest
from platform_assets.orchestration.publishing import Publisher
from platform_assets.orchestration.topic_tick import HELD_BACK, HeldBack, TopicTick, TopicTickResult
from platform_assets.windows.load import clocks, sealing
from platform_assets.windows.load.sealing import Sealing, seal_group

_log = logger(__name__)

_CURSOR_VERSION: Final = 1
_FOR_PAUSED: Final = 0.1
"""Share of a tick's budget after which no further paused topics are examined."""
_FOR_TAKING: Final = 0.5
"""Share of a tick's budget after which no further cuts are made."""
_FOR_ALL: Final = 0.9
"""Share of a tick's budget after which no further topics are examined."""
_NAMED: Final = 3
TICK_STATUS: Final = "platform_assets/trouble"
"""Metadata of an observation: the error's class; empty once ticks succeed again."""


@dataclass(frozen=True, slots=True)
class Group:
    """Topics that share a sensor and runs. A group without a `name` has a single topic."""

    name: str | None
    declarations: tuple[TopicDeclaration, ...]

    @classmethod
    def of(cls, declaration: TopicDeclaration) -> Group:
        """Return a group of one topic."""
        return cls(None, (declaration,))

    @property
    def first(self) -> TopicDeclaration:
        """Return one of the topics. The interval, the budget and the limits of a run are the same for all of them."""
        return self.declarations[0]

    def __str__(self) -> str:
        return f"topic {self.first.topic}" if self.name is None else self.name


@dataclass(frozen=True, slots=True)
class Position:
    """The contents of a cursor: for each topic, the edge before which all its windows are reported; and the next topic
    to examine."""

    reported: Mapping[str, datetime] = field(default_factory=dict)
    following: str = ""

    @classmethod
    def from_cursor(cls, cursor: str | None, topics: Sequence[str] = ()) -> Position:
        """Parse the result of `to_cursor`. Return the initial position if there is no cursor or its kind is unknown.

        For the sensor of a single topic, earlier releases wrote a cursor that contains only an edge. Such an edge is
        used if `topics` has exactly one topic.
        """
        fields = json.loads(cursor) if cursor else {}
        reported = fields.get("reported") if fields.get("version") == _CURSOR_VERSION else None
        if isinstance(reported, int) and len(topics) == 1:
            return cls({topics[0]: datetime.fromtimestamp(reported, UTC)})
        if not isinstance(reported, dict):
            return cls()
        edges = {t: datetime.fromtimestamp(int(at), UTC) for at, of_edge in reported.items() for t in of_edge}
        return cls(edges, fields["following"])

    def to_cursor(self) -> str:
        """Return JSON. Topics are grouped by edge, because nearly all have the same edge."""
        by_edge: dict[str, list[str]] = {}
        for topic, edge in sorted(self.reported.items()):
            by_edge.setdefault(str(round(edge.timestamp())), []).append(topic)
        return json.dumps({"version": _CURSOR_VERSION, "reported": by_edge, "following": self.following})


@dataclass
class _Gathered:
    """Results of a tick so far."""

    reported: dict[str, datetime]
    loads: list[tuple[str, LoadRequest]] = field(default_factory=list)
    run_requests: list[dg.RunRequest] = field(default_factory=list)
    events: list[Any] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    errors: list[PlatformError] = field(default_factory=list)
    succeeded: int = 0
    busy: bool = False
    """True if a topic has something to report or to request."""


@dataclass(frozen=True)
class Tick:
    """One evaluation of the sensor of `group`; `now` is when the evaluation began. `clock` is the second clock, by
    default Kafka's."""

    group: Group
    cluster: Cluster
    ledger: Ledger
    instance: dg.DagsterInstance
    now: datetime
    clock: clocks.Ask | None = None

    def evaluate(self, cursor: str | None) -> dg.SensorResult:
        """Do all of the sensor's work: plan, evaluate aging checks, report loads that Dagster lacks, and publish
        positions.

        Topics that remain when the budget is used up come first in the next tick. An error of a topic is reported on
        its table's page, and raised if no topic succeeded.
        """
        began = time.monotonic()
        budget = self.group.first.tick_budget.total_seconds()
        deadline = began + budget
        active = [d for d in self.group.declarations if not d.paused]
        self._age_paused(began + _FOR_PAUSED * budget)
        if not active:
            paused = "paused in its YAML" if self.group.name is None else "every topic is paused in its YAML"
            return dg.SensorResult(skip_reason=line(f"{self.group}: {paused}"), cursor=cursor)
        before = Position.from_cursor(cursor, [d.topic for d in self.group.declarations])
        active = _from(active, before.following)
        try:
            self.ledger.create()
            newest = self.ledger.newest_edges([d.topic for d in active])
        except PlatformError as e:
            for d in active:
                self._observe(d, e)
            raise
        pending = [d for d in active if sealing.pending_edges(d, newest.get(d.topic), self.now, 1)]
        sealed = seal_group(
            pending,
            self.cluster,
            self.ledger,
            self.now,
            taking_until=began + _FOR_TAKING * budget,
            deadline=deadline,
            clock=self.clock,
        )
        left_out = {d.topic for d in pending} - set(sealed)
        found = _Gathered(dict(before.reported))
        records = RunLog(self.instance, (t for d in active for t in d.tables))
        following = min(left_out, key=[d.topic for d in active].index, default="")
        for d in active:
            if (found.succeeded or found.errors) and time.monotonic() > began + _FOR_ALL * budget:
                following = following or d.topic
                break
            if d.topic not in left_out:
                self._look(d, sealed.get(d.topic), found, records, deadline)
        if found.errors and not found.succeeded:
            # A missing topic is the least serious of them.
            raise next((e for e in found.errors if not isinstance(e, TopicMissingError)), found.errors[0])
        after = Position(found.reported, following)
        return self._result(found, cursor if after == before else after.to_cursor())

    def _look(
        self,
        d: TopicDeclaration,
        outcome: Sealing | PlatformError | None,
        found: _Gathered,
        records: RunLog,
        deadline: float,
    ) -> None:
        try:
            if isinstance(outcome, PlatformError) and not isinstance(outcome, HELD_BACK):
                raise outcome
            done = outcome if isinstance(outcome, Sealing | HeldBack) else None
            tick = TopicTick(d, self.cluster, self.ledger, self.instance, self.now, records)
            result = tick.after(done, found.reported.get(d.topic), deadline)
            more = self._more(d, result, records)
        except PlatformError as e:
            found.errors.append(e)
            self._observe(d, e)
            self._age(d, str(e) if isinstance(e, BrokerUnreachableError) else self.cluster)
            if self.group.name is not None:
                _log.error("topic %s: %s", d.topic, e)
            return
        self._observe(d, None)
        found.succeeded += 1
        found.loads += [(d.topic, request) for request in result.loads]
        found.run_requests += [_run_request(d, d.decoded_table, request) for request in result.decodings]
        found.run_requests += [_run_request(d, d.changes_table, request) for request in result.changes]
        found.run_requests += [] if result.checks is None else [result.checks]
        found.events += [*result.events, *more]
        requested = sum(r.windows for r in (*result.loads, *result.decodings, *result.changes))
        folds = state_definitions.run_requests(
            d, self.ledger, self.instance, self.now, requested=requested, log=records
        )
        found.run_requests += folds
        found.busy = found.busy or result.skip_reason is None or bool(folds)
        if result.reported is not None:
            found.reported[d.topic] = result.reported
        if result.skip_reason is not None:
            found.reasons.append(result.skip_reason)

    def _observe(self, d: TopicDeclaration, error: PlatformError | None) -> None:
        observe(self.instance, d, error)

    def _more(self, d: TopicDeclaration, result: TopicTickResult, records: RunLog) -> list[Any]:
        """Report loads that Dagster lacks, evaluate the aging checks that are due, and publish the topic's position."""
        more: list[Any] = list(
            events.missing_loads(d, self.ledger, self.instance, self.now, records, besides=result.events)
        )
        subject = Subject(d, self.ledger, self.cluster, self.now)
        more += evaluate_due(raw_checks.aging_of(d), subject, [*result.events, *more])
        Publisher(d, self.ledger, self.cluster).renew()
        return more

    def _age_paused(self, until: float) -> None:
        """Evaluate the aging checks of paused topics. Topics whose checks are not evaluated by `until` are due in the
        next tick."""
        for d in self.group.declarations:
            if d.paused and time.monotonic() < until:
                self._age(d, self.cluster)

    def _age(self, d: TopicDeclaration, cluster: Cluster | str) -> None:
        """Evaluate the aging checks of a topic that are due. Report the results at once, because this tick may not have
        a result."""
        for event in evaluate_due(raw_checks.aging_of(d), Subject(d, self.ledger, cluster, self.now)):
            self.instance.report_runless_asset_event(event)

    def _result(self, found: _Gathered, cursor: str | None) -> dg.SensorResult:
        if not found.busy:
            said = [*(str(e) for e in found.errors), *dict.fromkeys(found.reasons)]
            more = f" And {len(said) - _NAMED} more." if len(said) > _NAMED else ""
            text = ". ".join(said[:_NAMED]) + more
            return dg.SensorResult(skip_reason=line(text or "nothing to do"), asset_events=found.events, cursor=cursor)
        run_requests = [*self._load_runs(found.loads), *found.run_requests]
        return dg.SensorResult(run_requests=run_requests, asset_events=found.events, cursor=cursor)

    def _load_runs(self, loads: Sequence[tuple[str, LoadRequest]]) -> Iterator[dg.RunRequest]:
        first, name = self.group.first, self.group.name
        if name is None:
            yield from (_run_request(first, first.raw_table, request) for _, request in loads)
            return
        bounds = {"max_offsets": first.max_records_per_run, "max_windows": first.max_windows_per_run}
        for pack in planning.packed(loads, **bounds):
            yield _run_request_of_many(name, pack)


def _from(declarations: Sequence[TopicDeclaration], following: str) -> list[TopicDeclaration]:
    """Return all topics in order of name, but beginning with `following`, so that each topic gets its turn."""
    ordered = sorted(declarations, key=lambda d: d.topic)
    at = next((n for n, d in enumerate(ordered) if d.topic >= following), 0)
    return [*ordered[at:], *ordered[:at]]


# --- runs to request --------------------------------------------------------------------------------------------


def _run_request(d: TopicDeclaration, table: TableRef, request: LoadRequest) -> dg.RunRequest:
    """Return the run that loads windows into the raw `table` and decodes them, or that only decodes them, or that only
    makes their changes.

    The run specifies windows by partition, so that the UI shows them before they are loaded. Windows that are not
    partitions are listed in the run's config.
    """
    run_key, tags = request.run_key(table.name), {dagster_records.TABLE_TAG: run_tag(table)}
    if request.listed:
        of_changes = table == d.changes_table
        of_decoded = table != d.raw_table and not of_changes
        config = dagster_records.config_listing(
            d.topic, request.listed, decode_only=of_decoded, changes_only=of_changes
        )
        return dg.RunRequest(run_key, config, tags, job_name=names.earlier_windows_job(d.topic))
    of_raw = raw_checks.checks_of(d) if table == d.raw_table else ()
    only_changes = table == d.changes_table
    derived = [table_key(table)] if only_changes else names.decoded_keys(d)
    selected: dict[str, Any] = {
        "job_name": names.assets_job(d),
        "asset_selection": names.tables_of(d) if table == d.raw_table else derived,
        "asset_check_keys": [
            *(dg.AssetCheckKey(table_key(d.raw_table), check.name) for check in of_raw),
            *(() if only_changes else names.check_keys(d)),
            *names.changes_check_keys(d),
        ],
    }
    if request.first == request.last:
        return dg.RunRequest(run_key, partition_key=request.first, tags=tags, **selected)
    tags |= {ASSET_PARTITION_RANGE_START_TAG: request.first, ASSET_PARTITION_RANGE_END_TAG: request.last}
    return dg.RunRequest(run_key, tags=tags, **selected)


def _run_request_of_many(name: str, pack: Sequence[tuple[str, LoadRequest]]) -> dg.RunRequest:
    windows: dict[str, list[str]] = {}
    for topic, request in pack:
        windows.setdefault(topic, []).extend(request.listed)
    keys = " ".join(sorted(request.run_key(f"raw/{topic}") for topic, request in pack))
    first = min(request.first for _, request in pack)
    return dg.RunRequest(
        f"together/{name}/{first}/{len(windows)}/{sha256(keys.encode()).hexdigest()[:16]}",
        dagster_records.config_of_many(names.group_op(name), {t: sorted(k) for t, k in sorted(windows.items())}),
        {dagster_records.TABLE_TAG: run_tag(None)},
        job_name=names.group_job(name),
    )


# --- status of ticks --------------------------------------------------------------------------------------------


_known: dict[tuple[str, str], str] = {}
_lock = threading.Lock()


def observe(instance: dg.DagsterInstance, declaration: TopicDeclaration, error: PlatformError | None) -> None:
    """Report on the table's page how a tick ended, with `error` or successfully, if this differs from the previous
    tick.

    Otherwise a failing tick would only be visible at the sensor. Each process queries Dagster only once for the last
    report, so successful ticks cost nothing.
    """
    asset, name = table_key(declaration.raw_table), sensor_name(declaration.topic, declaration.together)
    place = (str(instance.root_directory), declaration.topic)
    kind = "" if error is None else type(error).__name__
    with _lock:
        before = _known.get(place)
        if before is None:
            before = _reported(instance, asset)
        if before != kind:
            text = f"Sensor {name} ticks successfully again." if error is None else f"Sensor {name} fails: {error}"
            metadata = {TICK_STATUS: dg.MetadataValue.text(kind)}
            instance.report_runless_asset_event(
                dg.AssetObservation(asset, description=markdown(text), metadata=metadata)
            )
        _known[place] = kind


def _reported(instance: dg.DagsterInstance, asset: dg.AssetKey) -> str:
    """Return the kind of error that was last reported; empty if there is none."""
    for record in instance.fetch_observations(asset, limit=20).records:
        observation = record.asset_observation
        if observation is not None and TICK_STATUS in observation.metadata:
            return str(observation.metadata[TICK_STATUS].value)
    return ""
