"""Checks of decoded tables: each raw row is either a decoded row or a dead letter, and there are not too many dead
letters."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Final, Literal

import numpy as np

from platform_assets.checks.decoded_files import TableFiles, files_of
from platform_assets.checks.findings import CheckResult, Finding, counted, of_another_writer
from platform_assets.errors import FilesLostError
from platform_assets.lake import load_log, rows
from platform_assets.lake.dead_letters import Group, groups
from platform_assets.ledger.entries import Receipt
from platform_assets.ledger.store import Ledger
from platform_assets.model.declaration import TopicDeclaration
from platform_assets.model.decoding import DecodeDeclaration
from platform_assets.model.offsets import OffsetRange, ranges_of
from platform_assets.model.tables import TableRef
from platform_assets.windows.decode import expired

CONSERVATION: Final = "decoded_plus_dead_equals_raw"
SHARE: Final = "share_of_dead_letters"
NAMES: Final = (CONSERVATION, SHARE)
"""Names of the checks of each decoded table."""
NEWEST: Final = 200
"""Number of newest windows that are checked in addition to the windows of a run."""

BUDGET: Final = 120.0
"""Time limit in seconds for reading files that changed since their load."""

_MOST_NAMED: Final = 20
"""Maximum number of windows for which the missing offsets are looked up if their rows differ from the load."""
_NONE: Final = np.empty(0, np.int64)

Level = Literal["passed", "warning", "error"]
Ranges = Mapping[int, tuple[OffsetRange, ...]]


@dataclass(frozen=True, slots=True)
class Windows:
    """Ledger entries and files for some windows: the receipts of the raw, decoded and dead-letter tables, and the files
    of the decoded and dead-letter tables.

    `unknown` windows have rows in the decoded or the dead-letter table, but never existed in the raw table. `under_way`
    windows are being replaced by a load right now, so their commits appear one by one. `missing` has the offsets of raw
    rows that are in neither table, by window and partition, for some of the windows whose rows differ from the load.
    `half_removed` windows have raw rows that stay, but upkeep has removed rows that were made from them.
    """

    topic: str
    raw: Mapping[str, Receipt]
    of_decoded: TableFiles
    of_dead_letters: TableFiles
    unknown: Mapping[str, TableRef] = field(default_factory=dict)
    under_way: frozenset[str] = frozenset()
    missing: Mapping[str, Ranges] = field(default_factory=dict)
    half_removed: frozenset[str] = frozenset()

    @property
    def decoded(self) -> Mapping[str, Receipt]:
        """Receipts of the decoded rows, by window."""
        return self.of_decoded.receipts

    @property
    def dead_letters(self) -> Mapping[str, Receipt]:
        """Receipts of the dead letters, by window."""
        return self.of_dead_letters.receipts

    @property
    def keys(self) -> list[str]:
        """Decoded windows, ascending."""
        return sorted({*self.decoded, *self.dead_letters})


@dataclass(frozen=True, slots=True)
class Shares:
    """Dead letters in some windows. `dead` is their number, and `of` is the number of all records in these windows.
    `worst` is the window with the largest share of dead letters among its records. `others` counts the dead letters
    that are in none of the `groups`."""

    level: Level
    dead: int
    of: int
    worst: str | None
    worst_share: float
    groups: tuple[Group, ...]
    others: int


def windows_of(
    declaration: TopicDeclaration, ledger: Ledger, keys: Sequence[str] | None = None, budget: float = BUDGET
) -> Windows:
    """Return the windows `keys` and the newest windows; all windows if `keys` is None. If the files of a window differ
    from its receipts, the window is read; reading takes at most `budget` seconds. If the rows prove equal, this is
    recorded in the ledger."""
    deadline = time.monotonic() + budget
    wanted = None if keys is None else sorted({*keys, *ledger.edges(declaration.topic)[-NEWEST - 1 : -1]})
    decoded, dead = (
        files_of(ledger, table, ledger.receipts(table, wanted), deadline)
        for table in (declaration.decoded_table, declaration.dead_letter_table)
    )
    # Asked last, because each window decoded until now had its raw receipt before.
    raw = ledger.receipts(declaration.raw_table, wanted)
    unknown = {k: f.table for f in (decoded, dead) for k in f.files if k not in {*raw, *f.receipts}}
    stays = expired.stays(ledger, declaration, datetime.now(UTC))
    removed = {k: r.window.end for f in (decoded, dead) for k, r in f.receipts.items() if r.is_expired}
    half = frozenset(k for k, end in removed.items() if k in raw and not raw[k].is_expired and stays(end))
    missing = _missing(ledger, declaration, sorted({*decoded.otherwise, *dead.otherwise} & {*raw}), deadline)
    return Windows(
        declaration.topic, raw, decoded, dead, {} if wanted is not None else unknown, missing=missing, half_removed=half
    )


def _missing(
    ledger: Ledger, declaration: TopicDeclaration, keys: Sequence[str], deadline: float
) -> Mapping[str, Ranges]:
    """Return the offsets of those raw rows in these windows that are neither decoded rows nor dead letters. At most
    `_MOST_NAMED` windows are read. No further window is read after the deadline, and a window is left out if its files
    are lost."""
    found = dict[str, Ranges]()
    folders = [ledger.lake.table(table) for table in declaration.tables]
    of_raw = ledger.lake.table(declaration.raw_table)
    for key in keys[:_MOST_NAMED]:
        if time.monotonic() >= deadline:
            break
        try:
            held = [rows.offsets_of(folder, key) for folder in folders if folder != of_raw and load_log.exists(folder)]
            lost = {
                partition: ranges_of(
                    np.setdiff1d(offsets, np.concatenate([h[partition] for h in held if partition in h] or [_NONE]))
                )
                for partition, offsets in rows.offsets_of(of_raw, key).items()
            }
        except FilesLostError:
            continue
        found[key] = {partition: ranges for partition, ranges in sorted(lost.items()) if ranges}
    return found


def confirmed_windows(
    declaration: TopicDeclaration,
    ledger: Ledger,
    keys: Sequence[str] | None,
    in_flight: Callable[[list[str]], frozenset[str]],
    budget: float = BUDGET,
) -> Windows:
    """Return the result of `windows_of`. If something in it is wrong, call `windows_of` a second time. Windows that
    change between the two readings or are in flight are `under_way`.

    `in_flight` takes windows and returns those that queued or running runs will decode. A load commits dead letters
    first, then rows, then receipts, so a single reading may fall between two of these commits.
    """
    first = windows_of(declaration, ledger, keys, budget)
    if not (wrong := _wrong(first)):
        return first
    # Asked between the two readings: the second one sees all results of a run that has ended by now.
    busy = in_flight(sorted(wrong))
    second = windows_of(declaration, ledger, keys, budget)
    changed = {k for k in _wrong(second) if _state(first, k) != _state(second, k)}
    return replace(second, under_way=busy | changed)


def _wrong(windows: Windows) -> set[str]:
    return {f.window for f in conserved(windows).findings if f.alarming}


def _state(windows: Windows, key: str) -> tuple[object, ...]:
    tables = (windows.of_decoded, windows.of_dead_letters)
    return tuple((t.receipts.get(key), t.files.get(key)) for t in tables)


def conserved(windows: Windows) -> CheckResult:
    """Check, by comparing digests, that each raw row of a decoded window is either a decoded row or a dead letter, and
    that both tables were decoded with the same declaration."""
    found = [finding for key in windows.keys for finding in _of_window(windows, key)]
    found += [_unknown(windows.topic, key, table) for key, table in sorted(windows.unknown.items())]
    rows = sum(r.rows for r in windows.decoded.values())
    dead = sum(r.rows for r in windows.dead_letters.values())
    table = TableRef("decoded", windows.topic)
    headline = (
        f"{counted(len(windows.keys), 'window')}: {rows:,} decoded rows and {dead:,} dead letters match the raw rows"
    )
    wrong = len({f.window for f in found if f.alarming})
    if found and not wrong:
        headline = f"The result is unknown for {counted(len({f.window for f in found}), 'window')} out of {len(windows.keys):,}."
    elif found:
        headline = (
            f"In {counted(wrong, 'window')} out of {len(windows.keys):,}, decoded rows and dead letters do not match the "
            "raw rows"
        )
    figures = (("windows", len(windows.keys)), ("decoded_rows", rows), ("dead_letters", dead))
    return CheckResult(CONSERVATION, table, tuple(found), headline, figures)


def shares(windows: Windows, declared: DecodeDeclaration, ledger: Ledger, keys: Sequence[str]) -> Shares:
    """Count the dead letters among the records of the windows `keys`, and compare their share with the shares that the
    topic's declaration allows."""
    letters = {key: windows.dead_letters[key].rows for key in keys if key in windows.dead_letters}
    whole = {key: n + (windows.decoded[key].rows if key in windows.decoded else 0) for key, n in letters.items()}
    each = {key: letters[key] / whole[key] for key in letters if whole[key]}
    worst = max(each, key=lambda key: (each[key], key), default=None)
    share = 0.0 if worst is None else each[worst]
    level: Level = "error" if share > declared.fail_share else "warning" if share > declared.warn_share else "passed"
    folder = ledger.lake.table(TableRef("dead_letters", windows.topic))
    found = groups(folder, sorted(key for key, number in letters.items() if number))
    return Shares(level, sum(letters.values()), sum(whole.values()), worst, share, found.listed, found.others)


def _of_window(windows: Windows, key: str) -> list[Finding]:
    raw, decoded, dead = windows.raw.get(key), windows.decoded.get(key), windows.dead_letters.get(key)
    table = TableRef("decoded", windows.topic)
    again = f"Materialize partition {key} of {table}: the run decodes the window again."
    if key in windows.under_way:
        text = "a load is currently replacing this window"
        return [
            Finding(
                "could not tell", windows.topic, key, None, (), text, "Run the check again once that load has ended."
            )
        ]

    def found(text: str, kind: Literal["not conserved", "decoded by half"] = "not conserved") -> Finding:
        return Finding(kind, windows.topic, key, None, (), text, again)

    if key in windows.half_removed:
        return [
            found(
                "decoded rows or dead letters were removed as past `keep`, but the raw rows stay, because `keep` was lengthened "
                "or removed since"
            )
        ]
    if _are_expiring(raw, decoded, dead):
        # Upkeep removes the rows of one table after the other.
        return [
            found(f"the files of {of_table.table} are not those that its receipt names: {of_table.otherwise[key]}")
            for of_table in (windows.of_decoded, windows.of_dead_letters)
            if key in of_table.otherwise
        ]
    if decoded is None or dead is None:
        missing = table if decoded is None else TableRef("dead_letters", windows.topic)
        return [
            found(
                f"the ledger has no receipt of {missing} for this window, but has one of the other table",
                "decoded by half",
            )
        ]
    if raw is None:
        return [found(f"the window was decoded, but the ledger has no receipt for this window of raw/{windows.topic}")]
    if decoded.made_from != dead.made_from:
        return [
            found("decoded rows and dead letters were made from different raw loads or declarations", "decoded by half")
        ]
    findings = []
    if decoded.offsets + dead.offsets != raw.offsets:
        findings.append(
            found(
                f"{decoded.rows:,} decoded rows and {dead.rows:,} dead letters do not match the {raw.rows:,} raw rows"
                + ("" if decoded.rows + dead.rows != raw.rows else ": their offsets differ")
            )
        )
    named = False
    for of_table in (windows.of_decoded, windows.of_dead_letters):
        if key in of_table.otherwise:
            text = f"the files of {of_table.table} are not those that the window's load committed: {of_table.otherwise[key]}"
            places = () if named else tuple(windows.missing.get(key, {}).items())
            named = True
            findings += [Finding("not conserved", windows.topic, key, p, r, text, again) for p, r in places] or [
                found(text)
            ]
        elif key in of_table.unread:
            text = f"the files of {of_table.table} are not those of the window's load, and time ran out before they were read"
            findings.append(Finding("could not tell", windows.topic, key, None, (), text, "Run the check again."))
    return findings


def _are_expiring(*receipts: Receipt | None) -> bool:
    """Return True if the rows of a window were removed as expired from one of its tables at least."""
    return any(receipt is not None and receipt.is_expired for receipt in receipts)


def _unknown(topic: str, key: str, table: TableRef) -> Finding:
    where = f"in a window that raw/{topic} never had" if key else "without a window"
    return Finding(
        "unknown window", topic, key, None, (), f"{table} has rows {where}",
        of_another_writer(key, table),
    )  # fmt: skip
