"""Present state of loads in a table's log: the rows of each load, in the files to which OPTIMIZE has moved them.

A commit that only rearranges declares this for each of its files, and a load of another window keeps the rows in files
that both windows shared. Up to the last such commit, the rows are those of the load; any other commit that touches the
window may have changed them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from urllib.parse import unquote

import pyarrow as pa

from platform_assets.errors import FilesLostError
from platform_assets.lake import delta_log, holdings, load_log
from platform_assets.lake.delta_log import Commit, DataFile
from platform_assets.lake.load_log import LoadCommit
from platform_assets.lake.location import OF_ONE_WINDOW_OR_LOG, Folder, shared_span, window_folders


@dataclass(frozen=True, slots=True)
class Stand:
    """The data files of a window, and a version of the table that has them."""

    version: int
    files: tuple[DataFile, ...]


@dataclass
class _Followed:
    """The version from which a window is followed, the newest version that is known to have the same rows, and the
    files with the rows in that version."""

    begin: Stand
    version: int
    files: dict[str, DataFile] = field(default_factory=dict)

    def move(self, table: Folder, window: str, commit: Commit) -> list[DataFile]:
        """Follow the rows of the window to the files to which `commit` has moved them; return these files."""
        lost = [path for path in commit.removes if self.files.pop(path, None) is not None]
        added = [add for add in (holdings.as_held(table, add, window) for add in commit.adds) if add is not None]
        if lost:
            self.files |= {add.path: add for add in added}
        return added if lost else []

    def as_it_stands(self) -> Stand:
        files = tuple(self.files.values())
        if {f.path for f in self.begin.files} == set(self.files):
            return self.begin
        rows, before = _rows(files), _rows(self.begin.files)
        # A commit that wrongly declares that it only rearranges has changed the window.
        if rows is not None and before is not None and rows != before:
            return self.begin
        return Stand(self.version, files)


def standing(table: Folder, loads: Sequence[LoadCommit], newest: int) -> dict[str, LoadCommit]:
    """Return, by window, each of `loads` (one per window) at the newest version that can be reached through rearranging
    commits only.

    A load that still has its own files is returned unchanged. The log is read once, up to the version `newest`.
    """
    found = {load.metadata.window.key: load for load in loads}
    begin = {key: Stand(load.version, load.adds) for key, load in found.items() if load.adds is not None}
    for key, stand in follow(table, begin, newest).items():
        if stand is not begin[key]:
            found[key] = replace(found[key], version=stand.version, adds=stand.files)
    return found


def follow(table: Folder, begin: Mapping[str, Stand], newest: int) -> dict[str, Stand]:
    """Follow windows from `begin` through commits that only rearrange, up to the version `newest` at most; return the
    results by window.

    A window that still has its first files is returned unchanged. The log need not have a commit for the oldest version
    in `begin`, because a checkpoint may contain that version.
    """
    begins: dict[int, list[str]] = {}
    for key, stand in begin.items():
        if stand.version < newest:
            begins.setdefault(stand.version, []).append(key)
    found = dict(begin)
    followed: dict[str, _Followed] = {}
    owners: dict[str, set[str]] = {}
    oldest = min(begins, default=newest)
    for version in range(oldest, newest + 1):
        commit = delta_log.commit(table, version)
        if commit is None and version != oldest:
            break
        for window in () if commit is None else _touched(table, commit, owners, followed):
            if commit is None or window not in followed:
                continue
            if not load_log.moves_only(commit, window):
                found[window] = followed.pop(window).as_it_stands()
                continue
            for add in followed[window].move(table, window, commit):
                owners.setdefault(add.path, set()).add(window)
        for each in followed.values():
            each.version = version
        for key in begins.get(version, ()):
            followed[key] = _Followed(begin[key], version, {f.path: f for f in begin[key].files})
            for path in followed[key].files:
                owners.setdefault(path, set()).add(key)
    return found | {key: each.as_it_stands() for key, each in followed.items()}


def _touched(table: Folder, commit: Commit, owners: Mapping[str, set[str]], followed: Collection[str]) -> Sequence[str]:
    """Return the windows from which `commit` removes files. Unless `commit` only rearranges, also return the windows to
    which it may add files.

    A commit that only rearranges adds no rows to a window from which it removes none.
    """
    touched = {window for path in commit.removes for window in owners.get(path, ())}
    if not commit.rearranges:
        for add in commit.adds:
            try:
                touched.update(holdings.held_by(table, add))
            except FilesLostError:
                touched.update(window for window in followed if holdings.may_hold(add, window))
    return sorted(touched)


def _rows(files: Sequence[DataFile]) -> int | None:
    counts = [f.rows for f in files]
    return None if None in counts else sum(c for c in counts if c is not None)


def oldest_files(table: Folder, newest: int) -> tuple[int, pa.Table]:
    """Return the oldest version from which the log can still be read commit by commit, and its data files as
    `file_actions` returns them."""
    version = newest
    while version >= 0 and delta_log.commit(table, version) is not None:
        version -= 1
    # The commit before the oldest one may be in a checkpoint.
    candidates = [0] if version < 0 else [number for number in _checkpoints(table) if version <= number < newest]
    for candidate in candidates:
        actions = holdings.actions_if_kept(table, candidate)
        if actions is not None:
            return candidate, actions
    return newest, holdings.actions(table, newest)


def versions_of(table: Folder, key: str, newest: int) -> Iterator[int]:
    """Yield versions up to `newest` between which the window's files may have changed, newest first.

    They include every set of files of the window that the log can still show.
    """
    yield newest
    folders = tuple(f"{folder}/" for folder in window_folders(key))
    version = newest
    while version >= 0 and (commit := delta_log.commit(table, version)) is not None:
        if _changes(commit, key, folders):
            yield version
            yield version - 1
        version -= 1
    # The oldest version that may still be readable: earlier commits are in its checkpoint.
    yield version + 1
    # Older checkpoints outlive the commits around them until a clean-up deletes them too.
    yield from reversed([number for number in _checkpoints(table) if number <= version])


def _checkpoints(table: Folder) -> list[int]:
    """Return the versions of the table that have a checkpoint, in ascending order."""
    names = [name for name in table.files("_delta_log") if ".checkpoint" in name]
    return sorted({int(name[:20]) for name in names if name[:20].isdigit()})


def _changes(commit: Commit, key: str, folders: tuple[str, ...]) -> bool:
    load = load_log.load_in(commit)
    return (
        (load is not None and load.metadata.window.key == key)
        or any(holdings.may_hold(add, key) for add in commit.adds)
        or any(_may_be_of(unquote(path), key, folders) for path in commit.removes)
    )


def _may_be_of(name: str, key: str, folders: tuple[str, ...]) -> bool:
    """Return False if the name of a removed file, which is not percent-encoded, shows that the file has no rows of a
    window."""
    if name.startswith(OF_ONE_WINDOW_OR_LOG):
        return name.startswith(folders)
    span = shared_span(name)
    return span is None or span[0] <= key <= span[1]
