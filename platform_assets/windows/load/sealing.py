"""Sealing windows: taking the cuts at edges that have closed, and recording each cut once.

If a tick occurs within one sensor interval of the newest closed edge, that edge is cut at the last stable offset. The
first edge is cut at the log start. Every other edge is cut by looking up its timestamp. Cuts only grow and never exceed
the last stable offset.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from platform_assets.errors import (
    BrokerUnreachableError,
    ClusterChangedError,
    ConfigurationError,
    LedgerConflictError,
    LedgerLostError,
    PlatformError,
    Retryable,
    TopicRecreatedError,
    UnknownWindowError,
    WindowBeforeStartError,
    WindowOpenError,
)
from platform_assets.kafka.cluster import Cluster, FoundOffset, TopicState
from platform_assets.kafka.lookup import TimestampLookup
from platform_assets.lake import load_log
from platform_assets.lake.location import Lake
from platform_assets.ledger import cut_ranges
from platform_assets.ledger.entries import CutMethod, RecordedCut, SealedWindow, windows_between
from platform_assets.ledger.recording import Proposed
from platform_assets.ledger.store import Ledger
from platform_assets.model.declaration import TopicDeclaration
from platform_assets.model.offsets import Cut
from platform_assets.model.tables import TableRef
from platform_assets.model.windows import Window, closed_edges, edge_of, key_of, window_starting_at
from platform_assets.windows.load import clocks, truncation
from platform_assets.windows.load.clocks import OtherClock

_RACES = 5


class StartMovedError(ConfigurationError):
    """`start` was moved to a time before the first window, which already contains all older records."""

    def __init__(self, topic: str, start: str, first: str) -> None:
        self.topic, self.start, self.first = topic, start, first
        super().__init__(
            f"start {start} of topic {topic!r} is before the topic's first window, which begins at {first} and contains all "
            "older records, so there is nothing to load before it. No window is sealed until you set `start` in "
            "its defs.yaml to "
            f'"{first}" or later.'
        )


@dataclass(frozen=True, slots=True)
class Sealing:
    """Result of one attempt: the edges that this call recorded, and True if closed edges are left for the next call.

    `before` is the newest cut before these edges; None if they are the first edges.
    """

    recorded: tuple[RecordedCut, ...]
    more: bool
    before: RecordedCut | None = None

    def windows_since(self, edge: datetime | None) -> list[SealedWindow] | None:
        """Return the windows that this call sealed; None if it sealed none, or if other windows were sealed after
        `edge`."""
        if self.before is None or self.before.edge != edge or not self.recorded:
            return None
        return windows_between((self.before, *self.recorded))


def pending_edges(declaration: TopicDeclaration, newest: datetime | None, now: datetime, limit: int) -> list[datetime]:
    """Return closed edges without a recorded cut, ascending, at most `limit` edges."""
    if newest is not None:
        return closed_edges(declaration.schedule, newest, now, limit)
    first = declaration.first_edge
    if first > now:
        return []
    return [first, *closed_edges(declaration.schedule, first, now, limit - 1)]


def seal(
    declaration: TopicDeclaration,
    cluster: Cluster,
    ledger: Ledger,
    now: datetime,
    *,
    until: datetime | None = None,
    deadline: float,
    clock: clocks.Ask | None = None,
) -> Sealing:
    """Record the cuts at the edges that have closed by `now`, or by `until` if that is earlier.

    Edges that have not passed by another clock, `clock` if given, are omitted. Sealing stops at `deadline` (a value of
    `time.monotonic`) or when the broker becomes unavailable; then it records the cuts that it has, and the next call
    continues from there.

    Raises one of these without recording anything: ClockAheadError, StartMovedError, BrokerUnreachableError,
    TopicMissingError, ClusterChangedError, TopicRecreatedError, EndMovedBackError, TruncationError and LedgerLostError.
    """
    topic = declaration.topic
    bounded = cluster.with_deadline(deadline)
    other: OtherClock | None = None
    for _ in range(_RACES):
        plan = propose(declaration, bounded, ledger, now, until=until, deadline=deadline, clock=clock, other=other)
        if plan is None:
            return Sealing((), more=False)
        other = plan.clock
        if ledger.record_cuts(plan.cuts, plan.before.edge if plan.before else None):
            return Sealing(plan.cuts, plan.more, plan.before)
    raise LedgerConflictError(
        f"in each of {_RACES} attempts, another process recorded window boundaries of topic {topic!r} first. Run it again"
    )


@dataclass(frozen=True, slots=True)
class Plan:
    """Cuts of one topic that were taken but not recorded yet; `before` and `more` are as in `Sealing`."""

    cuts: tuple[RecordedCut, ...]
    more: bool
    before: RecordedCut | None
    clock: OtherClock | None


def propose(
    declaration: TopicDeclaration,
    cluster: Cluster,
    ledger: Ledger,
    now: datetime,
    *,
    until: datetime | None = None,
    deadline: float,
    clock: clocks.Ask | None = None,
    other: OtherClock | None = None,
) -> Plan | None:
    """Return the cuts that `seal` would record; None if no edge is to be cut. Calls to `cluster` are bounded by
    `deadline`.

    `other` is the time of another clock, if it was already requested. Raises whatever `seal` raises.
    """
    topic = declaration.topic
    newest = ledger.newest_cut(topic)
    check_ledger_knows_table(declaration.raw_table, ledger.lake, newest)
    limit = declaration.max_edges_per_tick
    closed = pending_edges(declaration, newest.edge if newest else None, now, limit + 1)
    if closed and newest is not None:
        check_start(declaration, ledger)
    if closed:
        other = other or (clock or clocks.other_clock)(cluster, ledger.lake, now)
        if other.ahead(now) is not None:
            passed = [e for e in closed if e <= other.now]
            if not passed:
                raise other.error(topic, now, closed[0])
            closed, now = passed, other.now
    edges = [e for e in closed[:limit] if until is None or e <= until]
    if not edges:
        return None
    newest_closed = closed[-1] if len(closed) <= limit else None
    state = checked_state(cluster, topic, newest)
    cuts = _take_cuts(declaration, cluster, state, newest, edges, newest_closed, now, deadline)
    if not cuts:
        raise BrokerUnreachableError(
            f"cutting topic {topic!r}", declaration.tick_budget.total_seconds(), "the tick's time limit was reached"
        )
    return Plan(tuple(cuts), len(closed) > len(cuts), newest, other)


def sealed_window(
    declaration: TopicDeclaration,
    cluster: Cluster,
    ledger: Ledger,
    key: str,
    now: datetime,
    *,
    deadline: float,
) -> SealedWindow:
    """Return the window with this key. If the window is not sealed, this call seals it first.

    Raises UnknownWindowError, WindowBeforeStartError, WindowOpenError, and whatever `seal` raises.
    """
    topic = declaration.topic
    try:
        start = edge_of(key)
    except ValueError as e:
        raise UnknownWindowError(topic, key, "a key has the form YYYY-MM-DD-HH:MM, in UTC") from e
    while True:
        known = ledger.window(topic, key)
        if known is not None:
            check_ledger_knows_table(declaration.raw_table, ledger.lake, ledger.newest_cut(topic))
            return known
        end = _closing_edge(declaration, ledger, key, start, now)
        result = seal(declaration, cluster, ledger, now, until=end, deadline=deadline)
        if not result.recorded and ledger.window(topic, key) is None:
            raise UnknownWindowError(topic, key, "it is inside a longer recorded window")


def checked_state(cluster: Cluster, topic: str, newest: RecordedCut | None) -> TopicState:
    """Describe the topic, and check that its offsets still mean the same records as in the ledger."""
    state = cluster.topic(topic)
    if newest is not None and not newest.is_of_cluster(state.cluster_id):
        raise ClusterChangedError(topic, newest.cluster_id or "", state.cluster_id or "")
    if newest is not None and state.topic_id != newest.topic_id:
        raise TopicRecreatedError(topic, newest.topic_id, state.topic_id)
    return state


def check_start(declaration: TopicDeclaration, ledger: Ledger) -> None:
    """Raise StartMovedError if `start` is earlier than it was when the first window was cut.

    A later `start` does not change sealed windows. A `start` less than one window length before the first window does
    not count as moved, because an earlier schedule had no edge in between.
    """
    first = cut_ranges.first_edge(ledger, declaration.topic)
    if first is None or declaration.first_edge >= first:
        return
    edges = cut_ranges.next_edges(ledger, declaration.topic, first, 2)
    if len(edges) == 2 and first - declaration.start >= edges[1] - edges[0]:
        start = declaration.start.astimezone(UTC)
        raise StartMovedError(declaration.topic, f"{start:%Y-%m-%dT%H:%MZ}", f"{first:%Y-%m-%dT%H:%MZ}")


def check_ledger_knows_table(table: TableRef, lake: Lake, newest: RecordedCut | None) -> None:
    """Raise LedgerLostError if `table` contains a window for which the ledger has no cut."""
    edge = newest.edge if newest else None
    load = load_log.load_beyond(lake.table(table), edge)
    held = load_log.expired_beyond(lake.table(table), edge) if load is None else load.metadata.window
    if held is None:
        return
    known = f"the ledger's newest cut is {key_of(newest.edge)}" if newest else "the ledger has no cut of the topic"
    raise LedgerLostError(table.name, f"the table has window {held}, but {known}")


def _closing_edge(declaration: TopicDeclaration, ledger: Ledger, key: str, start: datetime, now: datetime) -> datetime:
    topic = declaration.topic
    newest = ledger.newest_edges([topic]).get(topic)
    first = declaration.first_edge
    if newest is None and start < first:
        raise WindowBeforeStartError(topic, key, key_of(first))
    if newest is not None and start < newest:
        recorded = ledger.cuts(topic, end=start)
        if not recorded:
            raise WindowBeforeStartError(topic, key, key_of(ledger.cuts(topic)[0].edge))
        raise UnknownWindowError(topic, key, f"it is inside window {key_of(recorded[-1].edge)}")
    window = window_starting_at(declaration.schedule, start)
    if window is None:
        raise UnknownWindowError(topic, key, f"schedule {declaration.schedule!r} has no window boundary at that time")
    if window.end > now:
        raise WindowOpenError(topic, key, window.end.astimezone(UTC).isoformat())
    return window.end


def _take_cuts(
    declaration: TopicDeclaration,
    cluster: Cluster,
    state: TopicState,
    newest: RecordedCut | None,
    edges: Sequence[datetime],
    newest_closed: datetime | None,
    now: datetime,
    deadline: float,
) -> list[RecordedCut]:
    stable = truncation.stable_offsets(cluster, state, newest, newest.cut.offsets if newest else {})
    cuts: list[RecordedCut] = []
    if newest is None:
        cuts.append(_first_cut(cluster, state, edges[0]))
        edges = edges[1:]
    previous = newest or cuts[0]
    with TimestampLookup(cluster, state, tuple(stable)) as look_up:
        for edge in edges:
            live = edge == newest_closed and now - edge <= declaration.sensor_interval
            if not live and time.monotonic() > deadline:
                break
            window = Window(previous.edge, edge)
            try:
                found = dict(stable) if live else look_up.at(window, previous.cut.offsets, stable)
            except Retryable:
                if not cuts:
                    raise
                # The time ran out during a look-up, or the broker does not answer: the offsets found so far are kept.
                break
            previous = _grown(state, previous, edge, found, stable)
            cuts.append(previous)
    return cuts


def _grown(
    state: TopicState,
    previous: RecordedCut,
    edge: datetime,
    found: Mapping[int, FoundOffset],
    stable: Mapping[int, FoundOffset],
) -> RecordedCut:
    taken: dict[int, CutMethod] = {p: "last stable offset" if f is stable[p] else "timestamp" for p, f in found.items()}
    cut = previous.cut.grow({p: f.offset for p, f in found.items()}, {p: f.offset for p, f in stable.items()})
    return RecordedCut(
        state.name,
        state.topic_id,
        previous.generation,
        edge,
        cut,
        {p: taken.get(p, "carried") for p in cut.offsets},
        {p: _epoch_of(p, offset, previous, found.get(p)) for p, offset in cut.offsets.items()},
        state.cluster_id or previous.cluster_id,
    )


def _epoch_of(partition: int, offset: int, previous: RecordedCut, found: FoundOffset | None) -> int | None:
    """Return a leader epoch that no record before `offset` exceeds: that of the offset found, or that of the previous
    cut."""
    if found is not None and offset <= found.offset:
        return found.leader_epoch
    return previous.leader_epochs.get(partition)


def _first_cut(cluster: Cluster, state: TopicState, edge: datetime) -> RecordedCut:
    starts = cluster.log_starts(state)
    missing = sorted(set(state.partitions) - set(starts))
    if missing:
        raise BrokerUnreachableError(
            f"looking up the log start of topic {state.name!r}",
            cluster.timeout,
            f"partitions {missing} have no leader",
        )
    return RecordedCut(
        state.name,
        state.topic_id,
        1,
        edge,
        Cut({p: f.offset for p, f in starts.items()}),
        dict.fromkeys(starts, "log start"),
        {p: f.leader_epoch for p, f in starts.items()},
        state.cluster_id,
    )


_AT_ONCE: Final = 250
"""Number of topics whose cuts are recorded in one commit. If the process ends before the commit, these cuts are lost.
"""


def seal_group(
    declarations: Sequence[TopicDeclaration],
    cluster: Cluster,
    ledger: Ledger,
    now: datetime,
    *,
    taking_until: float,
    deadline: float,
    clock: clocks.Ask | None = None,
) -> Mapping[str, Sealing | PlatformError]:
    """Return what `sealing.seal` returns or raises for each topic reached before `taking_until`, in order of the
    topics.

    Both times are values of `time.monotonic`. The first topic is always reached. A topic that fails does not block the
    others.
    """
    found: dict[str, Sealing | PlatformError] = {}
    for at in range(0, len(declarations), _AT_ONCE):
        if at and time.monotonic() >= taking_until:
            break
        found |= _sealed(declarations[at : at + _AT_ONCE], cluster, ledger, now, taking_until, deadline, clock)
    return found


def _sealed(
    declarations: Sequence[TopicDeclaration],
    cluster: Cluster,
    ledger: Ledger,
    now: datetime,
    taking_until: float,
    deadline: float,
    clock: clocks.Ask | None,
) -> dict[str, Sealing | PlatformError]:
    bounded = cluster.with_deadline(deadline)
    found: dict[str, Sealing | PlatformError] = {}
    plans: dict[str, Plan] = {}
    for d in declarations:
        if (found or plans) and time.monotonic() >= taking_until:
            break
        try:
            plan = propose(d, bounded, ledger, now, deadline=deadline, clock=clock)
        except PlatformError as e:
            found[d.topic] = e
            continue
        if plan is None:
            found[d.topic] = Sealing((), more=False)
        else:
            plans[d.topic] = plan
    try:
        proposed = [Proposed(p.cuts, p.before.edge if p.before else None) for p in plans.values()]
        recorded = ledger.record_cuts_of_many(proposed) if proposed else frozenset()
    except PlatformError:
        # The error does not show which topic caused it: record each topic separately.
        recorded = frozenset()
    for d in declarations:
        taken = plans.get(d.topic)
        if taken is None:
            continue
        if d.topic in recorded:
            found[d.topic] = Sealing(taken.cuts, taken.more, taken.before)
            continue
        try:
            # Another process was faster: the remaining cuts have to follow its edges.
            found[d.topic] = seal(d, cluster, ledger, now, deadline=deadline, clock=clock)
        except PlatformError as e:
            found[d.topic] = e
    return {d.topic: found[d.topic] for d in declarations if d.topic in found}
