"""The tables of a state: one row per live key, and one per deleted key. Their columns, commits, and rows.

A commit of a fold replaces all files. Its `userMetadata` names the version of the table of changes from which the rows
follow, so the length of the metadata does not depend on the number of windows.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from typing import Any, Final, Literal
from urllib.parse import unquote

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction, RemoveAction

from platform_assets.errors import (
    ConcurrentFoldError,
    FoldOutcomeUnknownError,
    LakeNotWritableError,
    LedgerCorruptError,
    PlatformError,
    TableRefusedError,
)
from platform_assets.lake import delta_log, failures, field_ids, new_tables, parquet
from platform_assets.lake.data_files import NewFile, delta_statistics
from platform_assets.lake.delta_log import Anchor
from platform_assets.lake.location import Folder
from platform_assets.model.digest import Digest
from platform_assets.model.snapshots import Attempt

FOLD_KEY: Final = "platform_assets_fold"
_VERSION: Final = 1
DELETED: Final = "deleted"
"""The column of changes that tells whether a record deletes its key."""
BOUNDED: Final = ("kafka_partition", "kafka_offset", "kafka_timestamp", parquet.WINDOW)
"""Columns with bounds in the files. The log has no bounds of other columns, so no value stays there after an erasure."""
_LEFT_OUT: Final = ("topic_id", DELETED)
VALID_FROM, VALID_TO = "valid_from", "valid_to"
"""Columns of a history: the first window in which a row counts, and the window in which it no longer does."""
ENDED_BY: Final = ("ended_generation", "ended_kafka_partition", "ended_kafka_offset")
"""Columns of a history: the position of the record that ended a row, whose window is `VALID_TO`."""
HISTORY_OWN: Final = (VALID_FROM, VALID_TO, *ENDED_BY)
_PLACE: Final = ("kafka_partition", "kafka_offset", "kafka_timestamp", "generation")
RETENTION: Final = timedelta(days=1)
"""Time for which files of past versions are kept. Each fold rewrites all files, so a week would take much space.
The version before the newest fold stays, whatever its age."""
_BACK: Final = 50
"""Number of commits in which files of other programs are looked up that are old enough to be deleted."""
BELOW: Final = "folds"
"""The folder of all files, below a table's folder."""


def live_columns(changes: pa.Schema) -> pa.Schema:
    """Return the columns of the table of live keys, given those of the table of changes. Pure."""
    return pa.schema([field for field in changes if field.name not in _LEFT_OUT])


def dead_columns(changes: pa.Schema, key: Sequence[str]) -> pa.Schema:
    """Return the columns of the table of deleted keys: the key, and the position of the record that deleted it. Pure."""
    return pa.schema([field for field in changes if field.name in (*_PLACE, *key, parquet.WINDOW)])


def history_columns(changes: pa.Schema) -> pa.Schema:
    """Return the columns of the history, given those of the table of changes. Pure."""
    comments = (
        "first window in which the row counts",
        "first later window in which it does not; null if there is none",
    )
    windows = [
        pa.field(name, pa.string(), metadata={"comment": text})
        for name, text in zip((VALID_FROM, VALID_TO), comments, strict=True)
    ]
    what = {"comment": "position of the record that ended the row, in window valid_to"}
    ended = [pa.field(name, changes.field(name.removeprefix("ended_")).type, metadata=what) for name in ENDED_BY]
    return pa.schema([*(field for field in changes if field.name != "topic_id"), *windows, *ended])


@dataclass(frozen=True, slots=True)
class FoldMetadata:
    """The `userMetadata` of a fold: a JSON object with a version number.

    The rows follow from the table of changes with the Delta id `changes_id`, as it was after the commit `changes`, by
    the rules with the digest `declaration`. `through` is the newest window that was folded, or an empty text. `windows`
    is the number of windows that this fold added or replaced. `rows` and `content` are the digest of all rows. `erases`
    is true if past files may have erased records, so that they have to be deleted. `truncated` is the window of the last
    truncate, or an empty text. `collected` is the window up to which deleted keys were removed from the table of deleted
    keys, or an empty text. `snapshots` are all attempts of the connector at a snapshot, if these delete keys.
    """

    fold_id: str
    run_id: str
    made: Literal["fold", "rebuild"]
    declaration: str
    changes_id: str
    changes: Anchor
    through: str
    windows: int
    rows: int = 0
    content: int = 0
    erases: bool = False
    truncated: str = ""
    collected: str = ""
    snapshots: tuple[Attempt, ...] = ()

    @property
    def digest(self) -> Digest:
        """The digest of all rows."""
        return Digest(self.rows, self.content)

    def of(self, digest: Digest, truncated: str = "", snapshots: tuple[Attempt, ...] = ()) -> FoldMetadata:
        """Return the metadata with the digest of all rows, the window of the last truncate, and all snapshot attempts."""
        return replace(self, rows=digest.rows, content=digest.total, truncated=truncated, snapshots=snapshots)

    def to_json(self) -> str:
        """Return the commit's `userMetadata`."""
        fields = asdict(self) | {"snapshots": [each.to_json() for each in self.snapshots]}
        for name in ("truncated", "collected", "snapshots"):
            if not fields[name]:
                # Releases that do not know the field refuse it.
                del fields[name]
        # A sum of 64-bit hashes needs more digits than other readers of JSON keep.
        return json.dumps({FOLD_KEY: _VERSION, **fields, "content": f"{self.content:x}"}, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str | None) -> FoldMetadata | None:
        """Parse a commit's `userMetadata`; return None if the commit is not a fold.

        Raises LedgerCorruptError for a version that this release does not know.
        """
        try:
            fields: Any = json.loads(text or "null")
        except json.JSONDecodeError:
            return None
        if not isinstance(fields, dict) or FOLD_KEY not in fields:
            return None
        version = fields.pop(FOLD_KEY)
        if version != _VERSION:
            raise LedgerCorruptError(
                f"a fold has metadata version {version}, but this release supports only {_VERSION}: upgrade before you continue"
            )
        snapshots = tuple(map(Attempt.from_json, fields.pop("snapshots", ())))
        own = {"changes": Anchor(**fields["changes"]), "content": int(fields["content"], 16), "snapshots": snapshots}
        return cls(**{**fields, **own})


@dataclass(frozen=True, slots=True)
class Opened:
    """A table of a state as it was when it was opened. `fold` is its newest fold; None if the table's log has none."""

    folder: Folder
    handle: DeltaTable
    fold: FoldMetadata | None

    @property
    def version(self) -> int:
        """The table's version."""
        return int(self.handle.version())

    @property
    def columns(self) -> pa.Schema:
        """The table's columns, with their field ids."""
        return pa.schema(self.handle.schema().to_arrow())

    def files(self) -> pa.Table:
        """Return the actions that added the data files, with their `path`, `size_bytes` and `num_records`."""
        with self.folder.reading():
            return pa.table(self.handle.get_add_actions()).select(["path", "size_bytes", "num_records"])


def create(folder: Folder, columns: pa.Schema, *, name: str, description: str) -> None:
    """Create a table of a state, unless it exists by now. Raises LakeNotWritableError."""
    new_tables.create(folder, Schema.from_arrow(columns), name=name, description=description)


def opened(folder: Folder) -> Opened:
    """Open a table of a state. Raises TableGoneError if there is none."""
    handle = folder.delta()
    return Opened(folder, handle, newest_fold(folder, int(handle.version())))


def newest_fold(folder: Folder, version: int) -> FoldMetadata | None:
    """Return the fold that made the rows of a version; None if the log does not name one, or another program changed them."""
    while version >= 0 and (commit := delta_log.commit(folder, version)) is not None:
        found = FoldMetadata.from_json(commit.user_metadata)
        if found is not None:
            return found
        if (commit.adds or commit.removes) and not commit.rearranges:
            # Another program has changed rows since the fold.
            return None
        version -= 1
    return None


def commit(opened: Opened, columns: pa.Schema, files: Sequence[NewFile], metadata: FoldMetadata) -> int:
    """Make `files` the whole content of the table, with these columns; return the table's new version.

    Raises ConcurrentFoldError if the table has changed since it was opened; FoldOutcomeUnknownError if it is unknown
    whether the commit was made; TableRefusedError, and LakeNotWritableError. Only after FoldOutcomeUnknownError, the
    log may name the files.
    """
    folder, now = opened.folder, round(time.time() * 1000)
    adds: list[AddAction | RemoveAction] = [
        AddAction(file.path, file.bytes, {}, now, True, delta_statistics(file)) for file in files
    ]
    try:
        opened.handle.create_write_transaction(
            adds,
            "overwrite",
            Schema.from_arrow(columns),
            partition_by=[],
            commit_properties=CommitProperties(
                custom_metadata={"userMetadata": metadata.to_json()}, max_commit_retries=0
            ),
        )
    except CommitFailedError as e:
        # A client that got no answer has perhaps tried again, and found its own commit.
        made = _made_since(opened, metadata)
        if made is not None:
            return made
        if delta_log.version(folder) == opened.version:
            raise TableRefusedError(folder.name, failures.reason_of(e)) from e
        raise ConcurrentFoldError(str(folder)) from e
    except failures.RAISED as e:
        made = _made_since(opened, metadata)
        if made is not None:
            return made
        error = failures.to_platform_error(e, str(folder), writes=True)
        if isinstance(error, LakeNotWritableError):
            raise error from e
        raise FoldOutcomeUnknownError(str(folder), failures.reason_of(e)) from e
    made = _made_since(opened, metadata)
    if made is None:
        raise FoldOutcomeUnknownError(str(folder), "the table's log does not list the commit")
    return made


def _made_since(opened: Opened, metadata: FoldMetadata) -> int | None:
    try:
        version = opened.version + 1
        while (found := delta_log.commit(opened.folder, version)) is not None:
            made = FoldMetadata.from_json(found.user_metadata)
            if made is not None and made.fold_id == metadata.fold_id:
                return version
            version += 1
    except PlatformError as e:
        raise FoldOutcomeUnknownError(str(opened.folder), str(e)) from e
    return None


def columns_for(now: pa.Schema | None, wanted: pa.Schema) -> pa.Schema:
    """Return the columns of new files, with field ids: those of `now` keep their ids. Pure."""
    return field_ids.assigned(wanted, now)


def blocks(
    folder: Folder, path: str, columns: pa.Schema, rows_at_once: int, bytes_at_once: int | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file with `columns`, in blocks. A column that the file lacks is null. `path` is in the form
    that the log uses. With `bytes_at_once`, blocks of wide rows have fewer rows. Raises FilesLostError, also if a page of a
    fold's file does not match its checksum."""
    plain = pa.schema([field.remove_metadata() for field in columns])
    name = unquote(path)
    with failures.reading_files(folder, ""), folder.open(name) as source:
        # Other programs may write checksums that pyarrow does not expect.
        file = parquet.opened(source, page_checksum_verification=name.startswith(f"{BELOW}/"))
        held = parquet.plain_schema(file)
        names = [name for name in plain.names if name in held.names]
        if bytes_at_once is not None:
            rows_at_once = min(rows_at_once, parquet.rows_within(file, bytes_at_once))
        for block in file.iter_batches(rows_at_once, columns=names, use_threads=False):
            found = block.cast(parquet.among(held, block.schema))
            yield pa.RecordBatch.from_arrays(
                [found[f.name].cast(f.type) if f.name in names else pa.nulls(len(found), f.type) for f in plain],
                schema=plain,
            )


def name_of(folder: Folder) -> str:
    """Return the name by which errors refer to the table in this folder, such as `state/orders`."""
    return "/".join(str(folder).rsplit("/", 2)[-2:])


def folder_of(version: int, fold_id: str) -> str:
    """Return the folder for the files of a fold that opened this version of the table, below the table's folder."""
    return f"{BELOW}/v{version}-{fold_id}"


def past_files(folder: Folder, made: int, handle: DeltaTable | None = None) -> list[str]:
    """Return the files of all folds that began before the commit `made`, and the files of other programs that the table
    had before it, without those that the newest version names. `handle` is the newest version, if it is at hand.

    A fold that began before `made` can no longer commit. Files of later folds are left out.
    """
    with folder.reading():
        below = [f"{BELOW}/{name}" for name in folder.folders(BELOW) if _began(name) < made]
    found = [f"{each}/{name}" for each in below for name in folder.files(each)]
    return _unnamed(folder, [*found, *_of_others(folder, made)], handle)


def _of_others(folder: Folder, made: int, back: int | None = None) -> list[str]:
    """Return the files outside `BELOW` that still exist and that were removed from the table in the last `back` commits
    up to `made` or, if `back` is None, since the fold before it."""
    found, version = list[str](), made
    while version >= 0 and (commit := delta_log.commit(folder, version)) is not None:
        is_before = back is None and version < made and FoldMetadata.from_json(commit.user_metadata) is not None
        if is_before or (back is not None and made - version >= back):
            break
        found += [name for name in map(unquote, commit.removes) if not name.startswith((f"{BELOW}/", "_"))]
        version -= 1
    return [name for name in dict.fromkeys(found) if folder.has(name)]


def delete_past_files(folder: Folder, made: int) -> int:
    """Delete the `past_files`; return their number. Past versions can then no longer be read. Raises
    LakeNotWritableError."""
    past = past_files(folder, made)
    folder.erase(past)
    return len(past)


def delete_old_files(folder: Folder, made: int, retention: timedelta = RETENTION) -> int:
    """Delete files that are older than `retention` and that neither the newest version nor the one before the commit
    `made` has; return their number. They include files of other programs that the table had before that version. A fold
    that takes longer than `retention` would fail. Raises LakeNotWritableError."""
    moment = folder.time() - retention
    # Derived tables compare both versions, also if folds are days apart.
    before = delta_log.commit(folder, made)
    replaced = set() if before is None else set(map(unquote, before.removes))
    others = set(_of_others(folder, made, _BACK))
    if others:
        others &= set(folder.written_before(moment, ""))
    found = [*folder.written_before(moment, BELOW), *sorted(others)]
    past = _unnamed(folder, [name for name in found if name not in replaced])
    folder.erase(past)
    return len(past)


def _unnamed(folder: Folder, names: Sequence[str], handle: DeltaTable | None = None) -> list[str]:
    if not names:
        return []
    handle = folder.delta() if handle is None else handle
    with folder.reading():
        named = {unquote(path) for path in pa.table(handle.get_add_actions())["path"].to_pylist()}
    return [name for name in names if name not in named]


def _began(below: str) -> int:
    version = below.removeprefix("v").partition("-")[0]
    return int(version) if version.isdigit() else 0
