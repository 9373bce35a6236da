"""Compression of data files: a column that the codec does not shrink is written uncompressed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from platform_assets.engines.columnar.columns import SCHEMA
from platform_assets.engines.shared.files import CONSTANT, COUNTING, FileSeries, codecs
from platform_assets.lake.files import files_at
from platform_assets.model.digest import Measured

SEED = 20261123
NOISE = random.Random(SEED).randbytes(1 << 20)


def block(values: Sequence[bytes | None], keys: Sequence[bytes | None] | None = None, first: int = 0) -> pa.RecordBatch:
    """Return rows of partition 0 with these values."""
    rows = len(values)
    columns = {
        "topic_id": ["an id"] * rows,
        "kafka_partition": [0] * rows,
        "kafka_offset": range(first, first + rows),
        "kafka_timestamp": [0] * rows,
        "kafka_timestamp_type": [0] * rows,
        "key": keys or [None] * rows,
        "value": values,
        "headers": [[{"key": "k", "value": b"v"}]] * rows,
    }
    return pa.RecordBatch.from_arrays(
        [pa.array(columns.get(f.name, [None] * rows), f.type) for f in SCHEMA], schema=SCHEMA
    )


def noise(size: int, rows: int) -> list[bytes]:
    """Return values that no codec can compress."""
    return [NOISE[at * size : (at + 1) * size] for at in range(rows)]


def text(size: int, rows: int) -> list[bytes]:
    """Return values that any codec can compress."""
    return [(b"%d flights from EWR to IAH " % at * size)[:size] for at in range(rows)]


@pytest.mark.parametrize(
    ("blocks", "plain"),
    [
        ([block(noise(172, 500))], {"value"}),
        ([block(text(172, 500))], set()),
        ([block(text(172, 500), noise(100, 500))], {"key"}),
        ([block(noise(172, 500), noise(8, 500))], {"value"}),  # in short keys, only the lengths can be compressed
        ([block([None] * 5)], set()),
        ([block([b""] * 5)], set()),
        ([block([None, *noise(172, 400), b""]).slice(1, 400)], {"value"}),
        ([block(noise(172, 100)), block(text(172, 400))], set()),
        ([block(noise(172, 400)), block(text(17, 20))], {"value"}),
    ],
)
def test_columns_that_the_codec_does_not_shrink_have_none(blocks: list[pa.RecordBatch], plain: set[str]) -> None:
    found = codecs(blocks, SCHEMA, "zstd", CONSTANT)

    if not plain:
        assert found == "zstd"
    else:
        assert isinstance(found, dict)
        assert {path for path, codec in found.items() if codec == "none"} == plain
        assert {codec for path, codec in found.items() if path not in plain} == {"zstd"}


def numbers(bits: int, rows: int, repeated: int = 1) -> list[int]:
    """Return random numbers of `bits` bits, generated from a fixed seed. They consist of `repeated` copies of the same
    sequence."""
    found = random.Random(SEED).choices(range(1 << bits), k=rows // repeated)
    return found * repeated


@pytest.mark.parametrize(
    ("columns", "plain"),
    [
        ({"a": numbers(11, 5_000), "b": numbers(11, 5_000, repeated=50)}, {"a"}),
        ({"a": numbers(40, 5_000), "b": [None] * 5_000}, {"a", "b"}),  # there is nothing to shrink
        ({"a": [n if n % 3 else None for n in numbers(11, 5_000)], "b": [7] * 5_000}, {"a"}),
        ({"a": numbers(11, 5_000, repeated=50), "b": numbers(9, 5_000, repeated=25)}, set()),
        ({"a": [], "b": []}, set()),
    ],
)
def test_differences_that_the_codec_does_not_shrink_have_none(columns: dict[str, list[int]], plain: set[str]) -> None:
    """The codec is tried only on columns that are written as differences. The column `other` contains the same numbers
    as `a`, but keeps the codec."""
    schema = pa.schema([("a", pa.int64()), ("b", pa.int64()), ("other", pa.int64())])
    rows = pa.RecordBatch.from_pydict(columns | {"other": columns["a"]}, schema)

    found = codecs([rows.slice(0, 2_000), rows.slice(2_000)], schema, "zstd", (), ("a", "b"))

    assert found == ({**dict.fromkeys(schema.names, "zstd"), **dict.fromkeys(plain, "none")} if plain else "zstd")


@pytest.mark.parametrize(("values", "codec"), [(noise(172, 3_000), "UNCOMPRESSED"), (text(172, 3_000), "ZSTD")])
def test_files_are_written_so_and_read_back(values: list[bytes], codec: str, tmp_path: Path) -> None:
    """Keys and headers keep the codec, down to the leaves of the headers, and later rows are treated like the first
    rows.

    Other columns take only a handful of bytes and have no codec. Numbers written as differences are like that only if
    they increase by a constant step.
    """
    series = FileSeries(
        files_at(str(tmp_path)), "w", "0", 1, row_group_bytes=200_000, measure=lambda _: Measured.of_nothing()
    )
    rows = [block(values[at : at + 500], first=at) for at in range(0, 3_000, 500)]
    for each in rows:
        series.add(each)
    series.close()

    path = tmp_path / series.written[0].path
    metadata = pq.ParquetFile(path).metadata
    chunks = [
        metadata.row_group(g).column(c) for g in range(metadata.num_row_groups) for c in range(metadata.num_columns)
    ]
    assert metadata.num_row_groups > 1
    assert {c.compression for c in chunks if c.path_in_schema == "value"} == {codec}
    assert {c.compression for c in chunks if c.path_in_schema in CONSTANT} == {"UNCOMPRESSED"}
    assert {c.compression for c in chunks if c.path_in_schema not in {"value", *COUNTING, *CONSTANT}} == {"ZSTD"}
    assert any(c.path_in_schema.startswith("headers.") for c in chunks)
    assert pq.read_table(path, schema=SCHEMA).equals(pa.Table.from_batches(rows))


@pytest.mark.parametrize("keys_later", [False, True])
def test_columns_without_values_have_no_codec_in_files_of_one_row_group(keys_later: bool, tmp_path: Path) -> None:
    """In a longer file, later rows may have values, and these must be compressed."""
    series = FileSeries(
        files_at(str(tmp_path)),
        "w",
        "0",
        1,
        row_group_bytes=50_000 if keys_later else 1 << 20,
        measure=lambda _: Measured.of_nothing(),
    )
    rows = [block(text(172, 500)), block(text(172, 500), [b"key"] * 500 if keys_later else None, first=500)]
    for each in rows:
        series.add(each)
    series.close()

    path = tmp_path / series.written[0].path
    metadata = pq.ParquetFile(path).metadata
    assert metadata.num_row_groups == (2 if keys_later else 1)
    group = metadata.row_group(metadata.num_row_groups - 1)
    chunks = {c.path_in_schema: c.compression for c in map(group.column, range(group.num_columns))}
    assert chunks["value"] == "ZSTD"
    assert chunks["key"] == ("ZSTD" if keys_later else "UNCOMPRESSED")
    assert pq.read_table(path, schema=SCHEMA).equals(pa.Table.from_batches(rows))


def test_a_file_that_is_discarded_before_its_first_row_group_leaves_nothing(tmp_path: Path) -> None:
    series = FileSeries(files_at(str(tmp_path)), "w", "0", 1, measure=lambda _: Measured.of_nothing())
    series.add(block(noise(172, 5)))
    series.discard()

    assert not list(tmp_path.rglob("*.parquet"))
