"""The data files that contain each window of a table, and the windows in each data file.

Only this module knows the layout of a table. In a partitioned table, a file contains one window, and the log says
which. In a flat table, which has no partition columns, `window` is an ordinary column: a file may contain many windows,
and is then called shared. The log's statistics show which windows a file may contain. If they do not determine which
windows it does contain, the file's `window` column is read, once.
"""

from __future__ import annotations

import re
import sys
from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final
from urllib.parse import quote, unquote

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from platform_assets.errors import FilesLostError
from platform_assets.lake import contents, delta_log, failures, parquet
from platform_assets.lake.delta_log import DataFile
from platform_assets.lake.failures import TableDamagedError, TableUnsupportedError, VersionGoneError
from platform_assets.lake.location import Folder
from platform_assets.lake.remembered import Remembered
from platform_assets.model.logs import logger

_log = logger(__name__)

WINDOW: Final = parquet.WINDOW
_PARTITION: Final = f"partition.{WINDOW}"
_KEY: Final = re.compile(r"\d{4}-\d\d-\d\d-\d\d:\d\d")
_AS_THEY_ARE: Final = "/=_.-~!$&'()+,:;@"
"""Characters in names, in addition to letters and digits, that delta-rs does not percent-encode in the log."""
_PLAIN: Final = re.compile(rf"(?:[A-Za-z0-9{re.escape(_AS_THEY_ARE)}]|%25)*", re.ASCII)
_FIRST, _LAST = "0001-01-01-00:00", "9999-12-31-23:59"
_PLACES: Final = ("kafka_partition", "kafka_offset")
_REMEMBERED_BYTES: Final = 64 << 20
"""Memory limit for all files together. A sixteenth of it is enough for one file of 30,000 windows."""
_BYTES_A_WINDOW: Final = 128
_remembered: Remembered[tuple[Folder, str], Mapping[str, int]] = Remembered(_REMEMBERED_BYTES)


@dataclass(frozen=True, slots=True)
class WindowFiles:
    """The data files of one window at one version of the table, and the digest that identifies them.

    `bytes` is the size of the files; a shared file counts in proportion to the window's share of its rows. `shared` has
    the paths of files that also contain other windows. If the files are proved to contain the same rows as the files of
    a receipt, `proved_as` is the digest of the receipt's files; it is None if they were not compared.
    """

    paths: tuple[str, ...]
    bytes: int
    rows: int | None
    digest: str
    shared: frozenset[str] = frozenset()
    proved_as: str | None = None

    def are(self, digest: str) -> bool:
        """Return True if these files have this digest, or are proved to hold the same rows of the window as files with
        this digest."""
        return digest in (self.digest, self.proved_as)

    def match(self, digest: str, rows: int) -> bool:
        """Return True if `are` is true for this digest and the files have, as far as statistics show, this many rows."""
        return self.are(digest) and self.rows in (None, rows)


def is_flat(table: DeltaTable) -> bool:
    """Return True if a table of windows is not partitioned."""
    return WINDOW not in table.metadata().partition_columns


def actions(table: Folder, version: int | None = None, *, among: Collection[str] | None = None) -> pa.Table:
    """Return one row for each combination of a data file and a window in it, by default for the newest version of the
    table. With `among`, return only rows for these windows.

    The rows have the columns of delta-rs's flattened actions, `window`, and `share_bytes`; `num_records` is the number
    of the window's rows. Rows of the table without a window belong to the window ''. A shared file has no bounds of
    partition and offset, because these would cover all its windows. A shared file that cannot be read counts for each
    window in `among` that it may contain or, without `among`, for the first and the last window that it may contain.
    """
    with table.reading():
        delta = table.delta(version)
        found = pa.table(delta.get_add_actions(flatten=True))
    return by_window(table, found, flat=is_flat(delta), among=among)


def by_window(table: Folder, files: pa.Table, *, flat: bool, among: Collection[str] | None = None) -> pa.Table:
    """Return the result of `actions`, given `files`, which are delta-rs's flattened actions."""
    if not flat:
        keys = files[_PARTITION] if _PARTITION in files.column_names else pa.nulls(files.num_rows, pa.string())
        found = _with(_without(files, _PARTITION), WINDOW, pc.fill_null(keys, ""))
        found = _with(found, "share_bytes", files["size_bytes"])
        return found if among is None else found.filter(pc.is_in(found[WINDOW], pa.array(list(among), pa.string())))
    wanted = None if among is None else set(among)
    if wanted and "" not in wanted:
        files = files.filter(_may_hold_some(files, min(wanted), max(wanted)))
    at, keys_of, rows_of, bytes_of, shared_of = list[int](), list[str](), list[int | None](), list[int](), list[bool]()
    for number, file in enumerate(_in_log(files)):
        if wanted is not None and not any(may_hold(file, key) for key in wanted):
            continue
        held = _held(table, file, wanted)
        total = sum(rows or 0 for rows in held.values())
        for key, rows in held.items():
            if wanted is None or key in wanted:
                at.append(number)
                keys_of.append(key)
                rows_of.append(rows)
                bytes_of.append(file.bytes if len(held) == 1 or not total else file.bytes * (rows or 0) // total)
                # A file that cannot be read may contain other windows too; the caller that removes it has to report
                # what is lost with it.
                shared_of.append(len(held) > 1 or (rows is None and only_window(file) is None))
    found = files.take(pa.array(at, pa.int64()))
    is_shared = pa.array(shared_of, pa.bool_())
    for name in (f"{kind}.{place}" for kind in ("min", "max") for place in _PLACES):
        if name in found.column_names:
            nothing = pa.nulls(found.num_rows, found[name].type)
            found = _with(_without(found, name), name, pc.if_else(is_shared, nothing, found[name]))
    found = _with(_without(found, "num_records"), "num_records", pa.array(rows_of, pa.int64()))
    found = _with(found, "share_bytes", pa.array(bytes_of, pa.int64()))
    found = _with(found, "shared", is_shared)
    return _with(found, WINDOW, pa.array(keys_of, pa.string()))


def _may_hold_some(files: pa.Table, first: str, last: str) -> Any:
    """Return a mask that is true for the files of a flat table that may contain a window from `first` to `last`."""
    if f"min.{WINDOW}" not in files.column_names or f"max.{WINDOW}" not in files.column_names:
        return pa.repeat(pa.scalar(True), files.num_rows)
    low, high = files[f"min.{WINDOW}"], files[f"max.{WINDOW}"]
    return pc.and_(pc.fill_null(pc.less_equal(low, last), True), pc.fill_null(pc.greater_equal(high, first), True))


def _held(table: Folder, file: DataFile, among: Collection[str] | None) -> Mapping[str, int | None]:
    try:
        return held_by(table, file)
    except FilesLostError as e:
        _log.warning("%s", e)
        bounds = _bounds(file)
        if among is not None:
            return dict.fromkeys([key for key in sorted(among) if may_hold(file, key)], None)
        return dict.fromkeys(() if bounds is None else bounds, None)


def _in_log(files: pa.Table) -> Iterator[DataFile]:
    """Yield the files of a flat table in the form of the commits that added them, but only with the statistics of
    `window`."""
    columns = [
        files[name].to_pylist() if name in files.column_names else [None] * files.num_rows
        for name in ("path", "size_bytes", "num_records", f"min.{WINDOW}", f"max.{WINDOW}", f"null_count.{WINDOW}")
    ]
    for path, size, rows, low, high, nulls in zip(*columns, strict=True):
        statistics = {
            "numRecords": rows,
            "minValues": {WINDOW: low},
            "maxValues": {WINDOW: high},
            "nullCount": {WINDOW: nulls},
        }
        yield DataFile(path, {}, size, statistics)


def files_named(files: pa.Table, paths: Collection[str]) -> list[DataFile]:
    """Return those of a flat table's files, given as delta-rs's flattened actions, that have one of `paths`."""
    return [file for file in _in_log(files) if file.path in paths]


def windows_of_files(table: Folder, handle: DeltaTable) -> list[tuple[DataFile, frozenset[str] | None]]:
    """Return each data file of a version, with the windows in it; None for a file that cannot be read and whose windows are not
    recorded."""
    with table.reading():
        files = pa.table(handle.get_add_actions(flatten=True))
    if not is_flat(handle):
        keys = files[_PARTITION].to_pylist() if _PARTITION in files.column_names else [None] * files.num_rows
        named = zip(files["path"].to_pylist(), files["size_bytes"].to_pylist(), keys, strict=True)
        return [(DataFile(p, {WINDOW: key}, size, None), frozenset((key or "",))) for p, size, key in named]
    return [(file, _windows_if_known(table, file)) for file in _in_log(files)]


def _windows_if_known(table: Folder, file: DataFile) -> frozenset[str] | None:
    try:
        return frozenset(held_by(table, file))
    except FilesLostError as e:
        _log.warning("%s", e)
        return None


def _bounds(file: DataFile) -> tuple[str, str] | None:
    """Return the first and the last window that a file may contain according to its statistics; None if it may contain
    any window."""
    known = file.statistics or {}
    low, high = ((known.get(name) or {}).get(WINDOW) for name in ("minValues", "maxValues"))
    return None if low is None or high is None else (str(low), str(high))


def span_in_log(file: DataFile) -> tuple[str, str] | None:
    """Return the first and the last window that a file of a flat table may contain according to the log; None if the
    log does not show it."""
    return _bounds(file)


def may_hold(file: DataFile, window: str) -> bool:
    """Return False if the log shows that a file has no rows of a window."""
    if WINDOW in file.partition:
        return (file.partition[WINDOW] or "") == window
    if not window:
        return ((file.statistics or {}).get("nullCount") or {}).get(WINDOW) != 0
    bounds = _bounds(file)
    return bounds is None or bounds[0] <= window <= bounds[1]


def may_hold_some(file: DataFile, windows: Sequence[str]) -> bool:
    """Return False if the log shows that a file has no rows of any of `windows`, which are sorted."""
    bounds = _bounds(file)
    if WINDOW in file.partition:
        low = high = file.partition[WINDOW] or ""
    elif bounds is None:
        return bool(windows)
    else:
        low, high = bounds
    at = bisect_left(windows, low)
    return at < len(windows) and windows[at] <= high


def newest_in(file: DataFile) -> str | None:
    """Return the newest window that a file may contain according to the log; None if the log does not show it."""
    if WINDOW in file.partition:
        return file.partition[WINDOW] or ""
    bounds = _bounds(file)
    return None if bounds is None else bounds[1]


def only_window(file: DataFile) -> str | None:
    """Return the only window that a file contains according to the log; None if the file may be shared."""
    if WINDOW in file.partition:
        return file.partition[WINDOW] or ""
    bounds, nulls = _bounds(file), ((file.statistics or {}).get("nullCount") or {}).get(WINDOW)
    is_one = bounds is not None and bounds[0] == bounds[1] and nulls == 0 and _KEY.fullmatch(bounds[0])
    return bounds[0] if bounds is not None and is_one else None


def as_held(table: Folder, file: DataFile, window: str) -> DataFile | None:
    """Return a file with the rows and statistics that it has of one window; None if the file contains no rows of the
    window.

    If the file cannot be read, it may be returned although it contains no rows of the window.
    """
    if not may_hold(file, window):
        return None
    if only_window(file) == window:
        return file
    try:
        held = held_by(table, file)
    except FilesLostError:
        return DataFile(file.path, {WINDOW: window}, file.bytes, None)
    if window not in held:
        return None
    if len(held) == 1:
        return file
    return DataFile(file.path, {WINDOW: window}, file.bytes, {"numRecords": held[window]})


def span_of(table: Folder, file: DataFile) -> tuple[str, str]:
    """Return the first and the last window that a file contains. If the file cannot be read, return the first and the
    last window that it may contain."""
    try:
        held = sorted(key for key in held_by(table, file) if _KEY.fullmatch(key))
    except FilesLostError:
        held = [key for key in _bounds(file) or () if _KEY.fullmatch(key)]
    return (held[0], held[-1]) if held else (_FIRST, _LAST)


def held_by(table: Folder, file: DataFile) -> Mapping[str, int | None]:
    """Return the windows in a file, each with its number of rows; a number is None if neither the log nor the file
    shows it.

    If the file may be shared, this reads the file's `window` column and remembers the result. Rows without a window
    count under the window ''. Raises FilesLostError if the file is missing or damaged, and its contents were not
    recorded.
    """
    only = only_window(file)
    if only is not None:
        return {only: file.rows}
    stamp = str(file.bytes)
    known = _remembered.get((table, file.path), stamp)
    if known is None:
        known = _read_or_recorded(table, file)
        # Files sorted by other programs contain the same windows.
        known = {sys.intern(key): rows for key, rows in known.items()}
        _remembered.keep((table, file.path), stamp, known, _BYTES_A_WINDOW * (len(known) + 1))
    return known


def in_log(name: str) -> str:
    """Return the name of a file in the form in which delta-rs writes it into the log."""
    return quote(name, safe=_AS_THEY_ARE)


def is_plain(path: str) -> bool:
    """Return True if a path in the log has, in addition to characters that delta-rs does not encode, only percent signs
    that are encoded as delta-rs does it."""
    return _PLAIN.fullmatch(path) is not None


def remember(table: Folder, path: str, size: int, held: Mapping[str, int]) -> None:
    """Remember the windows of a file that this process has just written, so that they need not be read from it."""
    _remembered.keep((table, path), str(size), dict(held), _BYTES_A_WINDOW * (len(held) + 1))


def _read_or_recorded(table: Folder, file: DataFile) -> dict[str, int]:
    """Return the windows in a file. If the file cannot be read, return the windows that were recorded earlier."""
    try:
        return _read(table, file.path)
    except FilesLostError:
        delta = table.delta()
        with table.reading():
            table_id = str(delta.metadata().id)
        known = contents.rows_by_window(table, table_id, file.path, file.bytes)
        if known is None:
            raise
        return known


def _read(table: Folder, path: str) -> dict[str, int]:
    with failures.reading_files(table, ""), table.open(unquote(path)) as opened:
        return parquet.windows_in(parquet.opened(opened))


# --- the files of each window


def window_files(found: pa.Table) -> dict[str, WindowFiles]:
    """Return the data files of each window, from `actions`."""
    grouped: dict[str, list[_File]] = {}
    columns = (found[name].to_pylist() for name in (WINDOW, "path", "size_bytes", "num_records", "share_bytes"))
    shared = found["shared"].to_pylist() if "shared" in found.column_names else [False] * found.num_rows
    for (window, path, size, records, share), is_shared in zip(zip(*columns, strict=True), shared, strict=True):
        grouped.setdefault(window, []).append((path, size, records, share, is_shared))
    return {window: _window_files(files) for window, files in grouped.items()}


def windows_by_path(found: pa.Table) -> dict[str, list[str]]:
    """Return the windows in each data file, by the file's path in the form that the log uses, from `actions`."""
    by_path: dict[str, list[str]] = {}
    for path, window in zip(found["path"].to_pylist(), found[WINDOW].to_pylist(), strict=True):
        by_path.setdefault(path, []).append(window)
    return by_path


def is_key(window: str | None) -> bool:
    """Return True for the key of a window. Rows that other programs have added may not have such a key."""
    return window is not None and _KEY.fullmatch(window) is not None


def data_files(found: pa.Table) -> dict[str, tuple[DataFile, ...]]:
    """Return the data files of each window in the form of the commits that added them, from `actions`.

    Each file states its window as a partition. A shared file is listed for each of its windows, with the rows of that
    window.
    """
    by_key: dict[str, list[DataFile]] = {}
    for row in found.to_pylist():
        statistics = {"numRecords": row["num_records"]}
        for kind, name in (("min", "minValues"), ("max", "maxValues")):
            statistics[name] = {k.partition(".")[2]: v for k, v in row.items() if k.startswith(f"{kind}.")}
        window = row[WINDOW]
        by_key.setdefault(window, []).append(DataFile(row["path"], {WINDOW: window}, row["size_bytes"], statistics))
    return {window: tuple(files) for window, files in by_key.items()}


def files_in(found: pa.Table) -> Iterator[tuple[DataFile, bool]]:
    """Yield the files of a flat table, from `actions`, in the form that the log uses, each with True if it is shared."""
    yield from zip(_in_log(found), found["shared"].to_pylist(), strict=True)


def files_of(table: Folder, key: str, version: int | None = None) -> WindowFiles:
    """Return the data files of one window; no files if the window has no rows."""
    return files_at(table, key, version)[0]


def files_if_any(table: Folder, key: str) -> WindowFiles:
    """Return the data files of one window; NO_FILES if it has none or if there is no table."""
    return files_of(table, key) if delta_log.exists(table) else NO_FILES


def files_if_kept(table: Folder, key: str, version: int) -> WindowFiles | None:
    """Return the data files of one window at a past version. Return None if the log no longer has that version or is
    damaged there, or if files alone do not determine the rows of that version."""
    found = actions_if_kept(table, version, among=(key,))
    return None if found is None else files_among(found, key)


def actions_if_kept(table: Folder, version: int, *, among: Collection[str] | None = None) -> pa.Table | None:
    """Return `actions` at a past version; None in the same cases as `files_if_kept`."""
    try:
        return actions(table, version, among=among)
    except (TableDamagedError, TableUnsupportedError, VersionGoneError) as e:
        _log.info("version %d of %s can no longer be read: %s", version, table.name, e)
        return None


def version_with(table: Folder, key: str, digest: str, past: int) -> int:
    """Return a version of the table in which a window's files have this digest: if possible the newest version, because
    it does not expire.

    Otherwise, return `past`, in which the files had this digest, if the files of that version still exist. If they do
    not, return the newest version.
    """
    return version_and_match(table, key, digest, past)[0]


def version_and_match(table: Folder, key: str, digest: str, past: int) -> tuple[int, bool]:
    """Return the version that `version_with` returns, and true if the window's files in that version have this digest."""
    newest = delta_log.version(table)
    if files_of(table, key, newest).digest == digest:
        return newest, True
    files = files_if_kept(table, key, past)
    if files is None or not all(table.has(unquote(name)) for name in files.paths):
        return newest, False
    return past, files.digest == digest


def files_at(table: Folder, key: str, version: int | None = None) -> tuple[WindowFiles, list[dict[str, Any]]]:
    """Return the data files of one window at a version, by default the newest, and the statistics of each file."""
    of_window = actions(table, version, among=(key,))
    return window_files(of_window).get(key, NO_FILES), of_window.to_pylist()


def files_among(found: pa.Table, key: str) -> WindowFiles:
    """Return the data files of one window, from `actions`; NO_FILES if the window has no rows."""
    return window_files(found.filter(pc.equal(found[WINDOW], key))).get(key, NO_FILES)


def files_of_adds(adds: Sequence[DataFile]) -> WindowFiles:
    """Return data files that contain only one window, as all files of that window."""
    return _window_files([(f.path, f.bytes, f.rows, f.bytes, False) for f in adds])


def statistics_of_adds(adds: Sequence[DataFile]) -> list[dict[str, Any]]:
    """Return the statistics of data files that contain one window, under the names that `actions` uses."""
    return [_flat(f) for f in adds]


def _flat(file: DataFile) -> dict[str, Any]:
    known = file.statistics or {}
    return {
        "num_records": file.rows,
        **{f"min.{name}": value for name, value in known.get("minValues", {}).items()},
        **{f"max.{name}": value for name, value in known.get("maxValues", {}).items()},
    }


_File = tuple[str, int, int | None, int, bool]
"""Path, size, the window's number of rows, the window's share of the size, and True if the file is shared."""


def _window_files(files: list[_File]) -> WindowFiles:
    files = sorted(files)
    records = [r for _, _, r, _, _ in files]
    return WindowFiles(
        paths=tuple(path for path, *_ in files),
        bytes=sum(share for *_, share, _ in files),
        rows=None if None in records else sum(r for r in records if r is not None),
        digest=sha256("\n".join(f"{path} {size}" for path, size, *_ in files).encode()).hexdigest()[:32],
        shared=frozenset(path for path, *_, is_shared in files if is_shared),
    )


NO_FILES = _window_files([])
"""The files of a window without rows."""


def _without(found: pa.Table, name: str) -> pa.Table:
    return found.drop_columns([name]) if name in found.column_names else found


def _with(found: pa.Table, name: str, column: Any) -> pa.Table:
    return found.append_column(name, column)
