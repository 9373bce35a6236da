"""Reading Parquet files of any writer as the same rows. Spark's OPTIMIZE, delta-rs, DuckDB, polars and this platform
write the same column with different physical types.

This module imports neither Delta nor Spark, so that Spark's Python workers load it quickly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from platform_assets.errors import ConfigurationError


def leaves(path: str, kind: pa.DataType) -> Iterator[tuple[str, pa.DataType]]:
    """Yield the leaves of a column: their paths in Parquet's form, with their types."""
    if pa.types.is_struct(kind):
        for child in kind:
            yield from leaves(f"{path}.{child.name}", child.type)
    elif pa.types.is_list(kind):
        yield from leaves(f"{path}.list.element", kind.value_type)
    elif pa.types.is_map(kind):
        yield from leaves(f"{path}.key_value.key", kind.key_type)
        yield from leaves(f"{path}.key_value.value", kind.item_type)
    else:
        yield path, kind


def check_apart(columns: Iterable[pa.Field]) -> None:
    """Raise ConfigurationError if two leaves have the same path, ignoring case. This can happen because names, like
    paths, may contain dots."""
    seen: dict[str, str] = {}
    for column in columns:
        for path, _ in leaves(column.name, column.type):
            if path.lower() in seen:
                raise ConfigurationError(
                    f"columns: {path!r} occurs twice, in column {seen[path.lower()]!r} and in column {column.name!r}. "
                    "Parquet treats a dot in a name like a step into a STRUCT. Leave out one of the two; its values "
                    "are then kept in `rescued`"
                )
            seen[path.lower()] = column.name


WINDOW: Final = "window"
"""The window column in files of tables that are not partitioned by window."""
TEXTS: Final = [WINDOW, "topic_id"]
"""Columns with few distinct values. Dictionaries of their values are read, compared and written faster than the values
themselves."""
_NUMBERED: Final = pa.dictionary(pa.int32(), pa.string())
_KEY_LENGTH: Final = len("2026-01-01-00:00")
_WINDOWS_AT_ONCE: Final = 1 << 20

_PER_DAY: Final = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896
"""First and last day of the years 1 to 9999, in days since 1970."""


def python_values(column: pa.Array) -> list[Any]:
    """Return values like `to_pylist`, except that dates and timestamps outside the years 1 to 9999 are Arrow's numbers.

    In structs and lists, all dates and timestamps are numbers if any of them is outside these years. Texts that are not UTF-8,
    which Spark may write, are bytes.
    """
    try:
        return _python_values(column)
    except UnicodeDecodeError:
        found = _python_values(column.cast(_in_bytes(column.type)))
        return [_decoded(value, column.type) for value in found]


def _python_values(column: pa.Array) -> list[Any]:
    if not _is_far(column):
        return list(column.to_pylist())
    numbers = column.cast(_in_numbers(column.type))
    if pa.types.is_nested(column.type):
        return list(numbers.to_pylist())
    near = _near(numbers, column.type)
    times = pc.if_else(near, column, pa.scalar(None, column.type)).to_pylist()
    return [number if time is None else time for time, number in zip(times, numbers.to_pylist(), strict=True)]


def _is_far(column: pa.Array) -> bool:
    """Return True if the array contains, at any depth, a date or a timestamp outside these years."""
    kind = column.type
    if pa.types.is_map(kind):
        entries = slice(column.offsets[0].as_py(), column.offsets[-1].as_py())
        return bool(len(column)) and (_is_far(column.keys[entries]) or _is_far(column.items[entries]))
    if pa.types.is_struct(kind) or pa.types.is_list(kind) or pa.types.is_large_list(kind):
        children = column.flatten() if pa.types.is_struct(kind) else [column.flatten()]
        return any(_is_far(child) for child in children)
    if not _is_time(kind):
        return False
    return bool(pc.any(pc.invert(_near(column.cast(_in_numbers(kind)), kind))).as_py())


def _near(numbers: pa.Array, kind: pa.DataType) -> pa.BooleanArray:
    each = 1 if pa.types.is_date32(kind) else _PER_DAY["ms" if pa.types.is_date64(kind) else kind.unit]
    first, behind = (pa.scalar(day * each, numbers.type) for day in (_FIRST_DAY, _LAST_DAY + 1))
    return pc.and_(pc.greater_equal(numbers, first), pc.less(numbers, behind))


def _in_numbers(kind: pa.DataType) -> pa.DataType:
    """Return a type with numbers in place of dates and timestamps."""

    def leaf(kind: pa.DataType) -> pa.DataType:
        if not _is_time(kind):
            return kind
        return pa.int32() if pa.types.is_date32(kind) else pa.int64()

    return _with_leaves(kind, leaf)


def _in_bytes(kind: pa.DataType) -> pa.DataType:
    """Return a type with bytes in place of texts."""

    def leaf(kind: pa.DataType) -> pa.DataType:
        return pa.large_binary() if pa.types.is_string(kind) or pa.types.is_large_string(kind) else kind

    return _with_leaves(kind, leaf)


def _with_leaves(kind: pa.DataType, leaf: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """Return a type in which `leaf` replaces each type that is not nested."""

    def of(field: pa.Field) -> pa.Field:
        return field.with_type(_with_leaves(field.type, leaf))

    if pa.types.is_struct(kind):
        return pa.struct([of(field) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(of(kind.value_field))
    if pa.types.is_large_list(kind):
        return pa.large_list(of(kind.value_field))
    if pa.types.is_map(kind):
        return pa.map_(of(kind.key_field), of(kind.item_field))
    return leaf(kind)


def _decoded(value: Any, kind: pa.DataType) -> Any:
    """Return a value with the type `_in_bytes(kind)`, in which texts are decoded if they can be."""
    if value is None:
        return None
    if pa.types.is_struct(kind):
        return {field.name: _decoded(value[field.name], field.type) for field in kind}
    if pa.types.is_map(kind):
        return [(_decoded(key, kind.key_type), _decoded(item, kind.item_type)) for key, item in value]
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return [_decoded(item, kind.value_type) for item in value]
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value


def _is_time(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind) or pa.types.is_date(kind))


_INT96: Final = "us"
"""INT96 can represent times that do not fit into nanoseconds. If they are read as nanoseconds, they silently become
different times."""
READ_OPTIONS: Final = ds.ParquetReadOptions(coerce_int96_timestamp_unit=_INT96)
"""Options for datasets."""
_COLUMNS: Final = {"kafka_partition": pa.int32(), "kafka_offset": pa.int64(), "kafka_timestamp_type": pa.int32()}
"""Integer types that may have a different width in files."""


def rows_within(file: pq.ParquetFile, size: int) -> int:
    """Return the number of rows, at least one, that have about `size` bytes in the row group with the widest rows."""
    groups = (file.metadata.row_group(number) for number in range(file.num_row_groups))
    width = max((group.total_byte_size // max(group.num_rows, 1) for group in groups), default=0)
    return int(max(size // max(width, 1), 1))


def opened(source: Any, **options: Any) -> pq.ParquetFile:
    """Open a file for reading. Once its columns are cast, they have the types in `plain_schema`."""
    return pq.ParquetFile(source, coerce_int96_timestamp_unit=_INT96, **options)


def plain_schema(file: pq.ParquetFile) -> pa.Schema:
    """Return the columns of a file in the platform's types, whichever program wrote the file."""
    leaves = iter([file.schema.column(n).physical_type for n in range(len(file.schema))])
    fields = [f.with_type(_plain(f.type, leaves)).remove_metadata() for f in file.schema_arrow]
    return pa.schema([f.with_type(_COLUMNS.get(f.name, f.type)) for f in fields])


def numbered(schema: pa.Schema) -> pa.Schema:
    """Return the columns of a schema, with the columns `TEXTS` as dictionaries."""
    return pa.schema([f.with_type(_NUMBERED) if f.name in TEXTS else f for f in schema])


def blocks(
    file: pq.ParquetFile,
    rows_at_once: int,
    columns: list[str] | None = None,
    *,
    groups: list[int] | None = None,
    window: str | None = None,
    whole: pa.Schema | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file from `opened`, in blocks, with the types of `whole`, by default those of `plain_schema`.

    If `window` is given and the file has a window column, yield only the rows of this window; if `window` is '', yield
    only rows without a window. Files of a partitioned table have no window column.
    """
    whole = plain_schema(file) if whole is None else whole
    if window is None or WINDOW not in whole.names:
        for block in file.iter_batches(rows_at_once, groups, columns, use_threads=False):
            yield block.cast(among(whole, block.schema))
        return
    wanted = columns if columns is None or WINDOW in columns else [*columns, WINDOW]
    for group in range(file.num_row_groups) if groups is None else groups:
        if not may_have(file, group, window):
            continue
        is_only = bool(window) and _only_window(file, group) == window
        for block in file.iter_batches(rows_at_once, [group], columns if is_only else wanted, use_threads=False):
            found = block.cast(among(whole, block.schema))
            if not is_only:
                found = found.filter(pc.equal(found[WINDOW], window) if window else pc.is_null(found[WINDOW]))
            if found.num_rows:
                yield found if wanted is columns else found.select(columns)


def windows_in(file: pq.ParquetFile) -> dict[str, int]:
    """Return the windows in a file from `opened`, each with its number of rows. Rows without a window count under the
    window ''."""
    if WINDOW not in file.schema_arrow.names:
        return {"": file.metadata.num_rows} if file.metadata.num_rows else {}
    found: dict[str, int] = {}
    for group in range(file.num_row_groups):
        only = _only_window(file, group)
        if only is not None:
            found[only] = found.get(only, 0) + file.metadata.row_group(group).num_rows
            continue
        for block in file.iter_batches(_WINDOWS_AT_ONCE, [group], [WINDOW], use_threads=False):
            for entry in pc.value_counts(block[WINDOW].cast(pa.string())).to_pylist():
                key = entry["values"] or ""
                found[key] = found.get(key, 0) + entry["counts"]
    return {key: rows for key, rows in found.items() if rows}


def may_have(file: pq.ParquetFile, group: int, window: str) -> bool:
    """Return False if statistics show that a row group has no rows of a window. Files of a partitioned table never show
    this."""
    found = _window_statistics(file, group) if WINDOW in file.schema_arrow.names else None
    if not window:
        return found is None or found.null_count != 0
    return found is None or (found.min <= window <= found.max)


def _only_window(file: pq.ParquetFile, group: int) -> str | None:
    found = _window_statistics(file, group)
    if found is None or found.null_count != 0 or found.min != found.max or len(found.min) != _KEY_LENGTH:
        return None
    return str(found.min)


def _window_statistics(file: pq.ParquetFile, group: int) -> pq.Statistics | None:
    """Return the statistics of the window column in a row group; None if they have no bounds or if the bounds are not
    strings."""
    columns = file.metadata.row_group(group)
    (at,) = (n for n in range(columns.num_columns) if columns.column(n).path_in_schema == WINDOW)
    found = columns.column(at).statistics
    return found if found is not None and found.has_min_max and isinstance(found.min, str) else None


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


def by_place(rows: pa.RecordBatch) -> Iterator[tuple[tuple[str, str], pa.RecordBatch]]:
    """Yield the rows of each window and topic id. Rows that are already adjacent are sliced without a copy."""
    ordered, places, ends = runs_by_place(rows)
    for place, start, end in zip(places, (0, *ends), ends, strict=False):
        yield place, ordered.slice(start, end - start)


def runs_by_place(rows: pa.RecordBatch) -> tuple[pa.RecordBatch, list[tuple[str, str]], list[int]]:
    """Return the rows ordered into runs, one for each window and topic id. Also return the window and topic id of each
    run, and its exclusive end. Rows that are already so are not copied."""
    if not rows.num_rows:
        return rows, [], []
    (windows, of_window), (ids, of_id) = (_encoded(rows[name]) for name in (WINDOW, "topic_id"))
    codes = windows * np.int64(len(of_id)) + ids
    starts = np.flatnonzero(np.diff(codes, prepend=codes[0] - 1))
    if len(starts) > len(np.unique(codes[starts])):
        order = np.argsort(codes, kind="stable")
        codes, rows = codes[order], rows.take(pa.array(order))
        starts = np.flatnonzero(np.diff(codes, prepend=codes[0] - 1))
    places = [divmod(code, len(of_id)) for code in codes[starts].tolist()]
    ends = [*starts[1:].tolist(), rows.num_rows]
    return rows, [(of_window[window], of_id[topic_id]) for window, topic_id in places], ends


def _encoded(column: pa.Array) -> tuple[npt.NDArray[np.int64], list[str]]:
    """Number the distinct values of a column. Return the number for each row, and the list of values in the order of
    their numbers. A missing value becomes ''."""
    found = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    names = found.dictionary.to_pylist()
    indices = pc.fill_null(found.indices, len(names)) if found.null_count else found.indices
    return indices.to_numpy(zero_copy_only=False).astype(np.int64), [*(name or "" for name in names), ""]
