"""Encodings of copies, which follow those of their sources."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from platform_assets.lake.row_copies import _encodings

COLUMNS = pa.schema(
    [
        ("short", pa.decimal128(9, 2)),
        ("long", pa.decimal128(18, 0)),
        ("number", pa.int64()),
        ("day", pa.date32()),
        ("text", pa.string()),
    ]
)


def table(rows: int) -> pa.Table:
    values = {
        "short": [Decimal(i) / 4 for i in range(rows)],
        "long": [Decimal(i) for i in range(rows)],
        "number": list(range(rows)),
        "day": pa.array(range(rows), pa.int32()).cast(pa.date32()),
        "text": [f"text {i % 7}" for i in range(rows)],
    }
    return pa.table(values, schema=COLUMNS)


def copy(source: pa.Table, like: Path, to: Path) -> pq.FileMetaData:
    with pq.ParquetWriter(to, source.schema, **_encodings(source.schema, pq.read_metadata(like))) as writer:
        writer.write_table(source)
    assert pq.read_table(to).equals(source)
    return pq.read_metadata(to)


def chunk(file: pq.FileMetaData, column: str) -> pq.ColumnChunkMetaData:
    return file.row_group(0).column(COLUMNS.names.index(column))


def test_decimals_that_another_writer_stored_as_encoded_integers_can_be_copied(tmp_path: Path) -> None:
    rows, like = table(1_000), tmp_path / "like.parquet"
    pq.write_table(
        rows,
        like,
        store_decimal_as_integer=True,
        use_dictionary=False,
        column_encoding=dict.fromkeys(("short", "long", "number", "day"), "DELTA_BINARY_PACKED"),
    )
    assert "DELTA_BINARY_PACKED" in chunk(pq.read_metadata(like), "short").encodings

    copied = copy(rows, like, tmp_path / "copy.parquet")

    assert "DELTA_BINARY_PACKED" in chunk(copied, "number").encodings
    assert "DELTA_BINARY_PACKED" in chunk(copied, "day").encodings
    assert "DELTA_BINARY_PACKED" not in chunk(copied, "long").encodings


@pytest.mark.parametrize(("rows", "codec"), [(1, "ZSTD"), (20_000, "UNCOMPRESSED")])
def test_a_column_stays_uncompressed_only_if_many_of_its_values_did(tmp_path: Path, rows: int, codec: str) -> None:
    like = tmp_path / "like.parquet"
    codecs = {name: "none" if name == "long" else "zstd" for name in COLUMNS.names}
    pq.write_table(table(rows), like, compression=codecs)
    assert chunk(pq.read_metadata(like), "long").compression == "UNCOMPRESSED"

    copied = copy(table(20_000), like, tmp_path / "copy.parquet")

    assert chunk(copied, "long").compression == codec
    assert chunk(copied, "text").compression == "ZSTD"
