"""Turn a partitioned table of windows into a flat one while it is in use: copy its rows, and then name the copies in
one commit.

Each copy is recorded in a file of its own in the folder `_migration` of the table, with the files that its rows come from and the
digests of each window, so that a run that was killed is continued. A copy counts only while the table still has all of these files: a
load, an erasure or somebody's OPTIMIZE that replaces one makes it stale, and its windows are copied again.

delta-rs cannot change a table's partition columns in a commit that names files, so the commit is written here: as the version after
that whose files were copied, unless there is such a version by now. Then the other commit was first, and this one is not made. Whoever
opened the table before this commit is refused, because its layout has changed. It changes no data, so change feeds see nothing.
"""

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable, Schema

from platform_assets.errors import LakeUnavailableError, MigrationOutcomeUnknownError, TableRefusedError
from platform_assets.lake import contents, delta_log, field_ids, holdings, row_copies
from platform_assets.lake.contents import Digests
from platform_assets.lake.data_files import NewFile, delta_statistics
from platform_assets.lake.delta_log import DataFile
from platform_assets.lake.location import SHARED, Folder
from platform_assets.lake.row_copies import Measure
from platform_assets.model.digest import Digest, Measured
from platform_assets.model.logs import logger

_log = logger(__name__)

FOLDER: Final = "_migration"
MIGRATION_KEY: Final = "platform_assets_migration"
_VERSION: Final = 1
_COLUMNS: Final = "columns.json"
_STATISTICS: Final = "delta.dataSkippingStatsColumns"
_PATH: Final = re.compile(rf"{SHARED}/[0-9-]+_[0-9-]+/[0-9a-f-]{{36}}/part-[0-9a-f]+\.parquet")
_KNOWN_FEATURES: Final = frozenset(
    {"appendOnly", "invariants", "checkConstraints", "generatedColumns", "changeDataFeed", "timestampNtz"}
)
"""Writers' features of Delta that do not concern which files a commit names."""

Source = tuple[str, int]
"""A data file of the partitioned table: its path in the form of the log, and its size."""


@dataclass(frozen=True, slots=True)
class Copy:
    """A new file with all rows of some files of the partitioned table. `name` is that of its record."""

    name: str
    file: NewFile
    sources: tuple[Source, ...]
    digests: Digests

    def to_json(self) -> str:
        """The record of the copy. It has bounds of offsets and times, but no other value of a row."""
        f = self.file
        return json.dumps(
            {
                "version": _VERSION,
                "file": {"path": f.path, "bytes": f.bytes, "rows": f.rows, "statistics": f.statistics},
                "sources": [list(source) for source in self.sources],
                "digests": [
                    [*place, m.offsets.rows, m.offsets.total, m.content.rows, m.content.total]
                    for place, m in sorted(self.digests.items())
                ],
            },
            separators=(",", ":"),
        )

    @classmethod
    def from_json(cls, name: str, text: bytes) -> Copy | None:
        """Return the copy of a record; None for one of another version, or that was changed manually.

        A stale copy's folder is deleted, so the path must be one that only copies have.
        """
        try:
            found = json.loads(text)
            if found["version"] != _VERSION or not _PATH.fullmatch(found["file"]["path"]):
                return None
            digests = {
                (key, topic_id): Measured(Digest(*offsets), Digest(*content))
                for key, topic_id, *numbers in found["digests"]
                for offsets, content in [(numbers[:2], numbers[2:])]
            }
            return cls(
                name, NewFile(**found["file"]), tuple((str(p), int(size)) for p, size in found["sources"]), digests
            )
        except (ValueError, KeyError, TypeError):
            return None


@dataclass(frozen=True, slots=True)
class Plan:
    """Valid copies, stale copies, and the groups of files left to copy, each to one file."""

    copies: tuple[Copy, ...]
    stale: tuple[Copy, ...]
    groups: tuple[tuple[DataFile, ...], ...]


def plan(files: Sequence[DataFile], copies: Sequence[Copy], target: int) -> Plan:
    """Return the plan for the files of a version, and the copies recorded so far. Pure.

    A window's files stay together, windows follow one another by age, and a group ends at `target` bytes.
    """
    named = {(f.path, f.bytes) for f in files}
    good, stale, taken = list[Copy](), list[Copy](), set[Source]()
    for copy in copies:
        # Two runs at once may have copied the same file: each counts once.
        is_good = named.issuperset(copy.sources) and taken.isdisjoint(copy.sources)
        (good if is_good else stale).append(copy)
        taken |= set(copy.sources) if is_good else set()
    groups, some, size = list[tuple[DataFile, ...]](), list[DataFile](), 0
    for file in files:
        if (file.path, file.bytes) in taken:
            continue
        if some and size >= target and some[-1].partition != file.partition:
            groups.append(tuple(some))
            some, size = [], 0
        some.append(file)
        size += file.bytes
    return Plan(tuple(good), tuple(stale), (*groups, tuple(some)) if some else tuple(groups))


def files_in_order(folder: Folder, handle: DeltaTable) -> list[DataFile]:
    """Return the files of a partitioned table in order of their rows, each with its window as its partition."""
    with folder.reading():
        found = pa.table(handle.get_add_actions(flatten=True))
    by_window = holdings.by_window(folder, found, flat=False)
    places = [n for n in ("min.kafka_partition", "min.kafka_offset") if n in by_window.column_names]
    rows = by_window.select(["path", "size_bytes", holdings.WINDOW, *places]).to_pylist()
    rows.sort(key=lambda r: (r[holdings.WINDOW] or "", *(-1 if r[n] is None else r[n] for n in places), r["path"]))
    return [DataFile(r["path"], {holdings.WINDOW: r[holdings.WINDOW]}, r["size_bytes"], None) for r in rows]


def check_supported(folder: Folder, handle: DeltaTable) -> None:
    """Raise TableRefusedError if the table uses a feature of Delta that a commit of this module would not respect."""
    protocol = handle.protocol()
    other = sorted(set(protocol.writer_features or ()) - _KNOWN_FEATURES)
    columns = list(handle.metadata().partition_columns)
    if columns != [holdings.WINDOW]:
        raise TableRefusedError(
            folder.name, f"it is partitioned by {columns}, and only one by `window` can be migrated"
        )
    if other or (not protocol.writer_features and protocol.min_writer_version > 4):
        named = ", ".join(other) or f"writers of version {protocol.min_writer_version}"
        raise TableRefusedError(
            folder.name, f"it uses {named}, which a migration does not support: drop the feature of the table first"
        )


def flat_columns(folder: Folder, handle: DeltaTable) -> pa.Schema:
    """Return the columns that the flat table gets, with field ids. The ids stay the same over all runs of a migration."""
    now = pa.schema(handle.schema().to_arrow())
    known = (folder / FOLDER).read(_COLUMNS)
    before = None if known is None else pa.schema(Schema.from_json(known.decode()).to_arrow())
    found = field_ids.assigned(now, before)
    text = Schema.from_arrow(found).to_json().encode()
    if before is None and not (folder / FOLDER).write_new(_COLUMNS, text):
        return flat_columns(folder, handle)
    if before is not None and field_ids.ids_of(before) != field_ids.ids_of(found):
        (folder / FOLDER).write(_COLUMNS, text)
    return found


def copies_of(folder: Folder) -> list[Copy]:
    """Return the recorded copies whose files are still there."""
    found = []
    for name in sorted((folder / FOLDER).files()):
        text = (folder / FOLDER).read(name) if name.endswith(".json") and name != _COLUMNS else None
        copy = None if text is None else Copy.from_json(name, text)
        if copy is not None and folder.size(copy.file.path) == copy.file.bytes:
            found.append(copy)
    return found


def copied(folder: Folder, sources: Sequence[DataFile], columns: pa.Schema, measure: Measure) -> Copy | None:
    """Copy the rows of `sources` to one new file, compare them, and record the copy; None if the sources have no rows.

    Raises FilesLostError if a source cannot be read, and LoadError if the copy differs; no file is left then.
    """
    made = row_copies.merged(folder, sources, columns, measure)
    if made is None:
        return None
    copy = Copy(f"{uuid.uuid4()}.json", made.file, tuple((f.path, f.bytes) for f in sources), made.digests)
    try:
        (folder / FOLDER).write(copy.name, copy.to_json().encode())
    except BaseException:
        row_copies.discard(folder, [copy.file])
        raise
    return copy


def discard(folder: Folder, copies: Sequence[Copy]) -> None:
    """Delete copies that no longer count: their record first, so that no other run names the file in a commit."""
    for copy in copies:
        (folder / FOLDER).erase([copy.name])
        row_copies.discard(folder, [copy.file])


def clear(folder: Folder) -> None:
    """Delete the records, once the table is flat."""
    (folder / FOLDER).delete()


def commit(
    folder: Folder, handle: DeltaTable, files: Sequence[DataFile], copies: Sequence[Copy], columns: pa.Schema
) -> int | None:
    """Put `copies` in the place of `files`, which are all files of the version of `handle`, and drop the partition column.

    Return the new version; None if another commit came first. Raises MigrationOutcomeUnknownError, after which the log may have it.
    """
    for copy in copies:
        # Before the commit, so that whoever sees the file finds its contents.
        path = holdings.in_log(copy.file.path)
        contents.record(folder, str(handle.metadata().id), path, copy.file.bytes, dict(copy.digests))
    version, identity = handle.version() + 1, str(uuid.uuid4())
    lines = [json.dumps(a, separators=(",", ":")) for a in _actions(handle, files, copies, columns, identity)]
    try:
        if folder.write_new(delta_log.name_of(version), "\n".join(lines).encode() + b"\n"):
            return version
        made = folder.read(delta_log.name_of(version))
    except LakeUnavailableError as e:
        raise MigrationOutcomeUnknownError(folder.name, str(e)) from e
    return version if made is not None and identity.encode() in made else None


def _actions(
    handle: DeltaTable, files: Sequence[DataFile], copies: Sequence[Copy], columns: pa.Schema, identity: str
) -> list[dict[str, Any]]:
    now, metadata = round(time.time() * 1000), handle.metadata()
    configuration = dict(metadata.configuration)
    statistics = (configuration.get(_STATISTICS) or "").split(",")
    if statistics != [""] and holdings.WINDOW not in statistics:
        configuration[_STATISTICS] = ",".join([*statistics, holdings.WINDOW])
    note = json.dumps({MIGRATION_KEY: _VERSION, "id": identity, "layout": "flat"}, separators=(",", ":"))
    table: dict[str, Any] = {
        "id": str(metadata.id),
        **({} if metadata.name is None else {"name": metadata.name}),
        **({} if metadata.description is None else {"description": metadata.description}),
        "format": {"provider": "parquet", "options": {}},
        "schemaString": Schema.from_arrow(columns).to_json(),
        "partitionColumns": [],
        "configuration": configuration,
        **({} if metadata.created_time is None else {"createdTime": metadata.created_time}),
    }
    info = {"timestamp": now, "operation": "MIGRATE LAYOUT", "operationParameters": {}, "userMetadata": note}
    return [
        {"commitInfo": info},
        {"metaData": table},
        *({"remove": _removed(f, now)} for f in files),
        *({"add": _added(copy.file, now)} for copy in copies),
    ]


def _removed(file: DataFile, now: int) -> dict[str, Any]:
    return {
        "path": file.path,
        "deletionTimestamp": now,
        "dataChange": False,
        "extendedFileMetadata": True,
        "partitionValues": dict(file.partition),
        "size": file.bytes,
    }


def _added(file: NewFile, now: int) -> dict[str, Any]:
    return {
        "path": holdings.in_log(file.path),
        "partitionValues": {},
        "size": file.bytes,
        "modificationTime": now,
        "dataChange": False,
        "stats": delta_statistics(file),
    }


def digests_by_window(copies: Sequence[Copy]) -> Mapping[str, Mapping[str, Measured]]:
    """Return the digests of each window over all copies, by topic id."""
    found: dict[str, dict[str, Measured]] = {}
    for copy in copies:
        for (key, topic_id), measured in copy.digests.items():
            of_window = found.setdefault(key, {})
            of_window[topic_id] = of_window.get(topic_id, Measured.of_nothing()) + measured
    return found


def is_named(folder: Folder, sources: Sequence[DataFile]) -> bool:
    """Return true if the newest version still has all of these files, so that the rows read from them are current."""
    handle = folder.delta()
    with folder.reading():
        named = {unquote(path) for path in pa.table(handle.get_add_actions())["path"].to_pylist()}
    return named.issuperset(unquote(file.path) for file in sources)
