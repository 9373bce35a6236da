"""Data files that a load has written: what their Parquet footers say of them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import unquote

import pyarrow.parquet as pq

from platform_assets.lake import load_log, rows
from platform_assets.lake.commits import NewFile
from platform_assets.lake.location import Folder

_NUMBERS: Final = ("kafka_partition", "kafka_offset")
_TIMESTAMP: Final = "kafka_timestamp"


def written_files(table: Folder, below: str) -> tuple[NewFile, ...]:
    """The Parquet files in the folder `below` of `table` that hold rows, in order of their names."""
    names = sorted(name for name in table.files(below) if name.endswith(".parquet") and name[0] not in "._")
    found = (_described(table, f"{below}/{name}") for name in names)
    return tuple(file for file in found if file.rows)


def past_files(table: Folder, window: str, version: int, below: str) -> tuple[NewFile, ...]:
    """The files of a window at a past version, to be named by a commit again. Raises FilesLostError where one is gone.

    One that the newest version still names is copied into the folder `below`: a commit that replaces the window removes it,
    and may not add the same path.
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


def _described(table: Folder, path: str) -> NewFile:
    with table.reading(), table.open(path) as opened:
        footer = pq.ParquetFile(opened).metadata
        size = opened.size()
    return NewFile(path, size, footer.num_rows, _statistics(footer))


def _statistics(footer: pq.FileMetaData) -> dict[str, Any]:
    """Bounds of a row's place and time over all row groups, as Delta's log has them."""
    columns = {footer.schema.column(i).path: i for i in range(footer.num_columns)}
    lowest: dict[str, Any] = {}
    highest: dict[str, Any] = {}
    for name in (*_NUMBERS, _TIMESTAMP):
        groups = [footer.row_group(g).column(columns[name]).statistics for g in range(footer.num_row_groups)]
        if not groups or any(s is None or not s.has_min_max for s in groups):
            continue
        if name == _TIMESTAMP:
            bounds = _timestamps([s.min_raw for s in groups], [s.max_raw for s in groups])
            if bounds is not None:
                lowest[name], highest[name] = bounds
        else:
            lowest[name], highest[name] = min(s.min for s in groups), max(s.max for s in groups)
    return {"minValues": lowest, "maxValues": highest, "nullCount": dict.fromkeys(lowest, 0)}


_LAST_TEXT_MICROS: Final = 253_402_300_800_000_000
"""The year 10000: texts of later times have more than four digits for the year, which readers take in different ways."""


def _timestamps(lows: list[int], highs: list[int]) -> tuple[str, str] | None:
    """Bounds in Delta's text form, which has milliseconds, as Kafka's timestamps do; None where a text cannot say them."""
    low, high = min(lows), max(highs)
    if low < 0 or high >= _LAST_TEXT_MICROS:
        return None
    return _text(low), _text(high)


def _text(micros: int) -> str:
    seconds, rest = divmod(micros, 1_000_000)
    return f"{datetime.fromtimestamp(seconds, UTC).strftime('%Y-%m-%dT%H:%M:%S')}.{rest // 1000:03}Z"
