"""Turn a partitioned table of windows into a flat table while it is in use: copy the table's rows, and then name the
copies in one commit.

Each copy is recorded in a separate file in the table's folder `_migration`, with the files from which its rows come and
the digests of each window. So the next run can continue after a run was killed. A copy counts only while the table
still has all of these files. If a load, an erasure or somebody's OPTIMIZE replaces one of them, the copy is stale, and
its windows are copied again.

**When a commit may name a copy, and when a copy may be deleted.** The span of a copy is the range of windows in the
name of its folder. A commit based on version v names a copy only if no commit loaded or fenced a window in the copy's
span after the version at which the copying began, up to v. Before the table is flat, only the following delete a copy:

* An erasure, if the copy holds rows of the erased window, or if the copy is half-written and its span includes that
  window. The erasure listed the copy before it committed, so the erasure's version c came after the copying began. If c
  <= v, the copy is not named. If c > v, c is not v + 1, because that version is the migration's. So the erasure is
  refused, because it opened the table with another layout. An erasure that opens the table later deletes no file that
  the opened version names.
* A run of the migration, or `leftovers.delete_overtaken`, if such a version c has overtaken the copy. A commit based on
  v >= c never names the copy; a commit based on an earlier v is refused, because version v + 1 exists. Copies that are
  stale for any other reason are deleted only once the table is flat: the reason can be undone, for example by RESTORE,
  or another run may count that copy instead of its own.
* VACUUM, if the copy is older than the table's retention. Copies older than half of the retention are not named. Their
  age is checked just before the commit, together with the sizes of the files.

If a table was restored and is migrated again, the second migration names no copy from before the first migration's
commit, because the run of the first migration may still delete copies that no version has named.

delta-rs cannot change a table's partition columns in a commit that names files, so this module writes the commit
itself, as the version after the one whose files were copied. If that version exists by now, another commit was first,
and the migration's commit is not made. Writers that opened the table before the migration's commit are refused, because
the layout has changed. The commit changes no data, so change feeds show no change.
"""

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pyarrow as pa
from deltalake import DeltaTable, Schema

from platform_assets.errors import LakeUnavailableError, MigrationOutcomeUnknownError, TableRefusedError
from platform_assets.lake import contents, delta_log, field_ids, holdings, row_copies
from platform_assets.lake.contents import Digests
from platform_assets.lake.data_files import NewFile, delta_statistics
from platform_assets.lake.delta_log import DataFile
from platform_assets.lake.failures import WriteOutcomeUnknownError
from platform_assets.lake.leftovers import noted
from platform_assets.lake.location import SHARED, Folder, shared_span
from platform_assets.lake.row_copies import Measure
from platform_assets.model.digest import Digest, Measured
from platform_assets.model.logs import logger

_log = logger(__name__)

FOLDER: Final = "_migration"
MIGRATION_KEY: Final = "platform_assets_migration"
_VERSION: Final = 1
_COLUMNS: Final = "columns.json"
_STATISTICS: Final = "delta.dataSkippingStatsColumns"
_FORMER_COMMENT: Final = b"window key and Dagster partition key; the table's partition column"
"""Comment of the column `window` in tables that were created by releases before flat tables."""
_PATH: Final = re.compile(rf"{SHARED}/[0-9-]+_[0-9-]+/(?:v\d{{1,18}}-)?[0-9a-f-]{{36}}/part-[0-9a-f]+\.parquet")
_RETENTION: Final = "delta.deletedFileRetentionDuration"
_INTERVAL: Final = re.compile(r"interval\s+(\d{1,6})\s+(second|minute|hour|day|week)s?")
_KNOWN_FEATURES: Final = frozenset(
    {"appendOnly", "invariants", "checkConstraints", "generatedColumns", "changeDataFeed", "timestampNtz"}
)
"""Delta's writer features that do not affect which files a commit names."""

Source = tuple[str, int]
"""A data file of the partitioned table: its path in the form that the log uses, and its size."""


@dataclass(frozen=True, slots=True)
class Copy:
    """A new file with all rows from some files of the partitioned table. `name` is the name of the copy's record.

    `since` is a version of the table from before any of these rows were read or written.
    """

    name: str
    file: NewFile
    sources: tuple[Source, ...]
    digests: Digests
    since: int

    def to_json(self) -> str:
        """The record of the copy. It contains the bounds of offsets and times, but no other values from rows."""
        f = self.file
        return json.dumps(
            {
                "version": _VERSION,
                "since": self.since,
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
        """Return the copy described by a record; None for a record of another version, or a record that was changed
        manually.

        The folder of a stale copy is deleted, so the path must be one that only copies have.
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
            sources = tuple((str(p), int(size)) for p, size in found["sources"])
            return cls(name, NewFile(**found["file"]), sources, digests, int(found["since"]))
        except (ValueError, KeyError, TypeError):
            return None


@dataclass(frozen=True, slots=True)
class Event:
    """A commit in the table's log: the window that it loads or fences, and the copies that it names.

    Nothing else is known about a `lost` commit.
    """

    version: int
    window: str | None = None
    named: frozenset[str] = frozenset()
    migrates: bool = False
    lost: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """Copies that count, copies that can be deleted at once, and the groups of files that are still to be copied, each
    group to one file."""

    copies: tuple[Copy, ...]
    overtaken: tuple[Copy, ...]
    groups: tuple[tuple[DataFile, ...], ...]


def plan(files: Sequence[DataFile], copies: Sequence[Copy], target: int, events: Sequence[Event] = ()) -> Plan:
    """Return the plan for the files of a version, the copies recorded so far, and the commits up to the version. Pure.

    The files of a window stay together, windows are ordered by age, and a group ends at `target` bytes. A group also
    ends at files that are copied already, so that a load of a window in between does not make the new copy stale.
    """
    named = {(f.path, f.bytes) for f in files}
    good, overtaken, taken = list[Copy](), list[Copy](), set[Source]()
    for copy in copies:
        later = [event for event in events if event.version > copy.since]
        is_known = not any(e.lost or e.migrates or copy.file.path in e.named for e in later)
        if is_known and any(_is_in_span(copy, e.window) for e in later):
            overtaken.append(copy)
        # Two runs at once may have copied the same file: each counts once.
        elif is_known and named.issuperset(copy.sources) and taken.isdisjoint(copy.sources):
            good.append(copy)
            taken |= set(copy.sources)
    groups, some, size = list[tuple[DataFile, ...]](), list[DataFile](), 0
    for file in files:
        is_taken = (file.path, file.bytes) in taken
        if some and some[-1].partition != file.partition and (is_taken or size >= target or _is_other(some[-1], file)):
            groups.append(tuple(some))
            some, size = [], 0
        if not is_taken:
            some.append(file)
            size += file.bytes
    return Plan(tuple(good), tuple(overtaken), (*groups, tuple(some)) if some else tuple(groups))


def _is_other(file: DataFile, following: DataFile) -> bool:
    """Return True if one file has a window and the other has none: a copy of a file without a window may hold any
    window."""
    first, second = (holdings.is_key(f.partition[holdings.WINDOW]) for f in (file, following))
    return first != second


def _is_in_span(copy: Copy, window: str | None) -> bool:
    span = shared_span(copy.file.path)
    return window is not None and (span is None or span[0] <= window <= span[1])


def events_since(folder: Folder, copies: Sequence[Copy], version: int) -> list[Event]:
    """Return the commits up to `version` after the copying of the oldest of `copies` began."""
    return [
        _event(folder, number) for number in range(min((c.since for c in copies), default=version) + 1, version + 1)
    ]


def _event(folder: Folder, version: int) -> Event:
    found = delta_log.commit(folder, version)
    if found is None:
        return Event(version, lost=True)
    window, named = noted(found)
    return Event(version, window, named, MIGRATION_KEY in (found.user_metadata or ""))


def files_in_order(folder: Folder, handle: DeltaTable) -> list[DataFile]:
    """Return the files of a partitioned table in the order of their rows, each with its window as its partition."""
    with folder.reading():
        found = pa.table(handle.get_add_actions(flatten=True))
    by_window = holdings.by_window(folder, found, flat=False)
    places = [n for n in ("min.kafka_partition", "min.kafka_offset") if n in by_window.column_names]
    rows = by_window.select(["path", "size_bytes", holdings.WINDOW, *places]).to_pylist()
    rows.sort(key=lambda r: (r[holdings.WINDOW], *(-1 if r[n] is None else r[n] for n in places), r["path"]))
    return [DataFile(r["path"], {holdings.WINDOW: r[holdings.WINDOW] or None}, r["size_bytes"], None) for r in rows]


def check_supported(folder: Folder, handle: DeltaTable) -> None:
    """Raise TableRefusedError if the table uses a feature of Delta that a commit of this module would not respect."""
    protocol = handle.protocol()
    other = sorted(set(protocol.writer_features or ()) - _KNOWN_FEATURES)
    columns = list(handle.metadata().partition_columns)
    if columns != [holdings.WINDOW]:
        raise TableRefusedError(
            folder.name,
            f"it is partitioned by {columns}, but only a table that is partitioned by `window` can be migrated",
        )
    if other or (not protocol.writer_features and protocol.min_writer_version > 4):
        named = ", ".join(other) or f"writers of version {protocol.min_writer_version}"
        raise TableRefusedError(
            folder.name,
            f"it uses {named}, which the migration does not support: first drop this feature from the table",
        )


def flat_columns(folder: Folder, handle: DeltaTable) -> pa.Schema:
    """Return the columns that the flat table gets, with field ids. The ids are the same in all runs of a migration."""
    now = _unpartitioned(pa.schema(handle.schema().to_arrow()))
    known = (folder / FOLDER).read(_COLUMNS)
    before = None if known is None else pa.schema(Schema.from_json(known.decode()).to_arrow())
    found = field_ids.assigned(now, before)
    text = Schema.from_arrow(found).to_json().encode()
    if before is None and not (folder / FOLDER).write_new(_COLUMNS, text):
        return flat_columns(folder, handle)
    if before is not None and field_ids.ids_of(before) != field_ids.ids_of(found):
        (folder / FOLDER).write(_COLUMNS, text)
    return found


def _unpartitioned(columns: pa.Schema) -> pa.Schema:
    """Return the columns, with a comment of `window` that does not call `window` the partition column."""
    at = columns.get_field_index(holdings.WINDOW)
    metadata = columns.field(at).metadata or {}
    if metadata.get(b"comment") != _FORMER_COMMENT:
        return columns
    comment = _FORMER_COMMENT.partition(b";")[0]
    return columns.set(at, columns.field(at).with_metadata({**metadata, b"comment": comment}))


def recorded(folder: Folder) -> list[Copy]:
    """Return the recorded copies; their files may no longer exist."""
    names = sorted(n for n in (folder / FOLDER).files() if n.endswith(".json") and n != _COLUMNS)
    texts = ((name, (folder / FOLDER).read(name)) for name in names)
    found = (None if text is None else Copy.from_json(name, text) for name, text in texts)
    return [copy for copy in found if copy is not None]


def lasting(folder: Folder, handle: DeltaTable, copies: Sequence[Copy]) -> list[Copy]:
    """Return those of `copies` whose files exist and are so young that no VACUUM will delete them soon."""
    text = handle.metadata().configuration.get(_RETENTION) or ""
    found = _INTERVAL.fullmatch(text.strip().lower())
    retention = timedelta(days=7) if found is None else timedelta(**{f"{found[2]}s": int(found[1])})
    old = set(folder.written_before(datetime.now(UTC) - retention / 2, SHARED))
    return [c for c in copies if c.file.path not in old and folder.size(c.file.path) == c.file.bytes]


def copied(
    folder: Folder, sources: Sequence[DataFile], columns: pa.Schema, measure: Measure, since: int
) -> Copy | None:
    """Copy the rows of `sources` to one new file, compare them with the sources, and record the copy; return None if
    the sources have no rows.

    `since` is a version that the table had by now. Raises FilesLostError if a source cannot be read, and LoadError if
    the copy differs; after an error, no file is left.
    """
    made = row_copies.merged(folder, sources, columns, measure, since)
    if made is None:
        return None
    copy = Copy(f"{uuid.uuid4()}.json", made.file, tuple((f.path, f.bytes) for f in sources), made.digests, since)
    try:
        (folder / FOLDER).write(copy.name, copy.to_json().encode())
    except BaseException:
        row_copies.discard(folder, [copy.file])
        raise
    return copy


def discard(folder: Folder, copies: Sequence[Copy]) -> None:
    """Delete copies that no commit names: first their records, so that no other run names the files in a commit."""
    for copy in copies:
        (folder / FOLDER).erase([copy.name])
        row_copies.discard(folder, [copy.file])


def clear(folder: Folder, version: int) -> None:
    """Delete the records once the table is flat at `version`, its newest version. Also delete the previous copies that
    no version has named."""
    copies = recorded(folder)
    events = events_since(folder, copies, version)
    for copy in copies:
        later = [event for event in events if event.version > copy.since]
        if any(e.migrates for e in later) and not any(e.lost or copy.file.path in e.named for e in later):
            discard(folder, [copy])
    (folder / FOLDER).delete()


def commit(
    folder: Folder, handle: DeltaTable, files: Sequence[DataFile], copies: Sequence[Copy], columns: pa.Schema
) -> int | None:
    """Replace `files`, which are all files in the version of `handle`, by `copies`, and drop the partition column.

    Return the new version; None if another commit came first, or if a copy no longer exists or is too old. Raises
    MigrationOutcomeUnknownError, after which the log may contain the commit.
    """
    for copy in copies:
        # Before the commit, so that the contents are recorded for each file that the table names.
        path = holdings.in_log(copy.file.path)
        contents.record(folder, str(handle.metadata().id), path, copy.file.bytes, dict(copy.digests))
    if len(lasting(folder, handle, copies)) < len(copies):
        return None
    version, identity = handle.version() + 1, str(uuid.uuid4())
    name, lost = delta_log.name_of(version), None
    lines = [json.dumps(a, separators=(",", ":")) for a in _actions(handle, files, copies, columns, identity)]
    try:
        if folder.write_new(name, "\n".join(lines).encode() + b"\n"):
            return version
    except WriteOutcomeUnknownError as e:
        lost = e
    # The answer may be lost, or be that to a second attempt of the client, after a first one that took effect.
    try:
        made = folder.read(name)
    except LakeUnavailableError as e:
        raise MigrationOutcomeUnknownError(folder.name, str(e)) from e
    if made is None and lost is not None:
        # The store may still carry the write out.
        raise MigrationOutcomeUnknownError(folder.name, str(lost)) from lost
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
