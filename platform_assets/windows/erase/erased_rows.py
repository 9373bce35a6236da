"""Removing erased records from files before the files are committed: once a table has such records, only a successful
load removes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from urllib.parse import quote

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from platform_assets.engines.protocol import NO_ROWS, StagedFiles
from platform_assets.lake import data_files
from platform_assets.lake.location import Folder
from platform_assets.model.offsets import OffsetRange

_BLOCK_ROWS = 65_536


def mask(block: pa.RecordBatch | pa.Table, erased: Mapping[int, tuple[OffsetRange, ...]]) -> npt.NDArray[np.bool_]:
    """Mark the rows at offsets in `erased`, which has sorted ranges by partition."""
    partitions, offsets = (
        np.asarray(block[name].to_numpy(zero_copy_only=False)) for name in ("kafka_partition", "kafka_offset")
    )
    found = np.zeros(block.num_rows, bool)
    for partition, ranges in erased.items():
        starts, ends = (np.array([getattr(r, name) for r in ranges], np.int64) for name in ("start", "end"))
        at = np.searchsorted(starts, offsets, side="right") - 1
        found |= (partitions == partition) & (at >= 0) & (offsets < ends[np.maximum(at, 0)])
    return found


def without(
    folder: Folder,
    written: StagedFiles,
    erased: Mapping[int, tuple[OffsetRange, ...]],
    window: str,
    *,
    window_column: bool,
) -> StagedFiles:
    """Return `written` without the rows at offsets in `erased`. Files with such rows are rewritten, and the original
    files are deleted if they are new.

    `folder` is the table's folder, and `window_column` is true if files of `window` have a window column. Raises
    FilesLostError if a file of an earlier version is lost by now, and LakeNotWritableError.
    """
    # Imported here because compiled kernels are slow to load, and a code location does not need them.
    from platform_assets.engines.shared.digests import measured

    below, gone, replaced = written.folder, NO_ROWS, dict[str, str]()
    for number, file in enumerate(written.files) if erased else ():
        kept, removed = list[pa.RecordBatch](), NO_ROWS
        for block in data_files.blocks(folder, quote(file.path), window, _BLOCK_ROWS):
            is_erased = mask(block, erased)
            removed += measured(block.filter(pa.array(is_erased)))
            kept.append(block.filter(pa.array(~is_erased)))
        if removed.rows:
            gone += removed
            replaced[file.path] = f"{below}/kept-{number:05}.parquet"
            column = window if window_column else None
            data_files.write_rows(folder, replaced[file.path], pa.Table.from_batches(kept), column)
    if not replaced:
        return written
    folder.erase(path for path in replaced if path.startswith(f"{below}/"))
    again = {file.path: file for file in data_files.written_files(folder, below)}
    files = [again.get(replaced[f.path]) if f.path in replaced else f for f in written.files]
    return replace(written, files=tuple(f for f in files if f is not None), measured=written.measured - gone)
