"""Single commits in a Delta table's log, read from their JSON files.

Reading the commits after a known commit takes one small file per commit, however large the table is. A process reads a
file again only if the file has changed. The format is that of the Delta transaction log protocol: the file of a version
has one action per line.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final

from platform_assets.lake.failures import TableDamagedError, TableGoneError
from platform_assets.lake.location import Folder
from platform_assets.lake.remembered import Remembered

_REMEMBERED_BYTES: Final = 32 << 20
"""Memory limit for remembered log files, counted by their size on disk; in memory, they take about three times as much.
"""


@dataclass(frozen=True, slots=True)
class Anchor:
    """A commit that was read. `digest` is the digest of its file, with which the replacement of a table by another one
    is detected."""

    version: int
    digest: str


@dataclass(frozen=True, slots=True)
class DataFile:
    """A data file that a commit adds. `path` is percent-encoded, as in the log; `statistics` is None if the file has no
    statistics."""

    path: str
    partition: Mapping[str, str | None]
    bytes: int
    statistics: Mapping[str, Any] | None

    @property
    def rows(self) -> int | None:
        """Number of rows; None if the log does not contain it."""
        return None if self.statistics is None else self.statistics.get("numRecords")


@dataclass(frozen=True, slots=True)
class Commit:
    """One version of a table: files added and paths removed.

    `rearranges` is true if every file action declares that it changes no data, as the file actions of OPTIMIZE do.
    `transactions` has the versions of application transactions by their ids. `reshapes` is true if the commit sets
    columns, settings or features of the table.
    """

    anchor: Anchor
    adds: tuple[DataFile, ...]
    removes: tuple[str, ...]
    rearranges: bool
    user_metadata: str | None
    transactions: Mapping[str, int]
    reshapes: bool = False

    @property
    def version(self) -> int:
        """Table version that the commit created."""
        return self.anchor.version


def anchor(table: Folder, version: int) -> Anchor | None:
    """Return the commit of this version, as a starting point for reading later commits; None if its file was deleted."""
    file = _read(table, version)
    return None if file is None else file.anchor


def newest_version(table: Folder, at_least: int | None = None) -> int | None:
    """Return the newest version of the table; None if there is no table.

    The search starts from `at_least`, a version known to exist, or from the newest checkpoint; without either, it lists
    the log.
    """
    start = at_least if at_least is not None else newest_checkpoint(table)
    if start is None or (at_least is None and not table.has(name_of(start))):
        stems = (name.removesuffix(".json") for name in table.files("_delta_log") if name.endswith(".json"))
        return max((int(stem) for stem in stems if stem.isdigit()), default=None)
    while table.has(name_of(start + 1)):
        start += 1
    return start


def version(table: Folder) -> int:
    """Return the table's newest version. Raises TableGoneError if there is no table."""
    newest = newest_version(table)
    if newest is None:
        raise TableGoneError(str(table))
    return newest


def exists(table: Folder) -> bool:
    """Return True if there is a Delta table. The log, which may be long, is only listed if neither its first nor its
    newest commit is found."""
    return table.has(name_of(0)) or newest_version(table) is not None or table.has_delta_log()


def commit(table: Folder, version: int) -> Commit | None:
    """Return the commit of this version; None if its file was deleted or never written. Raises TableDamagedError."""
    file = _read(table, version)
    if file is None:
        return None
    try:
        return file.commit()
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        raise TableDamagedError(str(table), f"{name_of(version)} is not a Delta commit ({e})") from e


def commits_after(table: Folder, seen: Anchor) -> list[Commit] | None:
    """Return all commits after `seen`, in ascending order; None if `seen` is not in the log, or no longer in the log."""
    if anchor(table, seen.version) != seen:
        return None
    found: list[Commit] = []
    while (following := commit(table, seen.version + len(found) + 1)) is not None:
        found.append(following)
    return found


def newest_anchor(table: Folder) -> Anchor | None:
    """Return the newest commit; None if there is no table."""
    version = newest_version(table)
    return None if version is None else anchor(table, version)


def newest_checkpoint(table: Folder) -> int | None:
    """Return the version of the newest checkpoint according to the log; None if there is no checkpoint."""
    content = table.read("_delta_log/_last_checkpoint")
    try:
        version: int | None = None if content is None else int(json.loads(content)["version"])
    except (ValueError, KeyError, TypeError):
        # It is only a hint for where to begin; delta-rs ignores one that it cannot read.
        return None
    return version


class _File:
    """A log file that was read. Its commit is parsed when it is first needed."""

    def __init__(self, version: int, content: bytes) -> None:
        self.anchor = Anchor(version, sha256(content).hexdigest()[:32])
        self._made: bytes | Commit = content

    def commit(self) -> Commit:
        """Return the commit in the file. Raises ValueError, KeyError, TypeError or AttributeError if the file does not
        contain a commit."""
        if isinstance(self._made, bytes):
            self._made = _parsed(self.anchor, self._made)
        return self._made


def _parsed(anchor: Anchor, content: bytes) -> Commit:
    adds: list[DataFile] = []
    removes: list[str] = []
    user_metadata: str | None = None
    changes: list[bool] = []
    transactions: dict[str, int] = {}
    reshapes = False
    for line in content.splitlines():
        action: dict[str, Any] = json.loads(line) if line.strip() else {}
        if (add := action.get("add")) is not None:
            statistics = json.loads(add["stats"]) if add.get("stats") else None
            adds.append(DataFile(add["path"], add["partitionValues"], add["size"], statistics))
            changes.append(add["dataChange"])
        elif (remove := action.get("remove")) is not None:
            removes.append(remove["path"])
            changes.append(remove["dataChange"])
        elif (info := action.get("commitInfo")) is not None:
            # Spark writes it as a JSON text; delta-rs adds the caller's fields next to the others.
            user_metadata = info.get("userMetadata")
        elif (txn := action.get("txn")) is not None:
            transactions[txn["appId"]] = txn["version"]
        else:
            reshapes = reshapes or "metaData" in action or "protocol" in action
    return Commit(
        anchor,
        tuple(adds),
        tuple(removes),
        bool(changes) and not any(changes),
        user_metadata,
        transactions,
        reshapes,
    )


def name_of(version: int) -> str:
    """Return the file name of a commit, relative to the table's folder."""
    return f"_delta_log/{version:020}.json"


def checkpoint_name(version: int) -> str:
    """Return the file name of a single-file checkpoint, in the form that delta-rs uses."""
    return f"_delta_log/{version:020}.checkpoint.parquet"


_remembered: Remembered[tuple[Folder, int], _File] = Remembered(_REMEMBERED_BYTES)


def _read(table: Folder, version: int) -> _File | None:
    # The stamp is read first: if the file is replaced in the meantime, the stamp does not match the new one.
    name = name_of(version)
    stamp = table.stamp(name)
    if stamp is None:
        return None
    found = _remembered.get((table, version), stamp)
    if found is not None:
        return found
    content = table.read(name)
    if content is None:
        return None
    file = _File(version, content)
    _remembered.keep((table, version), stamp, file, len(content))
    return file
