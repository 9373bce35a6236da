"""Creation of tables.

New tables are flat: `window` is an ordinary column with statistics, so a file may hold rows of many windows, and each
column has a field id. Earlier releases partitioned their tables by `window`. Such a table keeps working, and stays
partitioned until `migrate-layout` changes it.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
from deltalake import Schema

from platform_assets.lake import delta_log, field_ids
from platform_assets.lake.location import Folder
from platform_assets.model.derived import DerivedRef
from platform_assets.model.tables import StateRef, TableRef

PROPERTIES: Final = {
    "delta.dataSkippingStatsColumns": "kafka_partition,kafka_offset,kafka_timestamp,window",
    "delta.isolationLevel": "Serializable",
    # Deleting a row manually then rewrites its file, so the log shows it.
    "delta.enableDeletionVectors": "false",
}

_OWN: Final = '"platform_assets_'
"""Part of the `userMetadata` of each fold and derivation."""


def is_made(folder: Folder, at: int | None = None) -> bool:
    """Return True if a state or derived table exists and has rows of a fold, of a derivation or of another program, even if
    these are no rows. The first fold or derivation creates an empty table, which says nothing until it commits. `at` is the
    table's version, if it is known. Reads the log back to the newest of these commits, which is usually the newest of all.
    Raises TableDamagedError."""
    version = delta_log.newest_version(folder) if at is None else at
    if version is None:
        return folder.has_delta_log()
    while version >= 0:
        commit = delta_log.commit(folder, version)
        # A log without its first commits is that of a table that was made long ago.
        if commit is None or commit.adds or commit.removes or _OWN in (commit.user_metadata or ""):
            return True
        version -= 1
    return False


def making(table: TableRef | StateRef | DerivedRef) -> str:
    """Return the command that makes a table. Pure."""
    if isinstance(table, DerivedRef):
        return f"platform-assets derive {table.short}"
    return f"platform-assets fold {table.topic}" if isinstance(table, StateRef) else f"platform-assets load {table}"


def create(path: Folder, columns: Schema, *, name: str, description: str) -> None:
    """Create a table of windows, unless it exists by now. Raises LakeNotWritableError."""
    path.create_delta(
        Schema.from_arrow(field_ids.assigned(pa.schema(columns.to_arrow()))),
        partition_by=None,
        name=name,
        description=description,
        configuration=PROPERTIES,
    )
