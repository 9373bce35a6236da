"""Closing what is open: windows with holes are held against the broker's evidence, changed files are read again.

What is proved is written into the ledger, so it stays proved until the window's files change.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from platform_assets.checks.evaluation import Evaluation
from platform_assets.checks.facts import Facts, Recorded
from platform_assets.checks.findings import Finding, FindingKind, counted
from platform_assets.engines.batching import read_together
from platform_assets.errors import MEND_LEDGER, FilesLostError, PlatformError, Retryable
from platform_assets.lake import load_log, rows
from platform_assets.ledger.entries import Receipt
from platform_assets.model.digest import Digest, Measured, digest_of
from platform_assets.model.offsets import OffsetRange, Offsets, ranges_of, repeats, size_of, subtract

if TYPE_CHECKING:
    from platform_assets.kafka.evidence.gathering import Evidence
    from platform_assets.kafka.evidence.partition import PartitionEvidence

_ALL = 1_000_000
"""Ranges that evidence lists where offsets have to be named."""
_ByPartition = Mapping[int, Offsets]


@dataclass(frozen=True, slots=True)
class Proved:
    """What an attempt to close open windows came to: receipts to be written down, and what was found instead."""

    receipts: tuple[Receipt, ...]
    findings: tuple[Finding, ...]


def open_windows(facts: Facts) -> tuple[Recorded, ...]:
    """The loaded windows that nothing has proved yet: offsets without a row that nobody accounted for."""
    return tuple(
        r for k, r in facts.recorded.items() if r.holes is None and k not in facts.changed and k in facts.windows
    )


def prove_by_evidence(e: Evaluation, windows: Iterable[Recorded]) -> Proved:
    """Ask the brokers what became of every offset of `windows`, and compare it with the rows loaded."""
    # Imported where it is used: the protocol's schemas take a while to load, and a code location needs none of them.
    from platform_assets.kafka.evidence.gathering import gather_evidence

    receipts = e.ledger.receipts(e.declaration.raw_table, [w.key for w in windows])
    proved: list[Receipt] = []
    findings: list[Finding] = []
    compacted: bool | None = None
    for number, (key, receipt) in enumerate(sorted(receipts.items()), 1):
        if time.monotonic() > e.deadline:
            findings.append(_undecided(receipt, "the time allowed for this check was used up", "Run the check again."))
            continue
        try:
            if compacted is None:
                compacted = "compact" in e.cluster().topic_config(receipt.topic).get("cleanup.policy", "")
            e.progress(f"evidence of window {key} ({number} of {len(receipts)})")
            evidence = gather_evidence(
                e.settings(), receipt.topic, receipt.topic_id, receipt.ranges, compacted=compacted, deadline=e.deadline
            )
        except PlatformError as error:
            findings.append(_unanswered(receipt, error))
            continue
        if evidence.complete and evidence.digest != receipt.offsets:
            evidence = gather_evidence(
                e.settings(), receipt.topic, receipt.topic_id, receipt.ranges,
                compacted=compacted, deadline=e.deadline, listed=_ALL,
            )  # fmt: skip
        outcome = judged(receipt, evidence, partial(rows.offsets_of, e.table, key))
        if isinstance(outcome, Receipt):
            proved.append(outcome)
        else:
            findings.extend(outcome)
    e.ledger.record_receipts(proved)
    return Proved(tuple(proved), tuple(findings))


def judged(receipt: Receipt, evidence: Evidence, table: Callable[[], _ByPartition]) -> Receipt | tuple[Finding, ...]:
    """Hold a window against its evidence: the receipt with its holes explained, or what does not agree.

    `table` reads the window's offsets and is only called where the digests differ. Pure but for that.
    """
    if not evidence.complete:
        text = f"the evidence was cut short: {evidence.done:,} of {evidence.total:,} offsets were read"
        return (_undecided(receipt, text, "Run the check again, or with a larger budget."),)
    holes = {kind.replace("_", " "): n for kind, n in evidence.holes.items()}
    expired = {p: a.below_log_start for p, a in evidence.by_partition.items() if a.below_log_start.offsets}
    if evidence.digest != receipt.offsets:
        offsets = table()
        if expired and _above(offsets, {p: listing.end for p, listing in expired.items()}) == evidence.digest:
            # Those rows came before retention took their records; the rest of the window agrees.
            kept = receipt.rows - evidence.records
            holes["below log start"] = sum(listing.offsets for listing in expired.values()) - kept
        else:
            return _differences(receipt, evidence, offsets)
    if evidence.unexplained:
        return tuple(
            Finding(
                "unexplained offsets", receipt.topic, receipt.window.key, p, (OffsetRange(start, end),),
                "the broker has no record, no marker and no reason for them, and the topic's policy allows no compaction",
                "Look for an unclean leader election or a restored broker; the records may be lost in Kafka itself.",
            )
            for p, start, end in evidence.unexplained
        )  # fmt: skip
    if receipt.rows + sum(holes.values()) != receipt.ranges.size:
        text = f"{receipt.rows} rows and {sum(holes.values())} holes do not add up to {receipt.ranges.size} offsets"
        return (_finding("offsets not accounted for", receipt, None, (), text),)
    return replace(receipt, kind="proof", holes=holes, proved_by="broker evidence", proved_at=datetime.now(UTC))


def prove_by_reading(e: Evaluation, facts: Facts, keys: Iterable[str]) -> Proved:
    """Read the files of `keys` again with Spark and compare both digests with the receipts', oldest proof first.

    A window that proves equal in other files (OPTIMIZE writes such) gets a receipt that names those.
    """
    receipts = e.ledger.receipts(e.declaration.raw_table, list(keys))
    proved: list[Receipt] = []
    findings: list[Finding] = []
    version = load_log.version(e.table)
    done = 0
    with_rows = sorted((r for r in receipts.values() if r.kind != "empty"), key=_last_proof)
    for batch in read_together(with_rows, lambda receipt: receipt.rows):
        if time.monotonic() > e.deadline:
            break
        done += len(batch)
        last = batch[-1].window.key
        e.progress(f"reading {counted(len(batch), 'window')}, the last {last} ({done:,} of {len(with_rows):,})")
        together = [receipt.window.key for receipt in batch]
        for key, measured in e.engine.measure(e.declaration.raw_table, together, version):
            outcome = _compared(facts, receipts[key], measured, version)
            if isinstance(outcome, Receipt):
                proved.append(outcome)
            else:
                findings.append(outcome)
    e.ledger.record_receipts(proved)
    return Proved(tuple(proved), tuple(findings))


def _compared(facts: Facts, receipt: Receipt, measured: Measured | PlatformError, version: int) -> Receipt | Finding:
    if isinstance(measured, FilesLostError):
        return _finding("files lost", receipt, None, (), str(measured))
    if isinstance(measured, PlatformError):
        return _unanswered(receipt, measured)
    if measured.offsets == receipt.offsets and measured.content == receipt.content:
        files = facts.files.get(receipt.window.key, load_log.NO_FILES)
        return replace(
            receipt,
            kind="proof",
            table_version=version,
            files_digest=files.digest,
            bytes=files.bytes,
            proved_by=receipt.proved_by or "files read again",
            proved_at=datetime.now(UTC),
        )
    if measured.offsets == receipt.offsets:
        text = f"{receipt.rows:,} rows with the offsets of the load, and other content than it committed"
        return _finding("altered value", receipt, None, (), text)
    text = f"{measured.rows:,} rows, the load committed {receipt.rows:,}, and their offsets are not the load's"
    return _finding("offsets not accounted for", receipt, None, (), text)


def name_differences(e: Evaluation, findings: Iterable[Finding], *, doubled: bool) -> list[Finding]:
    """Put offsets to windows whose rows are not those of the load, by the brokers' evidence where they still have it.

    Doubled rows have a check of their own, so they are named here only where `doubled` asks for them.
    """
    from platform_assets.kafka.evidence.gathering import gather_evidence

    named: list[Finding] = []
    for finding in findings:
        if finding.kind != "offsets not accounted for":
            named.append(finding)
            continue
        receipt = e.ledger.receipts(e.declaration.raw_table, [finding.window])[finding.window]
        offsets = rows.offsets_of(e.table, finding.window)
        if doubled:
            named.extend(_doubled(receipt, offsets))
        distinct = {p: np.unique(o) for p, o in offsets.items()}
        if digest_of(distinct) == receipt.offsets:
            continue
        try:
            evidence = gather_evidence(
                e.settings(), receipt.topic, receipt.topic_id, receipt.ranges,
                compacted=True, deadline=e.deadline, listed=_ALL,
            )  # fmt: skip
        except PlatformError as error:
            named.append(replace(finding, detail=f"{finding.detail} (the brokers could not be asked: {error})"))
            continue
        named.extend(_differences(receipt, evidence, distinct))
    return named


def _doubled(receipt: Receipt, offsets: _ByPartition) -> Iterator[Finding]:
    for partition, found in offsets.items():
        twice = ranges_of(repeats(found))
        if twice:
            text = f"{counted(size_of(twice), 'offset')} in {len(found):,} rows"
            yield _finding("duplicate in a window", receipt, partition, twice, text)


def _above(offsets: _ByPartition, log_starts: Mapping[int, int]) -> Digest:
    return digest_of({p: found[found >= log_starts.get(p, 0)] for p, found in offsets.items()})


def _differences(receipt: Receipt, evidence: Evidence, offsets: _ByPartition) -> tuple[Finding, ...]:
    found: list[Finding] = []
    for partition, accounted in evidence.by_partition.items():
        if not accounted.records.whole:
            continue
        held = ranges_of(offsets.get(partition, ()))
        records = accounted.records.listed
        lost = subtract(records, held)
        foreign = subtract(held, (*records, *_expired(accounted)))
        if lost:
            text = f"Kafka holds {counted(size_of(lost), 'committed record')} there that the table lacks"
            found.append(_finding("record not in the table", receipt, partition, lost, text))
        if foreign:
            text = (
                f"the table has {counted(size_of(foreign), 'row')} there for which the window has no committed record"
            )
            found.append(_finding("row without a record", receipt, partition, foreign, text))
    for partition in sorted(set(offsets) - set(evidence.by_partition)):
        foreign = ranges_of(offsets[partition])
        found.append(_finding("row without a record", receipt, partition, foreign, "the window has no such partition"))
    if not found and digest_of(offsets) == evidence.digest:
        text = f"the table has just the {counted(evidence.records, 'record')} that Kafka holds, and the receipt is of others"
        return (Finding("ledger edited", receipt.topic, receipt.window.key, None, (), text, MEND_LEDGER),)
    if not found:
        text = f"Kafka holds {evidence.records:,} committed records, the load committed {receipt.rows:,} rows"
        found.append(_finding("record not in the table", receipt, None, (), text))
    return tuple(found)


def _expired(accounted: PartitionEvidence) -> tuple[OffsetRange, ...]:
    """From the start of the range to the last offset below the log start: what was there, the broker cannot say."""
    listing = accounted.below_log_start
    return (OffsetRange(accounted.range.start, listing.end),) if listing.offsets else ()


def _finding(
    kind: FindingKind, receipt: Receipt, partition: int | None, ranges: tuple[OffsetRange, ...], detail: str
) -> Finding:
    key = receipt.window.key
    heal = f"Materialise partition {key} of {receipt.table}: it heals the window, or says why it cannot."
    return Finding(kind, receipt.topic, key, partition, ranges, detail, heal)


def _unanswered(receipt: Receipt, error: PlatformError) -> Finding:
    again = ", then run the check again" if isinstance(error, Retryable) else ""
    return _undecided(receipt, str(error), f"Act as the message says{again}.")


def _undecided(receipt: Receipt, reason: str, remedy: str) -> Finding:
    return Finding("could not tell", receipt.topic, receipt.window.key, None, (), reason, remedy)


def _last_proof(receipt: Receipt) -> datetime:
    return receipt.proved_at or datetime.min.replace(tzinfo=UTC)
