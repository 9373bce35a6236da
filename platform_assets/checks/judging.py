"""Compare a window with the broker's evidence: which holes are explained, and what differs. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from platform_assets.checks.findings import Finding, FindingKind, counted
from platform_assets.errors import REPAIR_LEDGER
from platform_assets.ledger.entries import ACCEPTED_LOSS, BELOW_LOG_START, ERASED, Receipt
from platform_assets.model.digest import digest_of
from platform_assets.model.offsets import OffsetRange, Offsets, common, ranges_of, size_of, subtract

if TYPE_CHECKING:
    from platform_assets.kafka.evidence.gathering import Evidence
    from platform_assets.kafka.evidence.partition import PartitionEvidence

ByPartition = Mapping[int, Offsets]
"""Maps each Kafka partition to the offsets of a window's rows, ascending."""
Accepted = Mapping[int, Sequence[OffsetRange]]
"""Maps each Kafka partition to those ranges of a window that were accepted as lost or erased."""
_NOTHING: Final[Accepted] = {}


def needs_listing(receipt: Receipt, evidence: Evidence, accepted: Accepted) -> bool:
    """Return True if the counts in `evidence` do not suffice to judge `receipt`, so that ranges have to be compared."""
    return evidence.complete and (evidence.digest != receipt.offsets or bool(accepted))


def judge(
    receipt: Receipt,
    evidence: Evidence,
    table: Callable[[], ByPartition],
    accepted: Accepted,
    erased: Accepted = _NOTHING,
) -> Receipt | tuple[Finding, ...]:
    """Return the receipt with its holes by kind, or the findings if something does not agree.

    If `needs_listing` returns True, `evidence` must list all ranges; only then is `table` called, which reads the
    window's offsets. A row whose record Kafka has expired or compacted away since the load is not an anomaly, provided
    that the table's rows are those that the load committed. An accepted hole has its own kind; an accepted hole that is
    also in `erased` has another kind. A hole below the log start stays unexplained, because its records were already
    deleted when the evidence was gathered.
    """
    if not evidence.complete:
        text = f"the evidence was cut short: {evidence.done:,} of {evidence.total:,} offsets were read"
        return (undecided(receipt, text, "Run the check again, with a larger time budget if needed."),)
    if not needs_listing(receipt, evidence, accepted):
        return _explained(receipt, {p: a.records.listed for p, a in evidence.by_partition.items()}, evidence, {}, {}, 0)
    if not all(a.of(kind).whole for a in evidence.by_partition.values() for kind in a.holes) or not all(
        a.records.whole for a in evidence.by_partition.values()
    ):
        return (_too_many_pieces(receipt, evidence, accepted),)
    if evidence.digest == receipt.offsets:
        return _explained(
            receipt, {p: a.records.listed for p, a in evidence.by_partition.items()}, evidence, accepted, erased, 0
        )
    offsets = table()
    found = differences(receipt, evidence, offsets, accepted)
    if found:
        return found
    if digest_of(offsets) != receipt.offsets:
        text = "the table's rows differ from the receipt, but match what Kafka still has"
        return (Finding("ledger edited", receipt.topic, receipt.window.key, None, (), text, REPAIR_LEDGER),)
    held = {p: ranges_of(some) for p, some in offsets.items()}
    since = sum(size_of(common(held.get(p, ()), a.compacted_away.listed)) for p, a in evidence.by_partition.items())
    return _explained(receipt, held, evidence, accepted, erased, since)


def judge_without_log(
    receipt: Receipt, offsets: ByPartition, accepted: Accepted, erased: Accepted = _NOTHING
) -> Receipt | tuple[Finding, ...]:
    """Return the receipt of a window whose offsets belong to an earlier log, which can no longer be read. Its holes are
    those accepted as lost.

    `offsets` are the offsets of the table's rows. `accepted` offsets that are also in `erased` are counted separately.
    """
    if digest_of(offsets) != receipt.offsets:
        text = "the table's rows are not those that the load committed"
        return (finding("offsets not accounted for", receipt, None, (), text),)
    held = {p: ranges_of(some) for p, some in offsets.items()}
    by_partition = {p: common(accepted.get(p, ()), subtract([r], held.get(p, ()))) for p, r in receipt.ranges.items()}
    lost = sum(size_of(parts) for parts in by_partition.values())
    if receipt.rows + lost != receipt.ranges.size:
        number = receipt.missing - lost
        verb = "belongs" if number == 1 else "belong"
        text = f"{counted(number, 'offset')} without a row {verb} to an earlier log that the topic no longer has"
        remedy = (
            "The cause can no longer be determined. To record these offsets as a known loss, run `platform-assets "
            f'accept-loss {receipt.table} {receipt.window.key} --reason "…"`.'
        )
        return (undecided(receipt, text, remedy),)
    holes: dict[str, int] = {}
    for partition, parts in by_partition.items():
        _count_decided(holes, parts, erased.get(partition, ()))
    by = "accepted loss" if ACCEPTED_LOSS in holes or not holes else "erasure"
    return replace(receipt, kind="proof", holes=holes or {ACCEPTED_LOSS: 0}, proved_by=by, proved_at=datetime.now(UTC))


def differences(receipt: Receipt, evidence: Evidence, offsets: ByPartition, accepted: Accepted) -> tuple[Finding, ...]:
    """Return findings for the differences between the rows at `offsets` and the window's records. Accepted losses are
    left out, and so are rows whose records Kafka no longer has."""
    found: list[Finding] = []
    for partition, accounted in evidence.by_partition.items():
        if not accounted.records.whole:
            continue
        held = ranges_of(offsets.get(partition, ()))
        records = accounted.records.listed
        lost = subtract(records, (*held, *accepted.get(partition, ())))
        foreign = subtract(held, (*records, *_gone_since(accounted, compacted=evidence.compacted)))
        if lost:
            text = f"Kafka holds {counted(size_of(lost), 'committed record')} that the table lacks"
            found.append(finding("record not in the table", receipt, partition, lost, text))
        if foreign:
            text = f"the table has {counted(size_of(foreign), 'row')} for which Kafka has no committed record in this window"
            found.append(finding("row without a record", receipt, partition, foreign, text))
    for partition in sorted(set(offsets) - set(evidence.by_partition)):
        foreign = ranges_of(offsets[partition])
        found.append(finding("row without a record", receipt, partition, foreign, "the window has no such partition"))
    if not found and digest_of(offsets) == evidence.digest and evidence.digest != receipt.offsets:
        text = (
            f"the table has exactly the {counted(evidence.records, 'record')} that Kafka has, but the receipt "
            "describes other records"
        )
        return (Finding("ledger edited", receipt.topic, receipt.window.key, None, (), text, REPAIR_LEDGER),)
    return tuple(found)


def finding(
    kind: FindingKind, receipt: Receipt, partition: int | None, ranges: tuple[OffsetRange, ...], detail: str
) -> Finding:
    """Return a finding about the window of `receipt`. Its remedy is to load the window again, which repairs or explains
    the problem."""
    key = receipt.window.key
    heal = f"Materialize partition {key} of {receipt.table}: the run repairs the window, or reports why it cannot."
    return Finding(kind, receipt.topic, key, partition, ranges, detail, heal)


def undecided(receipt: Receipt, reason: str, remedy: str) -> Finding:
    """Return a finding which says that the window of `receipt` could not be evaluated."""
    return Finding("could not tell", receipt.topic, receipt.window.key, None, (), reason, remedy)


def _explained(
    receipt: Receipt,
    held: Mapping[int, Sequence[OffsetRange]],
    evidence: Evidence,
    accepted: Accepted,
    erased: Accepted,
    compacted_since: int,
) -> Receipt | tuple[Finding, ...]:
    """Return the receipt with its holes by kind if each hole has a kind; otherwise, return the findings. `held` has the
    ranges in which the window has rows."""
    holes: dict[str, int] = {}
    found: list[Finding] = []
    for partition, accounted in evidence.by_partition.items():
        rows = held.get(partition, ())
        lost = common(accepted.get(partition, ()), subtract([accounted.range], rows)) if accepted else ()
        _count_decided(holes, lost, erased.get(partition, ()))
        for kind, number in accounted.holes.items():
            ranges = accounted.of(kind).listed
            if evidence.digest != receipt.offsets or accepted:
                ranges = subtract(ranges, (*rows, *lost))
                number = size_of(ranges)
            if number and kind == "unexplained":
                text = (
                    "the broker has neither records nor markers at these offsets, and the topic's cleanup.policy "
                    "does not allow compaction"
                )
                remedy = (
                    "Look for an unclean leader election, a restored broker, or a cleanup.policy that was `compact` "
                    "for a while: the records are lost in Kafka itself. To record these offsets as a known loss, run "
                    f'`platform-assets accept-loss {receipt.table} {receipt.window.key} --reason "…"`.'
                )
                found.append(
                    Finding("unexplained offsets", receipt.topic, receipt.window.key, partition, ranges, text, remedy)
                )
            elif number:
                name = kind.replace("_", " ")
                holes[name] = holes.get(name, 0) + number
    if found:
        return tuple(found)
    if receipt.rows + sum(holes.values()) != receipt.ranges.size:
        text = f"{receipt.rows} rows and {sum(holes.values())} holes do not add up to {receipt.ranges.size} offsets"
        return (finding("offsets not accounted for", receipt, None, (), text),)
    by = "broker evidence"
    if compacted_since:
        by += f"; {counted(compacted_since, 'row')} belonging to records that were compacted away after the load"
    return replace(receipt, kind="proof", holes=holes, proved_by=by, proved_at=datetime.now(UTC))


def _count_decided(holes: dict[str, int], lost: Sequence[OffsetRange], erased: Sequence[OffsetRange]) -> None:
    """Count in `holes` the `lost` offsets, for which an operator has recorded a decision. Offsets that are also in
    `erased` count as erased."""
    for kind, ranges in ((ERASED, common(lost, erased)), (ACCEPTED_LOSS, subtract(lost, erased))):
        if ranges:
            holes[kind] = holes.get(kind, 0) + size_of(ranges)


def _gone_since(accounted: PartitionEvidence, *, compacted: bool) -> tuple[OffsetRange, ...]:
    """Return the ranges in which a row may exist although Kafka no longer has its record: the range below the log start
    and, if `compacted` is true, the ranges that were compacted away."""
    listing = accounted.below_log_start
    expired = (OffsetRange(accounted.range.start, listing.end),) if listing.offsets else ()
    return (*expired, *(accounted.compacted_away.listed if compacted else ()))


def _too_many_pieces(receipt: Receipt, evidence: Evidence, accepted: Accepted) -> Finding:
    if not accepted and not evidence.compacted and BELOW_LOG_START.replace(" ", "_") not in evidence.holes:
        text = f"Kafka holds {evidence.records:,} committed records, but the load committed {receipt.rows:,} rows"
        return finding("record not in the table", receipt, None, (), text)
    text = "its records are spread over too many separate ranges to compare them one by one with the loaded rows"
    return undecided(
        receipt, text, "Choose a shorter `window` for the topic, so that future windows hold fewer records."
    )
