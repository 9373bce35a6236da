"""`deep_audit`: reads the files of windows again, oldest proof first, and compares both digests with the receipts'.

It finds what logs and statistics cannot show: altered values, damaged or lost files, rows of another writer.
"""

from __future__ import annotations

from platform_assets.checks.evaluation import Evaluation
from platform_assets.checks.facts import Facts
from platform_assets.checks.findings import Verdict, counted
from platform_assets.checks.proving import Proved, name_differences, prove_by_reading

NAME = "deep_audit"


def evaluate(e: Evaluation) -> Verdict:
    """Audit as many windows as the budget allows, and judge those."""
    facts = e.facts(fresh=True)
    keys = [k for k in facts.recorded if k in facts.windows and (e.windows is None or k in e.windows)]
    proved = prove_by_reading(e, facts, keys)
    findings = name_differences(e, proved.findings, doubled=True)
    return verdict(facts, keys, Proved(proved.receipts, tuple(findings)))


def verdict(facts: Facts, keys: list[str], proved: Proved) -> Verdict:
    """Judge. Pure. `keys` are the windows that were to be audited."""
    looked_at = len(proved.receipts) + len({f.window for f in proved.findings})
    with_rows = sum(1 for k in keys if facts.recorded[k].ranges.size)
    left = max(with_rows - looked_at, 0)
    rows = sum(r.rows for r in proved.receipts)
    figures = (("windows_audited", looked_at), ("windows_left", left), ("rows_audited", rows))
    alarming = [f for f in proved.findings if f.alarming]
    if alarming:
        headline = f"{counted(len({f.window for f in alarming}), 'window')} damaged."
    elif proved.findings:
        headline = f"Could not tell for {counted(len({f.window for f in proved.findings}), 'window')}."
    else:
        headline = f"{counted(looked_at, 'window')} with {rows:,} rows read again: all as committed"
        headline += f"; {counted(left, 'window')} left for the next audit." if left else "."
    return Verdict(NAME, facts.table, proved.findings, headline, figures)
