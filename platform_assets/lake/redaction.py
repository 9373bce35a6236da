"""Taking values of erased records out of a table's log: bounds of columns, and samples of failing rows in commit metadata.

No version changes by it: which files there are, how many rows they have and where those are is left as it was.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from platform_assets.lake.location import Folder

_LOG: Final = "_delta_log"
_COMMIT: Final = re.compile(r"\d{20}\.json")
_BOUNDS: Final = ("minValues", "maxValues")

Statistics = dict[str, Any]
OfFile = Callable[[dict[str, str | None], Statistics], Statistics]
"""The statistics of a data file, given its partition values and those that it has."""
OfCommit = Callable[[str], str]
"""The `userMetadata` of a commit, given what it is."""


def without_columns(statistics: Statistics, dropped: Callable[[str], bool]) -> Statistics:
    """Statistics without the bounds of the columns for which `dropped` says so."""
    return {
        name: {column: bound for column, bound in value.items() if not dropped(column)} if name in _BOUNDS else value
        for name, value in statistics.items()
    }


def redact(table: Folder, of_file: OfFile, of_commit: OfCommit = lambda text: text) -> int:
    """Write those files of the log again that something changes of; gives how many. Raises LakeNotWritableError.

    Spark's checksums of versions, which may repeat statistics and which no reader needs, are deleted with them.
    """
    log, changed = table / _LOG, 0
    for name in sorted(log.files()):
        if _COMMIT.fullmatch(name):
            changed += _commit(log, name, of_file, of_commit)
    for folder in (log, log / "_sidecars"):
        for name in sorted(folder.files()):
            if name.endswith(".parquet"):
                changed += _checkpoint(folder, name, of_file)
    if changed:
        log.erase([name for name in log.files() if name.endswith(".crc")])
    return changed


def replaced_files(table: Folder, is_meant: Callable[[dict[str, str | None]], bool]) -> list[str]:
    """Paths of data files that the log names, that the newest version has not, and that are there; of the partitions meant.

    A file that no commit names may be one that is being written, and is not among them.
    """
    named = set[str]()
    log = table / _LOG
    for name in sorted(log.files()):
        if not _COMMIT.fullmatch(name):
            continue
        for line in (log.read(name) or b"").splitlines():
            action = json.loads(line)
            for kind in ("add", "remove"):
                file = action.get(kind)
                if file is not None and is_meant(file.get("partitionValues") or {}):
                    named.add(unquote(file["path"]))
    with table.reading():
        current = {unquote(path) for path in pa.table(table.delta().get_add_actions())["path"].to_pylist()}
    return sorted(path for path in named - current if table.has(path))


def _commit(log: Folder, name: str, of_file: OfFile, of_commit: OfCommit) -> bool:
    content = log.read(name)
    if content is None:
        return False
    lines = [json.loads(line) for line in content.splitlines() if line.strip()]
    before = json.dumps(lines)
    for action in lines:
        for kind in ("add", "remove"):
            file = action.get(kind)
            if file is not None and file.get("stats"):
                statistics = json.loads(file["stats"])
                left = of_file(file.get("partitionValues") or {}, statistics)
                if left != statistics:
                    file["stats"] = json.dumps(left)
        info = action.get("commitInfo")
        if info is not None and isinstance(info.get("userMetadata"), str):
            info["userMetadata"] = of_commit(info["userMetadata"])
    if json.dumps(lines) == before:
        return False
    log.write(name, b"".join(json.dumps(line, separators=(",", ":")).encode() + b"\n" for line in lines))
    return True


def _checkpoint(log: Folder, name: str, of_file: OfFile) -> bool:
    with log.reading(), log.open(name) as opened:
        table = pq.ParquetFile(opened).read()
    if "add" not in table.column_names:
        return False
    column = table["add"].combine_chunks()
    files = column.to_pylist()
    changed = False
    for file in files:
        if file is None or not file.get("stats"):
            continue
        statistics = json.loads(file["stats"])
        left = of_file(dict(file.get("partitionValues") or ()), statistics)
        if left != statistics:
            file["stats"], changed = json.dumps(left), True
            if "stats_parsed" in file:
                file["stats_parsed"] = None
    if not changed:
        return False
    content = pa.BufferOutputStream()
    at = table.column_names.index("add")
    pq.write_table(table.set_column(at, table.schema.field("add"), pa.array(files, column.type)), content)
    log.write(name, content.getvalue().to_pybytes())
    return True
