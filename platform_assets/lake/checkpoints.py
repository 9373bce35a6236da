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
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from io import BytesIO
from pathlib import Path
from typing import Any, Final

import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable

from platform_assets.lake import delta_log, failures, redaction
from platform_assets.lake.location import Folder
from platform_assets.model.logs import logger

_log = logger(__name__)
_HINT: Final = "_delta_log/_last_checkpoint"
_BLOCK_ROWS: Final = 1 << 16
_CODEC: Final = "zstd"
_COPY: Final = "platform-assets-checkpoint-"
_ABANDONED_SECONDS: Final = 3_600.0
_TRIES: Final = 5


def write(table: Folder) -> None:
    """Write a checkpoint of the newest version, unless the version has one.

    delta-rs writes the checkpoint of a copy of the log, and only its divided form becomes visible. A checkpoint that
    was replaced later could change between two requests of the same reader. If the log cannot be copied, because
    another writer's checkpoint has several files or the temporary folder is full, delta-rs writes the checkpoint in
    place.

    An erasure may rewrite the log meanwhile. The checkpoint is then made again, and not deleted: another process may
    already have deleted commits that it contains. Erasures list the checkpoints again after their last change.
    """
    _delete_abandoned(table)
    version = delta_log.version(table)
    name, newest = delta_log.checkpoint_name(version), delta_log.newest_checkpoint(table)
    if table.has(name) or (newest is not None and newest > version):
        return
    hint: dict[str, Any] | None = None
    for attempt in range(_TRIES):
        sources = _sources(table, newest, version)
        made = _made(table, list(sources), name)
        if made is None:
            handle = table.delta()
            with table.writing():
                handle.create_checkpoint()
        elif attempt:
            table.write(name, made[0])
        elif not table.write_new(name, made[0]):
            return
        hint = None if made is None else {**made[1], "sizeInBytes": len(made[0])}
        if not _has_changed(table, sources):
            break
    else:
        _log.warning("%s: the log kept changing while the checkpoint %s was written", table, name)
    newest = delta_log.newest_checkpoint(table)
    if hint is not None and (newest is None or newest < version):
        table.write(_HINT, json.dumps(hint).encode())


def _delete_abandoned(table: Folder) -> None:
    """Delete copies and unfinished checkpoints left by processes that were killed. The statistics in them may show
    values that are erased later."""
    try:
        for left in Path(tempfile.gettempdir()).glob(f"{_COPY}*"):
            # Any local user can make an entry with this name, of any kind.
            with suppress(OSError):
                if time.time() - left.lstat().st_mtime > _ABANDONED_SECONDS:
                    shutil.rmtree(left, ignore_errors=True)
    except OSError as e:
        _log.warning("copies of logs cannot be looked for in the temporary folder: %s", e)
    unfinished = redaction.unfinished_checkpoints(table)
    if unfinished:
        before = table.time() - timedelta(seconds=_ABANDONED_SECONDS)
        table.erase(set(unfinished).intersection(table.written_before(before, "_delta_log")))


def _sources(table: Folder, newest: int | None, version: int) -> dict[str, str | None]:
    """Return the stamps of the newest checkpoint and of the commits after it, up to `version`, by name. The stamp of a
    missing file is None."""
    names = [] if newest is None else [delta_log.checkpoint_name(newest)]
    names += [delta_log.name_of(number) for number in range(0 if newest is None else newest + 1, version + 1)]
    return {name: table.stamp(name) for name in names}


def _has_changed(table: Folder, sources: Mapping[str, str | None]) -> bool:
    """Return True if a file has other content now. A deleted file has not: clean-ups delete only files that have not
    been written for long."""
    return any(table.stamp(name) not in (stamp, None) for name, stamp in sources.items())


def _made(table: Folder, sources: Sequence[str], name: str) -> tuple[bytes, dict[str, Any]] | None:
    """Return the checkpoint `name` of a copy of these log files, and its hint. Return None if the log cannot be
    copied."""
    try:
        with tempfile.TemporaryDirectory(prefix=_COPY) as folder:
            copy = Path(folder)
            if not _is_copied(table, copy, sources):
                return None
            DeltaTable(copy).create_checkpoint()
            return _divided(copy / name), json.loads((copy / _HINT).read_text())
    except failures.RAISED as e:
        _log.warning("%s: the log could not be copied, so delta-rs writes the checkpoint in place: %s", table, e)
        return None


def _is_copied(table: Folder, to: Path, sources: Sequence[str]) -> bool:
    """Copy these log files. Return False if a file is missing."""
    (to / "_delta_log").mkdir()
    for name in sources:
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
