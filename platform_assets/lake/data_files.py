"""Data files written by a load, described by their Parquet footers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from platform_assets.errors import PlatformError
from platform_assets.lake import column_bounds, failures, holdings, parquet
from platform_assets.lake.field_ids import FieldIds, has_ids, ids_of
from platform_assets.lake.location import Folder
from platform_assets.lake.remembered import Remembered
from platform_assets.model.logs import logger

_log = logger(__name__)

_NUMBERS: Final = ("kafka_partition", "kafka_offset")
_TIMESTAMP: Final = "kafka_timestamp"
_MICROS: Final = pa.timestamp("us", "UTC")
_BLOCK_ROWS: Final = 1 << 16
_BYTES_A_FILE: Final = 256
_lacking: Remembered[tuple[Folder, str], bool] = Remembered(1 << 20)


@dataclass(frozen=True, slots=True)
class NewFile:
    """A data file that was written but to which no commit refers yet.

    `path` is relative to the table's folder and not percent-encoded; `statistics` are in Delta's form (`minValues`,
    `maxValues`, `nullCount`).
    """

    path: str
    bytes: int
    rows: int
    statistics: Mapping[str, Any]


def written_files(table: Folder, below: str) -> tuple[NewFile, ...]:
    """Return the Parquet files with rows in the folder `below` of `table`, in the order of their names."""
    names = sorted(name for name in table.files(below) if name.endswith(".parquet") and name[0] not in "._")
    found = (_described(table, f"{below}/{name}") for name in names)
    return tuple(file for file in found if file.rows)


def oldest_moment(table: Folder, below: str) -> int | None:
    """Return the oldest timestamp, in ms, of the rows in the folder `below` of `table`, from file statistics; None if
    there are no rows."""
    oldest = []
    for name in table.files(below):
        if name.endswith(".parquet"):
            with table.open(f"{below}/{name}") as opened:
                footer = pq.ParquetFile(opened).metadata
            found = [g.statistics.min_raw for g in _columns(footer, _TIMESTAMP) if g.is_stats_set]
            oldest += [micros // 1000 for micros in found]
    return min(oldest, default=None)


def past_files(table: Folder, window: str, version: int, below: str, *, flat: bool) -> tuple[NewFile, ...]:
    """Return the files of a window in a past version, so that a commit can refer to them again. Raises FilesLostError
    if one of them no longer exists.

    A file that the newest version still lists is copied into the folder `below`, because a commit that replaces the
    window removes the file, and must not add the same path. If a file also contains other windows, only the rows of
    this window are copied. `flat` is true if the table is flat now, so that its files have a window column.
    """
    named = set(holdings.files_of(table, window).paths)
    past = holdings.files_of(table, window, version)
    found = []
    for number, path in enumerate(past.paths):
        # Paths in the Delta log are percent-encoded.
        name = unquote(path)
        copy = f"{below}/part-{number:05}.parquet"
        with failures.reading_files(table, window):
            if path in past.shared or _has_windows(table, name) != flat:
                write_rows(table, copy, _rows(table, name, window), window if flat else None)
                name = copy
            elif path in named:
                table.copy(name, copy)
                name = copy
            found.append(_described(table, name))
    return tuple(file for file in found if file.rows)


def _has_windows(table: Folder, name: str) -> bool:
    with table.open(name) as opened:
        return parquet.WINDOW in pq.ParquetFile(opened).schema_arrow.names


def blocks_by_window(
    table: Folder, path: str, windows: Sequence[str], rows_at_once: int, columns: list[str]
) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yield the rows of a data file by window, in blocks; `windows` are the windows in the file. Raises FilesLostError."""
    if len(windows) == 1:
        yield from ((windows[0], block) for block in blocks(table, path, windows[0], rows_at_once, columns))
        return
    with failures.reading_files(table, windows[0]), table.open(unquote(path)) as opened:
        for block in parquet.blocks(parquet.opened(opened), rows_at_once, [*columns, parquet.WINDOW]):
            for window in pc.unique(block[parquet.WINDOW]).to_pylist():
                keys = block[parquet.WINDOW]
                # A comparison with null would omit rows without a window.
                of_window = pc.is_null(keys) if window is None else pc.equal(keys, window)
                yield window or "", block.filter(of_window).select(columns)


def _rows(table: Folder, name: str, window: str) -> pa.Table:
    """Return the rows of a window in a data file, given by its name, which is not percent-encoded."""
    with table.open(name) as opened:
        file = parquet.opened(opened)
        found = list(parquet.blocks(file, _BLOCK_ROWS, window=window))
        return pa.Table.from_batches(found, parquet.plain_schema(file))


def blocks(
    table: Folder, path: str, window: str, rows_at_once: int, columns: list[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a window in a data file, in blocks. `path` is in the form that the log uses. Raises
    FilesLostError."""
    with failures.reading_files(table, window), table.open(unquote(path)) as opened:
        yield from parquet.blocks(parquet.opened(opened), rows_at_once, columns, window=window)


def readable_rows(table: Folder, path: str, window: str) -> pa.Table | None:
    """Return the rows of a window in a data file. If the file is missing or damaged, log this and return None.

    `path` is in the form that the log uses.
    """
    try:
        with table.reading():
            return _rows(table, unquote(path), window)
    except (PlatformError, pa.ArrowException) as e:
        _log.warning("data file %s of %s cannot be read: %s", path, table.name, e)
        return None


def columns_of(table: Folder) -> pa.Schema:
    """Return the columns of the newest version of a table."""
    handle = table.delta()
    with table.reading():
        return pa.schema(handle.schema().to_arrow())


def lacks_field_ids(table: Folder, path: str, ids: FieldIds) -> bool:
    """Return True if a column in a file lacks its field id; False if the file cannot be read.

    `path` is in the form that the log uses. A process reads each file only once.
    """
    known = _lacking.get((table, path), str(ids))
    if known is None:
        try:
            with table.reading(), table.open(unquote(path)) as opened:
                known = not has_ids(pq.read_schema(opened), ids)
        except (PlatformError, pa.ArrowException) as e:
            _log.warning("data file %s of %s cannot be read: %s", path, table.name, e)
            return False
        _lacking.keep((table, path), str(ids), known, _BYTES_A_FILE)
    return known


def write_rows(table: Folder, path: str, found: pa.Table, window: str | None = None) -> None:
    """Write rows to a new data file; create its folder if needed. Raises LakeNotWritableError.

    With `window`, the file gets a window column and field ids, like the files of a flat table; without `window`, it
    gets neither.
    """
    if parquet.WINDOW in found.column_names:
        found = found.drop_columns([parquet.WINDOW])
    if window is not None:
        found = found.append_column(parquet.WINDOW, pa.repeat(pa.scalar(window, pa.string()), found.num_rows))
    schema = found.schema if window is None else ids_of(columns_of(table)).in_file(found.schema)
    content = pa.BufferOutputStream()
    with pq.ParquetWriter(content, schema, compression="zstd") as writer:
        writer.write_table(found)
    folder, _, name = path.rpartition("/")
    (table / folder).write(name, content.getvalue().to_pybytes())


def delta_statistics(file: NewFile) -> str:
    """Return the statistics of a file in the form of Delta's log."""
    # Without spaces, since each reader of the table's log parses the statistics of all files.
    return json.dumps({"numRecords": file.rows, **file.statistics}, separators=(",", ":"))


def described(table: Folder, path: str, columns: Sequence[str] = ()) -> NewFile:
    """Describe a data file, to which no commit refers yet, from its footer. `path` is relative to the table's folder.

    The file's statistics include the bounds of `columns`, as far as `column_bounds` can express them.
    """
    return _described(table, path, columns)


def _described(table: Folder, path: str, columns: Sequence[str] = ()) -> NewFile:
    with table.reading(), table.open(path) as opened:
        footer = pq.ParquetFile(opened).metadata
        size = opened.size()
    found = _statistics(footer)
    for name in columns:
        bounds = column_bounds.of(footer, name) if name not in found["minValues"] else None
        if bounds is not None:
            found["minValues"][name], found["maxValues"][name], found["nullCount"][name] = bounds
    return NewFile(path, size, footer.num_rows, found)


def _columns(footer: pq.FileMetaData, name: str) -> list[pq.ColumnChunkMetaData]:
    """Return a column's chunks, one from each row group."""
    (index,) = (i for i in range(footer.num_columns) if footer.schema.column(i).path == name)
    return [footer.row_group(g).column(index) for g in range(footer.num_row_groups)]


def _statistics(footer: pq.FileMetaData) -> dict[str, Any]:
    """Return the bounds of the rows' places and times across all row groups, in the form of Delta's log."""
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
    nulls = dict.fromkeys(lowest, 0)
    if parquet.WINDOW in footer.schema.to_arrow_schema().names:
        windows = [part.statistics for part in _columns(footer, parquet.WINDOW)]
        if windows and all(s is not None and s.has_min_max and s.has_null_count for s in windows):
            lowest[parquet.WINDOW], highest[parquet.WINDOW] = min(s.min for s in windows), max(s.max for s in windows)
            nulls[parquet.WINDOW] = sum(s.null_count for s in windows)
    return {"minValues": lowest, "maxValues": highest, "nullCount": nulls}


_LAST_TEXT_MICROS: Final = 253_402_300_800_000_000
"""The year 10000. From then on, times in text form have years with more than four digits, which readers interpret
differently."""


def _timestamps(lows: list[int], highs: list[int]) -> tuple[str, str] | None:
    """Return bounds as Delta's text, which has milliseconds, like Kafka's timestamps; None if text cannot express them."""
    low, high = min(lows), max(highs)
    if low < 0 or high >= _LAST_TEXT_MICROS:
        return None
    return _text(low), _text(high)


def _text(micros: int) -> str:
    seconds, rest = divmod(micros, 1_000_000)
    return f"{datetime.fromtimestamp(seconds, UTC).strftime('%Y-%m-%dT%H:%M:%S')}.{rest // 1000:03}Z"
