"""Search for records by key in the raw table's files: those of the newest version, and those of expired windows that are
still on disk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from platform_assets.errors import FilesLostError, RowsWithoutWindowError
from platform_assets.lake import data_files, holdings, load_log, rows
from platform_assets.lake.expiring import name_of
from platform_assets.lake.location import Folder
from platform_assets.ledger.store import Ledger
from platform_assets.model.offsets import Offsets, ranges_of
from platform_assets.model.tables import TableRef
from platform_assets.windows.erase import expired_files
from platform_assets.windows.erase.outcome import Selected

_BLOCK_ROWS: Final = 65_536
_PLACE: Final = ["kafka_partition", "kafka_offset"]


@dataclass(frozen=True, slots=True)
class Unread:
    """Data that a search could not read: windows with an unreadable file in the newest version, and the names of
    unreadable files of past versions, in the form of the log, with the expired windows of which they may hold rows."""

    windows: set[str] = field(default_factory=set)
    files: dict[str, list[str]] = field(default_factory=dict)

    def files_of(self, table: TableRef) -> dict[str, list[str]]:
        """Return the names of the unreadable files by table, given their table."""
        return {table.name: sorted(map(name_of, self.files))} if self.files else {}


def files_of(ledger: Ledger, table: TableRef) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """Return the files of the newest version of a raw table, and those that hold, or may hold, rows of expired windows
    and that only past versions name, each with its windows.

    A removal of expired windows by upkeep may run at the same time, so the newest version is read first. It is read again at
    the end, because a load may have brought an expired window back: its files were not in the first version, and are not
    of the past either.
    """
    folder = ledger.lake.table(table)
    version = load_log.version(folder)
    newest = holdings.windows_by_path(holdings.actions(folder, version))
    on_disk = expired_files.of_table(ledger, table, table)
    if (now := load_log.version(folder)) != version:
        newest = {**holdings.windows_by_path(holdings.actions(folder, now)), **newest}
    return newest, {path: held for path, held in on_disk.all.items() if path not in newest}


def of_keys(
    ledger: Ledger, table: TableRef, keys: Sequence[bytes], unread: Unread | None, searched: set[str]
) -> list[Selected]:
    """Select the records in the raw table that have one of these keys. Memory is bounded by one batch plus the records
    found.

    Windows and files that cannot be read are added to `unread`; if `unread` is not given, the first one raises
    FilesLostError. Files in `searched` are skipped, and files that were read are added to `searched`.
    """
    folder = ledger.lake.table(table)
    if not load_log.exists(folder):
        return []
    found: dict[str, dict[int, list[Offsets]]] = {}
    wanted = pa.array(list(keys), pa.binary())
    newest, expired = files_of(ledger, table)
    for path, windows in {**newest, **expired}.items():
        if path in searched:
            continue
        try:
            _search(folder, path, windows, wanted, found)
        except FilesLostError:
            if unread is None:
                raise
            if path in newest:
                unread.windows.update(windows)
            else:
                unread.files[path] = windows
        else:
            searched.add(path)
    if "" in found:
        raise RowsWithoutWindowError(
            f"{table} has rows with one of these keys that another writer added without a window",
            "Delete the rows whose `window` is null, use `platform-assets vacuum` to delete their files, then erase again",
        )
    sealed = {w.key: w for w in ledger.windows(table.topic) if w.key in found}
    if unknown := sorted(set(found) - set(sealed)):
        raise RowsWithoutWindowError(
            f"{table} has rows of windows without cuts in the ledger ({', '.join(unknown[:3])})",
            "Run `platform-assets rebuild-ledger` first",
        )
    return [
        Selected(sealed[key], {p: ranges_of(np.concatenate(parts)) for p, parts in sorted(by_partition.items())}, True)
        for key, by_partition in sorted(found.items())
    ]


def _search(
    folder: Folder, path: str, windows: Sequence[str], wanted: pa.Array, found: dict[str, dict[int, list[Offsets]]]
) -> None:
    # A file that several windows share is read once.
    for window, block in data_files.blocks_by_window(folder, path, windows, _BLOCK_ROWS, ["key", *_PLACE]):
        hits = block.filter(pc.is_in(block["key"].cast(pa.binary()), wanted))
        for partition, offsets in rows.split_by_partition(hits):
            found.setdefault(window, {}).setdefault(partition, []).append(offsets)
