"""Delta tables as datasets of Arrow."""

from __future__ import annotations

from typing import Final
from urllib.parse import unquote, urlsplit

import pyarrow.dataset as ds
from deltalake import DeltaTable
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

from platform_assets.lake import parquet

_LOCAL: Final = LocalFileSystem()


def of(table: DeltaTable, column: str | None = None, value: str = "") -> ds.Dataset:
    """The rows of a table; with `column`, a partition column, of those files alone whose rows have `value` in it.

    A local table's files are read by Arrow itself. Through delta-rs's file system, which is in Python, one of Arrow's
    threads may still want Python while the process ends, which then aborts though all was read: delta-io/delta-rs#2184,
    pola-rs/polars#24169.
    """
    is_local = urlsplit(table.table_uri).scheme in ("", "file")
    local = SubTreeFileSystem(path_of(table), _LOCAL) if is_local else None
    only = None if column is None else [(column, "=", value)]
    return table.to_pyarrow_dataset(
        filesystem=local, parquet_read_options=parquet.READ_OPTIONS, file_pruning_predicate=only
    )


def path_of(table: DeltaTable) -> str:
    """The path of a table's folder, in its store or on the file system."""
    return unquote(urlsplit(table.table_uri).path).rstrip("/")
