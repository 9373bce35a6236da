"""The ledger of loads, followed commit by commit by one process for all tables: the entries that each commit adds.

So after a load, the tick of a topic reads only the newest commits, which all topics share, instead of the whole ledger.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final
from urllib.parse import unquote

from platform_assets.lake import delta_log, parquet
from platform_assets.lake.delta_log import Anchor, Commit, DataFile
from platform_assets.lake.location import Folder
from platform_assets.ledger import pruning

_KEPT: Final = 2_000
"""Number of commits to remember. A table that was not queried for longer than that is read completely once."""
_LATELY_SECONDS: Final = 5.0
_BLOCK_ROWS: Final = 1 << 16
_COLUMNS: Final = ["window_start", "kind", "recorded_at"]


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry for a window: the window is loaded or, if `accepted_at` is set, a loss in the window was accepted at
    that time."""

    start: datetime
    accepted_at: datetime | None


@dataclass(frozen=True, slots=True)
class _Added:
    """A file that a commit adds: the file's only entry, or None if the file must be read."""

    path: str
    entry: Entry | None


@dataclass(frozen=True, slots=True)
class _Step:
    """A commit. `added` has the added entries by table; None if the commit removes or rewrites unknown entries, so that
    all entries must be read."""

    at: Anchor
    added: Mapping[str, tuple[_Added, ...]] | None


class FollowedCommits:
    """The knowledge of one process about one ledger of loads."""

    def __init__(self, path: Folder) -> None:
        self._path = path
        self._steps: deque[_Step] = deque(maxlen=_KEPT)
        self._lock = threading.Lock()
        self._asked = -math.inf

    def newest(self) -> Anchor | None:
        """Return the newest commit; None if there is no ledger."""
        with self._lock:
            self._follow()
            return self._steps[-1].at if self._steps else None

    def newest_lately(self) -> Anchor | None:
        """Return the newest commit, which may be some seconds old, because the sensors of all topics request it at
        about the same time."""
        with self._lock:
            if time.monotonic() >= self._asked + _LATELY_SECONDS:
                self._follow()
            return self._steps[-1].at if self._steps else None

    def entries_since(self, seen: Anchor, table: str) -> tuple[Anchor, list[Entry]] | None:
        """Return the newest commit, and the entries of `table` in the commits after `seen`; None if all entries must be
        read.

        All entries must be read if the ledger was restored or edited, or if `seen` is too old.
        """
        with self._lock:
            self._follow()
            known = [step for step in self._steps if step.at.version >= seen.version]
        if not known or known[0].at != seen or any(step.added is None for step in known[1:]):
            return None
        added = (file for step in known[1:] if step.added is not None for file in step.added.get(table, ()))
        return known[-1].at, [entry for file in added for entry in self._entries(file)]

    def _follow(self) -> None:
        self._asked = time.monotonic()
        commits = delta_log.commits_after(self._path, self._steps[-1].at) if self._steps else None
        if commits is None:
            at = delta_log.newest_anchor(self._path)
            self._steps.clear()
            self._steps.extend([] if at is None else [_Step(at, None)])
        else:
            self._steps.extend(map(_step, commits))

    def _entries(self, file: _Added) -> Iterator[Entry]:
        if file.entry is not None:
            yield file.entry
            return
        with self._path.reading(), self._path.open(unquote(file.path)) as opened:
            found = list(parquet.blocks(parquet.opened(opened), _BLOCK_ROWS, list(_COLUMNS)))
        rows = [row for block in found for row in block.to_pylist()]
        for row in rows:
            at = row["recorded_at"].astimezone(UTC) if row["kind"] == "acceptance" else None
            yield Entry(row["window_start"].astimezone(UTC), at)


def _step(commit: Commit) -> _Step:
    if commit.rearranges or commit.user_metadata == pruning.MARK:
        return _Step(commit.anchor, {})
    if commit.removes:
        return _Step(commit.anchor, None)
    added: dict[str, tuple[_Added, ...]] = {}
    for file in commit.adds:
        table = unquote(file.partition.get("table") or "")
        added[table] = (*added.get(table, ()), _Added(file.path, _only_entry(file)))
    return _Step(commit.anchor, added)


def _only_entry(file: DataFile) -> Entry | None:
    """Return the entry of a file from the file's statistics, if all rows in the file belong to one window and no row
    accepts a loss."""
    statistics = file.statistics or {}
    low, high = statistics.get("minValues", {}), statistics.get("maxValues", {})
    start, kind = low.get("window_start"), low.get("kind")
    if start is None or start != high.get("window_start") or kind is None or "acceptance" in (kind, high.get("kind")):
        return None
    # "acceptance" is alphabetically the first kind, so it would be the minimum.
    return Entry(datetime.fromisoformat(start).astimezone(UTC), None)


@lru_cache(maxsize=64)
def of(path: Folder) -> FollowedCommits:
    """Return the one object for each ledger and process. The sensors of all topics share it."""
    return FollowedCommits(path)
