"""The sensor of topics that are together: one tick seals, reports and asks for all of them, and their windows share runs.

What is decided of each topic is what the sensor of a topic of its own decides. All edges that a tick cuts are recorded in one
commit, and Dagster is asked once for the runs that it has on record.
"""

# No postponed annotations here: Dagster reads those of the functions below.
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any, Final

import dagster as dg

from platform_assets.checks.registry import DEEP_AUDIT
from platform_assets.errors import PlatformError
from platform_assets.kafka.cluster import Cluster
from platform_assets.ledger.store import Ledger
from platform_assets.model.declaration import TopicDeclaration
from platform_assets.model.logs import logger
from platform_assets.model.untrusted import line
from platform_assets.orchestration import assets, foresight, requests, runs, together_runs, trouble, unreported
from platform_assets.orchestration.assets import DeepAudit
from platform_assets.orchestration.names import assets_job, run_tag, sensor_name, table_key, together_job, together_op
from platform_assets.orchestration.publishing import Publisher
from platform_assets.orchestration.resources import KafkaResource, LakeResource
from platform_assets.orchestration.run_log import RunLog
from platform_assets.orchestration.sensors import HELD_BACK, HeldBack, Seen, Tick
from platform_assets.windows import clocks, sealing
from platform_assets.windows.sealing import Sealing
from platform_assets.windows.sealing_together import seal_together

_log = logger(__name__)

_CURSOR_VERSION: Final = 1
_FOR_TAKING: Final = 0.5
"""Share of a tick's budget after which no cut is taken any more."""
_FOR_ALL: Final = 0.9
"""Share after which no topic is looked at any more."""
_NAMED: Final = 3


@dataclass(frozen=True, slots=True)
class Group:
    """Topics that are together under `name`, and what they share; their declarations say the rest."""

    name: str
    declarations: tuple[TopicDeclaration, ...]

    @property
    def first(self) -> TopicDeclaration:
        """One of them: interval, budget and bounds of a run are the same for all."""
        return self.declarations[0]


@dataclass(frozen=True, slots=True)
class Position:
    """What a cursor says: the edge before which all windows of a topic are reported, and the topic that is looked at next."""

    reported: Mapping[str, datetime] = field(default_factory=dict)
    following: str = ""

    @classmethod
    def from_cursor(cls, cursor: str | None) -> "Position":
        """From `to_cursor`; the beginning where there is none, or one of another kind."""
        fields = json.loads(cursor) if cursor else {}
        if fields.get("version") != _CURSOR_VERSION or not isinstance(fields.get("reported"), dict):
            return cls()
        edges = {t: datetime.fromtimestamp(at, UTC) for at, topics in _pairs(fields["reported"]) for t in topics}
        return cls(edges, fields["following"])

    def to_cursor(self) -> str:
        """JSON. Topics by edge: nearly all of them have the same."""
        by_edge: dict[str, list[str]] = {}
        for topic, edge in sorted(self.reported.items()):
            by_edge.setdefault(str(round(edge.timestamp())), []).append(topic)
        return json.dumps({"version": _CURSOR_VERSION, "reported": by_edge, "following": self.following})


def _pairs(by_edge: Mapping[str, Sequence[str]]) -> Iterator[tuple[int, Sequence[str]]]:
    return ((int(at), topics) for at, topics in by_edge.items())


@dataclass
class _Gathered:
    """What a tick has found so far."""

    loads: list[tuple[str, requests.LoadRequest]] = field(default_factory=list)
    run_requests: list[dg.RunRequest] = field(default_factory=list)
    events: list[Any] = field(default_factory=list)
    reported: dict[str, datetime] = field(default_factory=dict)
    reasons: list[str] = field(default_factory=list)
    errors: list[PlatformError] = field(default_factory=list)
    went_well: int = 0


@dataclass(frozen=True)
class TogetherTick:
    """One evaluation of the sensor of `group`; otherwise as `sensors.Tick`."""

    group: Group
    cluster: Cluster
    ledger: Ledger
    instance: dg.DagsterInstance
    now: datetime
    clock: clocks.Ask | None = None

    def evaluate(self, cursor: str | None) -> dg.SensorResult:
        """Seal, report, ask, for as many topics as the budget allows; the next tick begins with those that are left.

        An error of one topic is reported on its table's page. Raises it where no topic went well.
        """
        began = time.monotonic()
        budget = self.group.first.tick_budget.total_seconds()
        deadline = began + budget
        self.ledger.create()
        position = Position.from_cursor(cursor)
        active = _from([d for d in self.group.declarations if not d.paused], position.following)
        if not active:
            return dg.SensorResult(
                skip_reason=line(f"{self.group.name}: every topic is paused in its YAML"), cursor=cursor
            )
        newest = self.ledger.newest_edges([d.topic for d in active])
        pending = [d for d in active if sealing.pending_edges(d, newest.get(d.topic), self.now, 1)]
        sealed = seal_together(
            pending,
            self.cluster,
            self.ledger,
            self.now,
            taking_until=began + _FOR_TAKING * budget,
            deadline=deadline,
            clock=self.clock,
        )
        left_out = {d.topic for d in pending} - set(sealed)
        found, log = (
            _Gathered(reported=dict(position.reported)),
            RunLog(self.instance, (t for d in active for t in d.tables)),
        )
        following = min(left_out, key=[d.topic for d in active].index, default="")
        for d in active:
            if (found.went_well or found.errors) and time.monotonic() > began + _FOR_ALL * budget:
                following = following or d.topic
                break
            if d.topic not in left_out:
                self._look(d, sealed.get(d.topic), found, log, deadline)
        if found.errors and not found.went_well:
            raise found.errors[0]
        return self._result(found, following)

    def _look(
        self,
        d: TopicDeclaration,
        outcome: Sealing | PlatformError | None,
        found: _Gathered,
        log: RunLog,
        deadline: float,
    ) -> None:
        try:
            if isinstance(outcome, PlatformError) and not isinstance(outcome, HELD_BACK):
                raise outcome
            held_back = outcome if isinstance(outcome, HeldBack) else None
            done = outcome if isinstance(outcome, Sealing) else None
            tick = Tick(d, self.cluster, self.ledger, self.instance, self.now, self.clock, log)
            seen = tick.after(held_back or done, found.reported.get(d.topic), deadline)
            events = self._more_events(d, seen, log)
            Publisher(d, self.ledger, self.cluster).renew()
        except PlatformError as e:
            trouble.observe(self.instance, d, e)
            _log.error("topic %s: %s", d.topic, e)
            found.errors.append(e)
            return
        trouble.observe(self.instance, d, None)
        found.went_well += 1
        found.loads += [(d.topic, request) for request in seen.loads]
        found.run_requests += seen.run_requests
        found.events += events
        if seen.reported is not None:
            found.reported[d.topic] = seen.reported
        if seen.skip_reason is not None:
            found.reasons.append(seen.skip_reason)

    def _more_events(self, d: TopicDeclaration, seen: Seen, log: RunLog) -> Sequence[Any]:
        """What is reported of a topic: as any tick of one topic does."""
        result = dg.SensorResult(asset_events=seen.events)
        result = unreported.with_loads(result, d, self.ledger, self.instance, self.now, log)
        return foresight.with_evaluation(result, d, self.ledger, self.cluster, self.now).asset_events

    def _result(self, found: _Gathered, following: str) -> dg.SensorResult:
        shared = self.group.first
        cursor = Position(found.reported, following).to_cursor()
        packs = requests.packed(
            found.loads, max_offsets=shared.max_records_per_run, max_windows=shared.max_windows_per_run
        )
        run_requests = [*(self._run_request(pack) for pack in packs), *found.run_requests]
        if not run_requests and not found.events:
            said = [*(str(e) for e in found.errors), *dict.fromkeys(found.reasons)]
            more = f" And {len(said) - _NAMED} more." if len(said) > _NAMED else ""
            return dg.SensorResult(skip_reason=line(". ".join(said[:_NAMED]) + more or "nothing to do"), cursor=cursor)
        return dg.SensorResult(run_requests=run_requests, asset_events=found.events, cursor=cursor)

    def _run_request(self, pack: Sequence[tuple[str, requests.LoadRequest]]) -> dg.RunRequest:
        windows: dict[str, list[str]] = {}
        for topic, request in pack:
            windows.setdefault(topic, []).extend(request.listed)
        keys = " ".join(sorted(request.run_key(f"raw/{topic}") for topic, request in pack))
        first = min(request.first for _, request in pack)
        name = self.group.name
        return dg.RunRequest(
            f"together/{name}/{first}/{len(windows)}/{sha256(keys.encode()).hexdigest()[:16]}",
            runs.config_of_many(together_op(name), {t: sorted(k) for t, k in sorted(windows.items())}),
            {runs.TABLE_TAG: run_tag(None)},
            job_name=together_job(name),
        )


def _from(declarations: Sequence[TopicDeclaration], following: str) -> list[TopicDeclaration]:
    """All of them in order of name, beginning with `following`, so that each comes to its turn."""
    ordered = sorted(declarations, key=lambda d: d.topic)
    at = next((n for n, d in enumerate(ordered) if d.topic >= following), 0)
    return [*ordered[at:], *ordered[:at]]


def build_definitions(
    group: Group, running: bool, jobs: Sequence[Any], audits: Mapping[str, DeepAudit]
) -> dg.Definitions:
    """What topics that are together share: the sensor, its jobs, and when the deep audit runs, which `audits` says by topic.

    `jobs` are those of single topics, which a tick asks for too.
    """
    job = together_runs.build_job(group.name, group.declarations)
    by_job: dict[str, list[TopicDeclaration]] = {}
    for d in group.declarations:
        by_job.setdefault(assets_job(d), []).append(d)
    single = [assets.load_job_of(name, some) for name, some in sorted(by_job.items())]
    interval: timedelta = group.first.sensor_interval

    @dg.sensor(
        name=sensor_name("", group.name),
        jobs=[job, *single, *jobs],
        # As the sensor of one topic.
        minimum_interval_seconds=max(round(interval.total_seconds()) - 1, 1),
        default_status=dg.DefaultSensorStatus.RUNNING if running else dg.DefaultSensorStatus.STOPPED,
        description=f"Seals the windows of {len(group.declarations)} topics, reports their offsets and asks for their loads.",
    )
    def _sensor(context: dg.SensorEvaluationContext, kafka: KafkaResource, lake: LakeResource) -> dg.SensorResult:
        tick = TogetherTick(group, kafka.cluster(), Ledger(lake.lake()), context.instance, datetime.now(UTC))
        return tick.evaluate(context.cursor)

    audit_job = dg.define_asset_job(
        f"{group.name}_together_deep_audit",
        selection=dg.AssetSelection.checks(*(_audit_of(d) for d in group.declarations)),
        description="Reads files of these topics' raw tables again, oldest proof first, and recomputes their digests.",
    )
    by_time: dict[tuple[str, bool], list[TopicDeclaration]] = {}
    for d in group.declarations:
        by_time.setdefault((audits[d.topic].schedule, audits[d.topic].running), []).append(d)
    schedules = [
        _audit_schedule(f"{group.name}_together_deep_audit_{number}", audit_job, at, on, some)
        for number, ((at, on), some) in enumerate(sorted(by_time.items(), key=lambda item: item[0]))
    ]
    return dg.Definitions(sensors=[_sensor], jobs=[job, *single, audit_job], schedules=schedules)


def _audit_of(d: TopicDeclaration) -> dg.AssetCheckKey:
    return dg.AssetCheckKey(table_key(d.raw_table), DEEP_AUDIT.name)


def _audit_schedule(
    name: str, job: Any, at: str, running: bool, declarations: Sequence[TopicDeclaration]
) -> dg.ScheduleDefinition:
    @dg.schedule(
        name=name,
        job=job,
        cron_schedule=at,
        default_status=dg.DefaultScheduleStatus.RUNNING if running else dg.DefaultScheduleStatus.STOPPED,
        description=f"Asks for the deep audit of {len(declarations)} topics, a run each.",
    )
    def _schedule(context: dg.ScheduleEvaluationContext) -> Iterator[dg.RunRequest]:
        moment = context.scheduled_execution_time.astimezone(UTC)
        for d in declarations:
            key = f"{d.raw_table}/deep-audit/{moment:%Y-%m-%dT%H:%M}"
            yield dg.RunRequest(key, asset_selection=[], asset_check_keys=[_audit_of(d)])

    return _schedule
