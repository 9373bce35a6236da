"""Merging small files of a flat table: choosing the files, and making the commit, which declares that it changes no
data.

Readers of the table's stream or change feed see no change. If a commit in between removed one of the files, for example
a load of one of their windows, the merge is not retried and the merged file is deleted.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction, RemoveAction

from platform_assets.errors import CommitOutcomeUnknownError, PlatformError, TableRefusedError
from platform_assets.lake import delta_log, failures, flat, holdings, load_log
from platform_assets.lake.data_files import NewFile, delta_statistics
from platform_assets.lake.delta_log import DataFile
from platform_assets.lake.location import OWN_FOLDERS, Folder
from platform_assets.model.declaration import DEFAULT_FILE_SIZE

UPKEEP_KEY: Final = "platform_assets_upkeep"
TARGET_BYTES: Final = DEFAULT_FILE_SIZE
_VERSION: Final = 1
_ATTEMPTS: Final = 100


Loads = dict[int, str | None]
"""The window that a commit loads or fences; None for other commits."""


@dataclass(frozen=True, slots=True)
class Group:
    """Files to merge into one file, in the order of their rows, and the windows in these files, in ascending order. No
    other file has rows of these windows."""

    files: tuple[DataFile, ...]
    windows: tuple[str, ...]

    @property
    def bytes(self) -> int:
        """Total size of the files."""
        return sum(file.bytes for file in self.files)

    @property
    def is_worthwhile(self) -> bool:
        """Return True if the benefit of merging for readers outweighs its cost.

        The largest file must have at most two thirds of all bytes. So a file grows by half or more each time its rows
        are rewritten, and the rows of a slowly growing table are not rewritten in every run.
        """
        largest = max((file.bytes for file in self.files), default=0)
        return len(self.files) > 1 and 3 * largest <= 2 * self.bytes

    @property
    def is_in_order(self) -> bool:
        """Return True if the rows of the files, read one file after another, are in the order of window and place.

        Only loads, copies and upkeep write files in this order; files of other writers have other names. The spans of
        two files may touch, but must not overlap.
        """
        ends = ""
        for file in self.files:
            bounds = holdings.span_in_log(file)
            if bounds is None or bounds[0] < ends or (bounds[0] != bounds[1] and bounds[0] == ends):
                return False
            if not file.path.startswith(OWN_FOLDERS) and not unquote(file.path).startswith(OWN_FOLDERS):
                return False
            ends = bounds[1]
        return True


def plan(
    found: pa.Table, windows: Collection[str], target: int = TARGET_BYTES, lacking: Collection[str] = frozenset()
) -> list[Group]:
    """Return the groups of files to merge, with about `target` bytes each, among files that contain only `windows`.
    Pure.

    `found` is the result of `holdings.actions` for a flat table. Files with at least half of `target` bytes are kept,
    unless they are among `lacking`: those are rewritten although this does not make reads faster. A window is merged
    with all of its files or not at all, because only then does its receipt describe the rows that are merged.
    """
    files, held = _files(found)
    allowed = set(windows)
    large = {path for path, file in files.items() if 2 * file.bytes >= target} - set(lacking)
    kept = large | {path for path in files if not flat.is_removable(path)}
    units = [u for u in _units(files, held) if kept.isdisjoint(u.paths) and u.windows <= allowed]
    groups: list[Group] = []
    some, size = list[_Unit](), 0
    for unit in units:
        if not unit.paths.isdisjoint(lacking):
            groups.append(Group(tuple(unit.files), tuple(sorted(unit.windows))))
            continue
        if size >= target:
            groups.append(_worthwhile(some))
            some, size = [], 0
        some.append(unit)
        size += unit.bytes
    groups.append(_worthwhile(some))
    return [group for group in groups if group.files]


@dataclass(frozen=True, slots=True)
class _Unit:
    """Files that are connected by shared windows, directly or through other files, and that share no window with any
    other file."""

    files: list[DataFile]
    windows: set[str]

    @property
    def paths(self) -> set[str]:
        return {file.path for file in self.files}

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)


def _units(files: Mapping[str, DataFile], held: Mapping[str, Collection[str]]) -> list[_Unit]:
    """Return the units in the order of their first files."""
    unit_of: dict[str, _Unit] = {}
    for path, file in files.items():
        own = _Unit([file], set(held[path]))
        for other in {id(u): u for u in (unit_of.get(key) for key in held[path]) if u is not None}.values():
            own = _Unit(other.files + own.files, other.windows | own.windows)
        unit_of.update(dict.fromkeys(own.windows, own))
    found = {id(unit): unit for unit in unit_of.values()}.values()
    place = {path: number for number, path in enumerate(files)}
    return sorted(found, key=lambda unit: min(place[file.path] for file in unit.files))


def _worthwhile(units: Sequence[_Unit]) -> Group:
    """Return the group with the largest number of `units` that is worth merging. If none is worth merging, return a
    group without files."""
    left = list(units)
    while left:
        files = [file for unit in left for file in unit.files]
        group = Group(tuple(files), tuple(sorted(key for unit in left for key in unit.windows)))
        if group.is_worthwhile:
            return group
        left.remove(max(left, key=lambda unit: max(file.bytes for file in unit.files)))
    return Group((), ())


def _files(found: pa.Table) -> tuple[dict[str, DataFile], dict[str, set[str]]]:
    """Return each file, in the order of its rows, and each file's windows, both by path."""
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
    folder: Folder,
    handle: DeltaTable,
    group: Group,
    new: Sequence[NewFile],
    since: int | None = None,
    known: Loads | None = None,
) -> int | None:
    """Replace the files of `group` by `new`, which have the same rows; return the table's new version.

    `since` is a version from before anything was read or written, by default the version of `handle`. `known` collects
    the commits read since then, for the next group. Returns None if a commit after `since` has removed a file of the
    group, or has loaded or fenced a window between the first and the last window of the group. An erasure makes such a
    commit, deletes files that may contain its window, and cannot know what a half-written file contains. Raises
    TableRefusedError, and CommitOutcomeUnknownError, after which the log may name the new files.
    """
    identity = str(uuid.uuid4())
    span = [group.windows[0], group.windows[-1]]
    metadata = json.dumps({UPKEEP_KEY: _VERSION, "id": identity, "windows": span}, separators=(",", ":"))
    since = handle.version() if since is None else since
    known = {} if known is None else known
    for _ in range(_ATTEMPTS):
        if _is_overtaken(folder, since, handle.version(), group, known):
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
            # A client that got no answer has perhaps tried again, and found its own commit.
            made = _made_since(folder, before, identity, span[0])
            if made is not None:
                return made
            handle = folder.delta()
            if handle.version() == before:
                raise TableRefusedError(folder.name, failures.reason_of(e)) from e
        except failures.RAISED as e:
            made = _made_since(folder, before, identity, span[0])
            if made is None:
                raise CommitOutcomeUnknownError(folder.name, span[0], failures.reason_of(e)) from e
            return made
        else:
            made = _made_since(folder, before, identity, span[0])
            if made is None:
                raise CommitOutcomeUnknownError(folder.name, span[0], "the table's log does not list the commit")
            return made
    return None


def is_upkeep(commit: delta_log.Commit) -> bool:
    """Return True if a commit replaced files by proved copies of their rows, and changed no rows of any window."""
    if commit.user_metadata is None or not commit.rearranges:
        return False
    try:
        found = json.loads(commit.user_metadata)
    except json.JSONDecodeError:
        return False
    return isinstance(found, dict) and found.get(UPKEEP_KEY) == _VERSION


def _is_overtaken(folder: Folder, since: int, newest: int, group: Group, known: Loads) -> bool:
    """Return True if a commit after `since` loaded or fenced a window that a file of the group may contain."""
    for version in range(since + 1, newest + 1):
        if version not in known:
            found = delta_log.commit(folder, version)
            if found is None:
                return True
            of = load_log.identity_in(found)
            known[version] = None if of is None else of[0]
        window = known[version]
        if window is not None and group.windows[0] <= window <= group.windows[-1]:
            return True
    return False


def _made_since(folder: Folder, version: int, identity: str, window: str) -> int | None:
    """Return the version of the commit with this identity, if the log has it after `version`.

    Raises CommitOutcomeUnknownError if the log cannot be read. In that case, the commit may refer to the new files, so
    they must stay.
    """
    try:
        for made in _commits_after(folder, version):
            if made.user_metadata is not None and identity in made.user_metadata:
                return made.version
    except PlatformError as e:
        raise CommitOutcomeUnknownError(folder.name, window, str(e)) from e
    return None


def _commits_after(folder: Folder, version: int) -> Iterator[delta_log.Commit]:
    while (found := delta_log.commit(folder, version + 1)) is not None:
        yield found
        version += 1
