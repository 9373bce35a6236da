"""Plan of a replay: for each window, what was recorded, what Kafka still has, and what is kept because Kafka has lost it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from platform_assets.errors import BrokerUnreachableError
from platform_assets.ledger.entries import Receipt, SealedWindow
from platform_assets.model.offsets import OffsetRange, common, size_of, subtract
from platform_assets.windows import generations
from platform_assets.windows.generations import Ranges
from platform_assets.windows.loading import Loader

Deed = Literal["empty", "load", "refuse", "compare", "keep"]
"""Effect of loading the window in place. empty: it has no offsets; load: it was never loaded; refuse: it was never loaded, and
Kafka no longer has some of its offsets; compare: it is read again; keep: Kafka no longer has all of its rows, so the table's own
are proved by their digests."""


@dataclass(frozen=True, slots=True)
class PlannedWindow:
    """One window of a replay. `held` are its offsets that Kafka still has, `gone` those that Kafka no longer has."""

    sealed: SealedWindow
    receipt: Receipt | None
    held: Ranges
    gone: Ranges
    accepted: Ranges

    @property
    def records(self) -> int | None:
        """Number of rows in its receipt; None if it was never loaded."""
        return None if self.receipt is None else self.receipt.rows

    @property
    def deed(self) -> Deed:
        """Effect of loading it in place."""
        if not self.sealed.ranges.size:
            return "empty"
        if self.receipt is None or self.receipt.kind == "empty":
            return "refuse" if self._lacks({p: (r,) for p, r in self.sealed.ranges.items()}) else "load"
        spans = {
            p: (OffsetRange.closed(part.first_offset, part.last_offset),)
            for p, part in self.receipt.partitions.items()
            if part.first_offset is not None and part.last_offset is not None
        }
        return "keep" if self._lacks(spans) else "compare"

    def _lacks(self, needed: Ranges) -> bool:
        """Return true if Kafka lacks some of `needed` whose loss was not accepted."""
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
    """Return what a replay of sealed `windows` of the loader's topic would do. Asks the brokers; changes nothing.

    Raises TopicRecreatedError, TruncationError, ClusterChangedError, TopicMissingError: a log that is no longer the ledger's is
    not replayed before an operator has decided. Raises BrokerUnreachableError, also if a partition has no leader.
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
            )
        )
    return tuple(found)
