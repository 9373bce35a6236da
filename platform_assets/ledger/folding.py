"""Folding the small files of a table of the ledger into few, so that the cost of reads does not grow with each entry.

The commits are made here, and not by delta-rs's own compaction: that compares the files that it replaces only with
commits that change data. So of two compactions at once, or of one whose first answer was lost, both would commit, and
each entry would be there twice. A fold commits only on a version that names all files that it replaces.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Collection, Iterator, Sequence
from datetime import UTC
from itertools import pairwise
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, WriterProperties
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction, RemoveAction

from platform_assets.lake import delta_log, failures, parquet
from platform_assets.lake.data_files import NewFile, delta_statistics
from platform_assets.lake.location import Folder
from platform_assets.model.logs import logger

_log = logger(__name__)

AT_FILES: Final = 16
"""Number of small files of a topic or table at which they are folded."""
SIZES: Final = (1 << 18, 4 << 20)
"""Sizes of folded files, in ascending order. Small files are folded into files of the first size, and many files of one
size into files of the next size. So a long ledger is not rewritten each time, and its newest entries, which each check
reads, are in small files."""
_CHECKPOINT_AT_COMMITS: Final = 32
_ATTEMPTS: Final = 5
"""Maximum number of attempts if entries are added first. The next entry tries again."""
FOLDED: Final = WriterProperties(max_row_group_size=1 << 14)
"""Row group size. To read some windows of a long ledger, only their row groups are read, not hundreds of thousands of
rows."""


def fold(path: Folder, handle: DeltaTable, column: str, values: Collection[str]) -> None:
    """Fold the small files of each of these topics or tables into one file.

    `handle` is at the commit for which it was just used. If many topics have many files after the same commit, only
    some are folded now, the topics with the most files first, and the others are folded after later commits.
    """
    try:
        adds = pa.table(handle.get_add_actions(flatten=True))
        names = adds[f"partition.{column}"]
        of_them = pc.is_in(names, pa.array(sorted(values), names.type))
        # The largest size first: such a fold includes all smaller files too.
        for lower, target in reversed(tuple(pairwise((0, *SIZES)))):
            between = pc.and_(
                pc.greater_equal(adds["size_bytes"], lower // 2), pc.less(adds["size_bytes"], target // 2)
            )
            small = names.filter(pc.and_(of_them, between))
            counts = sorted(pc.value_counts(small).to_pylist(), key=lambda c: (-c["counts"], c["values"]))
            due = [c["values"] for c in counts if c["counts"] >= AT_FILES]
            if due:
                some = due[: -(-len(values) // AT_FILES * 2)]
                chosen = pc.and_(pc.is_in(names, pa.array(some, names.type)), pc.less(adds["size_bytes"], target // 2))
                groups = _groups(adds.filter(chosen), column, target)
                if _is_folded(path, handle, column, groups):
                    tidy(path, handle)
                return
    except failures.RAISED as e:
        # A later call will: the entries themselves are safe.
        _log.info("did not fold the small files of %s %s this time: %s", column, sorted(values)[:3], e)


def tidy(path: Folder, handle: DeltaTable) -> None:
    """Delete files that were replaced long ago, and write a checkpoint for readers to start from.

    Without it, they start from the last version that is a multiple of one hundred, where delta-rs makes a checkpoint. A
    checkpoint lists the files of all topics, so not every fold is worth a checkpoint.
    """
    handle.vacuum(dry_run=False)
    if handle.version() - (delta_log.newest_checkpoint(path) or 0) >= _CHECKPOINT_AT_COMMITS:
        handle.create_checkpoint()


def _groups(adds: pa.Table, column: str, target: int) -> list[tuple[str, dict[str, int]]]:
    """Return the files to replace by one file each, of about `target` bytes: the topic or table, and the sizes by path."""
    found: list[tuple[str, dict[str, int]]] = []
    rows = adds.select([f"partition.{column}", "path", "size_bytes"]).to_pylist()
    for row in sorted(rows, key=lambda row: row[f"partition.{column}"]):
        value, path, size = row.values()
        if not found or found[-1][0] != value or sum(found[-1][1].values()) >= target:
            found.append((value, {}))
        found[-1][1][path] = size
    return [(value, files) for value, files in found if len(files) > 1]


def _is_folded(path: Folder, handle: DeltaTable, column: str, groups: Sequence[tuple[str, dict[str, int]]]) -> bool:
    """Replace the files of each group by one file, in one commit; return False, and change nothing, if another process has
    replaced some of them first. `handle` is at the newest version afterwards."""
    columns = pa.schema([field for field in pa.schema(handle.schema().to_arrow()) if field.name != column])
    new = [(value, _written(path, files, columns)) for value, files in groups]
    own, old = {file.path for _, file in new}, {unquote(name) for _, files in groups for name in files}
    for _ in range(_ATTEMPTS if groups else 0):
        named = {unquote(name) for name in pa.table(handle.get_add_actions())["path"].to_pylist()}
        if not old <= named:
            break
        before = handle.version()
        try:
            handle.create_write_transaction(
                list(_actions(column, groups, new)),
                "append",
                handle.schema(),
                partition_by=[column],
                commit_properties=CommitProperties(max_commit_retries=0),
            )
        except CommitFailedError as e:
            # A client that got no answer has perhaps tried again, and found its own commit.
            handle.update_incremental()
            if handle.version() == before:
                raise
            if _has_added(path, own, before, handle.version()):
                return True
            _log.debug("folding %s again, after another commit: %s", path, e)
        else:
            handle.update_incremental()
            return True
    path.content.remove(sorted(own))
    _log.info("did not fold %d small files of %s this time: other processes committed first", len(old), path)
    return False


def _actions(
    column: str, groups: Sequence[tuple[str, dict[str, int]]], new: Sequence[tuple[str, NewFile]]
) -> Iterator[AddAction | RemoveAction]:
    now = round(time.time() * 1000)
    for value, files in groups:
        for name, size in files.items():
            yield RemoveAction(unquote(name), False, now, size, {column: value})
    for value, file in new:
        yield AddAction(file.path, file.bytes, {column: value}, now, False, delta_statistics(file))


def _has_added(path: Folder, files: set[str], before: int, newest: int) -> bool:
    """Return True if a commit after `before`, up to `newest`, has added one of these files."""
    found = (delta_log.commit(path, version) for version in range(before + 1, newest + 1))
    return any(unquote(add.path) in files for commit in found if commit is not None for add in commit.adds)


def _written(path: Folder, files: Collection[str], columns: pa.Schema) -> NewFile:
    """Write the rows of `files` to one new file next to them."""
    rows = pa.concat_tables([_read(path, unquote(name), columns) for name in files])
    name = f"{unquote(next(iter(files))).rpartition('/')[0]}/folded-{uuid.uuid4()}.parquet"
    with path.content.create(name) as sink:
        pq.write_table(rows, sink, row_group_size=FOLDED.max_row_group_size, compression="zstd")
    return NewFile(name, path.size(name) or 0, rows.num_rows, _statistics(rows))


def _read(path: Folder, name: str, columns: pa.Schema) -> pa.Table:
    """Return the rows of a file. Columns that its writer did not know are null."""
    with path.content.open(name) as opened:
        rows = parquet.opened(opened).read()
    lacking = pa.nulls(rows.num_rows)
    return pa.table(
        [(rows[f.name] if f.name in rows.column_names else lacking).cast(f.type) for f in columns],
        schema=pa.schema([field.remove_metadata() for field in columns]),
    )


def _statistics(rows: pa.Table) -> dict[str, Any]:
    """Return the bounds of the times of the entries, by which readers skip files."""
    low, high, nulls = dict[str, str](), dict[str, str](), dict[str, int]()
    for field in rows.schema:
        if pa.types.is_timestamp(field.type) and rows[field.name].null_count == 0:
            bounds = pc.min_max(rows[field.name]).as_py()
            low[field.name], high[field.name] = (
                f"{bounds[name].astimezone(UTC):%Y-%m-%dT%H:%M:%S.%fZ}" for name in ("min", "max")
            )
            nulls[field.name] = 0
    return {"minValues": low, "maxValues": high, "nullCount": nulls}
