"""Counts, bounds and offsets of a window's rows, from statistics and from reading, compared with plain lists."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from platform_assets.errors import FilesLostError
from platform_assets.lake import holdings, load_log, rows
from platform_assets.lake.location import Folder
from platform_assets.lake.rows import PartitionRows
from platform_assets.model.offsets import OffsetRange, ranges_of
from testbed import samples

KEY, OTHER = "2026-01-01-00:00", "2026-01-01-01:00"

Offsets = dict[int, list[int]]


def put(root: Path, *files: Offsets, key: str = KEY) -> Path:
    """Write one data file for each of `files`."""
    for offsets in files:
        samples.append(root, "t", samples.rows(key, offsets))
    return root / "raw" / "t"


def some_offsets(rng: random.Random) -> Offsets:
    """Return unsorted offsets in several partitions, with duplicates."""
    return {p: [rng.randrange(30) for _ in range(rng.randrange(1, 15))] for p in rng.sample(range(5), rng.randrange(4))}


def bounds(*files: Offsets) -> dict[int, PartitionRows]:
    together: dict[int, list[int]] = {}
    for offsets in files:
        for partition, some in offsets.items():
            together.setdefault(partition, []).extend(some)
    return {p: PartitionRows(len(o), min(o), max(o)) for p, o in together.items() if o}


def statistics(table: Path, key: str = KEY) -> list[dict[str, Any]]:
    return holdings.files_at(Folder.at(table), key, load_log.version(Folder.at(table)))[1]


def plain(found: dict[int, np.ndarray[Any, np.dtype[np.int64]]]) -> Offsets:
    return {p: o.tolist() for p, o in found.items()}


def test_statistics_tell_counts_and_bounds_where_each_file_holds_one_partition(tmp_path: Path) -> None:
    files: list[Offsets] = [{0: [3, 1, 2]}, {1: [7]}, {0: [9]}, {2: [2**62]}]
    table = put(tmp_path, *files)
    put(tmp_path, {0: [99]}, key=OTHER)
    assert rows.from_statistics(statistics(table)) == bounds(*files)
    assert rows.from_statistics(statistics(table, "2026-01-01-05:00")) == {}


def test_statistics_tell_nothing_where_a_file_mixes_partitions_or_has_none(tmp_path: Path) -> None:
    table = put(tmp_path, {0: [3]}, {0: [1], 1: [2]})
    assert rows.from_statistics(statistics(table)) is None
    bare = {"num_records": 3, "min.kafka_partition": None, "max.kafka_partition": None}
    assert rows.from_statistics([bare]) is None
    assert rows.from_statistics([{**bare, "num_records": 0}]) == {}
    one = {"num_records": 3, "min.kafka_partition": 1, "max.kafka_partition": 1, "min.kafka_offset": None}
    assert rows.from_statistics([one]) is None


def test_reading_tells_what_is_there(tmp_path: Path, rng: random.Random) -> None:
    """Two ways of reading are tested, over files that mix partitions and have duplicates within and across files."""
    files = [some_offsets(rng) for _ in range(4)]
    table = put(tmp_path, *files)
    put(tmp_path, some_offsets(rng), key=OTHER)
    together: dict[int, list[int]] = {}
    for offsets in files:
        for partition, some in offsets.items():
            together.setdefault(partition, []).extend(some)
    assert rows.Opened.at(Folder.at(table)).partition_rows(KEY) == bounds(*files)
    assert plain(rows.offsets_of(Folder.at(table), KEY)) == {p: sorted(o) for p, o in sorted(together.items())}


def test_an_empty_window_has_no_rows(tmp_path: Path) -> None:
    table = put(tmp_path, {0: [1]})
    assert rows.Opened.at(Folder.at(table)).partition_rows(OTHER) == {}
    assert plain(rows.offsets_of(Folder.at(table), OTHER)) == {}


def test_an_earlier_version_is_read_as_it_was(tmp_path: Path) -> None:
    table = put(tmp_path, {0: [1, 2, 3]})
    version = DeltaTable(table).version()
    DeltaTable(table).delete("kafka_offset = 2")
    assert plain(rows.offsets_of(Folder.at(table), KEY)) == {0: [1, 3]}
    assert plain(rows.offsets_of(Folder.at(table), KEY, version)) == {0: [1, 2, 3]}
    assert rows.Opened.at(Folder.at(table), version).partition_rows(KEY) == {0: PartitionRows(3, 1, 3)}


def test_offsets_in_plain_files(tmp_path: Path) -> None:
    """The folder also contains the files that Spark leaves next to its data."""
    folder = tmp_path / "staging"
    folder.mkdir()
    pq.write_table(samples.rows(KEY, {1: [5, 4]}), folder / "part-0.parquet")
    pq.write_table(samples.rows(KEY, {0: [2], 1: [9]}), folder / "part-1.parquet")
    (folder / "_SUCCESS").touch()
    assert plain(rows.offsets_in_files(Folder.at(folder))) == {0: [2], 1: [4, 5, 9]}


def test_a_data_file_that_is_gone_is_an_error_and_no_gap(tmp_path: Path) -> None:
    table = put(tmp_path, {0: [1, 2]})
    (file,) = holdings.files_of(Folder.at(table), KEY).paths
    (table / unquote(file)).unlink()
    opened = rows.Opened.at(Folder.at(table))
    for read in (lambda: rows.offsets_of(Folder.at(table), KEY), lambda: opened.partition_rows(KEY)):
        with pytest.raises(FilesLostError, match=r"data files of window .* are missing or damaged: .*parquet"):
            read()


def test_differences_are_named_as_ranges(rng: random.Random) -> None:
    left = {p: np.array(sorted(rng.sample(range(30), 12)), dtype=np.int64) for p in (0, 1, 4)}
    right = {p: np.array(sorted(rng.sample(range(30), 25)), dtype=np.int64) for p in (0, 1, 3)}
    found = rows.difference(left, right)
    for partition, offsets in left.items():
        lacking = set(offsets.tolist()) - set(right.get(partition, np.array([], dtype=np.int64)).tolist())
        assert found.get(partition, ()) == ranges_of(lacking)
    assert rows.difference(left, left) == {}
    assert rows.named({0: (OffsetRange(1, 3), OffsetRange(5, 6)), 4: (OffsetRange(0, 1),)}) == (
        "partition 0 offsets [1, 3), partition 0 offsets [5, 6), partition 4 offsets [0, 1)"
    )
    assert rows.named({}) == ""


def test_a_batch_is_split_by_partition() -> None:
    batch = pa.record_batch(
        {"kafka_partition": pa.array([1, 0, 1], pa.int32()), "kafka_offset": pa.array([5, 6, 7], pa.int64())}
    )
    assert {p: o.tolist() for p, o in rows.split_by_partition(batch)} == {0: [6], 1: [5, 7]}
