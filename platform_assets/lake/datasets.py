"""Delta tables as Arrow datasets."""

from __future__ import annotations

import functools
import operator
from typing import Final
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable
from deltalake.fs import DeltaStorageHandler
from pyarrow.fs import FileSystem, LocalFileSystem, PyFileSystem, SubTreeFileSystem

from platform_assets.lake import object_files, parquet

_LOCAL: Final = LocalFileSystem()


def of(table: DeltaTable, column: str | None = None, value: str = "") -> ds.Dataset:
    """Return the rows of a table. With `column`, only read files whose rows may have `value` in this column, according
    to partition or statistics.

    Arrow itself reads the files of a local table. delta-rs's file system is written in Python: one of Arrow's threads
    may still need Python while the process ends, and the process then aborts although everything was read:
    delta-io/delta-rs#2184, pola-rs/polars#24169.
    """
    is_local = urlsplit(table.table_uri).scheme in ("", "file")
    local = SubTreeFileSystem(path_of(table), _LOCAL) if is_local else None
    if "deletionVectors" in (table.protocol().reader_features or ()):
        return _of_plain_files(table, local, column, value)
    only = None if column is None else [(column, "=", value)]
    return table.to_pyarrow_dataset(
        filesystem=local, parquet_read_options=parquet.READ_OPTIONS, file_pruning_predicate=only
    )


def _of_plain_files(table: DeltaTable, local: FileSystem | None, column: str | None, value: str) -> ds.Dataset:
    """Return the rows of a table that has the deletion-vector feature but no deletion vectors. delta-rs refuses such a
    table."""
    files = local or PyFileSystem(DeltaStorageHandler(table.table_uri, object_files.for_delta()))
    schema, kind = pa.schema(table.schema().to_arrow()), ds.ParquetFileFormat(read_options=parquet.READ_OPTIONS)
    actions = pa.table(table.get_add_actions(flatten=True))
    names = [name for name in actions.column_names if name.startswith("partition.")]
    by_partition = f"partition.{column}" in names
    found = []
    for action in actions.select(["path", *names]).to_pylist():
        values = {name.removeprefix("partition."): action[name] for name in names}
        # If the table is not partitioned, the reader of the dataset selects the rows.
        if not by_partition or values[column or ""] == value:
            parts = [pc.field(name) == pa.scalar(held, schema.field(name).type) for name, held in values.items()]
            where = functools.reduce(operator.and_, parts, pc.scalar(True))
            found.append(kind.make_fragment(unquote(action["path"]), filesystem=files, partition_expression=where))
    return ds.FileSystemDataset(found, schema, kind, files)


def path_of(table: DeltaTable) -> str:
    """Return the path of a table's folder, in its store or on the file system."""
    return unquote(urlsplit(table.table_uri).path).rstrip("/")
