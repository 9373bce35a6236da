"""Confirm loads with the other engine: read a sample of windows from Kafka again, and compare digests.

Each engine turns a broker's batches into rows with its own code, so a defect in one engine shows as different digests.
Nothing is committed, and the files written for the comparison are deleted.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

from platform_assets.checks.evaluation import Evaluation
from platform_assets.checks.findings import Finding
from platform_assets.checks.judging import finding
from platform_assets.engines.choice import other_engine
from platform_assets.engines.protocol import LoadEngine, Order, Records, StagedFiles
from platform_assets.errors import PlatformError
from platform_assets.ledger.entries import Receipt
from platform_assets.model.declaration import ENGINES
from platform_assets.model.offsets import OffsetRange
from platform_assets.model.tables import TableRef
from platform_assets.windows.decide.generations import beyond_log

SAMPLE_WINDOWS: Final = 20
SAMPLE_OFFSETS: Final = 5_000_000
"""Maximum number of windows, and maximum number of offsets, that one audit reads again. Reading a window again costs
Kafka as much as loading it."""


@dataclass(frozen=True, slots=True)
class Confirmed:
    """Receipts of windows for which the other engine got equal digests, findings about the other windows, and reasons
    why no more windows were read."""

    receipts: tuple[Receipt, ...] = ()
    findings: tuple[Finding, ...] = ()
    not_read: tuple[str, ...] = ()


NOTHING: Final = Confirmed()
"""Result if no window was read again."""


def confirm(e: Evaluation, receipts: Sequence[Receipt]) -> Confirmed:
    """Read windows of `receipts` that no other engine has confirmed, and record the windows whose digests are equal.

    The oldest windows come first, because Kafka deletes their records first. A window is left out if Kafka no longer
    has all its records, or if its offsets now belong to other records. Compacted topics are left out too, because
    reading them today may give fewer records than the load did.
    """
    if e.engine_by_name is None:
        return NOTHING
    try:
        sample = _sample(e, receipts)
    except PlatformError as error:
        return Confirmed(not_read=(str(error),))
    proved, findings, not_read = list[Receipt](), list[Finding](), list[str]()
    for loaded_by in ENGINES:
        group = [r for r in sample if r.engine == loaded_by]
        if not group:
            continue
        for receipt, outcome in _read(e, e.engine_by_name(other_engine(loaded_by)), group):
            if isinstance(outcome, PlatformError):
                not_read.append(str(outcome))
            elif (outcome.measured.offsets, outcome.measured.content) == (receipt.offsets, receipt.content):
                now = datetime.now(UTC)
                proved.append(replace(receipt, kind="proof", confirmed_by=outcome.engine, proved_at=now))
            else:
                findings.append(_differs(receipt, outcome))
    e.ledger.record_receipts(proved)
    return Confirmed(tuple(proved), tuple(findings), tuple(dict.fromkeys(not_read)))


def _sample(e: Evaluation, receipts: Sequence[Receipt]) -> list[Receipt]:
    found: list[Receipt] = []
    offsets = 0
    for receipt in held_whole(e, [r for r in receipts if r.engine in ENGINES and r.confirmed_by is None]):
        offsets += receipt.ranges.size
        if found and (len(found) == SAMPLE_WINDOWS or offsets > SAMPLE_OFFSETS):
            break
        found.append(receipt)
    return found


def held_whole(e: Evaluation, receipts: Sequence[Receipt]) -> list[Receipt]:
    """Return, oldest first, the receipts of windows that have rows and whose records Kafka still has completely. Return
    nothing for a compacted topic."""
    some = [r for r in receipts if r.rows]
    if not some or e.cluster().is_compacted(e.declaration.topic):
        return []
    state = e.cluster().topic(e.declaration.topic)
    starts = {p: found.offset for p, found in e.cluster().log_starts(state).items()}
    return [
        receipt
        for receipt in sorted(some, key=lambda r: r.window.start)
        if receipt.topic_id == state.topic_id
        and all(_begin(p, receipt) >= starts.get(p, 0) for p in receipt.partitions)
        and not beyond_log(e.ledger, receipt)
    ]


def _begin(partition: int, receipt: Receipt) -> int:
    """Return the first offset in the window that has a row. Offsets before it had no row when the window was loaded."""
    part = receipt.partitions[partition]
    return part.range.end if part.first_offset is None else part.first_offset


def _read(
    e: Evaluation, checking: LoadEngine, receipts: Sequence[Receipt]
) -> Iterator[tuple[Receipt, StagedFiles | PlatformError]]:
    """Yield the other engine's result for each window until the time budget is used up. The files that the engine wrote
    are deleted."""
    table = e.declaration.raw_table
    accepted = e.ledger.accepted_losses_of(table, [r.window.key for r in receipts])
    orders = [_order(r, table, accepted.get(r.window.key, {})) for r in receipts]
    with closing(checking.write_many(orders, e.declaration.records_per_file)) as outcomes:
        for receipt in receipts:
            if time.monotonic() > e.deadline:
                return
            e.progress(f"reading window {receipt.window.key} from Kafka again with the {checking.name} engine")
            outcome = next(outcomes)
            if isinstance(outcome, StagedFiles):
                (e.table / outcome.folder).delete()
            yield receipt, outcome


def _order(receipt: Receipt, table: TableRef, accepted: Mapping[int, tuple[OffsetRange, ...]]) -> Order:
    """Return an order to read the window's offsets from the first row on. Kafka may no longer have anything before the
    first row."""
    without = {p: (OffsetRange(0, _begin(p, receipt)), *accepted.get(p, ())) for p in receipt.partitions}
    records = Records(receipt.topic, receipt.topic_id, receipt.window.key, receipt.ranges, without)
    return Order(records, f"audit-{uuid.uuid4()}", table)


def _differs(receipt: Receipt, outcome: StagedFiles) -> Finding:
    read = outcome.measured
    what = (
        f"{read.rows:,} rows, but the {receipt.engine} engine loaded {receipt.rows:,}"
        if read.offsets != receipt.offsets
        else f"{receipt.rows:,} rows with the same offsets that the {receipt.engine} engine loaded, but with different content"
    )
    text = f"the {outcome.engine} engine read {what}"
    return finding("engines disagree", receipt, None, (), text)
