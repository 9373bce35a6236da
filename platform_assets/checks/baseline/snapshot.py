"""Snapshot that the checks of a table keep from one run to the next, so that checking a new window costs the same in a
table of any size.

The snapshot is valid only while the logs show no change to the older windows. It becomes void if a commit adds, removes
or rearranges files of an older window or changes the window's ledger entries, or if a new check did not take part in
the snapshot. In these cases, every window is evaluated again. Commits of upkeep do not count as changes, because upkeep
compares all rows with the receipts before it commits. The snapshot is one JSON file per table next to the ledger. If a
snapshot is lost, void or from another release, this only costs time. `audit` and the deep audit never use the snapshot.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow as pa

from platform_assets.checks.baseline.older import NONE, Counting, Older
from platform_assets.errors import FilesLostError
from platform_assets.lake import delta_log, holdings, load_log, merging
from platform_assets.lake.delta_log import Anchor, Commit, DataFile
from platform_assets.lake.load_log import LoadCommit, LoadMetadata
from platform_assets.lake.location import Folder, Lake
from platform_assets.ledger import pruning
from platform_assets.model import names
from platform_assets.model.logs import logger
from platform_assets.model.tables import TableRef
from platform_assets.model.windows import key_of

_log = logger(__name__)
_VERSION: Final = 3


@dataclass(frozen=True, slots=True)
class File:
    """One data file of the table, paired with one of the windows in this file. `rows` is the window's number of rows;
    None if the log does not contain this number.

    `share` is the part of the file's bytes that counts for the window: all bytes unless other windows share the file.
    `reaches_back` is true if windows that are only counted share the file.
    """

    window: str
    path: str
    bytes: int
    rows: int | None
    share: int
    shared: bool = False
    reaches_back: bool = False


@dataclass(frozen=True, slots=True)
class Baseline:
    """The state of the logs when the `older` windows were only counted. `cuts`, `commits` and `table` are the commits
    with which the logs of the two ledgers and of the table ended.

    `files` are the files of all later windows, by path and window. `loads` contains the newest load of each of these
    windows among the commits from version `since` on.
    """

    older: Older
    cuts: Anchor
    commits: Anchor
    table: Anchor
    files: Mapping[tuple[str, str], File]
    loads: Mapping[str, LoadCommit]
    since: int

    @property
    def actions(self) -> pa.Table:
        """The files as a table, with those columns of `holdings.actions` that checks read."""
        files = sorted(self.files.values(), key=lambda f: (f.path, f.window))
        return pa.table(
            {
                "path": pa.array([f.path for f in files], pa.string()),
                "size_bytes": pa.array([f.bytes for f in files], pa.int64()),
                "num_records": pa.array([f.rows for f in files], pa.int64()),
                "share_bytes": pa.array([f.share for f in files], pa.int64()),
                "shared": pa.array([f.shared for f in files], pa.bool_()),
                holdings.WINDOW: pa.array([f.window for f in files], pa.string()),
            }
        )

    def later_than(self, older: Older) -> Baseline:
        """Return the baseline with `older` as its older windows. The files and loads of these windows are left out."""
        if older.until is None:
            return self
        first = key_of(older.until)
        back = {path for path, window in self.files if window < first}
        return replace(
            self,
            older=older,
            files={
                place: replace(f, reaches_back=True) if f.path in back else f
                for place, f in self.files.items()
                if f.window >= first
            },
            loads={k: load for k, load in self.loads.items() if k >= first},
        )


def capture(lake: Lake, table: TableRef, recent: int) -> Baseline | None:
    """Return a baseline that covers all windows and counts none of them as older yet. Return None if later commits
    could not be followed from here.

    `loads` come from the newest `recent` commits. This function reads the whole log of the table.
    """
    anchors = [delta_log.newest_anchor(path) for path in _logs(lake, table)]
    if None in anchors:
        return None
    cuts, commits, log = (a for a in anchors if a is not None)
    path = lake.table(table)
    actions = holdings.actions(path, log.version)
    names = (holdings.WINDOW, "path", "size_bytes", "num_records", "share_bytes")
    shared = actions["shared"].to_pylist() if "shared" in actions.column_names else [False] * actions.num_rows
    files = {(f.path, f.window): f for f in map(File, *(actions[name].to_pylist() for name in names), shared)}
    loads = {key: replace(load, adds=None) for key, load in load_log.newest_loads(path, recent).items()}
    return Baseline(Older(), cuts, commits, log, files, loads, max(log.version - recent + 1, 0))


def load(lake: Lake, table: TableRef, checks: Collection[Counting] = ()) -> Baseline | None:
    """Return the snapshot, advanced to the newest commits. Return None if there is no snapshot, or if it is no longer
    valid.

    The snapshot is not valid if one of `checks` did not take part in counting windows.
    """
    known = _read(lake.baselines, _name(table), {check.fingerprint for check in checks})
    return None if known is None else _current(known, lake, table)


def _current(known: Baseline, lake: Lake, table: TableRef) -> Baseline | None:
    """Return `known`, advanced to the newest commits; None if it is no longer valid, or counts no windows."""
    if known.older.until is None:
        return None
    cuts_log, commits_log, table_log = _logs(lake, table)
    until = known.older.until
    cuts = _undisturbed(cuts_log, known.cuts, ("topic", table.topic), "edge", until)
    commits = _undisturbed(commits_log, known.commits, ("table", table.ledger_name), "window_start", until)
    if cuts is None or commits is None:
        return None
    return advance(replace(known, cuts=cuts, commits=commits), table_log)


def older(lake: Lake, table: TableRef) -> Older:
    """Return the older windows of the snapshot that `load` returns, advanced to the newest commits; NONE if there is no
    valid snapshot. The loads of later windows, which are most of a snapshot, are not read."""
    known = _read(lake.baselines, _name(table), frozenset(), loads=False)
    current = None if known is None else _current(known, lake, table)
    return NONE if current is None else current.older


def advance(known: Baseline, table: Folder) -> Baseline | None:
    """Return `known`, advanced by the table's later commits. Return None if one of these commits changed an older
    window or the table's reader requirements."""
    commits = delta_log.commits_after(table, known.table)
    if not commits:
        return None if commits is None else known
    if any(commit.reshapes for commit in commits):
        return None
    first = "" if known.older.until is None else key_of(known.older.until)
    files, loads = dict(known.files), dict(known.loads)
    for commit in commits:
        gone, proved = set(commit.removes), merging.is_upkeep(commit)
        if gone:
            removed = [file for file in files.values() if file.path in gone]
            if not proved and (gone - {file.path for file in removed} or any(file.reaches_back for file in removed)):
                return None
            files = {place: file for place, file in files.items() if place[0] not in gone}
        for add in commit.adds:
            if proved and (holdings.newest_in(add) or first) < first:
                continue
            added = _files(table, add)
            if added is None:
                return None
            if any(file.window < first for file in added):
                if not proved:
                    return None
                added = [replace(file, reaches_back=True) for file in added if file.window >= first]
            files |= {(file.path, file.window): file for file in added}
        for load in load_log.loads_in(commit):
            loads[load.metadata.window.key] = replace(load, adds=None)
    return replace(known, table=commits[-1].anchor, files=files, loads=loads)


def _files(table: Folder, add: DataFile) -> list[File] | None:
    """Return one entry for each window in a file that a commit added; None if the file can no longer be read."""
    try:
        held = holdings.held_by(table, add)
    except FilesLostError:
        return None
    total, shared = sum(rows or 0 for rows in held.values()), len(held) > 1
    return [
        File(
            window,
            add.path,
            add.bytes,
            rows,
            add.bytes * (rows or 0) // total if shared and total else add.bytes,
            shared,
        )
        for window, rows in held.items()
    ]


def save(lake: Lake, table: TableRef, baseline: Baseline, checks: Collection[Counting]) -> None:
    """Save `baseline`, in which `checks` took part, for the next run.

    If two runs save at the same time, either baseline may remain: both are valid.
    """
    document = {
        "version": _VERSION,
        "checks": sorted(check.fingerprint for check in checks),
        "older": {**asdict(baseline.older), "until": baseline.older.until and baseline.older.until.isoformat()},
        "cuts": asdict(baseline.cuts),
        "commits": asdict(baseline.commits),
        "table": asdict(baseline.table),
        "files": [asdict(f) for f in baseline.files.values()],
        "loads": [[load.version, load.metadata.to_json()] for load in baseline.loads.values()],
        "since": baseline.since,
    }
    lake.baselines.write(_name(table), json.dumps(document, separators=(",", ":")).encode())


def _undisturbed(log: Folder, seen: Anchor, partition: tuple[str, str], column: str, until: datetime) -> Anchor | None:
    """Return the newest commit of a ledger; None if a commit after `seen` changed ledger entries before `until`."""
    commits = delta_log.commits_after(log, seen)
    if commits is None or any(_disturbs(c, partition, column, until) for c in commits):
        return None
    return commits[-1].anchor if commits else seen


def _disturbs(commit: Commit, partition: tuple[str, str], column: str, until: datetime) -> bool:
    if commit.rearranges or commit.user_metadata == pruning.MARK:
        return False
    name, value = partition
    lowest = [
        ((add.statistics or {}).get("minValues") or {}).get(column)
        for add in commit.adds
        if add.partition.get(name) == value
    ]
    return bool(commit.removes) or any(text is None or _instant(text) < until for text in lowest)


def _instant(text: str) -> datetime:
    found = datetime.fromisoformat(text)
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def _logs(lake: Lake, table: TableRef) -> tuple[Folder, Folder, Folder]:
    return lake.cuts, lake.commits, lake.table(table)


def _name(table: TableRef) -> str:
    return names.file_name(table.kind, table.topic, ".json")


def _read(folder: Folder, name: str, checks: AbstractSet[str], *, loads: bool = True) -> Baseline | None:
    content = folder.read(name)
    if content is None:
        return None
    try:
        document: Any = json.loads(content)
    except json.JSONDecodeError as e:
        _log.warning(
            "snapshot %s cannot be read (%s): evaluating every window and writing a new snapshot",
            f"{folder}/{name}",
            e,
        )
        return None
    if document["version"] != _VERSION or not checks <= set(document["checks"]):
        return None
    older = document["older"]
    return Baseline(
        older=Older(**{**older, "until": datetime.fromisoformat(older["until"])}),
        cuts=Anchor(**document["cuts"]),
        commits=Anchor(**document["commits"]),
        table=Anchor(**document["table"]),
        files={(f["path"], f["window"]): File(**f) for f in document["files"]},
        loads=_loads(document["loads"]) if loads else {},
        since=document["since"],
    )


def _loads(entries: Iterable[tuple[int, str]]) -> dict[str, LoadCommit]:
    found: dict[str, LoadCommit] = {}
    for version, text in entries:
        metadata = LoadMetadata.from_json(text)
        if metadata is not None:
            found[metadata.window.key] = LoadCommit(version, metadata)
    return found
