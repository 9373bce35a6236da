"""Contents of the data files that several windows share: the number of rows and both digests of each window in a file,
recorded once.

For each data file, there is one small Parquet file in `_ledger/files/<kind>/<topic>`. These files are a cache: if they
are missing, the data files are read again. No entry can become wrong, for four reasons. A data file never changes, so
every measurement has the same result. The entry contains the path, the size and the table's id. The entry is written
completely or not at all. And an entry can only confirm the rows of a receipt, because a difference is always verified
in the data file itself. So, unlike a table of the ledger, entries need no commits and no particular order, and entries
that are no longer needed are deleted one by one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from hashlib import sha256
from io import BytesIO
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from platform_assets.lake.location import Folder, contents_of_files
from platform_assets.model.digest import Digest, Measured
from platform_assets.model.logs import logger

_log = logger(__name__)

Digests = dict[tuple[str, str], Measured]
"""Measures by window and topic id, because no digest covers these two columns. A row with a null in one of the two
columns is counted under ''."""

SCHEMA: Final = pa.schema(
    [
        ("window", pa.string()),
        ("topic_id", pa.string()),
        ("rows", pa.int64()),
        ("offsets_digest", pa.string()),
        ("content_digest", pa.string()),
    ]
)
"""Columns of an entry, with the names that the ledger of loads uses. The entry's file metadata has `table_id`, and
`path` and `size` of the data file."""
_MOST_BYTES: Final = 64 << 20
"""Maximum size of an entry, enough for about a million windows. Larger entries are neither written nor read."""
_MOST_UNPACKED: Final = 256 << 20


def record(table: Folder, table_id: str, path: str, size: int, rows: Digests) -> None:
    """Record the contents of a data file. `path` is its path in the log. Raises LakeNotWritableError.

    The file need not be committed yet. If it is never committed, `prune` deletes the entry.
    """
    keys = sorted(rows)
    found = [rows[key] for key in keys]
    entry = pa.table(
        [
            [key for key, _ in keys],
            [topic_id for _, topic_id in keys],
            [m.rows for m in found],
            [str(m.offsets.total) for m in found],
            [str(m.content.total) for m in found],
        ],
        schema=SCHEMA.with_metadata(_identity(table_id, path, size)),
    )
    written = BytesIO()
    pq.write_table(entry, written, compression="zstd")
    if written.tell() <= _MOST_BYTES:
        contents_of_files(table).write(_name(table_id, path, size), written.getvalue())


def recorded(table: Folder, table_id: str, path: str, size: int) -> Digests | None:
    """Return the recorded contents of a data file; None if there is no entry, or the entry is damaged."""
    return _read(table, table_id, path, size)


def rows_by_window(table: Folder, table_id: str, path: str, size: int) -> dict[str, int] | None:
    """Return the windows in a data file, each with its number of rows; None if there is no valid entry, as in
    `recorded`."""
    entry = _read(table, table_id, path, size)
    if entry is None:
        return None
    found: dict[str, int] = {}
    for (key, _), measured in entry.items():
        found[key] = found.get(key, 0) + measured.rows
    return found


def prune(table: Folder, table_id: str, files: Collection[tuple[str, int]]) -> int:
    """Delete the entries of all data files except `files`, which are given by path and size; return the number of
    deleted entries.

    If a file was committed after `files` were listed, its entry is also deleted, and the file is read once more. Raises
    LakeNotWritableError.
    """
    kept = {_name(table_id, path, size) for path, size in files}
    folder = contents_of_files(table)
    gone = [name for name in folder.files() if name not in kept]
    folder.erase(gone)
    return len(gone)


def _read(table: Folder, table_id: str, path: str, size: int) -> Digests | None:
    folder, name = contents_of_files(table), _name(table_id, path, size)
    content = folder.read(name)
    if content is None:
        return None
    try:
        if len(content) > _MOST_BYTES:
            raise pa.ArrowInvalid(f"it has {len(content):,} bytes, more than {_MOST_BYTES:,}")
        file = pq.ParquetFile(BytesIO(content))
        unpacked = sum(file.metadata.row_group(i).total_byte_size for i in range(file.metadata.num_row_groups))
        if unpacked > _MOST_UNPACKED:
            raise pa.ArrowInvalid(f"it unpacks to {unpacked:,} bytes, more than {_MOST_UNPACKED:,}")
        if not file.schema_arrow.equals(SCHEMA) or not _identity(table_id, path, size).items() <= _metadata(file):
            raise pa.ArrowInvalid("it belongs to another file or release")
        columns = (column.to_pylist() for column in file.read(SCHEMA.names).columns)
        return {(key, topic_id): _measured(*of_key) for key, topic_id, *of_key in zip(*columns, strict=True)}
    except (pa.ArrowException, OSError, ValueError, TypeError) as e:
        _log.warning("%s/%s cannot be read (%s): the data file is read instead", folder, name, e)
        return None


def _measured(rows: int, offsets: str, content: str) -> Measured:
    """Return a measure from the columns of an entry. Raises ValueError or TypeError if the values are not numbers."""
    return Measured(Digest(_whole(rows), int(offsets)), Digest(_whole(rows), int(content)))


def _whole(rows: int | None) -> int:
    if rows is None or rows < 0:
        raise ValueError(f"it counts {rows} rows")
    return rows


def _metadata(file: pq.ParquetFile) -> set[tuple[bytes, bytes]]:
    found: Mapping[bytes, bytes] = file.schema_arrow.metadata or {}
    return set(found.items())


def _identity(table_id: str, path: str, size: int) -> dict[bytes, bytes]:
    return {b"table_id": table_id.encode(), b"path": path.encode(), b"size": b"%d" % size}


def _name(table_id: str, path: str, size: int) -> str:
    return sha256(f"{table_id}\n{path}\n{size}".encode()).hexdigest()[:32] + ".parquet"
