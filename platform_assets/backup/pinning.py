"""Versions of all tables at one moment, taken in an order that restores consistently.

Delta only adds files and versions, so a version can be copied while loads continue. Versions are noted one after the
other, derived tables before their sources: receipts, decoded tables, raw tables, cuts, decisions. So every receipt has
its rows, every row its cut, and every cut its decision. The one thing that may be missing is a receipt, as after a run
that was killed: its window is requested again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

from platform_assets.backup.failures import BackupInterruptedError
from platform_assets.lake import delta_log, load_log
from platform_assets.lake.failures import TableUnsupportedError
from platform_assets.lake.location import Folder, Lake

_LOG: Final = "_delta_log"
_LOG_FILE: Final = re.compile(r"(\d{20})\.[A-Za-z0-9._-]+")
_DERIVED_FIRST: Final = ("state", "dead_letters", "decoded", "raw")
_CACHES: Final = frozenset({"baselines", "sessions"})
"""Folders of the ledger that may be deleted at any time: notes of what was checked, and of sessions of one Spark server."""
_ATTEMPTS: Final = 5


@dataclass(frozen=True, slots=True)
class PinnedTable:
    """A Delta table at a version. `name` is its path below the lake root."""

    name: str
    folder: Folder
    version: int

    def files(self) -> Iterator[str]:
        """All that the table needs to be read at that version, as paths below its folder: its log up to there, and data files.

        Past versions keep their place in the log; of their files there are those that this version names too.
        """
        for name in sorted(self.folder.files(_LOG)):
            found = _LOG_FILE.fullmatch(name)
            if found is not None and int(found[1]) <= self.version:
                yield f"{_LOG}/{name}"
        for name in sorted(self.folder.files(f"{_LOG}/_sidecars")):
            yield f"{_LOG}/_sidecars/{name}"
        for path in load_log.file_actions(self.folder, self.version)["path"].to_pylist():
            data = unquote(path)
            if data.startswith("/") or "://" in data or ".." in data.split("/"):
                raise TableUnsupportedError(str(self.folder), f"its log names the file {data}, outside of its folder")
            yield data


@dataclass(frozen=True, slots=True)
class PinnedLake:
    """The tables of a lake as of one moment; names of `loose` files below the root, and of what is `left_out`."""

    tables: tuple[PinnedTable, ...]
    loose: tuple[str, ...]
    left_out: tuple[str, ...]


def pin(lake: Lake) -> PinnedLake:
    """The lake as it is now. Raises BackupInterruptedError where operators decide something each time, and what reading raises."""
    for _ in range(_ATTEMPTS):
        decided = delta_log.newest_version(lake.decisions)
        tables = [table for folder, name in _in_order(lake) if (table := _pinned(folder, name)) is not None]
        # What a decision brings about is written behind it, to several tables: none may be begun in between.
        if delta_log.newest_version(lake.decisions) == decided:
            return PinnedLake(tuple(tables), tuple(_loose(lake, tables)), tuple(_left_out(lake)))
    raise BackupInterruptedError(str(lake.decisions), "operators decided something each time that it was begun")


def _in_order(lake: Lake) -> Iterator[tuple[Folder, str]]:
    tables = lake.tables()
    yield lake.commits, "_ledger/commits"
    for kind in _DERIVED_FIRST:
        yield from ((lake.table(table), table.name) for table in tables if table.kind == kind)
    yield lake.cuts, "_ledger/cuts"
    ledger = lake.ledger
    for name in sorted({*ledger.folders()} - {"commits", "cuts"}):
        if (ledger / name).has_delta_log():
            yield ledger / name, f"_ledger/{name}"


def _pinned(folder: Folder, name: str) -> PinnedTable | None:
    version = delta_log.newest_version(folder)
    return None if version is None else PinnedTable(name, folder, version)


def _loose(lake: Lake, tables: list[PinnedTable]) -> Iterator[str]:
    """Files of the ledger that are in no table: its version, schemas of registries, outcomes of deep audits."""
    ledger = lake.ledger
    yield from (f"_ledger/{name}" for name in sorted(ledger.files()) if not name.startswith("."))
    known = {table.name for table in tables} | {f"_ledger/{name}" for name in _CACHES}
    for folder in sorted(ledger.folders()):
        if f"_ledger/{folder}" not in known:
            yield from (f"_ledger/{folder}/{name}" for name in sorted(ledger.files(folder)) if not name.startswith("."))


def _left_out(lake: Lake) -> Iterator[str]:
    """Yield what is below the lake root and is not a table of the platform, such as replays."""
    known = {table.name for table in lake.tables()}
    for name in sorted(lake.root.folders()):
        if name in _DERIVED_FIRST:
            yield from (f"{name}/{t}" for t in sorted(lake.root.folders(name)) if f"{name}/{t}" not in known)
        elif name != "_ledger":
            yield name
    yield from sorted(lake.root.files())
