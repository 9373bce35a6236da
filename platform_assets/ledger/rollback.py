"""Taking receipts out of the ledger whose loads a table no longer has, because an older copy was put in its place."""

from __future__ import annotations

import pyarrow.compute as pc
from deltalake import CommitProperties

from platform_assets.lake import delta_log
from platform_assets.lake.location import Lake
from platform_assets.ledger.store import FOLDED
from platform_assets.ledger.stretches import rows
from platform_assets.model.tables import TableRef


def forget_loads(lake: Lake, table: TableRef, version: int) -> tuple[str, ...]:
    """Remove what the ledger says of loads and proofs of `table` behind `version`; gives the keys of windows without receipt now.

    Of a window that was loaded before too, the entry of that load counts again. Accepted losses stay, and so do windows without
    offsets, which are in no version. Nothing else may write to the ledger meanwhile: it raises LakeNotWritableError or
    LakeUnavailableError then, and has removed nothing.
    """
    if not delta_log.exists(lake.commits):
        return ()
    of_table = (pc.field("table") == table.name) & (pc.field("kind") != "acceptance")
    known = rows(lake.commits, of_table, ["window", "table_version"], ("table", table.name))
    later = pc.fill_null(pc.greater(known["table_version"], version), False)
    if not pc.any(later).as_py():
        return ()
    kept = set(known.filter(pc.invert(later))["window"].to_pylist())
    with lake.commits.writing():
        lake.commits.delta().delete(
            f'"table" = \'{table.name}\' AND "kind" <> \'acceptance\' AND "table_version" > {version}',
            writer_properties=FOLDED,
            commit_properties=CommitProperties(max_commit_retries=0),
        )
    return tuple(sorted(set(known.filter(later)["window"].to_pylist()) - kept))
