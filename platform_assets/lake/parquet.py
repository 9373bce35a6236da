"""Parquet files of any writer, read as the same rows: Spark's OPTIMIZE, delta-rs, DuckDB, polars and this platform write the
same column in different physical types.

It imports neither Delta nor Spark, so that Spark's Python workers load it quickly.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

_INT96: Final = "us"
"""INT96 has times that nanoseconds cannot represent: read as nanoseconds, they become other times without an error."""
READ_OPTIONS: Final = ds.ParquetReadOptions(coerce_int96_timestamp_unit=_INT96)
"""Options for datasets."""
_COLUMNS: Final = {"kafka_partition": pa.int32(), "kafka_offset": pa.int64(), "kafka_timestamp_type": pa.int32()}
"""Whole numbers that may have another width in files."""


def opened(source: Any, **options: Any) -> pq.ParquetFile:
    """Open a file for reading; its columns have the types of `plain_schema` once they are cast."""
    return pq.ParquetFile(source, coerce_int96_timestamp_unit=_INT96, **options)


def plain_schema(file: pq.ParquetFile) -> pa.Schema:
    """Return the columns of a file in the platform's types, whatever its writer."""
    leaves = iter([file.schema.column(n).physical_type for n in range(len(file.schema))])
    fields = [f.with_type(_plain(f.type, leaves)).remove_metadata() for f in file.schema_arrow]
    return pa.schema([f.with_type(_COLUMNS.get(f.name, f.type)) for f in fields])


def blocks(
    file: pq.ParquetFile, rows_at_once: int, columns: list[str] | None = None, *, groups: list[int] | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file from `opened`, some at a time, in the types of `plain_schema`."""
    whole = plain_schema(file)
    for block in file.iter_batches(rows_at_once, groups, columns, use_threads=False):
        yield block.cast(among(whole, block.schema))


def among(whole: pa.Schema, held: pa.Schema) -> pa.Schema:
    """Return the columns of `whole` that are in `held`, in the order of `held`."""
    return pa.schema([whole.field(name) for name in held.names])


def _plain(kind: pa.DataType, leaves: Iterator[str]) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([f.with_type(_plain(f.type, leaves)) for f in kind])
    if pa.types.is_map(kind):
        key, item = _plain(kind.key_type, leaves), _plain(kind.item_type, leaves)
        return pa.map_(key, kind.item_field.with_type(item))
    if _is_list(kind):
        return pa.list_(kind.value_field.with_type(_plain(kind.value_type, leaves)))
    is_instant = next(leaves) == "INT96"
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", "UTC" if is_instant or kind.tz is not None else None)
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind) or pa.types.is_fixed_size_binary(kind):
        return pa.binary()
    if pa.types.is_decimal(kind):
        return pa.decimal128(kind.precision, kind.scale)
    return kind


def _is_list(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_list(kind)
        or pa.types.is_large_list(kind)
        or pa.types.is_fixed_size_list(kind)
        or pa.types.is_list_view(kind)
    )
