"""`deep_audit`: read the files of windows again, starting with the windows whose last proof is oldest, and compare both
digests with those in the receipts.

The audit finds faults that logs and statistics cannot show: altered values, damaged or lost files, and rows from
another writer. A finding holds until the table no longer lists the files that were read, so a report between two audits
need not read any files.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace

from platform_assets.checks.baseline import audited
from platform_assets.checks.baseline.audited import Audited
from platform_assets.checks.check import Check
from platform_assets.checks.confirming import NOTHING, Confirmed, confirm
from platform_assets.checks.consuming import NOT_COMPARED, Compared, compare
from platform_assets.checks.evaluation import Evaluation
from platform_assets.checks.facts import Facts
from platform_assets.checks.findings import CheckResult, Finding, counted
from platform_assets.checks.proving import Proved, name_differences, prove_by_reading
from platform_assets.lake import holdings
from platform_assets.windows.proved_files import recognised

NAME = "deep_audit"


def evaluate(e: Evaluation) -> CheckResult:
    """Audit as many windows as the budget allows, store the findings, and evaluate them."""
    facts = e.facts(fresh=True)
    keys = [k for k in facts.recorded if k in facts.windows and (e.windows is None or k in e.windows)]
    proved = prove_by_reading(e, facts, keys)
    confirmed = confirm(e, proved.receipts)
    compared = compare(e, proved.receipts)
    disagreeing = {f.window for f in (*confirmed.findings, *compared.findings)}
    proved = Proved(tuple(r for r in proved.receipts if r.window.key not in disagreeing), proved.findings)
    findings = [*name_differences(e, proved.findings, doubled=True), *confirmed.findings, *compared.findings]
    read = {*(r.window.key for r in proved.receipts), *(f.window for f in findings if f.alarming)}
    if read or findings:
        files = {key: found.digest for key, found in facts.files.items()}
        done = audited.audited(findings, files, windows=len(read), rows=sum(r.rows for r in proved.receipts))
        audited.remember(e.lake, e.declaration.raw_table, done, read)
    return check_result(facts, keys, Proved(proved.receipts, tuple(findings)), confirmed, compared)


def check_result(
    facts: Facts, keys: list[str], proved: Proved, confirmed: Confirmed = NOTHING, compared: Compared = NOT_COMPARED
) -> CheckResult:
    """Evaluate the results of an audit. No I/O. `keys` are the windows to audit."""
    audited = len(proved.receipts) + len({f.window for f in proved.findings})
    with_rows = sum(1 for k in keys if facts.recorded[k].ranges.size)
    left = max(with_rows - audited, 0)
    rows = sum(r.rows for r in proved.receipts)
    figures = (
        ("windows_audited", audited),
        ("windows_left", left),
        ("rows_audited", rows),
        ("windows_confirmed", len(confirmed.receipts)),
        ("rows_compared", compared.rows),
    )
    alarming = [f for f in proved.findings if f.alarming]
    if alarming:
        headline = f"{counted(len({f.window for f in alarming}), 'window')} damaged."
    elif proved.findings:
        headline = f"The result is unknown for {counted(len({f.window for f in proved.findings}), 'window')}."
    else:
        headline = f"{counted(audited, 'window')} with {rows:,} rows read again, all unchanged since the load"
        headline += f"; {counted(left, 'window')} left for the next audit" if left else ""
        headline += _confirmed(confirmed) + _compared(compared) + "."
    return CheckResult(NAME, facts.table, proved.findings, headline, figures)


def _confirmed(confirmed: Confirmed) -> str:
    """Describe how many windows loaded by each engine the other engine has confirmed, and why no more windows were
    confirmed."""
    pairs = Counter((r.confirmed_by, r.engine) for r in confirmed.receipts)
    text = "".join(
        f"; {counted(n, 'window')} confirmed by the {other_engine} engine after a load by the {engine} engine"
        for (other_engine, engine), n in sorted(pairs.items())
    )
    return text + "".join(
        f"; no {'further ' if pairs else ''}windows confirmed: {reason.rstrip('.')}"
        for reason in confirmed.not_read[:1]
    )


def _compared(compared: Compared) -> str:
    text = (
        f"; {counted(compared.rows, 'row')} compared with the records that a plain consumer returned"
        if compared.rows
        else ""
    )
    return text + "".join(
        f"; no {'further ' if text else ''}rows compared: {reason.rstrip('.')}" for reason in compared.not_read[:1]
    )


def evaluate_without_reading(e: Evaluation) -> CheckResult | None:
    """Decide from the table's log alone whether the findings of earlier audits still hold. Return None if there was no
    audit."""
    known = audited.recall(e.lake, e.declaration.raw_table)
    if known is None:
        return None
    if not known.found:
        return standing(e.facts(), known, {}, {})
    keys = sorted({f.finding.window for f in known.found})
    receipts = e.ledger.receipts(e.declaration.raw_table, keys)
    found = holdings.window_files(holdings.actions(e.table, among=keys))
    found = recognised(e.lake, e.declaration.raw_table, found, receipts.values(), reads=False)
    files = {k: f.proved_as or f.digest for k, f in found.items()}
    return standing(e.facts(), known, files, {k: r.files_digest for k, r in receipts.items()})


def standing(facts: Facts, known: Audited, files: Mapping[str, str], receipts: Mapping[str, str]) -> CheckResult:
    """Evaluate the findings of earlier audits. No I/O. `files` maps windows to the digests of the files that the log
    lists now; `receipts` maps them to the digests in the ledger."""
    findings = tuple(_standing(known, files, receipts))
    audit = f"the audit of {known.at:%Y-%m-%d %H:%M}Z"
    figures = (("windows_audited", 0), ("rows_audited", 0))
    damaged = {f.window for f in findings if f.alarming}
    if damaged:
        headline = f"{counted(len(damaged), 'window')} still damaged: the files have not changed since the audit."
    elif findings:
        headline = f"The result is unknown for {counted(len({f.window for f in findings}), 'window')}."
    else:
        headline = (
            f"No finding of earlier audits remains; {audit} read "
            if known.found
            else f"This report read no files; {audit} read "
        )
        headline += f"{counted(known.windows, 'window')} with {counted(known.rows, 'row')}"
        headline += "." if known.found else ", all unchanged since the load."
    return CheckResult(NAME, facts.table, findings, headline, figures)


def _standing(known: Audited, files: Mapping[str, str], receipts: Mapping[str, str]) -> Iterator[Finding]:
    for found in known.found:
        window = found.finding.window
        now = files.get(window, holdings.NO_FILES.digest)
        if now == found.files_digest:
            yield replace(found.finding, detail=f"{found.finding.detail} (audited {found.at:%Y-%m-%d %H:%M}Z)")
        elif now != receipts.get(window):
            # The files are neither the audited ones nor those of a later load, which would be proved.
            yield replace(
                found.finding,
                kind="could not tell",
                ranges=(),
                detail=f"its files have changed since the audit of {found.at:%Y-%m-%d %H:%M}Z found them damaged: "
                f"{found.finding.detail}",
                remedy=(
                    f"Materialize partition {window} of raw/{found.finding.topic}: the run reads the range from Kafka again "
                    "and verifies that the rows are those that were loaded before."
                ),
            )


CHECK = Check(
    NAME,
    "Reads table files again, starting with the oldest proof, and recomputes both digests, to find damage that occurred after "
    "the load.",
    evaluate,
    blocking=False,
)
