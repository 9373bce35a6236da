"""Tables as datasets: files are opened without Python."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyarrow.fs import SubTreeFileSystem

from platform_assets.lake import datasets
from platform_assets.lake.location import Folder


@pytest.fixture
def table(tmp_path: Path) -> DeltaTable:
    rows = pa.table({"window": ["2026-03-01-00:00", "2026-03-01-00:01", "2026-03-01-00:01"], "number": [1, 2, 3]})
    write_deltalake(tmp_path / "a folder" / "raw", rows, partition_by=["window"])
    return Folder.at(tmp_path / "a folder" / "raw").delta()


def test_rows_are_all_of_them_or_those_of_one_partition(table: DeltaTable) -> None:
    assert sorted(datasets.of(table).to_table()["number"].to_pylist()) == [1, 2, 3]
    one = datasets.of(table, "window", "2026-03-01-00:01")
    assert sorted(one.to_table()["number"].to_pylist()) == [2, 3]
    assert len(one.files) == 1


def test_local_files_are_read_by_arrow_itself(table: DeltaTable) -> None:
    """If Arrow's threads needed Python, a process could abort at exit. Between 1 and 20 of 100 processes did, so a
    single run cannot show the problem."""
    files = datasets.of(table).filesystem
    assert isinstance(files, SubTreeFileSystem)
    assert files.base_fs.type_name == "local"
