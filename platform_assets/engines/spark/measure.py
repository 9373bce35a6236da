"""Reading windows of a raw table again with Spark: many of them in one query, and each with an answer of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final, TypeVar

from platform_assets.engines.spark import failures, raw
from platform_assets.errors import FilesLostError, PlatformError
from platform_assets.lake.location import Lake
from platform_assets.model.digest import Digest
from platform_assets.model.tables import TableRef

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

_BATCH_WINDOWS: Final = 200
_BATCH_ROWS: Final = 10_000_000
"""What is read in one query: some seconds' worth, so that callers get a word in between two."""
_NOTHING: Final = raw.Measured(Digest(0, 0), Digest(0, 0))

T = TypeVar("T")


def read_together(windows: Iterable[T], rows: Callable[[T], int]) -> Iterator[list[T]]:
    """Batches in the order given: a query costs some tenths of a second, whatever it reads. Pure.

    `rows` says how many rows a window is expected to have.
    """
    batch: list[T] = []
    rows_in_batch = 0
    for window in windows:
        if batch and (len(batch) == _BATCH_WINDOWS or rows_in_batch + rows(window) > _BATCH_ROWS):
            yield batch
            batch, rows_in_batch = [], 0
        batch.append(window)
        rows_in_batch += rows(window)
    if batch:
        yield batch


def measure_each(
    spark: Callable[[], SparkSession], lake: Lake, table: TableRef, keys: list[str], version: int
) -> Iterator[tuple[str, raw.Measured | PlatformError]]:
    """What `table` holds of each window at `version`, or why that cannot be told, in the order of `keys`.

    Lost files are put to the windows they are of, by halves.
    """
    found = _read(spark, lake, table, keys, version)
    if isinstance(found, FilesLostError) and len(keys) > 1:
        half = len(keys) // 2
        yield from measure_each(spark, lake, table, keys[:half], version)
        yield from measure_each(spark, lake, table, keys[half:], version)
    elif isinstance(found, PlatformError):
        yield from ((key, found) for key in keys)
    else:
        yield from ((key, found.get(key, _NOTHING)) for key in keys)


def _read(
    spark: Callable[[], SparkSession], lake: Lake, table: TableRef, keys: list[str], version: int
) -> dict[str, raw.Measured] | PlatformError:
    from grpc import RpcError
    from pyspark.errors import PySparkException

    try:
        return raw.measure_windows(raw.windows_frame(spark(), lake.table(table), keys, version))
    except (PySparkException, RpcError) as error:
        told = keys[0] if len(keys) == 1 else f"{min(keys)}..{max(keys)}"
        return failures.named(error, table, told, str(lake))
    except PlatformError as error:
        return error
