"""The loads of changes that a state lacks, and whether the state can be brought up to date without all changes. Pure.

Each of a state's tables follows from the table of changes as it was at one version. A fold that ended between its
commits leaves the tables at different versions. All are still right, each for its version, so the next fold only has to
apply the loads that the oldest one lacks. This does not hold if one of these loads replaced rows of a window: the
older table may have lost a key to the replaced rows, and the newer table, which could tell, no longer has the key.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from platform_assets.model.snapshots import Attempt, Position, merged, swept_to


@dataclass(frozen=True, slots=True)
class ChangesLoad:
    """A load of changes: the version of its commit, its window, and whether it replaced rows of an earlier load of the
    window. `erases` is true if it removed erased records, whose values must not stay in past files of the state.
    `load_id` is the load's id, and `declaration` the digest of the `state:` by which the changes were made, or None if the
    commit does not tell."""

    version: int
    window: str
    replaces: bool
    erases: bool = False
    load_id: str = ""
    declaration: str | None = None


@dataclass(frozen=True, slots=True)
class FoldPlan:
    """The windows to fold. If `rebuild` is not empty, it is the reason why the state is to be made from all changes. If
    `waits` is not empty, it is the reason why nothing can be folded yet. Deleted keys are collected up to the window
    `collected`; `is_late` is true if the windows to fold include one up to it. `snapshots` are the known attempts
    at a snapshot, and `swept` is the position before which these have deleted all keys. `newest` has the newest load of
    each window to fold."""

    windows: frozenset[str]
    rebuild: str = ""
    waits: str = ""
    replaces: bool = False
    erases: bool = False
    collected: str = ""
    is_late: bool = False
    snapshots: tuple[Attempt, ...] = ()
    swept: Position | None = None
    newest: Mapping[str, ChangesLoad] = field(default_factory=dict)


def plan(
    loads: Sequence[ChangesLoad],
    versions: Collection[int],
    truncated: Collection[str] = (),
    collected: str = "",
    snapshots: Collection[Sequence[Attempt]] = (),
) -> FoldPlan:
    """Plan a fold of `loads`, which are, in order, all loads after the least of the `versions` of the table of changes from
    which the state's tables follow. The last truncate in these is in one of the windows `truncated`, and deleted keys are
    collected up to the window `collected`. `snapshots` are the attempts that each of the tables knows."""
    newest = {load.window: load for load in loads}
    windows = frozenset(newest)
    again = sorted({load.window for load in loads if load.replaces})
    rebuild = ""
    if len(set(versions)) > 1 and again:
        rebuild = f"the last fold ended between its two commits, and window {again[0]} has been replaced since"
    if undone := sorted({*again}.intersection(truncated)):
        # The keys that it deleted are in neither table.
        rebuild = f"window {undone[0]}, which had a truncate, has been replaced"
    attempts = merged(attempt for each in snapshots for attempt in each)
    if not rebuild and (undone := sorted({*again} & {window for each in attempts for window in each.windows})):
        # Without it, the keys that the snapshot deleted may have to come back.
        rebuild = f"window {undone[0]}, which had the beginning or the end of a snapshot, has been replaced"
    if not rebuild and (below := [window for window in again if window <= collected]):
        # Keys that it deleted may be in neither table. What it has now may not delete them.
        rebuild = f"window {below[0]} has been replaced, and keys deleted up to window {collected} are no longer kept"
    return FoldPlan(
        windows,
        rebuild,
        replaces=bool(again),
        erases=any(load.erases for load in loads),
        collected=collected,
        is_late=any(window <= collected for window in windows),
        snapshots=attempts,
        swept=max((each for each in map(swept_to, snapshots) if each is not None), default=None),
        newest=newest,
    )
