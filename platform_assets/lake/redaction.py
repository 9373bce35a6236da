"""Removing the values of erased records from a table's log: bounds of columns, and samples of failing rows in commit
metadata.

This changes no version: the files, their row counts, and the places of rows stay the same.
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
_UNFINISHED: Final = re.compile(r"\.\d{20}\.checkpoint\.parquet\.[0-9a-f]{32}")
_BOUNDS: Final = ("minValues", "maxValues")

Statistics = dict[str, Any]
OfFile = Callable[[dict[str, str | None], Statistics], Statistics]
"""Function that returns new statistics, given a data file's partition values and statistics."""
OfCommit = Callable[[str], str]
"""Function that returns a commit's new `userMetadata`, given the present one."""


def without_columns(statistics: Statistics, dropped: Callable[[str], bool]) -> Statistics:
    """Return the statistics without the bounds of those columns for which `dropped` returns True."""
    return {
        name: {column: bound for column, bound in value.items() if not dropped(column)} if name in _BOUNDS else value
        for name, value in statistics.items()
    }


def redact(table: Folder, of_file: OfFile, of_commit: OfCommit = lambda text: text) -> int:
    """Rewrite the log files that change; return their number. Raises LakeNotWritableError.

    Also delete the checksums that Spark writes for versions: they may repeat statistics, and no reader needs them.
    A checkpoint that another process was writing is deleted or redacted; this process then makes it again.
    """
    log, changed = table / _LOG, 0
    for name in sorted(log.files()):
        if _COMMIT.fullmatch(name):
            changed += _commit(log, name, of_file, of_commit)
    seen = set[tuple[Folder, str]]()
    while (
        listed := {
            (folder, name)
            for folder in (log, log / "_sidecars")
            for name in folder.files()
            if name.endswith(".parquet")
        }
        - seen
    ):
        # A checkpoint that appears meanwhile may have been made of files as they were before.
        for folder, name in sorted(listed):
            changed += _checkpoint(folder, name, of_file)
        seen |= listed
    table.erase(unfinished_checkpoints(table))
    if changed:
        log.erase([name for name in log.files() if name.endswith(".crc")])
    return changed


def unfinished_checkpoints(table: Folder) -> list[str]:
    """Return the names of files to which checkpoints are being written, or were when the process was killed."""
    return [f"{_LOG}/{name}" for name in (table / _LOG).files() if _UNFINISHED.fullmatch(name)]


def replaced_files(table: Folder, is_meant: Callable[[dict[str, str | None]], bool]) -> list[str]:
    """Return the paths of existing data files in the given partitions that the log lists but the newest version does
    not have.

    Files to which no commit refers are excluded, because a load may still be writing them.
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
    if not log.has(name):
        return False  # a clean-up has deleted it since it was listed
    with log.reading(), log.open(name) as opened:
        table = pq.ParquetFile(opened).read()
    before = table
    for kind in ("add", "remove"):
        if kind not in table.column_names:
            continue
        column = table[kind].combine_chunks()
        files = column.to_pylist()
        if sum(_is_redacted(file, of_file) for file in files if file is not None):
            at = table.column_names.index(kind)
            table = table.set_column(at, table.schema.field(kind), pa.array(files, column.type))
    if table is before:
        return False
    content = pa.BufferOutputStream()
    pq.write_table(table, content)
    log.write(name, content.getvalue().to_pybytes())
    return True


def _is_redacted(file: dict[str, Any], of_file: OfFile) -> bool:
    """Change the statistics of a file in place; return True if they had to change."""
    if not file.get("stats"):
        return False
    statistics = json.loads(file["stats"])
    left = of_file(dict(file.get("partitionValues") or {}), statistics)
    if left == statistics:
        return False
    file["stats"] = json.dumps(left)
    if "stats_parsed" in file:
        file["stats_parsed"] = None
    return True
