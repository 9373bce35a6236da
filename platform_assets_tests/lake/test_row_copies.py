"""Copies of rows: which rows they have, and their encodings, which follow those of their sources."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from platform_assets.engines.measuring import measure_of
from platform_assets.lake.delta_log import DataFile
from platform_assets.lake.field_ids import NO_IDS
from platform_assets.lake.location import Folder
from platform_assets.lake.row_copies import _encodings, copied

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


WINDOWS = ["2026-01-01-00:00", None, "2026-01-01-01:00", "2026-01-01-02:00"]


def stored(kind: pa.DataType, name: str, values: list[str | None]) -> tuple[pa.Field, pa.Array]:
    return pa.field(name, kind), pa.array(values, pa.string()).cast(kind)


@pytest.mark.parametrize("has_dictionaries", [True, False])
@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())], ids=str
)
def test_a_copy_has_the_rows_of_all_other_windows_whoever_wrote_the_source(
    tmp_path: Path, kind: pa.DataType, has_dictionaries: bool
) -> None:
    windows = [window for window in WINDOWS for _ in range(500)]
    count = len(windows)
    header = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    columns = [
        stored(kind, "topic_id", ["a" if i % 3 else "b" for i in range(count)]),
        (pa.field("kafka_partition", pa.int32()), pa.array([0] * count, pa.int32())),
        (pa.field("kafka_offset", pa.int64()), pa.array(range(count))),
        (pa.field("kafka_timestamp", pa.timestamp("us", "UTC")), pa.array(range(count), pa.timestamp("us", "UTC"))),
        (pa.field("kafka_timestamp_type", pa.int32()), pa.array([0] * count, pa.int32())),
        (pa.field("key", pa.binary()), pa.nulls(count, pa.binary())),
        (pa.field("value", pa.binary()), pa.array([b"%d" % i for i in range(count)])),
        (pa.field("headers", header), pa.nulls(count, header)),
        stored(kind, "window", windows),
    ]
    rows = pa.Table.from_arrays([values for _, values in columns], schema=pa.schema([field for field, _ in columns]))
    source = tmp_path / "source.parquet"
    pq.write_table(rows, source, row_group_size=700, use_dictionary=has_dictionaries)
    file = DataFile("source.parquet", {}, source.stat().st_size, None)

    kept = copied(Folder.at(tmp_path), [file], "2026-01-01-01:00", measure_of("raw"), NO_IDS, 0)

    (new,) = kept.files
    copy = pq.read_table(tmp_path / new.path)
    names = ["topic_id", "kafka_offset", "value", "window"]
    others = [row for row in rows.select(names).to_pylist() if row["window"] != "2026-01-01-01:00"]
    assert copy.select(names).to_pylist() == others
    assert not kept.lost
    assert copy.schema.field("window").type == pa.string()
