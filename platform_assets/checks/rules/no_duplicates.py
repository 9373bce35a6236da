"""`no_duplicates`: no (topic id, partition, offset) is in the table twice, neither within a window nor in two windows.

If a window's files are those of its load, no further proof is needed: the load already proved from the digest of the
offsets that there are no duplicates. Two windows share no offsets, because the ranges of windows do not overlap and the
rows of a window are within its ranges. So only windows whose files changed are read.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from platform_assets.checks.baseline.history import History, Mask
from platform_assets.checks.check import Check
from platform_assets.checks.facts import Facts
from platform_assets.checks.findings import CheckResult, Finding, counted, of_another_writer
from platform_assets.model.offsets import OffsetRange, TopicRanges, common, size_of, subtract

NAME = "no_duplicates"


def may_count(history: History) -> Mask:
    """Return True for windows whose load found no duplicates, whose files are unchanged, and whose rows are within the
    window's own ranges."""
    none_found = np.array([found == 0 for found in history.by_window("duplicates")], dtype=bool)
    return none_found & history.files_as_recorded & history.rows_inside & history.loaded_as_cut


def check_result(facts: Facts) -> CheckResult:
    """Evaluate `facts`. No I/O."""
    findings = (*_by_receipt(facts), *_within(facts), *_across(facts))
    doubled = sum(f.offsets for f in findings)
    rows = facts.older.rows + sum(r.total_rows for r in facts.recorded.values())
    figures = (("rows", rows), ("duplicated_offsets", doubled))
    if findings:
        headline = f"{counted(doubled, 'offset')} more than once in the table."
    else:
        by_reading = len(facts.changed) + len(facts.rewritten)
        read = f", including {counted(by_reading, 'window')} whose files were read" if by_reading else ""
        headline = f"No duplicates: {counted(facts.older.windows + len(facts.recorded), 'window')} checked{read}."
    return CheckResult(NAME, facts.table, findings, headline, figures)


def _by_receipt(facts: Facts) -> Iterator[Finding]:
    for recorded in facts.recorded.values():
        if recorded.duplicates and recorded.key not in facts.changed:
            yield Finding(
                "duplicate in a window", facts.topic, recorded.key, None, (),
                f"the load itself read {counted(recorded.duplicates, 'offset')} twice",
                f"Materialize partition {recorded.key} of {facts.table} again, and report this as a defect.",
            )  # fmt: skip


def _within(facts: Facts) -> Iterator[Finding]:
    for key, by_partition in facts.changed.items():
        for partition, held in by_partition.items():
            if held.repeated:
                yield Finding(
                    "duplicate in a window", facts.topic, key, partition, held.repeated,
                    f"{counted(size_of(held.repeated), 'offset')} repeated among {held.rows:,} rows", _remedy(facts, key),
                )  # fmt: skip


def _across(facts: Facts) -> Iterator[Finding]:
    for key, by_partition in facts.changed.items():
        for partition in by_partition:
            foreign = _foreign(facts, key, partition)
            if not foreign:
                continue
            same_log = [k for k in facts.windows if facts.generation(k) == facts.generation(key)]
            for other in (*same_log, *(k for k in facts.changed if k not in facts.windows)):
                shared = () if other == key else _held(facts, other, partition, foreign)
                if other in facts.changed and other < key:
                    # Named with the other window already, where it does not belong either.
                    shared = subtract(shared, _foreign(facts, other, partition))
                if shared:
                    yield Finding(
                        "duplicate across windows", facts.topic, key, partition, shared,
                        f"{counted(size_of(shared), 'offset')} also in "
                        f"{f'window {other}' if other else 'rows without a window'}",
                        _remedy(facts, key),
                    )  # fmt: skip


def _range(facts: Facts, key: str, partition: int) -> OffsetRange:
    return facts.windows.get(key, TopicRanges()).by_partition.get(partition, OffsetRange(0, 0))


def _foreign(facts: Facts, key: str, partition: int) -> tuple[OffsetRange, ...]:
    """Return those offsets read from a window that do not belong to the window."""
    held = facts.changed[key].get(partition)
    return () if held is None else subtract(held.ranges, [_range(facts, key, partition)])


def _held(facts: Facts, key: str, partition: int, offsets: tuple[OffsetRange, ...]) -> tuple[OffsetRange, ...]:
    """Return those of `offsets` that are in the window `key`. If the window has changed since its load, the offsets
    that were read decide; otherwise, the window's range decides."""
    if key in facts.changed:
        held = facts.changed[key].get(partition)
        return () if held is None else common(offsets, held.ranges)
    if key not in facts.recorded or not facts.recorded[key].rows.get(partition, 0):
        return ()
    return common(offsets, [_range(facts, key, partition)])


def _remedy(facts: Facts, key: str) -> str:
    if key in facts.windows:
        return f"Materialize partition {key} of {facts.table}: the run writes each row of the range exactly once."
    return of_another_writer(key)


CHECK = Check(
    NAME,
    "No (topic id, partition, offset) is in the table twice, within a window or across windows.",
    lambda e: check_result(e.facts()),
    may_count,
)
