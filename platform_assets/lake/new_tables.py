"""Creation of tables of windows.

New tables are flat: `window` is an ordinary column with statistics, so a file may hold rows of many windows, and each
column has a field id. Earlier releases partitioned their tables by `window`. Such a table keeps working, and stays
partitioned until `migrate-layout` changes it.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
from deltalake import Schema

from platform_assets.lake import field_ids
from platform_assets.lake.location import Folder

PROPERTIES: Final = {
    "delta.dataSkippingStatsColumns": "kafka_partition,kafka_offset,kafka_timestamp,window",
    "delta.isolationLevel": "Serializable",
    # Deleting a row manually then rewrites its file, so the log shows it.
    "delta.enableDeletionVectors": "false",
}


def create(path: Folder, columns: Schema, *, name: str, description: str) -> None:
    """Create a table of windows, unless it exists by now. Raises LakeNotWritableError."""
    path.create_delta(
        Schema.from_arrow(field_ids.assigned(pa.schema(columns.to_arrow()))),
        partition_by=None,
        name=name,
        description=description,
        configuration=PROPERTIES,
    )
