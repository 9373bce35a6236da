"""Prove open windows: compare windows that have holes with the broker's evidence, and read changed files again. Proofs
are recorded in the ledger, so a window stays proved until its files change."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from platform_assets.checks.evaluation import Evaluation
from platform_assets.checks.facts import Facts, Recorded
from platform_assets.checks.findings import Finding, counted, foreign_ids
from platform_assets.checks.judging import (
    Accepted,
    ByPartition,
    differences,
    finding,
    judge,
    judge_without_log,
    needs_listing,
    undecided,
)
from platform_assets.engines.batching import batched_windows
from platform_assets.errors import (
    BatchTooLargeError,
    DamagedBatchError,
    FilesLostError,
    OffsetsExpiredError,
    PlatformError,
    Retryable,
)
from platform_assets.lake import holdings, load_log, rows
from platform_assets.ledger.entries import BELOW_LOG_START, Receipt
from platform_assets.ledger.erasure_rules import erased_of
from platform_assets.model.digest import Measured, digest_of
from platform_assets.model.offsets import ranges_of, repeats, size_of
from platform_assets.windows.decide.generations import FORMER_LOG, beyond_log
from platform_assets.windows.load.receipts import proved_again

if TYPE_CHECKING:
    from platform_assets.kafka.evidence.gathering import Evidence

_ALL = 1_000_000
"""Maximum number of ranges that evidence lists if the findings must list offsets."""


@dataclass(frozen=True, slots=True)
class Proved:
    """Result of an attempt to prove open windows: receipts to write, and findings."""

    receipts: tuple[Receipt, ...]
    findings: tuple[Finding, ...]


def open_windows(e: Evaluation, facts: Facts) -> tuple[Recorded, ...]:
    """Return the loaded windows that are not proved yet: they have offsets that have neither a row nor an explanation.
    Windows with holes below the log start are included if a loss was accepted there."""
    read = {*facts.changed, *facts.rewritten, *facts.not_held}
    loaded = [r for k, r in facts.recorded.items() if k not in read and k in facts.windows]
    unknown = [r.key for r in loaded if r.holes is not None and r.holes.get(BELOW_LOG_START)]
    accepted = e.ledger.accepted_losses_of(e.declaration.raw_table, unknown) if unknown else {}
    return tuple(r for r in loaded if r.holes is None or r.key in accepted)


def prove_by_evidence(e: Evaluation, windows: Iterable[Recorded]) -> Proved:
    """Ask the brokers about every offset of `windows`, and compare their answers with the loaded rows."""
    found = e.ledger.receipts(e.declaration.raw_table, [w.key for w in windows])
    # No evidence changes what is known of rows that were removed.
    receipts = {key: receipt for key, receipt in found.items() if not receipt.is_expired}
    accepted = e.ledger.accepted_losses_of(e.declaration.raw_table, list(receipts))
    erased = erased_of(e.ledger, e.declaration.topic, list(accepted)) if accepted else {}
    proved: list[Receipt] = []
    findings: list[Finding] = []
    for number, (key, receipt) in enumerate(sorted(receipts.items()), 1):
        if time.monotonic() > e.deadline:
            findings.append(undecided(receipt, "the time allowed for this check was used up", "Run the check again."))
            continue
        e.progress(f"gathering evidence for window {key} ({number} of {len(receipts)})")
        if beyond_log(e.ledger, receipt):
            outcome = judge_without_log(
                receipt, rows.offsets_of(e.table, key), accepted.get(key, {}), erased.get(key, {})
            )
            proved += [outcome] if isinstance(outcome, Receipt) else []
            findings += [] if isinstance(outcome, Receipt) else outcome
            continue
        try:
            evidence = _evidence(e, receipt, accepted.get(key, {}))
            if needs_listing(receipt, evidence, accepted.get(key, {})):
                evidence = _evidence(e, receipt, accepted.get(key, {}), listed=_ALL)
        except PlatformError as error:
            findings.append(_unanswered(receipt, error))
            continue
        offsets = partial(rows.offsets_of, e.table, key)
        outcome = judge(receipt, evidence, offsets, accepted.get(key, {}), erased.get(key, {}))
        if not isinstance(outcome, Receipt):
            findings.extend(outcome)
        elif receipt.holes is None or _unknown(outcome) < _unknown(receipt):
            # Retention continues to delete records, so earlier, more complete evidence is kept.
            proved.append(outcome)
    e.ledger.record_receipts(proved)
    return Proved(tuple(proved), tuple(findings))


def _unknown(receipt: Receipt) -> int:
    return (receipt.holes or {}).get(BELOW_LOG_START, 0)


def _evidence(e: Evaluation, receipt: Receipt, accepted: Accepted, *, listed: int | None = None) -> Evidence:
    """Return the evidence for every offset of the window. If a batch cannot be read, skip the offsets that were
    `accepted` as lost.

    Raises whatever `gather_evidence` and `Cluster.is_compacted` raise, and OffsetsExpiredError if the topic now has
    another log.
    """
    if beyond := beyond_log(e.ledger, receipt):
        lost = [(p, r.start, r.end) for p, parts in beyond.items() for r in parts]
        remedy = "The table's own rows are the only evidence left for this window."
        raise OffsetsExpiredError(receipt.topic, receipt.window.key, lost, remedy, FORMER_LOG)
    # Imported where it is used: the protocol's schemas take a while to load, and a code location needs none of them.
    from platform_assets.kafka.evidence.gathering import gather_evidence
    from platform_assets.kafka.evidence.tally import LISTED

    gathered = partial(
        gather_evidence,
        e.settings(), receipt.topic, receipt.topic_id, receipt.ranges, compacted=e.cluster().is_compacted(receipt.topic),
        deadline=e.deadline, listed=LISTED if listed is None else listed,
    )  # fmt: skip
    try:
        return gathered()
    except (DamagedBatchError, BatchTooLargeError):
        if not accepted:
            raise
    return gathered(without=accepted)


def prove_by_reading(e: Evaluation, facts: Facts, keys: Iterable[str]) -> Proved:
    """Read the files of the windows `keys` again with Spark, starting with the windows whose last proof is oldest.
    Compare both digests of each window with those in its receipt.

    If the rows of a window prove equal but are in other files, as after OPTIMIZE, the window gets a receipt that lists
    those files.
    """
    receipts = e.ledger.receipts(e.declaration.raw_table, list(keys))
    proved: list[Receipt] = []
    findings: list[Finding] = []
    with_rows = sorted((r for r in receipts.values() if r.kind != "empty"), key=_last_proof)
    if not with_rows:
        # There need not be a table yet.
        return Proved((), ())
    version, table_id = load_log.version(e.table), load_log.table_id(e.table)
    opened = rows.Opened.at(e.table, version)
    done = 0
    for batch in batched_windows(with_rows, lambda receipt: receipt.rows):
        if time.monotonic() > e.deadline:
            break
        done += len(batch)
        last = batch[-1].window.key
        e.progress(f"reading {counted(len(batch), 'window')}, ending with {last} ({done:,} of {len(with_rows):,})")
        together = [receipt.window.key for receipt in batch]
        for key, measured in e.engine.measure(e.declaration.raw_table, together, version):
            outcome = _compared(facts, receipts[key], measured, opened, version, table_id)
            if isinstance(outcome, Receipt):
                proved.append(outcome)
            else:
                findings.append(outcome)
    e.ledger.record_receipts(proved)
    return Proved(tuple(proved), tuple(findings))


def _compared(
    facts: Facts,
    receipt: Receipt,
    measured: Measured | PlatformError,
    opened: rows.Opened,
    version: int,
    table_id: str,
) -> Receipt | Finding:
    if isinstance(measured, FilesLostError):
        return finding("files lost", receipt, None, (), str(measured))
    if isinstance(measured, PlatformError):
        return _unanswered(receipt, measured)
    if measured.offsets == receipt.offsets and measured.content == receipt.content:
        files = facts.files.get(receipt.window.key, holdings.NO_FILES)
        try:
            # No digest covers the topic's id, but what is proved of files by their contents does.
            ids = [] if files.proved_as is not None else opened.topic_ids_of(receipt.window.key)
        except FilesLostError as lost:
            return finding("files lost", receipt, None, (), str(lost))
        if (text := foreign_ids(receipt.topic_id, ids)) is not None:
            return finding("altered value", receipt, None, (), text)
        return proved_again(receipt, files, version, table_id)
    if measured.offsets == receipt.offsets:
        text = f"{receipt.rows:,} rows have the offsets that the load committed, but different content"
        return finding("altered value", receipt, None, (), text)
    text = f"the window has {measured.rows:,} rows (its load committed {receipt.rows:,}), and the offsets differ"
    return finding("offsets not accounted for", receipt, None, (), text)


def name_differences(e: Evaluation, findings: Iterable[Finding], *, doubled: bool) -> list[Finding]:
    """For windows whose rows differ from the load, replace the findings with findings that list the offsets, using the
    brokers' evidence if it is still available. Duplicate rows have their own check, so they are listed here only if
    `doubled` is true."""
    named: list[Finding] = []
    for found in findings:
        if found.kind != "offsets not accounted for":
            named.append(found)
            continue
        receipt = e.ledger.receipts(e.declaration.raw_table, [found.window])[found.window]
        offsets = rows.offsets_of(e.table, found.window)
        if doubled:
            named.extend(_doubled(receipt, offsets))
        distinct = {p: np.unique(o) for p, o in offsets.items()}
        if digest_of(distinct) == receipt.offsets:
            continue
        try:
            accepted = e.ledger.accepted_losses(e.declaration.raw_table, found.window)
            evidence = _evidence(e, receipt, accepted, listed=_ALL)
        except PlatformError as error:
            named.append(replace(found, detail=f"{found.detail} (the brokers could not be queried: {error})"))
            continue
        named.extend(differences(receipt, evidence, distinct, accepted) or (found,))
    return named


def _doubled(receipt: Receipt, offsets: ByPartition) -> Iterator[Finding]:
    for partition, held in offsets.items():
        twice = ranges_of(repeats(held))
        if twice:
            text = f"{counted(size_of(twice), 'offset')} repeated among {len(held):,} rows"
            yield finding("duplicate in a window", receipt, partition, twice, text)


def _unanswered(receipt: Receipt, error: PlatformError) -> Finding:
    again = ", then run the check again" if isinstance(error, Retryable) else ""
    return undecided(receipt, str(error), f"Follow the instructions in the message{again}.")


def _last_proof(receipt: Receipt) -> datetime:
    return receipt.proved_at or datetime.min.replace(tzinfo=UTC)
