"""Rows of one load of a window, in a fixed order, also after a later load has replaced them.

A publisher compares a new load with the rows that it has published. Until that is done, VACUUM must not delete the files
with those rows: `needed_files` names them, for every published topic of a table.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

import pyarrow as pa

from platform_assets.errors import FilesLostError, PublishedRowsLostError, PublishingInterruptedError
from platform_assets.lake import holdings, load_log, rows
from platform_assets.lake.failures import VersionGoneError
from platform_assets.lake.location import Folder, Lake
from platform_assets.ledger.store import Ledger
from platform_assets.model.logs import logger
from platform_assets.model.tables import TableRef

_log = logger(__name__)

POSITION: Final = ("kafka_partition", "kafka_offset")
_VERSION: Final = 1


@dataclass(frozen=True, slots=True, order=True)
class Load:
    """One load of a window: its id, the table version of its commit, and the number of its rows."""

    load_id: str
    version: int
    rows: int


def read(ledger: Ledger, table: TableRef, key: str, load: Load, columns: list[str], topic: str) -> pa.Table:
    """Return `columns` and the position of the rows of a load, sorted by partition and offset. `topic` is the published
    topic, for messages.

    Raises PublishedRowsLostError if the rows can no longer be read, and PublishingInterruptedError if another load
    replaces them right now.
    """
    folder = ledger.lake.table(table)
    try:
        version = _version(ledger, table, key, load)
        names = list(dict.fromkeys((*POSITION, *columns)))
        blocks = list(rows.batches_of(folder, key, version, names))
    except (VersionGoneError, FilesLostError) as e:
        raise PublishedRowsLostError(topic, table.name, key, load.load_id, str(e)) from e
    if not blocks:
        found = pa.table({n: [] for n in names})
    else:
        found = pa.Table.from_batches(blocks).select(names).sort_by([(name, "ascending") for name in POSITION])
    if found.num_rows != load.rows:
        newest = load_log.newest_loads(folder).get(key)
        if newest is not None and newest.version > load.version and version >= newest.version:
            raise PublishingInterruptedError(topic, f"reading window {key}", "it is being loaded again")
        cause = f"version {version} of the table has {found.num_rows:,} rows of the window instead of {load.rows:,}"
        raise PublishedRowsLostError(topic, table.name, key, load.load_id, cause)
    return found


def _version(ledger: Ledger, table: TableRef, key: str, load: Load) -> int:
    """Return a version that has the rows of `load`: its own if the files of that version are still there; otherwise the
    last one before a later load, because upkeep may have merged the files since."""
    folder = ledger.lake.table(table)
    files = holdings.files_if_kept(folder, key, load.version)
    if files is not None and all(folder.has(unquote(name)) for name in files.paths):
        return load.version
    later = [v for v, load_id in ledger.past_loads(table, key) if v > load.version and load_id != load.load_id]
    return later[0] - 1 if later else load_log.version(folder)


# --- files that VACUUM must keep ----------------------------------------------------------------------------------


def pin(lake: Lake, topic: str, table: TableRef, loads: Mapping[str, Sequence[Load]], done: str = "") -> None:
    """Record the loads of each window that are published or about to be, before they are published. `done` is a fingerprint
    of what is published completely. Raises LakeNotWritableError."""
    document = {
        "version": _VERSION,
        "table": table.name,
        "done": done,
        "loads": {key: [[e.load_id, e.version, e.rows] for e in each] for key, each in sorted(loads.items())},
    }
    lake.published.write(f"{topic}.json", json.dumps(document, separators=(",", ":")).encode())


def pinned(lake: Lake, topic: str) -> tuple[TableRef | None, dict[str, list[Load]], str]:
    """Return what `pin` recorded: the table, the loads by window, and the fingerprint. Without a record, there is no
    table."""
    content = lake.published.read(f"{topic}.json")
    if content is None:
        return None, {}, ""
    document = json.loads(content)
    loads = {key: [Load(*fields) for fields in each] for key, each in document["loads"].items()}
    return TableRef.parse(document["table"]), loads, document["done"]


def needed_files(ledger: Ledger, table: TableRef) -> frozenset[str]:
    """Return the paths, not percent-encoded, of files of `table` with rows of published loads that a later load has
    replaced, and whose corrections are not published yet."""
    lake = ledger.lake
    found: set[str] = set()
    for name in lake.published.files():
        if not name.endswith(".json"):
            continue
        source, loads, _ = pinned(lake, name.removesuffix(".json"))
        if source != table or not loads:
            continue
        current = _load_ids(ledger, table)
        for key, each in loads.items():
            for load in each:
                if current.get(key, load.load_id) != load.load_id:
                    found |= _paths(lake.table(table), key, ledger, table, load)
    return frozenset(found)


def _load_ids(ledger: Ledger, table: TableRef) -> dict[str, str]:
    entries = ledger.commit_rows(table, columns=["load_id"])
    return dict(zip(entries["window"].to_pylist(), entries["load_id"].to_pylist(), strict=True))


def _paths(folder: Folder, key: str, ledger: Ledger, table: TableRef, load: Load) -> set[str]:
    files = holdings.files_if_kept(folder, key, _version(ledger, table, key, load))
    if files is None:
        _log.warning("%s: the log no longer names the files of the published load of window %s", table, key)
    return set() if files is None else {unquote(path) for path in files.paths}
