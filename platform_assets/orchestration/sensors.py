"""The sensor of a topic: seals windows whose end has passed, reports them, and asks for their loads.

What it asks for does not depend on its cursor: every sealed window that is not loaded, that no run under way will bring and
whose last run failed long enough ago. `retries` says when that is.

A tick never consumes messages: at most it looks at batch headers, around transaction markers and, where a window's holes
are not explained yet, of that window. What it reports comes from the ledger, never from the clock, so a tick that is tried
again after a crash reports the same; and what Dagster already has is not reported twice.
"""

# No postponed annotations here: Dagster reads those of the functions below.
import itertools
import json
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import dagster as dg
from dagster._core.definitions.target import ExecutableDefinition
from dagster._core.storage.tags import ASSET_PARTITION_RANGE_END_TAG, ASSET_PARTITION_RANGE_START_TAG

from platform_assets.checks.registry import CHECKS
from platform_assets.errors import PlatformError, TopicMissingError
from platform_assets.kafka.cluster import Cluster
from platform_assets.ledger import decisions, stretches, unloaded
from platform_assets.ledger.entries import Receipt, SealedWindow
from platform_assets.ledger.store import Ledger
from platform_assets.ledger.unloaded import Unloaded
from platform_assets.model.declaration import TopicDeclaration
from platform_assets.model.windows import key_of
from platform_assets.orchestration import foresight, metadata, quiet, requests, runs, trouble, unreported
from platform_assets.orchestration.names import earlier_windows_job, load_job, sensor_name, table_key, topic_key
from platform_assets.orchestration.publishing import Publisher
from platform_assets.orchestration.resources import KafkaResource, LakeResource
from platform_assets.orchestration.retries import Waiting, decided_at, tries_of
from platform_assets.windows import clocks, sealing
from platform_assets.windows.clocks import ClockAheadError
from platform_assets.windows.receipts import empty_receipt
from platform_assets.windows.sealing import StartMovedError

_log = logging.getLogger(__name__)

_CURSOR_VERSION = 1


@dataclass(frozen=True)
class Tick:
    """One evaluation of the sensor of `declaration`; `now` is when it began. `clock` is the second one, Kafka's by default."""

    declaration: TopicDeclaration
    cluster: Cluster
    ledger: Ledger
    instance: dg.DagsterInstance
    now: datetime
    clock: clocks.Ask | None = None

    def evaluate(self, cursor: str | None) -> dg.SensorResult:
        """Seal, report, ask. Raises what `sealing.seal` raises; nothing was reported then."""
        d = self.declaration
        deadline = time.monotonic() + d.tick_budget.total_seconds()
        self.ledger.create()
        newest = self.ledger.newest_edges([d.topic]).get(d.topic)
        reported = _edge_in(cursor)
        fresh: list[SealedWindow] | None = None
        held_back: str | None = None
        if sealing.pending_edges(d, newest, self.now, 1):
            try:
                done = sealing.seal(d, self.cluster, self.ledger, self.now, deadline=deadline, clock=self.clock)
            except (ClockAheadError, StartMovedError) as e:
                # Nothing is wrong with what was sealed before: it is asked for as at any other tick.
                held_back = str(e)
                _log.warning(held_back)
            else:
                fresh = done.windows_since(reported)
            newest = self.ledger.newest_edges([d.topic]).get(d.topic)
        if newest is None:
            return dg.SensorResult(skip_reason=held_back or self._why_nothing(newest), cursor=cursor)
        left = unloaded.find(self.ledger, d.raw_table, newest, fresh)
        if fresh:
            windows = fresh[: d.max_edges_per_tick]
        else:
            # By stretches, so that a lost cursor costs a tick no more than any other: the next one goes on from there.
            windows = (
                stretches.next_windows(self.ledger, d.topic, reported, d.max_edges_per_tick)
                if newest != reported
                else []
            )
        if not windows and not left.windows:
            return dg.SensorResult(skip_reason=held_back or self._why_nothing(newest), cursor=cursor)
        keys = [w.key for w in windows]
        # What this very tick has sealed, nobody has loaded or reported: an older entry is not of these offsets.
        receipts = {} if fresh or not keys else self.ledger.receipts(d.raw_table, keys)
        known = frozenset() if fresh else runs.reported_partitions(self.instance, topic_key(d.topic), keys)
        result = self._report(windows, receipts, known, left, newest, cursor, deadline)
        if held_back is not None and result.skip_reason is not None:
            return dg.SensorResult(skip_reason=held_back, cursor=cursor)
        return result

    def _report(
        self,
        windows: Sequence[SealedWindow],
        receipts: dict[str, Receipt],
        reported: frozenset[str],
        left: Unloaded,
        newest: datetime,
        cursor: str | None,
        deadline: float,
    ) -> dg.SensorResult:
        d = self.declaration
        empty = {
            w.key: empty_receipt(d.raw_table, w, "") for w in windows if not w.ranges.size and w.key not in receipts
        }
        self.ledger.record_receipts(list(empty.values()))
        receipts |= empty
        loads = self._loads(windows, receipts, left, newest, _edge_in(cursor))
        fresh_empty = self._empty_to_report(receipts)
        checks = quiet.NOTHING
        # A load's run evaluates the checks behind its materialisation, and so does the tick that has caught up.
        if fresh_empty and not loads and windows[-1].window.end == newest:
            reporting = {r.window.key: r.load_id for r in fresh_empty}
            budget = deadline - time.monotonic()
            checks = quiet.evaluated(d, self.cluster, self.ledger, self.instance, reporting, budget)
        if not windows and not loads:
            return dg.SensorResult(skip_reason=self._why_waiting(left), cursor=cursor)
        return dg.SensorResult(
            run_requests=[*(_run_request(d, r) for r in loads), *((checks.run,) if checks.run else ())],
            asset_events=[
                *(sealed_event(w) for w in windows if w.key not in reported),
                *self._empty_events(fresh_empty),
                *checks.events,
            ],
            cursor=cursor_at(windows[-1].window.end) if windows else cursor,
        )

    def _loads(
        self,
        windows: Sequence[SealedWindow],
        receipts: Mapping[str, Receipt],
        left: Unloaded,
        newest: datetime,
        reported: datetime | None,
    ) -> list[requests.LoadRequest]:
        """Runs for what is not loaded among `windows`, which are reported by this tick, and all that were before."""
        d = self.declaration
        until = windows[-1].window.end if windows else reported
        open_windows = {
            key: window
            for key, window in left.windows.items()
            if key not in receipts and until is not None and window.end <= until
        }
        if not open_windows:
            return []
        keys = list(open_windows)
        in_flight = runs.windows_in_flight(self.instance, table_key(d.raw_table), keys)
        # A run that ended just now is not in flight, and what it loaded is in the ledger since.
        left = unloaded.find(self.ledger, d.raw_table, newest)
        parking = decisions.parking(self.ledger.lake, d.topic)
        tries = tries_of(keys, runs.failed_runs(self.instance, d.raw_table, keys))
        waiting = Waiting(self.now, d.sensor_interval, newest, decided_at(left.accepted, parking.unparked))
        at_hand = {w.key: w for w in windows}
        due = [
            window
            for key, window in open_windows.items()
            if key in left.windows and key not in {*in_flight, *parking.parked} and waiting.is_due(key, tries.get(key))
        ]
        askable = (w for w in due if w.key not in at_hand)
        older = unloaded.read(self.ledger, d.topic, list(itertools.islice(askable, d.max_edges_per_tick)))
        chosen = [*older, *(at_hand[w.key] for w in due if w.key in at_hand)]
        partitions = {w.key for w in chosen if d.has_partition(w.window.start, self.now)}
        bounds: dict[str, Any] = {
            "max_offsets": d.max_records_per_run,
            "max_windows": d.max_windows_per_run,
            "tries": tries,
            # Asked for before, and no run of it is on record as failed: it was deleted, or did not load the window.
            "asked_before": {k: key_of(newest) for k in keys if k not in at_hand},
        }
        named = requests.grouped([w for w in chosen if w.key in partitions], (), schedule=d.schedule, **bounds)
        return [*named, *requests.listed([w for w in chosen if w.key not in partitions], **bounds)]

    def _empty_to_report(self, receipts: dict[str, Receipt]) -> list[Receipt]:
        empty = {k: r for k, r in receipts.items() if r.kind == "empty"}
        known = runs.reported_partitions(self.instance, table_key(self.declaration.raw_table), list(empty))
        return [receipt for window, receipt in sorted(empty.items()) if window not in known]

    def _empty_events(self, receipts: Sequence[Receipt]) -> Iterator[dg.AssetMaterialization]:
        path = str(self.ledger.lake.table(self.declaration.raw_table))
        for receipt in receipts:
            yield dg.AssetMaterialization(
                table_key(self.declaration.raw_table),
                description="no offsets in this window: loaded with 0 rows, without a run",
                partition=receipt.window.key,
                metadata=metadata.of_receipt(receipt, "empty", path),
                tags={"dagster/data_version": metadata.data_version(receipt)},
            )

    def _why_waiting(self, left: Unloaded) -> str:
        first = next(iter(left.windows))
        return f"topic {self.declaration.topic}: {len(left.windows)} sealed windows wait to be loaded, the first is {first}"

    def _why_nothing(self, newest: datetime | None) -> str:
        d = self.declaration
        if newest is None:
            return f"topic {d.topic}: its first edge {d.first_edge:%Y-%m-%d %H:%M}Z has not come yet"
        return f"topic {d.topic}: no window has closed since {newest:%Y-%m-%d %H:%M}Z"


def build_sensor(
    declaration: TopicDeclaration, running: bool, jobs: Sequence[ExecutableDefinition]
) -> dg.SensorDefinition:
    """The sensor of one topic. `jobs` are those that it asks for: of windows that are partitions, and of all others."""

    @dg.sensor(
        name=sensor_name(declaration.topic),
        jobs=jobs,
        # Dagster's daemon looks every five seconds which sensors are due. A look that came a moment early would put a
        # tick off to the next one, and its edges would then be cut by look-up, since they were not seen in time.
        minimum_interval_seconds=max(round(declaration.sensor_interval.total_seconds()) - 1, 1),
        default_status=dg.DefaultSensorStatus.RUNNING if running else dg.DefaultSensorStatus.STOPPED,
        description=f"Seals the windows of topic {declaration.topic}, reports their offsets and asks for their loads.",
    )
    def _sensor(context: dg.SensorEvaluationContext, kafka: KafkaResource, lake: LakeResource) -> dg.SensorResult:
        try:
            tick = Tick(declaration, kafka.cluster(), Ledger(lake.lake()), context.instance, datetime.now(UTC))
            result = tick.evaluate(context.cursor)
            result = unreported.with_loads(result, declaration, tick.ledger, tick.instance, tick.now)
            result = foresight.with_evaluation(result, declaration, tick.ledger, tick.cluster, tick.now)
            Publisher(declaration, tick.ledger, tick.cluster).renew()
        except PlatformError as e:
            trouble.observe(context.instance, declaration, e)
            if not isinstance(e, TopicMissingError):
                raise
            # For a person to mend, and `status` shows it too: a stack at every tick would tell nothing more.
            return dg.SensorResult(skip_reason=str(e), cursor=context.cursor)
        trouble.observe(context.instance, declaration, None)
        return result

    return _sensor


def sealed_event(window: SealedWindow) -> dg.AssetMaterialization:
    """What is reported on the topic asset once a window is sealed."""
    return dg.AssetMaterialization(
        topic_key(window.topic),
        description=f"sealed: {window.ranges.size:,} offsets",
        partition=window.key,
        metadata=metadata.of_sealed(window),
        tags={"dagster/data_version": metadata.sealed_version(window)},
    )


def _run_request(d: TopicDeclaration, request: requests.LoadRequest) -> dg.RunRequest:
    run_key = request.run_key(d.raw_table.name)
    # All but the deep audit, which has a schedule of its own.
    selected: dict[str, Any] = {
        "job_name": load_job(d.topic),
        "asset_selection": [table_key(d.raw_table)],
        "asset_check_keys": [
            dg.AssetCheckKey(table_key(d.raw_table), name) for name in (*CHECKS, foresight.RETENTION_IS_FAR)
        ],
    }
    tags = {runs.TABLE_TAG: d.raw_table.name}
    if request.listed:
        config = runs.config_listing(d.topic, request.listed)
        return dg.RunRequest(run_key, config, tags, job_name=earlier_windows_job(d.topic))
    if request.first == request.last:
        return dg.RunRequest(run_key, partition_key=request.first, tags=tags, **selected)
    return dg.RunRequest(
        run_key,
        **selected,
        tags={
            **tags,
            ASSET_PARTITION_RANGE_START_TAG: request.first,
            ASSET_PARTITION_RANGE_END_TAG: request.last,
        },
    )


def _edge_in(cursor: str | None) -> datetime | None:
    if not cursor:
        return None
    fields = json.loads(cursor)
    return datetime.fromtimestamp(fields["reported"], UTC) if fields.get("version") == _CURSOR_VERSION else None


def cursor_at(edge: datetime) -> str:
    """The cursor of a tick that has reported all windows before `edge`."""
    return json.dumps({"version": _CURSOR_VERSION, "reported": round(edge.timestamp())})
