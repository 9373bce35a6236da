"""`no_gaps`: cuts leave no gaps and do not overlap, every sealed window is loaded, and each window's rows are complete
and within its ranges.

Offsets without a row are only counted, because transaction markers and aborted or compacted records also leave offsets
without a row.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping

from platform_assets.checks.baseline.history import History, Mask
from platform_assets.checks.check import Check
from platform_assets.checks.facts import Facts, Recorded
from platform_assets.checks.findings import CheckResult, Finding, counted, of_another_writer
from platform_assets.errors import REPAIR_LEDGER
from platform_assets.model.offsets import (
    HeldOffsets,
    OffsetRange,
    TilingFault,
    TopicRanges,
    common,
    size_of,
    subtract,
    tiling_faults,
)

NAME = "no_gaps"


def may_count(history: History) -> Mask:
    """Return True for windows that are loaded as cut, have the recorded files, and have all rows within their ranges."""
    return history.loaded_as_cut & history.rows_inside & history.files_as_recorded


def check_result(facts: Facts) -> CheckResult:
    """Evaluate `facts`. No I/O."""
    findings = tuple(_findings(facts))
    rows = facts.older.rows + sum(r.total_rows for r in facts.recorded.values())
    held = facts.older.offsets + sum(r.ranges.size for r in facts.recorded.values())
    loaded = facts.older.windows + len(facts.recorded)
    figures = (
        ("windows_sealed", facts.older.windows + len(facts.windows)),
        ("windows_loaded", loaded),
        ("windows_waiting", len(facts.waiting)),
        ("lag_offsets", sum(r.size for k, r in facts.windows.items() if k not in facts.recorded)),
        ("rows", rows),
        ("offsets", held),
        ("offsets_without_row", held - rows),
    )
    if findings:
        windows = len({f.window for f in findings})
        headline = f"{counted(len(findings), 'gap')} in {counted(windows, 'window')}."
    else:
        headline = (
            f"No gaps: {counted(loaded, 'window')} loaded, {rows:,} rows for {held:,} offsets"
            + (f", {held - rows:,} offsets without a row" if held > rows else "")
            + (f"; {counted(len(facts.waiting), 'window')} waiting to be loaded" if facts.waiting else "")
            + "."
        )
    return CheckResult(NAME, facts.table, findings, headline, figures)


def _findings(facts: Facts) -> Iterator[Finding]:
    topic = facts.topic
    for fault in _tiling_faults(facts):
        yield Finding(
            "cuts do not tile", topic, fault.right, fault.partition, (OffsetRange(fault.start, fault.end),),
            f"{fault.kind} between windows {fault.left} and {fault.right}",
            REPAIR_LEDGER,
        )  # fmt: skip
    for key, ranges in facts.windows.items():
        recorded = facts.recorded.get(key)
        if recorded is None:
            # Rows without a receipt are loaded; `agrees_with_ledger` reports that the ledger lacks them.
            if key not in facts.waiting and key not in facts.files:
                yield from _not_loaded(facts, key, ranges)
        elif recorded.ranges != ranges:
            yield Finding(
                "receipt contradicts cuts", topic, key, None, (),
                f"the receipt has ranges {recorded.ranges.triples()}, but the cuts have {ranges.triples()}",
                REPAIR_LEDGER,
            )  # fmt: skip
        else:
            yield from _outside_by_receipt(topic, recorded)
    for key in sorted(set(facts.recorded) - set(facts.windows)):
        yield Finding(
            "receipt contradicts cuts", topic, key, None, (), "the window is loaded, but the ledger has no cuts for it",
            "Cuts were lost: restore _ledger/cuts or run `platform-assets rebuild-ledger`.",
        )  # fmt: skip
    for key, found in facts.changed.items():
        if key in facts.recorded and key in facts.windows:
            yield from _changed_since_load(facts, facts.recorded[key], found)
    for key, why in facts.unreadable.items():
        yield Finding(
            "files lost", topic, key, None, (), f"a data file listed in the table's log cannot be read: {why}",
            of_another_writer(key)
            if key in facts.unknown
            else f"Materialize partition {key} of {facts.table}: the run writes the window again "
            "and verifies that the rows are those that were loaded before.",
        )  # fmt: skip
    for key in sorted(facts.not_held):
        yield Finding(
            "could not tell", topic, key, None, (),
            "its files were changed, and too many other windows also have rows that differ from their loads, so "
            "the rows of this window were not kept for the check",
            "Repair the listed windows, then run the check again.",
        )  # fmt: skip
    for key in facts.unknown:
        for partition, held in facts.changed.get(key, {}).items():
            yield Finding(
                "unknown window", topic, key, partition, held.ranges,
                "the table has rows in a window that was never sealed" if key else "the table has rows without a window",
                of_another_writer(key),
            )  # fmt: skip


def _tiling_faults(facts: Facts) -> Iterator[TilingFault]:
    """Find gaps and overlaps between windows of the same generation. Between two generations there is nothing to
    compare, because an operator accepted where the next generation starts."""
    in_order = itertools.groupby(facts.windows.items(), lambda item: facts.generation(item[0]))
    return itertools.chain.from_iterable(tiling_faults(list(windows)) for _, windows in in_order)


def _not_loaded(facts: Facts, key: str, ranges: TopicRanges) -> Iterator[Finding]:
    if key in facts.parked:
        for partition, r in ranges.non_empty().items():
            yield Finding(
                "window parked", facts.topic, key, partition, (r,),
                "an operator has parked the window, so the sensor does not request it, and its records are not in any table",
                f"Run `platform-assets unpark {facts.table} {key}` once the window can be loaded.",
            )  # fmt: skip
        return
    unasked = key in facts.unasked
    for partition, r in ranges.items():
        if r.size:
            yield Finding(
                "window not asked for" if unasked else "window not loaded", facts.topic, key, partition, (r,),
                "the window is sealed, newer windows are loaded, and no run for it is queued or running"
                + ("; it has not been requested yet" if unasked else ""),
                f"Materialize partition {key} of {facts.table}, or let the topic's sensor do it."
                if unasked else
                f"Materialize partition {key} of {facts.table}; see its last run for the error.",
            )  # fmt: skip


def _outside_by_receipt(topic: str, recorded: Recorded) -> Iterator[Finding]:
    for partition, bounds in recorded.bounds.items():
        outside = bounds.minus([recorded.ranges.by_partition[partition]])
        if outside or recorded.rows[partition] > recorded.ranges.by_partition[partition].size:
            yield Finding(
                "rows outside the window", topic, recorded.key, partition, outside,
                f"the load wrote {recorded.rows[partition]} rows with offsets {bounds} for range "
                f"{recorded.ranges.by_partition[partition]}",
                f"Materialize partition {recorded.key} of raw/{topic} again, and report this as a defect.",
            )  # fmt: skip


def _changed_since_load(facts: Facts, recorded: Recorded, found: Mapping[int, HeldOffsets]) -> Iterator[Finding]:
    """Return findings about a window whose files differ from those of the load. The rows show whether OPTIMIZE or
    damage changed the files."""
    heal = (
        f"Materialize partition {recorded.key} of {facts.table}: the run reads the range from Kafka again and verifies that the "
        "rows are those that were loaded before."
    )
    for partition, r in recorded.ranges.items():
        ranges = found[partition].ranges if partition in found else ()
        inside, outside = common(ranges, [r]), subtract(ranges, [r])
        if size_of(inside) < recorded.rows[partition]:
            # If the load itself left holes, not all offsets without a row are missing.
            dense = recorded.rows[partition] == r.size
            yield Finding(
                "rows missing", facts.topic, recorded.key, partition, r.minus(inside) if dense else (),
                f"{size_of(inside):,} of {recorded.rows[partition]:,} loaded rows are left"
                + ("" if dense else "; the check every_offset_accounted_for lists the missing rows"), heal,
            )  # fmt: skip
        if outside:
            yield Finding(
                "rows outside the window", facts.topic, recorded.key, partition, outside,
                f"{counted(size_of(outside), 'offset')} do not belong to range {r}", heal,
            )  # fmt: skip
    for partition in sorted(set(found) - set(recorded.ranges.by_partition)):
        yield Finding(
            "rows outside the window", facts.topic, recorded.key, partition, found[partition].ranges,
            "the window has no range in this partition", heal,
        )  # fmt: skip


CHECK = Check(
    NAME,
    "Adjacent windows share a cut, every sealed window is loaded, and each window's rows are complete and in its ranges.",
    lambda e: check_result(e.facts()),
    may_count,
)
