"""Checkpoints whose readers can skip the list of removed files.

A checkpoint lists a table's files, and also the files that were removed within the table's retention, because VACUUM
must know them. After upkeep, most entries are removed files. delta-rs writes both kinds into the same row group, so
each reader unpacks all entries to find the files. If removed files have separate row groups, delta-rs and polars skip
these by their statistics.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from io import BytesIO
from pathlib import Path
from typing import Final

import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable

from platform_assets.lake import delta_log
from platform_assets.lake.location import Folder

_HINT: Final = "_delta_log/_last_checkpoint"
_BLOCK_ROWS: Final = 1 << 16
_CODEC: Final = "zstd"
_COPY: Final = "platform-assets-checkpoint-"
_ABANDONED_SECONDS: Final = 3_600.0


def write(table: Folder) -> None:
    """Write a checkpoint of the newest version, unless the version has one.

    delta-rs writes the checkpoint of a copy of the log, and only its divided form becomes visible. A checkpoint that
    was replaced later could change between two requests of the same reader. If the log cannot be copied, because
    another writer's checkpoint has several files, delta-rs writes the checkpoint in place.
    """
    _delete_abandoned()
    version = delta_log.version(table)
    name = delta_log.checkpoint_name(version)
    if table.has(name):
        return
    with tempfile.TemporaryDirectory(prefix=_COPY) as folder:
        copy = Path(folder)
        if not _is_copied(table, copy, version):
            handle = table.delta()
            with table.writing():
                handle.create_checkpoint()
            return
        DeltaTable(copy).create_checkpoint()
        content = _divided(copy / name)
        hint = json.loads((copy / _HINT).read_text())
    newest = delta_log.newest_checkpoint(table)
    if table.write_new(name, content) and (newest is None or newest < version):
        table.write(_HINT, json.dumps({**hint, "sizeInBytes": len(content)}).encode())


def _delete_abandoned() -> None:
    """Delete copies left by processes that were killed. The statistics in them may show values that are erased later."""
    for left in Path(tempfile.gettempdir()).glob(f"{_COPY}*"):
        try:
            is_old = time.time() - left.stat().st_mtime > _ABANDONED_SECONDS
        except FileNotFoundError:
            continue
        if is_old:
            shutil.rmtree(left, ignore_errors=True)


def _is_copied(table: Folder, to: Path, version: int) -> bool:
    """Copy the newest checkpoint and the commits after it, up to `version`. Return False if a file is missing."""
    (to / "_delta_log").mkdir()
    newest = delta_log.newest_checkpoint(table)
    names = [] if newest is None else [delta_log.checkpoint_name(newest)]
    names += [delta_log.name_of(number) for number in range(0 if newest is None else newest + 1, version + 1)]
    for name in names:
        content = table.read(name)
        if content is None:
            return False
        (to / name).write_bytes(content if name.endswith(".parquet") else _without_info(content))
    return True


def _without_info(commit: bytes) -> bytes:
    """Return a commit without its description, which is not part of a checkpoint and may contain samples of rows."""
    return b"".join(line for line in commit.splitlines(keepends=True) if not line.startswith(b'{"commitInfo"'))


def _divided(checkpoint: Path) -> bytes:
    """Return the content of a checkpoint, with removed files after all other entries and in separate row groups."""
    content = BytesIO()
    with (
        pq.ParquetFile(checkpoint) as file,
        pq.ParquetWriter(content, file.schema_arrow, compression=_CODEC, use_dictionary=False) as writer,
    ):
        for are_removed in (False, True):
            for block in file.iter_batches(_BLOCK_ROWS):
                is_removed = pc.is_valid(block["remove"])
                rows = block.filter(is_removed if are_removed else pc.invert(is_removed))
                if rows.num_rows:
                    writer.write_batch(rows)
    return content.getvalue()
