"""Reading windows of a table again with Spark: many in one query, but with one result each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from platform_assets.engines.protocol import NO_ROWS
from platform_assets.engines.spark import failures, raw, typed
from platform_assets.errors import FilesLostError, PlatformError
from platform_assets.lake.location import Lake
from platform_assets.model.digest import Measured
from platform_assets.model.tables import TableRef

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession


def measure_each(
    spark: Callable[[], SparkSession], lake: Lake, table: TableRef, keys: list[str], version: int
) -> Iterator[tuple[str, Measured | PlatformError]]:
    """Yield the digests of each window of `table` at `version`, or the error, in the order of `keys`.

    If files are lost, halving the query finds the windows that they belong to.
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
        return raw.measure_windows(frame) if table.kind == "raw" else typed.measure_windows(frame)
    except (PySparkException, RpcError) as error:
        span = keys[0] if len(keys) == 1 else f"{min(keys)}..{max(keys)}"
        return failures.to_platform_error(error, table, span, str(lake))
    except PlatformError as error:
        return error
