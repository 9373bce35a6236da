"""`every_offset_accounted_for`: rows + explained holes = end - start, for every loaded window.

A dense window is proved by the digest of its load until its files change. Any other window is compared with the
broker's evidence once, and also stays proved until its files change; after that, its rows are read again. The digest of
a dense window follows from the window's range, so an edited receipt is found without reading files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np

from platform_assets.checks.baseline.history import ABSENT, History, Mask
from platform_assets.checks.baseline.older import holes_total
from platform_assets.checks.check import Check
from platform_assets.checks.evaluation import Evaluation
from platform_assets.checks.facts import Facts
from platform_assets.checks.findings import CheckResult, Finding, counted
from platform_assets.checks.proving import name_differences, open_windows, prove_by_evidence, prove_by_reading
from platform_assets.errors import REPAIR_LEDGER
from platform_assets.ledger.entries import ACCEPTED_LOSS, BELOW_LOG_START, ERASED
from platform_assets.model.digest import dense_digest

NAME = "every_offset_accounted_for"
_HASHED: Final = 20_000_000
"""Maximum number of offsets for which one evaluation computes digests, starting with the newest windows. Computing them
takes half a second."""
_LARGEST: Final = 5_000_000
"""Maximum number of offsets in a window. For larger windows, the digest is not computed."""


def may_count(history: History) -> Mask:
    """Return True for windows whose rows and explained holes add up to the number of offsets, and whose files are those
    that were proved."""
    holes = np.array([ABSENT if found is None else sum(found.values()) for found in history.holes], dtype=np.int64)
    balanced: Mask = (holes != ABSENT) & (history.rows + holes == history.offsets)
    known = np.array([not (found or {}).get(BELOW_LOG_START) for found in history.holes], dtype=bool)
    return np.asarray(balanced & known & history.files_as_recorded)


def evaluate(e: Evaluation) -> CheckResult:
    """Prove open windows, then evaluate. Only open windows need brokers and Spark."""
    facts = e.facts()
    findings: list[Finding] = []
    others = (*facts.changed, *sorted({*facts.rewritten, *facts.not_held}), *facts.unreadable)
    changed = [k for k in others if k in facts.recorded and k in facts.windows]
    if changed:
        read = prove_by_reading(e, facts, changed)
        findings += name_differences(e, read.findings, doubled=False)
    waiting = open_windows(e, facts)
    if waiting:
        findings += prove_by_evidence(e, waiting).findings
    return check_result(e.facts(fresh=bool(changed or waiting)), findings)


def check_result(facts: Facts, findings: Iterable[Finding]) -> CheckResult:
    """Evaluate `facts`, given the findings about open windows. No I/O."""
    found = [*findings, *_unbalanced(facts), *_edited(facts), *_unknown(facts)]
    holes = holes_total([facts.older.holes, *(r.holes or {} for r in facts.recorded.values())])
    rows = facts.older.rows + sum(r.total_rows for r in facts.recorded.values())
    offsets = facts.older.offsets + sum(r.ranges.size for r in facts.recorded.values())
    explained = ", ".join(_counted_holes(kind, n) for kind, n in sorted(holes.items(), key=lambda kv: -kv[1]))
    figures = (
        ("offsets", offsets),
        ("rows", rows),
        *((f"holes_{kind.replace(' ', '_')}", n) for kind, n in sorted(holes.items())),
        ("windows_proved", facts.older.windows + sum(r.holes is not None for r in facts.recorded.values())),
        ("windows_open", sum(r.holes is None for r in facts.recorded.values())),
    )
    alarming = [f for f in found if f.alarming]
    if alarming:
        headline = f"{counted(len({f.window for f in alarming}), 'window')} not accounted for."
    elif found:
        headline = f"The result is unknown for {counted(len({f.window for f in found}), 'window')}."
    else:
        headline = f"Every offset accounted for: {rows:,} rows" + (f" + {explained}" if explained else "")
        headline += f" = {offsets:,} offsets in {counted(facts.older.windows + len(facts.recorded), 'window')}."
    return CheckResult(NAME, facts.table, tuple(found), headline, figures)


def _counted_holes(kind: str, number: int) -> str:
    if kind == ACCEPTED_LOSS:
        return f"{counted(number, 'offset')} accepted as lost"
    if kind == ERASED:
        return f"{counted(number, 'erased record')}"
    return f"{number:,} {kind.removesuffix('s') if number == 1 else kind}"


def _unknown(facts: Facts) -> Iterator[Finding]:
    for key, r in facts.recorded.items():
        number = (r.holes or {}).get(BELOW_LOG_START, 0)
        if number and key in facts.windows:
            yield Finding(
                "could not tell", facts.topic, key, None, (),
                f"{counted(number, 'offset')} without a row fell below the log start before the broker was queried "
                "about them",
                "The cause can no longer be determined. To record these offsets as a known loss, run `platform-assets "
                f'accept-loss {facts.table} {key} --reason "…"`.',
            )  # fmt: skip


def _edited(facts: Facts) -> Iterator[Finding]:
    left = _HASHED
    for key, r in sorted(facts.recorded.items(), reverse=True):
        dense = r.holes is not None and r.total_rows == r.ranges.size
        if not dense or key not in facts.windows or r.ranges.size > min(_LARGEST, left):
            continue
        left -= r.ranges.size
        if dense_digest(r.ranges) != r.offsets:
            yield Finding(
                "ledger edited", facts.topic, key, None, (),
                f"the receipt counts a row for each of its {r.ranges.size:,} offsets, but "
                "the digest in the receipt does not match these offsets",
                REPAIR_LEDGER,
            )  # fmt: skip


def _unbalanced(facts: Facts) -> Iterator[Finding]:
    for key, r in facts.recorded.items():
        if r.holes is not None and r.total_rows + sum(r.holes.values()) != r.ranges.size and key in facts.windows:
            yield Finding(
                "offsets not accounted for", facts.topic, key, None, (),
                f"{r.total_rows:,} rows and {sum(r.holes.values()):,} explained holes do not add up to {r.ranges.size:,} "
                "offsets",
                REPAIR_LEDGER,
            )  # fmt: skip


CHECK = Check(
    NAME,
    "For every window, rows plus explained holes equal end minus start, as shown by the load's digest or the brokers' evidence.",
    evaluate,
    may_count,
)
