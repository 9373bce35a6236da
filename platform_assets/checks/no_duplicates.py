"""`no_duplicates`: no (topic id, partition, offset) is in the table twice, within a window or across windows.

A window whose files are those of its load was proved free of duplicates by the load, from the digest of its offsets;
windows share no offset, since their ranges tile and their rows lie inside. So only windows whose files changed are
read.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from platform_assets.checks.facts import Facts
from platform_assets.checks.findings import Finding, Verdict, counted, runs_of

NAME = "no_duplicates"


def check(facts: Facts) -> Verdict:
    """Judge `facts`. Pure."""
    findings = (*_by_receipt(facts), *_within(facts), *_across(facts))
    doubled = sum(f.offsets for f in findings)
    figures = (("rows", sum(r.total_rows for r in facts.recorded.values())), ("duplicated_offsets", doubled))
    if findings:
        headline = f"{counted(doubled, 'offset')} in the table more than once."
    else:
        read = f", {counted(len(facts.touched), 'window')} of them by reading" if facts.touched else ""
        headline = f"No duplicates: {counted(len(facts.recorded), 'window')} looked at{read}."
    return Verdict(NAME, facts.table, findings, headline, figures)


def _by_receipt(facts: Facts) -> Iterator[Finding]:
    for recorded in facts.recorded.values():
        if recorded.duplicates and recorded.key not in facts.touched:
            yield Finding(
                "duplicate in a window", facts.topic, recorded.key, None, (),
                f"the load itself read {counted(recorded.duplicates, 'offset')} twice",
                f"Materialise partition {recorded.key} of {facts.table} again, and report this as a defect.",
            )  # fmt: skip


def _within(facts: Facts) -> Iterator[Finding]:
    for key, by_partition in facts.touched.items():
        for partition, offsets in by_partition.items():
            doubled = np.unique(offsets[1:][offsets[1:] == offsets[:-1]])
            if len(doubled):
                yield Finding(
                    "duplicate in a window", facts.topic, key, partition, runs_of(doubled),
                    f"{counted(len(doubled), 'offset')} in {len(offsets):,} rows", _remedy(facts, key),
                )  # fmt: skip


def _across(facts: Facts) -> Iterator[Finding]:
    for key, by_partition in facts.touched.items():
        for partition, offsets in by_partition.items():
            own = facts.windows.get(key)
            own_range = own.by_partition.get(partition) if own else None
            distinct = np.unique(offsets)
            if own_range is not None:
                distinct = distinct[(distinct < own_range.start) | (distinct >= own_range.end)]
            if not len(distinct):
                continue
            for other, ranges in facts.windows.items():
                r = ranges.by_partition.get(partition)
                if other == key or r is None or other not in facts.recorded:
                    continue
                shared = distinct[(distinct >= r.start) & (distinct < r.end)]
                if len(shared) and _holds_rows(facts, other, partition):
                    yield Finding(
                        "duplicate across windows", facts.topic, key, partition, runs_of(shared),
                        f"{counted(len(shared), 'offset')} belong to window {other}, which holds range {r}",
                        _remedy(facts, key),
                    )  # fmt: skip


def _holds_rows(facts: Facts, key: str, partition: int) -> bool:
    if key in facts.touched:
        return len(facts.touched[key].get(partition, ())) > 0
    return facts.recorded[key].rows.get(partition, 0) > 0


def _remedy(facts: Facts, key: str) -> str:
    if key in facts.windows:
        return f"Materialise partition {key} of {facts.table}: it writes the range again, once."
    return f"Another writer put them there: delete the rows with window = '{key}'."
