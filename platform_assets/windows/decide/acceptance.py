"""Accepting a loss: an operator explicitly decides that certain offsets will not be loaded, and the ledger records it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from platform_assets.engines.protocol import Records
from platform_assets.errors import FilesLostError
from platform_assets.kafka.cluster import Cluster
from platform_assets.kafka.settings import ClientSettings
from platform_assets.lake import holdings, load_log, rows
from platform_assets.ledger import decisions
from platform_assets.ledger.decisions import Author, Decision
from platform_assets.ledger.entries import BELOW_LOG_START, SealedWindow
from platform_assets.ledger.store import Ledger
from platform_assets.model.digest import digest_of
from platform_assets.model.offsets import OffsetRange, TopicRanges, ranges_of, subtract
from platform_assets.model.tables import TableRef
from platform_assets.windows.decide import generations
from platform_assets.windows.decide.generations import Ranges
from platform_assets.windows.load.sealing import checked_state
from platform_assets.windows.proved_files import recognised

_ALL: Final = 1_000_000
"""Maximum number of ranges that evidence lists; the next call lists the remaining ranges."""


@dataclass(frozen=True, slots=True)
class Loss:
    """Offsets of one window that cannot be loaded, by partition, and the reason."""

    window: str
    ranges: Mapping[int, tuple[OffsetRange, ...]]
    cause: str

    @property
    def offsets(self) -> int:
        """Number of offsets."""
        return sum(r.size for parts in self.ranges.values() for r in parts)


def find_losses(sealed: SealedWindow, ledger: Ledger, cluster: Cluster, settings: ClientSettings) -> list[Loss]:
    """Return the losses that keep `sealed` from being loaded or explained, and that can be accepted.

    The brokers immediately report offsets that expired or belong to an earlier log of the topic, so these come first.
    If there are none, a window that is not loaded is searched for unreadable timestamps and for batches that are
    damaged or exceed the limits; this reads the whole window once. For a loaded window, the losses are the offsets for
    which the brokers have neither a record nor a reason.

    Offsets that are in the table, or that were already accepted, are omitted. A damaged window and rows without a
    receipt have no losses here, because they may still be repaired. Raises whatever `sealing.checked_state` raises.
    """
    known = _known(sealed, ledger)
    if known is None:
        return []
    former = _losses(sealed, generations.beyond_log(ledger, sealed), known, "from an earlier log of the topic")
    inside = generations.within_log(ledger, sealed)
    if not any(r.size for r in inside.values()):
        return former
    state = checked_state(cluster, sealed.topic, ledger.newest_cut(sealed.topic))
    starts = {p: f.offset for p, f in cluster.log_starts(state).items()}
    expired = {p: (r.before(starts[p]),) for p, r in inside.items() if p in starts and starts[p] > r.start}
    gone = [*former, *_losses(sealed, expired, known, "below the log start")]
    if gone:
        return gone
    left = {p: OffsetRange(r.before(starts.get(p, 0)).end, r.end) for p, r in inside.items()}
    receipt = ledger.receipts(TableRef.raw(sealed.topic), [sealed.key]).get(sealed.key)
    if receipt is None or receipt.kind == "empty":
        return _refused(sealed, left, known, settings)
    if receipt.holes is not None:
        return []
    unexplained = _unexplained(sealed, left, cluster, settings)
    return _losses(sealed, unexplained, known, "without a record, for an unknown reason")


def _refused(
    sealed: SealedWindow, ranges: Mapping[int, OffsetRange], known: Ranges, settings: ClientSettings
) -> list[Loss]:
    # Imported here because compiled kernels are slow to load, and a code location does not need them.
    from platform_assets.engines.columnar.refused import find_refused

    pieces = Records(sealed.topic, sealed.topic_id, sealed.key, TopicRanges(ranges), known).pieces
    refused = find_refused(settings, sealed.topic, sealed.topic_id, pieces)
    return [
        *_losses(sealed, refused.ranges, known, "timestamp that Spark cannot represent"),
        *_losses(sealed, refused.batches, known, "record batch beyond a limit of KAFKA_BATCH_MAX_*"),
        *_losses(sealed, refused.damaged, known, "damaged record batch; another replica may have it intact"),
    ]


def _unexplained(
    sealed: SealedWindow, ranges: Mapping[int, OffsetRange], cluster: Cluster, settings: ClientSettings
) -> Ranges:
    """Return the parts of `ranges` for which Kafka has neither records nor a reason why there are none."""
    # Imported here because the protocol's schemas are slow to load, and a code location does not need them.
    from platform_assets.kafka.evidence.gathering import gather_evidence

    compacted = cluster.is_compacted(sealed.topic)
    evidence = gather_evidence(
        settings,
        sealed.topic,
        sealed.topic_id,
        TopicRanges(ranges),
        compacted=compacted,
        deadline=math.inf,
        listed=_ALL,
    )
    return {p: found.unexplained.listed for p, found in evidence.by_partition.items()}


def _losses(sealed: SealedWindow, lost: Ranges, known: Ranges, cause: str) -> list[Loss]:
    left = {p: subtract(parts, known.get(p, ())) for p, parts in lost.items()}
    named = {p: parts for p, parts in left.items() if parts}
    return [Loss(sealed.key, named, cause)] if named else []


def _known(sealed: SealedWindow, ledger: Ledger) -> Ranges | None:
    """Return the offsets of the window that are in the table, or whose loss was accepted.

    Return None if each offset is accounted for, if the table's rows are not those of the receipt, or if either the rows
    or the receipt are missing.
    """
    table = TableRef.raw(sealed.topic)
    folder = ledger.lake.table(table)
    accepted = ledger.accepted_losses(table, sealed.key)
    receipt = ledger.receipts(table, [sealed.key]).get(sealed.key)
    if receipt is None:
        if load_log.exists(folder) and holdings.files_of(folder, sealed.key).paths:
            return None
        return accepted
    if receipt.holes is not None and not receipt.holes.get(BELOW_LOG_START):
        return None
    files = recognised(ledger.lake, table, {sealed.key: holdings.files_of(folder, sealed.key)}, [receipt])[sealed.key]
    if not files.are(receipt.files_digest):
        return None
    try:
        offsets = rows.offsets_of(folder, sealed.key) if receipt.rows else {}
    except FilesLostError:
        return None
    if digest_of(offsets) != receipt.offsets:
        return None
    return {p: (*ranges_of(offsets.get(p, ())), *accepted.get(p, ())) for p in sealed.ranges.by_partition}


def accept(sealed: SealedWindow, losses: list[Loss], author: Author, ledger: Ledger) -> None:
    """Record the acceptance of `losses` in the ledger. The next load of the window then leaves out those offsets."""
    details = {
        loss.cause: {str(p): [[r.start, r.end] for r in parts] for p, parts in loss.ranges.items()} for loss in losses
    }
    decision = Decision(sealed.topic, "loss", (sealed.key,), author.name, author.reason, {"ranges": details})
    decisions.record(ledger.lake, decision)
    for loss in losses:
        ledger.record_acceptance(sealed, loss.ranges, f"{loss.cause}: {author.reason}")
