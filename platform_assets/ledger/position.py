"""The end of the gap-free loaded range of a topic's log: one offset for each partition. Nothing is certain about
offsets from there on."""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta

import pyarrow.compute as pc

from platform_assets.ledger import known_files, unloaded
from platform_assets.ledger.entries import RecordedCut
from platform_assets.ledger.store import Ledger
from platform_assets.model.tables import TableRef


def loaded_to(ledger: Ledger, table: TableRef, aside: Collection[str] = ()) -> RecordedCut | None:
    """Return the cut that ends the gap-free loaded range of the newest generation: all offsets before this cut are
    loaded.

    If windows are waiting, it is the start of the first waiting window, even if later windows are loaded. Windows with
    keys in `aside` do not count as waiting. None if no cut was ever recorded.
    """
    newest = ledger.newest_cut(table.topic)
    if newest is None:
        return None
    waiting = [w for key, w in unloaded.find(ledger, table, newest.edge).windows.items() if key not in aside]
    if not waiting:
        return newest
    first = min(window.start for window in waiting)
    (at_first, *_) = ledger.cuts(table.topic, first, first)[-1:]
    if at_first.generation == newest.generation:
        return at_first
    # The waiting window belongs to an earlier log, so nothing of the newest log is known to be loaded.
    return next(cut for cut in ledger.cuts(table.topic, first) if cut.generation == newest.generation)


def loaded_late(ledger: Ledger, table: TableRef, age: timedelta) -> list[str]:
    """Return, in order, the windows with offsets whose first load was recorded more than `age` after they began."""
    names = ["window", "window_start", "kind", "recorded_at", "table_version"]
    rows = known_files.of_commits(ledger.lake).rows(table.ledger_name, names)
    rows = rows.filter(pc.and_(pc.not_equal(rows["kind"], "acceptance"), pc.is_valid(rows["table_version"])))
    first = rows.group_by(["window", "window_start"]).aggregate([("recorded_at", "min")])
    found = first.filter(pc.greater(pc.subtract(first["recorded_at_min"], first["window_start"]), age))
    return sorted(found["window"].to_pylist())
