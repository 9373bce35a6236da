"""The checks of decoded tables: that each raw row is in one of two tables, and how many of them are dead letters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from platform_assets.checks.findings import Finding, Verdict, counted
from platform_assets.lake import load_log
from platform_assets.lake.dead_letters import Group, groups
from platform_assets.lake.load_log import WindowFiles
from platform_assets.ledger.entries import Receipt
from platform_assets.ledger.store import Ledger
from platform_assets.model.declaration import TopicDeclaration
from platform_assets.model.decoding import DecodeDeclaration
from platform_assets.model.tables import TableRef

CONSERVATION: Final = "decoded_plus_dead_equals_raw"
SHARE: Final = "share_of_dead_letters"
NAMES: Final = (CONSERVATION, SHARE)
"""Of the checks that each decoded table has."""
NEWEST: Final = 200
"""Windows that are judged beside those of a run."""

Level = Literal["passed", "warning", "error"]


@dataclass(frozen=True, slots=True)
class Windows:
    """What ledger and tables have of some windows: their receipts in each of the three tables, and their files in two."""

    topic: str
    raw: Mapping[str, Receipt]
    decoded: Mapping[str, Receipt]
    dead_letters: Mapping[str, Receipt]
    files: Mapping[TableRef, Mapping[str, WindowFiles]]

    @property
    def keys(self) -> list[str]:
        """Those that were decoded, ascending."""
        return sorted({*self.decoded, *self.dead_letters})


@dataclass(frozen=True, slots=True)
class Shares:
    """Dead letters of some windows. `worst` is the window with the largest share of its records, `of` are all records."""

    level: Level
    dead: int
    of: int
    worst: str | None
    worst_share: float
    groups: tuple[Group, ...]


def windows_of(declaration: TopicDeclaration, ledger: Ledger, keys: Sequence[str] | None = None) -> Windows:
    """Those with the given keys and the newest ones, or all."""
    wanted = None if keys is None else sorted({*keys, *ledger.edges(declaration.topic)[-NEWEST - 1 : -1]})
    tables = (declaration.raw_table, declaration.decoded_table, declaration.dead_letter_table)
    raw, decoded, dead = (ledger.receipts(table, wanted) for table in tables)
    files: dict[TableRef, Mapping[str, WindowFiles]] = {}
    for table in tables[1:]:
        folder = ledger.lake.table(table)
        files[table] = load_log.window_files(load_log.file_actions(folder)) if load_log.exists(folder) else {}
    return Windows(declaration.topic, raw, decoded, dead, files)


def conserved(windows: Windows) -> Verdict:
    """Whether each raw row of a decoded window is in one of the two tables, by digests, and both are of one declaration."""
    found = [finding for key in windows.keys for finding in _of_window(windows, key)]
    rows = sum(r.rows for r in windows.decoded.values())
    dead = sum(r.rows for r in windows.dead_letters.values())
    table = TableRef("decoded", windows.topic)
    headline = (
        f"{counted(len(windows.keys), 'window')}: {rows:,} decoded rows and {dead:,} dead letters are the raw rows"
    )
    if found:
        wrong = len({f.window for f in found})
        headline = f"{counted(wrong, 'window')} of {len(windows.keys):,}: decoded rows and dead letters are not just the raw rows"
    figures = (("windows", len(windows.keys)), ("decoded_rows", rows), ("dead_letters", dead))
    return Verdict(CONSERVATION, table, tuple(found), headline, figures)


def shares(windows: Windows, declared: DecodeDeclaration, ledger: Ledger, keys: Sequence[str]) -> Shares:
    """How many of the records of the windows `keys` are dead letters, against what is declared of each window."""
    letters = {key: windows.dead_letters[key].rows for key in keys if key in windows.dead_letters}
    whole = {key: n + (windows.decoded[key].rows if key in windows.decoded else 0) for key, n in letters.items()}
    each = {key: letters[key] / whole[key] for key in letters if whole[key]}
    worst = max(each, key=lambda key: (each[key], key), default=None)
    share = 0.0 if worst is None else each[worst]
    level: Level = "error" if share > declared.fail_share else "warning" if share > declared.warn_share else "passed"
    folder = ledger.lake.table(TableRef("dead_letters", windows.topic))
    found = groups(folder, sorted(key for key, number in letters.items() if number))
    return Shares(level, sum(letters.values()), sum(whole.values()), worst, share, found)


def _of_window(windows: Windows, key: str) -> list[Finding]:
    raw, decoded, dead = windows.raw.get(key), windows.decoded.get(key), windows.dead_letters.get(key)
    table = TableRef("decoded", windows.topic)
    again = f"Materialise partition {key} of {table}: it is decoded again."

    def found(text: str, kind: Literal["not conserved", "decoded by half"] = "not conserved") -> Finding:
        return Finding(kind, windows.topic, key, None, (), text, again)

    if decoded is None or dead is None:
        missing = table if decoded is None else TableRef("dead_letters", windows.topic)
        return [found(f"{missing} has no receipt of it, and the other table has one", "decoded by half")]
    if raw is None:
        return [found(f"it was decoded, and the ledger has no receipt of it in raw/{windows.topic}")]
    if decoded.made_from != dead.made_from:
        return [found("rows and dead letters are of different loads or declarations", "decoded by half")]
    findings = []
    if decoded.offsets + dead.offsets != raw.offsets:
        findings.append(
            found(
                f"{decoded.rows:,} decoded rows and {dead.rows:,} dead letters are not the {raw.rows:,} raw rows"
                + ("" if decoded.rows + dead.rows != raw.rows else ": their offsets differ")
            )
        )
    for receipt in (decoded, dead):
        files = windows.files[receipt.table].get(key, load_log.NO_FILES)
        if not files.match(receipt.files_digest, receipt.rows):
            findings.append(found(f"the files of {receipt.table} are not those that its load committed"))
    return findings
