"""Replaying into a separate table: windows are loaded again, by the same loader, into a lake inside the live lake.

The inner lake has its own ledger with the live ledger's cuts. So the same offsets are read, and no decision, commit or
entry affects the live table: not its rows, its receipts, its checks or its position.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final, Literal

from platform_assets.engines.protocol import LoadEngine
from platform_assets.errors import (
    BrokerUnreachableError,
    ConfigurationError,
    LedgerConflictError,
    OffsetsExpiredError,
    OffsetsVanishedError,
    PlatformError,
    UnknownOutcome,
    UnknownWindowError,
    ranges_text,
)
from platform_assets.lake import holdings, load_log
from platform_assets.lake.location import Lake
from platform_assets.ledger import erasure_rules
from platform_assets.ledger.entries import Receipt, RecordedCut, SealedWindow
from platform_assets.ledger.store import Ledger
from platform_assets.model.offsets import OffsetRange, common, size_of, subtract
from platform_assets.model.tables import TableRef
from platform_assets.model.windows import Span, edge_of
from platform_assets.windows.decide import generations
from platform_assets.windows.decide.generations import Ranges
from platform_assets.windows.erase import replayed
from platform_assets.windows.load.catching_up import load_many
from platform_assets.windows.load.loading import Loader
from platform_assets.windows.load.replacing import Loaded
from platform_assets.windows.replay import comparing
from platform_assets.windows.replay.comparing import WindowComparison

Deed = Literal["empty", "load", "refuse", "compare", "keep", "expired", "return"]
"""Effect of loading the window in place. empty: the window has no offsets; load: it was never loaded; refuse: it was
never loaded, and Kafka no longer has some of its offsets; compare: it is read again; keep: Kafka no longer has all of
its rows, so the rows in the table are proved by their digests; expired: its rows were removed because the window is past the
topic's `keep`, and are loaded again only once that was lengthened; return: that was done, so they are loaded again or restored."""


@dataclass(frozen=True, slots=True)
class PlannedWindow:
    """One window of a replay. `held` are the window's offsets that Kafka still has, `gone` those that Kafka no longer
    has; `is_past` is True if it is past the topic's `keep`."""

    sealed: SealedWindow
    receipt: Receipt | None
    held: Ranges
    gone: Ranges
    accepted: Ranges
    is_past: bool = False

    @property
    def records(self) -> int | None:
        """Number of rows according to the window's receipt; None if the window was never loaded."""
        return None if self.receipt is None else self.receipt.rows

    @property
    def deed(self) -> Deed:
        """Effect of loading the window in place."""
        if not self.sealed.ranges.size:
            return "empty"
        if self.receipt is None or self.receipt.kind == "empty":
            return "refuse" if self._lacks({p: (r,) for p, r in self.sealed.ranges.items()}) else "load"
        if self.receipt.is_expired:
            return "expired" if self.is_past else "return"
        spans = {
            p: (OffsetRange.closed(part.first_offset, part.last_offset),)
            for p, part in self.receipt.partitions.items()
            if part.first_offset is not None and part.last_offset is not None
        }
        return "keep" if self._lacks(spans) else "compare"

    def _lacks(self, needed: Ranges) -> bool:
        """Return True if Kafka lacks some of the offsets `needed`, except those whose loss was accepted."""
        return any(
            subtract(common(parts, self.gone.get(p, ())), self.accepted.get(p, ())) for p, parts in needed.items()
        )

    def details(self) -> dict[str, Any]:
        """Return plain JSON values, with offsets as `[start, end]`, end exclusive."""
        return {
            "window": self.sealed.key,
            "generation": self.sealed.generation,
            "topic_id": self.sealed.topic_id,
            "offsets": self.sealed.ranges.size,
            "records": self.records,
            "kafka_has": sum(size_of(parts) for parts in self.held.values()),
            "gone": {str(p): [[r.start, r.end] for r in parts] for p, parts in self.gone.items()},
            "in_place": self.deed,
        }


def plan(loader: Loader, windows: Sequence[SealedWindow]) -> tuple[PlannedWindow, ...]:
    """Return the effect of a replay of sealed `windows` of the loader's topic. Queries the brokers, but changes
    nothing.

    Raises TopicRecreatedError, TruncationError, ClusterChangedError or TopicMissingError: if the log is no longer the
    one in the ledger, an operator has to decide before it is replayed. Raises BrokerUnreachableError, also if a
    partition has no leader.
    """
    topic, ledger, table = loader.declaration.topic, loader.ledger, loader.declaration.raw_table
    keys = [w.key for w in windows]
    receipts, accepted = ledger.receipts(table, keys), ledger.accepted_losses_of(table, keys)
    inside = {w.key: generations.within_log(ledger, w) for w in windows}
    needed: dict[int, int] = {}
    for ranges in inside.values():
        needed |= {p: max(r.end, needed.get(p, 0)) for p, r in ranges.items() if r.size}
    bounds = loader.bounds(topic, needed)
    if missing := sorted(p for p in needed if p not in bounds.starts or p not in bounds.ends):
        doing = f"planning a replay of topic {topic!r}"
        raise BrokerUnreachableError(doing, loader.cluster.timeout, f"partitions {missing} have no leader")
    found = []
    keep, now = loader.declaration.keep, loader.now()
    for window in windows:
        held = {p: r.minus([OffsetRange(0, bounds.starts[p])]) for p, r in inside[window.key].items() if r.size}
        gone = {p: r.minus(held.get(p, ())) for p, r in window.ranges.items()}
        found.append(
            PlannedWindow(
                window,
                receipts.get(window.key),
                {p: parts for p, parts in held.items() if parts},
                {p: parts for p, parts in gone.items() if parts},
                accepted.get(window.key, {}),
                keep is not None and keep.is_past(window.window.end, now),
            )
        )
    return tuple(found)


@dataclass(frozen=True, slots=True)
class ByKeys:
    """Windows by their keys. Each of `names` is a key, or `A..B` for all windows from A to B, both inclusive."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ByOffsets:
    """Offsets of one partition of the topic's newest generation."""

    partition: int
    offsets: OffsetRange


@dataclass(frozen=True, slots=True)
class ByTimestamps:
    """Records with a timestamp in `[since, until)`; both are timezone-aware."""

    since: datetime
    until: datetime

    def __post_init__(self) -> None:
        if self.since >= self.until:
            raise ConfigurationError(
                f"the range from {_text(self.since)} until {_text(self.until)} is empty: its start is not before its end"
            )


Selection = ByKeys | ByOffsets | ByTimestamps


@dataclass(frozen=True, slots=True)
class Touched:
    """The sealed windows that a range touches, ascending. `note` is a remark for the user; it may be empty."""

    windows: tuple[SealedWindow, ...]
    note: str = ""


def find(selection: Selection, topic: str, ledger: Ledger) -> Touched:
    """Return the sealed windows of `topic` that `selection` touches.

    Raises UnknownWindowError for a key or a range of keys without a sealed window, and ConfigurationError for offsets
    that are not in a sealed window.
    """
    if isinstance(selection, ByKeys):
        found = {w.key: w for name in selection.names for w in _named(name, topic, ledger)}
        return Touched(tuple(found[key] for key in sorted(found)))
    if isinstance(selection, ByOffsets):
        return _with_offsets(selection, topic, ledger)
    return Touched(tuple(_with_timestamps(selection, topic, ledger)))


def _named(name: str, topic: str, ledger: Ledger) -> Sequence[SealedWindow]:
    if ".." in name:
        try:
            span = Span.parse(name)
        except ValueError as e:
            raise UnknownWindowError(
                topic, name, "a range of windows has the form A..B, where A and B are keys of the form YYYY-MM-DD-HH:MM"
            ) from e
        start = None if span.first is None else edge_of(span.first)
        windows = [w for w in ledger.windows(topic, start) if w.key in span]
        if not windows:
            raise UnknownWindowError(topic, name, "the ledger has no sealed window in this range")
        return windows
    try:
        window = ledger.window(topic, name)
    except ValueError as e:
        raise UnknownWindowError(topic, name, "a key has the form YYYY-MM-DD-HH:MM, in UTC") from e
    if window is None:
        raise UnknownWindowError(topic, name, "the ledger has no sealed window with that key")
    return [window]


def _with_offsets(selection: ByOffsets, topic: str, ledger: Ledger) -> Touched:
    partition, wanted = selection.partition, selection.offsets
    newest = ledger.newest_cut(topic)
    of_generation = [w for w in ledger.windows(topic) if newest is not None and w.generation == newest.generation]
    held = {w.key: r for w in of_generation if (r := w.ranges.by_partition.get(partition)) is not None}
    touched = tuple(w for w in of_generation if w.key in held and held[w.key].intersect(wanted) is not None)
    asked = ranges_text([(partition, wanted.start, wanted.end)])
    if not touched:
        known = (
            ranges_text([(partition, *_bounds(list(held.values())))])
            if held
            else f"no offsets of partition {partition}"
        )
        raise ConfigurationError(
            f"{asked} of topic {topic!r} are in no sealed window: the sealed windows of its newest generation hold {known}"
        )
    outside = wanted.minus(held[w.key] for w in touched)
    named = ranges_text((partition, r.start, r.end) for r in outside)
    return Touched(touched, f"{named} are in no sealed window" if outside else "")


def _bounds(ranges: Sequence[OffsetRange]) -> tuple[int, int]:
    return min(r.start for r in ranges), max(r.end for r in ranges)


def _with_timestamps(selection: ByTimestamps, topic: str, ledger: Ledger) -> Iterator[SealedWindow]:
    """Yield windows that have such a record according to the statistics of the table's files, and windows of that time
    that have no file.

    Any window may contain any timestamp. If a window was not loaded, only its own time is known.
    """
    folder = ledger.lake.table(TableRef.raw(topic))
    spans: dict[str, bool] = {}
    if load_log.exists(folder):
        actions = holdings.actions(folder)
        names = (holdings.WINDOW, "min.kafka_timestamp", "max.kafka_timestamp")
        columns = [actions[n].to_pylist() if n in actions.column_names else [None] * actions.num_rows for n in names]
        for key, oldest, newest in zip(*columns, strict=True):
            # A file without statistics of its timestamps may hold any.
            inside = oldest is None or newest is None or (oldest < selection.until and newest >= selection.since)
            spans[key] = spans.get(key, False) or inside
    for window in ledger.windows(topic):
        of_that_time = window.window.start < selection.until and window.window.end > selection.since
        if spans.get(window.key, of_that_time):
            yield window


def _text(time: datetime) -> str:
    return f"{time.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"


_OVERTAKEN: Final = 5
"""Number of attempts per window if retention deletes some of its offsets while it is being read."""


@dataclass(frozen=True)
class Replay:
    """A range loaded into a separate table. `fresh` is the loader of the replay's own lake, which has a separate
    ledger.

    To continue an interrupted replay, start it again with the same name. Windows that the replay already has are read
    again and proved.
    """

    live: Loader
    fresh: Loader

    @classmethod
    def begin(cls, live: Loader, fresh: Loader, planned: Sequence[PlannedWindow]) -> Replay:
        """Copy the cuts of the windows, and of all later windows, to the replay's ledger.

        Raises ConfigurationError if Kafka no longer has any of the offsets, or if the replay's ledger has cuts of
        another range, and LedgerConflictError if another process writes to that ledger.
        """
        topic, windows = live.declaration.topic, [p.sealed for p in planned]
        if any(p.gone for p in planned) and not any(p.held for p in planned):
            raise ConfigurationError(
                f"Kafka no longer has any of these offsets of topic {topic!r}, so nothing can be loaded into a "
                f"separate table. Replay without --into instead, which proves the rows of "
                f"{live.declaration.raw_table} by their receipts."
            )
        fresh.ledger.create()
        have = fresh.ledger.cuts(topic)
        start = min(w.window.start for w in windows)
        cuts = live.ledger.cuts(topic, start=have[0].edge if have else start)
        if [_place(c) for c in have] != [_place(c) for c in cuts[: len(have)]] or (have and have[0].edge > start):
            raise ConfigurationError(
                f"{fresh.ledger.lake} holds a replay of another range of topic {topic!r}. Choose another name, or delete that "
                "folder, which contains none of the lake's own tables"
            )
        newest = have[-1].edge if have else None
        if cuts[len(have) :] and not fresh.ledger.record_cuts(cuts[len(have) :], newest):
            raise LedgerConflictError(
                f"another process is replaying into {fresh.ledger.lake}: wait until it ends, then run this again"
            )
        replay = cls(live, fresh)
        replayed.take_over(live.ledger, fresh.ledger, topic)
        replay._take_over_losses([w.key for w in windows])
        return replay

    def load(
        self, windows: Sequence[SealedWindow], forget_session: Callable[[], None]
    ) -> Iterator[tuple[str, Loaded | PlatformError]]:
        """Load each of the windows, as far as Kafka has their offsets. Yield the outcomes in order of the windows.

        Offsets that Kafka no longer has are recorded in the replay's ledger. `forget_session` is called if the
        connection to Spark broke, so that the next window gets a new session.
        """
        by_key = {w.key: w for w in windows}
        for key, outcome in load_many(self.fresh, list(by_key)):
            for _ in range(_OVERTAKEN):
                if isinstance(outcome, OffsetsExpiredError):
                    self.fresh.ledger.record_acceptance(by_key[key], _ranges(outcome), "Kafka no longer had them")
                elif not isinstance(outcome, OffsetsVanishedError):
                    break
                ((_, outcome),) = load_many(self.fresh, [key])
            if isinstance(outcome, UnknownOutcome):
                forget_session()
            yield key, outcome

    def compare(self, sealed: SealedWindow, outcome: Loaded | PlatformError) -> WindowComparison:
        """Compare the window in both tables, or report why it cannot be compared."""
        if isinstance(outcome, PlatformError):
            return WindowComparison(sealed.key, (), {}, 0, f"it could not be loaded: {outcome}")
        table = self.live.declaration.raw_table
        known = self.live.ledger.receipts(table, [sealed.key]).get(sealed.key)
        if known is not None and known.is_expired:
            return WindowComparison(sealed.key, (), {}, 0, f"it has expired: {table} has no rows to compare it with")
        return comparing.compare(sealed, self.live.ledger, self.fresh.ledger)

    def _take_over_losses(self, keys: Sequence[str]) -> None:
        """Leave out offsets that were accepted as lost in the live table, as the loads of the live table do."""
        table, topic = self.live.declaration.raw_table, self.live.declaration.topic
        known = self.fresh.ledger.accepted_losses_of(table, keys)
        done = self.fresh.ledger.receipts(table, keys)
        lost = self.live.ledger.accepted_losses_of(table, keys)
        new = {
            key: left
            for key, ranges in lost.items()
            if key not in done and (left := erasure_rules.without(ranges, known.get(key, {})))
        }
        sealed = {key: window for key in new if (window := self.live.ledger.window(topic, key)) is not None}
        self.fresh.ledger.record_acceptances(
            [(window, new[key]) for key, window in sealed.items()], "accepted as lost from the live table"
        )


def fresh_loader(live: Loader, name: str, engine: Callable[[Lake], LoadEngine]) -> Loader:
    """Return the loader of the replay with this name. `engine` creates the engine for tables of a lake. Raises
    ConfigurationError."""
    ledger = Ledger(live.ledger.lake.replay(name))
    return replace(live, ledger=ledger, engine=engine(ledger.lake))


def _place(cut: RecordedCut) -> tuple[Any, ...]:
    return cut.edge, cut.generation, cut.topic_id, dict(cut.cut.offsets)


def _ranges(error: OffsetsExpiredError) -> dict[int, tuple[OffsetRange, ...]]:
    found: dict[int, tuple[OffsetRange, ...]] = {}
    for partition, start, end in error.lost:
        found[partition] = (*found.get(partition, ()), OffsetRange(start, end))
    return found
