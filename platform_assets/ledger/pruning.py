"""Removal of superseded proofs. Each deep audit writes an entry for each window and partition, and only the newest
entry counts.

Removed entries would never be read again. Loads, acceptances and the entry that counts for each window stay. Of an expired
window, the entry from before it expired stays too: it proves the rows if they come back.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from datetime import datetime
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, WriterProperties

from platform_assets.ledger.entries import EXPIRED, IN_ORDER, ranked

MARK: Final = '{"platform_assets_pruned":1}'
"""`userMetadata` of a commit that does not remove any entry that counts."""
COLUMNS: Final = ["window", "kind", "table_id", "table_version", "recorded_at"]
"""Columns of the ledger that are needed to find superseded proofs."""
_FEWEST_ROWS: Final = 1000
"""Minimum number of rows of a table for a removal."""
_MOST_BATCHES: Final = 1000
"""Maximum number of batches that one commit removes, because the commit lists each of them."""


def is_worth_reading(rows: int, new_rows: int) -> bool:
    """Return True if the last `new_rows` of `rows` rows passed a power of two, so that reads become rarer as the ledger
    grows."""
    return rows >= _FEWEST_ROWS and rows.bit_length() > (rows - new_rows).bit_length()


def superseded_batches(entries: pa.Table) -> list[datetime]:
    """Return the recording times of proofs that can be removed. Each time stands for a batch, written in one commit, in
    which no proof counts any more.

    `entries` are all rows of one table in the ledger, with `COLUMNS`. The result is empty if less than half of them
    could be removed, because all others must be rewritten. `entries.newest_entries` defines which entry of a window
    counts.
    """
    entries = entries.filter(pc.not_equal(entries["kind"], "acceptance"))
    if not entries.num_rows:
        return []
    order = ranked(entries.filter(pc.not_equal(entries["kind"], EXPIRED)))
    newest = (
        order.sort_by(list(IN_ORDER))
        .group_by("window", use_threads=False)
        .aggregate([(name, "last") for name, _ in IN_ORDER])
    )
    joined = order.join(newest, "window")
    same = [pc.equal(joined[name], joined[f"{name}_last"]) for name, _ in IN_ORDER]
    counts = functools.reduce(pc.and_, same)
    proofs = joined.append_column("counts", counts).filter(pc.equal(joined["kind"], "proof"))
    batches = proofs.group_by("recorded_at").aggregate([("counts", "any"), ("window", "count")])
    unread = batches.filter(pc.invert(batches["counts_any"])).sort_by([("window_count", "descending")])
    unread = unread.slice(0, _MOST_BATCHES)
    if 2 * (pc.sum(unread["window_count"]).as_py() or 0) < entries.num_rows:
        return []
    found: list[datetime] = unread["recorded_at"].to_pylist()
    return found


def remove(handle: DeltaTable, table: str, batches: Sequence[datetime], writer: WriterProperties | None) -> None:
    """Remove the proofs of `table` that were recorded at these times.

    Raises DeltaError if another process has committed since `handle` was opened; in that case, nothing was removed.
    """
    times = ", ".join(f"arrow_cast('{at.isoformat()}', 'Timestamp(Microsecond, Some(\"UTC\"))')" for at in batches)
    handle.delete(
        f'"table" = \'{table}\' AND "kind" = \'proof\' AND "recorded_at" IN ({times})',
        writer_properties=writer,
        commit_properties=CommitProperties(max_commit_retries=0, custom_metadata={"userMetadata": MARK}),
    )
