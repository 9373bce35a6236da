"""Merging small files of a flat table: which files, and the commit, which declares that it changes no data.

Readers of the table's stream and of its change feed see nothing. A commit in between that removed one of the files, such as a load of
one of their windows, is never repeated: the merged file is then deleted.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction, RemoveAction

from platform_assets.errors import CommitOutcomeUnknownError, TableRefusedError
from platform_assets.lake import delta_log, failures, flat, holdings, load_log
from platform_assets.lake.data_files import NewFile, delta_statistics
from platform_assets.lake.delta_log import DataFile
from platform_assets.lake.location import Folder

UPKEEP_KEY: Final = "platform_assets_upkeep"
TARGET_BYTES: Final = 128 << 20
_VERSION: Final = 1
_ATTEMPTS: Final = 100


@dataclass(frozen=True, slots=True)
class Group:
    """Files to be merged into one, in order of their rows, and the windows in them, ascending: no other file has rows of these."""

    files: tuple[DataFile, ...]
    windows: tuple[str, ...]

    @property
    def bytes(self) -> int:
        """Size of the files."""
        return sum(file.bytes for file in self.files)


def plan(found: pa.Table, windows: Collection[str], target: int = TARGET_BYTES) -> list[Group]:
    """Return the groups of files to merge, of about `target` bytes each, among files of `windows` alone. Pure.

    `found` are the `holdings.actions` of a flat table. Files of half the target or more stay as they are.
    """
    files, held = _files(found)
    kept = {path for path, file in files.items() if 2 * file.bytes >= target or not flat.is_removable(path)}
    kept |= {path for path in files if not held[path] <= set(windows)}
    # A window is merged with all of its files or not at all: only then does its receipt say what they hold.
    while more := {path for path in files if path not in kept and any(held[path] & held[other] for other in kept)}:
        kept |= more
    groups: list[Group] = []
    some, keys = list[DataFile](), set[str]()
    for path, file in files.items():
        if path in kept:
            continue
        if sum(f.bytes for f in some) >= target and not held[path] & keys:
            groups.append(Group(tuple(some), tuple(sorted(keys))))
            some, keys = [], set()
        some.append(file)
        keys |= held[path]
    groups.append(Group(tuple(some), tuple(sorted(keys))))
    return [group for group in groups if len(group.files) > 1]


def _files(found: pa.Table) -> tuple[dict[str, DataFile], dict[str, set[str]]]:
    """Return each file, in order of its rows, and its windows, both by path."""
    names = [name for name in (f"min.{holdings.WINDOW}", f"max.{holdings.WINDOW}") if name in found.column_names]
    places = [name for name in ("min.kafka_partition", "min.kafka_offset") if name in found.column_names]
    rows = found.select(["path", "size_bytes", "num_records", holdings.WINDOW, *names, *places]).to_pylist()
    rows.sort(
        key=lambda row: (
            row[holdings.WINDOW],
            *(-1 if row[name] is None else row[name] for name in places),
            row["path"],
        )
    )
    files: dict[str, DataFile] = {}
    held: dict[str, set[str]] = {}
    for row in rows:
        files.setdefault(row["path"], DataFile(row["path"], {}, row["size_bytes"], _bounds(row)))
        held.setdefault(row["path"], set()).add(row[holdings.WINDOW])
    return files, held


def _bounds(row: dict[str, Any]) -> dict[str, Any]:
    low, high = row.get(f"min.{holdings.WINDOW}"), row.get(f"max.{holdings.WINDOW}")
    return {"minValues": {holdings.WINDOW: low}, "maxValues": {holdings.WINDOW: high}}


def commit(
    folder: Folder, handle: DeltaTable, group: Group, new: Sequence[NewFile], since: int | None = None
) -> int | None:
    """Put `new` in the place of the files of `group`, which have the same rows; return the table's new version.

    `since` is a version from before anything was read or written, by default that of `handle`. Returns None if a commit after it has
    removed a file of the group, or has loaded or fenced a window from the first to the last one of the group: an erasure deletes files
    that may hold its window, and cannot tell what a half-written one holds. Raises TableRefusedError; and CommitOutcomeUnknownError,
    after which the log may name the new files.
    """
    identity = str(uuid.uuid4())
    span = [group.windows[0], group.windows[-1]]
    metadata = json.dumps({UPKEEP_KEY: _VERSION, "id": identity, "windows": span}, separators=(",", ":"))
    since = handle.version() if since is None else since
    for _ in range(_ATTEMPTS):
        if _is_overtaken(folder, since, handle.version(), group):
            return None
        with folder.reading():
            named = set(pa.table(handle.get_add_actions())["path"].to_pylist())
        if not named.issuperset(f.path for f in group.files):
            return None
        before = handle.version()
        now = round(time.time() * 1000)
        removes = [RemoveAction(unquote(f.path), False, now, f.bytes, {}) for f in group.files]
        adds = [AddAction(file.path, file.bytes, {}, now, False, delta_statistics(file)) for file in new]
        try:
            handle.create_write_transaction(
                [*removes, *adds],
                "append",
                handle.schema(),
                partition_by=[],
                commit_properties=CommitProperties(custom_metadata={"userMetadata": metadata}, max_commit_retries=0),
            )
        except CommitFailedError as e:
            handle = folder.delta()
            if handle.version() == before:
                raise TableRefusedError(folder.name, failures.reason_of(e)) from e
        except failures.RAISED as e:
            made = _made_since(folder, before, identity)
            if made is None:
                raise CommitOutcomeUnknownError(folder.name, span[0], failures.reason_of(e)) from e
            return made
        else:
            made = _made_since(folder, before, identity)
            if made is None:
                raise CommitOutcomeUnknownError(folder.name, span[0], "the table's log does not name it")
            return made
    return None


def _is_overtaken(folder: Folder, since: int, newest: int, group: Group) -> bool:
    """Return true if a commit after `since` loaded or fenced a window that a file of the group may hold."""
    for version in range(since + 1, newest + 1):
        found = delta_log.commit(folder, version)
        of = None if found is None else load_log.identity_in(found)
        if found is None or (of is not None and group.windows[0] <= of[0] <= group.windows[-1]):
            return True
    return False


def _made_since(folder: Folder, version: int, identity: str) -> int | None:
    for made in _commits_after(folder, version):
        if made.user_metadata is not None and identity in made.user_metadata:
            return made.version
    return None


def _commits_after(folder: Folder, version: int) -> Iterator[delta_log.Commit]:
    while (found := delta_log.commit(folder, version + 1)) is not None:
        yield found
        version += 1
