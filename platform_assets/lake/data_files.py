"""Data files that a load has written, described by their Parquet footers."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from platform_assets.errors import PlatformError
from platform_assets.lake import load_log, parquet, rows
from platform_assets.lake.commits import NewFile
from platform_assets.lake.location import Folder
from platform_assets.model.logs import logger

_log = logger(__name__)

_NUMBERS: Final = ("kafka_partition", "kafka_offset")
_TIMESTAMP: Final = "kafka_timestamp"
_MICROS: Final = pa.timestamp("us", "UTC")


def written_files(table: Folder, below: str) -> tuple[NewFile, ...]:
    """Return the Parquet files with rows in the folder `below` of `table`, in order of their names."""
    names = sorted(name for name in table.files(below) if name.endswith(".parquet") and name[0] not in "._")
    found = (_described(table, f"{below}/{name}") for name in names)
    return tuple(file for file in found if file.rows)


def oldest_moment(table: Folder, below: str) -> int | None:
    """Return the oldest timestamp, in ms, of the rows in the folder `below` of `table`, by file statistics; None without rows."""
    oldest = []
    for name in table.files(below):
        if name.endswith(".parquet"):
            with table.open(f"{below}/{name}") as opened:
                footer = pq.ParquetFile(opened).metadata
            found = [g.statistics.min_raw for g in _columns(footer, _TIMESTAMP) if g.is_stats_set]
            oldest += [micros // 1000 for micros in found]
    return min(oldest, default=None)


def past_files(table: Folder, window: str, version: int, below: str) -> tuple[NewFile, ...]:
    """Return the files of a window at a past version, for a commit to name again. Raises FilesLostError if one is gone.

    A file that the newest version still names is copied into the folder `below`: a commit that replaces the window removes
    it, and may not add the same path.
    """
    named = set(load_log.files_of(table, window).paths)
    found = []
    for number, path in enumerate(load_log.files_of(table, window, version).paths):
        # A log's paths are percent-encoded.
        name = unquote(path)
        with rows.reading_files(table, window):
            if path in named:
                copy = f"{below}/part-{number:05}.parquet"
                table.copy(name, copy)
                name = copy
            found.append(_described(table, name))
    return tuple(found)


def blocks(
    table: Folder, path: str, window: str, rows_at_once: int, columns: list[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a window's data file, some at a time. `path` is in the form of the log. Raises FilesLostError."""
    with rows.reading_files(table, window), table.open(unquote(path)) as opened:
        yield from parquet.blocks(parquet.opened(opened), rows_at_once, columns)


def readable_rows(table: Folder, path: str) -> pa.Table | None:
    """Return the rows of a data file; None, with a log line, if it is missing or damaged. `path` is in the form of the log."""
    try:
        with table.reading(), table.open(unquote(path)) as opened:
            file = parquet.opened(opened)
            return file.read().cast(parquet.plain_schema(file))
    except (PlatformError, pa.ArrowException) as e:
        _log.warning("data file %s of %s cannot be read: %s", path, table.name, e)
        return None


def write_rows(table: Folder, path: str, found: pa.Table) -> None:
    """Write rows to a new data file; create its folder if needed. Raises LakeNotWritableError."""
    content = pa.BufferOutputStream()
    pq.write_table(found, content, compression="zstd")
    folder, _, name = path.rpartition("/")
    (table / folder).write(name, content.getvalue().to_pybytes())


def _described(table: Folder, path: str) -> NewFile:
    with table.reading(), table.open(path) as opened:
        footer = pq.ParquetFile(opened).metadata
        size = opened.size()
    return NewFile(path, size, footer.num_rows, _statistics(footer))


def _columns(footer: pq.FileMetaData, name: str) -> list[pq.ColumnChunkMetaData]:
    """Return a column's chunk in each row group."""
    (index,) = (i for i in range(footer.num_columns) if footer.schema.column(i).path == name)
    return [footer.row_group(g).column(index) for g in range(footer.num_row_groups)]


def _statistics(footer: pq.FileMetaData) -> dict[str, Any]:
    """Return the bounds of the rows' places and times over all row groups, in the form of Delta's log."""
    lowest: dict[str, Any] = {}
    highest: dict[str, Any] = {}
    for name in (*_NUMBERS, _TIMESTAMP):
        groups = [part.statistics for part in _columns(footer, name)]
        if not groups or any(s is None or not s.has_min_max for s in groups):
            continue
        if name == _TIMESTAMP:
            # In another unit, or as INT96, the statistics have different numbers.
            if footer.schema.to_arrow_schema().field(name).type != _MICROS:
                continue
            bounds = _timestamps([s.min_raw for s in groups], [s.max_raw for s in groups])
            if bounds is not None:
                lowest[name], highest[name] = bounds
        else:
            lowest[name], highest[name] = min(s.min for s in groups), max(s.max for s in groups)
    return {"minValues": lowest, "maxValues": highest, "nullCount": dict.fromkeys(lowest, 0)}


_LAST_TEXT_MICROS: Final = 253_402_300_800_000_000
"""The year 10000: texts of later times have years with more than four digits, which readers interpret differently."""


def _timestamps(lows: list[int], highs: list[int]) -> tuple[str, str] | None:
    """Return bounds in Delta's text form, which has milliseconds, like Kafka's timestamps; None if a text cannot express them."""
    low, high = min(lows), max(highs)
    if low < 0 or high >= _LAST_TEXT_MICROS:
        return None
    return _text(low), _text(high)


def _text(micros: int) -> str:
    seconds, rest = divmod(micros, 1_000_000)
    return f"{datetime.fromtimestamp(seconds, UTC).strftime('%Y-%m-%dT%H:%M:%S')}.{rest // 1000:03}Z"
