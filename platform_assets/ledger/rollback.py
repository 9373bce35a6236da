"""Removing receipts from the ledger for loads that a table no longer has, because an older copy replaced the table."""

from __future__ import annotations

import pyarrow.compute as pc
from deltalake import CommitProperties

from platform_assets.lake.location import Lake
from platform_assets.ledger import known_files
from platform_assets.ledger.folding import FOLDED
from platform_assets.model.tables import TableRef


def forget_loads(lake: Lake, table: TableRef, version: int, table_id: str | None = None) -> tuple[str, ...]:
    """Remove the ledger's entries for loads and proofs of `table` after `version`; return the keys of windows that now
    have no receipt.

    Also remove entries for a table with this name that has a Delta id other than `table_id`, because it was created
    earlier or later.

    If a window was also loaded earlier, the entry of that load counts again. Accepted losses stay, and so do windows
    without offsets, which are not in any version. Nothing else may write to the ledger in the meantime: otherwise this
    raises LakeNotWritableError or LakeUnavailableError, and removes nothing.
    """
    entries = known_files.of_commits(lake).rows(table.ledger_name, ["window", "kind", "table_id", "table_version"])
    known = entries.filter(pc.not_equal(entries["kind"], "acceptance"))
    later = pc.fill_null(pc.greater(known["table_version"], version), False)
    condition = f'"table_version" > {version}'
    if table_id is not None and known["table_id"].null_count < len(known):
        later = pc.or_(later, pc.fill_null(pc.not_equal(known["table_id"], table_id), False))
        quoted = table_id.replace("'", "''")
        condition = f"({condition} OR \"table_id\" <> '{quoted}')"
    if not pc.any(later).as_py():
        return ()
    kept = set(known.filter(pc.invert(later))["window"].to_pylist())
    with lake.commits.writing():
        lake.commits.delta().delete(
            f"\"table\" = '{table.ledger_name}' AND \"kind\" <> 'acceptance' AND {condition}",
            writer_properties=FOLDED,
            commit_properties=CommitProperties(max_commit_retries=0),
        )
    return tuple(sorted(set(known.filter(later)["window"].to_pylist()) - kept))
