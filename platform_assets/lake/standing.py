"""What the log of a table has of loads by now: their rows, in whatever files OPTIMIZE has put them since.

A commit that only rearranges says so of each of its files. The rows are the load's up to the last one of those; any other
commit to the window may have changed them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from urllib.parse import unquote

from platform_assets.lake import delta_log, load_log
from platform_assets.lake.delta_log import Commit, DataFile
from platform_assets.lake.load_folders import window_folders
from platform_assets.lake.load_log import LoadCommit
from platform_assets.lake.location import Folder


@dataclass
class _Followed:
    """A load, the newest version that is known to have its rows, and the files that hold them there."""

    load: LoadCommit
    version: int
    files: dict[str, DataFile] = field(default_factory=dict)


def standing(table: Folder, loads: Sequence[LoadCommit], newest: int) -> dict[str, LoadCommit]:
    """Each of `loads`, one a window, as it stands at the newest version that nothing but rearranging commits led to; by window.

    A load whose files are its own still is given as it is. One pass over the log, up to the version `newest`.
    """
    found = {load.metadata.window.key: load for load in loads}
    begin: dict[int, list[LoadCommit]] = {}
    for load in found.values():
        if load.adds is not None and load.version < newest:
            begin.setdefault(load.version, []).append(load)
    followed: dict[str, _Followed] = {}
    owner: dict[str, str] = {}

    def end(window: str) -> None:
        ended = followed.pop(window)
        found[window] = _as_it_stands(ended)

    for version in range(min(begin, default=newest), newest + 1):
        commit = delta_log.commit(table, version)
        if commit is None:
            break
        for window in _touched(commit, owner):
            if window not in followed:
                continue
            if not commit.rearranges:
                end(window)
                continue
            files = followed[window].files
            for path in commit.removes:
                files.pop(path, None)
            for add in commit.adds:
                if add.partition.get("window") == window:
                    files[add.path] = add
                    owner[add.path] = window
        for each in followed.values():
            each.version = version
        for load in begin.get(version, ()):
            key = load.metadata.window.key
            followed[key] = _Followed(load, version, {f.path: f for f in load.adds or ()})
            owner |= dict.fromkeys(followed[key].files, key)
    for window in list(followed):
        end(window)
    return found


def _touched(commit: Commit, owner: dict[str, str]) -> set[str]:
    """The windows of which `commit` names files."""
    added = {add.partition.get("window") or "" for add in commit.adds}
    return added | {owner[path] for path in commit.removes if path in owner}


def _as_it_stands(followed: _Followed) -> LoadCommit:
    load, files = followed.load, tuple(followed.files.values())
    own = {f.path for f in load.adds or ()}
    if own == set(followed.files):
        return load
    rows, before = (_rows(some) for some in (files, load.adds or ()))
    # A commit that says it only rearranges, and does not, has changed the window.
    if rows is not None and before is not None and rows != before:
        return load
    return replace(load, version=followed.version, adds=files)


def _rows(files: Sequence[DataFile]) -> int | None:
    counts = [f.rows for f in files]
    return None if None in counts else sum(c for c in counts if c is not None)


def versions_of(table: Folder, key: str, newest: int) -> Iterator[int]:
    """Versions up to `newest` between which the window's files may have changed, the newest first.

    One of them has each set of files that the log can still be asked for.
    """
    yield newest
    folders = tuple(f"{folder}/" for folder in window_folders(key))
    version = newest
    while version >= 0 and (commit := delta_log.commit(table, version)) is not None:
        if _changes(commit, key, folders):
            yield version
            yield version - 1
        version -= 1
    # The oldest one that may still be read: what was committed before is in its checkpoint.
    yield version + 1
    # Older checkpoints outlive the commits around them until a clean-up deletes them too.
    older = {int(name[:20]) for name in table.files("_delta_log") if ".checkpoint" in name and name[:20].isdigit()}
    yield from sorted((number for number in older if number <= version), reverse=True)


def _changes(commit: Commit, key: str, folders: tuple[str, ...]) -> bool:
    load = load_log.load_in(commit)
    return (
        (load is not None and load.metadata.window.key == key)
        or any(add.partition.get("window") == key for add in commit.adds)
        or any(unquote(path).startswith(folders) for path in commit.removes)
    )
