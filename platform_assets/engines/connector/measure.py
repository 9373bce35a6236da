"""Reading windows of a table again with Spark. One query reads many windows and returns one result for each window."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from platform_assets.engines.connector import raw
from platform_assets.engines.protocol import NO_ROWS
from platform_assets.engines.shared import failures
from platform_assets.errors import FilesLostError, PlatformError
from platform_assets.lake.location import Lake
from platform_assets.model.digest import Measured, mark_of
from platform_assets.model.tables import TableRef

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.connect.session import SparkSession
    from pyspark.sql.types import DataType


_LEFT_OUT: Final = frozenset({"topic_id", "window"})
_IDENTITY: Final = 2
"""Number of columns for the partition and the offset. These columns come first and have no null marks."""


def measure_windows(frame: DataFrame) -> dict[str, Measured]:
    """Map each window key in `frame` to the window's digests. The digests cover all columns, in order, except the
    columns that are constant within a window."""
    from pyspark.sql import functions as F

    columns = [name for name in frame.columns if name not in _LEFT_OUT]
    hashes = {"offsets": F.xxhash64("kafka_partition", "kafka_offset"), "content": row_hash(frame, columns, _IDENTITY)}
    return raw.measured_by_window(frame, raw.sums_of(hashes))


def row_hash(frame: DataFrame, columns: Sequence[str], unmarked: int = 0) -> Column:
    """Return the hash of a row over `columns`. Each value that is not null is preceded by a mark of its column, except those of
    the first `unmarked` columns."""
    from pyspark.sql import functions as F

    chain: list[Column] = []
    for number, name in enumerate(columns):
        # Unquoted, a dot in a name would refer to a field of a struct.
        column = F.col(f"`{name.replace('`', '``')}`")
        value = _hashed(column, frame.schema[name].dataType)
        mark = [F.when(column.isNotNull(), F.lit(mark_of(name)).cast("long"))] if number >= unmarked else []
        chain += [*mark, value]
    return F.xxhash64(*chain)


def _hashed(column: Column, kind: DataType) -> Column:
    """Return the column in the form in which it is hashed. Spark cannot hash maps, so a map at any depth becomes the
    array of its entries."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import ArrayType, MapType, StructType

    if not _has_map(kind):
        return column
    if isinstance(kind, MapType):
        value = kind.valueType
        return F.transform(
            F.map_entries(column), lambda e: F.struct(e["key"], _hashed(e["value"], value).alias("value"))
        )
    if isinstance(kind, ArrayType):
        element = kind.elementType
        return F.transform(column, lambda e: _hashed(e, element))
    assert isinstance(kind, StructType), "nothing else holds a map"
    fields = [_hashed(column[f.name], f.dataType).alias(f.name) for f in kind.fields]
    return F.when(column.isNotNull(), F.struct(*fields))


def _has_map(kind: DataType) -> bool:
    from pyspark.sql.types import ArrayType, MapType, StructType

    if isinstance(kind, StructType):
        return any(_has_map(field.dataType) for field in kind.fields)
    return isinstance(kind, MapType) or (isinstance(kind, ArrayType) and _has_map(kind.elementType))


def measure_each(
    spark: Callable[[], SparkSession], lake: Lake, table: TableRef, keys: list[str], version: int
) -> Iterator[tuple[str, Measured | PlatformError]]:
    """Yield the digests of each window of `table` at `version`, or an error, in the order of `keys`.

    If files are lost, the query is halved repeatedly until it is clear which windows these files belong to.
    """
    found = _read(spark, lake, table, keys, version)
    if isinstance(found, FilesLostError) and len(keys) > 1:
        half = len(keys) // 2
        yield from measure_each(spark, lake, table, keys[:half], version)
        yield from measure_each(spark, lake, table, keys[half:], version)
    elif isinstance(found, PlatformError):
        yield from ((key, found) for key in keys)
    else:
        yield from ((key, found.get(key, NO_ROWS)) for key in keys)


def _read(
    spark: Callable[[], SparkSession], lake: Lake, table: TableRef, keys: list[str], version: int
) -> dict[str, Measured] | PlatformError:
    from grpc import RpcError
    from pyspark.errors import PySparkException

    try:
        frame = raw.windows_frame(spark(), lake.table(table), keys, version)
        return raw.measure_windows(frame) if table.kind == "raw" else measure_windows(frame)
    except (PySparkException, RpcError) as error:
        span = keys[0] if len(keys) == 1 else f"{min(keys)}..{max(keys)}"
        return failures.to_platform_error(error, table, span, str(lake))
    except PlatformError as error:
        return error
