"""Windows whose rows are still those of their receipts, although other files contain the rows by now.

Upkeep, and OPTIMIZE or Z-ORDER by other programs, rewrite files of many windows. Each such file is measured once,
either when it is written or when it is first needed, and the sums over a window's files are compared with the receipt
of the window. So a file is not read separately for each of its windows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from platform_assets.engines.measuring import measure_of
from platform_assets.errors import FilesLostError
from platform_assets.lake import contents, holdings, load_log
from platform_assets.lake.contents import Digests
from platform_assets.lake.delta_log import DataFile
from platform_assets.lake.holdings import WindowFiles
from platform_assets.lake.location import Folder, Lake
from platform_assets.lake.measuring import measured
from platform_assets.ledger.entries import Receipt
from platform_assets.model.digest import Digest, Measured
from platform_assets.model.logs import logger
from platform_assets.model.tables import TableRef

_log = logger(__name__)


@dataclass(frozen=True, slots=True)
class Expected:
    """Rows of one window according to its receipt: the rows' topic id and digests, the id of the load, and the digest of
    the files that contained the rows."""

    key: str
    topic_id: str
    files_digest: str
    measured: Measured
    load_id: str


EXPECTED_COLUMNS: Final = ("window", "topic_id", "files_digest", "rows", "offsets_digest", "content_digest", "load_id")
"""Columns that `expected_in` uses."""


def expected_in(entries: pa.Table, keys: Collection[str] | None = None) -> list[Expected]:
    """Return the rows that the ledger expects in the windows `keys`, by default in all windows. `entries` has the newest
    entry of each window, by partition."""
    among = None if keys is None else pa.array(list(keys), pa.string())
    of_keys = entries if among is None else entries.filter(pc.is_in(entries["window"], among))
    per_window = of_keys.group_by([name for name in EXPECTED_COLUMNS if name != "rows"], use_threads=False).aggregate(
        [("rows", "sum")]
    )
    names = (f"{name}_sum" if name == "rows" else name for name in EXPECTED_COLUMNS)
    return [
        Expected(key, topic_id, files_digest, Measured(Digest(rows, int(offsets)), Digest(rows, int(content))), load_id)
        for key, topic_id, files_digest, rows, offsets, content, load_id in zip(
            *(per_window[name].to_pylist() for name in names), strict=True
        )
    ]


def recognised(
    lake: Lake,
    table: TableRef,
    files: Mapping[str, WindowFiles],
    receipts: Iterable[Receipt],
    *,
    reads: bool = True,
) -> dict[str, WindowFiles]:
    """Call `recognised_as` with the rows that `receipts` describe, and return its result."""
    expected = (
        Expected(r.window.key, r.topic_id, r.files_digest, Measured(r.offsets, r.content), r.load_id) for r in receipts
    )
    return recognised_as(lake, table, files, expected, reads=reads)


def recognised_as(
    lake: Lake,
    table: TableRef,
    files: Mapping[str, WindowFiles],
    expected: Iterable[Expected],
    *,
    reads: bool = True,
) -> dict[str, WindowFiles]:
    """Return `files`, by window. `proved_as` is set for windows that have other files by now, with exactly the rows of
    the receipt.

    `files` belong to a recent version. A window is returned unchanged if its rows differ, or if a file cannot be read:
    callers then find out what is wrong with the window. A file that contains only one window is not read here, because
    the caller that reads the window records a receipt. Unless `reads` is set, only facts that are already known count.
    No file of a partitioned table is read. Memory is bounded by the contents of one file and one sum for each window.
    """
    others = {
        each.key: each
        for each in expected
        if (found := files.get(each.key)) is not None and not found.are(each.files_digest)
    }
    if not others:
        return dict(files)
    folder = lake.table(table)
    handle = folder.delta()
    with folder.reading():
        table_id = str(handle.metadata().id)
        if not holdings.is_flat(handle):
            return dict(files)
        actions = pa.table(handle.get_add_actions())
        schema = pa.schema(handle.schema().to_arrow())
    named = dict(zip(actions["path"].to_pylist(), actions["size_bytes"].to_pylist(), strict=True))
    sums: dict[str, dict[str, Measured]] = {key: {} for key in others}
    unknown, has_read = set[str](), False
    shared = {path for key in others for path in files[key].shared}
    for path in sorted({path for key in others for path in files[key].paths}):
        held = None
        if path in named:
            held = contents.recorded(folder, table_id, path, named[path])
            if held is None and reads and path in shared:
                held = _measured(folder, DataFile(path, {}, named[path], None), schema, table)
                if held is not None:
                    contents.record(folder, table_id, path, named[path], held)
                    has_read = True
        if held is None:
            unknown.update(key for key in others if path in files[key].paths)
        else:
            _add(sums, held)
    if has_read:
        contents.prune(folder, table_id, named.items())
    proved = {
        key: r.files_digest for key, r in others.items() if key not in unknown and sums[key] == {r.topic_id: r.measured}
    }
    return {**files, **{key: replace(files[key], proved_as=digest) for key, digest in proved.items()}}


def forget_unnamed(lake: Lake, table: TableRef) -> None:
    """Delete the recorded contents of files that are not in the newest version of a table. Raises LakeNotWritableError."""
    folder = lake.table(table)
    if not load_log.exists(folder):
        return
    handle = folder.delta()
    with folder.reading():
        named = pa.table(handle.get_add_actions())
        table_id = str(handle.metadata().id)
    contents.prune(folder, table_id, list(zip(named["path"].to_pylist(), named["size_bytes"].to_pylist(), strict=True)))


def _measured(folder: Folder, file: DataFile, schema: pa.Schema, table: TableRef) -> Digests | None:
    try:
        return measured(folder, file, schema, measure_of(table.kind))
    except FilesLostError as e:
        _log.warning("%s", e)
        return None


def _add(sums: dict[str, dict[str, Measured]], held: Digests) -> None:
    for (key, topic_id), of_window in held.items():
        if key in sums:
            of_ids = sums[key]
            of_ids[topic_id] = of_ids[topic_id] + of_window if topic_id in of_ids else of_window
