"""Windows whose rows are those of their receipts, although they are in other files by now.

Upkeep, and strangers' OPTIMIZE or Z-ORDER, rewrite files of many windows. Each such file is measured once, by whoever rewrote it or
by the first who needs to know, and the sums over a window's files are compared with its receipt. So nothing is read per window.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import pyarrow as pa

from platform_assets.engines.measuring import measure_of
from platform_assets.errors import FilesLostError
from platform_assets.lake import contents
from platform_assets.lake.contents import Digests
from platform_assets.lake.delta_log import DataFile
from platform_assets.lake.holdings import WindowFiles
from platform_assets.lake.location import Folder, Lake
from platform_assets.lake.measuring import measured
from platform_assets.ledger.entries import Receipt
from platform_assets.model.digest import Measured
from platform_assets.model.logs import logger
from platform_assets.model.tables import TableRef

_log = logger(__name__)


def recognised(
    lake: Lake,
    table: TableRef,
    files: Mapping[str, WindowFiles],
    receipts: Iterable[Receipt],
    *,
    reads: bool = True,
) -> dict[str, WindowFiles]:
    """Return `files`, by window, with `proved_as` set for windows in shared files that hold the rows of their receipts, and no others.

    `files` are those of a recent version. A window stays as it is if its rows differ, or if a file cannot be read: callers find out
    then what is wrong with it. Unless `reads`, only what is already known of files counts. Memory is bounded by the contents of one
    file and one sum per window.
    """
    others = {
        receipt.window.key: receipt
        for receipt in receipts
        if (found := files.get(receipt.window.key)) is not None and found.shared and not found.are(receipt.files_digest)
    }
    if not others:
        return dict(files)
    folder = lake.table(table)
    handle = folder.delta()
    with folder.reading():
        table_id = str(handle.metadata().id)
        actions = pa.table(handle.get_add_actions())
        schema = pa.schema(handle.schema().to_arrow())
    named = dict(zip(actions["path"].to_pylist(), actions["size_bytes"].to_pylist(), strict=True))
    sums: dict[str, dict[str, Measured]] = {key: {} for key in others}
    unknown, has_read = set[str](), False
    for path in sorted({path for key in others for path in files[key].paths}):
        held = None
        if path in named:
            held = contents.recorded(folder, table_id, path, named[path])
            if held is None and reads:
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
    proved = {key: r.files_digest for key, r in others.items() if key not in unknown and _are_of(sums[key], r)}
    return {key: replace(found, proved_as=proved.get(key, found.proved_as)) for key, found in files.items()}


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


def _are_of(sums: Mapping[str, Measured], receipt: Receipt) -> bool:
    """Return true if the rows of a window, by topic id, are those of its receipt, and no others."""
    return sums == {receipt.topic_id: Measured(receipt.offsets, receipt.content)}
