"""The windows of a table whose rows changed between two versions, read from the table's log.

Code downstream of a table (a derived table, or a user's own asset) computes again only what these windows touch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from platform_assets.lake import delta_log, load_log
from platform_assets.lake.delta_log import Commit
from platform_assets.lake.load_log import Fence
from platform_assets.lake.location import Folder


@dataclass(frozen=True, slots=True)
class ChangedWindows:
    """The windows of a table that changed after version `since` (None: since the table began), up to and including version
    `version`.

    `loads` maps the key of each new, loaded again, erased or expired window to the id of its newest load in these versions. If
    the log does not show which windows changed, `unknown` says why, and every window may have changed.
    """

    since: int | None
    version: int
    loads: Mapping[str, str] = field(default_factory=dict)
    unknown: str | None = None
    digest: str = ""
    """Digest of the commit `version`, by which a later call sees that the table was replaced, for example from a backup."""

    @property
    def keys(self) -> tuple[str, ...]:
        """Keys of the changed windows, in ascending order. Raises ValueError if `unknown` is set."""
        if self.unknown is not None:
            raise ValueError(f"all windows may have changed, because {self.unknown}: read the whole table")
        return tuple(sorted(self.loads))

    def __bool__(self) -> bool:
        return bool(self.loads) or self.unknown is not None


def changed_windows(
    table: Folder, since: int | None, version: int | None = None, *, digest: str | None = None
) -> ChangedWindows:
    """Return the windows of a table of windows that changed after version `since`, up to `version`, by default the newest. With
    None as `since`, as in a first call, everything is new, so the whole table is to be read.

    A window counts if a load, a decoding, an erasure or an expiry replaced its rows, even if by the same rows. Commits that only
    move rows between files do not count. `digest` is that of the commit `since`, from an earlier call; if the log has another commit
    with this version now, every window may have changed. Raises TableGoneError if there is no table.
    """
    until = delta_log.version(table) if version is None else version
    if since is None:
        return ChangedWindows(since, until, unknown="no version was read before", digest=commit_digest(table, until))
    if until < since:
        older = f"version {until} is older than version {since}: the table was replaced"
        return ChangedWindows(since, until, unknown=older, digest=commit_digest(table, until))
    if (why := _replaced(table, since, digest)) is not None:
        return ChangedWindows(since, until, unknown=why, digest=commit_digest(table, until))
    found = changes_in(((n, delta_log.commit(table, n)) for n in range(since + 1, until + 1)), since, until)
    return replace(found, digest=commit_digest(table, until))


def commit_digest(table: Folder, version: int) -> str:
    """Return the digest of a commit's file in the log; an empty text if the log no longer has it."""
    found = delta_log.anchor(table, version)
    return "" if found is None else found.digest


def _replaced(table: Folder, since: int, digest: str | None) -> str | None:
    """Return why the log does not continue from the commit that was recorded; None if it does, or if none was recorded."""
    if not digest:
        return None
    now = commit_digest(table, since)
    if not now:
        return f"the log no longer has version {since}"
    return None if now == digest else f"version {since} is another one than before: the table was replaced"


def changes_in(commits: Iterable[tuple[int, Commit | None]], since: int, until: int) -> ChangedWindows:
    """Return the windows that commits changed. `commits` has each version after `since`, up to `until`, with its commit, or None if
    the log no longer has it. Pure."""
    loads: dict[str, str] = {}
    for number, commit in commits:
        if commit is None:
            return ChangedWindows(since, until, unknown=f"the log no longer has version {number}")
        found = load_log.loads_in(commit)
        if any(load.metadata.lost for load in found):
            return ChangedWindows(since, until, unknown=f"rows were lost with damaged files in version {number}")
        loads |= {load.metadata.window.key: load.metadata.load_id for load in found}
        if commit.reshapes:
            return ChangedWindows(since, until, unknown=f"columns or settings changed in version {number}")
        if not found and (commit.adds or commit.removes) and not commit.rearranges and not _is_fence(commit):
            return ChangedWindows(since, until, unknown=f"another writer made version {number}")
    return ChangedWindows(since, until, loads)


def _is_fence(commit: Commit) -> bool:
    return Fence.from_json(commit.user_metadata) is not None


def changes_rows(table: Folder, since: int, version: int, *, digest: str | None = None) -> bool:
    """Return True if any commit after version `since`, up to `version`, changed rows or columns, or may have changed them.

    `digest` is that of the commit `since` when it was read.
    """
    if version < since or _replaced(table, since, digest) is not None:
        return True
    for number in range(since + 1, version + 1):
        commit = delta_log.commit(table, number)
        if commit is None or commit.reshapes:
            return True
        if (commit.adds or commit.removes) and not commit.rearranges:
            return True
        if load_log.loads_in(commit):
            return True
    return False
