"""Sealed windows that are not loaded yet, followed from tick to tick of a sensor.

A process remembers its results. So a call costs nothing while every window is loaded and no window is sealed. After a
load, a call is cheap, because the ledger of loads is followed commit by commit. If the ledger was edited or restored,
all of it is read again.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from platform_assets.lake.delta_log import Anchor
from platform_assets.lake.location import Lake
from platform_assets.ledger import followed, known_files
from platform_assets.ledger.entries import SealedWindow, recorded_cuts, windows_between
from platform_assets.ledger.store import Ledger
from platform_assets.model.tables import TableRef
from platform_assets.model.windows import Window, edge_of


@dataclass(frozen=True, slots=True)
class Unloaded:
    """Sealed windows without a receipt, by key, in ascending order. `accepted` has the time when a loss in each window
    was last accepted."""

    windows: Mapping[str, Window] = field(default_factory=dict)
    accepted: Mapping[str, datetime] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Known:
    """The result for `newest` as the newest edge and `commits` as the last commit of the ledger of loads."""

    newest: datetime
    commits: Anchor | None
    found: Unloaded


_FEW: Final = 1_000
"""Number of windows above which all entries of the table are read, because filtering by each start would take as long.
"""

_known: dict[tuple[Lake, TableRef], _Known] = {}
_lock = threading.Lock()


def find(ledger: Ledger, table: TableRef, newest: datetime, sealed: Sequence[SealedWindow] | None = None) -> Unloaded:
    """Return the windows of `table` before the edge `newest` that are not loaded.

    `sealed` has all windows that the caller has just sealed, up to `newest`; these windows need not be read.
    """
    commits = followed.of(ledger.lake.commits)
    with _lock:
        known = _known.get((ledger.lake, table))
    if (
        known is not None
        and (known.newest, known.commits) == (newest, commits.newest_lately())
        and not known.found.windows
    ):
        return known.found
    since = None
    if known is not None and known.newest <= newest and known.commits is not None:
        since = commits.entries_since(known.commits, table.ledger_name)
    if known is None or since is None:
        at = commits.newest()
        found = _all(ledger, table)
    else:
        at, entries = since
        if at == known.commits and known.newest == newest:
            return known.found
        new = Unloaded()
        if known.newest != newest:
            new = _new(ledger, table, known.newest, newest, sealed)
        both = Unloaded({**known.found.windows, **new.windows}, {**known.found.accepted, **new.accepted})
        found = _advanced(both, entries)
    with _lock:
        _known[ledger.lake, table] = _Known(newest, at, found)
    return found


def accepted(ledger: Ledger, table: TableRef, keys: Sequence[str]) -> dict[str, datetime]:
    """Return the times, by key, when a loss in these windows was last accepted. Loaded windows are included."""
    found = known_files.of_commits(ledger.lake).rows(
        table.ledger_name, ["window", "kind", "recorded_at"], among=[edge_of(key) for key in keys]
    )
    newest: dict[str, datetime] = {}
    for row in found.filter(pc.equal(found["kind"], "acceptance")).to_pylist():
        at = row["recorded_at"].astimezone(UTC)
        newest[row["window"]] = max(at, newest.get(row["window"], at))
    return newest


def read(ledger: Ledger, topic: str, windows: Sequence[Window]) -> list[SealedWindow]:
    """Return `windows` with their offsets, in ascending order. If statistics suffice, nothing else of the ledger is
    opened."""
    if not windows:
        return []
    edges = sorted({edge for w in windows for edge in (w.start, w.end)})
    wanted = set(windows)
    cuts = recorded_cuts(known_files.of_cuts(ledger.lake).rows(topic, among=edges))
    return [w for w in windows_between(cuts) if w.window in wanted]


def _new(
    ledger: Ledger, table: TableRef, since: datetime, newest: datetime, sealed: Sequence[SealedWindow] | None
) -> Unloaded:
    """Return the windows from `since` on that are not loaded. Windows that the caller has just sealed cannot be loaded
    yet."""
    if sealed and (sealed[0].window.start, sealed[-1].window.end) == (since, newest):
        return Unloaded({w.key: w.window for w in sealed})
    return _without_loaded(ledger, table, _sealed(ledger, table.topic, since))


def _advanced(known: Unloaded, entries: Iterable[followed.Entry]) -> Unloaded:
    """Return `known` without the windows that these entries of the ledger record as loaded."""
    loaded, accepted = set[datetime](), dict[datetime, datetime]()
    for entry in entries:
        if entry.accepted_at is None:
            loaded.add(entry.start)
        else:
            accepted[entry.start] = max(entry.accepted_at, accepted.get(entry.start, entry.accepted_at))
    left = {key: window for key, window in known.windows.items() if window.start not in loaded}
    newly = {key: accepted[window.start] for key, window in left.items() if window.start in accepted}
    return Unloaded(left, {**{k: at for k, at in known.accepted.items() if k in left}, **newly})


def _edges(ledger: Ledger, topic: str, since: datetime | None) -> pa.Array:
    """Return all edges from `since` on, in ascending order."""
    return pc.unique(known_files.of_cuts(ledger.lake).rows(topic, ["edge"], start=since)["edge"]).sort()


def _windows(starts: pa.Array, ends: pa.Array) -> dict[str, Window]:
    pairs = zip(starts.to_pylist(), ends.to_pylist(), strict=True)
    return {w.key: w for w in (Window(start.astimezone(UTC), end.astimezone(UTC)) for start, end in pairs)}


def _sealed(ledger: Ledger, topic: str, since: datetime) -> Mapping[str, Window]:
    """Return all windows that start at `since` or later."""
    edges = _edges(ledger, topic, since)
    return _windows(edges[:-1], edges[1:])


def _all(ledger: Ledger, table: TableRef) -> Unloaded:
    """Return the unloaded windows of a table that was not read before. They are determined column by column, because
    nearly all windows are loaded."""
    edges = _edges(ledger, table.topic, None)
    if len(edges) < 2:
        return Unloaded()
    found = known_files.of_commits(ledger.lake).rows(table.ledger_name, ["window_start", "kind"])
    loads = found.filter(pc.not_equal(found["kind"], "acceptance"))
    left = pc.invert(pc.is_in(edges[:-1], pc.unique(loads["window_start"])))
    windows = _windows(edges[:-1].filter(left), edges[1:].filter(left))
    return _without_loaded(ledger, table, windows)


def _without_loaded(ledger: Ledger, table: TableRef, windows: Mapping[str, Window]) -> Unloaded:
    """Return those of `windows` that are not in the ledger of loads. This reads the ledger."""
    if not windows:
        return Unloaded()
    among = [w.start for w in windows.values()] if len(windows) <= _FEW else None
    found = known_files.of_commits(ledger.lake).rows(
        table.ledger_name, ["window_start", "kind", "recorded_at"], among=among
    )
    of_acceptance = pc.equal(found["kind"], "acceptance")
    loaded = {
        at.astimezone(UTC) for at in pc.unique(found.filter(pc.invert(of_acceptance))["window_start"]).to_pylist()
    }
    accepted: dict[datetime, datetime] = {}
    for row in found.filter(of_acceptance).to_pylist():
        start, at = row["window_start"].astimezone(UTC), row["recorded_at"].astimezone(UTC)
        accepted[start] = max(at, accepted.get(start, at))
    left = {key: w for key, w in windows.items() if w.start not in loaded}
    return Unloaded(left, {key: accepted[w.start] for key, w in left.items() if w.start in accepted})
