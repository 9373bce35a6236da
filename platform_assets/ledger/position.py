"""The end of the gap-free loaded range of a topic's log: one offset for each partition. Nothing is certain about
offsets from there on."""

from __future__ import annotations

from collections.abc import Collection

from platform_assets.ledger import unloaded
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
