"""The newest cut of each topic, followed from commit to commit of the ledger. While nothing is recorded, a look-up
costs nothing."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache

from deltalake import DeltaTable

from platform_assets.lake import delta_log
from platform_assets.lake.delta_log import Anchor, Commit
from platform_assets.lake.location import Folder
from platform_assets.ledger.entries import RecordedCut

APP_PREFIX = "cuts/"
"""Prefix of the application transaction that carries a topic's newest edge. The topic's name follows."""
_KEPT_FOR = 16
"""Number of versions after which a handle is opened again, because it becomes slower with each commit that it has read.
"""


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """State at a commit: the versions of application transactions by id, and the cuts by topic."""

    at: Anchor
    versions: dict[str, int] = field(default_factory=dict)
    cuts: dict[str, RecordedCut] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Kept:
    """A handle that stays open, its current commit, and the version at which it was opened."""

    handle: DeltaTable
    at: Anchor
    opened_at: int


class NewestCuts:
    """The knowledge of one process about one ledger of cuts. If the ledger was edited or restored, it is read
    completely."""

    def __init__(self, path: Folder) -> None:
        self._path = path
        self._seen: _Snapshot | None = None
        self._lock = threading.Lock()
        self._kept: _Kept | None = None

    @contextmanager
    def handle(self) -> Iterator[DeltaTable]:
        """Lend the ledger at its newest commit to one caller at a time, for look-ups and commits.

        The ledger stays open between calls, because reading the whole log takes longer than a commit. It is opened
        again after an error, or if its commit is no longer in the log, for example after a restore.
        """
        with self._lock:
            # Kept only if everything succeeded.
            kept, self._kept = self._kept, None
            if kept is not None and self._goes_on(kept):
                handle, opened_at = kept.handle, kept.opened_at
                with self._path.reading():
                    handle.update_incremental()
            else:
                handle = self._path.delta()
                opened_at = handle.version()
            yield handle
            at = delta_log.anchor(self._path, handle.version())
            self._kept = None if at is None else _Kept(handle, at, opened_at)

    def _goes_on(self, kept: _Kept) -> bool:
        young = kept.at.version < kept.opened_at + _KEPT_FOR
        return young and delta_log.anchor(self._path, kept.at.version) == kept.at

    def versions(self, app_ids: Iterable[str]) -> dict[str, int]:
        """Return the newest versions of those application transactions in `app_ids` that have a version."""
        seen = self._follow()
        if seen is None:
            return {}
        wanted = list(app_ids)
        unknown = [app for app in wanted if app not in seen.versions]
        if unknown:
            with self._path.reading():
                handle = self._path.delta()
                found = {app: handle.transaction_version(app) for app in unknown}
            seen.versions.update({app: version for app, version in found.items() if version is not None})
        return {app: seen.versions[app] for app in wanted if app in seen.versions}

    def keep(self, cut: RecordedCut) -> None:
        """Store a cut that was read or recorded. A cut never changes."""
        if self._seen is not None:
            self._seen.cuts[cut.topic] = cut

    def cut(self, topic: str) -> RecordedCut | None:
        """Return the last stored cut of `topic`, if no later commit has changed what was recorded."""
        seen = self._follow()
        return None if seen is None else seen.cuts.get(topic)

    def _follow(self) -> _Snapshot | None:
        seen = self._seen
        commits = None if seen is None else delta_log.commits_after(self._path, seen.at)
        if seen is None or commits is None:
            at = delta_log.newest_anchor(self._path)
            self._seen = None if at is None else _Snapshot(at)
        elif commits:
            self._seen = _advanced(seen, commits)
        return self._seen


def _advanced(seen: _Snapshot, commits: Sequence[Commit]) -> _Snapshot:
    versions, cuts = dict(seen.versions), dict(seen.cuts)
    for commit in commits:
        for app, version in commit.transactions.items():
            if versions.get(app) == version:
                # A new generation starts at the edge that is already the newest.
                cuts.pop(app.removeprefix(APP_PREFIX), None)
        versions |= commit.transactions
        recorded = commit.transactions and not commit.removes
        if (commit.adds or commit.removes) and not (recorded or commit.rearranges):
            cuts.clear()
    return _Snapshot(commits[-1].anchor, versions, cuts)


@lru_cache(maxsize=64)
def of(path: Folder) -> NewestCuts:
    """Return the one object for each ledger and process. The sensors of all topics use it at each tick."""
    return NewestCuts(path)
