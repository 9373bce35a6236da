"""Detection of truncated logs: by the offset of the log's end and, if the leader has changed since the cut, by leader
epochs.

A log that was truncated and has grown again may end at the expected offset, but contain other records. One leader
writes all records of a leader epoch, and a cut records its epoch. If that epoch now ends before the cut, the records in
between come from a later leader.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final

from platform_assets.errors import BrokerUnreachableError, Retryable, TruncationError
from platform_assets.kafka.cluster import Cluster, FoundOffset, TopicState
from platform_assets.ledger.entries import RecordedCut

_ATTEMPTS: Final = 8
"""Number of attempts to read a log end that is too early before it counts as permanent."""
_PAUSE: float = 0.5
"""Seconds between two attempts. Within that time a new leader learns up to which offset its log is replicated
(KAFKA-7703)."""


class EndMovedBackError(Retryable):
    """A log ends before an offset that was already recorded, and it is not known yet whether this is temporary."""

    def __init__(self, topic: str, partition: int, recorded: int, found: int) -> None:
        self.topic, self.partition, self.recorded, self.found = topic, partition, recorded, found
        super().__init__(
            f"topic {topic!r} partition {partition} is reported to end at offset {found}, before offset {recorded}, which a cut "
            "recorded. Right after a leader change, this is temporary. Nothing was changed, so run it again."
        )


def stable_offsets(
    cluster: Cluster, state: TopicState, cut: RecordedCut | None, needed: Mapping[int, int]
) -> dict[int, FoundOffset]:
    """Return the last stable offsets, if everything in the log before `needed` (by partition, exclusive) is unchanged
    since `cut`.

    `cut` is the newest cut, and `needed` never exceeds it. Unreachable partitions are omitted.

    Raises TruncationError if the log does not have all of it. Raises EndMovedBackError if an end is before `needed`,
    and no time is left to find out whether that is temporary.
    """
    for ask in range(_ATTEMPTS):
        stable = cluster.last_stable_offsets(state)
        _check_epochs(cluster, state, cut, needed, stable)
        back = [(p, o, stable[p].offset) for p, o in needed.items() if p in stable and stable[p].offset < o]
        if not back:
            return stable
        if ask == _ATTEMPTS - 1:
            raise TruncationError(state.name, *back[0])
        if cluster.deadline is not None and time.monotonic() + _PAUSE >= cluster.deadline:
            raise EndMovedBackError(state.name, *back[0])
        time.sleep(_PAUSE)
    raise AssertionError("unreachable")


def reached(cluster: Cluster, state: TopicState, cut: RecordedCut, stable: Mapping[int, FoundOffset]) -> dict[int, int]:
    """Return the offset up to which the log is still the one of `cut`, for each partition of `stable` (the last stable
    offsets).

    That is the end of the log if no epoch was recorded with the cut, if the epoch is still the same, or if no broker
    knows where the epoch ended.
    """
    ends = _ends_of_changed(cluster, state, cut, stable)
    return {p: min(o for o in (cut.cut.at(p), f.offset, ends.get(p)) if o is not None) for p, f in stable.items()}


def _check_epochs(
    cluster: Cluster,
    state: TopicState,
    cut: RecordedCut | None,
    needed: Mapping[int, int],
    stable: Mapping[int, FoundOffset],
) -> None:
    """Raise TruncationError if an epoch ends too early."""
    if cut is None:
        return
    for partition, end in _ends_of_changed(
        cluster, state, cut, {p: f for p, f in stable.items() if p in needed}
    ).items():
        if end is not None and end < needed[partition]:
            raise TruncationError(state.name, partition, needed[partition], end, cut.leader_epochs[partition])


def _ends_of_changed(
    cluster: Cluster, state: TopicState, cut: RecordedCut, stable: Mapping[int, FoundOffset]
) -> dict[int, int | None]:
    """Return the end of the epoch of `cut`, by partition. Leaders that have not changed since the cut are not queried."""
    changed = {
        p: epoch
        for p, epoch in cut.leader_epochs.items()
        if epoch is not None and p in stable and stable[p].leader_epoch not in (None, epoch)
    }
    return _epoch_ends(cluster, state, changed) if changed else {}


def _epoch_ends(cluster: Cluster, state: TopicState, epochs: Mapping[int, int]) -> dict[int, int | None]:
    from platform_assets.kafka.batches.observing import EpochBrokers  # loads a second Kafka client, rarely needed
    from platform_assets.kafka.batches.wire import Stopped

    deadline = time.monotonic() + cluster.timeout
    brokers = EpochBrokers(
        cluster.settings,
        state.name,
        state.topic_id,
        patience=cluster.timeout,
        stopped=lambda: time.monotonic() >= deadline,
    )
    try:
        return {partition: brokers.epoch_end(partition, epoch) for partition, epoch in epochs.items()}
    except Stopped:
        doing = f"looking up the ends of leader epochs of topic {state.name!r}"
        raise BrokerUnreachableError(doing, cluster.timeout, "timed out") from None
    finally:
        brokers.close()
