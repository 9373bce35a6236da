"""Removing the rows of expired windows from a table: one commit that only removes files, and only those in which every window
is expired.

The commit is made on exactly the version whose files and receipts were compared, so a load, an erasure or upkeep that
committed first makes it fail, and one that comes later finds the files of its window removed. Nothing is deleted from
disk: past versions keep the rows until VACUUM.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import unquote

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction, RemoveAction

from platform_assets.errors import CommitOutcomeUnknownError, FilesLostError, TableRefusedError
from platform_assets.lake import delta_log, failures, flat, holdings, parquet
from platform_assets.lake.delta_log import DataFile
from platform_assets.lake.leftovers import FOREVER
from platform_assets.lake.load_log import Expiry, LoadMetadata
from platform_assets.lake.location import Folder, shared_span, window_folders

MOST_BYTES: Final = 1 << 20
"""About the most bytes that the windows of a removal take in the metadata of a commit, which each reader of the log parses."""


@dataclass(frozen=True, slots=True)
class Removal:
    """Files in which every window is expired, and the windows whose rows are all in such files.

    `shared` are the paths of files that hold both expired windows and others, with the expired ones and the number of the others:
    they have to be divided first.
    """

    files: tuple[DataFile, ...]
    windows: frozenset[str]
    shared: Mapping[str, tuple[frozenset[str], int]] = field(default_factory=dict)


def plan(found: Iterable[tuple[DataFile, Collection[str] | None]], expired: Collection[str]) -> Removal:
    """Return what a commit can remove of the windows `expired`. Pure.

    `found` are all files of a version with their windows, None for a file whose windows are not known. A window is
    removed with all of its files or not at all, and so are windows that share a file with it.
    """
    files = [(file, None if held is None else frozenset(held)) for file, held in found]
    left = set(expired)
    removable = [(f, h) for f, h in files if h is not None and h <= left and flat.is_removable(f.path)]
    others = [(f, h) for f, h in files if not (h is not None and h <= left and flat.is_removable(f.path))]
    mixed = [(f.path, h) for f, h in others if h is not None and h & left and flat.is_removable(f.path)]
    shared = {path: (held & left, len(held - left)) for path, held in mixed}
    unreadable = [f for f, h in others if h is None]
    left -= {key for _, h in others if h is not None for key in h}
    left -= {key for key in left for file in unreadable if holdings.may_hold(file, key)}
    while blocked := [(f, h) for f, h in removable if not h <= left]:
        removable = [(f, h) for f, h in removable if h <= left]
        left -= {key for _, h in blocked for key in h}
    return Removal(tuple(f for f, _ in removable), frozenset(left), shared)


def blocked(found: Iterable[tuple[DataFile, Collection[str] | None]], expired: Collection[str]) -> set[str]:
    """Return those of the windows `expired` that no removal can reach, because a file that holds rows of them, or may hold
    some, cannot be read or cannot be removed by delta-rs. Pure."""
    files = list(found)
    fixed = {key for file, held in files if held is not None and not flat.is_removable(file.path) for key in held}
    unreadable = [file for file, held in files if held is None]
    return {key for key in expired if key in fixed or any(holdings.may_hold(file, key) for file in unreadable)}


def split(
    removal: Removal,
    found: Iterable[tuple[DataFile, Collection[str] | None]],
    weights: Mapping[str, int],
    most: int = MOST_BYTES,
) -> Iterator[Removal]:
    """Yield the parts of a removal, in the order of their windows, each with windows that weigh about `most`. Pure.

    Windows that share files stay together. `found` are the files given to `plan`.
    """
    paths = {file.path for file in removal.files}
    files = {file.path: (file, frozenset(held or ())) for file, held in found if file.path in paths}
    by_window: dict[str, list[str]] = {}
    for path, (_, held) in files.items():
        for key in held:
            by_window.setdefault(key, []).append(path)
    seen, part, windows, weight = set[str](), list[DataFile](), set[str](), 0
    for first in sorted(removal.windows):
        if first in seen:
            continue
        group, waiting = {first}, [first]
        of_group: dict[str, DataFile] = {}
        while waiting:
            for path in by_window.get(waiting.pop(), ()):
                if path not in of_group:
                    of_group[path] = files[path][0]
                    waiting += files[path][1] - group
                    group |= files[path][1]
        seen |= group
        added = sum(weights[key] for key in group)
        if windows and weight + added > most:
            yield Removal(tuple(part), frozenset(windows))
            part, windows, weight = [], set(), 0
        part += of_group.values()
        windows |= group
        weight += added
    if windows:
        yield Removal(tuple(part), frozenset(windows))


def commit(folder: Folder, handle: DeltaTable, removal: Sequence[DataFile], expiry: Expiry) -> int | None:
    """Remove files from the version of `handle`; return the new version, or None if another commit came first.

    Raises TableRefusedError, after which nothing was changed, and CommitOutcomeUnknownError.
    """
    before, now = handle.version(), round(time.time() * 1000)
    is_flat = holdings.is_flat(handle)
    key = expiry.windows[0].window.key
    actions: list[AddAction | RemoveAction] = [
        RemoveAction(
            unquote(f.path), True, now, f.bytes, {} if is_flat else {holdings.WINDOW: f.partition[holdings.WINDOW]}
        )
        for f in removal
    ]
    try:
        handle.create_write_transaction(
            actions,
            "append",
            handle.schema(),
            partition_by=[] if is_flat else [holdings.WINDOW],
            commit_properties=CommitProperties(
                custom_metadata={"userMetadata": expiry.to_json()}, max_commit_retries=0
            ),
        )
    except CommitFailedError as e:
        if folder.delta().version() == before:
            raise TableRefusedError(folder.name, failures.reason_of(e)) from e
        return None
    except failures.RAISED as e:
        made = _made_since(folder, before, expiry)
        if made is None:
            raise CommitOutcomeUnknownError(folder.name, key, failures.reason_of(e)) from e
        return made
    made = _made_since(folder, before, expiry)
    if made is None:
        raise CommitOutcomeUnknownError(folder.name, key, "the table's log does not name it")
    return made


def is_untouched(folder: Folder, removal: Removal, since: int, until: int) -> bool:
    """Return True if the commits after the version `since`, up to `until`, only loaded other windows, and removed none of the
    files of a removal: its windows then have the same files."""
    files = {unquote(file.path) for file in removal.files}
    for version in range(since + 1, until + 1):
        commit = delta_log.commit(folder, version)
        load = None if commit is None else LoadMetadata.from_json(commit.user_metadata)
        if commit is None or load is None or load.lost or load.window.key in removal.windows:
            return False
        if files.intersection(map(unquote, commit.removes)):
            return False
    return True


def _made_since(folder: Folder, version: int, expiry: Expiry) -> int | None:
    while (found := delta_log.commit(folder, version + 1)) is not None:
        made = Expiry.from_json(found.user_metadata)
        if made is not None and made.load_id == expiry.load_id:
            return found.version
        version += 1
    return None


@dataclass(frozen=True, slots=True)
class OnDisk:
    """Files that hold rows of expired windows, and files that cannot be read and may hold some, each with its windows; paths
    are in the form of the log."""

    files: dict[str, list[str]] = field(default_factory=dict)
    unreadable: dict[str, list[str]] = field(default_factory=dict)

    @property
    def all(self) -> dict[str, list[str]]:
        """Both."""
        return {**self.files, **self.unreadable}


def named(folder: Folder) -> set[str]:
    """Return the names of the files of the newest version."""
    handle = folder.delta()
    with folder.reading():
        return {unquote(path) for path in pa.table(handle.get_add_actions())["path"].to_pylist()}


def name_of(path: str) -> str:
    """Return the name on disk of a path in the form of the log."""
    return unquote(path)


def files_on_disk(folder: Folder, expired: Collection[str]) -> OnDisk:
    """Return the files on disk with rows of `expired` windows that the newest version does not name.

    Lists the whole folder, since the table's log may no longer have the commits that named them.
    """
    known, wanted, found = named(folder), set(expired), OnDisk({}, {})
    by_folder = {below: key for key in wanted for below in window_folders(key)}
    for name in folder.written_before(FOREVER, "") if wanted else ():
        if name in known or not name.endswith(".parquet") or name.startswith("_"):
            continue
        top, path = name.partition("/")[0], holdings.in_log(name)
        if top in by_folder:
            found.files[path] = [by_folder[top]]
        elif not name.startswith("window="):
            _add_shared(folder, name, wanted, found)
    return found


def rows_on_disk(folder: Folder, files: Mapping[str, Collection[str]], windows: Collection[str]) -> dict[str, int]:
    """Return the number of rows of each of `windows` in files that `files_on_disk` found. A window with a file that cannot be
    read is left out."""
    found, unknown = dict.fromkeys(windows, 0), set[str]()
    for path, held in files.items():
        if found.keys().isdisjoint(held):
            continue
        name, size = unquote(path), folder.size(unquote(path)) or 0
        is_of_one = name.startswith("window=")
        try:
            rows = _rows(folder, name, held) if is_of_one else holdings.held_by(folder, DataFile(path, {}, size, None))
        except FilesLostError:
            unknown.update(held)
            continue
        for key in found.keys() & rows.keys():
            found[key] += rows[key] or 0
    return {key: number for key, number in found.items() if key not in unknown}


def _rows(folder: Folder, name: str, held: Collection[str]) -> dict[str, int]:
    with failures.reading_files(folder, ""), folder.open(name) as opened:
        return dict.fromkeys(held, parquet.opened(opened).metadata.num_rows)


def _add_shared(folder: Folder, name: str, wanted: set[str], found: OnDisk) -> None:
    """Add a shared file to `found`, with all windows in it, if one of them is in `wanted`. A file that was deleted meanwhile is
    not added."""
    span, size, path = shared_span(name), folder.size(name), holdings.in_log(name)
    if size is None or (span is not None and not any(span[0] <= key <= span[1] for key in wanted)):
        return
    try:
        held = sorted(holdings.held_by(folder, DataFile(path, {}, size, None)))
    except FilesLostError:
        found.unreadable[path] = sorted(key for key in wanted if span is None or span[0] <= key <= span[1])
        return
    if wanted.intersection(held):
        found.files[path] = held
