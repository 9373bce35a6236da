"""Checks of the table of changes: its windows match the decoded windows, and every record has a place in the state."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from platform_assets.checks.audit import Audit, CheckOutcome
from platform_assets.checks.decoded import BUDGET, NEWEST
from platform_assets.checks.decoded_files import TableFiles, files_of
from platform_assets.checks.findings import CheckResult, Finding, counted, of_another_writer
from platform_assets.errors import PlatformError
from platform_assets.ledger.entries import Receipt
from platform_assets.ledger.store import Ledger
from platform_assets.model.declaration import TopicDeclaration
from platform_assets.model.expectations import FailingRow
from platform_assets.model.state import (
    NO_KEY,
    NO_VALUE,
    NO_VERSION,
    OTHER_KEY,
    REFUSED,
    SEVERAL_PARTITIONS,
    SUPERSEDED,
    TRUNCATE,
)
from platform_assets.model.windows import Span
from platform_assets.windows.change.changing import WindowChanger

CONSERVATION: Final = "changes_match_decoded"
PLACED: Final = "every_record_has_a_place"
NAMES: Final = (CONSERVATION, PLACED)
"""Names of the checks of each table of changes."""
DEEP: Final = "changes_made_again"
_REMEDY: Final[Mapping[str, str]] = {
    NO_VALUE: "The state has no deletes, so these tombstones change nothing. If they delete keys, use `deletes: tombstone`.",
    NO_KEY: "Fix the producer, or repair the records with `repairs:`. If another column identifies a row, correct `state: key`.",
    NO_VERSION: "Fix the producer, or repair the records with `repairs:`. If versions are optional, use `order: position`.",
    OTHER_KEY: "A tombstone or an event that deletes a row takes the row's key from the record's key, so it would delete "
    "another row, or none. Correct `key:` under `decode`, or the producer, and load the windows again.",
    SEVERAL_PARTITIONS: "Send the records of a key to one partition. After partitions were added, this only affects the window "
    "with the first records in new partitions.",
    TRUNCATE: "The rows that the truncate removed from the database are still in the state: in a topic with one partition, it "
    "would delete them. For each of them, produce a record with its key and without a value. In the database, use DELETE instead "
    "of TRUNCATE on this table from now on.",
}


@dataclass(frozen=True, slots=True)
class Windows:
    """Ledger entries and files for some windows: the receipts of the decoded table, and the receipts and files of the
    table of changes. `outdated` windows were made from another load of the decoded window, or with another
    declaration."""

    topic: str
    decoded: Mapping[str, Receipt]
    of_changes: TableFiles
    outdated: frozenset[str]
    unknown: frozenset[str] = frozenset()

    @property
    def changes(self) -> Mapping[str, Receipt]:
        """Receipts of the changes, by window."""
        return self.of_changes.receipts


def windows_of(
    declaration: TopicDeclaration, ledger: Ledger, keys: Sequence[str] | None = None, budget: float = BUDGET
) -> Windows:
    """Return the windows `keys` and the newest windows; all windows if `keys` is None. If the files of a window differ
    from its receipt, the window is read; reading takes at most `budget` seconds."""
    wanted = None if keys is None else sorted({*keys, *ledger.edges(declaration.topic)[-NEWEST - 1 : -1]})
    table = declaration.changes_table
    found = files_of(ledger, table, ledger.receipts(table, wanted), time.monotonic() + budget)
    # Asked last, because each window with changes had its decoded receipt before.
    decoded = ledger.receipts(declaration.decoded_table, wanted)
    changer = WindowChanger(declaration, ledger)
    begun, receipts = changer.begun_at(), found.receipts
    outdated = frozenset(
        k for k, r in receipts.items() if k in decoded and not changer.is_current(r, decoded[k], begun)
    )
    unknown = frozenset() if wanted is not None else frozenset({*found.files} - {*decoded, *found.receipts})
    return Windows(declaration.topic, decoded, found, outdated, unknown)


def conserved(
    windows: Windows, in_flight: Callable[[list[str]], frozenset[str]] = lambda keys: frozenset()
) -> CheckResult:
    """Check that each decoded record of a window is a change, or superseded or refused as counted, and that the files
    of the changes are those of their loads. Windows that are being made again are not judged."""
    wrong = {key: text for key in sorted(windows.changes) if (text := _wrong(windows, key))}
    busy = in_flight(sorted(wrong)) if wrong else frozenset()
    table = windows.of_changes.table
    found = [
        Finding(
            "not conserved", windows.topic, key, None, (), text,
            f"Materialize partition {key} of {table}: the run makes the changes again.",
        )
        for key, text in wrong.items() if key not in busy
    ]  # fmt: skip
    found += [
        Finding("unknown window", windows.topic, key, None, (), "the decoded table never had it", of_another_writer(key, table))
        for key in sorted(windows.unknown)
    ]  # fmt: skip
    for key in sorted((windows.outdated | busy | windows.of_changes.unread) - {f.window for f in found}):
        found.append(
            Finding(
                "could not tell", windows.topic, key, None, (),
                "its changes were made from an earlier load of the decoded window, or with an earlier declaration"
                if key in windows.outdated else "a load is replacing this window, or time ran out before its files were read",
                "The topic's sensor requests the window. Run the check again after that run.",
            )
        )  # fmt: skip
    rows, superseded = sum(r.rows for r in windows.changes.values()), _figure(windows, SUPERSEDED)
    number = len({f.window for f in found if f.alarming})
    headline = (
        f"In {counted(number, 'window')} out of {len(windows.changes):,}, changes do not match the decoded rows"
        if number
        else f"{counted(len(windows.changes), 'window')}: {rows:,} changes and {superseded:,} superseded records match the "
        "decoded rows"
    )
    figures = (("windows", len(windows.changes)), ("changes", rows), ("superseded", superseded))
    return CheckResult(CONSERVATION, table, tuple(found), headline, figures)


def placed(windows: Windows) -> CheckResult:
    """Check that each decoded record has a place in the state: a key, a value unless it deletes its key, and a version
    if one is declared. The others are in no row of the state and are listed. So are records whose own key is not that of
    their row, and keys whose records have no order that a producer chose, because they are in several partitions."""
    table, found = windows.of_changes.table, list[Finding]()
    for key, receipt in sorted(windows.changes.items()):
        for name in (*REFUSED, OTHER_KEY, SEVERAL_PARTITIONS):
            if receipt.figures is None or name not in receipt.figures:
                continue
            of = receipt.figures[name]
            what = (
                f"{counted(of.failing, 'key')} with records in several partitions"
                if name == SEVERAL_PARTITIONS
                else f"{counted(of.failing, 'record')} {name}"
            )
            text = f"{what}, for example {_places(of.samples)}"
            found.append(Finding("not conserved", windows.topic, key, None, (), text, _REMEDY[name]))
    refused = sum(_figure(windows, name) for name in REFUSED)
    several = _figure(windows, SEVERAL_PARTITIONS)
    headline = (
        f"{counted(refused, 'record')} of {counted(len(windows.changes), 'window')} have no place in the state"
        if refused
        else f"Each record of {counted(len(windows.changes), 'window')} has a place in the state"
    )
    if several:
        headline += (
            f"; {counted(several, 'key')} had records in several partitions of a window, between which the order is fixed but "
            "arbitrary"
        )
    if others := _figure(windows, OTHER_KEY):
        headline += f"; {counted(others, 'record')} {OTHER_KEY}"
    figures = (("refused", refused), ("other_key", others), ("keys_in_several_partitions", several))
    return CheckResult(PLACED, table, tuple(found), headline, figures)


def misses_deletes(windows: Windows) -> bool:
    """Return True if the state has rows that a truncate may have deleted, or that a delete with their record's key would miss."""
    return _figure(windows, TRUNCATE) > 0 or _figure(windows, OTHER_KEY) > 0


def audit(
    declaration: TopicDeclaration,
    ledger: Ledger,
    now: datetime,
    in_flight: Callable[[list[str]], frozenset[str]],
    span: Span,
    *,
    deep: bool,
    progress: Callable[[str], None] = lambda text: None,
) -> Audit:
    """Evaluate every check of all windows in `span`. With `deep`, also make the changes of each window again, and
    compare them with the receipts. If something cannot be determined, the outcome says so."""
    at, table = now.isoformat(timespec="seconds"), declaration.changes_table
    try:
        progress(CONSERVATION)
        windows = _within(windows_of(declaration, ledger, None, float("inf")), span)
        results = [conserved(windows, in_flight), placed(windows)]
        if deep:
            results.append(_made_again(declaration, ledger, windows, progress))
    except PlatformError as e:
        return Audit(table.name, at, span, deep, (CheckOutcome(CONSERVATION, None, str(e)),), None)
    outcomes = tuple(CheckOutcome(result.check, result, None) for result in results)
    return Audit(table.name, at, span, deep, outcomes, None, count=len({*windows.decoded, *windows.changes}))


def _made_again(
    declaration: TopicDeclaration, ledger: Ledger, windows: Windows, progress: Callable[[str], None]
) -> CheckResult:
    changer, table, found = WindowChanger(declaration, ledger), declaration.changes_table, list[Finding]()
    for key in sorted(windows.changes):
        progress(f"{DEEP}: {key}")
        try:
            text = changer.difference(key)
        except PlatformError as e:
            found.append(Finding("could not tell", declaration.topic, key, None, (), str(e), f"Load {key} again."))
            continue
        if text is not None:
            again = f"Materialize partition {key} of {table}."
            found.append(Finding("decoded otherwise", declaration.topic, key, None, (), text, again))
    headline = (
        f"{counted(len(found), 'window')} of {len(windows.changes):,} could not be reproduced from the decoded rows"
        if found
        else f"{counted(len(windows.changes), 'window')} made again from the decoded rows: the same changes"
    )
    return CheckResult(DEEP, table, tuple(found), headline, (("windows", len(windows.changes)),))


def _wrong(windows: Windows, key: str) -> str | None:
    """Describe what is wrong with the changes of a window; None if nothing is, or if they are outdated."""
    receipt, decoded = windows.changes[key], windows.decoded.get(key)
    if decoded is None:
        return "the window has changes, but the ledger has no receipt of the decoded window"
    if key in windows.of_changes.otherwise:
        return f"the files are not those that the window's load committed: {windows.of_changes.otherwise[key]}"
    if key in windows.outdated or receipt.figures is None:
        return None
    others = sum(receipt.figures[name].failing for name in (SUPERSEDED, *REFUSED) if name in receipt.figures)
    if receipt.rows + others != decoded.rows:
        return (
            f"{receipt.rows:,} changes and {others:,} other records do not add up to the {decoded.rows:,} decoded rows"
        )
    return None


def _within(windows: Windows, span: Span) -> Windows:
    files = windows.of_changes
    return Windows(
        windows.topic,
        {k: r for k, r in windows.decoded.items() if k in span},
        TableFiles(
            files.table,
            {k: r for k, r in files.receipts.items() if k in span},
            {k: f for k, f in files.files.items() if k in span},
            {k: text for k, text in files.otherwise.items() if k in span},
            frozenset(k for k in files.unread if k in span),
        ),
        frozenset(k for k in windows.outdated if k in span),
        frozenset(k for k in windows.unknown if k in span),
    )


def _figure(windows: Windows, name: str) -> int:
    found = (r.figures[name].failing for r in windows.changes.values() if r.figures is not None and name in r.figures)
    return sum(found)


def _places(samples: Sequence[FailingRow]) -> str:
    return ", ".join(f"partition {s.partition} offset {s.offset}" for s in samples)
