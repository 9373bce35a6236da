"""Reading windows of decoded tables and of dead letters again, in this process: their files, whoever wrote them, to digests."""

from __future__ import annotations

import pyarrow.compute as pc

from platform_assets.engines.protocol import NO_ROWS
from platform_assets.lake import datasets
from platform_assets.lake.location import Folder
from platform_assets.lake.rows import reading_files
from platform_assets.model.digest import Measured


def measured_window(table: Folder, key: str, version: int) -> Measured:
    """The digests of what the table at `version` holds of a window. Memory is that of a batch. Raises FilesLostError."""
    # numba and the compiled kernels: half a second, which each run would pay whose tables nobody decodes.
    from platform_assets.engines.decoding.digests import measured

    found = NO_ROWS
    with reading_files(table, key):
        dataset = datasets.of(table.delta(version), "window", key)
        for batch in dataset.to_batches(filter=pc.field("window") == key):
            if batch.num_rows:
                found += measured(batch)
    return found
