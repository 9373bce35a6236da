"""Accepting a loss: an operator's explicit word, written into the ledger, that certain offsets will not be loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from platform_assets.errors import ConfigurationError
from platform_assets.kafka.cluster import Cluster
from platform_assets.kafka.settings import ClientSettings
from platform_assets.kafka.timestamps import unreadable_records
from platform_assets.ledger.entries import SealedWindow
from platform_assets.ledger.store import Ledger
from platform_assets.model.offsets import OffsetRange, TopicRanges, ranges_of, subtract
from platform_assets.model.tables import TableRef
from platform_assets.windows.sealing import checked_state


@dataclass(frozen=True, slots=True)
class Loss:
    """Offsets of one window that cannot be loaded, by partition, and why."""

    window: str
    ranges: Mapping[int, tuple[OffsetRange, ...]]
    cause: str

    @property
    def offsets(self) -> int:
        """Number of offsets."""
        return sum(r.size for parts in self.ranges.values() for r in parts)


def find_losses(sealed: SealedWindow, ledger: Ledger, cluster: Cluster, settings: ClientSettings) -> list[Loss]:
    """What keeps `sealed` from being loaded and can be accepted: expired offsets and unreadable timestamps.

    What was accepted already is left out. Raises what `sealing.checked_state` raises.
    """
    table = TableRef.raw(sealed.topic)
    accepted = ledger.accepted_losses(table, sealed.key)
    state = checked_state(cluster, sealed.topic, ledger.newest_cut(sealed.topic))
    starts = {p: f.offset for p, f in cluster.log_starts(state).items()}
    expired = {
        p: r.before(starts[p]).minus(accepted.get(p, ()))
        for p, r in sealed.ranges.items()
        if p in starts and starts[p] > r.start
    }
    unreadable: dict[int, tuple[OffsetRange, ...]] = {}
    # A consumer that is asked for expired offsets is refused.
    left = {p: OffsetRange(r.before(starts.get(p, 0)).end, r.end) for p, r in sealed.ranges.items()}
    records = unreadable_records(settings, sealed.topic, TopicRanges(left))
    for partition in {p for p, _, _ in records}:
        offsets = ranges_of(o for p, o, _ in records if p == partition)
        unreadable[partition] = subtract(offsets, accepted.get(partition, ()))
    losses = [
        Loss(sealed.key, {p: parts for p, parts in expired.items() if parts}, "below the log start"),
        Loss(
            sealed.key, {p: parts for p, parts in unreadable.items() if parts}, "timestamp that Spark cannot represent"
        ),
    ]
    return [loss for loss in losses if loss.offsets]


def accept(sealed: SealedWindow, losses: list[Loss], reason: str, ledger: Ledger) -> None:
    """Write the acceptance of `losses` into the ledger. The window's next load then goes on without those offsets.

    Raises ConfigurationError for an empty reason.
    """
    if not reason.strip():
        raise ConfigurationError("an accepted loss needs a reason: say why with --reason")
    for loss in losses:
        ledger.record_acceptance(sealed, loss.ranges, f"{loss.cause}: {reason.strip()}")
