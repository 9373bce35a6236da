"""The part of a tick for one topic: which windows to report, and which to request.

Requests do not depend on the cursor. A tick requests every sealed window that is not loaded, unless a run in progress
will load the window or the window's last failure is too recent. `planning` determines how long ago that must be.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import dagster as dg

from platform_assets.kafka.cluster import Cluster
from platform_assets.ledger import cut_ranges, decisions, unloaded
from platform_assets.ledger.entries import Receipt, SealedWindow
from platform_assets.ledger.store import Ledger
from platform_assets.ledger.unloaded import Unloaded
from platform_assets.model.declaration import TopicDeclaration
from platform_assets.model.logs import logger
from platform_assets.model.tables import TableRef
from platform_assets.model.windows import Window, key_of
from platform_assets.orchestration import changes_checks, dagster_records, decoded_checks, events, planning, raw_checks
from platform_assets.orchestration.dagster_records import RunLog
from platform_assets.orchestration.names import blocking_changes, blocking_keys, table_key, topic_key
from platform_assets.orchestration.planning import Waiting, decided_at, tries_of
from platform_assets.windows.change import changing
from platform_assets.windows.decide import carrying_out
from platform_assets.windows.decode.expired import record_undecoded
from platform_assets.windows.erase import reapplying
from platform_assets.windows.load import sealing
from platform_assets.windows.load.clocks import ClockAheadError
from platform_assets.windows.load.receipts import empty_receipt
from platform_assets.windows.load.sealing import StartMovedError

_log = logger(__name__)

HeldBack = ClockAheadError | StartMovedError
HELD_BACK = (ClockAheadError, StartMovedError)
"""Errors that prevent only sealing; the rest of the tick continues."""


@dataclass(frozen=True)
class TopicTickResult:
    """The result of a tick for one topic: windows to request, for the raw table (`loads`), for decoding, and for their
    changes; a run of only the checks; `events` to report; and the edge before which all windows are reported once the events are.
    `skip_reason` is set if there is nothing else."""

    loads: Sequence[planning.LoadRequest]
    decodings: Sequence[planning.LoadRequest]
    changes: Sequence[planning.LoadRequest]
    checks: dg.RunRequest | None
    events: Sequence[dg.AssetMaterialization | dg.AssetCheckEvaluation]
    reported: datetime | None
    skip_reason: str | None = None


@dataclass(frozen=True)
class TopicTick:
    """The part of a tick that handles the topic `declaration`; `now` is when the tick began, and `log` has Dagster's
    run records."""

    declaration: TopicDeclaration
    cluster: Cluster
    ledger: Ledger
    instance: dg.DagsterInstance
    now: datetime
    log: RunLog

    def after(
        self, done: sealing.Sealing | HeldBack | None, reported: datetime | None, deadline: float
    ) -> TopicTickResult:
        """Return what to report and request after an attempt to seal windows; `done` is None if there was nothing to
        seal.

        Earlier ticks have reported all windows before the edge `reported`.
        """
        d = self.declaration
        fresh: list[SealedWindow] | None = None
        held_back: str | None = None
        if isinstance(done, HeldBack):
            # Windows that were sealed before are not affected: they are requested as in any other tick.
            held_back = str(done)
            _log.warning(held_back)
        elif done is not None:
            fresh = done.windows_since(reported)
        newest = self.ledger.newest_edges([d.topic]).get(d.topic)
        if newest is None:
            return _nothing(held_back or self._why_nothing(newest))
        carrying_out.carry_out(self.ledger, d.topic)
        reapplying.finish(self.ledger, d)
        left = unloaded.find(self.ledger, d.raw_table, newest, fresh)
        undecoded = self._undecoded(newest, left)
        unchanged = self._unchanged(newest)
        if fresh:
            windows = fresh[: d.max_edges_per_tick]
        else:
            # Read by ranges, so that a lost cursor makes no tick more expensive: the next tick continues from there.
            windows = (
                cut_ranges.next_windows(self.ledger, d.topic, reported, d.max_edges_per_tick)
                if newest != reported
                else []
            )
        if not windows and not left.windows and not undecoded and not unchanged:
            return _nothing(held_back or self._why_nothing(newest))
        keys = [w.key for w in windows]
        # These windows were sealed in this tick, so no load has reported them, and an older entry is for other offsets.
        receipts = {} if fresh or not keys else self.ledger.receipts(d.raw_table, keys)
        known = frozenset() if fresh else dagster_records.reported_partitions(self.instance, topic_key(d.topic), keys)
        result = self._report(windows, receipts, known, left, undecoded, unchanged, newest, reported, deadline)
        return result if result.skip_reason is None or held_back is None else _nothing(held_back)

    def _report(
        self,
        windows: Sequence[SealedWindow],
        receipts: dict[str, Receipt],
        reported: frozenset[str],
        left: Unloaded,
        undecoded: Mapping[str, Window],
        unchanged: Mapping[str, Window],
        newest: datetime,
        before_this: datetime | None,
        deadline: float,
    ) -> TopicTickResult:
        d = self.declaration
        empty = {
            w.key: empty_receipt(d.raw_table, w, "") for w in windows if not w.ranges.size and w.key not in receipts
        }
        decoded = [empty_receipt(t, w, "") for w in empty.values() for t in _made_from_raw(d)]
        self.ledger.record_receipts([*empty.values(), *decoded])
        before = [key for key, receipt in receipts.items() if receipt.kind == "empty"]
        receipts |= empty
        loads = self._loads(windows, receipts, left, newest, before_this)
        decodings = self._decodings(undecoded, newest)
        changes = self._changes({k: w for k, w in unchanged.items() if k not in undecoded}, newest)
        fresh_empty = self._unreported(d.raw_table, receipts)
        decoded += self._decoded_to_report(before)
        checks = raw_checks.NOTHING
        # A load's run evaluates the checks after its materialization, and so does a tick that has caught up.
        if fresh_empty and not loads and windows[-1].window.end == newest:
            reporting = {r.window.key: r.load_id for r in fresh_empty}
            budget = deadline - time.monotonic()
            checks = raw_checks.after_empty_windows(d, self.cluster, self.ledger, self.instance, reporting, budget)
        of_decoded: list[dg.AssetCheckEvaluation] = []
        if d.decode is not None and decoded and not loads and not decodings and windows[-1].window.end == newest:
            of_decoded += decoded_checks.after_empty_windows(d, d.decode, self.ledger, self.instance)
            if not changes:
                of_decoded += changes_checks.after_empty_windows(d, self.ledger, self.instance)
        if not windows and not loads and not decodings and not changes:
            return _nothing(self._why_waiting(left, undecoded, unchanged))
        return TopicTickResult(
            loads,
            decodings,
            changes,
            checks.run,
            [
                *(events.sealed_event(w) for w in windows if w.key not in reported),
                *self._empty_events(fresh_empty),
                *self._empty_events(decoded),
                *checks.events,
                *of_decoded,
            ],
            windows[-1].window.end if windows else None,
        )

    def _loads(
        self,
        windows: Sequence[SealedWindow],
        receipts: Mapping[str, Receipt],
        left: Unloaded,
        newest: datetime,
        reported: datetime | None,
    ) -> list[planning.LoadRequest]:
        """Return runs for windows that are not loaded and are reported: this tick reports the windows in `windows`, and
        earlier ticks reported all windows before."""
        d = self.declaration
        until = windows[-1].window.end if windows else reported
        open_windows = {
            key: window
            for key, window in left.windows.items()
            if key not in receipts and until is not None and window.end <= until
        }
        return self._requests(d.raw_table, open_windows, newest, {w.key: w for w in windows})

    def _undecoded(self, newest: datetime, unloaded_raw: Unloaded) -> Mapping[str, Window]:
        """Return the windows that the raw table has and the decoded table lacks, if the topic is decoded.

        Windows that expired before the topic was decoded are recorded as expired instead.
        """
        d = self.declaration
        if d.decode is None:
            return {}
        left = unloaded.find(self.ledger, d.decoded_table, newest)
        undecoded = {key: window for key, window in left.windows.items() if key not in unloaded_raw.windows}
        if not undecoded or (d.keep is None and not decisions.decisions(self.ledger.lake, d.topic, ("expire",))):
            return undecoded
        expired = record_undecoded(self.ledger, d, undecoded)
        return {key: window for key, window in undecoded.items() if key not in expired}

    def _decodings(self, undecoded: Mapping[str, Window], newest: datetime) -> list[planning.LoadRequest]:
        """Return runs that decode windows of the raw table; none while a check of the raw table blocks derived tables."""
        d = self.declaration
        if not undecoded or dagster_records.blocked_by(self.instance, blocking_keys(d)):
            return []
        return self._requests(d.decoded_table, undecoded, newest, {})

    def _unchanged(self, newest: datetime) -> Mapping[str, Window]:
        """Return the decoded windows whose changes are missing or lost, or were made from another load of the decoded window
        or with another declaration, if the topic has a state."""
        d = self.declaration
        if d.state is None:
            return {}
        missing = unloaded.find(self.ledger, d.changes_table, newest).windows
        stale = changing.stale_windows(self.ledger, d)
        # A run that was killed may have left changes without a receipt.
        receipts = self.ledger.receipts(d.decoded_table, stale) if stale else {}
        found = {key: missing[key] for key in changing.unmade(self.ledger, d, missing)}
        return dict(sorted({**found, **{key: receipt.window for key, receipt in receipts.items()}}.items()))

    def _changes(self, unchanged: Mapping[str, Window], newest: datetime) -> list[planning.LoadRequest]:
        """Return runs that make changes of decoded windows; none while a check of the decoded tables blocks them."""
        d = self.declaration
        if not unchanged or dagster_records.blocked_by(self.instance, blocking_changes(d)):
            return []
        return self._requests(d.changes_table, unchanged, newest, {})

    def _requests(
        self,
        table: TableRef,
        open_windows: Mapping[str, Window],
        newest: datetime,
        at_hand: Mapping[str, SealedWindow],
    ) -> list[planning.LoadRequest]:
        """Return runs for those of `open_windows` that are due in `table`. The windows in `at_hand` need not be read
        again."""
        if not open_windows:
            return []
        d = self.declaration
        keys = list(open_windows)
        in_flight = dagster_records.windows_in_flight(self.instance, table_key(table), keys, log=self.log)
        # A run that has just ended is no longer in flight, and the ledger already has what it loaded.
        is_changes = table == d.changes_table
        left = Unloaded(self._unchanged(newest)) if is_changes else unloaded.find(self.ledger, table, newest)
        parking = decisions.parking(self.ledger.lake, table)
        tries = tries_of(keys, dagster_records.failed_runs(self.instance, table, keys, self.log))
        decided = decided_at(left.accepted, parking.unparked)
        waiting = Waiting(self.now, d.sensor_interval, newest, decided, d.decode.fingerprint if d.decode else "")
        due = [
            window
            for key, window in open_windows.items()
            if key in left.windows and key not in {*in_flight, *parking.parked} and waiting.is_due(key, tries.get(key))
        ]
        askable = (w for w in due if w.key not in at_hand)
        older = unloaded.read(self.ledger, d.topic, list(itertools.islice(askable, d.max_edges_per_tick)))
        chosen = [*older, *(at_hand[w.key] for w in due if w.key in at_hand)]
        by_partition = d.together is None or table != d.raw_table
        partitions = {w.key for w in chosen if by_partition and d.has_partition(w.window.start, self.now)}
        bounds: dict[str, Any] = {
            "max_offsets": d.max_records_per_run,
            "max_windows": d.max_windows_per_run,
            "tries": tries,
            # It was requested before, and no failed run of it is known: the run was deleted, or did not load the
            # window.
            "asked_before": {k: key_of(newest) for k in keys if k not in at_hand},
        }
        named = planning.grouped([w for w in chosen if w.key in partitions], (), schedule=d.schedule, **bounds)
        return [*named, *planning.listed([w for w in chosen if w.key not in partitions], **bounds)]

    def _decoded_to_report(self, keys: Sequence[str]) -> list[Receipt]:
        """Return the windows without offsets that an earlier tick recorded but Dagster lacks, because the result of
        that tick was lost."""
        tables = _made_from_raw(self.declaration) if keys else ()
        return [r for t in tables for r in self._unreported(t, self.ledger.receipts(t, list(keys)))]

    def _unreported(self, table: TableRef, receipts: Mapping[str, Receipt]) -> list[Receipt]:
        empty = {k: r for k, r in receipts.items() if r.kind == "empty"}
        known = dagster_records.reported_partitions(self.instance, table_key(table), list(empty))
        return [receipt for window, receipt in sorted(empty.items()) if window not in known]

    def _empty_events(self, receipts: Sequence[Receipt]) -> Iterator[dg.AssetMaterialization]:
        text = "no offsets in this window: loaded with 0 rows, without a run"
        for receipt in receipts:
            yield events.window_event(receipt, "empty", self.declaration, self.ledger.lake, text)

    def _why_waiting(self, left: Unloaded, undecoded: Mapping[str, Window], unchanged: Mapping[str, Window]) -> str:
        if not left.windows and not undecoded:
            first = next(iter(unchanged))
            return (
                f"topic {self.declaration.topic}: {len(unchanged)} windows wait for their changes, the first is {first}"
            )
        if not left.windows:
            first = next(iter(undecoded))
            return f"topic {self.declaration.topic}: {len(undecoded)} windows are waiting to be decoded, the first is {first}"
        first = next(iter(left.windows))
        return f"topic {self.declaration.topic}: {len(left.windows)} sealed windows are waiting to be loaded, the first is {first}"

    def _why_nothing(self, newest: datetime | None) -> str:
        d = self.declaration
        if newest is None:
            return f"topic {d.topic}: its first window boundary, {d.first_edge:%Y-%m-%d %H:%M}Z, is in the future"
        return f"topic {d.topic}: no window has closed since {newest:%Y-%m-%d %H:%M}Z"


def _nothing(reason: str) -> TopicTickResult:
    return TopicTickResult((), (), (), None, (), None, reason)


def _made_from_raw(d: TopicDeclaration) -> tuple[TableRef, ...]:
    return d.tables[1:]
