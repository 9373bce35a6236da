"""Measuring a data file of a flat table: computing the digests of each window in the file in one pass."""

from __future__ import annotations

from typing import Final
from urllib.parse import unquote

import pyarrow as pa

from platform_assets.lake import failures, holdings, parquet
from platform_assets.lake.contents import Digests
from platform_assets.lake.delta_log import DataFile
from platform_assets.lake.location import Folder
from platform_assets.lake.row_copies import Measure, aligned, measure_into

_BLOCK_ROWS: Final = 1 << 16


def measured(table: Folder, file: DataFile, schema: pa.Schema, measure: Measure) -> Digests:
    """Return the digests of a file's rows by reading the file; `schema` has the table's columns.

    Memory is bounded by one block of rows. Raises FilesLostError.
    """
    found: Digests = {}
    with failures.reading_files(table, ""), table.open(unquote(file.path)) as opened:
        for block in parquet.blocks(parquet.opened(opened), _BLOCK_ROWS):
            measure_into(found, aligned(block, schema), measure)
    held: dict[str, int] = {}
    for (key, _), of_window in found.items():
        held[key] = held.get(key, 0) + of_window.rows
    holdings.remember(table, file.path, file.bytes, held)
    return found
