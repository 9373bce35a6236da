"""Topics moved to another cluster with their offsets: an operator states that each offset is still the same record.

Offsets alone cannot prove that. The part that can be proved is checked: the log has at least all offsets that were cut.
The statement starts a new generation of the topic's log at the newest edge, so cuts identify their cluster. If the
topic has kept its id, as on restored disks, windows that were sealed before are loaded from the new cluster as usual.
If its id is new, as with a mirror, waiting windows are loaded without rows, and their offsets are loaded with the first
window of the new generation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from platform_assets.errors import (
    BrokerUnreachableError,
    ConfigurationError,
    LedgerConflictError,
    PartitionsAbsentError,
    TruncationError,
)
from platform_assets.kafka.cluster import Cluster, TopicState
from platform_assets.ledger import decisions, unloaded
from platform_assets.ledger.decisions import Author, Decision
from platform_assets.ledger.entries import RecordedCut, SealedWindow
from platform_assets.ledger.store import Ledger
from platform_assets.model.offsets import Cut
from platform_assets.model.tables import TableRef
from platform_assets.model.windows import key_of
from platform_assets.windows.decide import carrying_out


@dataclass(frozen=True, slots=True)
class Continuation:
    """The continuation of a log on another cluster. `newest` is the last cut of the previous log, and `first` the first
    cut of the new log, at the same edge. `moved` are waiting windows whose offsets are loaded with the window after
    `first` instead."""

    newest: RecordedCut
    first: RecordedCut
    moved: tuple[SealedWindow, ...]

    def details(self) -> dict[str, Any]:
        """Plain JSON values. Offsets are exclusive ends."""
        ranges = {w.key: {p: (r,) for p, r in w.ranges.items() if r.size} for w in self.moved}
        return {
            "edge": key_of(self.newest.edge),
            "from": _log(self.newest),
            "to": _log(self.first),
            "moved": self.keys,
            carrying_out.MOVED: {key: carrying_out.fields_of(of) for key, of in ranges.items() if of},
        }

    @property
    def keys(self) -> list[str]:
        """Keys of the moved windows, ascending."""
        return [window.key for window in self.moved]


def _log(cut: RecordedCut) -> dict[str, Any]:
    return {
        "cluster_id": cut.cluster_id,
        "topic_id": cut.topic_id,
        "generation": cut.generation,
        "offsets": {str(p): offset for p, offset in cut.cut.offsets.items()},
    }


def find(topic: str, ledger: Ledger, cluster: Cluster) -> Continuation | None:
    """Return the log of `topic` on the current cluster if the ledger's log is on another cluster; otherwise None.

    Raises ConfigurationError for a topic without any recorded cut, or if a waiting window that would have to be moved
    precedes a loaded window; TruncationError if the log does not have all offsets that were cut; BrokerUnreachableError
    if a partition has no leader; and whatever describing a topic raises.
    """
    newest = ledger.newest_cut(topic)
    if newest is None:
        raise ConfigurationError(f"no cut of topic {topic!r} was ever recorded, so there is nothing to decide")
    state = cluster.topic(topic)
    if newest.is_of_cluster(state.cluster_id):
        return None
    _check_has(cluster, state, newest)
    moved = () if state.topic_id == newest.topic_id else _waiting(ledger, newest)
    start = newest.cut if not moved else ledger.cuts(topic, moved[0].window.start, moved[0].window.start)[-1].cut
    known = {p: start.at(p) for p in newest.cut.offsets}
    first = RecordedCut(
        topic,
        state.topic_id,
        newest.generation + 1,
        newest.edge,
        Cut(known),
        dict.fromkeys(known, "accepted"),
        dict.fromkeys(known, None),
        state.cluster_id,
    )
    return Continuation(newest, first, moved)


def accept(found: Continuation, author: Author, ledger: Ledger) -> None:
    """Continue the log on the new cluster.

    The decision lists all of its effects, and is recorded first. It takes effect with the cut, and not at all if the
    cut is refused. The moved windows are loaded without rows after the cut. If this call is interrupted,
    `carrying_out.carry_out` loads them. Raises LedgerConflictError if another process has recorded cuts in the
    meantime, or has loaded a window that would be moved.
    """
    topic = found.newest.topic
    waiting = unloaded.find(ledger, TableRef.raw(topic), found.newest.edge).windows
    loaded = [w.key for w in found.moved if w.key not in waiting and w.ranges.size]
    if loaded:
        raise LedgerConflictError(_refused(topic, f"another process loaded window {_named(loaded)} first"))
    decisions.record(
        ledger.lake, Decision(topic, "cluster", tuple(found.keys), author.name, author.reason, found.details())
    )
    if not ledger.record_cuts([found.first], found.newest.edge):
        raise LedgerConflictError(_refused(topic, "another process recorded cuts of this topic first"))
    carrying_out.carry_out(ledger, topic)


def _refused(topic: str, cause: str) -> str:
    return (
        f"nothing was accepted for topic {topic!r}: {cause}. "
        f'Run `platform-assets accept-cluster {topic} --reason "…"` again'
    )


def _check_has(cluster: Cluster, state: TopicState, newest: RecordedCut) -> None:
    if absent := sorted(set(newest.cut.offsets) - set(state.partitions)):
        raise PartitionsAbsentError(state.name, cluster.settings.bootstrap_servers, absent, len(state.partitions))
    ends = {p: f.offset for p, f in cluster.last_stable_offsets(state).items()}
    missing = sorted(set(newest.cut.offsets) - set(ends))
    if missing:
        reason = f"partitions {missing} have no leader"
        raise BrokerUnreachableError(f"looking up where topic {state.name!r} continues", cluster.timeout, reason)
    for partition, offset in newest.cut.offsets.items():
        if ends[partition] < offset:
            raise TruncationError(state.name, partition, offset, ends[partition])


def _waiting(ledger: Ledger, newest: RecordedCut) -> tuple[SealedWindow, ...]:
    """Return the waiting windows, ascending. All of them come after the loaded windows."""
    topic, table = newest.topic, TableRef.raw(newest.topic)
    waiting = unloaded.find(ledger, table, newest.edge).windows
    if not waiting:
        return ()
    since = min(window.start for window in waiting.values())
    windows = [w for w in ledger.windows(topic, since) if w.generation == newest.generation]
    loaded = [w.key for w in windows if w.key not in waiting and w.ranges.size]
    if loaded or len(windows) < len(waiting):
        raise ConfigurationError(
            f"window {key_of(since)} of {table} is not loaded, and its offsets cannot become part of another window, "
            f"because later windows are loaded ({_named(loaded)}) or it belongs to an earlier generation. Load it "
            "from the previous cluster first, with that cluster's KAFKA_BOOTSTRAP_SERVERS: `platform-assets load "
            f"{table} {key_of(since)}`. If that cluster no longer exists, run `platform-assets accept-generation {topic} "
            '--reason "…"` instead'
        )
    return tuple(windows)


def _named(keys: Sequence[str]) -> str:
    return ", ".join(keys[:3]) + (" …" if len(keys) > 3 else "")
