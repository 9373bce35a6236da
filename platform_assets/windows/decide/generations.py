"""Generations of a topic's log: what is lost when a topic is recreated or a log is truncated, and how an operator
accepts the new log.

A generation is one lifetime of a log: within a generation, an offset of a partition never stands for two records. A
topic that is deleted and created again starts a new generation at its log start, with another topic id. A log that lost
its end starts a new generation at the point of truncation, with the same id; earlier offsets belong to both
generations. Each window belongs to one generation. The new generation starts at the newest edge of the old generation,
so every time is still in exactly one window, and records of the new log from before the decision are in its first
window.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from platform_assets.errors import BrokerUnreachableError, ConfigurationError, FilesLostError, LedgerConflictError
from platform_assets.kafka.cluster import Cluster, TopicState
from platform_assets.lake import holdings, load_log, rows
from platform_assets.lake.location import Folder
from platform_assets.ledger import decisions
from platform_assets.ledger.decisions import Author, Decision
from platform_assets.ledger.entries import BELOW_LOG_START, Receipt, RecordedCut, SealedWindow
from platform_assets.ledger.store import Ledger
from platform_assets.model.offsets import Cut, OffsetRange, ranges_of, size_of, subtract
from platform_assets.model.tables import TableRef
from platform_assets.model.windows import key_of
from platform_assets.windows.decide import carrying_out
from platform_assets.windows.load import truncation
from platform_assets.windows.proved_files import recognised

Ranges = Mapping[int, tuple[OffsetRange, ...]]
"""Offsets by partition."""

Change = Literal["re-created", "truncated", "moved to another cluster"]
"""The kind of change. The last kind implies another topic id, because a log that moved with its id is either truncated
or unchanged."""

FORMER_LOG: Final = "they belong to an earlier log of the topic, which has since been re-created or truncated"


@dataclass(frozen=True, slots=True)
class LostOffsets:
    """Offsets of a sealed window that the log no longer has, and for which the table has no row.

    `loaded` means that the window is loaded, but that it was never determined whether the offsets were records or only
    markers.
    """

    window: SealedWindow
    ranges: Ranges
    loaded: bool

    @property
    def offsets(self) -> int:
        """Number of offsets."""
        return sum(size_of(parts) for parts in self.ranges.values())


@dataclass(frozen=True, slots=True)
class NewGeneration:
    """The log that a topic's name now refers to, if it is not the log of the ledger's `newest` cut.

    `first` is the cut with which the new log would start, at the same edge and with the next generation number. `lost`
    are offsets of sealed windows that no table has. Records of the old log after `newest` were in no window, and their
    number is unknown.
    """

    kind: Change
    newest: RecordedCut
    first: RecordedCut
    lost: tuple[LostOffsets, ...]

    @property
    def topic(self) -> str:
        """The topic's name."""
        return self.newest.topic

    def details(self) -> dict[str, Any]:
        """Return plain JSON values, with offsets as `[start, end]`, end exclusive."""
        return {
            "change": self.kind,
            "edge": key_of(self.newest.edge),
            "from": _log(self.newest),
            "to": _log(self.first),
            "lost": [
                {
                    "window": lost.window.key,
                    "loaded": lost.loaded,
                    "ranges": carrying_out.fields_of(lost.ranges),
                    "offsets": lost.offsets,
                }
                for lost in self.lost
            ],
        }


def _log(cut: RecordedCut) -> dict[str, Any]:
    return {
        "topic_id": cut.topic_id,
        "generation": cut.generation,
        "offsets": {str(p): offset for p, offset in cut.cut.offsets.items()},
    }


def find(topic: str, ledger: Ledger, cluster: Cluster) -> NewGeneration | None:
    """Return the current log of `topic` if it differs from the ledger's log; None if they are the same.

    Raises ConfigurationError for a topic without any recorded cut, BrokerUnreachableError if a partition has no leader,
    and whatever describing a topic raises.
    """
    newest = ledger.newest_cut(topic)
    if newest is None:
        raise ConfigurationError(f"no cut of topic {topic!r} was ever recorded, so there is nothing to decide")
    state = cluster.topic(topic)
    if state.topic_id != newest.topic_id:
        starts = cluster.log_starts(state)
        _check_complete(cluster, state, starts)
        first = _first(newest, state, Cut({p: f.offset for p, f in starts.items()}))
        moved = not newest.is_of_cluster(state.cluster_id)
        kind: Change = "moved to another cluster" if moved else "re-created"
        return NewGeneration(kind, newest, first, _lost(ledger, newest, first))
    ends = cluster.last_stable_offsets(state)
    moved = not newest.is_of_cluster(state.cluster_id)
    # Leader epochs of one cluster say nothing about another cluster's log.
    at_most = {p: min(newest.cut.at(p), f.offset) for p, f in ends.items()}
    reached = at_most if moved else truncation.reached(cluster, state, newest, ends)
    if not newest.cut.regressions(reached):
        if moved:
            raise ConfigurationError(
                f"topic {topic!r} has the same id on the new cluster, and its log there reaches all offsets that "
                f"were cut, so it is the "
                "same log. Run "
                f'`platform-assets accept-cluster {topic} --reason "…"`'
            )
        return None
    _check_complete(cluster, state, ends)
    first = _first(newest, state, Cut(reached))
    return NewGeneration("truncated", newest, first, _lost(ledger, newest, first))


def accept(found: NewGeneration, author: Author, ledger: Ledger) -> None:
    """Accept `found`: from the next edge on, windows are sealed from this log, and the losses are recorded.

    The decision lists all of its effects, and is recorded first. It takes effect with the cut, and not at all if the
    cut is refused. The losses are accepted after the cut. If this call is interrupted, `carrying_out.carry_out` accepts
    them. Raises LedgerConflictError if another process has recorded cuts in the meantime.
    """
    lost = tuple(lost.window.key for lost in found.lost)
    decisions.record(
        ledger.lake, Decision(found.topic, "generation", lost, author.name, author.reason, found.details())
    )
    if not ledger.record_cuts([found.first], found.newest.edge):
        raise LedgerConflictError(
            f"nothing was accepted for topic {found.topic!r}: another process recorded cuts of this topic first. "
            f'Run `platform-assets accept-generation {found.topic} --reason "…"` again'
        )
    carrying_out.carry_out(ledger, found.topic)


def within_log(ledger: Ledger, window: SealedWindow | Receipt) -> dict[int, OffsetRange]:
    """Return, by partition, the offsets of the window that today's log may still have. These are all offsets, unless a
    later generation starts before their end. There are none if the window has another topic id."""
    left = dict(window.ranges.items())
    newest = ledger.newest_cut(window.topic)
    if newest is None or newest.generation <= window.generation:
        return left
    seen = window.generation
    for cut in ledger.cuts(window.topic, start=window.window.end):
        if cut.generation > seen:
            seen = cut.generation
            same = cut.topic_id == window.topic_id
            left = {p: r.before(cut.cut.at(p) if same else r.start) for p, r in left.items()}
    return left


def beyond_log(ledger: Ledger, window: SealedWindow | Receipt) -> Ranges:
    """Return the offsets of the window that no longer stand for the window's records. Empty if there are none."""
    left = within_log(ledger, window)
    beyond = {p: r.minus([left[p]]) for p, r in window.ranges.items()}
    return {p: parts for p, parts in beyond.items() if parts}


def _first(newest: RecordedCut, state: TopicState, cut: Cut) -> RecordedCut:
    return RecordedCut(
        state.name,
        state.topic_id,
        newest.generation + 1,
        newest.edge,
        cut,
        dict.fromkeys(cut.offsets, "accepted"),
        dict.fromkeys(cut.offsets, None),
        state.cluster_id,
    )


def _check_complete(cluster: Cluster, state: TopicState, found: Mapping[int, object]) -> None:
    missing = sorted(set(state.partitions) - set(found))
    if missing:
        doing = f"looking up where topic {state.name!r} continues"
        raise BrokerUnreachableError(doing, cluster.timeout, f"partitions {missing} have no leader")


def _lost(ledger: Ledger, newest: RecordedCut, first: RecordedCut) -> tuple[LostOffsets, ...]:
    """Return what the sealed windows in the generation of `newest` lose when `first` is accepted."""
    table = TableRef.raw(newest.topic)
    folder = ledger.lake.table(table)
    windows = [w for w in ledger.windows(newest.topic) if w.generation == newest.generation and w.ranges.size]
    receipts = ledger.receipts(table)
    files = holdings.window_files(holdings.actions(folder)) if load_log.exists(folder) else {}
    files = recognised(ledger.lake, table, files, receipts.values())
    same = first.topic_id == newest.topic_id
    beyond: list[tuple[SealedWindow, Ranges]] = []
    for window in windows:
        receipt = receipts.get(window.key)
        if receipt is not None and receipt.holes is not None and not receipt.holes.get(BELOW_LOG_START):
            continue
        if receipt is not None and not files.get(window.key, holdings.NO_FILES).are(receipt.files_digest):
            # Damaged, or rewritten by others: its next load reports what is left.
            continue
        gone = {p: r.minus([r.before(first.cut.at(p) if same else r.start)]) for p, r in window.ranges.items()}
        if any(gone.values()):
            beyond.append((window, gone))
    accepted = ledger.accepted_losses_of(table, [w.key for w, _ in beyond]) if beyond else {}
    found: list[LostOffsets] = []
    for window, missing in beyond:
        held = _held(folder, window.key) if window.key in files else {}
        if held is None:
            # Damaged as well: its next load reports what is left.
            continue
        known = accepted.get(window.key, {})
        left = {p: subtract(parts, (*held.get(p, ()), *known.get(p, ()))) for p, parts in missing.items()}
        lost = {p: parts for p, parts in left.items() if parts}
        if lost:
            found.append(LostOffsets(window, lost, window.key in receipts))
    return tuple(found)


def _held(folder: Folder, key: str) -> Ranges | None:
    """Return the offsets of a window that the table has; None if a file of the window is lost.

    Rows without a receipt count as loaded, because the next load of the window writes the receipt.
    """
    try:
        found = rows.offsets_of(folder, key)
    except FilesLostError:
        return None
    return {p: ranges_of(offsets) for p, offsets in found.items()}
