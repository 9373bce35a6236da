"""Folding the small files of a table of the ledger into few, so that the cost of reads does not grow with each entry."""

from __future__ import annotations

from collections.abc import Collection
from itertools import pairwise
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, WriterProperties

from platform_assets.lake import delta_log, failures
from platform_assets.lake.location import Folder
from platform_assets.model.logs import logger

_log = logger(__name__)

AT_FILES: Final = 16
"""Number of small files of a topic or table at which they are folded."""
SIZES: Final = (1 << 18, 4 << 20)
"""Sizes of folded files, in ascending order. Small files are folded into files of the first size, and many files of one
size into files of the next size. So a long ledger is not rewritten each time, and its newest entries, which each check
reads, are in small files."""
_CHECKPOINT_AT_COMMITS: Final = 32
FOLDED: Final = WriterProperties(max_row_group_size=1 << 14)
"""Row group size. To read some windows of a long ledger, only their row groups are read, not hundreds of thousands of
rows."""


def fold(path: Folder, handle: DeltaTable, column: str, values: Collection[str]) -> None:
    """Fold the small files of each of these topics or tables into one file.

    `handle` is at the commit for which it was just used. If many topics have many files after the same commit, only
    some are folded now, the topics with the most files first, and the others are folded after later commits.

    delta-rs does not notice that another process has folded the same files, and then writes their entries to the table
    a second time. So each reader of the ledger and of the decisions must give the same result if an entry is there
    twice: `entries.newest_entries` returns it once, and other readers do not count entries.
    """
    try:
        adds = pa.table(handle.get_add_actions(flatten=True))
        names = adds[f"partition.{column}"]
        of_them = pc.is_in(names, pa.array(sorted(values), names.type))
        # The largest size first: such a fold includes all smaller files too.
        for lower, target in reversed(tuple(pairwise((0, *SIZES)))):
            between = pc.and_(
                pc.greater_equal(adds["size_bytes"], lower // 2), pc.less(adds["size_bytes"], target // 2)
            )
            small = names.filter(pc.and_(of_them, between))
            counts = sorted(pc.value_counts(small).to_pylist(), key=lambda c: (-c["counts"], c["values"]))
            due = [c["values"] for c in counts if c["counts"] >= AT_FILES]
            if due:
                some = due[: -(-len(values) // AT_FILES * 2)]
                handle.optimize.compact(
                    partition_filters=[(column, "in", some)], target_size=target, writer_properties=FOLDED
                )
                tidy(path, handle)
                return
    except failures.RAISED as e:
        # A later call will: the entries themselves are safe.
        _log.info("did not fold the small files of %s %s this time: %s", column, sorted(values)[:3], e)


def tidy(path: Folder, handle: DeltaTable) -> None:
    """Delete files that were replaced long ago, and write a checkpoint for readers to start from.

    Without it, they start from the last version that is a multiple of one hundred, where delta-rs makes a checkpoint. A
    checkpoint lists the files of all topics, so not every fold is worth a checkpoint.
    """
    handle.vacuum(dry_run=False)
    if handle.version() - (delta_log.newest_checkpoint(path) or 0) >= _CHECKPOINT_AT_COMMITS:
        handle.create_checkpoint()
