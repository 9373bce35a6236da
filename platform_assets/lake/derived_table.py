"""Derived tables in the lake: the metadata of their commits, and the only code that commits to them.

A commit names the versions of all inputs, and the groups that it replaced. delta-rs's own retries are off, so a commit is refused if
any other commit came first.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Schema
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction, RemoveAction

from platform_assets.errors import (
    ConcurrentDerivationError,
    DerivationUnknownError,
    LakeNotWritableError,
    LedgerCorruptError,
    TableRefusedError,
)
from platform_assets.lake import column_bounds, delta_log, failures
from platform_assets.lake.location import Folder
from platform_assets.model.derived import WINDOW, DerivedRef

METADATA_KEY: Final = "platform_assets_derived"
METADATA_VERSION: Final = 1
MOST_LISTED: Final = 200
"""Maximum number of loads that a commit lists. Of more, it has the number and a digest."""
FOLDER: Final = "groups"
"""Folder of the data files, below the table's folder. Each run has a folder of its own in it."""
PROPERTIES: Final = {"delta.isolationLevel": "Serializable", "delta.enableDeletionVectors": "false"}

Extent = Literal["whole", "groups", "nothing"]
"""whole: all rows were computed; groups: the rows of some groups were replaced; nothing: the inputs had no change of rows."""


@dataclass(frozen=True, slots=True)
class InputVersion:
    """The version of an input, Delta's id of that table, which changes if the table is created again, and the digest of the version's
    commit, which differs if another copy of the table was put in its place. The digest is empty if the log has no such commit."""

    version: int
    table_id: str
    digest: str = ""


@dataclass(frozen=True, slots=True)
class RowsDigest:
    """A number of rows, and the exact sum of their hashes. The definition is in docs/DIGEST.md."""

    rows: int = 0
    total: int = 0

    def __add__(self, other: RowsDigest) -> RowsDigest:
        return RowsDigest(self.rows + other.rows, self.total + other.total)

    def __sub__(self, other: RowsDigest) -> RowsDigest:
        return RowsDigest(self.rows - other.rows, self.total - other.total)

    def to_json(self) -> list[Any]:
        """Return the form in commit metadata: the sum as text, because JSON readers round large numbers."""
        return [self.rows, str(self.total)]


@dataclass(frozen=True, slots=True)
class Derivation:
    """The `userMetadata` of a commit to a derived table: a JSON object with a version number.

    `inputs` maps the name of each input to its version. `because` says why all rows were computed. `groups` has the number of
    replaced groups and a digest of them, but no values, which may be personal data. `loads` lists the changed windows of the driving
    table with the ids of their loads; it is bounded, see `listed`. `replaced` and `written` are the digests of the replaced groups
    before and after, and `table` is that of the whole table after the commit. `erased` has, by topic, the number of completed erasures
    that the inputs had seen.
    """

    table: DerivedRef
    run_id: str
    declaration: str
    inputs: Mapping[str, InputVersion]
    extent: Extent
    because: str
    groups: Mapping[str, Any]
    loads: Mapping[str, Any]
    replaced: RowsDigest
    written: RowsDigest
    whole: RowsDigest
    erased: Mapping[str, int] = field(default_factory=dict)

    def to_json(self) -> str:
        """The commit's `userMetadata`."""
        fields = {
            METADATA_KEY: METADATA_VERSION,
            "table": self.table.name,
            "run_id": self.run_id,
            "declaration": self.declaration,
            "inputs": {
                n: {"version": i.version, "table_id": i.table_id, "commit": i.digest}
                for n, i in sorted(self.inputs.items())
            },
            "extent": self.extent,
            "because": self.because,
            "groups": self.groups,
            "loads": self.loads,
            "replaced": self.replaced.to_json(),
            "written": self.written.to_json(),
            "rows": self.whole.to_json(),
            **({"erased": dict(sorted(self.erased.items()))} if self.erased else {}),
        }
        return json.dumps(fields, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str | None) -> Derivation | None:
        """Parse a commit's `userMetadata`; return None for other commits. Raises LedgerCorruptError for an unknown version."""
        if text is None or METADATA_KEY not in text:
            return None
        try:
            fields: Any = json.loads(text)
        except json.JSONDecodeError:
            return None
        if not isinstance(fields, dict) or METADATA_KEY not in fields:
            return None
        if fields[METADATA_KEY] != METADATA_VERSION:
            raise LedgerCorruptError(
                f"a commit of a derived table has metadata version {fields[METADATA_KEY]}, but this release supports only "
                f"{METADATA_VERSION}: upgrade before you continue"
            )
        ref = DerivedRef.parse(fields["table"])
        assert ref is not None, "unreachable: the platform wrote the name"
        return cls(
            table=ref,
            run_id=fields["run_id"],
            declaration=fields["declaration"],
            inputs={
                n: InputVersion(i["version"], i["table_id"], i.get("commit", "")) for n, i in fields["inputs"].items()
            },
            extent=fields["extent"],
            because=fields["because"],
            groups=fields["groups"],
            loads=fields["loads"],
            replaced=_digest(fields["replaced"]),
            written=_digest(fields["written"]),
            whole=_digest(fields["rows"]),
            erased=fields.get("erased", {}),
        )


def _digest(pair: Sequence[Any]) -> RowsDigest:
    return RowsDigest(int(pair[0]), int(pair[1]))


@dataclass(frozen=True, slots=True)
class Made:
    """A derivation in a table's log, and the version that it made."""

    version: int
    derivation: Derivation


def newest(folder: Folder, at: int | None = None) -> tuple[Made | None, bool]:
    """Return the newest derivation up to version `at`, and True if other writers changed rows or columns after it."""
    changed = False
    for number in range(delta_log.version(folder) if at is None else at, -1, -1):
        commit = delta_log.commit(folder, number)
        if commit is None:
            return None, True
        found = Derivation.from_json(commit.user_metadata)
        if found is not None:
            return Made(number, found), changed
        changed = changed or commit.reshapes or (bool(commit.adds or commit.removes) and not commit.rearranges)
    return None, changed


@dataclass(frozen=True, slots=True)
class DerivedFile:
    """A data file of a derived table: its path below the table's folder, not percent-encoded, and its size and rows."""

    path: str
    bytes: int
    rows: int
    statistics: str


def written_files(folder: Folder, below: str, columns: Sequence[str]) -> list[DerivedFile]:
    """Describe the Parquet files with rows in the folder `below`, with the bounds of `columns`.

    Columns of text other than the window have no bounds, because a bound is a value, and may be personal data.
    """
    found = []
    for name in sorted(folder.files(below)):
        if not name.endswith(".parquet") or name[0] in "._":
            continue
        path = f"{below}/{name}"
        with folder.reading(), folder.open(path) as opened:
            footer, size = pq.ParquetFile(opened).metadata, opened.size()
        low: dict[str, Any] = {}
        high: dict[str, Any] = {}
        nulls: dict[str, int] = {}
        for column in columns:
            bounds = column_bounds.of(footer, column)
            if bounds is not None and (column == WINDOW or not isinstance(bounds[0], str | bytes)):
                low[column], high[column], nulls[column] = bounds
        text = {"numRecords": footer.num_rows, "minValues": low, "maxValues": high, "nullCount": nulls}
        if footer.num_rows:
            found.append(DerivedFile(path, size, footer.num_rows, json.dumps(text, separators=(",", ":"))))
    return found


def files_of(folder: Folder, handle: DeltaTable) -> dict[str, tuple[int, int | None]]:
    """Return the data files of a version by path, not percent-encoded, with their sizes, and their numbers of rows or None."""
    with folder.reading():
        found = pa.table(handle.get_add_actions())
    columns = (found[name].to_pylist() for name in ("path", "size_bytes", "num_records"))
    return {unquote(path): (size, rows) for path, size, rows in zip(*columns, strict=True)}


def begun(folder: Folder) -> frozenset[str]:
    """Return the names of the folders that runs have begun, committed or not."""
    return frozenset(folder.folders(FOLDER))


def past_files(folder: Folder, newest: Made, among: Collection[str], *, dead: bool) -> list[str]:
    """Return the files, in the folders `among`, that may hold erased values and that the version `newest` does not use.

    These are the files of commits that have seen other erasures than `newest`. With `dead`, they include the files of all folders
    that no commit in the log names, so no folder in `among` may belong to a run that can still commit. Nothing if the table has
    other commits after `newest`.
    """
    handle = folder.delta()
    named = files_of(folder, handle)
    if any(Derivation.from_json(c.user_metadata) is not None for c in _after(folder, newest.version)):
        return []
    unnamed = {name: paths for name in among if (paths := _unnamed(folder, f"{FOLDER}/{name}", named))}
    before = _seen(folder, newest, {name.removesuffix("-kept") for name in unnamed})
    found = []
    for name, paths in sorted(unnamed.items()):
        seen = before.get(name.removesuffix("-kept"))
        if dead if seen is None else seen != newest.derivation.erased:
            found += paths
    if newest.derivation.erased:
        # Files that other writers' commits have removed, for example after OPTIMIZE. The list comes from the log, so it
        # also names files that do not exist any more.
        with folder.reading():
            removed = handle.vacuum(0, dry_run=True, enforce_retention_duration=False)
        found += [
            path
            for path in map(unquote, removed)
            if not path.startswith((f"{FOLDER}/", "_")) and path not in named and folder.has(path)
        ]
    return found


def _unnamed(folder: Folder, below: str, named: Collection[str]) -> list[str]:
    """Return the files below a folder, also those of tasks that died, that are not `named`, without the checksums that Spark writes
    next to named files."""
    kept = {f"{below}/.{path.rpartition('/')[2]}.crc" for path in named if path.startswith(f"{below}/")}
    return [path for name in (folder / below).stamps() if (path := f"{below}/{name}") not in named and path not in kept]


def _seen(folder: Folder, newest: Made, runs: Collection[str]) -> dict[str, Mapping[str, int]]:
    """Return the erasures that the commits of these runs have seen, by run, for the runs whose commits the log still has."""
    found: dict[str, Mapping[str, int]] = {}
    for number in range(newest.version, -1, -1):
        if len(found) == len(runs) or (commit := delta_log.commit(folder, number)) is None:
            break
        own = Derivation.from_json(commit.user_metadata)
        if own is not None and own.run_id in runs:
            found[own.run_id] = own.erased
    return found


def batches(folder: Folder, path: str, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield these columns of a data file, in batches."""
    with folder.reading(), folder.open(path) as opened:
        yield from pq.ParquetFile(opened).iter_batches(columns=list(columns))


def create(folder: Folder, table: DerivedRef, schema: Schema) -> None:
    """Create the table, unless it exists by now. Raises LakeNotWritableError."""
    folder.create_delta(
        schema,
        partition_by=None,
        name=f"derived_{table.short}",
        description=f"Derived table {table.short}",
        configuration=PROPERTIES,
    )


def commit(
    folder: Folder,
    handle: DeltaTable,
    derivation: Derivation,
    new: Sequence[DerivedFile],
    removed: Collection[str],
    schema: Schema | None,
) -> Made:
    """Replace the files `removed` by `new` in one commit on top of the version of `handle`. With `schema`, replace all files, and the
    columns.

    Raises ConcurrentDerivationError if another commit came first, DerivationUnknownError if it is unknown whether the commit was
    made, TableRefusedError, and LakeNotWritableError.
    """
    now, base, known = round(time.time() * 1000), handle.version(), files_of(folder, handle)
    adds = [AddAction(f.path, f.bytes, {}, now, True, f.statistics) for f in new]
    removes = (
        [] if schema is not None else [RemoveAction(path, True, now, known[path][0], {}) for path in sorted(removed)]
    )
    try:
        handle.create_write_transaction(
            [*removes, *adds],
            "append" if schema is None else "overwrite",
            handle.schema() if schema is None else schema,
            partition_by=[],
            commit_properties=CommitProperties(
                custom_metadata={"userMetadata": derivation.to_json()}, max_commit_retries=0
            ),
        )
    except CommitFailedError as e:
        made = _made(folder, derivation, base)
        if made is not None:
            return made
        if delta_log.version(folder) == base:
            raise TableRefusedError(derivation.table.name, failures.reason_of(e)) from e
        raise ConcurrentDerivationError(derivation.table.name) from e
    except failures.RAISED as e:
        made = _made(folder, derivation, base)
        if made is not None:
            return made
        error = failures.to_platform_error(e, str(folder), writes=True)
        if isinstance(error, LakeNotWritableError):
            raise error from e
        raise DerivationUnknownError(derivation.table.name, failures.reason_of(e)) from e
    made = _made(folder, derivation, base)
    if made is None:
        raise DerivationUnknownError(derivation.table.name, "the table's log does not list the commit")
    return made


def _made(folder: Folder, derivation: Derivation, after: int) -> Made | None:
    for found in _after(folder, after):
        own = Derivation.from_json(found.user_metadata)
        if own is not None and own.run_id == derivation.run_id:
            return Made(found.version, own)
    return None


def _after(folder: Folder, version: int) -> Iterator[delta_log.Commit]:
    while (found := delta_log.commit(folder, version + 1)) is not None:
        yield found
        version += 1
