"""Measuring windows of decoded tables and of dead letters in this process. The digests are computed from the files,
whatever program wrote these files."""

from __future__ import annotations

from platform_assets.engines.protocol import NO_ROWS
from platform_assets.lake.location import Folder
from platform_assets.lake.rows import batches_of
from platform_assets.model.digest import Measured


def measured_window(table: Folder, key: str, version: int) -> Measured:
    """Return the digests of a window in the table at `version`. Memory is bounded by the size of one batch. Raises
    FilesLostError."""
    # Importing numba and the compiled kernels takes half a second, a cost to avoid in every run without decoded tables.
    from platform_assets.engines.decoding.digests import measured

    found = NO_ROWS
    for batch in batches_of(table, key, version):
        if batch.num_rows:
            found += measured(batch)
    return found
