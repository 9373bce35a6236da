"""The deleted keys of a state that need not be kept any longer.

A deleted key is kept so that a change from an earlier window, which may still come, cannot bring the key back. Once
each window up to that of the delete is applied, no such change is left to come, so the key can be removed. The table
of changes still has the delete. If an earlier window is loaded later nevertheless, the next fold computes the keys of
that window from all changes; so a wrong answer here costs time, but never a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from platform_assets.lake import parquet, state_table
from platform_assets.lake.location import Folder
from platform_assets.lake.state_table import Opened
from platform_assets.ledger import unloaded
from platform_assets.ledger.store import Ledger
from platform_assets.model.tables import TableRef
from platform_assets.windows.state.changes_source import awaited

_BLOCK_ROWS: Final = 1 << 16
_LAST: Final = "~"
"""A text that comes after the key of each window."""


def collectable(ledger: Ledger, topic: str, declaration: str, folder: Folder, until: datetime) -> str:
    """Return the newest window that ended by `until`, such that it and each window before it have changes that are
    current, and none of them is parked, missing or to be made again; an empty text if there is none.

    The state has the declaration with the digest `declaration`, and `folder` has its table of changes. Raises
    NoChangesError, and whatever reading the ledger raises.
    """
    table = TableRef("changes", topic)
    edge = ledger.newest_edges([topic]).get(topic)
    if edge is None:
        # A ledger that was lost, and is not rebuilt yet.
        return ""
    _, waiting = awaited(ledger, topic, declaration, folder, from_all=True, through=_LAST)
    left = [*unloaded.find(ledger, table, edge).windows, *waiting.outdated, *waiting.missing]
    made = ledger.commit_rows(table, columns=["window", "window_end"])
    ended = made["window"].filter(pc.less_equal(made["window_end"], until))
    before = min(left, default=_LAST)
    return max((window for window in pc.unique(ended).to_pylist() if window < before), default="")


def has_deletes_up_to(dead: Opened, key: Sequence[str], window: str) -> bool:
    """Return True if the table of deleted keys has any from windows up to `window`. A truncate is not one."""
    if not window:
        return False
    with dead.folder.reading():
        files = pa.table(dead.handle.get_add_actions(flatten=True))
    if "min.window" in files.column_names:
        # Null if another program has rewritten the file without bounds.
        files = files.filter(pc.fill_null(pc.less_equal(files["min.window"], window), True))
    columns = pa.schema([dead.columns.field(name) for name in (key[0], parquet.WINDOW)])
    return any(
        pc.and_(pc.is_valid(block[0]), pc.less_equal(block[1], window)).true_count
        for path in files["path"].to_pylist()
        for block in state_table.blocks(dead.folder, path, columns, _BLOCK_ROWS)
    )
